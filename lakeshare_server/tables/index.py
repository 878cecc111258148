"""The file index: the files of one publication in one Arrow IPC file, named by the SHA-256 of its bytes.

Written once, when a table is published, and memory-mapped by every server process. What is in it never changes.
"""

import fcntl
import hashlib
import io
import json
import logging
import mmap
import os
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Generic, TypedDict, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unavailable
from lakeshare_server.settings import make_private
from lakeshare_server.storage.locations import find_outside_files, find_roots
from lakeshare_server.tables.delta.files import Leaf, list_leaves, mapping_mode
from lakeshare_server.tables.lines import LINE_COLUMNS, column_of, render_lines
from lakeshare_server.tables.snapshot import TableHead, TableSnapshot, parquet_format_schema

logger = logging.getLogger(__name__)

# Grows whenever columns or rendering change; an index of another layout is not opened.
LAYOUT = 4
HEADER_KEY = b"lakeshare"
# Indexes up to this size stay in memory between requests.
MAX_CACHED_BYTES = 64 << 20


@dataclass(frozen=True)
class IndexHeader:
    """What is true for all files of an index.

    `parquet_schema_string` is what recipients of the parquet format may see of the schema; `roots` are the stores
    that files and deletion vectors are in, or the folders of local ones outside of the table's own location, and
    `elsewhere` is the number of all those outside of it.
    """

    layout: int
    table_format: str
    location: str
    head: TableHead
    parquet_schema_string: str
    roots: tuple[str, ...]
    elsewhere: int
    rows: int
    files: int
    size_bytes: int


class FileIndex:
    """An open index. Batches are views into the mapped file, made once."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        buffer = pa.py_buffer(self._mapped)
        self._begin = buffer.address
        reader = pa.ipc.open_file(pa.BufferReader(buffer))
        self.schema: pa.Schema = reader.schema
        self.header = _header(self.schema)
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The files in batches of some thousand, in the order of their paths."""
        return iter(self._batches)

    def give_back(self, batch: pa.RecordBatch) -> None:
        """Say that a batch was read for now: of a large index no more is to stay in memory than what is being read."""
        if len(self._mapped) <= MAX_CACHED_BYTES:
            return
        # Empty ones lie anywhere, outside of the file, too.
        buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer]
        if not buffers:
            return
        start = min(buffer.address for buffer in buffers) - self._begin
        end = max(buffer.address + buffer.size for buffer in buffers) - self._begin
        start -= start % mmap.PAGESIZE
        # The pages stay in the system's cache: whoever reads them next has them back at once.
        self._mapped.madvise(mmap.MADV_DONTNEED, start, end - start)


def open_index(index_dir: Path, digest: str) -> FileIndex:
    """Map the index with this digest.

    Raises:
        Unavailable: it is not there, or of another layout.
    """
    path = index_path(index_dir, digest)
    try:
        index = FileIndex(path)
    except (OSError, KeyError, TypeError, ValueError) as error:
        logger.warning("%s cannot be opened: %s", path, error)
        raise Unavailable(
            f"the file index {digest} cannot be opened",
            "Restore the server's index folder from its backup, or publish the table again.",
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


def _header(schema: pa.Schema) -> IndexHeader:
    fields = json.loads(schema.metadata[HEADER_KEY])
    fields["head"] = TableHead.from_json(fields["head"])
    return IndexHeader(**{**fields, "roots": tuple(fields["roots"])})


PREFIX = ".writing-"
# Whoever is at work writes more often than that.
ABANDONED_AFTER_S = 6 * 3600


def scratch_file(folder: Path) -> Path:
    """A place for one writer."""
    return folder / f"{PREFIX}{uuid.uuid4()}"


def remove_abandoned(folder: Path) -> None:
    """Remove what writers left behind that were killed."""
    for file in folder.glob(f"{PREFIX}*"):
        # Another process may remove it at the same time.
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > ABANDONED_AFTER_S:
                file.unlink()


def sync_folder(folder: Path) -> None:
    """Make the names of a folder's files as lasting as their bytes are."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


OPEN_FILES = 256
# A file in use is marked as used at most so often.
TOUCH_EVERY_S = 60.0
# Whoever builds the file of a table in a slow store is to hold up no other table.
LOCKS = 1024
SUFFIX = ".arrow"

Opened = TypeVar("Opened")


@dataclass
class _CachedFile(Generic[Opened]):
    """An open file, and when it was last marked as used."""

    opened: Opened
    marked_at: float = field(default_factory=time.monotonic)


class CacheFolder(Generic[Opened]):
    """Builds each file once; `open_file` opens one, and what it returns is kept for the requests that follow.

    Several kinds may share a folder. Whoever builds a file of one kind may have files of another built meanwhile, never
    one of its own kind: builders of a kind wait for each other.
    """

    def __init__(self, folder: Path, kind: str, max_bytes: int, open_file: Callable[[Path], Opened]) -> None:
        self.folder, self.kind, self.max_bytes, self._open_file = folder, kind, max_bytes, open_file
        self._open: OrderedDict[str, _CachedFile[Opened]] = OrderedDict()
        self._opening = Lock()
        self._building = [Lock() for _ in range(LOCKS)]

    def get(
        self,
        identity: Sequence[object],
        write: Callable[[Path], None],
        is_good: Callable[[Opened], bool] = lambda _: True,
    ) -> Opened:
        """The file of what the identity says, written when nobody has done so yet, or when what is there is no good.

        Raises:
            Unavailable: the folder cannot be written.
            LakeshareError: whatever `write` raises; nothing is kept then.
        """
        key = _key(identity)
        found = self._found(key)
        if found is not None and is_good(found):
            return found
        with self._building[int(key[:8], 16) % LOCKS], self._alone(key):
            found = self._found(key)
            return found if found is not None and is_good(found) else self._built(key, write)

    def found(self, identity: Sequence[object]) -> Opened | None:
        """The file of what the identity says, if somebody built it."""
        return self._found(_key(identity))

    def _found(self, key: str) -> Opened | None:
        path = self._path(key)
        with self._opening:
            kept = self._open.get(key)
            if kept is not None:
                self._open.move_to_end(key)
        if kept is not None:
            _touch(kept, path)
            return kept.opened
        try:
            opened = self._open_file(path)
            os.utime(path)
        except (OSError, KeyError, TypeError, ValueError):
            # Not built yet, removed to make room, or damaged: each time it is built anew.
            return None
        return self._keep(key, opened)

    def _keep(self, key: str, opened: Opened) -> Opened:
        with self._opening:
            self._open[key] = _CachedFile(opened)
            while len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
        return opened

    def _built(self, key: str, write: Callable[[Path], None]) -> Opened:
        scratch = scratch_file(self.folder)
        try:
            write(scratch)
            # Before others see it: they might remove it to make room.
            opened = self._open_file(scratch)
            scratch.replace(self._path(key))
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            scratch.unlink(missing_ok=True)
        self._make_room(key)
        return self._keep(key, opened)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    def _make_room(self, kept: str) -> None:
        """Remove what was used longest ago; open ones stay readable until they are closed."""
        remove_abandoned(self.folder)
        described = []
        for file in self.folder.glob(f"*{SUFFIX}"):
            try:
                described.append((file, file.stat()))
            except FileNotFoundError:
                # Another process made room at the same time.
                continue
        total = sum(found.st_size for _, found in described)
        for file, found in sorted(described, key=lambda one: one[1].st_mtime):
            if total <= self.max_bytes:
                return
            if file.stem != kept:
                total -= found.st_size
                file.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> Unavailable:
        logger.warning("%s cannot be written: %s", self.folder, error)
        return Unavailable(
            f"an index cannot be written: {error.strerror}",
            "Make room below LAKESHARE_STATE_DIR, or set it to a place that can be written.",
        )

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Keep other processes from building the same file meanwhile."""
        try:
            make_private(self.folder)
            file = (self.folder / f".building-{self.kind}-{int(key[:8], 16) % LOCKS}").open("a")
        except OSError as error:
            raise self._unwritable(error) from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _touch(kept: _CachedFile[Opened], path: Path) -> None:
    """Tell whoever makes room that the file is in use."""
    now = time.monotonic()
    if now - kept.marked_at >= TOUCH_EVERY_S:
        kept.marked_at = now
        # It may be gone, and stays open all the same.
        with suppress(OSError):
            os.utime(path)


def _key(identity: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


PHYSICAL_NAME_STRUCTS = ("partition", "min", "max", "told_max", "null_count")


class PhysicalNames:
    """The names in one table's lines; without column mapping, the table's own."""

    def __init__(self, head: TableHead) -> None:
        is_mapped = mapping_mode(head.configuration) != "none"
        self._leaves = list_leaves(head.schema_string) if is_mapped else ()
        physical = {leaf.name: leaf.physical for leaf in self._leaves}
        self.partition_columns = tuple(physical.get(column, column) for column in head.partition_columns)

    def of(self, files: pa.Table) -> pa.Table:
        """The files with their structs renamed; texts of a log, which lines are made of then, have these names."""
        if not self._leaves or "stats" in files.column_names:
            return files
        for name in PHYSICAL_NAME_STRUCTS:
            place = files.schema.get_field_index(name)
            if place >= 0:
                values = files.column(place).combine_chunks()
                files = files.set_column(place, name, _renamed(values, self._leaves))
        return files


def _renamed(values: pa.StructArray, leaves: Sequence[Leaf]) -> pa.StructArray:
    if not values.type.num_fields:
        return values
    by_name: Mapping[str, Leaf] = {leaf.name: leaf for leaf in leaves}
    arrays, names = [], []
    for place, member in enumerate(values.type):
        leaf, inner = by_name[member.name], pc.struct_field(values, [place])
        arrays.append(_renamed(inner, leaf.members) if leaf.members else inner)
        names.append(leaf.physical)
    return pa.StructArray.from_arrays(arrays, names)


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
    others = find_outside_files(snapshot.location, files)
    return IndexHeader(
        layout=LAYOUT,
        table_format=snapshot.format,
        location=snapshot.location,
        head=snapshot.head,
        parquet_schema_string=parquet_format_schema(snapshot.schema_string),
        roots=tuple(sorted(find_roots(snapshot.location, others))),
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
        for chunk, lines in _render(files, PhysicalNames(snapshot.head)):
            arrays = [column_of(chunk, name) for name in columns]
            writer.write_table(
                pa.Table.from_arrays([*arrays, *lines], schema=schema), max_chunksize=BATCH_ROWS
            )
    return header


def _render(files: pa.Table, names: PhysicalNames) -> Iterator[tuple[pa.Table, list[pa.Array]]]:
    """Chunks of files with their lines, in the order of paths: some are rendered while earlier ones are written."""
    order = pc.sort_indices(files.column("path"))

    def render(start: int) -> tuple[pa.Table, list[pa.Array]]:
        chunk = files.take(order.slice(start, CHUNK_ROWS))
        return chunk, render_lines(names.of(chunk), names.partition_columns)

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


REVISION = 1


class IndexCache:
    """Builds each index once, whatever number of threads and processes ask for it."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._files = CacheFolder(folder, "index", max_bytes, FileIndex)

    def get(self, identity: Sequence[object], build: Callable[[], TableSnapshot]) -> FileIndex:
        """The index of what the identity says, built from its snapshot when nobody has done so yet.

        Raises:
            Unavailable: the folder cannot be written.
            LakeshareError: whatever `build` raises; nothing is kept then.
        """
        key = ("index", LAYOUT, REVISION, *identity)
        return self._files.get(key, lambda path: write_index_file(build(), path))


class IndexDescription(TypedDict):
    """Fields of a publication, under the ledger's names."""

    location: str
    table_id: str
    schema_string: str
    rows: int
    files: int
    size_bytes: int


def describe_index(state: TableSnapshot | IndexHeader, index: StoredIndex | IndexHeader) -> IndexDescription:
    """A table's state and what its file index adds up to; the header of an index tells both."""
    return IndexDescription(
        location=state.location,
        table_id=state.head.table_id,
        schema_string=state.head.schema_string,
        rows=index.rows,
        files=index.files,
        size_bytes=index.size_bytes,
    )
