"""Iceberg tables in a copy: which metadata is current and complete, and the mount at which it opens (Iceberg spec)."""

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import pyarrow as pa

from lakeshare_pipelines.backup.model import Status, TableProof
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.rewriting import MOUNT_PROPERTIES, RewrittenTable, rewrite_table
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress
from lakeshare_pipelines.backup.stores.store import make_file_properties
from lakeshare_pipelines.backup.verify.objects import (
    Need,
    OpenSpark,
    TableCopy,
    count_rows_by_spark,
    explain_outside_needs,
    explain_too_small,
    is_unsupported,
)
from lakeshare_pipelines.errors import BackupError, ObjectMissing
from lakeshare_pipelines.nessie.client import Nessie
from lakeshare_pipelines.nessie.server import ensure_nessie, nessie_dir
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.errors import BadRequest
from lakeshare_server.storage.locations import normalise_location
from lakeshare_server.tables.iceberg.avro import Entries, read_container
from lakeshare_server.tables.iceberg.manifests import Manifest, parse_manifest_list
from lakeshare_server.tables.iceberg.metadata import MAX_METADATA_BYTES, MetadataError, decompress_metadata

if TYPE_CHECKING:
    from pyiceberg.table import DataScan

FOLDER = "metadata"
NAME = re.compile(r".*(\.gz)?\.metadata\.json(\.gz)?")


@dataclass(frozen=True)
class Snapshot:
    """One snapshot; `manifests` are told by the oldest tables, which have no list of them."""

    id: int
    sequence_number: int
    manifest_list: str | None
    manifests: tuple[str, ...]
    rows: int | None = None
    """As its summary says."""


@dataclass(frozen=True)
class TableMetadata:
    """What one metadata file says."""

    key: str
    uuid: str | None
    sequence_number: int
    updated_at: dt.datetime
    current: int | None
    snapshots: Mapping[int, Snapshot]
    statistics: tuple[str, ...]
    """Of all snapshots: they only help to plan."""
    earlier: tuple[str, ...]
    """Locations of the metadata files before it, newest first."""


def read_metadata(key: str, content: bytes) -> TableMetadata:
    """Take a metadata file apart.

    Raises:
        ValueError: it is not whole, or no table's metadata.
    """
    try:
        metadata = orjson.loads(decompress_metadata(content, MAX_METADATA_BYTES))
        return _metadata(key, metadata)
    except (MetadataError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{key} is not whole, or no table's metadata") from error


# `said` is what JSON can say.
def _metadata(key: str, metadata: Mapping[str, Any]) -> TableMetadata:
    current = metadata.get("current-snapshot-id")
    snapshots = [
        Snapshot(
            int(one["snapshot-id"]),
            int(one.get("sequence-number") or 0),
            one.get("manifest-list"),
            tuple(one.get("manifests") or ()),
            _rows(one.get("summary") or {}),
        )
        for one in metadata.get("snapshots") or ()
    ]
    statistics = [*(metadata.get("statistics") or ()), *(metadata.get("partition-statistics") or ())]
    return TableMetadata(
        key=key,
        uuid=metadata.get("table-uuid"),
        sequence_number=int(metadata.get("last-sequence-number") or 0),
        updated_at=dt.datetime.fromtimestamp(metadata["last-updated-ms"] / 1000, dt.UTC),
        current=None if current in (None, -1) else int(current),
        snapshots={one.id: one for one in snapshots},
        statistics=tuple(one["statistics-path"] for one in statistics),
        earlier=tuple(one["metadata-file"] for one in reversed(metadata.get("metadata-log") or ())),
    )


def _rows(summary: Mapping[str, Any]) -> int | None:
    """A summary's values are texts (Iceberg spec, "Snapshot Summary"); deletes by row are counted by themselves."""
    deletes = [summary.get(name, "0") for name in ("total-position-deletes", "total-equality-deletes")]
    total = summary.get("total-records")
    numbers = [str(one) for one in (total, *deletes)]
    if total is None or not all(number.isdecimal() for number in numbers):
        return None
    records, positions, values = map(int, numbers)
    # Rows that are deleted by value are not counted by anybody.
    return None if values else max(records - positions, 0)


DELETED = 2


@dataclass
class Closure:
    """What one snapshot, or one manifest, is made of; `needs` is what of it is not whole."""

    needs: list[Need] = dataclass_field(default_factory=list)
    files: int = 0
    size_bytes: int = 0
    rows: int | None = 0
    """Of its data files; None where rows are deleted from them by other files."""

    def add(self, other: "Closure") -> None:
        """Take over what another is made of."""
        self.needs += other.needs
        self.files += other.files
        self.size_bytes += other.size_bytes
        self.rows = None if self.rows is None or other.rows is None else self.rows + other.rows


class StoredCopy(NamedTuple):
    """Where a copy is, and how large."""

    key: str
    version_id: str | None
    size_bytes: int


class CopiedFiles:
    """The objects of a table by their original location, and the closures that they make."""

    def __init__(self, copy: TableCopy) -> None:
        self._copy = copy
        self._stored: dict[str, StoredCopy] = {}
        self._asked: set[str] = set()
        self._manifests: dict[str, Closure] = {}
        self._take(copy.whole)

    def stored_key(self, location: str) -> str | None:
        """Where the copy of an original is; None when it is not whole."""
        found = self._of(location)
        return None if found is None else found.key

    def size_bytes(self, location: str) -> int | None:
        """The size of what is whole; None when it is not."""
        found = self._of(location)
        return None if found is None else found.size_bytes

    def read(self, location: str) -> bytes:
        """The copy of an original.

        Raises:
            ObjectMissing: there is none.
        """
        found = self._of(location)
        if found is None:
            raise ObjectMissing(location)
        return self._copy.store.read(found.key, found.version_id)

    def closure(self, snapshot: Snapshot) -> Closure:
        """What a snapshot is made of."""
        found = Closure()
        manifests = self._listed(snapshot, found)
        for manifest in manifests:
            if manifest.path not in self._manifests:
                self._manifests[manifest.path] = self._manifest(manifest)
            found.add(self._manifests[manifest.path])
        return found

    def _listed(self, snapshot: Snapshot, into: Closure) -> list[Manifest]:
        if snapshot.manifest_list is None:
            return [Manifest(path=path) for path in snapshot.manifests]
        content = self._content(snapshot.manifest_list, None, into)
        if content is None:
            return []
        try:
            return parse_manifest_list(content)
        except ValueError:
            into.needs.append(Need(normalize_location(snapshot.manifest_list)))
            return []

    def _manifest(self, manifest: Manifest) -> Closure:
        found = Closure(rows=None if manifest.has_deletes else 0)
        content = self._content(manifest.path, manifest.size_bytes or None, found)
        if content is None:
            return found
        try:
            entries = Entries()
            entries.read(read_container(content), manifest.spec_id or 0)
        except ValueError:
            found.needs.append(Need(normalize_location(manifest.path), manifest.size_bytes or None))
            return found
        columns = (entries.columns[name] for name in ("status", "path", "size", "rows"))
        live = [row[1:] for row in zip(*columns, strict=True) if row[0] != DELETED]
        self._learn([normalize_location(path.decode()) for path, _, _ in live])
        for path, size_bytes, rows in live:
            self._file(path.decode(), size_bytes, rows, found)
        return found

    def _file(self, location: str, size_bytes: int, rows: int | None, into: Closure) -> None:
        location = normalize_location(location)
        # Of a deletion vector's file the manifest's size may be that of one vector only.
        there = self.size_bytes(location)
        if there is None or (there != size_bytes and not location.endswith(".puffin")):
            into.needs.append(Need(location, size_bytes))
        into.files += 1
        into.size_bytes += size_bytes
        if into.rows is not None:
            into.rows = None if rows is None else into.rows + rows

    def _content(self, location: str, size_bytes: int | None, into: Closure) -> bytes | None:
        try:
            return self.read(location)
        except ObjectMissing:
            into.needs.append(Need(normalize_location(location), size_bytes))
            return None

    def _of(self, location: str) -> "StoredCopy | None":
        location = normalize_location(location)
        if location not in self._stored:
            self._learn([location])
        return self._stored.get(location)

    def _learn(self, locations: Sequence[str]) -> None:
        """Look among the objects of other tables, and of none, for what is not among this one's."""
        unknown = [
            location for location in locations if location not in self._stored and location not in self._asked
        ]
        if unknown:
            self._asked.update(unknown)
            found = self._copy.elsewhere(unknown)
            self._take(found.filter(found["is_whole"]))

    def _take(self, objects: pa.Table) -> None:
        names = ("location", "stored_key", "stored_version_id", "size_bytes")
        for location, *stored in zip(*(objects[name].to_pylist() for name in names), strict=True):
            self._stored[location] = StoredCopy(*stored)


def normalize_location(location: str) -> str:
    """A location as stores spell it; one of a store that nobody knows stays as it is: it is not copied."""
    try:
        return normalise_location(location)
    except BadRequest:
        return location


MAX_NEWEST = 50
"""So many metadata files are looked at; tables keep a hundred by default."""


@dataclass(frozen=True)
class CompleteState:
    """A metadata file whose current snapshot is complete; `complete` are all its snapshots that are."""

    metadata: TableMetadata
    closure: Closure
    complete: tuple[int, ...]
    without_statistics: tuple[str, ...]
    """Files of statistics that are nowhere: the table opens without them."""


@dataclass
class IcebergAssessment:
    """What the copy of a table can be opened at, newest first, and what would make it better."""

    wanted: TableMetadata | None = None
    states: list[CompleteState] = dataclass_field(default_factory=list)
    needs: list[Need] = dataclass_field(default_factory=list)
    reasons: list[str] = dataclass_field(default_factory=list)
    is_newest_read: bool = True
    """No metadata file that is newer than `wanted` was left out because it cannot be read."""

    @property
    def wanted_rows(self) -> int | None:
        """How many rows the newest state has; None where that is not known."""
        if self.wanted is None or not self.is_newest_read:
            return None
        if self.wanted.current is None:
            return 0
        snapshot = self.wanted.snapshots.get(self.wanted.current)
        return None if snapshot is None else snapshot.rows


def assess(copy: TableCopy, as_of: dt.datetime, pointer: str | None, tried: int) -> IcebergAssessment:
    """What the copy of an Iceberg table can be opened at.

    `pointer` is the location of the metadata file that the catalog had at as_of, where there is one: then only it and
    those before it count, for others may be of branches that nobody published.
    """
    files, found = CopiedFiles(copy), IcebergAssessment()
    if pointer is None:
        newest_first = _read_newest(copy, files, as_of, found)
    else:
        newest_first = _read_from_pointer(copy, files, normalize_location(pointer), found)
    found.wanted = newest_first[0] if newest_first else None
    for metadata in newest_first:
        closure = Closure() if metadata.current is None else _closure(copy, files, metadata, metadata.current)
        lost = tuple(normalize_location(one) for one in metadata.statistics if files.size_bytes(one) is None)
        if metadata is found.wanted:
            found.needs += [*closure.needs, *(Need(one) for one in lost)]
        if not closure.needs:
            complete = [one.id for one in metadata.snapshots.values() if not files.closure(one).needs]
            found.states.append(CompleteState(metadata, closure, tuple(complete), lost))
            if len(found.states) == tried:
                break
    return found


def _closure(copy: TableCopy, files: CopiedFiles, metadata: TableMetadata, snapshot: int) -> Closure:
    of = metadata.snapshots.get(snapshot)
    # A current snapshot that the file does not have: nothing of it can be read.
    return files.closure(of) if of is not None else Closure(needs=[Need(_location(copy, metadata.key))])


def _location(copy: TableCopy, key: str) -> str:
    return copy.source.at(copy.table.bucket).location(key)


def _read_newest(
    copy: TableCopy, files: CopiedFiles, as_of: dt.datetime, found: IcebergAssessment
) -> list[TableMetadata]:
    """The newest metadata files that were listed, newest first; what of them is not whole is needed."""
    rows = copy.below(f"{FOLDER}/").select(["key", "location", "last_modified", "is_whole"]).to_pylist()
    named = [row for row in rows if NAME.fullmatch(row["key"])]
    named.sort(key=lambda row: row["last_modified"], reverse=True)
    read: list[TableMetadata] = []
    for row in named[:MAX_NEWEST]:
        metadata = _read_metadata_file(files, row["location"], row["key"], found)
        if metadata is None:
            # Those before it were written later: only what comes before all that can be read hides a newer state.
            found.is_newest_read = found.is_newest_read and bool(read)
        elif metadata.updated_at < as_of:
            read.append(metadata)
    read.sort(key=lambda one: (one.updated_at, one.sequence_number, one.key), reverse=True)
    # A table that was made anew at the same place has another identity.
    return [one for one in read if one.uuid == read[0].uuid]


def _read_from_pointer(
    copy: TableCopy, files: CopiedFiles, pointer: str, found: IcebergAssessment
) -> list[TableMetadata]:
    """The metadata file that the catalog names, and those it was made from, newest first."""
    root = _location(copy, "")
    first = _read_metadata_file(files, pointer, pointer.removeprefix(root), found)
    if first is None:
        return []
    earlier = [
        normalize_location(one) for one in first.earlier[:MAX_NEWEST] if files.size_bytes(one) is not None
    ]
    read = [_read_metadata_file(files, one, one.removeprefix(root), found) for one in earlier]
    return [first, *(one for one in read if one is not None)]


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


READ_WHOLE_FILES = 20_000
"""Tables of more files are planned, but their data files are not read: new ones were compared one by one."""


def count_rows(address: StoreAddress, metadata_location: str, files: int) -> tuple[int | None, str]:
    """How many rows the table has, and who says so; None where it has too many files to read each.

    Raises:
        BackupError: it does not open, or a file of it cannot be read.
    """
    from pyiceberg.table import StaticTable

    reader = f"pyiceberg {version_of('pyiceberg')}"
    try:
        table = StaticTable.from_metadata(metadata_location, make_file_properties(address))
        if table.current_snapshot() is None:
            return 0, reader
        if files > READ_WHOLE_FILES:
            sum(1 for _ in table.scan().plan_files())
            return None, f"{reader}, planned only"
        batches = table.scan(selected_fields=(choose_file_column(table.scan()),)).to_arrow_batch_reader()
        return sum(batch.num_rows for batch in batches), reader
    # pyiceberg, pyarrow and what they call raise of everything; nothing of it may pass for an opened table.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackupError(
            metadata_location,
            f"pyiceberg cannot open it: {reason}",
            "Another reader, or an older state, is tried.",
        ) from error


def choose_file_column(scan: "DataScan") -> str:
    """A column whose values are in the data files: those of partitions pyiceberg takes from the manifests."""
    partitions = {field.source_id for spec in scan.table_metadata.partition_specs for field in spec.fields}
    columns = scan.projection().fields
    plain = [field for field in columns if field.field_type.is_primitive]
    chosen = [field for field in plain if field.field_id not in partitions] or plain or list(columns)
    return chosen[0].name


MAX_TRIED = 5
"""So many states are opened, newest first, before a table is given up."""
SHOWN = 100


def assess_iceberg_table(
    copy: TableCopy,
    as_of: dt.datetime,
    pointer: str | None,
    points: Points,
    day: str,
    spark: OpenSpark | None,
) -> "IcebergTable":
    """Read the copy of a table's metadata."""
    return IcebergTable(copy, assess(copy, as_of, pointer, MAX_TRIED), as_of, points, day, spark)


@dataclass(frozen=True)
class IcebergTable:
    """An Iceberg table of a backup (verify/table_copy.py, AssessedTable)."""

    copy: TableCopy
    found: IcebergAssessment
    as_of: dt.datetime
    points: Points
    day: str
    spark: OpenSpark | None

    @property
    def needs(self) -> list[Need]:
        return self.found.needs

    @property
    def removed(self) -> list[str]:
        return []

    def unlisted(self, source: BackupStore) -> list[Need]:
        """Nothing: names of metadata files are not guessed, and the catalog's pointer is among the needs."""
        return []

    def proof(self) -> TableProof:
        found, reasons = self.found, list(self.found.reasons)
        for state in found.states:
            try:
                return self._opened(state, reasons)
            except BackupError as error:
                reasons.append(f"{error.subject}: {error.reason}.")
        missing = self._missing()
        reasons += explain_outside_needs(self.copy, self.needs, self.points.backup)
        status: Status = "failed" if found.wanted is None else "degraded"
        reasons.append(
            f"{len(missing)} files are missing and no older state is complete: look for them in older points, or "
            "restore the table from one."
            if missing
            else "No state of it can be opened: look at its metadata at the source."
        )
        return TableProof(
            table=self.copy.table,
            status=status,
            wanted_version=self._wanted_version(),
            missing=tuple(missing[:SHOWN]),
            missing_count=len(missing),
            healed=self._healed(),
            reasons=tuple(reasons),
        )

    def _opened(self, state: CompleteState, reasons: list[str]) -> TableProof:
        metadata, closure = state.metadata, state.closure
        mount = self._mounted(state)
        rows, reader = self._rows(mount.metadata_location, closure.files)
        proved = self.copy.proved(self.points.backup.scrub.within_days, was_read=rows is not None)
        if None not in (rows, closure.rows) and rows != closure.rows:
            contradiction = f"{reader} reads {rows} rows, the manifests say {closure.rows}"
            raise BackupError(metadata.key, contradiction, "Look at the table at its source.")
        is_wanted = self.found.wanted is metadata and self.found.is_newest_read
        missing = [] if is_wanted else self._missing()
        if not is_wanted:
            reasons.append(
                f"The newest state before {self.as_of:%Y-%m-%d %H:%M} UTC lacks {len(missing)} files that are nowhere; "
                f"the state of {metadata.updated_at:%Y-%m-%d %H:%M:%S} is whole."
            )
        elif state.without_statistics:
            reasons.append(
                f"{len(state.without_statistics)} files of statistics are nowhere; readers do without."
            )
        outside = [] if is_wanted else explain_outside_needs(self.copy, self.needs, self.points.backup)
        reasons += outside
        status: Status = (
            "verified" if is_wanted and not state.without_statistics else "verified_with_fallback"
        )
        shrunk = (
            None
            if is_wanted
            else explain_too_small(closure.rows if rows is None else rows, self.found.wanted_rows)
        )
        if shrunk is not None:
            status = "degraded"
            reasons.append(shrunk)
        if outside:
            # An older state is no fallback from files that will never be in a copy: the next day lacks them as well.
            status = "degraded"
        return TableProof(
            table=self.copy.table,
            status=status,
            version=metadata.sequence_number,
            wanted_version=self._wanted_version(),
            snapshot_id=metadata.current,
            metadata_key=metadata.key,
            oldest_version=min(
                (metadata.snapshots[one].sequence_number for one in state.complete),
                default=metadata.sequence_number,
            ),
            committed_at=metadata.updated_at,
            files=closure.files,
            size_bytes=closure.size_bytes,
            rows=closure.rows if rows is None else rows,
            level=proved.level,
            compared_at=proved.compared_at,
            opened_by=reader,
            mount=mount.metadata_location,
            mount_digest=self.points.mount_digest(mount.metadata_location),
            missing=tuple(missing[:SHOWN]),
            missing_count=len(missing),
            healed=self._healed(),
            reasons=(*reasons, *proved.reasons),
        )

    def _wanted_version(self) -> int | None:
        wanted = self.found.wanted if self.found.is_newest_read else None
        return None if wanted is None else wanted.sequence_number

    def _rows(self, mount: str, files: int) -> tuple[int | None, str]:
        try:
            return count_rows(self.points.store.address, mount, files)
        except BackupError as error:
            if self.spark is None or not is_unsupported(error):
                raise
            return count_rows_by_spark(self.spark, "iceberg", mount)

    def _mounted(self, state: CompleteState) -> RewrittenTable:
        """Metadata of the point's own that names the copies: paths of Iceberg's are absolute up to version 3."""
        files = CopiedFiles(self.copy)
        target = self.copy.store.address

        def moved(location: str) -> str:
            key = files.stored_key(location)
            # What older snapshots name and is not held is named where it was, and read by nobody.
            return location if key is None else target.location(key)

        try:
            return rewrite_table(
                files.read,
                self.copy.source.at(self.copy.table.bucket).location(state.metadata.key),
                moved,
                self.points.store,
                f"{self.points.folder(self.day)}mounts/{self.copy.table.root}",
                state.complete,
                properties=MOUNT_PROPERTIES,
            )
        except ObjectMissing as error:
            raise BackupError(state.metadata.key, f"{error}", "An older state is tried.") from error

    def _missing(self) -> list[str]:
        """Keys, or locations outside of the source, that the wanted state needs."""
        inside = self.copy.source.at(self.copy.table.bucket).location("")
        return sorted({need.location.removeprefix(inside) for need in self.found.needs})

    def _healed(self) -> tuple[str, ...]:
        healed = self.copy.objects.filter(self.copy.objects["is_healed"])
        return tuple(healed["key"].slice(0, SHOWN).to_pylist())


MAIN = "main"


def list_main_pointers(settings: LakeSettings, as_of: dt.datetime) -> tuple[str, ...]:
    """Locations of the metadata files of all Iceberg tables of main, as the newest commit before `as_of` has them.

    Empty where no Nessie belongs to these settings, or nothing was committed before.

    Raises:
        NessieError: it refuses, or does not answer.
    """
    if settings.nessie_uri is None and not nessie_dir(settings).exists():
        return ()
    nessie = Nessie.connect(ensure_nessie(settings), "writer")
    before = next((commit for commit in nessie.history(MAIN) if commit.committed_at < as_of), None)
    if before is None:
        return ()
    at = f"{MAIN}@{before.hash}"
    contents = (nessie.content(table, at) for table in nessie.tables(at))
    return tuple(content.metadata_location for content in contents if content is not None)
