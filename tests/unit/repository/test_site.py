"""The documentation site: it builds without a warning, needs no other host, and has and finds all that it documents."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from tests.builders import error_reference as errors
from tests.builders import reference_pages as reference
from tests.builders.documentation_site import SiteSearch, site_of_all_workers

ROOT = Path(__file__).parents[3]
REMOTE = re.compile(
    r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)=["']?(?:https?:)?//[^>]*>|@import|url\(["']?http"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    return site_of_all_workers(tmp_path_factory)


@pytest.fixture(scope="module")
def search(site: Path) -> SiteSearch:
    return SiteSearch(site)


def read_text(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def list_ids(page: Path) -> set[str]:
    return set(re.findall(r'id="([^"]+)"', page.read_text()))


def test_every_page_is_in_the_navigation(site: Path) -> None:
    # MkDocs warns of a page without a place, and of a place without a page; the build is strict.
    index = (site / "index.html").read_text()
    linked = set(re.findall(r'href="([^"#]+\.html)"', index))
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"404.html"}
    decisions = {page for page in pages if page.startswith("adr/0")}
    assert len(decisions) >= 84
    assert pages - decisions - linked == set()
    listed = set(re.findall(r'href="([^"#]+\.html)"', (site / "adr/index.html").read_text()))
    assert {page.removeprefix("adr/") for page in decisions} - listed == set()


def test_no_page_asks_another_host(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(files) > 100
    assert {path.name: found[0] for path in files if (found := REMOTE.search(path.read_text()))} == {}


# A forge renders lists without an empty line before them; Python-Markdown does not.
LEFT = re.compile(r"\n\s*(?:[*-]|1\.) |(?:^|\n)\s*\||```|\*\*|\]\(|\{[.:]")


def test_no_markdown_is_left_in_the_pages(site: Path) -> None:
    left = {}
    for page in site.rglob("*.html"):
        for article in re.findall(r"<article[^>]*>(.*?)</article>", page.read_text(), re.DOTALL):
            prose = re.sub(r"<(pre|code|svg).*?</\1>", "code", article, flags=re.DOTALL)
            for text in re.findall(r"<(?:p|li|td)[^>]*>(.*?)</(?:p|li|td)>", prose, re.DOTALL):
                if LEFT.search(re.sub(r"<[^>]+>", "", text).strip()):
                    left[page.name] = text[:200]
    assert left == {}


def test_links_to_files_of_the_repository_work(site: Path) -> None:
    page = (site / "reference/settings.html").read_text()
    assert 'href="../files/env.example"' in page
    assert (site / "files/env.example").read_bytes() == (ROOT / ".env.example").read_bytes()


def test_tests_named_in_the_pages_exist() -> None:
    named = {
        (page.name, path)
        for page in (ROOT / "docs").rglob("*.md")
        if page.parent.name != "adr"
        for path in re.findall(r"`(tests/[\w/.-]+\.py)`", page.read_text())
    }
    assert len({path for _, path in named}) > 50
    assert {(page, path) for page, path in named if not (ROOT / path).is_file()} == set()


def test_each_promise_has_a_picture_in_the_colours_of_the_page(site: Path) -> None:
    pages = sorted((ROOT / "docs/concepts").glob("*.md"))
    assert len(pages) == 5
    for page in pages:
        text = (site / "concepts" / f"{page.stem}.html").read_text()
        assert text.count('<svg xmlns="http://www.w3.org/2000/svg" class="concept"') == 1, page.name
        assert "prefers-color-scheme: dark) { .concept" not in text


def test_screenshots_are_those_of_the_browser_tests_and_shown() -> None:
    """LAKESHARE_WRITE_SNAPSHOTS=1 with `tests/e2e/browser` writes them again."""
    images = {path.stem: path.stat().st_size for path in (ROOT / "docs/images").iterdir()}
    conftest = (ROOT / "tests/e2e/browser/conftest.py").read_text()
    [shown] = re.findall(r"^SHOWN = \((.+)\)$", conftest, re.MULTILINE)
    assert set(re.findall(r'"([\w-]+)"', shown)) == set(images)
    assert max(images.values()) <= 150_000
    pages = "".join(path.read_text() for path in (ROOT / "docs/how-to").glob("*.md"))
    assert [name for name in images if f"](../images/{name}.png)" not in pages] == []


def test_names_in_code_lead_to_the_reference(site: Path) -> None:
    for page, link in (
        ("how-to/use-the-console.html", '"../reference/settings.html#lakeshare_console_session_s"'),
        ("how-to/invite-a-recipient.html", '"../reference/commands.html#lakeshare-recipient-revoke"'),
        ("reference/serveability.html", '"errors.html#row_level_deletes"'),
        ("how-to/watch-who-reads-what.html", '"../reference/metrics.html#lakeshare_database_up"'),
    ):
        assert f"<a href={link}" in (site / page).read_text(), page
    targets = {path.name: list_ids(path) for path in (site / "reference").glob("*.html")}
    for page in site.rglob("*.html"):
        for name, anchor in re.findall(r'href="[^"]*?(\w+\.html)#([\w-]+)"><code>', page.read_text()):
            assert anchor in targets[name], (page.name, name, anchor)


def test_every_command_is_on_the_site(site: Path) -> None:
    ids = list_ids(site / "reference/commands.html")
    names = [name for name, _ in reference.list_commands()]
    assert len(names) >= 130
    assert [name for name in names if name.replace(" ", "-") not in ids] == []


def test_every_setting_is_on_the_site(site: Path) -> None:
    ids = list_ids(site / "reference/settings.html")
    names = [variable for _, variable, _ in reference.list_settings()]
    assert len(names) >= 120
    assert [name for name in names if name.lower() not in ids] == []


def test_every_call_is_on_the_site(site: Path) -> None:
    text = read_text(site / "reference/api.html")
    paths = [path for _, path, _ in (*reference.list_routes(), *reference.list_admin_calls())]
    assert len(paths) >= 100
    assert [path for path in paths if path not in text] == []


def test_every_metric_is_on_the_site(site: Path) -> None:
    ids = list_ids(site / "reference/metrics.html")
    names = [reference.name_metric(one) for one in reference.list_metrics()]
    assert len(names) >= 40
    assert [name for name in names if name not in ids] == []


def list_error_locations() -> Iterator[tuple[str, str, str]]:
    for entry in errors.list_entries():
        yield entry.heading, entry.searched, f"reference/errors.html#{errors.write_anchor(entry.heading)}"


def test_every_error_is_on_the_site_and_found_by_its_name(site: Path, search: SiteSearch) -> None:
    ids = list_ids(site / "reference/errors.html")
    for heading, _, location in list_error_locations():
        assert location.partition("#")[2] in ids, heading
        assert location in search.find(heading)[:2], heading


def test_every_error_is_found_by_the_words_of_its_text_in_quotes(search: SiteSearch) -> None:
    missed = {}
    for heading, text, location in list_error_locations():
        words = " ".join(word for word in text.split() if not word.strip(".:,").isupper())
        found = search.find(words, is_quoted=True)
        if location not in found[:10]:
            missed[heading] = (words, found.index(location) if location in found else None, found[:2])
    assert missed == {}


def test_settings_metrics_and_commands_are_found_by_their_names(search: SiteSearch) -> None:
    for name, page in (
        ("LAKESHARE_S3_ENDPOINT", "reference/settings.html#lakeshare_s3_endpoint"),
        ("lakeshare_requests_total", "reference/metrics.html#lakeshare_requests_total"),
        ("lakeshare recipient rotate", "reference/commands.html#lakeshare-recipient-rotate"),
    ):
        assert page in search.find(name)[:3], name
    for text, page in (
        ("share a table", "how-to/share-an-existing-table.html"),
        ("back up", "how-to/back-up.html"),
    ):
        assert page in [location.partition("#")[0] for location in search.find(text)[:5]], text
