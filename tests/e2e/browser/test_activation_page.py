"""In the browser: a link shows what it offers, gives the profile once, and says afterwards when it was used."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import Page, expect

from tests.builders.offered_lake import AGREEMENT, OfferedLake


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
    told = json.loads(profile.read_text())
    assert (told["shareCredentialsVersion"], told["endpoint"]) == (1, f"{lake.root}/delta-sharing")

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
    assert page.get_by_role("checkbox").evaluate("one => one.validity.valueMissing")
    expect(page.get_by_role("button", name="Get the profile")).to_be_visible()


def test_an_expired_link_says_since_when(page: Page, lake: OfferedLake, seen: Callable[[str], None]) -> None:
    page.goto(lake.invited("late", link_life=timedelta(microseconds=1)))
    expect(page.get_by_role("heading", level=1)).to_have_text("This link has expired")
    expect(page.get_by_text("It expired on")).to_be_visible()
    seen("expired-link")


def test_a_link_that_nobody_made_is_no_link(page: Page, lake: OfferedLake) -> None:
    answer = page.goto(f"{lake.root}/activate/never-made")
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such link")


def test_the_page_needs_no_script(chromium: str, lake: OfferedLake, tmp_path: Path, browser) -> None:
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
