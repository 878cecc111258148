"""Records of each step of a backup, kept as JSON in the workspace and the point; schemas of the row files."""

import datetime as dt
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Literal

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel

from lakeshare_pipelines.errors import BackupError
from lakeshare_server.lazy import LazyModule
from lakeshare_server.settings import make_private

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import SparkSession
else:
    duckdb = LazyModule("duckdb")

OpenSpark = Callable[[], "SparkSession"]
ReportMessage = Callable[[str], None]
Status = Literal["verified", "verified_with_fallback", "degraded", "failed"]
GOOD_STATUSES: tuple[Status, ...] = ("verified", "verified_with_fallback")
"""Only these statuses count for retention, drills and the age of a backup."""


class ListingRecord(BaseModel, frozen=True):
    """Provenance of a normalised listing: rows of schema LISTING in the workspace's folder `listing`."""

    kind: str
    location: str
    scan_started_at: dt.datetime
    scan_ended_at: dt.datetime | None = None
    manifest_md5: str | None = None
    has_versions: bool = False
    rows: int
    size_bytes: int
    is_late: bool = False  # A later report, or the generator in place of a report
    warnings: tuple[str, ...] = ()  # Sentences: unusable reports, missing objects of a manifest, …


class FoundTable(BaseModel, frozen=True):
    """A table in a listing; the key of its root has no slash at its end."""

    bucket: str
    root: str
    format: Literal["delta", "iceberg"]
    stored_root: str  # Key of the root in the target


class Estimate(BaseModel, frozen=True):
    objects: int
    size_bytes: int
    held_objects: int
    held_bytes: int
    requests: int
    usd: float
    minutes: float
    by_lane: dict[str, int]  # Objects of each lane (LANES)


class PlanRecord(BaseModel, frozen=True):
    """A plan: rows of schema COPIES in the workspace's folder `plan`."""

    day: str
    as_of: dt.datetime
    previous: str | None  # The day of the point of the `held` rows
    tables: tuple[FoundTable, ...]
    estimate: Estimate
    left_out: dict[str, int]  # Objects that are not copied, by reason: "delete marker", …
    warnings: tuple[str, ...] = ()  # Sentences: a vacuum that is shorter than the lag, …


class CopyRecord(BaseModel, frozen=True):
    """Result of an engine: rows of COPIES in the workspace's folder `done`, one for each row to copy."""

    engine: str
    succeeded: int
    failed: int
    size_bytes: int
    seconds: float
    reports: tuple[str, ...]  # Locations of reports in AWS's layout (their manifest.json)
    capabilities: dict[str, bool] = {}  # Features that the target supports, as the engine probed them


class TableProof(BaseModel, frozen=True):
    table: FoundTable
    status: Status
    version: int | None = None  # Delta version, or Iceberg's last sequence number, that opens
    wanted_version: int | None = None  # The newest one before as_of: without a fallback, `version`
    snapshot_id: int | None = None  # Iceberg's snapshot
    metadata_key: str | None = None  # Iceberg: key of the source's metadata.json that is restored
    oldest_version: int | None = None  # The oldest version that still opens from the copy
    committed_at: dt.datetime | None = None
    files: int = 0
    size_bytes: int = 0
    rows: int | None = None  # Rows of the table at `version`, counted by the independent reader
    level: int = 0
    """4 if a reader read all data files and every copy was compared with its digest within `scrub.within_days`,
    else the lowest level of its copies."""
    compared_at: dt.datetime | None = None  # When the copy that was compared longest ago was compared
    opened_by: str | None = None  # Name and version of the independent reader
    mount: str | None = None  # Location at which the copy opens; for Iceberg that of a metadata.json
    mount_digest: str | None = None  # Of an Iceberg mount: Points.mount_digest
    missing: tuple[str, ...] = ()  # Keys (the first hundred) that the table needs and that do not exist
    missing_count: int = 0
    healed: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()  # Sentences: why the table is not `verified`, and the remedy


class Verification(BaseModel, frozen=True):
    """Verification of a day's copies: rows of POINT_COPIES in the workspace's folder `held`."""

    status: Status
    tables: tuple[TableProof, ...]
    objects: int
    size_bytes: int
    accounted_for: bool  # L0: every planned object is reported, as succeeded or as failed
    failed_objects: int  # Objects outside tables; those of tables are in their proofs
    reasons: tuple[str, ...] = ()


class CatalogRecord(BaseModel, frozen=True):
    key: str  # Key of its manifest in the store of the records
    nessie_hash: str | None
    tables: int
    publications: int
    shares: int
    grants: int


class DamagedCopy(BaseModel, frozen=True):
    key: str
    stored_key: str
    table_root: str | None
    problem: str


class Damage(BaseModel, frozen=True):
    """Copies of a point that were found damaged after the point was written and could not be repaired."""

    found_at: dt.datetime
    count: int
    copies: tuple[DamagedCopy, ...]  # The first hundred
    tables: tuple[str, ...]  # Roots of all tables that hold damaged copies
    record: str | None = None  # Why the list of copies cannot be read: then all tables are lost


class Point(BaseModel, frozen=True):
    backup: str
    day: str
    as_of: dt.datetime
    made_at: dt.datetime
    layout: Literal["incremental", "dated"]
    status: Status
    target: str  # URL of the store of the copies
    listing: ListingRecord
    plan: PlanRecord
    copied: CopyRecord
    verification: Verification
    catalog: CatalogRecord | None = None
    retention_class: Literal["daily", "weekly", "monthly", "yearly"] = "daily"
    locked_until: dt.datetime | None = None
    held_digests: dict[str, str] = {}  # SHA-256 of each file of its rows; none in earlier releases
    digest: str | None = None  # SHA-256 of the record without it; none in earlier releases
    damage: Damage | None = None  # Found since the record was written; not stored in it
    status_when_made: Status | None = None  # `status` before damage was found; not stored in the record

    @property
    def was_good(self) -> bool:
        """Whether it was good when it was made, whatever damage was found since: its undamaged tables still count."""
        return (self.status_when_made or self.status) in GOOD_STATUSES

    def downgraded(self, damage: Damage | None) -> "Point":
        if damage is None or not damage.count:
            return self
        reasons = [f"{copy.key}: {copy.problem}." for copy in damage.copies if copy.table_root is None]
        if damage.record is not None:
            reasons.append(f"{damage.record}.")
        changes = {
            "status": "degraded",
            "tables": tuple(_downgrade(proof, damage) for proof in self.verification.tables),
            "reasons": (*self.verification.reasons, *reasons),
        }
        verification = self.verification.model_copy(update=changes)
        update = {"status": "degraded", "status_when_made": self.status, "damage": damage}
        return self.model_copy(update={**update, "verification": verification})


def _downgrade(proof: TableProof, damage: Damage) -> TableProof:
    if proof.table.root not in damage.tables:
        return proof
    copies = [copy for copy in damage.copies if copy.table_root == proof.table.root]
    first = f", the first is {copies[0].key}: {copies[0].problem}" if copies else ""
    reason = f"{len(copies) or 'Some'} of its copies were found damaged on {damage.found_at:%Y-%m-%d %H:%M} UTC{first}."
    if damage.record is not None:
        reason = f"The list of the point's copies cannot be read: {damage.record}."
    return proof.model_copy(update={"status": "degraded", "level": 0, "reasons": (*proof.reasons, reason)})


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


LISTING = pa.schema(
    [
        _required("bucket", pa.string()),
        _required("key", pa.string()),
        pa.field("version_id", pa.string()),  # Null for the null version, and in stores without versions
        _required("is_latest", pa.bool_()),
        _required("is_delete_marker", pa.bool_()),
        pa.field("size_bytes", pa.int64()),  # Null for delete markers, as are the columns below
        pa.field("last_modified", pa.timestamp("ms", tz="UTC")),
        pa.field("etag", pa.string()),
        pa.field("storage_class", pa.string()),
        pa.field("is_multipart", pa.bool_()),
        pa.field("encryption", pa.string()),
        pa.field("checksum_algorithm", pa.string()),
    ]
)
"""A normalised listing: one row per version of a key; a listing of current objects has one row per key."""

LANES = ("held", "small", "large", "archived", "external")
"""held: the target has the object already. small, large: up to and above the limit of one copy request. archived: to
be thawed first. external: a file of a table outside the source."""

COPIES = pa.schema(
    [
        *LISTING,
        _required("lane", pa.string()),  # One of LANES
        _required("stored_key", pa.string()),  # The key of the copy in the target
        # Key of the table's root without a slash at its end; null for objects outside tables.
        pa.field("table_root", pa.string()),
        _required("first_point", pa.string()),  # The day of the point that copied the object first
        # "held", "succeeded" or "failed"; null before the object is copied.
        pa.field("status", pa.string()),
        # S3's error code ("NoSuchKey", "PreconditionFailed", …), HTTP status and message; null on success.
        pa.field("error_code", pa.string()),
        pa.field("http_status", pa.int32()),
        pa.field("message", pa.string()),
        pa.field("stored_etag", pa.string()),  # Of the copy, if the engine knows them
        pa.field("stored_version_id", pa.string()),
        # "sha256:…" or "crc64nvme:…" of the copied content, if the engine knows it.
        pa.field("checksum", pa.string()),
        # Verification level: 0 reported, 1 present with its size, 2 same ETag, 3 same checksum (levels L0-L3).
        pa.field("level", pa.int8()),
        # Whether the copy was made again, or of an older version, by the verification.
        pa.field("is_healed", pa.bool_()),
    ]
)
"""The objects that a point will hold, each once, from the plan to the verification. A plan has what the earlier point
knows of its held objects; an engine adds the results of the others."""

RESULT_COLUMNS = (
    "status", "error_code", "http_status", "message", "stored_etag", "stored_version_id", "checksum"
)  # fmt: skip

POINT_COPIES = pa.schema(
    [
        *map(COPIES.field, ("bucket", "key", "version_id", "size_bytes", "last_modified", "etag", "storage_class")),
        *map(COPIES.field, ("stored_key", "table_root", "first_point", "stored_etag", "stored_version_id", "checksum")),
        *(COPIES.field(name).with_nullable(False) for name in ("level", "is_healed")),
    ]
)  # fmt: skip
"""The objects that a point holds: enough to find, to compare with the next listing, and to restore each."""

ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")  # Storage classes of objects that must be thawed; GLACIER_IR is none
ROWS_A_FILE = 1_000_000
ROWS_A_BATCH = 32_768  # Small batches reuse memory: touching new memory costs as much as reading


MEMORY_BYTES = 2 * 1024**3
LARGE_MEMORY_BYTES = 4 * 1024**3
"""Enough for ten million rows on each side without spilling; at most half of the free memory is used."""


@contextmanager
def open_database(folder: Path | None = None) -> "Iterator[duckdb.DuckDBPyConnection]":
    """A connection whose temporary tables and registered tables are its own; what exceeds the memory is on the disk.
    For rows of a whole backup an empty database of its own, which spills into `folder`."""
    if folder is None:
        with _database_of_process(os.getpid()).cursor() as database:
            yield database
        return
    memory = min(LARGE_MEMORY_BYTES, psutil.virtual_memory().available // 2)
    make_private(folder)
    with TemporaryDirectory(dir=folder, prefix=".spilled-") as spilled, _connect(memory, spilled) as database:
        yield database


def _connect(memory_bytes: int, spilled: str) -> "duckdb.DuckDBPyConnection":
    return duckdb.connect(config={"memory_limit": f"{memory_bytes}B", "temp_directory": spilled})


@cache
def _database_of_process(_pid: int) -> "duckdb.DuckDBPyConnection":
    """The one DuckDB of this process: starting one takes 10 ms, which several queries per table would wait for."""
    # DuckDB makes its folder when something is spilled, and removes it. A worker runs no exit handlers: what was made
    # for each process before would stay. Its files are as open as their folder is.
    private = Path(gettempdir()) / f"lakeshare-backup-{os.geteuid()}"
    make_private(private)
    if (seen := private.lstat()).st_uid != os.geteuid() or seen.st_mode & 0o077:
        raise BackupError(str(private), "others can open this folder", "Remove it, or set TMPDIR.")
    return _connect(MEMORY_BYTES, str(private / secrets.token_hex(8)))


def load_rows(
    on: "duckdb.DuckDBPyConnection",
    name: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch | pa.Table],
) -> None:
    """Make a temporary table of rows. Errors of their source stay as they are, as they would not inside a query."""
    on.register("loaded", schema.empty_table())
    on.execute(f"CREATE TEMP TABLE {name} AS FROM loaded")
    for batch in batches:
        on.register("loaded", batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch]))
        on.execute(f"INSERT INTO {name} FROM loaded")


def view_rows(on: "duckdb.DuckDBPyConnection", name: str, folder: Path) -> None:
    """Make a temporary view of a folder of rows."""
    paths = ", ".join("'" + str(path).replace("'", "''") + "'" for path in sorted(folder.glob("*.parquet")))
    on.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS FROM read_parquet([{paths}])")


def write_rows(folder: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table]) -> int:
    """Write rows as Parquet files `part-00000.parquet`, … into a folder, which appears when it is complete. Replaces
    the folder and remains of an aborted write. Returns the number of rows."""
    unfinished = folder.with_name(f".{folder.name}.part")
    for left in (unfinished, folder):
        if left.exists():
            shutil.rmtree(left)
    unfinished.mkdir(parents=True)
    rows, writer, number = 0, None, 0
    try:
        for batch in batches:
            if writer is None:
                path = unfinished / f"part-{number:05}.parquet"
                writer = pq.ParquetWriter(path, schema, compression="zstd")
            writer.write_table(conform(batch, schema))
            rows += batch.num_rows
            if rows // ROWS_A_FILE > number:
                writer.close()
                writer, number = None, rows // ROWS_A_FILE
        if writer is None and number == 0:
            pq.write_table(schema.empty_table(), unfinished / "part-00000.parquet")
    finally:
        if writer is not None:
            writer.close()
    unfinished.rename(folder)
    return rows


def conform(rows: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """The columns of a schema; those that the rows lack are null."""
    names = rows.schema.names
    columns = [
        rows[field.name] if field.name in names else pa.nulls(rows.num_rows, field.type) for field in schema
    ]
    return pa.table(columns, schema.names).cast(schema)


def make_listing_batch(columns: dict[str, pa.Array], count: int) -> pa.RecordBatch:
    """Rows of schema LISTING; by default they are latest versions and no delete markers, other columns are null."""
    for name, default in (("is_latest", True), ("is_delete_marker", False)):
        column = columns.get(name, pa.nulls(count, pa.bool_()))
        columns[name] = pc.fill_null(column, default)
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in LISTING]
    return pa.RecordBatch.from_arrays(arrays, schema=LISTING)


def read_rows(folder: Path, columns: "list[str] | None" = None) -> Iterator[pa.RecordBatch]:
    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(ROWS_A_BATCH, columns=columns)


def group_batches(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[list[pa.RecordBatch]]:
    """Groups of batches with at least `rows` rows together; the last group may have fewer."""
    pending, count = list[pa.RecordBatch](), 0
    for batch in batches:
        pending.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield pending
            pending, count = [], 0
    if count:
        yield pending


def count_rows(batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Number of rows, and the sum of their `size_bytes`."""
    rows = size_bytes = 0
    for batch in batches:
        rows += batch.num_rows
        size_bytes += pc.sum(batch["size_bytes"]).as_py() or 0
    return rows, size_bytes


def read_table(folder: Path, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(list(read_rows(folder)), schema)
