"""Wheel and sdist hold the packages whole and nothing else, and are the same bytes however they are built."""

import os
import re
import subprocess
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from email import message_from_bytes
from pathlib import Path

import pytest

from deploy.distributions import LOCK, NO_TIME, ROOT, build, format_constraints

PACKAGES = ("lakeshare_conformance", "lakeshare_pipelines", "lakeshare_server")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SUFFIXES = {
    *(".css", ".html", ".jinja", ".js", ".lark", ".mako", ".py", ".svg"),
    *(".template", ".toml", ".typed", ".yaml"),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    sdist, wheel = sorted(
        build(tmp_path_factory.mktemp("built"), commit_time=NO_TIME), key=lambda path: path.suffix
    )
    return wheel, sdist


def package_files() -> set[str]:
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in found if path.suffix != ".pyc"}


def without_metadata(names: Iterable[str]) -> set[str]:
    return {name for name in names if not re.match(r"lakeshare-[^/]+\.dist-info/", name)}


def test_the_wheel_holds_the_files_of_the_packages_and_nothing_else(built: tuple[Path, Path]) -> None:
    names = set(zipfile.ZipFile(built[0]).namelist())
    assert without_metadata(names) == package_files()
    assert {Path(name).name for name in names - package_files()} == {
        "METADATA",
        "WHEEL",
        "entry_points.txt",
        "LICENSE",
        "RECORD",
    }
    assert {Path(name).suffix for name in package_files()} == SUFFIXES
    assert {f"{package}/py.typed" for package in PACKAGES} < names


def test_the_sdist_holds_what_the_wheel_is_built_from(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    around = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "pyproject.toml", ".gitignore", PROJECT["readme"]}
    assert names == package_files() | around


def test_the_sdist_builds_the_same_wheel_and_itself(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = built
    subprocess.run(["tar", "-xzf", sdist, "-C", tmp_path], check=True)
    [source] = tmp_path.iterdir()
    # Neither the folder nor the times of its files nor the order of its entries are part of what is built.
    for path in source.rglob("*"):
        os.utime(path, (0, 0))
    again = tmp_path / "again"
    again.mkdir()
    build(again, source=source, commit_time=NO_TIME)
    for path in (wheel, sdist):
        assert (again / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_metadata_states_pythons_extras_and_a_description(built: tuple[Path, Path]) -> None:
    archive = zipfile.ZipFile(built[0])
    [name] = (name for name in archive.namelist() if name.endswith("/METADATA"))
    metadata = message_from_bytes(archive.read(name))
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert metadata["Requires-Python"] == ">=3.11"
    description = str(metadata.get_payload())
    # Links to files of the repository lead nowhere on an index of packages.
    assert re.findall(r"\]\((?!https?://)", description) == []
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", description, re.MULTILINE))))
    assert named == set(PROJECT["optional-dependencies"])


def test_constraints_name_each_locked_package_once_for_each_python() -> None:
    lock = LOCK.read_text()
    lines = format_constraints(lock).splitlines()
    names = [line.partition("==")[0] for line in lines]
    assert names == re.findall(r"^([a-z0-9][a-z0-9._-]*)(?:\[.*\])?==", lock, re.MULTILINE)
    assert not any("hash" in line or "\\" in line for line in lines)
    assert sum(" ; " in line for line in lines) == len(re.findall(r"^\S+==\S+ ; ", lock, re.MULTILINE)) > 0
