"""Healing: what tables need, or a plan names, and is not whole in the copy, is looked for at the source and copied.

Nothing is taken that could be something else: the ETag is the listed one; of what was not listed the size is what the
table says, and it is older than as_of. Of a store with versions older ones are looked through as well.
"""

import datetime as dt
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.copy.engine import CopyEngine, CopyTask, Progress
from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.rows import PLAN, read_rows, write_rows
from lakeshare_pipelines.backup.stores import BackupStore, Head, Listed, open_store
from lakeshare_pipelines.backup.verify.objects import OBJECTS, judged, looked_up, reported_objects
from lakeshare_pipelines.backup.workspace import Workspace
from lakeshare_pipelines.errors import BackupError
from lakeshare_server.errors import BadRequest
from lakeshare_server.stores.locations import LOCAL, place_of

ASKING = 16
MOST = 100_000
"""Of more objects that failed than that the copy is to be run again: it asks faster than we do."""
ARCHIVED = {"GLACIER", "DEEP_ARCHIVE"}


@dataclass(frozen=True)
class Wanted:
    """An object to look for: by key in its bucket; what is known of it narrows down which version is the right one."""

    bucket: str
    key: str
    stored_key: str
    table_root: str | None
    size_bytes: int | None = None
    etag: str | None = None
    """As it was listed; None when it was not."""


@dataclass
class Healer:
    """Looks for objects at the source and copies them with an engine; each call is a round with a ledger of its own."""

    backup: Backup
    workspace: Workspace
    engine: CopyEngine
    work_prefix: str
    day: str
    as_of: dt.datetime
    target: BackupStore
    tell: Callable[[Progress], None]
    refusals: list[str] = field(default_factory=list)
    """What the source's store said instead of an answer: what it refuses to tell of is not healed."""
    _stores: dict[str, BackupStore] = field(default_factory=dict)

    def heal(self, wanted: Sequence[Wanted]) -> pa.Table:
        """Rows of schema OBJECTS of all that was found, each object once; those that are whole now are healed.

        An object may be wanted twice, as it was listed and as a table describes it: the first description that is found
        counts.
        """
        with ThreadPoolExecutor(ASKING) as pool:
            found = [row for row in pool.map(self._row, wanted) if row is not None]
        if not found:
            return OBJECTS.empty_table()
        once: dict[tuple[str, str], dict[str, Any]] = {}
        for row in found:
            once.setdefault((row["bucket"], row["key"]), row)
        by_bucket: dict[str, list[dict[str, Any]]] = {}
        for row in once.values():
            by_bucket.setdefault(row["bucket"], []).append(row)
        healed = [self._copied(bucket, rows) for bucket, rows in by_bucket.items()]
        return pa.concat_tables(healed)

    def store(self, bucket: str) -> BackupStore:
        """The store of a bucket, reached as the source is."""
        if bucket not in self._stores:
            self._stores[bucket] = open_store(self.backup.source.at(bucket))
        return self._stores[bucket]

    def _row(self, wanted: Wanted) -> dict[str, Any] | None:
        """The plan's row of the right version of an object; None when there is none, or nobody may ask."""
        try:
            return self._found(wanted)
        except BackupError as error:
            self.refusals.append(str(error))
            return None

    def _found(self, wanted: Wanted) -> dict[str, Any] | None:
        store = self.store(wanted.bucket)
        head = store.head(wanted.key)
        one: Head | Listed | None = head if head is not None and self._is_right(wanted, head) else None
        one = one or next(
            (
                listed
                for listed in store.versions(wanted.key)
                if listed.key == wanted.key and not listed.is_delete_marker and self._is_right(wanted, listed)
            ),
            None,
        )
        return None if one is None else self._planned(wanted, one, is_latest=one is head)

    def _is_right(self, wanted: Wanted, found: Head | Listed) -> bool:
        if wanted.size_bytes is not None and found.size_bytes != wanted.size_bytes:
            return False
        if wanted.etag is not None:
            return found.etag == wanted.etag
        return found.last_modified < self.as_of

    def _planned(self, wanted: Wanted, found: Head | Listed, *, is_latest: bool) -> dict[str, Any]:
        size_bytes = found.size_bytes or 0
        large = size_bytes > self.backup.copy_limit_bytes
        return {
            "bucket": wanted.bucket,
            "key": wanted.key,
            "version_id": found.version_id,
            "is_latest": is_latest,
            "is_delete_marker": False,
            "size_bytes": size_bytes,
            "last_modified": found.last_modified,
            "etag": found.etag,
            "storage_class": found.storage_class,
            "lane": "archived" if found.storage_class in ARCHIVED else "large" if large else "small",
            "stored_key": wanted.stored_key,
            "table_root": wanted.table_root,
            "first_point": self.day,
        }

    def _copied(self, bucket: str, rows: list[dict[str, Any]]) -> pa.Table:
        # Of its own each time: what an earlier run healed may be damaged again.
        name = f"healing-{uuid4().hex}"
        plan, done = self.workspace.clear(f"{name}-plan"), self.workspace.clear(f"{name}-done")
        write_rows(plan, PLAN, [pa.Table.from_pylist(rows, PLAN)])
        source = self.backup.source.at(bucket)
        task = CopyTask(
            source=source,
            target=self.target.address,
            plan=plan,
            done=done,
            work_prefix=f"{self.work_prefix}{name}/",
            as_of=self.as_of,
            copy_limit_bytes=self.backup.copy_limit_bytes,
            in_flight=self.backup.in_flight,
        )
        self.engine.copy(task, self.tell)
        reported, _ = reported_objects(read_rows(plan), read_rows(done), ())
        for folder in (plan, done):
            shutil.rmtree(folder)
        listed = looked_up(self.target, [row["stored_key"] for row in rows])
        objects = judged(reported, listed, source, self.target)
        healed = objects["is_whole"]
        return objects.set_column(OBJECTS.names.index("is_healed"), OBJECTS.field("is_healed"), healed)


def wanted_of(objects: pa.Table) -> list[Wanted]:
    """What to look for, of objects that are not whole."""
    lost = objects.filter(pc.invert(objects["is_whole"])).slice(0, MOST)
    return [
        Wanted(
            row["bucket"], row["key"], row["stored_key"], row["table_root"], row["size_bytes"], row["etag"]
        )
        for row in lost.select(
            ["bucket", "key", "stored_key", "table_root", "size_bytes", "etag"]
        ).to_pylist()
    ]


def replaced(objects: pa.Table, healed: pa.Table) -> pa.Table:
    """The objects, with the healed ones in the place of what they were."""
    if healed.num_rows == 0:
        return objects
    taken = pc.is_in(objects["location"], value_set=healed["location"].combine_chunks())
    return pa.concat_tables([objects.filter(pc.invert(taken)), healed])


def bucket_and_key(location: str, folders: Sequence[str]) -> tuple[str, str] | None:
    """Where a location is; of a local one the bucket is one of these folders, the longest that it is below."""
    try:
        place = place_of(location)
    except BadRequest:
        return None
    if place.kind != LOCAL:
        return place.bucket, place.key
    inside = [folder for folder in folders if location.startswith(f"{folder.rstrip('/')}/")]
    if not inside:
        folder, _, name = location.rpartition("/")
        return folder or "/", name
    folder = max(inside, key=len)
    return folder, location.removeprefix(folder).lstrip("/")
