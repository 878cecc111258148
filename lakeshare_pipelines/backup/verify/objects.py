"""Levels L0 to L3 of copies: reported by the engine, listed by the target, and the same content."""

import atexit
import base64
import binascii
import datetime as dt
import hashlib
import io
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from tempfile import mkdtemp
from typing import Any, Literal
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup import model
from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.copy.engine import CopyTask, ReportProgress
from lakeshare_pipelines.backup.points import OWN_PREFIX, Points, Workspace, get_point_time
from lakeshare_pipelines.backup.stores import BackupStore, ListedObject, StoreAddress, open_store
from lakeshare_pipelines.errors import BackupError, DamagedRecord, ObjectMissing
from lakeshare_server.errors import BadRequest
from lakeshare_server.locations import normalise_location

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
JOINED = """
SELECT p.*, coalesce(d.status, if(h.key IS NULL, NULL, 'held')) AS status, d.error_code, d.message,
    coalesce(d.stored_etag, h.stored_etag) AS stored_etag,
    coalesce(d.stored_version_id, h.stored_version_id) AS stored_version_id,
    coalesce(d.checksum, h.checksum) AS checksum, h.level, coalesce(h.is_healed, false) AS is_healed
FROM planned p
LEFT JOIN done d ON p.lane <> 'held' AND p.bucket = d.bucket AND p.key = d.key
LEFT JOIN earlier h ON p.lane = 'held' AND p.bucket = h.bucket AND p.key = h.key
"""
JUDGED = f"""
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
-- An ETag of one part without a KMS key is the content's MD5: two such ETags of S3 must not differ.
SELECT *, coalesce(starts_with(checksum, '{SHA256}'), false)
        AND coalesce(problem = '{CHANGED}' OR problem IS NULL AND status = 'succeeded', false)
    OR $is_s3 AND problem IS NULL AND level = {PRESENT}
        AND coalesce(NOT contains(etag || listed_etag, '-'), false) AND NOT contains(coalesce(encryption, ''), 'KMS')
    AS is_unclear
FROM judged
"""  # noqa: S608  the only values that are not bound are constants of this module


def join_reports(
    plan: Iterable[pa.RecordBatch], done: Iterable[pa.RecordBatch], earlier: Iterable[pa.RecordBatch]
) -> tuple[pa.Table, bool]:
    """The plan's rows with the reports of engines and of the earlier point, and L0: whether all are accounted for."""
    planned = pa.Table.from_batches(list(plan), model.PLAN)
    with open_database() as on:
        on.register("planned", planned)
        on.register("done", pa.Table.from_batches(list(done), model.COPY_RESULTS))
        on.register("earlier", pa.Table.from_batches(list(earlier), model.POINT_COPIES))
        rows = on.sql(JOINED).to_arrow_table().combine_chunks()
    return rows, not rows["status"].null_count and rows.num_rows == planned.num_rows


def list_prefixes(objects: pa.Table) -> list[str]:
    """The prefixes of stored keys before the original keys."""
    with open_database() as on:
        on.register("objects", objects)
        prefixes = on.sql(
            "SELECT DISTINCT left(stored_key, len(stored_key) - len(key)) FROM objects"
        ).fetchall()
    found = [prefix for (prefix,) in prefixes]
    # What is below another prefix would be listed twice.
    return sorted(
        prefix for prefix in found if not any(prefix != other and prefix.startswith(other) for other in found)
    )


def list_copies(store: BackupStore, prefixes: Sequence[str]) -> pa.Table:
    """The target's listing below these prefixes."""
    return make_listed_table(listed for prefix in prefixes for listed in store.list(prefix))


def make_listed_table(objects: Iterable[ListedObject]) -> pa.Table:
    """Objects of the target with the columns `stored_key`, `listed_size` and `listed_etag`."""
    keys, sizes, etags = list[str](), list[int | None](), list[str | None]()
    for listed in objects:
        keys.append(listed.key)
        sizes.append(listed.size_bytes)
        etags.append(listed.etag)
    columns = (pa.array(keys, pa.string()), pa.array(sizes, pa.int64()), pa.array(etags, pa.string()))
    return pa.table(columns, ["stored_key", "listed_size", "listed_etag"])


def judge_objects(reported: pa.Table, listed: pa.Table, source: StoreAddress, store: BackupStore) -> pa.Table:
    """Rows of schema OBJECTS; content is read unless an earlier point proved it and the target lists the same ETag."""
    is_s3 = source.kind == "s3" and store.address.kind == "s3"
    with open_database() as on:
        on.register("reported", reported)
        on.register("listed", listed)
        rows = on.sql(JUDGED, params={"is_s3": is_s3}).to_arrow_table().combine_chunks()
    level, problem = rows["level"], rows["problem"]
    places = pc.indices_nonzero(rows["is_unclear"]).to_pylist()
    with ThreadPoolExecutor(READERS) as pool:
        unclear_rows = rows.take(pa.array(places, pa.int64())).to_pylist()
        results = list(pool.map(lambda row: _judge_content(store, row), unclear_rows))
    if results:
        levels, problems = level.to_pylist(), problem.to_pylist()
        for place, result in zip(places, results, strict=True):
            levels[place], problems[place] = result
        level, problem = pa.array(levels, pa.int8()), pa.array(problems, pa.string())
    columns = {
        "level": level,
        "problem": problem,
        "is_whole": pc.is_null(problem),
        "is_healed": pc.fill_null(rows["is_healed"], False),
        # Copies held from earlier points are compared by read_held_copies.
        "compared_at": pa.array([dt.datetime.now(dt.UTC)] * rows.num_rows, OBJECTS.field("compared_at").type),
        "location": pc.binary_join_element_wise(
            rows["bucket"]
            if source.kind == "folder"
            else pc.binary_join_element_wise("s3://", rows["bucket"], ""),
            rows["key"],
            "/",
        ),
        # What the next point compares with: listed by the target, not reported by the engine.
        "stored_etag": rows["listed_etag"],
    }
    return pa.table(
        {name: columns.get(name, rows[name] if name in rows.column_names else None) for name in OBJECTS.names}
    ).cast(OBJECTS)


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
    """A row of schema PLAN for a current object, with further columns."""
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
) -> tuple[pa.Table, pa.Table]:
    """Copy rows of schema PLAN between addresses; returns the rows of the plan and of the results.

    The engine's own files are in a new folder below `work_prefix` of the target, which is removed at the end.
    """
    from lakeshare_pipelines.backup.copy.local import LocalEngine

    # Of its own each time: what an earlier call copied may be damaged again.
    name = uuid4().hex
    plan, done = workspace.clear(f"plan-{name}"), workspace.clear(f"done-{name}")
    model.write_rows(plan, model.PLAN, [pa.Table.from_pylist(rows, model.PLAN)])
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
        return model.read_table(plan, model.PLAN), model.read_table(done, model.COPY_RESULTS)
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
DUCKDB_MEMORY = "2GB"
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


@contextmanager
def open_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection whose temporary tables and registered tables are its own; what exceeds the memory is on the disk."""
    with _database_of_process(os.getpid()).cursor() as database:
        yield database


@cache
def _database_of_process(_pid: int) -> duckdb.DuckDBPyConnection:
    """The one DuckDB of this process: starting one takes 10 ms, which several queries per table would wait for."""
    spilled = mkdtemp(prefix="lakeshare-backup-")
    atexit.register(shutil.rmtree, spilled, ignore_errors=True)
    return duckdb.connect(config={"memory_limit": DUCKDB_MEMORY, "temp_directory": spilled})


def load_copies(
    on: duckdb.DuckDBPyConnection, points: Points, held: Iterable[model.Point], columns: Sequence[str]
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
    with open_database() as on:
        on.register("readings", pa.concat_tables([READ.empty_table(), *tables]))
        newest = (
            "SELECT DISTINCT ON (place, stored_key, stored_version_id) * FROM readings ORDER BY read_at DESC"
        )
        return on.sql(newest).to_arrow_table().cast(READ)


def read_held_copies(
    points: Points, store: BackupStore, objects: pa.Table, day: str, budget_bytes: int, now: dt.datetime
) -> tuple[pa.Table, list[Row]]:
    """Rows of schema OBJECTS with when each was compared, and with known or new damage; and rows of schema READ.

    In a folder, copies that an earlier point holds are read again within the budget. A bucket compares contents itself,
    and lists an ETag of the content: there only findings of a scrub are used.
    """
    place = points.backup.target_of(day).url
    known_readings = ReadingStore(points).load()
    of_place = known_readings.filter(pc.equal(known_readings["place"], place)).to_pylist()
    identity = ("stored_key", "stored_version_id", "stored_etag")
    identify = itemgetter(*identity)
    known = {identify(row): row for row in of_place}
    names = [*identity, "size_bytes", "checksum", "first_point", "is_whole"]
    rows = objects.select(names).to_pylist()
    problems: list[str | None] = objects["problem"].to_pylist()
    compared: list[dt.datetime] = []
    old: list[tuple[dt.datetime, int]] = []
    sha256_of: dict[int, str | None] = {}
    readings: list[Row] = []
    for at, row in enumerate(rows):
        earlier = known.get(identify(row))
        is_held = row["first_point"] != day
        compared_at = get_point_time(row["first_point"]) if is_held else now
        if is_held and earlier is not None:
            compared_at, sha256_of[at] = max(compared_at, earlier["read_at"]), earlier["sha256"]
        compared.append(compared_at)
        if is_held and problems[at] in DAMAGE:
            readings.append(make_reading_row(place, row, now, problems[at]))
        if row["is_whole"] and is_held:
            if earlier is not None and earlier["problem"] is not None:
                problems[at] = earlier["problem"]
                readings.append(earlier)
            elif store.address.kind == "folder":
                old.append((compared_at, at))
    chosen, spent = list[int](), 0
    for _, at in sorted(old):
        spent += rows[at]["size_bytes"]
        if chosen and spent > budget_bytes:
            break
        chosen.append(at)
    with ThreadPoolExecutor(CONTENT_READERS) as pool:
        results = list(pool.map(lambda at: read_copy(store, rows[at], sha256_of.get(at)), chosen))
    for at, (problem, sha256) in zip(chosen, results, strict=True):
        compared[at], problems[at] = now, problem
        readings.append(make_reading_row(place, rows[at], now, problem, sha256))
    return _replace_problems(objects, problems, compared), readings


def _replace_problems(
    objects: pa.Table, problems: Sequence[str | None], compared: Sequence[dt.datetime]
) -> pa.Table:
    problem = pa.array(problems, pa.string())
    columns = {
        "problem": problem,
        "is_whole": pc.is_null(problem),
        "compared_at": pa.array(compared, pa.timestamp("us", tz="UTC")),
    }
    for name, column in columns.items():
        index = objects.schema.get_field_index(name)
        objects = objects.set_column(index, objects.schema.field(index), column)
    return objects


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
    """The objects of one table: rows of schema OBJECTS below its root."""

    table: model.FoundTable
    source: StoreAddress
    store: BackupStore
    objects: pa.Table
    elsewhere: Callable[[Sequence[str]], pa.Table]  # Rows of schema OBJECTS by location, of any table

    def locate(self, key: str) -> str:
        """The location of a key of the source's bucket, as tables name it."""
        return self.source.at(self.table.bucket).location(key)

    @property
    def location(self) -> str:
        return self.locate(self.table.root)

    @property
    def whole(self) -> pa.Table:
        return self.objects.filter(self.objects["is_whole"])

    def below(self, name: str) -> pa.Table:
        folder = f"{self.table.root}/{name}".lstrip("/")
        return self.objects.filter(pc.starts_with(self.objects["key"], folder))

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
        healed = self.objects.filter(self.objects["is_healed"])["key"]
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
        whole = self.whole
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


UNSUPPORTED_PHRASES = (
    "unsupported", "not supported", "not yet support", "does not support", "not implemented", "notimplemented"
)  # fmt: skip


def count_rows_or_use_spark(
    count: Callable[[], tuple[int | None, str]],
    open_spark: model.OpenSpark | None,
    table_format: Literal["delta", "iceberg"],
    location: str,
    version: int | None = None,
) -> tuple[int | None, str]:
    """As `count`; by Spark if its reader refuses a feature that it does not know, rather than a damaged table."""
    try:
        return count()
    except BackupError as error:
        if open_spark is None or not any(phrase in error.reason.lower() for phrase in UNSUPPORTED_PHRASES):
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
        table = load.load(place)
        # A plain count would use statistics; the sum needs the values.
        values = ", ".join(f"`{name.replace('`', '``')}`" for name in table.columns)
        counted = table.selectExpr(f"xxhash64({values}) AS of_row").selectExpr(
            "count(*) AS rows", "sum(of_row % 97)"
        )
        return int(counted.collect()[0]["rows"]), reader
    # Spark raises errors of its sources through a gateway: any of them means that the table does not open.
    except Exception as error:
        fix = "Look at the table at its source."
        raise BackupError(location, f"{reader} cannot open it: {get_first_line(error)}", fix) from error


def get_first_line(error: Exception) -> str:
    """The first line of an error's text; its class if it has none."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
