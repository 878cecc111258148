"""Which files can hold a row that a predicate wants: partition values and statistics, a batch at a time.

For every part of the predicate, and every file, three answers: can it never be true, never be false, never be null
for a row of the file. What is missing, cut or not comparable rules nothing out: no file with a match is lost.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.columns import Column, Columns, Path, columns_of
from lakeshare_server.tables.index import HEADER_KEY
from lakeshare_server.tables.literals import Range, constant_range, own_kind
from lakeshare_server.tables.predicate import (
    And,
    Compare,
    Comparison,
    Constant,
    IsNull,
    Not,
    Or,
    Predicate,
)

# One boolean for each file of a batch.
Flags: TypeAlias = pa.BooleanArray
# What is ruled out: for all files or none of them, or file by file, where null says that nothing is known.
Ruled: TypeAlias = bool | pa.BooleanArray


class Maybe:
    """What a predicate may come to, for each file of a batch; each answer is worked out when it is asked for."""

    def __init__(self, predicate: Predicate, batch: pa.RecordBatch, columns: Columns) -> None:
        self._predicate, self._files, self._count = predicate, _Files(batch, columns), batch.num_rows

    @cached_property
    def true(self) -> Flags:
        """Files in which it may be true for a row."""
        return self._other_than(self._files.never_true(self._predicate))

    @cached_property
    def false(self) -> Flags:
        """Files in which it may be false for a row."""
        return self._other_than(self._files.never_false(self._predicate))

    @cached_property
    def null(self) -> Flags:
        """Files in which it may be null for a row."""
        return self._other_than(self._files.never_null(self._predicate))

    @cached_property
    def surely_all(self) -> Flags:
        """Files of which every row is wanted."""
        return pc.invert(pc.or_(self.false, self.null))

    def _other_than(self, ruled_out: Ruled) -> Flags:
        if isinstance(ruled_out, bool):
            return pa.repeat(pa.scalar(not ruled_out), self._count)
        return pc.invert(pc.fill_null(ruled_out, False))


def evaluate(predicate: Predicate, batch: pa.RecordBatch) -> Maybe:
    """What the predicate may come to in the files of an index batch."""
    return Maybe(predicate, batch, batch_columns(batch))


def batch_columns(batch: pa.RecordBatch) -> Columns:
    """The columns that predicates on an index batch can speak of."""
    metadata = batch.schema.metadata or {}
    header = metadata.get(HEADER_KEY)
    return columns_of(None if header is None else _schema_string(header), batch.schema)


@dataclass(frozen=True)
class _Leaf:
    """What is ruled out for a part without parts."""

    never_true: Ruled = False
    never_false: Ruled = False
    never_null: Ruled = False


class _Files:
    def __init__(self, batch: pa.RecordBatch, columns: Columns) -> None:
        self.batch, self.columns = batch, columns
        # By identity: 1 and True are equal, but not the same constant.
        self._leaves: dict[int, _Leaf] = {}

    def never_true(self, predicate: Predicate) -> Ruled:
        match predicate:
            case Not(operand):
                return self.never_false(operand)
            case And(operands):
                return _any_of(self.never_true(operand) for operand in operands)
            case Or(operands):
                return _all_of(self.never_true(operand) for operand in operands)
            case _:
                return self._leaf(predicate).never_true

    def never_false(self, predicate: Predicate) -> Ruled:
        match predicate:
            case Not(operand):
                return self.never_true(operand)
            case And(operands):
                return _all_of(self.never_false(operand) for operand in operands)
            case Or(operands):
                return _any_of(self.never_false(operand) for operand in operands)
            case _:
                return self._leaf(predicate).never_false

    def never_null(self, predicate: Predicate) -> Ruled:
        match predicate:
            case Not(operand):
                return self.never_null(operand)
            case And(operands):
                return self._never_null(operands, self.never_true)
            case Or(operands):
                return self._never_null(operands, self.never_false)
            case _:
                return self._leaf(predicate).never_null

    def _never_null(self, operands: Iterable[Predicate], never_open: Callable[[Predicate], Ruled]) -> Ruled:
        """Null needs an operand that is null, and no operand that alone decides: all are null or leave it open."""
        parts = [(self.never_null(operand), never_open(operand)) for operand in operands]
        none_null = _all_of(null for null, _ in parts)
        one_decides = _any_of(_both(null, decides) for null, decides in parts)
        return _either(none_null, one_decides)

    def _leaf(self, predicate: Predicate) -> _Leaf:
        if id(predicate) not in self._leaves:
            self._leaves[id(predicate)] = self._ruled_out(predicate)
        return self._leaves[id(predicate)]

    def _ruled_out(self, predicate: Predicate) -> _Leaf:
        match predicate:
            case Constant(value):
                return _Leaf(never_true=not value, never_false=value, never_null=True)
            case IsNull():
                return self._is_null(predicate)
            case Compare():
                return self._compare(predicate)
            case _:
                return _Leaf()

    def _is_null(self, part: IsNull) -> _Leaf:
        column = self.columns.resolve(part.column)
        if column is None:
            return _Leaf(never_null=True)
        no_nulls, all_null = self._nulls(column.path)
        # Casts that the client folded away, of which it tells the innermost, can make nulls of values, never values
        # of nulls.
        is_own = part.kind is None or part.kind == own_kind(column.type)
        return _Leaf(never_true=no_nulls if is_own else False, never_false=all_null, never_null=True)

    def _compare(self, part: Compare) -> _Leaf:
        column = self.columns.resolve(part.column)
        if column is None:
            return _Leaf()
        no_nulls, all_null = self._nulls(column.path)
        low, high, is_exact = self._bounds(column)
        known = low if low is not None else high
        constant = None if known is None else constant_range(part, column, known.type, exact=is_exact)
        if constant is None:
            return _Leaf(all_null, all_null, False)
        never_true, never_false = _COMPARISONS[part.operator](low, high, constant)
        if constant.hides_nan:
            # Spark takes NaN for greater than all numbers, others say no to every comparison with it; statistics
            # leave it out. So bounds say nothing of what is greater, and never that all rows pass.
            never_true = False if part.operator in (">", ">=") else never_true
            never_false = False
        return _Leaf(_either(all_null, never_true), _either(all_null, never_false), no_nulls)

    def _nulls(self, path: Path) -> tuple[Ruled, Ruled]:
        """Files without a null in the column, and files with nothing else."""
        values = self._values("partition", path)
        if values is not None:
            return pc.is_valid(values), pc.is_null(values)
        counts = self._values("null_count", path)
        if counts is None or not pa.types.is_integer(counts.type):
            return False, False
        return pc.equal(counts, 0), pc.equal(counts, self.batch.column("rows"))

    def _bounds(self, column: Column) -> tuple[pa.Array | None, pa.Array | None, bool]:
        """Lower and upper bounds, and whether they are the values themselves."""
        values = self._values("partition", column.path)
        if values is not None:
            return values, values, True
        low, high = self._values("min", column.path), self._values("max", column.path)
        if low is not None and high is not None and low.type != high.type:
            return None, None, False
        if pa.types.is_float32(column.type):
            # A bound is written as the shortest text that is this float; read as a double it is another number.
            low, high = _as_floats(low), _as_floats(high)
        return low, high, False

    def _values(self, struct: str, path: Path) -> pa.Array | None:
        place = self.batch.schema.get_field_index(struct)
        if place < 0:
            return None
        kind, places = self.batch.schema.field(place).type, []
        for name in path:
            inside = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
            if inside < 0:
                return None
            places.append(inside)
            kind = kind.field(inside).type
        return None if pa.types.is_struct(kind) else pc.struct_field(self.batch.column(place), places)


def _as_floats(values: pa.Array | None) -> pa.Array | None:
    return values if values is None or not pa.types.is_float64(values.type) else values.cast(pa.float32())


def _less(low: pa.Array | None, high: pa.Array | None, constant: Range) -> tuple[Ruled, Ruled]:
    return _test(pc.greater_equal, low, constant.high), _test(pc.less, high, constant.low)


def _less_equal(low: pa.Array | None, high: pa.Array | None, constant: Range) -> tuple[Ruled, Ruled]:
    return _test(pc.greater, low, constant.high), _test(pc.less_equal, high, constant.low)


def _greater(low: pa.Array | None, high: pa.Array | None, constant: Range) -> tuple[Ruled, Ruled]:
    return _less_equal(low, high, constant)[::-1]


def _greater_equal(low: pa.Array | None, high: pa.Array | None, constant: Range) -> tuple[Ruled, Ruled]:
    return _less(low, high, constant)[::-1]


def _equal(low: pa.Array | None, high: pa.Array | None, constant: Range) -> tuple[Ruled, Ruled]:
    elsewhere = _either(_test(pc.greater, low, constant.high), _test(pc.less, high, constant.low))
    if not constant.is_point:
        return elsewhere, False
    return elsewhere, _both(_test(pc.equal, low, constant.low), _test(pc.equal, high, constant.high))


_COMPARISONS: dict[Comparison, Callable[[pa.Array | None, pa.Array | None, Range], tuple[Ruled, Ruled]]] = {
    "=": _equal,
    "<": _less,
    "<=": _less_equal,
    ">": _greater,
    ">=": _greater_equal,
}


def _test(
    test: Callable[[pa.Array, pa.Scalar], pa.Array], bound: pa.Array | None, constant: pa.Scalar | None
) -> Ruled:
    """Files whose bound passes. NaN passes nothing and a missing bound gives null: neither rules anything out."""
    return False if bound is None or constant is None else test(bound, constant)


def _both(one: Ruled, other: Ruled) -> Ruled:
    if one is False or other is False:
        return False
    if isinstance(one, bool):
        return other
    return one if isinstance(other, bool) else pc.and_kleene(one, other)


def _either(one: Ruled, other: Ruled) -> Ruled:
    if one is True or other is True:
        return True
    if isinstance(one, bool):
        return other
    return one if isinstance(other, bool) else pc.or_kleene(one, other)


def _all_of(parts: Iterable[Ruled]) -> Ruled:
    found: Ruled = True
    for part in parts:
        found = _both(found, part)
        if found is False:
            break
    return found


def _any_of(parts: Iterable[Ruled]) -> Ruled:
    found: Ruled = False
    for part in parts:
        found = _either(found, part)
        if found is True:
            break
    return found


@lru_cache(64)
def _schema_string(header: bytes) -> str | None:
    head = json.loads(header).get("head") or {}
    schema_string = head.get("schema_string")
    return schema_string if isinstance(schema_string, str) else None
