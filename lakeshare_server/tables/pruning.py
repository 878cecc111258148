"""Which files can hold a row that a predicate wants: partition values and statistics, a batch at a time.

For every part of the predicate, and every file, three answers: can it never be true, never be false, never be null
for a row of the file. What is missing, cut or not comparable rules nothing out: no file with a match is lost.
"""

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.index import HEADER_KEY, FileIndex
from lakeshare_server.tables.predicates import (
    And,
    Column,
    ColumnName,
    Columns,
    Compare,
    Comparison,
    Constant,
    IsNull,
    Not,
    Or,
    Path,
    Predicate,
    Range,
    Unknown,
    columns_of,
    conjuncts,
    constant_range,
    format_column,
    format_predicate,
    format_value,
    json_kind,
)
from lakeshare_server.tables.predicates import all_of as all_of_in_explanation

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


MANY = 16


@dataclass(frozen=True)
class OneOf:
    """Whether a column is equal to one of many constants, all of one kind."""

    parts: tuple[Compare, ...]


def group_equalities(operands: Sequence[Predicate]) -> tuple[Predicate | OneOf, ...]:
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


ZERO = pa.scalar(0, pa.int64())


@dataclass(frozen=True)
class ColumnBounds:
    """Of one column: the bounds of its values, and how many of them are null; None where nobody noted it.

    With `is_exact` both bounds are the values themselves.
    """

    column: Column
    low: Bounds
    high: Bounds
    is_exact: bool
    null_counts: pa.Array | None = None
    rows: pa.Array | None = None

    @cached_property
    def no_nulls(self) -> Ruled:
        """Files that have no nulls in it."""
        if self.is_exact:
            return pc.is_valid(self.low)
        return False if self.null_counts is None else pc.equal(self.null_counts, ZERO)

    @cached_property
    def all_null(self) -> Ruled:
        """Files that have nothing else in it."""
        if self.is_exact:
            return pc.is_null(self.low)
        return False if self.null_counts is None else pc.equal(self.null_counts, self.rows)

    @property
    def bounds_type(self) -> pa.DataType | None:
        """The type in which bounds are kept; None when no file has any."""
        known = self.low if self.low is not None else self.high
        return None if known is None else known.type


class BatchBounds:
    """The columns of one batch; each is looked up once."""

    def __init__(self, batch: pa.RecordBatch, columns: Columns) -> None:
        self._batch, self._columns = batch, columns
        self._known: dict[Path, ColumnBounds] = {}

    def of(self, name: ColumnName) -> ColumnBounds | None:
        """What is known of the column that a predicate names; None when it is not certain which that is."""
        column = self._columns.resolve(name)
        if column is None:
            return None
        if column.path not in self._known:
            self._known[column.path] = self._looked_up(column)
        return self._known[column.path]

    def _looked_up(self, column: Column) -> ColumnBounds:
        values = self._values("partition", column.path)
        if values is not None:
            return _partition(column, values)
        counts = self._values("null_count", column.path)
        if counts is not None and not pa.types.is_integer(counts.type):
            counts = None
        return ColumnBounds(column, *self._bounds(column), False, counts, self._batch.column("rows"))

    def _bounds(self, column: Column) -> tuple[Bounds, Bounds]:
        low, high = self._values("min", column.path), self._values("max", column.path)
        if low is not None and high is not None and low.type != high.type:
            return None, None
        if pa.types.is_float32(column.type):
            # A bound is written as the shortest text that is this float; read as a double it is another number.
            return _as_floats(low), _as_floats(high)
        return low, high

    def _values(self, struct: str, path: Path) -> Bounds:
        place = self._batch.schema.get_field_index(struct)
        if place < 0:
            return None
        kind, places = self._batch.schema.field(place).type, []
        for name in path:
            inside = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
            if inside < 0:
                return None
            places.append(inside)
            kind = kind.field(inside).type
        return None if pa.types.is_struct(kind) else pc.struct_field(self._batch.column(place), places)


def _partition(column: Column, values: pa.Array) -> ColumnBounds:
    """What is known of a partition column.

    An empty text is a value to delta-spark and null to the Python client, so such a file may hold either.
    """
    is_text = pa.types.is_string(values.type) or pa.types.is_binary(values.type)
    is_empty = pc.fill_null(pc.equal(pc.binary_length(values), 0), False) if is_text else None
    if is_empty is None or not pc.any(is_empty).as_py():
        return ColumnBounds(column, values, values, is_exact=True)
    nulls = pc.if_else(is_empty, pa.scalar(None, pa.int64()), pc.cast(pc.is_null(values), pa.int64()))
    return ColumnBounds(
        column, values, values, False, nulls, pa.repeat(pa.scalar(1, pa.int64()), len(values))
    )


def _as_floats(values: Bounds) -> Bounds:
    return values if values is None or not pa.types.is_float64(values.type) else values.cast(pa.float32())


FALSE = pa.scalar(False)

# One boolean for each file of a batch.
Flags: TypeAlias = pa.BooleanArray
Part: TypeAlias = Predicate | OneOf


class PredicateOutcome:
    """What a predicate may come to, for each file of a batch; each answer is worked out when it is asked for."""

    def __init__(self, predicate: Predicate, batch: pa.RecordBatch, columns: Columns) -> None:
        self._predicate, self._count = predicate, batch.num_rows
        self._files = PruningResult(BatchBounds(batch, columns))

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


def evaluate(predicate: Predicate, batch: pa.RecordBatch) -> PredicateOutcome:
    """What the predicate may come to in the files of an index batch."""
    return PredicateOutcome(predicate, batch, batch_columns(batch))


def count_live_rows(batch: pa.RecordBatch) -> pa.Array:
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


class PruningResult:
    """What is ruled out in each file of a batch, for a predicate and for each of its parts."""

    def __init__(self, values: BatchBounds) -> None:
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
            self._options[id(part)] = group_equalities(part.operands)
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
        is_own = part.kind is None or part.kind == json_kind(known.column.type)
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
        if (
            known.is_exact
            and not isinstance(outside, bool)
            and all(constant.is_point for constant in constants)
        ):
            is_inside = pc.invert(outside)
        return _Leaf(
            lambda: either(known.all_null, outside),
            lambda: either(known.all_null, is_inside),
            lambda: known.no_nulls,
        )


def _constants(parts: Sequence[Compare], known: ColumnBounds) -> list[Range | None]:
    kept_as = known.bounds_type
    if kept_as is None:
        return [None] * len(parts)
    return [constant_range(part, known.column, kept_as, exact=known.is_exact) for part in parts]


@lru_cache(64)
def _schema_string(header: bytes) -> str | None:
    head = json.loads(header).get("head") or {}
    schema_string = head.get("schema_string")
    return schema_string if isinstance(schema_string, str) else None


MAX_REASONS = 3
# For a comparison that is never true: the bound that shows it, and how it lies to the constant.
NEVER_TRUE = {"<": ("min", ">="), "<=": ("min", ">"), ">": ("max", "<="), ">=": ("max", "<")}
NEVER_FALSE = {"<": ("max", "<"), "<=": ("max", "<="), ">": ("min", ">"), ">=": ("min", ">=")}


class PruningReasons:
    """What is known of one file, as reasons."""

    def __init__(self, file: pa.RecordBatch) -> None:
        self._values = BatchBounds(file, batch_columns(file))
        self._answers = PruningResult(self._values)

    def why_never_true(self, part: Predicate) -> str:
        """Why the part, which rules the file out, is true for none of its rows."""
        match part:
            case Not(operand):
                return self._why_never_false(operand)
            case And(operands):
                decides = [operand for operand in operands if _is_true(self._answers.never_true(operand))]
                return self.why_never_true(decides[0])
            case Or(operands):
                return _join_reasons([self.why_never_true(operand) for operand in operands])
            case _:
                return self._leaf(part, never_true=True)

    def _why_never_false(self, part: Predicate) -> str:
        match part:
            case Not(operand):
                return self.why_never_true(operand)
            case And(operands):
                return _join_reasons([self._why_never_false(operand) for operand in operands])
            case Or(operands):
                decides = [operand for operand in operands if _is_true(self._answers.never_false(operand))]
                return self._why_never_false(decides[0])
            case _:
                return self._leaf(part, never_true=False)

    def _leaf(self, part: Predicate, *, never_true: bool) -> str:
        if not isinstance(part, Compare | IsNull):
            return "nothing is asked for"
        name, known = format_column(part.column), self._values.of(part.column)
        if known is None:
            raise AssertionError(f"nothing is known of {name}, so it ruled out nothing")
        if known.is_exact:
            return f"{name}={_first(known.low)}"
        if _is_true(known.all_null):
            return f"every {name} is null"
        if isinstance(part, IsNull):
            return f"no {name} is null"
        return _compared(part, known, never_true=never_true)


def explain_unused(part: Predicate, values: BatchBounds) -> str | None:
    """Why the part leaves out no file of a table; None when it might, and only found none to leave out."""
    match part:
        case Unknown():
            return "not understood, so it leaves everything in"
        case Not(operand):
            return explain_unused(operand, values)
        case And(operands) | Or(operands):
            remarks = [found for found in (explain_unused(operand, values) for operand in operands) if found]
            return "; ".join(dict.fromkeys(remarks)) or None
        case Compare() | IsNull():
            return _remark_of_leaf(part, values)
        case Constant():
            return None


def _remark_of_leaf(part: Compare | IsNull, values: BatchBounds) -> str | None:
    name, known = format_column(part.column), values.of(part.column)
    if known is None:
        return f"{name} is no column of the table, or may be one of several"
    if isinstance(part, IsNull):
        return f"nobody counted the nulls of {name}" if isinstance(known.no_nulls, bool) else None
    if known.bounds_type is None:
        return f"there are no statistics of {name}"
    constant = constant_range(part, known.column, known.bounds_type, exact=known.is_exact)
    if constant is None:
        wanted = f"as {part.kind} " if part.kind else ""
        return f"{name} is of type {known.column.type}: that is not compared {wanted}with {format_value(part.value)}"
    if constant.hides_nan and part.operator in (">", ">="):
        return f"{name} may hold NaN, which Spark takes for greater than all numbers and statistics leave out"
    return None


def _compared(part: Compare, known: ColumnBounds, *, never_true: bool) -> str:
    name, value = format_column(part.column), format_value(part.value)
    low, high = f"min({name})={_first(known.low)}", f"max({name})={_first(known.high)}"
    if part.operator == "=":
        if not never_true:
            return f"every {name} is {value}"
        return f"{low}, {high} without {value} in between"
    bound, sign = (NEVER_TRUE if never_true else NEVER_FALSE)[part.operator]
    return f"{low if bound == 'min' else high} {sign} {value}"


def _join_reasons(reasons: list[str]) -> str:
    distinct = list(dict.fromkeys(reasons))
    return "; ".join(distinct[:MAX_REASONS]) + ("; …" if len(distinct) > MAX_REASONS else "")


def _first(bounds: Bounds) -> str:
    """A value as Arrow writes it: dates may lie beyond Python's."""
    if bounds is None or not bounds[0].is_valid:
        return "unknown"
    return str(bounds[0].cast(pa.string()).as_py())


def _is_true(ruled_out: Ruled) -> bool:
    return ruled_out if isinstance(ruled_out, bool) else bool(ruled_out[0].as_py())


KEPT_REASON = "may hold rows that match"
KEPT_WHOLE_REASON = "every row matches"
LIMIT_FILLED = "the files before it hold enough rows for the limit"


@dataclass(frozen=True)
class PartExplained:
    """One of the parts that must all be true; `drops` is how many files it leaves out by itself."""

    text: str
    drops: int
    remark: str | None


@dataclass(frozen=True)
class FileExplained:
    """One file; `rows` are those that readers see, None when nobody counted."""

    path: str
    is_kept: bool
    reason: str
    rows: int | None


@dataclass(frozen=True)
class Explanation:
    """What a predicate and a limit do to the files of an index.

    `rows` are those of the kept files; `uncounted` of these files have an unknown number of rows.
    """

    files: int
    kept: int
    beyond_limit: int
    rows: int
    uncounted: int
    parts: tuple[PartExplained, ...]

    @property
    def dropped(self) -> int:
        """Files that no part of the predicate, or the limit, leaves in."""
        return self.files - self.kept


def explain(index: FileIndex, predicate: Predicate, limit: int | None = None) -> Explanation:
    """What each part does, and what remains."""
    parts = list(conjuncts(predicate))
    drops = [0] * len(parts)
    files = kept = beyond = rows = uncounted = 0
    for batch, is_kept, is_within in _explain_batches(index, all_of_in_explanation(parts), limit):
        files += batch.num_rows
        kept += is_within.true_count
        beyond += is_kept.true_count - is_within.true_count
        left = batch.filter(is_within)
        rows += pc.sum(count_live_rows(left), min_count=0).as_py()
        uncounted += left.column("rows").null_count
        for place, part in enumerate(parts):
            drops[place] += batch.num_rows - evaluate(part, batch).true.true_count
    first = next(index.batches(), None)
    remarks = [None if first is None else explain_unused(part, _explanation_values(first)) for part in parts]
    explained = [
        PartExplained(format_predicate(part), count, None if count else why)
        for part, count, why in zip(parts, drops, remarks, strict=True)
    ]
    return Explanation(files, kept, beyond, rows, uncounted, tuple(explained))


def explained_files(
    index: FileIndex, predicate: Predicate, limit: int | None = None
) -> Iterator[FileExplained]:
    """Each file of the index in its order, and the first part that decided about it."""
    parts = list(conjuncts(predicate))
    prefix = index.header.location.rstrip("/") + "/"
    for batch, is_kept, is_within in _explain_batches(index, all_of_in_explanation(parts), limit):
        sure = evaluate(all_of_in_explanation(parts), batch).surely_all
        deciding = _deciding(parts, batch)
        rows = pc.if_else(pc.is_valid(batch.column("rows")), count_live_rows(batch), None)
        for place in range(batch.num_rows):
            if is_within[place].as_py():
                reason = KEPT_WHOLE_REASON if sure[place].as_py() else KEPT_REASON
            elif is_kept[place].as_py():
                reason = LIMIT_FILLED
            else:
                reason = PruningReasons(batch.slice(place, 1)).why_never_true(parts[deciding[place]])
            path = batch.column("path")[place].as_py().removeprefix(prefix)
            yield FileExplained(path, is_within[place].as_py(), reason, rows[place].as_py())


def _explain_batches(
    index: FileIndex, predicate: Predicate, limit: int | None
) -> Iterator[tuple[pa.RecordBatch, pa.BooleanArray, pa.BooleanArray]]:
    """Batches with the files that the predicate keeps, and those of them that the limit lets through."""
    filled = 0
    for batch in index.batches():
        maybe = evaluate(predicate, batch)
        if limit is None:
            yield batch, maybe.true, maybe.true
            continue
        sure = pc.if_else(pc.and_(maybe.true, maybe.surely_all), count_live_rows(batch), 0)
        before = pc.subtract(pc.cumulative_sum(sure, start=filled), sure)
        yield batch, maybe.true, pc.and_(maybe.true, pc.less(before, limit))
        filled += pc.sum(sure, min_count=0).as_py()


def _deciding(parts: list[Predicate], batch: pa.RecordBatch) -> list[int]:
    """The first part that drops each file, for those that are dropped."""
    deciding = [0] * batch.num_rows
    for number, part in reversed(list(enumerate(parts))):
        for place in pc.indices_nonzero(pc.invert(evaluate(part, batch).true)).to_pylist():
            deciding[place] = number
    return deciding


def _explanation_values(batch: pa.RecordBatch) -> BatchBounds:
    return BatchBounds(batch, batch_columns(batch))
