"""What is cached is true on the very next call after anybody's write, is bounded, and never outlives a token."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from lakeshare_server.catalog import (
    Catalog,
    GenerationCache,
    GrantedTable,
    Ledger,
    Listings,
    Publication,
    Reader,
    SharedTable,
    share_table,
)
from lakeshare_server.errors import NotFound
from tests.builders.publications import a_publication
from tests.builders.recipients import Recipients


@pytest.fixture
def token(catalog: Catalog) -> str:
    share_table(catalog, "s", SharedTable("a", "x", "lake.x"))
    return Recipients(catalog).add("bob", ["s"])[1]


def counted(value: str, loads: list[str]) -> Callable[[], str]:
    def load() -> str:
        loads.append(value)
        return value

    return load


def revoked_elsewhere(catalog_url: str) -> None:
    command = [sys.executable, "-m", "tests.builders.ledger_process", "revoke", catalog_url, "bob"]
    subprocess.run(command, check=True)


def test_a_value_is_loaded_once_until_something_is_written(catalog: Catalog) -> None:
    cache, loads = GenerationCache[str](catalog), []
    assert [cache.get("k", counted("v", loads)) for _ in range(3)] == ["v"] * 3
    assert loads == ["v"]
    Ledger(catalog).append([a_publication()])
    assert cache.get("k", counted("w", loads)) == "w"
    assert loads == ["v", "w"]


def test_a_peek_never_loads(catalog: Catalog) -> None:
    cache = GenerationCache[str](catalog)
    assert cache.peek("k") is None
    cache.get("k", lambda: "v")
    assert cache.peek("k") == "v"
    assert cache.peek("other") is None
    Ledger(catalog).append([a_publication()])
    assert cache.peek("k") is None


def test_a_revoked_token_is_gone_right_after_another_process_revoked_it(
    catalog: Catalog, catalog_url: str, token: str
) -> None:
    recipients, cache = Recipients(catalog), GenerationCache[Reader | None](catalog)
    reader = cache.get(token, lambda: recipients.by_token(token))
    assert reader is not None
    assert cache.peek(token) == reader
    revoked_elsewhere(catalog_url)
    assert cache.peek(token) is None
    assert cache.get(token, lambda: recipients.by_token(token)) is None


def test_a_publication_of_another_thread_is_what_is_read_next(catalog: Catalog) -> None:
    ledger, cache = Ledger(catalog), GenerationCache[Publication | None](catalog)
    for expected in range(20):
        writer = threading.Thread(target=ledger.append, args=([a_publication()],))
        writer.start()
        writer.join()
        latest = cache.get("lake.flights", lambda: ledger.latest("lake.flights"))
        assert latest is not None
        assert latest.version == expected
        assert cache.peek("lake.flights") == latest


def test_what_is_not_there_is_not_kept(catalog: Catalog, token: str) -> None:
    recipients = Recipients(catalog)
    readers, tables = GenerationCache[Reader | None](catalog, 1), GenerationCache[GrantedTable](catalog, 1)
    readers.get(token, lambda: recipients.by_token(token))
    reader = readers.peek(token)
    assert reader is not None
    listings = Listings(catalog, reader.id)
    tables.get("x", lambda: listings.table("s", "a", "x"))
    for invented in ("a", "b"):
        assert readers.get(invented, lambda invented=invented: recipients.by_token(invented)) is None
        with pytest.raises(NotFound):
            tables.get(invented, lambda invented=invented: listings.table("s", "a", invented))
    assert readers.peek(token) == reader
    assert tables.peek("x") is not None


def test_the_cache_is_bounded_and_lets_the_oldest_go(catalog: Catalog) -> None:
    cache = GenerationCache[int](catalog, 3)
    for number in range(10):
        cache.get(number, lambda number=number: number)
    assert [cache.peek(number) for number in range(10)] == [None] * 7 + [7, 8, 9]


def test_a_value_read_during_a_write_is_not_kept_for_the_next_generation(catalog: Catalog) -> None:
    cache = GenerationCache[str](catalog)

    def load_while_somebody_writes() -> str:
        with catalog.writing():
            pass
        return "old"

    assert cache.get("k", load_while_somebody_writes) == "old"
    assert cache.peek("k") is None


def test_a_late_value_of_an_old_generation_drives_out_nothing(catalog: Catalog) -> None:
    cache = GenerationCache[str](catalog)
    old = catalog.generation()
    with catalog.writing():
        pass
    cache.get("k", lambda: "new")
    assert cache.get("k", lambda: "late", generation=old) == "late"
    assert cache.peek("k") == "new"


def test_a_cached_token_ends_on_time_all_the_same(catalog: Catalog, token: str) -> None:
    recipients, cache = Recipients(catalog), GenerationCache[Reader | None](catalog)
    _, short = recipients.add("eve", ["s"], expires_at=datetime.now(UTC) + timedelta(seconds=0.5))
    for one in (token, short):
        cache.get(one, lambda one=one: recipients.by_token(one))
    time.sleep(0.6)
    lasting, ended = cache.peek(token), cache.peek(short)
    assert lasting is not None
    assert ended is not None
    assert (lasting.is_valid(), ended.is_valid()) == (True, False)
    assert recipients.by_token(short) is None


def test_threads_never_read_what_is_older_than_a_finished_write(catalog: Catalog) -> None:
    ledger, cache = Ledger(catalog), GenerationCache[Publication | None](catalog)
    published, faults = [-1], []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            at_least = published[0]
            latest = cache.get("lake.flights", lambda: ledger.latest("lake.flights"))
            version = -1 if latest is None else latest.version
            if version < at_least:
                faults.append((version, at_least))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(30):
        ledger.append([a_publication()])
        published[0] = number
    stop.set()
    for thread in threads:
        thread.join()
    assert faults == []
