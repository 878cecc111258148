"""Where copies are, or will be, in the target: one prefix before the key, the same for all of a table.

Which tables must move to a new prefix, as their files are not what the target has at their place, is decided here.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.plan.tables import Format, Roots
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.records import FoundTable, Point
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.errors import DamagedRecord

ROWS_AT_ONCE = 1_000_000
ASKED_AT_ONCE = 64
STORED = ["stored_key", "etag", "size_bytes"]


@dataclass
class Places:
    """Stored keys of one plan; `moved` are families of tables, `moved_keys` objects of no table, that go elsewhere."""

    usual: str
    """Prefix of what is nowhere special; empty, or with a slash at its end."""
    remade: str
    """Prefix of what is moved by this plan."""
    roots: Roots
    of_family: dict[str, str]
    """Prefixes of families that an earlier point moved."""
    moved: set[str] = field(default_factory=set)
    moved_keys: set[str] = field(default_factory=set)

    def stored_keys(self, keys: pa.Array) -> pa.Array:
        """Where each key is to be."""
        return pc.binary_join_element_wise(self.prefixes(keys), keys, "")

    def prefixes(self, keys: pa.Array) -> pa.Array:
        """What stands before each key in the target: empty, or with a slash at its end."""
        families = self.roots.families(keys).dictionary_encode(null_encoding="encode")
        of = [self.usual if one is None else self._prefix(one) for one in families.dictionary.to_pylist()]
        found = pa.array(of, pa.string()).take(families.indices)
        if not self.moved_keys:
            return found
        return pc.if_else(pc.is_in(keys, _sorted(self.moved_keys)), self.remade, found)

    def is_moved(self, keys: pa.Array) -> pa.Array:
        """Whether each key belongs to a family that moves, so that all of it is copied again."""
        return pc.is_in(self.roots.families(keys), _sorted(self.moved))

    def move(self, keys: pa.Array) -> None:
        """Let these keys, and all of the families they belong to, go to a place of this plan's own."""
        families = self.roots.families(keys)
        self.moved.update(pc.unique(families.drop_null()).to_pylist())
        self.moved_keys.update(keys.filter(pc.is_null(families)).to_pylist())

    def misplaced(self, keys: pa.Array, stored_keys: pa.Array) -> pa.Array:
        """Those keys of tables that are held elsewhere than the rest of their family."""
        is_astray = pc.not_equal(self.stored_keys(keys), stored_keys)
        return keys.filter(pc.and_(is_astray, pc.is_valid(self.roots.families(keys))))

    def found(self, bucket: str, tables: dict[str, Format]) -> tuple[FoundTable, ...]:
        """The tables with their roots in the target."""
        return tuple(
            FoundTable(bucket=bucket, root=root, format=of, stored_root=self.stored_root(root))
            for root, of in tables.items()
        )

    def stored_root(self, root: str) -> str:
        """Key of a root in the target, without a slash at its end."""
        return f"{self._prefix(self.roots.family(root))}{root}".rstrip("/")

    def _prefix(self, family: str) -> str:
        return self.remade if family in self.moved else self.of_family.get(family, self.usual)


def places_of(backup: Backup, day: str, roots: Roots, previous: Point | None) -> Places:
    """Where a day's copies go before anything is moved: to where the point before has them."""
    target = backup.target_of(day).prefix
    if backup.layout == "dated":
        return Places(target, target, roots, {})
    before = {} if previous is None else {table.root: _prefix_of(table) for table in previous.plan.tables}
    return Places(f"{target}objects/", f"{target}remade/{day}/", roots, before)


def taken(points: Points, days: Sequence[str], wanted: pa.Table) -> pa.Array:
    """Keys of `wanted` (key, stored_key, etag, size_bytes) whose place has something else, by the points of `days`.

    What a point holds must stay: nothing may be copied over it, though the point before this one knows nothing of it.
    """
    found = [pa.array([], pa.string())]
    stored = wanted["stored_key"].combine_chunks()
    for day in days if wanted.num_rows else ():
        try:
            holds = list(_at_once(points.held(points.get(day), STORED)))
        except DamagedRecord:
            # What it holds is not known: whatever is at these places may be its own.
            holds = [_there(points.backup.target_of(day), stored)]
        for held in holds:
            at = pc.index_in(held["stored_key"], stored)
            is_there = pc.is_valid(at)
            there, ours = held.filter(is_there), wanted.take(at.filter(is_there))
            is_same = pc.and_(
                pc.equal(there["etag"], ours["etag"]), pc.equal(there["size_bytes"], ours["size_bytes"])
            )
            found.append(ours["key"].filter(pc.invert(pc.fill_null(is_same, False))))
    return pc.unique(pa.chunked_array([chunk for one in found for chunk in _chunks(one)]))


def _there(target: StoreAddress, stored_keys: pa.Array) -> pa.Table:
    """What the target has at these keys: columns STORED."""
    store = open_store(target)
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        heads = [head for head in pool.map(store.head, stored_keys.to_pylist()) if head is not None]
    columns = ([one.key for one in heads], [one.etag for one in heads], [one.size_bytes for one in heads])
    types = (pa.string(), pa.string(), pa.int64())
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    return pa.table(dict(zip(STORED, arrays, strict=True))).combine_chunks()


def _at_once(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.Table]:
    waiting, rows = [], 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= ROWS_AT_ONCE:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting).combine_chunks()


def _sorted(texts: set[str]) -> pa.Array:
    return pa.array(sorted(texts), pa.string())


def _chunks(array: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return array.chunks if isinstance(array, pa.ChunkedArray) else [array]


def _prefix_of(table: FoundTable) -> str:
    if table.root:
        return table.stored_root.removesuffix(table.root)
    return f"{table.stored_root}/" if table.stored_root else ""
