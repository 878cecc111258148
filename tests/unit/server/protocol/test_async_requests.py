"""Queries that are answered later (protocol §1.9), over HTTP: what comes then is what would have come at once."""

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakeshare_server.access import table_access
from lakeshare_server.access.table_access import (
    AsyncWorker,
    Submission,
    TableView,
    TableViews,
    prepare_response,
)
from lakeshare_server.catalog import AsyncQueries, AsyncQuery, Reader
from lakeshare_server.errors import Unavailable
from lakeshare_server.protocol.requests import FIELDS, QueryRequest, parse_query
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import Stores
from lakeshare_server.versions import Versions
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows
from tests.builders.recipients import Recipients
from tests.builders.sharing import (
    FLIGHTS,
    Provider,
    a_provider,
    a_provider_of_flights,
    a_server,
    files,
    lines,
)

ASYNC = {"delta-sharing-capabilities": "asyncquery=true"}
PLANNED = "/shares/flights/schemas/lake/tables/planned"


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    """The flights with versions 0 and 2, of 3 and 5 files, and a table that was never published."""
    folder = tmp_path_factory.mktemp("async")
    provider = a_provider(folder)
    location = a_delta_table(folder / "table")
    provider.publish_delta("lake.flights", location)
    for _ in range(2):
        append_delta(location, some_rows(days=1))
    provider.publish_delta("lake.flights", location)
    provider.share("lake.flights", "lake.planned")
    return provider


@pytest.fixture(scope="module")
def client(provider: Provider) -> Iterator[httpx.Client]:
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        yield client


def submitted(client: httpx.Client, body: Mapping[str, Any], path: str = FLIGHTS) -> httpx.Response:
    return client.post(f"{path}/query", json={**body, "idempotencyKey": str(uuid.uuid4())}, headers=ASYNC)


def fetched(
    client: httpx.Client, body: Mapping[str, Any], path: str = FLIGHTS, **poll: object
) -> httpx.Response:
    """What becomes of a query that is answered later."""
    answer = submitted(client, body, path)
    query_id = lines(answer)[0]["queryStatus"]["queryId"]
    until = time.monotonic() + 30
    while time.monotonic() < until:
        answer = client.post(f"{path}/queries/{query_id}", json=poll, headers=ASYNC)
        if answer.status_code != 200 or "queryStatus" not in lines(answer)[0]:
            return answer
        time.sleep(0.02)
    raise AssertionError("the query is still pending")


def ids(answer: httpx.Response) -> list[str]:
    return [file["id"] for file in files(answer)]


def test_a_token_names_its_version_also_where_the_answer_may_come_later(client: httpx.Client) -> None:
    """protocol §0.16, §1.7: pages and refreshed reads are of the snapshot that page one was of."""
    first = client.post(f"{FLIGHTS}/query", json={"includeRefreshToken": True, "maxFiles": 2})
    end = lines(first)[-1]["endStreamAction"]
    for body in ({"refreshToken": end["refreshToken"]}, {"pageToken": end["nextPageToken"], "maxFiles": 2}):
        assert ids(submitted(client, body)) == ids(client.post(f"{FLIGHTS}/query", json=body)) != []


@pytest.mark.parametrize("name", ["refreshToken", "pageToken"])
def test_a_token_of_nobodys_making_is_refused_when_it_comes(client: httpx.Client, name: str) -> None:
    answer = submitted(client, {name: "junk"})
    assert answer.status_code == 400
    assert "Error decoding" in answer.json()["message"]


REFUSED: list[tuple[str, dict[str, Any]]] = [
    (PLANNED, {}),
    (FLIGHTS, {"version": 7}),
    (FLIGHTS, {"startingVersion": 0, "endingVersion": 9}),
    (FLIGHTS, {"startingVersion": 0}),  # version 1 was never published
]


@pytest.mark.parametrize(("path", "body"), REFUSED)
def test_a_query_that_fails_later_is_refused_as_at_once(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    """protocol §0.8: also where several errors share a code."""
    at_once, later = client.post(f"{path}/query", json=body), fetched(client, body, path)
    assert 400 <= at_once.status_code < 500
    assert (later.status_code, later.json()) == (at_once.status_code, at_once.json())


def test_a_window_between_two_publications_has_no_changes_later_either(client: httpx.Client) -> None:
    body = {"startingVersion": 1, "endingVersion": 1}
    assert fetched(client, body).content == client.post(f"{FLIGHTS}/query", json=body).content


@pytest.mark.parametrize("field", ["other", "limitHint", "timestamp", "predicateHints"])
def test_a_field_may_be_nested_to_any_depth(client: httpx.Client, field: str) -> None:
    """protocol §1.7: unknown fields are ignored; what is nested too deep for JSON is no JSON."""
    statuses = set()
    # Where JSON ends differs: near 1,000 before Python 3.12, far beyond it since.
    for depth in (*range(860, 1000, 2), 100_000):
        deep = b'"%b": %b%b' % (field.encode(), b"[" * depth, b"]" * depth)
        answer = client.post(f"{FLIGHTS}/query", content=b'{"idempotencyKey": "k", %b}' % deep, headers=ASYNC)
        statuses.add(answer.status_code)
    assert statuses == ({200, 400} if field == "other" else {400})


class Looked(dict[str, object]):
    """Fields that note which of them are asked for."""

    names: set[str]

    def get(self, key: str, default: object = None) -> Any:
        self.names.add(key)
        return default


def test_all_that_is_looked_at_is_kept() -> None:
    fields = Looked()
    fields.names = set()
    parse_query(fields)
    assert fields.names - FIELDS == {"idempotencyKey", "idempotency_key"}
    assert fields.names >= FIELDS


@dataclass
class Unready:
    """A store that does not answer at first."""

    failures: int
    attempts: int = 0

    def prepare(self, view: TableView, asked: QueryRequest) -> int:
        self.attempts += 1
        if self.attempts <= self.failures:
            raise Unavailable("the store does not answer", "Try again.")
        return prepare_response(view, asked)


@pytest.mark.parametrize(
    ("failures", "attempts", "state", "name"),
    [(1, 2, "done", None), (9, 3, "failed", "Unavailable")],
    ids=["passing", "lasting"],
)
def test_a_query_whose_store_does_not_answer_is_tried_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
    attempts: int,
    state: str,
    name: str | None,
) -> None:
    store = Unready(failures)
    monkeypatch.setattr(table_access, "prepare_response", store.prepare)
    # Another thread would take a query over that is at work.
    monkeypatch.setattr(table_access, "PREPARED_AT_ONCE", 1)
    provider = a_provider_of_flights(tmp_path)
    queries = AsyncQueries(provider.catalog, dead_after_s=0)
    ended = worked_on(provider, queries)
    assert (ended.state, ended.error_code, store.attempts) == (state, name, attempts)


def worked_on(provider: Provider, queries: AsyncQueries) -> AsyncQuery:
    """What becomes of a query."""
    eve = Recipients(provider.catalog).add(f"eve{uuid.uuid4()}", ["flights"])[0]
    asked = Submission(Reader(eve.id, eve.name), ("flights", "lake", "flights"), {}).as_json()
    query = queries.submit(eve.id, "t", kind="query", request=asked, idempotency_key="k")
    stores = Stores(StoreSettings(_env_file=None))
    views = TableViews(provider.catalog, Versions(provider.catalog, provider.settings, stores))
    worker = AsyncWorker(queries, views)
    worker.start()
    try:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            now = queries.get(query.id, eve.id, "t")
            if now.state in ("done", "failed"):
                return now
            worker.wake()
            time.sleep(0.02)
    finally:
        worker.stop()
    raise AssertionError("the query has not ended")
