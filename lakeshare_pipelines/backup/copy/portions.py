"""A plan divided into portions of like cost, written beside the copies: whoever copies one needs nothing else.

Light objects go by the hash of their key, so that no prefix is all one worker's; heavy ones to who has least to do.
"""

import heapq
import io
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel

from lakeshare_pipelines.backup.rows import PLAN, read_rows, to_copy
from lakeshare_pipelines.backup.stores import BackupStore

HEAVY_BYTES = 64 * 1024**2
BYTES_A_REQUEST = 4 * 1024**2
"""Copying so many bytes takes about as long as one more request."""
LEAST_ROWS = 256
MOST_ROWS = 1_000_000
PORTIONS_A_WORKER = 3
"""Several, so that who is done early takes another."""


class Portions(BaseModel):
    """The portions that a plan was divided into; how many there are stays, whoever goes on with them."""

    prefix: str
    """Of everything that belongs to them, in the target; ends with a slash."""
    count: int
    objects: int
    size_bytes: int

    def folder(self, number: int) -> str:
        """The prefix of what belongs to one portion: its ledger, its report, what became of its rows."""
        return f"{self.prefix}{number}/"


def portions_of(store: BackupStore, prefix: str, plan: Path, workers: int) -> Portions:
    """The portions of a plan below a prefix of the target: as they were made once, or made now for so many workers."""
    if store.head(f"{prefix}portions.json") is not None:
        return Portions.model_validate_json(store.read(f"{prefix}portions.json"))
    rows, size_bytes = _sums(to_copy(read_rows(plan)))
    made = Portions(prefix=prefix, count=portion_count(rows, workers), objects=rows, size_bytes=size_bytes)
    with tempfile.TemporaryDirectory() as scratch:
        write_portions(store, prefix, made.count, lambda: to_copy(read_rows(plan)), Path(scratch))
    store.put(f"{prefix}portions.json", made.model_dump_json().encode())
    return made


def _sums(batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    rows = size_bytes = 0
    for batch in batches:
        rows += batch.num_rows
        size_bytes += pc.sum(batch["size_bytes"]).as_py() or 0
    return rows, size_bytes


def portion_count(rows: int, workers: int) -> int:
    """How many portions to make for so many workers: none is tiny, none is more than fits into memory."""
    wanted = min(workers * PORTIONS_A_WORKER, -(-rows // LEAST_ROWS))
    return max(1, wanted, -(-rows // MOST_ROWS))


def cost(size_bytes: int) -> float:
    """What one object takes, in requests."""
    return 1 + size_bytes / BYTES_A_REQUEST


def write_portions(
    store: BackupStore,
    prefix: str,
    count: int,
    read: Callable[[], Iterable[pa.RecordBatch]],
    scratch: Path,
) -> None:
    """Write the rows of a plan as `<prefix>0.parquet`, …, the same every time; heavy rows come first in each.

    `read` is called twice, and gives rows to copy only. `scratch` is a folder on this host, for rows on their way.
    """
    writers = [
        pq.ParquetWriter(scratch / f"{number}.parquet", PLAN, compression="zstd") for number in range(count)
    ]
    try:
        _write_heavy(writers, read())
        for batch in read():
            light = batch.filter(pc.invert(_is_heavy(batch)))
            _write(writers, light, _places(light, count))
    finally:
        for writer in writers:
            writer.close()
    for number in range(count):
        path = scratch / f"{number}.parquet"
        store.put(portion_key(prefix, number), path.read_bytes())
        path.unlink()


def read_portion(store: BackupStore, prefix: str, number: int) -> pa.Table:
    """The rows of one portion."""
    return pq.read_table(io.BytesIO(store.read(portion_key(prefix, number))))


def portion_key(prefix: str, number: int) -> str:
    """Where a portion is."""
    return f"{prefix}{number}.parquet"


def _is_heavy(batch: pa.RecordBatch) -> pa.Array:
    return pc.greater_equal(pc.fill_null(batch["size_bytes"], 0), HEAVY_BYTES)


def _write_heavy(writers: list[pq.ParquetWriter], batches: Iterable[pa.RecordBatch]) -> None:
    """The largest first, each to the portion that has least (longest processing time first)."""
    found = [heavy for batch in batches if (heavy := batch.filter(_is_heavy(batch))).num_rows]
    if not found:
        return
    table = pa.Table.from_batches(found).sort_by([("size_bytes", "descending"), ("key", "ascending")])
    loads = [(0.0, number) for number in range(len(writers))]
    places = []
    for size_bytes in table["size_bytes"].to_pylist():
        load, number = heapq.heappop(loads)
        places.append(number)
        heapq.heappush(loads, (load + cost(size_bytes), number))
    _write(writers, table, np.array(places))


def _places(batch: pa.RecordBatch, count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.fromiter(
        (crc32(key.encode()) % count for key in batch["key"].to_pylist()), np.int64, batch.num_rows
    )


def _write(
    writers: list[pq.ParquetWriter],
    rows: pa.RecordBatch | pa.Table,
    places: "np.ndarray[tuple[int], np.dtype[np.int64]]",
) -> None:
    for number, writer in enumerate(writers):
        (index,) = np.nonzero(places == number)
        if len(index):
            chosen = rows.take(pa.array(index))
            writer.write_table(chosen if isinstance(chosen, pa.Table) else pa.Table.from_batches([chosen]))
