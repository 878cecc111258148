"""The manifest of a job read into its tasks: a CSV, or an inventory report of CSV files named by its manifest.json."""

import csv
import gzip
import io
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from lakeshare_pipelines.backup.batch_server.asked import CSV_FORMAT, object_of
from lakeshare_pipelines.backup.batch_server.endpoint import Endpoint, StoreRefused
from lakeshare_pipelines.backup.batch_server.task import Task

COLUMNS = {"Bucket": "Bucket", "Key": "Key", "VersionId": "VersionId"}


class BadManifest(Exception):
    """A manifest that makes its job fail before any task is run."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


async def tasks_of(endpoint: Endpoint, manifest: dict[str, Any]) -> AsyncIterator[Task]:
    """The tasks of a manifest, all of one bucket.

    Raises:
        BadManifest: it is not there or not what its ETag says, or a row of it cannot be read.
    """
    bucket, text = None, await _manifest_object(endpoint, manifest["Location"])
    rows = _csv_rows if manifest["Spec"]["Format"] == CSV_FORMAT else _inventory_rows
    number = 0
    async for row in rows(endpoint, manifest, text):
        bucket = bucket or row[0]
        if row[0] != bucket:
            raise BadManifest(
                "InvalidManifestContent",
                f"row {number + 1} is of bucket {row[0]}, rows before it are of {bucket}",
            )
        yield Task(number, *row)
        number += 1
    if number == 0:
        raise BadManifest("InvalidManifestContent", "the manifest has no rows")


async def _manifest_object(endpoint: Endpoint, location: dict[str, Any]) -> bytes:
    place = object_of(location["ObjectArn"])
    assert place is not None, "asked.py refuses other ARNs"  # noqa: S101
    try:
        etag, content = await endpoint.read(*place, location.get("ObjectVersionId"))
    except StoreRefused as refused:
        raise BadManifest("ManifestNotReadable", f"the manifest cannot be read: {refused}") from refused
    if etag != location["ETag"]:
        raise BadManifest(
            "ManifestChanged", f"the manifest has ETag {etag}, the job was told {location['ETag']}"
        )
    return content


async def _csv_rows(
    _endpoint: Endpoint, manifest: dict[str, Any], content: bytes
) -> AsyncIterator[tuple[str, str, str | None]]:
    fields = manifest["Spec"]["Fields"]
    for row in _rows(
        content, "the manifest", len(fields), [fields.index(name) for name in COLUMNS if name in fields]
    ):
        yield row


async def _inventory_rows(
    endpoint: Endpoint, manifest: dict[str, Any], content: bytes
) -> AsyncIterator[tuple[str, str, str | None]]:
    """S3 user guide, "Inventory manifest": the schema tells the columns, `files` the objects."""
    try:
        told = json.loads(content)
        file_format, columns = told["fileFormat"], [name.strip() for name in told["fileSchema"].split(",")]
        keys = [file["key"] for file in told["files"]]
        bucket = told["destinationBucket"].removeprefix("arn:aws:s3:::")
        places = [columns.index(name) for name in COLUMNS if name in columns]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadManifest(
            "InvalidManifestContent", f"the manifest is no inventory manifest: {error!r}"
        ) from error
    if file_format != "CSV" or len(places) < 2:
        raise BadManifest("InvalidManifestContent", f"an inventory of {file_format} files is no job manifest")
    for key in keys:
        try:
            _, packed = await endpoint.read(bucket, key)
            content = gzip.decompress(packed)
        except (StoreRefused, OSError, EOFError) as error:
            raise BadManifest("ManifestNotReadable", f"{key} cannot be read: {error}") from error
        for row in _rows(content, key, len(columns), places):
            yield row


def _rows(content: bytes, name: str, width: int, places: list[int]) -> Iterator[tuple[str, str, str | None]]:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise BadManifest("InvalidManifestContent", f"{name} is not UTF-8: {error}") from error
    for number, row in enumerate(csv.reader(io.StringIO(text, newline="")), 1):
        if not row:
            continue
        if len(row) != width:
            raise BadManifest(
                "InvalidManifestContent", f"{name}, row {number}: {len(row)} columns, {width} are declared"
            )
        bucket, key, *version = (row[place] for place in places)
        yield bucket, key, version[0] if version else None
