"""Verifying a day's copies: every object judged, every table replayed, healed where it lacks something, and opened.

Nothing is called verified that no independent reader opened at the newest version before as_of.
"""

import datetime as dt
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.copy.engine import CopyEngine, CopyTask, Progress
from lakeshare_pipelines.backup.model import (
    PLAN,
    POINT_COPIES,
    CopyRecord,
    FoundTable,
    PlanRecord,
    Status,
    TableProof,
    Verification,
    read_rows,
    write_rows,
)
from lakeshare_pipelines.backup.points import OWN_PREFIX, Points, Workspace
from lakeshare_pipelines.backup.stores import BackupStore, ListedObject, ObjectHead, StoreAddress, open_store
from lakeshare_pipelines.backup.verify.delta import assess_delta_table
from lakeshare_pipelines.backup.verify.iceberg import assess_iceberg_table, normalize_location
from lakeshare_pipelines.backup.verify.objects import (
    OBJECTS,
    AssessedTable,
    CopyReading,
    HeldCopyReader,
    Need,
    ReadingStore,
    TableCopy,
    head_copies,
    join_reports,
    judge_objects,
    list_copies,
    list_prefixes,
    make_reading_row,
    repair_points,
    report_damage,
)
from lakeshare_pipelines.errors import BackupError
from lakeshare_server.errors import BadRequest
from lakeshare_server.storage.locations import LOCAL, parse_location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONCURRENT_REQUESTS = 16
MAX_OBJECTS = 100_000
"""Of more objects that failed than that the copy is to be run again: it asks faster than we do."""
ARCHIVED = {"GLACIER", "DEEP_ARCHIVE"}


@dataclass(frozen=True)
class MissingObject:
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
    report_progress: Callable[[Progress], None]
    refusals: list[str] = field(default_factory=list)
    """What the source's store said instead of an answer: what it refuses to tell of is not healed."""
    _stores: dict[str, BackupStore] = field(default_factory=dict)

    def heal(self, wanted: Sequence[MissingObject]) -> pa.Table:
        """Rows of schema OBJECTS of all that was found, each object once; those that are whole now are healed.

        An object may be wanted twice, as it was listed and as a table describes it: the first description that is found
        counts.
        """
        with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
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

    def _row(self, wanted: MissingObject) -> dict[str, Any] | None:
        """The plan's row of the right version of an object; None when there is none, or nobody may ask."""
        try:
            return self._found(wanted)
        except BackupError as error:
            self.refusals.append(str(error))
            return None

    def _found(self, wanted: MissingObject) -> dict[str, Any] | None:
        store = self.store(wanted.bucket)
        head = store.head(wanted.key)
        one: ObjectHead | ListedObject | None = (
            head if head is not None and self._is_right(wanted, head) else None
        )
        one = one or next(
            (
                listed
                for listed in store.versions(wanted.key)
                if listed.key == wanted.key and not listed.is_delete_marker and self._is_right(wanted, listed)
            ),
            None,
        )
        return None if one is None else self._planned(wanted, one, is_latest=one is head)

    def _is_right(self, wanted: MissingObject, found: ObjectHead | ListedObject) -> bool:
        if wanted.size_bytes is not None and found.size_bytes != wanted.size_bytes:
            return False
        if wanted.etag is not None:
            return found.etag == wanted.etag
        return found.last_modified < self.as_of

    def _planned(
        self, wanted: MissingObject, found: ObjectHead | ListedObject, *, is_latest: bool
    ) -> dict[str, Any]:
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
        self.engine.copy(task, self.report_progress)
        reported, _ = join_reports(read_rows(plan), read_rows(done), ())
        for folder in (plan, done):
            shutil.rmtree(folder)
        listed = head_copies(self.target, [row["stored_key"] for row in rows])
        objects = judge_objects(reported, listed, source, self.target)
        healed = objects["is_whole"]
        return objects.set_column(OBJECTS.names.index("is_healed"), OBJECTS.field("is_healed"), healed)


def list_missing(objects: pa.Table) -> list[MissingObject]:
    """What to look for, of objects that are not whole."""
    lost = objects.filter(pc.invert(objects["is_whole"])).slice(0, MAX_OBJECTS)
    return [
        MissingObject(
            row["bucket"], row["key"], row["stored_key"], row["table_root"], row["size_bytes"], row["etag"]
        )
        for row in lost.select(
            ["bucket", "key", "stored_key", "table_root", "size_bytes", "etag"]
        ).to_pylist()
    ]


def replace_healed(objects: pa.Table, healed: pa.Table) -> pa.Table:
    """The objects, with the healed ones in the place of what they were."""
    if healed.num_rows == 0:
        return objects
    taken = pc.is_in(objects["location"], value_set=healed["location"].combine_chunks())
    return pa.concat_tables([objects.filter(pc.invert(taken)), healed])


def bucket_and_key(location: str, folders: Sequence[str]) -> tuple[str, str] | None:
    """Where a location is; of a local one the bucket is one of these folders, the longest that it is below."""
    try:
        place = parse_location(location)
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


AT_ONCE = 8
ROUNDS = 5
"""A commit that was not listed tells of files that were not, and a manifest list of manifests: each is a round."""


class Tables:
    """The tables of a plan, and the objects they are made of."""

    def __init__(
        self,
        backup: Backup,
        plan: PlanRecord,
        target: BackupStore,
        points: Points,
        objects: pa.Table,
        pointers: Sequence[str],
        spark: "Callable[[], SparkSession] | None",
        report_progress: Callable[[str], None],
    ) -> None:
        self.objects = objects
        self._backup, self._plan, self._target, self._points = backup, plan, target, points
        self._spark, self._tell = spark, report_progress
        self._pointers = _map_pointers_to_roots(plan.tables, backup.source, pointers)
        self._assessed: dict[str, AssessedTable] = {}
        self._assess(plan.tables)

    def heal(self, healer: Healer) -> None:
        """Copy what is not whole and can be found at the source, until nothing more is found."""
        looked_up_before: set[tuple[str, str, int | None]] = set()
        wanted = list_missing(self.objects)
        for _ in range(ROUNDS):
            wanted += [one for table in self._plan.tables for one in self._wanted_by(table, healer)]
            new = {(one.bucket, one.key, one.size_bytes): one for one in wanted}
            new = {key: one for key, one in new.items() if key not in looked_up_before}
            if not new:
                return
            looked_up_before |= new.keys()
            self._tell(f"{len(new):,} objects are looked for at the source.")
            healed = healer.heal(list(new.values()))
            if healed.num_rows == 0:
                return
            self.objects = replace_healed(self.objects, healed)
            touched = set(healed["table_root"].to_pylist())
            # What lacks something may have got it from another table's objects, or from those of none.
            again = [
                one for one in self._plan.tables if one.root in touched or self._assessed[one.root].needs
            ]
            self._assess(again)
            wanted = []

    def proofs(self) -> list[TableProof]:
        """What is proved of each table, in the plan's order; what was taken out of the copy is no object any more."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            proved = []
            for proof in pool.map(self._proof, self._plan.tables):
                proved.append(proof)
                self._tell(f"{len(proved):,} of {len(self._plan.tables):,} tables opened.")
        removed = [key for assessed in self._assessed.values() for key in assessed.removed]
        gone = pc.is_in(self.objects["stored_key"], value_set=pa.array(removed, pa.string()))
        self.objects = self.objects.filter(pc.invert(gone))
        return proved

    def _assess(self, tables: Sequence[FoundTable]) -> None:
        slices = _group_by_root(self.objects)
        nothing = self.objects.slice(0, 0)
        copies = [
            TableCopy(
                table, self._backup.source, self._target, slices.get(table.root, nothing), self._by_location
            )
            for table in tables
        ]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for copy, assessed in zip(copies, pool.map(self._one, copies), strict=True):
                self._assessed[copy.table.root] = assessed
                self._tell(f"{copy.table.root or copy.table.bucket}: read what it says of itself.")

    def _one(self, copy: TableCopy) -> AssessedTable:
        as_of = self._plan.as_of
        if copy.table.format == "iceberg":
            pointer = self._pointers.get(copy.table.root)
            return assess_iceberg_table(copy, as_of, pointer, self._points, self._plan.day, self._spark)
        return assess_delta_table(copy, as_of, self._backup, self._spark)

    def _by_location(self, locations: Sequence[str]) -> pa.Table:
        wanted = pa.array(locations, pa.string())
        return self.objects.filter(pc.is_in(self.objects["location"], value_set=wanted))

    def _proof(self, table: FoundTable) -> TableProof:
        return self._assessed[table.root].proof()

    def _wanted_by(self, table: FoundTable, healer: Healer) -> list[MissingObject]:
        assessed = self._assessed[table.root]
        needs = list(assessed.needs)
        try:
            needs += assessed.unlisted(healer.store(table.bucket))
        except BackupError as error:
            healer.refusals.append(str(error))
        if not needs:
            return []
        rows = self._by_location([need.location for need in needs])
        known = {
            row["location"]: row
            for row in rows.select(["location", "stored_key", "size_bytes", "etag"]).to_pylist()
        }
        found = (self._wanted(assessed.copy, need, known.get(need.location)) for need in needs)
        return [one for one in found if one is not None]

    def _wanted(self, copy: TableCopy, need: Need, row: "dict[str, object] | None") -> MissingObject | None:
        place = bucket_and_key(need.location, [self._backup.source.bucket])
        if place is None:
            return None
        bucket, key = place
        if bucket != self._backup.source.bucket:
            if self._backup.external == "refuse":
                return None
            stored_key = f"{self._target.address.prefix}external/{bucket.strip('/')}/{key}"
        elif copy.is_inside(need.location):
            stored_key = copy.stored_key(key)
        else:
            layout = "objects/" if self._backup.layout == "incremental" else ""
            stored_key = (
                f"{self._target.address.prefix}{layout}{key}" if row is None else str(row["stored_key"])
            )
        etag = need.etag
        if row is not None and need.size_bytes in (None, row["size_bytes"]):
            etag = str(row["etag"])
        root = copy.table.root if copy.is_inside(need.location) else None
        return MissingObject(bucket, key, stored_key, root, need.size_bytes, etag)


def _map_pointers_to_roots(
    tables: Sequence[FoundTable], source: StoreAddress, pointers: Sequence[str]
) -> dict[str, str]:
    """The metadata file that the catalog names for each table, by the table's root."""
    found = {}
    for pointer in map(normalize_location, pointers):
        for table in tables:
            if pointer.startswith(f"{source.at(table.bucket).location(table.root).rstrip('/')}/"):
                found[table.root] = pointer
    return found


def _group_by_root(objects: pa.Table) -> dict[str | None, pa.Table]:
    """The objects of each table by its root; in one pass, for there may be thousands of tables."""
    rows = objects.sort_by("table_root").combine_chunks()
    if rows.num_rows == 0:
        return {}
    runs = pc.run_end_encode(rows["table_root"].combine_chunks())
    found: dict[str | None, pa.Table] = {}
    start = 0
    for root, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        found[root] = rows.slice(start, end - start)
        start = end
    return found


_log = logging.getLogger(__name__)

STATUSES_WORST_FIRST: tuple[Status, ...] = ("failed", "degraded", "verified_with_fallback", "verified")
MAX_NAMED = 5
VANISHED_CODES = ("NoSuchKey", "NoSuchVersion", "PreconditionFailed", "404", "412")
UNSTORABLE_CODES = ("InvalidKey", "KeyTooLongError")
"""No copy can have such a key in the target; what is of a table is judged with the table."""
ReportProgress = Callable[[str], None]


def verify_copies(
    backup: Backup,
    workspace: Workspace,
    plan: PlanRecord,
    copied: CopyRecord,
    points: Points,
    day: str,
    spark: "Callable[[], SparkSession] | None" = None,
    report_progress: ReportProgress = _log.info,
    pointers: Sequence[str] = (),
) -> Verification:
    """Prove what a day's copies are worth, heal what can be healed, and write the rows of what the point holds.

    `pointers` are the locations of the metadata files that the catalog had at as_of, where there is one: which of an
    Iceberg table's metadata is current the files alone do not tell when branches are written beside it.
    Reads the folders `plan` and `done` of the workspace and writes `held`; called again it does all of it again.

    Raises:
        BackupError: source or target cannot be asked.
    """
    target = open_store(backup.target_of(day))
    reported, accounted_for = _join_reports(workspace, plan, points)
    report_progress(f"{reported.num_rows:,} objects: what the target lists is compared.")
    listed = list_copies(target, list_prefixes(reported))
    objects = judge_objects(reported, listed, backup.source, target)
    now = dt.datetime.now(dt.UTC)
    place, budget = backup.target_of(day).url, backup.scrub.bytes_per_run
    objects, readings = HeldCopyReader(points, place, target, budget, now).again(objects, day)
    healer = _make_healer(backup, workspace, plan, day, target, report_progress)
    tables = Tables(backup, plan, target, points, objects, pointers, spark, report_progress)
    tables.heal(healer)
    proofs = tables.proofs()
    copies = tables.objects.filter(tables.objects["is_whole"])
    write_rows(workspace.clear("held"), POINT_COPIES, [copies.select(POINT_COPIES.names)])
    _save_readings(points, place, target, tables.objects, readings, now)
    return _make_verification(tables.objects, proofs, copies, healer.refusals, accounted_for=accounted_for)


def _save_readings(
    points: Points,
    place: str,
    target: BackupStore,
    objects: pa.Table,
    readings: list[dict[str, Any]],
    now: dt.datetime,
) -> None:
    """Keep what was read again; of held copies that were damaged tell the points that share them."""
    was = {row["stored_key"]: row for row in readings if row["problem"] is not None}
    is_rotten = pc.is_in(objects["stored_key"], pa.array(list(was), pa.string()))
    healed = objects.filter(pc.and_(objects["is_whole"], is_rotten))
    for row in healed.to_pylist():
        head = target.head(row["stored_key"])
        if head is not None:
            repair_points(points, place, row["stored_key"], head, was[row["stored_key"]])
            copy = row | {"stored_etag": head.etag, "stored_version_id": head.version_id}
            readings.append(
                make_reading_row(place, copy, CopyReading(None), now + dt.timedelta(microseconds=1))
            )
    ReadingStore(points).add(readings)
    if was:
        report_damage(points, now)


def _join_reports(workspace: Workspace, plan: PlanRecord, points: Points) -> tuple[pa.Table, bool]:
    earlier: Iterable[pa.RecordBatch] = ()
    if plan.previous is not None:
        earlier = points.read_copies(points.get(plan.previous))
    return join_reports(read_rows(workspace.rows("plan")), read_rows(workspace.rows("done")), earlier)


def _make_healer(
    backup: Backup,
    workspace: Workspace,
    plan: PlanRecord,
    day: str,
    target: BackupStore,
    report_progress: ReportProgress,
) -> Healer:
    from lakeshare_pipelines.backup.copy.local import LocalEngine

    def ignore(progress: Progress) -> None:
        report_progress(f"healing: {progress.objects:,} of {progress.objects_of:,} objects")

    work_prefix = f"{target.address.prefix}{OWN_PREFIX}{backup.name}/points/{day}/engine/"
    return Healer(backup, workspace, LocalEngine(), work_prefix, day, plan.as_of, target, ignore)


def _make_verification(
    objects: pa.Table,
    proofs: Sequence[TableProof],
    copies: pa.Table,
    refusals: Sequence[str],
    *,
    accounted_for: bool,
) -> Verification:
    lost = objects.filter(pc.and_(pc.invert(objects["is_whole"]), pc.is_null(objects["table_root"])))
    problems = lost["problem"].to_pylist()
    reasons = [
        f"{count} of no table: {problem}." for problem, count in Counter(problems).most_common(MAX_NAMED)
    ]
    reasons += [
        f"The source did not answer: {refusal}" for refusal in list(dict.fromkeys(refusals))[:MAX_NAMED]
    ]
    statuses: list[Status] = [proof.status for proof in proofs]
    if statuses and set(statuses) != {"failed"}:
        # One table that nobody can open must not keep the others from having a point.
        statuses = ["degraded" if status == "failed" else status for status in statuses]
    if not accounted_for:
        statuses.append("failed")
        reasons.insert(0, "The engine's report does not tell of every planned object; run the copy again.")
    problems = [problem for problem in problems if problem.split(":")[0] not in UNSTORABLE_CODES]
    if problems:
        vanished = all(problem.split(":")[0] in VANISHED_CODES for problem in problems)
        # What is gone from the source, or was overwritten, since it was listed is no fault of the copy.
        statuses.append("verified_with_fallback" if vanished else "degraded")
    return Verification(
        status=min(statuses, key=STATUSES_WORST_FIRST.index, default="verified"),
        tables=tuple(proofs),
        objects=copies.num_rows,
        size_bytes=pc.sum(copies["size_bytes"], min_count=0).as_py(),
        accounted_for=accounted_for,
        failed_objects=lost.num_rows,
        reasons=tuple(reasons),
    )
