"""The ledger of a copy: what became of each object, in batches beside the copies; a rerun leaves out what is done.

Append-only: Parquet objects of schema LEDGER under `<work prefix>ledger/`, written by however many processes copy. At
most a batch of copies is ever begun and not yet told of.
"""

import asyncio
import io
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.copy.outcomes import LEDGER, Outcome, digests, ledger_batch
from lakeshare_pipelines.backup.rows import DONE
from lakeshare_pipelines.backup.stores import BackupStore
from lakeshare_pipelines.errors import BackupError

BATCH = 256
MOST_BATCHES = 4096
EVERY_S = 2.0


class Ledger:
    """What was told so far of one task."""

    def __init__(self, store: BackupStore, work_prefix: str) -> None:
        self._store, self._prefix = store, f"{work_prefix}ledger/"

    def write(self, outcomes: list[Outcome]) -> None:
        """Add rows, all or none."""
        content = io.BytesIO()
        pq.write_table(pa.Table.from_batches([ledger_batch(outcomes)]), content, compression="zstd")
        self._store.put(f"{self._prefix}{time.time_ns():020}-{uuid4().hex[:8]}.parquet", content.getvalue())

    def rows(self, *, newest_first: bool = False) -> Iterator[pa.RecordBatch]:
        """All rows, batch by batch."""
        keys = sorted((one.key for one in self._store.list(self._prefix)), reverse=newest_first)
        for key in keys:
            yield from pq.read_table(io.BytesIO(self._store.read(key)), schema=LEDGER).to_batches()

    def copied(self) -> set[bytes]:
        """The digests (Wanted.digest) of what is copied; failed ones are tried again by a rerun."""
        found: set[bytes] = set()
        for batch in self.rows():
            found.update(digests(_of_status(batch, "succeeded")))
        return found

    def done(self, planned: set[bytes]) -> Iterator[pa.RecordBatch]:
        """One row of schema DONE for each digest in `planned`, which is empty afterwards; a success before a failure.

        Raises:
            BackupError: of some nothing is told.
        """
        failed = []
        for batch in self.rows(newest_first=True):
            yield from _taken(_of_status(batch, "succeeded"), planned)
            failed.append(_of_status(batch, "failed"))
        for batch in failed:
            yield from _taken(batch, planned)
        if planned:
            raise BackupError(
                self._store.address.location(self._prefix),
                f"the ledger tells nothing of {len(planned)} objects of the plan",
                "Run the copy again: it does what is left.",
            )


def _taken(rows: pa.RecordBatch, planned: set[bytes]) -> Iterator[pa.RecordBatch]:
    """Those rows that are planned, which they are no longer afterwards."""
    taken = []
    for digest in digests(rows):
        taken.append(digest in planned)
        planned.discard(digest)
    if any(taken):
        yield rows.filter(pa.array(taken)).select(DONE.names)


def _of_status(batch: pa.RecordBatch, status: str) -> pa.RecordBatch:
    import pyarrow.compute as pc

    return batch.filter(pc.equal(batch.column("status"), status))


class LedgerWriter:
    """Collects outcomes and writes them behind the copying: `async with` one, `begin` before a copy, `add` after it."""

    def __init__(
        self, ledger: Ledger, objects: int, in_flight: int, settle: Callable[[], None] | None = None
    ) -> None:
        self._ledger, self._settle = ledger, settle
        self.batch = max(BATCH, 2 * in_flight, objects // MOST_BATCHES)
        self._untold = asyncio.Semaphore(self.batch)
        self._collected: list[Outcome] = []
        self._enough = asyncio.Event()
        self._writing = asyncio.Lock()

    async def begin(self) -> None:
        """Wait until one more copy may be begun."""
        await self._untold.acquire()

    def add(self, outcome: Outcome) -> None:
        """Tell what became of a copy that was begun."""
        self._collected.append(outcome)
        if len(self._collected) >= self.batch // 2:
            self._enough.set()

    async def flush(self) -> None:
        """Write what is collected; the copies are on the disk before the ledger says so."""
        async with self._writing:
            told, self._collected = self._collected, []
            self._enough.clear()
            if not told:
                return
            await asyncio.to_thread(self._write, told)
            for _ in told:
                self._untold.release()

    def _write(self, told: list[Outcome]) -> None:
        if self._settle is not None:
            self._settle()
        self._ledger.write(told)

    async def keep(self) -> None:
        """Write batches until cancelled: a task of its own beside the copies."""
        while True:
            with suppress(TimeoutError):
                # Of wait_for, Python 3.11 loses a cancellation that comes with the event.
                async with asyncio.timeout(EVERY_S):
                    await self._enough.wait()
            await self.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.flush()
