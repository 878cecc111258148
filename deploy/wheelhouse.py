"""Wheels of an image: what lakeshare needs with some extras, in the versions and with the hashes of requirements.lock.

`python deploy/wheelhouse.py CACHE PYTHON_VERSION EXTRA...` prints a folder below CACHE that has them, and fills it the
first time. pip downloads, as it is configured on this machine: the build of an image needs no network, and no
configuration of pip gets into one.
"""

import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIP = "pip==26.2.1"
# Debian 12 and newer have glibc 2.36; pip takes a wheel of the first of these that a package offers.
GLIBC_TAGS = (
    "manylinux_2_34",
    "manylinux_2_28",
    "manylinux_2_27",
    "manylinux_2_24",
    "manylinux_2_17",
    "manylinux2014",
)
EVERYWHERE = "-none-any.whl"


def main() -> None:
    cache, python_version, *extras = sys.argv[1:]
    locked = select_locked(list_needed(python_version, extras))
    key = hashlib.sha256(
        f"{locked}{PIP}{GLIBC_TAGS}{python_version}{platform.machine()}".encode()
    ).hexdigest()[:16]
    wheels = Path(cache).resolve() / f"wheels-{key}"
    if not wheels.is_dir():
        print(f"wheelhouse: downloading {locked.count('==')} packages into {wheels}", file=sys.stderr)
        wheels.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wheels.parent) as scratch:
            fill(Path(scratch) / "wheels", locked, python_version).rename(wheels)
    # When it was last used.
    wheels.touch()
    print(wheels)


def fill(wheels: Path, locked: str, python_version: str) -> Path:
    """Download what is locked into a new folder, and build wheels of source archives."""
    wheels.mkdir()
    requirements = wheels.with_suffix(".txt")
    requirements.write_text(locked)
    download(requirements, python_version, wheels)
    for archive in sorted(wheels.glob("*.tar.gz")):
        build_wheel(archive, wheels.parents[1] / "built-wheels")
    return wheels


def list_needed(python_version: str, extras: list[str]) -> set[str]:
    """`name==version` of the packages that lakeshare needs with these extras on Linux, in versions of the lock."""
    chosen = [part for extra in extras for part in ("--extra", extra)]
    lines = run(
        *(uv(), "pip", "compile", "--quiet", "pyproject.toml", *chosen, "--constraint", "requirements.lock"),
        *("--python-version", python_version, "--python-platform", f"{platform.machine()}-manylinux_2_28"),
        *("--no-header", "--no-annotate"),
    )
    return {line.split(";")[0].strip() for line in lines.splitlines() if line.strip()}


def select_locked(needed: set[str]) -> str:
    """Their entries in requirements.lock with the hashes, without markers: pip compares those with its own Python."""
    entries = re.split(r"^(?=[a-z0-9])", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)
    locked = {re.split(r"[ ;\\]", entry, maxsplit=1)[0]: entry for entry in entries if "==" in entry}
    if missing := sorted(needed - locked.keys()):
        sys.exit(f"wheelhouse: {', '.join(missing)} are not in requirements.lock; run `make lock`")
    return "".join(re.sub(r" ;.*(?= \\$)", "", locked[name], flags=re.MULTILINE) for name in sorted(needed))


def download(locked: Path, python_version: str, wheels: Path) -> None:
    """Download each package, a wheel where there is one; pip compares the hashes."""
    tags = [part for tag in GLIBC_TAGS for part in ("--platform", f"{tag}_{platform.machine()}")]
    digits = python_version.replace(".", "")
    run(
        *(*pip(), "download", "--quiet", "--no-deps", "--require-hashes", "--prefer-binary"),
        *("--requirement", str(locked), "--dest", str(wheels), "--python-version", python_version),
        *("--implementation", "cp", "--abi", f"cp{digits}", "--abi", "abi3", "--abi", "none", *tags),
    )


def build_wheel(archive: Path, built: Path) -> None:
    """Replace a source archive by its wheel, for any Python 3; `built` keeps it (Spark's takes minutes)."""
    kept = built / hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    if not kept.is_dir():
        built.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built) as scratch:
            run(*pip(), "wheel", "--quiet", "--no-deps", "--wheel-dir", f"{scratch}/wheel", str(archive))
            Path(scratch, "wheel").rename(kept)
    (wheel,) = kept.iterdir()
    if not wheel.name.endswith(EVERYWHERE):
        sys.exit(f"wheelhouse: {archive.name} has compiled parts; lock a version that has wheels")
    archive.with_name(wheel.name).hardlink_to(wheel)
    archive.unlink()


def uv() -> str:
    return (ROOT / ".venv/.uv").read_text().strip()


def pip() -> tuple[str, ...]:
    return (
        uv(),
        "run",
        "--quiet",
        "--no-project",
        "--python",
        sys.executable,
        "--with",
        PIP,
        "python",
        "-m",
        "pip",
    )


def run(*command: str) -> str:
    """Run a command in the repository; its standard output, or the end of this program with its exit code."""
    ended = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ | {"PIP_NO_INPUT": "1"}
    )
    if ended.returncode:
        sys.exit(f"wheelhouse: `{' '.join(command[:6])} …` failed with exit code {ended.returncode}")
    return ended.stdout


if __name__ == "__main__":
    main()
