"""The tables in docs/reference/conformance.md; `python -m lakeshare_server.conformance.reference` makes them anew."""

import sys
from collections.abc import Iterator
from pathlib import Path

from lakeshare_server.conformance.sections import SECTIONS
from lakeshare_server.conformance.suite import every_case, group_titles

PAGE = Path("docs/reference/conformance.md")
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def with_tables(page: str) -> str:
    """The page with its tables made anew.

    Raises:
        ValueError: the page has no place for them.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN} and {END}")
    return "\n".join((before + BEGIN, *_tables(), END + after))


def _tables() -> Iterator[str]:
    titles = group_titles()
    group = ""
    for case in every_case():
        if case.group != group:
            group = case.group
            yield from (
                "",
                f"### {group}",
                "",
                f"{titles[group]}.",
                "",
                "| case | level | sections | promise |",
                "|---|---|---|---|",
            )
        name = case.name.partition(".")[2]
        yield f"| `{name}` | {case.level} | {case.section} | {_cell(case.promise)} |"
    yield from ("", "## Sections", "", "| § | what it is about |", "|---|---|")
    for section, subject in SECTIONS.items():
        yield f"| {section} | {_cell(subject)} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
