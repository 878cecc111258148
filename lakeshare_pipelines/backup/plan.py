"""The plan of a day: cut the listing, find its tables, compare with the previous point, assign stored keys, estimate.

Rows are in Parquet files of the workspace and in tables of DuckDB, which spills what exceeds its memory.
"""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import psutil
import pyarrow as pa

from lakeshare_pipelines.backup import model, plan_tables
from lakeshare_pipelines.backup.config import GIB, Backup
from lakeshare_pipelines.backup.points import Points, Workspace, get_point_time
from lakeshare_pipelines.backup.stores import FOLDER, StoreAddress, open_store
from lakeshare_pipelines.errors import BackupError
from lakeshare_server.settings import make_private

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


MEMORY_BYTES = 4 * 1024**3
"""Enough for ten million rows on each side without spilling; at most half of the free memory is used."""
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
SELECT *, 'held' AS lane, true AS is_latest, false AS is_delete_marker,
    NULL AS is_multipart, NULL AS encryption, NULL AS checksum_algorithm
FROM (
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


@contextmanager
def open_plan_database(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty database, which spills into `folder`."""
    memory = min(MEMORY_BYTES, psutil.virtual_memory().available // 2)
    make_private(folder)
    with (
        TemporaryDirectory(dir=folder, prefix=".spilled-") as spilled,
        duckdb.connect(config={"memory_limit": f"{memory}B", "temp_directory": spilled}) as on,
    ):
        yield on


def view_rows(on: duckdb.DuckDBPyConnection, name: str, folder: Path) -> None:
    on.read_parquet([str(path) for path in sorted(folder.glob("*.parquet"))]).create_view(name)


def compare_sides(on: duckdb.DuckDBPyConnection, roots: Iterable[str]) -> None:
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


ReportMessage = Callable[[str], None]


def make_plan(
    backup: Backup,
    workspace: Workspace,
    listing: model.ListingRecord,
    points: Points,
    day: str,
    report_message: ReportMessage = lambda sentence: None,
    *,
    is_bounded: bool = True,
) -> model.PlanRecord:
    """Write rows of schema PLAN, the objects of the day's point, into the workspace's folder `plan`.

    Raises BackupError if there is no listing, it has nothing of the day, or, with `is_bounded`, the plan exceeds the
    backup's bounds.
    """
    try:
        with open_plan_database(workspace.folder) as on:
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
    report_message: ReportMessage
    on: duckdb.DuckDBPyConnection
    roots: plan_tables.TableRoots = field(default_factory=plan_tables.TableRoots)
    logs: plan_tables.LogFiles = field(default_factory=lambda: plan_tables.LogFiles(list))

    def plan(self) -> model.PlanRecord:
        left_out, as_of = Counter[str](), get_point_time(self.day)
        self._write_cut(as_of, left_out)
        tables = self.roots.tables()
        previous = self.points.latest(before=self.day) if self.backup.layout == "incremental" else None
        prefixes = plan_tables.make_stored_prefixes(self.backup, self.day, previous)
        self._compare(tables, previous, prefixes)
        if self.backup.layout == "incremental":
            self._move_conflicts(previous, prefixes)
        moved = {family for (family,) in self.on.sql(_MOVED_FAMILIES).fetchall()}
        families = dict(self.on.sql(_FAMILIES).fetchall())
        model.write_rows(self.workspace.clear("plan"), model.PLAN, self._make_rows(prefixes))
        view_rows(self.on, "plan", self.workspace.rows("plan"))
        estimate = self._estimate(previous)
        races = []
        # With versions, a removed file is still there as an older version.
        if not self.listing.has_versions:
            self.report_message("reading how long tables keep removed files")
            source = open_store(self.backup.source)
            races = plan_tables.find_retention_races(self.backup, source, tables, self.logs, estimate.minutes)
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
            for batch in plan_tables.select_rows_of_moment(
                self.backup, listing, as_of, left_out, has_versions=has_versions
            ):
                self.roots.add(batch["key"])
                plan_tables.add_log_files(self.logs, batch)
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

    def _compare(
        self, roots: Iterable[str], previous: model.Point | None, prefixes: plan_tables.StoredPrefixes
    ) -> None:
        stored = self.workspace.clear("stored")
        copies = () if previous is None else self.points.read_copies(previous)
        model.write_rows(stored, model.POINT_COPIES, copies)
        view_rows(self.on, "cut", self.workspace.rows("cut"))
        view_rows(self.on, "stored", stored)
        # No listing has files outside the source.
        is_source = duckdb.ColumnExpression("bucket") == duckdb.ConstantExpression(self.backup.source.bucket)
        self.on.view("stored").filter(is_source).create_view("before")
        of_family = prefixes.of_family
        units = {"unit": [f"{family}/" for family in of_family], "prefix": list(of_family.values())}
        schema = pa.schema([("unit", pa.string()), ("prefix", pa.string())])
        self.on.register("prefixes", pa.table(units, schema))
        self.on.execute("CREATE TEMP TABLE moved (unit VARCHAR)")
        compare_sides(self.on, roots)

    def _move_conflicts(self, previous: model.Point | None, prefixes: plan_tables.StoredPrefixes) -> None:
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
            self.on.register("copies", plan_tables.read_stored(self.points, day, wanted))
            self.on.execute(_TAKEN)

    def _make_rows(self, prefixes: plan_tables.StoredPrefixes) -> Iterator[pa.RecordBatch]:
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
