"""Which files can hold a row that a predicate wants: partition values and statistics, a batch at a time.

For every part of the predicate, and every file, three answers: can it never be true, never be false, never be null
for a row of the file. What is missing, cut or not comparable rules nothing out: no file with a match is lost.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.columns import Columns, columns_of
from lakeshare_server.tables.index import HEADER_KEY
from lakeshare_server.tables.known_values import ZERO, Known, KnownValues
from lakeshare_server.tables.literals import Range, constant_range, own_kind
from lakeshare_server.tables.one_of import OneOf, gathered, outside_all
from lakeshare_server.tables.predicate import And, Compare, Constant, IsNull, Not, Or, Predicate
from lakeshare_server.tables.ruled_out import Ruled, all_of, any_of, both, either, never_false, never_true

FALSE = pa.scalar(False)

# One boolean for each file of a batch.
Flags: TypeAlias = pa.BooleanArray
Part: TypeAlias = Predicate | OneOf


class Maybe:
    """What a predicate may come to, for each file of a batch; each answer is worked out when it is asked for."""

    def __init__(self, predicate: Predicate, batch: pa.RecordBatch, columns: Columns) -> None:
        self._predicate, self._count = predicate, batch.num_rows
        self._files = Answers(KnownValues(batch, columns))

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
        return pc.invert(pc.fill_null(ruled_out, FALSE))


def evaluate(predicate: Predicate, batch: pa.RecordBatch) -> Maybe:
    """What the predicate may come to in the files of an index batch."""
    return Maybe(predicate, batch, batch_columns(batch))


def live_rows(batch: pa.RecordBatch) -> pa.Array:
    """Rows that readers see in each file, 0 where that is not known."""
    rows = batch.column("rows")
    if "dv_cardinality" in batch.schema.names:
        rows = pc.max_element_wise(pc.subtract(rows, batch.column("dv_cardinality")), ZERO, skip_nulls=False)
    return pc.fill_null(rows, ZERO)


def batch_columns(batch: pa.RecordBatch) -> Columns:
    """The columns that predicates on an index batch can speak of."""
    header = (batch.schema.metadata or {}).get(HEADER_KEY)
    return columns_of(None if header is None else _schema_string(header), batch.schema)


def _nowhere() -> Ruled:
    return False


@dataclass(frozen=True)
class _Leaf:
    """What is ruled out for a part without parts; only what is asked for is worked out."""

    never_true: Callable[[], Ruled] = _nowhere
    never_false: Callable[[], Ruled] = _nowhere
    never_null: Callable[[], Ruled] = _nowhere


class Answers:
    """What is ruled out in each file of a batch, for a predicate and for each of its parts."""

    def __init__(self, values: KnownValues) -> None:
        self._values = values
        # By identity: 1 and True are equal, but not the same constant.
        self._leaves: dict[int, _Leaf] = {}
        self._options: dict[int, tuple[Part, ...]] = {}

    def never_true(self, part: Part) -> Ruled:
        """Files in which it is true for no row."""
        match part:
            case Not(operand):
                return self.never_false(operand)
            case And(operands):
                return any_of(map(self.never_true, operands))
            case Or():
                return all_of(map(self.never_true, self._options_of(part)))
            case _:
                return self._leaf(part).never_true()

    def never_false(self, part: Part) -> Ruled:
        """Files in which it is false for no row."""
        match part:
            case Not(operand):
                return self.never_true(operand)
            case And(operands):
                return all_of(map(self.never_false, operands))
            case Or():
                return any_of(map(self.never_false, self._options_of(part)))
            case _:
                return self._leaf(part).never_false()

    def never_null(self, part: Part) -> Ruled:
        """Files in which it is null for no row."""
        match part:
            case Not(operand):
                return self.never_null(operand)
            case And(operands):
                return self._never_null(operands, self.never_true)
            case Or():
                return self._never_null(self._options_of(part), self.never_false)
            case _:
                return self._leaf(part).never_null()

    def _never_null(self, operands: Iterable[Part], never_open: Callable[[Part], Ruled]) -> Ruled:
        """Null needs an operand that is null, and none that decides by itself: all others leave it open."""
        parts = [(self.never_null(operand), never_open(operand)) for operand in operands]
        one_decides = any_of(both(null, decides) for null, decides in parts)
        return either(all_of(null for null, _ in parts), one_decides)

    def _options_of(self, part: Or) -> tuple[Part, ...]:
        if id(part) not in self._options:
            self._options[id(part)] = gathered(part.operands)
        return self._options[id(part)]

    def _leaf(self, part: Part) -> _Leaf:
        if id(part) not in self._leaves:
            self._leaves[id(part)] = self._ruled_out(part)
        return self._leaves[id(part)]

    def _ruled_out(self, part: Part) -> _Leaf:
        match part:
            case Constant(value):
                return _Leaf(lambda: not value, lambda: value, lambda: True)
            case IsNull():
                return self._is_null(part)
            case Compare():
                return self._compare(part)
            case OneOf(parts):
                return self._one_of(parts)
            case _:
                return _Leaf()

    def _is_null(self, part: IsNull) -> _Leaf:
        known = self._values.of(part.column)
        if known is None:
            return _Leaf(never_null=lambda: True)
        # Casts that the client folded away, of which it tells the innermost, can make nulls of values, but no values
        # of nulls.
        is_own = part.kind is None or part.kind == own_kind(known.column.type)
        return _Leaf(lambda: known.no_nulls if is_own else False, lambda: known.all_null, lambda: True)

    def _compare(self, part: Compare) -> _Leaf:
        known = self._values.of(part.column)
        if known is None:
            return _Leaf()
        [constant] = _constants([part], known)
        if constant is None:
            return _Leaf(lambda: known.all_null, lambda: known.all_null)
        bounds = part.operator, known.low, known.high, constant
        return _Leaf(
            lambda: either(known.all_null, never_true(*bounds)),
            lambda: either(known.all_null, never_false(*bounds)),
            lambda: known.no_nulls,
        )

    def _one_of(self, parts: tuple[Compare, ...]) -> _Leaf:
        known = self._values.of(parts[0].column)
        if known is None:
            return _Leaf()
        found = _constants(parts, known)
        constants = [constant for constant in found if constant is not None]
        if len(constants) < len(parts):
            return _Leaf(lambda: known.all_null, lambda: known.all_null)
        outside = outside_all(known.low, known.high, constants)
        is_inside: Ruled = False
        if known.is_exact and not isinstance(outside, bool) and all(one.is_point for one in constants):
            is_inside = pc.invert(outside)
        return _Leaf(
            lambda: either(known.all_null, outside),
            lambda: either(known.all_null, is_inside),
            lambda: known.no_nulls,
        )


def _constants(parts: Sequence[Compare], known: Known) -> list[Range | None]:
    kept_as = known.bounds_type
    if kept_as is None:
        return [None] * len(parts)
    return [constant_range(part, known.column, kept_as, exact=known.is_exact) for part in parts]


@lru_cache(64)
def _schema_string(header: bytes) -> str | None:
    head = json.loads(header).get("head") or {}
    schema_string = head.get("schema_string")
    return schema_string if isinstance(schema_string, str) else None
