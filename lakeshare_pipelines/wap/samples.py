"""Sample rows of a failed check: few, only the columns that explain it, personal data masked."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lakeshare_pipelines.contracts import Table

SAMPLE_ROWS = 20
MASK = "***"
QUOTED = re.compile(r"'.*'", re.DOTALL)


def sample_columns(table: Table, judged: Iterable[str]) -> list[str]:
    """What a sample row shows: the judged columns, and those that say which row and partition it is."""
    partition = {column for column, _ in table.partition_by}
    wanted = {name.lower() for name in (*judged, *partition)}
    return [c.name for c in table.columns if c.primary_key or c.name.lower() in wanted]


def masked(
    table: Table, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]
) -> tuple[Mapping[str, Any], ...]:
    """At most `SAMPLE_ROWS` of `rows`, with personal data and columns the contract does not know as `***`.

    A null stays a null: that a value is missing is what most samples are there to show.
    """
    open_columns = {column.name.lower() for column in table.columns if not column.pii}
    return tuple(
        {name: _shown(row[name], name.lower() in open_columns) for name in columns if name in row}
        for row, _ in zip(rows, range(SAMPLE_ROWS), strict=False)
    )


def rejected_sample(table: Table, row: Mapping[str, Any], *, shows_values: bool) -> Mapping[str, Any]:
    """A row of the quarantine: where it came from and what was wrong with it.

    `shows_values` adds its values, except for tables with personal data.
    """
    shown = {name: row[name] for name in ("file", "line", "reason")}
    if shows_values and not has_pii(table):
        return shown | {"raw": row["raw"]}
    # Where values are shifted any column may hold what belongs into another, or into none of the contract.
    return shown | {"reason": QUOTED.sub(f"'{MASK}'", str(row["reason"]))}


def has_pii(table: Table, columns: Iterable[str] | None = None) -> bool:
    """Whether any of the columns (all of the table when None) holds personal data."""
    wanted = None if columns is None else {name.lower() for name in columns}
    return any(c.pii and (wanted is None or c.name.lower() in wanted) for c in table.columns)


def _shown(value: Any, is_open: bool) -> Any:
    return value if is_open or value is None else MASK
