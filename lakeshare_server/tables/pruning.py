"""Which files can contain a row that matches a predicate, by partition values and statistics, a batch at a time.

For each part of a predicate and each file: can the part never be true, never be false, never be null for a row of the
file? Missing, cut or incomparable values rule nothing out, so no file with a match is lost.
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

from lakeshare_server.tables import predicates
from lakeshare_server.tables.index import HEADER_KEY, FileIndex
from lakeshare_server.tables.lines import total
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
    conjuncts,
    constant_range,
    format_column,
    format_value,
)

# One boolean for each file of a batch.
Flags: TypeAlias = pa.BooleanArray
Ruled: TypeAlias = bool | Flags
Bounds: TypeAlias = pa.Array | None


def never_true(operator: Comparison, low: Bounds, high: Bounds, constant: Range) -> Ruled:
    """Where the comparison is true for none of the values between these bounds."""
    # Statistics ignore NaN. Spark orders NaN above all numbers, other clients make every comparison with it false.
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
    return all_of((_test(pc.equal, low, constant.low), _test(pc.equal, high, constant.high)))


def all_of(parts: Iterable[Ruled]) -> Ruled:
    """Ruled out by every part; stops at the first part that rules nothing out."""
    return _combine(parts, False, pc.and_kleene)


def any_of(parts: Iterable[Ruled]) -> Ruled:
    """Ruled out by some part; stops at the first part that rules everything out."""
    return _combine(parts, True, pc.or_kleene)


def _combine(parts: Iterable[Ruled], decisive: bool, join: Callable[[Flags, Flags], Flags]) -> Ruled:
    result: Ruled = not decisive
    for part in parts:
        if not isinstance(part, bool):
            result = part if isinstance(result, bool) else join(result, part)
        elif part == decisive:
            return decisive
    return result


def _test(
    test: Callable[[pa.Array, pa.Scalar], pa.Array], bound: Bounds, constant: pa.Scalar | None
) -> Ruled:
    """Files whose bound passes. NaN passes nothing and a missing bound gives null: neither rules anything out."""
    return False if bound is None or constant is None else test(bound, constant)


_NEVER: dict[Comparison, Callable[[Bounds, Bounds, Range], Ruled]] = {
    "=": lambda low, high, constant: any_of(
        (_test(pc.greater, low, constant.high), _test(pc.less, high, constant.low))
    ),
    "<": lambda low, high, constant: _test(pc.greater_equal, low, constant.high),
    "<=": lambda low, high, constant: _test(pc.greater, low, constant.high),
    ">": lambda low, high, constant: _test(pc.less_equal, high, constant.low),
    ">=": lambda low, high, constant: _test(pc.less, high, constant.low),
}
_OPPOSITE: dict[Comparison, Comparison] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
MANY = 16
# Whether a column is equal to one of many constants, all of one kind.
OneOf: TypeAlias = tuple[Compare, ...]


def group_equalities(operands: Sequence[Predicate]) -> tuple[Predicate | OneOf, ...]:
    """The operands of an Or, with many equalities on one column grouped into a tuple."""
    if len(operands) < MANY:
        return tuple(operands)
    equalities: dict[object, list[Compare]] = defaultdict(list)
    result: list[Predicate | OneOf] = []
    for operand in operands:
        if isinstance(operand, Compare) and operand.operator == "=":
            equalities[operand.column, operand.kind].append(operand)
        else:
            result.append(operand)
    for parts in equalities.values():
        result += [tuple(parts)] if len(parts) >= MANY else parts
    return tuple(result)


def outside_all(low: Bounds, high: Bounds, ranges: Iterable[Range]) -> Ruled:
    spans = [(_comparable(span.low), _comparable(span.high)) for span in ranges]
    if any(start is None or end is None for start, end in spans):
        return False
    # The disjoint spans in order: overlapping ones are joined.
    starts: list[Any] = []
    ends: list[Any] = []
    for start, end in sorted(spans):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)

    def is_outside(least: Any, most: Any) -> bool | None:
        number = 0 if least is None else bisect_left(ends, least)
        if number == len(ends):
            return True
        return None if most is None else bool(most < starts[number])

    count = max(len(bounds) for bounds in (low, high) if bounds is not None)
    flags = map(is_outside, _to_python(low, count), _to_python(high, count))
    return pa.array(list(flags), pa.bool_())


def _comparable(constant: pa.Scalar | None) -> Any:
    if constant is None:
        return None
    return constant.value if pa.types.is_temporal(constant.type) else constant.as_py()


def _to_python(bounds: Bounds, count: int) -> list[Any]:
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


@dataclass(frozen=True)
class ColumnBounds:
    """The bounds of a column's values, exact or not, and the numbers of its nulls; None where unknown."""

    column: Column
    low: Bounds
    high: Bounds
    is_exact: bool
    null_counts: pa.Array | None = None
    rows: pa.Array | None = None

    @cached_property
    def no_nulls(self) -> Ruled:
        if self.is_exact:
            return pc.is_valid(self.low)
        return False if self.null_counts is None else pc.equal(self.null_counts, 0)

    @cached_property
    def all_null(self) -> Ruled:
        if self.is_exact:
            return pc.is_null(self.low)
        return False if self.null_counts is None else pc.equal(self.null_counts, self.rows)

    @property
    def bounds_type(self) -> pa.DataType | None:
        known = self.low if self.low is not None else self.high
        return None if known is None else known.type

    def ranges(self, parts: Sequence[Compare]) -> list[Range | None]:
        """The constants of comparisons as ranges of the column's values; None for an incomparable constant."""
        kept_as = self.bounds_type
        if kept_as is None:
            return [None] * len(parts)
        return [constant_range(part, self.column, kept_as, exact=self.is_exact) for part in parts]


class BatchBounds:
    """The columns of one batch; each is read once."""

    def __init__(self, batch: pa.RecordBatch, columns: Columns) -> None:
        self._batch, self._columns = batch, columns
        self._known: dict[Path, ColumnBounds] = {}

    def of(self, name: ColumnName) -> ColumnBounds | None:
        """The bounds of the column that a predicate names; None if the name is unknown or ambiguous."""
        column = self._columns.resolve(name)
        if column is None:
            return None
        if column.path not in self._known:
            self._known[column.path] = self._read(column)
        return self._known[column.path]

    def _read(self, column: Column) -> ColumnBounds:
        values = self._values("partition", column.path)
        if values is not None:
            return _partition_bounds(column, values)
        counts = self._values("null_count", column.path)
        if counts is not None and not pa.types.is_integer(counts.type):
            counts = None
        low, high = self._values("min", column.path), self._values("max", column.path)
        if low is not None and high is not None and low.type != high.type:
            low = high = None
        if pa.types.is_float32(column.type):
            # A bound is the shortest text of this float; parsed as a double it is another number.
            low, high = (
                bound.cast(pa.float32()) if bound is not None and pa.types.is_float64(bound.type) else bound
                for bound in (low, high)
            )
        return ColumnBounds(column, low, high, False, counts, self._batch.column("rows"))

    def _values(self, struct: str, path: Path) -> Bounds:
        position = self._batch.schema.get_field_index(struct)
        if position < 0:
            return None
        kind, indices = self._batch.schema.field(position).type, []
        for name in path:
            index = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
            if index < 0:
                return None
            indices.append(index)
            kind = kind.field(index).type
        return None if pa.types.is_struct(kind) else pc.struct_field(self._batch.column(position), indices)


def _partition_bounds(column: Column, values: pa.Array) -> ColumnBounds:
    """The bounds of a partition column.

    An empty text is a value to delta-spark and null to the Python client, so such a file may contain either.
    """
    is_text = pa.types.is_string(values.type) or pa.types.is_binary(values.type)
    is_empty = pc.fill_null(pc.equal(pc.binary_length(values), 0), False) if is_text else None
    if is_empty is None or not pc.any(is_empty).as_py():
        return ColumnBounds(column, values, values, is_exact=True)
    nulls = pc.if_else(is_empty, pa.scalar(None, pa.int64()), pc.cast(pc.is_null(values), pa.int64()))
    ones = pa.repeat(pa.scalar(1, pa.int64()), len(values))
    return ColumnBounds(column, values, values, False, nulls, ones)


Part: TypeAlias = Predicate | OneOf


class PredicateOutcome:
    """The possible values of a predicate for each file of a batch; computed on demand."""

    def __init__(self, predicate: Predicate, batch: pa.RecordBatch, columns: Columns) -> None:
        self._predicate, self._count = predicate, batch.num_rows
        self._files = PruningResult(BatchBounds(batch, columns))

    @cached_property
    def true(self) -> Flags:
        return self._other_than(self._files.never(self._predicate, True))

    @cached_property
    def false(self) -> Flags:
        return self._other_than(self._files.never(self._predicate, False))

    @cached_property
    def null(self) -> Flags:
        return self._other_than(self._files.never_null(self._predicate))

    @cached_property
    def surely_all(self) -> Flags:
        """Files in which it is true for every row."""
        return pc.invert(pc.or_(self.false, self.null))

    def _other_than(self, ruled_out: Ruled) -> Flags:
        if isinstance(ruled_out, bool):
            return pa.repeat(pa.scalar(not ruled_out), self._count)
        return pc.invert(pc.fill_null(ruled_out, pa.scalar(False)))


def evaluate(predicate: Predicate, batch: pa.RecordBatch) -> PredicateOutcome:
    return PredicateOutcome(predicate, batch, batch_columns(batch))


def count_live_rows(batch: pa.RecordBatch) -> pa.Array:
    """The rows of each file without deleted ones, 0 if unknown."""
    rows = batch.column("rows")
    if "dv_cardinality" in batch.schema.names:
        rows = pc.max_element_wise(pc.subtract(rows, batch.column("dv_cardinality")), 0, skip_nulls=False)
    return pc.fill_null(rows, 0)


def batch_columns(batch: pa.RecordBatch) -> Columns:
    """The columns that predicates on an index batch can use."""
    header = (batch.schema.metadata or {}).get(HEADER_KEY)
    return predicates.columns_of(None if header is None else _schema_string(header), batch.schema)


@lru_cache(64)
def _schema_string(header: bytes) -> str | None:
    head = json.loads(header).get("head") or {}
    schema_string = head.get("schema_string")
    return schema_string if isinstance(schema_string, str) else None


@dataclass(frozen=True)
class _Leaf:
    """What is ruled out for a part without operands; computed on demand."""

    never_true: Callable[[], Ruled] = lambda: False
    never_false: Callable[[], Ruled] = lambda: False
    never_null: Callable[[], Ruled] = lambda: False


class PruningResult:
    """What is ruled out in each file of a batch, for a predicate and for each of its parts."""

    def __init__(self, values: BatchBounds) -> None:
        self._values = values
        # By identity: 1 and True are equal, but not the same constant.
        self._leaves: dict[int, _Leaf] = {}
        self._options: dict[int, tuple[Part, ...]] = {}

    def never(self, part: Part, value: bool) -> Ruled:
        """Files in which the part has this value for no row."""
        match part:
            case Not(operand):
                return self.never(operand, not value)
            case And() | Or():
                combine = any_of if isinstance(part, And) == value else all_of
                return combine(self.never(operand, value) for operand in self._operands(part))
            case _:
                leaf = self._leaf(part)
                return leaf.never_true() if value else leaf.never_false()

    def never_null(self, part: Part) -> Ruled:
        """Files in which the part is null for no row."""
        match part:
            case Not(operand):
                return self.never_null(operand)
            case And() | Or():
                # Null needs an operand that is null, and no operand that decides alone: a false one in an And.
                decides = isinstance(part, And)
                parts = [(self.never_null(one), self.never(one, decides)) for one in self._operands(part)]
                return any_of((all_of(null for null, _ in parts), any_of(map(all_of, parts))))
            case _:
                return self._leaf(part).never_null()

    def _operands(self, part: And | Or) -> tuple[Part, ...]:
        if isinstance(part, And):
            return part.operands
        if id(part) not in self._options:
            self._options[id(part)] = group_equalities(part.operands)
        return self._options[id(part)]

    def _leaf(self, part: Part) -> _Leaf:
        if id(part) not in self._leaves:
            self._leaves[id(part)] = self._rule_out(part)
        return self._leaves[id(part)]

    def _rule_out(self, part: Part) -> _Leaf:
        match part:
            case Constant(value):
                return _Leaf(lambda: not value, lambda: value, lambda: True)
            case IsNull():
                return self._is_null(part)
            case Compare():
                return self._one_of((part,))
            case tuple():
                return self._one_of(part)
            case _:
                return _Leaf()

    def _is_null(self, part: IsNull) -> _Leaf:
        known = self._values.of(part.column)
        if known is None:
            return _Leaf(never_null=lambda: True)
        # The client removed casts and names only the innermost: a cast can turn values into nulls, never nulls into
        # values.
        is_own = part.kind is None or part.kind == predicates.json_kind(known.column.type)
        return _Leaf(lambda: known.no_nulls if is_own else False, lambda: known.all_null, lambda: True)

    def _one_of(self, parts: tuple[Compare, ...]) -> _Leaf:
        known = self._values.of(parts[0].column)
        if known is None:
            return _Leaf()
        constants = [constant for constant in known.ranges(parts) if constant is not None]
        if len(constants) < len(parts):
            return _Leaf(lambda: known.all_null, lambda: known.all_null)
        if len(parts) == 1:
            bounds = parts[0].operator, known.low, known.high, constants[0]
            return _Leaf(
                lambda: any_of((known.all_null, never_true(*bounds))),
                lambda: any_of((known.all_null, never_false(*bounds))),
                lambda: known.no_nulls,
            )
        outside = outside_all(known.low, known.high, constants)
        is_inside: Ruled = False
        if known.is_exact and not isinstance(outside, bool) and all(one.is_point for one in constants):
            is_inside = pc.invert(outside)
        return _Leaf(
            lambda: any_of((known.all_null, outside)),
            lambda: any_of((known.all_null, is_inside)),
            lambda: known.no_nulls,
        )


MAX_REASONS = 3
# For a comparison that is never true, or never false: the bound that proves it, and how it compares with the constant.
REASONS = {
    True: {"<": ("min", ">="), "<=": ("min", ">"), ">": ("max", "<="), ">=": ("max", "<")},
    False: {"<": ("max", "<"), "<=": ("max", "<="), ">": ("min", ">"), ">=": ("min", ">=")},
}


class PruningReasons:
    """Explains why a predicate rules out one file."""

    def __init__(self, file: pa.RecordBatch) -> None:
        self._values = BatchBounds(file, batch_columns(file))
        self._result = PruningResult(self._values)

    def why_never(self, part: Predicate, value: bool) -> str:
        """Why the part, which rules the file out, has this value for none of its rows."""
        match part:
            case Not(operand):
                return self.why_never(operand, not value)
            case And(operands) | Or(operands):
                if isinstance(part, And) == value:
                    decides = (one for one in operands if _is_true(self._result.never(one, value)))
                    return self.why_never(next(decides), value)
                reasons = list(dict.fromkeys(self.why_never(operand, value) for operand in operands))
                return "; ".join(reasons[:MAX_REASONS]) + ("; …" if len(reasons) > MAX_REASONS else "")
            case Compare() | IsNull():
                return self._why_leaf(part, value)
            case _:
                return "the condition is constant"

    def _why_leaf(self, part: Compare | IsNull, value: bool) -> str:
        name, known = format_column(part.column), self._values.of(part.column)
        if known is None:
            raise AssertionError(f"nothing is known of {name}, so it ruled out nothing")
        if known.is_exact:
            return f"{name}={_first(known.low)}"
        if _is_true(known.all_null):
            return f"every {name} is null"
        if isinstance(part, IsNull):
            return f"no {name} is null"
        constant, low, high = format_value(part.value), _first(known.low), _first(known.high)
        if part.operator == "=":
            between = f"min({name})={low}, max({name})={high} without {constant} in between"
            return between if value else f"every {name} is {constant}"
        bound, sign = REASONS[value][part.operator]
        return f"{bound}({name})={low if bound == 'min' else high} {sign} {constant}"


def explain_unused(part: Predicate, values: BatchBounds) -> str | None:
    """Why the part can rule out no file of a table; None if it can."""
    match part:
        case Unknown():
            return "not understood, so it leaves everything in"
        case Not(operand):
            return explain_unused(operand, values)
        case And(operands) | Or(operands):
            remarks = filter(None, (explain_unused(operand, values) for operand in operands))
            return "; ".join(dict.fromkeys(remarks)) or None
        case Compare() | IsNull():
            return _explain_unused_leaf(part, values)
        case Constant():
            return None


def _explain_unused_leaf(part: Compare | IsNull, values: BatchBounds) -> str | None:
    name, known = format_column(part.column), values.of(part.column)
    if known is None:
        return f"{name} is no column of the table, or may be one of several"
    if isinstance(part, IsNull):
        return f"the nulls of {name} were not counted" if isinstance(known.no_nulls, bool) else None
    if known.bounds_type is None:
        return f"there are no statistics of {name}"
    [constant] = known.ranges([part])
    if constant is None:
        wanted = f"as {part.kind} " if part.kind else ""
        return f"{name} is of type {known.column.type}: that is not compared {wanted}with {format_value(part.value)}"
    if constant.hides_nan and part.operator in (">", ">="):
        return f"{name} may hold NaN, which Spark takes for greater than all numbers and statistics leave out"
    return None


def _first(bounds: Bounds) -> str:
    """The first value as Arrow writes it: dates may be outside of Python's range."""
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
    """A conjunct of a predicate; `drops` is the number of files that it rules out alone."""

    text: str
    drops: int
    remark: str | None


@dataclass(frozen=True)
class FileExplained:
    """A file; `rows` excludes deleted rows, None if unknown."""

    path: str
    is_kept: bool
    reason: str
    rows: int | None


@dataclass(frozen=True)
class Explanation:
    """The effect of a predicate and a limit on an index; `uncounted` kept files have an unknown number of rows."""

    files: int
    kept: int
    beyond_limit: int
    rows: int
    uncounted: int
    parts: tuple[PartExplained, ...]

    @property
    def dropped(self) -> int:
        return self.files - self.kept


def explain(index: FileIndex, predicate: Predicate, limit: int | None = None) -> Explanation:
    parts = list(conjuncts(predicate))
    drops = [0] * len(parts)
    files = kept = beyond = rows = uncounted = 0
    for batch, is_kept, is_within in _explain_batches(index, predicates.all_of(parts), limit):
        files += batch.num_rows
        kept += is_within.true_count
        beyond += is_kept.true_count - is_within.true_count
        left = batch.filter(is_within)
        rows += total(count_live_rows(left))
        uncounted += left.column("rows").null_count
        for number, part in enumerate(parts):
            drops[number] += batch.num_rows - evaluate(part, batch).true.true_count
    first = next(index.batches(), None)
    bounds = None if first is None else BatchBounds(first, batch_columns(first))
    remarks = [None if bounds is None else explain_unused(part, bounds) for part in parts]
    explained = [
        PartExplained(predicates.format_predicate(part), count, None if count else remark)
        for part, count, remark in zip(parts, drops, remarks, strict=True)
    ]
    return Explanation(files, kept, beyond, rows, uncounted, tuple(explained))


def explained_files(
    index: FileIndex, predicate: Predicate, limit: int | None = None
) -> Iterator[FileExplained]:
    """Each file of the index in its order, with the first conjunct that decided about it."""
    parts = list(conjuncts(predicate))
    prefix = index.header.location.rstrip("/") + "/"
    for batch, is_kept, is_within in _explain_batches(index, predicates.all_of(parts), limit):
        sure = evaluate(predicates.all_of(parts), batch).surely_all
        deciding = [0] * batch.num_rows
        for number, part in reversed(list(enumerate(parts))):
            for row in pc.indices_nonzero(pc.invert(evaluate(part, batch).true)).to_pylist():
                deciding[row] = number
        rows = pc.if_else(pc.is_valid(batch.column("rows")), count_live_rows(batch), None)
        for row in range(batch.num_rows):
            if is_within[row].as_py():
                reason = KEPT_WHOLE_REASON if sure[row].as_py() else KEPT_REASON
            elif is_kept[row].as_py():
                reason = LIMIT_FILLED
            else:
                reason = PruningReasons(batch.slice(row, 1)).why_never(parts[deciding[row]], True)
            path = batch.column("path")[row].as_py().removeprefix(prefix)
            yield FileExplained(path, is_within[row].as_py(), reason, rows[row].as_py())


def _explain_batches(
    index: FileIndex, predicate: Predicate, limit: int | None
) -> Iterator[tuple[pa.RecordBatch, pa.BooleanArray, pa.BooleanArray]]:
    """Batches with the files that the predicate keeps, and those among them that the limit keeps."""
    filled = 0
    for batch in index.batches():
        maybe = evaluate(predicate, batch)
        if limit is None:
            yield batch, maybe.true, maybe.true
            continue
        sure = pc.if_else(pc.and_(maybe.true, maybe.surely_all), count_live_rows(batch), 0)
        before = pc.subtract(pc.cumulative_sum(sure, start=filled), sure)
        yield batch, maybe.true, pc.and_(maybe.true, pc.less(before, limit))
        filled += total(sure)
