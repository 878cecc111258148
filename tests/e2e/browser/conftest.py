"""Debian's Chromium, driven by Playwright; what it showed is kept in `screenshots/` beside this file."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from tests.builders.offered_lake import OfferedLake, an_offered_lake

SHOTS = Path(__file__).parent / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome-stable")
DESKTOP, PHONE = ViewportSize(width=1280, height=860), ViewportSize(width=390, height=844)
LOOKS = {"light": ("light", DESKTOP), "dark": ("dark", DESKTOP), "phone": ("light", PHONE)}


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium; installed by apt where that can be."""
    found = _found()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", "-qq", *command], check=True, timeout=500)
        found = _found()
    if found is None:
        pytest.skip("NO BROWSER: the pages were not looked at. Install chromium (apt-get install chromium).")
    return found


def _found() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    arguments = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield running
        running.close()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfferedLake]:
    with an_offered_lake(tmp_path_factory.mktemp("offered")) as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails its test by whatever the browser complains of: a policy broken, a script that threw."""
    context = browser.new_context(viewport=DESKTOP, accept_downloads=True)
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    context.close()
    # A refusal that a test asks for is told by the browser, too; the page's own words are asserted by the test.
    assert [one for one in complaints if "Failed to load resource" not in one] == []


@pytest.fixture
def seen(page: Page) -> Callable[[str], None]:
    """Keeps how the page looks, light, dark and on a phone, and lets axe judge each of them."""

    def look(name: str) -> None:
        SHOTS.mkdir(exist_ok=True)
        faults = []
        for look, (scheme, size) in LOOKS.items():
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
            page.set_viewport_size(size)
            page.screenshot(path=SHOTS / f"{name}-{look}.png", full_page=True)
            # On a phone the same elements have the same colours.
            found = Axe().run(page).response["violations"] if look != "phone" else []
            faults += [f"{look}: {one['id']}: {node['html']}" for one in found for node in one["nodes"]]
            wide = page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            faults += [f"{look}: {wide} pixels stick out"] if wide > 0 else []
        page.set_viewport_size(DESKTOP)
        page.emulate_media(color_scheme="light")
        assert faults == []

    return look
