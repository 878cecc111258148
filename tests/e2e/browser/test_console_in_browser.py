"""In the browser: a provider's team at work in the console, and the recipient that it invites."""

import json
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

from lakeshare_server.catalog.credentials import add_admin_key
from lakeshare_server.catalog.sharing import editing
from tests.builders.administration import shares_read
from tests.builders.offered_lake import OfferedLake

RULE = "day >= '2013-01-05'"


@pytest.fixture(scope="module")
def key(lake: OfferedLake) -> str:
    with editing(lake.provider.catalog, "tests") as edit:
        return add_admin_key(edit, "ann", "owner")[1]


@pytest.fixture
def console(page: Page, lake: OfferedLake, key: str) -> Iterator[Page]:
    """The console, signed in; each question before a removal is answered with yes."""

    def accept(dialog: Dialog) -> None:
        dialog.accept()

    page.on("dialog", accept)
    page.goto(f"{lake.root}/console/shares")
    page.get_by_role("textbox", name="Key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("ann", exact=True)).to_be_visible()
    yield page
    page.remove_listener("dialog", accept)


def test_a_table_is_shared_read_rotated_and_revoked(
    console: Page, lake: OfferedLake, browser: Browser, seen: Callable[[str], None]
) -> None:
    """One walk: a share with a rule, an invitation, its activation in another browser, a rotation, the end."""
    page = console
    page.get_by_label("Name", exact=True).fill("harbour")
    page.get_by_label("Comment").fill("Winter departures")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status")).to_have_text("Created.")
    page.get_by_label("Table of the lake").fill("lake.flights")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_text("lake.flights").first).to_be_visible()

    page.get_by_role("link", name="Try a rule").first.click()
    page.get_by_label("Rule").fill(RULE)
    page.get_by_role("button", name="Try").click()
    expect(page.get_by_role("row", name="harbour.lake.flights")).to_contain_text("of")
    seen("console-rule")

    page.goto(f"{lake.root}/console/recipients")
    page.get_by_label("Name", exact=True).fill("winter-lab")
    page.get_by_role("button", name="Create").click()
    link = page.locator("#activation-link").inner_text()
    seen("console-link")

    page.goto(f"{lake.root}/console/shares/harbour")
    page.get_by_label("Recipient", exact=True).fill("winter-lab")
    page.locator("#grant-rule").fill(RULE)
    page.get_by_role("button", name="Grant", exact=True).click()
    expect(page.get_by_role("status")).to_have_text("Granted.")
    seen("console-share")

    with browser.new_context(accept_downloads=True) as context:
        recipient = context.new_page()
        recipient.goto(link)
        expect(recipient.get_by_text("harbour.lake.flights")).to_be_visible()
        with recipient.expect_download() as saved:
            recipient.get_by_role("button", name="Get the profile").click()
        token = json.loads(saved.value.path().read_text())["bearerToken"]
    assert shares_read(lake.root, token) == ["harbour"]

    page.goto(f"{lake.root}/console/recipients/winter-lab")
    seen("console-recipient")
    page.get_by_role("link", name="harbour.lake.flights").click()
    expect(page.get_by_text("Restricted by a rule")).to_be_visible()
    seen("console-preview")

    page.goto(f"{lake.root}/console/recipients/winter-lab")
    page.get_by_label("Existing tokens work for (hours)").fill("0")
    page.get_by_role("button", name="Rotate").click()
    expect(page.locator("#activation-link")).to_be_visible()
    assert shares_read(lake.root, token) is None

    page.goto(f"{lake.root}/console/recipients/winter-lab")
    page.get_by_role("button", name="Revoke winter-lab").click()
    expect(page.get_by_role("status")).to_contain_text("Revoked")
    page.goto(f"{lake.root}/console/audit?principal=ann")
    for action in ("create_share", "add_table", "create_recipient", "grant", "invite", "revoke_recipient"):
        expect(
            page.get_by_role("link", name=action, exact=True).or_(page.get_by_text(action, exact=True)).first
        ).to_be_visible()
    seen("console-audit")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to the console")
    seen("console-sign-in")
    page.goto(f"{lake.root}/console/recipients")
    expect(page.get_by_role("textbox", name="Key")).to_be_visible()


# Pages that no walk shows, by the names of their screenshots.
PAGES = {
    "shares": "shares",
    "tables": "tables",
    "table": "tables/lake.flights",
    "recipients": "recipients",
    "groups": "groups",
    "drift": "drift?contracts=yes",
    "publications": "publications",
    "publication": "publications/lake.flights/2",
    "numbers": "publications/lake.flights",
    "compare": "publications/lake.flights/compare?from=1&to=2",
    "rollback": "publications/lake.flights/1/rollback",
    "quality": "quality",
    "backups": "backups",
    "system": "system",
    "jobs": "jobs",
    "refused": "recipients/nobody",
}


def test_each_page_looks_right(console: Page, lake: OfferedLake, seen: Callable[[str], None]) -> None:
    for name, path in PAGES.items():
        console.goto(f"{lake.root}/console/{path}")
        expect(console.get_by_role("heading", level=1)).to_be_visible()
        seen(f"console-{name}")
