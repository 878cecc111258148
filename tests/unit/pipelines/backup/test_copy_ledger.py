"""The ledger of a copy is read whatever a killed writer left in it."""

from pathlib import Path

from lakeshare_pipelines.backup.copy.engine import Ledger, Outcome, make_items, open_results
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from tests.builders.backup_plan import plan_batch, plan_folder, planned


def test_an_empty_object_of_a_writer_that_was_killed_is_no_batch(tmp_path: Path) -> None:
    """SeaweedFS 4.48 keeps one if the connection ends after the headers of a PUT."""
    rows = [planned("t/a"), planned("t/b"), planned("t/c"), planned("t/d", lane="held")]
    plan = plan_folder(tmp_path / "plan", rows)
    a, b, other = make_items(plan_batch(*rows[:2], planned("t/c", etag="1" * 32)))
    store = open_store(StoreAddress(url=str(tmp_path)))
    ledger = Ledger(store, "work/")
    ledger.write([Outcome(a, stored_etag="first"), Outcome(b, "SlowDown", 503, "slow")])
    ledger.write([Outcome(b, stored_etag="second")])
    ledger.write([Outcome(a, "NoSuchKey", 404, "gone"), Outcome(other)])
    store.put("work/ledger/00000000000000000001-killed.parquet", b"")
    with open_results(plan, ledger.rows()) as on:
        joined = {row["key"]: row for row in on.sql("FROM copies").to_arrow_table().to_pylist()}
    found = {key: (row["status"], row["stored_etag"], row["error_code"]) for key, row in joined.items()}
    succeeded = {"t/a": ("succeeded", "first", None), "t/b": ("succeeded", "second", None)}
    assert found == {**succeeded, "t/c": (None, None, None)}, "a success counts, of a listed ETag"
