"""The audit log is one chain for all who write, and shows whether any event was removed, changed or moved."""

import threading
from pathlib import Path

import pytest

from lakeshare_server.catalog import AuditLog, Catalog, SharedTable, open_catalog, share_table
from lakeshare_server.catalog.audit import events_after, parse_receipt, verify
from lakeshare_server.catalog.audit.log import LOG_REFUSED, chain_hash, serialize_event
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.errors import BadRequest
from tests.builders.events import an_event, append, tamper
from tests.builders.recipients import Recipients

EVENTS = 9
SWAP = (
    "UPDATE audit_log SET key = -4 WHERE key = 4",
    "UPDATE audit_log SET key = 4 WHERE key = 5",
    "UPDATE audit_log SET key = 5 WHERE key = -4",
)
COLUMNS = {
    "at": "'2026-03-01 13:00:00+00'",
    "recipient": "'eve'",
    "action": "'list_shares'",
    "object_name": "NULL",
    "status": "404",
    "error_code": "'X'",
    "version": "2",
    "files": "7000",
    "size_bytes": "1",
    "rows": "1",
    "request_id": "'r'",
    "ip": "'::2'",
    "user_agent": "'u'",
    "elapsed_ms": "3",
    "principal": "'ann'",
    "details": "'{}'",
    "kind": "'end'",
}
TAMPERED = {
    "removed": (("DELETE FROM audit_log WHERE key = 4",), [(4, "removed")]),
    "several removed": (("DELETE FROM audit_log WHERE key IN (3, 4, 7)",), [(3, "removed"), (7, "removed")]),
    "the first removed": (("DELETE FROM audit_log WHERE key = 1",), [(1, "removed")]),
    "the last removed": ((f"DELETE FROM audit_log WHERE key = {EVENTS}",), [(EVENTS, "removed")]),
    "all removed": (("DELETE FROM audit_log",), [(1, "removed")]),
    "removed, and the rest renumbered": (
        ("DELETE FROM audit_log WHERE key = 9", "DELETE FROM audit_log WHERE key = 7",
         "UPDATE audit_log SET key = 7 WHERE key = 8", "UPDATE audit_chain SET number = 7 WHERE name = 'head'"),
        [(7, "removed"), (7, "changed")],
    ),
    "moved": (SWAP, [(4, "moved"), (5, "moved"), (6, "moved")]),
    "its hash taken": (("UPDATE audit_log SET hash = NULL WHERE key = 4",), [(4, "changed"), (5, "removed")]),
    "the head removed": (("DELETE FROM audit_chain WHERE name = 'head'",), [(9, "removed"), (9, "changed")]),
    "the head set back": (("UPDATE audit_chain SET number = 5 WHERE name = 'head'",), [(9, "changed")]),
    "a beginning that nobody pruned": (
        ("UPDATE audit_chain SET number = 3, hash = (SELECT hash FROM audit_log WHERE key = 3) WHERE name = 'anchor'",
         "DELETE FROM audit_log WHERE key <= 3"),
        [(4, "removed")],
    ),
}  # fmt: skip


@pytest.fixture
def log(catalog: Catalog) -> Catalog:
    fill(catalog)
    return catalog


def fill(catalog: Catalog) -> None:
    """Begin the chain anew, in three transactions."""
    ends = ", ".join(f"('{name}', 0, '{'0' * 64}')" for name in ("head", "anchor"))
    tamper(
        catalog,
        "DELETE FROM audit_log",
        "DELETE FROM audit_chain",
        f"INSERT INTO audit_chain (name, number, hash) VALUES {ends}",
    )
    append(catalog, [an_event(number) for number in range(EVENTS - 2)])
    append(catalog, [an_event(EVENTS - 2)])
    append(catalog, [an_event(EVENTS - 1)])


def test_what_nobody_touched_is_sound(log: Catalog) -> None:
    found = verify(log)
    assert (found.is_sound, found.events, found.unchained, found.head.number) == (True, EVENTS, 0, EVENTS)


def test_an_empty_log_is_sound(catalog: Catalog) -> None:
    append(catalog, [])
    assert (verify(catalog).is_sound, verify(catalog).events) == (True, 0)


def test_the_hash_can_be_made_again_from_what_the_log_tells(log: Catalog) -> None:
    first, second, *_ = events_after(log, 0)
    assert first.event == an_event(0)
    assert second.previous_hash == first.hash == chain_hash("0" * 64, serialize_event(an_event(0)))
    assert second.hash == chain_hash(first.hash or "", serialize_event(second.event))


def test_what_was_done_to_the_chain_is_found(log: Catalog) -> None:
    for way, (statements, expected) in TAMPERED.items():
        fill(log)
        assert verify(log).is_sound
        tamper(log, *statements)
        found = verify(log)
        assert [(one.number, one.kind) for one in found.findings] == expected, way
        assert not found.is_sound


def test_a_change_of_any_column_is_found(log: Catalog) -> None:
    append(log, [an_event(number) for number in range(len(COLUMNS))])
    changes = list(enumerate(COLUMNS.items(), EVENTS + 1))
    tamper(
        log, *(f"UPDATE audit_log SET {name} = {value} WHERE key = {key}" for key, (name, value) in changes)
    )
    found = [(one.number, one.kind) for one in verify(log).findings]
    assert found == [(key, "changed") for key, _ in changes]


def test_the_columns_that_a_hash_covers_are_all_there_are() -> None:
    assert set(AuditRow.__table__.columns.keys()) == {*COLUMNS, "key", "previous_hash", "hash"}


def test_a_chain_that_was_made_anew_is_told_by_a_receipt(log: Catalog) -> None:
    receipt = parse_receipt(str(verify(log).head))
    assert verify(log, receipt).is_sound
    append(log, [an_event(100)])
    assert verify(log, receipt).is_sound
    zeros = "0" * 64
    tamper(log, "DELETE FROM audit_log", f"UPDATE audit_chain SET number = 0, hash = '{zeros}'")
    append(log, [an_event(number, recipient="eve") for number in range(EVENTS + 1)])
    assert verify(log).is_sound
    assert [(one.number, one.kind) for one in verify(log, receipt).findings] == [(EVENTS, "changed")]


def test_what_is_no_receipt_is_refused() -> None:
    for text in ("", "1", "x:y", "1:abc", "-1:" + "0" * 64, "9" * 30 + ":" + "0" * 64):
        with pytest.raises(BadRequest, match="receipt"):
            parse_receipt(text)


def test_events_go_on_behind_a_head_that_was_set_back(log: Catalog) -> None:
    tamper(log, "UPDATE audit_chain SET number = 2 WHERE name = 'head'")
    append(log, [an_event(50)])
    assert [event.event.files for event in events_after(log, EVENTS)] == [50]


def test_events_of_before_the_chain_are_counted_apart(catalog: Catalog) -> None:
    append(catalog, [an_event(0), an_event(1)])
    tamper(
        catalog,
        "UPDATE audit_log SET hash = NULL, previous_hash = NULL",
        f"UPDATE audit_chain SET number = 2, hash = '{'0' * 64}'",
    )
    append(catalog, [an_event(2)])
    found = verify(catalog)
    assert (found.is_sound, found.events, found.unchained) == (True, 1, 2)


def test_many_who_write_at_once_make_one_chain(catalog: Catalog, catalog_url: str, tmp_path: Path) -> None:
    """Servers with their journals, and administrators with their transactions, each over a connection of its own."""

    def serve(worker: int) -> None:
        own = open_catalog(catalog_url)
        log = AuditLog(own, tmp_path / "audit")
        for number in range(60):
            log.record(an_event(number, recipient=f"w{worker}"))
        log.close()
        own.close()

    def administer() -> None:
        own = open_catalog(catalog_url)
        share_table(own, "s", SharedTable("a", "x", "lake.x"))
        for number in range(5):
            Recipients(own).add(f"r{number}", ["s"])
        own.close()

    works = [threading.Thread(target=serve, args=(worker,)) for worker in range(3)]
    works.append(threading.Thread(target=administer))
    for work in works:
        work.start()
    for work in works:
        work.join()
    events = [event.event for event in events_after(catalog, 0)]
    found = verify(catalog)
    assert (found.is_sound, found.events) == (True, len(events))
    for worker in range(3):
        assert [event.files for event in events if event.recipient == f"w{worker}"] == list(range(60))
    assert sum(event.action == "create_recipient" for event in events) == 5
    assert list((tmp_path / "audit").iterdir()) == []


def test_an_event_that_the_database_can_never_hold_keeps_no_other_from_it(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(catalog, tmp_path)
    for number in range(7):
        log.record(an_event(number, version=(1 << 63) if number in (2, 5) else 1))
    log.close()
    assert [event.event.files for event in events_after(catalog, 0)] == [0, 1, 3, 4, 6]
    kept = (tmp_path / LOG_REFUSED).read_text().splitlines()
    assert ['"files":2' in line for line in kept] == [True, False]
    assert len(kept) == 2
    assert "cannot hold" in caplog.text
    assert verify(catalog).is_sound
