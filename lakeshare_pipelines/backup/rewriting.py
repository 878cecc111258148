"""Tables that name their files by whole locations, written anew for another place, from the copies alone."""

import gzip
import io
import json
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from hashlib import sha256
from threading import Lock
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.stores import BackupStore
from lakeshare_pipelines.errors import BackupError
from lakeshare_server.tables.iceberg.avro import (
    MAGIC,
    SYNC_BYTES,
    AvroBlocks,
    AvroError,
    parse_avro_schema,
    read_container,
)
from lakeshare_server.tables.iceberg.metadata import (
    FORMAT_VERSIONS,
    GZIP,
    MAX_METADATA_BYTES,
    MetadataError,
    decompress_metadata,
)

Record: TypeAlias = dict[str, Any]  # of the file's own schema, whatever that is


def read_records(location: str, content: bytes) -> Iterator[Record]:
    """The records of a container file.

    Raises:
        BackupError: as `changed_records` says.
    """
    container, schema = _open_container(location, content)
    for count, block in container.blocks:
        yield from _decode_records(location, schema, count, block)


def rewrite_records(location: str, content: bytes, change: Callable[[Record], None]) -> bytes:
    """A container file (Avro spec, "Object Container Files") after `change` was called with each of its records.

    Blocks stay the blocks they were; those of codecs other than null and deflate are deflated.

    Raises:
        BackupError: the file is not whole, encrypted, or no Avro at all.
    """
    from fastavro import schemaless_writer

    container, schema = _open_container(location, content)
    header, pack = _get_codec(container.metadata)
    sync = sha256(content).digest()[:SYNC_BYTES]
    written = io.BytesIO()
    written.write(MAGIC + _map(header) + sync)
    for count, block in container.blocks:
        changed = io.BytesIO()
        for record in _decode_records(location, schema, count, block):
            change(record)
            schemaless_writer(changed, schema, record)
        packed = pack(changed.getvalue())
        written.write(_long(count) + _long(len(packed)) + packed + sync)
    return written.getvalue()


def _open_container(location: str, content: bytes) -> tuple[AvroBlocks, Any]:
    from fastavro import parse_schema

    try:
        container = read_container(content)
        return container, parse_schema(_strip_logical_types(parse_avro_schema(container.schema)))
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
    """The error for a file of a table's metadata that is not what it should be."""
    reason = str(error) if isinstance(error, AvroError) else f"{type(error).__name__}: {error}"
    return BackupError(
        location,
        f"it cannot be read: {reason}",
        "Restore from another point, or an older snapshot of this one.",
    )


def _strip_logical_types(schema: Any) -> Any:
    """A schema whose values are what lies in the file: no logical types, and no names that decoding stumbles over."""
    if isinstance(schema, dict):
        return {key: _strip_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return [_strip_logical_types(one) for one in schema] if isinstance(schema, list) else schema


def _get_codec(metadata: Mapping[str, bytes]) -> tuple[dict[str, bytes], Callable[[bytes], bytes]]:
    if metadata.get("avro.codec", b"null") == b"null":
        return dict(metadata), bytes
    return {**metadata, "avro.codec": b"deflate"}, _deflate


def _deflate(block: bytes) -> bytes:
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packing.compress(block) + packing.flush()


def _map(texts: Mapping[str, bytes]) -> bytes:
    pairs = b"".join(_text(key.encode()) + _text(text) for key, text in texts.items())
    return _long(len(texts)) + pairs + _long(0)


def _text(content: bytes) -> bytes:
    return _long(len(content)) + content


def _long(number: int) -> bytes:
    """A number that is not negative, zigzag-coded."""
    number <<= 1
    coded = bytearray()
    while number > 127:
        coded.append(number & 127 | 128)
        number >>= 7
    return bytes((*coded, number))


PATH, POSITION = (2147483546, "file_path"), (2147483545, "pos")
"""Field ids that the specification reserves, and the names that it gives to them."""
PATH_ID = PATH[0]
PUFFIN = b"PFA1"
FOOTER_TAIL = struct.Struct("<iI4s")
"""Behind a Puffin footer's payload: how long that is, flags, the magic (Puffin spec, "Footer structure")."""
PACKED_FLAG = 1
MoveLocation = Callable[[str], str]


@dataclass(frozen=True)
class RewrittenDeletes:
    """A rewritten file, and the first and last data file it names, in order of their bytes; None when it has none."""

    content: bytes
    first: str | None = None
    last: str | None = None


def rewrite_deletes(location: str, file_format: str, content: bytes, moved: MoveLocation) -> RewrittenDeletes:
    """A file of position deletes (`PARQUET`, `ORC`, `AVRO`) or deletion vectors (`PUFFIN`) for data files that moved.

    Raises:
        BackupError: it cannot be read, or is of no format that Iceberg knows.
    """
    formats: dict[str, Callable[[str, bytes, MoveLocation], RewrittenDeletes]] = {
        "PARQUET": _rewrite_parquet,
        "ORC": _rewrite_orc,
        "AVRO": _rewrite_avro,
        "PUFFIN": _rewrite_puffin,
    }
    if file_format.upper() not in formats:
        raise BackupError(
            location, f"position deletes in {file_format} are unknown", "Compact the table's deletes first."
        )
    with _translate_errors(location):
        return formats[file_format.upper()](location, content, moved)


def _rewrite_parquet(location: str, content: bytes, moved: MoveLocation) -> RewrittenDeletes:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(io.BytesIO(content))
    columns = _columns(file.schema_arrow, b"PARQUET:field_id")
    deletes = _move_rows(file.read(), columns, moved)
    written = io.BytesIO()
    pq.write_table(deletes, written, compression="zstd", store_schema=False)
    return _make_deletes(written.getvalue(), deletes.column(columns[0]))


def _rewrite_orc(location: str, content: bytes, moved: MoveLocation) -> RewrittenDeletes:
    from pyarrow import orc

    file = orc.ORCFile(io.BytesIO(content))
    columns = _columns(file.schema, b"iceberg.id")
    deletes = _move_rows(file.read(), columns, moved)
    written = io.BytesIO()
    orc.write_table(deletes, written, compression="zlib")
    return _make_deletes(written.getvalue(), deletes.column(columns[0]))


def _rewrite_avro(location: str, content: bytes, moved: MoveLocation) -> RewrittenDeletes:
    names: set[str] = set()

    def change(record: dict[str, Any]) -> None:
        record["file_path"] = moved(record["file_path"])
        names.add(record["file_path"])

    changed = rewrite_records(location, content, change)
    ordered = sorted(names, key=str.encode)
    return RewrittenDeletes(changed, ordered[0] if ordered else None, ordered[-1] if ordered else None)


def _rewrite_puffin(location: str, content: bytes, moved: MoveLocation) -> RewrittenDeletes:
    """The blobs stay where they are: manifests tell their offsets."""
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


def _move_rows(deletes: pa.Table, columns: tuple[str, str], moved: MoveLocation) -> pa.Table:
    """The rows with new paths, in the order that the specification wants: by path, then by position."""
    place = deletes.column_names.index(columns[0])
    field = deletes.schema.field(place)
    paths = deletes.column(place).combine_chunks().cast(pa.string()).dictionary_encode()
    new = pa.array([moved(path) for path in paths.dictionary.to_pylist()], pa.string())
    deletes = deletes.set_column(place, field, new.take(paths.indices).cast(field.type))
    return deletes.take(pc.sort_indices(deletes.select(columns), [(name, "ascending") for name in columns]))


def _columns(schema: pa.Schema, id_key: bytes) -> tuple[str, str]:
    """The names that the columns of path and position have in a file."""
    ids = {(field.metadata or {}).get(id_key): field.name for field in schema}
    path, position = (str(ids.get(b"%d" % field_id, name)) for field_id, name in (PATH, POSITION))
    return path, position


def _make_deletes(content: bytes, paths: pa.ChunkedArray) -> RewrittenDeletes:
    if not len(paths):
        return RewrittenDeletes(content)
    return RewrittenDeletes(content, paths[0].as_py(), paths[-1].as_py())


@contextmanager
def _translate_errors(location: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, struct.error, pa.ArrowException) as error:
        raise make_unreadable_error(location, error) from error


READERS = 8
"""How many manifests are rewritten at a time."""
MOUNT_PROPERTIES: Mapping[str, str] = {"gc.enabled": "false"}
"""Properties of a table whose files are a backup's: whoever drops it or expires snapshots must not remove them."""
# They say where a writer puts files: of another place the table's own location tells that.
LOCATION_PROPERTIES = (
    "write.data.path",
    "write.folder-storage.path",
    "write.metadata.path",
    "write.object-storage.path",
)
DELETED = 2
POSITION_DELETES = 1
Json: TypeAlias = dict[str, Any]  # a metadata file, whatever it says
ReportProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class RewrittenTable:
    """A table at its new place: where its metadata.json is, and the keys of all that was written for it."""

    metadata_location: str
    keys: tuple[str, ...]
    size_bytes: int
    snapshot_id: int | None
    """The snapshot that its readers get."""


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
    """Write the metadata of a table whose data files are at new places (Iceberg spec, format versions 1 to 3).

    `read` answers with the content of what is at an *original* location (several threads ask it), `moved` with the
    new location of a data file, for every location, held or not. `folder` is the key in `target` of the table's new
    location; what is written goes to `<folder>/metadata/`, the same names for the same table each time. `snapshots`
    keeps only these, `current` makes one of them the table's newest; by default that stays what it is, or is the
    newest one that is kept. `tell` hears how many manifests of how many are done.

    Position deletes and deletion vectors are rewritten with their manifests; equality deletes, statistics and
    partition statistics name no file and only move. The log of older metadata files is not carried along: these
    still speak of the original place.

    Raises:
        BackupError: a file cannot be read, is encrypted or missing, or there is no such snapshot.
    """
    content = read(metadata_location)
    table = _json(metadata_location, content)
    _keep_snapshots(metadata_location, table, snapshots, current)
    writing = _MetadataRewrite(read, moved, target, folder.rstrip("/"), report_progress)
    writing.rewrite_snapshots(table)
    _move_locations(table, target.address.location(writing.folder), properties or {})
    for name in ("statistics", "partition-statistics"):
        for statistics in table.get(name, ()):
            statistics["statistics-path"] = moved(statistics["statistics-path"])
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    if content.startswith(GZIP):
        # Readers go by the name, which stays (Iceberg spec, "Naming for GZIP compressed Metadata JSON files").
        text = gzip.compress(text, mtime=0)
    location = writing.put(metadata_location.rpartition("/")[2], text)
    return RewrittenTable(location, tuple(writing.keys), writing.size_bytes, _current(table))


def set_current_snapshot(metadata_location: str, content: bytes, snapshot_id: int) -> bytes:
    """A table's metadata, uncompressed, in which another of its snapshots is the newest; all else stays.

    Raises:
        BackupError: it cannot be read, or has no such snapshot.
    """
    table = _json(metadata_location, content)
    _keep_snapshots(metadata_location, table, None, snapshot_id)
    return json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True)
class _Deletes:
    location: str
    size_bytes: int
    first: str | None
    last: str | None


@dataclass
class _MetadataRewrite:
    """One rewriting: what it reads, where it writes, and what it has written."""

    read: Callable[[str], bytes]
    moved: MoveLocation
    target: BackupStore
    folder: str
    report_progress: ReportProgress | None
    keys: list[str] = dataclass_field(default_factory=list)
    size_bytes: int = 0
    deletes: dict[str, _Deletes] = dataclass_field(default_factory=dict)
    turns: dict[str, Lock] = dataclass_field(default_factory=dict)
    lock: Lock = dataclass_field(default_factory=Lock)

    def rewrite_snapshots(self, table: Json) -> None:
        """Manifests first, each once, then the lists that tell their new names and lengths."""
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
        new = self._rewrite_manifests(list(manifests))

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

    def _rewrite_manifests(self, locations: list[str]) -> dict[str, tuple[str, int]]:
        """New location and length by old location."""
        new = {}
        with ThreadPoolExecutor(READERS) as pool:
            contents = pool.map(self._manifest, locations)
            for done, (location, content) in enumerate(zip(locations, contents, strict=True), 1):
                new[location] = (self.put(_make_file_name(location), content), len(content))
                if self.report_progress is not None:
                    self.report_progress(done, len(locations))
        return new

    def _manifest(self, location: str) -> bytes:
        """A manifest's content with new places (Iceberg spec, "Manifests")."""

        def change(entry: Record) -> None:
            file = entry["data_file"]
            old = file["file_path"]
            if file.get("referenced_data_file") is not None:
                file["referenced_data_file"] = self.moved(file["referenced_data_file"])
            if file.get("content") != POSITION_DELETES or entry["status"] == DELETED:
                file["file_path"] = self.moved(old)
                # What an entry tells as deleted may be gone, and nobody reads it: its names of files go, too.
                _remove_bounds(file)
                return
            deletes = self._deletes_at(old, file["file_format"])
            file["file_path"], file["file_size_in_bytes"] = deletes.location, deletes.size_bytes
            _set_bounds(file, "lower_bounds", deletes.first or file.get("referenced_data_file"))
            _set_bounds(file, "upper_bounds", deletes.last or file.get("referenced_data_file"))

        return rewrite_records(location, self.read(location), change)

    def _deletes_at(self, location: str, file_format: str) -> _Deletes:
        """A file of deletes at its new place; several manifests may tell of one."""
        with self.lock:
            turn = self.turns.setdefault(location, Lock())
        with turn:
            if location not in self.deletes:
                rewritten = rewrite_deletes(location, file_format, self.read(location), self.moved)
                place = self.put(_make_file_name(location), rewritten.content)
                self.deletes[location] = _Deletes(
                    place, len(rewritten.content), rewritten.first, rewritten.last
                )
            return self.deletes[location]

    def put(self, name: str, content: bytes) -> str:
        """Write a file of the new metadata; returns its location."""
        key = f"{self.folder}/metadata/{name}"
        self.target.put(key, content)
        with self.lock:
            self.keys.append(key)
            self.size_bytes += len(content)
        return self.target.address.location(key)


def _json(location: str, content: bytes) -> Json:
    try:
        # Python's own parser: numbers of any length stay what they are.
        table = json.loads(decompress_metadata(content, MAX_METADATA_BYTES))
    except (ValueError, MetadataError) as error:
        raise make_unreadable_error(location, error) from error
    version = table.get("format-version") if isinstance(table, dict) else None
    if version not in FORMAT_VERSIONS:
        raise BackupError(
            location,
            f"its format version is {version!r}",
            "Versions 1 to 3 can be restored to another place.",
        )
    found: Json = table
    return found


def _keep_snapshots(location: str, table: Json, wanted: Collection[int] | None, current: int | None) -> None:
    """Leave in a table only the snapshots that are wanted, as expiring the others would."""
    there = {one["snapshot-id"]: one for one in table.get("snapshots", ())}
    ids = set(there) if wanted is None else set(wanted)
    named = ids if current is None else ids | {current}
    if absent := named - set(there):
        raise BackupError(
            location,
            f"it has no snapshot {', '.join(map(str, sorted(absent)))}",
            f"It has {', '.join(map(str, sorted(there))) or 'none'}.",
        )
    newest = current if current is not None else _current(table)
    if newest not in ids:
        newest = max(ids, key=lambda one: _age(there[one])) if ids else None
    if wanted is None and newest == _current(table):
        return
    table["snapshots"] = [one for one in table.get("snapshots", ()) if one["snapshot-id"] in ids]
    table["current-snapshot-id"] = -1 if newest is None else newest
    for name in ("snapshot-log", "statistics", "partition-statistics"):
        if name in table:
            table[name] = [one for one in table[name] if one["snapshot-id"] in ids]
    _end_log(table, there, newest)
    refs = {name: ref for name, ref in table.get("refs", {}).items() if ref["snapshot-id"] in ids}
    if newest is not None:
        refs["main"] = {**table.get("refs", {}).get("main", {"type": "branch"}), "snapshot-id": newest}
    table["refs"] = refs


def _end_log(table: Json, there: Mapping[int, Json], newest: int | None) -> None:
    """Readers want the log of current snapshots to end with the current one (Iceberg spec, "snapshot-log")."""
    log = table.get("snapshot-log", [])
    while log and log[-1]["snapshot-id"] != newest:
        log.pop()
    if newest is not None and not log:
        log.append({"snapshot-id": newest, "timestamp-ms": there[newest]["timestamp-ms"]})
    table["snapshot-log"] = log


def _age(snapshot: Json) -> tuple[int, int]:
    return snapshot.get("sequence-number", 0), snapshot["timestamp-ms"]


def _current(table: Json) -> int | None:
    current = table.get("current-snapshot-id")
    return None if current in (None, -1) else int(current)


def _move_locations(table: Json, location: str, properties: Mapping[str, str]) -> None:
    before = table.get("properties", {})
    table["location"] = location
    table["properties"] = {
        name: value for name, value in before.items() if name not in LOCATION_PROPERTIES
    } | dict(properties)
    # Writers remove what is in this log as it grows: nothing of the original place may be in it.
    table["metadata-log"] = []


def _set_bounds(file: Record, name: str, path: str | None) -> None:
    """Tell anew the least or greatest path of a file of deletes, where it was told."""
    for one in file.get(name) or ():
        if one["key"] == PATH_ID and path is not None:
            one["value"] = path.encode()


def _remove_bounds(file: Record) -> None:
    """Leave out what bounds paths of data files."""
    for name in ("lower_bounds", "upper_bounds"):
        if file.get(name):
            file[name] = [one for one in file[name] if one["key"] != PATH_ID]


def _make_file_name(location: str) -> str:
    """A name that no other file of the table has, also when folders are merged into one."""
    return f"{sha256(location.encode()).hexdigest()[:12]}-{location.rpartition('/')[2]}"


def find_whole_snapshots(
    read: Callable[[str], bytes], metadata_location: str, is_held: Callable[[str], bool]
) -> set[int]:
    """Ids of the snapshots of which every manifest list, manifest, data file and delete file is held.

    `read` and `is_held` are asked by original locations; only what is held is read.

    Raises:
        BackupError: the metadata cannot be read, or a manifest that is held is broken.
    """
    try:
        table = json.loads(decompress_metadata(read(metadata_location), MAX_METADATA_BYTES))
    except (ValueError, MetadataError) as error:
        raise make_unreadable_error(metadata_location, error) from error
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
        manifest_list = snapshot.get("manifest-list")
        if manifest_list is not None and not is_held(manifest_list):
            continue
        manifests = (
            [row["manifest_path"] for row in read_records(manifest_list, read(manifest_list))]
            if manifest_list is not None
            else snapshot.get("manifests", ())
        )
        if all(manifest_is_whole(manifest) for manifest in manifests):
            whole.add(snapshot["snapshot-id"])
    return whole


def require_whole_snapshot(metadata_location: str, snapshot_id: int, whole: set[int]) -> None:
    """Refuse a snapshot that is not whole.

    Raises:
        BackupError: it is not.
    """
    if snapshot_id not in whole:
        others = ", ".join(map(str, sorted(whole))) or "none"
        raise BackupError(
            metadata_location, f"its snapshot {snapshot_id} is not whole in the point", f"Whole are {others}."
        )
