"""A column compared with many constants at once: one look at each file instead of one for each constant."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.literals import Range
from lakeshare_server.tables.predicate import Compare, Predicate
from lakeshare_server.tables.ruled_out import Bounds, Ruled

# For fewer, comparing whole columns is quicker.
MANY = 16


@dataclass(frozen=True)
class OneOf:
    """Whether a column is equal to one of many constants, all of one kind."""

    parts: tuple[Compare, ...]


def gathered(operands: Sequence[Predicate]) -> tuple[Predicate | OneOf, ...]:
    """The operands of an Or, those together that ask whether one column is equal to one of many constants."""
    if len(operands) < MANY:
        return tuple(operands)
    lists: dict[object, list[Compare]] = defaultdict(list)
    found: list[Predicate | OneOf] = []
    for operand in operands:
        if isinstance(operand, Compare) and operand.operator == "=":
            lists[operand.column, operand.kind].append(operand)
        else:
            found.append(operand)
    for parts in lists.values():
        found += [OneOf(tuple(parts))] if len(parts) >= MANY else parts
    return tuple(found)


def outside_all(low: Bounds, high: Bounds, ranges: Iterable[Range]) -> Ruled:
    """Files whose values lie outside of all ranges."""
    spans = [(_comparable(one.low), _comparable(one.high)) for one in ranges]
    if any(start is None or end is None for start, end in spans):
        return False
    starts, ends = _joined(spans)
    count = max(len(bounds) for bounds in (low, high) if bounds is not None)
    flags = [
        _is_outside(least, most, starts, ends)
        for least, most in zip(_values(low, count), _values(high, count), strict=True)
    ]
    return pa.array(flags, pa.bool_())


def _joined(spans: list[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    """The spans in order, those that overlap as one."""
    starts: list[Any] = []
    ends: list[Any] = []
    for start, end in sorted(spans):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends


def _is_outside(least: Any, most: Any, starts: Sequence[Any], ends: Sequence[Any]) -> bool | None:
    place = 0 if least is None else bisect_left(ends, least)
    if place == len(ends):
        return True
    return None if most is None else bool(most < starts[place])


def _comparable(constant: pa.Scalar | None) -> Any:
    if constant is None:
        return None
    return constant.value if pa.types.is_temporal(constant.type) else constant.as_py()


def _values(bounds: Bounds, count: int) -> list[Any]:
    if bounds is None:
        return [None] * count
    if pa.types.is_date32(bounds.type):
        bounds = bounds.cast(pa.int32())
    elif pa.types.is_timestamp(bounds.type):
        bounds = bounds.cast(pa.int64())
    elif pa.types.is_floating(bounds.type):
        bounds = pc.if_else(pc.is_nan(bounds), None, bounds)  # NaN is no bound
    values: list[Any] = bounds.to_pylist()
    return values
