"""Completion reports in the layout of S3 Batch Operations: written by our engines, read from any.

`<prefix>job-<id>/manifest.json` names CSV files of results (S3 user guide, "Completion reports"). AWS declares the
error code before the HTTP status and writes it after: whoever reads looks which of the two is a number.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import md5
from urllib.parse import quote, unquote

import pyarrow as pa

from lakeshare_pipelines.backup.stores import BackupStore
from lakeshare_pipelines.errors import BackupError, ObjectMissing

FORMAT = "Report_CSV_20180820"
SCHEMA = "Bucket, Key, VersionId, TaskStatus, ErrorCode, HTTPStatusCode, ResultMessage"
MANIFESTS = ("manifest.json", "report.json")
"""What the guide calls it, and what the service model does."""
COLUMNS = 7


@dataclass(frozen=True)
class Result:
    """One row of a report; the key is as the report spells it: quoted, where the job's manifest was."""

    bucket: str
    key: str
    version_id: str | None
    is_success: bool
    error_code: str | None
    http_status: int | None
    message: str

    @property
    def decoded_key(self) -> str:
        """The key itself, of a report whose manifest was quoted: try it after the key as it is spelt."""
        return unquote(self.key)


def write_report(store: BackupStore, prefix: str, job: str, done: Iterable[pa.RecordBatch]) -> str:
    """Write rows of schema DONE as a report; returns the location of its manifest, which is written last."""
    folder = f"{prefix}job-{job}/"
    texts = {"succeeded": io.StringIO(), "failed": io.StringIO()}
    writers = {status: csv.writer(text, lineterminator="\n") for status, text in texts.items()}
    for batch in done:
        for row in batch.to_pylist():
            writers[row["status"]].writerow(_row_of(row))
    results = []
    for status, text in texts.items():
        content = text.getvalue().encode()
        if not content:
            continue
        digest = md5(content, usedforsecurity=False).hexdigest()
        key = f"{folder}results/{digest}.csv"
        store.put(key, content)
        bucket = store.address.bucket
        results.append({"TaskExecutionStatus": status, "Bucket": bucket, "MD5Checksum": digest, "Key": key})
    manifest = {
        "Format": FORMAT,
        "ReportCreationDate": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "Results": results,
        "ReportSchema": SCHEMA,
    }
    store.put(f"{folder}manifest.json", json.dumps(manifest).encode())
    return store.address.location(f"{folder}manifest.json")


def read_report(store: BackupStore, prefix: str, job: str) -> Iterator[Result] | None:
    """The rows of a job's report; None where it wrote none, as no task ran.

    Raises:
        BackupError: a file of it is missing, or is not what the manifest says.
    """
    for name in MANIFESTS:
        key = f"{prefix}job-{job}/{name}"
        if store.head(key) is not None:
            return results_of(store, key)
    return None


def results_of(store: BackupStore, manifest_key: str) -> Iterator[Result]:
    """The rows that a report's manifest tells of; each file's MD5 is verified.

    Raises:
        BackupError: a file is missing, or is not what the manifest says.
    """
    where = store.address.location(manifest_key)
    try:
        manifest = json.loads(store.read(manifest_key))
        files = [(one["Key"], str(one["MD5Checksum"]).lower()) for one in manifest["Results"]]
    except (ValueError, KeyError, TypeError) as error:
        raise BackupError(
            where, f"it is no manifest of a completion report: {error!r}", "Run the copy again."
        ) from error
    for key, checksum in files:
        try:
            content = store.read(key)
        except ObjectMissing as missing:
            raise BackupError(
                where, f"its results {key} are not there", "Run the copy again: it writes them anew."
            ) from missing
        if md5(content, usedforsecurity=False).hexdigest() != checksum:
            raise BackupError(
                store.address.location(key),
                f"its MD5 is not {checksum}, which the report's manifest says",
                "Somebody wrote to it: run the copy again.",
            )
        yield from _results_in(content, store.address.location(key))


def _results_in(content: bytes, where: str) -> Iterator[Result]:
    rows = csv.reader(io.StringIO(content.decode(), newline=""))
    for number, row in enumerate(rows, start=1):
        if len(row) != COLUMNS:
            raise BackupError(
                where, f"row {number} has {len(row)} columns, not {COLUMNS}", "Run the copy again."
            )
        bucket, key, version, status, one, other, message = row
        # AWS's own rows: the HTTP status first. By the declared schema: second.
        code, http = (other, one) if one.isdigit() else (one, other)
        yield Result(
            bucket,
            key,
            version or None,
            status == "succeeded",
            code or None,
            int(http) if http.isdigit() else None,
            message,
        )


# A row of schema DONE as Python values.
def _row_of(row: dict[str, object]) -> list[object]:
    is_success = row["status"] == "succeeded"
    return [
        row["bucket"],
        quote(str(row["key"]), safe="/-_.~*"),
        row["version_id"] or "",
        row["status"],
        200 if is_success else (row["http_status"] or ""),
        row["error_code"] or "",
        "Successful" if is_success else row["message"],
    ]
