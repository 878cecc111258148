"""Every page of the console takes a session, every change a form token and a role; names and comments stay text."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import httpx
import pytest
from fastapi.routing import APIRoute

from lakeshare_server.catalog import credentials, sharing, states
from lakeshare_server.catalog.sharing import editing
from lakeshare_server.pages.console import PARTS
from tests.builders.administration import Administered, an_administered_server

# What takes more than the role auditor, which opens all other pages.
STEWARD_PAGES = {"/recipients/{recipient}/as/{share}/{schema}/{table}", "/drift"}
OPEN = {("GET", "/sign-in"), ("POST", "/sign-in"), ("GET", "/sign-in/issuer"), ("GET", "/sign-in/callback")}
ANY_ROLE = {("POST", "/sign-out"), ("POST", "/audit/verify")}
CALLS = sorted(
    {
        (method, route.path)
        for part in PARTS
        for route in part.router.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    - OPEN
)
TOKEN = re.compile(r'name="form_token" value="([^"]+)"')
PAYLOAD = """x"'><script>alert(1)</script><img src=y onerror=alert(2)>{{7*7}}"""
# Names have no space, slash or dot.
HOSTILE_NAME = """x"'onclick=alert(2)'><script>alert(1)<script>{{7*7}}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with an_administered_server(tmp_path_factory.mktemp("console")) as running:
        yield running


def signed_in(server: Administered, role: str) -> tuple[httpx.Client, str]:
    """A client with a session, and the session's form token."""
    client = httpx.Client(base_url=f"{server.root}/console", timeout=30)
    client.post("/sign-in", data={"key": server.keys[role]})
    return client, TOKEN.findall(client.get("/shares").text)[0]


def fill(path: str) -> str:
    """A path with values that name no object."""
    return re.sub(r"\{(version|number)[^}]*\}", "1", re.sub(r"\{(?!version|number)[^}]+\}", "none", path))


def test_every_call_takes_a_session_and_a_role(server: Administered) -> None:
    assert len(CALLS) > 30
    auditor, token = signed_in(server, "auditor")
    with httpx.Client(base_url=f"{server.root}/console", timeout=30) as nobody:
        for method, path in CALLS:
            refused = nobody.request(method, fill(path))
            if method == "GET":
                assert refused.status_code == 303, path
                assert refused.headers["location"].startswith("/console/sign-in?next="), path
            else:
                assert refused.status_code == 401, path
            answer = auditor.request(
                method, fill(path), data={"form_token": token} if method == "POST" else None
            )
            if (method, path) in ANY_ROLE:
                assert answer.status_code == 303, path
                auditor, token = signed_in(server, "auditor")
            elif method == "POST" or path in STEWARD_PAGES:
                assert answer.status_code == 403, path
            else:
                assert answer.status_code in (200, 303, 400, 404), (path, answer.text)


def test_every_change_takes_the_form_token_of_its_session(server: Administered) -> None:
    owner, token = signed_in(server, "owner")
    _, foreign = signed_in(server, "owner")
    for method, path in CALLS:
        if method != "POST":
            continue
        for fields, headers in (
            ({}, {}),
            ({"form_token": ""}, {}),
            ({"form_token": foreign}, {}),
            ({"form_token": token}, {"Origin": "https://evil.example"}),
            ({"form_token": token}, {"Origin": "null"}),
            ({"form_token": token}, {"Sec-Fetch-Site": "cross-site"}),
            ({"form_token": token}, {"Sec-Fetch-Site": "same-site"}),
        ):
            answer = owner.post(fill(path), data=fields, headers=headers)
            assert answer.status_code == 403, (path, fields, headers)
    assert owner.get("/shares").status_code == 200


def test_a_session_known_before_the_sign_in_is_worth_nothing_after_it(server: Administered) -> None:
    """A planted cookie neither survives the sign-in nor gains its rights."""
    planted, _ = signed_in(server, "auditor")
    cookie = planted.cookies["lakeshare_console"]
    victim = httpx.Client(
        base_url=f"{server.root}/console", timeout=30, cookies={"lakeshare_console": cookie}
    )
    answer = victim.post("/sign-in", data={"key": server.keys["owner"]})
    own = re.search(r"lakeshare_console=([^;]+)", answer.headers["set-cookie"])
    assert own is not None
    assert own[1] != cookie
    assert "auditor" in planted.get("/shares").text
    for wrong in (cookie[:-1] + ("A" if cookie[-1] != "A" else "B"), "", "e30", cookie[1:]):
        headers = {"Cookie": f"lakeshare_console={wrong}"}
        assert httpx.get(f"{server.root}/console/shares", headers=headers).status_code == 303


class Markup(HTMLParser):
    """The elements and attributes of a page that could run something."""

    def __init__(self) -> None:
        super().__init__()
        self.active: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.active += [f"{tag} {name}" for name in given if name.startswith("on") or name == "style"]
        links = [value or "" for name, value in attrs if name in ("href", "src", "action")]
        self.active += [link for link in links if link and not link.startswith(("/", "#"))]
        if tag in ("style", "iframe", "object") or (tag == "script" and "src" not in given):
            self.active.append(tag)


def test_hostile_names_and_comments_are_shown_as_text(server: Administered) -> None:
    catalog = server.provider.catalog
    with editing(catalog, PAYLOAD[:200]) as edit:
        sharing.create_share(edit, HOSTILE_NAME, comment=PAYLOAD, display_name=PAYLOAD)
        table = states.SharedTable(HOSTILE_NAME, HOSTILE_NAME, "lake.flights", comment=PAYLOAD)
        sharing.add_table(edit, HOSTILE_NAME, table)
        fields = {"comment": PAYLOAD, "owner": PAYLOAD, "agreement": PAYLOAD, "properties": {"p": PAYLOAD}}
        sharing.create_recipient(edit, HOSTILE_NAME, **fields)
        sharing.create_group(edit, HOSTILE_NAME, comment=PAYLOAD, members=[HOSTILE_NAME])
        sharing.grant(edit, HOSTILE_NAME, recipient=HOSTILE_NAME)
        sharing.grant(edit, HOSTILE_NAME, group=HOSTILE_NAME)
        credentials.issue_token(edit, HOSTILE_NAME)
        sharing.create_recipient(edit, "federated", authentication="OIDC_FEDERATION")
        policy = states.FederationPolicy(
            name=HOSTILE_NAME,
            issuer="https://i.example",
            subject_claim="sub",
            subject=PAYLOAD,
            audiences=(PAYLOAD,),
            comment=PAYLOAD,
        )
        credentials.put_policy(edit, "federated", policy)
    owner, _ = signed_in(server, "owner")
    quoted = httpx.URL("http://x").copy_with(path=f"/{HOSTILE_NAME}").raw_path.decode()[1:]
    pages = [path for method, path in CALLS if method == "GET"] + ["/recipients/federated"]
    shown = 0
    for path in pages:
        filled = path.replace("{table}", "lake.flights") if "/as/" not in path else path
        filled = re.sub(r"\{(version|number)\}", "0", filled)
        for query in ("", f"?q={quoted}&rule={quoted}&reader=%20&object={quoted}&recipient={quoted}"):
            answer = owner.get(re.sub(r"\{[^}]+\}", quoted, filled) + query)
            assert answer.status_code < 500, (path, answer.text)
            if answer.headers.get("content-type", "").startswith("text/html"):
                markup = Markup()
                markup.feed(answer.text)
                assert markup.active == [], (path, query)
                assert "49" not in re.findall(r">([0-9]+)<", answer.text), path
                shown += "&lt;script&gt;" in answer.text
    assert shown > 8
