"""The threads beside the requests outlive a database that fails: what they could not write then, they write later."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from lakeshare_server.access import table_access
from lakeshare_server.access.table_access import AsyncWorker, Submission, TableViews
from lakeshare_server.catalog import AsyncQueries, AuditLog, Catalog, Reader, open_catalog
from lakeshare_server.catalog.audit import log as audit_log
from lakeshare_server.catalog.audit.log import LOG_REFUSED
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.versions import Versions
from tests.builders.events import an_event, newest_requests

PATIENCE_S = 30
ASKED = Submission(Reader("r", "bob"), ("no", "such", "table"), {}).as_json()


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def change(catalog: Catalog, statement: str) -> None:
    with catalog.writing() as session:
        session.execute(text(statement))


def test_the_worker_goes_on_when_it_could_not_note_a_failure(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(table_access, "IDLE_S", 0.05)
    monkeypatch.setattr(table_access, "PREPARED_AT_ONCE", 1)
    settings = ServerSettings(state_dir=tmp_path)
    queries = AsyncQueries(catalog, dead_after_s=0.2)
    views = TableViews(catalog, Versions(catalog, settings, Stores(settings)))
    look, gone = views.table, threading.Event()

    def look_without_a_queue(*names: Any) -> Any:
        if not gone.is_set():
            change(catalog, "ALTER TABLE async_queries RENAME TO elsewhere")
            gone.set()
        return look(*names)

    monkeypatch.setattr(views, "table", look_without_a_queue)
    worker = AsyncWorker(queries, views)
    query = queries.submit("r", "t", kind="query", request=ASKED, idempotency_key="1")
    worker.start()
    wait_until(lambda: "async queries" in caplog.text)
    change(catalog, "ALTER TABLE elsewhere RENAME TO async_queries")
    wait_until(lambda: queries.get(query.id, "r", "t").state == "failed")
    worker.stop()
    assert queries.get(query.id, "r", "t").error_code == "NotFound"


def test_a_query_whose_store_hangs_delays_no_other(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_access, "IDLE_S", 0.05)
    settings = ServerSettings(state_dir=tmp_path)
    queries, answered = AsyncQueries(catalog), threading.Event()
    views = TableViews(catalog, Versions(catalog, settings, Stores(settings)))
    look = views.table

    def look_slowly(reader: Reader, *names: str) -> Any:
        if names[-1] == "slow":
            assert answered.wait(PATIENCE_S)
        return look(reader, *names)

    monkeypatch.setattr(views, "table", look_slowly)
    slow = Submission(Reader("r", "bob"), ("no", "such", "slow"), {}).as_json()
    submitted = [
        queries.submit("r", "t", kind="query", request=request, idempotency_key=str(number)).id
        for number, request in enumerate([slow, slow, slow, ASKED, ASKED])
    ]
    worker = AsyncWorker(queries, views)
    worker.start()

    def states() -> list[str]:
        return [queries.get(query, "r", "t").state for query in submitted]

    wait_until(lambda: states() == ["running"] * 3 + ["failed"] * 2)
    answered.set()
    wait_until(lambda: states() == ["failed"] * 5)
    worker.stop()


def test_the_audit_log_goes_on_when_the_database_is_back(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_log, "RETRY_S", 0.05)
    change(catalog, "ALTER TABLE audit_chain RENAME TO elsewhere")
    log = AuditLog(catalog, tmp_path)
    log.record(an_event())
    wait_until(lambda: "audit log: 1 events wait" in caplog.text)
    change(catalog, "ALTER TABLE elsewhere RENAME TO audit_chain")
    wait_until(lambda: len(newest_requests(log.catalog, 10)) == 1)
    log.close()


def test_an_event_that_was_refused_does_not_hold_up_those_behind_it(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a migration by hand; SQLite never minds how long a text is."""
    catalog = open_catalog(postgres_url)
    change(catalog, "ALTER TABLE audit_log ALTER COLUMN action TYPE VARCHAR(11)")
    log = AuditLog(catalog, tmp_path)
    log.record(an_event(1, action="longer than that"))
    log.record(an_event(2))
    wait_until(lambda: [event.files for event in newest_requests(log.catalog, 10)] == [2])
    assert '"files":1' in (tmp_path / LOG_REFUSED).read_text()
    log.close()
    catalog.close()
