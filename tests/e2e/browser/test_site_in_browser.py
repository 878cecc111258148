"""The documentation site in a browser: from a folder and from a server, with its own files only."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.builders.documentation_site import site_of_all_workers

SENTENCE = "Live files have columns in a narrower type than the table"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site_of_all_workers(tmp_path_factory)


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """The site behind a server for files."""
    handler = partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("way", ["folder", "server"])
def test_an_error_is_found_by_its_sentence(way: str, site: Path, served: str, page: Page) -> None:
    """`page` fails the test if the policy of the page refuses anything."""
    root = site.as_uri() if way == "folder" else served
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(f"{root}/index.html")
    page.locator("meta[http-equiv=Content-Security-Policy]").wait_for(state="attached")
    field = page.locator("input.md-search__input")
    field.click()
    # The page searches after each key.
    field.fill(f'"{SENTENCE}"')
    field.press("End")
    found = page.locator("a.md-search-result__link[href*='widened_types']").first
    expect(found).to_be_visible(timeout=30_000)
    found.click()
    expect(page.locator("#widened_types")).to_be_visible()
    assert [url for url in requested if not url.startswith((root, "data:", "about:", "blob:"))] == []
