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


def never_true(operator: Comparison, low: Bounds, high: Bounds, constant: Range) -> Ruled:
    """Where the comparison is true for none of the values between these bounds."""
    # Spark takes NaN for greater than all numbers, others say no to every comparison with it, and statistics leave
    # it out: bounds say nothing of what is greater.
    if constant.hides_nan and operator in (">", ">="):
        return False
    return _NEVER[operator](low, high, constant)


def never_false(operator: Comparison, low: Bounds, high: Bounds, constant: Range) -> Ruled:
    """Where the comparison is false for none of the values between these bounds."""
    if constant.hides_nan:
        return False
    if operator != "=":
        return _NEVER[_OPPOSITE[operator]](low, high, constant)
    if not constant.is_point:
        return False
    return both(_test(pc.equal, low, constant.low), _test(pc.equal, high, constant.high))


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


def _test(
    test: Callable[[pa.Array, pa.Scalar], pa.Array], bound: Bounds, constant: pa.Scalar | None
) -> Ruled:
    """Files whose bound passes. NaN passes nothing and a missing bound gives null: neither rules anything out."""
    return False if bound is None or constant is None else test(bound, constant)


def _never_equal(low: Bounds, high: Bounds, constant: Range) -> Ruled:
    return either(_test(pc.greater, low, constant.high), _test(pc.less, high, constant.low))


_NEVER: dict[Comparison, Callable[[Bounds, Bounds, Range], Ruled]] = {
    "=": _never_equal,
    "<": lambda low, high, constant: _test(pc.greater_equal, low, constant.high),
    "<=": lambda low, high, constant: _test(pc.greater, low, constant.high),
    ">": lambda low, high, constant: _test(pc.less_equal, high, constant.low),
    ">=": lambda low, high, constant: _test(pc.less, high, constant.low),
}
_OPPOSITE: dict[Comparison, Comparison] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
