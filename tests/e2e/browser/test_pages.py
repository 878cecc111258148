"""In the browser: what recipients see of the server.

A link shows what it offers, gives the profile once, and shows afterwards when it was used. The portal opens with a
profile, shows what its recipient may read, and forgets it when closed. One file, because one browser serves all of it.
"""

import json
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path

import httpx
import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, Request, expect

from lakeshare_server.access.authentication import write_profile
from lakeshare_server.catalog.sharing import create_recipient, editing, grant
from tests.builders.lake_tables import some_rows
from tests.builders.offered_lake import AGREEMENT, FLIGHTS_COMMENT, RATHER_LONG, OfferedLake
from tests.builders.recipients import Recipients

# Those of two commits, without the day that was deleted.
ROWS = 12 + 600 - 24


@pytest.fixture(scope="module")
def token(lake: OfferedLake) -> str:
    return Recipients(lake.provider.catalog).add("reader", ["flights", "trade"])[1]


@pytest.fixture(scope="module")
def profile(lake: OfferedLake, token: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profiles") / "reader.share"
    write_profile(path, f"{lake.root}/delta-sharing", token, None)
    return path


@pytest.fixture
def asked(page: Page) -> Iterator[list[Request]]:
    """Every request of the page."""
    found: list[Request] = []

    def note(request: Request) -> None:
        found.append(request)

    page.on("request", note)
    yield found
    page.remove_listener("request", note)


def opened(page: Page, lake: OfferedLake, profile: Path) -> None:
    page.goto(lake.portal)
    page.get_by_label("Profile file").set_input_files(profile)
    expect(page.get_by_role("heading", level=1, name="flights.lake.flights")).to_be_visible()


def test_a_link_gives_the_profile_once_and_the_code_that_reads_with_it(
    page: Page,
    lake: OfferedLake,
    seen: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = lake.invited("acme", agreement=AGREEMENT)
    page.goto(link)
    expect(page.get_by_role("heading", level=1)).to_have_text("Harbour Statistics shares data with acme")
    expect(page.get_by_text("flights.lake.flights")).to_be_visible()
    expect(page.get_by_text("30 June 2031, 22:00 UTC")).to_be_visible()
    seen("activation")
    page.get_by_role("checkbox").check()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Get the profile").click()
    profile = tmp_path / saved.value.suggested_filename
    saved.value.save_as(profile)
    assert profile.name == "acme.share"
    saved_profile = json.loads(profile.read_text())
    assert (saved_profile["shareCredentialsVersion"], saved_profile["endpoint"]) == (
        1,
        f"{lake.root}/delta-sharing",
    )

    expect(page.get_by_role("heading", level=1)).to_have_text("Your profile is ready")
    monkeypatch.chdir(tmp_path)
    code = page.locator(".panel-1 code").inner_text()
    names: dict[str, object] = {}
    exec(compile(code, "activation.py", "exec"), names)
    assert isinstance(names["frame"], pd.DataFrame)
    assert len(names["frame"]) == 10
    for tool in ("Spark", "DuckDB", "Power BI", "PyIceberg", "Snowflake", "pandas"):
        page.get_by_text(tool, exact=True).click()
        expect(page.locator(".panel:visible")).to_contain_text("lake")
        expect(page.locator(".panel:visible")).to_have_count(1)
    seen("activated")

    page.goto(link)
    expect(page.get_by_role("heading", level=1)).to_have_text("This link was used already")
    expect(page.get_by_text("from 127.0.0.1")).to_be_visible()
    seen("used-link")


def test_the_agreement_is_asked_for_by_the_browser(page: Page, lake: OfferedLake) -> None:
    page.goto(lake.invited("careful", agreement=AGREEMENT))
    page.get_by_role("button", name="Get the profile").click()
    assert page.get_by_role("checkbox").evaluate("box => box.validity.valueMissing")
    expect(page.get_by_role("button", name="Get the profile")).to_be_visible()


def test_an_expired_link_has_the_time_of_its_end(
    page: Page, lake: OfferedLake, seen: Callable[[str], None]
) -> None:
    page.goto(lake.invited("late", link_life=timedelta(microseconds=1)))
    expect(page.get_by_role("heading", level=1)).to_have_text("This link has expired")
    expect(page.get_by_text("It expired on")).to_be_visible()
    seen("expired-link")


def test_an_unknown_link_is_no_link(page: Page, lake: OfferedLake) -> None:
    answer = page.goto(f"{lake.root}/activate/never-made")
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such link")


def test_the_page_needs_no_script(lake: OfferedLake, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False, accept_downloads=True)
    page = context.new_page()
    page.goto(lake.invited("plain"))
    page.get_by_role("button", name="Get the profile").click()
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save plain.share").click()
    assert json.loads(Path(saved.value.path()).read_text())["shareCredentialsVersion"] == 1
    page.get_by_text("PyIceberg", exact=True).click()
    expect(page.locator(".panel:visible")).to_contain_text("PyIceberg cannot read this table")
    context.close()


def test_a_profile_opens_what_its_recipient_may_read(
    page: Page,
    lake: OfferedLake,
    profile: Path,
    token: str,
    asked: list[Request],
    seen: Callable[[str], None],
) -> None:
    page.goto(lake.portal)
    expect(page.get_by_role("heading", level=1)).to_have_text("What Harbour Statistics shares with you")
    seen("portal-closed")
    opened(page, lake, profile)
    expect(page.get_by_text(FLIGHTS_COMMENT)).to_be_visible()
    expect(page.get_by_text("The token works until further notice")).to_be_visible()
    expect(page.get_by_text("The first 50 rows of version 2.")).to_be_visible()
    expect(page.locator(".facts")).to_contain_text(f"Rows{ROWS}")
    assert page.locator(".rows tbody tr").count() == 50
    seen("portal-rows")

    page.get_by_role("tab", name="Columns").click()
    expect(page.get_by_role("row", name="day date partition")).to_be_visible()
    expect(page.get_by_role("row", name="crew struct<pilots: long, lead: string>")).to_be_visible()
    seen("portal-columns")

    page.get_by_role("tab", name="Versions").click()
    expect(page.get_by_text("Each publication, the newest first")).to_be_visible()
    rows = page.locator("#panel-2 tbody tr").all_inner_texts()
    changes = [row.replace("\N{MINUS SIGN}", "-").split("\t")[2:] for row in rows]
    assert changes == [["+0 -2", "-24"], ["+30 -0", "+600"], ["+3 -0", "+12"]]
    seen("portal-versions")

    page.get_by_role("tab", name="Code").click()
    expect(page.locator("details[open] code")).to_contain_text("reader.share#flights.lake.flights")
    seen("portal-code")
    assert {request.url.split("/")[2] for request in asked} == {lake.root.removeprefix("http://")}
    assert not [request.url for request in asked if token in request.url]


def test_what_is_new_leads_to_its_table(
    page: Page, lake: OfferedLake, profile: Path, seen: Callable[[str], None]
) -> None:
    page.goto(f"{lake.portal}#trade.lake.cargo")
    page.get_by_label("Profile file").set_input_files(profile)
    expect(page.get_by_role("heading", level=1, name="trade.lake.cargo")).to_be_visible()
    page.get_by_text("What is new").first.click()
    expect(page.get_by_role("button", name="lake.flights: number 2")).to_be_visible()
    titles = page.locator(".news[open] li button").all_inner_texts()
    assert titles == [f"lake.{RATHER_LONG}: number 0", *(f"lake.flights: number {n}" for n in (2, 1, 0))]
    seen("portal-news")
    page.get_by_role("button", name="lake.flights: number 1").press("Enter")
    expect(page.get_by_role("heading", level=1, name="flights.lake.flights")).to_be_visible()


def test_values_are_shown_as_they_are(page: Page, lake: OfferedLake, profile: Path) -> None:
    opened(page, lake, profile)
    page.get_by_role("button", name="lake.cargo", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="trade.lake.cargo")).to_be_visible()
    expect(page.get_by_text("Apache Iceberg")).to_be_visible()
    expect(page.get_by_text("All 12 rows of version 0.")).to_be_visible()
    cells = page.locator(".rows tbody tr").all_inner_texts()
    shown = sorted(row.split("\t")[3] for row in cells)
    assert shown == sorted(str(distance) for distance in some_rows().column("distance").to_pylist())
    assert any('q"\\' in row for row in cells)
    assert any("null" in row for row in cells)


def test_the_keyboard_reaches_tables_and_tabs(page: Page, lake: OfferedLake, profile: Path) -> None:
    opened(page, lake, profile)
    page.get_by_role("tab", name="First rows").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tab", name="Code")).to_be_focused()
    expect(page.get_by_role("tab", name="Code")).to_have_attribute("aria-selected", "true")
    page.get_by_label("Find a table").fill("commodity")
    expect(page.get_by_role("button", name="lake.flights")).to_be_hidden()
    page.get_by_role("button", name=f"lake.{RATHER_LONG}").press("Enter")
    expect(page.get_by_role("heading", level=1, name=RATHER_LONG)).to_be_visible()
    page.get_by_role("tab", name="Versions").click()
    expect(page.get_by_text("The history of this table is not shared")).to_be_visible()


def test_what_is_closed_is_forgotten(page: Page, lake: OfferedLake, profile: Path) -> None:
    opened(page, lake, profile)
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_text(FLIGHTS_COMMENT)).to_have_count(0)
    expect(page.get_by_label("Profile file")).to_be_visible()
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    page.reload()
    expect(page.get_by_label("Profile file")).to_be_visible()
    expect(page.locator("#portal")).to_be_hidden()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("no JSON", "This is no profile file: it is not JSON."),
        ({"endpoint": None}, "This is no profile file: it names no endpoint."),
        (
            {"endpoint": "https://other.example/delta-sharing"},
            "This profile is for https://other.example/delta-sharing",
        ),
        ({"bearerToken": "unknown"}, "The bearer token is unknown, expired or revoked."),
        ({"bearerToken": None}, "This profile has no token that a browser can use."),
    ],
)
def test_a_profile_that_does_not_fit_is_refused_with_the_reason(
    page: Page,
    lake: OfferedLake,
    profile: Path,
    asked: list[Request],
    tmp_path: Path,
    changed: object,
    said: str,
) -> None:
    other = tmp_path / "other.share"
    text = changed if isinstance(changed, str) else json.dumps({**json.loads(profile.read_text()), **changed})  # type: ignore[dict-item]
    other.write_text(text)
    page.goto(lake.portal)
    page.get_by_label("Profile file").set_input_files(other)
    expect(page.get_by_role("alert")).to_contain_text(said)
    hosts = {request.url.split("/")[2] for request in asked}
    assert hosts == {lake.root.removeprefix("http://")}


def test_a_client_opens_the_portal_with_its_secret(
    page: Page, lake: OfferedLake, asked: list[Request], tmp_path: Path
) -> None:
    with editing(lake.provider.catalog, "steward") as edit:
        create_recipient(edit, "client", authentication="OAUTH_CLIENT_CREDENTIALS")
        grant(edit, "trade", recipient="client")
    given = httpx.post(lake.link("client"), headers={"Accept": "application/json"}).json()["profile"]
    path = tmp_path / "client.share"
    path.write_text(json.dumps(given))
    page.goto(lake.portal)
    page.get_by_label("Profile file").set_input_files(path)
    expect(page.get_by_role("heading", level=1, name="trade.lake.cargo")).to_be_visible()
    expect(page.get_by_text("All 12 rows of version 0.")).to_be_visible()
    path.write_text(json.dumps({**given, "tokenEndpoint": "https://issuer.example/token"}))
    page.get_by_role("button", name="Close").click()
    page.get_by_label("Profile file").set_input_files(path)
    expect(page.get_by_role("alert")).to_contain_text("gets its tokens from another server")
    assert {request.url.split("/")[2] for request in asked} == {lake.root.removeprefix("http://")}


def test_names_and_comments_are_texts_and_never_markup(page: Page, lake: OfferedLake, tmp_path: Path) -> None:
    markup = "<img/src=x:onerror=alert(1)>".replace("/", "\u2044")
    hostile = '<img src=x onerror="document.title=1"><script>document.title=2</script>{{ 7*7 }}'
    shown = lake.hostile(markup, hostile)
    page.goto(shown.link)
    expect(page.get_by_text(hostile).first).to_be_visible()
    page.get_by_role("checkbox").check()
    page.get_by_role("button", name="Get the profile").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Your profile is ready")
    path = tmp_path / "hostile.share"
    write_profile(path, f"{lake.root}/delta-sharing", shown.token, None)
    page.goto(lake.portal)
    page.get_by_label("Profile file").set_input_files(path)
    expect(page.get_by_text(hostile).first).to_be_visible()
    expect(page.get_by_role("heading", level=1, name=markup)).to_be_visible()
    assert page.locator("img").count() == 1
    assert page.title() == "Portal · Harbour Statistics"


def test_the_end_of_a_table_is_on_both_pages(page: Page, lake: OfferedLake, tmp_path: Path) -> None:
    shown = lake.retire("ending", date(2030, 1, 31))
    notice = "shared until 2030-01-31 (end of the day, UTC). Read ending.lake.flights_v2 instead."
    page.goto(shown.link)
    expect(page.get_by_text(notice)).to_be_visible()
    path = tmp_path / "ending.share"
    write_profile(path, f"{lake.root}/delta-sharing", shown.token, None)
    page.goto(lake.portal)
    page.get_by_label("Profile file").set_input_files(path)
    expect(page.locator(".notice", has_text=notice)).to_be_visible()
