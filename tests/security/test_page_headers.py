"""What every page tells the browser, and what pages do not contain: no foreign content, no inline code, no caches."""

import base64
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import httpx
import pytest

from lakeshare_server.pages.rendering import HEADERS
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
            "root": client.get("/"),
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


def test_every_answer_forbids_what_pages_do_not_need(answers: dict[str, httpx.Response]) -> None:
    for name, answer in answers.items():
        assert {key: answer.headers.get(key) for key in HEADERS} == dict(HEADERS), name
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
    assert {"offer", "refused agreement", "profile", "used", "unknown", "wrong method", "portal"} == set(
        pages
    )
    for name, text in pages.items():
        found = Found()
        found.feed(text)
        assert found.inline == [], name
        foreign = [one for one in found.addresses if not one.startswith(("/pages/", "/portal", "#"))]
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


def test_the_root_leads_to_the_portal(answers: dict[str, httpx.Response]) -> None:
    """A person who opens the server in a browser finds the page for people."""
    assert (answers["root"].status_code, answers["root"].headers["Location"]) == (307, "/portal")
