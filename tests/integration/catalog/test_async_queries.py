"""An async query is taken in once, worked on by one worker at a time, outlives any process, and ends by time."""

import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from lakeshare_server.catalog import AsyncQueries, AsyncQuery, Catalog, async_queries, open_catalog
from lakeshare_server.catalog.models import AsyncQueryRow
from lakeshare_server.errors import BadRequest, NotFound, Unavailable

ASKED = {"kind": "query", "request": '{"limitHint":1}', "idempotency_key": "key-1"}


@pytest.fixture
def queries(catalog: Catalog) -> AsyncQueries:
    return AsyncQueries(catalog)


def submit(queries: AsyncQueries, recipient: str = "bob", table: str = "t1", **different: Any) -> AsyncQuery:
    return queries.submit(recipient, table, **{**ASKED, **different})


def change(catalog: Catalog, **values: Any) -> None:
    with catalog.writing(seen=False) as session:
        session.execute(update(AsyncQueryRow).values(values))


def rows(catalog: Catalog) -> int:
    with catalog.reading() as session:
        return session.scalar(select(func.count()).select_from(AsyncQueryRow)) or 0


def test_a_query_is_pending_then_running_then_done(queries: AsyncQueries) -> None:
    """protocol §1.9."""
    query = submit(queries, request='{"hint":"ü \\u0000"}', version=3)
    assert (query.state, query.version, query.request) == ("pending", 3, '{"hint":"ü \\u0000"}')
    assert queries.get(query.id, "bob", "t1") == query
    claim = queries.claim()
    assert claim is not None
    assert (claim.query.id, claim.query.state) == (query.id, "running")
    assert queries.beat(claim)
    assert queries.finish(claim, 4)
    done = queries.get(query.id, "bob", "t1")
    assert (done.state, done.version, done.error_code) == ("done", 4, None)
    assert queries.claim() is None


def test_a_failed_query_says_why(queries: AsyncQueries) -> None:
    """protocol §0.8"""
    query = submit(queries)
    claim = queries.claim()
    assert claim is not None
    assert queries.fail(claim, "UNSUPPORTED_OPERATION", "no\x00 such feature")
    failed = queries.get(query.id, "bob", "t1")
    assert (failed.state, failed.error_code, failed.error_message) == (
        "failed",
        "UNSUPPORTED_OPERATION",
        "no\ufffd such feature",
    )
    assert not queries.finish(claim, 4)


def test_a_submission_that_comes_again_is_the_same_query(queries: AsyncQueries, catalog: Catalog) -> None:
    first = submit(queries)
    assert submit(queries) == first
    claim = queries.claim()
    assert claim is not None
    queries.finish(claim, 1)
    assert submit(queries).state == "done"
    assert rows(catalog) == 1


def test_a_key_is_one_of_its_recipient_and_table(queries: AsyncQueries) -> None:
    ids = {submit(queries, recipient, table).id for recipient in ("bob", "eve") for table in ("t1", "t2")}
    assert len(ids) == 4


@pytest.mark.parametrize("different", [{"request": "{}"}, {"kind": "changes"}])
def test_a_key_that_comes_with_another_request_is_refused(
    queries: AsyncQueries, catalog: Catalog, different: dict[str, str]
) -> None:
    submit(queries)
    with pytest.raises(BadRequest, match=r"idempotency_key: 'key-1'.*other parameters"):
        submit(queries, **different)
    assert rows(catalog) == 1


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_a_key_that_cannot_be_kept_is_refused(queries: AsyncQueries, key: str) -> None:
    with pytest.raises(BadRequest, match="idempotency_key"):
        submit(queries, idempotency_key=key)


@pytest.mark.parametrize(
    ("query_id", "recipient", "table"),
    [
        (None, "eve", "t1"),
        (None, "bob", "t2"),
        ("unknown", "bob", "t1"),
        ("\x00", "bob", "t1"),
        ("x" * 9000, "bob", "t1"),
    ],
)
def test_nobody_finds_the_query_of_another(
    queries: AsyncQueries, query_id: str | None, recipient: str, table: str
) -> None:
    query = submit(queries)
    with pytest.raises(NotFound):
        queries.get(query.id if query_id is None else query_id, recipient, table)


def test_a_query_whose_time_is_over_is_gone_and_its_key_is_free(catalog: Catalog) -> None:
    queries = AsyncQueries(catalog, life_s=100)
    old = submit(queries)
    lasting = submit(queries, idempotency_key="key-2", table="t9")
    with catalog.writing(seen=False) as session:
        over = update(AsyncQueryRow).where(AsyncQueryRow.id == old.id)
        session.execute(over.values(expires_at=datetime.now(UTC) - timedelta(seconds=1)))
    with pytest.raises(NotFound):
        queries.get(old.id, "bob", "t1")
    new = submit(queries, request='{"another":1}')
    assert (new.id != old.id, new.state) == (True, "pending")
    assert queries.purge() == 0
    assert queries.get(lasting.id, "bob", "t9").id == lasting.id


def test_purging_forgets_what_is_over_and_only_that(queries: AsyncQueries, catalog: Catalog) -> None:
    submit(queries)
    submit(queries, table="t2")
    change(catalog, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    lasting = submit(queries, table="t3")
    assert queries.purge() == 2
    assert rows(catalog) == 1
    assert queries.get(lasting.id, "bob", "t3") == lasting


def test_what_is_over_is_not_worked_on(queries: AsyncQueries, catalog: Catalog) -> None:
    submit(queries)
    change(catalog, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    assert queries.claim() is None


def test_the_answer_is_kept_from_when_it_is_there(catalog: Catalog) -> None:
    queries = AsyncQueries(catalog, life_s=1000)
    query = submit(queries)
    change(catalog, expires_at=datetime.now(UTC) + timedelta(seconds=5))
    claim = queries.claim()
    assert claim is not None
    queries.finish(claim, 1)
    assert queries.get(query.id, "bob", "t1").expires_at > datetime.now(UTC) + timedelta(seconds=900)


def test_queries_are_worked_on_in_order_by_one_worker_each(queries: AsyncQueries) -> None:
    ids = [submit(queries, table=f"t{number}").id for number in range(3)]
    claims = [queries.claim() for _ in range(4)]
    assert [claim and claim.query.id for claim in claims] == [*ids, None]


def test_a_query_whose_worker_is_silent_is_taken_over_and_the_silent_one_changes_nothing(
    queries: AsyncQueries, catalog: Catalog
) -> None:
    query = submit(queries)
    slow = queries.claim()
    assert slow is not None
    assert queries.claim() is None
    change(catalog, heartbeat_at=datetime.now(UTC) - timedelta(seconds=31))
    taken = queries.claim()
    assert taken is not None
    assert (taken.query.id, taken.attempt) == (query.id, 2)
    assert not queries.beat(slow)
    assert not queries.finish(slow, 1)
    assert not queries.fail(slow, "INTERNAL_ERROR", "late")
    assert queries.get(query.id, "bob", "t1").state == "running"
    assert queries.finish(taken, 2)
    assert queries.get(query.id, "bob", "t1").version == 2


def test_a_query_that_ends_each_of_its_workers_fails(queries: AsyncQueries, catalog: Catalog) -> None:
    query = submit(queries)
    for _ in range(async_queries.MAX_ATTEMPTS):
        assert queries.claim() is not None
        change(catalog, heartbeat_at=datetime.now(UTC) - timedelta(seconds=31))
    assert queries.claim() is None
    failed = queries.get(query.id, "bob", "t1")
    assert (failed.state, failed.error_code) == ("failed", "INTERNAL_ERROR")
    assert "3 times" in (failed.error_message or "")


def test_the_worker_keeps_its_query_by_its_heartbeat(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_queries, "HEARTBEAT_S", 0.02)
    queries = AsyncQueries(catalog, dead_after_s=2)
    submit(queries)
    claim = queries.claim()
    assert claim is not None
    with queries.working(claim):
        [heart] = [one for one in threading.enumerate() if one.name == f"query-{claim.query.id}"]
        change(catalog, heartbeat_at=datetime.now(UTC) - timedelta(seconds=1))
        heart.join(0.5)
        assert heart.is_alive()
        assert queries.claim() is None
        change(catalog, attempts=2)
        heart.join(10)
        assert not heart.is_alive()


def test_a_recipient_cannot_fill_the_queue_of_all(
    queries: AsyncQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_queries, "MAX_PENDING_PER_RECIPIENT", 2)
    for table in ("t1", "t2"):
        submit(queries, table=table)
    with pytest.raises(Unavailable, match="2 async queries"):
        submit(queries, table="t3")
    assert submit(queries, table="t2").state == "pending"
    assert submit(queries, "eve", "t3").state == "pending"
    assert queries.claim() is not None
    assert submit(queries, table="t3").state == "pending"


def test_one_submission_that_comes_in_many_times_at_once_is_one_query(queries: AsyncQueries) -> None:
    found: list[str] = []
    start = threading.Barrier(6)

    def work() -> None:
        start.wait()
        found.append(submit(queries).id)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1


def test_the_workers_of_two_processes_never_take_the_same_query(
    queries: AsyncQueries, catalog_url: str
) -> None:
    submitted = {submit(queries, idempotency_key=f"k{number}").id for number in range(40)}
    command = [sys.executable, "-m", "tests.builders.ledger_process", "claim-all", catalog_url]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    taken = [worker.communicate(timeout=120)[0].split() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert sorted(query for each in taken for query in each) == sorted(submitted)


def test_a_restart_loses_nothing(queries: AsyncQueries, catalog_url: str) -> None:
    query = submit(queries)
    queries.catalog.close()
    after = AsyncQueries(open_catalog(catalog_url))
    assert after.get(query.id, "bob", "t1") == query
    claim = after.claim()
    assert claim is not None
    assert after.finish(claim, 1)
