"""Rows in one form, whoever read them: Spark (the judge), our own reader by pyarrow, the Python client by pandas.

A row is a JSON list of its values in the order of the columns. What pandas cannot tell apart is told apart nowhere.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

Kind = str | Mapping[str, Any]
"""A type as Delta's schemas spell it."""

WHOLE = frozenset({"byte", "short", "integer", "long"})
BROKEN = frozenset({"float", "double"})
SHOWN = 3
WIDE = Context(prec=60)


@dataclass(frozen=True)
class Rows:
    """Some columns and the rows in them, sorted."""

    columns: tuple[tuple[str, Kind], ...]
    rows: tuple[str, ...]

    @classmethod
    def of(cls, columns: Iterable[tuple[str, Kind]], values: Iterable[Sequence[Any]]) -> "Rows":
        """Rows of plain values, each a list in the order of the columns."""
        columns = tuple(columns)
        kinds = [kind for _, kind in columns]
        lines = ([canonical(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in values)
        return cls(columns, tuple(sorted(json.dumps(line) for line in lines)))

    @classmethod
    def of_arrow(cls, table: pa.Table, schema: Mapping[str, Any]) -> "Rows":
        """Rows of an Arrow table, whose types a schema tells in Delta's words."""
        columns = [(field["name"], field["type"]) for field in schema["fields"]]
        lists = [table.column(position).to_pylist() for position in range(len(columns))]
        return cls.of(columns, zip(*lists, strict=True))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]

    def without(self, *names: str) -> "Rows":
        """The rows without some columns."""
        kept = [position for position, name in enumerate(self.names) if name not in names]
        columns = tuple(self.columns[position] for position in kept)
        rows = (json.loads(row) for row in self.rows)
        return Rows(columns, tuple(sorted(json.dumps([row[at] for at in kept]) for row in rows)))

    def where(self, wanted: Callable[[dict[str, Any]], bool]) -> "Rows":
        """The rows that a test of their values by name lets through."""
        chosen = (row for row in self.rows if wanted(dict(zip(self.names, json.loads(row), strict=True))))
        return Rows(self.columns, tuple(chosen))


def canonical(value: Any, kind: Kind) -> Any:
    """One value as JSON can carry it, the same for the same value of this type."""
    if not isinstance(kind, str):
        return None if value is None else _nested(value, kind)
    if _is_missing(value, kind):
        return None
    if kind.startswith("decimal("):
        scale = int(kind[:-1].split(",")[1])
        return format(Decimal(value).quantize(Decimal(1).scaleb(-scale), context=WIDE), "f")
    return PLAIN[kind](value)


def _float(value: Any) -> Any:
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _date(value: Any) -> str:
    return (value.date() if isinstance(value, datetime) else value).isoformat()


def _instant(value: Any) -> str:
    moment = pd.Timestamp(value) if isinstance(value, np.datetime64) else value
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="microseconds")[:26] + "Z"


def _wall_clock(value: Any) -> str:
    moment = pd.Timestamp(value) if isinstance(value, np.datetime64) else value
    if isinstance(moment, date) and not isinstance(moment, datetime):
        moment = datetime.combine(moment, time())
    return moment.isoformat(timespec="microseconds")[:26]


def _variant(value: Mapping[str, bytes]) -> dict[str, str]:
    return {part: value[part].hex() for part in ("metadata", "value")}


PLAIN: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(WHOLE, int),
    "float": lambda value: _float(np.float32(value)),
    "double": _float,
    "string": str,
    "binary": lambda value: bytes(value).hex(),
    "boolean": bool,
    "date": _date,
    "timestamp": _instant,
    "timestamp_ntz": _wall_clock,
    "variant": _variant,
    "void": lambda value: None,
}


def _nested(value: Any, kind: Mapping[str, Any]) -> Any:
    match kind["type"]:
        case "struct":
            return [canonical(value.get(field["name"]), field["type"]) for field in kind["fields"]]
        case "array":
            return [canonical(item, kind["elementType"]) for item in value]
        case "map":
            items = value.items() if isinstance(value, Mapping) else value
            pairs = [[canonical(k, kind["keyType"]), canonical(v, kind["valueType"])] for k, v in items]
            return sorted(pairs, key=json.dumps)
    raise AssertionError(f"no type of a Delta schema: {kind}")


def _is_missing(value: Any, kind: str) -> bool:
    """None, and the values that pandas and numpy have in its place."""
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    if isinstance(value, float | np.floating):
        return math.isnan(value) and kind not in BROKEN
    return value is None or value is pd.NaT


def same_rows(found: Rows, expected: Rows, what: str = "the rows") -> None:
    """Fail with the difference unless both have the same columns and rows."""
    assert found.names == expected.names, f"{what}: columns {found.names}, expected {expected.names}"
    _no_difference(found.rows, expected.rows, what)


def same_frame(frame: pd.DataFrame, expected: Rows, what: str = "the frame") -> None:
    """Fail with the difference unless a frame of pandas tells these rows, as well as pandas can.

    pandas has one value for null and NaN, and floats for whole numbers among which one is missing.
    """
    assert list(frame.columns) == expected.names, f"{what}: {list(frame.columns)}, not {expected.names}"
    kinds = [kind for _, kind in expected.columns]
    rounded = [
        isinstance(kind, str) and kind in WHOLE and frame.iloc[:, at].dtype.kind == "f"
        for at, kind in enumerate(kinds)
    ]
    lists = [frame.iloc[:, at].tolist() for at in range(len(kinds))]
    values = zip(*lists, strict=True) if lists else iter(())
    found = [[canonical(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in values]
    wanted = [json.loads(row) for row in expected.rows]
    _no_difference(_as_pandas(found, kinds, rounded), _as_pandas(wanted, kinds, rounded), what)


def _as_pandas(rows: Iterable[Sequence[Any]], kinds: Sequence[Kind], rounded: Sequence[bool]) -> list[str]:
    told = (
        [
            _blurred(value, kind, is_rounded)
            for value, kind, is_rounded in zip(row, kinds, rounded, strict=True)
        ]
        for row in rows
    )
    return [json.dumps(row) for row in told]


def _blurred(value: Any, kind: Kind, rounded: bool) -> Any:
    if value is None:
        return None
    if rounded:
        return int(float(value))
    if isinstance(kind, str):
        return None if kind in BROKEN and value == "nan" else value
    match kind["type"]:
        case "struct":
            inner = zip(value, kind["fields"], strict=True)
            return [_blurred(item, field["type"], False) for item, field in inner]
        case "array":
            return [_blurred(item, kind["elementType"], False) for item in value]
    return [[key, _blurred(item, kind["valueType"], False)] for key, item in value]


def _no_difference(found: Iterable[str], expected: Iterable[str], what: str) -> None:
    have, want = Counter(found), Counter(expected)
    missing, surplus = list((want - have).elements()), list((have - want).elements())
    assert not missing + surplus, (
        f"{what}: {len(missing)} rows missing, as {missing[:SHOWN]}; "
        f"{len(surplus)} too many, as {surplus[:SHOWN]}"
    )
