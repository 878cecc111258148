"""Forms of shares and their tables, trials of rules, and the comparison with a file of `lakeshare apply`."""

import html
import re
from collections.abc import Iterator

import pytest

from lakeshare_server.catalog import SharedTable, audit, declared, states
from lakeshare_server.catalog.sharing import add_table, create_recipient, create_share, editing
from tests.builders.administration import Administered, an_administered_server
from tests.builders.console import Browser, browser

SHARES, NORTH = "/console/shares", "/console/shares/north"
FLIGHTS, DRIFT = f"{NORTH}/tables/lake/flights", "/console/drift"
ALERT = re.compile(r'role="alert">([^<]*)<')
RULE = "day >= '2013-01-02'"


@pytest.fixture(scope="module")
def administered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    """With the share `north`: a published table, and one that is not published yet."""
    with an_administered_server(tmp_path_factory.mktemp("shares")) as running:
        with editing(running.provider.catalog, "tests") as edit:
            create_recipient(edit, "acme")
            create_share(edit, "north", comment="as it was")
            for name in ("flights", "later"):
                add_table(edit, "north", SharedTable("lake", name, f"lake.{name}"))
        yield running


@pytest.fixture(scope="module")
def console(administered: Administered) -> Browser:
    return browser(administered, "steward")


def export(administered: Administered) -> str:
    """What is shared with whom, with the revisions."""
    with administered.provider.catalog.reading() as session:
        return declared.export(session, revisions=True)


def find_value(page: str, field: str) -> str:
    """The value of an input with this id."""
    [value] = re.findall(rf'id="{field}" name="[a-z_]+" value="([^"]*)"', page)
    return html.unescape(value)


def test_a_table_is_altered_and_removed_and_a_share_dropped(
    administered: Administered, console: Browser
) -> None:
    console.send(SHARES, SHARES, {"name": "south"})
    page = f"{SHARES}/south"
    path = f"{page}/tables/lake/flights"
    console.send(page, f"{page}/tables", {"lake_table": "lake.flights", "history": "yes"})
    console.send(page, path, {"comment": "of 2013", "rule": RULE, "start_version": "0", "publication": "0"})
    with administered.provider.catalog.reading() as session:
        [table] = states.list_objects(session, "south")
    assert (table.comment, table.rule, table.history) == ("of 2013", RULE, False)
    assert (table.start_version, table.publication) == (0, 0)
    console.send(page, f"{path}/remove")
    assert "It has no tables yet" in console.page(page)
    assert console.send(page, f"{page}/drop").headers["location"] == f"{SHARES}?done=removed"
    console.page(page, 404)
    changes = audit.search(administered.provider.catalog, audit.Search(kind="change"), 3)
    assert [change.event.action for change in changes] == ["alter_table", "remove_table", "drop_share"]


@pytest.mark.parametrize(
    ("path", "fields", "status", "reason"),
    [
        (f"{NORTH}/drop", {"revision": "1"}, 412, "Look at it again"),
        (FLIGHTS, {"rule": "day ="}, 400, "Its end is missing"),
        (FLIGHTS, {"rule": "flight = 1001"}, 400, "cannot decide it by its partitions"),
        (FLIGHTS, {"start_version": "-1"}, 400, "Give a whole number"),
        (FLIGHTS, {"publication": "newest"}, 400, "Give a whole number"),
        (FLIGHTS, {"comment": "late", "revision": "1"}, 412, "Look at it again"),
        (f"{FLIGHTS}/remove", {"revision": "1"}, 412, "Look at it again"),
        (f"{NORTH}/tables/lake/none", {"comment": "x"}, 404, "does not exist"),
        (f"{NORTH}/tables/lake/none/remove", {}, 404, "does not exist"),
        (f"{NORTH}/tables", {"lake_table": "lake.flights", "alias": "alone"}, 400, "Names have"),
        (f"{NORTH}/grants", {"recipient": "none"}, 404, "Recipient 'none' does not exist."),
        (f"{NORTH}/grants", {"group": "none"}, 404, "Group 'none' does not exist."),
        (f"{NORTH}/grants/revoke", {"recipient": "acme"}, 404, "Grant 'north to acme' does not exist."),
    ],
)
def test_a_refused_form_shows_why_and_changes_nothing(
    administered: Administered, console: Browser, path: str, fields: dict[str, str], status: int, reason: str
) -> None:
    before = export(administered)
    page = html.unescape(console.send(NORTH, path, fields, status).text)
    assert reason in "".join(ALERT.findall(page))
    assert "<h1>north</h1>" in page
    assert export(administered) == before


def test_what_was_entered_stays_in_the_form_that_was_refused(console: Browser) -> None:
    entered = {"comment": "typed", "rule": "day =", "start_version": "1", "publication": ""}
    page = console.send(NORTH, FLIGHTS, entered, 400).text
    fields = ("comment-1", "rule-1", "start-1", "pin-1")
    assert [find_value(page, field) for field in fields] == list(entered.values())
    others = ("comment-2", "rule-2", "new-rule", "grant-rule")
    assert [find_value(page, field) for field in others] == ["", "", "", ""]
    assert 'id="new-history" name="history" value="yes" checked' in page
    grant = {"recipient": "none", "group": "", "starts_at": "", "ends_at": "2031-01-31", "rule": RULE}
    page = console.send(NORTH, f"{NORTH}/grants", grant, 404).text
    fields = ("recipient", "ends_at", "grant-rule", "new-rule", "rule-1")
    assert [find_value(page, field) for field in fields] == ["none", "2031-01-31", RULE, "", ""]


def test_a_table_without_a_publication_is_named_as_such(console: Browser) -> None:
    page = console.page(f"{NORTH}/rule?rule=day+%3D+'2013-01-01'")
    assert re.search(r"north.lake.later</th>\s*<td[^>]*>.*It is not published yet", page)
    assert "1 of 3" in page
    assert "It is not published yet" in console.page("/console/tables/lake.later")
    unknown = console.page(f"{NORTH}/rule?rule=day+%3D+'2013-01-01'&recipient=none")
    assert ALERT.findall(unknown) == ["Recipient 'none' does not exist."]
    assert "flights cannot be determined from partitions" in console.page(f"{NORTH}/rule?rule=flight+%3D+1")


def test_the_catalog_is_compared_with_a_file_and_stays_as_it_is(
    administered: Administered, console: Browser
) -> None:
    before = export(administered)
    document = console.client.get("/console/export").text
    changed = document.replace("comment: as it was", "comment: as it will be")
    page = html.unescape(console.send(DRIFT, DRIFT, {"document": changed}, 200).text)
    assert '~ comment: "as it was" → "as it will be"' in page
    assert "  ~ table north.lake.flights" in page
    for document, reason in {
        "": "Paste a file",
        "shares: [": "line 2: the file: did not find",
        "shares:\n  a/b: {}": "line 2: shares.a/b",
        "\0": "control characters are not allowed",
    }.items():
        page = html.unescape(console.send(DRIFT, DRIFT, {"document": document}, 400).text)
        [problem] = ALERT.findall(page)
        assert reason in problem
        assert "lakeshare-drift" not in page
    assert export(administered) == before
