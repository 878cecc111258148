"""Tables that a listing shows by its keys alone, and which table a key belongs to.

Nothing is read: `_delta_log/` tells a Delta table, `metadata/….metadata.json` an Iceberg one, `.hoodie/` one of Hudi.
"""

import datetime as dt
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import LISTING, FoundTable, Point
from lakeshare_pipelines.backup.points import OWN_PREFIX, Points
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from lakeshare_pipelines.backup.stores.store import FOLDER
from lakeshare_pipelines.errors import BackupError, DamagedRecord, ObjectMissing
from lakeshare_server.tables.delta.log import CHECKPOINT, COMMIT, parse_commit
from lakeshare_server.tables.iceberg.metadata import MAX_METADATA_BYTES, MetadataError, decompress_metadata

TABLE_METADATA_KEY = r"(^|/)(_delta_log/.|\.hoodie/.|metadata/[^/]*\.metadata\.json)"
DELTA_KEY = re.compile(r"(?:(.*?)/)?_delta_log/.", re.DOTALL)
ICEBERG_KEY = re.compile(r"(?:(.*)/)?metadata/[^/]*\.metadata\.json(?:\.gz)?", re.DOTALL)
HUDI_KEY = re.compile(r"(?:(.*?)/)?\.hoodie/.", re.DOTALL)
STAGED = "/_staged/"
"""Where a run of ours writes a Delta table of its own, inside the table that its files will be of (design, §5)."""

Format = Literal["delta", "iceberg"]
CACHED_FOLDERS = 200_000


class TableRoots:
    """Roots of tables, found while batches of keys go by; then which root a key belongs to."""

    def __init__(self) -> None:
        self._delta: set[str] = set()
        self._iceberg: set[str] = set()
        self._hudi: set[str] = set()

    def look_at(self, keys: pa.Array) -> None:
        """Find the roots that these keys tell of."""
        for key in keys.filter(pc.match_substring_regex(keys, TABLE_METADATA_KEY)).to_pylist():
            if found := DELTA_KEY.match(key):
                self._delta.add(found[1] or "")
            elif found := HUDI_KEY.match(key):
                self._hudi.add(found[1] or "")
            elif found := ICEBERG_KEY.fullmatch(key):
                self._iceberg.add(found[1] or "")

    def tables(self) -> dict[str, Format]:
        """Format by root, in order of the roots; a Delta table that also tells Iceberg clients is a Delta table."""
        found: dict[str, Format] = dict.fromkeys(self._iceberg, "iceberg")
        found |= dict.fromkeys(self._delta, "delta")
        return {root: found[root] for root in sorted(found) if not _is_staged(root, found)}

    def warnings(self) -> list[str]:
        """What people should know of the tables: one sentence a kind."""
        sentences = []
        if both := sorted(self._delta & self._iceberg):
            sentences.append(
                f"{_format_roots(both)}: a Delta table that Iceberg clients read too; its files are all copied, "
                "and it is "
                "proved and restored as a Delta table."
            )
        if self._hudi:
            sentences.append(
                f"{_format_roots(sorted(self._hudi))}: a Hudi table; its files are copied, but nobody proves "
                "that it opens."
            )
        return sentences


class RootIndex:
    """Which root the keys belong to: the nearest one above, and the family, which is the farthest one above.

    Tables inside each other stay together, as the outer one may have files below the inner one's root.
    """

    def __init__(self, roots: Mapping[str, Format]) -> None:
        self._roots = roots
        self._of_folder: dict[str, tuple[str | None, str | None]] = {}

    def nearest(self, keys: pa.Array) -> pa.Array:
        """The root of each key's own table; null for what belongs to none."""
        return self._looked_up(keys, lambda found: found[0])

    def families(self, keys: pa.Array) -> pa.Array:
        """The outermost root of each key; null for what belongs to no table."""
        return self._looked_up(keys, lambda found: found[1])

    def family(self, root: str) -> str:
        """The outermost root that a table is inside of; its own where it is in none."""
        return self._found(f"{root}/" if root else "")[1] or root

    def _looked_up(
        self, keys: pa.Array, chosen: Callable[[tuple[str | None, str | None]], str | None]
    ) -> pa.Array:
        if not self._roots:
            return pa.nulls(len(keys), pa.string())
        folders = pc.replace_substring_regex(keys, r"[^/]*$", "").dictionary_encode()
        if len(self._of_folder) > CACHED_FOLDERS:
            self._of_folder.clear()
        found = [chosen(self._found(folder)) for folder in folders.dictionary.to_pylist()]
        return pa.array(found, pa.string()).take(folders.indices)

    def _found(self, folder: str) -> tuple[str | None, str | None]:
        if folder not in self._of_folder:
            above = [""] + [folder[: match.start()] for match in re.finditer("/", folder)]
            roots = [root for root in above if root in self._roots]
            self._of_folder[folder] = (roots[-1], roots[0]) if roots else (None, None)
        return self._of_folder[folder]


def _is_staged(root: str, tables: Mapping[str, Format]) -> bool:
    outer, staged, run = root.rpartition(STAGED)
    return bool(staged) and "/" not in run and tables.get(outer) == "delta"


def _format_roots(roots: list[str]) -> str:
    named = ", ".join(root or "(the whole store)" for root in roots[:3])
    return named if len(roots) <= 3 else f"{named} and {len(roots) - 3} more"


MARGIN = dt.timedelta(hours=6)
"""For a report that is late, and a copy that is slower than estimated."""
DELTA_PROPERTY, DELTA_DEFAULT = "delta.deletedFileRetentionDuration", dt.timedelta(days=7)
ICEBERG_PROPERTY, ICEBERG_DEFAULT = "history.expire.max-snapshot-age-ms", dt.timedelta(days=5)
TABLE_LOG_KEY = r"(^|/)(_delta_log/[0-9]{20}\.[^/]*(json|parquet)|metadata/[^/]*\.metadata\.json(\.gz)?)$"
FILES_READ, LARGEST_BYTES, READERS = 100, 64 * 1024**2, 16
"""How many files of one log are read at most, how large they may be, how many tables at a time."""
UNIT = re.compile(r"(\d+)\s*(microsecond|millisecond|second|minute|hour|day|week)s?", re.IGNORECASE)
MAX_NAMED = 20

LogFile = tuple[str, int, dt.datetime]
"""Key, bytes, time of writing."""


@dataclass
class LogFiles:
    """Files by the table they tell of, found while a listing goes by."""

    of_root: dict[str, list[LogFile]] = field(default_factory=dict)

    def look_at(self, rows: pa.RecordBatch) -> None:
        """Keep what these rows of schema LISTING have of it."""
        telling = rows.filter(pc.match_substring_regex(rows["key"], TABLE_LOG_KEY))
        for key, size_bytes, at in zip(
            *(telling[name].to_pylist() for name in ("key", "size_bytes", "last_modified")), strict=True
        ):
            root = key.rpartition("/")[0].rpartition("/")[0]
            self.of_root.setdefault(root, []).append((key, size_bytes, at))


def find_retention_races(
    backup: Backup,
    source: BackupStore,
    tables: dict[str, Format],
    found: LogFiles,
    minutes: float,
) -> list[str]:
    """Sentences about tables that remove files sooner than a backup copies them; none where all wait long enough.

    A source that cannot be read is told of too: the copies may well be made by somebody who can.
    """
    need = dt.timedelta(days=backup.listing.lag_days, minutes=minutes) + MARGIN

    def read_retention(table: tuple[str, Format]) -> dt.timedelta | BackupError | None:
        files = found.of_root.get(table[0], [])
        try:
            return (
                _read_delta_retention(source, files)
                if table[1] == "delta"
                else _read_iceberg_retention(source, files)
            )
        except BackupError as error:
            return error

    with ThreadPoolExecutor(READERS) as pool:
        answers = list(zip(tables, pool.map(read_retention, tables.items()), strict=True))
    short = [
        (root, retention)
        for root, retention in answers
        if isinstance(retention, dt.timedelta) and retention < need
    ]
    refused = [retention for _, retention in answers if isinstance(retention, BackupError)]
    sentences = [
        f"{root}: keeps removed files for {_format_duration(retention)} only, and copying takes up to "
        f"{_format_duration(need)} from the day's "
        "end on: a clean-up in between takes files from the point. Keep them longer "
        f"({_format_property(tables[root])})."
        for root, retention in short[:MAX_NAMED]
    ]
    if len(short) > MAX_NAMED:
        sentences.append(f"{len(short) - MAX_NAMED} more tables keep removed files for too short a time.")
    if refused:
        sentences.append(f"How long {len(refused)} tables keep removed files cannot be told: {refused[0]}")
    return sentences


def _read_delta_retention(source: BackupStore, files: Sequence[LogFile]) -> dt.timedelta | None:
    """As the newest metaData action says (PROTOCOL.md, "Change Metadata"); None where it is not found."""
    by_version: dict[int, list[LogFile]] = {}
    for file in files:
        name = file[0].rpartition("/")[2]
        if match := COMMIT.fullmatch(name) or CHECKPOINT.fullmatch(name):
            by_version.setdefault(int(match[1]), []).append(file)
    for version in sorted(by_version, reverse=True)[:FILES_READ]:
        # A commit says it only where it changes it, a checkpoint always.
        for key, size_bytes, _ in sorted(by_version[version]):
            properties = _read_delta_properties(source, key) if size_bytes <= LARGEST_BYTES else None
            if properties is not None:
                return _parse_interval(properties.get(DELTA_PROPERTY)) or DELTA_DEFAULT
    return None


def _read_delta_properties(source: BackupStore, key: str) -> dict[str, str] | None:
    """The table's properties, as one file of its log tells them; None where it does not."""
    content = _read_content(source, key)
    if content is None:
        return None
    try:
        if not key.endswith(".parquet"):
            metadata = parse_commit(content, 0, 0, 0).metadata
            return None if metadata is None else dict(metadata.get("configuration") or {})
        with pq.ParquetFile(io.BytesIO(content)) as file:
            if "metaData" not in file.schema_arrow.names:
                return None
            column = file.read(["metaData"]).column("metaData")
    except (orjson.JSONDecodeError, pa.ArrowException, AttributeError):
        # A broken file of a log is for the verification to tell.
        return None
    found = [one for one in column.to_pylist() if one is not None]
    return dict(found[0]["configuration"] or ()) if found else None


def _read_iceberg_retention(source: BackupStore, files: Sequence[LogFile]) -> dt.timedelta | None:
    """As the newest metadata file says (Iceberg, "Table properties"); None where it is not found."""
    for key, _, _ in sorted(files, key=lambda one: one[2], reverse=True)[:1]:
        content = _read_content(source, key)
        if content is None:
            return None
        try:
            properties = (
                orjson.loads(decompress_metadata(content, MAX_METADATA_BYTES)).get("properties") or {}
            )
            return dt.timedelta(milliseconds=int(properties[ICEBERG_PROPERTY]))
        except KeyError:
            return ICEBERG_DEFAULT
        except (MetadataError, ValueError, AttributeError):
            return None
    return None


def _read_content(source: BackupStore, key: str) -> bytes | None:
    try:
        return source.read(key)
    except ObjectMissing:
        return None


def _parse_interval(text: str | None) -> dt.timedelta | None:
    """Delta's way to write a time: `interval 1 week`, `interval 36 hours`."""
    parts = [dt.timedelta(**{f"{unit.lower()}s": int(count)}) for count, unit in UNIT.findall(text or "")]
    return sum(parts, dt.timedelta()) if parts else None


def _format_property(of: Format) -> str:
    return DELTA_PROPERTY if of == "delta" else ICEBERG_PROPERTY


def _format_duration(length: dt.timedelta) -> str:
    hours = length.total_seconds() / 3600
    return f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours"


ROWS_AT_ONCE = 1_000_000
CONCURRENT_REQUESTS = 64
STORED = ["stored_key", "etag", "size_bytes"]


@dataclass
class StoredKeys:
    """Stored keys of one plan; `moved` are families of tables, `moved_keys` objects of no table, that go elsewhere."""

    usual: str
    """Prefix of what is nowhere special; empty, or with a slash at its end."""
    remade: str
    """Prefix of what is moved by this plan."""
    roots: RootIndex
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


def make_stored_keys(backup: Backup, day: str, roots: RootIndex, previous: Point | None) -> StoredKeys:
    """Where a day's copies go before anything is moved: to where the point before has them."""
    target = backup.target_of(day).prefix
    if backup.layout == "dated":
        return StoredKeys(target, target, roots, {})
    before = {} if previous is None else {table.root: _prefix_of(table) for table in previous.plan.tables}
    return StoredKeys(f"{target}objects/", f"{target}remade/{day}/", roots, before)


def find_taken_keys(points: Points, days: Sequence[str], wanted: pa.Table) -> pa.Array:
    """Keys of `wanted` (key, stored_key, etag, size_bytes) whose place has something else, by the points of `days`.

    What a point holds must stay: nothing may be copied over it, though the point before this one knows nothing of it.
    """
    found = [pa.array([], pa.string())]
    stored = wanted["stored_key"].combine_chunks()
    for day in days if wanted.num_rows else ():
        try:
            holds = list(_at_once(points.read_copies(points.get(day), STORED)))
        except DamagedRecord:
            # What it holds is not known: whatever is at these places may be its own.
            holds = [_read_stored(points.backup.target_of(day), stored)]
        for copies in holds:
            at = pc.index_in(copies["stored_key"], stored)
            is_there = pc.is_valid(at)
            there, ours = copies.filter(is_there), wanted.take(at.filter(is_there))
            is_same = pc.and_(
                pc.equal(there["etag"], ours["etag"]), pc.equal(there["size_bytes"], ours["size_bytes"])
            )
            found.append(ours["key"].filter(pc.invert(pc.fill_null(is_same, False))))
    return pc.unique(pa.chunked_array([chunk for one in found for chunk in _chunks(one)]))


def _read_stored(target: StoreAddress, stored_keys: pa.Array) -> pa.Table:
    """What the target has at these keys: columns STORED."""
    store = open_store(target)
    with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
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
class ListingCut:
    """What of a source belongs to a moment; `left_out` counts the rows that do not, by reason."""

    backup: Backup
    as_of: dt.datetime
    left_out: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._own = own_prefixes(self.backup)
        self._as_of = pa.scalar(self.as_of, LISTING.field("last_modified").type)

    def select_rows(self, listing: Batches, *, has_versions: bool) -> Iterator[pa.RecordBatch]:
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
    inside = _find_target_prefix(backup)
    if inside == "":
        raise BackupError(
            f"backup {backup.name}",
            f"its target {backup.target.url} is its source, or holds it",
            "Give it a target of its own, best in another account.",
        )
    if inside is not None:
        found.add(inside)
    return tuple(sorted(found))


def _find_target_prefix(backup: Backup) -> str | None:
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
