"""Files that hold nothing but rows which a restriction allows: what a grant that is restricted may hand out.

Pruning asks which files may have a wanted row, this asks which can have no other. Only partition values are believed:
they are the same in all rows of a file, while statistics are what some writer noted. Nothing is guessed of how clients
compare: a value is compared in the column's own type, or not at all.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.predicates import (
    DATE,
    And,
    Column,
    ColumnName,
    Columns,
    Compare,
    Constant,
    IsNull,
    Not,
    Or,
    Predicate,
    Unknown,
    Value,
    columns_of,
    json_kind,
)
from lakeshare_server.tables.pruning import batch_columns, count_live_rows
from lakeshare_server.tables.snapshot import TableHead, parse_schema

SPEC_PARTITION = "partition of spec "
WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
DECIMAL = re.compile(r"[+-]?[0-9]{1,38}(\.[0-9]{1,38})?")
LONGS = range(-(1 << 63), 1 << 63)
BOOLEANS = {"true": True, "false": False}
COMPARISONS = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
# True, false or null for each file.
Truth: TypeAlias = pa.BooleanArray


@dataclass(frozen=True)
class Undecided:
    """A part of a rule that partition values do not decide."""

    column: str
    reason: str


def only_within(rule: Predicate, batch: pa.RecordBatch) -> pa.BooleanArray:
    """For each file of a batch, whether the rule is true for every row it may have.

    What the rule does not understand, names no partition column of the file or has a null is not true for it. The batch
    has the columns rows and spec_id, and those of `OWN_PARTITION`.
    """
    found = pa.repeat(pa.scalar(False), batch.num_rows)
    for spec_id in pc.unique(batch.column("spec_id")).to_pylist():
        if f"{SPEC_PARTITION}{spec_id}" in batch.schema.names:
            partition = batch.column(f"{SPEC_PARTITION}{spec_id}")
            own = pa.record_batch({"partition": partition})
            is_own = pc.equal(batch.column("spec_id"), spec_id)
            found = pc.if_else(is_own, is_within(rule, partition, batch_columns(own)), found)
    return found


def is_within(rule: Predicate, partition: pa.StructArray, columns: Columns) -> pa.BooleanArray:
    """For each file with these partition values, whether the rule is true for all of its rows."""
    return pc.fill_null(_Truths(partition, columns).of(rule), False)


def find_undecided(rule: Predicate, partition: pa.DataType, columns: Columns) -> Undecided | None:
    """The first part of the rule that a partition of these columns does not decide; None when it decides all."""
    return next(_undecided(rule, partition, columns), None)


def list_columns(rule: Predicate) -> Iterator[ColumnName]:
    """The columns that a rule names."""
    match rule:
        case Not(operand):
            yield from list_columns(operand)
        case And(operands) | Or(operands):
            for operand in operands:
                yield from list_columns(operand)
        case Compare(name) | IsNull(name):
            yield name


def column_text(name: ColumnName) -> str:
    """A column's name for people."""
    return name if isinstance(name, str) else ".".join(name)


def convert_constant(value: Value, column: Column) -> Any:
    """The constant as a value of the column's own type, a text read as one; None when it is none."""
    kind = column.type
    if pa.types.is_string(kind):
        return value if isinstance(value, str) and column.is_binary else None
    read = next((read for is_kind, read in _READERS if is_kind(kind)), None)
    return None if read is None else read(value)


def _undecided(rule: Predicate, partition: pa.DataType, columns: Columns) -> Iterator[Undecided]:
    match rule:
        case Not(operand):
            yield from _undecided(operand, partition, columns)
        case And(operands) | Or(operands):
            for operand in operands:
                yield from _undecided(operand, partition, columns)
        case Compare(name) | IsNull(name):
            found = _undecided_column(rule, columns.resolve(name), partition)
            if found is not None:
                yield Undecided(column_text(name), found)
        case Unknown(text):
            yield Undecided(text, "it is not understood")


def _undecided_column(part: Compare | IsNull, column: Column | None, partition: pa.DataType) -> str | None:
    if column is None:
        return "the table has no such column"
    if len(column.path) != 1 or partition.get_field_index(column.path[0]) < 0:
        return "not every file has one value of it that its partition states"
    if part.kind not in (None, json_kind(column.type)):
        return f"its type, {column.type}, is not {part.kind}"
    if isinstance(part, Compare) and convert_constant(part.value, column) is None:
        return f"{part.value!r} is no value of its type, {column.type}, or such values are not compared"
    return None


class _Truths:
    """What rules come to for files with these partition values."""

    def __init__(self, partition: pa.StructArray, columns: Columns) -> None:
        self._partition, self._columns = partition, columns

    def of(self, rule: Predicate) -> Truth:
        """True, false or null."""
        match rule:
            case Constant(value):
                return self._all(value)
            case Not(operand):
                return pc.invert(self.of(operand))
            case And(operands):
                found = self._all(True)
                for operand in operands:
                    found = pc.and_kleene(found, self.of(operand))
                return found
            case Or(operands):
                found = self._all(False)
                for operand in operands:
                    found = pc.or_kleene(found, self.of(operand))
                return found
            case Compare() | IsNull():
                return self._of_column(rule)
            case _:
                return self._all(None)

    def _of_column(self, part: Compare | IsNull) -> Truth:
        column = self._columns.resolve(part.column)
        if column is None or _undecided_column(part, column, self._partition.type) is not None:
            return self._all(None)
        values = pc.struct_field(self._partition, [column.path[0]])
        if isinstance(part, IsNull):
            return pc.is_null(values)
        return _compared(values, part, convert_constant(part.value, column))

    def _all(self, value: bool | None) -> Truth:
        return pa.repeat(pa.scalar(value, pa.bool_()), len(self._partition))


def _compared(values: pa.Array, part: Compare, constant: Any) -> Truth:
    compare = COMPARISONS[part.operator]
    if pa.types.is_integer(values.type):
        return compare(pc.cast(values, pa.int64()), pa.scalar(constant, pa.int64()))
    if not pa.types.is_decimal(values.type):
        return compare(values, pa.scalar(constant, values.type))
    # Of any precision and scale, and few are different.
    encoded = values.dictionary_encode()
    truths = [_PYTHON[part.operator](one, constant) for one in encoded.dictionary.to_pylist()]
    return pc.take(pa.array(truths, pa.bool_()), encoded.indices)


def _whole(value: Value) -> int | None:
    if isinstance(value, str):
        return int(value) if WHOLE.fullmatch(value) else None
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else value
    return value if isinstance(value, int) and not isinstance(value, bool) and value in LONGS else None


def _decimal(value: Value) -> Decimal | None:
    if isinstance(value, str):
        return Decimal(value) if DECIMAL.fullmatch(value) else None
    return Decimal(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else None


def _boolean(value: Value) -> bool | None:
    if isinstance(value, str):
        return BOOLEANS.get(value.lower())
    return value if isinstance(value, bool) else None


def _date(value: Value) -> date | None:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value) if DATE.fullmatch(value) else None
        except ValueError:
            return None
    return value if isinstance(value, date) and not isinstance(value, datetime) else None


# Floats have NaN and two zeros, and times no zone that all writers mean alike: they are not decided by.
_READERS = (
    (pa.types.is_integer, _whole),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_date32, _date),
)
_PYTHON = {
    "=": lambda one, other: one == other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


MAX_CACHED_PARTS = 64
ID = "delta.columnMapping.id"
NO_PARTITION = pa.struct([])


class RestrictedIndex(FileIndex):
    """Some files of an open index, cut out as they are read."""

    def __init__(self, whole: FileIndex, rule: Predicate) -> None:
        self.schema = whole.schema
        self._whole = whole
        columns = columns_of(whole.header.head.schema_string, whole.schema)
        self._masks = [is_within(rule, _partition(batch), columns) for batch in whole.batches()]
        files = size_bytes = rows = 0
        for mask, batch in zip(self._masks, whole.batches(), strict=True):
            files += _sum(mask)
            size_bytes += _sum(batch.column("size").filter(mask))
            rows += _sum(count_live_rows(batch).filter(mask))
        head = without_counts(whole.header.head)
        self.header = replace(whole.header, head=head, rows=rows, files=files, size_bytes=size_bytes)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The files in batches, in the order of their paths."""
        for mask, batch in zip(self._masks, self._whole.batches(), strict=True):
            part = batch.filter(mask)
            self._whole.give_back(batch)
            yield part

    def give_back(self, batch: pa.RecordBatch) -> None:
        """Nothing is mapped for a batch that was cut out."""


def restrict_index(index: FileIndex, rule: Predicate) -> RestrictedIndex:
    """The files of an index of which the rule is true for every row."""
    # 1 and True are equal, but not the same constant: what they are tells them apart.
    return _part_of(index, rule, repr(rule))


def find_undecided_in_index(index: FileIndex, rule: Predicate) -> Undecided | None:
    """The first part of the rule that the partitions of an index do not decide; None when they decide all."""
    if not index.header.files:
        return None
    place = index.schema.get_field_index("partition")
    partition = NO_PARTITION if place < 0 else index.schema.field(place).type
    return find_undecided(rule, partition, columns_of(index.header.head.schema_string, index.schema))


def find_renamed_column(rule: Predicate, head: TableHead, latest: TableHead) -> Undecided | None:
    """The first column of a rule that was another one than at the latest version, by the ids of mapped columns."""
    then, today = _ids(head.schema_string), _ids(latest.schema_string)
    for name in list_columns(rule):
        key = column_text(name).lower()
        if key in then and key in today and then[key] != today[key]:
            return Undecided(column_text(name), "it was the name of another column then")
    return None


def without_counts(head: TableHead) -> TableHead:
    """The head without numbers of files that not everybody may know of."""
    told = (
        replace(hindrance, reason="has deletion vectors")
        if hindrance.feature == "deletionVectors"
        else hindrance
        for hindrance in head.hindrances
    )
    return replace(head, hindrances=tuple(dict.fromkeys(told)))


@lru_cache(MAX_CACHED_PARTS)
def _ids(schema_string: str) -> dict[str, int]:
    fields = parse_schema(schema_string)
    return {field.name.lower(): field.metadata[ID] for field in fields if ID in field.metadata}


@lru_cache(MAX_CACHED_PARTS)
def _part_of(index: FileIndex, rule: Predicate, _as_text: str) -> RestrictedIndex:
    return RestrictedIndex(index, rule)


def _partition(batch: pa.RecordBatch) -> pa.StructArray:
    if "partition" in batch.schema.names:
        return batch.column("partition")
    return pa.nulls(batch.num_rows, NO_PARTITION)


def _sum(values: pa.Array) -> int:
    return int(pc.sum(values, min_count=0).as_py())
