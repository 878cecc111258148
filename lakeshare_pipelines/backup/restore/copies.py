"""One restore while it runs: what was chosen, where to, who copies, and what is told on the way."""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.copy.engine import (
    ARCHIVES,
    Archived,
    CopyEngine,
    CopyTask,
    Progress,
    ReportProgress,
    thaw,
)
from lakeshare_pipelines.backup.model import COPY_RESULTS, PLAN, read_table, write_rows
from lakeshare_pipelines.backup.points import OWN_PREFIX, Workspace
from lakeshare_pipelines.backup.restore.selection import TABLE_FILE, RestoreRecord, SelectedTable
from lakeshare_pipelines.backup.stores import BackupStore, ListedObject, StoreAddress, open_store
from lakeshare_pipelines.backup.stores.store import (
    make_file_properties,
    make_storage_options,
    remove_unfinished,
)
from lakeshare_pipelines.backup.verify.delta import count_rows
from lakeshare_pipelines.backup.verify.iceberg import choose_file_column
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.storage import normalise_location

if TYPE_CHECKING:
    from pyiceberg.table import StaticTable

CONCURRENT_REQUESTS = 16
DAMAGED = "Restore from another point; `lakeshare backup drill` tells which ones are whole."
Row: TypeAlias = dict[str, Any]  # of HELD, with `to_bucket` and `to_key`


@dataclass(frozen=True)
class RestoreCopy:
    """One restore's copying; done again after a crash it goes on where it was."""

    backup: Backup
    selected: SelectedTable
    workspace: Workspace
    work_prefix: str
    engine: CopyEngine
    report_progress: ReportProgress

    def bring(self, rows: pa.Table, to: StoreAddress, *, into_live_log: bool = False) -> None:
        """Bring rows (schema HELD, with `to_bucket` and `to_key`) to their places, which are empty.

        Where others may commit to the log meanwhile, its files are written only if nobody has.

        Raises:
            BackupError: a copy is missing or damaged, or its place cannot be written. What was brought stays.
        """
        stored = head_copies(self.selected, rows)
        self._thaw(stored)
        makes_table = pc.match_substring_regex(rows["to_key"], TABLE_FILE)
        for step, chosen_rows in (("data", pc.invert(makes_table)), ("table", makes_table)):
            part = rows.filter(chosen_rows)
            for number, bucket in enumerate(sorted(set(part["to_bucket"].to_pylist()))):
                mine = part.filter(pc.equal(part["to_bucket"], bucket)).to_pylist()
                if step == "table" and into_live_log:
                    self._commit(mine, to)
                    continue
                self._copy(f"{step}-{number}", mine, stored, to if bucket == to.bucket else to.at(bucket))

    def _thaw(self, stored: dict[str, ListedObject]) -> None:
        frozen = [
            Archived(self.selected.copies.bucket, one.key, one.version_id, one.size_bytes or 0)
            for one in select_archived(stored)
        ]
        if frozen:
            thaw(self.selected.copies, frozen, self.report_progress)

    def _copy(self, name: str, rows: list[Row], stored: dict[str, ListedObject], to: StoreAddress) -> None:
        plan, done = self.workspace.clear(f"plan-{name}"), self.workspace.clear(f"done-{name}")
        planned = [self._planned(row, stored[row["stored_key"]]) for row in rows]
        write_rows(plan, PLAN, [pa.Table.from_pylist(planned, PLAN)])
        task = CopyTask(
            source=self.selected.copies,
            target=to,
            plan=plan,
            done=done,
            work_prefix=f"{self.work_prefix}{name}/",
            as_of=datetime.now(UTC),
            copy_limit_bytes=self.backup.copy_limit_bytes,
            in_flight=self.backup.in_flight,
        )
        self.engine.copy(task, self.report_progress)
        _require_done(self.selected, rows, read_table(done, COPY_RESULTS).to_pylist(), to)

    def _commit(self, rows: list[Row], to: StoreAddress) -> None:
        copies, store = open_store(self.selected.copies), open_store(to)
        for row in sorted(rows, key=lambda one: str(one["to_key"])):
            content = read_verified(self.selected, copies, row)
            if not store.put(row["to_key"], content, if_absent=True) and store.read(row["to_key"]) != content:
                raise BackupError(
                    to.location(row["to_key"]),
                    "somebody wrote it meanwhile",
                    "Run the restore again: it goes by what is there then.",
                )

    def _planned(self, row: Row, stored: ListedObject) -> Row:
        return {
            "bucket": self.selected.copies.bucket,
            "key": row["stored_key"],
            "version_id": stored.version_id,
            "is_latest": True,
            "is_delete_marker": False,
            "size_bytes": stored.size_bytes,
            "last_modified": stored.last_modified,
            "etag": stored.etag,
            "storage_class": stored.storage_class,
            "lane": "large" if row["size_bytes"] > self.backup.copy_limit_bytes else "small",
            "stored_key": row["to_key"],
            "table_root": row["table_root"],
            "first_point": self.selected.point.day,
        }


def read_verified(selected: SelectedTable, copies: BackupStore, row: Row) -> bytes:
    """The content of a copy (a row of schema HELD).

    Raises:
        BackupError: it is not there, or is not what was backed up.
    """
    content = copies.read(row["stored_key"], row["stored_version_id"])
    kind, _, digest = (row["checksum"] or "").partition(":")
    if kind == "sha256" and sha256(content).hexdigest() != digest:
        raise _make_damaged_error(selected, row, "it was changed since it was backed up")
    return content


def head_copies(selected: SelectedTable, rows: pa.Table) -> dict[str, ListedObject]:
    """What the store of the copies says of those that rows tell of, by key.

    Raises:
        BackupError: a copy is not there any more, has another size, or is another than the point holds.
    """
    store = open_store(selected.copies)
    root = selected.table.stored_root
    # Of what belongs to no table each is asked for by itself.
    listed = {one.key: one for one in store.list(f"{root}/") if not one.is_delete_marker} if root else {}

    def found(row: Row) -> ListedObject:
        there = listed.get(row["stored_key"])
        if there is None or (row["stored_etag"] not in (None, there.etag) and row["stored_version_id"]):
            there = _version(store, row)
        if there is None:
            raise _make_damaged_error(selected, row, "it is not there any more")
        if there.size_bytes != row["size_bytes"]:
            raise _make_damaged_error(
                selected, row, f"it has {there.size_bytes} bytes, {row['size_bytes']} were backed up"
            )
        if row["stored_etag"] not in (None, there.etag):
            raise _make_damaged_error(selected, row, "it was changed since it was backed up")
        return there

    with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
        records = rows.to_pylist()
        return {
            row["stored_key"]: there for row, there in zip(records, pool.map(found, records), strict=True)
        }


def select_archived(stored: dict[str, ListedObject]) -> list[ListedObject]:
    """Those that have to be thawed before they can be copied."""
    return [one for one in stored.values() if one.storage_class in ARCHIVES]


def _version(store: BackupStore, row: Row) -> ListedObject | None:
    head = store.head(row["stored_key"], row["stored_version_id"])
    if head is None:
        return None
    return ListedObject(
        head.key,
        head.size_bytes,
        head.last_modified,
        head.etag,
        row["stored_version_id"],
        storage_class=head.storage_class,
    )


def _make_damaged_error(selected: SelectedTable, row: Row, reason: str) -> BackupError:
    return BackupError(f"the copy {selected.copies.location(row['stored_key'])}", reason, DAMAGED)


def _require_done(selected: SelectedTable, rows: list[Row], done: list[Row], to: StoreAddress) -> None:
    """Every row copied, with the content that was backed up where both sides know it."""
    backed_up = {row["stored_key"]: row for row in rows}
    for one in _failed(done):
        reason = one["message"] or one["error_code"] or "no reason was given"
        raise BackupError(
            to.location(one["stored_key"]),
            f"it could not be copied there: {reason}",
            "Run the restore again.",
        )
    for one in done:
        row = backed_up[one["key"]]
        kinds = {(checksum or "").partition(":")[0] for checksum in (one["checksum"], row["checksum"])}
        if len(kinds) == 1 and one["checksum"] != row["checksum"]:
            # It was written to an empty place a moment ago, and must not pass for what was lost there.
            open_store(to).delete(one["stored_key"])
            raise _make_damaged_error(
                selected, row, f"its content is {one['checksum']}, {row['checksum']} was backed up"
            )
    if len(done) != len(rows):
        raise BackupError(
            str(to), f"{len(rows) - len(done)} copies are not told of", "Run the restore again."
        )


def _failed(done: list[Row]) -> Iterator[Row]:
    return (one for one in done if one["status"] != "succeeded")


DAY = r"\d{4}-\d\d-\d\d(T\d{6}Z)?"
ROW = pa.schema([pa.field("to_bucket", pa.string()), pa.field("to_key", pa.string())])
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class DestinationState:
    """Rows of HELD, with `to_bucket` and `to_key`, by what is at that place."""

    missing: pa.Table
    there: int
    differing: tuple[str, ...]
    """Locations where something else is."""
    others: tuple[str, ...]
    """Keys below the root that the point does not tell of."""


def compare_destination(
    selected: SelectedTable,
    address: StoreAddress,
    root: str,
    map_key: Callable[[str, str], tuple[str, str]],
) -> DestinationState:
    """Compare the copies of a table with the place they are to go to: `root` is the key of that place in `address`.

    `goes` gives the new bucket and key of an object of the source.

    Raises:
        BackupError: the place cannot be looked at.
    """
    rows = selected.rows.to_pylist()
    prefix = f"{root}/" if root else ""
    found = {one.key: one for one in open_store(address).list(prefix) if not one.is_delete_marker}
    missing: list[dict[str, Any]] = []
    differing: list[str] = []
    wanted: set[str] = set()
    for row in rows:
        bucket, key = map_key(row["bucket"], row["key"])
        store = address if bucket == address.bucket else address.at(bucket)
        there = found.get(key) if bucket == address.bucket else _head(open_store(store), key)
        wanted.add(key)
        if there is None:
            missing.append({**row, "to_bucket": bucket, "to_key": key})
        elif not _is_same(selected, row, open_store(store), there):
            differing.append(store.location(key))
    schema = pa.schema([*selected.rows.schema, *ROW])
    others = tuple(key for key in found if key not in wanted)
    table = pa.Table.from_pylist(missing, schema)
    return DestinationState(table, len(rows) - len(missing) - len(differing), tuple(differing), others)


def require_outside_target(backup: Backup, to: StoreAddress) -> None:
    """Refuse a place inside the target of a backup: a sweep, a scrub and the next listing would take it for copies.

    Raises:
        BackupError: it is there.
    """
    for target in (backup.target, backup.records):
        if to.kind != target.kind or to.endpoint != target.endpoint:
            continue
        above, place = target.url.rstrip("/"), to.url.rstrip("/")
        if to.kind == "folder":
            above, place = os.path.realpath(above), os.path.realpath(place)
        if re.match(rf"{re.escape(above).replace(re.escape('{day}'), DAY)}(/|$)", place):
            raise BackupError(
                f"--to {to.url}",
                f"it is inside {target.url}, the target of backup {backup.name}",
                "Name an empty place outside of it.",
            )


def _head(store: BackupStore, key: str) -> ListedObject | None:
    head = store.head(key)
    return None if head is None else ListedObject(key, head.size_bytes, head.last_modified, head.etag)


def _is_same(selected: SelectedTable, row: dict[str, Any], store: BackupStore, there: ListedObject) -> bool:
    """By size and ETag; where only the ETag differs, by content: a copy may have got another one."""
    if there.size_bytes != row["size_bytes"]:
        return False
    if there.etag in (row["etag"], row["stored_etag"]):
        return True
    kind, _, checksum = (row["checksum"] or "").partition(":")
    digest = _digest(store, there.key)
    if kind == "sha256":
        return digest == checksum
    return digest == _digest(open_store(selected.copies), row["stored_key"], row["stored_version_id"])


def _digest(store: BackupStore, key: str, version_id: str | None = None) -> str:
    digest = sha256()
    with store.open(key, version_id) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def require_not_taken(place: str, taken: Iterable[str]) -> None:
    """Refuse a place where something is that is none of the table's.

    Raises:
        BackupError: there is something.
    """
    first = next(iter(taken), None)
    if first is not None:
        raise BackupError(
            place, f"something else is there already: {first}", "Give an empty place; nothing was written."
        )


ANOTHER = "Restore from another point; what is there now was not registered."


@dataclass(frozen=True)
class OpenedTable:
    """What an independent reader found: all rows, each read, and how many data files they are in.

    `rows` is None where the reader does not read all: a Delta table of very many files, deletes by value.
    """

    rows: int | None
    files: int
    reader: str


def open_delta(address: StoreAddress, root: str, version: int) -> OpenedTable:
    """A Delta table at a version, read by delta-rs.

    Raises:
        BackupError: it does not open, or a file that it needs cannot be read.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    location = address.location(root)
    try:
        files = len(DeltaTable(location, version, make_storage_options(address) or None).file_uris())
        rows, reader = count_rows(address, root, version, files)
    except (DeltaError, OSError, ValueError) as error:
        raise _make_open_error(location, error) from error
    return OpenedTable(rows, files, reader)


def open_iceberg(address: StoreAddress, metadata_location: str, snapshot_id: int) -> OpenedTable:
    """An Iceberg table at a snapshot, read by PyIceberg: every data file is opened.

    Raises:
        BackupError: it does not open, or a file that it needs cannot be read.
    """
    from importlib.metadata import version as version_of

    from pyiceberg.table import StaticTable

    reader = f"pyiceberg {version_of('pyiceberg')}"
    try:
        table = StaticTable.from_metadata(metadata_location, make_file_properties(address))
        counted = _count_rows(table, snapshot_id)
    # What file systems and decoders raise through PyIceberg has no class of its own.
    except Exception as error:
        raise _make_open_error(metadata_location, error) from error
    return OpenedTable(*counted, reader)


def _count_rows(table: "StaticTable", snapshot_id: int) -> tuple[int | None, int]:
    scan = table.scan(snapshot_id=snapshot_id)
    try:
        files = [task.file for task in scan.plan_files()]
    except ValueError as error:
        if "equality deletes" not in str(error):
            raise
        # The one thing of a table that PyIceberg does not read.
        at = table.inspect.data_files(snapshot_id=snapshot_id)
        return None, len(at)
    # A column is looked at, because the manifests alone would answer a mere count.
    smallest = table.scan(snapshot_id=snapshot_id, selected_fields=(choose_file_column(scan),))
    return sum(batch.num_rows for batch in smallest.to_arrow_batch_reader()), len(files)


def _make_open_error(location: str, error: Exception) -> BackupError:
    if isinstance(error, BackupError):
        return error
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return BackupError(location, f"it does not open: {reason}", ANOTHER)


ReportMessage = Callable[[str], None]


def ignore_progress(progress: Progress) -> None:
    """Tell nobody."""


def remove_empty(root: Path, prefix: str) -> None:
    """Remove the folders of a prefix that keep nothing any more, those above it too."""
    for folder, _, _ in os.walk(root / prefix, topdown=False):
        Path(folder).rmdir()
    # The folders above may be others' as well.
    for above in list((root / prefix).parents)[: prefix.rstrip("/").count("/")]:
        with suppress(OSError):
            above.rmdir()


def ignore_message(sentence: str) -> None:
    """Say it to nobody."""


@dataclass
class TableRestore:
    """A table of a point on its way to `root` in the store `to`."""

    settings: LakeSettings
    backup: Backup
    selected: SelectedTable
    to: StoreAddress
    root: str
    report_message: ReportMessage = ignore_message
    report_progress: ReportProgress = ignore_progress
    began: float = field(default_factory=time.monotonic)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    objects: int = 0
    size_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    @cached_property
    def engine(self) -> CopyEngine:
        """The engine that copies: always our own, which needs neither Spark nor a service."""
        from lakeshare_pipelines.backup.copy.local import LocalEngine

        return LocalEngine()

    @cached_property
    def store(self) -> BackupStore:
        """Where the table goes."""
        return open_store(self.to)

    @property
    def place(self) -> str:
        """Location of the table's new root."""
        return self.to.location(self.root)

    @property
    def title(self) -> str:
        """What is done, for people."""
        return f"restore of {self.selected.table.root or 'other files'} to {self.place}"

    @property
    def name(self) -> str:
        """The same for the same restore, whoever does it again."""
        content = (
            f"{self.selected.point.day}\n{self.selected.table.root}\n{self.selected.version}\n{self.place}"
        )
        return sha256(content.encode()).hexdigest()[:16]

    def bring(self, at: DestinationState, *, into_live_log: bool = False) -> None:
        """Copy what is missing, and count it; what the engine keeps for itself goes when all is there."""
        if not at.missing.num_rows:
            return
        self._forget()
        if self.to.kind == "folder" and self.root:
            remove_unfinished(Path(self.to.url) / self.root)
        # A ledger of an earlier attempt tells of what may be gone again: what is missing now is copied now.
        prefix = f"{self._prefix}{uuid4().hex}/"
        copying = RestoreCopy(
            self.backup, self.selected, self._workspace, prefix, self.engine, self.report_progress
        )
        copying.bring(at.missing, self.to, into_live_log=into_live_log)
        self.objects += at.missing.num_rows
        self.size_bytes += sum(at.missing["size_bytes"].to_pylist())
        self._forget()
        self.report_message(
            f"{at.missing.num_rows:,} objects brought to {self.place}, {at.there:,} were there"
        )

    @property
    def _prefix(self) -> str:
        """What the engine keeps for itself while it copies, in the store that the table goes to."""
        return f"{self.to.prefix}{OWN_PREFIX}{self.backup.name}/restores/{self.name}/"

    @property
    def _workspace(self) -> Workspace:
        return Workspace(self.settings.state_dir / "backup_work" / self.backup.name / "restores" / self.name)

    def _forget(self) -> None:
        for one in self.store.list(self._prefix):
            self.store.delete(one.key)
        if self.to.kind == "folder":
            remove_empty(Path(self.to.url), self._prefix)
        self._workspace.remove()

    def moved(self, keys: Mapping[str, str]) -> Callable[[str], str]:
        """New locations of a table's files by what its metadata calls them: `keys` are new locations by old ones.

        What the point does not hold moves with the root it is under, or stays.
        """
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
        """What was done.

        Raises:
            BackupError: the table has another number of rows than the point proved.
        """
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
        """Refuse a table that is not what the point proved of it.

        Raises:
            BackupError: it has more rows, or fewer.
        """
        proof = self.selected.proof
        proved = proof.snapshot_id if proof.table.format == "iceberg" else proof.version
        if (
            self.selected.version == proved
            and None not in (proof.rows, opened.rows)
            and proof.rows != opened.rows
        ):
            raise BackupError(
                location,
                f"it opens with {opened.rows} rows, the point proved {proof.rows}",
                "Restore from another point; what is there now was not registered.",
            )
