"""Files in which a rule is true for every row: the files that a restricted grant may give out.

Pruning keeps files that may contain a matching row; a restriction keeps files that contain no other. Only partition
values count, because they apply to all rows of a file, and only in the column's own type: clients compare differently.
"""

import operator
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache, reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.lines import total
from lakeshare_server.tables.predicates import (
    And,
    Column,
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
    date_of,
    format_column,
    json_kind,
    list_leaves,
)
from lakeshare_server.tables.pruning import count_live_rows
from lakeshare_server.tables.snapshot import TableHead, parse_schema

WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
DECIMAL = re.compile(r"[+-]?[0-9]{1,38}(\.[0-9]{1,38})?")
LONGS = range(-(1 << 63), 1 << 63)
# For Arrow's values and for Python's.
COMPARISONS = {
    "=": (pc.equal, operator.eq),
    "<": (pc.less, operator.lt),
    "<=": (pc.less_equal, operator.le),
    ">": (pc.greater, operator.gt),
    ">=": (pc.greater_equal, operator.ge),
}
# True, false or null for each file.
Truth: TypeAlias = pa.BooleanArray


@dataclass(frozen=True)
class Undecided:
    """A part of a rule that partition values do not decide."""

    column: str
    reason: str


def is_within(rule: Predicate, partition: pa.StructArray, columns: Columns) -> pa.BooleanArray:
    """For each file with these partition values, whether the rule is true for all of its rows.

    Parts that are not understood, name no partition column or are null are not true.
    """
    return pc.fill_null(_truth(rule, partition, columns), False)


def _truth(rule: Predicate, partition: pa.StructArray, columns: Columns) -> Truth:
    def constant(value: bool | None) -> Truth:
        return pa.repeat(pa.scalar(value, pa.bool_()), len(partition))

    match rule:
        case Constant(value):
            return constant(value)
        case Not(operand):
            return pc.invert(_truth(operand, partition, columns))
        case And(operands):
            truths = (_truth(operand, partition, columns) for operand in operands)
            return reduce(pc.and_kleene, truths, constant(True))
        case Or(operands):
            truths = (_truth(operand, partition, columns) for operand in operands)
            return reduce(pc.or_kleene, truths, constant(False))
        case Compare() | IsNull():
            column = columns.resolve(rule.column)
            if column is None or _why_undecided(rule, column, partition.type) is not None:
                return constant(None)
            values = pc.struct_field(partition, [column.path[0]])
            if isinstance(rule, IsNull):
                return pc.is_null(values)
            return _compare(values, rule, _convert_constant(rule.value, column))
        case _:
            return constant(None)


def _compare(values: pa.Array, part: Compare, constant: Any) -> Truth:
    compare, compare_in_python = COMPARISONS[part.operator]
    if pa.types.is_integer(values.type):
        return compare(pc.cast(values, pa.int64()), pa.scalar(constant, pa.int64()))
    if not pa.types.is_decimal(values.type):
        return compare(values, pa.scalar(constant, values.type))
    # The constant can have any precision and scale; few values are distinct.
    encoded = values.dictionary_encode()
    truths = [compare_in_python(value, constant) for value in encoded.dictionary.to_pylist()]
    return pc.take(pa.array(truths, pa.bool_()), encoded.indices)


def find_undecided(rule: Predicate, partition: pa.DataType, columns: Columns) -> Undecided | None:
    """The first part of the rule that a partition of these columns does not decide; None if it decides all."""
    for part in list_leaves(rule):
        if isinstance(part, Unknown):
            return Undecided(part.text, "it is not understood")
        if isinstance(part, Compare | IsNull):
            reason = _why_undecided(part, columns.resolve(part.column), partition)
            if reason is not None:
                return Undecided(format_column(part.column), reason)
    return None


def _why_undecided(part: Compare | IsNull, column: Column | None, partition: pa.DataType) -> str | None:
    if column is None:
        return "the table has no such column"
    if len(column.path) != 1 or partition.get_field_index(column.path[0]) < 0:
        return "not every file has one value of it that its partition states"
    if part.kind not in (None, json_kind(column.type)):
        return f"its type, {column.type}, is not {part.kind}"
    if isinstance(part, Compare) and _convert_constant(part.value, column) is None:
        return f"{part.value!r} is no value of its type, {column.type}, or such values are not compared"
    return None


def _convert_constant(value: Value, column: Column) -> Any:
    """The constant in the column's own type, parsed if it is a text; None if it has no value of that type."""
    kind = column.type
    if pa.types.is_string(kind):
        return value if isinstance(value, str) and column.is_binary else None
    read = next((read for is_kind, read in _READERS if is_kind(kind)), None)
    return None if read is None else read(value)


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
        return {"true": True, "false": False}.get(value.lower())
    return value if isinstance(value, bool) else None


# Not floats, which have NaN and two zeros, nor times, whose zone depends on the writer.
_READERS = (
    (pa.types.is_integer, _whole),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_date32, date_of),
)

MAX_CACHED_PARTS = 64
ID = "delta.columnMapping.id"
NO_PARTITION = pa.struct([])


class RestrictedIndex(FileIndex):
    """The files of an open index for which a rule is true."""

    def __init__(self, whole: FileIndex, rule: Predicate) -> None:
        self.schema = whole.schema
        self._whole = whole
        columns = columns_of(whole.header.head.schema_string, whole.schema)
        self._masks = [is_within(rule, _partition(batch), columns) for batch in whole.batches()]
        files = size_bytes = rows = 0
        for mask, batch in zip(self._masks, whole.batches(), strict=True):
            files += total(mask)
            size_bytes += total(batch.column("size").filter(mask))
            rows += total(count_live_rows(batch).filter(mask))
        head = without_counts(whole.header.head)
        self.header = replace(whole.header, head=head, rows=rows, files=files, size_bytes=size_bytes)

    def batches(self, columns: Collection[str] | None = None) -> Iterator[pa.RecordBatch]:
        for mask, batch in zip(self._masks, self._whole.batches(columns), strict=True):
            part = batch.filter(mask)
            self._whole.give_back(batch)
            yield part

    def give_back(self, batch: pa.RecordBatch, *, is_read: bool = True) -> None:
        """Does nothing: a filtered batch is not mapped."""


def _partition(batch: pa.RecordBatch) -> pa.StructArray:
    if "partition" in batch.schema.names:
        return batch.column("partition")
    return pa.nulls(batch.num_rows, NO_PARTITION)


def restrict_index(index: FileIndex, rule: Predicate) -> RestrictedIndex:
    # `repr` distinguishes the constants 1 and True, which are equal.
    return _restrict(index, rule, repr(rule))


@lru_cache(MAX_CACHED_PARTS)
def _restrict(index: FileIndex, rule: Predicate, _as_text: str) -> RestrictedIndex:
    return RestrictedIndex(index, rule)


def find_undecided_in_index(index: FileIndex, rule: Predicate) -> Undecided | None:
    """The first part of the rule that the partitions of an index do not decide; None if they decide all."""
    if not index.header.files:
        return None
    position = index.schema.get_field_index("partition")
    partition = NO_PARTITION if position < 0 else index.schema.field(position).type
    return find_undecided(rule, partition, columns_of(index.header.head.schema_string, index.schema))


def find_renamed_column(rule: Predicate, head: TableHead, latest: TableHead) -> Undecided | None:
    """The first column of a rule that was another column than at the latest version, by ids of mapped columns."""
    then, today = _ids(head.schema_string), _ids(latest.schema_string)
    names = (part.column for part in list_leaves(rule) if isinstance(part, Compare | IsNull))
    for name in map(format_column, names):
        key = name.lower()
        if key in then and key in today and then[key] != today[key]:
            return Undecided(name, "it was the name of another column then")
    return None


@lru_cache(MAX_CACHED_PARTS)
def _ids(schema_string: str) -> dict[str, int]:
    fields = parse_schema(schema_string)
    return {field.name.lower(): field.metadata[ID] for field in fields if ID in field.metadata}


def without_counts(head: TableHead) -> TableHead:
    """The head without numbers of files that the recipient may not see."""
    name, reason = "deletionVectors", "has deletion vectors"
    hindrances = (replace(one, reason=reason) if one.feature == name else one for one in head.hindrances)
    return replace(head, hindrances=tuple(dict.fromkeys(hindrances)))
