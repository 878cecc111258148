"""Tables in a listing, which table a key belongs to, stored keys of copies, and the objects that belong to a moment.

Tables are found by keys alone: `_delta_log/` for Delta, `metadata/….metadata.json` for Iceberg, `.hoodie/` for Hudi.
"""

import datetime as dt
import io
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import duckdb
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.inventory.configuration import own_prefixes
from lakeshare_pipelines.backup.model import LISTING, POINT_COPIES, ROWS_A_BATCH, Point
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.stores import FOLDER, BackupStore, head_existing, open_store
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


@dataclass(frozen=True)
class StoredPrefixes:
    """Prefixes of the stored keys of a plan's copies. A prefix is empty, or ends with a slash."""

    usual: str  # Of what is not moved
    remade: str  # Of what this plan moves
    of_family: Mapping[str, str]  # Of tables that an earlier point moved

    def stored_root(self, root: str, family: str, moved: Container[str]) -> str:
        prefix = self.remade if family in moved else self.of_family.get(family, self.usual)
        return f"{prefix}{root}".rstrip("/")


def make_stored_prefixes(backup: Backup, day: str, previous: Point | None) -> StoredPrefixes:
    """The prefixes of a day before anything is moved: those of the previous point."""
    target = backup.target_of(day).prefix
    if backup.layout == "dated":
        return StoredPrefixes(target, target, {})
    prefixes = {}
    for table in () if previous is None else previous.plan.tables:
        prefixes[table.root] = table.stored_root.removesuffix(table.root)
        if not table.root and table.stored_root:
            prefixes[table.root] += "/"
    return StoredPrefixes(f"{target}objects/", f"{target}remade/{day}/", prefixes)


STORED = ["stored_key", "etag", "size_bytes"]


def read_stored(points: Points, day: str, wanted: pa.ChunkedArray) -> pa.Table:
    """The copies of a point (columns STORED), of a point with a damaged record the objects at the keys `wanted`."""
    schema = pa.schema(map(POINT_COPIES.field, STORED))
    try:
        return pa.Table.from_batches(list(points.read_copies(points.get(day), STORED)), schema)
    except DamagedRecord:
        # The point's copies are not known: any object at these keys may be one of them.
        heads = head_existing(open_store(points.backup.target_of(day)), wanted.to_pylist())
        rows = [(head.key, head.etag, head.size_bytes) for head in heads]
        return pa.Table.from_pylist([dict(zip(STORED, row, strict=True)) for row in rows], schema)


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
