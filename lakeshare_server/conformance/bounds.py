"""Whether statistics hold the rows they speak of."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.conformance.reply import Reply
from lakeshare_server.conformance.rows import columns_of, typed
from lakeshare_server.conformance.values import FLOATS, INTEGERS, to_value

# Bounds of times are cut to milliseconds, and readers know it.
CUT = timedelta(milliseconds=1)


def broken_bound(stats: Mapping[str, Any], rows: pa.Table, reply: Reply) -> str | None:
    """A sentence about the first column whose statistics do not hold its values; None if all do."""
    for name, (told, kind) in columns_of(reply).items():
        if name not in rows.column_names:
            continue
        column = typed(rows.column(name), kind) if kind else rows.column(name)
        nulls = (stats.get("nullCount") or {}).get(name)
        if isinstance(nulls, int) and nulls != column.null_count:
            return f"column {told} has {column.null_count} nulls, nullCount is {nulls}"
        low = _bound((stats.get("minValues") or {}).get(name), kind)
        high = _bound((stats.get("maxValues") or {}).get(name), kind)
        sentence = _outside(column, low, high)
        if sentence:
            return f"column {told} {sentence}"
    return None


def _outside(column: pa.ChunkedArray, low: Any, high: Any) -> str | None:
    if column.null_count == len(column) or (low is None and high is None):
        return None
    try:
        found = pc.min_max(column).as_py()
    except (OverflowError, ValueError):
        # Python has no dates before year 1 and after 9999.
        return None
    if low is not None and found["min"] < low:
        return f"holds {found['min']}, minValues says {low}"
    greatest = found["max"]
    if isinstance(greatest, datetime) and greatest.year > 1:
        greatest -= CUT
    # A long text's upper bound is cut and made larger in its last character.
    if high is not None and greatest > high and not str(greatest).startswith(str(high)):
        return f"holds {found['max']}, maxValues says {high}"
    return None


def _bound(value: object, kind: str) -> object:
    """A bound as Python has it; None where it says nothing."""
    if kind in INTEGERS and isinstance(value, int):
        return value
    if kind in FLOATS and isinstance(value, int | float):
        # A float is written as the shortest text that reads as the same float, not as the same double.
        return float(value) if kind == "double" else float(pa.scalar(value, pa.float32()).as_py())
    if not isinstance(value, str):
        return None
    try:
        return to_value(value, kind) if kind in ("date", "timestamp", "string") else None
    except ValueError:
        return None
