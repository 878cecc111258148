"""Iceberg tables in a copy: current and complete metadata, and the mount at which the table opens (Iceberg spec)."""

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import pyarrow as pa

from lakeshare_pipelines.backup.model import OpenSpark, Status, TableProof
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.stores import StoreAddress, make_file_properties
from lakeshare_pipelines.backup.verify.objects import (
    READ_WHOLE_FILES,
    Need,
    TableCopy,
    count_rows_or_use_spark,
    explain_outside_needs,
    explain_too_small,
    get_first_line,
    normalize_location,
)
from lakeshare_pipelines.backup.verify.rewriting import MOUNT_PROPERTIES, RewrittenTable, rewrite_table
from lakeshare_pipelines.errors import BackupError, ObjectMissing
from lakeshare_pipelines.nessie.client import Nessie
from lakeshare_pipelines.nessie.server import ensure_nessie, nessie_dir
from lakeshare_pipelines.settings import NESSIE, LakeSettings
from lakeshare_server.tables.iceberg.avro import Entries, read_container
from lakeshare_server.tables.iceberg.manifests import DELETED, Manifest, parse_manifest_list
from lakeshare_server.tables.iceberg.metadata import MAX_METADATA_BYTES, MetadataError, decompress_metadata

if TYPE_CHECKING:
    from pyiceberg.table import DataScan, StaticTable

FOLDER = "metadata"
NAME = re.compile(r".*(\.gz)?\.metadata\.json(\.gz)?")


@dataclass(frozen=True)
class Snapshot:
    """A snapshot; `manifests` are from the oldest tables, which have no manifest list."""

    id: int
    sequence_number: int
    manifest_list: str | None
    manifests: tuple[str, ...]
    rows: int | None = None  # As in its summary


@dataclass(frozen=True)
class TableMetadata:
    key: str
    uuid: str | None
    sequence_number: int
    updated_at: dt.datetime
    current: int | None
    snapshots: Mapping[int, Snapshot]
    statistics: tuple[str, ...]  # Of all snapshots; they only help to plan
    earlier: tuple[str, ...]  # Locations of earlier metadata files, newest first


def read_metadata(key: str, content: bytes) -> TableMetadata:
    """Parse a metadata file. Raises ValueError if it is damaged, or not the metadata of a table."""
    try:
        return _parse_metadata(key, orjson.loads(decompress_metadata(content, MAX_METADATA_BYTES)))
    except (MetadataError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{key} is not whole, or no table's metadata") from error


def _parse_metadata(key: str, metadata: Mapping[str, Any]) -> TableMetadata:
    current = metadata.get("current-snapshot-id")
    snapshots = [
        Snapshot(
            int(snapshot["snapshot-id"]),
            int(snapshot.get("sequence-number") or 0),
            snapshot.get("manifest-list"),
            tuple(snapshot.get("manifests") or ()),
            _count_summary_rows(snapshot.get("summary") or {}),
        )
        for snapshot in metadata.get("snapshots") or ()
    ]
    statistics = [*(metadata.get("statistics") or ()), *(metadata.get("partition-statistics") or ())]
    return TableMetadata(
        key=key,
        uuid=metadata.get("table-uuid"),
        sequence_number=int(metadata.get("last-sequence-number") or 0),
        updated_at=dt.datetime.fromtimestamp(metadata["last-updated-ms"] / 1000, dt.UTC),
        current=None if current in (None, -1) else int(current),
        snapshots={snapshot.id: snapshot for snapshot in snapshots},
        statistics=tuple(file["statistics-path"] for file in statistics),
        earlier=tuple(entry["metadata-file"] for entry in reversed(metadata.get("metadata-log") or ())),
    )


def _count_summary_rows(summary: Mapping[str, Any]) -> int | None:
    """Live rows by a summary, whose values are texts (Iceberg spec, "Snapshot Summary")."""
    deletes = [summary.get(name, "0") for name in ("total-position-deletes", "total-equality-deletes")]
    total = summary.get("total-records")
    numbers = [str(value) for value in (total, *deletes)]
    if total is None or not all(number.isdecimal() for number in numbers):
        return None
    records, positions, values = map(int, numbers)
    # How many rows equality deletes remove is not known.
    return None if values else max(records - positions, 0)


@dataclass
class Closure:
    """The files of a snapshot or a manifest; `needs` are those that are not whole."""

    needs: list[Need] = field(default_factory=list)
    files: int = 0
    size_bytes: int = 0
    rows: int | None = 0  # Of its data files; None if other files delete rows of them

    def add(self, other: "Closure") -> None:
        self.needs += other.needs
        self.files += other.files
        self.size_bytes += other.size_bytes
        self.rows = None if self.rows is None or other.rows is None else self.rows + other.rows


STORED = ("location", "stored_key", "stored_version_id", "size_bytes")


class StoredCopy(NamedTuple):
    key: str
    version_id: str | None
    size_bytes: int


class CopiedFiles:
    """The objects of a table by their original location, and the closures of its snapshots."""

    def __init__(self, copy: TableCopy) -> None:
        self._copy = copy
        self._stored: dict[str, StoredCopy] = {}
        self._looked_up: set[str] = set()
        self._manifests: dict[str, Closure] = {}
        self._take(copy.select(*STORED, condition="is_whole"))

    def find(self, location: str) -> StoredCopy | None:
        """The copy of an original location; None if it is not whole."""
        location = normalize_location(location)
        if location not in self._stored:
            self._look_up([location])
        return self._stored.get(location)

    def read(self, location: str) -> bytes:
        copy = self.find(location)
        if copy is None:
            raise ObjectMissing(location)
        return self._copy.store.read(copy.key, copy.version_id)

    def closure(self, snapshot: Snapshot) -> Closure:
        found = Closure()
        for manifest in self._list_manifests(snapshot, found):
            if manifest.path not in self._manifests:
                self._manifests[manifest.path] = self._read_manifest(manifest)
            found.add(self._manifests[manifest.path])
        return found

    def _list_manifests(self, snapshot: Snapshot, into: Closure) -> list[Manifest]:
        if snapshot.manifest_list is None:
            return [Manifest(path=path) for path in snapshot.manifests]
        content = self._read_or_need(snapshot.manifest_list, None, into)
        if content is None:
            return []
        try:
            return parse_manifest_list(content)
        except ValueError:
            into.needs.append(Need(normalize_location(snapshot.manifest_list)))
            return []

    def _read_manifest(self, manifest: Manifest) -> Closure:
        found = Closure(rows=None if manifest.has_deletes else 0)
        content = self._read_or_need(manifest.path, manifest.size_bytes or None, found)
        if content is None:
            return found
        try:
            live = list_live_files(content, manifest.spec_id or 0)
        except ValueError:
            found.needs.append(Need(normalize_location(manifest.path), manifest.size_bytes or None))
            return found
        self._look_up([location for location, _, _ in live])
        for location, size_bytes, rows in live:
            # The manifest may state the size of one deletion vector instead of the size of its file.
            copy = self._stored.get(location)
            if copy is None or (copy.size_bytes != size_bytes and not location.endswith(".puffin")):
                found.needs.append(Need(location, size_bytes))
            found.files += 1
            found.size_bytes += size_bytes
            if found.rows is not None:
                found.rows = None if rows is None else found.rows + rows
        return found

    def _read_or_need(self, location: str, size_bytes: int | None, into: Closure) -> bytes | None:
        try:
            return self.read(location)
        except ObjectMissing:
            into.needs.append(Need(normalize_location(location), size_bytes))
            return None

    def _look_up(self, locations: Sequence[str]) -> None:
        unknown = [
            location
            for location in locations
            if location not in self._stored and location not in self._looked_up
        ]
        if unknown:
            self._looked_up.update(unknown)
            found = self._copy.objects.select_locations((*STORED, "is_whole"), unknown)
            self._take(found.filter(found["is_whole"]))

    def _take(self, objects: pa.Table) -> None:
        columns = (objects[name].to_pylist() for name in STORED)
        for location, *stored in zip(*columns, strict=True):
            self._stored[location] = StoredCopy(*stored)


def list_live_files(manifest: bytes, spec_id: int) -> list[tuple[str, int, int | None]]:
    """Location, size and rows of the live files of a manifest; raises ValueError if it is damaged."""
    entries = Entries()
    entries.read(read_container(manifest), spec_id)
    columns = (entries.columns[name] for name in ("status", "path", "size", "rows"))
    return [
        (normalize_location(path.decode()), size_bytes, rows)
        for status, path, size_bytes, rows in zip(*columns, strict=True)
        if status != DELETED
    ]


MAX_NEWEST = 50  # How many metadata files are read; tables keep a hundred by default


@dataclass(frozen=True)
class CompleteState:
    """A metadata file whose current snapshot is complete; `complete` are its complete snapshots."""

    metadata: TableMetadata
    closure: Closure
    complete: tuple[int, ...]
    without_statistics: tuple[str, ...]  # Missing files of statistics: the table opens without them


@dataclass
class IcebergAssessment:
    """The states at which the copy of a table can be opened, newest first, and what is missing."""

    wanted: TableMetadata | None = None
    states: list[CompleteState] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    is_newest_read: bool = True  # No metadata file newer than `wanted` was left out because it cannot be read

    @property
    def wanted_rows(self) -> int | None:
        if self.wanted is None or not self.is_newest_read:
            return None
        if self.wanted.current is None:
            return 0
        snapshot = self.wanted.snapshots.get(self.wanted.current)
        return None if snapshot is None else snapshot.rows


def assess(copy: TableCopy, as_of: dt.datetime, pointer: str | None, tried: int) -> IcebergAssessment:
    """Read the metadata of the copy of an Iceberg table. With the metadata file that the catalog had at as_of,
    `pointer`, only that file and those before it count."""
    files, found = CopiedFiles(copy), IcebergAssessment()
    if pointer is None:
        newest_first = _read_newest(copy, files, as_of, found)
    else:
        newest_first = _read_from_pointer(copy, files, normalize_location(pointer), found)
    found.wanted = newest_first[0] if newest_first else None
    for metadata in newest_first:
        closure = Closure()
        if metadata.current is not None:
            snapshot = metadata.snapshots.get(metadata.current)
            # Without its current snapshot a file is unusable.
            location = copy.locate(metadata.key)
            closure = files.closure(snapshot) if snapshot else Closure(needs=[Need(location)])
        lost = tuple(normalize_location(path) for path in metadata.statistics if files.find(path) is None)
        if metadata is found.wanted:
            found.needs += [*closure.needs, *(Need(path) for path in lost)]
        if not closure.needs:
            snapshots = metadata.snapshots.values()
            complete = [snapshot.id for snapshot in snapshots if not files.closure(snapshot).needs]
            found.states.append(CompleteState(metadata, closure, tuple(complete), lost))
            if len(found.states) == tried:
                break
    return found


def _read_newest(
    copy: TableCopy, files: CopiedFiles, as_of: dt.datetime, found: IcebergAssessment
) -> list[TableMetadata]:
    rows = copy.below(f"{FOLDER}/", "key", "location", "last_modified", "is_whole").to_pylist()
    named = [row for row in rows if NAME.fullmatch(row["key"])]
    named.sort(key=lambda row: row["last_modified"], reverse=True)
    read: list[TableMetadata] = []
    for row in named[:MAX_NEWEST]:
        metadata = _read_metadata_file(files, row["location"], row["key"], found)
        if metadata is None:
            # Files before it were written later: only one before all that can be read hides a newer state.
            found.is_newest_read = found.is_newest_read and bool(read)
        elif metadata.updated_at < as_of:
            read.append(metadata)
    read.sort(
        key=lambda metadata: (metadata.updated_at, metadata.sequence_number, metadata.key), reverse=True
    )
    # A table that was made anew at the same location has another UUID.
    return [metadata for metadata in read if metadata.uuid == read[0].uuid]


def _read_from_pointer(
    copy: TableCopy, files: CopiedFiles, pointer: str, found: IcebergAssessment
) -> list[TableMetadata]:
    """The metadata file that the catalog names, and earlier ones, newest first."""
    root = copy.locate("")
    first = _read_metadata_file(files, pointer, pointer.removeprefix(root), found)
    if first is None:
        return []
    earlier = [
        normalize_location(path) for path in first.earlier[:MAX_NEWEST] if files.find(path) is not None
    ]
    read = [_read_metadata_file(files, path, path.removeprefix(root), found) for path in earlier]
    return [first, *(metadata for metadata in read if metadata is not None)]


def _read_metadata_file(
    files: CopiedFiles, location: str, key: str, found: IcebergAssessment
) -> TableMetadata | None:
    try:
        return read_metadata(key, files.read(location))
    except ObjectMissing:
        found.reasons.append(f"{key} is not in the copy.")
    except ValueError as error:
        found.reasons.append(f"{error}.")
    found.needs.append(Need(location))
    return None


def open_static(address: StoreAddress, metadata_location: str) -> "tuple[StaticTable, str]":
    """The table of a metadata file in pyiceberg, and the name of that reader."""
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(metadata_location, make_file_properties(address))
    return table, f"pyiceberg {version_of('pyiceberg')}"


def count_rows(address: StoreAddress, metadata_location: str, files: int) -> tuple[int | None, str]:
    """Rows of the table, and the name of the reader; None for a table with too many files to read."""
    # pyiceberg, pyarrow and what they call raise errors of any class: each means that the table does not open.
    try:
        table, reader = open_static(address, metadata_location)
        if table.current_snapshot() is None:
            return 0, reader
        if files > READ_WHOLE_FILES:
            sum(1 for _ in table.scan().plan_files())
            return None, f"{reader}, planned only"
        return read_scan(table.scan()), reader
    except Exception as error:
        fix = "Another reader, or an older state, is tried."
        reason = f"pyiceberg cannot open it: {get_first_line(error)}"
        raise BackupError(metadata_location, reason, fix) from error


def read_scan(scan: "DataScan") -> int:
    """The rows of a scan. A column is read whose values are in the data files: the manifests alone would answer a
    plain count, and have the values of partition columns."""
    partitions = {field.source_id for spec in scan.table_metadata.partition_specs for field in spec.fields}
    columns = scan.projection().fields
    plain = [field for field in columns if field.field_type.is_primitive]
    chosen = [field for field in plain if field.field_id not in partitions] or plain or list(columns)
    return sum(batch.num_rows for batch in scan.select(chosen[0].name).to_arrow_batch_reader())


@dataclass(frozen=True)
class IcebergTable:
    copy: TableCopy
    found: IcebergAssessment
    as_of: dt.datetime
    points: Points
    day: str
    spark: OpenSpark | None

    def proof(self) -> TableProof:
        found, reasons = self.found, list(self.found.reasons)
        for state in found.states:
            try:
                return self._open(state, reasons)
            except BackupError as error:
                reasons.append(f"{error.subject}: {error.reason}.")
        missing = self._list_missing()
        reasons += explain_outside_needs(self.copy, self.found.needs, self.points.backup)
        status: Status = "failed" if found.wanted is None else "degraded"
        reasons.append(
            f"{len(missing)} files are missing and no older state is complete: look for them in older points, or "
            "restore the table from an older point."
            if missing
            else "No state of it can be opened: look at its metadata at the source."
        )
        return self.copy.make_proof(status, self._wanted_version(), missing, reasons)

    def _open(self, state: CompleteState, reasons: list[str]) -> TableProof:
        metadata, closure = state.metadata, state.closure
        mount = self._write_mount(state)
        location = mount.metadata_location
        read = partial(count_rows, self.points.store.address, location, closure.files)
        rows, reader = count_rows_or_use_spark(read, self.spark, "iceberg", location)
        level, compared_at, limits = self.copy.prove_level(
            self.points.backup.scrub.within_days, was_read=rows is not None
        )
        if None not in (rows, closure.rows) and rows != closure.rows:
            contradiction = f"{reader} reads {rows} rows, the manifests say {closure.rows}"
            raise BackupError(metadata.key, contradiction, "Look at the table at its source.")
        is_wanted = self.found.wanted is metadata and self.found.is_newest_read
        missing = [] if is_wanted else self._list_missing()
        if not is_wanted:
            reasons.append(
                f"The newest state before {self.as_of:%Y-%m-%d %H:%M} UTC lacks {len(missing)} files; "
                f"the state of {metadata.updated_at:%Y-%m-%d %H:%M:%S} is whole."
            )
        elif state.without_statistics:
            reasons.append(
                f"{len(state.without_statistics)} files of statistics are missing; readers do without."
            )
        outside = [] if is_wanted else explain_outside_needs(self.copy, self.found.needs, self.points.backup)
        rows = closure.rows if rows is None else rows
        shrunk = None if is_wanted else explain_too_small(rows, self.found.wanted_rows)
        reasons += [*outside, *([shrunk] if shrunk else [])]
        # Files outside of the source will be missing the next day as well: an older state is no fallback.
        is_degraded, is_whole = bool(shrunk or outside), is_wanted and not state.without_statistics
        return self.copy.make_proof(
            "degraded" if is_degraded else "verified" if is_whole else "verified_with_fallback",
            self._wanted_version(),
            missing,
            [*reasons, *limits],
            version=metadata.sequence_number,
            snapshot_id=metadata.current,
            metadata_key=metadata.key,
            oldest_version=min(
                (metadata.snapshots[snapshot].sequence_number for snapshot in state.complete),
                default=metadata.sequence_number,
            ),
            committed_at=metadata.updated_at,
            files=closure.files,
            size_bytes=closure.size_bytes,
            rows=rows,
            level=level,
            compared_at=compared_at,
            opened_by=reader,
            mount=location,
            mount_digest=self.points.mount_digest(location),
        )

    def _wanted_version(self) -> int | None:
        wanted = self.found.wanted if self.found.is_newest_read else None
        return None if wanted is None else wanted.sequence_number

    def _write_mount(self, state: CompleteState) -> RewrittenTable:
        """Write metadata in the point's folder that names the copies: Iceberg's paths are absolute up to version 3."""
        files = CopiedFiles(self.copy)
        target = self.copy.store.address

        def moved(location: str) -> str:
            copy = files.find(location)
            # Files that only older snapshots name keep their location; they are not read.
            return location if copy is None else target.location(copy.key)

        try:
            return rewrite_table(
                files.read,
                self.copy.locate(state.metadata.key),
                moved,
                self.points.store,
                f"{self.points.folder(self.day)}mounts/{self.copy.table.root}",
                state.complete,
                properties=MOUNT_PROPERTIES,
            )
        except ObjectMissing as error:
            raise BackupError(state.metadata.key, f"{error}", "An older state is tried.") from error

    def _list_missing(self) -> list[str]:
        return sorted(set(self.copy.relative_locations(self.found.needs)))


def list_main_pointers(settings: LakeSettings, as_of: dt.datetime) -> tuple[str, ...]:
    """Locations of the metadata files of main's Iceberg tables at the newest commit before `as_of`, if there is one."""
    has_nessie = settings.nessie_uri is not None or nessie_dir(settings).exists()
    if settings.iceberg_catalog != NESSIE or not has_nessie:
        return ()  # other catalogs have no past
    nessie = Nessie.connect(ensure_nessie(settings), "writer")
    before = next((commit for commit in nessie.history("main") if commit.committed_at < as_of), None)
    if before is None:
        return ()
    at = f"main@{before.hash}"
    contents = (nessie.content(table, at) for table in nessie.tables(at))
    return tuple(content.metadata_location for content in contents if content is not None)
