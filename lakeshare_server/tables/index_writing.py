"""Writing the file index of a snapshot: sorted by path, rendered by several threads, hashed on its way to disk."""

import hashlib
import io
import json
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.settings import make_private
from lakeshare_server.tables.arrays import column_of
from lakeshare_server.tables.delta_schema import parquet_format_schema
from lakeshare_server.tables.index import HEADER_KEY, LAYOUT, IndexHeader, index_path
from lakeshare_server.tables.lines import LINE_COLUMNS, rendered
from lakeshare_server.tables.locations import elsewhere, roots_of
from lakeshare_server.tables.physical_names import PhysicalNames
from lakeshare_server.tables.scratch import remove_abandoned, scratch_file, sync_folder
from lakeshare_server.tables.snapshot import TableSnapshot

BATCH_ROWS = 16_000
# Rendering works on this many files at once: enough for the column at a time, little for the memory.
CHUNK_ROWS = 16_000
RENDERERS = 2
STRUCTS = ("partition", "min", "max", "null_count")


@dataclass(frozen=True)
class StoredIndex:
    """An index on disk and what it adds up to.

    `rows` are those that readers get, without deleted ones; a file of unknown row count counts as 0.
    """

    digest: str
    path: Path
    rows: int
    files: int
    size_bytes: int


def write_index(snapshot: TableSnapshot, index_dir: Path) -> StoredIndex:
    """Write the index of a publication; writing it again, in any process, gives the same file."""
    make_private(index_dir)
    remove_abandoned(index_dir)
    scratch = scratch_file(index_dir)
    try:
        with scratch.open("xb") as file:
            sink = _Digesting(file)
            header = _write(pa.PythonFile(sink, mode="w"), snapshot)
            file.flush()
            os.fsync(file.fileno())
        digest = sink.hexdigest()
        path = index_path(index_dir, digest)
        scratch.chmod(0o600)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(index_dir)
    return StoredIndex(digest, path, header.rows, header.files, header.size_bytes)


def write_index_file(snapshot: TableSnapshot, path: Path) -> None:
    """Write an index that can be built again at any time: to a place of the caller's, neither named nor synced."""
    with pa.OSFile(os.fsencode(path), "wb") as file:
        _write(file, snapshot)


def _header_of(snapshot: TableSnapshot, files: pa.Table) -> IndexHeader:
    others = elsewhere(snapshot.location, files)
    return IndexHeader(
        layout=LAYOUT,
        table_format=snapshot.format,
        location=snapshot.location,
        head=snapshot.head,
        parquet_schema_string=parquet_format_schema(snapshot.schema_string),
        roots=tuple(sorted(roots_of(snapshot.location, others))),
        elsewhere=len(others),
        rows=pc.sum(_live_rows(files), min_count=0).as_py(),
        files=files.num_rows,
        size_bytes=pc.sum(files.column("size"), min_count=0).as_py(),
    )


def _live_rows(files: pa.Table) -> pa.ChunkedArray:
    """How many rows of each file are not deleted; null where the file does not tell how many it has."""
    rows = files.column("rows")
    if "dv_cardinality" not in files.column_names:
        return rows
    return pc.subtract(rows, pc.fill_null(files.column("dv_cardinality"), 0))


def _write(file: pa.NativeFile, snapshot: TableSnapshot) -> IndexHeader:
    names = snapshot.files.column_names
    files = pa.table([column_of(snapshot.files, name) for name in names], names)
    header = _header_of(snapshot, files)
    columns = ["path", "size", "modification_time", "rows"]
    columns += ["dv_cardinality"] if "dv_cardinality" in files.column_names else []
    columns += [name for name in STRUCTS if files.schema.field(name).type.num_fields]
    fields = [files.schema.field(name) for name in columns]
    fields += [pa.field(name, pa.string()) for name in LINE_COLUMNS]
    schema = pa.schema(fields, {HEADER_KEY: json.dumps(asdict(header), sort_keys=True).encode()})
    with pa.ipc.new_file(file, schema) as writer:
        for chunk, lines in _rendered(files, PhysicalNames(snapshot.head)):
            arrays = [column_of(chunk, name) for name in columns]
            writer.write_table(
                pa.Table.from_arrays([*arrays, *lines], schema=schema), max_chunksize=BATCH_ROWS
            )
    return header


def _rendered(files: pa.Table, names: PhysicalNames) -> Iterator[tuple[pa.Table, list[pa.Array]]]:
    """Chunks of files with their lines, in the order of paths: some are rendered while earlier ones are written."""
    order = pc.sort_indices(files.column("path"))

    def render(start: int) -> tuple[pa.Table, list[pa.Array]]:
        chunk = files.take(order.slice(start, CHUNK_ROWS))
        return chunk, rendered(names.of(chunk), names.partition_columns)

    with ThreadPoolExecutor(RENDERERS) as pool:
        ahead: deque[Future[tuple[pa.Table, list[pa.Array]]]] = deque()
        for start in range(0, files.num_rows, CHUNK_ROWS):
            ahead.append(pool.submit(render, start))
            if len(ahead) > RENDERERS:
                yield ahead.popleft().result()
        for chunk in ahead:
            yield chunk.result()


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
