"""The cut of a listing at a moment: which version of which key belongs to the point, and why the others do not.

Works on batches of any number of rows; what it remembers are only keys that changed after the moment.
"""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.points import OWN_PREFIX
from lakeshare_pipelines.backup.rows import LISTING
from lakeshare_pipelines.backup.stores.address import FOLDER
from lakeshare_pipelines.errors import BackupError

MUTABLE = (
    r"(^|/)(_delta_log/_last_checkpoint|metadata/version-hint\.text|\.hoodie/hoodie\.properties|_SUCCESS|"
    r"\.[^/]+\.crc)$"
)
"""Keys that are overwritten in place, or that only Hadoop needs. `_delta_log/<version>.crc` is none of them."""

OUTSIDE, OWN, MARKER, AFTER = "outside the source", "own backup", "delete marker", "after as_of"
MUTABLE_NAME, OLDER, EMPTY_FOLDER = "mutable", "older version", "folder marker"

Batches = Callable[[], Iterable[pa.RecordBatch]]
"""The rows of a listing, from the first, each time it is called."""


@dataclass
class Cut:
    """What of a source belongs to a moment; `left_out` counts the rows that do not, by reason."""

    backup: Backup
    as_of: dt.datetime
    left_out: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._own = own_prefixes(self.backup)
        self._as_of = pa.scalar(self.as_of, LISTING.field("last_modified").type)

    def kept(self, listing: Batches, *, has_versions: bool) -> Iterator[pa.RecordBatch]:
        """The rows of schema LISTING that belong to the point, a key once.

        Of a listing of all versions that is the newest version from before the moment, also where it was
        overwritten or deleted since. Of a listing of current objects, it is what was not written since.
        """
        late = self._late_keys(listing()) if has_versions else None
        of_late: list[pa.RecordBatch] = []
        for batch in listing():
            ours = self._without(batch, self._of_another(batch), OUTSIDE)
            ours = self._without(ours, self._is_own(ours), OWN)
            ours = self._without(ours, pc.match_substring_regex(ours["key"], MUTABLE), MUTABLE_NAME)
            if late is not None:
                is_older = _and(pc.invert(ours["is_latest"]), pc.invert(pc.is_in(ours["key"], late)))
                ours = self._without(ours, is_older, OLDER)
            ours = self._without(ours, self._is_after(ours), AFTER)
            if late is not None and len(late):
                is_late = pc.is_in(ours["key"], late)
                of_late.append(ours.filter(is_late))
                ours = ours.filter(pc.invert(is_late))
            yield self._objects(ours)
        if of_late:
            newest = _newest(pa.Table.from_batches(of_late, LISTING))
            self.left_out[OLDER] += sum(batch.num_rows for batch in of_late) - newest.num_rows
            yield from (self._objects(batch) for batch in newest.to_batches())

    def _late_keys(self, listing: Iterable[pa.RecordBatch]) -> pa.Array:
        """Keys whose current version, or whose delete marker, is of after the moment."""
        found = [pa.array([], pa.string())]
        for batch in listing:
            found.append(batch.filter(_and(batch["is_latest"], self._is_after(batch)))["key"])
        return pc.unique(pa.chunked_array(found))

    def _objects(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        objects = self._without(batch, batch["is_delete_marker"], MARKER)
        if self.backup.target.kind == FOLDER:
            is_marker = _and(pc.ends_with(objects["key"], "/"), pc.equal(objects["size_bytes"], 0))
            objects = self._without(objects, is_marker, EMPTY_FOLDER)
        return objects

    def _without(self, batch: pa.RecordBatch, those: pa.Array, reason: str) -> pa.RecordBatch:
        those = pc.fill_null(those, False)
        if count := pc.sum(those).as_py() or 0:
            self.left_out[reason] += count
            return batch.filter(pc.invert(those))
        return batch

    def _of_another(self, batch: pa.RecordBatch) -> pa.Array:
        source = self.backup.source
        elsewhere = pc.not_equal(batch["bucket"], source.bucket)
        return pc.or_(elsewhere, pc.invert(pc.starts_with(batch["key"], source.prefix)))

    def _is_own(self, batch: pa.RecordBatch) -> pa.Array:
        found = pa.repeat(pa.scalar(False), batch.num_rows)
        for prefix in self._own:
            found = pc.or_(found, pc.starts_with(batch["key"], prefix))
        return found

    def _is_after(self, batch: pa.RecordBatch) -> pa.Array:
        return pc.fill_null(pc.greater_equal(batch["last_modified"], self._as_of), False)


def own_prefixes(backup: Backup) -> tuple[str, ...]:
    """What keys of the source begin with that lakeshare wrote itself: its records, and a target inside the source.

    Raises:
        BackupError: the target is the source.
    """
    found = {OWN_PREFIX, f"{backup.source.prefix}{OWN_PREFIX}"}
    inside = _inside(backup)
    if inside == "":
        raise BackupError(
            f"backup {backup.name}",
            f"its target {backup.target.url} is its source, or holds it",
            "Give it a target of its own, best in another account.",
        )
    if inside is not None:
        found.add(inside)
    return tuple(sorted(found))


def _inside(backup: Backup) -> str | None:
    """The keys in the source's store that are the target's; None when it is elsewhere, empty when it is the source."""
    source, target = backup.source, backup.target
    target_url = target.url.split("{day}")[0]
    if source.kind != target.kind or source.endpoint != target.endpoint:
        return None
    if source.kind == FOLDER:
        if f"{source.url}/".startswith(f"{target_url.rstrip('/')}/"):
            return ""
        root = f"{source.url.rstrip('/')}/"
        if not target_url.startswith(root):
            return None
        below = target_url.removeprefix(root)
        return below if "{day}" in target.url else f"{below}/"
    bucket, _, key = target_url.removeprefix("s3://").partition("/")
    if bucket != source.bucket:
        return None
    prefix = key if "{day}" in target.url else target.prefix
    return "" if source.prefix.startswith(prefix) else prefix


def _newest(rows: pa.Table) -> pa.Table:
    """The newest row of each key; the one that is current, or else no delete marker, where times are equal."""
    ordered = rows.append_column("_is_object", pc.invert(rows["is_delete_marker"])).sort_by(
        [
            ("key", "ascending"),
            ("last_modified", "descending"),
            ("is_latest", "descending"),
            ("_is_object", "descending"),
        ]
    )
    if not ordered.num_rows:
        return rows
    keys = ordered["key"].combine_chunks()
    first = pa.concat_arrays([pa.array([True]), pc.not_equal(keys[1:], keys[:-1])])
    return ordered.filter(first).select(LISTING.names).cast(LISTING)


def _and(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.and_(pc.fill_null(left, False), pc.fill_null(right, False))
