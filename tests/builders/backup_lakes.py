"""A folder with tables, a listing of it, the plan of that listing, and a copy of the plan made in the simplest way.

The listing may lag behind or lose rows, and what is copied may be changed on its way: tests of verification say how.
"""

import datetime as dt
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.copy.engine import CopyTask
from lakeshare_pipelines.backup.copy.local import LocalEngine
from lakeshare_pipelines.backup.model import (
    COPIES,
    LISTING,
    CopyRecord,
    Estimate,
    FoundTable,
    ListingRecord,
    OpenSpark,
    PlanRecord,
    Point,
    Verification,
    write_rows,
)
from lakeshare_pipelines.backup.plan import make_plan
from lakeshare_pipelines.backup.points import Points, Workspace, get_point_time
from lakeshare_pipelines.backup.stores import ListedObject, StoreAddress, open_store
from lakeshare_pipelines.backup.verify.run import verify_copies

DAY = "2026-11-20"
AS_OF = get_point_time(DAY)
MUTABLE = ("_last_checkpoint", "version-hint.text", "_SUCCESS")


@dataclass(frozen=True)
class Lake:
    """A source folder and the folders that a backup of it uses; with `declared` its source and target are others."""

    base: Path
    layout: str = "incremental"
    declared: Backup | None = None

    @property
    def source(self) -> Path:
        return self.base / "lake"

    @property
    def backup(self) -> Backup:
        if self.declared is not None:
            return self.declared
        target = self.base / ("copies-{day}" if self.layout == "dated" else "copies")
        return Backup.model_validate(
            {
                "name": "lake",
                "source": StoreAddress(url=str(self.source)),
                "target": StoreAddress(url=str(target)),
                "layout": self.layout,
            }
        )

    @property
    def target(self) -> Path:
        return Path(self.backup.target_of(DAY).url)

    def workspace(self, day: str = DAY) -> Workspace:
        return Workspace(self.base / "work" / day)

    def listing(self) -> list[ListedObject]:
        """What the source has, without what is never copied."""
        found = open_store(self.backup.source).list()
        return [one for one in found if one.key.rpartition("/")[2] not in MUTABLE]

    def plan(
        self,
        listing: Iterable[ListedObject],
        *,
        as_of: dt.datetime = AS_OF,
        day: str = DAY,
        held: Sequence[str] = (),
    ) -> PlanRecord:
        """Plan what was listed of before as_of; `held` are keys that the point before it has."""
        rows = [one for one in listing if one.last_modified < as_of]
        tables = found_tables([one.key for one in rows], self.backup)
        write_rows(self.workspace(day).clear("plan"), COPIES, [_plan_rows(self, rows, tables, day, held)])
        estimate = Estimate(
            objects=len(rows),
            size_bytes=0,
            held_objects=0,
            held_bytes=0,
            requests=0,
            usd=0,
            minutes=0,
            by_lane={},
        )
        return PlanRecord(
            day=day, as_of=as_of, previous=None, tables=tuple(tables), estimate=estimate, left_out={}
        )

    def copy(self, day: str = DAY, changed: Callable[[Path], None] | None = None) -> CopyRecord:
        """Copy the plan as a plain copier does: what is not as it was listed is a failed row."""
        plan = pa.Table.from_batches(
            [
                batch
                for path in sorted((self.workspace(day).rows("plan")).glob("*.parquet"))
                for batch in _batches(path)
            ],
            COPIES,
        )
        rows = [_copied(self, row) for row in plan.to_pylist() if row["lane"] != "held"]
        write_rows(self.workspace(day).clear("done"), COPIES, [pa.Table.from_pylist(rows, COPIES)])
        failed = sum(row["status"] == "failed" for row in rows)
        if changed is not None:
            changed(self.target)
        return CopyRecord(
            engine="plain", succeeded=len(rows) - failed, failed=failed, size_bytes=0, seconds=0, reports=()
        )

    def made(
        self,
        day: str,
        listing: Iterable[ListedObject],
        meanwhile: Callable[[], object] = lambda: None,
        pointers: Sequence[str] = (),
        spark: OpenSpark | None = None,
    ) -> Verification:
        """A whole point by the parts that make one: planned, copied by the engine `local`, verified, written.

        `meanwhile` happens at the source between the listing and the copies.
        """
        workspace, points = self.workspace(day), Points(self.backup)
        rows = [_listing_row(self, one) for one in listing]
        count = write_rows(workspace.clear("listing"), LISTING, [pa.Table.from_pylist(rows, LISTING)])
        listed = ListingRecord(
            kind="generator",
            location=self.backup.source.url,
            scan_started_at=get_point_time(day),
            rows=count,
            size_bytes=0,
        )
        plan = make_plan(self.backup, workspace, listed, points, day)
        meanwhile()
        task = CopyTask(
            source=self.backup.source,
            target=self.backup.target_of(day),
            plan=workspace.rows("plan"),
            done=workspace.clear("done"),
            work_prefix=f"_lakeshare/lake/points/{day}/engine/",
            as_of=plan.as_of,
            copy_limit_bytes=self.backup.copy_limit_bytes,
            in_flight=8,
        )
        copied = LocalEngine().copy(task, lambda progress: None)
        proved = self.verified(plan, copied, pointers, spark)
        if proved.status != "failed":
            self.point(plan, copied, proved)
        return proved

    def verified(
        self,
        plan: PlanRecord,
        copied: CopyRecord,
        pointers: Sequence[str] = (),
        spark: OpenSpark | None = None,
    ) -> Verification:
        """What is proved of a copy."""
        workspace, points, quiet = self.workspace(plan.day), Points(self.backup), lambda said: None
        return verify_copies(self.backup, workspace, plan, points, plan.day, spark, quiet, pointers)

    def point(self, plan: PlanRecord, copied: CopyRecord, proved: Verification) -> Point:
        """Write the point, so that a next one can hold what it has."""
        listing = ListingRecord(
            kind="generator", location=str(self.source), scan_started_at=plan.as_of, rows=0, size_bytes=0
        )
        point = Point(
            backup="lake",
            day=plan.day,
            as_of=plan.as_of,
            made_at=plan.as_of,
            layout=self.backup.layout,
            status=proved.status,
            target=self.backup.target_of(plan.day).url,
            listing=listing,
            plan=plan,
            copied=copied,
            verification=proved,
        )
        Points(self.backup).write(point, self.workspace(plan.day).rows("held"))
        return point


def found_tables(keys: Iterable[str], backup: Backup, day: str = DAY) -> list[FoundTable]:
    """The tables that keys show."""
    roots: dict[str, str] = {}
    for key in keys:
        for mark, name in (("/_delta_log/", "delta"), ("/metadata/", "iceberg")):
            if mark in key and (name == "delta" or key.endswith(".metadata.json")):
                roots[key.partition(mark)[0]] = name
    prefix = "objects/" if backup.layout == "incremental" else ""
    return [
        FoundTable(bucket=backup.source.bucket, root=root, format=name, stored_root=f"{prefix}{root}")  # type: ignore[arg-type]
        for root, name in sorted(roots.items())
    ]


def listed_as(listing: Iterable[ListedObject], lost: Iterable[str] = ()) -> list[ListedObject]:
    """A listing that lost some keys."""
    gone = set(lost)
    return [one for one in listing if one.key not in gone]


def at(moment: dt.datetime, *paths: Path) -> None:
    """Say of files that they were written then."""
    for path in paths:
        os.utime(path, (moment.timestamp(), moment.timestamp()))


def _listing_row(lake: Lake, one: ListedObject) -> dict:
    names = ("key", "version_id", "is_latest", "is_delete_marker", "size_bytes", "last_modified", "etag")
    return {"bucket": lake.backup.source.bucket, "storage_class": "STANDARD"} | {
        name: getattr(one, name) for name in names
    }


def _plan_rows(
    lake: Lake, rows: Sequence[ListedObject], tables: Sequence[FoundTable], day: str, held: Sequence[str]
) -> pa.Table:
    roots = sorted((table.root for table in tables), key=len, reverse=True)
    points = Points(lake.backup)
    earlier = points.latest(before=day) if held else None
    batches = points.read_copies(earlier) if earlier else ()
    known = {row["key"]: {**row, "status": "held"} for batch in batches for row in batch.to_pylist()}
    prefix = "objects/" if lake.layout == "incremental" else ""
    planned = [
        {
            **{name: getattr(one, name) for name in ("key", "version_id", "is_latest", "is_delete_marker")},
            **{name: getattr(one, name) for name in ("size_bytes", "last_modified", "etag", "storage_class")},
            "bucket": lake.backup.source.bucket,
            "lane": "held" if one.key in held else "small",
            "stored_key": f"{prefix}{one.key}",
            "table_root": next((root for root in roots if one.key.startswith(f"{root}/")), None),
            "first_point": day,
            **(known.get(one.key, {}) if one.key in held else {}),
        }
        for one in rows
    ]
    return pa.Table.from_pylist(planned, COPIES)


def _batches(path: Path) -> list[pa.RecordBatch]:
    return pq.read_table(path).to_batches()


def _copied(lake: Lake, row: dict) -> dict:
    now = open_store(lake.backup.source).head(row["key"])
    if now is None:
        return row | {
            "status": "failed",
            "error_code": "NoSuchKey",
            "http_status": 404,
            "message": "it is gone",
        }
    if now.etag != row["etag"]:
        return row | {
            "status": "failed",
            "error_code": "PreconditionFailed",
            "http_status": 412,
            "message": "changed",
        }
    to = lake.target / row["stored_key"]
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(lake.source / row["key"], to)
    return row | {"status": "succeeded", "checksum": f"sha256:{hashlib.sha256(to.read_bytes()).hexdigest()}"}
