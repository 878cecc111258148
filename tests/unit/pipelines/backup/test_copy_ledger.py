"""The ledger of a copy is written beside it, and ends with it, whatever happens at the same moment."""

import asyncio
from pathlib import Path

import pytest

from lakeshare_pipelines.backup.copy.engine import Ledger, LedgerWriter, Outcome, make_items
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from tests.builders.backup_plan import plan_batch, planned


def test_a_writer_that_is_stopped_in_the_moment_a_batch_is_full_stops(tmp_path: Path) -> None:
    [wanted] = make_items(plan_batch(planned("t/a")))

    async def stopped() -> None:
        writer = LedgerWriter(Ledger(open_store(StoreAddress(url=str(tmp_path))), "work/"), 1, 1)
        keeping = asyncio.create_task(writer.keep())
        await asyncio.sleep(0)
        for _ in range(writer.batch):
            await writer.begin()
            writer.add(Outcome(wanted))
        # The batch is full, nobody has looked yet, and the copy ends.
        keeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(60):
                await keeping

    asyncio.run(stopped())


def test_an_empty_object_of_a_writer_that_was_killed_is_no_batch(tmp_path: Path) -> None:
    """SeaweedFS 4.48 keeps one if the connection ends after the headers of a PUT."""
    [wanted] = make_items(plan_batch(planned("t/a")))
    store = open_store(StoreAddress(url=str(tmp_path)))
    ledger = Ledger(store, "work/")
    ledger.write([Outcome(wanted)])
    store.put("work/ledger/00000000000000000001-killed.parquet", b"")
    assert ledger.copied() == {wanted.digest}
    assert sum(batch.num_rows for batch in ledger.done({wanted.digest})) == 1
