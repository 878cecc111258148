"""One table's part of a copy: its objects, how they are read, and what it turns out to need besides.

For both formats; what a table's own metadata says is read in `delta/` and `iceberg/`.
"""

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.records import FoundTable, TableProof
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress

ENOUGH = 0.5
"""An older state with a smaller share of the newest state's rows is another table to its readers."""
PRESENT, OPENED = 1, 4
"""Levels: every copy is there with its size; and an independent reader read every data file."""


@dataclass(frozen=True)
class Need:
    """Something a table needs that is not whole in the copy.

    `size_bytes` is what the table itself says of it, None where it does not.
    """

    location: str
    size_bytes: int | None = None
    etag: str | None = None
    """As the source's store says now, of what it was asked for."""


@dataclass(frozen=True)
class TableCopy:
    """The objects of one table; `objects` are rows of schema OBJECTS below its root."""

    table: FoundTable
    source: StoreAddress
    store: BackupStore
    """Where the copies are."""
    objects: pa.Table
    elsewhere: Callable[[Sequence[str]], pa.Table]
    """Rows of schema OBJECTS by location, of any table or none."""

    @property
    def location(self) -> str:
        """The root at its source, as tables spell it."""
        return self.source.at(self.table.bucket).location(self.table.root)

    @property
    def whole(self) -> pa.Table:
        """The objects whose copies are whole."""
        return self.objects.filter(self.objects["is_whole"])

    def below(self, name: str) -> pa.Table:
        """The objects below a folder of the table; `name` ends with a slash."""
        folder = f"{self.table.root}/{name}".lstrip("/")
        return self.objects.filter(pc.starts_with(self.objects["key"], folder))

    def is_inside(self, location: str) -> bool:
        """Whether it is below the table's root."""
        return location.startswith(f"{self.location.rstrip('/')}/")

    def stored_key(self, key: str) -> str:
        """Where the copy of a key of this table is, or would be."""
        below = key.removeprefix(self.table.root).lstrip("/")
        return f"{self.table.stored_root.rstrip('/')}/{below}"

    def there(self, named: pa.Array) -> pa.Table:
        """What is whole of the copy: its own objects, and of those named the ones of other tables, or of none.

        Also below its own root: what a run staged there may be a table of its own, and later a part of this one.
        """
        own = self.whole
        named = pc.unique(named.drop_null())
        others = named.filter(pc.invert(pc.is_in(named, value_set=own["location"].combine_chunks())))
        if not len(others):
            return own
        found = self.elsewhere(others.to_pylist())
        return pa.concat_tables([own, found.filter(found["is_whole"])])

    def proved(self, within_days: int, *, was_read: bool) -> "Proved":
        """What is proved of the copies of an opened table; `was_read`: its reader read every data file."""
        whole = self.whole
        compared_at = pc.min(whole["compared_at"]).as_py()
        lowest = int(pc.min(whole["level"]).as_py() or 0)
        stale = compared_at is not None and compared_at < dt.datetime.now(dt.UTC) - dt.timedelta(
            days=within_days
        )
        if stale:
            reason = (
                f"Some of its copies were compared last on {compared_at:%Y-%m-%d}, more than {within_days} days ago: "
                "`lakeshare backup scrub` reads them again."
            )
            return Proved(min(lowest, PRESENT), compared_at, (reason,))
        if not was_read:
            reason = "It has too many files for all of them to be read: opened was its log, or its manifests."
            return Proved(lowest, compared_at, (reason,))
        return Proved(OPENED, compared_at, ())


@dataclass(frozen=True)
class Proved:
    """The level that the copies of an opened table have reached, since when, and why it is not the highest."""

    level: int
    compared_at: dt.datetime | None
    reasons: tuple[str, ...]


class AssessedTable(Protocol):
    """A table of one format, after its own metadata was read from the copy."""

    @property
    def copy(self) -> TableCopy:
        """The objects it is made of."""
        ...

    @property
    def needs(self) -> list[Need]:
        """What its newest version before as_of needs that is not whole."""
        ...

    @property
    def removed(self) -> list[str]:
        """Stored keys that were taken out of the copy when it was proved: what speaks of later versions."""
        ...

    def unlisted(self, source: BackupStore) -> list[Need]:
        """What the source has of the table from before as_of that no listing told of; asks the source."""
        ...

    def proof(self) -> TableProof:
        """Open it, at the newest version at which that goes well."""
        ...


def too_small(rows: int | None, newest_rows: int | None) -> str | None:
    """Why an older state is no fallback: it is empty, or has less than half of the newest state's rows."""
    if rows is None or (newest_rows is not None and rows >= newest_rows * ENOUGH):
        return None
    if newest_rows is None and rows > 0:
        return None
    newest = (
        "how many the newest one has is not known"
        if newest_rows is None
        else f"the newest one has {newest_rows}"
    )
    return (
        f"The older state has {rows} rows, {newest}: it is no fallback. Restore the table from another point, or name "
        "this state with --point and --version."
    )


def outside_reasons(copy: TableCopy, needs: Sequence[Need], backup: Backup) -> list[str]:
    """What to say of needs that are outside of the source and were not followed; nothing where there are none."""
    inside = copy.source.at(copy.table.bucket).location("")
    outside = [need.location for need in needs if not need.location.startswith(inside)]
    if not outside or backup.external == "follow":
        return []
    return [
        f"{len(outside)} of its files are outside of the source, the first is {outside[0]}: say `external: follow` "
        "in the backup to have them copied as well, or rewrite the table so that it has its files to itself."
    ]
