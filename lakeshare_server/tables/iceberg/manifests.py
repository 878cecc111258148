"""The live files of a snapshot: its manifest list, and the manifests of data and of deletes.

Manifests come from object stores, so many are under way at once; the time it takes goes with the live files, not with
the table's history.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.storage import LASTING, Stores
from lakeshare_server.storage.locations import local_path
from lakeshare_server.tables.iceberg.avro import (
    AvroBlocks,
    AvroError,
    EncryptedError,
    Entries,
    read_container,
    unpack_longs,
)
from lakeshare_server.tables.serveability import ReasonCode

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

DELETED = 2
COLUMNS: dict[str, pa.DataType] = {
    "path": pa.string(),
    "format": pa.string(),
    "rows": pa.int64(),
    "size": pa.int64(),
    "spec_id": pa.int32(),
    "snapshot_id": pa.int64(),
    "sequence_number": pa.int64(),
    "first_row_id": pa.int64(),
    "key_metadata": pa.binary(),
}
COUNTS = ("null_counts", "nan_counts")
PARTITION_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "float": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
}


@dataclass(frozen=True)
class DataFiles:
    """One row per live data file, in the order of the manifests.

    `columns` has path (as the manifest spells it), format (upper case), rows, size (bytes), spec_id, snapshot_id that
    added it, sequence_number, first_row_id (v3) and key_metadata (of encrypted files). `lower` and `upper` are bounds
    in Iceberg's single-value form, `null_counts` and `nan_counts` numbers, all by column id; a column of which no file
    says anything is missing. `partition` is by (spec id, partition field id), null for files of another spec: dates
    and times are integers in it, decimals and UUIDs bytes.
    """

    columns: pa.Table
    lower: Mapping[int, pa.Array]
    upper: Mapping[int, pa.Array]
    null_counts: Mapping[int, pa.Array]
    nan_counts: Mapping[int, pa.Array]
    partition: Mapping[tuple[int, int], pa.Array]

    def __len__(self) -> int:
        """How many files there are."""
        files: int = self.columns.num_rows
        return files

    def column(self, name: str) -> pa.Array:
        """One of `columns`, in one piece."""
        return self.columns.column(name).combine_chunks()

    def in_spec(self, spec_id: int) -> pa.BooleanArray:
        """Which files were written under a partition spec."""
        return pc.equal(self.column("spec_id"), spec_id)

    def filtered(self, kept: pa.BooleanArray) -> "DataFiles":
        """Some of the files."""
        return DataFiles(
            columns=self.columns.filter(kept),
            lower={key: values.filter(kept) for key, values in self.lower.items()},
            upper={key: values.filter(kept) for key, values in self.upper.items()},
            null_counts={key: values.filter(kept) for key, values in self.null_counts.items()},
            nan_counts={key: values.filter(kept) for key, values in self.nan_counts.items()},
            partition={key: values.filter(kept) for key, values in self.partition.items()},
        )


def arrow_chunk(entries: Entries) -> pa.Table:
    """The live ones of the entries read so far, in columns that `data_files` puts together."""
    arrays = {name: _array(entries.columns[name], kind) for name, kind in COLUMNS.items()}
    arrays |= {name: pa.array(entries.columns[name], pa.binary()) for name in COUNTS}
    for which, columns in (("lower", entries.lower), ("upper", entries.upper)):
        arrays |= {f"{which}:{key}": pa.array(column, pa.binary()) for key, column in columns.items()}
    for key, column in entries.partition.items():
        kind = PARTITION_TYPES.get(entries.partition_kinds[key], pa.int64())
        arrays[f"partition:{key[0]}:{key[1]}"] = _array(column, kind)
    status = entries.columns["status"]
    chunk = pa.table(arrays)
    return chunk.filter(pa.array([one != DELETED for one in status])) if DELETED in status else chunk


def data_files(chunks: list[pa.Table]) -> DataFiles:
    """The files of all chunks."""
    if not chunks:
        chunks = [pa.table({name: pa.nulls(0, kind) for name, kind in COLUMNS.items()})]
    whole = pa.concat_tables(chunks, promote_options="default").combine_chunks()
    columns = whole.select(list(COLUMNS))
    formats = pc.utf8_upper(columns.column("format"))
    return DataFiles(
        columns=columns.set_column(columns.schema.get_field_index("format"), "format", formats),
        lower=dict(_numbered(whole, "lower")),
        upper=dict(_numbered(whole, "upper")),
        null_counts=_counts(whole, "null_counts"),
        nan_counts=_counts(whole, "nan_counts"),
        partition={
            (int(name.split(":")[1]), int(name.split(":")[2])): _whole(whole, name)
            for name in whole.column_names
            if name.startswith("partition:")
        },
    )


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    # Texts come as bytes; the cast finds what is no UTF-8.
    return pa.array(values, pa.binary()).cast(kind) if pa.types.is_string(kind) else pa.array(values, kind)


def _whole(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks()


def _numbered(table: pa.Table, which: str) -> Iterator[tuple[int, pa.Array]]:
    for name in table.column_names:
        if name.startswith(f"{which}:"):
            yield int(name.removeprefix(f"{which}:")), _whole(table, name)


def _counts(table: pa.Table, name: str) -> dict[int, pa.Array]:
    """The packed counts by column id; each different text of counts is unpacked once."""
    if name not in table.column_names:
        return {}
    packed = _whole(table, name).dictionary_encode()
    unpacked = [unpack_longs(text) for text in packed.dictionary.to_pylist()]
    by_id = [dict(zip(numbers[::2], numbers[1::2], strict=True)) for numbers in unpacked]
    ids = sorted({key for counts in by_id for key in counts})
    return {
        key: pc.take(pa.array([counts.get(key) for counts in by_id], pa.int64()), packed.indices)
        for key in ids
    }


_log = logging.getLogger(__name__)

# So many manifests are read at once, and no more than that are in memory before their turn.
READERS, READ_AHEAD = 16, 32
# Entries become Arrow columns by so many: enough for a column at a time, little for the memory.
CHUNK_ROWS = 8_192
ADDED = 1
EQUALITY = 2
# The column of position delete files that has the paths of data files (Iceberg spec, "Reserved Field IDs").
FILE_PATH_ID = 2_147_483_546
LISTED = (
    "path", "length", "spec_id", "content", "sequence_number", "snapshot_id", "first_row_id", "added", "existing",
    "added_rows", "existing_rows",
)  # fmt: skip
DELETE_FIELDS = (
    "status", "content", "path", "format", "spec_id", "sequence_number", "rows", "size", "referenced_data_file",
    "content_offset", "content_size_in_bytes", "equality_ids", "key_metadata",
)  # fmt: skip

# The values a file was written under, by partition field id. Dates and times are integers, decimals and UUIDs bytes.
PartitionRecord: TypeAlias = tuple[tuple[int, object], ...]


@dataclass(frozen=True, kw_only=True)
class DeleteFile:
    """A file of row-level deletes, as its manifest tells it (Iceberg spec, "Manifests" and "Delete Formats").

    `format` is upper case: PARQUET, AVRO, ORC, or PUFFIN for a deletion vector, which alone has `content_offset` and
    `content_size_in_bytes`. `lowest_path` and `highest_path` bound the data files that position deletes speak of;
    they may be cut. `rows` of a deletion vector is its cardinality.
    """

    content: Literal["position", "equality"]
    path: str
    format: str
    spec_id: int
    partition: PartitionRecord
    sequence_number: int
    rows: int
    size_bytes: int
    lowest_path: str | None = None
    highest_path: str | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_in_bytes: int | None = None
    equality_ids: tuple[int, ...] = ()
    is_encrypted: bool = False


@dataclass(frozen=True)
class LiveFiles:
    """The data files and delete files that a snapshot's readers have to know."""

    data: DataFiles
    deletes: list[DeleteFile]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What the manifest list says of a manifest; `files` and `rows` are None where an old writer did not count.

    Of one that no list has, `spec_id` is None: it says that itself.
    """

    path: str
    size_bytes: int = 0
    spec_id: int | None = None
    has_deletes: bool = False
    sequence_number: int = 0
    snapshot_id: int | None = None
    first_row_id: int | None = None
    files: int | None = None
    rows: int | None = None


def live_files(stores: Stores, snapshot: "Snapshot", root: str) -> LiveFiles:
    """All live files of a snapshot.

    Raises:
        Unserveable: the manifest list or a manifest is missing, cut off, damaged, or has other files than it should.
    """
    name = listing = snapshot.manifest_list or "list of the metadata file"
    try:
        manifests = _manifests(stores, snapshot)
        reading = _Reading()
        with ThreadPoolExecutor(READERS) as pool:
            for manifest, blocks in _in_order(pool, stores, manifests):
                name = manifest.path
                reading.add(manifest, blocks.result())
        name = listing
        data = reading.data()
        _require_all_manifests(snapshot, data)
        return LiveFiles(data, reading.deletes)
    except (*LASTING, ValueError, OverflowError) as error:
        _log.warning("%s of snapshot %s of %s: %s", name, snapshot.snapshot_id, root, error)
        # Nothing of what the store says goes out: it may name places of the server.
        said = str(error) if isinstance(error, AvroError) else "it is missing or not readable"
        code = ReasonCode.ENCRYPTED_FILES if isinstance(error, EncryptedError) else None
        raise Unserveable(
            f"The manifest {local_path(name)} of snapshot {snapshot.snapshot_id} of {root} cannot be read: {said}.",
            code.fix
            if code
            else "Check that the table's metadata folder is whole, or publish another snapshot.",
            code,
        ) from error


def _manifests(stores: Stores, snapshot: "Snapshot") -> list[Manifest]:
    """Those of the manifest list, or those that a snapshot of the oldest tables names itself."""
    inside: list[str] | None = getattr(snapshot, "manifest_paths", None)
    if inside is not None:
        return [Manifest(path=path, snapshot_id=snapshot.snapshot_id) for path in inside]
    listing = read_container(stores.read(snapshot.manifest_list))
    written_for = listing.metadata.get("snapshot-id")
    if written_for is not None and written_for != b"%d" % snapshot.snapshot_id:
        raise AvroError("it is the manifest list of another snapshot")
    return _listed(listing)


def _require_all_manifests(snapshot: "Snapshot", files: DataFiles) -> None:
    """Refuse a list of manifests that was cut off between two blocks: nothing but the totals tells that."""
    summary = getattr(snapshot, "summary", None)
    told = "" if summary is None else str(summary.get("total-data-files"))
    if told.isdecimal() and len(files) < int(told):
        raise AvroError(f"its manifests have {len(files)} data files, the snapshot's summary says {told}")


def delete_files(manifest: Manifest, content: bytes) -> list[DeleteFile]:
    """The live files of a manifest of deletes.

    Raises:
        ValueError: it is not whole.
    """
    reading = _Reading()
    reading.add(manifest, read_container(content))
    return reading.deletes


class _Reading:
    """Takes manifests one after the other."""

    def __init__(self) -> None:
        self.deletes: list[DeleteFile] = []
        self._entries, self._chunks = Entries(), list[pa.Table]()
        # Of delete files other things are kept, and there are few: they become objects.
        self._delete_entries = Entries()

    def add(self, manifest: Manifest, blocks: AvroBlocks) -> None:
        entries = self._delete_entries if manifest.has_deletes else self._entries
        first, spec_id = entries.rows, manifest.spec_id
        if spec_id is None:
            spec_id = int(blocks.metadata.get("partition-spec-id", b"0"))
        entries.read(blocks, spec_id)
        entries.columns["spec_id"][first:] = [spec_id] * (entries.rows - first)
        _require_all_files(entries, first, manifest)
        _inherit(entries, first, manifest)
        if manifest.has_deletes:
            self.deletes += _delete_files(entries)
            entries.empty()
        elif entries.rows >= CHUNK_ROWS:
            self._flush()

    def data(self) -> DataFiles:
        self._flush()
        return data_files(self._chunks)

    def _flush(self) -> None:
        if self._entries.rows:
            self._chunks.append(arrow_chunk(self._entries))
            self._entries.empty()


def parse_manifest_list(content: bytes) -> list[Manifest]:
    """The manifests of a manifest list; in v1 it has neither deletes nor sequence numbers, and need not have counts.

    Raises:
        ValueError: it is not whole.
    """
    return _listed(read_container(content))


def _listed(content: AvroBlocks) -> list[Manifest]:
    listed = Entries()
    listed.read(content, 0)
    return [
        Manifest(
            path=row["path"].decode(),
            size_bytes=row["length"],
            spec_id=row["spec_id"] or 0,
            has_deletes=row["content"] == 1,
            sequence_number=row["sequence_number"] or 0,
            snapshot_id=row["snapshot_id"],
            first_row_id=row["first_row_id"],
            files=_sum(row["added"], row["existing"]),
            rows=_sum(row["added_rows"], row["existing_rows"]),
        )
        for row in _rows(listed, LISTED)
    ]


def _sum(added: int | None, existing: int | None) -> int | None:
    return None if added is None or existing is None else added + existing


def _rows(entries: Entries, names: Iterable[str]) -> list[dict[str, Any]]:
    columns = {name: entries.columns[name] for name in names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _in_order(
    pool: ThreadPoolExecutor, stores: Stores, manifests: list[Manifest]
) -> Iterator[tuple[Manifest, Future[AvroBlocks]]]:
    ahead: deque[tuple[Manifest, Future[AvroBlocks]]] = deque()
    for manifest in manifests:
        ahead.append((manifest, pool.submit(_fetch, stores, manifest)))
        if len(ahead) > READ_AHEAD:
            yield ahead.popleft()
    yield from ahead


def _fetch(stores: Stores, manifest: Manifest) -> AvroBlocks:
    content = stores.read(manifest.path)
    # Where files were not counted, a manifest cut off between two blocks is noticed by its length only.
    if manifest.files is None and len(content) < manifest.size_bytes:
        raise AvroError(f"it has {len(content)} bytes, its manifest list says {manifest.size_bytes}")
    return read_container(content)


def _require_all_files(entries: Entries, first: int, manifest: Manifest) -> None:
    statuses = entries.columns["status"][first:]
    files = len(statuses) - statuses.count(DELETED)
    if manifest.files is not None and files != manifest.files:
        raise AvroError(f"it has {files} files, its manifest list says {manifest.files}")
    counts = entries.columns["rows"][first:]
    if None in counts:
        raise AvroError("an entry does not say how many rows its file has")
    rows = sum(count for count, status in zip(counts, statuses, strict=True) if status != DELETED)
    if manifest.rows is not None and rows != manifest.rows:
        raise AvroError(f"its files have {rows} rows, its manifest list says {manifest.rows}")


def _inherit(entries: Entries, first: int, manifest: Manifest) -> None:
    """What entries leave to their manifest (Iceberg spec, "Sequence Number Inheritance" and "Row Lineage")."""
    columns = entries.columns
    snapshots, numbers = columns["snapshot_id"], columns["sequence_number"]
    if None in snapshots[first:]:
        snapshots[first:] = [
            manifest.snapshot_id if snapshot is None else snapshot for snapshot in snapshots[first:]
        ]
    if None in numbers[first:]:
        statuses = columns["status"]
        for row in range(first, entries.rows):
            is_own = statuses[row] == ADDED or not manifest.sequence_number
            if numbers[row] is None and is_own:
                numbers[row] = manifest.sequence_number
    if manifest.first_row_id is not None:
        _number_rows(entries, first, manifest.first_row_id)


def _number_rows(entries: Entries, first: int, row_id: int) -> None:
    ids, rows, statuses = (entries.columns[name] for name in ("first_row_id", "rows", "status"))
    for row in range(first, entries.rows):
        if ids[row] is None and statuses[row] != DELETED:
            ids[row] = row_id
            row_id += rows[row]


def _delete_files(entries: Entries) -> list[DeleteFile]:
    lowest, highest = entries.lower[FILE_PATH_ID], entries.upper[FILE_PATH_ID]
    return [
        DeleteFile(
            content="equality" if row["content"] == EQUALITY else "position",
            path=row["path"].decode(),
            format=row["format"].decode().upper(),
            spec_id=row["spec_id"],
            partition=_partition_of(entries, row["spec_id"], place),
            sequence_number=row["sequence_number"] or 0,
            rows=row["rows"],
            size_bytes=row["size"],
            lowest_path=_text(lowest[place]),
            highest_path=_text(highest[place]),
            referenced_data_file=_text(row["referenced_data_file"]),
            content_offset=row["content_offset"],
            content_size_in_bytes=row["content_size_in_bytes"],
            equality_ids=tuple(unpack_longs(row["equality_ids"] or b"")),
            is_encrypted=row["key_metadata"] is not None,
        )
        for place, row in enumerate(_rows(entries, DELETE_FIELDS))
        if row["status"] != DELETED
    ]


def _partition_of(entries: Entries, spec_id: int, place: int) -> PartitionRecord:
    found = {field: column[place] for (spec, field), column in entries.partition.items() if spec == spec_id}
    texts = [
        field
        for (spec, field), kind in entries.partition_kinds.items()
        if spec == spec_id and kind == "string"
    ]
    return tuple((field, _text(value) if field in texts else value) for field, value in sorted(found.items()))


def _text(value: bytes | None) -> str | None:
    # A bound may be cut inside a character: what cannot be read bounds nothing.
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
