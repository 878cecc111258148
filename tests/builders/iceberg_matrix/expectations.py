"""What each client makes of each table, as `expected.txt` has it, and the stated fixes of the tables refused.

`expected.txt` has one line for a table and one column for a client.
"""

from collections.abc import Mapping
from pathlib import Path

from tests.builders.iceberg_matrix import TABLES
from tests.builders.iceberg_matrix.clients import NAMES, OWN_LIMIT, ROWS
from tests.builders.iceberg_matrix.plan import COMPACT, COMPACT_DELETES, Step

NOBODY = "nobody"


def expectations() -> dict[str, dict[str, str]]:
    """`{table: {client: cell}}`; a table that is refused at publication has its code in every cell."""
    lines = Path(__file__).with_name("expected.txt").read_text().splitlines()
    header, *rows = (line.split() for line in lines if line and not line.startswith("#"))
    assert header == ["table", *NAMES], header
    return {name: _cells(name, cells) for name, *cells in rows}


def _cells(name: str, cells: list[str]) -> dict[str, str]:
    if cells[0] == NOBODY:
        assert len(cells) == 2, name
        return dict.fromkeys(NAMES, cells[1])
    return dict(zip(NAMES, cells, strict=True))


def refusals(cells: Mapping[str, str]) -> list[str]:
    """The codes that some client is refused with, each once."""
    return list(dict.fromkeys(cell for cell in cells.values() if cell not in (ROWS, OWN_LIMIT)))


def is_for_nobody(cells: Mapping[str, str]) -> bool:
    """Whether the publication itself is refused."""
    return len(refusals(cells)) == 1 and set(cells.values()) == set(refusals(cells))


EXPECTED = expectations()
# The stated fix by its code, where it does not depend on the columns of the table; otherwise it is in the plan.
FIXES: Mapping[str, Step] = {
    **dict.fromkeys(("RENAMED_COLUMNS", "WIDENED_TYPES", "FILES_WITHOUT_IDS", "COLUMN_DEFAULTS"), COMPACT),
    "PARTITION_VALUES_NOT_IN_FILES": COMPACT,
    "ROW_LEVEL_DELETES": COMPACT_DELETES,
}
# Of the stories of deletes, which all have one fix, the longest.
LONG_STORIES = (
    *("v2_partitioned_anew", "v3_many_generations", "v2_upgraded", "v3_nothing_left"),
    "v2_equality_and_positions",
)
FIXED = [
    name
    for name, cells in EXPECTED.items()
    if refusals(cells) and (refusals(cells) != ["ROW_LEVEL_DELETES"] or name in LONG_STORIES)
]
"""Tables that are fixed and read again."""


def fix_of(name: str) -> tuple[Step, ...]:
    """The steps of the fix that the refusals of a table state."""
    return TABLES[name].fix or tuple(dict.fromkeys(FIXES[code] for code in refusals(EXPECTED[name])))
