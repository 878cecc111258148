"""Rows of a plan in one line: `plan_batch(planned("a"), planned("b", lane="large"))`."""

import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakeshare_pipelines.backup.copy.aws_batch import ROWS_A_JOB, JobRows, divide_into_jobs
from lakeshare_pipelines.backup.copy.engine import open_results
from lakeshare_pipelines.backup.model import COPIES, write_rows

MODIFIED = dt.datetime(2026, 11, 19, 12, tzinfo=dt.UTC)


def planned(key: str, **changed: Any) -> dict[str, Any]:
    """A row: a current object of 4 KiB in bucket `lake`, to be copied below `objects/`."""
    row = {
        "bucket": "lake",
        "key": key,
        "version_id": None,
        "is_latest": True,
        "is_delete_marker": False,
        "size_bytes": 4096,
        "last_modified": MODIFIED,
        "etag": "0" * 32,
        "storage_class": "STANDARD",
        "is_multipart": False,
        "encryption": None,
        "checksum_algorithm": None,
        "lane": "small",
        "stored_key": f"objects/{key}",
        "table_root": None,
        "first_point": "2026-11-20",
    }
    return {**row, **changed}


def plan_batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    """The rows as one batch."""
    return pa.RecordBatch.from_pylist(list(rows), COPIES)


def plan_folder(folder: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """The rows in a folder, as a workspace has them."""
    write_rows(folder, COPIES, [plan_batch(*rows)])
    return folder


def jobs_of(batches: list[pa.RecordBatch], rows_a_job: int = ROWS_A_JOB) -> list[JobRows]:
    """The jobs of a plan of which nothing is copied yet."""
    with open_results(pa.Table.from_batches(batches), ()) as on:
        return list(divide_into_jobs(on, rows_a_job))
