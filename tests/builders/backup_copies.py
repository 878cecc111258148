"""Plans to copy, and what became of them."""

import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakeshare_pipelines.backup.copy.engine import CopyTask
from lakeshare_pipelines.backup.model import COPIES, read_table, write_rows
from lakeshare_pipelines.backup.stores import StoreAddress, open_store

AS_OF = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
WORK = "_lakeshare/lake/points/2026-11-20/engine/"


def a_plan(
    folder: Path, source: StoreAddress, *, stored: str = "objects/", held: Iterable[str] = ()
) -> list[str]:
    """Everything in a store, as rows of COPIES in `folder`; returns the keys to copy."""
    held, rows = set(held), []
    for one in open_store(source).list():
        rows.append(
            {
                "bucket": source.bucket,
                "key": one.key,
                "version_id": one.version_id,
                "is_latest": True,
                "is_delete_marker": False,
                "size_bytes": one.size_bytes,
                "last_modified": one.last_modified,
                "etag": one.etag,
                "storage_class": "STANDARD",
                "lane": "held" if one.key in held else "small",
                "stored_key": f"{stored}{one.key}",
                "first_point": "2026-11-20",
            }
        )
    write_rows(folder, COPIES, [pa.Table.from_pylist(rows, COPIES)])
    return [row["key"] for row in rows if row["key"] not in held]


def a_task(folder: Path, source: StoreAddress, target: StoreAddress, **given: Any) -> CopyTask:
    """The task of the plan in `folder/plan`; what is told of it goes to `folder/done`."""
    options = {"copy_limit_bytes": 5 * 1024**3, "in_flight": 16, "as_of": AS_OF, "work_prefix": WORK}
    return CopyTask(
        source=source, target=target, plan=folder / "plan", done=folder / "done", **{**options, **given}
    )


def done_of(task: CopyTask) -> dict[str, dict[str, Any]]:
    """What became of each object, by its key."""
    return {row["key"]: row for row in read_table(task.done, COPIES).to_pylist()}
