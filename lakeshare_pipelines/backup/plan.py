"""The plan of a day: cut the listing, find its tables, compare with the previous point, assign stored keys, estimate.

Rows are in Parquet files of the workspace and in tables of DuckDB, which spills what exceeds its memory.
"""

import datetime as dt
import io
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup import model
from lakeshare_pipelines.backup.config import GIB, Backup
from lakeshare_pipelines.backup.inventory.configuration import own_prefixes
from lakeshare_pipelines.backup.points import Points, Workspace, get_point_time
from lakeshare_pipelines.backup.stores import FOLDER, BackupStore, StoreAddress, head_existing, open_store
from lakeshare_pipelines.errors import BackupError, DamagedRecord, ObjectMissing
from lakeshare_server.lazy import LazyModule
from lakeshare_server.tables.delta.log import CHECKPOINT, COMMIT, parse_commit
from lakeshare_server.tables.iceberg.metadata import MAX_METADATA_BYTES, MetadataError, decompress_metadata

if TYPE_CHECKING:
    import duckdb
else:
    duckdb = LazyModule("duckdb")

PART_BYTES = 64 * 1024**2  # Assumed size of a part; never more than 10,000 parts
MAX_PARTS = 10_000
AROUND_PARTS = 3  # Requests besides the parts: HEAD, CreateMultipartUpload, CompleteMultipartUpload

MILLION = 1_000_000
S3_COPY_S = 0.05  # Assumed duration of one copy request of a small object
S3_COPIES_A_S = 3_500  # Copies per second that S3 accepts below one prefix
S3_BYTES_A_S = 40 * 1024**2  # Bytes per second of one request that copies inside a store
LOCAL_FILES_A_S = 500
LOCAL_BYTES_A_S = 150 * 1024**2  # For copies through this host, from or to a folder or between two endpoints
MEASURED_OBJECTS = 1_000  # The speed of an earlier copy of so many objects replaces the assumptions above


_SUMS = f"""
SELECT lane, count(*), coalesce(sum(size_bytes), 0), coalesce(sum(
    least(ceil(size_bytes / {PART_BYTES}), {MAX_PARTS}) + {AROUND_PARTS} - 1
) FILTER (WHERE lane <> 'held' AND size_bytes > $copy_limit_bytes), 0) FROM plan GROUP BY lane
"""  # noqa: S608  of constants only
_COUNT_PREFIXES = """
SELECT count(DISTINCT left(stored_key, len(stored_key) - len(key))) FROM plan WHERE lane <> 'held'
"""


def require_within_bounds(backup: Backup, day: str, estimate: model.Estimate) -> None:
    """Raises BackupError with each bound that the plan exceeds."""
    amounts = (estimate.objects, estimate.size_bytes, estimate.usd, estimate.minutes)
    takes = dict(zip(("objects", "bytes", "usd", "minutes"), amounts, strict=True))
    beyond = [
        f"{takes[name]:,} {name} where {most:,} are allowed"
        for name, most in backup.bounds
        if most is not None and takes[name] > most
    ]
    if beyond:
        reason = f"its plan takes {', '.join(beyond)}; nothing was copied"
        fix = f"Check it with `lakeshare backup plan {backup.name} --day {day}`, then raise `bounds`, or back up less."
        raise BackupError(f"backup {backup.name}, point {day}", reason, fix)


def estimate_usd_per_month(backup: Backup, estimate: model.Estimate) -> float:
    is_paid = backup.target.kind != FOLDER
    return estimate.size_bytes / GIB * backup.prices.per_gib_month if is_paid else 0.0


def estimate_usd(
    backup: Backup, source: StoreAddress, target: StoreAddress, requests: int, copied: int, thawed: int
) -> float:
    """The cost of copies: requests, copied bytes, and bytes that are thawed first."""
    if source.kind == target.kind == FOLDER:
        return 0.0
    usd = requests / MILLION * backup.prices.per_million_copies if target.kind != FOLDER else 0.0
    usd += copied / GIB * backup.prices.per_gib_transferred
    return usd + thawed / GIB * backup.prices.per_gib_thawed


def estimate_minutes(
    backup: Backup,
    source: StoreAddress,
    target: StoreAddress,
    requests: int,
    size_bytes: int,
    before: model.CopyRecord | None = None,
) -> float:
    """The longer of the times for requests and for bytes. Does not include thawing, which takes hours."""
    requests_a_s, bytes_a_s = float(LOCAL_FILES_A_S), float(LOCAL_BYTES_A_S)
    if before is not None and before.succeeded >= MEASURED_OBJECTS and before.seconds > 0:
        requests_a_s = before.succeeded / before.seconds
        bytes_a_s = max(before.size_bytes / before.seconds, 1.0)
    elif source.kind == target.kind != FOLDER and source.endpoint == target.endpoint:
        requests_a_s = min(backup.in_flight / S3_COPY_S, S3_COPIES_A_S)
        bytes_a_s = float(backup.in_flight * S3_BYTES_A_S)
    return max(requests / requests_a_s, size_bytes / bytes_a_s) / 60


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


def make_stored_prefixes(backup: Backup, day: str, previous: model.Point | None) -> StoredPrefixes:
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
    schema = pa.schema(map(model.POINT_COPIES.field, STORED))
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
        model.view_rows(database, "listing", listing)
        rows = database.sql(_AT_MOMENT_OF_VERSIONS if has_versions else _AT_MOMENT, params=values)
        for batch in rows.to_arrow_reader(model.ROWS_A_BATCH):
            for count in pc.value_counts(batch["reason"].drop_null()).to_pylist():
                left_out[count["values"]] += count["counts"]
            yield batch.filter(pc.is_null(batch["reason"])).select(model.LISTING.names)


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


ROWS_AT_ONCE = 100_000

# The folder of each key with its table: the nearest root above it, and its family, the outermost one. Tables inside
# each other stay together, because the outer table may have files below the inner root.
_FOLDER = "left(key, len(key) - len(split_part(key, '/', -1)))"
_PLACES = f"""
CREATE TEMP TABLE places AS
WITH folders AS (
    SELECT {_FOLDER} AS folder FROM (SELECT key FROM cut UNION ALL SELECT key FROM before)
    UNION SELECT if(root = '', '', root || '/') FROM roots
), above AS (
    SELECT folder, unnest(list_transform(range(len(names)), lambda n: array_to_string(names[:n], '/'))) AS root
    FROM (SELECT folder, string_split(folder, '/') AS names FROM folders)
)
SELECT folder, arg_max(root, len(root)) AS nearest, arg_min(root, len(root)) AS family
FROM above SEMI JOIN roots USING (root) GROUP BY folder
"""  # noqa: S608  of constants only
_FAMILIES = "SELECT root, family FROM roots JOIN places ON folder = if(root = '', '', root || '/')"
_MOVED_FAMILIES = "SELECT DISTINCT family FROM places JOIN moved ON unit = family || '/'"
# A missing ETag equals no other: such rows are never in both sides.
_DIFFERENCE = """
CREATE TEMP TABLE odd AS SELECT c.*, b.key AS gone FROM cut c FULL JOIN before b
    ON c.key = b.key AND c.etag = b.etag AND c.size_bytes IS NOT DISTINCT FROM b.size_bytes
    WHERE c.key IS NULL OR b.key IS NULL;
CREATE TEMP VIEW gone AS SELECT gone AS key FROM odd WHERE gone IS NOT NULL;
"""
# `unit` is what moves as a whole: a family of tables, by its root with a slash, or a single object outside of tables.
_LOCATED = f"""
CREATE TEMP VIEW {{}} AS SELECT r.*, nearest, if(family IS NULL, key, family || '/') AS unit
FROM ({{}}) r LEFT JOIN places ON folder = {_FOLDER}
"""  # noqa: S608  of constants only
# Changed objects, whose copies would overwrite earlier ones, and tables whose copies would not be together.
_CONFLICTS = """
INSERT INTO moved SELECT unit FROM fresh SEMI JOIN gone USING (key)
UNION SELECT unit FROM unchanged LEFT JOIN prefixes USING (unit)
    WHERE nearest IS NOT NULL AND stored_key <> coalesce(prefix, $usual) || key
"""
_WANTED = """
CREATE TEMP TABLE wanted AS SELECT unit, etag, size_bytes, coalesce(prefix, $usual) || key AS stored_key
FROM (FROM fresh ANTI JOIN moved USING (unit)) LEFT JOIN prefixes USING (unit)
"""
_TAKEN = """
INSERT INTO moved SELECT DISTINCT unit FROM wanted w JOIN copies c USING (stored_key)
WHERE NOT coalesce(w.etag = c.etag AND w.size_bytes = c.size_bytes, false)
"""
_HELD = """
SELECT *, 'held' AS lane, 'held' AS status, true AS is_latest, false AS is_delete_marker FROM (
    SELECT * REPLACE (nearest AS table_root) FROM unchanged ANTI JOIN moved USING (unit)
    UNION ALL BY NAME SELECT * FROM stored SEMI JOIN roots ON table_root = root WHERE bucket <> $bucket AND $follow
)
"""
# An archived object may be above the limit of one copy request as well.
_TO_COPY = f"""
SELECT *, nearest AS table_root, $day AS first_point, CASE
    WHEN storage_class IN {model.ARCHIVES} THEN 'archived' WHEN size_bytes > $copy_limit_bytes THEN 'large'
    ELSE 'small' END AS lane
FROM (
    SELECT f.*, coalesce(prefix, $usual) || key AS stored_key
    FROM (FROM fresh ANTI JOIN moved USING (unit)) f LEFT JOIN prefixes USING (unit)
    UNION ALL BY NAME SELECT *, $remade || key AS stored_key FROM listed SEMI JOIN moved USING (unit)
) ORDER BY key
"""  # noqa: S608  of constants only


def compare_sides(on: "duckdb.DuckDBPyConnection", roots: Iterable[str]) -> None:
    """Compare views `cut` and `before` by key, ETag and size. Makes views `fresh` (rows that are only in `cut`),
    `unchanged` (rows of `before` that are in both) and `gone` (keys of the others of `before`); a changed key is in
    `fresh` and `gone`. The rows of the first two, and of `listed` (all of `cut`), have their table and their unit."""
    on.register("roots", pa.table({"root": pa.array(roots, pa.string())}))
    on.execute(_PLACES)
    on.execute(_DIFFERENCE)
    for name, rows in (
        ("listed", "FROM cut"),
        ("fresh", "SELECT * EXCLUDE (gone) FROM odd WHERE key IS NOT NULL"),
        ("unchanged", "FROM before ANTI JOIN gone USING (key)"),
    ):
        on.execute(_LOCATED.format(name, rows))


def make_plan(
    backup: Backup,
    workspace: Workspace,
    listing: model.ListingRecord,
    points: Points,
    day: str,
    report_message: model.ReportMessage = lambda sentence: None,
    *,
    is_bounded: bool = True,
) -> model.PlanRecord:
    """Write rows of schema COPIES, the objects of the day's point, into the workspace's folder `plan`.

    Raises BackupError if there is no listing, it has nothing of the day, or, with `is_bounded`, the plan exceeds the
    backup's bounds.
    """
    try:
        with model.open_database(workspace.folder) as on:
            plan = _PlanDraft(backup, workspace, listing, points, day, report_message, on).plan()
    finally:
        for name in ("cut", "stored"):
            workspace.clear(name)
    if is_bounded:
        require_within_bounds(backup, day, plan.estimate)
    return plan


@dataclass
class _PlanDraft:
    backup: Backup
    workspace: Workspace
    listing: model.ListingRecord
    points: Points
    day: str
    report_message: model.ReportMessage
    on: "duckdb.DuckDBPyConnection"
    roots: TableRoots = field(default_factory=TableRoots)
    logs: LogFiles = field(default_factory=lambda: LogFiles(list))

    def plan(self) -> model.PlanRecord:
        left_out, as_of = Counter[str](), get_point_time(self.day)
        self._write_cut(as_of, left_out)
        tables = self.roots.tables()
        previous = self.points.latest(before=self.day) if self.backup.layout == "incremental" else None
        prefixes = make_stored_prefixes(self.backup, self.day, previous)
        self._compare(tables, previous, prefixes)
        if self.backup.layout == "incremental":
            self._move_conflicts(previous, prefixes)
        moved = {family for (family,) in self.on.sql(_MOVED_FAMILIES).fetchall()}
        families = dict(self.on.sql(_FAMILIES).fetchall())
        model.write_rows(self.workspace.clear("plan"), model.COPIES, self._make_rows(prefixes))
        model.view_rows(self.on, "plan", self.workspace.rows("plan"))
        estimate = self._estimate(previous)
        races = []
        # With versions, a removed file is still there as an older version.
        if not self.listing.has_versions:
            self.report_message("reading how long tables keep removed files")
            source = open_store(self.backup.source)
            races = find_retention_races(self.backup, source, tables, self.logs, estimate.minutes)
        return model.PlanRecord(
            day=self.day,
            as_of=as_of,
            previous=None if previous is None else previous.day,
            tables=tuple(
                model.FoundTable(
                    bucket=self.backup.source.bucket,
                    root=root,
                    format=format_,
                    stored_root=prefixes.stored_root(root, families[root], moved),
                )
                for root, format_ in tables.items()
            ),
            estimate=estimate,
            left_out=dict(left_out),
            warnings=(*self.roots.warnings(), *_describe_moves(moved, prefixes.remade), *races),
        )

    def _estimate(self, previous: model.Point | None) -> model.Estimate:
        """The sums of view `plan`, and what its copies take."""
        backup, values = self.backup, {"copy_limit_bytes": self.backup.copy_limit_bytes}
        objects, size_bytes, requests = Counter[str](), Counter[str](), 0
        for lane, count, size, part_requests in self.on.execute(_SUMS, values).fetchall():
            objects[lane], size_bytes[lane] = count, int(size)
            requests += int(part_requests)
        copied, copied_bytes = (counts.total() - counts["held"] for counts in (objects, size_bytes))
        # One per copy, parts of large objects, and one to thaw each archived object.
        requests += copied + objects["archived"]
        ends = backup, backup.source, backup.target
        usd = estimate_usd(*ends, requests, copied_bytes, size_bytes["archived"])
        is_free = backup.source.kind == backup.target.kind == FOLDER
        if self.listing.kind == "s3_inventory" and not is_free:
            usd += self.listing.rows / MILLION * backup.prices.per_million_listed
        if backup.engine == "aws_batch" and copied:
            ((jobs,),) = self.on.sql(_COUNT_PREFIXES).fetchall()
            usd += copied / MILLION * backup.prices.per_million_tasks + jobs * backup.prices.per_job
        before = None if previous is None else previous.copied
        return model.Estimate(
            objects=copied,
            size_bytes=copied_bytes,
            held_objects=objects["held"],
            held_bytes=size_bytes["held"],
            requests=requests,
            usd=round(usd, 4),
            minutes=round(estimate_minutes(*ends, requests, copied_bytes, before), 2),
            by_lane={lane: objects[lane] for lane in model.LANES if objects[lane]},
        )

    def _write_cut(self, as_of: dt.datetime, left_out: Counter[str]) -> None:
        def select_rows() -> Iterator[pa.RecordBatch]:
            listing, has_versions = self.workspace.rows("listing"), self.listing.has_versions
            for batch in select_rows_of_moment(
                self.backup, listing, as_of, left_out, has_versions=has_versions
            ):
                self.roots.add(batch["key"])
                add_log_files(self.logs, batch)
                yield batch

        self.report_message("selecting the objects of the day from the listing")
        rows = model.write_rows(self.workspace.clear("cut"), model.LISTING, select_rows())
        if not rows:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
            raise BackupError(
                f"backup {self.backup.name}, point {self.day}",
                f"nothing in the listing belongs to it ({reasons or 'it is empty'})",
                "Check that the listing is of the right store and day: an empty point would be of no use.",
            )
        tables = len(self.roots.tables())
        self.report_message(f"{rows:,} objects, {tables:,} tables; comparing with the previous point")

    def _compare(self, roots: Iterable[str], previous: model.Point | None, prefixes: StoredPrefixes) -> None:
        stored = self.workspace.clear("stored")
        copies = () if previous is None else self.points.read_copies(previous)
        model.write_rows(stored, model.POINT_COPIES, copies)
        model.view_rows(self.on, "cut", self.workspace.rows("cut"))
        model.view_rows(self.on, "stored", stored)
        # No listing has files outside the source.
        is_source = duckdb.ColumnExpression("bucket") == duckdb.ConstantExpression(self.backup.source.bucket)
        self.on.view("stored").filter(is_source).create_view("before")
        of_family = prefixes.of_family
        units = {"unit": [f"{family}/" for family in of_family], "prefix": list(of_family.values())}
        schema = pa.schema([("unit", pa.string()), ("prefix", pa.string())])
        self.on.register("prefixes", pa.table(units, schema))
        self.on.execute("CREATE TEMP TABLE moved (unit VARCHAR)")
        compare_sides(self.on, roots)

    def _move_conflicts(self, previous: model.Point | None, prefixes: StoredPrefixes) -> None:
        """Moves what would overwrite copies of a point, or would be separated from the rest of its table."""
        self.on.execute(_CONFLICTS, {"usual": prefixes.usual})
        days = [day for day in self.points.days() if previous is None or day != previous.day]
        if not days:
            return
        self.report_message(
            f"comparing with {len(days)} more points, so that none of their copies is overwritten"
        )
        self.on.execute(_WANTED, {"usual": prefixes.usual})
        wanted = self.on.table("wanted").to_arrow_table()["stored_key"]
        for day in days if len(wanted) else ():
            # Also what the previous point does not have must not be overwritten.
            self.on.register("copies", read_stored(self.points, day, wanted))
            self.on.execute(_TAKEN)

    def _make_rows(self, prefixes: StoredPrefixes) -> Iterator[pa.RecordBatch]:
        source = {"bucket": self.backup.source.bucket, "follow": self.backup.external == "follow"}
        yield from self.on.sql(_HELD, params=source).to_arrow_reader(ROWS_AT_ONCE)
        values = {
            "usual": prefixes.usual,
            "remade": prefixes.remade,
            "day": self.day,
            "copy_limit_bytes": self.backup.copy_limit_bytes,
        }
        yield from self.on.sql(_TO_COPY, params=values).to_arrow_reader(ROWS_AT_ONCE)


def _describe_moves(moved: set[str], remade: str) -> list[str]:
    if not moved:
        return []
    named = ", ".join(sorted(moved)[:3])
    more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
    return [
        f"{named}{more}: files of the same name differ from those of an earlier point, as after a table was dropped "
        f"and created again; all files are copied to {remade}, and the earlier point stays unchanged."
    ]
