"""The S3 side of landing: what a listing says, one object copied to a file, and what S3's refusals mean.

The client is given; nothing here imports boto3 before it is used, or knows what a delivery is.
"""

import datetime as dt
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakeshare_pipelines.errors import DeliveryError, StoreError

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
PROGRESS_S = 10.0
CREDENTIALS = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine a role."
REACH = "Check LAKESHARE_LANDING_S3_ENDPOINT and the network; what has arrived already stays."

REFUSALS = {
    "NoSuchBucket": ("there is no such bucket", "Create it, or correct LAKESHARE_LANDING_S3."),
    "AccessDenied": ("access is denied", "Allow these credentials s3:ListBucket and s3:GetObject there."),
    "InvalidAccessKeyId": ("the access key is not known there", CREDENTIALS),
    "SignatureDoesNotMatch": ("the secret key does not belong to the access key", CREDENTIALS),
    "ExpiredToken": ("the credentials have expired", CREDENTIALS),
    "PermanentRedirect": ("the bucket is in another region", "Set LAKESHARE_LANDING_S3_REGION to it."),
    "AuthorizationHeaderMalformed": (
        "the bucket is in another region",
        "Set LAKESHARE_LANDING_S3_REGION to it.",
    ),
}
CHANGED = {"PreconditionFailed", "412", "NoSuchKey", "404"}


@dataclass(frozen=True)
class S3Folder:
    """`s3://bucket/prefix`; the prefix is empty or ends with a slash."""

    bucket: str
    prefix: str

    @classmethod
    def at(cls, url: str) -> "S3Folder":
        """The folder a URL names."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        return cls(bucket, prefix.strip("/") + "/" if prefix.strip("/") else "")

    def __truediv__(self, name: str) -> "S3Folder":
        return S3Folder(self.bucket, f"{self.prefix}{name}/")

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


@dataclass(frozen=True)
class S3Object:
    """One object as it was listed; `name` is its key below the folder that was listed."""

    key: str
    name: str
    size_bytes: int
    etag: str
    modified_at: dt.datetime


# Any: boto3 makes the classes of its clients at run time and ships no types.
def list_objects(client: Any, folder: S3Folder) -> Iterator[S3Object]:
    """The objects below a folder in order of key, one page in memory at a time.

    Raises:
        StoreError: S3 refused, or did not answer.
    """
    with explained(folder):
        for page in client.get_paginator("list_objects_v2").paginate(
            Bucket=folder.bucket, Prefix=folder.prefix
        ):
            for entry in page.get("Contents", ()):
                name = entry["Key"].removeprefix(folder.prefix)
                yield S3Object(entry["Key"], name, entry["Size"], entry["ETag"], entry["LastModified"])


def copy_object(client: Any, folder: S3Folder, wanted: S3Object, path: Path) -> None:
    """Copy an object, exactly as it was listed, to a file that appears when it is whole.

    Raises:
        DeliveryError: the object is not what was listed any more.
        StoreError: S3 refused, or broke off.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with explained(folder, wanted.key), part.open("wb") as file:
            answer = client.get_object(Bucket=folder.bucket, Key=wanted.key, IfMatch=wanted.etag)
            size_bytes = 0
            logged_at = time.monotonic()
            for chunk in answer["Body"].iter_chunks(CHUNK_BYTES):
                size_bytes += file.write(chunk)
                if time.monotonic() - logged_at > PROGRESS_S:
                    logged_at = time.monotonic()
                    log.info("%s: %d of %d bytes", wanted.key, size_bytes, wanted.size_bytes)
            file.flush()
            os.fsync(file.fileno())
        # Not every store honours If-Match: the answer's own ETag and size are looked at as well.
        if size_bytes != wanted.size_bytes or answer["ETag"] != wanted.etag:
            raise changed(folder, wanted.key)
        part.rename(path)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def changed(folder: S3Folder, key: str) -> DeliveryError:
    """The error for an object that is not what the listing said."""
    return DeliveryError(
        f"s3://{folder.bucket}/{key}",
        "changed while it was read",
        "Nothing of its delivery was taken. The next look takes it, once the sender has finished.",
    )


@contextmanager
def explained(folder: S3Folder, key: str = "") -> Iterator[None]:
    """Say what S3 refused, of which bucket, and what to do.

    Raises:
        StoreError: S3 refused or did not answer.
        DeliveryError: the object at `key` is not what was listed any more.
    """
    # Imported with the client, never by loading the definitions.
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
    from botocore.exceptions import ConnectionError as ConnectionRefused

    where = f"s3://{folder.bucket}/{key}" if key else str(folder)
    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if key and code in CHANGED:
            raise changed(folder, key) from error
        if code in {"403", "404"}:
            code = {"403": "AccessDenied", "404": "NoSuchBucket"}[code]
        reason, fix = REFUSALS.get(code, (f"S3 refused: {error}", "What has arrived already stays."))
        raise StoreError(where, reason, fix) from error
    except (ConnectionRefused, HTTPClientError, IncompleteReadError) as error:
        raise StoreError(where, f"S3 did not answer, or broke off: {error}", REACH) from error
    except BotoCoreError as error:
        is_credentials = "redential" in type(error).__name__ or "Profile" in type(error).__name__
        reason = "there are no usable credentials" if is_credentials else "it cannot be asked"
        raise StoreError(
            where, f"{reason}: {str(error).rstrip('.')}", CREDENTIALS if is_credentials else REACH
        ) from error
