"""Levels L0 to L3 of copies: reported by the engine, listed by the target, and the same content."""

import base64
import binascii
import datetime as dt
import hashlib
import io
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup import model
from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.copy.engine import CopyTask, ReportProgress
from lakeshare_pipelines.backup.inventory.list_objects import list_rows
from lakeshare_pipelines.backup.points import OWN_PREFIX, Points, Workspace
from lakeshare_pipelines.backup.stores import BackupStore, ListedObject, StoreAddress, open_store
from lakeshare_pipelines.errors import BackupError, DamagedRecord, ObjectMissing
from lakeshare_pipelines.spark.rows import digest_rows
from lakeshare_server.errors import BadRequest
from lakeshare_server.locations import normalise_location

if TYPE_CHECKING:
    import duckdb

READERS = 16
CHUNK_BYTES = 1 << 20
REPORTED, PRESENT, SAME_ETAG, SAME_CHECKSUM = 0, 1, 2, 3
SHA256 = "sha256:"
MISSING = "it is not in the target"
RESIZED = "it has another size in the target"
CHANGED = "it was changed in the target since it was copied"
DIFFERS = "it has other content in the target"
DAMAGE = (MISSING, RESIZED, CHANGED, DIFFERS)  # Problems of copies that were whole before

OBJECTS = pa.schema(
    [
        *model.POINT_COPIES,
        # The original's location as tables name it: StoreAddress.location.
        pa.field("location", pa.string(), nullable=False),
        # Copied (or held from an earlier point), in the target with its size, and not of other content.
        pa.field("is_whole", pa.bool_(), nullable=False),
        pa.field("problem", pa.string()),  # Why it is not whole, for people; null if it is
        # When its content was last compared with what was backed up.
        pa.field("compared_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""Rows of a plan with the state of their copies."""

Row = dict[str, Any]  # a row of an Arrow table, by column
_REPORTED = """
CREATE TEMP VIEW reported AS SELECT p.* REPLACE (
    if(r.stored_key IS NULL, p.stored_etag, r.stored_etag) AS stored_etag,
    if(r.stored_key IS NULL, p.stored_version_id, r.stored_version_id) AS stored_version_id)
FROM plan p LEFT JOIN repaired r ON p.stored_key = r.stored_key WHERE p.lane = 'held' UNION ALL BY NAME FROM done
"""
# When the point that copied an object first was made: the end of its day, or the time in its name.
MADE_AT = """CASE WHEN contains(first_point, 'T') THEN strptime(first_point, '%Y-%m-%dT%H%M%SZ')
ELSE strptime(first_point, '%Y-%m-%d') + INTERVAL 1 DAY END"""
_JUDGED = f"""
CREATE TEMP TABLE objects AS
WITH listed_rows AS (
    SELECT r.*, listed_size, listed_etag, CASE
        WHEN status IS NULL THEN 'nothing is reported of it'
        WHEN status = 'failed' THEN coalesce(error_code, 'failed') || ': ' || coalesce(message, 'no reason was given')
        WHEN listed_size IS NULL THEN '{MISSING}'
        WHEN listed_size <> size_bytes THEN '{RESIZED}'
        WHEN status = 'held' AND listed_etag <> stored_etag THEN '{CHANGED}' END AS problem
    FROM reported r LEFT JOIN listed USING (stored_key)
), judged AS (
    SELECT * EXCLUDE level, CASE
        WHEN problem IS NOT NULL THEN {REPORTED}
        ELSE greatest(if(listed_etag = etag, {SAME_ETAG}, {PRESENT}), if(status = 'held', coalesce(level, 0), 0))
        END AS level
    FROM listed_rows
)
-- The next point compares with the ETag that the target lists, not with the reported one.
SELECT * REPLACE (listed_etag AS stored_etag, coalesce(is_healed, false) AS is_healed),
    if($is_folder, bucket, 's3://' || bucket) || '/' || key AS location,
    first_point <> $day AS is_held, if(is_held, {MADE_AT}, $now::TIMESTAMP) AS compared_at,
    -- An ETag of one part without a KMS key is the content's MD5: two such ETags of S3 must not differ.
    coalesce(starts_with(checksum, '{SHA256}'), false)
        AND coalesce(problem = '{CHANGED}' OR problem IS NULL AND status = 'succeeded', false)
    OR $is_s3 AND problem IS NULL AND level = {PRESENT}
        AND coalesce(NOT contains(etag || listed_etag, '-'), false) AND NOT contains(coalesce(encryption, ''), 'KMS')
    AS is_unclear
FROM judged
"""  # noqa: S608  the only values that are not bound are constants of this module


def view_reports(on: "duckdb.DuckDBPyConnection", plan: Path, done: Path, repaired: pa.Table) -> None:
    """Make the view `reported` of the rows of a plan with the results of its copies. `repaired` are copies of the
    earlier point (schema POINT_COPIES) that were made again."""
    model.view_rows(on, "plan", plan)
    model.view_rows(on, "done", done)
    on.register("repaired", repaired)
    on.execute(_REPORTED)


def is_accounted_for(on: "duckdb.DuckDBPyConnection") -> bool:
    """L0: whether table `objects` has every object of view `plan`, each with a result."""
    counts = "SELECT (SELECT count(*) FROM plan), count(*), count(status) FROM objects"
    ((planned, rows, reported),) = on.sql(counts).fetchall()
    return bool(planned == rows == reported)


def list_folders(on: "duckdb.DuckDBPyConnection") -> list[str]:
    """The folders of view `reported` that hold whole keys: the part of stored keys before the original keys."""
    prefixes = on.sql("SELECT DISTINCT left(stored_key, len(stored_key) - len(key)) FROM reported").fetchall()
    found = {prefix[: prefix.rfind("/") + 1] for (prefix,) in prefixes}
    # What is below another folder would be listed twice.
    return sorted(
        folder for folder in found if not any(folder != other and folder.startswith(other) for other in found)
    )


LISTED = pa.schema([("stored_key", pa.string()), ("listed_size", pa.int64()), ("listed_etag", pa.string())])


def load_listed(on: "duckdb.DuckDBPyConnection", address: StoreAddress) -> None:
    """Make the table `listed` of the target's objects in the folders of view `reported`."""
    batches = (
        pa.RecordBatch.from_arrays([batch[name] for name in ("key", "size_bytes", "etag")], schema=LISTED)
        for folder in list_folders(on)
        for batch in list_rows(address, prefix=folder, report_progress=None)
    )
    model.load_rows(on, "listed", LISTED, batches)


def make_listed_table(heads: Iterable[ListedObject]) -> pa.Table:
    rows = [
        {"stored_key": head.key, "listed_size": head.size_bytes, "listed_etag": head.etag} for head in heads
    ]
    return pa.Table.from_pylist(rows, LISTED)


def judge_objects(
    on: "duckdb.DuckDBPyConnection", source: StoreAddress, store: BackupStore, day: str, now: dt.datetime
) -> None:
    """Make the table `objects` of views `reported` and `listed`; content is read unless an earlier point proved it and
    the target lists the same ETag."""
    values = {
        "is_s3": source.kind == "s3" and store.address.kind == "s3",
        "is_folder": source.kind == "folder",
        "day": day,
        "now": now.astimezone(dt.UTC).replace(tzinfo=None),
    }
    on.execute(_JUDGED, values)
    unclear = fetch_rows(
        on.sql(
            "SELECT rowid AS place, stored_key, stored_version_id, checksum, status, level, problem, compared_at "
            "FROM objects WHERE is_unclear"
        )
    )
    with ThreadPoolExecutor(READERS) as pool:
        results = pool.map(lambda row: _judge_content(store, row), unclear)
        _set_problems(
            on,
            [
                row | {"level": level, "problem": problem}
                for row, (level, problem) in zip(unclear, results, strict=True)
            ],
        )


def _set_problems(on: "duckdb.DuckDBPyConnection", rows: Sequence[Row]) -> None:
    """Set level, problem and time of comparison in table `objects` by `place`; without a level it stays."""
    if not rows:
        return
    types = [
        ("place", pa.int64()),
        ("level", pa.int32()),
        ("problem", pa.string()),
        ("compared_at", pa.timestamp("us")),
    ]
    naive = [row | {"compared_at": row["compared_at"].replace(tzinfo=None)} for row in rows]
    on.register("judged", pa.Table.from_pylist(naive, pa.schema(types)))
    on.execute(
        "UPDATE objects SET level = coalesce(j.level, objects.level), problem = j.problem, compared_at = j.compared_at "
        "FROM judged j WHERE objects.rowid = j.place"
    )


def read_objects(on: "duckdb.DuckDBPyConnection") -> pa.RecordBatchReader:
    """The rows of table `objects` as schema OBJECTS has them, by table."""
    rows = on.sql("SELECT *, problem IS NULL AS is_whole FROM objects ORDER BY table_root, key")
    return rows.select(*OBJECTS.names).to_arrow_reader(model.ROWS_A_BATCH)


_CHANGED = """
CREATE TEMP VIEW objects AS
FROM (FROM judged ANTI JOIN healed USING (location) UNION ALL BY NAME FROM healed) ANTI JOIN removed USING (stored_key)
"""


@dataclass
class JudgedObjects:
    """The objects of a plan with the state of their copies: rows of schema OBJECTS in a folder, or in memory."""

    rows: Path | pa.Table
    healed: pa.Table = field(default_factory=OBJECTS.empty_table)  # In place of the rows of these locations
    removed: list[str] = field(default_factory=list)  # Stored keys of copies that were removed since

    @contextmanager
    def open(self) -> "Iterator[duckdb.DuckDBPyConnection]":
        """A database with the view `objects`."""
        with model.open_database() as on:
            is_changed = bool(self.healed.num_rows or self.removed)
            name = "judged" if is_changed else "objects"
            if isinstance(self.rows, Path):
                model.view_rows(on, name, self.rows)
            else:
                on.register(name, self.rows)
            if is_changed:
                on.register("healed", self.healed)
                on.register("removed", pa.table({"stored_key": pa.array(self.removed, pa.string())}))
                on.execute(_CHANGED)
            yield on

    def select(self, columns: Sequence[str], condition: str = "true", **values: object) -> pa.Table:
        """Columns of the rows that meet a condition in SQL with these values."""
        query = f"SELECT {', '.join(columns)} FROM objects WHERE {condition}"  # noqa: S608  of callers' constants
        with self.open() as on:
            rows = on.sql(query, params=values or None).to_arrow_table()
        return rows.cast(pa.schema(map(OBJECTS.field, columns)))

    def select_locations(self, columns: Sequence[str], locations: Sequence[str]) -> pa.Table:
        return self.select(columns, "location IN (SELECT unnest($locations))", locations=list(locations))

    def heal(self, healed: pa.Table) -> None:
        again = pc.is_in(self.healed["location"], value_set=healed["location"].combine_chunks())
        self.healed = pa.concat_tables([self.healed.filter(pc.invert(again)), healed])


def _judge_content(store: BackupStore, row: Row) -> tuple[int, str | None]:
    checksum = row["checksum"] or ""
    expected = checksum.removeprefix(SHA256) if checksum.startswith(SHA256) else None
    if store.address.kind == "folder":
        try:
            digest = compute_sha256(store, row["stored_key"])
        except ObjectMissing:
            return REPORTED, MISSING
        return (SAME_CHECKSUM, None) if digest == expected else (REPORTED, DIFFERS)
    head = store.head(row["stored_key"], row["stored_version_id"])
    if head is None:
        return REPORTED, MISSING
    stated = head.checksums.get("sha256")
    if expected is not None and stated is not None:
        same = base64.b64decode(stated).hex() == expected
        return (SAME_CHECKSUM, None) if same else (REPORTED, DIFFERS)
    if row["status"] == "held":
        return REPORTED, row["problem"]
    if expected is not None or "KMS" in (head.encryption or "").upper():
        return row["level"], None
    return REPORTED, "it has another ETag in the target, and so other content"


def normalize_location(location: str) -> str:
    """A location as stores name it; one of an unknown store stays as it is, since it is not copied."""
    try:
        return normalise_location(location)
    except BadRequest:
        return location


def make_plan_row(head: ListedObject, backup: Backup, **columns: Any) -> Row:
    """A row of schema COPIES for a current object, with further columns."""
    names = ("key", "version_id", "size_bytes", "last_modified", "etag", "storage_class")
    of_head = {name: getattr(head, name) for name in names}
    lane = "large" if (head.size_bytes or 0) > backup.copy_limit_bytes else "small"
    return {**of_head, "is_latest": True, "is_delete_marker": False, "lane": lane, **columns}


def copy_rows(
    backup: Backup,
    workspace: Workspace,
    rows: list[Row],
    source: StoreAddress,
    target: StoreAddress,
    work_prefix: str,
    as_of: dt.datetime,
    report_progress: ReportProgress,
) -> pa.Table:
    """Copy rows of schema COPIES between addresses; returns the rows with their results.

    The engine's own files are in a new folder below `work_prefix` of the target, which is removed at the end.
    """
    from lakeshare_pipelines.backup.copy.local import LocalEngine

    # Of its own each time: what an earlier call copied may be damaged again.
    name = uuid4().hex
    plan, done = workspace.clear(f"plan-{name}"), workspace.clear(f"done-{name}")
    model.write_rows(plan, model.COPIES, [pa.Table.from_pylist(rows, model.COPIES)])
    task = CopyTask(
        source=source,
        target=target,
        plan=plan,
        done=done,
        work_prefix=f"{work_prefix}{name}/",
        as_of=as_of,
        copy_limit_bytes=backup.copy_limit_bytes,
        in_flight=backup.in_flight,
    )
    try:
        LocalEngine().copy(task, report_progress)
        return model.read_table(done, model.COPIES)
    finally:
        store = open_store(target)
        for listed in list(store.list(task.work_prefix)):
            store.delete(listed.key)
        for folder in (plan, done):
            shutil.rmtree(folder, ignore_errors=True)


def compute_sha256(store: BackupStore, key: str, version_id: str | None = None) -> str:
    digest = hashlib.sha256()
    with store.open(key, version_id) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


_log = logging.getLogger(__name__)

CONTENT_READERS = 8
MD5_HEX = 32
SHOWN = 100
NO_MD5 = {"EXPRESS_ONEZONE"}  # Storage classes whose ETags are not MD5

READ = pa.schema(
    [
        pa.field("place", pa.string(), nullable=False),  # URL of the store that the copy is in
        pa.field("stored_key", pa.string(), nullable=False),
        pa.field("stored_version_id", pa.string()),
        # Of the copy that was read: with another ETag it is another copy.
        pa.field("stored_etag", pa.string()),
        # Of the content that was read: the reference where no checksum was known when the copy was made.
        pa.field("sha256", pa.string()),
        pa.field("read_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("problem", pa.string()),  # Why it is not what was backed up, for people; null if it is
    ]
)
"""Results of reading copies again."""


def load_copies(
    on: "duckdb.DuckDBPyConnection", points: Points, held: Iterable[model.Point], columns: Sequence[str]
) -> dict[str, DamagedRecord]:
    """Make the table `copies` with these columns of the copies that points hold, the `day` of the point and the `place`
    of the copy, the URL of its store. Returns the errors of the points whose rows cannot be read, by their days."""
    on.register("rows", pa.schema(map(model.POINT_COPIES.field, columns)).empty_table())
    on.execute("CREATE TEMP TABLE copies AS SELECT NULL::VARCHAR AS day, NULL::VARCHAR AS place, * FROM rows")
    damaged = {}
    for point in held:
        place = points.backup.target_of(point.day).url
        on.execute("BEGIN")
        try:
            for batch in points.read_copies(point, list(columns)):
                on.register("rows", pa.table({name: batch[name] for name in columns}))
                on.execute("INSERT INTO copies SELECT ?, ?, * FROM rows", [point.day, place])
        except DamagedRecord as error:
            on.execute("ROLLBACK")
            damaged[point.day] = error
        else:
            on.execute("COMMIT")
    return damaged


def read_copy(store: BackupStore, row: Row, known_sha256: str | None = None) -> tuple[str | None, str | None]:
    """Read a copy (a row of schema POINT_COPIES) completely and compare it with all that is known of its content.

    Returns the problem, None if it is what was backed up, and without a problem the SHA-256.
    """
    sha256, md5, crc32, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0, 0
    try:
        with store.open(row["stored_key"], row["stored_version_id"]) as file:
            while chunk := file.read(CHUNK_BYTES):
                sha256.update(chunk)
                md5.update(chunk)
                crc32, size = binascii.crc32(chunk, crc32), size + len(chunk)
    except ObjectMissing:
        return MISSING, None
    except OSError as error:
        # A sector that cannot be read fails at this point, not when the file is opened.
        return f"the disk cannot read it: {error.strerror or error}", None
    digests = {"sha256": sha256.hexdigest(), "md5": md5.hexdigest(), "crc32": f"{crc32:08x}"}
    problem = None
    if size != row["size_bytes"]:
        problem = f"it has {size} bytes in the target, {row['size_bytes']} were backed up"
    else:
        for algorithm, expected in _list_expected(store, row, known_sha256):
            if digests.get(algorithm) != expected:
                problem = f"{DIFFERS}: its {algorithm} is not what was backed up"
                break
    return problem, digests["sha256"] if problem is None else None


def _list_expected(store: BackupStore, row: Row, known_sha256: str | None) -> Iterator[tuple[str, str]]:
    checksum, etag = row["checksum"] or "", row["stored_etag"]
    if checksum.startswith(SHA256) or known_sha256 is not None:
        yield "sha256", checksum.removeprefix(SHA256) if checksum.startswith(SHA256) else str(known_sha256)
        return
    if store.address.kind == "folder":
        return
    head = store.head(row["stored_key"], row["stored_version_id"])
    if head is None:
        return
    is_hex = etag is not None and len(etag) == MD5_HEX and all(digit in "0123456789abcdef" for digit in etag)
    if is_hex and head.storage_class not in NO_MD5 and (head.encryption or "AES256") == "AES256":
        yield "md5", etag
    elif etag not in (None, head.etag):
        yield "ETag", str(etag)
    for algorithm in ("sha256", "crc32"):
        # A checksum of the checksums of parts ends with their number.
        if (stated := head.checksums.get(algorithm)) is not None and "-" not in stated:
            yield algorithm, base64.b64decode(stated).hex()


class ReadingStore:
    """The readings of a backup's copies. With two writers at once no row is lost."""

    def __init__(self, points: Points) -> None:
        self.points = points
        self._prefix = f"{points.backup.records.prefix}{OWN_PREFIX}{points.backup.name}/readings/"

    def load(self) -> pa.Table:
        """The newest reading of each copy: rows of schema READ. Files that cannot be read are skipped."""
        return _select_newest([rows for _, rows in self._files()])

    def add(self, rows: Sequence[Row]) -> None:
        """Write all known readings into one new file, and remove the files before it."""
        if not rows:
            return
        before = self._files()
        tables = [*(table for _, table in before), pa.Table.from_pylist(list(rows), READ)]
        file = io.BytesIO()
        pq.write_table(_select_newest(tables), file, compression="zstd")
        name = f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H%M%S.%fZ}.parquet"
        self.points.store.put(f"{self._prefix}{name}", file.getvalue())
        for key, _ in before:
            self.points.store.delete(key)

    def _files(self) -> list[tuple[str, pa.Table]]:
        files = []
        for listed in self.points.store.list(self._prefix):
            try:
                content = self.points.store.read(listed.key)
                files.append((listed.key, pq.read_table(io.BytesIO(content)).cast(READ)))
            except ObjectMissing:
                continue  # Another writer replaced it after the listing.
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                # Its readings are lost: their copies count as not read since they were made.
                _log.warning("%s cannot be read and is removed: %s", listed.key, error)
                files.append((listed.key, READ.empty_table()))
        return files


def _select_newest(tables: Sequence[pa.Table]) -> pa.Table:
    with model.open_database() as on:
        on.register("readings", pa.concat_tables([READ.empty_table(), *tables]))
        newest = (
            "SELECT DISTINCT ON (place, stored_key, stored_version_id) * FROM readings ORDER BY read_at DESC"
        )
        return on.sql(newest).to_arrow_table().cast(READ)


def register_readings(on: "duckdb.DuckDBPyConnection", points: Points, place: str | None = None) -> None:
    """Register all readings, or those at a place, as `readings`, with times in UTC without a zone."""
    known = ReadingStore(points).load()
    if place is not None:
        known = known.filter(pc.equal(known["place"], place))
    times = known["read_at"].cast(pa.timestamp("us"))
    on.register("readings", known.set_column(known.column_names.index("read_at"), "read_at", times))


# Copies that earlier points hold, with the last reading of each.
_HELD = """
CREATE TEMP VIEW held AS SELECT o.rowid AS place, o.stored_key, o.stored_version_id, o.stored_etag, size_bytes,
    checksum, o.problem, sha256, read_at, r.problem AS found, compared_at
FROM objects o LEFT JOIN readings r ON o.stored_key = r.stored_key
    AND o.stored_version_id IS NOT DISTINCT FROM r.stored_version_id
    AND o.stored_etag IS NOT DISTINCT FROM r.stored_etag
WHERE is_held
"""
# Those first that were not read for the longest time, and at least one.
_CHOSEN = """
FROM (SELECT *, sum(size_bytes) OVER (ORDER BY compared_at, place) AS through FROM held
    WHERE problem IS NULL AND found IS NULL) WHERE through <= $budget OR through = size_bytes ORDER BY through
"""


def read_held_copies(
    on: "duckdb.DuckDBPyConnection", points: Points, store: BackupStore, day: str, now: dt.datetime
) -> list[Row]:
    """Set in table `objects` when each copy was compared, and known or new damage; returns rows of schema READ.

    In a folder, copies that an earlier point holds are read again within the budget. A bucket compares contents itself,
    and lists an ETag of the content: there only findings of a scrub are used.
    """
    place, budget = points.backup.target_of(day).url, points.backup.scrub.bytes_per_run
    register_readings(on, points, place)
    on.execute(_HELD)
    on.execute(
        "UPDATE objects SET compared_at = read_at FROM held WHERE objects.rowid = place AND read_at > held.compared_at"
    )
    damaged = on.sql("FROM held WHERE list_contains($damage, problem)", params={"damage": list(DAMAGE)})
    readings = [make_reading_row(place, row, now, row["problem"]) for row in fetch_rows(damaged)]
    known = fetch_rows(on.sql("FROM held WHERE problem IS NULL AND found IS NOT NULL"))
    chosen = []
    if store.address.kind == "folder":
        chosen = fetch_rows(on.sql(_CHOSEN, params={"budget": budget}))
    with ThreadPoolExecutor(CONTENT_READERS) as pool:
        results = list(pool.map(lambda row: read_copy(store, row, row["sha256"]), chosen))
    for row in known:
        read_at = row["read_at"].replace(tzinfo=dt.UTC)
        readings.append(make_reading_row(place, row, read_at, row["found"], row["sha256"]))
    for row, (problem, sha256) in zip(chosen, results, strict=True):
        readings.append(make_reading_row(place, row, now, problem, sha256))
    found = [row | {"compared_at": row["compared_at"], "problem": row["found"]} for row in known]
    found += [
        row | {"compared_at": now, "problem": problem}
        for row, (problem, _) in zip(chosen, results, strict=True)
    ]
    _set_problems(on, found)
    return readings


def fetch_rows(found: "duckdb.DuckDBPyRelation") -> list[Row]:
    rows: list[Row] = found.to_arrow_table().to_pylist()
    return rows


def make_reading_row(
    place: str, row: Row, now: dt.datetime, problem: str | None, sha256: str | None = None
) -> Row:
    """A row of schema READ."""
    copy = {name: row[name] for name in ("stored_key", "stored_version_id", "stored_etag")}
    return {"place": place, **copy, "sha256": sha256, "read_at": now, "problem": problem}


def report_damage(points: Points, now: dt.datetime) -> list[str]:
    """Downgrade every point that holds a damaged copy, restore the status of repaired ones; returns downgraded days."""
    readings = ReadingStore(points).load()
    damaged = readings.filter(pc.is_valid(readings["problem"]))
    downgraded = []
    for point in points.readable(as_made=True)[0]:
        place = points.backup.target_of(point.day).url
        own = damaged.filter(pc.equal(damaged["place"], place))
        try:
            damage = _find_damage(points, point, own, now)
        except DamagedRecord as error:
            roots = tuple(proof.table.root for proof in point.verification.tables)
            damage = model.Damage(found_at=now, count=1, copies=(), tables=roots, record=error.reason)
        points.record_damage(point.day, damage)
        if damage is not None:
            downgraded.append(point.day)
    return downgraded


def _find_damage(
    points: Points, point: model.Point, damaged: pa.Table, now: dt.datetime
) -> model.Damage | None:
    problems = {(row["stored_key"], row["stored_version_id"]): row["problem"] for row in damaged.to_pylist()}
    keys = damaged["stored_key"].combine_chunks()
    copies: list[model.DamagedCopy] = []
    for batch in points.read_copies(point, ["key", "stored_key", "stored_version_id", "table_root"]):
        for row in batch.filter(pc.is_in(batch["stored_key"], keys)).to_pylist():
            problem = problems.get((row["stored_key"], row["stored_version_id"]))
            if problem is not None:
                names = ("key", "stored_key", "table_root")
                copies.append(model.DamagedCopy(**{name: row[name] for name in names}, problem=problem))
    if not copies:
        return None
    tables = {copy.table_root for copy in copies if copy.table_root is not None}
    # A table may have files below the root of another table inside it.
    tables |= {
        proof.table.root
        for proof in point.verification.tables
        if any(copy.key.startswith(f"{proof.table.root}/") for copy in copies)
    }
    return model.Damage(
        found_at=now, count=len(copies), copies=tuple(copies[:SHOWN]), tables=tuple(sorted(tables))
    )


def repair_points(points: Points, place: str, stored_key: str, head: ListedObject, was: Row) -> None:
    """Record the new version and ETag of a copy that was made again in the points that hold it."""
    for point in points.readable(as_made=True)[0]:
        if points.backup.target_of(point.day).url != place:
            continue
        try:
            rows = [
                row
                for batch in points.read_copies(point)
                for row in batch.filter(pc.equal(batch["stored_key"], stored_key)).to_pylist()
                if row["stored_version_id"] == was["stored_version_id"]
            ]
        except DamagedRecord:
            continue
        new = {"stored_etag": head.etag, "stored_version_id": head.version_id}
        changed = [row | new for row in rows if row | new != row]
        if changed:
            points.record_repaired(point, pa.Table.from_pylist(changed, model.POINT_COPIES))


ENOUGH = 0.5  # An older state with a smaller share of the newest state's rows is no fallback
TABLE_COPY_PRESENT, OPENED = 1, 4  # Levels: all copies are present; an independent reader read all data files


@dataclass(frozen=True)
class Need:
    """A file that a table needs and that is not whole in the copy; `size_bytes` as the table states it."""

    location: str
    size_bytes: int | None = None
    etag: str | None = None  # As the source's store returns it now


@dataclass(frozen=True)
class TableCopy:
    """The objects of one table."""

    table: model.FoundTable
    source: StoreAddress
    store: BackupStore
    objects: JudgedObjects  # Of all tables

    def locate(self, key: str) -> str:
        """The location of a key of the source's bucket, as tables name it."""
        return self.source.at(self.table.bucket).location(key)

    @property
    def location(self) -> str:
        return self.locate(self.table.root)

    def select(self, *columns: str, condition: str = "true", **values: object) -> pa.Table:
        """Columns of schema OBJECTS of the table's objects that meet a condition in SQL."""
        condition = f"table_root = $root AND {condition}"
        return self.objects.select(columns, condition, root=self.table.root, **values)

    def below(self, name: str, *columns: str) -> pa.Table:
        folder = f"{self.table.root}/{name}".lstrip("/")
        return self.select(*columns, condition="starts_with(key, $folder)", folder=folder)

    def is_inside(self, location: str) -> bool:
        return location.startswith(f"{self.location.rstrip('/')}/")

    def stored_key(self, key: str) -> str:
        below = key.removeprefix(self.table.root).lstrip("/")
        return f"{self.table.stored_root.rstrip('/')}/{below}"

    def relative_locations(self, needs: Sequence[Need]) -> list[str]:
        """Keys of files of the source, locations of files outside of it."""
        inside = self.locate("")
        return [need.location.removeprefix(inside) for need in needs]

    def make_proof(
        self, status: model.Status, wanted: int | None, missing: list[str], reasons: list[str], **opened: Any
    ) -> model.TableProof:
        """The proof of the table; `opened` are fields of the version that opens, if there is one."""
        healed = self.select("key", condition="is_healed")["key"]
        return model.TableProof(
            table=self.table,
            status=status,
            wanted_version=wanted,
            missing=tuple(missing[:SHOWN]),
            missing_count=len(missing),
            healed=tuple(healed.slice(0, SHOWN).to_pylist()),
            reasons=tuple(reasons),
            **opened,
        )

    def prove_level(
        self, within_days: int, *, was_read: bool
    ) -> tuple[int, dt.datetime | None, tuple[str, ...]]:
        """The level of an opened table, since when, and why it is not the highest; `was_read`: with every data file."""
        whole = self.select("compared_at", "level", condition="is_whole")
        compared_at = pc.min(whole["compared_at"]).as_py()
        lowest = int(pc.min(whole["level"]).as_py() or 0)
        oldest = dt.datetime.now(dt.UTC) - dt.timedelta(days=within_days)
        if compared_at is not None and compared_at < oldest:
            reason = (
                f"Some of its copies were compared last on {compared_at:%Y-%m-%d}, more than {within_days} days ago: "
                "`lakeshare backup scrub` reads them again."
            )
            return min(lowest, TABLE_COPY_PRESENT), compared_at, (reason,)
        if not was_read:
            reason = "It has too many files for all of them to be read: opened was its log, or its manifests."
            return lowest, compared_at, (reason,)
        return OPENED, compared_at, ()


READ_WHOLE_FILES = 20_000  # The data files of larger tables are not read: new ones were compared one by one
MAX_TRIED = 5  # So many versions are opened, newest first, until a table counts as unreadable


def explain_too_small(rows: int | None, newest_rows: int | None) -> str | None:
    """Why an older state is no fallback: it is empty, or has less than half of the newest state's rows; else None."""
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


def explain_outside_needs(copy: TableCopy, needs: Sequence[Need], backup: Backup) -> list[str]:
    """A sentence about needs outside of the source that were not followed; empty without such needs."""
    inside = copy.locate("")
    outside = [need.location for need in needs if not need.location.startswith(inside)]
    if not outside or backup.external == "follow":
        return []
    return [
        f"{len(outside)} of its files are outside of the source, the first is {outside[0]}: set `external: follow` "
        "in the backup to copy them as well, or rewrite the table so that it has its own files."
    ]


# The last two are pyiceberg's, of types that it does not know.
UNSUPPORTED_PHRASES = (
    "unsupported", "not supported", "not yet support", "does not support", "not implemented", "notimplemented",
    "validation error", "could not parse",
)  # fmt: skip


def is_unsupported(error: BackupError) -> bool:
    """Whether a reader refuses a feature that it does not know, rather than a damaged table."""
    return any(phrase in error.reason.lower() for phrase in UNSUPPORTED_PHRASES)


def count_rows_or_use_spark(
    count: Callable[[], tuple[int | None, str]],
    open_spark: model.OpenSpark | None,
    table_format: Literal["delta", "iceberg"],
    location: str,
    version: int | None = None,
) -> tuple[int | None, str]:
    """As `count`; by Spark if its reader refuses a feature that it does not know."""
    try:
        return count()
    except BackupError as error:
        if open_spark is None or not is_unsupported(error):
            raise
        return count_rows_by_spark(open_spark, table_format, location, version)


def count_rows_by_spark(
    open_spark: model.OpenSpark,
    table_format: Literal["delta", "iceberg"],
    location: str,
    version: int | None = None,
) -> tuple[int, str]:
    """Rows that Spark reads, with all columns, from a Delta root or an Iceberg metadata file; and the reader's name."""
    spark = open_spark()
    reader = f"Spark {spark.version}"
    place = location.replace("s3://", "s3a://", 1) if table_format == "delta" else location
    try:
        load = spark.read.format(table_format)
        if version is not None:
            load = load.option("versionAsOf", version)
        # A plain count would use statistics; the sum over rows needs the values.
        ((rows, _),) = digest_rows(load.load(place))[0].values()
    # Spark raises errors of its sources through a gateway: any of them means that the table does not open.
    except Exception as error:
        fix = "Look at the table at its source."
        raise BackupError(location, f"{reader} cannot open it: {get_first_line(error)}", fix) from error
    return rows, reader


def get_first_line(error: Exception) -> str:
    """The first line of an error's text; its class if it has none."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
