"""What each step of a backup says of itself: small records, kept as JSON in the workspace and in the point."""

import datetime as dt
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

Status = Literal["verified", "verified_with_fallback", "degraded", "failed"]
GOOD_STATUSES: tuple[Status, ...] = ("verified", "verified_with_fallback")
"""Only these count: for retention, for drills, for the age of a backup."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class ListingRecord(_Record):
    """Provenance of a normalised listing: rows of schema LISTING in the workspace's folder `listing`."""

    kind: str
    location: str
    scan_started_at: dt.datetime
    scan_ended_at: dt.datetime | None = None
    manifest_md5: str | None = None
    has_versions: bool = False
    rows: int
    size_bytes: int
    is_late: bool = False
    """No report came in time, and the generator listed instead, or a later report was taken."""
    warnings: tuple[str, ...] = ()
    """Sentences for people: reports that were passed over, objects of a manifest that are not there, …"""


class FoundTable(_Record):
    """A table that a listing shows: the key of its root has no slash at its end."""

    bucket: str
    root: str
    format: Literal["delta", "iceberg"]
    stored_root: str
    """Key of the root in the target."""


class Estimate(_Record):
    """What a plan will take, told before anything is copied."""

    objects: int
    size_bytes: int
    held_objects: int
    held_bytes: int
    requests: int
    usd: float
    minutes: float
    by_lane: dict[str, int]
    """Objects of each lane (backup/rows.py, LANES)."""


class PlanRecord(_Record):
    """A plan: rows of schema PLAN in the workspace's folder `plan`."""

    day: str
    as_of: dt.datetime
    previous: str | None
    """The day of the point that `held` rows come from."""
    tables: tuple[FoundTable, ...]
    estimate: Estimate
    left_out: dict[str, int]
    """Objects that are not copied, by reason: "delete marker", "after as_of", "mutable", "own backup"."""
    warnings: tuple[str, ...] = ()
    """Sentences for people: a vacuum that is shorter than the lag, locations outside the source, …"""


class CopyRecord(_Record):
    """What an engine did: rows of schema DONE in the workspace's folder `done`, one for each row to copy."""

    engine: str
    succeeded: int
    failed: int
    size_bytes: int
    seconds: float
    reports: tuple[str, ...]
    """Locations of reports in AWS's layout (their manifest.json)."""
    capabilities: dict[str, bool] = {}
    """What the stores were found to support, as the engine probed them."""


class TableProof(_Record):
    """What is proved of one table in a point."""

    table: FoundTable
    status: Status
    version: int | None = None
    """Delta version, or Iceberg's last sequence number, that the copy opens at: v*."""
    wanted_version: int | None = None
    """The newest one before as_of; another than `version` where a fallback was needed."""
    snapshot_id: int | None = None
    """Iceberg's snapshot."""
    metadata_key: str | None = None
    """Iceberg: key of the source's metadata.json that is restored."""
    oldest_version: int | None = None
    """The oldest version that still opens from the copy."""
    committed_at: dt.datetime | None = None
    files: int = 0
    size_bytes: int = 0
    rows: int | None = None
    """Of the table at `version`, as its independent reader counted."""
    level: int = 0
    """The highest level that everything the table needs has reached: 4 where a reader read all of its data files and
    every copy was compared with its digest within `scrub.within_days`, else the lowest level of its copies."""
    compared_at: dt.datetime | None = None
    """The copy that was compared longest ago was compared then, when it was made or since."""
    opened_by: str | None = None
    """Name and version of the independent reader."""
    mount: str | None = None
    """Location at which the copy opens as it is; for Iceberg that of a metadata.json."""
    mount_digest: str | None = None
    """Of the metadata that was written for an Iceberg mount (Points.mount_digest)."""
    missing: tuple[str, ...] = ()
    """Keys (the first hundred) that the table needs and that are nowhere."""
    missing_count: int = 0
    healed: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    """Sentences: why it is not `verified`, and what to do."""


class Verification(_Record):
    """What is proved of a day's copies: rows of schema HELD in the workspace's folder `held`."""

    status: Status
    tables: tuple[TableProof, ...]
    objects: int
    size_bytes: int
    accounted_for: bool
    """L0: every planned object is reported, as succeeded or as failed."""
    failed_objects: int
    """Objects of no table that could not be copied; those of tables are in their proofs."""
    reasons: tuple[str, ...] = ()


class CatalogRecord(_Record):
    """The dump of the catalog that a point carries."""

    key: str
    """Key of its manifest in the store of the records."""
    nessie_hash: str | None
    tables: int
    publications: int
    shares: int
    grants: int


class DamagedCopy(_Record):
    """A copy that a point holds and that is not what was backed up."""

    key: str
    stored_key: str
    table_root: str | None
    problem: str


class Damage(_Record):
    """What was found damaged of a point's copies after the point was written, and could not be repaired."""

    found_at: dt.datetime
    count: int
    copies: tuple[DamagedCopy, ...]
    """The first hundred."""
    tables: tuple[str, ...]
    """Roots of all tables that hold damaged copies."""
    record: str | None = None
    """Why the point cannot tell which copies it holds, where that is so: then all tables are lost with it."""


class Point(_Record):
    """One backup point: what is backed up of one moment, and what was proved of it."""

    backup: str
    day: str
    as_of: dt.datetime
    made_at: dt.datetime
    layout: Literal["incremental", "dated"]
    status: Status
    target: str
    """URL of the store the copies are in."""
    listing: ListingRecord
    plan: PlanRecord
    copied: CopyRecord
    verification: Verification
    catalog: CatalogRecord | None = None
    retention_class: Literal["daily", "weekly", "monthly", "yearly"] = "daily"
    locked_until: dt.datetime | None = None
    held_digests: dict[str, str] = {}
    """SHA-256 of each file of the rows that the point holds; points of earlier releases have none."""
    digest: str | None = None
    """SHA-256 of this record without this field; points of earlier releases have none."""
    damage: Damage | None = None
    """Not in the record itself: what was found since it was written."""
    status_when_made: Status | None = None
    """Not in the record itself: `status` before damage was found."""

    def downgraded(self, damage: Damage | None) -> "Point":
        """The point as it is after this damage: tables with damaged copies, and the point, are degraded."""
        if damage is None or not damage.count:
            return self
        tables = tuple(_downgrade(proof, damage) for proof in self.verification.tables)
        lost = [one for one in damage.copies if one.table_root is None]
        reasons = tuple(f"{one.key}: {one.problem}." for one in lost)
        if damage.record is not None:
            reasons = (*reasons, f"{damage.record}.")
        verification = self.verification.model_copy(
            update={
                "status": "degraded",
                "tables": tables,
                "reasons": (*self.verification.reasons, *reasons),
            }
        )
        return self.model_copy(
            update={
                "status": "degraded",
                "status_when_made": self.status,
                "verification": verification,
                "damage": damage,
            }
        )


def _downgrade(proof: TableProof, damage: Damage) -> TableProof:
    if proof.table.root not in damage.tables:
        return proof
    if damage.record is not None:
        reason = f"The point cannot tell which copies it holds: {damage.record}."
        return proof.model_copy(
            update={"status": "degraded", "level": 0, "reasons": (*proof.reasons, reason)}
        )
    mine = [copy for copy in damage.copies if copy.table_root == proof.table.root]
    named = f", the first is {mine[0].key}: {mine[0].problem}" if mine else ""
    reason = f"{len(mine) or 'Some'} of its copies were found damaged on {damage.found_at:%Y-%m-%d %H:%M} UTC{named}."
    return proof.model_copy(update={"status": "degraded", "level": 0, "reasons": (*proof.reasons, reason)})


_TIME = pa.timestamp("ms", tz="UTC")

LISTING = pa.schema(
    [
        pa.field("bucket", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        # Null for the null version, and where there are no versions.
        pa.field("version_id", pa.string()),
        pa.field("is_latest", pa.bool_(), nullable=False),
        pa.field("is_delete_marker", pa.bool_(), nullable=False),
        # Null for delete markers, as are the columns below.
        pa.field("size_bytes", pa.int64()),
        pa.field("last_modified", _TIME),
        pa.field("etag", pa.string()),
        pa.field("storage_class", pa.string()),
        pa.field("is_multipart", pa.bool_()),
        pa.field("encryption", pa.string()),
        pa.field("checksum_algorithm", pa.string()),
    ]
)
"""A normalised listing: one row per version of a key; a listing of current objects has one row per key."""

LANES = ("held", "small", "large", "archived", "external")
"""held: the target has it already. small, large: below and above the limit of one copy request. archived: to be
thawed first. external: outside the source, told of by a table."""

PLAN = pa.schema(
    [
        *LISTING,
        # One of LANES.
        pa.field("lane", pa.string(), nullable=False),
        # Where the copy is, or will be: the key in the target.
        pa.field("stored_key", pa.string(), nullable=False),
        # Key of the table's root without a slash at its end; null for what belongs to no table.
        pa.field("table_root", pa.string()),
        # The day of the point that copied it first.
        pa.field("first_point", pa.string(), nullable=False),
    ]
)
"""What a point will hold: every object once, with its way there."""

COPY_RESULTS = pa.schema(
    [
        pa.field("bucket", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("version_id", pa.string()),
        pa.field("stored_key", pa.string(), nullable=False),
        # "succeeded" or "failed".
        pa.field("status", pa.string(), nullable=False),
        # S3's error code ("NoSuchKey", "PreconditionFailed", …), HTTP status and words; null where it succeeded.
        pa.field("error_code", pa.string()),
        pa.field("http_status", pa.int32()),
        pa.field("message", pa.string()),
        # Of the copy, as far as the engine was told.
        pa.field("stored_etag", pa.string()),
        pa.field("stored_version_id", pa.string()),
        # "sha256:…" or "crc64nvme:…" of the content that was copied, where the engine knows it.
        pa.field("checksum", pa.string()),
        pa.field("size_bytes", pa.int64()),
    ]
)
"""What became of each object of a plan: rows of an engine's ledger, and of any report in AWS's layout."""

POINT_COPIES = pa.schema(
    [
        *(
            LISTING.field(name)
            for name in ("bucket", "key", "version_id", "size_bytes", "last_modified", "etag")
        ),
        LISTING.field("storage_class"),
        PLAN.field("stored_key"),
        PLAN.field("table_root"),
        PLAN.field("first_point"),
        COPY_RESULTS.field("stored_etag"),
        COPY_RESULTS.field("stored_version_id"),
        COPY_RESULTS.field("checksum"),
        # What was proved of the copy: 0 reported, 1 present with its size, 2 same ETag, 3 same checksum (levels L0-L3).
        pa.field("level", pa.int8(), nullable=False),
        # True where the copy was made again, or of an older version, while the point was verified.
        pa.field("is_healed", pa.bool_(), nullable=False),
    ]
)
"""What a point holds, object by object: enough to find, to compare with the next listing, and to restore."""

ROWS_A_FILE = 1_000_000
ROWS_A_BATCH = 32_768
"""Few enough that a batch takes the memory of the one before: touching new memory costs as much as reading."""


def write_rows(folder: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table]) -> int:
    """Write rows as Parquet files `part-00000.parquet`, … into a new folder that appears when it is whole.

    What a step that broke off left of it is replaced. Returns how many rows there are.
    """
    making = folder.with_name(f".{folder.name}.part")
    for left in (making, folder):
        if left.exists():
            shutil.rmtree(left)
    making.mkdir(parents=True)
    rows, writer, number = 0, None, 0
    try:
        for batch in batches:
            table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
            if writer is None:
                path = making / f"part-{number:05}.parquet"
                writer = pq.ParquetWriter(path, schema, compression="zstd")
            writer.write_table(table.select(schema.names).cast(schema))
            rows += table.num_rows
            if rows // ROWS_A_FILE > number:
                writer.close()
                writer, number = None, rows // ROWS_A_FILE
        if writer is None and number == 0:
            pq.write_table(schema.empty_table(), making / "part-00000.parquet")
    finally:
        if writer is not None:
            writer.close()
    making.rename(folder)
    return rows


def read_rows(folder: Path, columns: "list[str] | None" = None) -> Iterator[pa.RecordBatch]:
    """The rows of a folder, in the order they were written."""
    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(ROWS_A_BATCH, columns=columns)


def select_rows_to_copy(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a plan that are an engine's: all but those the target has. `lane` is among their columns."""
    for batch in batches:
        wanted = batch.filter(pc.field("lane") != "held")
        if wanted.num_rows:
            yield wanted


def read_table(folder: Path, schema: pa.Schema) -> pa.Table:
    """All rows of a folder in memory."""
    return pa.Table.from_batches(list(read_rows(folder)), schema)
