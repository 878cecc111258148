"""What was given out while history was shared, page tokens and async ids, opens no more of it than is shared now."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakeshare_server.catalog import SharedTable, share_table
from lakeshare_server.protocol.requests import format_iso
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows
from tests.builders.sharing import FLIGHTS, Provider, a_provider, a_server, files, lines

ASYNC = {"delta-sharing-capabilities": "asyncquery=true"}
QUERY = f"{FLIGHTS}/query"
NO_HISTORY = "history sharing is not enabled"


@dataclass(frozen=True)
class World:
    """Publications 0, 1, 2 and 4 with 3, 4, 5 and 7 files, and when they were made."""

    provider: Provider
    client: httpx.Client
    location: Path
    times: dict[int, int]

    def share(self, *, history: bool = True, start_version: int | None = None) -> None:
        table = SharedTable("lake", "flights", "lake.flights", history=history)
        share_table(self.provider.catalog, "flights", table, start_version=start_version)

    def ask(self, body: dict[str, Any], path: str = QUERY, **headers: str) -> httpx.Response:
        return self.client.post(path, json=body, headers=headers)

    def page_token(self, body: dict[str, Any]) -> str:
        return str(lines(self.ask({**body, "maxFiles": 1}))[-1]["endStreamAction"]["nextPageToken"])

    def done(self, body: dict[str, Any]) -> str:
        """Where the answer of an async query is, once it is there."""
        said = lines(self.ask({**body, "idempotencyKey": str(body)}, **ASYNC))[0]["queryStatus"]
        path, until = f"{FLIGHTS}/queries/{said['queryId']}", time.monotonic() + 30
        while "queryStatus" in self.ask({}, path, **ASYNC).text:
            assert time.monotonic() < until, "the query is still pending"
            time.sleep(0.02)
        return path


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    provider, location = a_provider(tmp_path), a_delta_table(tmp_path / "table")
    times = {}
    for number in range(5):
        if number:
            append_delta(location, some_rows(days=1))
        if number != 3:
            moment = provider.publish_delta("lake.flights", location).published_at
            times[number] = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    share_table(provider.catalog, "flights", SharedTable("lake", "flights", "lake.flights"))
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        yield World(provider, client, location, times)


def refused(answer: httpx.Response, fragment: str) -> str:
    assert answer.status_code == 400, answer.text
    assert fragment in answer.json()["message"]
    return str(answer.json()["message"])


@pytest.mark.parametrize("point", ["version", "timestamp"])
def test_a_page_or_async_answer_of_an_old_version_ends_with_the_history(world: World, point: str) -> None:
    body: dict[str, Any] = {"version": 1} if point == "version" else {"timestamp": format_iso(world.times[1])}
    token, path = world.page_token(body), world.done(body)
    following = {**body, "pageToken": token, "maxFiles": 10}
    for shared, fragment in (
        ({"history": False}, NO_HISTORY),
        ({"start_version": 2}, "You can only query table data since version 2"),
    ):
        world.share(**shared)
        refused(world.ask(following), fragment)
        refused(world.ask({}, path, **ASYNC), fragment)
    world.share(start_version=1)
    assert len(files(world.ask(following))) == 3
    assert len(files(world.ask({}, path, **ASYNC))) == 4


def test_pages_of_the_latest_go_on_without_history_but_not_from_before_the_start(world: World) -> None:
    refresh = lines(world.ask({"includeRefreshToken": True}))[-1]["endStreamAction"]["refreshToken"]
    going_on = ({"pageToken": world.page_token({}), "maxFiles": 10}, {"refreshToken": refresh})
    path = world.done({})
    append_delta(world.location, some_rows(days=1))
    world.provider.publish_delta("lake.flights", world.location)
    world.share(history=False)
    assert [len(files(world.ask(body))) for body in going_on] == [6, 7]
    assert len(files(world.ask({}, path, **ASYNC))) == 7
    world.share(history=False, start_version=5)
    for body in going_on:
        refused(world.ask(body), "You can only query table data since version 5")
    refused(world.ask({}, path, **ASYNC), "You can only query table data since version 5")


def test_the_latest_goes_on_where_versions_are_shared_from_a_later_one_on(world: World) -> None:
    world.share(start_version=9)
    going_on = {"pageToken": world.page_token({}), "maxFiles": 10}
    assert len(files(world.ask(going_on))) == 6


def test_refusals_tell_of_nothing_before_the_start(world: World) -> None:
    """Neither numbers nor times of versions that the recipient may not read."""
    world.share(start_version=3)
    words = f"({format_iso(world.times[4])}, version 4). You can only query table data since version 4"
    times = ("2022-01-01T00:00:00Z", format_iso(world.times[0]), format_iso(world.times[2]))
    early = [refused(world.ask({"timestamp": at}), words) for at in times]
    missing = refused(world.ask({"version": 3}), "since version 4; its latest is 4")
    changes = world.client.get(
        f"{FLIGHTS}/changes?startingVersion=4&endingTimestamp={format_iso(world.times[2])}"
    )
    for message in (*early, missing, refused(changes, words)):
        assert "since version 4" in message
        assert "version 0" not in message
        assert "version 2" not in message
    # A window in which nothing was published begins with the metadata of the version before it.
    refused(world.ask({"startingVersion": 3, "endingVersion": 3}), "since version 3")
