"""Versions of a followed table never go back for a reader whose requests reach several workers."""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from lakeshare_server.catalog import SharedTable, share_table
from lakeshare_server.storage import Stores
from lakeshare_server.versions import Versions
from tests.builders.campaign import campaign_size
from tests.builders.followed_iceberg import OwnedTable
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows
from tests.builders.sharing import Provider, a_provider, a_server

WORKERS = 3
TABLES = "/shares/lake/schemas/sales/tables"


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_provider(tmp_path)


@pytest.fixture
def delta(tmp_path: Path) -> Path:
    return a_delta_table(tmp_path / "orders")


@pytest.fixture
def iceberg(tmp_path: Path) -> OwnedTable:
    return OwnedTable(tmp_path / "warehouse")


@pytest.fixture
def workers(provider: Provider, delta: Path, iceberg: OwnedTable) -> Iterator[list[httpx.Client]]:
    """Servers over one catalog, of which none looks at a table again within the hour."""
    provider.follow("sales.orders", delta, check_every_s=3600)
    provider.follow_iceberg("sales.flights", iceberg.folder, check_every_s=3600)
    for name in ("orders", "flights"):
        share_table(provider.catalog, "lake", SharedTable("sales", name, f"sales.{name}", history=True))
    token = provider.recipient(shares=("lake",))
    with ExitStack() as running:
        servers = [running.enter_context(a_server(provider)) for _ in range(WORKERS)]
        yield [running.enter_context(server.client(token)) for server in servers]


def seen_by_poll(client: httpx.Client, table: str) -> int:
    return int(client.get(f"{TABLES}/{table}/version").headers["delta-table-version"])


def seen_by_query(client: httpx.Client, table: str) -> int:
    answer = client.post(f"{TABLES}/{table}/query", json={})
    assert answer.status_code == 200, answer.text
    return int(answer.headers["delta-table-version"])


def seen_by_metadata(client: httpx.Client, table: str) -> int:
    return int(client.get(f"{TABLES}/{table}/metadata").headers["delta-table-version"])


def is_there(client: httpx.Client, table: str, number: int) -> bool:
    return client.post(f"{TABLES}/{table}/query", json={"version": number}).status_code == 200


def restart(provider: Provider, table: str) -> int:
    """What a worker that has just started, and therefore looks at the table, answers."""
    settings = provider.settings
    return Versions(provider.catalog, settings, Stores(settings)).of(f"sales.{table}").latest().number


@pytest.mark.parametrize("table", ["orders", "flights"])
def test_a_number_that_one_worker_answered_is_known_to_all(
    provider: Provider, workers: list[httpx.Client], delta: Path, iceberg: OwnedTable, table: str
) -> None:
    assert {seen_by_poll(client, table) for client in workers} == {0}
    append_delta(delta, some_rows(days=1))
    iceberg.append_days(1)
    # Within the interval nobody has looked.
    assert seen_by_poll(workers[0], table) == 0
    assert restart(provider, table) == 1
    assert seen_by_poll(workers[0], table) == 1
    assert seen_by_query(workers[1], table) == 1
    assert is_there(workers[2], table, 1)
    assert {seen_by_metadata(client, table) for client in workers} == {1}


@pytest.mark.campaign
def test_numbers_only_grow_at_random_workers_and_routes(
    provider: Provider, workers: list[httpx.Client], delta: Path, iceberg: OwnedTable
) -> None:
    drawn = random.Random(16)
    newest = {"orders": 0, "flights": 0}
    for _ in range(campaign_size(in_ci=40, in_campaign=1000)):
        table = drawn.choice(list(newest))
        if drawn.random() < 0.1:
            append_delta(delta, some_rows(days=1))
            iceberg.append_days(1)
        if drawn.random() < 0.15:
            newest[table] = max(newest[table], restart(provider, table))
        see = drawn.choice([seen_by_poll, seen_by_query, seen_by_metadata])
        number = see(drawn.choice(workers), table)
        assert number >= newest[table], (table, see.__name__)
        newest[table] = number
    assert min(newest.values()) > 0
