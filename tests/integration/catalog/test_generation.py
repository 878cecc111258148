"""The generation grows with every write that recipients can see, in its own transaction, and with no other."""

import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, text, update

from lakeshare_server.catalog import (
    AuditLog,
    Catalog,
    DeclaredShare,
    FollowedTables,
    Ledger,
    Listings,
    SharedTable,
    allow_directory_access,
    apply_shares,
    lock_set,
    open_catalog,
    share_table,
)
from lakeshare_server.catalog.models import (
    AdminKeyRow,
    AllowanceRow,
    AsyncQueryRow,
    AuditChainRow,
    AuditJournalRow,
    AuditRow,
    AuditVerificationRow,
    Base,
    ContractRow,
    DeliveryRow,
    EndedSessionRow,
    SetLockRow,
    TokenUseRow,
    UsageRow,
    WebhookRow,
)
from lakeshare_server.errors import CatalogConflict, Unavailable
from tests.builders.publications import a_publication
from tests.builders.recipients import Recipients
from tests.builders.sharing import unshare_table

MODELS = sorted((mapper.class_ for mapper in Base.registry.mappers), key=lambda model: model.__tablename__)
UNSEEN = {
    *(AdminKeyRow, AllowanceRow, AuditRow, AuditChainRow, AuditJournalRow, ContractRow),
    *(SetLockRow, AsyncQueryRow, TokenUseRow, UsageRow, WebhookRow, DeliveryRow),
    *(AuditVerificationRow, EndedSessionRow),
}
ORDERS = SharedTable("a", "orders", "lake.orders")

SEEN_WRITES: dict[str, Callable[[Catalog], Any]] = {
    "publish": lambda catalog: Ledger(catalog).append([a_publication()]),
    "apply shares": lambda catalog: apply_shares(catalog, [DeclaredShare("t", (ORDERS,))]),
    "unapply shares": lambda catalog: apply_shares(catalog, []),
    "share by hand": lambda catalog: share_table(catalog, "s", SharedTable("a", "x", "lake.x")),
    "unshare by hand": lambda catalog: unshare_table(catalog, "s", "a", "orders"),
    "allow directories": lambda catalog: allow_directory_access(catalog, "s", "a", "orders", allowed=True),
    "follow": lambda catalog: FollowedTables(catalog).add("a.new", "/data", 1),
    "unfollow": lambda catalog: FollowedTables(catalog).remove("a.followed"),
    "add a recipient": lambda catalog: Recipients(catalog).add("eve", ["s"]),
    "rotate a token": lambda catalog: Recipients(catalog).rotate("bob"),
    "revoke a recipient": lambda catalog: Recipients(catalog).revoke("bob"),
}


def writes_of(model: type[Base]) -> list[Any]:
    column = list(model.__table__.columns)[-1]
    return [insert(model), update(model).values({column.name: None}), delete(model)]


@pytest.mark.parametrize("name", SEEN_WRITES)
def test_every_write_that_recipients_see_is_the_next_generation(catalog: Catalog, name: str) -> None:
    share_table(catalog, "s", ORDERS)
    FollowedTables(catalog).add("a.followed", "/data", 1)
    Recipients(catalog).add("bob", ["s"])
    apply_shares(catalog, [DeclaredShare("declared", (ORDERS,))])
    before = catalog.generation()
    SEEN_WRITES[name](catalog)
    assert catalog.generation() > before


def test_what_recipients_do_not_see_is_no_generation(catalog: Catalog, tmp_path: Path) -> None:
    before = catalog.generation()
    with lock_set(catalog, "lake", "me", 1):
        pass
    with catalog.writing(seen=False) as session:
        session.execute(delete(AuditRow))
        session.execute(delete(AsyncQueryRow))
    AuditLog(catalog, tmp_path / "audit").close()
    Ledger(catalog).history("lake.flights")
    assert catalog.generation() == before


def test_no_model_can_be_written_past_the_generation(catalog: Catalog, subtests: pytest.Subtests) -> None:
    """A model that is added later is refused as well, until `UNSEEN` names it."""
    for model in MODELS:
        sessions = [catalog.reading]
        if model not in UNSEEN:
            sessions.append(partial(catalog.writing, seen=False))
        with subtests.test(model=model.__tablename__):
            for opened in sessions:
                for write in writes_of(model):
                    with pytest.raises(AssertionError, match=model.__tablename__), opened() as session:
                        session.execute(write)
                with pytest.raises(AssertionError, match=model.__tablename__), opened() as session:
                    session.add(model())


def test_a_written_text_is_not_taken_for_unseen(catalog: Catalog) -> None:
    with pytest.raises(AssertionError, match="DELETE FROM shares"), catalog.writing(seen=False) as session:
        session.execute(text("DELETE FROM shares"))


def test_a_write_that_fails_is_no_generation(catalog: Catalog) -> None:
    FollowedTables(catalog).add("lake.flights", "/data", 1)
    before = catalog.generation()
    with pytest.raises(CatalogConflict):
        Ledger(catalog).append([a_publication()])
    assert catalog.generation() == before


def test_a_write_that_is_not_committed_yet_is_no_generation(catalog: Catalog) -> None:
    before = catalog.generation()
    with catalog.writing():
        assert catalog.generation() == before
    assert catalog.generation() == before + 1


def test_the_write_of_another_process_is_seen_on_the_very_next_look(
    catalog: Catalog, catalog_url: str
) -> None:
    seen = catalog.generation()
    command = [sys.executable, "-m", "tests.builders.ledger_process", "append-when-told", catalog_url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for _ in range(10):
            assert catalog.generation() == seen
            writer.stdin.write("\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == "written\n"
            assert catalog.generation() > seen
            seen = catalog.generation()
        writer.stdin.close()


def test_every_thread_sees_every_write(catalog: Catalog) -> None:
    faults: list[str] = []
    newest = [catalog.generation()]
    stop = threading.Event()

    def look() -> None:
        last = 0
        while not stop.is_set():
            written = newest[0]
            seen = catalog.generation()
            if seen < max(written, last):
                faults.append(f"saw {seen} after {max(written, last)} was there")
            last = seen

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        with catalog.writing():
            pass
        newest[0] += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert faults == []
    assert catalog.generation() == newest[0]


def test_a_closed_catalog_looks_again_when_asked(catalog: Catalog) -> None:
    before = catalog.generation()
    catalog.close()
    Ledger(catalog).append([a_publication()])
    assert catalog.generation() == before + 1


def test_a_connection_that_was_cut_is_replaced(catalog_url: str, catalog: Catalog) -> None:
    before = catalog.generation()
    if catalog.engine.dialect.name == "postgresql":
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        other = open_catalog(catalog_url)
        with other.engine.connect() as connection:
            connection.execute(text(f"{cut} AND datname = current_database()"))
        other.close()
    assert catalog.generation() == before
    Ledger(catalog).append([a_publication()])
    assert catalog.generation() == before + 1


def test_a_catalog_that_does_not_answer_is_said_to_be_unavailable(catalog: Catalog) -> None:
    with catalog.writing() as session:
        session.execute(text("ALTER TABLE catalog_state RENAME TO elsewhere"))
    with pytest.raises(Unavailable, match="does not answer"):
        catalog.generation()


def test_two_who_follow_and_publish_one_name_at_once_never_both_succeed(catalog: Catalog) -> None:
    outcomes: list[list[str]] = []
    for number in range(10):
        name, done = f"a.t{number}", []
        start = threading.Barrier(2)

        def attempt(write: Callable[[], Any], start: threading.Barrier, done: list[str]) -> None:
            start.wait()
            try:
                write()
            except CatalogConflict:
                return
            done.append("written")

        followed = threading.Thread(
            target=attempt, args=(lambda name=name: FollowedTables(catalog).add(name, "/d", 1), start, done)
        )
        published = threading.Thread(
            target=attempt,
            args=(lambda name=name: Ledger(catalog).append([a_publication(table=name)]), start, done),
        )
        followed.start()
        published.start()
        followed.join()
        published.join()
        outcomes.append(done)
    assert outcomes == [["written"]] * 10


def test_one_look_at_the_catalog_is_consistent(catalog: Catalog) -> None:
    share_table(catalog, "s", ORDERS)
    bob, _ = Recipients(catalog).add("bob", ["s"])
    with catalog.reading() as session:
        before = session.execute(text("SELECT count(*) FROM shared_tables")).scalar()
        share_table(catalog, "s", SharedTable("a", "x", "lake.x"))
        assert session.execute(text("SELECT count(*) FROM shared_tables")).scalar() == before == 1
    assert len(Listings(catalog, bob.id).tables("s", None, 0, 10)) == 2


def test_times_come_back_as_they_were_written(catalog: Catalog) -> None:
    ends = datetime(2040, 7, 1, 12, 0, 0, 123456, tzinfo=UTC) + timedelta(hours=1)
    share_table(catalog, "s", ORDERS)
    Recipients(catalog).add("bob", ["s"], expires_at=ends)
    [bob] = Recipients(catalog).list()
    assert bob.expires_at == ends
    assert bob.expires_at.utcoffset() == timedelta(0)
