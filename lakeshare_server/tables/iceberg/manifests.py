"""The live files of a snapshot, from its manifest list and its manifests of data and of deletes.

Many manifests are requested from the store at once; the time depends on the live files, not on the table's history.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.locations import local_path
from lakeshare_server.storage import LASTING, Stores
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
    "string": pa.string(),
    **dict.fromkeys(("float", "double"), pa.float64()),
    **dict.fromkeys(("bytes", "fixed"), pa.binary()),
}


@dataclass(frozen=True)
class DataFiles:
    """One row per live data file, in the order of the manifests.

    `columns` has path (as the manifest spells it), format (upper case), rows, size (bytes), spec_id, snapshot_id that
    added it, sequence_number, first_row_id (v3) and key_metadata (of encrypted files). `lower` and `upper` are bounds
    in Iceberg's single-value form, `null_counts` and `nan_counts` numbers, all by column id; a column without any value
    is missing. `partition` is by (spec id, partition field id), null for files of another spec: dates and times are
    integers, decimals and UUIDs bytes.
    """

    columns: pa.Table
    lower: Mapping[int, pa.Array]
    upper: Mapping[int, pa.Array]
    null_counts: Mapping[int, pa.Array]
    nan_counts: Mapping[int, pa.Array]
    partition: Mapping[tuple[int, int], pa.Array]

    def __len__(self) -> int:
        files: int = self.columns.num_rows
        return files

    def column(self, name: str) -> pa.Array:
        return self.columns.column(name).combine_chunks()

    @property
    def formats(self) -> set[str]:
        return set(pc.unique(self.column("format")).to_pylist())

    @property
    def spec_ids(self) -> list[int]:
        return cast("list[int]", pc.unique(self.column("spec_id")).to_pylist())

    def in_spec(self, spec_id: int) -> pa.BooleanArray:
        return pc.equal(self.column("spec_id"), spec_id)


def arrow_chunk(entries: Entries) -> pa.Table:
    """The live entries read so far, as columns for `data_files`."""
    arrays = {name: _array(entries.columns[name], kind) for name, kind in COLUMNS.items()}
    arrays |= {name: pa.array(entries.columns[name], pa.binary()) for name in COUNTS}
    for which, columns in (("lower", entries.lower), ("upper", entries.upper)):
        arrays |= {f"{which}:{key}": pa.array(column, pa.binary()) for key, column in columns.items()}
    for key, column in entries.partition.items():
        kind = PARTITION_TYPES.get(entries.partition_kinds[key], pa.int64())
        arrays[f"partition:{key[0]}:{key[1]}"] = _array(column, kind)
    status = entries.columns["status"]
    chunk = pa.table(arrays)
    return chunk.filter(pa.array([code != DELETED for code in status])) if DELETED in status else chunk


def data_files(chunks: list[pa.Table]) -> DataFiles:
    if not chunks:
        chunks = [pa.table({name: pa.nulls(0, kind) for name, kind in COLUMNS.items()})]
    whole = pa.concat_tables(chunks, promote_options="default").combine_chunks()
    columns = whole.select(list(COLUMNS))
    formats = pc.utf8_upper(columns.column("format"))
    by_kind: dict[str, dict[tuple[int, ...], pa.Array]] = {"lower": {}, "upper": {}, "partition": {}}
    for name in whole.column_names:
        kind, *ids = name.split(":")
        if ids:
            by_kind[kind][tuple(map(int, ids))] = whole.column(name).combine_chunks()
    return DataFiles(
        columns=columns.set_column(columns.schema.get_field_index("format"), "format", formats),
        lower={field_id: values for (field_id,), values in by_kind["lower"].items()},
        upper={field_id: values for (field_id,), values in by_kind["upper"].items()},
        null_counts=_counts(whole, "null_counts"),
        nan_counts=_counts(whole, "nan_counts"),
        partition={(spec_id, field_id): one for (spec_id, field_id), one in by_kind["partition"].items()},
    )


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    # Texts are bytes; the cast refuses invalid UTF-8.
    return pa.array(values, pa.binary()).cast(kind) if pa.types.is_string(kind) else pa.array(values, kind)


def _counts(table: pa.Table, name: str) -> dict[int, pa.Array]:
    """The packed counts by column id; each different value is unpacked once."""
    if name not in table.column_names:
        return {}
    packed = table.column(name).combine_chunks().dictionary_encode()
    unpacked = [unpack_longs(text) for text in packed.dictionary.to_pylist()]
    by_id = [dict(zip(numbers[::2], numbers[1::2], strict=True)) for numbers in unpacked]
    ids = sorted({key for counts in by_id for key in counts})
    return {
        key: pc.take(pa.array([counts.get(key) for counts in by_id], pa.int64()), packed.indices)
        for key in ids
    }


_log = logging.getLogger(__name__)

# Manifests that are read at once, and that are in memory before their turn.
READERS, READ_AHEAD = 16, 32
# Entries per Arrow conversion: large enough for columnar speed, small enough for the memory.
CHUNK_ROWS = 8_192
ADDED = 1
EQUALITY = 2
# The column of position delete files with the paths of data files (Iceberg spec, "Reserved Field IDs").
FILE_PATH_ID = 2_147_483_546
LISTED = (
    "path", "length", "spec_id", "content", "sequence_number", "snapshot_id", "first_row_id", "added", "existing",
    "added_rows", "existing_rows",
)  # fmt: skip
DELETE_FIELDS = (
    "status", "content", "path", "format", "spec_id", "sequence_number", "rows", "size", "referenced_data_file",
    "content_offset", "content_size_in_bytes", "equality_ids", "key_metadata",
)  # fmt: skip

# Partition values of a file by field id: dates and times are integers, decimals and UUIDs bytes.
PartitionRecord: TypeAlias = tuple[tuple[int, object], ...]


@dataclass(frozen=True, kw_only=True)
class DeleteFile:
    """A file of row-level deletes in a manifest (Iceberg spec, "Manifests" and "Delete Formats").

    `format` is upper case: PARQUET, AVRO, ORC, or PUFFIN for a deletion vector, which has `content_offset` and
    `content_size_in_bytes`. `lowest_path` and `highest_path` bound the data files of position deletes and may be
    truncated. `rows` of a deletion vector is its cardinality.
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
    """The live data files and delete files of a snapshot."""

    data: DataFiles
    deletes: list[DeleteFile]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """An entry of a manifest list; `files` and `rows` are None if an old writer did not count.

    `spec_id` is None for a manifest that is in no list: its own metadata has the id.
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
    """Reads all live files of a snapshot; raises Unserveable if a manifest is missing, damaged or unexpected."""
    name = listing = snapshot.manifest_list or "list of the metadata file"
    try:
        manifests = list_manifests(stores, snapshot)
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
        # Not the store's message: it may contain locations of the server.
        why = str(error) if isinstance(error, AvroError) else "it is missing or not readable"
        code = ReasonCode.ENCRYPTED_FILES if isinstance(error, EncryptedError) else None
        what = f"The manifest {local_path(name)} of snapshot {snapshot.snapshot_id} of {root} cannot be read"
        check = "Check that the table's metadata folder is whole, or publish another snapshot."
        raise Unserveable(f"{what}: {why}.", code.fix if code else check, code) from error


def list_manifests(stores: Stores, snapshot: "Snapshot") -> list[Manifest]:
    """The manifests of the manifest list, or those that a snapshot of the oldest tables names itself."""
    inside: list[str] | None = getattr(snapshot, "manifest_paths", None)
    if inside is not None:
        return [Manifest(path=path, snapshot_id=snapshot.snapshot_id) for path in inside]
    listing = read_container(stores.read(snapshot.manifest_list))
    written_for = listing.metadata.get("snapshot-id")
    if written_for is not None and written_for != b"%d" % snapshot.snapshot_id:
        raise AvroError("it is the manifest list of another snapshot")
    return _listed(listing)


def list_all_files(stores: Stores, snapshots: Iterable["Snapshot"]) -> Iterator[str]:
    """Yields the locations of the manifest lists, manifests, data files and delete files of snapshots.

    Each manifest is read once. Raises StoreError, Unavailable, ValueError or OverflowError if one cannot be read.
    """
    listed, reading = list(snapshots), _Reading()
    yield from (snapshot.manifest_list for snapshot in listed if snapshot.manifest_list)
    with ThreadPoolExecutor(READERS) as pool:
        lists = pool.map(partial(list_manifests, stores), listed)
        manifests = {manifest.path: manifest for manifest in chain.from_iterable(lists)}
        for manifest, blocks in _in_order(pool, stores, list(manifests.values())):
            yield manifest.path
            reading.add(manifest, blocks.result())
    yield from reading.data().column("path").to_pylist()
    yield from (delete.path for delete in reading.deletes)


def _require_all_manifests(snapshot: "Snapshot", files: DataFiles) -> None:
    """Refuses a manifest list that was truncated between two blocks: only the totals show that."""
    summary = getattr(snapshot, "summary", None)
    total = "" if summary is None else str(summary.get("total-data-files"))
    if total.isdecimal() and len(files) < int(total):
        raise AvroError(f"its manifests have {len(files)} data files, the snapshot's summary says {total}")


def delete_files(manifest: Manifest, content: bytes) -> list[DeleteFile]:
    """Reads the live files of a manifest of deletes; raises ValueError if it is damaged."""
    reading = _Reading()
    reading.add(manifest, read_container(content))
    return reading.deletes


class _Reading:
    """Collects the entries of manifests."""

    def __init__(self) -> None:
        self.deletes: list[DeleteFile] = []
        self._entries, self._chunks = Entries(), list[pa.Table]()
        # Delete files need other fields and are few: they become objects.
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
            entries.clear()
        elif entries.rows >= CHUNK_ROWS:
            self._flush()

    def data(self) -> DataFiles:
        self._flush()
        return data_files(self._chunks)

    def _flush(self) -> None:
        if self._entries.rows:
            self._chunks.append(arrow_chunk(self._entries))
            self._entries.clear()


def parse_manifest_list(content: bytes) -> list[Manifest]:
    """Reads a manifest list; in v1 it has no deletes and sequence numbers, and counts are optional."""
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


def _rows(entries: Entries, names: Sequence[str]) -> list[dict[str, Any]]:
    columns = {name: entries.columns[name] for name in names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _in_order(
    pool: ThreadPoolExecutor, stores: Stores, manifests: list[Manifest]
) -> Iterator[tuple[Manifest, Future[AvroBlocks]]]:
    def fetch(manifest: Manifest) -> AvroBlocks:
        content = stores.read(manifest.path)
        # Without counts, only the length shows that a manifest was truncated between two blocks.
        if manifest.files is None and len(content) < manifest.size_bytes:
            raise AvroError(f"it has {len(content)} bytes, its manifest list says {manifest.size_bytes}")
        return read_container(content)

    ahead: deque[tuple[Manifest, Future[AvroBlocks]]] = deque()
    for manifest in manifests:
        ahead.append((manifest, pool.submit(fetch, manifest)))
        if len(ahead) > READ_AHEAD:
            yield ahead.popleft()
    yield from ahead


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
    """Sets the values that entries inherit (Iceberg spec, "Sequence Number Inheritance" and "Row Lineage")."""
    columns = entries.columns
    statuses, snapshots, numbers = columns["status"], columns["snapshot_id"], columns["sequence_number"]
    if None in snapshots[first:]:
        snapshots[first:] = [manifest.snapshot_id if one is None else one for one in snapshots[first:]]
    if None in numbers[first:]:
        for row in range(first, entries.rows):
            is_own = statuses[row] == ADDED or not manifest.sequence_number
            if numbers[row] is None and is_own:
                numbers[row] = manifest.sequence_number
    row_id = manifest.first_row_id
    if row_id is not None:
        ids, rows = columns["first_row_id"], columns["rows"]
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
            partition=_partition_of(entries, row["spec_id"], number),
            sequence_number=row["sequence_number"] or 0,
            rows=row["rows"],
            size_bytes=row["size"],
            lowest_path=_text(lowest[number]),
            highest_path=_text(highest[number]),
            referenced_data_file=_text(row["referenced_data_file"]),
            content_offset=row["content_offset"],
            content_size_in_bytes=row["content_size_in_bytes"],
            equality_ids=tuple(unpack_longs(row["equality_ids"] or b"")),
            is_encrypted=row["key_metadata"] is not None,
        )
        for number, row in enumerate(_rows(entries, DELETE_FIELDS))
        if row["status"] != DELETED
    ]


def _partition_of(entries: Entries, spec_id: int, row: int) -> PartitionRecord:
    values = {key: column[row] for key, column in entries.partition.items() if key[0] == spec_id}
    return tuple(
        (key[1], _text(value) if entries.partition_kinds[key] == "string" else value)
        for key, value in sorted(values.items(), key=lambda entry: entry[0])
    )


def _text(value: bytes | None) -> str | None:
    # A bound may be truncated inside a character: then it is unknown.
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
