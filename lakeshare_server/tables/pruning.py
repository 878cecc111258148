"""Which files can hold a row that a predicate wants: partition values and statistics, a batch at a time.

For every part of the predicate, and every file, three answers: may it be true, may it be false, may it be null
for some row. What is missing, truncated or not comparable makes an answer "may be": no file with a match is lost.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.literals import column_value, is_lossless
from lakeshare_server.tables.predicate import And, Compare, Constant, IsNull, Not, Or, Predicate, Unknown

# One boolean for each file of a batch.
Flags: TypeAlias = pa.BooleanArray
# Statistics in Delta logs cut timestamps to milliseconds, towards 1970 from both sides.
TIMESTAMP_SLACK_US = 1000
FAR_US = 1 << 62  # bounds this far off are not moved by the slack: they count as unknown


@dataclass(frozen=True)
class Maybe:
    """What a predicate may come to, for each file of a batch."""

    true: Flags
    false: Flags
    null: Flags

    @property
    def surely_all(self) -> Flags:
        """Files of which every row is wanted."""
        return pc.invert(pc.or_(self.false, self.null))


def evaluate(predicate: Predicate, batch: pa.RecordBatch) -> Maybe:
    """What the predicate may come to in the files of an index batch."""
    return _Evaluation(batch).of(predicate)


@dataclass(frozen=True)
class _Column:
    name: str
    type: pa.DataType
    is_partition: bool

    @property
    def is_read_by_clients(self) -> bool:
        """Whether a client makes its own value of the text on the wire: it has no zone, so each takes its own."""
        return self.is_partition and pa.types.is_timestamp(self.type)


@dataclass(frozen=True)
class _Bounds:
    """Values between which all of a column's are; None, or null for a file, where that is not known."""

    low: pa.Array | None
    high: pa.Array | None


class _Evaluation:
    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.columns = _columns(batch.schema)

    def of(self, predicate: Predicate) -> Maybe:
        match predicate:
            case Unknown():
                return Maybe(self._every(True), self._every(True), self._every(True))
            case Constant(value):
                return Maybe(self._every(value), self._every(not value), self._every(False))
            case Not(operand):
                inner = self.of(operand)
                return Maybe(true=inner.false, false=inner.true, null=inner.null)
            case And(operands):
                return _and([self.of(operand) for operand in operands])
            case Or(operands):
                return _or([self.of(operand) for operand in operands])
            case IsNull():
                return self._is_null(predicate)
            case Compare():
                return self._compare(predicate)

    def _is_null(self, part: IsNull) -> Maybe:
        column = self.columns.get(part.column.lower())
        may_be_null, may_be_set = self._nullness(column)
        if column is not None and not is_lossless(part.kind, column.type):
            # A cast the client folded away can make nulls of values, but no values of nulls.
            may_be_null = self._every(True)
        return Maybe(true=may_be_null, false=may_be_set, null=self._every(False))

    def _every(self, value: bool) -> Flags:
        return pa.repeat(pa.scalar(value), self.batch.num_rows)

    def _nullness(self, column: _Column | None) -> tuple[Flags, Flags]:
        """Whether a file may hold nulls in the column, and whether it may hold anything else."""
        if column is None:
            return self._every(True), self._every(True)
        if column.is_partition:
            is_null = pc.is_null(self._values("partition", column.name))
            return is_null, pc.invert(is_null)
        counts = self._values("null_count", column.name)
        if counts is None or not pa.types.is_integer(counts.type):
            return self._every(True), self._every(True)
        return _known(pc.not_equal(counts, 0)), _known(pc.not_equal(counts, self.batch.column("rows")))

    def _compare(self, part: Compare) -> Maybe:
        column = self.columns.get(part.column.lower())
        may_be_null, may_be_set = self._nullness(column)
        value = None if column is None else column_value(part, column.type)
        if column is None or value is None or column.is_read_by_clients:
            return Maybe(may_be_set, may_be_set, self._every(True))
        may_be_true, may_be_false = _COMPARISONS[part.operator](self._bounds(column), value)
        return Maybe(_both(may_be_set, may_be_true), _both(may_be_set, may_be_false), may_be_null)

    def _bounds(self, column: _Column) -> _Bounds:
        if column.is_partition:
            exact = self._values("partition", column.name)
            return _Bounds(exact, exact)
        low, high = self._values("min", column.name), self._values("max", column.name)
        if pa.types.is_timestamp(column.type):
            return _Bounds(_moved(low, -TIMESTAMP_SLACK_US), _moved(high, TIMESTAMP_SLACK_US))
        return _Bounds(low, high)

    def _values(self, struct: str, name: str) -> pa.Array | None:
        place = self.batch.schema.get_field_index(struct)
        if place < 0 or self.batch.schema.field(place).type.get_field_index(name) < 0:
            return None
        return pc.struct_field(self.batch.column(place), [name])


def _columns(schema: pa.Schema) -> Mapping[str, _Column]:
    """Columns by lower-case name; a partition value says more than statistics."""
    columns: dict[str, _Column] = {}
    for struct in ("null_count", "min", "partition"):
        place = schema.get_field_index(struct)
        for field in schema.field(place).type if place >= 0 else ():
            columns[field.name.lower()] = _Column(field.name, field.type, struct == "partition")
    return columns


def _and(parts: list[Maybe]) -> Maybe:
    # Null needs a part that is null and none that is false: each part is true or null in that row.
    some_null = _any_of(part.null for part in parts)
    none_false = _all_of(pc.or_(part.true, part.null) for part in parts)
    return Maybe(
        true=_all_of(part.true for part in parts),
        false=_any_of(part.false for part in parts),
        null=_both(some_null, none_false),
    )


def _or(parts: list[Maybe]) -> Maybe:
    some_null = _any_of(part.null for part in parts)
    none_true = _all_of(pc.or_(part.false, part.null) for part in parts)
    return Maybe(
        true=_any_of(part.true for part in parts),
        false=_all_of(part.false for part in parts),
        null=_both(some_null, none_true),
    )


def _less(bounds: _Bounds, value: pa.Scalar) -> tuple[Flags | None, Flags | None]:
    return _test(pc.less, bounds.low, value), _test(pc.greater_equal, bounds.high, value)


def _less_equal(bounds: _Bounds, value: pa.Scalar) -> tuple[Flags | None, Flags | None]:
    return _test(pc.less_equal, bounds.low, value), _test(pc.greater, bounds.high, value)


def _greater(bounds: _Bounds, value: pa.Scalar) -> tuple[Flags | None, Flags | None]:
    may_be_true, may_be_false = _less_equal(bounds, value)
    return may_be_false, may_be_true


def _greater_equal(bounds: _Bounds, value: pa.Scalar) -> tuple[Flags | None, Flags | None]:
    may_be_true, may_be_false = _less(bounds, value)
    return may_be_false, may_be_true


def _equal(bounds: _Bounds, value: pa.Scalar) -> tuple[Flags | None, Flags | None]:
    above, below = _test(pc.less_equal, bounds.low, value), _test(pc.greater_equal, bounds.high, value)
    other_low, other_high = _test(pc.not_equal, bounds.low, value), _test(pc.not_equal, bounds.high, value)
    may_be_false = None if other_low is None or other_high is None else pc.or_(other_low, other_high)
    return above if below is None else _both(below, above), may_be_false


_COMPARISONS: Mapping[str, Callable[[_Bounds, pa.Scalar], tuple[Flags | None, Flags | None]]] = {
    "=": _equal,
    "<": _less,
    "<=": _less_equal,
    ">": _greater,
    ">=": _greater_equal,
}


def _test(
    test: Callable[[pa.Array, pa.Scalar], pa.Array], bound: pa.Array | None, value: pa.Scalar
) -> Flags | None:
    """Whether the bound passes the test; None when no file has the bound, true for those that lack it."""
    return None if bound is None else _known(test(bound, value))


def _known(flags: pa.Array) -> Flags:
    return pc.fill_null(flags, True)


def _both(one: Flags, other: Flags | None) -> Flags:
    return one if other is None else pc.and_(one, other)


def _all_of(flags: Iterable[Flags]) -> Flags:
    return reduce(pc.and_, flags)


def _any_of(flags: Iterable[Flags]) -> Flags:
    return reduce(pc.or_, flags)


def _moved(bound: pa.Array | None, by_us: int) -> pa.Array | None:
    if bound is None:
        return None
    since = pc.cast(bound, pa.int64())
    near = pc.and_(pc.less(since, FAR_US), pc.greater(since, -FAR_US))
    return pc.cast(pc.if_else(near, pc.add(since, by_us), None), bound.type)
