"""The file index: the files of one publication in one Arrow IPC file, named by the SHA-256 of its bytes.

An index is written once, when a table is published, never changes, and is memory-mapped by every server process.
"""

import fcntl
import hashlib
import json
import logging
import mmap
import os
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import StoreError, StoreMissing, Unavailable
from lakeshare_server.metrics import PROCESS
from lakeshare_server.settings import make_private
from lakeshare_server.storage import Stores
from lakeshare_server.storage.location_columns import find_outside_files, find_roots
from lakeshare_server.tables.delta.files import mapping_mode
from lakeshare_server.tables.lines import (
    LINE_COLUMNS,
    column_of,
    drop_empty,
    pieces_of,
    render_lines,
    take_rows,
    total,
)
from lakeshare_server.tables.snapshot import (
    Field,
    TableHead,
    TableSnapshot,
    parquet_format_schema,
    parse_schema,
)

logger = logging.getLogger(__name__)

# Increased when columns or rendering change; an index of another layout is not opened.
LAYOUT = 4
HEADER_KEY = b"lakeshare"
SUFFIX = ".arrow"
# Indexes up to this size stay in memory between requests, and of larger ones what predicates read.
MAX_CACHED_BYTES = 64 << 20
MAX_PRUNED_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class TableFolder:
    """A table's location and what is outside of it.

    `roots` are the stores of files and deletion vectors, or the folders of local ones outside of the location;
    `elsewhere` is the number of files and deletion vectors outside of the location.
    """

    location: str
    roots: tuple[str, ...]
    elsewhere: int


@dataclass(frozen=True, kw_only=True)
class IndexHeader(TableFolder):
    """What applies to all files of an index; `parquet_schema_string` is for recipients of the parquet format.

    `rows` excludes deleted rows and those of files with an unknown row count.
    """

    layout: int
    table_format: str
    head: TableHead
    parquet_schema_string: str
    rows: int
    files: int
    size_bytes: int


class FileIndex:
    """An open index. Batches are views into the mapped file, created once."""

    is_written = True

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        buffer = pa.py_buffer(self._mapped)
        self._begin = buffer.address
        reader = pa.ipc.open_file(pa.BufferReader(buffer))
        self.schema: pa.Schema = reader.schema
        self.header = _parse_header(self.schema.metadata[HEADER_KEY])
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]

    def batches(self, columns: Collection[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The files in batches of some thousand, in the order of their paths, at least with these columns."""
        return iter(self._batches)

    def unordered_batches(self, columns: Collection[str] | None = None) -> Iterator[pa.RecordBatch]:
        """As `batches`, in any order: faster if the index is not in a file yet."""
        return self.batches(columns)

    def written(self) -> "FileIndex":
        """Returns this index, or the same one in its file if it is not in a file yet."""
        return self

    def give_back(self, batch: pa.RecordBatch, *, is_read: bool = True) -> None:
        """Releases the memory of a batch of a large index; not `is_read`: only a predicate and few files of it were."""
        if len(self._mapped) <= (MAX_CACHED_BYTES if is_read else MAX_PRUNED_BYTES):
            return
        # Empty buffers can have addresses outside of the file.
        buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer]
        if not buffers:
            return
        start = min(buffer.address for buffer in buffers) - self._begin
        end = max(buffer.address + buffer.size for buffer in buffers) - self._begin
        start -= start % mmap.PAGESIZE
        # The pages stay in the page cache of the system, so the next reader does not wait for the disk.
        self._mapped.madvise(mmap.MADV_DONTNEED, start, end - start)


def _parse_header(text: bytes) -> IndexHeader:
    fields = json.loads(text)
    return IndexHeader(
        **{**fields, "head": TableHead.from_json(fields["head"]), "roots": tuple(fields["roots"])}
    )


def open_index(index_dir: Path, digest: str) -> FileIndex:
    """Maps the index with this digest; raises Unavailable if it is missing, damaged or of another layout."""
    path = index_path(index_dir, digest)
    try:
        index = FileIndex(path)
    except (OSError, KeyError, TypeError, ValueError) as error:
        # With several hosts it is normal that another one has it.
        level = logging.DEBUG if isinstance(error, FileNotFoundError) else logging.WARNING
        logger.log(level, "%s cannot be opened: %s", path, error)
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
    return index_dir / f"{digest}{SUFFIX}"


def share_index(stores: Stores, shared_root: str | None, path: Path, *, again: bool = False) -> None:
    """Uploads an index file for other hosts, named by its SHA-256 as in the folder, unless it is there or `again`.

    Raises StoreError or Unavailable: the store refuses it or does not respond.
    """
    if shared_root is None:
        return
    location = f"{shared_root}/index/{path.name}"
    found = None if again else stores.head(location)
    if found is None or found.size_bytes != path.stat().st_size:
        stores.upload(path, location)


def fetch_index(stores: Stores, shared_root: str | None, digest: str, path: Path) -> bool:
    """Downloads an index that another host wrote; returns False if there is none, or one with another content.

    Raises Unavailable: the store does not respond; OSError: the file cannot be written.
    """
    if shared_root is None:
        return False
    location = f"{shared_root}/index/{digest}{SUFFIX}"
    try:
        stores.download(location, path)
    except StoreError as error:
        logger.log(logging.DEBUG if isinstance(error, StoreMissing) else logging.WARNING, "%s", error)
        return False
    with path.open("rb") as file:
        is_whole = hashlib.file_digest(file, "sha256").hexdigest() == digest
    if not is_whole:
        logger.error("%s does not have the digest in its name", location)
    return is_whole


PREFIX = ".writing-"
# Running writers write more often than this.
ABANDONED_AFTER_S = 6 * 3600


def scratch_file(folder: Path) -> Path:
    return folder / f"{PREFIX}{uuid.uuid4()}"


@contextmanager
def new_file(folder: Path) -> Iterator[Path]:
    """A scratch file that is removed at the end, unless it was renamed."""
    path = scratch_file(folder)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def keep_file(scratch: Path, path: Path) -> None:
    """Renames a synced scratch file to its final name, durably."""
    scratch.chmod(0o600)
    scratch.replace(path)
    sync_folder(path.parent)


def remove_abandoned(folder: Path) -> None:
    for file in folder.glob(f"{PREFIX}*"):
        # Another process may remove the file at the same time.
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > ABANDONED_AFTER_S:
                file.unlink()


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


OPEN_FILES = 256
# Minimum time between two updates of the modification time of a file in use.
TOUCH_EVERY_S = 60.0
# Many locks, so that building the file of a table in a slow store rarely blocks another table.
LOCKS = 1024

Opened = TypeVar("Opened")
Written = TypeVar("Written")
Key = TypeVar("Key")
Value = TypeVar("Value")


class RecentValues(Generic[Key, Value]):
    """The values that were kept last, at most `entries`; safe from any thread."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._turn = Lock()

    def get(self, key: Key) -> Value | None:
        with self._turn:
            return self._values.get(key)

    def keep(self, key: Key, value: Value) -> Value:
        with self._turn:
            self._values[key] = value
            while len(self._values) > self._entries:
                self._values.popitem(last=False)
        return value


class CacheFolder(Generic[Opened]):
    """Builds each file once and keeps the opened files for later requests.

    Several kinds may share a folder. A builder of one kind may wait for files of another kind, never of its own:
    builders of a kind block each other.
    """

    def __init__(self, folder: Path, kind: str, max_bytes: int, open_file: Callable[[Path], Opened]) -> None:
        self.folder, self.kind, self.max_bytes, self._open_file = folder, kind, max_bytes, open_file
        # The opened file, and when its modification time was last updated.
        self._open: OrderedDict[str, tuple[Opened, float]] = OrderedDict()
        self._opening = Lock()
        self._building = [Lock() for _ in range(LOCKS)]

    def get(
        self,
        identity: Sequence[object],
        write: Callable[[Path], None],
        is_good: Callable[[Opened], bool] = lambda _: True,
        substitute: Callable[[], Opened | None] = lambda: None,
    ) -> Opened:
        """Returns the file with this identity; writes it if it is missing or not good.

        If there is a `substitute`, it is returned until a thread has written the file.

        Raises:
            Unavailable: the folder cannot be written.
            LakeshareError: from `write` or `substitute`; no file is kept then.
        """
        key = _key(identity)
        opened = self._find(key)
        is_hit = opened is not None and is_good(opened)
        PROCESS.note_lookup(self.kind, is_hit=is_hit)
        if opened is not None and is_hit:
            return opened
        with ExitStack() as locks:
            locks.enter_context(self._alone(key))
            opened = self._find(key)
            if opened is not None and is_good(opened):
                return opened
            opened = substitute()
            if opened is None:
                return self._build(key, write)
            self._keep(key, opened)
            Thread(target=self._build_later, args=(locks.pop_all(), key, write), name=self.kind).start()
            return opened

    def find(self, identity: Sequence[object]) -> Opened | None:
        return self._find(_key(identity))

    def _find(self, key: str) -> Opened | None:
        path = self.folder / f"{key}{SUFFIX}"
        with self._opening:
            kept = self._open.get(key)
            if kept is not None:
                self._open.move_to_end(key)
                now, is_touched = time.monotonic(), False
                if now - kept[1] >= TOUCH_EVERY_S:
                    self._open[key], is_touched = (kept[0], now), True
        if kept is not None:
            if is_touched:
                # The file may have been removed; the mapping stays valid.
                with suppress(OSError):
                    os.utime(path)
            return kept[0]
        try:
            opened = self._open_file(path)
            os.utime(path)
        except (OSError, KeyError, TypeError, ValueError):
            # Not built yet, removed to free space, or damaged: it is built again.
            return None
        return self._keep(key, opened)

    def _keep(self, key: str, opened: Opened) -> Opened:
        with self._opening:
            self._open[key] = opened, time.monotonic()
            while len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
        return opened

    def _build(self, key: str, write: Callable[[Path], None]) -> Opened:
        try:
            with new_file(self.folder) as scratch:
                write(scratch)
                # Opened before other processes see the file: they might remove it to free space.
                opened = self._open_file(scratch)
                scratch.replace(self.folder / f"{key}{SUFFIX}")
        except OSError as error:
            raise self._unwritable(error) from error
        self._free_space(key)
        return self._keep(key, opened)

    def _build_later(self, locks: ExitStack, key: str, write: Callable[[Path], None]) -> None:
        with locks:
            try:
                self._build(key, write)
            except Exception:
                logger.exception(
                    "%s of kind %s is not written: the next request builds it again", key, self.kind
                )
                with self._opening:
                    self._open.pop(key, None)

    def _free_space(self, kept: str) -> None:
        """Removes the least recently used files; open ones stay readable until they are closed."""
        remove_abandoned(self.folder)
        files = []
        for file in self.folder.glob(f"*{SUFFIX}"):
            # Another process may remove files at the same time.
            with suppress(FileNotFoundError):
                files.append((file, file.stat()))
        total = sum(stat.st_size for _, stat in files)
        for file, stat in sorted(files, key=lambda entry: entry[1].st_mtime):
            if total <= self.max_bytes:
                return
            if file.stem != kept:
                total -= stat.st_size
                file.unlink(missing_ok=True)
                PROCESS.note_eviction()

    def _unwritable(self, error: OSError) -> Unavailable:
        logger.warning("%s cannot be written: %s", self.folder, error)
        return Unavailable(
            f"an index cannot be written: {error.strerror}",
            "Make room below LAKESHARE_STATE_DIR, or set it to a place that can be written.",
        )

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Locks out other threads and processes that build the same file."""
        number = int(key[:8], 16) % LOCKS
        with self._building[number]:
            try:
                make_private(self.folder)
                file = (self.folder / f".building-{self.kind}-{number}").open("a")
            except OSError as error:
                raise self._unwritable(error) from error
            with file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield


def _key(identity: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


class PhysicalNames:
    """The names in one table's lines; without column mapping, the table's own."""

    def __init__(self, head: TableHead) -> None:
        is_mapped = mapping_mode(head.configuration) != "none"
        self._fields = parse_schema(head.schema_string) if is_mapped else ()
        physical = {field.name: field.physical for field in self._fields}
        self.partition_columns = tuple(physical.get(column, column) for column in head.partition_columns)

    def of(self, files: pa.Table) -> pa.Table:
        """The files with renamed structs; files of a Delta log have these names in the log's texts already."""
        if not self._fields or "stats" in files.column_names:
            return files
        for name in ("partition", "min", "max", "client_max", "null_count"):
            position = files.schema.get_field_index(name)
            if position >= 0:
                values = files.column(position).combine_chunks()
                files = files.set_column(position, name, _rename(values, self._fields))
        return files


def _rename(values: pa.StructArray, fields: Sequence[Field]) -> pa.StructArray:
    if not values.type.num_fields:
        return values
    by_name = {field.name: field for field in fields}
    arrays, names = [], []
    for position, member in enumerate(values.type):
        field, inner = by_name[member.name], pc.struct_field(values, [position])
        arrays.append(_rename(inner, field.members) if field.members else inner)
        names.append(field.physical)
    return pa.StructArray.from_arrays(arrays, names)


BATCH_ROWS = 16_000
# Files that are rendered at once: large enough for columnar speed, small enough for the memory.
CHUNK_ROWS = 16_000
LARGE_CHUNK_ROWS = 2 * CHUNK_ROWS
RENDERERS = 2
# How long the file of an index waits for the first response to begin, and to end: it needs the processors.
FIRST_READER_S, FIRST_RESPONSE_S = 1.0, 30.0
FILE_COLUMNS = ("path", "size", "modification_time", "rows")
BOUNDS = ("min", "max", "null_count")
STRUCTS = ("partition", *BOUNDS)


@dataclass(frozen=True)
class StoredIndex:
    digest: str
    path: Path
    header: IndexHeader


def write_index(snapshot: TableSnapshot, index_dir: Path) -> StoredIndex:
    """Writes the index of a publication; the same snapshot gives the same bytes in any process."""
    digest, header = write_by_digest(index_dir, lambda path: write_index_file(snapshot, path))
    return StoredIndex(digest, index_path(index_dir, digest), header)


def write_by_digest(index_dir: Path, write: Callable[[Path], Written]) -> tuple[str, Written]:
    """Writes a file durably under the SHA-256 of its bytes; returns that and the result of `write`."""
    make_private(index_dir)
    remove_abandoned(index_dir)
    with new_file(index_dir) as scratch:
        written = write(scratch)
        with scratch.open("rb+") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        keep_file(scratch, index_path(index_dir, digest))
    return digest, written


def write_index_file(snapshot: TableSnapshot, path: Path) -> IndexHeader:
    """Writes an index that can be built again at any time: to the caller's path, not synced."""
    return SnapshotIndex(snapshot).write(path)


class SnapshotIndex(FileIndex):
    """The index of a snapshot that is not in a file yet: its lines are rendered each time they are read.

    `find_written` returns the same index in its file, which is written after the first reader of the batches.
    """

    is_written = False

    def __init__(self, snapshot: TableSnapshot, find_written: Callable[[], FileIndex] | None = None) -> None:
        self._snapshot, self._names = snapshot, PhysicalNames(snapshot.head)
        self._find_written, self._has_reader, self._was_read = find_written, False, Event()
        self.header = _make_header(snapshot)
        self._header_text = json.dumps(asdict(self.header), sort_keys=True).encode()
        if find_written is not None:
            # As from the file, where the properties are in another order.
            self.header = _parse_header(self._header_text)
        self.schema = self._schema_of(snapshot.files)

    @cached_property
    def _whole(self) -> TableSnapshot:
        return self._snapshot if self._snapshot.complete is None else self._snapshot.complete()

    @cached_property
    def _order(self) -> pa.Array:
        return pc.sort_indices(self._snapshot.files.column("path"))

    def _schema_of(self, files: pa.Table) -> pa.Schema:
        columns = [name for name in (*FILE_COLUMNS, "dv_cardinality") if name in files.column_names]
        columns += [name for name in STRUCTS if files.schema.field(name).type.num_fields]
        fields = [files.schema.field(name) for name in columns]
        fields += [pa.field(name, pa.string()) for name in LINE_COLUMNS]
        return pa.schema(fields, {HEADER_KEY: self._header_text})

    def batches(self, columns: Collection[str] | None = None) -> Iterator[pa.RecordBatch]:
        return self._read(columns, is_ordered=True)

    def unordered_batches(self, columns: Collection[str] | None = None) -> Iterator[pa.RecordBatch]:
        return self._read(columns, is_ordered=False)

    def _read(self, columns: Collection[str] | None, *, is_ordered: bool) -> Iterator[pa.RecordBatch]:
        needs_bounds = columns is None or not set(columns).isdisjoint(BOUNDS)
        files = (self._whole if needs_bounds else self._snapshot).files
        whole = self._schema_of(files)
        schema = pa.schema(
            [field for field in whole if columns is None or field.name in columns], whole.metadata
        )
        self._has_reader = True
        try:
            for chunk, lines in self._render(files, schema.names, is_ordered=is_ordered):
                arrays = [lines[name] if name in lines else column_of(chunk, name) for name in schema.names]
                yield from pa.Table.from_arrays(arrays, schema=schema).to_batches(BATCH_ROWS)
        finally:
            self._was_read.set()

    def give_back(self, batch: pa.RecordBatch, *, is_read: bool = True) -> None:
        """Does nothing: the batch is not mapped."""

    def written(self) -> FileIndex:
        self._was_read.set()
        return self if self._find_written is None else self._find_written()

    def write(self, path: Path) -> IndexHeader:
        if self._snapshot.complete is not None and self._find_written is not None:
            is_read = self._was_read.wait(FIRST_READER_S)
            if self._has_reader and not is_read:
                self._was_read.wait(FIRST_RESPONSE_S)
        batches = self.batches()
        schema = self._schema_of(self._whole.files)
        with pa.OSFile(os.fsencode(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return self.header

    def _render(
        self, files: pa.Table, columns: Sequence[str], *, is_ordered: bool
    ) -> Iterator[tuple[pa.Table, dict[str, pa.Array]]]:
        """Chunks of files with their lines: later chunks are rendered while earlier ones are used."""
        line_columns = [name for name in LINE_COLUMNS if name in columns]
        if "stats" in files.column_names:
            # The lines have the log's texts.
            files = files.drop_columns([name for name in STRUCTS if name not in columns])
        files = drop_empty(files, columns)

        def render(select: Callable[[], pa.Table]) -> tuple[pa.Table, dict[str, pa.Array]]:
            chunk = select()
            rendered = render_lines(self._names.of(chunk), self._names.partition_columns, line_columns)
            return chunk, dict(zip(line_columns, rendered, strict=True))

        pool = ThreadPoolExecutor(RENDERERS)
        try:
            ahead: deque[Future[tuple[pa.Table, dict[str, pa.Array]]]] = deque()
            for select in self._chunks(pieces_of(files), is_ordered=is_ordered):
                ahead.append(pool.submit(render, select))
                if len(ahead) > RENDERERS:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            # A response that ends early must not wait for chunks that it does not need.
            pool.shutdown(wait=False, cancel_futures=True)

    def _chunks(self, pieces: Sequence[pa.Table], *, is_ordered: bool) -> Iterator[Callable[[], pa.Table]]:
        """Functions that each return some files, in the order of their paths or without copying them."""
        if not is_ordered:
            for piece in pieces:
                for start in range(0, piece.num_rows, CHUNK_ROWS):
                    yield partial(piece.slice, start, CHUNK_ROWS)
            return
        # Rows of one chunk are in all pieces: with few rows from each, the calls would take longer than the work.
        chunk_rows = CHUNK_ROWS if len(pieces) == 1 else LARGE_CHUNK_ROWS
        for start in range(0, len(self._order), chunk_rows):
            yield partial(take_rows, pieces, self._order.slice(start, chunk_rows))


def _make_header(snapshot: TableSnapshot) -> IndexHeader:
    files, outside = snapshot.files, find_outside_files(snapshot.location, snapshot.files)
    live_rows = files.column("rows")
    if "dv_cardinality" in files.column_names:
        live_rows = pc.subtract(live_rows, pc.fill_null(files.column("dv_cardinality"), 0))
    return IndexHeader(
        layout=LAYOUT,
        table_format=snapshot.format,
        location=snapshot.location,
        head=snapshot.head,
        parquet_schema_string=parquet_format_schema(snapshot.head.schema_string),
        roots=tuple(sorted(find_roots(snapshot.location, outside))),
        elsewhere=len(outside),
        rows=total(live_rows),
        files=files.num_rows,
        size_bytes=total(files.column("size")),
    )


REVISION = 1


class IndexCache:
    """Builds each index once, for all threads and processes."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._files = CacheFolder(folder, "index", max_bytes, FileIndex)

    def get(
        self,
        identity: Sequence[object],
        build: Callable[[], TableSnapshot],
        fetch: Callable[[Path], bool] = lambda _: False,
    ) -> FileIndex:
        """Returns the index with this identity; fetches it if it is missing, or else builds it from its snapshot.

        Raises:
            Unavailable: the folder cannot be written, or a store does not respond.
            LakeshareError: from `build`; no index is kept then.
        """

        def write(path: Path) -> None:
            if not (fetch(path) and _has_layout(path)):
                write_index_file(build(), path)

        return self._files.get(self._identity(identity), write)

    def get_early(self, identity: Sequence[object], build: Callable[[], TableSnapshot]) -> FileIndex:
        """As `get`, but the index of a snapshot without bounds is returned before it is in its file."""
        key, built = self._identity(identity), list[SnapshotIndex]()

        def find_written() -> FileIndex:
            return self._files.get(key, write, lambda index: index.is_written)

        def substitute() -> SnapshotIndex | None:
            snapshot = build()
            built.append(SnapshotIndex(snapshot, find_written))
            return None if snapshot.complete is None else built[0]

        def write(path: Path) -> None:
            index = built.pop() if built else SnapshotIndex(build())
            index.write(path)

        return self._files.get(key, write, substitute=substitute)

    def _identity(self, identity: Sequence[object]) -> tuple[object, ...]:
        return "index", LAYOUT, REVISION, *identity


def _has_layout(path: Path) -> bool:
    try:
        return FileIndex(path).header.layout == LAYOUT
    except (KeyError, TypeError, ValueError):
        return False


def describe_index(header: IndexHeader) -> dict[str, Any]:
    """The fields of a publication that its index has, with the names of the ledger."""
    names = ("location", "rows", "files", "size_bytes")
    head = {"table_id": header.head.table_id, "schema_string": header.head.schema_string}
    return {**head, **{name: getattr(header, name) for name in names}}
