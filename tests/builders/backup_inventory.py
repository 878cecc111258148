"""Reports of S3 Inventory, laid out as AWS documents them, written without anything of our own reader or generator.

Sources: S3 User Guide, "Locating your inventory list" and "Amazon S3 Inventory list"; all names are spelt out here.
"""

import csv
import datetime as dt
import gzip
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Any
from urllib.parse import quote_plus
from uuid import UUID, uuid5

import pyarrow as pa
from pyarrow import orc, parquet

Put = Callable[[str, bytes], object]

SCAN = dt.datetime(2026, 11, 22, 1, 17, 42, tzinfo=dt.UTC)
MODIFIED = dt.datetime(2026, 11, 20, 9, 30, 15, 123000, tzinfo=dt.UTC)
FORMATS = ("CSV", "ORC", "Parquet")
ENDINGS = {"CSV": "csv.gz", "ORC": "orc", "Parquet": "parquet"}

CSV_NAMES = {
    "bucket": "Bucket",
    "key": "Key",
    "version_id": "VersionId",
    "is_latest": "IsLatest",
    "is_delete_marker": "IsDeleteMarker",
    "size": "Size",
    "last_modified_date": "LastModifiedDate",
    "e_tag": "ETag",
    "storage_class": "StorageClass",
    "is_multipart_uploaded": "IsMultipartUploaded",
    "encryption_status": "EncryptionStatus",
    "checksum_algorithm": "ChecksumAlgorithm",
    # One that came after every reader of today.
    "colour_of_object": "ColourOfObject",
}
ORC_KINDS = {"is_latest": "boolean", "is_delete_marker": "boolean", "size": "bigint"} | {
    "last_modified_date": "timestamp",
    "is_multipart_uploaded": "boolean",
}
PARQUET_KINDS = {"boolean": "boolean {}", "bigint": "int64 {}", "timestamp": "int64 {} (TIMESTAMP_MILLIS)"}


@dataclass(frozen=True)
class Stored:
    """One version of a key as a report tells it."""

    key: str
    size: int | None = 3
    etag: str | None = "900150983cd24fb0d6963f7d28e17f72"
    modified: dt.datetime = MODIFIED
    version_id: str | None = None
    is_latest: bool = True
    is_delete_marker: bool = False
    storage_class: str | None = "STANDARD"

    def told(self, bucket: str) -> dict[str, object]:
        """All columns, by their names in ORC and Parquet."""
        return {
            "bucket": bucket,
            "key": self.key,
            "version_id": self.version_id,
            "is_latest": self.is_latest,
            "is_delete_marker": self.is_delete_marker,
            "size": self.size,
            "last_modified_date": self.modified,
            "e_tag": self.etag,
            "storage_class": self.storage_class,
            "is_multipart_uploaded": None if self.is_delete_marker else "-" in (self.etag or ""),
            "encryption_status": None if self.is_delete_marker else "SSE-S3",
            "checksum_algorithm": None if self.is_delete_marker else "CRC64NVME",
            "colour_of_object": "blue",
        }


def marker(key: str, version_id: str, **more: object) -> Stored:
    """A delete marker: it has neither size nor ETag nor class."""
    return Stored(key, None, None, version_id=version_id, is_delete_marker=True, storage_class=None, **more)


@dataclass(frozen=True)
class InventoryReports:
    """Where the reports of one configuration go; `put` writes a key of the destination bucket."""

    put: Put
    source_bucket: str = "lake"
    destination_bucket: str = "reports"
    prefix: str = "inventory"
    configuration: str = "daily"

    @property
    def base(self) -> str:
        """Key prefix of everything of this configuration, without a slash at its end."""
        return "/".join(
            part for part in (self.prefix, self.source_bucket.strip("/"), self.configuration) if part
        )

    def deliver(
        self,
        objects: Sequence[Stored],
        file_format: str = "Parquet",
        *,
        scan: dt.datetime = SCAN,
        versions: bool = False,
        files: int = 2,
        without: Sequence[str] = (),
        unknown: bool = False,
    ) -> list[str]:
        """Deliver a report as AWS does: data files first, manifest.checksum last. Returns the data files' keys."""
        absent = {*without} | (set() if versions else {"version_id", "is_latest", "is_delete_marker"})
        absent |= set() if unknown else {"colour_of_object"}
        columns = [name for name in CSV_NAMES if name not in absent]
        if unknown:
            columns.insert(2, columns.pop())
        told = []
        for number in range(files):
            rows = [one.told(self.source_bucket) for one in objects[number::files]]
            content = _WRITERS[file_format](rows, columns)
            name = uuid5(UUID(int=number), f"{scan}{file_format}")
            key = f"{self.base}/data/{name}.{ENDINGS[file_format]}"
            self.put(key, content)
            told.append({"key": key, "size": len(content), "MD5checksum": _md5(content)})
        self._announce(file_format, file_schema(file_format, columns), told, scan)
        return [str(one["key"]) for one in told]

    def _announce(
        self, file_format: str, schema: str, files: list[dict[str, object]], scan: dt.datetime
    ) -> None:
        manifest = {
            "sourceBucket": self.source_bucket,
            "destinationBucket": f"arn:aws:s3:::{self.destination_bucket}",
            "version": "2016-11-30",
            "creationTimestamp": str(int(scan.timestamp() * 1000)),
            "fileFormat": file_format,
            "fileSchema": schema,
            "files": files,
        }
        written = json.dumps(manifest, indent=2).encode()
        links = "\n".join(f"s3://{self.destination_bucket}/{one['key']}" for one in files)
        self.put(f"{self.base}/hive/dt={scan:%Y-%m-%d-%H-%M}/symlink.txt", links.encode())
        self.put(f"{self.base}/{scan:%Y-%m-%dT%H-%MZ}/manifest.json", written)
        self.put(f"{self.base}/{scan:%Y-%m-%dT%H-%MZ}/manifest.checksum", _md5(written).encode())


def stored_in(client: Any, bucket: str, *, versions: bool) -> list[Stored]:
    """What a bucket with versions says of itself, by boto3: what AWS would put into a report."""
    answer = client.list_object_versions(Bucket=bucket)
    found = [
        Stored(
            one["Key"],
            one["Size"],
            one["ETag"].strip('"'),
            one["LastModified"].replace(microsecond=0),
            None if one["VersionId"] == "null" else one["VersionId"],
            one["IsLatest"],
        )
        for one in answer["Versions"]
    ] + [
        Stored(one["Key"], None, None, one["LastModified"], one["VersionId"], one["IsLatest"], True, None)
        for one in answer.get("DeleteMarkers", ())
    ]
    return found if versions else [one for one in found if one.is_latest and not one.is_delete_marker]


def file_schema(file_format: str, columns: Sequence[str]) -> str:
    """A manifest's `fileSchema`."""
    if file_format == "CSV":
        return ", ".join(CSV_NAMES[name] for name in columns)
    if file_format == "ORC":
        return "struct<" + ",".join(f"{name}:{ORC_KINDS.get(name, 'string')}" for name in columns) + ">"
    fields = []
    for name in columns:
        kind = PARQUET_KINDS.get(ORC_KINDS.get(name, ""), "binary {} (UTF8)").format(name)
        fields.append(f"{'required' if name in ('bucket', 'key') else 'optional'} {kind};")
    return f"message s3.inventory {{ {' '.join(fields)} }}"


def _as_csv(rows: list[dict[str, object]], columns: Sequence[str]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([[_spelt(name, row[name]) for name in columns] for row in rows])
    return gzip.compress(text.getvalue().encode(), mtime=0)


def _spelt(name: str, value: object) -> str:
    if name == "key":
        return quote_plus(str(value), safe="/-_.~*")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03}Z"
    return "" if value is None else str(value)


def _as_orc(rows: list[dict[str, object]], columns: Sequence[str]) -> bytes:
    content = io.BytesIO()
    orc.write_table(_as_table(rows, columns, pa.timestamp("ns")), content, compression="zlib")
    return content.getvalue()


def _as_parquet(rows: list[dict[str, object]], columns: Sequence[str]) -> bytes:
    content = io.BytesIO()
    table = _as_table(rows, columns, pa.timestamp("ms", tz="UTC"))
    parquet.write_table(table, content, compression="snappy", version="1.0", coerce_timestamps="ms")
    return content.getvalue()


def _as_table(rows: list[dict[str, object]], columns: Sequence[str], time: pa.DataType) -> pa.Table:
    kinds = {"boolean": pa.bool_(), "bigint": pa.int64(), "timestamp": time}
    schema = pa.schema(
        [
            pa.field(name, kinds.get(ORC_KINDS.get(name, ""), pa.string()), name not in ("bucket", "key"))
            for name in columns
        ]
    )
    if not pa.types.is_timestamp(time) or time.tz is None:
        rows = [
            {
                name: value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value
                for name, value in row.items()
            }
            for row in rows
        ]
    return pa.Table.from_pylist([{name: row[name] for name in columns} for row in rows], schema)


def _md5(content: bytes) -> str:
    return md5(content, usedforsecurity=False).hexdigest()


_WRITERS = {"CSV": _as_csv, "ORC": _as_orc, "Parquet": _as_parquet}
