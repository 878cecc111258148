"""Key columns of equality deletes: which they are, the form they are compared in, and keys as a searchable set.

Equality follows Iceberg's own readers: null equals null, NaN equals NaN, -0.0 and 0.0 differ, values are compared in
the type that the table has for the column, and a struct that is null differs from one that has only nulls.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import StoreSettings
from lakeshare_server.tables.iceberg.deletes import Target
from lakeshare_server.tables.iceberg.partitions import bounded_type, decode_bounds
from lakeshare_server.tables.iceberg.schema import FIELD_ID
from lakeshare_server.tables.serveability import ReasonCode

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType, NestedField, PrimitiveType

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
        """The type's name without its parameters."""
        return _kind(self.type)

    def comparable(self, values: pa.Array) -> pa.Array:
        """Values in the form that they are compared in: integers, decimals or bytes.

        Raises:
            ValueError: they are of a type that no reader turns into the column's.
        """
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
        """The Arrow type of comparable values."""
        if self.kind == "decimal":
            return pa.decimal128(38, _scale(self.type))
        return ANY_BYTES if self.kind in OF_BYTES else pa.int64()

    def bounds(self, values: pa.BinaryArray, *, is_upper: bool) -> pa.Array | None:
        """Bounds of data files in comparable form; None of a type whose bounds are in another order."""
        kind = None if self.kind in ("float", "double", "boolean") else bounded_type(self.type)
        return None if kind is None else self.comparable(decode_bounds(values, kind, is_upper=is_upper))


def key_columns(table: "TableMetadata", ids: Sequence[int]) -> list[KeyColumn]:
    """The columns with these ids, each from the newest schema that has it: a dropped column still deletes rows.

    Raises:
        ValueError: no schema has one of them, it is none that rows can be deleted by, or there are no ids.
    """
    if not ids:
        raise ValueError("their manifest names no columns")
    return [_newest(table, field_id) for field_id in ids]


def _newest(table: "TableMetadata", field_id: int) -> KeyColumn:
    newest_first = sorted(
        table.schemas, key=lambda schema: (schema.schema_id == table.current_schema_id, schema.schema_id)
    )
    for schema in reversed(newest_first):
        if field_id in schema.field_ids:
            return _key_column(schema, field_id)
    raise ValueError(f"no schema has a column with the id {field_id}")


def _key_column(schema: "Schema", field_id: int) -> KeyColumn:
    path = _path_to(schema.fields, field_id)
    name = schema.find_column_name(field_id) or str(field_id)
    if not path:
        raise ValueError(f"column {name} is inside a list or a map")
    field = path[-1]
    if _kind(field.field_type) not in FORMS:
        raise ValueError(f"column {name} is of the type {field.field_type}")
    structs = tuple(one.field_id for one in path[:-1])
    return KeyColumn(field_id, name, field.field_type, structs, field.initial_default)  # type: ignore[arg-type]  # a primitive


def _path_to(fields: "Sequence[NestedField]", field_id: int) -> "list[NestedField]":
    """The fields that lead to one through structs only; none when it is not there."""
    from pyiceberg.types import StructType

    for field in fields:
        if field.field_id == field_id:
            return [field]
        if isinstance(field.field_type, StructType):
            inner = _path_to(field.field_type.fields, field_id)
            if inner:
                return [field, *inner]
    return []


def partition_value(table: "TableMetadata", target: Target, key: KeyColumn) -> pa.Array | None:
    """The one value that a file's partition says all its rows have, comparable; None unless by identity.

    Iceberg's own readers take it also where the file has the column.
    """
    from pyiceberg.transforms import IdentityTransform

    partition = dict(target.partition)
    for field in table.specs()[target.spec_id].fields:
        is_identity = isinstance(field.transform, IdentityTransform) and field.source_id == key.field_id
        if is_identity and field.field_id in partition:
            return _comparable_partition(partition[field.field_id], key)
    return None


def value_of_lacking(key: KeyColumn) -> pa.Array:
    """The one value that all rows of a file have which lacks the column (Iceberg spec, "Column Projection")."""
    if key.initial_default is None:
        return pa.nulls(1, key.comparable_type())
    return key.comparable(_default_value(key))


def _comparable_partition(value: Any, key: KeyColumn) -> pa.Array:
    """As manifests have it: dates and times are integers, decimals and UUIDs bytes."""
    kind = key.comparable_type()
    if value is None:
        return pa.nulls(1, kind)
    if pa.types.is_decimal(kind):
        return decode_bounds(pa.array([value], pa.binary()), kind, is_upper=True)
    if isinstance(value, float):
        return key.comparable(pa.array([value], pa.float64()))
    return pa.array([value.encode() if isinstance(value, str) else value]).cast(kind)


def _default_value(key: KeyColumn) -> pa.Array:
    from uuid import UUID

    from pyiceberg.io.pyarrow import schema_to_pyarrow

    value = key.initial_default
    if isinstance(value, UUID):
        return pa.array([value.bytes], pa.binary())
    return pa.array([value], schema_to_pyarrow(key.type))


def value_places(keys: Sequence[KeyColumn]) -> list[int]:
    """Where among the parts of keys, which are the nulls of structs too, the values of the columns are."""
    sizes = [len(key.structs) + 1 for key in keys]
    return [sum(sizes[: place + 1]) - 1 for place in range(len(sizes))]


class KeySet:
    """Keys that delete rows, each with the highest sequence number it was deleted with."""

    def __init__(self, keys: Sequence[pa.Array], sequence_numbers: pa.Array) -> None:
        self._values, self._pairs = [], list[pa.Array]()
        codes: pa.Array | None = None
        for column in keys:
            values = pc.unique(column)
            self._values.append(values)
            own = pc.index_in(column, value_set=values).cast(pa.int64())
            if codes is None:
                codes = own
                continue
            codes = pc.add(pc.multiply(codes, len(values)), own)
            # Numbered anew after each column, so that codes stay below the square of the number of rows.
            pairs = pc.unique(codes)
            self._pairs.append(pairs)
            codes = pc.index_in(codes, value_set=pairs).cast(pa.int64())
        highest = (
            pa.table({"code": codes, "sequence_number": sequence_numbers})
            .group_by("code")
            .aggregate([("sequence_number", "max")])
            .sort_by("code")
        )
        self._sequence_numbers = highest.column("sequence_number_max").combine_chunks()
        self._sorted: dict[int, pa.Array] = {}

    def deleted_with(self, rows: Sequence[pa.ChunkedArray]) -> pa.Array:
        """For each row of key columns the highest sequence number it was deleted with; null for all others."""
        codes: pa.ChunkedArray | None = None
        pairs = iter(self._pairs)
        for column, values in zip(rows, self._values, strict=True):
            own = pc.index_in(column, value_set=values).cast(pa.int64())
            if codes is None:
                codes = own
                continue
            codes = pc.add(pc.multiply(codes, len(values)), own)
            codes = pc.index_in(codes, value_set=next(pairs)).cast(pa.int64())
        return pc.take(self._sequence_numbers, codes).combine_chunks()

    def has_value(self, column: int, value: pa.Array) -> bool:
        """Whether some key has this value, or null, in a column."""
        return bool(pc.index_in(value, value_set=self._values[column]).is_valid()[0].as_py())

    def may_match(self, column: int, low: pa.Scalar, high: pa.Scalar, *, has_nulls: bool) -> bool:
        """Whether a data file with these bounds of a key column may have one of the keys."""
        if has_nulls and self._values[column].null_count:
            return True
        values = self._in_order(column)
        first = 0
        if low.is_valid:
            first = bisect_left(range(len(values)), low.as_py(), key=lambda place: values[place].as_py())
        if first == len(values):
            return False
        return not high.is_valid or bool(values[first].as_py() <= high.as_py())

    def _in_order(self, column: int) -> pa.Array:
        if column not in self._sorted:
            values = self._values[column].drop_null()
            self._sorted[column] = values.take(pc.sort_indices(values))
        return self._sorted[column]


def _kind(kind: "IcebergType") -> str:
    return str(kind).split("(")[0].split("[")[0]


def _scale(kind: "PrimitiveType") -> int:
    from pyiceberg.types import DecimalType

    return kind.scale if isinstance(kind, DecimalType) else 0


def _float_bits(values: pa.Array) -> pa.Array:
    """Floating point by its bits, all NaNs the same."""
    same = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), values.type), values)
    return same.view(pa.int64() if pa.types.is_float64(same.type) else pa.int32())


def _micros(values: pa.Array) -> pa.Array:
    return _ticks(values, "us")


def _nanos(values: pa.Array) -> pa.Array:
    return _ticks(values, "ns")


def _ticks(values: pa.Array, unit: str) -> pa.Array:
    """Timestamps, or the dates that became some, as numbers; a zone changes nothing of what is stored."""
    zone = values.type.tz if pa.types.is_timestamp(values.type) else None
    return values.cast(pa.timestamp(unit, zone)).cast(pa.int64())


def _is_time_of_day(kind: pa.DataType) -> bool:
    return bool(pa.types.is_time32(kind) or pa.types.is_time64(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()) or bool(
        pa.types.is_fixed_size_binary(kind)
    )


def _as_they_are(values: pa.Array) -> pa.Array:
    return values


# For each type of key columns: the Arrow types that files may have it as, and how it is made comparable.
FORMS: Mapping[str, tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]]] = {
    "boolean": (pa.types.is_boolean, lambda values: values.cast(pa.int8())),
    "int": (pa.types.is_integer, _as_they_are),
    "long": (pa.types.is_integer, _as_they_are),
    "float": (pa.types.is_floating, lambda values: _float_bits(values.cast(pa.float32()))),
    "double": (pa.types.is_floating, lambda values: _float_bits(values.cast(pa.float64()))),
    "decimal": (pa.types.is_decimal, _as_they_are),
    "date": (pa.types.is_date, lambda values: values.cast(pa.date32()).cast(pa.int32())),
    "time": (_is_time_of_day, lambda values: values.cast(pa.time64("us")).cast(pa.int64())),
    "timestamp": (_is_time, _micros),
    "timestamptz": (_is_time, _micros),
    "timestamp_ns": (_is_time, _nanos),
    "timestamptz_ns": (_is_time, _nanos),
    **dict.fromkeys(OF_BYTES, (_is_bytes, _as_they_are)),
}


BATCH_ROWS = 1 << 18
ColumnPlace = tuple[int, ...]
"""Indices that lead to a column: of a top-level column, of a field in it, and so on."""

# Files that are read before their turn.
READ_AHEAD = 16
BYTES_SETTING, SECONDS_SETTING = "LAKESHARE_EQUALITY_DELETE_BYTES", "LAKESHARE_EQUALITY_DELETE_S"
Read = TypeVar("Read")


@dataclass
class Budget:
    """How much may still be read, by all threads together."""

    settings: StoreSettings
    root: str
    files: int
    began: float
    read_bytes: int = 0
    is_stopped: bool = False
    lock: Lock = dataclass_field(default_factory=Lock)

    def take(self, size_bytes: int) -> None:
        """Count bytes that are about to be read.

        Raises:
            Unserveable: they are too many, or time is up.
            CancelledError: another thread has failed.
        """
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
        return Unserveable(
            f"{self.root} has {self.files} files of equality deletes, and finding the rows they delete takes more "
            f"than is allowed: {limit}.",
            f"Raise {setting}; what was read so far is kept for the next attempt. Without it: "
            f"{ReasonCode.EQUALITY_DELETES.fix}",
            ReasonCode.EQUALITY_DELETES,
        )


class KeyReading:
    """The key columns of one Parquet file; `constants` has those, by id, that are not read from it."""

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
        # Of a file that lacks a column in a struct, the struct tells where it is null itself.
        wanted = [
            [one for one in (*key.structs, key.field_id) if one in self._places and one not in constants][-1:]
            for key in keys
        ]
        self._columns = sorted({_dotted(schema, self._places[one]) for [one] in filter(None, wanted)})
        self.size_bytes = _size_of(footer, self._columns)

    def require_all(self) -> None:
        """See that the file has all key columns, as files of deletes do.

        Raises:
            ValueError: it lacks one.
        """
        missing = [key.name for key in self._keys if key.field_id not in self._places]
        if missing:
            raise ValueError(f"it has no column {missing[0]}, by which it deletes")

    def batches(self) -> Iterator[list[pa.Array]]:
        """The parts of the keys, some rows at a time."""
        for count, batch in self._read():
            places = places_by_id(batch.schema, self._mapped)
            yield [part for key in self._keys for part in self._parts(count, batch, places, key)]

    def _parts(
        self, count: int, batch: pa.RecordBatch, places: Mapping[int, ColumnPlace], key: KeyColumn
    ) -> Iterator[pa.Array]:
        """Whether each struct around a column is null, then the column, in comparable form."""
        for struct in key.structs:
            is_null = (
                column_at(batch, places[struct]).is_null() if struct in places else pa.repeat(True, count)
            )
            yield is_null.cast(pa.int64())
        if key.field_id in self._constants:
            yield pa.repeat(self._constants[key.field_id][0], count)
        elif key.field_id in places:
            yield key.comparable(column_at(batch, places[key.field_id]))
        else:
            yield pa.repeat(value_of_lacking(key)[0], count)

    def _read(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches with their numbers of rows: without a column they have none to count."""
        if self._columns:
            for batch in self._file.iter_batches(BATCH_ROWS, columns=self._columns, use_threads=False):
                yield batch.num_rows, batch
            return
        for start in range(0, self.rows, BATCH_ROWS):
            yield min(BATCH_ROWS, self.rows - start), pa.record_batch([], pa.schema([]))


def places_by_id(schema: pa.Schema, mapped: Mapping[str, int]) -> dict[int, ColumnPlace]:
    """Where a Parquet file has its columns, those inside of structs too; `mapped` are the ids of files without any."""
    has_ids = any(True for field in schema if _has_id(field))
    return dict(_places(list(schema), (), "", None if has_ids else mapped))


def _has_id(field: pa.Field) -> bool:
    if FIELD_ID in (field.metadata or {}):
        return True
    return any(_has_id(field.type.field(place)) for place in range(field.type.num_fields))


def _places(
    fields: Sequence[pa.Field], above: ColumnPlace, path: str, mapped: Mapping[str, int] | None
) -> "list[tuple[int, ColumnPlace]]":
    found: list[tuple[int, ColumnPlace]] = []
    for index, column in enumerate(fields):
        place, name = (*above, index), path + column.name
        own = (column.metadata or {}).get(FIELD_ID)
        field_id = mapped.get(name) if mapped is not None else None if own is None else int(own)
        if field_id is not None:
            found.append((field_id, place))
        if pa.types.is_struct(column.type):
            inner = [column.type.field(number) for number in range(column.type.num_fields)]
            found += _places(inner, place, f"{name}.", mapped)
    return found


def column_at(batch: pa.RecordBatch, place: ColumnPlace) -> pa.Array:
    """A column, null where a struct around it is."""
    first, *inner = place
    values = batch.column(first)
    return pc.struct_field(values, inner) if inner else values


def _dotted(schema: pa.Schema, place: ColumnPlace) -> str:
    names, fields = [], list(schema)
    for index in place:
        names.append(fields[index].name)
        kind = fields[index].type
        fields = [kind.field(number) for number in range(kind.num_fields)]
    return ".".join(names)


def _size_of(footer: "pq.FileMetaData", columns: Collection[str]) -> int:
    """How many bytes these columns have, compressed."""
    wanted, inside = set(columns), tuple(f"{column}." for column in columns)
    paths = [footer.schema.column(leaf).path for leaf in range(footer.num_columns)]
    leaves = [leaf for leaf, path in enumerate(paths) if path in wanted or path.startswith(inside)]
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    return sum(group.column(leaf).total_compressed_size for group in groups for leaf in leaves)


def read_ahead(
    files: ThreadPoolExecutor, jobs: Iterable[tuple[bool, Callable[[], Iterator[Read]]]]
) -> Iterator[Read]:
    """What the jobs read, in their order: some of the small ones are read whole before their turn."""
    ahead: deque[Future[list[Read]] | Callable[[], Iterator[Read]]] = deque()
    for is_small, read in jobs:
        ahead.append(files.submit(_whole, read) if is_small else read)
        if len(ahead) > READ_AHEAD:
            yield from _result(ahead.popleft())
    while ahead:
        yield from _result(ahead.popleft())


def _whole(read: Callable[[], Iterator[Read]]) -> list[Read]:
    return list(read())


def _result(reading: Future[list[Read]] | Callable[[], Iterator[Read]]) -> Iterable[Read]:
    return reading.result() if isinstance(reading, Future) else reading()
