"""A run of a job: its manifest, each task at the store, limits, rights and faults, the completion report."""

import asyncio
import base64
import csv
import datetime as dt
import functools
import gzip
import hashlib
import io
import json
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlencode
from xml.sax.saxutils import escape

from lakeshare_pipelines.backup.config import COPY_LIMIT_BYTES
from lakeshare_pipelines.backup.policies import BATCH_SERVICE, INDEX
from lakeshare_pipelines.backup.policy_checks import Document, Request
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.async_s3 import AsyncS3, Response
from lakeshare_pipelines.errors import BackupError
from tests.builders.batch_server.job import Job, JobFolder, Outcome, Status, Task, line_of
from tests.builders.batch_server.requests import CSV_FORMAT, bucket_of, object_of
from tests.builders.policy_decisions import decide_between


class StoreRefused(Exception):
    """The store answered with an error: its status, code and words."""

    def __init__(self, answer: Response) -> None:
        super().__init__(f"{answer.status} {answer.code}: {answer.message}")
        self.status, self.code, self.message = answer.status, answer.code, answer.message


class Endpoint:
    """All buckets of one endpoint, asked by one event loop."""

    def __init__(self, address: StoreAddress, in_flight: int) -> None:
        self._address, self._in_flight = address, in_flight
        self._buckets: dict[str, AsyncS3] = {}

    async def request(
        self,
        bucket: str,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Response:
        """The store's answer to a request that it takes.

        Raises:
            StoreRefused: it does not take it.
            BackupError: it does not answer, or there are no credentials.
        """
        answer = await self._bucket(bucket).request(method, key, query or {}, headers or {}, body)
        if not answer.is_success:
            raise StoreRefused(answer)
        return answer

    async def read(self, bucket: str, key: str, version_id: str | None = None) -> tuple[str, bytes]:
        """ETag (without quotes) and content of an object."""
        query = {"versionId": version_id} if version_id else {}
        answer = await self.request(bucket, "GET", key, query)
        return answer.headers.get("ETag", "").strip('"'), answer.body

    async def put(self, bucket: str, key: str, content: bytes, content_type: str) -> None:
        """Write a small object."""
        await self.request(bucket, "PUT", key, headers={"content-type": content_type}, body=content)

    async def close(self) -> None:
        """Let go of all connections."""
        await asyncio.gather(*(bucket.close() for bucket in self._buckets.values()))

    def _bucket(self, name: str) -> AsyncS3:
        if name not in self._buckets:
            first = next(iter(self._buckets.values()), None)
            self._buckets[name] = (
                AsyncS3(self._address.at(name), self._in_flight) if first is None else first.at(name)
            )
        return self._buckets[name]


def copy_source(bucket: str, key: str, version_id: str | None) -> str:
    """The value of `x-amz-copy-source`."""
    version = f"?versionId={quote(version_id, safe='')}" if version_id else ""
    return f"/{bucket}/{quote(key, safe='/~')}{version}"


RANGE_BYTES = 8 * 1024 * 1024
CRC32C_POLYNOMIAL, CRC64NVME_POLYNOMIAL = 0x82F63B78, 0x9A6C9329AC4BC9B5
"""Reversed, as the tables of a reflected CRC want them."""


class Sum(Protocol):
    """A checksum that grows."""

    def update(self, content: bytes, /) -> None:
        """Take more content in."""

    def digest(self) -> bytes:
        """The checksum so far, in network byte order."""


async def computed(endpoint: Endpoint, task: Task, algorithm: str) -> tuple[str, bytes]:
    """ETag and checksum of an object; every range is asked with the ETag of the first one.

    Raises:
        StoreRefused: the store refuses, or the object changed on the way (412).
    """
    version = {"versionId": task.version_id} if task.version_id else {}
    head = await endpoint.request(task.bucket, "HEAD", task.key, version)
    etag, size = head.headers["ETag"], int(head.headers["Content-Length"])
    total = SUMS[algorithm]()
    for start in range(0, size, RANGE_BYTES):
        asked = {"if-match": etag, "range": f"bytes={start}-{min(size, start + RANGE_BYTES) - 1}"}
        total.update((await endpoint.request(task.bucket, "GET", task.key, version, asked)).body)
    return etag.strip('"'), total.digest()


class Crc32:
    """The CRC of zlib."""

    def __init__(self) -> None:
        self._sum = 0

    def update(self, content: bytes) -> None:
        """Take more content in."""
        self._sum = zlib.crc32(content, self._sum)

    def digest(self) -> bytes:
        """Four bytes."""
        return self._sum.to_bytes(4, "big")


class TableCrc:
    """A reflected CRC by table: slow, right, and for stores that compute none themselves."""

    def __init__(self, polynomial: int, width_bytes: int) -> None:
        self._table, self._width = _table(polynomial), width_bytes
        self._ones = (1 << 8 * width_bytes) - 1
        self._sum = self._ones

    def update(self, content: bytes) -> None:
        """Take more content in."""
        table, left = self._table, self._sum
        for byte in content:
            left = table[(left ^ byte) & 0xFF] ^ (left >> 8)
        self._sum = left

    def digest(self) -> bytes:
        """As many bytes as it is wide."""
        return (self._sum ^ self._ones).to_bytes(self._width, "big")


@functools.cache
def _table(polynomial: int) -> tuple[int, ...]:
    rows = []
    for byte in range(256):
        left = byte
        for _ in range(8):
            left = (left >> 1) ^ polynomial if left & 1 else left >> 1
        rows.append(left)
    return tuple(rows)


SUMS: dict[str, Callable[[], Sum]] = {
    "CRC32": Crc32,
    "CRC32C": lambda: TableCrc(CRC32C_POLYNOMIAL, 4),
    "CRC64NVME": lambda: TableCrc(CRC64NVME_POLYNOMIAL, 8),
    "MD5": lambda: hashlib.md5(usedforsecurity=False),
    "SHA1": lambda: hashlib.sha1(usedforsecurity=False),
    "SHA256": hashlib.sha256,
    "SHA512": hashlib.sha512,
}


class Forbidden(Exception):
    """The policies do not allow it: who may not do what, and by which side."""


@dataclass(frozen=True)
class Policies:
    """The documents of a folder, by kind and subject, with the account of each bucket."""

    documents: dict[tuple[str, str], Document]
    accounts: dict[str, str]

    @classmethod
    def load(cls, folder: Path) -> "Policies":
        """Read a folder of policies.

        Raises:
            BackupError: it has no index, or a file that cannot be read.
        """
        try:
            index = json.loads((folder / INDEX).read_text())
            documents = {
                (one["kind"], one["subject"]): json.loads((folder / one["name"]).read_text()) for one in index
            }
            accounts = {one["subject"]: one["account"] for one in index if one["kind"] == "bucket"}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackupError(
                str(folder),
                f"its policies cannot be read: {error!r}",
                "Write them with `lakeshare backup policies`.",
            ) from error
        return cls(documents, accounts)

    def of(self, role: str) -> "Rights":
        """What a role may."""
        return Rights(self, role)


@dataclass(frozen=True)
class Rights:
    """What one role may."""

    policies: Policies
    role: str

    def require_role(self, account: str) -> None:
        """Refuse a role that jobs of an account cannot become.

        Raises:
            Forbidden: its trust policy does not let them.
        """
        request = Request("sts:AssumeRole", self.role, BATCH_SERVICE, {"aws:SourceAccount": account})
        verdict = decide_between(request, account, [], self._said("trust", self.role))
        if verdict.decision != "allowed":
            raise Forbidden(f"S3 Batch Operations may not become {self.role}: {verdict.because}")

    def require(self, action: str, bucket: str, key: str) -> None:
        """Refuse an action on an object that the role may not do.

        Raises:
            Forbidden: its own policy or that of the bucket does not allow it.
        """
        resource, account = f"arn:aws:s3:::{bucket}/{key}", self.policies.accounts.get(bucket, "")
        context = {"aws:PrincipalArn": self.role, "aws:SecureTransport": "true"}
        verdict = decide_between(
            Request(action, resource, self.role, context),
            account,
            self._said("identity", self.role),
            self._said("bucket", bucket),
        )
        if verdict.decision != "allowed":
            raise Forbidden(f"{self.role} may not {action} on {resource}: {verdict.because}")

    def require_task(self, name: str, told: dict[str, Any], task: Task) -> None:
        """Refuse an operation on an object that needs more than the role may.

        Raises:
            Forbidden: of the first right that is missing.
        """
        for needed in needed_by(name, told, task):
            self.require(*needed)

    def _said(self, kind: str, subject: str) -> list[Document]:
        found = self.policies.documents.get((kind, subject))
        return [] if found is None else [found]


def needed_by(name: str, told: dict[str, Any], task: Task) -> Iterator[tuple[str, str, str]]:
    """Action, bucket and key of everything that an operation does with one object (S3 API, "Permissions" of each)."""
    version = "Version" if task.version_id else ""
    if name == "S3PutObjectCopy":
        prefix, target = told.get("TargetKeyPrefix"), bucket_of(told["TargetResource"]) or ""
        key = f"{prefix}/{task.key}" if prefix else task.key
        yield f"s3:GetObject{version}", task.bucket, task.key
        yield f"s3:GetObject{version}Tagging", task.bucket, task.key
        yield "s3:PutObject", target, key
        yield "s3:PutObjectTagging", target, key
        if "ObjectLockMode" in told:
            yield "s3:PutObjectRetention", target, key
    elif name == "S3PutObjectRetention":
        yield "s3:PutObjectRetention", task.bucket, task.key
        if told.get("BypassGovernanceRetention"):
            yield "s3:BypassGovernanceRetention", task.bucket, task.key
    elif name == "S3InitiateRestoreObject":
        yield "s3:RestoreObject", task.bucket, task.key
    else:
        yield f"s3:GetObject{version}", task.bucket, task.key


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
    assert place is not None, "asked.py refuses other ARNs"
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


NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
DONE = "Successful"
NO_ANSWER = 503
WORDS_OF_HEAD = {
    "NoSuchKey": "The specified key does not exist.",
    "AccessDenied": "Access Denied",
    "MethodNotAllowed": "The specified method is not allowed against this resource.",
}
"""What S3 says where it can; the answer to a HEAD has no body."""


class TaskRefused(Exception):
    """A task that is not even tried: HTTP status, error code and words as S3 would have them."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


async def outcome_of(
    name: str,
    told: dict[str, Any],
    endpoint: Endpoint,
    copy_limit_bytes: int,
    task: Task,
    rights: Rights | None = None,
) -> Outcome:
    """Run an operation on one object; whatever the store says is an outcome."""
    try:
        if rights is not None:
            rights.require_task(name, told, task)
        message = await _performed(name, told, endpoint, copy_limit_bytes, task)
    except (TaskRefused, StoreRefused) as refused:
        told_of = f"Service: Amazon S3; Status Code: {refused.status}; Error Code: {refused.code}"
        return Outcome(task.number, refused.status, refused.code, f"{refused.message} ({told_of})")
    except Forbidden as forbidden:
        return Outcome(task.number, 403, "AccessDenied", str(forbidden))
    except BackupError as error:
        return Outcome(task.number, NO_ANSWER, "ServiceUnavailable", str(error))
    return Outcome(task.number, 200, "", message)


async def _performed(
    name: str, told: dict[str, Any], endpoint: Endpoint, copy_limit_bytes: int, task: Task
) -> str:
    if task.version_id == "":
        words = "The version ID of the task is empty; the null version is called null"
        raise TaskRefused(400, "InvalidRequest", words)
    if name == "S3PutObjectCopy":
        return await copy(endpoint, told, task, copy_limit_bytes)
    if name == "S3PutObjectRetention":
        return await retain(endpoint, told, task)
    if name == "S3InitiateRestoreObject":
        return await restore(endpoint, told, task)
    return await checksum(endpoint, told, task)


async def copy(endpoint: Endpoint, told: dict[str, Any], task: Task, limit_bytes: int) -> str:
    """CopyObject into the target bucket; of a version where the manifest has one, else of what is current now.

    Raises:
        TaskRefused: the object is above the limit of one request, or changed when it should not have.
        StoreRefused: the store refuses.
    """
    head = await _head(endpoint, task)
    size_bytes = int(head.headers.get("Content-Length", 0))
    if size_bytes > limit_bytes:
        raise TaskRefused(
            400,
            "InvalidRequest",
            "The specified copy source is larger than the maximum allowable size for a copy source: "
            f"{limit_bytes}",
        )
    _require_constraints(told, head.headers)
    prefix = told.get("TargetKeyPrefix")
    # The user guide's example: objects are copied "into a folder named Folder1".
    target = f"{prefix}/{task.key}" if prefix else task.key
    headers = {"x-amz-copy-source": copy_source(task.bucket, task.key, task.version_id), **copy_headers(told)}
    answer = await endpoint.request(bucket_of(told["TargetResource"]) or "", "PUT", target, {}, headers)
    if b"<ETag>" not in answer.body:
        raise TaskRefused(500, "InternalError", "The store answered a copy without an ETag")
    return DONE


async def retain(endpoint: Endpoint, told: dict[str, Any], task: Task) -> str:
    """PutObjectRetention."""
    retention = told["Retention"]
    mode, until = retention.get("Mode"), retention.get("RetainUntilDate")
    inside = f"<Mode>{mode}</Mode><RetainUntilDate>{_iso(until)}</RetainUntilDate>" if mode and until else ""
    headers = {"x-amz-bypass-governance-retention": "true"} if told.get("BypassGovernanceRetention") else {}
    await _put_xml(
        endpoint, "PUT", task, "retention", f'<Retention xmlns="{NAMESPACE}">{inside}</Retention>', headers
    )
    return DONE


async def restore(endpoint: Endpoint, told: dict[str, Any], task: Task) -> str:
    """RestoreObject: begins it; the task succeeds long before the object can be read."""
    tier = str(told.get("GlacierJobTier", "STANDARD")).capitalize()
    asked = (
        f'<RestoreRequest xmlns="{NAMESPACE}"><Days>{told["ExpirationInDays"]}</Days>'
        f"<GlacierJobParameters><Tier>{escape(tier)}</Tier></GlacierJobParameters></RestoreRequest>"
    )
    await _put_xml(endpoint, "POST", task, "restore", asked, {})
    return DONE


async def checksum(endpoint: Endpoint, told: dict[str, Any], task: Task) -> str:
    """The checksum of an object's content, as JSON in the report's ResultMessage."""
    algorithm = told["ChecksumAlgorithm"]
    etag, digest = await computed(endpoint, task, algorithm)
    return (
        f'{{"checksum_base64":"{base64.b64encode(digest).decode()}","etag":"{etag}",'
        f'"checksumAlgorithm":"{algorithm}","checksumType":"FULL_OBJECT","checksum_hex":"{digest.hex().upper()}"}}'
    )


async def _head(endpoint: Endpoint, task: Task) -> Response:
    try:
        return await endpoint.request(task.bucket, "HEAD", task.key, _version(task))
    except StoreRefused as refused:
        words = WORDS_OF_HEAD.get(refused.code, refused.message)
        raise TaskRefused(refused.status, refused.code, words) from refused


def copy_headers(told: dict[str, Any]) -> dict[str, str]:
    """The headers of CopyObject for the members of S3CopyObjectOperation (S3 API, CopyObject)."""
    asked = {
        "x-amz-acl": told.get("CannedAccessControlList"),
        "x-amz-metadata-directive": told.get("MetadataDirective"),
        "x-amz-storage-class": told.get("StorageClass"),
        "x-amz-website-redirect-location": told.get("RedirectLocation"),
        "x-amz-object-lock-mode": told.get("ObjectLockMode"),
        "x-amz-object-lock-legal-hold": told.get("ObjectLockLegalHoldStatus"),
        "x-amz-checksum-algorithm": told.get("ChecksumAlgorithm"),
        "x-amz-copy-source-if-unmodified-since": _http_date(told.get("UnModifiedSinceConstraint")),
        "x-amz-copy-source-if-modified-since": _http_date(told.get("ModifiedSinceConstraint")),
        **_encryption(told),
        **_metadata(told.get("NewObjectMetadata", {})),
    }
    if "ObjectLockRetainUntilDate" in told:
        asked["x-amz-object-lock-retain-until-date"] = _iso(told["ObjectLockRetainUntilDate"])
    if told.get("RequesterPays"):
        asked["x-amz-request-payer"] = "requester"
    if "NewObjectTagging" in told:
        asked["x-amz-tagging-directive"] = "REPLACE"
        asked["x-amz-tagging"] = urlencode({tag["Key"]: tag["Value"] for tag in told["NewObjectTagging"]})
    return {name: value for name, value in asked.items() if value is not None}


def _encryption(told: dict[str, Any]) -> dict[str, str | None]:
    key, algorithm = told.get("SSEAwsKmsKeyId"), told.get("NewObjectMetadata", {}).get("SSEAlgorithm")
    kind = "aws:kms" if key or algorithm == "KMS" else algorithm
    bucket_key = told.get("BucketKeyEnabled")
    return {
        "x-amz-server-side-encryption": kind,
        "x-amz-server-side-encryption-aws-kms-key-id": key,
        "x-amz-server-side-encryption-bucket-key-enabled": None
        if bucket_key is None
        else str(bucket_key).lower(),
    }


def _metadata(new: dict[str, Any]) -> dict[str, str | None]:
    return {
        "cache-control": new.get("CacheControl"),
        "content-disposition": new.get("ContentDisposition"),
        "content-encoding": new.get("ContentEncoding"),
        "content-language": new.get("ContentLanguage"),
        "content-type": new.get("ContentType"),
        "expires": _http_date(new.get("HttpExpiresDate")),
        **{f"x-amz-meta-{name}": value for name, value in new.get("UserMetadata", {}).items()},
    }


def _require_constraints(told: dict[str, Any], headers: Mapping[str, str]) -> None:
    """Look at the constraints here too: some stores take their headers and do not look."""
    modified = headers.get("Last-Modified")
    if modified is None:
        return
    at, since, until = (
        parsedate_to_datetime(modified),
        told.get("ModifiedSinceConstraint"),
        told.get("UnModifiedSinceConstraint"),
    )
    if (until is not None and at > until) or (since is not None and at <= since):
        raise TaskRefused(
            412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold"
        )


async def _put_xml(
    endpoint: Endpoint, method: str, task: Task, what: str, document: str, headers: dict[str, str]
) -> None:
    body = document.encode()
    md5 = base64.b64encode(hashlib.md5(body).digest()).decode()
    sent = {"content-md5": md5, "content-type": "application/xml", **headers}
    await endpoint.request(task.bucket, method, task.key, {what: "", **_version(task)}, sent, body)


def _version(task: Task) -> dict[str, str]:
    return {"versionId": task.version_id} if task.version_id else {}


def _http_date(moment: dt.datetime | None) -> str | None:
    return None if moment is None else format_datetime(moment.astimezone(dt.UTC), usegmt=True)


def _iso(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


FORMAT = "Report_CSV_20180820"
SCHEMA = "Bucket, Key, VersionId, TaskStatus, ErrorCode, HTTPStatusCode, ResultMessage"


async def write_report(
    endpoint: Endpoint, folder: JobFolder, job: Job, now: dt.datetime, rights: Rights | None = None
) -> None:
    """Write the report of a job that asks for one and has run at least one task.

    Raises:
        StoreRefused: the report's bucket does not take it.
        Forbidden: the job's role may not write it.
    """
    asked = job.request["Report"]
    if not asked["Enabled"] or job.succeeded + job.failed == 0:
        return
    bucket = bucket_of(asked["Bucket"]) or ""
    prefix = "/".join(part for part in (asked.get("Prefix", "").strip("/"), f"job-{job.id}") if part)
    if rights is not None:
        rights.require("s3:PutObject", bucket, f"{prefix}/manifest.json")
    wanted = ("failed",) if asked["ReportScope"] == "FailedTasksOnly" else ("succeeded", "failed")
    results = []
    for status in wanted:
        content = _results(folder, job, status)
        if content:
            key = f"{prefix}/results/{hashlib.sha1(content).hexdigest()}.csv"
            await endpoint.put(bucket, key, content, "text/csv")
            results.append(
                {"TaskExecutionStatus": status, "Bucket": bucket, "MD5Checksum": _md5(content), "Key": key}
            )
    top = json.dumps(_top(results, now), indent=4).encode()
    await endpoint.put(bucket, f"{prefix}/manifest.json", top, "application/json")
    await endpoint.put(bucket, f"{prefix}/manifest.json.md5", _md5(top).encode(), "text/plain")


def _top(results: list[dict[str, str]], now: dt.datetime) -> dict[str, Any]:
    created = now.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"Format": FORMAT, "ReportCreationDate": created, "Results": results, "ReportSchema": SCHEMA}


def _results(folder: JobFolder, job: Job, status: str) -> bytes:
    path = folder.report(job, status)
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        for task, outcome in _of_status(folder, job, status):
            rows.writerow(
                [
                    task.bucket,
                    task.key_in_manifest,
                    task.version_id or "",
                    status,
                    outcome.http_status,
                    outcome.error_code,
                    outcome.message,
                ]
            )
    content = path.read_bytes()
    path.unlink()
    return content


def _of_status(folder: JobFolder, job: Job, status: str) -> Iterator[tuple[Task, Outcome]]:
    of_number = {one.number: one for one in folder.outcomes(job) if one.succeeded == (status == "succeeded")}
    for task in folder.tasks(job):
        if task.number in of_number:
            yield task, of_number[task.number]


def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


THRESHOLD_CODE = "FailureThresholdExceeded"


@dataclass(frozen=True)
class Behaviour:
    """How the stand-in behaves; AWS's own figures by default."""

    copy_limit_bytes: int = COPY_LIMIT_BYTES
    threshold_tasks: int = 1000
    """A job is judged by its failures once it has run so many tasks, …"""
    threshold_share: float = 0.5
    """… and fails when more than this share of them failed."""
    in_flight: int = 64
    """Tasks of one job at a time."""
    jobs_at_once: int = 4
    state_delay_s: float = 0.0
    """How long a job stays at least in each state that it leaves by itself."""
    policies: Policies | None = None
    """Judge every task by these; None: whatever the stand-in's own identity may."""


class Run:
    """What a job does, from New to its end; where it stands is in the job alone, so that anybody can go on."""

    def __init__(self, job: Job, folder: JobFolder, endpoint: Endpoint, behaviour: Behaviour) -> None:
        self.job, self._folder, self._endpoint, self._behaviour = job, folder, endpoint, behaviour
        policies = behaviour.policies
        self._rights = None if policies is None else policies.of(job.request["RoleArn"])

    async def prepare(self) -> None:
        """New → Preparing → Ready, or Suspended when it is to be confirmed, or Failed."""
        job = self.job
        await self._stay()
        if job.status == "New":
            self._become("Preparing")
        await self._stay()
        try:
            self._require_rights()
            tasks = [task async for task in tasks_of(self._endpoint, job.request["Manifest"])]
        except (BadManifest, Forbidden, BackupError) as error:
            if job.status == "Preparing":
                job.fail(_code_of(error), str(error), _now())
                self._folder.save(job)
            return
        # It may have been cancelled meanwhile.
        if job.status == "Preparing":
            job.total = self._folder.write_tasks(job, tasks)
            self._become("Suspended" if job.request.get("ConfirmationRequired", False) else "Ready")

    def _require_rights(self) -> None:
        if self._rights is not None:
            location = self.job.request["Manifest"]["Location"]
            version = "Version" if "ObjectVersionId" in location else ""
            self._rights.require_role(self.job.account)
            self._rights.require(f"s3:GetObject{version}", *(object_of(location["ObjectArn"]) or ("", "")))

    async def work(self) -> None:
        """Active, until all tasks are run, or the job is paused, cancelled or fails."""
        job, started, before = self.job, time.monotonic(), self.job.active_s
        done = self._recall()
        tasks = (task for task in self._folder.tasks(job) if task.number not in done)
        with self._folder.open_outcomes(job) as outcomes:

            async def one_after_another() -> None:
                while job.status == "Active" and (task := next(tasks, None)) is not None:
                    outcome = await self._outcome(task)
                    outcomes.write(line_of(outcome))
                    self._count(outcome)
                    job.active_s = before + time.monotonic() - started
                    self._judge()

            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._behaviour.in_flight, job.total)):
                    group.create_task(one_after_another())
        if job.status == "Active" or (job.status == "Pausing" and job.succeeded + job.failed == job.total):
            self._become("Completing")
        elif job.status == "Pausing":
            await self._stay()
            if job.status == "Pausing":
                self._become("Paused")

    async def end(self) -> None:
        """Completing, Cancelling or Failing: the report, then the last state."""
        job = self.job
        self._recall()
        await self._stay()
        try:
            await write_report(self._endpoint, self._folder, job, _now(), self._rights)
        except (StoreRefused, Forbidden, BackupError) as error:
            reason = f"the report cannot be written: {error}"
            if job.status == "Completing":
                job.fail("ReportNotWritten", reason, _now())
            else:
                job.failures.append(("ReportNotWritten", reason[:256]))
        if job.status == "Completing":
            self._become("Complete")
        elif job.status == "Cancelling":
            self._become("Cancelled")
        else:
            self._become("Failed")

    async def _outcome(self, task: Task) -> Outcome:
        return await outcome_of(
            self.job.operation,
            self.job.parameters,
            self._endpoint,
            self._behaviour.copy_limit_bytes,
            task,
            self._rights,
        )

    def _recall(self) -> set[int]:
        """Count what was run before, by this process or one before it; the numbers of those tasks."""
        self.job.succeeded = self.job.failed = 0
        done = set()
        for outcome in self._folder.outcomes(self.job):
            self._count(outcome)
            done.add(outcome.number)
        return done

    def _count(self, outcome: Outcome) -> None:
        self.job.succeeded += outcome.succeeded
        self.job.failed += not outcome.succeeded

    def _judge(self) -> None:
        job, run = self.job, self.job.succeeded + self.job.failed
        enough = run >= self._behaviour.threshold_tasks
        if (
            enough
            and job.failed > run * self._behaviour.threshold_share
            and job.status in ("Active", "Pausing")
        ):
            reason = f"{job.failed} of the first {run} tasks failed. The completion report tells why"
            job.fail(THRESHOLD_CODE, reason, _now())
            self._folder.save(job)

    def _become(self, status: Status) -> None:
        self.job.become(status, _now())
        self._folder.save(self.job)

    async def _stay(self) -> None:
        await asyncio.sleep(self._behaviour.state_delay_s)


def _code_of(error: Exception) -> str:
    if isinstance(error, BadManifest):
        return error.code
    return "AccessDenied" if isinstance(error, Forbidden) else "ManifestNotReadable"


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
