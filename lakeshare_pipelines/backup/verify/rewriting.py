"""Rewrite metadata of Iceberg tables, whose files are named by whole locations, for new locations (Iceberg spec)."""

import gzip
import io
import json
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from threading import Lock
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.stores import BackupStore
from lakeshare_pipelines.errors import BackupError
from lakeshare_server.tables.iceberg import avro
from lakeshare_server.tables.iceberg.metadata import (
    FORMAT_VERSIONS,
    GZIP,
    MAX_METADATA_BYTES,
    MetadataError,
    decompress_metadata,
)

Record: TypeAlias = dict[str, Any]  # of the file's own schema, whatever that is


def read_records(location: str, content: bytes) -> Iterator[Record]:
    """The records of an Avro container file; errors as `rewrite_records`."""
    container, schema = _open_container(location, content)
    for count, block in container.blocks:
        yield from _decode_records(location, schema, count, block)


def rewrite_records(location: str, content: bytes, change: Callable[[Record], None]) -> bytes:
    """A container file (Avro spec, "Object Container Files") after `change` was called with each of its records.
    Blocks keep their records; those of codecs other than null and deflate are deflated."""
    from fastavro import schemaless_writer

    container, schema = _open_container(location, content)
    header, is_packed = dict(container.metadata), container.metadata.get("avro.codec", b"null") != b"null"
    if is_packed:
        header["avro.codec"] = b"deflate"
    sync = sha256(content).digest()[: avro.SYNC_BYTES]
    written = io.BytesIO(avro.MAGIC)
    written.seek(0, io.SEEK_END)
    schemaless_writer(written, {"type": "map", "values": "bytes"}, header)
    written.write(sync)
    for count, block in container.blocks:
        changed = io.BytesIO()
        for record in _decode_records(location, schema, count, block):
            change(record)
            schemaless_writer(changed, schema, record)
        packed = changed.getvalue()
        if is_packed:
            compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
            packed = compressor.compress(packed) + compressor.flush()
        schemaless_writer(written, "long", count)
        schemaless_writer(written, "bytes", packed)
        written.write(sync)
    return written.getvalue()


def _open_container(location: str, content: bytes) -> tuple[avro.AvroBlocks, Any]:
    from fastavro import parse_schema

    try:
        container = avro.read_container(content)
        return container, parse_schema(_strip_logical_types(avro.parse_avro_schema(container.schema)))
    except ValueError as error:
        raise make_unreadable_error(location, error) from error


def _decode_records(location: str, schema: Any, count: int, block: bytes) -> Iterator[Record]:
    from fastavro import schemaless_reader

    records = io.BytesIO(block)
    for _ in range(count):
        try:
            record: Any = schemaless_reader(records, schema, None)
        except (EOFError, IndexError, ValueError, TypeError) as error:
            raise make_unreadable_error(location, error) from error
        yield record


def make_unreadable_error(location: str, error: Exception) -> BackupError:
    reason = str(error) if isinstance(error, avro.AvroError) else f"{type(error).__name__}: {error}"
    fix = "Restore from another point, or an older snapshot of this point."
    return BackupError(location, f"it cannot be read: {reason}", fix)


def _strip_logical_types(schema: Any) -> Any:
    """A schema for the stored values: without logical types, and without names that fastavro rejects."""
    if isinstance(schema, dict):
        return {key: _strip_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return [_strip_logical_types(member) for member in schema] if isinstance(schema, list) else schema


PATH, POSITION = (2147483546, "file_path"), (2147483545, "pos")  # Reserved field ids, and their names
PUFFIN = b"PFA1"
FOOTER_TAIL = struct.Struct("<iI4s")  # End of a Puffin footer: length, flags, magic (Puffin spec)
PACKED_FLAG = 1
MoveLocation = Callable[[str], str]


@dataclass(frozen=True)
class RewrittenDeletes:
    """A rewritten file, and the first and last data file it names, in byte order; None without one."""

    content: bytes
    first: str | None = None
    last: str | None = None


def rewrite_deletes(location: str, file_format: str, content: bytes, moved: MoveLocation) -> RewrittenDeletes:
    """Rewrite position deletes (`PARQUET`, `ORC`, `AVRO`) or deletion vectors (`PUFFIN`) for moved data files."""
    formats: dict[str, Callable[[str, bytes, MoveLocation], RewrittenDeletes]] = {
        "PARQUET": partial(_rewrite_columns, is_orc=False),
        "ORC": partial(_rewrite_columns, is_orc=True),
        "AVRO": _rewrite_avro,
        "PUFFIN": _rewrite_puffin,
    }
    if file_format.upper() not in formats:
        fix = "Compact the table's deletes first."
        raise BackupError(location, f"position deletes in {file_format} are unknown", fix)
    try:
        return formats[file_format.upper()](location, content, moved)
    except (OSError, ValueError, KeyError, TypeError, struct.error, pa.ArrowException) as error:
        raise make_unreadable_error(location, error) from error


def _rewrite_columns(
    _location: str, content: bytes, moved: MoveLocation, *, is_orc: bool
) -> RewrittenDeletes:
    """Rewrite Parquet or ORC; rows are in the order of the specification: by path, then by position."""
    import pyarrow.parquet as pq
    from pyarrow import orc

    written = io.BytesIO()
    file = orc.ORCFile(io.BytesIO(content)) if is_orc else pq.ParquetFile(io.BytesIO(content))
    schema, id_key = (file.schema, b"iceberg.id") if is_orc else (file.schema_arrow, b"PARQUET:field_id")
    ids = {(field.metadata or {}).get(id_key): field.name for field in schema}
    columns = [str(ids.get(b"%d" % field_id, name)) for field_id, name in (PATH, POSITION)]
    deletes = file.read()
    index = deletes.column_names.index(columns[0])
    field = deletes.schema.field(index)
    paths = deletes.column(index).combine_chunks().cast(pa.string()).dictionary_encode()
    new = pa.array([moved(path) for path in paths.dictionary.to_pylist()], pa.string())
    deletes = deletes.set_column(index, field, new.take(paths.indices).cast(field.type))
    order = pc.sort_indices(deletes.select(columns), [(name, "ascending") for name in columns])
    deletes = deletes.take(order)
    if is_orc:
        orc.write_table(deletes, written, compression="zlib")
    else:
        pq.write_table(deletes, written, compression="zstd", store_schema=False)
    names = deletes.column(columns[0])
    if not len(names):
        return RewrittenDeletes(written.getvalue())
    return RewrittenDeletes(written.getvalue(), names[0].as_py(), names[-1].as_py())


def _rewrite_avro(location: str, content: bytes, moved: MoveLocation) -> RewrittenDeletes:
    names: set[str] = set()

    def change(record: dict[str, Any]) -> None:
        record["file_path"] = moved(record["file_path"])
        names.add(record["file_path"])

    changed = rewrite_records(location, content, change)
    return RewrittenDeletes(
        changed, min(names, key=str.encode, default=None), max(names, key=str.encode, default=None)
    )


def _rewrite_puffin(_location: str, content: bytes, moved: MoveLocation) -> RewrittenDeletes:
    """Rewrite the footer; the blobs stay at their offsets, which manifests name."""
    size, flags, magic = FOOTER_TAIL.unpack(content[-FOOTER_TAIL.size :])
    start = len(content) - FOOTER_TAIL.size - size
    if magic != PUFFIN or content[start - len(PUFFIN) : start] != PUFFIN:
        raise ValueError("it does not end as Puffin files do")
    if flags & PACKED_FLAG:
        raise ValueError("its footer is compressed")
    footer = json.loads(content[start : -FOOTER_TAIL.size])
    for blob in footer["blobs"]:
        named = blob.get("properties", {}).get("referenced-data-file")
        if named is not None:
            blob["properties"]["referenced-data-file"] = moved(named)
    payload = json.dumps(footer, separators=(",", ":"), ensure_ascii=False).encode()
    return RewrittenDeletes(content[:start] + payload + FOOTER_TAIL.pack(len(payload), flags, PUFFIN))


READERS = 8  # How many manifests are rewritten at a time
MOUNT_PROPERTIES: Mapping[str, str] = {"gc.enabled": "false"}
"""For tables on the files of a backup: dropping them or expiring snapshots must not remove files."""
# Where writers put files: a restored table uses its own location.
LOCATION_PROPERTIES = (
    "write.data.path", "write.folder-storage.path", "write.metadata.path", "write.object-storage.path"
)  # fmt: skip
DELETED = 2
POSITION_DELETES = 1
Json: TypeAlias = dict[str, Any]  # the JSON of a metadata file
ReportProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class RewrittenTable:
    """A table at its new location: its metadata.json, and the keys of all files that were written for it."""

    metadata_location: str
    keys: tuple[str, ...]
    size_bytes: int
    snapshot_id: int | None  # The current snapshot


def rewrite_table(
    read: Callable[[str], bytes],
    metadata_location: str,
    moved: MoveLocation,
    target: BackupStore,
    folder: str,
    snapshots: Collection[int] | None = None,
    *,
    current: int | None = None,
    properties: Mapping[str, str] | None = None,
    report_progress: ReportProgress | None = None,
) -> RewrittenTable:
    """Write the metadata of a table whose data files have moved (Iceberg spec, format versions 1 to 3).

    `read` returns the content of an *original* location (called by several threads), `moved` the new location of any
    data file. Files are written to `<folder>/metadata/` in `target`, with the same names for the same table each
    time. Only `snapshots` are kept, by default all; `current` becomes the current one, by default the present or the
    newest that is kept. Position deletes and deletion vectors are rewritten with their manifests; equality deletes
    and statistics name no file and only move. The log of older metadata files is dropped. Raises BackupError if a
    file is missing, damaged or encrypted, or there is no such snapshot.
    """
    content = read(metadata_location)
    table = _parse_metadata(metadata_location, content)
    _keep_snapshots(metadata_location, table, snapshots, current)
    rewrite = _MetadataRewrite(read, moved, target, folder.rstrip("/"), report_progress)
    rewrite.rewrite_snapshots(table)
    table["location"] = target.address.location(rewrite.folder)
    table["properties"] = {
        name: value for name, value in table.get("properties", {}).items() if name not in LOCATION_PROPERTIES
    } | dict(properties or {})
    # Writers remove files of this log as it grows: the original files must not be in it.
    table["metadata-log"] = []
    for name in ("statistics", "partition-statistics"):
        for statistics in table.get(name, ()):
            statistics["statistics-path"] = moved(statistics["statistics-path"])
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    if content.startswith(GZIP):
        # Readers decide by the name, which stays (Iceberg spec, "Naming for GZIP compressed Metadata JSON files").
        text = gzip.compress(text, mtime=0)
    location = rewrite.put(metadata_location.rpartition("/")[2], text)
    return RewrittenTable(location, tuple(rewrite.keys), rewrite.size_bytes, _get_current(table))


def set_current_snapshot(metadata_location: str, content: bytes, snapshot_id: int) -> bytes:
    """A table's metadata, uncompressed, with another of its snapshots as the current one."""
    table = _parse_metadata(metadata_location, content)
    _keep_snapshots(metadata_location, table, None, snapshot_id)
    return json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass
class _MetadataRewrite:
    read: Callable[[str], bytes]
    moved: MoveLocation
    target: BackupStore
    folder: str
    report_progress: ReportProgress | None
    keys: list[str] = field(default_factory=list)
    size_bytes: int = 0
    deletes: dict[str, tuple[str, int, str | None, str | None]] = field(default_factory=dict)
    turns: dict[str, Lock] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def rewrite_snapshots(self, table: Json) -> None:
        lists: dict[str, bytes] = {}
        manifests: dict[str, None] = {}
        for snapshot in table.get("snapshots", ()):
            if "manifest-list" in snapshot:
                location = snapshot["manifest-list"]
                lists[location] = self.read(location)
                for row in read_records(location, lists[location]):
                    manifests.setdefault(row["manifest_path"])
            else:
                manifests.update(dict.fromkeys(snapshot.get("manifests", ())))
        new: dict[str, tuple[str, int]] = {}
        with ThreadPoolExecutor(READERS) as pool:
            contents = pool.map(self._rewrite_manifest, manifests)
            for done, (location, content) in enumerate(zip(manifests, contents, strict=True), 1):
                new[location] = (self.put(_make_file_name(location), content), len(content))
                if self.report_progress is not None:
                    self.report_progress(done, len(manifests))

        def point(row: Record) -> None:
            row["manifest_path"], row["manifest_length"] = new[row["manifest_path"]]

        listed = {
            location: self.put(_make_file_name(location), rewrite_records(location, content, point))
            for location, content in lists.items()
        }
        for snapshot in table.get("snapshots", ()):
            if "manifest-list" in snapshot:
                snapshot["manifest-list"] = listed[snapshot["manifest-list"]]
            else:
                snapshot["manifests"] = [new[location][0] for location in snapshot.get("manifests", ())]

    def _rewrite_manifest(self, location: str) -> bytes:
        """A manifest's content with new locations (Iceberg spec, "Manifests")."""

        def change(entry: Record) -> None:
            file = entry["data_file"]
            old = file["file_path"]
            if file.get("referenced_data_file") is not None:
                file["referenced_data_file"] = self.moved(file["referenced_data_file"])
            if file.get("content") != POSITION_DELETES or entry["status"] == DELETED:
                file["file_path"] = self.moved(old)
                # Files of deleted entries may not exist, and no reader needs their bounds.
                for name in ("lower_bounds", "upper_bounds"):
                    if file.get(name):
                        file[name] = [bound for bound in file[name] if bound["key"] != PATH[0]]
                return
            deletes = self._rewrite_deletes(old, file["file_format"])
            file["file_path"], file["file_size_in_bytes"], first, last = deletes
            _set_bounds(file, "lower_bounds", first or file.get("referenced_data_file"))
            _set_bounds(file, "upper_bounds", last or file.get("referenced_data_file"))

        return rewrite_records(location, self.read(location), change)

    def _rewrite_deletes(self, location: str, file_format: str) -> tuple[str, int, str | None, str | None]:
        """New location, size and first and last path of a file of deletes, which several manifests may name."""
        with self.lock:
            turn = self.turns.setdefault(location, Lock())
        with turn:
            if location not in self.deletes:
                new = rewrite_deletes(location, file_format, self.read(location), self.moved)
                place = self.put(_make_file_name(location), new.content)
                self.deletes[location] = place, len(new.content), new.first, new.last
            return self.deletes[location]

    def put(self, name: str, content: bytes) -> str:
        key = f"{self.folder}/metadata/{name}"
        self.target.put(key, content)
        with self.lock:
            self.keys.append(key)
            self.size_bytes += len(content)
        return self.target.address.location(key)


def _parse_metadata(location: str, content: bytes) -> Json:
    try:
        # Python's own parser keeps numbers of any length.
        table = json.loads(decompress_metadata(content, MAX_METADATA_BYTES))
    except (ValueError, MetadataError) as error:
        raise make_unreadable_error(location, error) from error
    version = table.get("format-version") if isinstance(table, dict) else None
    if version not in FORMAT_VERSIONS:
        fix = "Versions 1 to 3 can be restored to another place."
        raise BackupError(location, f"its format version is {version!r}", fix)
    metadata: Json = table
    return metadata


def _keep_snapshots(location: str, table: Json, kept: Collection[int] | None, current: int | None) -> None:
    """Remove all snapshots but `kept` from a table, as expiring them would."""
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in table.get("snapshots", ())}
    ids = set(snapshots) if kept is None else set(kept)
    named = ids if current is None else ids | {current}
    if absent := named - set(snapshots):
        fix = f"It has {', '.join(map(str, sorted(snapshots))) or 'none'}."
        raise BackupError(location, f"it has no snapshot {', '.join(map(str, sorted(absent)))}", fix)
    newest = current if current is not None else _get_current(table)
    if newest not in ids:
        ages = {
            id_: (snapshots[id_].get("sequence-number", 0), snapshots[id_]["timestamp-ms"]) for id_ in ids
        }
        newest = max(ids, key=ages.__getitem__, default=None)
    if kept is None and newest == _get_current(table):
        return
    table["snapshots"] = [
        snapshot for snapshot in table.get("snapshots", ()) if snapshot["snapshot-id"] in ids
    ]
    table["current-snapshot-id"] = -1 if newest is None else newest
    for name in ("snapshot-log", "statistics", "partition-statistics"):
        if name in table:
            table[name] = [entry for entry in table[name] if entry["snapshot-id"] in ids]
    # The log has to end with the current snapshot (Iceberg spec, "snapshot-log").
    log = table.setdefault("snapshot-log", [])
    while log and log[-1]["snapshot-id"] != newest:
        log.pop()
    if newest is not None and not log:
        log.append({"snapshot-id": newest, "timestamp-ms": snapshots[newest]["timestamp-ms"]})
    refs = {name: ref for name, ref in table.get("refs", {}).items() if ref["snapshot-id"] in ids}
    if newest is not None:
        refs["main"] = {**table.get("refs", {}).get("main", {"type": "branch"}), "snapshot-id": newest}
    table["refs"] = refs


def _get_current(table: Json) -> int | None:
    current = table.get("current-snapshot-id")
    return None if current in (None, -1) else int(current)


def _set_bounds(file: Record, name: str, path: str | None) -> None:
    for bound in file.get(name) or ():
        if bound["key"] == PATH[0] and path is not None:
            bound["value"] = path.encode()


def _make_file_name(location: str) -> str:
    """A name that no other file of the table has, even if folders are merged."""
    return f"{sha256(location.encode()).hexdigest()[:12]}-{location.rpartition('/')[2]}"


def find_whole_snapshots(
    read: Callable[[str], bytes], metadata_location: str, is_held: Callable[[str], bool]
) -> set[int]:
    """Ids of the snapshots whose files are all held; `read` and `is_held` take original locations."""
    table = _parse_metadata(metadata_location, read(metadata_location))
    known: dict[str, bool] = {}

    def manifest_is_whole(location: str) -> bool:
        if location not in known:
            known[location] = is_held(location) and all(
                is_held(entry["data_file"]["file_path"])
                for entry in read_records(location, read(location))
                if entry["status"] != DELETED
            )
        return known[location]

    whole = set()
    for snapshot in table.get("snapshots", ()):
        manifests = snapshot.get("manifests", ())
        if (manifest_list := snapshot.get("manifest-list")) is not None:
            if not is_held(manifest_list):
                continue
            manifests = [row["manifest_path"] for row in read_records(manifest_list, read(manifest_list))]
        if all(manifest_is_whole(manifest) for manifest in manifests):
            whole.add(snapshot["snapshot-id"])
    return whole


def require_whole_snapshot(metadata_location: str, snapshot_id: int, whole: set[int]) -> None:
    if snapshot_id not in whole:
        others = ", ".join(map(str, sorted(whole))) or "none"
        fix = f"Whole are {others}."
        raise BackupError(metadata_location, f"its snapshot {snapshot_id} is not whole in the point", fix)
