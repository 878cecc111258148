"""One data file of an inventory report, read by the columns its manifest tells, as rows of a listing.

Columns that nobody here knows are passed over. Keys of CSV files are decoded; those of ORC and Parquet are raw.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from gzip import GzipFile
from hashlib import md5
from typing import IO
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.listing.columns import LISTED_AS, ReportFormat
from lakeshare_pipelines.backup.listing.reports import NEXT_REPORT, Report, ReportFile
from lakeshare_pipelines.backup.rows import LISTING
from lakeshare_pipelines.backup.stores import BackupStore
from lakeshare_pipelines.errors import ObjectMissing, ReportUnusable

BATCH_ROWS = 131_072
CSV_BLOCK_BYTES = 16 * 1024**2
DIGEST_BLOCK_BYTES = 1024**2
NEEDED = ("size", "last_modified_date", "e_tag")
"""Without these a copy has nothing to be compared with."""


def require_needed(report: Report) -> None:
    """Refuse a report that was configured without what a backup needs.

    Raises:
        ReportUnusable: it lacks a column.
    """
    lacking = [name for name in NEEDED if name not in report.columns]
    if lacking:
        raise ReportUnusable(
            report.location,
            f"it has no {', '.join(lacking)}",
            "Let `lakeshare inventory configure` ask the store for them; reports from then on have them.",
        )


def listed_rows(store: BackupStore, report: Report, file: ReportFile) -> Iterator[pa.RecordBatch]:
    """The rows of one data file, as batches of schema LISTING.

    Raises:
        ReportUnusable: the file is not there, is not what the manifest says, or cannot be read as such.
    """
    where = store.address.location(file.key)
    try:
        content = store.open(file.key)
    except ObjectMissing as error:
        raise ReportUnusable(where, "a data file of the report is not there", NEXT_REPORT) from error
    with content:
        _require_whole(content, file, where)
        try:
            for rows in _READERS[report.file_format](content, report.columns):
                yield _normalised(rows, report, where)
        except (pa.ArrowException, ValueError, OSError, EOFError, zlib.error) as error:
            # Not what its schema says, or cut off: Arrow tells the row or the column.
            raise ReportUnusable(
                where, f"it cannot be read as {report.file_format}: {error}", NEXT_REPORT
            ) from error


def decoded_keys(keys: pa.Array) -> pa.Array:
    """Keys as CSV reports spell them (URL-encoded, a space as `+`), decoded.

    Raises:
        UnicodeDecodeError: a key is no UTF-8.
    """
    is_encoded = pc.match_substring_regex(keys, "[%+]")
    if not pc.any(is_encoded).as_py():
        return keys
    # Folders repeat from key to key, and are where partitions have their `%3D`.
    folders: dict[str, str] = {}

    def decoded(key: str) -> str:
        folder, slash, name = key.rpartition("/")
        if folder not in folders:
            folders[folder] = unquote_plus(folder, errors="strict")
        return f"{folders[folder]}{slash}{unquote_plus(name, errors='strict')}"

    return pa.array([decoded(key) for key in keys.to_pylist()], pa.string())


def _require_whole(content: IO[bytes], file: ReportFile, where: str) -> None:
    digest, size = md5(usedforsecurity=False), 0
    while block := content.read(DIGEST_BLOCK_BYTES):
        digest.update(block)
        size += len(block)
    if digest.hexdigest() != file.md5.lower():
        reason = f"its MD5 is {digest.hexdigest()} ({size} bytes), the manifest tells {file.md5} ({file.size_bytes})"
        raise ReportUnusable(where, reason, NEXT_REPORT)
    content.seek(0)


def _normalised(rows: pa.RecordBatch, report: Report, where: str) -> pa.RecordBatch:
    """Rows under a listing's names and types."""
    names = rows.schema.names
    lacking = [name for name in ("bucket", "key", *NEEDED) if name not in names]
    if lacking:
        raise ReportUnusable(
            where, f"it lacks {', '.join(lacking)}, which its manifest tells of", NEXT_REPORT
        )
    columns = {
        listed: rows.column(names.index(told)).cast(LISTING.field(listed).type)
        for told, listed in LISTED_AS.items()
        if told in names
    }
    if pc.any(pc.not_equal(columns["bucket"], report.source_bucket)).as_py():
        raise ReportUnusable(where, f"it has rows of other buckets than {report.source_bucket}", NEXT_REPORT)
    if report.file_format == "CSV":
        columns["key"] = decoded_keys(columns["key"])
    # A report of current objects tells no versions; markers have neither size nor ETag.
    for name, otherwise in (("is_latest", True), ("is_delete_marker", False)):
        columns[name] = (
            pc.fill_null(columns[name], otherwise) if name in columns else _repeated(otherwise, len(rows))
        )
    if "version_id" in columns:
        version = columns["version_id"]
        is_null = pc.fill_null(pc.is_in(version, pa.array(["", "null"])), True)
        columns["version_id"] = pc.if_else(is_null, pa.scalar(None, pa.string()), version)
    if "etag" in columns:
        columns["etag"] = pc.utf8_trim(columns["etag"], characters='"')
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, pa.nulls(len(rows), field.type)) for field in LISTING], schema=LISTING
    )


def _repeated(value: bool, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value), rows)


def _csv_rows(content: IO[bytes], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import csv

    # A report of no rows may have a file of none, which Arrow calls invalid.
    if not GzipFile(fileobj=content, mode="rb").read(1):
        return
    content.seek(0)
    stream = pa.CompressedInputStream(pa.PythonFile(content, mode="r"), "gzip")
    wanted = [name for name in LISTED_AS if name in columns]
    yield from csv.open_csv(
        stream,
        read_options=csv.ReadOptions(column_names=list(columns), block_size=CSV_BLOCK_BYTES),
        convert_options=csv.ConvertOptions(
            include_columns=wanted,
            column_types={name: LISTING.field(LISTED_AS[name]).type for name in wanted},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
        ),
    )


def _orc_rows(content: IO[bytes], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import orc

    file = orc.ORCFile(content)
    wanted = [name for name in file.schema.names if name in LISTED_AS and name in columns]
    for stripe in range(file.nstripes):
        yield file.read_stripe(stripe, columns=wanted)


def _parquet_rows(content: IO[bytes], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet

    with parquet.ParquetFile(content) as file:
        names = file.schema_arrow.names
        wanted = [name for name in names if name in LISTED_AS and name in columns]
        yield from file.iter_batches(batch_size=BATCH_ROWS, columns=wanted)


_READERS: dict[ReportFormat, Callable[[IO[bytes], Sequence[str]], Iterator[pa.RecordBatch]]] = {
    "CSV": _csv_rows,
    "ORC": _orc_rows,
    "Parquet": _parquet_rows,
}
