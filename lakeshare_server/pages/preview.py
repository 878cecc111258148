"""A preview: the first rows of a table, of exactly the files that a query of this recipient would get."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lakeshare_server.access.elsewhere import local_folders
from lakeshare_server.pages.file_rows import RowReader
from lakeshare_server.pages.in_place import PlaceSigners, asked_in_place, query_lines
from lakeshare_server.protocol.parameters import optional_number
from lakeshare_server.routes.context import AskedTable
from lakeshare_server.stores import Stores

ROWS = 50
MOST_ROWS = 500
# Rows are read into memory, a few files of a few tables at a time.
AT_ONCE = 4


@dataclass(frozen=True)
class Previews:
    """Reads rows for recipients, in the server's place; for many threads."""

    signers: PlaceSigners
    stores: Stores
    _turns: dict[tuple[str, ...], asyncio.Semaphore] = field(default_factory=dict)

    def turns(self, services: Sequence[str]) -> asyncio.Semaphore:
        """What previews of tables in these services take turns by: one store that hangs holds up no other's."""
        return self._turns.setdefault(tuple(services), asyncio.Semaphore(AT_ONCE))

    def preview(self, by: AskedTable) -> dict[str, Any]:
        """The first rows as JSON's types: every value is a text or null.

        Raises:
            BadRequest: a parameter has a value that cannot be used.
            LakeshareError: whatever the query is refused with, or a file cannot be read.
        """
        query = by.request.query_params
        wanted = optional_number(query, "limit", low=1, high=MOST_ROWS) or ROWS
        version = optional_number(query, "version", said="table version")
        asked = asked_in_place(by, self.signers)
        # One row more than is shown says whether there are more.
        fields = {"limitHint": wanted + 1, **({} if version is None else {"version": version})}
        reader: RowReader | None = None
        rows: list[list[str | None]] = []
        by.note.files = 0
        for line in query_lines(asked, fields):
            if "metaData" in line:
                metadata = line["metaData"]["deltaMetadata"]
                reader = RowReader(by.parts.settings, self.stores, metadata, _folders(asked))
            elif "file" in line and reader is not None:
                by.note.files += 1
                rows += reader.rows(line["file"]["deltaSingleAction"]["add"], wanted + 1 - len(rows))
            if len(rows) > wanted:
                break
        by.note.version, by.note.rows = asked.note.version, min(len(rows), wanted)
        return {
            "version": by.note.version,
            "columns": [_column(one.name, one.kind) for one in reader.columns] if reader else [],
            "rows": rows[:wanted],
            "hasMore": len(rows) > wanted,
        }


def _folders(asked: AskedTable) -> list[str]:
    """The folders of the server's own disk that the version which was asked for has files in."""
    version = asked.view.latest() if asked.note.version is None else asked.view.pinned(asked.note.version)
    header = asked.view.index(version).header
    return local_folders(header.location, header.roots)


def _column(name: str, kind: Any) -> dict[str, str]:
    return {"name": name, "type": kind if isinstance(kind, str) else str(kind["type"])}
