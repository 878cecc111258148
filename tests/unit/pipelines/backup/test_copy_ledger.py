"""The ledger of a copy is read whatever a killed writer left in it."""

from pathlib import Path

from lakeshare_pipelines.backup.copy.engine import Ledger, Outcome, make_items
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from tests.builders.backup_plan import plan_batch, planned


def test_an_empty_object_of_a_writer_that_was_killed_is_no_batch(tmp_path: Path) -> None:
    """SeaweedFS 4.48 keeps one if the connection ends after the headers of a PUT."""
    [wanted] = make_items(plan_batch(planned("t/a")))
    store = open_store(StoreAddress(url=str(tmp_path)))
    ledger = Ledger(store, "work/")
    ledger.write([Outcome(wanted)])
    store.put("work/ledger/00000000000000000001-killed.parquet", b"")
    assert ledger.copied() == {wanted.digest}
    assert sum(batch.num_rows for batch in ledger.done({wanted.digest})) == 1
