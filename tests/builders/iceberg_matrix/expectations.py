"""What each client makes of each table, as `expected.txt` has it: one line for a table, one column for a client."""

from collections.abc import Mapping
from pathlib import Path

from tests.builders.iceberg_matrix.clients import NAMES, OWN_LIMIT, ROWS

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
