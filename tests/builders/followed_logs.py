"""Followed tables of hand-written logs, and what a recipient sees of them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.builders.log_files import WrittenLog, add
from tests.builders.sharing import FLIGHTS, Provider, a_provider, a_server, files

NAME = "lake.flights"
BEGIN_MS = 1_700_000_000_000


def a_sharing_provider(folder: Path) -> Provider:
    """One who shares the table, which nobody follows yet."""
    provider = a_provider(folder)
    provider.share(NAME)
    return provider


@contextmanager
def a_client(provider: Provider) -> Iterator[httpx.Client]:
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        yield client


def dated(path: Path, at_ms: int) -> None:
    os.utime(path, ns=(at_ms * 10**6, at_ms * 10**6))


def some_commits(log: WrittenLog, count: int) -> None:
    """Versions a second apart, version n of n+1 files."""
    dated(log.first(add("0")), BEGIN_MS)
    for version in range(1, count):
        dated(log.commit(version, add(str(version))), BEGIN_MS + 1000 * version)


def version_of(client: httpx.Client) -> int:
    return int(client.get(f"{FLIGHTS}/version").headers["delta-table-version"])


def count_of(client: httpx.Client, **body: Any) -> int:
    return len(files(client.post(f"{FLIGHTS}/query", json=body)))


def refused(answer: httpx.Response, *fragments: str) -> None:
    assert answer.status_code == 400, answer.text
    for fragment in fragments:
        assert fragment in answer.json()["message"]


def started(client: httpx.Client, timestamp: str) -> int:
    answer = client.get(f"{FLIGHTS}/version", params={"startingTimestamp": timestamp})
    assert answer.status_code == 200, answer.text
    return int(answer.headers["delta-table-version"])
