"""A bucket as a store, through boto3: for the calls that are rare."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from tempfile import SpooledTemporaryFile
from typing import IO, Any, cast

from lakeshare_pipelines.backup.stores.address import StoreAddress
from lakeshare_pipelines.backup.stores.store import Head, Listed
from lakeshare_pipelines.errors import BackupError, ObjectMissing

ATTEMPTS = 5
HELD_BYTES = 32 * 1024**2
"""What is read as a file is held in memory up to this size, and on the disk beyond it."""
NOT_THERE = {"NoSuchKey", "NoSuchVersion", "404"}
TAKEN = {"PreconditionFailed", "412", "ConditionalRequestConflict"}
CREDENTIALS = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, or give the machine a role."
REFUSALS = {
    "NoSuchBucket": ("there is no such bucket", "Create it, or correct the backup's URL."),
    "AccessDenied": (
        "access is denied",
        "Allow these credentials there: `lakeshare backup policies` writes the policies.",
    ),
    "403": (
        "access is denied",
        "Allow these credentials there: `lakeshare backup policies` writes the policies.",
    ),
    "InvalidAccessKeyId": ("the access key is not known there", CREDENTIALS),
    "SignatureDoesNotMatch": ("the secret key does not belong to the access key", CREDENTIALS),
    "ExpiredToken": ("the credentials have expired", CREDENTIALS),
    "PermanentRedirect": ("the bucket is in another region", "Give the backup's `region`."),
    "AuthorizationHeaderMalformed": ("the bucket is in another region", "Give the backup's `region`."),
    "SlowDown": ("the store asks to slow down", "Run it again later; what is copied already stays."),
}


class S3Store:
    """One bucket, or a prefix of it; keys are told whole."""

    def __init__(self, address: StoreAddress) -> None:
        self.address = address

    @cached_property
    def client(self) -> Any:
        """boto3's client; it ships no types."""
        return s3_client(self.address)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[Listed]:
        prefix = prefix or self.address.prefix
        with self._explained(prefix):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.address.bucket, Prefix=prefix, StartAfter=start_after, **self._owner()
            )
            for page in pages:
                for one in page.get("Contents", ()):
                    yield _listed(one)

    def versions(self, prefix: str = "") -> Iterator[Listed]:
        prefix = prefix or self.address.prefix
        with self._explained(prefix):
            pages = self.client.get_paginator("list_object_versions").paginate(
                Bucket=self.address.bucket, Prefix=prefix, **self._owner()
            )
            for page in pages:
                found = [(one, False) for one in page.get("Versions", ())]
                found += [(one, True) for one in page.get("DeleteMarkers", ())]
                # A page has both kinds apart; a key's versions come newest first.
                found.sort(key=lambda one: one[0]["LastModified"], reverse=True)
                found.sort(key=lambda one: one[0]["Key"].encode())
                for one, is_marker in found:
                    yield _listed(one, is_marker)

    def head(self, key: str, version_id: str | None = None) -> Head | None:
        try:
            with self._explained(key):
                said = self.client.head_object(
                    Bucket=self.address.bucket,
                    Key=key,
                    ChecksumMode="ENABLED",
                    **_version(version_id),
                    **self._owner(),
                )
        except ObjectMissing:
            return None
        sums = {
            name.removeprefix("Checksum").lower(): value
            for name, value in said.items()
            if name.startswith("Checksum") and name != "ChecksumType"
        }
        return Head(
            key,
            said["ContentLength"],
            said["LastModified"],
            said["ETag"].strip('"'),
            said.get("VersionId"),
            said.get("StorageClass", "STANDARD"),
            said.get("ServerSideEncryption"),
            said.get("PartsCount"),
            said.get("Restore"),
            sums,
        )

    def read(self, key: str, version_id: str | None = None) -> bytes:
        with self._explained(key):
            answer = self.client.get_object(
                Bucket=self.address.bucket, Key=key, **_version(version_id), **self._owner()
            )
            content: bytes = answer["Body"].read()
            return content

    def open(self, key: str, version_id: str | None = None) -> IO[bytes]:
        # Logs and manifests are small enough to be held; data files of a report may have two gigabytes.
        # Whoever asked for it closes it.
        with self._explained(key):
            answer = self.client.get_object(
                Bucket=self.address.bucket, Key=key, **_version(version_id), **self._owner()
            )
            file = cast("IO[bytes]", SpooledTemporaryFile(max_size=HELD_BYTES))  # noqa: SIM115
            try:
                shutil.copyfileobj(answer["Body"], file)
            except BaseException:
                file.close()
                raise
        file.seek(0)
        return file

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        try:
            with self._explained(key):
                self.client.put_object(
                    Bucket=self.address.bucket, Key=key, Body=content, **condition, **self._owner()
                )
        except _Taken:
            return False
        return True

    def delete(self, key: str, version_id: str | None = None) -> None:
        with self._explained(key):
            self.client.delete_object(
                Bucket=self.address.bucket, Key=key, **_version(version_id), **self._owner()
            )

    def _owner(self) -> dict[str, str]:
        return {"ExpectedBucketOwner": self.address.account} if self.address.account else {}

    @contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        where = self.address.location(key)
        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in NOT_THERE:
                raise ObjectMissing(where) from error
            if code in TAKEN:
                raise _Taken(where, "the key is taken", "Nothing was written.") from error
            raise refused(where, code, str(error)) from error
        except BotoCoreError as error:
            reason = f"the store cannot be asked: {str(error).rstrip('.')}"
            raise BackupError(
                where, reason, "Check the endpoint, the network and the credentials."
            ) from error


class _Taken(BackupError):
    """A conditional write found the key taken."""


def refused(where: str, code: str, message: str) -> BackupError:
    """What a store's refusal means, by S3's error code, and what to do about it."""
    reason, fix = REFUSALS.get(code, (f"the store refused: {message}", "What is copied already stays."))
    return BackupError(where, reason, fix)


def s3_client(address: StoreAddress, service: str = "s3") -> Any:
    """A client of boto3 for the store's endpoint and identity: path addressing where an endpoint is given."""
    import boto3
    import botocore.session
    from botocore.config import Config
    from botocore.handlers import add_expect_header

    own = botocore.session.Session()
    own.register_component("data_loader", _service_models())
    session = boto3.Session(profile_name=address.profile, region_name=address.region, botocore_session=own)
    options: dict[str, Any] = {"addressing_style": "path"} if address.endpoint else {}
    config = Config(
        signature_version="s3v4",
        s3=options,
        retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
        # Stores that are no AWS refuse checksums that nobody asked for.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    client = session.client(service, endpoint_url=address.endpoint, config=config)
    # What is put is small: to ask first whether it may come takes a turn on the line for each.
    client.meta.events.unregister("before-call.s3", add_expect_header)
    return client


@cache
def _service_models() -> Any:
    """botocore's descriptions of services, for all clients: reading them is most of what making a client takes."""
    from botocore.loaders import create_loader

    return create_loader()


def _listed(one: dict[str, Any], is_marker: bool = False) -> Listed:
    version = one.get("VersionId")
    return Listed(
        one["Key"],
        None if is_marker else one["Size"],
        one["LastModified"],
        None if is_marker else one["ETag"].strip('"'),
        None if version == "null" else version,
        one.get("IsLatest", True),
        is_marker,
        one.get("StorageClass", "STANDARD"),
        next(iter(one.get("ChecksumAlgorithm", ())), None),
    )


def _version(version_id: str | None) -> dict[str, str]:
    return {} if version_id is None else {"VersionId": version_id}
