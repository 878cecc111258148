"""Equality deletes: the rows of each data file that have a deleted key.

Equality follows Iceberg's own readers: null equals null, NaN equals NaN, -0.0 and 0.0 differ, values are compared in
the table's type of the column, and a null struct differs from a struct of nulls.
"""

import os
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property, partial
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import UUID

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.locations import local_path
from lakeshare_server.settings import ServerSettings, StoreSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables.iceberg.deletes import EVERYWHERE, Target, Targets, bitmap_of, reading
from lakeshare_server.tables.iceberg.manifests import DataFiles, DeleteFile
from lakeshare_server.tables.iceberg.partitions import bounded_type, decode_bounds
from lakeshare_server.tables.iceberg.schema import FileColumn, columns_of, mapped_ids, with_mapped_ids
from lakeshare_server.tables.index import CacheFolder
from lakeshare_server.tables.serveability import ReasonCode

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.types import IcebergType, NestedField, PrimitiveType
    from pyroaring import BitMap64

OF_BYTES = ("string", "uuid", "binary", "fixed")
ANY_BYTES = pa.large_binary()


@dataclass(frozen=True)
class KeyColumn:
    """A column that rows are deleted by; `structs` are the ids of the structs around it, the outermost first."""

    field_id: int
    name: str
    type: "PrimitiveType"
    structs: tuple[int, ...] = ()
    initial_default: Any = None

    @property
    def kind(self) -> str:
        return _kind(self.type)

    def comparable(self, values: pa.Array) -> pa.Array:
        """Converts values to the form of comparisons: integers, decimals or bytes."""
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if pa.types.is_null(values.type):
            return pa.nulls(len(values), self.comparable_type())
        is_fit, convert = FORMS[self.kind]
        if not is_fit(values.type) or (self.kind == "decimal" and values.type.scale != _scale(self.type)):
            raise ValueError(f"column {self.name} is {values.type} in it, {self.type} in the table")
        return convert(values).cast(self.comparable_type())

    def comparable_type(self) -> pa.DataType:
        if self.kind == "decimal":
            return pa.decimal128(38, _scale(self.type))
        return ANY_BYTES if self.kind in OF_BYTES else pa.int64()

    def bounds(self, values: pa.BinaryArray | None, *, is_upper: bool) -> pa.Array | None:
        """Bounds of data files in comparable form; None for a type whose bounds have another order."""
        kind = None if self.kind in ("float", "double", "boolean") else bounded_type(self.type)
        if values is None or kind is None:
            return None
        return self.comparable(decode_bounds(values, kind, is_upper=is_upper))

    def value_if_missing(self) -> pa.Array:
        """The value of all rows of a file without the column (Iceberg spec, "Column Projection")."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        value = self.initial_default
        if value is None:
            return pa.nulls(1, self.comparable_type())
        if isinstance(value, UUID):
            return self.comparable(pa.array([value.bytes], pa.binary()))
        return self.comparable(pa.array([value], schema_to_pyarrow(self.type)))

    def partition_value(self, table: "TableMetadata", target: Target) -> pa.Array | None:
        """The value of all rows of a file by its identity partition, comparable; None without one.

        Iceberg's own readers use it even if the file has the column.
        """
        from pyiceberg.transforms import IdentityTransform

        partition = dict(target.partition)
        for field in table.specs()[target.spec_id].fields:
            is_identity = isinstance(field.transform, IdentityTransform) and field.source_id == self.field_id
            if is_identity and field.field_id in partition:
                value, kind = partition[field.field_id], self.comparable_type()
                if value is None:
                    return pa.nulls(1, kind)
                # As in manifests: dates and times are integers, decimals and UUIDs bytes.
                if pa.types.is_decimal(kind):
                    return decode_bounds(pa.array([value], pa.binary()), kind, is_upper=True)
                if isinstance(value, float):
                    return self.comparable(pa.array([value], pa.float64()))
                return pa.array([value.encode() if isinstance(value, str) else value]).cast(kind)
        return None


def key_columns(table: "TableMetadata", ids: Sequence[int]) -> list[KeyColumn]:
    """The columns with these ids, each from the newest schema that has it: a dropped column still deletes rows."""
    if not ids:
        raise ValueError("their manifest names no columns")
    current = table.current_schema_id
    oldest_first = sorted(table.schemas, key=lambda one: (one.schema_id == current, one.schema_id))
    columns = []
    for field_id in ids:
        schema = next((one for one in reversed(oldest_first) if field_id in one.field_ids), None)
        if schema is None:
            raise ValueError(f"no schema has a column with the id {field_id}")
        columns.append(_key_column(schema, field_id))
    return columns


def _key_column(schema: "Schema", field_id: int) -> KeyColumn:
    path = _path_to(schema.fields, field_id)
    name = schema.find_column_name(field_id) or str(field_id)
    if not path:
        raise ValueError(f"column {name} is inside a list or a map")
    field = path[-1]
    if _kind(field.field_type) not in FORMS:
        raise ValueError(f"column {name} is of the type {field.field_type}")
    structs = tuple(struct.field_id for struct in path[:-1])
    return KeyColumn(field_id, name, field.field_type, structs, field.initial_default)  # type: ignore[arg-type]  # a primitive


def _path_to(fields: "Sequence[NestedField]", field_id: int) -> "list[NestedField]":
    """The fields from the top to this one through structs only; empty if there is no such path."""
    from pyiceberg.types import StructType

    for field in fields:
        if field.field_id == field_id:
            return [field]
        if isinstance(field.field_type, StructType):
            inner = _path_to(field.field_type.fields, field_id)
            if inner:
                return [field, *inner]
    return []


def _kind(kind: "IcebergType") -> str:
    return str(kind).split("(")[0].split("[")[0]


def _scale(kind: "PrimitiveType") -> int:
    from pyiceberg.types import DecimalType

    return kind.scale if isinstance(kind, DecimalType) else 0


def _float_bits(values: pa.Array) -> pa.Array:
    """Floating point by its bits, all NaNs the same."""
    same = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), values.type), values)
    return same.view(pa.int64() if pa.types.is_float64(same.type) else pa.int32())


def _ticks(unit: str, values: pa.Array) -> pa.Array:
    """Timestamps, or dates whose column became a timestamp, as numbers; a zone does not change the stored value."""
    zone = values.type.tz if pa.types.is_timestamp(values.type) else None
    return values.cast(pa.timestamp(unit, zone)).cast(pa.int64())


def _is_bytes(kind: pa.DataType) -> bool:
    plain = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
    return kind in plain or bool(pa.types.is_fixed_size_binary(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _unchanged(values: pa.Array) -> pa.Array:
    return values


# For each type of key columns: the Arrow types in files, and the conversion to comparable values.
FORMS: Mapping[str, tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]]] = {
    "boolean": (pa.types.is_boolean, lambda values: values.cast(pa.int8())),
    **dict.fromkeys(("int", "long"), (pa.types.is_integer, _unchanged)),
    "float": (pa.types.is_floating, lambda values: _float_bits(values.cast(pa.float32()))),
    "double": (pa.types.is_floating, lambda values: _float_bits(values.cast(pa.float64()))),
    "decimal": (pa.types.is_decimal, _unchanged),
    "date": (pa.types.is_date, lambda values: values.cast(pa.date32()).cast(pa.int32())),
    "time": (pa.types.is_time, lambda values: values.cast(pa.time64("us")).cast(pa.int64())),
    **dict.fromkeys(("timestamp", "timestamptz"), (_is_time, partial(_ticks, "us"))),
    **dict.fromkeys(("timestamp_ns", "timestamptz_ns"), (_is_time, partial(_ticks, "ns"))),
    **dict.fromkeys(OF_BYTES, (_is_bytes, _unchanged)),
}


class KeySet:
    """Keys that delete rows, each with the highest sequence number it was deleted with."""

    def __init__(self, keys: Sequence[pa.Array], sequence_numbers: pa.Array) -> None:
        self._values = [pc.unique(column) for column in keys]
        self._pairs: list[pa.Array] = []
        rows = pa.table({"code": self._encode(keys, is_new=True), "sequence_number": sequence_numbers})
        highest = rows.group_by("code").aggregate([("sequence_number", "max")]).sort_by("code")
        self._sequence_numbers = highest.column("sequence_number_max").combine_chunks()
        self._sorted: dict[int, pa.Array] = {}

    def deleted_with(self, rows: Sequence[pa.ChunkedArray]) -> pa.Array:
        """For each row of key columns the highest sequence number it was deleted with; null if it was not."""
        return pc.take(self._sequence_numbers, self._encode(rows)).combine_chunks()

    def _encode(self, rows: Sequence[pa.Array | pa.ChunkedArray], *, is_new: bool = False) -> Any:
        """A number for each row of key columns, null for those that are no key; `is_new` numbers all rows."""
        codes: pa.Array | pa.ChunkedArray | None = None
        for place, (column, values) in enumerate(zip(rows, self._values, strict=True)):
            own = pc.index_in(column, value_set=values).cast(pa.int64())
            if codes is None:
                codes = own
                continue
            codes = pc.add(pc.multiply(codes, len(values)), own)
            if is_new:
                self._pairs.append(pc.unique(codes))
            # Renumbered after each column, so that codes stay below the square of the number of rows.
            codes = pc.index_in(codes, value_set=self._pairs[place - 1]).cast(pa.int64())
        return codes

    def has_value(self, column: int, value: pa.Array) -> bool:
        return bool(pc.index_in(value, value_set=self._values[column]).is_valid()[0].as_py())

    def may_match(self, column: int, low: pa.Scalar, high: pa.Scalar, *, has_nulls: bool) -> bool:
        """Whether a data file with these bounds of a key column may have one of the keys."""
        if has_nulls and self._values[column].null_count:
            return True
        if column not in self._sorted:
            values = self._values[column].drop_null()
            self._sorted[column] = values.take(pc.sort_indices(values))
        values, first = self._sorted[column], 0
        if low.is_valid:
            first = bisect_left(range(len(values)), low.as_py(), key=lambda number: values[number].as_py())
        if first == len(values):
            return False
        return not high.is_valid or bool(values[first].as_py() <= high.as_py())


BATCH_ROWS = 1 << 18


class KeyReading:
    """Reads the key columns of one Parquet file; `constants` has those, by id, with a known single value."""

    def __init__(
        self,
        stream: object,
        keys: Sequence[KeyColumn],
        mapped: Mapping[str, int],
        constants: Mapping[int, pa.Array],
    ) -> None:
        import pyarrow.parquet as pq

        self._file: pq.ParquetFile = pq.ParquetFile(stream)
        self._keys, self._mapped, self._constants = keys, mapped, constants
        schema, footer = self._file.schema_arrow, self._file.metadata
        self._places = places_by_id(schema, mapped)
        self.has_ids, self.rows = bool(self._places), footer.num_rows
        self._columns = set()
        for key in keys:
            # If a file lacks a column in a struct, the struct is read for its own nulls.
            known = self._places.keys() - constants.keys()
            ids = [field_id for field_id in (*key.structs, key.field_id) if field_id in known]
            if ids:
                self._columns.add(self._places[ids[-1]].name)
        # The compressed size of these columns.
        inside = tuple(f"{column}." for column in self._columns)
        paths = [footer.schema.column(leaf).path for leaf in range(footer.num_columns)]
        leaves = [leaf for leaf, path in enumerate(paths) if path in self._columns or path.startswith(inside)]
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        self.size_bytes = sum(group.column(leaf).total_compressed_size for group in groups for leaf in leaves)

    def require_all(self) -> None:
        """Raises ValueError if the file lacks a key column: a file of deletes has all."""
        missing = [key.name for key in self._keys if key.field_id not in self._places]
        if missing:
            raise ValueError(f"it has no column {missing[0]}, by which it deletes")

    def batches(self) -> Iterator[list[pa.Array]]:
        if self._columns:
            columns = sorted(self._columns)
            for batch in self._file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False):
                yield self._parts(batch.num_rows, batch)
            return
        # Batches without a column have no row count.
        for start in range(0, self.rows, BATCH_ROWS):
            yield self._parts(min(BATCH_ROWS, self.rows - start), pa.record_batch([], pa.schema([])))

    def _parts(self, count: int, batch: pa.RecordBatch) -> list[pa.Array]:
        """For each key: whether each struct around the column is null, then the column, in comparable form."""
        places = places_by_id(batch.schema, self._mapped)
        parts = []
        for key in self._keys:
            for struct in key.structs:
                is_known = struct in places
                is_null = column_at(batch, places[struct]).is_null() if is_known else pa.repeat(True, count)
                parts.append(is_null.cast(pa.int64()))
            if key.field_id in self._constants:
                parts.append(pa.repeat(self._constants[key.field_id][0], count))
            elif key.field_id in places:
                parts.append(key.comparable(column_at(batch, places[key.field_id])))
            else:
                parts.append(pa.repeat(key.value_if_missing()[0], count))
        return parts


def places_by_id(schema: pa.Schema, mapped: Mapping[str, int]) -> dict[int, FileColumn]:
    """A Parquet file's columns, also inside structs, by their ids; `mapped` has the ids of files without any."""
    columns = with_mapped_ids(columns_of(schema), mapped)
    return {column.field_id: column for column in columns if column.field_id is not None and column.place}


def column_at(batch: pa.RecordBatch, column: FileColumn) -> pa.Array:
    """The values of a column, null where a struct around it is null."""
    first, *inner = column.place
    values = batch.column(first)
    return pc.struct_field(values, inner) if inner else values


BYTES_SETTING, SECONDS_SETTING = "LAKESHARE_EQUALITY_DELETE_BYTES", "LAKESHARE_EQUALITY_DELETE_S"


@dataclass
class Budget:
    """Limits what all threads together read."""

    settings: StoreSettings
    root: str
    files: int
    began: float
    read_bytes: int = 0
    is_stopped: bool = False
    lock: Lock = dataclass_field(default_factory=Lock)

    def take(self, size_bytes: int) -> None:
        """Counts bytes before they are read."""
        if self.is_stopped:
            raise CancelledError
        with self.lock:
            self.read_bytes += size_bytes
        most_bytes, most_s = self.settings.equality_delete_bytes, self.settings.equality_delete_s
        if self.read_bytes > most_bytes:
            raise self._exceeded(f"{BYTES_SETTING} is {most_bytes} bytes", BYTES_SETTING)
        if time.monotonic() - self.began > most_s:
            raise self._exceeded(f"{SECONDS_SETTING} is {most_s:g} seconds", SECONDS_SETTING)

    def _exceeded(self, limit: str, setting: str) -> Unserveable:
        return _refusal(
            f"{self.root} has {self.files} files of equality deletes, and finding the rows they delete takes more "
            f"than is allowed: {limit}.",
            f"Raise {setting}; what was read so far is kept for the next attempt. Without it: "
            f"{ReasonCode.EQUALITY_DELETES.fix}",
        )


def _refusal(reason: str, fix: str = ReasonCode.EQUALITY_DELETES.fix) -> Unserveable:
    return Unserveable(reason, fix, ReasonCode.EQUALITY_DELETES)


Read = TypeVar("Read")
# Files that are read before their turn.
READ_AHEAD = 16


def read_ahead(
    files: ThreadPoolExecutor, jobs: Iterable[tuple[bool, Callable[[], Iterator[Read]]]]
) -> Iterator[Read]:
    """Yields what the jobs read, in their order: small jobs are read completely before their turn."""
    ahead: deque[Future[list[Read]] | Callable[[], Iterator[Read]]] = deque()

    def next_result() -> Iterable[Read]:
        job = ahead.popleft()
        return job.result() if isinstance(job, Future) else job()

    def read_all(read: Callable[[], Iterator[Read]]) -> list[Read]:
        return list(read())

    for is_small, read in jobs:
        ahead.append(files.submit(read_all, read) if is_small else read)
        if len(ahead) > READ_AHEAD:
            yield from next_result()
    while ahead:
        yield from next_result()


LAYOUT = 1
KIND = "equality"
HEADER = b"lakeshare"


@dataclass(frozen=True)
class Results:
    """Known rows by the numbers of data files, None if none is deleted; and the paths of the applied deletes."""

    rows: "Mapping[int, BitMap64 | None]" = dataclass_field(default_factory=dict)
    deletes: Set[str] = frozenset()


class _KeptResults:
    """A file of results."""

    def __init__(self, path: Path) -> None:
        with pa.OSFile(os.fsencode(path), "rb") as file:
            table = pa.ipc.open_file(file).read_all().combine_chunks()
        header: dict[str, Any] = orjson.loads(table.schema.metadata[HEADER])
        self.sequence_number: int = header["sequence_number"]
        self.deletes: dict[str, list[Any]] = header["deletes"]
        self.paths = table.column("path").combine_chunks()
        self.files, self.rows = table.column("file"), table.column("rows")


class ResultsCache:
    """The results of one table; only a server has a folder for them."""

    def __init__(self, settings: StoreSettings, table: "TableMetadata", targets: Targets) -> None:
        # Files without field ids get them by the mapping of names, so the key columns depend on it.
        mapping = table.properties.get("schema.name-mapping.default", "")
        self._identity = KIND, LAYOUT, str(table.table_uuid), sha256(mapping.encode()).hexdigest()
        self._targets = targets
        self._folder: CacheFolder[_KeptResults] | None = None
        if isinstance(settings, ServerSettings):
            folder = settings.index_dir / "cache"
            self._folder = CacheFolder(folder, KIND, settings.index_cache_bytes, _KeptResults)

    def find(self, deletes: Sequence[DeleteFile]) -> Results:
        """The kept results that still apply."""
        from pyroaring import BitMap64

        kept = None if self._folder is None else self._folder.find(self._identity)
        if kept is None:
            return Results()
        live = {delete.path: self._key_of(delete) for delete in deletes}
        same = {path for path, key in kept.deletes.items() if live.get(path) == key}
        # The highest sequence number of removed deletes, by scope.
        removed: dict[str, int] = {}
        for path, (scope, number, *_) in kept.deletes.items():
            if path not in same:
                removed[scope] = max(number, removed.get(scope, 0))
        paths = pa.array([file.path for file in self._targets.files], pa.string())
        known: dict[int, BitMap64 | None] = {}
        for number, row in enumerate(pc.index_in(paths, value_set=kept.paths).to_pylist()):
            if row is None or kept.files[row].as_py() != self._file(number):
                continue
            removed_with = max(removed.get(self._targets.own_scope(number), 0), removed.get(EVERYWHERE, 0))
            if self._targets.files[number].sequence_number >= removed_with:
                rows = kept.rows[row].as_py()
                known[number] = None if rows is None else BitMap64.deserialize(rows)
        return Results(known, same)

    def keep(
        self, sequence_number: int, deletes: Sequence[DeleteFile], rows: "Mapping[int, BitMap64 | None]"
    ) -> None:
        """Keeps the results of a snapshot, unless those of a later one are kept."""
        if self._folder is None:
            return
        keys = {delete.path: self._key_of(delete) for delete in deletes}
        header = {"sequence_number": sequence_number, "deletes": keys}
        contents = [(number, rows[number]) for number in sorted(rows)]
        bitmaps = [None if content is None else content.serialize() for _, content in contents]
        columns = {
            "path": pa.array([self._targets.files[number].path for number, _ in contents], pa.string()),
            "file": pa.array([self._file(number) for number, _ in contents], pa.string()),
            "rows": pa.array(bitmaps, pa.large_binary()),
        }
        table = pa.table(columns).replace_schema_metadata({HEADER: orjson.dumps(header)})

        def write(path: Path) -> None:
            with pa.OSFile(os.fsencode(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table.combine_chunks())

        self._folder.get(self._identity, write, lambda kept: kept.sequence_number > sequence_number)

    def _key_of(self, delete: DeleteFile) -> list[Any]:
        """What the results depend on of a file of deletes."""
        scope = self._targets.scope(delete)
        return [scope, delete.sequence_number, delete.size_bytes, list(delete.equality_ids)]

    def _file(self, number: int) -> str:
        """What the results depend on of a data file, besides its content."""
        file = self._targets.files[number]
        return f"{file.sequence_number}:{file.rows}:{self._targets.own_scope(number)}"


READERS = 16
# Partitions that are processed at once, each with its own keys in memory.
GROUPS = 4
# Deleted keys that are searched for at once; with more, the data files are read several times.
KEYS_BYTES = 32 << 20
# Small files, of which a table may have thousands, are read ahead; larger ones piece by piece.
SMALL_BYTES, SMALL_VALUES = 1 << 20, 500_000
# Keys of data files that are looked up at once.
LOOKUP_BYTES = 32 << 20


def rows_deleted_by_equality(
    stores: Stores,
    table: "TableMetadata",
    snapshot: "Snapshot",
    files: DataFiles,
    targets: Targets,
    deletes: Sequence[DeleteFile],
    root: str,
) -> "dict[int, BitMap64]":
    """Returns the rows deleted by a snapshot's equality deletes, by the numbers of their data files."""
    applied = [one for one in deletes if one.content == "equality" and targets.has_equal_rows(one)]
    if not applied:
        return {}
    others = files.formats - {"PARQUET"}
    if others:
        raise ReasonCode.FILE_FORMAT.error(
            f"{root} has equality deletes, and data files in {min(others)}, of which this server reads no keys."
        )
    for delete in applied:
        if delete.format != "PARQUET":
            what = f"{root} has equality deletes in {delete.format}"
            raise _refusal(f"{what}, which this server does not read: {delete.path}.")
    cache = ResultsCache(stores.settings, table, targets)
    known = cache.find(applied)
    work = _Work(stores, table, files, targets, root)
    try:
        return work.run(applied, known)
    finally:
        # Also results from before a limit was reached: the next attempt continues from them.
        if work.has_read:
            cache.keep(snapshot.sequence_number or 0, applied, work.finished)


_Keys: TypeAlias = tuple[DeleteFile, list[pa.Array]]


@dataclass(frozen=True)
class _Rows:
    """The key columns of some rows of a data file, from the row `first` on."""

    number: int
    first: int
    columns: Sequence[pa.Array]
    is_last: bool


@dataclass(frozen=True)
class _Group:
    """Equality deletes by the same columns that may apply to the same data files, which are given by number."""

    keys: Sequence[KeyColumn]
    deletes: Sequence[DeleteFile]
    numbers: Sequence[int]


class _Work:
    """Finds the deleted rows of one snapshot; `finished` has the data files that are completely processed."""

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
        """What to read: all deletes for unknown data files, the later ones for known data files."""
        by_scope: dict[tuple[str, tuple[int, ...]], list[DeleteFile]] = defaultdict(list)
        for delete in deletes:
            by_scope[self._targets.scope(delete), tuple(sorted(set(delete.equality_ids)))].append(delete)
        for (_, ids), own in by_scope.items():
            try:
                keys = key_columns(self._table, ids)
            except ValueError as error:
                path = local_path(own[0].path)
                what = f"{self._root} has equality deletes in {path} that cannot be applied"
                raise _refusal(f"{what}: {error}.") from error
            numbers = self._targets.in_scope(own[0])
            later = [delete for delete in own if delete.path not in known.deletes]
            for some, which in (
                (own, [number for number in numbers if number not in known.rows]),
                (later, [number for number in numbers if number in known.rows]),
            ):
                # Only deletes newer than one of the data files, and data files older than one of the deletes.
                ages = [self._targets.files[number].sequence_number for number in which]
                applied = [delete for delete in some if which and delete.sequence_number > min(ages)]
                if applied:
                    newest = max(delete.sequence_number for delete in applied)
                    older = [number for number, age in zip(which, ages, strict=True) if age < newest]
                    yield _Group(keys, applied, older)

    def _run_group(self, files: ThreadPoolExecutor, group: _Group) -> None:
        passes = self._key_sets(files, group)
        current = next(passes, None)
        if current is None:
            self._finish(group.numbers)
        while current is not None:
            following = next(passes, None)
            keys, newest = current
            files_of = ((number, self._targets.files[number]) for number in group.numbers)
            older = (number for number, file in files_of if file.sequence_number < newest and file.rows)
            wanted = [number for number in older if self._may_match(number, group.keys, keys)]
            if following is None:
                self._finish(set(group.numbers) - set(wanted))
            largest = SMALL_VALUES // len(group.keys)
            jobs = (
                (self._targets.files[number].rows <= largest, partial(self._read_rows, number, group.keys))
                for number in wanted
            )
            for rows in _batch_rows(read_ahead(files, jobs)):
                self._look_up(rows, keys)
                if following is None:
                    self._finish([row.number for row in rows if row.is_last])
            current = following

    def _look_up(self, rows: Sequence[_Rows], keys: KeySet) -> None:
        """Finds the deleted rows of several data files at once: preparing the key set takes longer than a look-up."""
        if not rows:
            return
        columns = [pa.chunked_array(column) for column in zip(*(row.columns for row in rows), strict=True)]
        deleted_with, begin = keys.deleted_with(columns), 0
        for row in rows:
            own = deleted_with.slice(begin, len(row.columns[0]))
            begin += len(own)
            is_deleted = pc.greater(own, self._targets.files[row.number].sequence_number)
            deleted = pc.indices_nonzero(pc.fill_null(is_deleted, False))
            if len(deleted):
                bitmap = bitmap_of(pc.add(deleted, pa.scalar(row.first, pa.uint64())))
                with self._lock:
                    # A new bitmap: the old one may be that of a finished data file.
                    earlier = self._found.get(row.number)
                    self._found[row.number] = bitmap if earlier is None else earlier | bitmap

    def _finish(self, numbers: Collection[int]) -> None:
        """Counts down the groups that have rows to find in these data files."""
        with self._lock:
            for number in numbers:
                self._waiting[number] -= 1
                if not self._waiting[number]:
                    self.finished[number] = self._found.get(number)

    def _key_sets(self, files: ThreadPoolExecutor, group: _Group) -> Iterator[tuple[KeySet, int]]:
        """The deleted keys, as many at once as memory allows, and the highest sequence number among them."""
        deletes = ((delete.size_bytes <= SMALL_BYTES, delete) for delete in group.deletes)
        jobs = ((is_small, partial(self._read_keys, delete, group.keys)) for is_small, delete in deletes)
        chunks: list[list[pa.Array]] = []
        numbers: list[pa.Array] = []
        size, newest = 0, 0
        for delete, columns in read_ahead(files, jobs):
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

    def _read_keys(self, delete: DeleteFile, keys: Sequence[KeyColumn]) -> Iterator[_Keys]:
        self._budget.take(0)
        with (
            reading(f"The equality deletes {delete.path} of {self._root}"),
            self._stores.open(delete.path) as stream,
        ):
            file = KeyReading(stream, keys, {}, {})
            file.require_all()
            self._budget.take(file.size_bytes)
            for columns in file.batches():
                yield delete, columns

    def _read_rows(self, number: int, keys: Sequence[KeyColumn]) -> Iterator[_Rows]:
        target, first = self._targets.files[number], 0
        self._budget.take(0)
        with (
            reading(f"The columns of {target.path} by which equality deletes of {self._root} apply"),
            self._stores.open(target.path) as stream,
        ):
            file = KeyReading(stream, keys, self._mapped, self._constants(number, keys))
            if not file.has_ids:
                path = local_path(target.path)
                raise ReasonCode.FILES_WITHOUT_IDS.error(
                    f"{self._root}: {path} has no field ids, by which equality deletes apply to it."
                )
            if file.rows != target.rows:
                raise ValueError(f"it has {file.rows} rows, its manifest says {target.rows}")
            self._budget.take(file.size_bytes)
            for columns in file.batches():
                count = len(columns[0])
                yield _Rows(number, first, columns, is_last=first + count == target.rows)
                first += count
                self._budget.take(0)

    def _constants(self, number: int, keys: Sequence[KeyColumn]) -> dict[int, pa.Array]:
        """The key columns, by id, with a single value by a data file's partition."""
        target = self._targets.files[number]
        values = ((key.field_id, key.partition_value(self._table, target)) for key in keys)
        return {field_id: value for field_id, value in values if value is not None}

    def _may_match(self, number: int, keys: Sequence[KeyColumn], deleted: KeySet) -> bool:
        """Whether a data file may have a deleted key, by its partition and statistics."""
        constants = self._constants(number, keys)
        # The parts of keys are the nulls of structs, too: the value is the last part of each.
        ends = accumulate(len(key.structs) + 1 for key in keys)
        for key, end in zip(keys, ends, strict=True):
            value = constants.get(key.field_id)
            if value is not None:
                if not deleted.has_value(end - 1, value):
                    return False
                continue
            low, high = self._bounds_of(key)
            counts = self._files.null_counts.get(key.field_id)
            has_nulls = counts is None or counts[number].as_py() != 0
            if low is None or high is None:
                continue
            if not deleted.may_match(end - 1, low[number], high[number], has_nulls=has_nulls):
                return False
        return True

    def _bounds_of(self, key: KeyColumn) -> tuple[pa.Array | None, pa.Array | None]:
        if key.field_id not in self._bounds:
            self._bounds[key.field_id] = (
                key.bounds(self._files.lower.get(key.field_id), is_upper=False),
                key.bounds(self._files.upper.get(key.field_id), is_upper=True),
            )
        return self._bounds[key.field_id]


def _batch_rows(rows: Iterable[_Rows]) -> Iterator[list[_Rows]]:
    """Pieces of data files, as many as are looked up at once; also those read before a limit was reached."""
    batch: list[_Rows] = []
    size = 0
    try:
        for row in rows:
            batch.append(row)
            size += sum(column.nbytes for column in row.columns)
            if size >= LOOKUP_BYTES:
                yield batch
                batch, size = [], 0
    except Unserveable:
        yield batch
        raise
    if batch:
        yield batch


def _key_set(chunks: Sequence[Sequence[pa.Array]], numbers: Sequence[pa.Array]) -> KeySet:
    columns = [pa.concat_arrays(column) for column in zip(*chunks, strict=True)]
    return KeySet(columns, pa.concat_arrays(numbers))
