"""Reports of our own in the layout of S3 Inventory: data files, then manifest.json, then its checksum.

The layout is that of the S3 User Guide, "Locating your inventory list"; which columns there are is told in columns.py.
"""

import datetime as dt
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import md5
from pathlib import PurePosixPath
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.listing.columns import (
    LISTED_AS,
    MANIFEST_VERSION,
    InventoryColumn,
    ReportFormat,
    file_schema,
    report_columns,
)
from lakeshare_pipelines.backup.listing.reports import SCAN_TIME
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from lakeshare_pipelines.backup.stores.address import FOLDER
from lakeshare_pipelines.errors import BackupError

TOLD_BY_LISTINGS = (
    "Size",
    "LastModifiedDate",
    "ETag",
    "StorageClass",
    "IsMultipartUploaded",
    "ChecksumAlgorithm",
)
"""Optional fields that a LIST answers; the others need a HEAD of each object."""
SUFFIXES = {"CSV": "csv.gz", "ORC": "orc", "Parquet": "parquet"}
ROWS_A_FILE = 500_000
CSV_TIME = "%Y-%m-%dT%H:%M:%SZ"
SAFE_IN_KEYS = "/-_.~*"
_TO_ENCODE = r"[^A-Za-z0-9/\-_.~*]"
HIVE_TIME = "%Y-%m-%d-%H-%M"


@dataclass(frozen=True)
class ReportPlace:
    """Where reports of a source go and how they are written; small, goes to Spark's executors."""

    source: StoreAddress
    destination: StoreAddress
    file_format: ReportFormat = "Parquet"
    versions: bool = False
    configuration: str = "lakeshare"

    @property
    def prefix(self) -> str:
        """Key prefix of all reports of the source, in the destination: `<prefix>/<source-bucket>/<config-id>/`."""
        name = PurePosixPath(self.source.url).name if self.source.kind == FOLDER else self.source.bucket
        return f"{self.destination.prefix}{name}/{self.configuration}/"

    @property
    def columns(self) -> tuple[InventoryColumn, ...]:
        """The columns of the data files."""
        return report_columns(TOLD_BY_LISTINGS, versions=self.versions)


@dataclass(frozen=True)
class WrittenFile:
    """One data file of a report."""

    key: str
    size_bytes: int
    md5: str
    rows: int
    listed_bytes: int
    """What the listed objects have together."""


@dataclass(frozen=True)
class Generated:
    """A report that is written, and what it tells."""

    location: str
    """URL of its manifest.json."""
    scan_started_at: dt.datetime
    scan_ended_at: dt.datetime
    files: int
    rows: int
    size_bytes: int


def write_files(
    place: ReportPlace, batches: Iterable[pa.RecordBatch], rows_a_file: int = ROWS_A_FILE
) -> Iterator[WrittenFile]:
    """Write rows of schema LISTING as data files; they are no report yet.

    Raises:
        BackupError: the destination refuses them.
    """
    store = open_store(place.destination)
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= rows_a_file:
            yield _write_file(store, place, pa.Table.from_batches(held))
            held, rows = [], 0
    if rows:
        yield _write_file(store, place, pa.Table.from_batches(held))


def write_manifest(
    place: ReportPlace, files: Sequence[WrittenFile], started_at: dt.datetime, ended_at: dt.datetime
) -> Generated:
    """Make a report of data files: the links for Hive, the manifest, and its checksum last.

    Raises:
        BackupError: there is a report of that minute already, or the destination refuses.
    """
    store, destination = open_store(place.destination), place.destination
    folder = f"{place.prefix}{started_at.strftime(SCAN_TIME)}/"
    manifest = _manifest(place, files, started_at)
    where = destination.location(f"{folder}manifest.json")
    if not store.put(f"{folder}manifest.json", manifest, if_absent=True):
        raise BackupError(
            where, "there is a report of this minute already", "Read that one, or generate again in a minute."
        )
    links = "\n".join(_url(destination, one.key) for one in files)
    store.put(f"{place.prefix}hive/dt={started_at.strftime(HIVE_TIME)}/symlink.txt", links.encode())
    store.put(f"{folder}manifest.checksum", md5(manifest, usedforsecurity=False).hexdigest().encode())
    rows, size = sum(one.rows for one in files), sum(one.listed_bytes for one in files)
    return Generated(where, started_at, ended_at, len(files), rows, size)


def _manifest(place: ReportPlace, files: Sequence[WrittenFile], started_at: dt.datetime) -> bytes:
    told = {
        "sourceBucket": place.source.bucket,
        "destinationBucket": f"arn:aws:s3:::{place.destination.bucket}",
        "version": MANIFEST_VERSION,
        "creationTimestamp": str(int(started_at.timestamp() * 1000)),
        "fileFormat": place.file_format,
        "fileSchema": file_schema(place.file_format, place.columns),
        "files": [{"key": one.key, "size": one.size_bytes, "MD5checksum": one.md5} for one in files],
    }
    return json.dumps(told, indent=2).encode()


def _url(destination: StoreAddress, key: str) -> str:
    location = destination.location(key)
    return f"file://{location}" if destination.kind == FOLDER else location


def _write_file(store: BackupStore, place: ReportPlace, listing: pa.Table) -> WrittenFile:
    told_as = {LISTED_AS[column.name]: column for column in place.columns}
    rows = listing.select(list(told_as)).rename_columns([column.name for column in told_as.values()])
    content = _FORMATS[place.file_format](rows, place.columns)
    key = f"{place.prefix}data/{uuid4()}.{SUFFIXES[place.file_format]}"
    store.put(key, content)
    digest = md5(content, usedforsecurity=False).hexdigest()
    size = pc.sum(listing.column("size_bytes")).as_py() or 0
    return WrittenFile(key, len(content), digest, listing.num_rows, size)


def _as_csv(rows: pa.Table, columns: Sequence[InventoryColumn]) -> bytes:
    """Gzip without a time, no header, every field quoted, keys encoded as in forms; what is not there is empty."""
    from pyarrow import csv

    texts = []
    for column in columns:
        values = rows.column(column.name)
        if column.kind == "timestamp":
            values = pc.strftime(values, format=CSV_TIME)
        texts.append(pc.fill_null(values.cast(pa.string()), ""))
    texts[1] = pa.chunked_array([_encoded(chunk) for chunk in texts[1].chunks], pa.string())
    lines = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    csv.write_csv(pa.table(texts, names=[column.name for column in columns]), lines, options)
    return gzip.compress(lines.getvalue(), mtime=0)


def _encoded(keys: pa.Array) -> pa.Array:
    is_plain = pc.invert(pc.match_substring_regex(keys, _TO_ENCODE))
    if pc.all(is_plain).as_py():
        return keys
    spelt = [quote(key, safe=SAFE_IN_KEYS).replace("%20", "+") for key in keys.to_pylist()]
    return pa.array(spelt, pa.string())


def _as_orc(rows: pa.Table, columns: Sequence[InventoryColumn]) -> bytes:
    from pyarrow import orc

    # With a zone it would be another of ORC's types than Hive's timestamp; the values are UTC either way.
    kinds = {"timestamp": pa.timestamp("ms")}
    schema = pa.schema([(column.name, kinds.get(column.kind, column.arrow_field.type)) for column in columns])
    return _written(lambda sink: orc.write_table(rows.cast(schema), sink, compression="zlib"))


def _as_parquet(rows: pa.Table, columns: Sequence[InventoryColumn]) -> bytes:
    import pyarrow.parquet as pq

    schema = pa.schema([column.arrow_field for column in columns])
    return _written(lambda sink: pq.write_table(rows.cast(schema), sink, compression="snappy"))


def _written(write: Callable[[pa.BufferOutputStream], None]) -> bytes:
    sink = pa.BufferOutputStream()
    write(sink)
    return bytes(sink.getvalue())


_FORMATS = {"CSV": _as_csv, "ORC": _as_orc, "Parquet": _as_parquet}
