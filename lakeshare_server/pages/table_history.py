"""The versions of a table that a recipient may read, newest first, and how much each of them changed.

Changes are counted from the answer to a `startingVersion` query of this recipient: what it may not read is not counted.
"""

import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import Any

import orjson

from lakeshare_server.access.view import TableView
from lakeshare_server.errors import LakeshareError
from lakeshare_server.pages.in_place import PlaceSigners, asked_in_place, query_lines
from lakeshare_server.pages.table_facts import known_rows
from lakeshare_server.protocol.parameters import optional_number
from lakeshare_server.routes.context import AskedTable
from lakeshare_server.versions import Version

PAGE_VERSIONS = 20
# Of one page of versions; a version with more changes is told of without their number.
MOST_LINES = 20_000
# Indexes of old versions may have to be built first: so long may a page wait for them.
LONGEST_S = 2.0
SIGNS = {"add": 1, "remove": -1}


def table_history(by: AskedTable, signers: PlaceSigners) -> dict[str, Any]:
    """One page of versions as JSON's types; `before` of the answer asks for the next one.

    Raises:
        BadRequest: `before` is no number.
        NotFound: nothing was published yet.
    """
    before = optional_number(by.request.query_params, "before")
    found = list(islice(_readable(by.view, before), PAGE_VERSIONS + 1))
    counting = _Counting(asked_in_place(by, signers)) if by.view.entry.history else None
    told = []
    for version, earlier in zip_longest(found[:PAGE_VERSIONS], found[1:]):
        changes = counting.changes(version, earlier) if counting else None
        told.append({"version": version.number, "publishedAt": version.timestamp_ms, "changes": changes})
    by.note.version = found[0].number if found else None
    has_more = len(found) > PAGE_VERSIONS
    return {
        "history": by.view.entry.history,
        "versions": told,
        "before": found[PAGE_VERSIONS - 1].number if has_more else None,
    }


def _readable(view: TableView, before: int | None) -> Iterator[Version]:
    """The versions below a number, newest first."""
    first, latest = view.first_readable(), view.latest()
    found: Version | None = latest
    if before is not None and before <= latest.number:
        found = view.versions.at_or_below(before - 1) if before > first else None
    while found is not None and found.number >= first:
        yield found
        found = view.versions.at_or_below(found.number - 1) if found.number > first else None


class _Counting:
    """Counts what the versions of a page changed, within bounds for all of them together."""

    def __init__(self, asked: AskedTable) -> None:
        self._asked = asked
        self._lines = MOST_LINES
        self._ends_at = time.monotonic() + LONGEST_S

    def changes(self, version: Version, earlier: Version | None) -> dict[str, int | str | None] | None:
        """The files that a version added and removed, and the rows it has more than the one before it.

        None stands for more than may be counted, or for rows that files do not tell; a refusal has its reason.
        """
        files, rows, is_counted = Counter[str](), 0, True
        fields = {"startingVersion": version.number, "endingVersion": version.number}
        try:
            for line in query_lines(self._asked, fields):
                for word, sign in SIGNS.items():
                    file = line.get("file", {}).get("deltaSingleAction", {}).get(word)
                    if file is None:
                        continue
                    self._lines -= 1
                    if self._lines < 0:
                        return None
                    files[word] += 1
                    of_file = _live_rows(file)
                    is_counted = is_counted and of_file is not None
                    rows += sign * (of_file or 0)
            more = rows if is_counted else self._more_rows(version, earlier)
        except LakeshareError as error:
            return {"refusal": error.for_recipient()}
        return {"filesAdded": files["add"], "filesRemoved": files["remove"], "rows": more}

    def _more_rows(self, version: Version, earlier: Version | None) -> int | None:
        """By the indexes of both versions: the log of a table need not tell the rows of a file that it removes."""
        if earlier is None or time.monotonic() > self._ends_at:
            return None
        counts = [known_rows(self._asked.view.index(one)) for one in (version, earlier)]
        return None if counts[0] is None or counts[1] is None else counts[0] - counts[1]


def _live_rows(file: dict[str, Any]) -> int | None:
    """The rows of a file, if its statistics tell."""
    rows = orjson.loads(file["stats"]).get("numRecords") if file.get("stats") else None
    return (
        None if rows is None else max(0, rows - ((file.get("deletionVector") or {}).get("cardinality") or 0))
    )
