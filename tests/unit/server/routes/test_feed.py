"""The feed of a share shows each recipient the publications that it may read, and nothing else."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest

from lakeshare_server.access.table_access import TableViews
from lakeshare_server.catalog import (
    DeclaredShare,
    Ledger,
    RetiredTable,
    SharedTable,
    apply_shares,
    feed,
    lock_set,
)
from lakeshare_server.catalog.ledger import alter_followed
from lakeshare_server.catalog.sharing import add_table, create_share, editing, grant, revoke
from lakeshare_server.errors import BadRequest, NotFound
from lakeshare_server.storage import Stores
from lakeshare_server.versions import Versions
from tests.builders.lake_tables import a_delta_table, an_iceberg_table, append_delta, some_rows
from tests.builders.publications import a_publication
from tests.builders.recipients import Recipients
from tests.builders.sharing import Provider, a_provider, a_server

FEED = "/delta-sharing/shares/sales/publications"
ATOM = "{http://www.w3.org/2005/Atom}"
WIDER = '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}}]}'


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    made = a_provider(tmp_path, page_size=100)
    with editing(made.catalog, "tests") as edit:
        create_share(edit, "sales")
        create_share(edit, "other")
    yield made
    made.catalog.close()


@pytest.fixture
def client(provider: Provider) -> Iterator[httpx.Client]:
    with a_server(provider) as server, server.client(None) as client:
        client.base_url = server.url.removesuffix("/delta-sharing")
        yield client


def root(client: httpx.Client) -> str:
    return str(client.base_url).rstrip("/")


def publish(provider: Provider, table: str = "lake.orders", times: int = 1, **fields: Any) -> None:
    for _ in range(times):
        Ledger(provider.catalog).append([a_publication(table=table, **fields)])


def share(provider: Provider, name: str = "orders", share: str = "sales", **options: Any) -> None:
    with editing(provider.catalog, "tests") as edit:
        add_table(edit, share, SharedTable("lake", name, options.pop("table", f"lake.{name}"), **options))


def read(client: httpx.Client, token: str, path: str = FEED, **options: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
    return client.get(path, headers=headers, **options)


def numbers(client: httpx.Client, token: str, path: str = FEED, **options: Any) -> list[str]:
    answer = read(client, token, path, **options)
    assert answer.status_code == 200, answer.text
    items = [item["_lakeshare"] for item in answer.json()["items"]]
    return [f"{item['table']} {item.get('number', item.get('retireDate'))}" for item in items]


def test_newest_publications_come_first_as_json_feed_and_as_atom(
    provider: Provider, client: httpx.Client
) -> None:
    publish(provider, rows=3, size_bytes=987654321)
    publish(provider, "lake.lines")
    publish(provider, schema_string=WIDER)
    share(provider)
    share(provider, "lines")
    token = provider.recipient(shares=("sales",))

    answer = read(client, token)

    assert answer.headers["content-type"] == "application/feed+json; charset=utf-8"
    content = answer.json()
    assert (content["version"], content["feed_url"]) == (
        "https://jsonfeed.org/version/1.1",
        f"{root(client)}/delta-sharing/shares/sales/publications",
    )
    assert [item["title"] for item in content["items"]] == [
        "lake.orders: number 1",
        "lake.lines: number 0",
        "lake.orders: number 0",
    ]
    newest, _, first = (item["_lakeshare"] for item in content["items"])
    assert (newest["schemaChanged"], "schemaChanged" in first) == (True, False)
    assert (first["rows"], first["sizeBytes"]) == (3, 987654321)
    assert content["items"][0]["url"] == f"{root(client)}/portal#sales.lake.orders"
    assert content["items"][0]["date_published"] == newest["publishedAt"]
    assert len({item["id"] for item in content["items"]}) == 3

    for options in ({"params": {"format": "atom"}}, {"headers": {"Accept": "application/atom+xml"}}):
        atom = read(client, token, **options)
        assert atom.headers["content-type"] == "application/atom+xml; charset=utf-8"
        entries = ElementTree.fromstring(atom.content).findall(f"{ATOM}entry")
        ids = [entry.findtext(f"{ATOM}id") for entry in entries]
        assert ids == [f"urn:uuid:{item['id']}" for item in content["items"]]
    preferred = {"Accept": "application/atom+xml;q=0.4, application/json;q=0.5"}
    assert "json" in read(client, token, headers=preferred).headers["content-type"]
    assert read(client, token, params={"format": "rss"}).status_code == 400


def test_pages_hold_each_item_once_and_their_tokens_are_of_one_recipient(
    provider: Provider, client: httpx.Client
) -> None:
    publish(provider, times=5)
    share(provider)
    share(provider, "twin", table="lake.orders", retire_date="2030-01-31")
    token, other = (provider.recipient(name, shares=("sales",)) for name in ("ann", "bob"))
    whole = numbers(client, token)
    assert len(whole) == 11

    found, parameters = [], {"maxResults": "3"}
    for _ in range(4):
        page = read(client, token, params=parameters).json()
        found += [item["id"] for item in page["items"]]
        page_token = page.get("_lakeshare", {}).get("nextPageToken")
        if page_token is not None:
            assert page["next_url"].startswith(root(client))
            parameters["pageToken"] = page_token
    assert found == [item["id"] for item in read(client, token).json()["items"]]
    assert (page_token, "next_url" in page) == (None, False)

    # A page goes on where the one before ended, also after a new publication.
    publish(provider)
    assert read(client, token, params={**parameters}).json()["items"] == page["items"]
    for wrong in ({"pageToken": "abc"}, {**parameters, "table": "lake.orders"}, {"maxResults": "0"}):
        assert read(client, token, params=wrong).status_code == 400
    assert read(client, other, params=parameters).status_code == 400
    atom = ElementTree.fromstring(read(client, token, params={"maxResults": 1, "format": "atom"}).content)
    [following] = [link for link in atom.findall(f"{ATOM}link") if link.get("rel") == "next"]
    second = read(client, token, str(following.get("href")).removeprefix(root(client)))
    assert ElementTree.fromstring(second.content).findtext(f"{ATOM}entry/{ATOM}title") is not None


def test_shares_of_many_tables_have_the_same_pages(
    provider: Provider, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Runs publish several tables at once, and other shares get publications in between.
    names = [f"lake.t{index}" for index in range(4)]
    for number in range(6):
        Ledger(provider.catalog).append([a_publication(table=name, run_id=f"r{number}") for name in names])
        publish(provider, "lake.other", times=number % 3)
    for name in names:
        share(provider, name.removeprefix("lake."))
    token = provider.recipient(shares=("sales",))
    whole = [item["id"] for item in read(client, token).json()["items"]]
    assert len(whole) == 24

    monkeypatch.setattr(feed, "MANY_TABLES", 1)
    for windows in ((1,), (1, 3)):
        monkeypatch.setattr(feed, "WINDOWS", windows)
        found: list[str] = []
        parameters = {"maxResults": "5"}
        while len(found) < len(whole):
            page = read(client, token, params=parameters).json()
            found += [item["id"] for item in page["items"]]
            parameters["pageToken"] = page.get("_lakeshare", {}).get("nextPageToken", "")
        assert found == whole


def test_an_unchanged_feed_is_not_sent_again(provider: Provider, client: httpx.Client) -> None:
    publish(provider)
    share(provider)
    token = provider.recipient(shares=("sales",))
    first = read(client, token)
    known = {"If-None-Match": first.headers["etag"]}

    again = read(client, token, headers=known)

    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert read(client, token, headers=known, params={"format": "atom"}).status_code == 200
    publish(provider)
    assert read(client, token, headers=known).status_code == 200


# The terms of a shared table with the numbers 0 to 4, of which 0 has expired, and whether it has history.
TERMS: list[dict[str, Any]] = [
    {},
    {"history": False},
    {"start_version": 2},
    {"start_version": 9},
    {"publication": 3},
    {"publication": 3, "history": False},
    {"publication": 3, "start_version": 2},
    {"publication": 0},
    {"publication": 7},
]


def make_views(provider: Provider) -> TableViews:
    return TableViews(
        provider.catalog, Versions(provider.catalog, provider.settings, Stores(provider.settings))
    )


def allowed_numbers(
    provider: Provider, views: TableViews, token: str, name: str, numbers: range
) -> list[str]:
    """The numbers of a table that the calls for versions allow, newest first, as `numbers` gives them."""
    reader = Recipients(provider.catalog).by_token(token)
    assert reader is not None
    view = views.table(reader, "sales", "lake", name)
    allowed = []
    for number in reversed(numbers):
        try:
            if view.latest().number == number or view.at_version(number):
                allowed.append(f"{name} {number}")
        except (BadRequest, NotFound):
            continue
    return allowed


def share_with_all_terms(provider: Provider, table: str) -> list[str]:
    names = [f"t{index}" for index in range(len(TERMS))]
    for name, terms in zip(names, TERMS, strict=True):
        share(provider, name, table=table, **terms)
    return names


def test_a_feed_has_exactly_the_numbers_that_the_version_calls_allow(
    provider: Provider, client: httpx.Client
) -> None:
    publish(provider, times=5)
    with lock_set(provider.catalog, "lake", "tests", 1) as lease:
        Ledger(provider.catalog).expire("lake.orders", 1, lease)
    token = provider.recipient(shares=("sales",))
    names = share_with_all_terms(provider, "lake.orders")

    found = numbers(client, token)

    views = make_views(provider)
    for name, terms in zip(names, TERMS, strict=True):
        expected = allowed_numbers(provider, views, token, name, range(5))
        assert [text for text in found if text.startswith(f"{name} ")] == expected, terms
    assert len(found) == 4 + 1 + 3 + 1 + 3 + 1 + 2 + 0 + 0


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_so_it_has_of_followed_tables(
    provider: Provider, client: httpx.Client, tmp_path: Path, table_format: str
) -> None:
    iceberg = an_iceberg_table(tmp_path / "followed") if table_format == "iceberg" else None
    location = tmp_path / "delta"
    if iceberg is None:
        a_delta_table(location)
        provider.follow("lake.found", location)
    else:
        provider.follow_iceberg("lake.found", iceberg.table.location())
    token = provider.recipient(shares=("sales",))
    names = share_with_all_terms(provider, "lake.found")
    for _ in range(3):
        numbers(client, token, params={"table": "lake.t0"})
        append_delta(location, some_rows(days=1)) if iceberg is None else iceberg.append(some_rows(days=1))

    views = make_views(provider)
    for start in (0, 2):
        if start:
            with editing(provider.catalog, "tests") as edit:
                alter_followed(edit, "lake.found", 0, start)
        found = numbers(client, token)
        assert len(found) > len(names) - 2
        for name, terms in zip(names, TERMS, strict=True):
            expected = allowed_numbers(provider, views, token, name, range(7))
            assert [text for text in found if text.startswith(f"{name} ")] == expected, (start, terms)


def test_the_schema_is_compared_with_numbers_that_the_recipient_may_read(
    provider: Provider, client: httpx.Client
) -> None:
    publish(provider)
    publish(provider, schema_string=WIDER)
    share(provider, "whole", table="lake.orders")
    share(provider, "later", table="lake.orders", start_version=1)
    share(provider, "newest", table="lake.orders", history=False)
    token = provider.recipient(shares=("sales",))
    changes = {
        item["_lakeshare"]["table"]: item["_lakeshare"].get("schemaChanged")
        for item in read(client, token).json()["items"]
        if item["_lakeshare"]["number"] == 1
    }
    assert changes == {"whole": True, "later": None, "newest": None}


def test_what_is_not_granted_does_not_exist(provider: Provider, client: httpx.Client) -> None:
    publish(provider)
    share(provider)
    publish(provider, "lake.secret")
    share(provider, "secret", share="other")
    token = provider.recipient(shares=("other",))

    for path in (FEED, FEED.replace("sales", "nothing")):
        refused = read(client, token, path)
        assert (refused.status_code, refused.json()["errorCode"]) == (404, "RESOURCE_DOES_NOT_EXIST")
        assert read(client, token, path, params={"pageToken": "abc"}).status_code == 404
    assert read(client, "wrong").status_code == 401
    now = datetime.now(UTC)
    with editing(provider.catalog, "tests") as edit:
        grant(
            edit, "sales", recipient="bob", starts_at=now - timedelta(days=2), ends_at=now - timedelta(days=1)
        )
    assert read(client, token).status_code == 404
    with editing(provider.catalog, "tests") as edit:
        grant(edit, "sales", recipient="bob")
    assert numbers(client, token) == ["orders 0"]
    assert numbers(client, token, params={"table": "lake.Orders"}) == ["orders 0"]
    assert read(client, token, params={"table": "lake.secret"}).status_code == 404
    with editing(provider.catalog, "tests") as edit:
        revoke(edit, "sales", recipient="bob")
    assert read(client, token).status_code == 404


def test_recipients_under_a_rule_get_no_counts(
    provider: Provider, client: httpx.Client, tmp_path: Path
) -> None:
    publish(provider, rows=3, size_bytes=987654321)
    share(provider)
    with editing(provider.catalog, "tests") as edit:
        create_share(edit, "ruled")
    share(provider, "orders", share="ruled", rule="day = '2024-01-01'")
    tokens = {name: provider.recipient(name, shares=("sales", "ruled")) for name in ("free", "under")}
    with editing(provider.catalog, "tests") as edit:
        grant(edit, "sales", recipient="under", rule="day = '2024-01-01'")

    def counts(name: str, of: str) -> list[str]:
        answer = read(client, tokens[name], FEED.replace("sales", of))
        assert name == "free" or "987654321" not in answer.text
        return sorted({"rows", "sizeBytes"} & set(answer.json()["items"][0]["_lakeshare"]))

    assert counts("free", "sales") == ["rows", "sizeBytes"]
    assert (counts("under", "sales"), counts("under", "ruled"), counts("free", "ruled")) == ([], [], [])
    assert "rows" not in read(client, tokens["under"]).json()["items"][0]["content_text"]


def test_tables_that_are_to_retire_are_announced(provider: Provider, client: httpx.Client) -> None:
    publish(provider)
    publish(provider, "lake.orders_v2")
    old, new = (SharedTable("lake", name, f"lake.{name}") for name in ("orders", "orders_v2"))
    apply_shares(provider.catalog, [DeclaredShare("contracts", (old,))])
    end = datetime.now(UTC).date() + timedelta(days=30)
    retired = [RetiredTable("lake.orders", end, "lake.orders_v2")]
    apply_shares(provider.catalog, [DeclaredShare("contracts", (new,))], retired)
    token = provider.recipient(shares=("contracts",))

    [newest, *_] = read(client, token, FEED.replace("sales", "contracts")).json()["items"]

    assert newest["title"] == f"lake.orders is to retire on {end}"
    assert (newest["_lakeshare"]["event"], newest["_lakeshare"]["successor"]) == (
        "retirement",
        "contracts.lake.orders_v2",
    )
    assert "Read contracts.lake.orders_v2 instead." in newest["content_text"]
    # Applying again changes nothing.
    apply_shares(provider.catalog, [DeclaredShare("contracts", (new,))], retired)
    assert read(client, token, FEED.replace("sales", "contracts")).json()["items"][0] == newest


def test_versions_of_followed_tables_are_in_the_feed_once_they_are_found(
    provider: Provider, client: httpx.Client, tmp_path: Path
) -> None:
    location = a_delta_table(tmp_path / "followed")
    provider.follow("lake.found", location)
    share(provider, "found")
    share(provider, "gone")
    provider.follow("lake.gone", tmp_path / "missing")
    token = provider.recipient(shares=("sales",))

    assert [text.split()[0] for text in numbers(client, token)] == ["found"]


def test_names_of_any_characters_make_a_valid_feed(provider: Provider, client: httpx.Client) -> None:
    name = "größe<&>'\"\u2028"[:-1]
    with editing(provider.catalog, "tests") as edit:
        create_share(edit, name, display_name="a\x01<b>")
    publish(provider)
    share(provider, "tüble&", share=name, table="lake.orders")
    token = provider.recipient(shares=(name,))
    path = f"/delta-sharing/shares/{name}/publications"

    content = json.loads(read(client, token, path).content)

    atom = ElementTree.fromstring(read(client, token, path, params={"format": "atom"}).content)
    assert (
        atom.findtext(f"{ATOM}entry/{ATOM}title") == content["items"][0]["title"] == "lake.tüble&: number 0"
    )
