"""What bounds rule out, file by file: comparisons with a constant, and how what is ruled out adds up."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.literals import Range
from lakeshare_server.tables.predicate import Comparison

# For all files or none of them, or file by file, where null says that nothing is known.
Ruled: TypeAlias = bool | pa.BooleanArray
Bounds: TypeAlias = pa.Array | None


def comparison(operator: Comparison, low: Bounds, high: Bounds, constant: Range) -> tuple[Ruled, Ruled]:
    """Where it is never true, and where it is never false, of values between these bounds."""
    never_true, never_false = _COMPARISONS[operator](low, high, constant)
    if not constant.hides_nan:
        return never_true, never_false
    # Spark takes NaN for greater than all numbers, others say no to every comparison with it; statistics leave it
    # out. So bounds say nothing of what is greater, and never that all rows pass.
    return (False if operator in (">", ">=") else never_true), False


def both(one: Ruled, other: Ruled) -> Ruled:
    """Ruled out by both."""
    if one is False or other is False:
        return False
    if isinstance(one, bool):
        return other
    return one if isinstance(other, bool) else pc.and_kleene(one, other)


def either(one: Ruled, other: Ruled) -> Ruled:
    """Ruled out by one of them."""
    if one is True or other is True:
        return True
    if isinstance(one, bool):
        return other
    return one if isinstance(other, bool) else pc.or_kleene(one, other)


def all_of(parts: Iterable[Ruled]) -> Ruled:
    """Ruled out by every part."""
    found: Ruled = True
    for part in parts:
        found = both(found, part)
        if found is False:
            break
    return found


def any_of(parts: Iterable[Ruled]) -> Ruled:
    """Ruled out by some part."""
    found: Ruled = False
    for part in parts:
        found = either(found, part)
        if found is True:
            break
    return found


def _less(low: Bounds, high: Bounds, constant: Range) -> tuple[Ruled, Ruled]:
    return _test(pc.greater_equal, low, constant.high), _test(pc.less, high, constant.low)


def _less_equal(low: Bounds, high: Bounds, constant: Range) -> tuple[Ruled, Ruled]:
    return _test(pc.greater, low, constant.high), _test(pc.less_equal, high, constant.low)


def _greater(low: Bounds, high: Bounds, constant: Range) -> tuple[Ruled, Ruled]:
    return _less_equal(low, high, constant)[::-1]


def _greater_equal(low: Bounds, high: Bounds, constant: Range) -> tuple[Ruled, Ruled]:
    return _less(low, high, constant)[::-1]


def _equal(low: Bounds, high: Bounds, constant: Range) -> tuple[Ruled, Ruled]:
    elsewhere = either(_test(pc.greater, low, constant.high), _test(pc.less, high, constant.low))
    if not constant.is_point:
        return elsewhere, False
    return elsewhere, both(_test(pc.equal, low, constant.low), _test(pc.equal, high, constant.high))


_COMPARISONS: dict[Comparison, Callable[[Bounds, Bounds, Range], tuple[Ruled, Ruled]]] = {
    "=": _equal,
    "<": _less,
    "<=": _less_equal,
    ">": _greater,
    ">=": _greater_equal,
}


def _test(
    test: Callable[[pa.Array, pa.Scalar], pa.Array], bound: Bounds, constant: pa.Scalar | None
) -> Ruled:
    """Files whose bound passes. NaN passes nothing and a missing bound gives null: neither rules anything out."""
    return False if bound is None or constant is None else test(bound, constant)
