"""The operations of jobs, one object at a time: copy, retention, restore from an archive, checksum."""

import base64
import datetime as dt
import hashlib
from collections.abc import Mapping
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode
from xml.sax.saxutils import escape

from lakeshare_pipelines.backup.batch_server.asked import bucket_of
from lakeshare_pipelines.backup.batch_server.checksums import computed
from lakeshare_pipelines.backup.batch_server.endpoint import Endpoint, StoreRefused, copy_source
from lakeshare_pipelines.backup.batch_server.rights import Forbidden, Rights
from lakeshare_pipelines.backup.batch_server.task import Outcome, Task
from lakeshare_pipelines.backup.stores.async_s3 import Answer
from lakeshare_pipelines.errors import BackupError

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


async def _head(endpoint: Endpoint, task: Task) -> Answer:
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
    md5 = base64.b64encode(hashlib.md5(body).digest()).decode()  # noqa: S324
    sent = {"content-md5": md5, "content-type": "application/xml", **headers}
    await endpoint.request(task.bucket, method, task.key, {what: "", **_version(task)}, sent, body)


def _version(task: Task) -> dict[str, str]:
    return {"versionId": task.version_id} if task.version_id else {}


def _http_date(moment: dt.datetime | None) -> str | None:
    return None if moment is None else format_datetime(moment.astimezone(dt.UTC), usegmt=True)


def _iso(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
