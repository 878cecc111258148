"""What a version of a table is after the changes of the next one."""

import json
from collections import Counter
from collections.abc import Mapping

from tests.builders.canonical import Rows
from tests.builders.protocol_reader import FEED_COLUMNS

CAME = {"insert", "update_postimage"}


def applied(before: Rows, changes: Rows, renamed: Mapping[str, str] | None = None) -> Rows:
    """The rows of a version after changes; `renamed` has the older names of columns by their newer ones.

    Raises:
        AssertionError: a row goes that is not there.
    """
    columns = changes.columns[: -len(FEED_COLUMNS)]
    count: Counter[str] = Counter(_under(columns, before, renamed or {}))
    for row in map(json.loads, changes.rows):
        values, kind = json.dumps(row[: -len(FEED_COLUMNS)]), row[-len(FEED_COLUMNS)]
        count[values] += 1 if kind in CAME else -1
    gone = [row for row, times in count.items() if times < 0]
    assert not gone, f"rows went that were not there: {gone[:3]}"
    return Rows(columns, tuple(sorted(count.elements())))


def _under(columns: tuple, before: Rows, renamed: Mapping[str, str]) -> list[str]:
    places = {name: place for place, name in enumerate(before.names)}
    wanted = [places.get(renamed.get(name, name)) for name, _ in columns]
    return [
        json.dumps([None if place is None else row[place] for place in wanted])
        for row in map(json.loads, before.rows)
    ]
