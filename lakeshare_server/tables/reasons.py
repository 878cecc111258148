"""Why a part of a predicate rules a file out, or can rule out none, in a few words."""

import pyarrow as pa

from lakeshare_server.tables.known_values import Known, KnownValues
from lakeshare_server.tables.literals import constant_range
from lakeshare_server.tables.predicate import And, Compare, Constant, IsNull, Not, Or, Predicate, Unknown
from lakeshare_server.tables.predicate_text import name_of, value_text
from lakeshare_server.tables.pruning import Answers, batch_columns
from lakeshare_server.tables.ruled_out import Bounds, Ruled

# Of a list of alternatives, so many are told.
TOLD = 3
# For a comparison that is never true: the bound that shows it, and how it lies to the constant.
NEVER_TRUE = {"<": ("min", ">="), "<=": ("min", ">"), ">": ("max", "<="), ">=": ("max", "<")}
NEVER_FALSE = {"<": ("max", "<"), "<=": ("max", "<="), ">": ("min", ">"), ">=": ("min", ">=")}


class Reasons:
    """What is known of one file, as reasons."""

    def __init__(self, file: pa.RecordBatch) -> None:
        self._values = KnownValues(file, batch_columns(file))
        self._answers = Answers(self._values)

    def why_never_true(self, part: Predicate) -> str:
        """Why the part, which rules the file out, is true for none of its rows."""
        match part:
            case Not(operand):
                return self._why_never_false(operand)
            case And(operands):
                decides = [one for one in operands if _is_true(self._answers.never_true(one))]
                return self.why_never_true(decides[0])
            case Or(operands):
                return _together([self.why_never_true(operand) for operand in operands])
            case _:
                return self._leaf(part, never_true=True)

    def _why_never_false(self, part: Predicate) -> str:
        match part:
            case Not(operand):
                return self.why_never_true(operand)
            case And(operands):
                return _together([self._why_never_false(operand) for operand in operands])
            case Or(operands):
                decides = [one for one in operands if _is_true(self._answers.never_false(one))]
                return self._why_never_false(decides[0])
            case _:
                return self._leaf(part, never_true=False)

    def _leaf(self, part: Predicate, *, never_true: bool) -> str:
        if not isinstance(part, Compare | IsNull):
            return "nothing is asked for"
        name, known = name_of(part.column), self._values.of(part.column)
        if known is None:
            raise AssertionError(f"nothing is known of {name}, so it ruled out nothing")
        if known.is_exact:
            return f"{name}={_first(known.low)}"
        if _is_true(known.all_null):
            return f"every {name} is null"
        if isinstance(part, IsNull):
            return f"no {name} is null"
        return _compared(part, known, never_true=never_true)


def remark(part: Predicate, values: KnownValues) -> str | None:
    """Why the part leaves out no file of a table; None when it might, and only found none to leave out."""
    match part:
        case Unknown():
            return "not understood, so it leaves everything in"
        case Not(operand):
            return remark(operand, values)
        case And(operands) | Or(operands):
            said = [found for found in (remark(operand, values) for operand in operands) if found]
            return "; ".join(dict.fromkeys(said)) or None
        case Compare() | IsNull():
            return _remark_of_leaf(part, values)
        case Constant():
            return None


def _remark_of_leaf(part: Compare | IsNull, values: KnownValues) -> str | None:
    name, known = name_of(part.column), values.of(part.column)
    if known is None:
        return f"{name} is no column of the table, or may be one of several"
    if isinstance(part, IsNull):
        return f"nobody counted the nulls of {name}" if isinstance(known.no_nulls, bool) else None
    if known.bounds_type is None:
        return f"there are no statistics of {name}"
    constant = constant_range(part, known.column, known.bounds_type, exact=known.is_exact)
    if constant is None:
        wanted = f"as {part.kind} " if part.kind else ""
        return f"{name} is of type {known.column.type}: that is not compared {wanted}with {value_text(part.value)}"
    if constant.hides_nan and part.operator in (">", ">="):
        return f"{name} may hold NaN, which Spark takes for greater than all numbers and statistics leave out"
    return None


def _compared(part: Compare, known: Known, *, never_true: bool) -> str:
    name, value = name_of(part.column), value_text(part.value)
    low, high = f"min({name})={_first(known.low)}", f"max({name})={_first(known.high)}"
    if part.operator == "=":
        if not never_true:
            return f"every {name} is {value}"
        return f"{low}, {high} without {value} in between"
    bound, sign = (NEVER_TRUE if never_true else NEVER_FALSE)[part.operator]
    return f"{low if bound == 'min' else high} {sign} {value}"


def _together(reasons: list[str]) -> str:
    told = list(dict.fromkeys(reasons))
    return "; ".join(told[:TOLD]) + ("; …" if len(told) > TOLD else "")


def _first(bounds: Bounds) -> str:
    """A value as Arrow writes it: dates may lie beyond Python's."""
    if bounds is None or not bounds[0].is_valid:
        return "unknown"
    return str(bounds[0].cast(pa.string()).as_py())


def _is_true(ruled_out: Ruled) -> bool:
    return ruled_out if isinstance(ruled_out, bool) else bool(ruled_out[0].as_py())
