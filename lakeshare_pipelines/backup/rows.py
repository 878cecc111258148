"""The columns of everything that passes between two steps of a backup, as Arrow schemas.

Rows travel as Parquet files in a folder; keys are decoded, ETags have no quotes, times are UTC, sizes are bytes.
"""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

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

DONE = pa.schema(
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

HELD = pa.schema(
    [
        *(
            LISTING.field(name)
            for name in ("bucket", "key", "version_id", "size_bytes", "last_modified", "etag")
        ),
        LISTING.field("storage_class"),
        PLAN.field("stored_key"),
        PLAN.field("table_root"),
        PLAN.field("first_point"),
        DONE.field("stored_etag"),
        DONE.field("stored_version_id"),
        DONE.field("checksum"),
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


def to_copy(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a plan that are an engine's: all but those the target has. `lane` is among their columns."""
    for batch in batches:
        wanted = batch.filter(pc.field("lane") != "held")
        if wanted.num_rows:
            yield wanted


def whole_table(folder: Path, schema: pa.Schema) -> pa.Table:
    """All rows of a folder in memory."""
    return pa.Table.from_batches(list(read_rows(folder)), schema)
