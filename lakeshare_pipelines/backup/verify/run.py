"""Verify a day's copies: judge every object, replay every table, heal what is missing, and open the tables."""

import datetime as dt
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakeshare_pipelines.backup import model
from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.copy.engine import Progress
from lakeshare_pipelines.backup.points import OWN_PREFIX, Points, Workspace
from lakeshare_pipelines.backup.stores import BackupStore, ListedObject, head_existing, open_store
from lakeshare_pipelines.backup.verify.delta import DeltaTable
from lakeshare_pipelines.backup.verify.delta import assess as assess_delta
from lakeshare_pipelines.backup.verify.iceberg import IcebergTable
from lakeshare_pipelines.backup.verify.iceberg import assess as assess_iceberg
from lakeshare_pipelines.backup.verify.objects import (
    MAX_TRIED,
    OBJECTS,
    JudgedObjects,
    Need,
    ReadingStore,
    TableCopy,
    copy_rows,
    is_accounted_for,
    judge_objects,
    load_listed,
    make_listed_table,
    make_plan_row,
    make_reading_row,
    normalize_location,
    read_held_copies,
    read_objects,
    repair_points,
    report_damage,
    view_reports,
)
from lakeshare_pipelines.errors import BackupError
from lakeshare_server.errors import BadRequest
from lakeshare_server.locations import LOCAL, parse_location

if TYPE_CHECKING:
    import duckdb

CONCURRENT_REQUESTS = 16
LARGE = 100_000  # Objects from which on a verification has a database of its own, which takes 20 ms
MAX_OBJECTS = 100_000  # If more objects failed, the copy has to be run again, which is faster


@dataclass(frozen=True)
class MissingObject:
    """An object to look for at the source; size and ETag, if known, select the right version."""

    bucket: str
    key: str
    stored_key: str
    table_root: str | None
    size_bytes: int | None = None
    etag: str | None = None  # As listed; None if it was not listed


@dataclass
class Healer:
    """Finds objects at the source and copies them; each call has a ledger of its own."""

    backup: Backup
    workspace: Workspace
    work_prefix: str
    day: str
    as_of: dt.datetime
    target: BackupStore
    report_progress: Callable[[Progress], None]
    refusals: list[str] = field(default_factory=list)  # Of the source's store: such objects are not healed
    _stores: dict[str, BackupStore] = field(default_factory=dict)

    def heal(self, missing: Sequence[MissingObject]) -> pa.Table:
        """Rows of schema OBJECTS of the found objects, by the first description of each; whole ones are healed."""
        with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
            rows = [row for row in pool.map(self._plan, missing) if row is not None]
        if not rows:
            return OBJECTS.empty_table()
        by_key = {(row["bucket"], row["key"]): row for row in reversed(rows)}
        by_bucket: dict[str, list[dict[str, Any]]] = {}
        for key in dict.fromkeys((row["bucket"], row["key"]) for row in rows):
            by_bucket.setdefault(key[0], []).append(by_key[key])
        return pa.concat_tables([self._copy(bucket, of_bucket) for bucket, of_bucket in by_bucket.items()])

    def store(self, bucket: str) -> BackupStore:
        if bucket not in self._stores:
            self._stores[bucket] = open_store(self.backup.source.at(bucket))
        return self._stores[bucket]

    def _plan(self, wanted: MissingObject) -> dict[str, Any] | None:
        try:
            store = self.store(wanted.bucket)
            head = store.head(wanted.key)
            # Versions are listed only if the current object is not the right one.
            every = chain((head,) if head else (), store.versions(wanted.key))
            found = next((version for version in every if self._is_right(wanted, version)), None)
        except BackupError as error:
            self.refusals.append(str(error))
            return None
        if found is None:
            return None
        return make_plan_row(
            found,
            self.backup,
            **({"lane": "archived"} if found.storage_class in model.ARCHIVES else {}),
            bucket=wanted.bucket,
            is_latest=found is head,
            stored_key=wanted.stored_key,
            table_root=wanted.table_root,
            first_point=self.day,
        )

    def _is_right(self, wanted: MissingObject, found: ListedObject) -> bool:
        if found.key != wanted.key or found.is_delete_marker:
            return False
        if wanted.size_bytes is not None and found.size_bytes != wanted.size_bytes:
            return False
        if wanted.etag is not None:
            return found.etag == wanted.etag
        return found.last_modified < self.as_of

    def _copy(self, bucket: str, rows: list[dict[str, Any]]) -> pa.Table:
        source, to, report = self.backup.source.at(bucket), self.target.address, self.report_progress
        done = copy_rows(self.backup, self.workspace, rows, source, to, self.work_prefix, self.as_of, report)
        heads = head_existing(self.target, [row["stored_key"] for row in rows])
        with model.open_database() as on:
            on.register("reported", done)
            on.register("listed", make_listed_table(heads))
            judge_objects(on, source, self.target, self.day, dt.datetime.now(dt.UTC))
            objects = model.conform(read_objects(on).read_all(), OBJECTS)
        healed = objects["is_whole"]
        return objects.set_column(OBJECTS.names.index("is_healed"), OBJECTS.field("is_healed"), healed)


def bucket_and_key(location: str, folder: str) -> tuple[str, str] | None:
    """Bucket and key of a location; the bucket of a local one is `folder` if it is inside, else the folder above."""
    try:
        place = parse_location(location)
    except BadRequest:
        return None
    if place.kind != LOCAL:
        return place.bucket, place.key
    if location.startswith(f"{folder.rstrip('/')}/"):
        return folder, location.removeprefix(folder).lstrip("/")
    above, _, name = location.rpartition("/")
    return above or "/", name


AT_ONCE = 8
ROUNDS = 5  # A commit that was not listed names files that were not: each step needs a round


@dataclass
class Tables:
    backup: Backup
    plan: model.PlanRecord
    target: BackupStore
    points: Points
    objects: JudgedObjects
    pointers: Sequence[str]
    spark: model.OpenSpark | None
    database: "duckdb.DuckDBPyConnection"  # For the replay of Delta logs
    report_progress: Callable[[str], None]
    assessed: dict[str, DeltaTable | IcebergTable] = field(default_factory=dict)

    def heal(self, healer: Healer) -> None:
        self._assess(self.plan.tables)
        looked_up: set[tuple[str, str, int | None]] = set()
        columns = ("bucket", "key", "stored_key", "table_root", "size_bytes", "etag")
        failed = self.objects.select(columns, f"NOT is_whole LIMIT {MAX_OBJECTS}")
        missing = [MissingObject(**row) for row in failed.to_pylist()]
        for _ in range(ROUNDS):
            missing += [need for table in self.plan.tables for need in self._list_needs(table, healer)]
            new = {(need.bucket, need.key, need.size_bytes): need for need in missing}
            new = {key: need for key, need in new.items() if key not in looked_up}
            if not new:
                return
            looked_up |= new.keys()
            self.report_progress(f"looking for {len(new):,} objects at the source")
            healed = healer.heal(list(new.values()))
            if healed.num_rows == 0:
                return
            self.objects.heal(healed)
            touched = set(healed["table_root"].to_pylist())
            # A table may need objects that belong to another table, or to none.
            self._assess(
                [
                    table
                    for table in self.plan.tables
                    if table.root in touched or self.assessed[table.root].found.needs
                ]
            )
            missing = []

    def proofs(self) -> list[model.TableProof]:
        """The proof of each table, in the plan's order; objects that were removed from the copy are dropped."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            proofs = []
            for proof in pool.map(lambda table: self.assessed[table.root].proof(), self.plan.tables):
                proofs.append(proof)
                self.report_progress(f"{len(proofs):,} of {len(self.plan.tables):,} tables opened")
        delta_tables = (table for table in self.assessed.values() if isinstance(table, DeltaTable))
        self.objects.removed += [key for table in delta_tables for key in table.removed]
        return proofs

    def _assess(self, tables: Sequence[model.FoundTable]) -> None:
        copies = [TableCopy(table, self.backup.source, self.target, self.objects) for table in tables]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for copy, assessed in zip(copies, pool.map(self._assess_copy, copies), strict=True):
                self.assessed[copy.table.root] = assessed
                self.report_progress(f"{copy.table.root or copy.table.bucket}: metadata read")

    def _assess_copy(self, copy: TableCopy) -> DeltaTable | IcebergTable:
        as_of = self.plan.as_of
        if copy.table.format == "iceberg":
            pointer = next((pointer for pointer in reversed(self.pointers) if copy.is_inside(pointer)), None)
            assessed = assess_iceberg(copy, as_of, pointer, MAX_TRIED)
            return IcebergTable(copy, assessed, as_of, self.points, self.plan.day, self.spark)
        return DeltaTable(copy, assess_delta(copy, as_of, self.database), self.backup, as_of, self.spark)

    def _list_needs(self, table: model.FoundTable, healer: Healer) -> list[MissingObject]:
        assessed = self.assessed[table.root]
        needs = list(assessed.found.needs)
        # Names of Iceberg's metadata files are not predictable; the catalog's pointer is among the needs.
        if isinstance(assessed, DeltaTable):
            try:
                needs += assessed.list_unlisted(healer.store(table.bucket))
            except BackupError as error:
                healer.refusals.append(str(error))
        if not needs:
            return []
        names, locations = ("location", "stored_key", "size_bytes", "etag"), [need.location for need in needs]
        known = {row["location"]: row for row in self.objects.select_locations(names, locations).to_pylist()}
        missing = (self._find_need(assessed.copy, need, known.get(need.location)) for need in needs)
        return [need for need in missing if need is not None]

    def _find_need(
        self, copy: TableCopy, need: Need, row: "dict[str, object] | None"
    ) -> MissingObject | None:
        bucket_key = bucket_and_key(need.location, self.backup.source.bucket)
        if bucket_key is None:
            return None
        bucket, key = bucket_key
        if bucket != self.backup.source.bucket:
            if self.backup.external == "refuse":
                return None
            stored_key = f"{self.target.address.prefix}external/{bucket.strip('/')}/{key}"
        elif copy.is_inside(need.location):
            stored_key = copy.stored_key(key)
        elif row is not None:
            stored_key = str(row["stored_key"])
        else:
            layout = "objects/" if self.backup.layout == "incremental" else ""
            stored_key = f"{self.target.address.prefix}{layout}{key}"
        etag = need.etag
        if row is not None and need.size_bytes in (None, row["size_bytes"]):
            etag = str(row["etag"])
        root = copy.table.root if copy.is_inside(need.location) else None
        return MissingObject(bucket, key, stored_key, root, need.size_bytes, etag)


_log = logging.getLogger(__name__)

STATUSES_WORST_FIRST: tuple[model.Status, ...] = ("failed", "degraded", "verified_with_fallback", "verified")
MAX_NAMED = 5
VANISHED_CODES = ("NoSuchKey", "NoSuchVersion", "PreconditionFailed", "404", "412")
UNSTORABLE_CODES = ("InvalidKey", "KeyTooLongError")  # The target cannot have such a key


def verify_copies(
    backup: Backup,
    workspace: Workspace,
    plan: model.PlanRecord,
    points: Points,
    day: str,
    spark: model.OpenSpark | None = None,
    report_progress: model.ReportMessage = _log.info,
    pointers: Sequence[str] = (),
) -> model.Verification:
    """Verify a day's copies, heal what can be healed, and write the rows of the copies that the point holds.

    `pointers` are the locations of the metadata files that the catalog had at as_of: the files alone do not show which
    of an Iceberg table's metadata is current.
    """
    target, now = open_store(backup.target_of(day)), dt.datetime.now(dt.UTC)
    repaired = (
        model.POINT_COPIES.empty_table() if plan.previous is None else points.read_repaired(plan.previous)
    )
    is_large = plan.estimate.objects + plan.estimate.held_objects > LARGE
    with model.open_database(workspace.folder if is_large else None) as on:
        view_reports(on, workspace.rows("plan"), workspace.rows("done"), repaired)
        report_progress("comparing with the listing of the target")
        load_listed(on, target.address)
        judge_objects(on, backup.source, target, day, now)
        accounted_for = is_accounted_for(on)
        readings = read_held_copies(on, points, target, day, now)
        objects = JudgedObjects(workspace.clear("objects"))
        model.write_rows(workspace.rows("objects"), OBJECTS, read_objects(on))
    work_prefix = f"{target.address.prefix}{OWN_PREFIX}{backup.name}/points/{day}/engine/"
    healer = Healer(
        backup,
        workspace,
        work_prefix,
        day,
        plan.as_of,
        target,
        lambda progress: report_progress(f"healing: {progress.objects:,} of {progress.objects_of:,} objects"),
    )
    locations = [normalize_location(pointer) for pointer in pointers]
    with model.open_database() as database:
        tables = Tables(backup, plan, target, points, objects, locations, spark, database, report_progress)
        tables.heal(healer)
    proofs = tables.proofs()
    with objects.open() as on:
        copies = on.sql("FROM objects WHERE is_whole").select(*model.POINT_COPIES.names)
        batches = copies.to_arrow_reader(model.ROWS_A_BATCH)
        model.write_rows(workspace.clear("held"), model.POINT_COPIES, batches)
    _save_readings(points, target.address.url, target, objects, readings, now)
    counts = model.count_rows(model.read_rows(workspace.rows("held"), ["size_bytes"]))
    return _make_verification(objects, proofs, counts, healer.refusals, accounted_for=accounted_for)


def _save_readings(
    points: Points,
    place: str,
    target: BackupStore,
    objects: JudgedObjects,
    readings: list[dict[str, Any]],
    now: dt.datetime,
) -> None:
    damaged = {row["stored_key"]: row for row in readings if row["problem"] is not None}
    columns = ("stored_key", "stored_version_id", "stored_etag")
    is_damaged = "is_whole AND list_contains($damaged, stored_key)"
    for row in objects.select(columns, is_damaged, damaged=list(damaged)).to_pylist():
        head = target.head(row["stored_key"])
        if head is not None:
            repair_points(points, place, row["stored_key"], head, damaged[row["stored_key"]])
            copy = row | {"stored_etag": head.etag, "stored_version_id": head.version_id}
            later = now + dt.timedelta(microseconds=1)
            readings.append(make_reading_row(place, copy, later, None))
    ReadingStore(points).add(readings)
    if damaged:
        report_damage(points, now)


def _make_verification(
    objects: JudgedObjects,
    proofs: Sequence[model.TableProof],
    counts: tuple[int, int],
    refusals: Sequence[str],
    *,
    accounted_for: bool,
) -> model.Verification:
    lost = objects.select(("problem",), "NOT is_whole AND table_root IS NULL")["problem"].to_pylist()
    reasons = [f"{count} of no table: {problem}." for problem, count in Counter(lost).most_common(MAX_NAMED)]
    unique_refusals = list(dict.fromkeys(refusals))[:MAX_NAMED]
    reasons += [f"The source did not answer: {refusal}" for refusal in unique_refusals]
    statuses: list[model.Status] = [proof.status for proof in proofs]
    if statuses and set(statuses) != {"failed"}:
        # A table that cannot be opened must not keep the others from having a point.
        statuses = ["degraded" if status == "failed" else status for status in statuses]
    if not accounted_for:
        statuses.append("failed")
        reasons.insert(0, "The engine's report lacks planned objects; run the copy again.")
    problems = [problem for problem in lost if problem.split(":")[0] not in UNSTORABLE_CODES]
    if problems:
        vanished = all(problem.split(":")[0] in VANISHED_CODES for problem in problems)
        # Objects that were removed or overwritten at the source after the listing are no fault of the copy.
        statuses.append("verified_with_fallback" if vanished else "degraded")
    return model.Verification(
        status=min(statuses, key=STATUSES_WORST_FIRST.index, default="verified"),
        tables=tuple(proofs),
        objects=counts[0],
        size_bytes=counts[1],
        accounted_for=accounted_for,
        failed_objects=len(lost),
        reasons=tuple(reasons),
    )
