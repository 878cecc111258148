"""One publisher of a set at a time; a dead holder is taken over at once, a silent one when its time is up."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from lakeshare_server.catalog import Catalog, Ledger, lock_set, open_catalog
from lakeshare_server.catalog import lock_set as set_lock_function
from lakeshare_server.catalog.ledger import ProcessIdentity
from lakeshare_server.catalog.models import SetLockRow
from lakeshare_server.errors import CatalogConflict
from tests.builders.publications import a_publication


@contextmanager
def another_process_holding(url: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    command = [sys.executable, "-m", "tests.builders.ledger_process", "hold", url, "other"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        try:
            yield holder, int(holder.stdout.readline())
        finally:
            holder.kill()


def change_holder(catalog: Catalog, **values: object) -> None:
    with catalog.writing() as session:
        row = session.get(SetLockRow, "lake")
        for name, value in values.items():
            setattr(row, name, value)


def test_a_second_holder_waits_and_is_told_who_holds_it(catalog_url: str, catalog: Catalog) -> None:
    with (
        another_process_holding(catalog_url) as (holder, _),
        pytest.raises(CatalogConflict, match=rf"by other \(process {holder.pid}.*LAKESHARE_LOCK_WAIT_S"),
        lock_set(catalog, "lake", "me", 0.3),
    ):
        pass


def test_a_killed_holder_is_taken_over_at_once_and_the_token_grows(
    catalog_url: str, catalog: Catalog
) -> None:
    with another_process_holding(catalog_url) as (holder, token):
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        began = time.monotonic()
        with lock_set(catalog, "lake", "me", 5) as lease:
            assert time.monotonic() - began < 5
            assert lease.token == token + 1


def test_a_killed_holder_that_nobody_waited_for_counts_as_dead(catalog_url: str) -> None:
    with another_process_holding(catalog_url) as (holder, _):
        holder.send_signal(signal.SIGKILL)
        # Not reaped yet: a zombie still has its number in the process table.
        with lock_set(open_catalog(catalog_url), "lake", "me", 5) as lease:
            assert lease.owner == "me"


def test_a_holder_elsewhere_is_taken_over_only_when_its_time_is_up(catalog: Catalog) -> None:
    with lock_set(catalog, "lake", "me", 1):
        change_holder(catalog, host="another-host", owner="elsewhere")
        with pytest.raises(CatalogConflict, match="elsewhere"), lock_set(catalog, "lake", "you", 0.1):
            pass
        change_holder(catalog, expires_at=datetime.now(UTC) - timedelta(seconds=1))
        with lock_set(catalog, "lake", "you", 1) as lease:
            assert lease.owner == "you"


def test_a_number_used_again_by_another_process_is_not_the_holder(catalog: Catalog) -> None:
    with lock_set(catalog, "lake", "me", 1):
        change_holder(catalog, process_start="1")
        with lock_set(catalog, "lake", "you", 1) as lease:
            assert lease.owner == "you"


def test_who_was_taken_over_cannot_append_and_does_not_free_the_lock_of_the_next(catalog: Catalog) -> None:
    with lock_set(catalog, "lake", "slow", 1) as slow:
        change_holder(catalog, expires_at=datetime.now(UTC) - timedelta(seconds=1))
        next_lock = lock_set(catalog, "lake", "next", 1)
        lease = next_lock.__enter__()
        with pytest.raises(CatalogConflict, match="slow lost the lock of set lake; it is held by next"):
            Ledger(catalog).append([a_publication()], slow)
    with pytest.raises(CatalogConflict, match="next"), lock_set(catalog, "lake", "third", 0.1):
        pass
    assert Ledger(catalog).append([a_publication()], lease)
    next_lock.__exit__(None, None, None)


def test_the_holder_keeps_its_lock_by_its_heartbeat(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[set_lock_function.__wrapped__.__module__]
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.01)
    with lock_set(catalog, "lake", "me", 1):
        change_holder(catalog, expires_at=datetime.now(UTC) + timedelta(seconds=1))
        deadline = time.monotonic() + 10
        while expiry(catalog) < datetime.now(UTC) + timedelta(seconds=30):
            assert time.monotonic() < deadline, "the heartbeat did not move the expiry"


def expiry(catalog: Catalog) -> datetime:
    with catalog.reading() as session:
        row = session.get(SetLockRow, "lake")
        assert row is not None
        assert row.expires_at is not None
        return row.expires_at


def test_a_lock_that_cannot_be_freed_hides_nothing_and_ends_by_itself(
    catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    def rename(name: str, new_name: str) -> None:
        with catalog.writing() as session:
            session.execute(text(f"ALTER TABLE {name} RENAME TO {new_name}"))

    def fail_under_a_lock_that_is_gone() -> None:
        with lock_set(catalog, "lake", "me", 0):
            rename("set_locks", "elsewhere")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_under_a_lock_that_is_gone()
    assert "me could not free it" in caplog.text
    rename("elsewhere", "set_locks")
    change_holder(catalog, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    with lock_set(catalog, "lake", "next", 0) as lease:
        assert lease.token == 2


def test_sets_do_not_wait_for_each_other(catalog: Catalog) -> None:
    with lock_set(catalog, "lake", "me", 1), lock_set(catalog, "sea", "you", 0) as lease:
        assert lease.set_name == "sea"


def test_threads_of_one_process_take_turns(catalog: Catalog) -> None:
    inside, most, tokens = [0], [0], []

    def work(name: str) -> None:
        with lock_set(catalog, "lake", name, 30) as lease:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            tokens.append(lease.token)
            inside[0] -= 1

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert tokens == [1, 2, 3, 4]


def test_a_living_process_is_not_dead(catalog: Catalog) -> None:
    assert not ProcessIdentity.current().is_dead()
