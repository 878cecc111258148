"""Listings as rows, plans drawn from them, and points as a verification would leave them, without an engine."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import (
    COPIES,
    LISTING,
    POINT_COPIES,
    CopyRecord,
    ListingRecord,
    PlanRecord,
    Point,
    Status,
    Verification,
    read_table,
    write_rows,
)
from lakeshare_pipelines.backup.plan import make_plan
from lakeshare_pipelines.backup.points import Points, Workspace, get_point_time
from lakeshare_pipelines.backup.stores import StoreAddress, open_store

MORNING = dt.datetime(2026, 11, 1, 6, tzinfo=dt.UTC)
BUCKET = "lake"


def an_object(key: str, etag: str = "e1", size_bytes: int = 10, **told: object) -> dict[str, Any]:
    """A row of a listing: a current object of a bucket without versions, but for what is told."""
    usual = {
        "bucket": BUCKET,
        "version_id": None,
        "is_latest": True,
        "is_delete_marker": False,
        "last_modified": MORNING,
        "storage_class": "STANDARD",
        "is_multipart": False,
        "encryption": None,
        "checksum_algorithm": None,
    }
    return {**usual, "key": key, "etag": etag, "size_bytes": size_bytes, **told}


def a_marker(key: str, at: dt.datetime, **told: object) -> dict[str, Any]:
    """A delete marker that is its key's newest version."""
    gone = {"etag": None, "size_bytes": None, "storage_class": None, "is_delete_marker": True}
    return an_object(key, last_modified=at, **gone, **told)  # type: ignore[arg-type]


def a_delta_table(root: str, *files: str, etag: str = "e1", commits: int = 1) -> list[dict[str, Any]]:
    """What a listing shows of a Delta table."""
    log = [an_object(f"{root}/_delta_log/{version:020}.json", etag) for version in range(commits)]
    return log + [an_object(f"{root}/{name}", etag) for name in files]


@dataclass
class Planner:
    """Plans days of one backup, and finishes points of them without an engine."""

    folder: Path
    backup: Backup

    @property
    def points(self) -> Points:
        return Points(self.backup)

    def workspace(self, day: str) -> Workspace:
        return Workspace(self.folder / "work" / day)

    def leave_listing(self, day: str, rows: Sequence[dict[str, Any]], **told: object) -> ListingRecord:
        """Leave a listing in the day's workspace."""
        bucket = self.backup.source.bucket
        rows = [row | {"bucket": bucket if row["bucket"] == BUCKET else row["bucket"]} for row in rows]
        table = pa.Table.from_pylist(rows, LISTING)
        write_rows(self.workspace(day).clear("listing"), LISTING, [table])
        sizes = [row["size_bytes"] or 0 for row in rows]
        usual = {
            "kind": "manifest_csv",
            "location": "listing",
            "scan_started_at": MORNING,
            "rows": len(rows),
            "size_bytes": sum(sizes),
        }
        return ListingRecord.model_validate({**usual, **told})

    def plan(
        self, day: str, rows: Sequence[dict[str, Any]], *, bounded: bool = True, **told: object
    ) -> PlanRecord:
        """The plan of a day that shows these objects."""
        record = self.leave_listing(day, rows, **told)
        workspace = self.workspace(day)
        return make_plan(self.backup, workspace, record, self.points, day, is_bounded=bounded)

    def rows(self, day: str) -> list[dict[str, Any]]:
        """The day's planned rows."""
        found: list[dict[str, Any]] = read_table(self.workspace(day).rows("plan"), COPIES).to_pylist()
        return found

    def by_key(self, day: str) -> dict[str, dict[str, Any]]:
        """The same by key; a key must be there once."""
        rows = self.rows(day)
        found = {row["key"]: row for row in rows}
        assert len(found) == len(rows), sorted(row["key"] for row in rows)
        return found

    def point(
        self,
        day: str,
        rows: Sequence[dict[str, Any]],
        status: Status = "verified",
        also_held: Sequence[dict[str, Any]] = (),
        store_copies: bool = True,
        **told: object,
    ) -> Point:
        """Plan a day and finish it as if everything had been copied and `status` proved.

        Objects that are not there have their place in the target as content.
        """
        plan = self.plan(day, rows)
        held = [
            {
                **row,
                "level": 1,
                "is_healed": False,
                "stored_etag": row["etag"],
                "size_bytes": row["size_bytes"],
            }
            for row in [*self.rows(day), *also_held]
        ]
        into = self.workspace(day).clear("held")
        write_rows(into, POINT_COPIES, [pa.Table.from_pylist(held, POINT_COPIES)])
        point = a_point(self.backup, day, plan, status, **told)
        for row in held if store_copies else ():
            open_store(self.backup.target_of(day)).put(row["stored_key"], self._content(row))
        self.points.write(point, into)
        return point

    def _content(self, row: dict[str, Any]) -> bytes:
        stored: str = row["stored_key"]
        source = Path(self.backup.source.url, row["key"])
        return source.read_bytes() if source.is_file() else stored.encode()


def rows_of_folder(folder: Path) -> list[dict[str, Any]]:
    """What a listing shows of a folder."""
    found = open_store(StoreAddress(url=str(folder))).list()
    told = ("key", "size_bytes", "etag", "last_modified")
    return [
        an_object(bucket=str(folder), **{name: getattr(one, name) for name in told})  # type: ignore[arg-type]
        for one in found
    ]


def a_point(backup: Backup, day: str, plan: PlanRecord, status: Status, **told: object) -> Point:
    """A finished point of a plan."""
    copied = CopyRecord(
        engine="local", succeeded=plan.estimate.objects, failed=0, size_bytes=0, seconds=1, reports=()
    )
    usual = {
        "backup": backup.name,
        "day": day,
        "as_of": get_point_time(day),
        "made_at": get_point_time(day) + dt.timedelta(hours=3),
        "layout": backup.layout,
        "status": status,
        "target": backup.target_of(day).url,
        "listing": ListingRecord(
            kind="generator", location="lake", scan_started_at=MORNING, rows=0, size_bytes=0
        ),
        "plan": plan,
        "copied": copied,
        "verification": Verification(
            status=status, tables=(), objects=0, size_bytes=0, accounted_for=True, failed_objects=0
        ),
    }
    return Point.model_validate({**usual, **told})


def a_planner(folder: Path, **declared: object) -> Planner:
    """A backup of a folder, which need not be there, into another; `BUCKET` in listings stands for the source."""
    said = {
        "name": "lake",
        "source": StoreAddress(url=str(folder / BUCKET)),
        "target": StoreAddress(url=str(folder / "target")),
        **declared,
    }
    return Planner(folder, Backup.model_validate(said))
