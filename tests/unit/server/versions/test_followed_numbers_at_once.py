"""Many workers number the states of one followed Iceberg table: never twice, never with a gap, never back."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lakeshare_server.storage import Stores
from lakeshare_server.versions import Versions, followed_iceberg
from lakeshare_server.versions.metadata_sources import MetadataFolder, Pointer
from tests.builders.followed_iceberg import NAME, OwnedTable, a_worker, following, log_of, pinned
from tests.builders.forks import FORKS, start_process
from tests.builders.sharing import Provider, a_provider

WORKERS = 4


@pytest.fixture
def table(tmp_path: Path) -> OwnedTable:
    return OwnedTable(tmp_path / "warehouse")


@pytest.fixture
def provider(tmp_path: Path, table: OwnedTable) -> Provider:
    return following(a_provider(tmp_path), table.folder)


def test_workers_that_look_while_the_table_grows_number_each_state_once(
    provider: Provider, table: OwnedTable
) -> None:
    first, stop = table.current, threading.Event()

    def poll() -> list[int]:
        worker, told = a_worker(provider), list[int]()
        while not stop.is_set():
            told.append(worker.latest().number)
        return told

    with ThreadPoolExecutor(WORKERS) as pool:
        polling = [pool.submit(poll) for _ in range(WORKERS)]
        try:
            for _ in range(4):
                table.append_days(1)
            table.roll_back(first)
            table.append_days(1)
        finally:
            stop.set()
        told = [one.result() for one in polling]
    assert all(numbers == sorted(numbers) for numbers in told)
    a_worker(provider).latest()
    assert pinned(provider) == [snapshot for _, snapshot in log_of(table)]


def look_in_a_process(state_dir: Path, go: Any, told: Any) -> None:
    provider = a_provider(state_dir)
    worker = a_worker(provider)
    go.wait(60)
    told.put(worker.latest().number)


def test_processes_that_look_at_once_number_each_state_once(
    provider: Provider, table: OwnedTable, tmp_path: Path
) -> None:
    for _ in range(3):
        table.append_days(1)
    go, told = FORKS.Event(), FORKS.Queue()
    workers = [start_process(look_in_a_process, tmp_path, go, told) for _ in range(2)]
    go.set()
    numbers = [told.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert numbers == [3, 3]
    assert pinned(provider) == [snapshot for _, snapshot in log_of(table)]


def test_whoever_has_looked_before_another_has_numbered_looks_again(
    provider: Provider, table: OwnedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a slow worker saw is older than what has a number: it must not become the newest."""
    mine, others = a_worker(provider), a_worker(provider)
    assert mine.latest().number == others.latest().number == 0
    table.append_days(1)
    current = MetadataFolder.current

    def slow(self: MetadataFolder, known: Pointer | None) -> Pointer:
        monkeypatch.undo()
        seen = current(self, known)
        table.append_days(1)
        table.roll_back(log_of(table)[0][1])
        assert others.latest().number == 3
        return seen

    monkeypatch.setattr(MetadataFolder, "current", slow)
    assert mine.latest().number == 3
    assert pinned(provider) == [snapshot for _, snapshot in log_of(table)]


def test_whoever_is_overtaken_again_and_again_tells_what_the_others_numbered(
    provider: Provider, table: OwnedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, others = a_worker(provider), a_worker(provider)
    current = MetadataFolder.current

    def overtaken(self: MetadataFolder, known: Pointer | None) -> Pointer:
        is_other = threading.current_thread().name == "other"
        if not is_other:
            table.append_days(1)
        seen = current(self, known)
        if not is_other:
            other = threading.Thread(target=others.latest, name="other")
            other.start()
            other.join()
        return seen

    monkeypatch.setattr(MetadataFolder, "current", overtaken)
    assert mine.latest().number == len(log_of(table)) - 1 == followed_iceberg.MAX_READ_ATTEMPTS
    monkeypatch.undo()
    table.append_days(1)
    assert mine.latest().number == len(log_of(table)) - 1
    assert pinned(provider) == [snapshot for _, snapshot in log_of(table)]


def test_numbers_that_others_gave_are_told_within_the_interval(tmp_path: Path, table: OwnedTable) -> None:
    """A recipient who is answered by one worker and then by another must not see numbers go back."""
    provider = following(a_provider(tmp_path / "patient"), table.folder, check_every_s=3600)
    one_process = Versions(provider.catalog, provider.settings, Stores(provider.settings))
    assert one_process.of(NAME).latest().number == 0
    table.append_days(1)
    assert a_worker(provider).latest().number == 1
    # What a worker knows of a table is made anew for each generation of the catalog; the last look stays.
    assert one_process.of(NAME).latest().number == 1
    assert one_process.of(NAME).at(1) is not None
