"""Each call of the Iceberg REST door is answered as its specification says, and for nobody but its recipients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from lakeshare_server.catalog import DeclaredShare, SharedTable, apply_shares
from lakeshare_server.catalog.models import AuditRow
from tests.builders.iceberg_rest import TABLE, door, rest_catalog
from tests.builders.lake_tables import an_iceberg_table
from tests.builders.recipients import Recipients
from tests.builders.sharing import Provider, Running, a_provider, a_server


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_provider(tmp_path)


@pytest.fixture(scope="module")
def two_shares(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, httpx.Client]]:
    """A table in two shares, one of which the client's recipient is granted; no test changes them."""
    folder = tmp_path_factory.mktemp("two_shares")
    provider = a_provider(folder)
    provider.publish_iceberg("lake.flights", an_iceberg_table(folder / "warehouse").state())
    table = SharedTable("lake", "flights", "lake.flights")
    apply_shares(provider.catalog, [DeclaredShare(name, (table,)) for name in ("flights", "hidden")])
    with a_server(provider) as server, door(server, provider.recipient()) as client:
        yield server, client


CALLS = [
    ("GET", "/v1/config?warehouse=SHARE", None),
    ("GET", "/v1/shares/SHARE/namespaces", None),
    ("GET", "/v1/shares/SHARE/namespaces/lake", None),
    ("HEAD", "/v1/shares/SHARE/namespaces/lake", None),
    ("GET", "/v1/shares/SHARE/namespaces/lake/tables", None),
    ("GET", "/v1/shares/SHARE/namespaces/lake/tables/flights", None),
    ("HEAD", "/v1/shares/SHARE/namespaces/lake/tables/flights", None),
    ("GET", "/v1/shares/SHARE/namespaces/lake/tables/flights/credentials", None),
    ("POST", "/v1/shares/SHARE/namespaces/lake/tables/flights/sign", {"method": "GET", "uri": "http://a/b"}),
    ("POST", "/v1/shares/SHARE/namespaces/lake/tables/flights/metrics", {"report-type": "scan-report"}),
    ("POST", "/v1/shares/SHARE/namespaces/lake/tables/flights/plan", {"filter": True}),
    ("POST", "/v1/shares/SHARE/namespaces/lake/tables/flights/tasks", {"plan-task": "a"}),
    ("GET", "/v1/shares/SHARE/namespaces/lake/tables/flights/plan/a", None),
    ("DELETE", "/v1/shares/SHARE/namespaces/lake/tables/flights/plan/a", None),
]


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_an_ungranted_share_is_answered_as_an_unknown_one(
    two_shares: tuple[Running, httpx.Client], method: str, path: str, body: Any
) -> None:
    server, client = two_shares
    hidden, unknown = (
        client.request(method, path.replace("SHARE", name), json=body) for name in ("hidden", "nobody")
    )
    assert hidden.status_code == unknown.status_code == 404
    assert hidden.text.replace("hidden", "nobody") == unknown.text
    with door(server, None) as stranger:
        refused = stranger.request(method, path.replace("SHARE", "flights"), json=body)
    assert refused.status_code == 401
    if method != "HEAD":
        assert unknown.json()["error"]["code"] == 404
        assert refused.json()["error"]["type"] == "NotAuthorizedException"


def test_what_config_announces_is_what_is_answered(two_shares: tuple[Running, httpx.Client]) -> None:
    client = two_shares[1]
    config = client.get("/v1/config", params={"warehouse": "flights"}).json()
    assert config["overrides"] == {"prefix": "shares/flights"}
    answered = set()
    for method, path, body in CALLS[1:]:
        template = path.replace("shares/SHARE", "{prefix}").replace("/lake", "/{namespace}")
        template = template.replace("/plan/a", "/plan/{plan-id}")
        answered.add(f"{method} {template.replace('tables/flights', 'tables/{table}')}")
        status = client.request(method, path.replace("SHARE", "flights"), json=body).status_code
        # The table is on a disk: there are no credentials for it, and nothing to sign. No plan is kept.
        expected = {"credentials": 400, "sign": 403, "tasks": 404, "a": 404}.get(path.rpartition("/")[2], 200)
        assert status == (204 if method == "HEAD" or path.endswith("metrics") else expected)
    assert answered == set(config["endpoints"])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/shares/flights/namespaces"),
        ("DELETE", "/v1/shares/flights/namespaces/lake"),
        ("POST", "/v1/shares/flights/namespaces/lake/properties"),
        ("POST", "/v1/shares/flights/namespaces/lake/tables"),
        ("POST", TABLE),
        ("DELETE", TABLE),
        ("POST", "/v1/shares/flights/tables/rename"),
        ("POST", "/v1/shares/flights/transactions/commit"),
        ("GET", "/v1/shares/flights/namespaces/lake/views"),
    ],
)
def test_what_a_read_only_catalog_does_not_do_is_refused_by_name(
    two_shares: tuple[Running, httpx.Client], method: str, path: str
) -> None:
    server, client = two_shares
    answer = client.request(method, path)
    assert answer.status_code == 406
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("UnsupportedOperationException", 406)
    assert path in error["message"]
    with door(server, None) as stranger:
        assert stranger.request(method, path).status_code == 401


def test_a_namespace_that_is_not_there_is_told_as_one(two_shares: tuple[Running, httpx.Client]) -> None:
    client = two_shares[1]
    for path in ("/v1/shares/flights/namespaces/other", "/v1/shares/flights/namespaces/other/tables"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NoSuchNamespaceException")
    children = client.get("/v1/shares/flights/namespaces", params={"parent": "lake"})
    assert children.json() == {"namespaces": []}
    assert client.get("/v1/shares/flights/namespaces", params={"parent": "other"}).status_code == 404


def test_a_config_without_a_warehouse_says_what_to_give(two_shares: tuple[Running, httpx.Client]) -> None:
    answer = two_shares[1].get("/v1/config")
    assert answer.status_code == 400
    assert "warehouse=<share>" in answer.json()["error"]["message"]


def test_listings_are_paged_for_those_who_ask_for_pages_only(provider: Provider, tmp_path: Path) -> None:
    state = an_iceberg_table(tmp_path / "warehouse").state()
    names = [f"flights{number}" for number in range(5)]
    for name in names:
        provider.publish_iceberg(f"lake.{name}", state)
    provider.share(*(f"lake.{name}" for name in names))
    with a_server(provider) as server:
        token = provider.recipient()
        path = "/v1/shares/flights/namespaces/lake/tables"
        with door(server, token) as client:
            assert "next-page-token" not in client.get(path).json()
            first = client.get(path, params={"pageSize": 2, "pageToken": ""}).json()
            assert [one["name"] for one in first["identifiers"]] == names[:2]
            assert client.get(path, params={"pageSize": 0}).status_code == 400
            wrong = client.get(path, params={"pageToken": "x"})
            assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "BadRequestException")
        paging = rest_catalog(server, token, **{"rest-page-size": "2"})
        assert paging.list_tables("lake") == [("lake", name) for name in names]


def test_a_revoked_token_ends_with_the_next_request(provider: Provider, tmp_path: Path) -> None:
    provider.publish_iceberg("lake.flights", an_iceberg_table(tmp_path / "warehouse").state())
    provider.share("lake.flights")
    with a_server(provider) as server, door(server, provider.recipient()) as client:
        assert client.get(TABLE).status_code == 200
        Recipients(provider.catalog).revoke("bob")
        assert client.get(TABLE).status_code == 401


def test_every_request_is_in_the_audit_log(provider: Provider, tmp_path: Path) -> None:
    provider.publish_iceberg("lake.flights", an_iceberg_table(tmp_path / "warehouse").state())
    provider.share("lake.flights")
    with a_server(provider) as server, door(server, provider.recipient()) as client:
        client.get("/v1/config", params={"warehouse": "flights"})
        client.get(TABLE)
        client.post(f"{TABLE}/sign", json={"method": "GET", "uri": "http://a/b"})
        client.delete(TABLE)
    with provider.catalog.reading() as session:
        requests = select(AuditRow).where(AuditRow.principal.is_(None))
        rows = session.scalars(requests.order_by(AuditRow.key)).all()
        found = [(row.action, row.recipient, row.object_name, row.status, row.version) for row in rows]
    assert found == [
        ("iceberg_config", "bob", "flights", 200, None),
        ("load_table", "bob", "flights.lake.flights", 200, 0),
        ("sign_request", "bob", "flights.lake.flights", 403, 0),
        ("not_offered", "bob", f"/iceberg{TABLE}", 406, None),
    ]


@pytest.mark.parametrize("prefix", ["/", "/iceberg", "/iceberg/v1"])
def test_the_other_protocol_may_have_a_prefix_like_this_one(tmp_path: Path, prefix: str) -> None:
    provider = a_provider(tmp_path, endpoint=prefix)
    provider.publish_iceberg("lake.flights", an_iceberg_table(tmp_path / "warehouse").state())
    provider.share("lake.flights")
    with a_server(provider) as server:
        token = provider.recipient()
        with door(server, token) as iceberg, server.client(token) as delta:
            assert iceberg.get(TABLE).status_code == 200
            assert delta.get("shares").json()["items"][0]["name"] == "flights"
            assert delta.post("shares/flights/schemas/lake/tables/flights/query", json={}).status_code == 200
