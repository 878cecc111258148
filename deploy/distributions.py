"""Wheel, sdist and constraints of this checkout, and empty environments they are installed into."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
# 2026-01-01, for what is built and not released: a checkout may have no history.
NO_TIME = 1_767_225_600
# A line of the lock is `name==version`, perhaps a marker, and hashes on lines of their own.
LOCKED = re.compile(r"^([A-Za-z0-9._-]+(?:\[[^\]]*\])?)==(\S+?)( ; [^\\]+?)?(?: \\)?$", re.MULTILINE)
# Variables of this machine, which another does not have; without bytecode every start would compile 2,000 modules.
FOREIGN, KEPT = ("LAKESHARE_", "PYTHON", "VIRTUAL_ENV", "DAGSTER_HOME"), "LAKESHARE_CACHE_DIR"


def find_uv() -> str:
    """The uv that made `.venv`."""
    return (ROOT / ".venv" / ".uv").read_text().strip()


def read_commit_time() -> int:
    """Seconds since 1970 of the last commit, or `SOURCE_DATE_EPOCH`; what is built carries this time."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    # A checkout may belong to another user than the one who builds.
    command = ["git", "-c", f"safe.directory={ROOT}", "log", "-1", "--format=%ct"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if shown.returncode:
        raise RuntimeError(f"no commit has a time here, set SOURCE_DATE_EPOCH: {shown.stderr.strip()}")
    return int(shown.stdout)


def build(folder: Path, *targets: str, source: Path = ROOT, commit_time: int | None = None) -> list[Path]:
    """Builds `wheel` and `sdist`, or the given one, of a source folder with the locked hatchling; the files."""
    chosen = [word for target in targets or ("sdist", "wheel") for word in ("-t", target)]
    epoch = str(read_commit_time() if commit_time is None else commit_time)
    before = set(folder.glob("*"))
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder), *chosen],
        cwd=source,
        env=os.environ | {"SOURCE_DATE_EPOCH": epoch},
        check=True,
        capture_output=True,
    )
    return sorted(set(folder.glob("*")) - before)


def list_locked(lock: str) -> Iterator[tuple[str, str, str]]:
    """Name, version and marker (empty without one) of each package of a lock file's text."""
    for name, version, marker in LOCKED.findall(lock):
        yield name, version, marker.removeprefix(" ; ").strip()


def format_constraints(lock: str) -> str:
    """The lock as pip's constraints: versions without hashes and extras, for those who install lakeshare."""
    return "".join(
        f"{name.partition('[')[0]}=={version}{f' ; {marker}' if marker else ''}\n"
        for name, version, marker in list_locked(lock)
    )


def make_environment(
    folder: Path,
    python: str,
    distribution: Path,
    constraints: Path,
    extras: Sequence[str] = (),
    *,
    is_compiled: bool = False,
) -> Path:
    """Makes an environment with a distribution and nothing else; the folder of its commands.

    What uv has in its cache is linked. It asks an index only for what is missing there. `is_compiled` compiles all
    modules, as pip does.
    """
    uv = find_uv()
    _run(uv, "venv", "--quiet", "--no-project", "--python", python, str(folder))
    chosen = f"[{','.join(extras)}]" if extras else ""
    wanted = f"lakeshare{chosen} @ {distribution.as_uri()}"
    install = [uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python")]
    install += ["--constraint", str(constraints), *(["--compile-bytecode"] if is_compiled else []), wanted]
    if subprocess.run([*install, "--offline"], capture_output=True, cwd=folder).returncode:
        _run(*install)
    return folder / "bin"


def clean_variables(commands: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a user of an environment: its commands first, no settings of this checkout, and those given."""
    kept = {name: text for name, text in os.environ.items() if name == KEPT or not name.startswith(FOREIGN)}
    return kept | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"} | dict(variables)


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stderr}")
