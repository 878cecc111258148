"""What backups ask of a store, one object at a time. Mass copies have a client of their own (backup/copy)."""

import datetime as dt
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Literal, Protocol, cast
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, field_validator

from lakeshare_pipelines.errors import BackupError, ObjectMissing
from lakeshare_server.settings import Endpoint, make_private

FOLDER, S3 = "folder", "s3"


class StoreAddress(BaseModel):
    """A folder of this host, or a bucket (or a prefix of one) of S3 or its relatives.

    Keys are told whole: of `s3://lake/sales/` they begin with `sales/`; of a folder they are relative to it, with
    slashes. `bucket` is what a listing's column of that name says: the bucket's name, or the folder's path.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(description="An absolute path, or s3://bucket or s3://bucket/prefix/.")
    endpoint: Endpoint | None = Field(None, description="URL of an S3-compatible store; AWS by default.")
    region: str | None = Field(None, description="Region of the bucket; boto3's usual one by default.")
    profile: str | None = Field(
        None, description="Profile of the AWS configuration files; boto3's usual credentials by default."
    )
    account: str | None = Field(
        None, pattern=r"^\d{12}$", description="Account that must own the bucket; requests say so (AWS)."
    )

    @field_validator("url")
    @classmethod
    def _is_known(cls, url: str) -> str:
        if url.startswith("s3://") and url.removeprefix("s3://").partition("/")[0]:
            return url
        if url.startswith("/"):
            return url.rstrip("/") or "/"
        raise ValueError("give an absolute path or s3://bucket/prefix/")

    @property
    def kind(self) -> Literal["folder", "s3"]:
        """`folder` or `s3`."""
        return "folder" if self.url.startswith("/") else "s3"

    @property
    def bucket(self) -> str:
        """The bucket's name, or the folder's path."""
        return self.url if self.kind == FOLDER else self.url.removeprefix("s3://").partition("/")[0]

    @property
    def prefix(self) -> str:
        """What every key begins with: empty, or ends with a slash."""
        prefix = "" if self.kind == FOLDER else self.url.removeprefix("s3://").partition("/")[2].strip("/")
        return f"{prefix}/" if prefix else ""

    def at(self, bucket: str) -> "StoreAddress":
        """Another whole bucket (or folder) that is reached the same way."""
        return self.model_copy(update={"url": bucket if bucket.startswith("/") else f"s3://{bucket}"})

    def location(self, key: str) -> str:
        """The URL of a key, as tables spell it: `/folder/key` or `s3://bucket/key`."""
        return f"{self.bucket}/{key}" if self.kind == FOLDER else f"s3://{self.bucket}/{key}"

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True)
class ListedObject:
    """One version of one key, as the store's own listing tells it.

    `etag` has no quotes. `version_id` is None for the null version and in stores without versions. A delete marker
    has no etag and no size. Of a folder the etag is made of modification time and size: it tells change, not content.
    """

    key: str
    size_bytes: int | None
    last_modified: dt.datetime
    etag: str | None
    version_id: str | None = None
    is_latest: bool = True
    is_delete_marker: bool = False
    storage_class: str | None = None
    checksum_algorithm: str | None = None


@dataclass(frozen=True)
class ObjectHead:
    """What a store says of one object; `checksums` by algorithm ("crc64nvme"), their values spelt as the store does."""

    key: str
    size_bytes: int
    last_modified: dt.datetime
    etag: str
    version_id: str | None = None
    storage_class: str | None = None
    encryption: str | None = None
    parts: int | None = None
    restore: str | None = None
    checksums: dict[str, str] = field(default_factory=dict)


class BackupStore(Protocol):
    """A store; for many threads.

    Every call raises BackupError when the store refuses or does not answer: it names the place and what to do.
    """

    address: StoreAddress

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ListedObject]:
        """Current objects whose key begins with `prefix`, in order of the key's UTF-8 bytes."""
        ...

    def versions(self, prefix: str = "") -> Iterator[ListedObject]:
        """All versions and delete markers; newest first within a key. The same as `list` in a folder."""
        ...

    def head(self, key: str, version_id: str | None = None) -> ObjectHead | None:
        """What the store says of an object; None when it is not there (or its newest version is a delete marker)."""
        ...

    def read(self, key: str, version_id: str | None = None) -> bytes:
        """A whole object. Raises ObjectMissing when it is not there."""
        ...

    def open(self, key: str, version_id: str | None = None) -> IO[bytes]:
        """An object as a file that seeks. Raises ObjectMissing when it is not there."""
        ...

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        """Write an object, whole or not at all; False when `if_absent` and the key is taken."""
        ...

    def delete(self, key: str, version_id: str | None = None) -> None:
        """Remove an object (one version of it, when told); what is not there stays not there."""
        ...


UNFINISHED = ".lakeshare-unfinished-"
"""How files begin that are being written; listings leave them out."""
MISSING_ERRNOS = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}


class FolderStore:
    """Files of this host below one folder."""

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self._root = Path(address.url)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ListedObject]:
        with translate_errors(str(self._root)):
            for key, found in _walk(self._root, prefix):
                if key.startswith(prefix) and key.encode() > start_after.encode():
                    yield ListedObject(
                        key, found.st_size, _time(found), compute_etag(found), storage_class="STANDARD"
                    )

    def versions(self, prefix: str = "") -> Iterator[ListedObject]:
        return self.list(prefix)

    def head(self, key: str, version_id: str | None = None) -> ObjectHead | None:
        if not _is_valid_path(key):
            return None
        try:
            with translate_errors(str(self.path(key))):
                found = self.path(key).stat()
        except ObjectMissing:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return ObjectHead(key, found.st_size, _time(found), compute_etag(found), storage_class="STANDARD")

    def read(self, key: str, version_id: str | None = None) -> bytes:
        with translate_errors(str(self.path(key))):
            return self.path(key).read_bytes()

    def open(self, key: str, version_id: str | None = None) -> IO[bytes]:
        with translate_errors(str(self.path(key))):
            return self.path(key).open("rb")

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        path = self.path(key)
        unfinished = path.with_name(f"{UNFINISHED}{uuid4().hex}")
        with translate_errors(str(path)):
            make_private(path.parent)
            try:
                with unfinished.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                return move_into_place(unfinished, path, if_absent=if_absent)
            finally:
                with suppress(FileNotFoundError):
                    unfinished.unlink()

    def delete(self, key: str, version_id: str | None = None) -> None:
        with suppress(ObjectMissing), translate_errors(str(self.path(key))):
            self.path(key).unlink()

    def path(self, key: str) -> Path:
        """The file of a key.

        Raises:
            BackupError: no file can have such a name.
        """
        if not _is_valid_path(key):
            raise BackupError(
                f"{self._root}: key {key!r}",
                "a folder cannot hold such a key",
                "Back up to a bucket instead.",
            )
        return self._root / key


def _is_valid_path(key: str) -> bool:
    """Whether a file below a folder can have this key as its path."""
    return bool(key) and not any(part in {"", ".", ".."} for part in key.split("/"))


def remove_unfinished(folder: Path, before: dt.datetime | None = None) -> int:
    """Remove files that were being written below a folder when their writer was killed; returns how many.

    With `before` only those that nobody has written since then.
    """
    removed = 0
    for above, _, names in os.walk(folder):
        for name in names:
            path = Path(above) / name
            # Of a file that another writer finishes or removes now nothing is to be done.
            with suppress(FileNotFoundError):
                # Not the time of modification: that of what is copied is given to it before it gets its name.
                if name.startswith(UNFINISHED) and (
                    before is None or path.stat().st_ctime < before.timestamp()
                ):
                    path.unlink()
                    removed += 1
    return removed


def compute_etag(found: os.stat_result) -> str:
    """What tells that a file changed: 32 hexadecimal digits of its modification time and size."""
    return f"{found.st_mtime_ns:016x}{found.st_size:016x}"


def move_into_place(unfinished: Path, path: Path, *, if_absent: bool) -> bool:
    """Give a written file its name; False when `if_absent` and the name is taken: then it still has the old one."""
    if not if_absent:
        unfinished.replace(path)
        return True
    try:
        os.link(unfinished, path)
    except FileExistsError:
        return False
    return True


def _walk(root: Path, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    """Keys in order of their bytes: a folder sorts as its name with a slash."""
    start = prefix.rpartition("/")[0]
    folder = root / start
    if not folder.is_dir():
        return
    yield from _below(folder, f"{start}/" if start else "")


def _below(folder: Path, key: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as scanned:
        entries = [(f"{one.name}/" if one.is_dir() else one.name, one) for one in scanned]
    for name, entry in sorted(entries, key=lambda found: os.fsencode(found[0])):
        if name.endswith("/"):
            yield from _below(Path(entry.path), key + name)
        elif not name.startswith(UNFINISHED):
            # What vanishes while it is listed is not there.
            with suppress(FileNotFoundError):
                found = entry.stat()
                if stat.S_ISREG(found.st_mode):
                    yield key + name, found


def _time(found: os.stat_result) -> dt.datetime:
    return dt.datetime.fromtimestamp(found.st_mtime, dt.UTC)


@contextmanager
def translate_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in MISSING_ERRNOS:
            raise ObjectMissing(path) from None
        raise BackupError(path, f"the disk refused: {error.strerror}", _remedy(error)) from error


def _remedy(error: OSError) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "Free space there, or give the backup another target; what is copied already stays."
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return "Allow the user that runs backups to read the source and write the target."
    return "Look at the disk; what is copied already stays."


ATTEMPTS = 5
MAX_MEMORY_BYTES = 32 * 1024**2
"""What is read as a file is held in memory up to this size, and on the disk beyond it."""
MISSING_CODES = {"NoSuchKey", "NoSuchVersion", "404"}
TAKEN_CODES = {"PreconditionFailed", "412", "ConditionalRequestConflict"}
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
        return make_s3_client(self.address)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ListedObject]:
        prefix = prefix or self.address.prefix
        with self._explained(prefix):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.address.bucket, Prefix=prefix, StartAfter=start_after, **self._owner()
            )
            for page in pages:
                for one in page.get("Contents", ()):
                    yield _listed(one)

    def versions(self, prefix: str = "") -> Iterator[ListedObject]:
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

    def head(self, key: str, version_id: str | None = None) -> ObjectHead | None:
        try:
            with self._explained(key):
                response = self.client.head_object(
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
            for name, value in response.items()
            if name.startswith("Checksum") and name != "ChecksumType"
        }
        return ObjectHead(
            key,
            response["ContentLength"],
            response["LastModified"],
            response["ETag"].strip('"'),
            response.get("VersionId"),
            response.get("StorageClass", "STANDARD"),
            response.get("ServerSideEncryption"),
            response.get("PartsCount"),
            response.get("Restore"),
            sums,
        )

    def read(self, key: str, version_id: str | None = None) -> bytes:
        with self._explained(key):
            response = self.client.get_object(
                Bucket=self.address.bucket, Key=key, **_version(version_id), **self._owner()
            )
            content: bytes = response["Body"].read()
            return content

    def open(self, key: str, version_id: str | None = None) -> IO[bytes]:
        # Logs and manifests are small enough to be held; data files of a report may have two gigabytes.
        # Whoever asked for it closes it.
        with self._explained(key):
            response = self.client.get_object(
                Bucket=self.address.bucket, Key=key, **_version(version_id), **self._owner()
            )
            file = cast("IO[bytes]", SpooledTemporaryFile(max_size=MAX_MEMORY_BYTES))  # noqa: SIM115
            try:
                shutil.copyfileobj(response["Body"], file)
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
        except _KeyTaken:
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
            if code in MISSING_CODES:
                raise ObjectMissing(where) from error
            if code in TAKEN_CODES:
                raise _KeyTaken(where, "the key is taken", "Nothing was written.") from error
            raise make_refusal(where, code, str(error)) from error
        except BotoCoreError as error:
            reason = f"the store cannot be asked: {str(error).rstrip('.')}"
            raise BackupError(
                where, reason, "Check the endpoint, the network and the credentials."
            ) from error


class _KeyTaken(BackupError):
    """A conditional write found the key taken."""


def make_refusal(where: str, code: str, message: str) -> BackupError:
    """What a store's refusal means, by S3's error code, and what to do about it."""
    reason, fix = REFUSALS.get(code, (f"the store refused: {message}", "What is copied already stays."))
    return BackupError(where, reason, fix)


def make_s3_client(address: StoreAddress, service: str = "s3") -> Any:
    """A client of boto3 for the store's endpoint and identity: path addressing where an endpoint is given."""
    import boto3
    import botocore.session
    from botocore.config import Config
    from botocore.handlers import add_expect_header

    own = botocore.session.Session()
    own.register_component("data_loader", _load_service_models())
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
def _load_service_models() -> Any:
    """botocore's descriptions of services, for all clients: reading them is most of what making a client takes."""
    from botocore.loaders import create_loader

    return create_loader()


def _listed(one: dict[str, Any], is_marker: bool = False) -> ListedObject:
    version = one.get("VersionId")
    return ListedObject(
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


def open_store(address: StoreAddress) -> BackupStore:
    """A store, ready for use; nothing is asked of it yet."""
    return FolderStore(address) if address.kind == FOLDER else S3Store(address)


PROPERTIES = {
    "AWS_REGION": "s3.region",
    "AWS_ACCESS_KEY_ID": "s3.access-key-id",
    "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
    "AWS_SESSION_TOKEN": "s3.session-token",
    "AWS_ENDPOINT_URL": "s3.endpoint",
}


def make_storage_options(address: StoreAddress) -> dict[str, str]:
    """What object_store needs to reach a store; empty for a folder."""
    if address.kind == "folder":
        return {}
    import boto3

    session = boto3.Session(profile_name=address.profile, region_name=address.region)
    options = {"AWS_REGION": session.region_name or "us-east-1"}
    credentials = session.get_credentials()
    if credentials is not None:
        frozen = credentials.get_frozen_credentials()
        options |= {"AWS_ACCESS_KEY_ID": frozen.access_key, "AWS_SECRET_ACCESS_KEY": frozen.secret_key}
        if frozen.token:
            options["AWS_SESSION_TOKEN"] = frozen.token
    if address.endpoint:
        options["AWS_ENDPOINT_URL"] = str(address.endpoint)
        if str(address.endpoint).startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
    return options


def make_file_properties(address: StoreAddress) -> dict[str, str]:
    """What pyiceberg needs to reach a store; empty for a folder."""
    return {
        PROPERTIES[name]: value for name, value in make_storage_options(address).items() if name in PROPERTIES
    }
