"""Every call of the admin API takes an administrator's valid key, and a role that is enough; nothing else opens it."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakeshare_server.catalog.credentials import (
    FIRST_KEY_NAME,
    PREFIX,
    add_admin_key,
    create_first_admin_key,
    read_admin_keys,
    revoke_admin_key,
)
from lakeshare_server.catalog.sharing import editing
from lakeshare_server.errors import BadRequest, NameTaken
from tests.builders import plain_http
from tests.builders.administration import PROVIDER, ROLES, UNITY, Administered, an_administered_server
from tests.builders.oidc_issuer import AnIssuer, an_issuer
from tests.builders.sharing import a_provider

SHARE = {"name": "made"}
POLICY = {
    "name": "absent",
    "oidc_policy": {
        "issuer": "https://i.example",
        "subject_claim": "sub",
        "subject": "s",
        "audiences": ["a"],
    },
}
# What each call needs at least, and a body that would do.
CALLS: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("POST", "/shares"): ("steward", SHARE),
    ("GET", "/shares"): ("auditor", {}),
    ("GET", "/shares/{share}"): ("auditor", {}),
    ("PATCH", "/shares/{share}"): ("steward", {"comment": "x"}),
    ("DELETE", "/shares/{share}"): ("steward", {}),
    ("GET", "/shares/{share}/permissions"): ("auditor", {}),
    ("PATCH", "/shares/{share}/permissions"): ("steward", {"changes": []}),
    ("GET", "/recipients/{recipient}/share-permissions"): ("auditor", {}),
    ("POST", "/recipients"): ("steward", SHARE),
    ("GET", "/recipients"): ("auditor", {}),
    ("GET", "/recipients/{recipient}"): ("auditor", {}),
    ("PATCH", "/recipients/{recipient}"): ("steward", {"comment": "x"}),
    ("DELETE", "/recipients/{recipient}"): ("steward", {}),
    ("POST", "/recipients/{recipient}/rotate-token"): ("steward", {"existing_token_expire_in_seconds": 0}),
    ("POST", "/recipients/{recipient}/federation-policies"): ("steward", POLICY),
    ("GET", "/recipients/{recipient}/federation-policies"): ("auditor", {}),
    ("GET", "/recipients/{recipient}/federation-policies/{policy}"): ("auditor", {}),
    ("PATCH", "/recipients/{recipient}/federation-policies/{policy}"): ("steward", POLICY),
    ("DELETE", "/recipients/{recipient}/federation-policies/{policy}"): ("steward", {}),
    ("POST", "/recipients/{recipient}/revoke"): ("steward", {}),
    ("GET", "/recipients/{recipient}/as/{path}"): ("steward", {}),
    ("POST", "/recipients/{recipient}/as/{path}"): ("steward", {}),
    ("DELETE", "/recipients/{recipient}/tokens/{token}"): ("steward", {}),
    ("POST", "/recipients/{recipient}/webhooks"): ("steward", {"url": "https://1.1.1.1/hook"}),
    ("GET", "/recipients/{recipient}/webhooks"): ("auditor", {}),
    ("DELETE", "/recipients/{recipient}/webhooks/{webhook}"): ("steward", {}),
    ("POST", "/recipients/{recipient}/webhooks/{webhook}/rotate-secret"): ("steward", {}),
    ("POST", "/recipients/{recipient}/webhooks/{webhook}/test"): ("steward", {}),
    ("GET", "/recipients/{recipient}/webhooks/{webhook}/deliveries"): ("auditor", {}),
    ("POST", "/recipients/{recipient}/webhooks/{webhook}/resend"): ("steward", {}),
    ("POST", "/groups"): ("steward", SHARE),
    ("GET", "/groups"): ("auditor", {}),
    ("GET", "/groups/{group}"): ("auditor", {}),
    ("PATCH", "/groups/{group}"): ("steward", {"comment": "x"}),
    ("DELETE", "/groups/{group}"): ("steward", {}),
    ("POST", "/admin-keys"): ("owner", {"name": "made", "role": "owner"}),
    ("GET", "/admin-keys"): ("owner", {}),
    ("DELETE", "/admin-keys/{key}"): ("owner", {}),
    ("POST", "/followed-tables"): ("owner", {"tables": [{"location": "/nowhere", "name": "a.b"}]}),
    ("GET", "/followed-tables"): ("auditor", {}),
    ("DELETE", "/followed-tables/{table}"): ("owner", {}),
    ("GET", "/audit-events"): ("auditor", {}),
    ("GET", "/usage"): ("auditor", {}),
    ("GET", "/Me"): ("auditor", {}),
}
RANK = {role: rank for rank, role in enumerate(reversed(ROLES))}
# By how the paths begin: all of them but the public ones of activation links.
BEGINNINGS = (UNITY, PROVIDER, "/api/2.0/data-sharing", "/api/2.0/preview/scim/v2")
PUBLIC = ("/api/2.1/unity-catalog/public", "/api/2.1/opensharing/public")


@pytest.fixture(scope="module")
def issuer() -> Iterator[AnIssuer]:
    with an_issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, issuer: AnIssuer) -> Iterator[Administered]:
    settings = {
        "admin_oidc_issuer": issuer.url,
        "admin_oidc_audiences": "lakeshare-admin",
        "admin_oidc_role_claim": "realm.roles",
        "admin_oidc_stewards": "lake-stewards data-office",
        "oidc_private_hosts": issuer.host,
    }
    with an_administered_server(tmp_path_factory.mktemp("roles"), **settings) as running:
        yield running


@pytest.fixture(scope="module")
def calls(server: Administered) -> list[tuple[str, str, str, dict[str, Any]]]:
    """Method, path, least role and body of every call that the server's own document tells of."""
    document = plain_http.get(f"{server.root}/api/openapi.json").json()
    found, seen = [], set()
    for path, item in document["paths"].items():
        if f"/api{path}".startswith(PUBLIC):
            continue
        beginning = next(one for one in BEGINNINGS if f"/api{path}".startswith(one))
        for method in item:
            call = method.upper(), f"/api{path}".removeprefix(beginning)
            seen.add(call)
            found.append((call[0], re.sub(r"\{\w+\}", "absent", f"/api{path}"), *CALLS[call]))
    assert seen == CALLS.keys()
    return found


@pytest.fixture(scope="module")
def http(server: Administered) -> Iterator[httpx.Client]:
    with httpx.Client(verify=False, base_url=server.root, timeout=30) as client:
        yield client


def status(http: httpx.Client, method: str, path: str, body: Any, authorization: str | None) -> int:
    headers = {} if authorization is None else {"Authorization": authorization}
    return http.request(method, path, json=body, headers=headers).status_code


def everything(server: Administered) -> list[Any]:
    with server.client() as client:
        return [client.get(path).json() for path in ("/shares", "/recipients")]


def test_no_call_is_open_without_a_key(server: Administered, http: httpx.Client, calls: list[Any]) -> None:
    token = server.provider.recipient("bob_of_no_call", ())
    before = everything(server)
    wrong = [
        None,
        f"Bearer {token}",
        f"Bearer {PREFIX}{'A' * 43}",
        f"Basic {server.keys['owner']}",
        f"Bearer {server.keys['owner']}x",
        f"Bearer {server.keys['owner'].removeprefix(PREFIX)}",
        "Bearer " + "x" * 20_000,
        "Bearer",
    ]
    for method, path, _, body in calls:
        assert {status(http, method, path, body, one) for one in wrong} == {401}, (method, path)
    assert everything(server) == before


def test_a_role_that_is_not_enough_is_told_so_and_changes_nothing(
    server: Administered, http: httpx.Client, calls: list[Any]
) -> None:
    before = everything(server)
    for method, path, least, body in calls:
        for role in ROLES:
            if RANK[role] < RANK[least]:
                key = f"Bearer {server.keys[role]}"
                assert status(http, method, path, body, key) == 403, (method, path, role)
                # Neither is it told what is there: the answer does not depend on the body or the name.
                assert status(http, method, path, "no object", key) == 403
    assert everything(server) == before


def test_a_role_that_is_enough_is_let_through(
    server: Administered, http: httpx.Client, calls: list[Any]
) -> None:
    for method, path, least, body in calls:
        if method == "GET" or "absent" in path:
            for role in ROLES:
                if RANK[role] >= RANK[least]:
                    answer = status(http, method, path, body, f"Bearer {server.keys[role]}")
                    assert answer in (200, 404), (method, path, role)


def test_a_key_opens_nothing_of_recipients(server: Administered) -> None:
    for key in server.keys.values():
        answer = plain_http.get(
            f"{server.root}/delta-sharing/shares", headers={"Authorization": f"Bearer {key}"}
        )
        assert answer.status_code == 401


def test_revoked_and_expired_keys_open_nothing_from_the_next_request_on(
    server: Administered, http: httpx.Client
) -> None:
    catalog = server.provider.catalog
    with editing(catalog, "tests") as edit:
        _, key = add_admin_key(edit, "short", "owner", expires_at=datetime.now(UTC) + timedelta(seconds=1))
        _, other = add_admin_key(edit, "other", "owner")
    assert status(http, "GET", f"{UNITY}/shares", None, f"Bearer {other}") == 200
    with editing(catalog, "tests") as edit:
        revoke_admin_key(edit, "other")
    assert status(http, "GET", f"{UNITY}/shares", None, f"Bearer {other}") == 401
    with catalog.reading() as session:
        [short] = [one for one in read_admin_keys(session) if one.name == "short"]
    assert short.expires_at is not None
    while datetime.now(UTC) <= short.expires_at:
        status(http, "GET", f"{UNITY}/shares", None, f"Bearer {key}")
    assert status(http, "GET", f"{UNITY}/shares", None, f"Bearer {key}") == 401


def test_whoever_guesses_keys_has_to_wait(tmp_path: Path) -> None:
    with (
        an_administered_server(tmp_path, guesses_per_minute=3) as server,
        httpx.Client(verify=False, base_url=server.root) as http,
    ):
        wrong = [status(http, "GET", f"{UNITY}/shares", None, f"Bearer {PREFIX}{n:043}") for n in range(12)]
        assert (wrong[0], wrong[-1]) == (401, 429)
        known = http.get(f"{UNITY}/shares", headers={"Authorization": f"Bearer {PREFIX}{'x' * 43}"})
        assert int(known.headers["retry-after"]) > 0
        assert known.json()["error_code"] == "REQUEST_LIMIT_EXCEEDED"


def test_keys_are_made_told_once_and_ended_over_the_api(server: Administered, http: httpx.Client) -> None:
    with server.client(prefix=PROVIDER) as client:
        made = client.post("/admin-keys", json={"name": "robot", "role": "auditor"}).json()
        assert made["key"].startswith(PREFIX)
        assert client.post("/admin-keys", json={"name": "robot", "role": "owner"}).status_code == 409
        assert client.post("/admin-keys", json={"name": "r", "role": "king"}).status_code == 400
        listed = client.get("/admin-keys")
        assert made["key"] not in listed.text
        assert {one["name"]: one["role"] for one in listed.json()["keys"]}["robot"] == "auditor"
        assert status(http, "GET", f"{UNITY}/shares", None, f"Bearer {made['key']}") == 200
        assert client.delete("/admin-keys/robot").json()["revoked_at"]
        assert status(http, "GET", f"{UNITY}/shares", None, f"Bearer {made['key']}") == 401
        assert client.post("/admin-keys", json={"name": "robot", "role": "owner"}).status_code == 409


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"realm": {"roles": ["x", "lakeshare-owner"]}}, "owner"),
        ({"realm": {"roles": ["data-office", "lakeshare-auditor"]}}, "steward"),
        ({"realm": {"roles": "lakeshare-auditor"}}, "auditor"),
        ({"realm.roles": ["lake-stewards"]}, "steward"),
        ({"realm": {"roles": ["lakeshare-steward"]}}, 403),
        ({"realm": {"roles": []}}, 403),
        ({"realm": ["lakeshare-owner"]}, 403),
        ({"realm": {"roles": {"lakeshare-owner": 1}}}, 403),
        ({}, 403),
        ({"realm": {"roles": ["lakeshare-owner"]}, "aud": "lakeshare"}, 401),
        ({"realm": {"roles": ["lakeshare-owner"]}, "iss": "https://elsewhere.example"}, 401),
        ({"realm": {"roles": ["lakeshare-owner"]}, "exp": 1}, 401),
        ({"realm": {"roles": ["lakeshare-owner"]}, "sub": None}, 401),
        ({"realm": {"roles": ["lakeshare-owner"]}, "sub": ""}, 401),
    ],
)
def test_a_token_of_the_issuer_gives_the_role_that_its_claim_says(
    server: Administered, issuer: AnIssuer, claims: dict[str, Any], expected: str | int
) -> None:
    token = issuer.token(**{"aud": "lakeshare-admin", "sub": "owner", **claims})
    me = f"{server.root}/api/2.0/preview/scim/v2/Me"
    answer = plain_http.get(me, headers={"Authorization": f"Bearer {token}"}, timeout=30)
    if isinstance(expected, int):
        assert answer.status_code == expected, answer.text
    else:
        # Not the name of the key that is called `owner` as well.
        assert (answer.json()["userName"], answer.json()["role"]) == ("oidc:owner", expected)


def test_a_token_of_nobody_that_was_named_is_not_looked_into(http: httpx.Client) -> None:
    with an_issuer("stranger") as stranger:
        token = stranger.token(aud="lakeshare-admin", realm={"roles": ["lakeshare-owner"]})
        assert status(http, "GET", f"{UNITY}/shares", None, f"Bearer {token}") == 401
        assert stranger.asked == []


def test_an_issuer_without_an_audience_is_refused_at_the_start(tmp_path: Any) -> None:
    with (
        pytest.raises(BadRequest, match="LAKESHARE_ADMIN_OIDC_AUDIENCES"),
        an_administered_server(tmp_path, admin_oidc_issuer="https://login.example.com"),
    ):
        pass


def test_the_first_key_is_made_once_for_ever(tmp_path: Any) -> None:
    catalog = a_provider(tmp_path).catalog
    key = create_first_admin_key(catalog)
    assert key is not None
    assert key.startswith(PREFIX)
    assert create_first_admin_key(catalog) is None
    with editing(catalog, "tests") as edit:
        revoke_admin_key(edit, FIRST_KEY_NAME)
    # Whoever revoked the last key wants nobody in: a restart does not change that.
    assert create_first_admin_key(catalog) is None
    with editing(catalog, "tests") as edit, pytest.raises(NameTaken):
        add_admin_key(edit, FIRST_KEY_NAME, "owner")


def test_keys_are_nowhere_but_where_they_were_told(tmp_path: Any) -> None:
    catalog = a_provider(tmp_path).catalog
    keys = [create_first_admin_key(catalog)]
    with editing(catalog, "tests") as edit:
        keys.append(add_admin_key(edit, "second", "steward")[1])
    written = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert b"second" in written
    for key in keys:
        assert key is not None
        assert key.removeprefix(PREFIX).encode() not in written
