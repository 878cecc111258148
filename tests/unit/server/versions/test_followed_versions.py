"""Followed tables: what lies in storage is found in time and once for all, and nothing else is passed off as it."""

import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import rmtree
from typing import Any

import httpx
import pytest
from deltalake import DeltaTable, write_deltalake

from lakeshare_server.catalog import Ledger, SharedTable, share_table
from lakeshare_server.storage import Stores
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows
from tests.builders.sharing import Provider, a_provider, a_server, files, lines

TABLE = "/shares/lake/schemas/sales/tables/orders"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return a_delta_table(tmp_path / "orders")


@pytest.fixture
def provider(tmp_path: Path, table: Path) -> Provider:
    return following(a_provider(tmp_path), table)


def following(provider: Provider, table: Path, **options: Any) -> Provider:
    """Follow and share the table."""
    provider.follow("sales.orders", table, **options)
    share_table(provider.catalog, "lake", SharedTable("sales", "orders", "sales.orders"))
    return provider


def version_of(client: httpx.Client, query: str = "") -> int:
    answer = client.get(f"{TABLE}/version{query}")
    assert answer.status_code == 200, answer.text
    return int(answer.headers["Delta-Table-Version"])


def refused(answer: httpx.Response, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["message"])


def log_of(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def test_every_version_found_is_a_publication_marked_unaudited(provider: Provider, table: Path) -> None:
    token = provider.recipient(shares=("lake",))
    with a_server(provider) as server, server.client(token) as client:
        assert version_of(client) == 0
        append_delta(table, some_rows(days=1))
        assert version_of(client) == 1
        assert len(files(client.post(f"{TABLE}/query"))) == 4
    assert [(one.version, one.audited) for one in Ledger(provider.catalog).history("sales.orders")] == [
        (1, False),
        (0, False),
    ]


def test_storage_is_not_looked_at_again_within_the_interval(tmp_path: Path, table: Path) -> None:
    provider = following(a_provider(tmp_path), table, check_every_s=3600)
    token = provider.recipient(shares=("lake",))
    with a_server(provider) as server, server.client(token) as client:
        assert version_of(client) == 0
        append_delta(table, some_rows(days=1))
        assert version_of(client) == 0
        assert len(files(client.post(f"{TABLE}/query"))) == 3


def test_requests_at_once_share_one_look(
    tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = following(a_provider(tmp_path), table, check_every_s=3600)
    token = provider.recipient(shares=("lake",))
    listed: list[str] = []
    list_store = Stores.list

    def counting(self: Stores, prefix: str, after: str | None = None) -> Any:
        listed.append(prefix)
        return list_store(self, prefix, after)

    monkeypatch.setattr(Stores, "list", counting)
    found: list[int] = []

    def poll(url: str) -> None:
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
            found.append(version_of(client))

    with a_server(provider) as server:
        clients = [threading.Thread(target=poll, args=(server.url,)) for _ in range(8)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    assert found == [0] * 8
    assert len(listed) == 1


def test_a_look_that_finds_nothing_new_lists_nothing(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = provider.recipient(shares=("lake",))
    with a_server(provider) as server, server.client(token) as client:
        assert version_of(client) == 0
        monkeypatch.setattr(Stores, "list", lambda *_: pytest.fail("the log was listed"))
        assert version_of(client) == 0


def test_a_table_made_anew_at_the_same_place_is_another_table(provider: Provider, table: Path) -> None:
    token = provider.recipient(shares=("lake",))
    append_delta(table, some_rows(days=1))
    with a_server(provider) as server, server.client(token) as client:
        [_, before, *_] = lines(client.post(f"{TABLE}/query"))
        rmtree(table)
        write_deltalake(table, some_rows(days=2))
        [_, after, *files_after] = lines(client.post(f"{TABLE}/query"))
        assert before["metaData"]["id"] != after["metaData"]["id"]
        assert len(files_after) == 1
        assert version_of(client) == 0


def test_a_newest_commit_that_is_broken_is_an_error_until_it_is_whole(
    provider: Provider, table: Path
) -> None:
    token = provider.recipient(shares=("lake",))
    with a_server(provider) as server, server.client(token) as client:
        assert version_of(client) == 0
        append_delta(table, some_rows(days=1))
        whole = log_of(table, 1).read_bytes()
        log_of(table, 1).write_bytes(whole[: len(whole) // 2])
        assert "table files missing" in refused(client.post(f"{TABLE}/query"))
        assert "table files missing" in refused(client.get(f"{TABLE}/version"))
        log_of(table, 1).write_bytes(whole)
        assert len(files(client.post(f"{TABLE}/query"))) == 4


def test_a_version_the_log_lost_is_refused_and_its_neighbours_are_not(
    provider: Provider, table: Path
) -> None:
    """A gap below a checkpoint: the versions on both sides stay readable, by number and by time."""
    for _ in range(2):
        append_delta(table, some_rows(days=1))
    DeltaTable(table).create_checkpoint()
    log_of(table, 1).unlink()
    token = provider.recipient(shares=("lake",))
    with a_server(provider) as server, server.client(token) as client:
        assert version_of(client) == 2
        assert len(files(client.post(f"{TABLE}/query", json={"version": 0}))) == 3
        assert "no such version" in refused(client.post(f"{TABLE}/query", json={"version": 1}))
        assert version_of(client, "?startingTimestamp=2000-01-01T00:00:00Z") == 0
        refused(client.post(f"{TABLE}/query", json={"timestamp": "2000-01-01T00:00:00Z"}))


def test_versions_below_the_start_are_refused_by_name(tmp_path: Path, table: Path) -> None:
    for _ in range(2):
        append_delta(table, some_rows(days=1))
    provider = following(a_provider(tmp_path), table, start_version=1)
    token = provider.recipient(shares=("lake",))
    with a_server(provider) as server, server.client(token) as client:
        assert "since version 1" in refused(client.post(f"{TABLE}/query", json={"version": 0}))
        assert "since version 1" in refused(client.post(f"{TABLE}/query", json={"startingVersion": 0}))
        assert len(files(client.post(f"{TABLE}/query", json={"version": 1}))) == 4


def test_versions_are_found_by_the_time_of_their_commit(provider: Provider, table: Path) -> None:
    append_delta(table, some_rows(days=1))
    moment = datetime(2024, 5, 1, tzinfo=UTC)
    for version in (0, 1):
        at = (moment + timedelta(hours=version)).timestamp()
        os.utime(log_of(table, version), (at, at))
    token = provider.recipient(shares=("lake",))
    with a_server(provider) as server, server.client(token) as client:
        between = {"timestamp": "2024-05-01T00:30:00Z"}
        assert len(files(client.post(f"{TABLE}/query", json=between))) == 3
        assert version_of(client, "?startingTimestamp=2024-05-01T00:30:00Z") == 1
        assert "is after the latest" in refused(
            client.post(f"{TABLE}/query", json={"timestamp": "2024-05-01T02:00:00Z"})
        )
        assert "before the earliest" in refused(
            client.post(f"{TABLE}/query", json={"timestamp": "2024-04-30T00:00:00Z"})
        )


def test_a_table_that_is_gone_is_the_tables_fault(provider: Provider, table: Path) -> None:
    token = provider.recipient(shares=("lake",))
    with a_server(provider) as server, server.client(token) as client:
        assert version_of(client) == 0
        rmtree(table)
        answer = client.post(f"{TABLE}/query")
        assert (answer.status_code, answer.json()["errorCode"]) == (400, "RESOURCE_DOES_NOT_EXIST")
