"""Verifying a point of 10,000,000 objects takes at most 8 GiB.

Run: `python -m bench.verification [--objects 1000000]`. The objects are held copies of 200 Delta tables in a bucket,
without logs: everything but the replay of logs is measured, which `bench.replay` does. The listing of the target is
made from the plan, and the source has nothing to heal from.
"""

import argparse
import datetime as dt
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.difference import memory
from lakeshare_pipelines.backup import model
from lakeshare_pipelines.backup.config import Backup, Scrub
from lakeshare_pipelines.backup.points import Points, Workspace, get_point_time
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from lakeshare_pipelines.backup.verify import objects, run

OBJECTS, TABLES, PORTION = 1_000_000, 200, 100_000
MOST_GIB = 8
DAY = "2026-11-20"


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=OBJECTS)
    count = parser.parse_args().objects
    with tempfile.TemporaryDirectory() as folder:
        workspace, target = Workspace(Path(folder) / "work"), Path(folder) / "target"
        target.mkdir()
        portions = (held_rows(start, min(PORTION, count - start)) for start in range(0, count, PORTION))
        model.write_rows(workspace.rows("plan"), model.COPIES, portions)
        model.write_rows(workspace.rows("done"), model.COPIES, ())
        backup = Backup(
            name="lake",
            source=StoreAddress(url=f"{folder}/nothing"),
            target=StoreAddress(url=str(target)),
            scrub=Scrub(bytes_per_run=0),
        )

        def list_copies(*_: object, **__: object) -> Iterator[pa.RecordBatch]:
            for batch in model.read_rows(workspace.rows("plan"), ["stored_key", "size_bytes", "stored_etag"]):
                yield batch.rename_columns(["key", "size_bytes", "etag"])

        def open_source(*_: object) -> BackupStore:
            return open_store(backup.source)

        began = time.perf_counter()
        with (
            memory() as peak,
            patch.object(objects, "list_rows", list_copies),
            patch.object(run.Healer, "store", open_source),
        ):
            found = run.verify_copies(backup, workspace, make_plan(count), Points(backup), DAY)
        seconds = time.perf_counter() - began
    gib = max(peak) / 1024**3
    if len(found.tables) != TABLES or found.objects < count - 1:
        raise AssertionError("objects or tables are lost")
    print(f"{count:,} objects verified in {seconds:.0f} s with {gib:.1f} GiB (at most {MOST_GIB})")
    return 0 if gib <= MOST_GIB else 1


def held_rows(start: int, count: int) -> pa.Table:
    """Rows of a plan, by turns of each table."""
    numbers = pa.array(np.arange(start, start + count))
    text = pc.utf8_lpad(numbers.cast(pa.string()), 10, "0")
    table = pc.utf8_lpad(pa.array(np.arange(start, start + count) % TABLES).cast(pa.string()), 5, "0")
    root = pc.binary_join_element_wise("warehouse/sales/table_", table, "")
    name = pc.binary_join_element_wise(
        "/day=2026-11-20/part-", text, "-5f2b7a50-3f6e-c000.snappy.parquet", ""
    )
    key, etag = (
        pc.binary_join_element_wise(root, name, ""),
        pc.binary_join_element_wise(text, text, text, "ab", ""),
    )
    values: dict[str, object] = {
        "bucket": "lake", "is_latest": True, "is_delete_marker": False, "size_bytes": 1000, "storage_class": "STANDARD",
        "lane": "held", "first_point": "2026-11-19", "status": "held", "level": 2, "is_healed": False,
        "last_modified": get_point_time("2026-11-19"),
    }  # fmt: skip
    columns = {name: pa.repeat(pa.scalar(value), count) for name, value in values.items()}
    columns |= {"key": key, "etag": etag, "stored_etag": etag, "table_root": root}
    columns["stored_key"] = pc.binary_join_element_wise("objects", key, "/")
    return model.conform(pa.table(columns), model.COPIES)


def make_plan(count: int) -> model.PlanRecord:
    roots = [f"warehouse/sales/table_{number:05}" for number in range(TABLES)]
    estimate = model.Estimate(
        objects=0, size_bytes=0, held_objects=count, held_bytes=0, requests=0, usd=0, minutes=0, by_lane={}
    )
    tables = tuple(
        model.FoundTable(bucket="lake", root=root, format="delta", stored_root=f"objects/{root}")
        for root in roots
    )
    as_of = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
    return model.PlanRecord(
        day=DAY, as_of=as_of, previous=None, tables=tables, estimate=estimate, left_out={}
    )


if __name__ == "__main__":
    sys.exit(main())
