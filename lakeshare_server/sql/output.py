"""How answers are printed: a table to read, CSV or JSON for programs."""

import csv
import io
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Literal

from lakeshare_server.sql.errors import printable
from lakeshare_server.sql.looks import written
from lakeshare_server.sql.results import Cell
from lakeshare_server.sql.session import Done

OutputFormat = Literal["table", "csv", "json"]
NOTHING = "NULL"


def as_table(answer: Done) -> str:
    """Columns in line, and what was done or how many rows there are."""
    result = answer.result
    told = printable(result.told)
    if not result.columns:
        return told
    cells = [list(result.columns), *([_shown(cell) for cell in row] for row in result.rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(result.columns))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    rule = "  ".join("-" * width for width in widths)
    count = f"({len(result.rows)} row{'' if len(result.rows) == 1 else 's'})"
    return "\n".join([lines[0], rule, *lines[1:], f"{count} {told}".rstrip()])


def as_csv(answer: Done) -> str:
    """A header and the rows; nothing for statements without rows."""
    result = answer.result
    if not result.columns:
        return ""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(result.columns)
    writer.writerows([_text(cell) for cell in row] for row in result.rows)
    return text.getvalue().removesuffix("\n")


def as_json(answer: Done) -> str:
    """One object in one line: the statement, what was done, the rows as objects."""
    rows = [dict(zip(answer.result.columns, map(_plain, row), strict=True)) for row in answer.result.rows]
    told = {"statement": answer.text, "told": answer.result.told, "rows": rows}
    return json.dumps(told, ensure_ascii=False)


PRINTED: Mapping[OutputFormat, Callable[[Done], str]] = {"table": as_table, "csv": as_csv, "json": as_json}


def _plain(cell: Cell) -> str | int | bool | None:
    return written(cell) if isinstance(cell, datetime) else cell


def _text(cell: Cell) -> str | int | None:
    return str(cell).lower() if isinstance(cell, bool) else _plain(cell)


def _shown(cell: Cell) -> str:
    return NOTHING if cell is None else printable(str(_text(cell)))
