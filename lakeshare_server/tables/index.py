"""The file index: the files of one publication in one Arrow IPC file, named by the SHA-256 of its bytes.

Written once, when a table is published, and memory-mapped by every server process. What is in it never changes.
"""

import hashlib
import io
import json
import os
import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unavailable
from lakeshare_server.tables.delta_schema import parquet_format_schema
from lakeshare_server.tables.head import TableHead
from lakeshare_server.tables.lines import LINE_COLUMNS, rendered
from lakeshare_server.tables.locations import root_of
from lakeshare_server.tables.snapshot import TableSnapshot

# Grows whenever columns or rendering change; an index of another layout is not opened.
LAYOUT = 2
HEADER_KEY = b"lakeshare"
BATCH_ROWS = 16_000
# Rendering works on this many files at once: enough for the column at a time, little for the memory.
CHUNK_ROWS = 16_000
RENDERERS = 2
STRUCTS = ("partition", "min", "max", "null_count")


@dataclass(frozen=True)
class StoredIndex:
    """An index on disk and what it adds up to; `rows` counts a file of unknown row count as 0."""

    digest: str
    path: Path
    rows: int
    files: int
    size_bytes: int


@dataclass(frozen=True)
class IndexHeader:
    """What is true for all files of an index.

    `parquet_schema_string` is what recipients of the parquet format may see of the schema; `roots` are the stores
    that files and deletion vectors are in.
    """

    layout: int
    table_format: str
    location: str
    head: TableHead
    parquet_schema_string: str
    roots: tuple[str, ...]
    rows: int
    files: int
    size_bytes: int


class FileIndex:
    """An open index. Batches are views into the mapped file."""

    def __init__(self, source: pa.MemoryMappedFile) -> None:
        self._reader = pa.ipc.open_file(source)
        self.header = _header(self._reader.schema)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the batches: path, size, rows, dv_cardinality, the structs there are, and those of lines."""
        return self._reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The files in batches of a few thousand, in the order of their paths."""
        for number in range(self._reader.num_record_batches):
            yield self._reader.get_batch(number)


def write_index(snapshot: TableSnapshot, index_dir: Path) -> StoredIndex:
    """Write the index of a snapshot; writing it again, in any process, gives the same file."""
    files = snapshot.files.take(pc.sort_indices(snapshot.files.column("path")))
    header = _header_of(snapshot, files)
    index_dir.mkdir(parents=True, exist_ok=True)
    scratch = index_dir / f".writing-{uuid.uuid4()}"
    try:
        with scratch.open("xb") as file:
            digest = _write(file, header, files, snapshot.partition_columns)
            file.flush()
            os.fsync(file.fileno())
        path = index_path(index_dir, digest)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    _sync_folder(index_dir)
    return StoredIndex(digest, path, header.rows, header.files, header.size_bytes)


def open_index(index_dir: Path, digest: str) -> FileIndex:
    """Map the index with this digest.

    Raises:
        Unavailable: it is not there, or of another layout.
    """
    path = index_path(index_dir, digest)
    try:
        index = FileIndex(pa.memory_map(str(path)))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Unavailable(
            f"the file index {digest} cannot be opened in {index_dir}: {error}",
            "Restore the folder from its backup, or publish the table again.",
        ) from error
    if index.header.layout != LAYOUT:
        raise Unavailable(
            f"the file index {digest} has layout {index.header.layout}, this lakeshare reads {LAYOUT}",
            "Publish the table again with this version.",
        )
    return index


def index_path(index_dir: Path, digest: str) -> Path:
    """Where the index with this digest is."""
    return index_dir / f"{digest}.arrow"


def _header_of(snapshot: TableSnapshot, files: pa.Table) -> IndexHeader:
    return IndexHeader(
        layout=LAYOUT,
        table_format=snapshot.format,
        location=snapshot.location,
        head=snapshot.head,
        parquet_schema_string=parquet_format_schema(snapshot.schema_string),
        roots=_roots(snapshot.location, files),
        rows=pc.sum(files.column("rows"), min_count=0).as_py(),
        files=files.num_rows,
        size_bytes=pc.sum(files.column("size"), min_count=0).as_py(),
    )


def _write(
    file: BinaryIO,
    header: IndexHeader,
    files: pa.Table,
    partition_columns: tuple[str, ...],
) -> str:
    sink = _Digesting(file)
    columns = ["path", "size", "modification_time", "rows"]
    columns += ["dv_cardinality"] if "dv_cardinality" in files.column_names else []
    columns += [name for name in STRUCTS if files.schema.field(name).type.num_fields]
    fields = [files.schema.field(name) for name in columns] + [
        pa.field(name, pa.string()) for name in LINE_COLUMNS
    ]
    schema = pa.schema(fields, {HEADER_KEY: json.dumps(asdict(header), sort_keys=True).encode()})
    with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
        for chunk, lines in _rendered(files, partition_columns):
            arrays = [chunk.column(name).combine_chunks() for name in columns]
            writer.write_table(
                pa.Table.from_arrays([*arrays, *lines], schema=schema), max_chunksize=BATCH_ROWS
            )
    return sink.hexdigest()


def _rendered(
    files: pa.Table, partition_columns: tuple[str, ...]
) -> Iterator[tuple[pa.Table, list[pa.Array]]]:
    """Chunks of files with their lines, in order: some are rendered while earlier ones are written."""
    chunks = [
        files.slice(start, CHUNK_ROWS).combine_chunks() for start in range(0, files.num_rows, CHUNK_ROWS)
    ]
    with ThreadPoolExecutor(RENDERERS) as pool:
        ahead: deque[tuple[pa.Table, Future[list[pa.Array]]]] = deque()
        for chunk in chunks:
            ahead.append((chunk, pool.submit(rendered, chunk, partition_columns)))
            if len(ahead) > RENDERERS:
                done, lines = ahead.popleft()
                yield done, lines.result()
        for done, lines in ahead:
            yield done, lines.result()


def _roots(location: str, files: pa.Table) -> tuple[str, ...]:
    """The stores that files and deletion vectors are in; nearly always it is the table's own."""
    roots = {root_of(location)}
    for name in ("path", "dv_path"):
        if name in files.column_names:
            paths = files.column(name)
            elsewhere = paths.filter(pc.invert(pc.starts_with(paths, location.rstrip("/") + "/")))
            roots.update(root_of(path) for path in elsewhere.to_pylist() if path is not None)
    return tuple(sorted(roots))


class _Digesting(io.RawIOBase):
    """Hashes what passes through on its way to a file."""

    def __init__(self, target: BinaryIO) -> None:
        self._target, self._digest = target, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # Arrow hands bytes-like objects over
        self._digest.update(data)
        return self._target.write(data)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _header(schema: pa.Schema) -> IndexHeader:
    fields = json.loads(schema.metadata[HEADER_KEY])
    fields["head"] = TableHead.from_json(fields["head"])
    return IndexHeader(**{**fields, "roots": tuple(fields["roots"])})
