"""Predicates as hints: as the protocol's JSON, as SQL, and evaluated over rows, with nulls as SQL has them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.conformance.reply import Reply
from lakeshare_server.conformance.rows import FileRows, columns_of, distinct
from lakeshare_server.conformance.values import FLOATS, INTEGERS, as_compared, is_ordinary, to_literal

VALUE_TYPES = {
    **dict.fromkeys(("byte", "short", "integer"), "int"),
    **{kind: kind for kind in ("long", "float", "double", "string", "date", "timestamp")},
    "boolean": "bool",
}
OPERATORS = {
    "equal": ("=", pc.equal),
    "lessThan": ("<", pc.less),
    "lessThanOrEqual": ("<=", pc.less_equal),
    "greaterThan": (">", pc.greater),
    "greaterThanOrEqual": (">=", pc.greater_equal),
}
MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
MOST_COLUMNS = 10


class Hint(Protocol):
    """A predicate."""

    def tree(self) -> dict[str, Any]:
        """The node of the protocol's JSON."""

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        """True, false or null for each row."""


@dataclass(frozen=True)
class Compare:
    """A column beside a value. `declared` is the type told for both, which may be another than the column's."""

    column: str
    kind: str
    operator: str
    value: Any
    declared: str = ""

    def tree(self) -> dict[str, Any]:
        told = self.declared or VALUE_TYPES[self.kind]
        literal = {"op": "literal", "value": to_literal(self.value), "valueType": told}
        return {"op": self.operator, "children": [_column(self.column, told), literal]}

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        column = rows.column(self.column)
        if self.kind in FLOATS:
            # What NaN is compared to differs between engines: such rows are not judged.
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        return OPERATORS[self.operator][1](column, pa.scalar(as_compared(self.value), column.type))

    def sql(self, *, mirrored: bool = False) -> str:
        """The comparison in SQL, with the column first or last."""
        sign = OPERATORS[self.operator][0]
        is_bare = isinstance(self.value, int)
        literal = to_literal(self.value) if is_bare else f"'{to_literal(self.value)}'"
        return f"{literal} {MIRRORED[sign]} {self.column}" if mirrored else f"{self.column} {sign} {literal}"


@dataclass(frozen=True)
class IsNull:
    """A column that is null."""

    column: str
    kind: str

    def tree(self) -> dict[str, Any]:
        return {"op": "isNull", "children": [_column(self.column, VALUE_TYPES[self.kind])]}

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        return pc.is_null(rows.column(self.column))


@dataclass(frozen=True)
class Not:
    """The opposite."""

    part: Hint

    def tree(self) -> dict[str, Any]:
        return {"op": "not", "children": [self.part.tree()]}

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        return pc.invert(self.part.mask(rows))


@dataclass(frozen=True)
class Both:
    """All of the parts, or any of them."""

    operator: str
    parts: tuple[Hint, ...]

    def tree(self) -> dict[str, Any]:
        return {"op": self.operator, "children": [part.tree() for part in self.parts]}

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        join = pc.and_kleene if self.operator == "and" else pc.or_kleene
        mask = self.parts[0].mask(rows)
        for part in self.parts[1:]:
            mask = join(mask, part.mask(rows))
        return mask


def as_json(hint: Hint) -> str:
    """The text of `jsonPredicateHints`."""
    return json.dumps(hint.tree())


def matches(hint: Hint, one: FileRows) -> int:
    """How many rows of a file match."""
    return int(pc.sum(hint.mask(one.rows)).as_py() or 0)


def comparable_columns(reply: Reply) -> list[tuple[str, str]]:
    """The names and types of columns to compare, partition columns first."""
    columns = [(name, kind) for name, kind in columns_of(reply).values() if kind and name.isidentifier()]
    return sorted(columns, key=lambda column: column[0] not in reply.partition_columns)[:MOST_COLUMNS]


def comparisons(reply: Reply, files: Sequence[FileRows]) -> Iterator[Compare]:
    """Every comparison of each column with its least, its middle and its greatest value."""
    for name, kind in comparable_columns(reply):
        for value in samples(files, name):
            for operator in OPERATORS:
                yield Compare(name, kind, operator, value)


def samples(files: Sequence[FileRows], column: str) -> list[Any]:
    """The least, the middle and the greatest value of a column."""
    values = [value for value in distinct(files, column) if is_ordinary(value)]
    return sorted({values[0], values[len(values) // 2], values[-1]}) if values else []


def declared_otherwise(reply: Reply, files: Sequence[FileRows]) -> Iterator[Compare]:
    """Comparisons under another type than the column has, as casts in a query make them."""
    for name, kind in comparable_columns(reply):
        others = {"date": ("string",), **dict.fromkeys(INTEGERS, ("long", "double", "string"))}.get(kind, ())
        for value in samples(files, name):
            for declared in others:
                operators = ("equal",) if declared == "string" else tuple(OPERATORS)
                for operator in operators:
                    yield Compare(name, kind, operator, value, declared)


def combinations(reply: Reply, files: Sequence[FileRows]) -> Iterator[Hint]:
    """AND, OR and NOT over pairs of columns, as Spark writes IN, <=>, and its own null tests."""
    parts = [one for one in comparisons(reply, files) if one.operator in ("equal", "greaterThanOrEqual")]
    for one, other in zip(parts, reversed(parts), strict=True):
        is_null = IsNull(one.column, one.kind)
        yield Both("and", (Not(is_null), one))
        yield Both("or", (one, other))
        yield Both("and", (Not(one), other))
        yield Not(Both("and", (one, other)))
        yield Not(Both("or", (is_null, other)))
        yield Both(
            "or", (Both("and", (is_null, IsNull(other.column, other.kind))), Both("and", (one, other)))
        )


def _column(name: str, value_type: str) -> dict[str, str]:
    return {"op": "column", "name": name, "valueType": value_type}
