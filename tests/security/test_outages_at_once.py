"""Whatever hangs, drips or is full, alone or at once: recipients of healthy tables get their answers as fast as before.

Done by a server process as it is deployed; the campaign takes all combinations, CI the worst one.
"""

import random
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from lakeshare_server.catalog import FollowedTables, IcebergIdentity
from tests.builders.campaign import campaign_size
from tests.builders.credentials import OIDC, a_policy, a_recipient
from tests.builders.held_requests import Held, held_requests, silent_service
from tests.builders.lake_tables import a_delta_table
from tests.builders.oidc_issuer import AnIssuer, an_issuer
from tests.builders.server_process import a_process
from tests.builders.sharing import FLIGHTS, Provider, a_provider
from tests.builders.small_disk import fill, small_disk
from tests.builders.waiting import wait_until

SHARE = "/shares/flights/schemas/lake/tables"
DISK_BYTES = 64 << 20
ANSWER_S = 2
REQUEST_S = 8
HELD = 60
SILENT = campaign_size(in_ci=100, in_campaign=1000)
ROUNDS = campaign_size(in_ci=40, in_campaign=100)
# Beside the ratio: what a busy machine adds to a single request, whatever the server does.
NOISE_S = 0.03
FAULTS = ("store", "iceberg catalog", "nessie", "issuer", "connections", "disk")


@dataclass(frozen=True)
class World:
    """A server process over healthy tables, and everything that can go wrong beside them."""

    url: str
    disk: Path
    token: str
    issuer: AnIssuer


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(tmp_path / "disk", DISK_BYTES))
        store, catalog, nessie = (stack.enter_context(silent_service()) for _ in range(3))
        issuer = stack.enter_context(an_issuer())
        provider = a_provider(disk)
        follow_everything(provider, tmp_path)
        a_recipient(provider, "federated", OIDC)
        a_policy(provider, "federated", issuer.url)
        environment = {
            "LAKESHARE_S3_ENDPOINT": store,
            "LAKESHARE_S3_REGION": "eu-north-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "PYICEBERG_CATALOG__HUNG__TYPE": "rest",
            "PYICEBERG_CATALOG__HUNG__URI": catalog,
            "PYICEBERG_CATALOG__BRANCHES__URI": f"{nessie}/api/v2",
            "LAKESHARE_OIDC_PRIVATE_HOSTS": issuer.host,
            "LAKESHARE_GUESSES_PER_MINUTE": "100000",
            "LAKESHARE_OUTSIDE_ANSWER_S": str(ANSWER_S),
            "LAKESHARE_REQUEST_WAIT_S": str(REQUEST_S),
            "LAKESHARE_SLOW_CLIENT_S": "30",
        }
        token = provider.recipient()
        provider.catalog.close()
        _, url = stack.enter_context(a_process(provider, environment=environment))
        yield World(url, disk, token, issuer)


def follow_everything(provider: Provider, folder: Path) -> None:
    provider.publish_delta("lake.flights", a_delta_table(folder / "published"))
    provider.follow("lake.followed", a_delta_table(folder / "followed"))
    provider.follow("lake.stored", "s3://hung/table")
    followed = FollowedTables(provider.catalog)
    for name, place in (
        ("listed", "iceberg:HUNG/lake.listed"),
        ("branched", "nessie:BRANCHES/lake.branched"),
    ):
        identity = IcebergIdentity(f"id-of-{name}", str(folder / name))
        followed.add(
            f"lake.{name}", place.replace("HUNG", "hung").replace("BRANCHES", "branches"), 0.0, 0, identity
        )
    provider.share(*(f"lake.{name}" for name in ("flights", "followed", "stored", "listed", "branched")))


def table_requests(table: str) -> list[tuple[str, str]]:
    return [
        ("GET", f"{SHARE}/{table}/version"),
        ("POST", f"{SHARE}/{table}/query"),
        ("GET", f"{SHARE}/{table}/metadata"),
    ]


@contextmanager
def silent_connections(url: str, count: int) -> Iterator[None]:
    """Connections that send nothing, or stop within their headers."""
    at = urlsplit(url)
    with ExitStack() as stack:
        for number in range(count):
            connection = stack.enter_context(socket.create_connection((at.hostname, at.port or 0), 10))
            if number % 2:
                connection.sendall(b"GET /delta-sharing/shares HTTP/1.1\r\nHost: x\r\n")
        yield


@contextmanager
def full_disk(world: World) -> Iterator[None]:
    fill(world.disk)
    try:
        yield
    finally:
        (world.disk / "filler").unlink()


@contextmanager
def faults(world: World, kinds: tuple[str, ...]) -> Iterator[list[Held]]:
    """These faults at once, each with requests that run into it."""
    held = []
    with ExitStack() as stack:
        for kind, table in (("store", "stored"), ("iceberg catalog", "listed"), ("nessie", "branched")):
            if kind in kinds:
                requests = table_requests(table)
                held.append(stack.enter_context(held_requests(world.url, requests, world.token, HELD)))
        if "issuer" in kinds:
            world.issuer.drip_s = 0.2
            token = world.issuer.token(jti=str(random.random()))
            held.append(stack.enter_context(held_requests(world.url, [("GET", "/shares")], token, HELD)))
        if "connections" in kinds:
            stack.enter_context(silent_connections(world.url, SILENT))
        if "disk" in kinds:
            stack.enter_context(full_disk(world))
        yield held


def healthy(client: httpx.Client) -> list[Callable[[], httpx.Response]]:
    return [
        lambda: client.get(f"{FLIGHTS}/version"),
        lambda: client.post(f"{FLIGHTS}/query", json={}),
        lambda: client.get(f"{SHARE}/followed/version"),
        lambda: client.post(f"{SHARE}/followed/query", json={}),
        lambda: client.get("/shares/flights/all-tables"),
    ]


def p99_s(client: httpx.Client, rounds: int = ROUNDS) -> float:
    taken = []
    for _ in range(rounds):
        for request in healthy(client):
            began = time.perf_counter()
            answer = request()
            assert answer.status_code == 200, answer.text
            taken.append(time.perf_counter() - began)
    return sorted(taken)[int(len(taken) * 0.99)]


def undisturbed_p99_s(client: httpx.Client) -> float:
    """The better of two: other programs of the machine disturb one of them, a fault of the server both."""
    return min(p99_s(client) for _ in range(2))


def warm_up(world: World, client: httpx.Client) -> None:
    """Each kind of request once, also of the tables that hang: libraries are loaded when they are first needed."""
    p99_s(client, 5)
    requests = [table_requests(table)[0] for table in ("stored", "listed", "branched")]
    with held_requests(world.url, requests, world.token, len(requests)) as held:
        wait_until(lambda: held.statuses[503] >= len(requests))


def combinations() -> list[tuple[str, ...]]:
    """All faults at once; in the campaign each alone before."""
    return [*((kind,) for kind in FAULTS[: campaign_size(in_ci=0, in_campaign=len(FAULTS))]), FAULTS]


@pytest.mark.campaign
@pytest.mark.parametrize("kinds", combinations(), ids="+".join)
def test_healthy_tables_are_answered_as_fast_as_without_faults(world: World, kinds: tuple[str, ...]) -> None:
    headers = {"Authorization": f"Bearer {world.token}"}
    with httpx.Client(base_url=world.url, headers=headers, timeout=60) as client:
        warm_up(world, client)
        idle = p99_s(client)
        with faults(world, kinds) as held:
            waiting = undisturbed_p99_s(client)
            for one in held:
                wait_until(lambda one=one: one.statuses[503] >= HELD)
            refusing = undisturbed_p99_s(client)
        for one in held:
            assert set(one.statuses) == {503}
            assert one.longest_s < REQUEST_S + 1
        world.issuer.drip_s = 0.0
        idle = max(idle, p99_s(client))
    assert waiting <= 2 * idle + NOISE_S, (waiting, refusing, idle)
    assert refusing <= 2 * idle + NOISE_S, (waiting, refusing, idle)
    # A full disk has damaged nothing.
    database = next(world.disk.rglob("lakeshare.db"))
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
