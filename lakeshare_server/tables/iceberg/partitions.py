"""Partition values and bounds of an Iceberg table's files, in the types of the columns and in JSON.

A column that a data file lacks has the value of an identity partition field (Iceberg spec, "Column Projection"). Files
imported from Hive lack their partition columns: recipients get the values in the lines of the files.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, date, timedelta
from decimal import Decimal
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.iceberg.manifests import DataFiles
from lakeshare_server.tables.iceberg.schema import SAME_MEANING, InFiles, delta_type
from lakeshare_server.tables.lines import partition_text, struct_of
from lakeshare_server.tables.predicates import DAY_US, EPOCH, WIDE, text_after_prefix
from lakeshare_server.tables.serveability import ReasonCode
from lakeshare_server.tables.snapshot import arrow_type

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import NestedField, PrimitiveType

FIRST_DAY = EPOCH.date()
AS_THEY_ARE = {"boolean", "int", "long", "string"}
AS_TEXTS = {"date", "timestamp", "timestamptz", "binary"}


def always_has_text(kind: str) -> bool:
    """Whether each value of an Iceberg type has a JSON form: NaN and the infinities have none."""
    return kind in AS_THEY_ARE | AS_TEXTS or kind.startswith(("decimal", "fixed"))


class PartitionTexts:
    """The partition values of one table's files in JSON; clients bind the specs to `client_schema`."""

    def __init__(self, table: "TableMetadata", client_schema: "Schema", root: str) -> None:
        self._root = root
        self._fields: dict[int, list[tuple[int, str | None]]] = {}
        for spec_id, spec in table.specs().items():
            self._fields[spec_id] = []
            for field in spec.fields:
                kind = None
                # Clients do not know the type for a dropped column.
                if field.source_id in client_schema.field_ids and str(field.transform) != "void":
                    kind = str(field.transform.result_type(client_schema.find_type(field.source_id)))
                self._fields[spec_id].append((field.field_id, kind))

    def values(self, spec_id: int, partition: Mapping[int, object]) -> list[Any]:
        """The list of one file; raises Unserveable if a value has no JSON form."""
        return [self._value(kind, partition.get(field_id)) for field_id, kind in self._fields[spec_id]]

    def of(self, files: DataFiles) -> Iterator[str]:
        """The lists of all data files as JSON; each different one is rendered once."""
        columns = {key: values.to_pylist() for key, values in files.partition.items()}
        in_spec = {
            spec_id: [(field_id, columns[spec_id, field_id]) for spec, field_id in columns if spec == spec_id]
            for spec_id in self._fields
        }
        texts: dict[tuple[object, ...], str] = {}
        for row, spec_id in enumerate(files.column("spec_id").to_pylist()):
            record = {field_id: values[row] for field_id, values in in_spec[spec_id]}
            key = spec_id, *record.values()
            if key not in texts:
                texts[key] = orjson.dumps(self.values(spec_id, record)).decode()
            yield texts[key]

    def _value(self, kind: str | None, value: Any) -> Any:
        if value is None or kind is None:
            return None
        try:
            return json_value(kind, value)
        except (ValueError, OverflowError, TypeError) as error:
            raise Unserveable(
                f"A partition value of {self._root} of the type {kind} has no form in JSON.",
                "Plan scans in the client: set scan-planning-mode to client.",
            ) from error


def json_value(kind: str, value: Any) -> Any:
    """Converts a value of a manifest (dates and times as numbers, decimals big-endian) to JSON types."""
    if kind in AS_THEY_ARE:
        return value
    if kind in ("float", "double"):
        if not math.isfinite(value):
            raise ValueError(value)
        return float(value)
    if kind == "date":
        return (FIRST_DAY + timedelta(days=value)).isoformat()
    if kind in ("timestamp", "timestamptz"):
        # Raises OverflowError outside of the years 1 to 9999.
        text = (EPOCH + timedelta(microseconds=value)).isoformat(timespec="microseconds")
        return text if kind == "timestamptz" else text.removesuffix("+00:00")
    if kind.startswith("decimal"):
        scale = int(kind.rstrip(")").rpartition(",")[2])
        unscaled = Decimal(int.from_bytes(value, "big", signed=True))
        return f"{unscaled.scaleb(-scale, context=WIDE):f}"
    if kind == "binary" or kind.startswith("fixed"):
        return bytes(value).hex().upper()
    raise ValueError(kind)


DECIMAL_BYTES = 16
# Columns that were promoted keep the narrow bounds of older manifests (spec, "Schema Evolution").
NARROWER = {pa.int64(): pa.int32(), pa.float64(): pa.float32()}


def decode_bounds(values: pa.BinaryArray, kind: pa.DataType, *, is_upper: bool) -> pa.Array:
    if pa.types.is_string(kind):
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([_text(value, is_upper=is_upper) for value in values.to_pylist()], pa.string())
    if pa.types.is_decimal(kind):
        return _decimals(values, kind)
    if pa.types.is_boolean(kind):
        return pc.not_equal(_of_width(values, pa.uint8()), 0)
    numbers = _numbers(values, kind)
    # Old writers wrote NaN as a bound; it has no order.
    return pc.if_else(pc.is_nan(numbers), None, numbers) if pa.types.is_floating(kind) else numbers


def _numbers(values: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        exact = _of_width(values, pa.int64())
        if kind.tz is None:
            # A date that became a timestamp (v3) has its bounds in days.
            days = _of_width(values, pa.int32()).cast(pa.int64())
            exact = pc.coalesce(exact, pc.multiply(days, DAY_US))
        return exact.cast(kind)
    own = _of_width(values, kind)
    if kind not in NARROWER or not own.null_count:
        return own
    return pc.coalesce(own, _of_width(values, NARROWER[kind]).cast(kind))


def _of_width(values: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Little-endian values with the width of the type; null for other lengths."""
    width = kind.bit_width // 8
    fits = pc.equal(pc.binary_length(values), width)
    is_plain = not values.null_count and pc.all(fits, min_count=0).as_py()
    if not is_plain:
        values = pc.if_else(pc.fill_null(fits, False), values, bytes(width))
    _, offsets, content = values.buffers()
    if content is None:
        return pa.nulls(len(values), kind)
    start = memoryview(offsets).cast("i")[values.offset]
    numbers = pa.Array.from_buffers(kind, len(values), [None, content.slice(start)])
    return numbers if is_plain else pc.if_else(pc.fill_null(fits, False), numbers, None)


def _decimals(values: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Big-endian two's complement of minimal length; Arrow has sixteen bytes, little-endian."""
    different = values.dictionary_encode()
    reversed_bytes = [
        value[::-1].ljust(DECIMAL_BYTES, b"\xff" if value[:1] > b"\x7f" else b"\x00")
        if 0 < len(value) <= DECIMAL_BYTES
        else None
        for value in different.dictionary.to_pylist()
    ]
    numbers = pa.array(reversed_bytes, pa.binary(DECIMAL_BYTES)).view(kind)
    return pc.take(numbers, different.indices)


def _text(value: bytes | None, *, is_upper: bool) -> str | None:
    """A text that may be truncated inside a character: the rest is a lower bound, but not an upper one."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError as error:
        return None if is_upper else value[: error.start].decode() if value else None


HOUR_US = 3_600_000_000
# The least and the greatest value that a partition value stands for, None without an end.
Span: TypeAlias = tuple[Any, Any]


@dataclass(frozen=True)
class Range:
    """Bounds and null counts of one column in all files; null where partitions do not determine them."""

    low: pa.Array
    high: pa.Array
    nulls: pa.Array

    def intersect(self, other: "Range") -> "Range":
        return Range(
            tighter_bound(self.low, other.low, is_upper=False),
            tighter_bound(self.high, other.high, is_upper=True),
            pc.coalesce(self.nulls, other.nulls),
        )


def tighter_bound(one: pa.Array, other: pa.Array, *, is_upper: bool) -> pa.Array:
    """The lesser of two upper or the greater of two lower bounds in each row; an unknown bound is ignored."""
    # Arrow's max_element_wise supports neither times with a zone nor booleans.
    is_tighter = pc.less(other, one) if is_upper else pc.greater(other, one)
    return pc.if_else(pc.or_(pc.is_null(one), pc.fill_null(is_tighter, False)), other, one)


def pruning_columns(
    table: "TableMetadata", schema: "Schema", files: DataFiles, columns: tuple[str, ...]
) -> dict[str, pa.StructArray]:
    """The columns of files that predicates are evaluated on; `columns` are those with partition values."""
    ranges = _partition_ranges(table, schema, files)
    return {
        "partition": partition_values(table, schema, files, columns),
        "min": _column_bounds(schema.fields, files, ranges, is_upper=False),
        "max": _column_bounds(schema.fields, files, ranges, is_upper=True),
        "null_count": _null_counts(schema.fields, files, ranges),
    }


def _partition_ranges(table: "TableMetadata", schema: "Schema", files: DataFiles) -> dict[int, Range]:
    """Bounds and null counts of columns by the files' partitions, by column id."""
    from pyiceberg.types import PrimitiveType

    found: dict[int, Range] = {}
    for spec_id in files.spec_ids:
        is_in_spec = files.in_spec(spec_id)
        for field in table.specs()[spec_id].fields:
            values = files.partition.get((spec_id, field.field_id))
            # A dropped column is not in the schema, but in partitions.
            source = schema.find_type(field.source_id) if field.source_id in schema.field_ids else None
            kind = bounded_type(source) if isinstance(source, PrimitiveType) else None
            span = None if kind is None else _span_of(str(field.transform), str(source))
            if values is None or kind is None or span is None:
                continue
            nulls = pc.if_else(is_in_spec, pc.if_else(pc.is_valid(values), 0, files.column("rows")), None)
            known = Range(*_bounds(values, kind, span), nulls)
            earlier = found.get(field.source_id)
            found[field.source_id] = known if earlier is None else earlier.intersect(known)
    return found


def _span_of(transform: str, source: str) -> Callable[[Any], Span] | None:
    """Returns the span of a partition value, in the numbers of its column."""
    is_date = source == "date"
    if transform == "identity" and source not in ("float", "double"):
        return lambda value: (value, value)
    if transform == "day" and is_date:
        return lambda value: (value, value)
    if transform in TIMES and (is_date or source in ("timestamp", "timestamptz")):
        return partial(_time, TIMES[transform], 1 if is_date else DAY_US)
    if transform.startswith("truncate["):
        width = int(transform.removeprefix("truncate[").removesuffix("]"))
        if source == "string":
            return partial(_prefix, width)
        if source in ("int", "long") or source.startswith("decimal"):
            # Java truncates the least integers to ones beyond them, which wrap around to the greatest ones.
            return lambda value: (None, None) if value % width else (value, value + width - 1)
    return None


def _time(start: Callable[[int, int], int | None], per_day: int, value: int) -> Span:
    end = start(value + 1, per_day)
    # Iceberg before 0.10 rounded times before 1970 up: their value is one too high.
    return start(value - 1 if value <= 0 else value, per_day), None if end is None else end - 1


def _month_start(months: int, per_day: int) -> int | None:
    year, month = 1970 + months // 12, months % 12 + 1
    if not MINYEAR <= year <= MAXYEAR:
        return None
    return (date(year, month, 1) - FIRST_DAY).days * per_day


TIMES: Mapping[str, Callable[[int, int], int | None]] = {
    "year": lambda years, per_day: _month_start(years * 12, per_day),
    "month": _month_start,
    "day": lambda days, per_day: days * per_day,
    "hour": lambda hours, _per_day: hours * HOUR_US,
}


def _prefix(width: int, value: str) -> Span:
    return (value, value) if len(value) < width else (value, text_after_prefix(value))


def _bounds(values: pa.Array, kind: pa.DataType, span: Callable[[Any], Span]) -> tuple[pa.Array, pa.Array]:
    """The bounds in each file; each different value is converted once."""
    different = values.dictionary_encode()
    plain = different.dictionary.to_pylist()
    if pa.types.is_decimal(kind):
        plain = [int.from_bytes(value, "big", signed=True) for value in plain]
    spans = list(map(span, plain))
    low, high = (pc.take(cast_values([one[end] for one in spans], kind), different.indices) for end in (0, 1))
    return low, high


def cast_values(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Converts numbers and texts of partitions to the type of their column; null if out of range."""
    if pa.types.is_decimal(kind):
        limit = 10**kind.precision
        known = (value if value is not None and abs(value) < limit else None for value in values)
        packed = [
            value if value is None else value.to_bytes(DECIMAL_BYTES, "big", signed=True) for value in known
        ]
        return decode_bounds(pa.array(packed, pa.binary()), kind, is_upper=True)
    if not pa.types.is_temporal(kind) and not pa.types.is_integer(kind):
        return pa.array(values, kind)
    limit = 1 << (kind.bit_width - 1)
    fitting = [None if value is None or not -limit <= value < limit else value for value in values]
    numbers = pa.array(fitting, pa.int64() if kind.bit_width == 64 else pa.int32())
    return cast("pa.Array", numbers.cast(kind))


WITH_BOUNDS = {
    "boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "string", "decimal"
}  # fmt: skip


def _column_bounds(
    fields: Sequence["NestedField"], files: DataFiles, ranges: Mapping[int, Range], *, is_upper: bool
) -> pa.StructArray:
    """The lower or upper bounds of all files, as a struct of the table's columns."""
    by_id = files.upper if is_upper else files.lower

    def column(field: "NestedField", kind: "PrimitiveType") -> pa.Array | None:
        arrow_kind, known = bounded_type(kind), ranges.get(field.field_id)
        if arrow_kind is None:
            return None
        if field.field_id in by_id:
            bounds = decode_bounds(by_id[field.field_id], arrow_kind, is_upper=is_upper)
        else:
            bounds = pa.nulls(len(files), arrow_kind)
        if known is None:
            return bounds
        return tighter_bound(bounds, known.high if is_upper else known.low, is_upper=is_upper)

    return _struct(fields, column, len(files))


def client_maxima(known: pa.StructArray, fields: Sequence["NestedField"], files: DataFiles) -> pa.StructArray:
    """The upper bounds for recipients: bounds ignore NaN, which recipients order above all numbers."""
    from pyiceberg.types import StructType

    by_name = {field.name: field for field in fields}
    arrays: list[pa.Array] = []
    for position, member in enumerate(known.type):
        field, values = by_name[member.name], pc.struct_field(known, [position])
        if isinstance(field.field_type, StructType):
            values = client_maxima(values, field.field_type.fields, files)
        elif pa.types.is_floating(member.type):
            counts = files.nan_counts.get(field.field_id, pa.nulls(len(files), pa.int64()))
            values = pc.if_else(pc.fill_null(pc.equal(counts, 0), False), values, None)
        arrays.append(values)
    if not arrays:
        return known
    return pa.StructArray.from_arrays(arrays, [member.name for member in known.type])


def _null_counts(
    fields: Sequence["NestedField"], files: DataFiles, ranges: Mapping[int, Range]
) -> pa.StructArray:
    """The null counts of all files, as a struct of the table's columns; null if unknown."""

    def column(field: "NestedField", _kind: "PrimitiveType") -> pa.Array:
        counts = files.null_counts.get(field.field_id, pa.nulls(len(files), pa.int64()))
        known = ranges.get(field.field_id)
        return counts if known is None else pc.coalesce(counts, known.nulls)

    return _struct(fields, column, len(files))


def column_type(kind: "PrimitiveType") -> pa.DataType:
    name = str(kind)
    found = arrow_type(SAME_MEANING.get(name, name.replace(" ", "")))
    if found is None:
        raise AssertionError(f"{name} passed the schema's check but has no Arrow type")
    return found


def bounded_type(kind: "PrimitiveType") -> pa.DataType | None:
    """Returns the Arrow type of a column's bounds; None if bounds of its type are not used."""
    return column_type(kind) if str(kind).split("(")[0] in WITH_BOUNDS else None


def _struct(
    fields: Sequence["NestedField"],
    column: Callable[["NestedField", "PrimitiveType"], pa.Array | None],
    count: int,
) -> pa.StructArray:
    from pyiceberg.types import PrimitiveType, StructType

    arrays: dict[str, pa.Array] = {}
    for field in fields:
        kind = field.field_type
        if isinstance(kind, StructType):
            arrays[field.name] = _struct(kind.fields, column, count)
        elif isinstance(kind, PrimitiveType):
            values = column(field, kind)
            if values is not None:
                arrays[field.name] = values
    return struct_of(arrays, count)


FROM_FILES = {"timestamp", "timestamptz"}


def partition_columns(table: "TableMetadata", schema: "Schema", files: DataFiles) -> tuple[str, ...]:
    """The columns with a partition value in each file, in a text that all clients read; reads no file.

    Without files, the columns of the table's own spec, so that rules by partitions can be decided.
    """
    identities = [_identities(table, files, spec) for spec in files.spec_ids]
    if not identities:
        identities = [_identity_fields(table, table.default_spec_id)]
    everywhere = set.intersection(*(set(identity) for identity in identities))
    return tuple(
        field.name
        for field in schema.fields
        if field.field_id in everywhere
        and str(field.field_type) not in FROM_FILES
        and _has_text(table, schema, files, field.field_id)
    )


def identity_columns(
    table: "TableMetadata", schema: "Schema", files: DataFiles
) -> dict[int, pa.BooleanArray]:
    """The columns, by id, that files are partitioned by, and whether each file is."""
    found: dict[int, pa.BooleanArray] = {}
    for spec_id in files.spec_ids:
        for field_id in _identities(table, files, spec_id):
            # The column may have been dropped.
            if field_id in schema.field_ids:
                in_spec = files.in_spec(spec_id)
                found[field_id] = pc.or_(found[field_id], in_spec) if field_id in found else in_spec
    return found


def columns_in_lines(
    table: "TableMetadata",
    schema: "Schema",
    files: DataFiles,
    known: tuple[str, ...],
    in_files: InFiles,
    root: str,
) -> tuple[str, ...]:
    """The columns with values in the lines of files: the `known` ones, and others that some file lacks."""
    ids = [schema.find_field(name).field_id for name in known]
    for field_id, lacking in in_files.files_lacking.items():
        values = _partition_values(table, files, field_id)
        # Recipients read null where a file lacks a column.
        if not pc.any(pc.and_(lacking, pc.is_valid(values)), min_count=0).as_py():
            continue
        problem = _problem(table, schema, files, field_id, in_files)
        if problem is not None:
            code = ReasonCode.PARTITION_VALUES_NOT_IN_FILES
            what = f"{root} has files without the partition column {schema.find_column_name(field_id)}"
            raise code.error(f"{what}: {problem}.")
        if field_id not in ids:
            ids.append(field_id)
    # The kernel of the Python client (delta-kernel-rust-sharing-wrapper 0.3.3) fails on partition columns of a table
    # in mode id.
    return () if in_files.renamed else tuple(str(schema.find_column_name(field_id)) for field_id in ids)


def partition_values(
    table: "TableMetadata", schema: "Schema", files: DataFiles, columns: tuple[str, ...]
) -> pa.StructArray:
    arrays = {name: _typed_values(table, schema, files, schema.find_field(name).field_id) for name in columns}
    return struct_of(arrays, len(files))


def _problem(
    table: "TableMetadata", schema: "Schema", files: DataFiles, field_id: int, in_files: InFiles
) -> str | None:
    """Why the values of a column cannot be in the lines of files; None if they can."""
    if in_files.renamed:
        return "columns are read by field ids, with which not all clients read partition values"
    if field_id not in {field.field_id for field in schema.fields}:
        return "it is inside of another column, and partition values are of whole columns"
    if not _has_text(table, schema, files, field_id):
        return f"it has a value of the type {schema.find_type(field_id)} that clients do not read from a text"
    is_partitioned = identity_columns(table, schema, files)[field_id]
    # A file that lacks the column and is not partitioned by it has nulls.
    if not pc.all(pc.or_(is_partitioned, in_files.files_lacking[field_id]), min_count=0).as_py():
        return "other files have many values of it, and recipients read a column either from all files or from none"
    return None


def _identities(table: "TableMetadata", files: DataFiles, spec_id: int) -> dict[int, int]:
    """`{source column id: partition field id}` of a spec's identity fields with values in its manifests."""
    fields = _identity_fields(table, spec_id).items()
    return {source: field for source, field in fields if (spec_id, field) in files.partition}


def _identity_fields(table: "TableMetadata", spec_id: int) -> dict[int, int]:
    from pyiceberg.transforms import IdentityTransform

    fields = table.specs()[spec_id].fields
    return {one.source_id: one.field_id for one in fields if isinstance(one.transform, IdentityTransform)}


def _has_text(table: "TableMetadata", schema: "Schema", files: DataFiles, field_id: int) -> bool:
    """Whether clients can read each value of a column from its text: an empty text means null."""
    # The Python client refuses partitions of bytes, and kernels decode the text as UTF-8.
    if delta_type(schema.find_type(field_id)) in (None, "binary"):
        return False
    values = _typed_values(table, schema, files, field_id)
    texts = partition_text(values)
    is_without_empty = not pc.any(pc.equal(texts, ""), min_count=0).as_py()
    return is_without_empty and texts.null_count == values.null_count


def _typed_values(table: "TableMetadata", schema: "Schema", files: DataFiles, field_id: int) -> pa.Array:
    kind = column_type(cast("PrimitiveType", schema.find_type(field_id)))
    if not len(files):
        return pa.nulls(0, kind)
    values = _partition_values(table, files, field_id)
    if pa.types.is_decimal(kind):
        return decode_bounds(values, kind, is_upper=True)
    # Arrow makes dates of 32-bit days only.
    return values.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else values.cast(kind)


def _partition_values(table: "TableMetadata", files: DataFiles, field_id: int) -> pa.Array:
    """A column's values as in manifests, null for files that are not partitioned by it."""
    by_spec = [
        files.partition[spec, identities[field_id]]
        for spec in files.spec_ids
        if field_id in (identities := _identities(table, files, spec))
    ]
    return reduce(pc.coalesce, by_spec)
