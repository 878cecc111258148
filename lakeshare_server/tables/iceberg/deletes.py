"""Row-level deletes of an Iceberg snapshot as deletion vectors, one for each data file with deleted rows.

Deletes that cannot be expressed as a vector are refused, never left out. Equality deletes are in equality_deletes.py.
"""

import hashlib
import logging
import os
import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import make_private
from lakeshare_server.storage import LASTING, Stores
from lakeshare_server.tables.iceberg.manifests import DataFiles, DeleteFile, PartitionRecord
from lakeshare_server.tables.iceberg.schema import FIELD_ID
from lakeshare_server.tables.index import keep_file, new_file, remove_abandoned
from lakeshare_server.tables.lines import encode_z85
from lakeshare_server.tables.serveability import ReasonCode
from lakeshare_server.tables.snapshot import Hindrance, TableHead, TableProtocol

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyiceberg.table.metadata import TableMetadata
    from pyroaring import BitMap64

_log = logging.getLogger(__name__)

# The scope of equality deletes of an unpartitioned spec.
EVERYWHERE = ""
# Delete files are small and come from stores with latency: many are requested at once.
READERS = 16


@contextmanager
def reading(file: str) -> Iterator[None]:
    """Turns errors of reading a file into Unserveable; `file` names it in the message."""
    try:
        yield
    except (*LASTING, OSError, ValueError, KeyError, struct.error, pa.ArrowException) as error:
        _log.warning("%s cannot be read: %s", file, error)
        raise Unserveable(
            f"{file} cannot be read.", "Check that the file is there and whole; publish the table again."
        ) from error


@dataclass(frozen=True, kw_only=True)
class Target:
    """A live data file; `rows` includes deleted rows."""

    path: str
    spec_id: int
    partition: PartitionRecord
    sequence_number: int
    rows: int


@dataclass(frozen=True)
class Targets:
    """The live data files of a snapshot; the number of a data file is its index in `files`."""

    files: Sequence[Target]
    unpartitioned: frozenset[int] = dataclass_field(default_factory=frozenset)
    """Ids of specs without partition fields."""

    @cached_property
    def by_path(self) -> Mapping[str, int]:
        return {file.path: number for number, file in enumerate(self.files)}

    @cached_property
    def _partitions(self) -> "Mapping[_Partition, _Group]":
        groups: dict[_Partition, list[Target]] = defaultdict(list)
        for file in self.files:
            groups[_partition(file)].append(file)
        return {
            partition: _Group(sorted(one.path for one in files), min(one.sequence_number for one in files))
            for partition, files in groups.items()
        }

    @cached_property
    def _numbers(self) -> Mapping[str, Sequence[int]]:
        numbers: dict[str, list[int]] = defaultdict(list)
        for number in range(len(self.files)):
            numbers[self.own_scope(number)].append(number)
        return numbers

    def near(self, delete: DeleteFile) -> Sequence[str]:
        """The ordered paths of the data files that a file of position deletes can apply to."""
        path = _only_path(delete)
        if path is not None:
            return [path] if self.number_of(path, delete) is not None else []
        group = self._partitions.get(_partition(delete))
        if group is None or group.oldest > delete.sequence_number:
            return []
        low, high = delete.lowest_path, delete.highest_path
        first = 0 if low is None else bisect_left(group.paths, low)
        return group.paths[first : None if high is None else bisect_right(group.paths, high)]

    def number_of(self, path: str, delete: DeleteFile) -> int | None:
        """The number of the data file with this path, if position deletes of this file apply to it."""
        number = self.by_path.get(path)
        if number is None or self.files[number].sequence_number > delete.sequence_number:
            return None
        only = _only_path(delete)
        # A file of deletes for one data file is matched by path only, as in Iceberg's own readers.
        applies = _partition(self.files[number]) == _partition(delete) if only is None else only == path
        return number if applies else None

    def has_equal_rows(self, delete: DeleteFile) -> bool:
        """Whether a file of equality deletes applies to any data file: only to older ones, never to its own commit."""
        if delete.spec_id in self.unpartitioned:
            return any(file.sequence_number < delete.sequence_number for file in self.files)
        group = self._partitions.get(_partition(delete))
        return group is not None and group.oldest < delete.sequence_number

    def scope(self, delete: DeleteFile) -> str:
        """A name of the set of data files that a file of equality deletes can apply to: empty for all."""
        return EVERYWHERE if delete.spec_id in self.unpartitioned else repr(_partition(delete))

    def own_scope(self, number: int) -> str:
        """The scope of equality deletes in the partition of a data file."""
        return repr(_partition(self.files[number]))

    def in_scope(self, delete: DeleteFile) -> Sequence[int]:
        scope = self.scope(delete)
        return range(len(self.files)) if scope == EVERYWHERE else self._numbers.get(scope, ())

    def older_in_scope(self, delete: DeleteFile) -> list[int]:
        """The numbers of the data files that a file of equality deletes applies to."""
        numbers, newest = self.in_scope(delete), delete.sequence_number
        return [number for number in numbers if self.files[number].sequence_number < newest]


def targets_of(table: "TableMetadata", files: DataFiles) -> Targets:
    from pyiceberg.transforms import VoidTransform

    # Fields that were dropped from a spec of format version 1 stay in it as `void`, which partitions nothing.
    unpartitioned = frozenset(
        spec_id
        for spec_id, spec in table.specs().items()
        if all(isinstance(field.transform, VoidTransform) for field in spec.fields)
    )
    columns = [files.column(name).to_pylist() for name in ("path", "spec_id", "sequence_number", "rows")]
    # For each spec its partition fields in the order of their ids, with the values of all files.
    records: dict[int, list[tuple[int, Sequence[object]]]] = defaultdict(list)
    for (spec_id, field_id), values in sorted(files.partition.items(), key=lambda entry: entry[0]):
        records[spec_id].append((field_id, values.to_pylist()))
    return Targets(
        [
            Target(
                path=path,
                spec_id=spec_id,
                partition=tuple((field, values[row]) for field, values in records.get(spec_id, ())),
                sequence_number=sequence_number or 0,
                rows=rows,
            )
            for row, (path, spec_id, sequence_number, rows) in enumerate(zip(*columns, strict=True))
        ],
        unpartitioned,
    )


_Partition = tuple[int, PartitionRecord]


@dataclass(frozen=True)
class _Group:
    """The data files of one partition: their ordered paths and the lowest sequence number."""

    paths: Sequence[str]
    oldest: int


def _partition(file: Target | DeleteFile) -> _Partition:
    values = file.partition
    # As in Iceberg, partition values of NaN are equal and the two zeros differ.
    if any(isinstance(value, float) for _, value in values):
        values = tuple((key, repr(value) if isinstance(value, float) else value) for key, value in values)
    return file.spec_id, values


def _only_path(delete: DeleteFile) -> str | None:
    """The only data file that a file of position deletes applies to, if its manifest names only one."""
    if delete.referenced_data_file is not None:
        return delete.referenced_data_file
    return delete.lowest_path if delete.lowest_path == delete.highest_path else None


MAGIC = struct.pack("<I", 1681511377)  # the portable 64-bit layout of Roaring bitmaps
FILE_VERSION = b"\x01"
# Clients read complete lines, and lines are rendered by thousands: 50 KiB are about 64 KiB in Z85.
INLINE_BYTES = 50 << 10
# For all lines of a table together: each response contains them.
ALL_INLINE_BYTES = 256 << 20


@dataclass(frozen=True)
class Vector:
    """The deleted rows of one data file: serialised after the magic number, and their number."""

    content: bytes
    cardinality: int

    def rows(self) -> "BitMap64":
        from pyroaring import BitMap64

        return BitMap64.deserialize(self.content[len(MAGIC) :])


def vector_of(rows: "BitMap64") -> Vector:
    rows.run_optimize()
    return Vector(MAGIC + rows.serialize(), len(rows))


def bitmap_of(rows: pa.Array) -> "BitMap64":
    from pyroaring import BitMap64

    numbers = rows.cast(pa.int64())
    return BitMap64(array("Q", bytes(numbers.buffers()[1].slice(numbers.offset * 8, len(numbers) * 8))))


def frame_vector(content: bytes) -> bytes:
    """A vector as in a file: between its length and its checksum."""
    return struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))


def vector_columns(
    vectors: Mapping[int, Vector], files: int, folder: Path | str | None, stores: Stores | None = None
) -> dict[str, pa.Array]:
    """The columns of deletion vectors by row, empty without vectors; large ones are written to `folder`.

    A folder in a store is a location, and needs `stores`.

    Raises VectorTooLarge if a vector is large and there is no folder.
    """
    if not vectors:
        return {}
    most = min(INLINE_BYTES, ALL_INLINE_BYTES // len(vectors))
    large = {row: vector.content for row, vector in vectors.items() if len(vector.content) > most}
    paths = dict(zip(large, _store_vectors(list(large.values()), folder, stores), strict=True))
    places = {row: _place_vector(vector, paths.get(row)) for row, vector in vectors.items()}

    def column(name: str, kind: pa.DataType) -> pa.Array:
        return pa.array([places[row][name] if row in places else None for row in range(files)], kind)

    texts = ("dv_storage", "dv_path", "dv_inline", "dv_id")
    cardinality = [vectors[row].cardinality if row in vectors else 0 for row in range(files)]
    return {
        **{name: column(name, pa.string()) for name in texts},
        **{name: column(name, pa.int64()) for name in ("dv_offset", "dv_size")},
        "dv_cardinality": pa.array(cardinality, pa.int64()),
    }


class VectorTooLarge(Exception):
    """A vector needs a file of its own, and there is no folder."""


def _place_vector(vector: Vector, path: str | None) -> dict[str, str | int | None]:
    size = len(vector.content)
    if path is None:
        text = encode_z85(vector.content)
        # Recipients get an id for files of vectors only.
        inline = {"dv_storage": "i", "dv_path": None, "dv_inline": text, "dv_id": None}
        return {**inline, "dv_offset": None, "dv_size": size}
    offset = len(FILE_VERSION)
    stored = {"dv_storage": "p", "dv_path": path, "dv_inline": None, "dv_id": f"p{path}@{offset}"}
    return {**stored, "dv_offset": offset, "dv_size": size}


def _store_vectors(contents: Sequence[bytes], folder: Path | str | None, stores: Stores | None) -> list[str]:
    if not contents:
        return []
    if folder is None:
        raise VectorTooLarge(f"{len(contents[0])} bytes")
    if isinstance(folder, Path):
        make_private(folder)
        remove_abandoned(folder)
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda content: _store_vector(content, folder, stores), contents))


def _store_vector(content: bytes, folder: Path | str, stores: Stores | None) -> str:
    """Writes a vector to a file named by the SHA-256 of its bytes, unless the file exists; returns its location."""
    file = FILE_VERSION + frame_vector(content)
    name = f"{hashlib.sha256(file).hexdigest()}.bin"
    if isinstance(folder, str):
        if stores is None:
            raise VectorTooLarge(f"{len(content)} bytes")
        location = f"{folder}/{name}"
        # A server that may only read finds the vector that the pipelines wrote.
        if stores.head(location) is None:
            stores.write(location, file)
        return location
    path = folder / name
    if not path.exists():
        with new_file(folder) as scratch:
            with scratch.open("xb") as target:
                target.write(file)
                target.flush()
                os.fsync(target.fileno())
            keep_file(scratch, path)
    return str(path)


PATH, POSITION = (2147483546, "file_path"), (2147483545, "pos")


def deleted_positions(
    stores: Stores, targets: Targets, files: Sequence[tuple[DeleteFile, Sequence[str]]], root: str
) -> dict[int, Vector]:
    """Returns the vectors of all data files with deleted rows, by number; `files` have the paths they may apply to."""

    def read(file: tuple[DeleteFile, Sequence[str]]) -> "list[tuple[int, BitMap64]]":
        with reading(f"The position deletes {file[0].path} of {root}"):
            return list(_positions(stores, targets, *file))

    merged: dict[int, BitMap64] = {}
    with ThreadPoolExecutor(READERS) as pool:
        for numbered in pool.map(read, files):
            for number, positions in numbered:
                if number in merged:
                    merged[number] |= positions
                else:
                    merged[number] = positions
    for number, positions in merged.items():
        # Readers subtract the cardinality of the vector: positions after the end of the file are removed.
        if positions.max() >= targets.files[number].rows:
            positions.remove_range(targets.files[number].rows, positions.max() + 1)
    return {number: vector_of(positions) for number, positions in merged.items() if positions}


def _positions(
    stores: Stores, targets: Targets, delete: DeleteFile, near: Sequence[str]
) -> "Iterator[tuple[int, BitMap64]]":
    import pyarrow.parquet as pq

    with stores.open(delete.path) as stream:
        footer = pq.read_metadata(stream)
        schema = footer.schema.to_arrow_schema()
        ids = {(field.metadata or {}).get(FIELD_ID): field.name for field in schema}
        columns = [str(ids.get(b"%d" % field_id, name)) for field_id, name in (PATH, POSITION)]
        # Consecutive rows have the same path: a dictionary has each path once.
        parquet = pq.ParquetFile(stream, metadata=footer, read_dictionary=columns[:1])
        every = ((group, footer.row_group(group)) for group in range(footer.num_row_groups))
        groups = [number for number, group in every if _may_name_live_file(group, columns[0], near)]
        rows = parquet.read_row_groups(groups, columns=columns, use_threads=False).select(columns)
    for batch in rows.rename_columns(["path", "position"]).to_batches():
        for path, positions in _by_path(batch):
            number = targets.number_of(path, delete)
            if number is not None:
                yield number, positions


def _may_name_live_file(group: "pq.RowGroupMetaData", column: str, live: Sequence[str]) -> bool:
    """Whether a row group may name one of the data files, by its first and last path."""
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema == column and chunk.statistics is not None and chunk.statistics.has_min_max:
            first = bisect_left(live, chunk.statistics.min)
            return first < len(live) and live[first] <= chunk.statistics.max
    return True


def _by_path(batch: pa.RecordBatch) -> "Iterator[tuple[str, BitMap64]]":
    paths, positions = batch.columns
    if paths.null_count or positions.null_count or pc.min(positions).as_py() < 0:
        raise ValueError("a delete has no path, no position, or one before the file's begin")
    if not pa.types.is_dictionary(paths.type):
        paths = paths.dictionary_encode()
    names, start = paths.dictionary.to_pylist(), 0
    # Files are sorted by path, so that each path has one run.
    runs: Any = pc.run_end_encode(paths.indices)
    for code, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield names[code], bitmap_of(positions.slice(start, end - start))
        start = end


# The length before a vector and the checksum after it have four bytes each.
FRAME = 4
# Reading the bytes between two vectors is faster than another request.
GAP_BYTES = 256 << 10


@dataclass(frozen=True)
class VectorBlob:
    """The location and cardinality of a vector, and the number and the rows of its data file."""

    path: str
    offset: int
    size: int
    cardinality: int
    number: int
    rows: int


def read_vectors(stores: Stores, blobs: Sequence[VectorBlob], root: str) -> dict[int, Vector]:
    """Returns the vectors by the numbers of their data files."""

    def read(path: str) -> list[tuple[int, Vector]]:
        with reading(f"The deletion vectors {path} of {root}"), stores.open(path) as stream:
            return [(blob.number, _vector(blob, framed)) for blob, framed in _read_blobs(stream, files[path])]

    files: dict[str, list[VectorBlob]] = defaultdict(list)
    for blob in sorted(blobs, key=lambda blob: blob.offset):
        files[blob.path].append(blob)
    vectors: dict[int, Vector] = {}
    with ThreadPoolExecutor(READERS) as pool:
        for numbered in pool.map(read, files):
            vectors |= dict(numbered)
    return vectors


def _read_blobs(stream: Any, blobs: Iterable[VectorBlob]) -> Iterator[tuple[VectorBlob, bytes]]:
    """Each vector's bytes; close vectors are read together."""
    stretches: list[list[VectorBlob]] = []
    for blob in blobs:
        last = stretches[-1][-1] if stretches else None
        if last is None or blob.offset > last.offset + last.size + GAP_BYTES:
            stretches.append([])
        stretches[-1].append(blob)
    for stretch in stretches:
        start, end = stretch[0].offset, max(blob.offset + blob.size for blob in stretch)
        stream.seek(start)
        content = stream.read(end - start)
        for blob in stretch:
            yield blob, content[blob.offset - start : blob.offset - start + blob.size]


def _vector(blob: VectorBlob, framed: bytes) -> Vector:
    from pyroaring import BitMap64

    content = framed[FRAME:-FRAME]
    length, checksum = struct.unpack(">I", framed[:FRAME])[0], struct.unpack(">I", framed[-FRAME:])[0]
    if len(framed) != blob.size or length != len(content) or checksum != zlib.crc32(content):
        raise ValueError(f"the bytes at {blob.offset} are not the vector that was written there")
    if content[:FRAME] != MAGIC:
        raise ValueError(f"the bytes at {blob.offset} are no deletion vector")
    rows = BitMap64.deserialize(content[FRAME:])
    if len(rows) != blob.cardinality:
        raise ValueError(f"{len(rows)} rows at {blob.offset}, the manifest says {blob.cardinality}")
    if rows and rows.max() >= blob.rows:
        rows.remove_range(blob.rows, rows.max() + 1)
        return vector_of(rows)
    return Vector(content, len(rows))


COMPACTION = (
    "CALL system.rewrite_data_files(table => '…', options => map('delete-file-threshold', '1', "
    "'remove-dangling-deletes', 'true')), which writes the data files anew without the deleted rows"
)


def deletion_vectors(
    stores: Stores,
    targets: Targets,
    deletes: Sequence[DeleteFile],
    root: str,
    by_equality: "Mapping[int, BitMap64] | None" = None,
) -> dict[int, Vector]:
    """Returns the vectors of the data files with deleted rows, by number.

    `by_equality` has the rows deleted by equality deletes. Deletes without a live data file, or with a position after
    its end, are ignored.

    Raises:
        Unserveable: there are equality deletes and no `by_equality`, or a file of deletes cannot be read.
    """
    if by_equality is None:
        require_no_equality_deletes(targets, deletes, root)
    blobs = _vector_blobs(targets, deletes, root)
    files = []
    for delete in deletes:
        near = targets.near(delete) if delete.content == "position" and delete.format != "PUFFIN" else ()
        if near and delete.format != "PARQUET":
            raise Unserveable(
                f"{root} has position deletes in {delete.format}, which this server does not read: {delete.path}.",
                "Set write.delete.format.default to parquet and run CALL system.rewrite_position_delete_files("
                "table => '…', options => map('rewrite-all', 'true')).",
                ReasonCode.DELETE_FORMAT,
            )
        if near:
            files.append((delete, near))
    positions = deleted_positions(stores, targets, files, root)
    # A vector replaces all earlier position deletes.
    vectors = positions | read_vectors(stores, list(blobs.values()), root)
    for number, rows in (by_equality or {}).items():
        own = vectors.get(number)
        vectors[number] = vector_of(rows if own is None else rows | own.rows())
    return {number: vector for number, vector in vectors.items() if vector.cardinality}


def require_no_equality_deletes(targets: Targets, deletes: Sequence[DeleteFile], root: str) -> None:
    """Raises Unserveable if equality deletes apply to a data file."""
    equality = (delete for delete in deletes if delete.content == "equality")
    applied = list(filter(targets.has_equal_rows, equality))
    if applied:
        raise Unserveable(
            f"{root} has {len(applied)} files of equality deletes, the first is {applied[0].path}, which are not "
            "applied to this kind of table.",
            f"Run {COMPACTION}, and publish the table again.",
            ReasonCode.EQUALITY_DELETES,
        )


def _vector_blobs(targets: Targets, deletes: Sequence[DeleteFile], root: str) -> dict[int, VectorBlob]:
    """The vectors in Puffin files by the numbers of their data files; a data file has one at most."""
    blobs: dict[int, VectorBlob] = {}
    for delete in deletes:
        if delete.format != "PUFFIN":
            continue
        path, offset, size = delete.referenced_data_file, delete.content_offset, delete.content_size_in_bytes
        if path is None or offset is None or size is None:
            raise _malformed_error(
                root, f"a deletion vector in {delete.path} lacks its data file, offset or size"
            )
        number = targets.by_path.get(path)
        if number is None:
            continue
        if number in blobs or targets.number_of(path, delete) is None:
            raise _malformed_error(root, f"{path} has two deletion vectors, or one that is older than itself")
        blobs[number] = VectorBlob(delete.path, offset, size, delete.rows, number, targets.files[number].rows)
    return blobs


def _malformed_error(root: str, what: str) -> Unserveable:
    return Unserveable(f"{root}: {what}, which Iceberg does not allow.", f"Run {COMPACTION}.")


FEATURE = "deletionVectors"


def vectors_of(
    stores: Stores,
    targets: Targets,
    deletes: Sequence[DeleteFile],
    by_equality: "Mapping[int, BitMap64]",
    root: str,
    vectors_dir: Path | str | None,
) -> dict[str, pa.Array]:
    """The columns of the deletion vectors, one row for each live data file; empty if no row is deleted."""
    vectors = deletion_vectors(stores, targets, deletes, root, by_equality) if deletes else {}
    try:
        return vector_columns(vectors, len(targets.files), vectors_dir, stores)
    except VectorTooLarge as error:
        raise Unserveable(
            f"{root} has a deletion vector of {error}, which is too large for a line of an answer.",
            f"Run {COMPACTION}.",
            ReasonCode.LARGE_DELETES,
        ) from error


def add_vector_feature(head: TableHead, vectors: Mapping[str, pa.Array]) -> TableHead:
    """The head of a table with these columns of vectors: readers need the feature, and parquet cannot carry them."""
    if not vectors:
        return head
    files = pc.count(vectors["dv_storage"], mode="only_valid").as_py()
    # Table features need these versions; the earlier reader version 2 meant column mapping.
    before = ("columnMapping",) if head.protocol.min_reader_version == 2 else ()
    reader = dict.fromkeys((*(head.protocol.reader_features or before), FEATURE))
    writer = dict.fromkeys((*(head.protocol.writer_features or ()), *reader))
    protocol = TableProtocol(3, 7, tuple(reader), tuple(writer))
    return replace(
        head,
        protocol=protocol,
        configuration={**head.configuration, "delta.enableDeletionVectors": "true"},
        hindrances=(*head.hindrances, vector_hindrance(files)),
    )


def vector_hindrance(files: int) -> Hindrance:
    """Why parquet cannot carry a table with vectors on this number of files."""
    reason, fix = f"has deletion vectors on {files} files", f"Run {COMPACTION}; or write copy-on-write."
    return Hindrance(FEATURE, reason, fix, ReasonCode.ROW_LEVEL_DELETES)
