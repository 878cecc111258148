"""What every page tells the browser, and what pages do not contain: no foreign content, no inline code, no caches."""

import base64
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from uuid import uuid4

import httpx
import pytest

from lakeshare_server.catalog.credentials import add_admin_key
from lakeshare_server.catalog.sharing import editing
from lakeshare_server.pages.rendering import CONSOLE_HEADERS, HEADERS
from tests.builders.offered_lake import AGREEMENT, OfferedLake, an_offered_lake
from tests.builders.recipients import Recipients

TABLE = "/portal/api/shares/flights/schemas/lake/tables/flights"
HTML = "text/html; charset=utf-8"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfferedLake]:
    with an_offered_lake(tmp_path_factory.mktemp("headers")) as running:
        yield running


@pytest.fixture(scope="module")
def answers(lake: OfferedLake) -> dict[str, httpx.Response]:
    """Every kind of answer that pages give."""
    token = Recipients(lake.provider.catalog).add("looker", ["flights"])[1]
    used = lake.invited("used")
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(verify=False, base_url=lake.root) as client:
        return {
            "offer": client.get(lake.invited("offered", agreement=AGREEMENT)),
            "refused agreement": client.post(lake.invited("refused", agreement=AGREEMENT)),
            "profile": client.post(used),
            "profile as JSON": client.post(lake.invited("json"), headers={"Accept": "application/json"}),
            "used": client.get(used),
            "unknown": client.get("/activate/unknown"),
            "wrong method": client.delete(used),
            "root": client.get("/", headers={"Accept": "text/html"}),
            "root as JSON": client.get("/"),
            "sign-in": client.get("/console/sign-in"),
            "wrong key": client.post("/console/sign-in", data={"key": "wrong"}),
            "signed out": client.get("/console/shares"),
            "console, no form token": client.post("/console/shares"),
            "console": signed_in(lake).get("/console/recipients"),
            "console, no such page": signed_in(lake).get("/console/none"),
            "portal": client.get("/portal"),
            "portal, wrong method": client.post("/portal"),
            "no token": client.get("/portal/api/status"),
            "no such path": client.get("/portal/api/nothing"),
            "status": client.get("/portal/api/status", headers=headers),
            "rows": client.get(f"{TABLE}/preview", headers=headers),
            "bad value": client.get(f"{TABLE}/preview?limit=no", headers=headers),
            "not granted": client.get(TABLE.replace("flights", "trade") + "/preview", headers=headers),
            "no such file": client.get("/pages/nothing.css"),
        }


def signed_in(lake: OfferedLake) -> httpx.Client:
    """A client with a session of the console."""
    with editing(lake.provider.catalog, "tests") as edit:
        _, key = add_admin_key(edit, f"key-{uuid4().hex}", "owner")
    client = httpx.Client(verify=False, base_url=lake.root)
    client.post("/console/sign-in", data={"key": key})
    return client


def test_every_answer_forbids_what_pages_do_not_need(answers: dict[str, httpx.Response]) -> None:
    for name, answer in answers.items():
        expected = CONSOLE_HEADERS if answer.url.path.startswith("/console") else HEADERS
        assert {key: answer.headers.get(key) for key in HEADERS} == dict(expected), name
        assert answer.headers["Cache-Control"] == "no-store", name
        assert "set-cookie" not in answer.headers, name
    assert [name for name, one in answers.items() if one.status_code == 500] == []


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    sources = {source for part in policy.values() for source in part.split()}
    assert sources == {"'none'", "'self'", "'script'"}
    assert HEADERS["Referrer-Policy"] == "no-referrer"


class Found(HTMLParser):
    """What of a page a policy would have to allow, and every address in it."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.inline += [f"{tag} {name}" for name in given if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action") and value]


def test_pages_have_no_code_in_them_and_load_nothing_from_elsewhere(
    answers: dict[str, httpx.Response],
) -> None:
    pages = {name: one.text for name, one in answers.items() if one.headers.get("Content-Type") == HTML}
    of_links = {"offer", "refused agreement", "profile", "used", "unknown", "wrong method"}
    of_console = {"sign-in", "wrong key", "console, no form token", "console", "console, no such page"}
    assert {"root", "portal", *of_links, *of_console} == set(pages)
    for name, text in pages.items():
        found = Found()
        found.feed(text)
        assert found.inline == [], name
        foreign = [
            one for one in found.addresses if not one.startswith(("/pages/", "/portal", "/console", "#"))
        ]
        assert [one for one in foreign if not one.startswith("data:application/json;base64,")] == [], name


def test_files_of_pages_are_kept_by_their_digest_and_never_others(
    lake: OfferedLake, answers: dict[str, httpx.Response]
) -> None:
    with httpx.Client(verify=False, base_url=lake.root) as client:
        for address in set(re.findall(r'"(/pages/[^"]+)"', answers["portal"].text)):
            named, bare = client.get(address), client.get(address.partition("?")[0])
            assert named.headers["Cache-Control"] == "public, max-age=31536000, immutable"
            assert bare.headers["Cache-Control"] == "no-cache"
            assert named.content == bare.content
            again = client.get(address, headers={"If-None-Match": named.headers["ETag"]})
            assert (again.status_code, again.content) == (304, b"")
            assert "@import" not in named.text
            assert not re.search(r"url\(|https?://(?!www\.w3\.org/2000/svg)", named.text)
        for path in (
            "../headers.py",
            "..%2fheaders.py",
            "%2e%2e/templates/base.html",
            "../../settings.py",
            ".",
            "",
        ):
            assert client.get(f"/pages/{path}").status_code in (404, 405), path


def test_a_profile_is_whole_in_the_page_that_gives_it(answers: dict[str, httpx.Response]) -> None:
    [encoded] = re.findall(r'href="data:application/json;base64,([^"]+)"', answers["profile"].text)
    assert b'"shareCredentialsVersion": 1' in base64.b64decode(encoded)


def test_the_root_leads_people_and_clients(answers: dict[str, httpx.Response], lake: OfferedLake) -> None:
    """A browser gets links to portal and console, a client the addresses of the APIs."""
    page = answers["root"]
    assert page.status_code == 200
    assert 'href="/portal"' in page.text
    assert 'href="/console/"' in page.text
    addresses = answers["root as JSON"].json()
    assert addresses["deltaSharing"] == f"{lake.root}/delta-sharing"
    with httpx.Client(verify=False) as client:
        for name in ("portal", "adminApiDocument"):
            assert client.get(addresses[name]).status_code == 200, name
