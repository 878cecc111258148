"""Reading an Iceberg table at one snapshot: pyiceberg parses its metadata, our own reader its manifests.

What no client could read is refused with a reason and a fix, never approximated; see `head.py` for what some can.
"""

import logging
import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import ServerSettings, StoreSettings
from lakeshare_server.storage import LASTING, Stores
from lakeshare_server.storage.locations import local_path
from lakeshare_server.tables.iceberg.deletes import (
    Targets,
    add_vector_feature,
    bitmap_of,
    targets_of,
    vectors_of,
)
from lakeshare_server.tables.iceberg.equality_keys import (
    Budget,
    KeyColumn,
    KeyReading,
    KeySet,
    key_columns,
    partition_value,
    read_ahead,
    value_places,
)
from lakeshare_server.tables.iceberg.manifests import DataFiles, DeleteFile, LiveFiles, live_files
from lakeshare_server.tables.iceberg.metadata import open_metadata, schema_at
from lakeshare_server.tables.iceberg.partitions import (
    bounded_type,
    client_maxima,
    columns_in_lines,
    identity_columns,
    maxima,
    minima,
    null_counts,
    partition_columns,
    partition_ranges,
    partition_values,
)
from lakeshare_server.tables.iceberg.schema import (
    columns_in_files,
    delta_schema_string,
    iceberg_head,
    mapped_ids,
    require_known_types,
)
from lakeshare_server.tables.index import CacheFolder
from lakeshare_server.tables.serveability import ReasonCode
from lakeshare_server.tables.snapshot import TableSnapshot

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyroaring import BitMap64

LAYOUT = 1
KIND = "equality"
HEADER = b"lakeshare"


@dataclass(frozen=True)
class Results:
    """Known rows by the numbers of data files, None where none is deleted; and the paths of the deletes applied."""

    rows: "Mapping[int, BitMap64 | None]" = field(default_factory=dict)
    deletes: Set[str] = frozenset()


class ResultsCache:
    """The results of one table; without a folder nothing is kept."""

    def __init__(self, folder: "CacheFolder[_Kept] | None", identity: Sequence[object]) -> None:
        self._folder, self._identity = folder, identity

    @classmethod
    def of(cls, settings: StoreSettings, table: "TableMetadata") -> "ResultsCache":
        """The cache of a table; only a server has a folder for it."""
        # Files without field ids get them by the mapping of names, so the key columns depend on it.
        mapping = table.properties.get("schema.name-mapping.default", "")
        identity = KIND, LAYOUT, str(table.table_uuid), sha256(mapping.encode()).hexdigest()
        if not isinstance(settings, ServerSettings):
            return cls(None, identity)
        folder = settings.index_dir / "cache"
        return cls(CacheFolder(folder, KIND, settings.index_cache_bytes, _Kept), identity)

    def find(self, targets: Targets, deletes: Sequence[DeleteFile]) -> Results:
        """What is known of these data files, as far as it still applies."""
        from pyroaring import BitMap64

        kept = None if self._folder is None else self._folder.found(self._identity)
        if kept is None:
            return Results()
        live = {delete.path: _cache_key_of(targets, delete) for delete in deletes}
        same = {path for path, said in kept.deletes.items() if live.get(path) == said}
        removed: dict[str, int] = {}
        for path, (scope, number, *_) in kept.deletes.items():
            if path not in same:
                removed[scope] = max(number, removed.get(scope, 0))
        paths = pa.array([file.path for file in targets.files], pa.string())
        found: dict[int, BitMap64 | None] = {}
        for number, place in enumerate(pc.index_in(paths, value_set=kept.paths).to_pylist()):
            if place is None:
                continue
            file = targets.files[number]
            is_same = kept.files[place].as_py() == _file(targets, number)
            if is_same and file.sequence_number >= _removed_with(targets, number, removed):
                rows = kept.rows[place].as_py()
                found[number] = None if rows is None else BitMap64.deserialize(rows)
        return Results(found, same)

    def keep(
        self,
        sequence_number: int,
        targets: Targets,
        deletes: Sequence[DeleteFile],
        rows: "Mapping[int, BitMap64 | None]",
    ) -> None:
        """Keep what is known of the data files of a snapshot, unless that of a later one is kept.

        Raises:
            Unavailable: the folder cannot be written.
        """
        if self._folder is None:
            return
        numbers = sorted(rows)
        header = {
            "sequence_number": sequence_number,
            "deletes": {delete.path: _cache_key_of(targets, delete) for delete in deletes},
        }
        contents = [rows[number] for number in numbers]
        table = pa.table(
            {
                "path": pa.array([targets.files[number].path for number in numbers], pa.string()),
                "file": pa.array([_file(targets, number) for number in numbers], pa.string()),
                "rows": pa.array(
                    [None if content is None else content.serialize() for content in contents],
                    pa.large_binary(),
                ),
            }
        ).replace_schema_metadata({HEADER: orjson.dumps(header)})

        def write(path: Path) -> None:
            with pa.OSFile(os.fsencode(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table.combine_chunks())

        self._folder.get(self._identity, write, lambda kept: kept.sequence_number > sequence_number)


class _Kept:
    """A file of results, as it is."""

    def __init__(self, path: Path) -> None:
        with pa.OSFile(os.fsencode(path), "rb") as file:
            table = pa.ipc.open_file(file).read_all().combine_chunks()
        header: dict[str, Any] = orjson.loads(table.schema.metadata[HEADER])
        self.sequence_number: int = header["sequence_number"]
        self.deletes: dict[str, list[Any]] = header["deletes"]
        self.paths = table.column("path").combine_chunks()
        self.files, self.rows = table.column("file"), table.column("rows")


def _cache_key_of(targets: Targets, delete: DeleteFile) -> list[Any]:
    """What of a file of deletes its results depend on."""
    return [targets.scope(delete), delete.sequence_number, delete.size_bytes, list(delete.equality_ids)]


def _file(targets: Targets, number: int) -> str:
    """What of a data file its results depend on, beside its content."""
    file = targets.files[number]
    return f"{file.sequence_number}:{file.rows}:{targets.own_scope(number)}"


def _removed_with(targets: Targets, number: int, removed: Mapping[str, int]) -> int:
    """The highest sequence number of deletes that applied to a data file and are gone."""
    return max(removed.get(targets.own_scope(number), 0), removed.get("", 0))


READERS = 16
# Partitions that are worked on at once, each with its own keys in memory.
GROUPS = 4
# Deleted keys that are searched for at once; with more, the data files are read several times.
KEYS_BYTES = 32 << 20
# Small files, of which a table may have thousands, are read ahead; larger ones piece by piece.
SMALL_BYTES, SMALL_VALUES = 1 << 20, 500_000
# Keys of data files that are looked up at once.
LOOKUP_BYTES = 32 << 20

_log = logging.getLogger(__name__)


def rows_deleted_by_equality(
    stores: Stores,
    table: "TableMetadata",
    snapshot: "Snapshot",
    files: DataFiles,
    targets: Targets,
    deletes: Sequence[DeleteFile],
    root: str,
) -> "dict[int, BitMap64]":
    """The row numbers that a snapshot's equality deletes delete, by the numbers of their data files.

    Raises:
        Unserveable: a file cannot be read or is not what the specification says, or more has to be read than the
            settings allow.
        Unavailable: the store does not answer.
    """
    applied = [
        delete for delete in deletes if delete.content == "equality" and targets.has_equal_rows(delete)
    ]
    if not applied:
        return {}
    _require_parquet(applied, files, root)
    cache = ResultsCache.of(stores.settings, table)
    known = cache.find(targets, applied)
    work = _Work(stores, table, files, targets, root)
    try:
        return work.run(applied, known)
    finally:
        # Also what was found before a limit was reached: the next attempt goes on from there.
        if work.has_read:
            cache.keep(snapshot.sequence_number or 0, targets, applied, work.finished)


_Keys: TypeAlias = tuple[DeleteFile, list[pa.Array]]


@dataclass(frozen=True)
class _Rows:
    """The key columns of some rows of a data file, from a row number on."""

    number: int
    first: int
    columns: Sequence[pa.Array]
    is_last: bool


@dataclass(frozen=True)
class _Group:
    """Equality deletes by the same columns that may apply to the same data files, given by number."""

    keys: Sequence[KeyColumn]
    deletes: Sequence[DeleteFile]
    numbers: Sequence[int]


class _Work:
    """Finds the deleted rows of one snapshot; `finished` has the data files that nothing is left to read of."""

    def __init__(
        self, stores: Stores, table: "TableMetadata", files: DataFiles, targets: Targets, root: str
    ) -> None:
        self._stores, self._table, self._files = stores, table, files
        self._targets, self._root = targets, root
        self._bounds: dict[int, tuple[pa.Array | None, pa.Array | None]] = {}
        self._lock = Lock()
        self._found: dict[int, BitMap64] = {}
        self._waiting: dict[int, int] = defaultdict(int)
        self.finished: dict[int, BitMap64 | None] = {}
        self.has_read = False

    @cached_property
    def _mapped(self) -> Mapping[str, int]:
        return mapped_ids(self._table)

    def run(self, deletes: Sequence[DeleteFile], known: Results) -> "dict[int, BitMap64]":
        """The deleted rows of all data files that have some."""
        self._found = {number: rows for number, rows in known.rows.items() if rows is not None}
        groups = list(self._groups(deletes, known))
        for group in groups:
            for number in group.numbers:
                self._waiting[number] += 1
        self.finished = {number: rows for number, rows in known.rows.items() if number not in self._waiting}
        self._budget = Budget(self._stores.settings, self._root, len(deletes), time.monotonic())
        self.has_read = bool(groups)
        with ThreadPoolExecutor(READERS) as files, ThreadPoolExecutor(GROUPS) as pool:
            running = [pool.submit(self._run_group, files, group) for group in groups]
            try:
                for group_done in as_completed(running):
                    group_done.result()
            except BaseException:
                self._budget.is_stopped = True
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return {number: rows for number, rows in self._found.items() if rows}

    def _groups(self, deletes: Sequence[DeleteFile], known: Results) -> Iterator[_Group]:
        """What is to be read: all deletes for data files of which nothing is known, else those that came since."""
        by_scope: dict[tuple[str, tuple[int, ...]], list[DeleteFile]] = defaultdict(list)
        for delete in deletes:
            by_scope[self._targets.scope(delete), tuple(sorted(set(delete.equality_ids)))].append(delete)
        for (_, ids), own in by_scope.items():
            keys = self._keys(ids, own[0])
            numbers = self._targets.in_scope(own[0])
            new = [delete for delete in own if delete.path not in known.deletes]
            for some, which in (
                (own, [number for number in numbers if number not in known.rows]),
                (new, [number for number in numbers if number in known.rows]),
            ):
                group = self._applying(keys, some, which)
                if group.deletes:
                    yield group

    def _applying(
        self, keys: Sequence[KeyColumn], deletes: Sequence[DeleteFile], numbers: Sequence[int]
    ) -> _Group:
        """Only the deletes that are newer than one of the data files, and the data files older than one of them."""
        sequence = [self._targets.files[number].sequence_number for number in numbers]
        deletes = [delete for delete in deletes if numbers and delete.sequence_number > min(sequence)]
        newest = max((delete.sequence_number for delete in deletes), default=0)
        older = [number for number, own in zip(numbers, sequence, strict=True) if own < newest]
        return _Group(keys, deletes, older)

    def _keys(self, ids: Sequence[int], delete: DeleteFile) -> list[KeyColumn]:
        try:
            return key_columns(self._table, ids)
        except ValueError as error:
            raise Unserveable(
                f"{self._root} has equality deletes in {local_path(delete.path)} that cannot be applied: {error}.",
                ReasonCode.EQUALITY_DELETES.fix,
                ReasonCode.EQUALITY_DELETES,
            ) from error

    def _run_group(self, files: ThreadPoolExecutor, group: _Group) -> None:
        passes = self._key_sets(files, group)
        current = next(passes, None)
        if current is None:
            self._finish(group.numbers)
        while current is not None:
            following = next(passes, None)
            keys, newest = current
            wanted = [
                number
                for number in group.numbers
                if self._targets.files[number].sequence_number < newest
                and self._targets.files[number].rows
                and self._may_match(number, group.keys, keys)
            ]
            if following is None:
                self._finish(set(group.numbers) - set(wanted))
            for rows in _batch_rows(self._rows(files, group.keys, wanted)):
                self._look_up(rows, keys)
                if following is None:
                    self._finish([row.number for row in rows if row.is_last])
            current = following

    def _rows(
        self, files: ThreadPoolExecutor, keys: Sequence[KeyColumn], numbers: Sequence[int]
    ) -> "Iterator[_Rows]":
        """The key columns of data files; small files are read ahead, large ones piece by piece."""
        sizes = [self._targets.files[number].rows * len(keys) for number in numbers]
        jobs = [
            (size <= SMALL_VALUES, partial(self._read_rows, number, keys))
            for number, size in zip(numbers, sizes, strict=True)
        ]
        yield from read_ahead(files, jobs)

    def _look_up(self, rows: "Sequence[_Rows]", keys: KeySet) -> None:
        """Find deleted rows of several data files at once: preparing the set of keys takes longer than a look-up."""
        if not rows:
            return
        columns = [pa.chunked_array(column) for column in zip(*(row.columns for row in rows), strict=True)]
        deleted_with, begin = keys.deleted_with(columns), 0
        for one in rows:
            own = deleted_with.slice(begin, len(one.columns[0]))
            begin += len(own)
            is_deleted = pc.greater(own, self._targets.files[one.number].sequence_number)
            places = pc.indices_nonzero(pc.fill_null(is_deleted, False))
            if len(places):
                found = pc.add(places, pa.scalar(one.first, pa.uint64()))
                self._add(one.number, bitmap_of(found))

    def _add(self, number: int, rows: "BitMap64") -> None:
        with self._lock:
            # A new bitmap: the one that is there may be that of a finished data file.
            self._found[number] = self._found[number] | rows if number in self._found else rows

    def _finish(self, numbers: Collection[int]) -> None:
        """Count one group less that has rows to find in these data files."""
        with self._lock:
            for number in numbers:
                self._waiting[number] -= 1
                if not self._waiting[number]:
                    self.finished[number] = self._found.get(number)

    def _key_sets(self, files: ThreadPoolExecutor, group: _Group) -> Iterator[tuple[KeySet, int]]:
        """The deleted keys, as many at once as memory allows, and the highest sequence number among them."""
        chunks: list[list[pa.Array]] = []
        numbers: list[pa.Array] = []
        size, newest = 0, 0
        for delete, columns in self._deleted_keys(files, group):
            rows = len(columns[0])
            chunks.append(columns)
            numbers.append(pa.repeat(pa.scalar(delete.sequence_number, pa.int64()), rows))
            newest = max(newest, delete.sequence_number)
            size += sum(column.nbytes for column in columns) + 8 * rows
            if size >= KEYS_BYTES:
                yield _key_set(chunks, numbers), newest
                chunks, numbers, size, newest = [], [], 0, 0
        if chunks:
            yield _key_set(chunks, numbers), newest

    def _deleted_keys(self, files: ThreadPoolExecutor, group: _Group) -> Iterator[_Keys]:
        jobs = [
            (delete.size_bytes <= SMALL_BYTES, partial(self._read_keys, delete, group.keys))
            for delete in group.deletes
        ]
        yield from read_ahead(files, jobs)

    def _read_keys(self, delete: DeleteFile, keys: Sequence[KeyColumn]) -> Iterator[_Keys]:
        self._budget.take(0)
        try:
            with self._stores.open(delete.path) as stream:
                reading = KeyReading(stream, keys, {}, {})
                reading.require_all()
                self._budget.take(reading.size_bytes)
                for columns in reading.batches():
                    yield delete, columns
        except (*LASTING, OSError, ValueError, KeyError, pa.ArrowException) as error:
            _log.warning("the deletes %s of %s cannot be read: %s", delete.path, self._root, error)
            raise Unserveable(
                f"The equality deletes {delete.path} of {self._root} cannot be read.",
                "Check that the file is there and whole; publish the table again.",
            ) from error

    def _read_rows(self, number: int, keys: Sequence[KeyColumn]) -> "Iterator[_Rows]":
        target, first = self._targets.files[number], 0
        self._budget.take(0)
        try:
            with self._stores.open(target.path) as stream:
                for columns in self._rows_in(stream, number, keys):
                    count = len(columns[0])
                    yield _Rows(number, first, columns, is_last=first + count == target.rows)
                    first += count
        except (*LASTING, OSError, ValueError, KeyError, pa.ArrowException) as error:
            _log.warning("the keys of %s of %s cannot be read: %s", target.path, self._root, error)
            raise Unserveable(
                f"The columns of {target.path} by which equality deletes of {self._root} apply cannot be read.",
                "Check that the file is there and whole; publish the table again.",
            ) from error

    def _rows_in(self, stream: object, number: int, keys: Sequence[KeyColumn]) -> Iterator[list[pa.Array]]:
        target = self._targets.files[number]
        reading = KeyReading(stream, keys, self._mapped, self._constants(number, keys))
        if not reading.has_ids:
            raise Unserveable(
                f"{self._root}: {local_path(target.path)} has no field ids, by which equality deletes apply to it.",
                ReasonCode.FILES_WITHOUT_IDS.fix,
                ReasonCode.FILES_WITHOUT_IDS,
            )
        if reading.rows != target.rows:
            raise ValueError(f"it has {reading.rows} rows, its manifest says {target.rows}")
        self._budget.take(reading.size_bytes)
        for columns in reading.batches():
            yield columns
            self._budget.take(0)

    def _constants(self, number: int, keys: Sequence[KeyColumn]) -> dict[int, pa.Array]:
        """The key columns, by id, that a data file's partition has one value of."""
        target = self._targets.files[number]
        values = ((key.field_id, partition_value(self._table, target, key)) for key in keys)
        return {field_id: value for field_id, value in values if value is not None}

    def _may_match(self, number: int, keys: Sequence[KeyColumn], deleted: KeySet) -> bool:
        """Whether the partition and the statistics of a data file leave it possible that it has a deleted key."""
        constants = self._constants(number, keys)
        for place, key in zip(value_places(keys), keys, strict=True):
            value = constants.get(key.field_id)
            if value is not None:
                if not deleted.has_value(place, value):
                    return False
                continue
            low, high = self._bounds_of(key)
            counts = self._files.null_counts.get(key.field_id)
            has_nulls = counts is None or counts[number].as_py() != 0
            if low is None or high is None:
                continue
            if not deleted.may_match(place, low[number], high[number], has_nulls=has_nulls):
                return False
        return True

    def _bounds_of(self, key: KeyColumn) -> tuple[pa.Array | None, pa.Array | None]:
        if key.field_id not in self._bounds:
            low, high = self._files.lower.get(key.field_id), self._files.upper.get(key.field_id)
            self._bounds[key.field_id] = (
                None if low is None else key.bounds(low, is_upper=False),
                None if high is None else key.bounds(high, is_upper=True),
            )
        return self._bounds[key.field_id]


def _batch_rows(rows: Iterable[_Rows]) -> Iterator[list[_Rows]]:
    """Pieces of data files, as many as are looked up at once, and what was read before a limit was reached."""
    some: list[_Rows] = []
    size = 0
    try:
        for row in rows:
            some.append(row)
            size += sum(column.nbytes for column in row.columns)
            if size >= LOOKUP_BYTES:
                yield some
                some, size = [], 0
    except Unserveable:
        yield some
        raise
    if some:
        yield some


def _key_set(chunks: Sequence[Sequence[pa.Array]], numbers: Sequence[pa.Array]) -> KeySet:
    return KeySet(
        [pa.concat_arrays(column) for column in zip(*chunks, strict=True)], pa.concat_arrays(numbers)
    )


def _require_parquet(deletes: Sequence[DeleteFile], files: DataFiles, root: str) -> None:
    others = sorted(set(pc.unique(files.column("format")).to_pylist()) - {"PARQUET"})
    if others:
        raise Unserveable(
            f"{root} has equality deletes, and data files in {others[0]}, of which this server reads no keys.",
            ReasonCode.FILE_FORMAT.fix,
            ReasonCode.FILE_FORMAT,
        )
    for delete in deletes:
        if delete.format != "PARQUET":
            raise Unserveable(
                f"{root} has equality deletes in {delete.format}, which this server does not read: {delete.path}.",
                ReasonCode.EQUALITY_DELETES.fix,
                ReasonCode.EQUALITY_DELETES,
            )


def read_iceberg(
    metadata_location: str, snapshot_id: int, vectors_dir: Path | None = None, stores: Stores | None = None
) -> TableSnapshot:
    """The table of a metadata file, at one of its snapshots.

    Deletion vectors that are too large for a line are written to `vectors_dir`; without it they are refused.

    Raises:
        Unserveable: the metadata cannot be read, or no client could read the table.
        Unavailable: the store does not answer.
    """
    stores = stores or Stores(StoreSettings())
    table, snapshot = open_metadata(stores, metadata_location, snapshot_id)
    root = local_path(table.location)
    schema = schema_at(table, snapshot)
    # First what no client can read, then what only the Delta Sharing API cannot carry: READ_BY_ICEBERG_CLIENTS.
    require_known_types(schema, table.format_version, root)
    live = live_files(stores, snapshot, root)
    files = live.data
    _require_known_specs(table, files, root)
    _require_no_encryption(live, root)
    delta_schema_string(schema, root)
    _require_each_file_once(files, root)
    # Nobody has to know of data files one by one where no row of them is deleted.
    targets = targets_of(table, files) if live.deletes else Targets(())
    by_equality = rows_deleted_by_equality(stores, table, snapshot, files, targets, live.deletes, root)
    vectors = vectors_of(stores, targets, live.deletes, by_equality, root, vectors_dir)
    _require_plain_parquet(files, root)
    known = partition_columns(table, schema, files)
    ids = {schema.find_field(name).field_id for name in known}
    in_files = columns_in_files(
        stores, table, schema, files, root, identity_columns(table, schema, files), ids
    )
    in_lines = columns_in_lines(table, schema, files, known, in_files, root)
    # Pruning knows values that are not in lines, too.
    partitioned_by = in_lines or known
    return TableSnapshot(
        format="iceberg",
        location=root,
        head=add_vector_feature(iceberg_head(table, schema, root, in_lines, in_files), vectors),
        snapshot_id=snapshot_id,
        files=_files(table, schema, snapshot, files, partitioned_by, vectors),
    )


def _require_plain_parquet(files: DataFiles, root: str) -> None:
    others = sorted(set(pc.unique(files.column("format")).to_pylist()) - {"PARQUET"})
    if others:
        raise Unserveable(
            f"{root} has data files in {others[0]}, recipients read Parquet only.",
            ReasonCode.FILE_FORMAT.fix,
            ReasonCode.FILE_FORMAT,
        )


def _require_known_specs(table: "TableMetadata", files: DataFiles, root: str) -> None:
    unknown = sorted(set(pc.unique(files.column("spec_id")).to_pylist()) - table.specs().keys())
    if unknown:
        raise Unserveable(
            f"{root} has manifests of the partition spec {unknown[0]}, which its metadata does not have.",
            "Check that the table's metadata folder is whole, or publish another snapshot.",
        )


def _require_no_encryption(live: LiveFiles, root: str) -> None:
    keys = live.data.column("key_metadata")
    what = "data files" if keys.null_count < len(keys) else None
    if any(delete.is_encrypted for delete in live.deletes):
        what = what or "files of deletes"
    if what is not None:
        raise Unserveable(
            f"{root} has encrypted {what}.", ReasonCode.ENCRYPTED_FILES.fix, ReasonCode.ENCRYPTED_FILES
        )


def _require_each_file_once(files: DataFiles, root: str) -> None:
    """Iceberg's readers read a file as often as it is listed, Delta's once."""
    paths = files.column("path")
    if pc.count_distinct(paths).as_py() == len(paths):
        return
    counts = pc.value_counts(paths)
    [twice, *_] = counts.field("values").filter(pc.greater(counts.field("counts"), 1)).to_pylist()
    raise Unserveable(
        f"{root} lists {local_path(twice)} more than once.",
        ReasonCode.DUPLICATE_FILES.fix,
        ReasonCode.DUPLICATE_FILES,
    )


def _files(
    table: "TableMetadata",
    schema: "Schema",
    snapshot: "Snapshot",
    files: DataFiles,
    partitioned_by: tuple[str, ...],
    vectors: Mapping[str, pa.Array],
) -> pa.Table:
    names = files.column("path")
    ranges = partition_ranges(table, schema, files, bounded_type)
    known_maxima = maxima(schema.fields, files, ranges)
    return pa.table(
        {
            "path": _paths(names),
            "name": names,
            "size": files.column("size"),
            "modification_time": _added_at(table, snapshot, files),
            "rows": files.column("rows"),
            "partition": partition_values(table, schema, files, partitioned_by),
            "min": minima(schema.fields, files, ranges),
            "max": known_maxima,
            "told_max": client_maxima(known_maxima, schema.fields, files),
            "null_count": null_counts(schema.fields, files, ranges),
            **vectors,
        }
    )


def _paths(names: pa.StringArray) -> pa.StringArray:
    if not pc.any(pc.starts_with(names, "file:"), min_count=0).as_py():
        return names
    return pa.array([local_path(name) for name in names.to_pylist()], pa.string())


def _added_at(table: "TableMetadata", snapshot: "Snapshot", files: DataFiles) -> pa.Array:
    """When each file's snapshot was made, in milliseconds; of one that expired, when the one that is read was."""
    times = {known.snapshot_id: known.timestamp_ms for known in table.snapshots}
    ids = files.column("snapshot_id").dictionary_encode()
    added = [times.get(one, snapshot.timestamp_ms) for one in ids.dictionary.to_pylist()]
    return pc.fill_null(pc.take(pa.array(added, pa.int64()), ids.indices), snapshot.timestamp_ms)
