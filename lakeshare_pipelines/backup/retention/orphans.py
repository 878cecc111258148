"""Orphans: files below a table's root that none of its retained versions names, told from the copies of a point.

The live store is not asked, and nothing is ever removed.
"""

import datetime as dt
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import GIB, Backup
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.records import FoundTable, Point
from lakeshare_pipelines.backup.stores import BackupStore, open_store
from lakeshare_pipelines.backup.verify.delta.events import BrokenLogFile, told_by
from lakeshare_pipelines.backup.verify.delta.log_files import LOG, log_files
from lakeshare_pipelines.backup.verify.iceberg.closure import spelt
from lakeshare_pipelines.backup.verify.iceberg.metadata import FOLDER, NAME, Snapshot, read_metadata
from lakeshare_pipelines.errors import ObjectMissing
from lakeshare_server.tables.iceberg.avro import read_container
from lakeshare_server.tables.iceberg.entries import Entries
from lakeshare_server.tables.iceberg.manifests import listed_manifests

_log = logging.getLogger(__name__)

OLDER_THAN = dt.timedelta(days=7)
"""Younger files may be of a write that is not committed yet."""
NEVER = r"(^|/)(_delta_log|_change_data|\.hoodie|\.lakeshare[^/]*)/"
"""Folders whose files versions need in other ways than by name, or for readers of changes."""
EXAMPLES = 5
DELETED = 2
"""Iceberg spec, "Manifests": the status of an entry whose file is no more."""
COLUMNS = ["bucket", "key", "size_bytes", "last_modified", "stored_key", "stored_version_id", "table_root"]

Say = Callable[[str], None]


@dataclass(frozen=True)
class Orphans:
    """The orphans of one table."""

    root: str
    objects: int
    size_bytes: int
    usd_a_month: float
    """What keeping them costs, at the backup's price of storage."""
    examples: tuple[str, ...]
    """Keys, the largest first."""


@dataclass(frozen=True)
class OrphanReport:
    """The orphans of a point's tables, the most bytes first."""

    day: str
    tables: tuple[Orphans, ...]
    unknown: tuple[str, ...]
    """Sentences: tables whose copies do not tell what they name, so that nothing is said of them."""


def find_orphans(backup: Backup, points: Points, day: str, say: Say = _log.info) -> OrphanReport:
    """The orphans that a point shows of the source.

    A file counts where no version that the table's log or metadata can still make has it, it was seven days old at
    the point's moment, and it is no log, no change data, and no file that another table names.

    Raises:
        BackupError: there is no such point, or the store refuses.
    """
    point = points.get(day)
    held = pa.Table.from_batches(list(points.held(point, COLUMNS))).combine_chunks()
    store, named, unknown = open_store(backup.target_of(day)), [pa.array([], pa.string())], dict[str, str]()
    for table in point.plan.tables:
        say(f"reading what {table.root or 'the table'} names")
        try:
            named.append(_Reader(backup, store, held, table).named())
        except (BrokenLogFile, ObjectMissing, ValueError) as error:
            unknown[table.root] = f"{table.root}: {str(error).rstrip('.')}; nothing is said of its files."
    found = _orphans(backup, point, held, pa.chunked_array(named))
    known = [one for one in found if one.root not in unknown]
    return OrphanReport(day, tuple(known), tuple(unknown.values()))


def _orphans(backup: Backup, point: Point, held: pa.Table, named: pa.ChunkedArray) -> Iterator[Orphans]:
    roots = pa.array([table.root for table in point.plan.tables], pa.string())
    is_old = pc.less(held["last_modified"], pa.scalar(point.as_of - OLDER_THAN, held["last_modified"].type))
    rows = held.filter(pc.and_(pc.is_in(held["table_root"], roots), is_old))
    rows = rows.filter(pc.invert(pc.match_substring_regex(rows["key"], NEVER)))
    start = backup.source.location("")
    rows = rows.filter(
        pc.invert(pc.is_in(pc.binary_join_element_wise(start, rows["key"], ""), pc.unique(named)))
    )
    sums = rows.group_by("table_root").aggregate([("size_bytes", "sum"), ("key", "count")])
    for one in sums.sort_by([("size_bytes_sum", "descending"), ("table_root", "ascending")]).to_pylist():
        own = rows.filter(pc.equal(rows["table_root"], one["table_root"]))
        largest = own.sort_by([("size_bytes", "descending"), ("key", "ascending")])["key"]
        yield Orphans(
            one["table_root"],
            one["key_count"],
            one["size_bytes_sum"],
            round(one["size_bytes_sum"] / GIB * backup.prices.per_gib_month, 4),
            tuple(largest.slice(0, EXAMPLES).to_pylist()),
        )


class _Reader:
    """Reads what one table names, from the copies of its own log or metadata."""

    def __init__(self, backup: Backup, store: BackupStore, held: pa.Table, table: FoundTable) -> None:
        self._source, self._store, self._table = backup.source, store, table
        below = f"{table.root}/" if table.root else ""
        self._copies = held.filter(pc.starts_with(held["key"], below))
        self._places = {key: at for at, key in enumerate(self._copies["key"].to_pylist())}

    def named(self) -> pa.Array:
        """Locations of all files that a version which can still be made has.

        Raises:
            BrokenLogFile, ObjectMissing, ValueError: what tells it is not whole.
        """
        return self._by_delta() if self._table.format == "delta" else self._by_iceberg()

    def _by_delta(self) -> pa.Array:
        folder, root = self._below(LOG), self._source.location(self._table.root)
        log = log_files(key.removeprefix(folder) for key in self._places if key.startswith(folder))
        chains = log.chains()
        newest = max((*log.commits, *log.checkpoints), default=None)
        if newest is None or not chains or chains[-1].versions[-1] < newest:
            raise BrokenLogFile("", "the copy of its log has a hole")
        found = [pa.array([], pa.string())]
        for chain in chains:
            events = told_by(root, chain, lambda name: self._read(f"{folder}{name}")).events
            added = events.filter(events["is_add"])
            found += [*added["location"].chunks, *added["dv_location"].drop_null().chunks]
        return pc.unique(pa.chunked_array(found))

    def _by_iceberg(self) -> pa.Array:
        """What any metadata file names that is still there: branches of a catalog have some of their own."""
        folder = self._below(FOLDER)
        names = {key: key.removeprefix(folder) for key in self._places if key.startswith(folder)}
        keys = [key for key, name in names.items() if NAME.fullmatch(name)]
        found = {self._source.location(key) for key in keys}
        snapshots: dict[str, Snapshot] = {}
        for key in keys:
            said = read_metadata(key, self._read(key))
            found |= {spelt(location) for location in said.statistics}
            snapshots |= {one.manifest_list or f"snapshot {one.id}": one for one in said.snapshots.values()}
        manifests: set[tuple[str, int]] = set()
        for snapshot in snapshots.values():
            manifests |= self._manifests(snapshot, found)
        for location, spec_id in manifests:
            self._files(location, spec_id, found)
        return pa.array(sorted(found), pa.string())

    def _manifests(self, snapshot: Snapshot, found: set[str]) -> set[tuple[str, int]]:
        """Manifests of a snapshot; none of one that was expired, of which only old metadata still tells."""
        if snapshot.manifest_list is None:
            listed = {(spelt(location), 0) for location in snapshot.manifests}
        else:
            content = self._read_at(spelt(snapshot.manifest_list), found)
            told = [] if content is None else listed_manifests(content)
            listed = {(spelt(one.path), one.spec_id or 0) for one in told}
        return listed

    def _files(self, location: str, spec_id: int, found: set[str]) -> None:
        content = self._read_at(location, found)
        if content is None:
            return
        entries = Entries()
        entries.read(read_container(content), spec_id)
        columns = entries.columns["status"], entries.columns["path"]
        found |= {spelt(path.decode()) for status, path in zip(*columns, strict=True) if status != DELETED}

    def _read_at(self, location: str, found: set[str]) -> bytes | None:
        found.add(location)
        key = location.removeprefix(self._source.location(""))
        return self._read(key) if key in self._places else None

    def _below(self, folder: str) -> str:
        return f"{self._table.root}/{folder}/".lstrip("/")

    def _read(self, key: str) -> bytes:
        if key not in self._places:
            raise ObjectMissing(key)
        copy = self._copies.slice(self._places[key], 1).to_pylist()[0]
        return self._store.read(copy["stored_key"], copy["stored_version_id"])
