"""Tables in a listing, which table a key belongs to, stored keys of copies, and the objects that belong to a moment.

Tables are found by keys alone: `_delta_log/` for Delta, `metadata/….metadata.json` for Iceberg, `.hoodie/` for Hudi.
"""

import datetime as dt
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import duckdb
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.inventory.configuration import own_prefixes
from lakeshare_pipelines.backup.model import LISTING, ROWS_A_BATCH, FoundTable, Point, group_batches
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.stores import FOLDER, BackupStore, StoreAddress, open_store
from lakeshare_pipelines.errors import BackupError, DamagedRecord, ObjectMissing
from lakeshare_server.tables.delta.log import CHECKPOINT, COMMIT, parse_commit
from lakeshare_server.tables.iceberg.metadata import MAX_METADATA_BYTES, MetadataError, decompress_metadata

TABLE_METADATA_KEY = r"(^|/)(_delta_log/.|\.hoodie/.|metadata/[^/]*\.metadata\.json)"
ROOT_OF_KEY = {
    "delta": re.compile(r"(?:(.*?)/)?_delta_log/.", re.DOTALL),
    "hudi": re.compile(r"(?:(.*?)/)?\.hoodie/.", re.DOTALL),
    "iceberg": re.compile(r"(?:(.*)/)?metadata/[^/]*\.metadata\.json(?:\.gz)?\Z", re.DOTALL),
}
STAGED = "/_staged/"  # Below a Delta table: the staging tables of runs (design, §5)

Format = Literal["delta", "iceberg"]
CACHED_FOLDERS = 200_000


class TableRoots:
    def __init__(self) -> None:
        self._roots = {format_: set[str]() for format_ in ROOT_OF_KEY}

    def add(self, keys: pa.Array) -> None:
        for key in keys.filter(pc.match_substring_regex(keys, TABLE_METADATA_KEY)).to_pylist():
            for format_, expression in ROOT_OF_KEY.items():
                if match := expression.match(key):
                    self._roots[format_].add(match[1] or "")
                    break

    def tables(self) -> dict[str, Format]:
        """Format by root, ordered by root; a Delta table with Iceberg metadata is a Delta table."""
        formats: dict[str, Format] = dict.fromkeys(self._roots["iceberg"], "iceberg")
        formats |= dict.fromkeys(self._roots["delta"], "delta")
        return {root: formats[root] for root in sorted(formats) if not _is_staged(root, formats)}

    def warnings(self) -> list[str]:
        """Sentences for the operator, one per kind of table."""
        sentences = []
        if both := sorted(self._roots["delta"] & self._roots["iceberg"]):
            sentences.append(
                f"{_format_roots(both)}: a Delta table that Iceberg clients read too; all its files are copied, "
                "and it is verified and restored as a Delta table."
            )
        if hudi := sorted(self._roots["hudi"]):
            sentences.append(
                f"{_format_roots(hudi)}: a Hudi table; its files are copied, but lakeshare does not "
                "verify that it opens."
            )
        return sentences


class RootIndex:
    """The root of a key: the nearest one above it, and its family, the outermost one. Tables inside each other stay
    together, because the outer table may have files below the inner root."""

    def __init__(self, roots: Mapping[str, Format]) -> None:
        self._roots = roots
        self._by_folder: dict[str, tuple[str | None, str | None]] = {}

    def nearest(self, keys: pa.Array) -> pa.Array:
        """The root of each key's table; null outside tables."""
        return self._look_up(keys, 0)

    def families(self, keys: pa.Array) -> pa.Array:
        """The outermost root of each key; null outside tables."""
        return self._look_up(keys, 1)

    def family(self, root: str) -> str:
        return self._find_roots(f"{root}/" if root else "")[1] or root

    def _look_up(self, keys: pa.Array, place: int) -> pa.Array:
        if not self._roots:
            return pa.nulls(len(keys), pa.string())
        folders = pc.replace_substring_regex(keys, r"[^/]*$", "").dictionary_encode()
        if len(self._by_folder) > CACHED_FOLDERS:
            self._by_folder.clear()
        roots = [self._find_roots(folder)[place] for folder in folders.dictionary.to_pylist()]
        return pa.array(roots, pa.string()).take(folders.indices)

    def _find_roots(self, folder: str) -> tuple[str | None, str | None]:
        if folder not in self._by_folder:
            above = [""] + [folder[: match.start()] for match in re.finditer("/", folder)]
            roots = [root for root in above if root in self._roots]
            self._by_folder[folder] = (roots[-1], roots[0]) if roots else (None, None)
        return self._by_folder[folder]


def _is_staged(root: str, tables: Mapping[str, Format]) -> bool:
    outer, staged, run = root.rpartition(STAGED)
    return bool(staged) and "/" not in run and tables.get(outer) == "delta"


def _format_roots(roots: list[str]) -> str:
    named = ", ".join(root or "(the whole store)" for root in roots[:3])
    return named if len(roots) <= 3 else f"{named} and {len(roots) - 3} more"


MARGIN = dt.timedelta(hours=6)  # For a late report, and a copy that is slower than estimated
DELTA_PROPERTY, DELTA_DEFAULT = "delta.deletedFileRetentionDuration", dt.timedelta(days=7)
ICEBERG_PROPERTY, ICEBERG_DEFAULT = "history.expire.max-snapshot-age-ms", dt.timedelta(days=5)
TABLE_LOG_KEY = r"(^|/)(_delta_log/[0-9]{20}\.[^/]*(json|parquet)|metadata/[^/]*\.metadata\.json(\.gz)?)$"
FILES_READ, LARGEST_BYTES, READERS = 100, 64 * 1024**2, 16
"""Files of one log to read at most, their maximum size, and tables read concurrently."""
UNIT = re.compile(r"(\d+)\s*(microsecond|millisecond|second|minute|hour|day|week)s?", re.IGNORECASE)
MAX_NAMED = 20

LogFile = tuple[str, int, dt.datetime]  # Key, bytes, time of writing


LogFiles = defaultdict[str, list[LogFile]]  # Metadata files of a listing, by table root


def add_log_files(logs: LogFiles, rows: pa.RecordBatch) -> None:
    files = rows.filter(pc.match_substring_regex(rows["key"], TABLE_LOG_KEY))
    columns = (files[name].to_pylist() for name in ("key", "size_bytes", "last_modified"))
    for key, size_bytes, at in zip(*columns, strict=True):
        logs[key.rpartition("/")[0].rpartition("/")[0]].append((key, size_bytes, at))


def find_retention_races(
    backup: Backup, source: BackupStore, tables: dict[str, Format], logs: LogFiles, minutes: float
) -> list[str]:
    """Sentences about tables that may remove files before they are copied, and about a source that cannot be read."""
    need = dt.timedelta(days=backup.listing.lag_days, minutes=minutes) + MARGIN

    def read_retention(table: tuple[str, Format]) -> dt.timedelta | BackupError | None:
        read = _read_delta_retention if table[1] == "delta" else _read_iceberg_retention
        try:
            return read(source, logs.get(table[0], []))
        except BackupError as error:
            return error

    with ThreadPoolExecutor(READERS) as pool:
        retentions = list(zip(tables, pool.map(read_retention, tables.items()), strict=True))
    short = [
        (root, retention)
        for root, retention in retentions
        if isinstance(retention, dt.timedelta) and retention < need
    ]
    refused = [retention for _, retention in retentions if isinstance(retention, BackupError)]
    sentences = [
        f"{root}: keeps removed files for {_format_duration(retention)} only, and copying takes up to "
        f"{_format_duration(need)} from the day's end on: a clean-up in between removes files of the point. Keep them "
        f"longer ({DELTA_PROPERTY if tables[root] == 'delta' else ICEBERG_PROPERTY})."
        for root, retention in short[:MAX_NAMED]
    ]
    if len(short) > MAX_NAMED:
        sentences.append(f"{len(short) - MAX_NAMED} more tables keep removed files for too short a time.")
    if refused:
        sentences.append(f"How long {len(refused)} tables keep removed files cannot be read: {refused[0]}")
    return sentences


def _read_delta_retention(source: BackupStore, files: Sequence[LogFile]) -> dt.timedelta | None:
    """Reads the newest metaData action (PROTOCOL.md, "Change Metadata"); None if it is not found."""
    by_version: defaultdict[int, list[LogFile]] = defaultdict(list)
    for file in files:
        name = file[0].rpartition("/")[2]
        if match := COMMIT.fullmatch(name) or CHECKPOINT.fullmatch(name):
            by_version[int(match[1])].append(file)
    for version in sorted(by_version, reverse=True)[:FILES_READ]:
        # A commit has it only if it changes the metadata, a checkpoint always.
        for key, size_bytes, _ in sorted(by_version[version]):
            properties = _read_delta_properties(source, key) if size_bytes <= LARGEST_BYTES else None
            if properties is not None:
                # Spelt `interval 1 week`, `interval 36 hours`.
                parts = [
                    dt.timedelta(**{f"{unit.lower()}s": int(count)})
                    for count, unit in UNIT.findall(properties.get(DELTA_PROPERTY) or "")
                ]
                return sum(parts, dt.timedelta()) or DELTA_DEFAULT
    return None


def _read_delta_properties(source: BackupStore, key: str) -> dict[str, str] | None:
    """The table properties in one file of a log; None if it has none or is damaged."""
    try:
        content = source.read(key)
        if not key.endswith(".parquet"):
            metadata = parse_commit(content, 0, 0, 0).metadata
            return None if metadata is None else dict(metadata.get("configuration") or {})
        with pq.ParquetFile(io.BytesIO(content)) as file:
            if "metaData" not in file.schema_arrow.names:
                return None
            column = file.read(["metaData"]).column("metaData")
    except (ObjectMissing, orjson.JSONDecodeError, pa.ArrowException, AttributeError):
        # The verification reports damaged files of a log.
        return None
    actions = [action for action in column.to_pylist() if action is not None]
    return dict(actions[0]["configuration"] or ()) if actions else None


def _read_iceberg_retention(source: BackupStore, files: Sequence[LogFile]) -> dt.timedelta | None:
    """Reads the newest metadata file (Iceberg, "Table properties"); None if it is missing or damaged."""
    if not files:
        return None
    try:
        newest = max(files, key=lambda file: file[2])[0]
        content = decompress_metadata(source.read(newest), MAX_METADATA_BYTES)
        properties = orjson.loads(content).get("properties") or {}
        return dt.timedelta(milliseconds=int(properties[ICEBERG_PROPERTY]))
    except KeyError:
        return ICEBERG_DEFAULT
    except (ObjectMissing, MetadataError, ValueError, AttributeError):
        return None


def _format_duration(length: dt.timedelta) -> str:
    hours = length.total_seconds() / 3600
    return f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours"


ROWS_AT_ONCE = 1_000_000
CONCURRENT_REQUESTS = 64
STORED = pa.schema([("stored_key", pa.string()), ("etag", pa.string()), ("size_bytes", pa.int64())])


@dataclass
class StoredKeys:
    """Stored keys of a plan's copies. A prefix is empty, or ends with a slash."""

    usual: str  # Prefix of what is not moved
    remade: str  # Prefix of what this plan moves
    roots: RootIndex
    of_family: dict[str, str]  # Prefixes of families of tables that an earlier point moved
    moved: set[str] = field(default_factory=set)  # Families that this plan moves
    moved_keys: set[str] = field(default_factory=set)  # Objects outside tables that this plan moves

    def stored_keys(self, keys: pa.Array) -> pa.Array:
        return pc.binary_join_element_wise(self.prefixes(keys), keys, "")

    def prefixes(self, keys: pa.Array) -> pa.Array:
        families = self.roots.families(keys).dictionary_encode(null_encoding="encode")
        names = families.dictionary.to_pylist()
        by_family = [self.usual if name is None else self._prefix(name) for name in names]
        prefixes = pa.array(by_family, pa.string()).take(families.indices)
        if not self.moved_keys:
            return prefixes
        is_moved = pc.is_in(keys, pa.array(sorted(self.moved_keys), pa.string()))
        return pc.if_else(is_moved, self.remade, prefixes)

    def is_moved(self, keys: pa.Array) -> pa.Array:
        """Whether each key belongs to a family that moves and is copied again as a whole."""
        return pc.is_in(self.roots.families(keys), pa.array(sorted(self.moved), pa.string()))

    def move(self, keys: pa.Array) -> None:
        """Move these keys, and all of their families, to the prefix of this plan."""
        families = self.roots.families(keys)
        self.moved.update(pc.unique(families.drop_null()).to_pylist())
        self.moved_keys.update(keys.filter(pc.is_null(families)).to_pylist())

    def find_misplaced(self, keys: pa.Array, stored_keys: pa.Array) -> pa.Array:
        """Those keys of tables that are not stored with the rest of their family."""
        is_astray = pc.not_equal(self.stored_keys(keys), stored_keys)
        return keys.filter(pc.and_(is_astray, pc.is_valid(self.roots.families(keys))))

    def locate_tables(self, bucket: str, tables: dict[str, Format]) -> tuple[FoundTable, ...]:
        return tuple(
            FoundTable(bucket=bucket, root=root, format=format_, stored_root=self.stored_root(root))
            for root, format_ in tables.items()
        )

    def stored_root(self, root: str) -> str:
        return f"{self._prefix(self.roots.family(root))}{root}".rstrip("/")

    def _prefix(self, family: str) -> str:
        return self.remade if family in self.moved else self.of_family.get(family, self.usual)


def make_stored_keys(backup: Backup, day: str, roots: RootIndex, previous: Point | None) -> StoredKeys:
    """The stored keys of a day before anything is moved: those of the previous point."""
    target = backup.target_of(day).prefix
    if backup.layout == "dated":
        return StoredKeys(target, target, roots, {})
    prefixes = {}
    for table in () if previous is None else previous.plan.tables:
        prefixes[table.root] = table.stored_root.removesuffix(table.root)
        if not table.root and table.stored_root:
            prefixes[table.root] += "/"
    return StoredKeys(f"{target}objects/", f"{target}remade/{day}/", roots, prefixes)


def find_taken_keys(points: Points, days: Sequence[str], wanted: pa.Table) -> pa.Array:
    """Keys of `wanted` (key, stored_key, etag, size_bytes) whose stored key has another object in a point of `days`.
    A copy of any point must not be overwritten, even if the previous point does not have it."""
    taken = [pa.array([], pa.string())]
    stored = wanted["stored_key"].combine_chunks()
    for day in days if wanted.num_rows else ():
        try:
            groups = group_batches(points.read_copies(points.get(day), STORED.names), ROWS_AT_ONCE)
            copies = [pa.Table.from_batches(group).combine_chunks() for group in groups]
        except DamagedRecord:
            # The point's copies are not known: any object at these keys may be one of them.
            copies = [_read_stored(points.backup.target_of(day), stored)]
        for table in copies:
            index = pc.index_in(table["stored_key"], stored)
            is_there = pc.is_valid(index)
            there, planned = table.filter(is_there), wanted.take(index.filter(is_there))
            is_same = pc.and_(
                pc.equal(there["etag"], planned["etag"]), pc.equal(there["size_bytes"], planned["size_bytes"])
            )
            taken += planned["key"].filter(pc.invert(pc.fill_null(is_same, False))).chunks
    return pc.unique(pa.chunked_array(taken))


def _read_stored(target: StoreAddress, stored_keys: pa.Array) -> pa.Table:
    with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
        heads = [
            head for head in pool.map(open_store(target).head, stored_keys.to_pylist()) if head is not None
        ]
    rows = [{"stored_key": head.key, "etag": head.etag, "size_bytes": head.size_bytes} for head in heads]
    return pa.Table.from_pylist(rows, STORED)


MUTABLE = (
    r"(^|/)(_delta_log/_last_checkpoint|metadata/version-hint\.text|\.hoodie/hoodie\.properties|_SUCCESS|"
    r"\.[^/]+\.crc)$"
)
"""Keys that are overwritten in place, or that only Hadoop needs; not `_delta_log/<version>.crc`."""

OUTSIDE, OWN, MARKER, AFTER = "outside the source", "own backup", "delete marker", "after as_of"
MUTABLE_NAME, OLDER, EMPTY_FOLDER = "mutable", "older version", "folder marker"


def select_rows_of_moment(
    backup: Backup, listing: Path, as_of: dt.datetime, left_out: Counter[str], *, has_versions: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of a listing, a folder of rows, that belong to a moment, each key once; `left_out` counts the others by
    reason. Raises BackupError if the target contains the source.

    Of a listing of all versions: the newest version before the moment, even if it was overwritten or deleted since. Of
    a listing of current objects: those not written since.
    """
    _require_target_outside(backup)
    own = "|".join(re.escape(prefix) for prefix in own_prefixes(backup))
    values = {
        "bucket": backup.source.bucket,
        "prefix": backup.source.prefix,
        "own": f"^({own})",
        "as_of": as_of,
        "to_folder": backup.target.kind == FOLDER,
    }
    with duckdb.connect() as database:
        database.read_parquet([str(path) for path in sorted(listing.glob("*.parquet"))]).create_view(
            "listing"
        )
        rows = database.sql(_AT_MOMENT_OF_VERSIONS if has_versions else _AT_MOMENT, params=values)
        for batch in rows.to_arrow_reader(ROWS_A_BATCH):
            for count in pc.value_counts(batch["reason"].drop_null()).to_pylist():
                left_out[count["values"]] += count["counts"]
            yield batch.filter(pc.is_null(batch["reason"])).select(LISTING.names)


# Each row with the reason why it is left out; null for the rows of the point.
_UNUSABLE = f"""
WHEN bucket <> $bucket OR NOT starts_with(key, $prefix) THEN '{OUTSIDE}'
WHEN regexp_matches(key, $own) THEN '{OWN}'
WHEN regexp_matches(key, '{MUTABLE}') THEN '{MUTABLE_NAME}'
"""
_MARKERS = f"""
WHEN is_delete_marker THEN '{MARKER}'
WHEN $to_folder AND ends_with(key, '/') AND size_bytes = 0 THEN '{EMPTY_FOLDER}'
"""
_AT_MOMENT = f"""
SELECT *, CASE {_UNUSABLE} WHEN last_modified >= $as_of THEN '{AFTER}' {_MARKERS} END AS reason FROM listing
"""  # noqa: S608  of constants only
# `late` are keys whose current version, or delete marker, is newer than the moment. At equal times the current version
# of a key is the newest, else one that is no delete marker.
_AT_MOMENT_OF_VERSIONS = f"""
WITH late AS (SELECT key FROM listing WHERE is_latest AND last_modified >= $as_of),
judged AS NOT MATERIALIZED (
  SELECT *, CASE {_UNUSABLE}
    WHEN NOT is_latest AND NOT is_late THEN '{OLDER}' WHEN last_modified >= $as_of THEN '{AFTER}' END AS reason
  FROM (SELECT *, key IN (FROM late) AS is_late FROM listing))
SELECT * REPLACE (CASE WHEN reason IS NOT NULL THEN reason {_MARKERS} END AS reason) FROM judged WHERE NOT is_late
UNION ALL
SELECT * EXCLUDE (age) REPLACE (
  CASE WHEN reason IS NOT NULL THEN reason WHEN age > 1 THEN '{OLDER}' {_MARKERS} END AS reason)
FROM (SELECT *, row_number() OVER (
    PARTITION BY key, reason IS NULL ORDER BY last_modified DESC, is_latest DESC, is_delete_marker) AS age
  FROM judged WHERE is_late)
"""  # noqa: S608  of constants only


def _require_target_outside(backup: Backup) -> None:
    source, target = backup.source, backup.target
    target_url, day, _ = target.url.partition("{day}")
    if source.kind == FOLDER or not day:
        target_url = f"{target_url.rstrip('/')}/"
    is_same_root = source.kind == FOLDER or target_url.startswith(f"s3://{source.bucket}/")
    is_holding = is_same_root and f"{source.url.rstrip('/')}/".startswith(target_url)
    if is_holding and source.endpoint == target.endpoint:
        reason = f"its target {target.url} is its source, or holds it"
        fix = "Give it a target of its own, best in another account."
        raise BackupError(f"backup {backup.name}", reason, fix)
