"""A million position deletes in 1,000 files become vectors in less than ten times the time it takes to read them.

Run: `python -m bench.iceberg_deletes`. Reading is pyarrow with as many files at once; both are the best of several
turns in one run, taken by turns.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables.iceberg.deletes import READERS, Target, Targets, deletion_vectors, vector_columns
from lakeshare_server.tables.iceberg.manifests import DeleteFile

FILES = 1_000
DELETES = 1_000_000
DATA_ROWS = 1_000_000
# Each file of deletes speaks of this many data files, as one commit's do.
REACHED = 10
TURNS = 5
MOST = 10.0


def main() -> int:
    """Measure, print, and return the exit code."""
    stores = Stores(ServerSettings())
    with tempfile.TemporaryDirectory() as folder:
        targets = Targets([_target(number) for number in range(FILES)])
        deletes = [_delete_file(Path(folder), number) for number in range(FILES)]
        paths = [delete.path for delete in deletes]
        read, turned = [], []
        for _ in range(TURNS):
            read.append(_seconds(lambda: _read(paths)))
            turned.append(
                _seconds(
                    lambda: vector_columns(deletion_vectors(stores, targets, deletes, folder), FILES, None)
                )
            )
    ratio = min(turned) / min(read)
    print(
        f"vectors of {DELETES} position deletes in {FILES} files: {min(turned):.2f} s; reading them {min(read):.2f} s; "
        f"ratio {ratio:.2f}, at most {MOST}"
    )
    return 0 if ratio <= MOST else 1


def _target(number: int) -> Target:
    return Target(path=_path(number), spec_id=0, partition=(), sequence_number=1, rows=DATA_ROWS)


def _path(number: int) -> str:
    return f"s3://lake/warehouse/sales/orders/data/00000-{number}-5d2f4f0c-7a55-4b4b-9d3b-8d0a4f5c1e7a-00001.parquet"


def _delete_file(folder: Path, number: int) -> DeleteFile:
    reached = sorted(_path((number + step) % FILES) for step in range(REACHED))
    each = DELETES // FILES // REACHED
    places = [(number * 7919 + place * 8191) % DATA_ROWS for place in range(each)]
    path = folder / f"{number}-deletes.parquet"
    rows = {"file_path": [one for one in reached for _ in range(each)], "pos": sorted(places) * REACHED}
    pq.write_table(pa.table(rows), path)
    return DeleteFile(
        content="position", path=str(path), format="PARQUET", spec_id=0, partition=(), sequence_number=2,
        rows=each * REACHED, size_bytes=path.stat().st_size, lowest_path=reached[0], highest_path=reached[-1],
    )  # fmt: skip


def _read(paths: list[str]) -> int:
    with ThreadPoolExecutor(READERS) as pool:
        return sum(rows.num_rows for rows in pool.map(pq.read_table, paths))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
