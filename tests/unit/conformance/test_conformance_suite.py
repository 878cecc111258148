"""The suite as a whole: it covers what it says it covers, knows nothing of our server, and is documented as it is."""

import ast
import re
import sys
from pathlib import Path

import pytest
import typer

from lakeshare_conformance.case import Group
from lakeshare_conformance.client import BadOption
from lakeshare_conformance.command import conformance_app
from lakeshare_conformance.report import group_titles, list_cases, select_cases, with_tables

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "lakeshare_conformance"
PAGE = ROOT / "docs" / "reference" / "conformance.md"
# §0.17 is about the stores of the reference server, §0.20 about the buckets of its tests: neither shows over HTTP.
JUDGED = {f"0.{number}" for number in range(1, 20)} - {"0.17"}


def test_every_requirement_of_clients_has_a_case_and_every_section_a_line_in_the_reference() -> None:
    """Protocol §0: every line that can be tested over HTTP."""
    cited = {section for case in list_cases() for section in case.sections}
    documented = re.findall(r"^\| ([0-9.]+) \|", PAGE.read_text().partition("## Sections")[2], re.MULTILINE)
    assert sorted(cited) == sorted(documented)
    assert {section for section in documented if section.startswith("0.")} == JUDGED


def test_names_are_unique_and_every_group_has_a_title() -> None:
    names = [case.name for case in list_cases()]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z-]+\.[a-z0-9-]+", name) for name in names)
    assert all(group_titles().values())


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["credentials"], 2),
        (["paging.*", "credentials.credentials-are-*"], 14),
        (["versions.a-date-alone-is-400"], 1),
    ],
)
def test_cases_are_chosen_by_group_name_or_pattern(patterns: list[str], found: int) -> None:
    assert len(select_cases(patterns)) == found


def test_a_pattern_that_fits_nothing_is_refused() -> None:
    with pytest.raises(BadOption, match="--only"):
        select_cases(["no-such-case"])


@pytest.mark.parametrize("rule", [None, "A promise alone.", "must: no section.", "never §1.7: no level."])
def test_a_case_without_level_sections_and_promise_is_refused(rule: str | None) -> None:
    def check(self: object, server: object) -> None: ...

    check.__doc__ = rule
    with pytest.raises(ValueError, match=r"Odd\.odd_case: the docstring needs level, sections and promise"):
        type("Odd", (Group,), {"__doc__": "Odd cases.", "odd_case": check})


def test_the_reference_lists_the_cases_as_they_are() -> None:
    """`python -m lakeshare_conformance.report` brings it up to date."""
    page = PAGE.read_text()
    assert with_tables(page) == page


def test_the_suite_knows_nothing_of_our_server() -> None:
    allowed = {"httpx", "pyarrow", "pydantic", "pyroaring", "typer"}
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 10
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.partition(".")[0]
                is_own = top == "lakeshare_conformance" or top in sys.stdlib_module_names
                assert is_own or top in allowed, f"{path.name} imports {name}"


def test_the_reference_names_every_option() -> None:
    group = typer.main.get_command(conformance_app)
    for parameter in group.commands["run"].params:  # type: ignore[attr-defined]
        for name in parameter.opts if parameter.name != "profile" else ["PROFILE"]:
            assert f"`{name}`" in PAGE.read_text()
