"""The versions of a table that a recipient may read, newest first, and how much each of them changed.

Changes are counted from the answer to a `startingVersion` query of this recipient: what it may not read is not counted.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson

from lakeshare_server.access.view import TableView
from lakeshare_server.errors import LakeshareError
from lakeshare_server.pages.in_place import PlaceSigners, asked_in_place, query_lines
from lakeshare_server.protocol.parameters import optional_number
from lakeshare_server.routes.context import AskedTable
from lakeshare_server.versions import Version

PAGE_VERSIONS = 20
# Of one page of versions; a version with more changes is told of without their number.
MOST_LINES = 20_000


def table_history(by: AskedTable, signers: PlaceSigners) -> dict[str, Any]:
    """One page of versions as JSON's types; `before` of the answer asks for the next one.

    Raises:
        BadRequest: `before` is no number.
        NotFound: nothing was published yet.
    """
    before = optional_number(by.request.query_params, "before")
    shown: list[Version] = []
    following: int | None = None
    for version in _readable(by.view, before):
        if len(shown) == PAGE_VERSIONS:
            following = shown[-1].number
            break
        shown.append(version)
    asked, room = asked_in_place(by, signers), MOST_LINES
    told = []
    for version in shown:
        changes, lines = _changes(asked, version, room) if by.view.entry.history else (None, 0)
        room -= lines
        told.append({"version": version.number, "publishedAt": version.timestamp_ms, "changes": changes})
    by.note.version = shown[0].number if shown else None
    return {"history": by.view.entry.history, "versions": told, "before": following}


def _readable(view: TableView, before: int | None) -> Iterator[Version]:
    """The versions below a number, newest first."""
    first, latest = view.first_readable(), view.latest()
    found: Version | None = latest
    if before is not None and before <= latest.number:
        found = view.versions.at_or_below(before - 1) if before > first else None
    while found is not None and found.number >= first:
        yield found
        found = view.versions.at_or_below(found.number - 1) if found.number > first else None


def _changes(
    asked: AskedTable, version: Version, room: int
) -> tuple[dict[str, int | str | None] | None, int]:
    """The files that a version added and removed, the rows it has more, and how many lines that took to find out.

    None stands for more than may be counted, or for files that do not tell their rows; a refusal has its reason.
    """
    counts, taken = Counter[str](), 0
    fields = {"startingVersion": version.number, "endingVersion": version.number}
    try:
        for line in query_lines(asked, fields):
            if "file" not in line:
                continue
            taken += 1
            if taken > room:
                return None, room
            _count(line["file"]["deltaSingleAction"], counts)
    except LakeshareError as error:
        return {"refusal": str(error)}, taken
    rows = counts["rowsAdded"] - counts["rowsRemoved"]
    files = {name: counts[name] for name in ("filesAdded", "filesRemoved")}
    return {**files, "rows": None if counts["unknown"] else rows}, taken


def _count(action: dict[str, Any], counts: Counter[str]) -> None:
    for word, what in (("add", "Added"), ("remove", "Removed")):
        if word in action:
            counts[f"files{what}"] += 1
            rows = _live_rows(action[word])
            if rows is None:
                counts["unknown"] += 1
            else:
                counts[f"rows{what}"] += rows


def _live_rows(file: dict[str, Any]) -> int | None:
    """The rows of a file, if its statistics tell."""
    rows = orjson.loads(file["stats"]).get("numRecords") if file.get("stats") else None
    return (
        None if rows is None else max(0, rows - ((file.get("deletionVector") or {}).get("cardinality") or 0))
    )
