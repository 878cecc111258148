"""A copied Iceberg table: which of its metadata files is current at as_of, and the newest that is complete."""

import datetime as dt
from dataclasses import dataclass, field

from lakeshare_pipelines.backup.verify.iceberg.closure import Closure, CopiedFiles, spelt
from lakeshare_pipelines.backup.verify.iceberg.metadata import FOLDER, NAME, TableMetadata, read_metadata
from lakeshare_pipelines.backup.verify.table_copy import Need, TableCopy
from lakeshare_pipelines.errors import ObjectMissing

NEWEST = 50
"""So many metadata files are looked at; tables keep a hundred by default."""


@dataclass(frozen=True)
class State:
    """A metadata file whose current snapshot is complete; `complete` are all its snapshots that are."""

    metadata: TableMetadata
    closure: Closure
    complete: tuple[int, ...]
    without_statistics: tuple[str, ...]
    """Files of statistics that are nowhere: the table opens without them."""


@dataclass
class IcebergAssessment:
    """What the copy of a table can be opened at, newest first, and what would make it better."""

    wanted: TableMetadata | None = None
    states: list[State] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    is_newest_read: bool = True
    """No metadata file that is newer than `wanted` was left out because it cannot be read."""

    @property
    def wanted_rows(self) -> int | None:
        """How many rows the newest state has; None where that is not known."""
        if self.wanted is None or not self.is_newest_read:
            return None
        if self.wanted.current is None:
            return 0
        snapshot = self.wanted.snapshots.get(self.wanted.current)
        return None if snapshot is None else snapshot.rows


def assess(copy: TableCopy, as_of: dt.datetime, pointer: str | None, tried: int) -> IcebergAssessment:
    """What the copy of an Iceberg table can be opened at.

    `pointer` is the location of the metadata file that the catalog had at as_of, where there is one: then only it and
    those before it count, for others may be of branches that nobody published.
    """
    files, found = CopiedFiles(copy), IcebergAssessment()
    if pointer is None:
        newest_first = _newest(copy, files, as_of, found)
    else:
        newest_first = _from_pointer(copy, files, spelt(pointer), found)
    found.wanted = newest_first[0] if newest_first else None
    for metadata in newest_first:
        closure = Closure() if metadata.current is None else _closure(copy, files, metadata, metadata.current)
        lost = tuple(spelt(one) for one in metadata.statistics if files.size_bytes(one) is None)
        if metadata is found.wanted:
            found.needs += [*closure.needs, *(Need(one) for one in lost)]
        if not closure.needs:
            complete = [one.id for one in metadata.snapshots.values() if not files.closure(one).needs]
            found.states.append(State(metadata, closure, tuple(complete), lost))
            if len(found.states) == tried:
                break
    return found


def _closure(copy: TableCopy, files: CopiedFiles, metadata: TableMetadata, snapshot: int) -> Closure:
    of = metadata.snapshots.get(snapshot)
    # A current snapshot that the file does not have: nothing of it can be read.
    return files.closure(of) if of is not None else Closure(needs=[Need(_location(copy, metadata.key))])


def _location(copy: TableCopy, key: str) -> str:
    return copy.source.at(copy.table.bucket).location(key)


def _newest(
    copy: TableCopy, files: CopiedFiles, as_of: dt.datetime, found: IcebergAssessment
) -> list[TableMetadata]:
    """The newest metadata files that were listed, newest first; what of them is not whole is needed."""
    rows = copy.below(f"{FOLDER}/").select(["key", "location", "last_modified", "is_whole"]).to_pylist()
    named = [row for row in rows if NAME.fullmatch(row["key"])]
    named.sort(key=lambda row: row["last_modified"], reverse=True)
    read: list[TableMetadata] = []
    for row in named[:NEWEST]:
        metadata = _read(files, row["location"], row["key"], found)
        if metadata is None:
            # Those before it were written later: only what comes before all that can be read hides a newer state.
            found.is_newest_read = found.is_newest_read and bool(read)
        elif metadata.updated_at < as_of:
            read.append(metadata)
    read.sort(key=lambda one: (one.updated_at, one.sequence_number, one.key), reverse=True)
    # A table that was made anew at the same place has another identity.
    return [one for one in read if one.uuid == read[0].uuid]


def _from_pointer(
    copy: TableCopy, files: CopiedFiles, pointer: str, found: IcebergAssessment
) -> list[TableMetadata]:
    """The metadata file that the catalog names, and those it was made from, newest first."""
    root = _location(copy, "")
    first = _read(files, pointer, pointer.removeprefix(root), found)
    if first is None:
        return []
    earlier = [spelt(one) for one in first.earlier[:NEWEST] if files.size_bytes(one) is not None]
    read = [_read(files, one, one.removeprefix(root), found) for one in earlier]
    return [first, *(one for one in read if one is not None)]


def _read(files: CopiedFiles, location: str, key: str, found: IcebergAssessment) -> TableMetadata | None:
    try:
        return read_metadata(key, files.read(location))
    except ObjectMissing:
        found.reasons.append(f"{key} is not in the copy.")
    except ValueError as error:
        found.reasons.append(f"{error}.")
    found.needs.append(Need(location))
    return None
