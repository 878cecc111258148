"""Random filters of Iceberg's scans, as expressions of the REST specification, and what PyIceberg finds by them.

Rows are lists in the order of the columns, with values as Iceberg's evaluators have them: dates and times are numbers.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
US = timedelta(microseconds=1)
BROKEN = ("float", "double")


def constant(kind: str, value: Any, random: Random) -> Any:
    """A constant as PyIceberg or Java write it."""
    if isinstance(value, Decimal):
        return str(value)
    if kind == "date" and random.random() < 0.5:
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    if kind.startswith("timestamp") and random.random() < 0.5:
        text = (EPOCH + timedelta(microseconds=value)).isoformat()
        return text if kind == "timestamptz" else text.removesuffix("+00:00")
    return value


def a_filter(
    random: Random, columns: Mapping[str, str], rows: Sequence[Sequence[Any]], depth: int = 3
) -> dict[str, Any]:
    """An expression on columns, given as Iceberg's types by name, with constants that are in the rows."""
    form = random.choice(("and", "or", "not", "leaf", "leaf")) if depth else "leaf"
    if form in ("and", "or"):
        left, right = (a_filter(random, columns, rows, depth - 1) for _ in range(2))
        return {"type": form, "left": left, "right": right}
    if form == "not":
        return {"type": form, "child": a_filter(random, columns, rows, depth - 1)}
    place, (name, kind) = random.choice(list(enumerate(columns.items())))
    term: Any = random.choice((name, {"type": "reference", "term": name}))
    # JSON has no words for other numbers, and for bytes clients have several.
    known = [row[place] for row in rows if row[place] is not None and _is_written(row[place])]
    if not known or random.random() < 0.15:
        return {"type": random.choice(("is-null", "not-null")), "term": name}
    values = [constant(kind, random.choice(known), random) for _ in range(3)]
    if kind == "string" and random.random() < 0.3:
        form = random.choice(("starts-with", "not-starts-with"))
        return {"type": form, "term": name, "value": values[0][:2]}
    if kind in BROKEN and random.random() < 0.3:
        return {"type": random.choice(("is-nan", "not-nan")), "term": name}
    if random.random() < 0.25:
        return {"type": random.choice(("in", "not-in")), "term": term, "values": values}
    forms = ("eq", "not-eq") if kind == "boolean" else ("eq", "not-eq", "lt", "lt-eq", "gt", "gt-eq")
    return {"type": random.choice(forms), "term": term, "value": values[0]}


def _is_written(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else not isinstance(value, bytes)


def expression(condition: Any) -> Any:
    """PyIceberg's reading of an expression; it knows references by their names alone."""
    from pydantic import TypeAdapter
    from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression

    def named(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if node.get("type") == "reference":
            return node["term"]
        return {name: named(part) for name, part in node.items()}

    if isinstance(condition, bool):
        return AlwaysTrue() if condition else AlwaysFalse()
    return TypeAdapter(BooleanExpression).validate_python(named(condition))


def matches(schema: Any, condition: Any, rows: Sequence[Sequence[Any]]) -> list[bool]:
    """Which rows PyIceberg's evaluator finds."""
    from pyiceberg.expressions.visitors import expression_evaluator
    from pyiceberg.typedef import Record

    evaluates = expression_evaluator(schema, expression(condition), case_sensitive=True)
    return [bool(evaluates(Record(*row))) for row in rows]


def as_evaluated(value: Any) -> Any:
    """A plain value as Iceberg's evaluators have it."""
    if isinstance(value, datetime):
        return (value.replace(tzinfo=value.tzinfo or UTC) - EPOCH) // US
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value
