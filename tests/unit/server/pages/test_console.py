"""The console: sign-in, sessions, roles, and changes of shares and recipients by forms."""

import html
import re
from collections.abc import Iterator

import httpx
import pytest

from lakeshare_server.catalog import states
from lakeshare_server.catalog.credentials import add_admin_key, revoke_admin_key
from lakeshare_server.catalog.sharing import editing
from lakeshare_server.pages.console import PARTS
from tests.builders.administration import Administered, an_administered_server, shares_read
from tests.builders.console import REVISION, TOKEN, browser

LINK = re.compile(r'id="activation-link">([^<]+)<')


@pytest.fixture(scope="module")
def administered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with an_administered_server(tmp_path_factory.mktemp("console")) as running:
        yield running


def test_a_share_is_made_granted_read_and_revoked(administered: Administered) -> None:
    console = browser(administered, "steward")
    console.send("/console/shares", "/console/shares", {"name": "north", "display_name": "The north"})
    page = "/console/shares/north"
    table = {"lake_table": "lake.flights", "history": "yes", "rule": "day >= '2013-01-02'"}
    console.send(page, f"{page}/tables", table)
    made = {"name": "acme", "comment": "of <b>Acme</b>", "contact_email": "data@acme.example"}
    link = LINK.search(console.send("/console/recipients", "/console/recipients", made, 200).text)
    assert link is not None
    console.send(page, f"{page}/grants", {"recipient": "acme", "ends_at": "2031-01-31"})
    redeemed = httpx.post(link[1], headers={"Accept": "application/json"}, timeout=30).json()
    token = redeemed["profile"]["bearerToken"]
    assert shares_read(administered.root, token) == ["north"]
    assert "2031-01-31 00:00" in console.page(page)
    preview = console.page("/console/recipients/acme/as/north/lake/flights")
    assert "Restricted by a rule" in preview
    assert "<td>2013-01-02</td>" in preview
    assert "<td>2013-01-01</td>" not in preview
    effect = console.page(f"{page}/rule?rule=day+%3D+'2013-01-01'")
    assert "1 of" in effect
    console.send("/console/recipients/acme", "/console/recipients/acme/rotate", {"grace_hours": "0"}, 200)
    assert shares_read(administered.root, token) is None
    console.send(page, f"{page}/grants/revoke", {"recipient": "acme"})
    console.send("/console/recipients/acme", "/console/recipients/acme/revoke", {})
    assert "revoked" in console.page("/console/recipients/acme")
    changes = (
        administered.client(prefix="/api/2.1/opensharing/provider").get("audit-events?kind=change").json()
    )
    made_by = {(event["action"], event["principal"]) for event in changes["events"]}
    expected = {
        "create_share",
        "add_table",
        "create_recipient",
        "grant",
        "invite",
        "revoke",
        "revoke_recipient",
    }
    assert {(action, "steward") for action in expected} <= made_by


def test_pages_need_a_session_and_changes_the_form_token_and_the_role(administered: Administered) -> None:
    signed_out = browser(administered, None)
    moved = signed_out.client.get("/console/shares?q=a")
    assert (moved.status_code, moved.headers["location"]) == (
        303,
        "/console/sign-in?next=%2Fconsole%2Fshares%3Fq%3Da",
    )
    assert signed_out.client.post("/console/shares", data={"name": "x"}).status_code == 401
    console = browser(administered)
    assert console.client.post("/console/shares", data={"name": "x"}).status_code == 403
    token = TOKEN.findall(console.client.get("/console/shares").text)[-1]
    other = browser(administered)
    assert other.client.post("/console/shares", data={"name": "x", "form_token": token}).status_code == 403
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        refused = console.client.post(
            "/console/shares", data={"name": "x", "form_token": token}, headers=headers
        )
        assert refused.status_code == 403
    own = {"Origin": "null", "Sec-Fetch-Site": "same-origin"}  # as Chromium sends it from our pages
    form = {"name": "from-a-browser", "form_token": token}
    assert console.client.post("/console/shares", data=form, headers=own).status_code == 303
    auditor = browser(administered, "auditor")
    token = TOKEN.findall(auditor.client.get("/console/shares").text)[-1]
    refused = auditor.client.post("/console/shares", data={"name": "x", "form_token": token})
    assert refused.status_code == 403
    assert "auditor and may not change shares" in html.unescape(refused.text)
    with administered.provider.catalog.reading() as session:
        assert "x" not in [share.name for share in states.list_shares(session)]


def test_a_session_ends_with_sign_out_and_with_its_key(administered: Administered) -> None:
    console = browser(administered)
    cookie = console.client.cookies["lakeshare_console"]
    console.send("/console/shares", "/console/sign-out", {})
    assert "lakeshare_console" not in console.client.cookies
    replayed = httpx.get(
        f"{administered.root}/console/shares", headers={"Cookie": f"lakeshare_console={cookie}"}, timeout=30
    )
    assert replayed.status_code == 303
    with editing(administered.provider.catalog, "tests") as edit:
        _, key = add_admin_key(edit, "short-lived", "steward")
    client = httpx.Client(base_url=administered.root, timeout=30)
    client.post("/console/sign-in", data={"key": key})
    assert client.get("/console/shares").status_code == 200
    with editing(administered.provider.catalog, "tests") as edit:
        revoke_admin_key(edit, "short-lived")
    assert client.get("/console/shares").status_code == 303


def test_sign_in_refuses_wrong_keys_and_leads_to_own_pages_only(administered: Administered) -> None:
    console = browser(administered, None)
    refused = console.client.post("/console/sign-in", data={"key": "lakeshare-admin-wrong"})
    assert refused.status_code == 401
    assert "lakeshare_console" not in console.client.cookies
    own = {"/console/shares?q=a": "/console/shares?q=a"}
    others = (
        "https://evil.example/",
        "//evil.example",
        "/console/../api",
        "/console//evil.example",
        "/\\evil",
        "/consoles",
    )
    for target, expected in {**own, **dict.fromkeys(others, "/console")}.items():
        form = {"key": administered.keys["owner"], "next": target}
        response = console.client.post("/console/sign-in", data=form)
        assert response.headers["location"] == expected or target == "/console/../api", target
        cookie = response.headers["set-cookie"]
        assert all(part in cookie for part in ("HttpOnly", "SameSite=lax", "Path=/console"))


def test_refused_forms_show_the_reason_and_keep_what_was_entered(administered: Administered) -> None:
    console = browser(administered)
    refused = console.send("/console/shares", "/console/shares", {"name": "a/b", "comment": "kept"}, 400)
    assert 'value="kept"' in refused.text
    assert 'role="alert"' in refused.text
    console.send("/console/shares", "/console/shares", {"name": "twice"})
    again = console.send("/console/shares", "/console/shares", {"name": "twice"}, 409)
    assert "twice" in again.text
    old = console.client.get("/console/shares/twice").text
    hidden = {"form_token": TOKEN.findall(old)[-1], "revision": REVISION.findall(old)[-1]}
    console.send("/console/shares/twice", "/console/shares/twice", {"comment": "first"})
    late = console.client.post("/console/shares/twice", data={**hidden, "comment": "second"})
    assert late.status_code == 412
    assert "has edited it" in html.unescape(late.text)
    missing = console.page("/console/shares/none", 404)
    assert "does not exist" in missing


def test_a_rule_is_tried_on_as_many_tables_as_fit_in_the_time(
    administered: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakeshare_server.pages.console.shares.MEASURE_S", -1.0)
    monkeypatch.setattr("lakeshare_server.pages.console.shares.AT_ONCE", 1)
    console = browser(administered)
    console.send("/console/shares", "/console/shares", {"name": "slow"})
    for alias in ("Lake.One", "Lake.Two"):
        fields = {"lake_table": "lake.flights", "alias": alias}
        console.send("/console/shares/slow", "/console/shares/slow/tables", fields)
    page = console.page("/console/shares/slow/rule?rule=day+%3D+'2013-01-01'")
    assert "slow.Lake.One" in page
    assert "slow.Lake.Two" not in page
    following = page.partition('rel="next" href="')[2].partition('"')[0]
    page = console.page(following)
    assert "slow.Lake.One" not in page
    assert "slow.Lake.Two" in page
    assert 'rel="next"' not in page


def test_a_rule_is_tried_for_a_recipient_with_the_rows_that_it_leaves(administered: Administered) -> None:
    console = browser(administered, "steward")
    console.send("/console/shares", "/console/shares", {"name": "by-property"})
    page = "/console/shares/by-property"
    console.send(page, f"{page}/tables", {"lake_table": "lake.flights", "history": "yes"})
    console.send("/console/recipients", "/console/recipients", {"name": "bay"}, 200)
    recipient, rule = "/console/recipients/bay", "rule?rule=day+%3D+current_recipient('day')"
    assert "recipient that has it as a property" in console.page(f"{page}/{rule}")
    assert "recipient that has it as a property" in console.page(f"{page}/{rule}&recipient=bay")
    refused = console.send(recipient, recipient, {"properties": "day"}, 400)
    assert "like region=EU" in refused.text
    console.send(recipient, recipient, {"properties": "day=2013-01-01"})
    assert "day=2013-01-01" in console.page(recipient)
    tried = console.page(f"{page}/{rule}&recipient=bay&rows=lake.flights")
    assert "<td>2013-01-01</td>" in tried
    assert "<td>2013-01-02</td>" not in tried
    hidden = browser(administered, "auditor").page(f"{page}/{rule}&recipient=bay&rows=lake.flights")
    assert "1 of" in hidden
    assert "<td>2013-01-01</td>" not in hidden


def test_each_change_needs_the_form_token_and_a_session(administered: Administered) -> None:
    routes = [
        route for part in PARTS for route in part.router.routes if "POST" in getattr(route, "methods", ())
    ]
    paths = [re.sub(r"{[a-z]+}", "x", route.path) for route in routes if route.path != "/sign-in"]
    assert len(paths) > 20
    owner, signed_out = browser(administered), browser(administered, None)
    for path in paths:
        assert owner.client.post(f"/console{path}").status_code == 403, path
        assert signed_out.client.post(f"/console{path}").status_code == 401, path
