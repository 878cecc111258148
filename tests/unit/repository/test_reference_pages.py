"""The generated pages of docs/reference/ are current and complete: commands, settings, calls, errors and metrics.

`make docs-reference` writes them.
"""

import re
import tomllib

import click
import pytest

from tests.builders import error_reference as errors
from tests.builders.reference_pages import PAGES, list_commands, list_routes, write_page
from tests.builders.snapshots import check_snapshot

TEXTS = errors.read_texts()


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_code_has(name: str) -> None:
    check_snapshot(f"../../docs/reference/{name}", write_page(name))


def test_every_code_that_the_server_sends_is_in_the_tables() -> None:
    sent = errors.list_sent_codes()
    assert len(sent) >= 14
    assert sent - set(errors.find_codes()) == set()
    assert errors.list_sent_kinds() == set(errors.list_iceberg_kinds())


def test_every_error_has_a_text_and_every_text_an_error() -> None:
    assert set(TEXTS["codes"]) == set(errors.find_codes())
    assert set(TEXTS["iceberg"]) == set(errors.list_iceberg_kinds())
    assert set(TEXTS["oauth"]) == set(errors.list_oauth_errors())
    assert set(TEXTS["reasons"]) == set(errors.ReasonCode.__members__)
    assert set(TEXTS["classes"]) == set(errors.list_classes())
    assert len(TEXTS["classes"]) >= 50


def test_every_text_is_a_sentence() -> None:
    parts = [
        *(
            part
            for name in ("codes", "iceberg", "oauth")
            for text in TEXTS[name].values()
            for part in text.values()
        ),
        *TEXTS["reasons"].values(),
        *(part for pair in TEXTS["classes"].values() for part in pair),
        *TEXTS["routes"].values(),
    ]
    assert [part for part in parts if not part.rstrip("`").endswith((".", ")"))] == []


def test_every_call_has_a_text_and_every_text_a_call() -> None:
    assert {name for _, _, name in list_routes()} == set(TEXTS["routes"])


def test_commands_in_the_pages_exist() -> None:
    """Those in backticks, up to the first argument or option."""
    known = dict(list_commands())
    pages = [
        page
        for page in (errors.ROOT / "docs").rglob("*.md")
        if page.parent.name != "adr" and page.name != "commands.md"
    ]
    named = {
        (page.name, words)
        for page in (*pages, errors.ROOT / "README.md", errors.ROOT / "docs/_site/texts.yaml")
        for words in re.findall(r"`(lakeshare [a-z][a-z -]*[a-z])", page.read_text())
    }
    assert len(named) > 200
    unknown = []
    for page, text in sorted(named):
        words = text.split()
        name = " ".join(words[:2])
        while isinstance(known.get(name), click.Group) and len(words) > len(name.split()):
            name = " ".join(words[: len(name.split()) + 1])
        unknown += [] if name in known else [(page, text)]
    assert unknown == []


def test_extras_in_the_pages_exist() -> None:
    project = tomllib.loads((errors.ROOT / "pyproject.toml").read_text())["project"]
    pages = [*(errors.ROOT / "docs").rglob("*.md"), *(errors.ROOT / "examples").rglob("*.md")]
    named = {
        extra
        for page in pages
        for extras in re.findall(r"lakeshare\[([a-z0-9, ]+)\]", page.read_text())
        for extra in re.split(r", *", extras)
    }
    assert {"pipelines", "s3"} <= named <= set(project["optional-dependencies"])
    first = (errors.ROOT / "docs/first-steps.md").read_text()
    assert first.index("pip install 'lakeshare[pipelines]'") < first.index("lakeshare init")
