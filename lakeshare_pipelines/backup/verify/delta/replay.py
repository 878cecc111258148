"""Replay: adds and removes become life intervals [added, removed), and those tell every complete version.

A file that is missing makes exactly the versions of its interval incomplete. This is the form for logs that fit into
memory as columns; spark_replay.py is the one for those that do not, and both behave alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.verify.delta.events import EVENTS

INTERVALS = pa.schema(
    [
        pa.field("location", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64()),
        pa.field("since", pa.int64(), nullable=False),
        # The first version without it; null while it is still there.
        pa.field("until", pa.int64()),
    ]
)
"""When a version needs a file that is not there, or not with this size (null: of any size)."""


@dataclass(frozen=True)
class VersionCount:
    """What one version has: data files, their bytes, its rows as far as the log tells them, and what it lacks."""

    version: int
    files: int
    size_bytes: int
    rows: int | None
    lacking: int
    absolute: int = 0
    """Files that the log names by their whole place: a copy of the log still names the originals."""


@dataclass(frozen=True)
class Replayed:
    """A replayed chain: its versions in order, and the intervals of what is missing."""

    versions: tuple[VersionCount, ...]
    missing: pa.Table

    @property
    def complete(self) -> list[int]:
        """The versions that lack nothing."""
        return [one.version for one in self.versions if not one.lacking]

    def at(self, version: int) -> VersionCount | None:
        """One version; None when the chain does not make it."""
        return next((one for one in self.versions if one.version == version), None)

    def missing_at(self, version: int) -> list[str]:
        """Locations that a version needs and that are missing."""
        until = pc.fill_null(self.missing["until"], version + 1)
        needed = pc.and_(pc.less_equal(self.missing["since"], version), pc.greater(until, version))
        return sorted(set(self.missing["location"].filter(needed).to_pylist()))


def replay(events: pa.Table, versions: Sequence[int], there: pa.Table) -> Replayed:
    """Replay a chain.

    `events` are of schema EVENTS, `versions` those that the chain makes, `there` what is whole in the copy: columns
    `location` and `size_bytes`.
    """
    lives = _lives(events)
    missing = _missing(lives, there)
    return Replayed(counted(changes_by_version(lives, missing), versions), missing)


def changes_by_version(lives: pa.Table, missing: pa.Table) -> pa.Table:
    """By how much each version has more or less than the one before it: files, bytes, rows and so on."""
    zeros = pa.array([0] * lives.num_rows, pa.int64())
    ones = pc.add(zeros, 1)
    amounts = {
        "files": ones,
        "size_bytes": pc.fill_null(lives["size_bytes"], 0),
        "rows": pc.fill_null(lives["rows"], 0),
        "untold": pc.cast(pc.is_null(lives["rows"]), pa.int64()),
        "absolute": pc.cast(lives["is_absolute"], pa.int64()),
        "lacking": zeros,
    }
    gone = pc.is_valid(lives["until"])
    tables = [
        pa.table({"version": lives["version"], **amounts}),
        pa.table(
            {"version": lives["until"], **{name: pc.negate(amount) for name, amount in amounts.items()}}
        ).filter(gone),
    ]
    nothing = pa.array([0] * missing.num_rows, pa.int64())
    for column, amount in (("since", 1), ("until", -1)):
        counts = dict.fromkeys(amounts, nothing) | {"lacking": pc.add(nothing, amount)}
        tables.append(pa.table({"version": missing[column], **counts}).filter(pc.is_valid(missing[column])))
    grouped = pa.concat_tables(tables).group_by("version").aggregate([(name, "sum") for name in amounts])
    return grouped.rename_columns(["version", *amounts])


def counted(changes: pa.Table, versions: Sequence[int]) -> tuple[VersionCount, ...]:
    """What each version has, from the changes of all versions."""
    of_version = {row["version"]: row for row in changes.to_pylist()}
    wanted, found = set(versions), list[VersionCount]()
    files = size_bytes = rows = untold = lacking = absolute = 0
    for version in sorted(wanted | of_version.keys()):
        change = of_version.get(version, {})
        files += change.get("files", 0)
        size_bytes += change.get("size_bytes", 0)
        rows += change.get("rows", 0)
        untold += change.get("untold", 0)
        lacking += change.get("lacking", 0)
        absolute += change.get("absolute", 0)
        if version in wanted:
            found.append(
                VersionCount(version, files, size_bytes, None if untold else rows, lacking, absolute)
            )
    return tuple(found)


def _lives(events: pa.Table) -> pa.Table:
    """The events that begin a life, each with the version that ends it (`until`; null: it has not ended)."""
    events = events.cast(EVENTS).combine_chunks()
    if events.num_rows == 0:
        return events.append_column("until", pa.array([], pa.int64()))
    identity = pc.binary_join_element_wise(events["location"], events["dv_id"], "\n")
    codes = identity.combine_chunks().dictionary_encode().indices
    keys = pa.table(
        {"code": codes, "version": events["version"], "is_add": pc.cast(events["is_add"], pa.int8())}
    )
    # A commit may remove a file and add it again: what it adds is there after it.
    order = pc.sort_indices(keys, [("code", "ascending"), ("version", "ascending"), ("is_add", "ascending")])
    events, codes = events.take(order), codes.take(order)
    last = events.num_rows - 1
    goes_on = pc.equal(codes.slice(0, last), codes.slice(1))
    following = pc.if_else(goes_on, _flat(events["version"]).slice(1), pa.scalar(None, pa.int64()))
    lives = events.append_column("until", pa.concat_arrays([following, pa.nulls(1, pa.int64())]))
    lasts = pc.fill_null(pc.not_equal(lives["until"], lives["version"]), True)
    return lives.filter(pc.and_(lives["is_add"], lasts))


def _missing(lives: pa.Table, there: pa.Table) -> pa.Table:
    """The intervals of data files and vectors that are not there, or of another size."""
    when = {"since": lives["version"], "until": lives["until"]}
    data = pa.table({"location": lives["location"], "size_bytes": lives["size_bytes"], **when})
    anything = pa.nulls(lives.num_rows, pa.int64())
    vectors = pa.table({"location": lives["dv_location"], "size_bytes": anything, **when})
    needs = pa.concat_tables([data, vectors.filter(pc.is_valid(vectors["location"]))]).combine_chunks()
    place = pc.index_in(_flat(needs["location"]), _flat(there["location"]))
    found = pc.take(_flat(there["size_bytes"]), place)
    right = pc.or_kleene(pc.is_null(needs["size_bytes"]), pc.equal(found, needs["size_bytes"]))
    whole = pc.and_(pc.is_valid(place), pc.fill_null(right, False))
    return needs.filter(pc.invert(whole)).cast(INTERVALS)


def _flat(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
