"""Makes a release: wheel, sdist, constraints, bill of materials, licences, notes and checksums; always the same bytes.

`make release` writes them into dist/; docs/how-to/release.md has the steps before and after.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from deploy.distributions import LOCK, ROOT, build, format_constraints, make_environment, read_commit_time
from deploy.licenses import LicenseRefused, check_licenses, format_report, read_licenses, read_policy

PROJECT, CHANGELOG = ROOT / "pyproject.toml", ROOT / "CHANGELOG.md"
CHART = ROOT / "deploy/helm/lakeshare/Chart.yaml"
UNRELEASED = "## [Unreleased]\n"
VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)((?:a|b|rc)[1-9]\d*)?")
VERSION_LINE = re.compile(r'^version = "(.*)"$', re.MULTILINE)
CHART_VERSION = re.compile(r"^version: .*$", re.MULTILINE)
APP_VERSION = re.compile(r"^appVersion: .*$", re.MULTILINE)
CHECKSUMS = "SHA256SUMS"


class ReleaseRefused(Exception):
    """The checkout is not ready for a release; the text has the remedy."""


def read_version(project: str) -> str:
    """The version of pyproject.toml; `prepare` gives the chart the same."""
    version: str = tomllib.loads(project)["project"]["version"]
    return version


def find_section(changelog: str, name: str) -> str | None:
    """What the changelog has under `## [name]`, without the heading; None if it has no such section."""
    found = re.search(rf"^## \[{re.escape(name)}\].*\n((?:(?!## ).*\n)*)", changelog, re.MULTILINE)
    return found[1].strip() if found else None


def format_notes(changelog: str, version: str, *, is_snapshot: bool) -> str:
    """The release notes of a version; those of a snapshot are what is unreleased, or else of its version.

    Raises:
        ReleaseRefused: the changelog has no section of the version.
    """
    unreleased = find_section(changelog, "Unreleased") if is_snapshot else None
    section = unreleased or find_section(changelog, version)
    if not section:
        raise ReleaseRefused(
            f"CHANGELOG.md has no section [{version}]: `make prepare-release VERSION={version}` makes it of what is "
            "unreleased, and ARGS=--snapshot builds without it"
        )
    return f"# lakeshare {version}{' (snapshot)' if is_snapshot else ''}\n\n{section}\n"


def prepare(project: str, changelog: str, chart: str, version: str, day: str) -> tuple[str, str, str]:
    """pyproject.toml, CHANGELOG.md and the chart of a new version: its section takes what was unreleased.

    Raises:
        ReleaseRefused: the version is none, is not newer, or nothing is unreleased.
    """
    if not VERSION.fullmatch(version):
        raise ReleaseRefused(f"VERSION={version} is no version: 1.2.3, or 1.2.3rc1 before it")
    if find_section(changelog, version) is not None:
        raise ReleaseRefused(f"CHANGELOG.md has a section [{version}]: that version is released")
    released = re.findall(r"^## \[(\d[^\]]*)\]", changelog, re.MULTILINE)
    if newer := [each for each in released if _version_key(each) >= _version_key(version)]:
        raise ReleaseRefused(f"VERSION={version} is not newer than {newer[0]}")
    if not find_section(changelog, "Unreleased"):
        raise ReleaseRefused("CHANGELOG.md has nothing under [Unreleased]: there is nothing to release")
    heading = f"{UNRELEASED}\n## [{version}] - {day}\n"
    # Helm takes semantic versions only; tags of images are Python's.
    semantic = re.sub(r"(a|b|rc)(\d+)$", r"-\1.\2", version)
    return (
        VERSION_LINE.sub(f'version = "{version}"', project, count=1),
        changelog.replace(UNRELEASED, heading, 1),
        APP_VERSION.sub(f'appVersion: "{version}"', CHART_VERSION.sub(f"version: {semantic}", chart)),
    )


def _version_key(version: str) -> tuple[int, int, int, bool, str, int]:
    found = VERSION.fullmatch(version)
    if found is None:
        raise ReleaseRefused(f"CHANGELOG.md: [{version}] is no version")
    before = found[4] or ""
    number = int(re.sub(r"\D", "", before) or 0)
    return int(found[1]), int(found[2]), int(found[3]), not before, before.rstrip("0123456789"), number


def write_release(folder: Path, *, is_snapshot: bool = False, is_validated: bool = True) -> None:
    """Writes all files of a release into an empty folder; validating the bill of materials takes 10 seconds.

    Raises:
        ReleaseRefused: the changelog has no section of the version.
        LicenseRefused: a locked package may not be used.
    """
    version, lock = read_version(PROJECT.read_text()), LOCK.read_text()
    notes = format_notes(CHANGELOG.read_text(), version, is_snapshot=is_snapshot)
    policy = read_policy()
    licenses = read_licenses(lock, policy)
    check_licenses(licenses, policy)
    [wheel] = [path for path in build(folder) if path.suffix == ".whl"]
    constraints = folder / "constraints.txt"
    constraints.write_text(format_constraints(lock))
    (folder / "licenses.csv").write_text(format_report(licenses))
    (folder / "RELEASE-NOTES.md").write_text(notes)
    bill = folder / f"lakeshare-{version}.cdx.json"
    write_bill_of_materials(bill, wheel, constraints, is_validated=is_validated)
    (folder / CHECKSUMS).write_text(format_checksums(folder))


def write_bill_of_materials(target: Path, wheel: Path, constraints: Path, *, is_validated: bool) -> None:
    """Writes CycloneDX JSON of an environment with all extras, with each package's licence and what it depends on."""
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    with tempfile.TemporaryDirectory(prefix="lakeshare-release-") as name:
        environment = Path(name) / "environment"
        commands = make_environment(environment, sys.executable, wheel, constraints, sorted(extras))
        command = [sys.executable, "-m", "cyclonedx_py", "environment", str(commands / "python")]
        command += ["--pyproject", str(PROJECT), "--output-reproducible", "--of", "JSON", "-o", str(target)]
        command += ["--validate" if is_validated else "--no-validate"]
        epoch = {"SOURCE_DATE_EPOCH": str(read_commit_time())}
        subprocess.run(command, env=os.environ | epoch, check=True, capture_output=True)


def format_checksums(folder: Path) -> str:
    """Lines for `sha256sum --check` of all files of a folder."""
    files = sorted(path for path in folder.iterdir() if path.name != CHECKSUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def check_twice(folder: Path) -> str:
    """Builds a snapshot twice; its checksums. Raises ReleaseRefused if the two differ."""
    sums = []
    for name in ("first", "second"):
        (folder / name).mkdir()
        write_release(folder / name, is_snapshot=True, is_validated=name == "first")
        sums.append((folder / name / CHECKSUMS).read_text())
    if sums[0] != sums[1]:
        raise ReleaseRefused(f"two builds differ:\n{sums[0]}\n{sums[1]}")
    return sums[0]


def clear(folder: Path) -> None:
    """Makes a folder, or removes the files of an earlier release from it.

    Raises:
        ReleaseRefused: the folder has other files, which stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sums = folder / CHECKSUMS
    ours = {line.partition("  ")[2] for line in sums.read_text().splitlines()} if sums.exists() else set()
    others = sorted(path.name for path in folder.iterdir() if path.name not in {*ours, CHECKSUMS})
    if others:
        raise ReleaseRefused(
            f"{folder} has other files ({', '.join(others[:3])}): move them, or give another folder with --to"
        )
    for path in folder.iterdir():
        path.unlink()


def run(chosen: argparse.Namespace) -> None:
    if chosen.prepare:
        today = datetime.now(UTC).date().isoformat()
        files = PROJECT, CHANGELOG, CHART
        project, changelog, chart = (path.read_text() for path in files)
        prepared = prepare(project, changelog, chart, chosen.prepare, today)
        for path, text in zip(files, prepared, strict=True):
            path.write_text(text)
        print(
            f"{', '.join(path.name for path in files)} are those of {chosen.prepare}: review, commit, make release"
        )
    elif chosen.check:
        with tempfile.TemporaryDirectory(prefix="lakeshare-release-") as name:
            print(f"two builds are the same:\n{check_twice(Path(name))}", end="")
    else:
        clear(chosen.to)
        write_release(chosen.to, is_snapshot=chosen.snapshot)
        print((chosen.to / CHECKSUMS).read_text(), end="")


def main() -> None:
    options = argparse.ArgumentParser(prog="make release", description=__doc__)
    options.add_argument("--to", type=Path, default=ROOT / "dist", help="folder; dist/ by default")
    options.add_argument("--snapshot", action="store_true", help="with notes of what is unreleased")
    options.add_argument("--check", action="store_true", help="build a snapshot twice and compare")
    options.add_argument("--prepare", metavar="VERSION", help="make what is unreleased this version")
    try:
        run(options.parse_args())
    except (ReleaseRefused, LicenseRefused) as refused:
        sys.exit(f"release: {refused}")


if __name__ == "__main__":
    main()
