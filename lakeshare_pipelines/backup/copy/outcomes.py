"""One object to copy, what became of it, and the rows of both: PLAN in, DONE out (backup/rows.py)."""

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import pyarrow as pa

from lakeshare_pipelines.backup.rows import DONE, LISTING, to_copy
from lakeshare_pipelines.backup.stores.answers import Answer

LEDGER = DONE.append(LISTING.field("etag"))
"""Rows of an engine's ledger: DONE, and the listed ETag, since another one makes it another object to copy."""
WANTED_COLUMNS = ["bucket", "key", "version_id", "stored_key", "size_bytes", "etag", "last_modified", "lane"]


@dataclass(frozen=True)
class Wanted:
    """One object to copy, as it was listed."""

    bucket: str
    key: str
    version_id: str | None
    stored_key: str
    size_bytes: int
    etag: str | None
    last_modified: dt.datetime | None = None
    lane: str = "small"

    @property
    def digest(self) -> bytes:
        """16 bytes that are another one's only if it is the same copy."""
        return _digest(self.bucket, self.key, self.version_id, self.stored_key, self.etag)


@dataclass(frozen=True)
class Outcome:
    """What became of an object: copied, or with S3's error code, HTTP status and words."""

    wanted: Wanted
    error_code: str | None = None
    http_status: int | None = None
    message: str | None = None
    stored_etag: str | None = None
    stored_version_id: str | None = None
    checksum: str | None = None

    @property
    def is_success(self) -> bool:
        """Whether it was copied."""
        return self.error_code is None


class NotCopied(Exception):
    """An object that cannot be copied, and why: a result, not an error of the copying."""

    def __init__(self, code: str, http_status: int | None, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.http_status, self.message = code, http_status, message

    @classmethod
    def by(cls, answer: Answer) -> "NotCopied":
        """As the store told it."""
        return cls(answer.code, answer.status, answer.message)

    @classmethod
    def changed(cls, what: str) -> "NotCopied":
        """It is no longer what was listed."""
        return cls("PreconditionFailed", 412, what)

    def outcome(self, wanted: Wanted) -> Outcome:
        """The failed row."""
        return Outcome(wanted, self.code, self.http_status, self.message)


def wanted_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Wanted]:
    """The objects to copy of rows of schema PLAN, or of its WANTED_COLUMNS."""
    for batch in to_copy(batches):
        columns = (batch.column(name).to_pylist() for name in WANTED_COLUMNS)
        for bucket, key, version, stored_key, size, etag, modified, lane in zip(*columns, strict=True):
            yield Wanted(bucket, key, version, stored_key, size or 0, etag, modified, lane)


def ledger_batch(outcomes: list[Outcome]) -> pa.RecordBatch:
    """Rows of schema LEDGER."""
    rows = [
        {
            "bucket": one.wanted.bucket,
            "key": one.wanted.key,
            "version_id": one.wanted.version_id,
            "stored_key": one.wanted.stored_key,
            "status": "succeeded" if one.is_success else "failed",
            "error_code": one.error_code,
            "http_status": one.http_status,
            "message": one.message,
            "stored_etag": one.stored_etag,
            "stored_version_id": one.stored_version_id,
            "checksum": one.checksum,
            "size_bytes": one.wanted.size_bytes,
            "etag": one.wanted.etag,
        }
        for one in outcomes
    ]
    return pa.RecordBatch.from_pylist(rows, LEDGER)


def digests(batch: pa.RecordBatch) -> list[bytes]:
    """The digest of each row of schema LEDGER or PLAN."""
    names = ["bucket", "key", "version_id", "stored_key", "etag"]
    return [
        _digest(*values) for values in zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    ]


def _digest(bucket: str, key: str, version: str | None, stored_key: str, etag: str | None) -> bytes:
    said = "\0".join([bucket, key, version or "", stored_key, etag or ""])
    return blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).digest()
