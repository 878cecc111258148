"""A restore of one table: selecting its copies, comparing with the destination, copying, opening, and its record."""

import os
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from lakeshare_pipelines.backup import model, stores
from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.copy.engine import CopyItem, Progress, ReportProgress, thaw
from lakeshare_pipelines.backup.points import OWN_PREFIX, Points, Workspace
from lakeshare_pipelines.backup.verify import objects as verify
from lakeshare_pipelines.backup.verify.delta import SIDECARS, count_rows, get_log_folder, parse_version
from lakeshare_pipelines.backup.verify.iceberg import open_static, read_scan
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import open_lake
from lakeshare_server.storage import normalise_location

CONCURRENT_REQUESTS = 16
DAMAGED = "Restore from another point; `lakeshare backup drill` shows which points are whole."
Row: TypeAlias = dict[str, Any]  # of POINT_COPIES, with `to_bucket` and `to_key`
MapKey = Callable[[str, str], tuple[str, str]]  # New bucket and key of an object


def ignore_progress(progress: Progress) -> None: ...


def ignore_message(sentence: str) -> None: ...


class RestorePlan(BaseModel, frozen=True):
    table: model.FoundTable
    day: str
    version: int  # Delta version, or Iceberg's snapshot id
    place: str  # Location of the restored table's root
    objects: int
    size_bytes: int
    there: int  # Objects that exist at the destination and stay unchanged
    archived: int
    requests: int
    usd: float
    minutes: float
    steps: tuple[str, ...]  # Sentences: the steps in order


class RestoreRecord(BaseModel, frozen=True):
    day: str
    table: model.FoundTable
    version: int
    location: str  # The table's root, or Iceberg's metadata.json
    rows: int | None  # As counted by an independent reader; None if it cannot count them
    files: int
    opened_by: str
    objects: int  # Copied objects; others existed
    size_bytes: int
    started_at: datetime
    seconds: float
    registered_as: str | None = None  # Its name in the lake, if main or a live log shows it again
    publication: int | None = None  # The number under which recipients read it; None if it is not published
    notes: tuple[str, ...] = ()  # Sentences for people: what is left to do


TABLE_FILE = r"(^|/)(_delta_log/|metadata/[^/]*metadata\.json)"  # Files that are written last
METADATA_JSON = re.compile(r"v(\d+)(\.gz)?\.metadata\.json(\.gz)?")


@dataclass(frozen=True)
class SelectedTable:
    """A table of a point at one version, with the rows (schema POINT_COPIES) of all its copies."""

    point: model.Point
    proof: model.TableProof
    version: int
    rows: pa.Table
    copies: stores.StoreAddress

    @property
    def table(self) -> model.FoundTable:
        return self.proof.table


def select_table(
    points: Points, name: str, day: str | None = None, version: int | None = None
) -> SelectedTable:
    """The table of a name in the lake or of a root's key, at a Delta version or Iceberg snapshot. Raises BackupError
    if there is no such point, table or version, or the point does not hold it whole."""
    point = get_point(points, day)
    proof = _get_proof(point, name)
    table = proof.table
    subject = f"point {point.day}, table {table.root}"
    is_damaged = point.damage is not None and table.root in point.damage.tables
    # An older or small state is restored if its version is given; a damaged one never.
    is_explicit = version is not None and proof.version is not None
    if proof.status not in model.GOOD_STATUSES and (is_damaged or not is_explicit):
        why = " ".join(proof.reasons).rstrip(".") or "it was not proved to open"
        raise BackupError(subject, f"it is {proof.status}: {why}", "Restore it from another point.")
    version = _choose_version(subject, proof, version)
    batches = []
    for batch in points.read_copies(point):
        key = batch.column("key")
        # Files below the root of another table inside this one have the nearer root.
        inside = pc.and_(
            pc.starts_with(key, f"{table.root}/"), pc.invert(pc.match_substring_regex(key, TABLE_FILE))
        )
        own = pc.fill_null(pc.equal(batch.column("table_root"), table.root), False)
        chosen = pc.or_(own, pc.and_(inside, pc.equal(batch.column("bucket"), table.bucket)))
        batches.append(batch.filter(chosen).cast(model.POINT_COPIES))
    rows = pa.Table.from_batches(batches, model.POINT_COPIES)
    belongs = (
        _make_delta_filter(table.root, version) if table.format == "delta" else _make_iceberg_filter(proof)
    )
    is_selected = pa.array([belongs(key) for key in rows["key"].to_pylist()], pa.bool_())
    return SelectedTable(point, proof, version, rows.filter(is_selected), points.backup.target_of(point.day))


def get_point(
    points: Points, day: str | None, report_message: Callable[[str], None] = lambda sentence: None
) -> model.Point:
    """The point of a day; by default the newest that is fully verified, else the newest with fallbacks."""
    if day is not None:
        return points.get(day)
    readable, damaged = points.readable()
    fully = [point for point in readable if point.status == "verified"]
    point = next(
        reversed(fully or [point for point in readable if point.status in model.GOOD_STATUSES]), None
    )
    if point is None:
        fix = "Make one with `lakeshare backup run`."
        raise BackupError(f"backup {points.backup.name}", "it has no verified point", fix)
    newer = [f"{other.day} is {other.status}" for other in readable if other.day > point.day]
    unreadable = [error.subject.rpartition("point ")[2] for error in damaged]
    newer += [f"{other} is damaged" for other in unreadable if other > point.day]
    why = (
        "the newest that is fully verified" if fully else "none is fully verified, the newest with fallbacks"
    )
    passed_over = f" Passed over: {'; '.join(sorted(newer))}." if newer else ""
    report_message(f"Point {point.day} is taken: {why}.{passed_over}")
    return point


def _get_proof(point: model.Point, name: str) -> model.TableProof:
    proofs = {proof.table.root: proof for proof in point.verification.tables}
    if name.strip("/") in proofs:
        return proofs[name.strip("/")]
    # Folders of Delta tables have the table's name, those of Iceberg tables have an id after it.
    path = re.escape(name.replace(".", "/"))
    matching = [root for root in proofs if re.search(rf"(^|/){path}(_[0-9a-f-]{{36}})?$", root)]
    if len(matching) == 1:
        return proofs[matching[0]]
    roots = ", ".join(matching or sorted(proofs)) or "none"
    several = "it holds several such tables" if matching else "it holds no such table"
    fix = "Name one of them by its root."
    raise BackupError(f"point {point.day}, table {name}", f"{several}: {roots}", fix)


def _choose_version(subject: str, proof: model.TableProof, wanted: int | None) -> int:
    if proof.table.format == "iceberg":
        newest = proof.snapshot_id
        if newest is None:
            raise BackupError(subject, "it has no snapshot", "A table without rows cannot be restored.")
        return newest if wanted is None else wanted
    if proof.version is None:
        raise BackupError(subject, "the point does not state its version", "Restore it from another point.")
    oldest = proof.version if proof.oldest_version is None else proof.oldest_version
    if wanted is not None and not oldest <= wanted <= proof.version:
        fix = f"It holds versions {oldest} to {proof.version}; others may be in other points."
        raise BackupError(subject, f"version {wanted} is not in it", fix)
    return proof.version if wanted is None else wanted


def _make_delta_filter(root: str, version: int) -> Callable[[str], bool]:
    """Whether a key of a Delta table belongs to a version, or to time travel before it."""
    log = get_log_folder(root)

    def belongs(key: str) -> bool:
        if not key.startswith(log):
            return True
        name = key.removeprefix(log)
        of = parse_version(name)
        return name.startswith(SIDECARS) if of is None else of <= version

    return belongs


def _make_iceberg_filter(proof: model.TableProof) -> Callable[[str], bool]:
    """Whether a key belongs to a table at the proved metadata: catalogs of folders use the newest metadata."""
    proved = METADATA_JSON.fullmatch((proof.metadata_key or "").rpartition("/")[2])

    def belongs(key: str) -> bool:
        match = METADATA_JSON.fullmatch(key.rpartition("/")[2])
        return match is None or proved is None or int(match[1]) <= int(proved[1])

    return belongs


def read_verified(selected: SelectedTable, copies: stores.BackupStore, row: Row) -> bytes:
    """The content of a copy (a row of schema POINT_COPIES); an error if it is not what was backed up."""
    content = copies.read(row["stored_key"], row["stored_version_id"])
    kind, _, digest = (row["checksum"] or "").partition(":")
    if kind == "sha256" and sha256(content).hexdigest() != digest:
        raise _make_damaged_error(selected, row, "it was changed since it was backed up")
    return content


def head_copies(selected: SelectedTable, rows: pa.Table) -> dict[str, stores.ListedObject]:
    """The current heads of copies, by key."""
    store = stores.open_store(selected.copies)
    root = selected.table.stored_root
    # Objects of no table are requested one by one.
    listed = {head.key: head for head in store.list(f"{root}/") if not head.is_delete_marker} if root else {}

    def check(row: Row) -> stores.ListedObject:
        copy: stores.ListedObject | None = listed.get(row["stored_key"])
        if copy is None or (row["stored_etag"] not in (None, copy.etag) and row["stored_version_id"]):
            copy = store.head(row["stored_key"], row["stored_version_id"])
        if copy is None:
            raise _make_damaged_error(selected, row, "it does not exist any more")
        if copy.size_bytes != row["size_bytes"]:
            reason = f"it has {copy.size_bytes} bytes, {row['size_bytes']} were backed up"
            raise _make_damaged_error(selected, row, reason)
        if row["stored_etag"] not in (None, copy.etag):
            raise _make_damaged_error(selected, row, "it was changed since it was backed up")
        return copy

    with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
        records = rows.to_pylist()
        heads = zip(records, pool.map(check, records), strict=True)
        return {row["stored_key"]: head for row, head in heads}


def select_archived(stored: dict[str, stores.ListedObject]) -> list[stores.ListedObject]:
    return [head for head in stored.values() if head.storage_class in model.ARCHIVES]


def _make_damaged_error(selected: SelectedTable, row: Row, reason: str) -> BackupError:
    return BackupError(f"the copy {selected.copies.location(row['stored_key'])}", reason, DAMAGED)


def _require_done(selected: SelectedTable, rows: list[Row], done: list[Row], to: stores.StoreAddress) -> None:
    backed_up = {row["stored_key"]: row for row in rows}
    failed = next((result for result in done if result["status"] != "succeeded"), None)
    if failed is not None:
        reason = failed["message"] or failed["error_code"] or "no reason was given"
        subject = to.location(failed["stored_key"])
        raise BackupError(subject, f"it could not be copied there: {reason}", "Run the restore again.")
    for result in done:
        row = backed_up[result["key"]]
        kinds = {(checksum or "").partition(":")[0] for checksum in (result["checksum"], row["checksum"])}
        if len(kinds) == 1 and result["checksum"] != row["checksum"]:
            # This restore just wrote it, and it must not pass for the lost object.
            stores.open_store(to).delete(result["stored_key"])
            reason = f"its content is {result['checksum']}, {row['checksum']} was backed up"
            raise _make_damaged_error(selected, row, reason)
    if len(done) != len(rows):
        reason = f"the engine reported nothing of {len(rows) - len(done)} copies"
        raise BackupError(str(to), reason, "Run the restore again.")


DAY = r"\d{4}-\d\d-\d\d(T\d{6}Z)?"
ROW = pa.schema([pa.field("to_bucket", pa.string()), pa.field("to_key", pa.string())])


@dataclass(frozen=True)
class DestinationState:
    """The copies of a table by the state of their destinations."""

    missing: pa.Table  # Rows of schema POINT_COPIES, with `to_bucket` and `to_key`
    there: int
    differing: tuple[str, ...]  # Locations of other objects at the keys of the table
    others: tuple[str, ...]  # Keys below the root that the point does not have


def compare_destination(
    selected: SelectedTable, address: stores.StoreAddress, root: str, map_key: MapKey
) -> DestinationState:
    rows = selected.rows.to_pylist()
    prefix = f"{root}/" if root else ""
    existing = {
        head.key: head for head in stores.open_store(address).list(prefix) if not head.is_delete_marker
    }
    missing: list[dict[str, Any]] = []
    differing: list[str] = []
    expected: set[str] = set()
    for row in rows:
        bucket, key = map_key(row["bucket"], row["key"])
        store = address if bucket == address.bucket else address.at(bucket)
        at_key = existing.get(key) if bucket == address.bucket else stores.open_store(store).head(key)
        expected.add(key)
        if at_key is None:
            missing.append({**row, "to_bucket": bucket, "to_key": key})
        elif not _is_same(selected, row, stores.open_store(store), at_key):
            differing.append(store.location(key))
    table = pa.Table.from_pylist(missing, pa.schema([*selected.rows.schema, *ROW]))
    others = tuple(key for key in existing if key not in expected)
    return DestinationState(table, len(rows) - len(missing) - len(differing), tuple(differing), others)


def require_outside_target(backup: Backup, to: stores.StoreAddress) -> None:
    """Refuse a destination inside the target of a backup, where a sweep or a scrub would take it for copies."""
    for target in (backup.target, backup.records):
        if to.kind != target.kind or to.endpoint != target.endpoint:
            continue
        above, place = target.url.rstrip("/"), to.url.rstrip("/")
        if to.kind == "folder":
            above, place = os.path.realpath(above), os.path.realpath(place)
        if re.match(rf"{re.escape(above).replace(re.escape('{day}'), DAY)}(/|$)", place):
            reason = f"it is inside {target.url}, the target of backup {backup.name}"
            raise BackupError(f"--to {to.url}", reason, "Name an empty place outside of it.")


def _is_same(selected: SelectedTable, row: Row, store: stores.BackupStore, head: stores.ListedObject) -> bool:
    """Compare size and ETag; if only the ETag differs, the content: a copy may have another ETag."""
    if head.size_bytes != row["size_bytes"]:
        return False
    if head.etag in (row["etag"], row["stored_etag"]):
        return True
    kind, _, checksum = (row["checksum"] or "").partition(":")
    if kind != "sha256":
        copies = stores.open_store(selected.copies)
        checksum = verify.compute_sha256(copies, row["stored_key"], row["stored_version_id"])
    return verify.compute_sha256(store, head.key) == checksum


ANOTHER = "Restore from another point; the restored table was not registered."


@dataclass(frozen=True)
class OpenedTable:
    """The result of an independent reader; `rows` is None if it does not read all rows."""

    rows: int | None
    files: int
    reader: str


def _open_by_pyiceberg(address: stores.StoreAddress, metadata_location: str, snapshot_id: int) -> OpenedTable:
    """Open an Iceberg table at a snapshot with PyIceberg, which reads every data file."""
    # PyIceberg passes errors of file systems and decoders on without a class of its own.
    try:
        table, reader = open_static(address, metadata_location)
        scan = table.scan(snapshot_id=snapshot_id)
        try:
            files = sum(1 for _ in scan.plan_files())
        except ValueError as error:
            if "equality deletes" not in str(error):
                raise
            # The manifests are read, and the deletes were verified with the point.
            return OpenedTable(None, len(table.inspect.data_files(snapshot_id=snapshot_id)), reader)
        return OpenedTable(read_scan(scan), files, reader)
    except Exception as error:
        raise _make_open_error(metadata_location, error) from error


def _make_open_error(location: str, error: Exception) -> BackupError:
    if isinstance(error, BackupError):
        return error
    return BackupError(location, f"it does not open: {verify.get_first_line(error)}", ANOTHER)


@dataclass
class TableRestore:
    settings: LakeSettings
    backup: Backup
    selected: SelectedTable
    to: stores.StoreAddress
    root: str
    report_message: model.ReportMessage = ignore_message
    report_progress: ReportProgress = ignore_progress
    began: float = field(default_factory=time.monotonic)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    objects: int = 0
    size_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    @cached_property
    def store(self) -> stores.BackupStore:
        return stores.open_store(self.to)

    @property
    def place(self) -> str:
        return self.to.location(self.root)

    @property
    def title(self) -> str:
        return f"restore of {self.selected.table.root or 'other files'} to {self.place}"

    @property
    def name(self) -> str:
        parts = (self.selected.point.day, self.selected.table.root, str(self.selected.version), self.place)
        return sha256("\n".join(parts).encode()).hexdigest()[:16]

    def open_delta(self, version: int) -> OpenedTable:
        """The table below the root, opened by deltalake, or by Spark if deltalake does not know its features."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            options = stores.make_storage_options(self.to) or None
            files = len(DeltaTable(self.place, version, options).file_uris())
        except (DeltaError, OSError, ValueError) as error:
            raise _make_open_error(self.place, error) from error
        read = partial(count_rows, self.to, self.root, version, files)
        with open_lake(self.settings) as lake:
            rows, reader = verify.count_rows_or_use_spark(
                read, lambda: lake.spark, "delta", self.place, version
            )
        return OpenedTable(rows, files, reader)

    def open_iceberg(self, metadata_location: str) -> OpenedTable:
        """The selected snapshot of a metadata file, opened by PyIceberg, or by Spark if PyIceberg cannot parse it."""
        snapshot_id = self.selected.version
        try:
            return _open_by_pyiceberg(self.to, metadata_location, snapshot_id)
        except BackupError as error:
            if not verify.is_unsupported(error):
                raise
        with open_lake(self.settings) as lake:
            counted = verify.count_rows_by_spark(
                lambda: lake.spark, "iceberg", metadata_location, snapshot_id
            )
        return OpenedTable(counted[0], self.selected.proof.files, counted[1])

    def compare(self, map_key: MapKey = lambda bucket, key: (bucket, key)) -> DestinationState:
        """Compare the copies with their destination; `map_key` gives the new bucket and key of an object."""
        return compare_destination(self.selected, self.to, self.root, map_key)

    def bring(self, at: DestinationState, *, into_live_log: bool = False) -> None:
        """Copy missing objects and count them; files of the engine are removed at the end."""
        if not at.missing.num_rows:
            return
        if self.to.kind == "folder" and self.root:
            stores.remove_unfinished(Path(self.to.url) / self.root)
        self._copy_all(at.missing, into_live_log=into_live_log)
        self.objects += at.missing.num_rows
        self.size_bytes += sum(at.missing["size_bytes"].to_pylist())
        self._remove_engine_files()
        self.report_message(f"{at.missing.num_rows:,} objects copied to {self.place}, {at.there:,} existed")

    def _copy_all(self, rows: pa.Table, *, into_live_log: bool) -> None:
        stored, place = head_copies(self.selected, rows), self.selected.copies.bucket
        archived = [
            CopyItem(place, head.key, head.version_id, head.key, head.size_bytes or 0, head.etag)
            for head in select_archived(stored)
        ]
        if archived:
            thaw(self.selected.copies, archived, self.report_progress)
        makes_table = pc.match_substring_regex(rows["to_key"], TABLE_FILE)
        for step, is_in_step in (("data", pc.invert(makes_table)), ("table", makes_table)):
            part = rows.filter(is_in_step)
            for bucket in sorted(set(part["to_bucket"].to_pylist())):
                of_bucket = part.filter(pc.equal(part["to_bucket"], bucket)).to_pylist()
                if step == "table" and into_live_log:
                    self._commit(of_bucket)
                else:
                    self._copy(of_bucket, stored, self.to if bucket == self.to.bucket else self.to.at(bucket))

    def _copy(self, rows: list[Row], stored: dict[str, stores.ListedObject], to: stores.StoreAddress) -> None:
        planned = [
            verify.make_plan_row(
                stored[row["stored_key"]],
                self.backup,
                bucket=self.selected.copies.bucket,
                key=row["stored_key"],
                stored_key=row["to_key"],
                table_root=row["table_root"],
                first_point=self.selected.point.day,
            )
            for row in rows
        ]
        ends, now, report = (self.selected.copies, to), datetime.now(UTC), self.report_progress
        done = verify.copy_rows(self.backup, self._workspace, planned, *ends, self._prefix, now, report)
        _require_done(self.selected, rows, done.to_pylist(), to)

    def _commit(self, rows: list[Row]) -> None:
        """Write files of a log, where others may commit meanwhile, only if they do not exist."""
        copies = stores.open_store(self.selected.copies)
        for row in sorted(rows, key=lambda row: str(row["to_key"])):
            content = read_verified(self.selected, copies, row)
            key = row["to_key"]
            if not self.store.put(key, content, if_absent=True) and self.store.read(key) != content:
                fix = "Run the restore again: it compares with the destination again."
                raise BackupError(self.to.location(key), "another writer wrote it meanwhile", fix)

    @property
    def _prefix(self) -> str:
        return f"{self.to.prefix}{OWN_PREFIX}{self.backup.name}/restores/{self.name}/"

    @property
    def _workspace(self) -> Workspace:
        return Workspace(self.settings.state_dir / "backup_work" / self.backup.name / "restores" / self.name)

    def _remove_engine_files(self) -> None:
        for listed in self.store.list(self._prefix):
            self.store.delete(listed.key)
        if self.to.kind == "folder":
            root = Path(self.to.url)
            for folder, _, _ in os.walk(root / self._prefix, topdown=False):
                Path(folder).rmdir()
            # Folders above are removed if they are empty.
            for above in list((root / self._prefix).parents)[: self._prefix.rstrip("/").count("/")]:
                with suppress(OSError):
                    above.rmdir()
        self._workspace.remove()

    def moved(self, keys: Mapping[str, str]) -> Callable[[str], str]:
        """A function from old to new locations of a table's files; unknown files move with the root, or stay."""
        old, new = normalise_location(self.backup.source.location(self.selected.table.root)), self.place

        def moved(location: str) -> str:
            at = normalise_location(location)
            if at in keys:
                return keys[at]
            return f"{new}/{at.removeprefix(old + '/')}" if at.startswith(old + "/") else location

        return moved

    def record(
        self, location: str, opened: OpenedTable, *, is_part: bool = False, **more: object
    ) -> RestoreRecord:
        """The record of the restore; for a whole table an error if its rows are not those that the point proved."""
        if not is_part:
            self.require_rows(location, opened)
        return RestoreRecord.model_validate(
            {
                "day": self.selected.point.day,
                "table": self.selected.table,
                "version": self.selected.version,
                "location": location,
                "rows": opened.rows,
                "files": opened.files,
                "opened_by": opened.reader,
                "objects": self.objects,
                "size_bytes": self.size_bytes,
                "started_at": self.started_at,
                "seconds": time.monotonic() - self.began,
                "notes": tuple(self.notes),
                **more,
            }
        )

    def require_rows(self, location: str, opened: OpenedTable) -> None:
        """Raise a BackupError if a table has another number of rows than the point proved."""
        proof = self.selected.proof
        proved = proof.snapshot_id if proof.table.format == "iceberg" else proof.version
        is_known = self.selected.version == proved and None not in (proof.rows, opened.rows)
        if is_known and proof.rows != opened.rows:
            reason = f"it opens with {opened.rows} rows, the point proved {proof.rows}"
            raise BackupError(location, reason, ANOTHER)
