"""Debian's Chromium, driven by Playwright; pages with faults are kept in `screenshots/` beside this file.

LAKESHARE_WRITE_SNAPSHOTS=1 keeps all pages there: pictures are a sixth of the time of these tests.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, ViewportSize

from tests.builders.offered_lake import OfferedLake, an_offered_lake
from tests.builders.snapshots import WRITE

SHOTS = Path(__file__).parent / "screenshots"
# What the documentation shows; LAKESHARE_WRITE_SNAPSHOTS=1 writes these pictures again.
SHOWN = ("activation", "console-compare", "console-publications", "console-rule", "portal-rows")
IMAGES = Path(__file__).parents[3] / "docs/images"
DESKTOP, PHONE = ViewportSize(width=1280, height=860), ViewportSize(width=390, height=844)
LOOKS = {"light": ("light", DESKTOP), "dark": ("dark", DESKTOP), "phone": ("light", PHONE)}
# In the dark the same elements have other colours; on a phone, the same.
COLOUR_RULES = ("color-contrast", "link-in-text-block")
AXE_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "light": {"resultTypes": ["violations"]},
    "dark": {"resultTypes": ["violations"], "runOnly": {"type": "rule", "values": COLOUR_RULES}},
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfferedLake]:
    with an_offered_lake(tmp_path_factory.mktemp("offered")) as running:
        yield running


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[Page]:
    """The one page of all tests: a new one costs as much as a test."""
    context = browser.new_context(viewport=DESKTOP, accept_downloads=True)
    yield context.new_page()
    context.close()


@pytest.fixture
def page(tab: Page) -> Iterator[Page]:
    """An empty page that fails its test by any complaint of the browser: a policy broken, a script that threw."""
    complaints: list[str] = []

    def note_message(message: ConsoleMessage) -> None:
        if message.type == "error":
            complaints.append(message.text)

    def note_error(error: Error) -> None:
        complaints.append(str(error))

    tab.on("console", note_message)
    tab.on("pageerror", note_error)
    yield tab
    tab.goto("about:blank")
    tab.context.clear_cookies()
    tab.remove_listener("console", note_message)
    tab.remove_listener("pageerror", note_error)
    # The browser complains of a refusal that a test asks for, too; the page's own words are asserted by the test.
    assert [complaint for complaint in complaints if "Failed to load resource" not in complaint] == []


@pytest.fixture
def seen(page: Page) -> Callable[[str], None]:
    """Lets axe judge how the page looks, light, dark and on a phone; keeps pictures of it."""

    def look(name: str) -> None:
        SHOTS.mkdir(exist_ok=True)
        keeps_all = os.environ.get(WRITE) == "1"
        faults: list[str] = []
        for look, (scheme, size) in LOOKS.items():
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
            page.set_viewport_size(size)
            if look == "light" and name in SHOWN and keeps_all:
                page.screenshot(path=IMAGES / f"{name}.png")
            before = len(faults)
            found = axe_violations(page, AXE_OPTIONS[look]) if look in AXE_OPTIONS else []
            faults += [f"{look}: {rule['id']}: {node['html']}" for rule in found for node in rule["nodes"]]
            wide = page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            faults += [f"{look}: {wide} pixels stick out"] if wide > 0 else []
            if keeps_all or len(faults) > before:
                page.screenshot(path=SHOTS / f"{name}-{look}.png", full_page=True)
        page.set_viewport_size(DESKTOP)
        page.emulate_media(color_scheme="light")
        assert faults == []

    return look


def axe_violations(page: Page, options: Mapping[str, object]) -> list[dict[str, Any]]:
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    violations: list[dict[str, Any]] = page.evaluate("options => axe.run(options)", options)["violations"]
    return violations
