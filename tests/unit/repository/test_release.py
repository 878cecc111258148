"""Releases: versions, notes, constraints, licences and checksums, and what is refused."""

import hashlib
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.check_install import find_pythons, read_supported_pythons
from deploy.distributions import LOCK, ROOT
from deploy.licenses import (
    Licensed,
    LicenseRefused,
    check_licenses,
    format_report,
    is_allowed,
    parse_expression,
    read_licenses,
    read_policy,
)
from deploy.release import ReleaseRefused, clear, format_checksums, format_notes, prepare, read_version

PROJECT = '[project]\nname = "x"\nversion = "0.2.0"\n'
CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n### Added\n- B\n\n## [0.2.0] - 2026-01-02\n\n### Fixed\n- A\n\n"
    "## [0.1.0] - 2026-01-01\n- 0\n"
)


def test_a_new_version_takes_what_is_unreleased_and_gets_notes() -> None:
    project, changelog = prepare(PROJECT, CHANGELOG, "0.3.0", "2026-02-03")
    assert read_version(project) == "0.3.0"
    assert changelog.startswith(
        "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2026-02-03\n\n### Added\n- B\n\n## [0.2.0]"
    )
    assert format_notes(changelog, "0.3.0", is_snapshot=False) == "# lakeshare 0.3.0\n\n### Added\n- B\n"
    assert read_version(prepare(PROJECT, CHANGELOG, "0.3.0rc1", "2026-02-03")[0]) == "0.3.0rc1"


@pytest.mark.parametrize(
    ("version", "changelog", "reason"),
    [
        ("0.3", CHANGELOG, "VERSION=0.3 is no version"),
        ("", CHANGELOG, "VERSION= is no version"),
        ("v0.3.0", CHANGELOG, "VERSION=v0.3.0 is no version"),
        ("0.2.0", CHANGELOG, r"has a section \[0.2.0\]"),
        ("0.1.9", CHANGELOG, "VERSION=0.1.9 is not newer than 0.2.0"),
        ("0.2.0rc1", CHANGELOG, "VERSION=0.2.0rc1 is not newer than 0.2.0"),
        ("0.3.0", CHANGELOG.replace("### Added\n- B\n", ""), "nothing under"),
    ],
)
def test_a_version_that_cannot_be_next_is_refused(version: str, changelog: str, reason: str) -> None:
    with pytest.raises(ReleaseRefused, match=reason):
        prepare(PROJECT, changelog, version, "2026-02-03")


def test_a_release_without_a_section_is_refused_and_a_snapshot_has_what_is_unreleased() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    with pytest.raises(ReleaseRefused, match=r"no section \[99.0.0\]: `make prepare-release VERSION=99.0.0`"):
        format_notes(changelog, "99.0.0", is_snapshot=False)
    assert "### Added\n" in format_notes(changelog, "99.0.0", is_snapshot=True)
    project = (ROOT / "pyproject.toml").read_text()
    prepared, _ = prepare(project, changelog, "99.0.0", "2026-02-03")
    assert tomllib.loads(prepared)["project"] == tomllib.loads(project)["project"] | {"version": "99.0.0"}


def test_every_locked_package_has_a_licence_that_is_allowed() -> None:
    policy = read_policy()
    packages = read_licenses(LOCK.read_text(), policy)
    check_licenses(packages, policy)
    uses = {package.name: package.is_tool for package in packages}
    assert [name for name in ("fastapi", "pyspark", "psycopg", "pytest", "cyclonedx-bom") if uses[name]] == [
        "pytest",
        "cyclonedx-bom",
    ]
    lines = format_report(packages).splitlines()
    assert lines[0] == "name,version,license,use"
    assert len(lines) == len(packages) + 1 > 200
    # Entries for packages that have left the lock would be allowed unseen when they come back.
    assert {*policy.stated, *policy.exceptions} <= set(uses)


def test_unknown_and_forbidden_licences_are_refused_by_name() -> None:
    policy = read_policy()
    packages = [
        Licensed("good", "1.0", "MIT OR GPL-3.0-only", is_tool=False),
        Licensed("strange", "1.1", "", is_tool=False),
        Licensed("viral", "1.2", "AGPL-3.0-only", is_tool=False),
        Licensed("mixed", "1.3", "MIT AND AGPL-3.0-only", is_tool=True),
        Licensed("psycopg", "3.0", "LGPL-3.0-only", is_tool=False),
        Licensed("other", "3.0", "LGPL-3.0-only", is_tool=False),
    ]
    with pytest.raises(LicenseRefused) as refused:
        check_licenses(packages, policy)
    assert [line.split(" ", 1)[0] for line in str(refused.value).splitlines()] == [
        "strange", "viral", "mixed", "other", "The",
    ]  # fmt: skip
    assert "state it under [stated]" in str(refused.value)
    check_licenses([replace(packages[1], license="0BSD"), packages[0], packages[4]], policy)


@pytest.mark.parametrize("text", ["", "UNKNOWN", "Dual License", "MIT AND", "No-Such-1.0"])
def test_what_is_no_spdx_expression_is_unknown(text: str) -> None:
    assert parse_expression(text) is None


def test_alternatives_need_one_allowed_licence_and_conjunctions_all() -> None:
    for text, expected in (
        ("MIT", True), ("mit or agpl-3.0-only", True), ("MIT AND (ISC OR AGPL-3.0-only)", True),
        ("MIT AND AGPL-3.0-only", False), ("GPL-2.0-only WITH Classpath-exception-2.0", False),
    ):  # fmt: skip
        expression = parse_expression(text)
        assert expression is not None
        assert is_allowed(expression, ["MIT", "ISC"]) is expected, text


def test_checksums_name_every_other_file(tmp_path: Path) -> None:
    for name in ("b.txt", "a.whl", "SHA256SUMS"):
        (tmp_path / name).write_text(name)
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a.whl", "b.txt")}
    assert format_checksums(tmp_path) == "".join(f"{digest}  {name}\n" for name, digest in digests.items())


def test_files_of_an_earlier_release_are_replaced_and_others_stay(tmp_path: Path) -> None:
    folder = tmp_path / "dist"
    clear(folder)
    for name in ("a.whl", "SHA256SUMS"):
        (folder / name).write_text(f"0  {name}\n")
    (folder / "SHA256SUMS").write_text("0  a.whl\n")
    clear(folder)
    assert list(folder.iterdir()) == []
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ReleaseRefused, match=r"dist has other files \(notes.txt\)"):
        clear(folder)
    assert (folder / "notes.txt").read_text() == "mine"


def test_installation_docs_name_the_extras_and_pythons_of_the_package() -> None:
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(project["optional-dependencies"])
    assert (
        read_supported_pythons()
        == re.findall(r"3\.\d+", page.partition(".\n")[0])
        == ["3.11", "3.12", "3.13"]
    )


def test_pythons_of_this_machine_are_found_once_each() -> None:
    found = find_pythons(read_supported_pythons())
    assert found
    assert set(found) <= set(read_supported_pythons())
    assert find_pythons(["9.9"]) == {}
