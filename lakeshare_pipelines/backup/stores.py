"""Requests to one store, one object at a time. Mass copies and listings use async_s3.py."""

import datetime as dt
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Annotated, Any, Literal, Protocol, cast

from pydantic import BaseModel, Field, field_validator

from lakeshare_pipelines.errors import BackupError, ObjectMissing
from lakeshare_server.errors import BadRequest, Unavailable
from lakeshare_server.locations import S3, ParsedLocation, parse_location, split_location
from lakeshare_server.outbound import Service
from lakeshare_server.settings import Endpoint
from lakeshare_server.storage import s3
from lakeshare_server.storage.s3 import KeyChain, NoKeys, S3Refused, S3Unreachable
from lakeshare_server.storage.sigv4 import AwsKeys
from lakeshare_server.storage.stores import NO_SUCH_NAME, NOT_ALLOWED, UNFINISHED, walk_files, write_file
from lakeshare_server.yaml_documents import written_as

FOLDER = "folder"
AccountId = Annotated[str, written_as(r"^\d{12}$", "the 12 digits of an AWS account, in quotes")]


class StoreAddress(BaseModel, frozen=True, extra="forbid"):
    """A folder of this host, or a bucket (or a prefix of one) of S3 or an S3-compatible store.

    Keys are complete: those of `s3://lake/sales/` begin with `sales/`; those of a folder are relative to it.
    """

    url: str = Field(description="An absolute path, or s3://bucket or s3://bucket/prefix/.")
    endpoint: Endpoint | None = Field(None, description="URL of an S3-compatible store; AWS by default.")
    region: str | None = Field(None, description="Region of the bucket; boto3's usual one by default.")
    profile: str | None = Field(
        None, description="Profile of the AWS configuration files; boto3's usual credentials by default."
    )
    account: AccountId | None = Field(None, description="Account that must own the bucket (AWS).")

    @field_validator("url")
    @classmethod
    def _is_known(cls, url: str) -> str:
        # The day of a point takes the place of `{day}` later.
        if url.startswith(("/", "s3://")):
            with suppress(BadRequest):
                place = parse_location(url.replace("{day}", "2000-01-01"))
                return url if place.kind == S3 else url.rstrip("/") or "/"
        raise ValueError("give an absolute path or s3://bucket/prefix/")

    @property
    def place(self) -> ParsedLocation:
        return split_location(self.url)

    @property
    def kind(self) -> Literal["folder", "s3"]:
        return "folder" if self.url.startswith("/") else "s3"

    @property
    def bucket(self) -> str:
        """The bucket's name, or the folder's path: the column `bucket` of a listing."""
        return self.url if self.kind == FOLDER else self.place.bucket

    @property
    def prefix(self) -> str:
        """Prefix of every key: empty, or ends with a slash."""
        return "" if self.kind == FOLDER else self.place.prefix

    def at(self, bucket: str) -> "StoreAddress":
        """The address of another whole bucket (or folder), with the same endpoint and credentials."""
        return self.model_copy(update={"url": bucket if bucket.startswith("/") else f"s3://{bucket}"})

    def location(self, key: str) -> str:
        """The URL of a key, as tables spell it: `/folder/key` or `s3://bucket/key`."""
        return f"{self.url if self.kind == FOLDER else self.place.root}/{key}"

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True)
class ListedObject:
    """One version of one key in a listing of the store.

    `etag` has no quotes. `version_id` is None for the null version and in stores without versions. A delete marker
    has no etag and no size. In a folder the etag is made of modification time and size, not of the content.
    """

    key: str
    size_bytes: int | None
    last_modified: dt.datetime
    etag: str | None
    version_id: str | None = None
    is_latest: bool = True
    is_delete_marker: bool = False
    storage_class: str | None = None


@dataclass(frozen=True)
class ObjectHead(ListedObject):
    """Metadata of one object; `checksums` by algorithm ("crc64nvme"), their values as the store spells them."""

    size_bytes: int
    etag: str
    encryption: str | None = None
    checksums: dict[str, str] = field(default_factory=dict)


class BackupStore(Protocol):
    """A store, usable from many threads. Every method raises BackupError, with the location and the remedy, when the
    store refuses or does not answer."""

    address: StoreAddress

    def list(self, prefix: str = "") -> Iterator[ListedObject]:
        """Current objects whose key begins with `prefix`, in order of the key's UTF-8 bytes."""

    def versions(self, prefix: str = "") -> Iterator[ListedObject]:
        """All versions and delete markers; newest first within a key. The same as `list` in a folder."""

    def head(self, key: str, version_id: str | None = None) -> ObjectHead | None:
        """Metadata of an object; None if it does not exist or its newest version is a delete marker."""

    def read(self, key: str, version_id: str | None = None) -> bytes:
        """The content of an object. Raises ObjectMissing if it does not exist."""

    def open(self, key: str, version_id: str | None = None) -> IO[bytes]:
        """An object as a seekable file. Raises ObjectMissing if it does not exist."""

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        """Write an object atomically; False if `if_absent` and the key exists."""

    def delete(self, key: str, version_id: str | None = None) -> None:
        """Delete an object, or one version of it; succeeds if it does not exist."""


FREE_SPACE = "Free space there, or give the backup another target; what is copied already stays."


class FolderStore:
    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self._root = Path(address.url)

    def list(self, prefix: str = "") -> Iterator[ListedObject]:
        start = prefix.rpartition("/")[0]
        with translate_errors(str(self._root)):
            if not (self._root / start).is_dir():
                return
            root = os.fsencode(self.address.url.rstrip("/") + "/")
            for path, status in walk_files((root + os.fsencode(start)).rstrip(b"/")):
                key = os.fsdecode(path.removeprefix(root))
                if key.startswith(prefix):
                    yield ListedObject(
                        key, status.st_size, _time(status), compute_etag(status), storage_class="STANDARD"
                    )

    def versions(self, prefix: str = "") -> Iterator[ListedObject]:
        return self.list(prefix)

    def head(self, key: str, version_id: str | None = None) -> ObjectHead | None:
        if not _is_valid_path(key):
            return None
        try:
            with translate_errors(str(self.path(key))):
                status = self.path(key).stat()
        except ObjectMissing:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return ObjectHead(key, status.st_size, _time(status), compute_etag(status), storage_class="STANDARD")

    def read(self, key: str, version_id: str | None = None) -> bytes:
        with translate_errors(str(self.path(key))):
            return self.path(key).read_bytes()

    def open(self, key: str, version_id: str | None = None) -> IO[bytes]:
        with translate_errors(str(self.path(key))):
            return self.path(key).open("rb")

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        with translate_errors(str(self.path(key))):
            return write_file(self.path(key), content, if_absent=if_absent)

    def delete(self, key: str, version_id: str | None = None) -> None:
        with suppress(ObjectMissing), translate_errors(str(self.path(key))):
            self.path(key).unlink()

    def path(self, key: str) -> Path:
        """The file of a key. Raises BackupError if no file can have such a name."""
        if not _is_valid_path(key):
            where = f"{self._root}: key {key!r}"
            raise BackupError(where, "a folder cannot hold such a key", "Back up to a bucket instead.")
        return self._root / key


def _is_valid_path(key: str) -> bool:
    return bool(key) and not any(part in {"", ".", ".."} for part in key.split("/"))


def remove_unfinished(folder: Path, before: dt.datetime | None = None) -> int:
    """Remove unfinished files of killed processes, with `before` only those not written to since; returns how many."""
    removed = 0
    for above, _, names in os.walk(folder):
        for name in names:
            path = Path(above) / name
            # Another process may finish or remove the file now.
            with suppress(FileNotFoundError):
                # Not the modification time: a copy gets that of its source before it gets its name.
                if name.startswith(UNFINISHED) and (
                    before is None or path.stat().st_ctime < before.timestamp()
                ):
                    path.unlink()
                    removed += 1
    return removed


def compute_etag(status: os.stat_result) -> str:
    """32 hexadecimal digits of a file's modification time and size: changes when the file changes."""
    return f"{status.st_mtime_ns:016x}{status.st_size:016x}"


def _time(status: os.stat_result) -> dt.datetime:
    return dt.datetime.fromtimestamp(status.st_mtime, dt.UTC)


@contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Raises ObjectMissing or BackupError for errors of the file system."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SUCH_NAME:
            raise ObjectMissing(path) from None
        fix = "Check the disk; what is copied already stays."
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            fix = FREE_SPACE
        elif error.errno in NOT_ALLOWED:
            fix = "Allow the user that runs backups to read the source and write the target."
        raise BackupError(path, f"the disk refused: {error.strerror}", fix) from error


ATTEMPTS = 5
CONNECT_S, RESPONSE_S = 60, 60
MAX_MEMORY_BYTES = 32 * 1024**2  # A downloaded object is kept in memory up to this size, on disk beyond it
MISSING_CODES = {"NoSuchKey", "NoSuchVersion", "404"}
TAKEN_CODES = {"PreconditionFailed", "412", "ConditionalRequestConflict"}
CHECK_ENDPOINT = "Check the endpoint, the network and the credentials."
CREDENTIALS = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, or give the machine a role."
_ALLOW = "Allow these credentials there: `lakeshare backup policies` writes the policies."
REMEDIES = {
    "NoSuchBucket": "Create it, or correct the backup's URL.",
    **dict.fromkeys(("AccessDenied", "403"), _ALLOW),
    **dict.fromkeys(s3.REFUSED_KEYS, CREDENTIALS),
    **dict.fromkeys(s3.OTHER_REGION, "Give the backup's `region`."),
    "SlowDown": "Run it again later; what is copied already stays.",
}
"""By S3 error code; the reasons are in lakeshare_server.storage.s3."""


class S3Store:
    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self._bucket = {"Bucket": address.bucket}
        if address.account:
            self._bucket["ExpectedBucketOwner"] = address.account

    @cached_property
    def client(self) -> Any:
        return make_s3_client(self.address)

    def call(self, method: str, **request: Any) -> dict[str, Any]:
        """The response to a request of boto3's client for the bucket. Raises S3Refused and S3Unreachable."""
        with s3.translate_errors():
            response: dict[str, Any] = getattr(self.client, method)(**self._bucket, **request)
        return response

    def list(self, prefix: str = "") -> Iterator[ListedObject]:
        prefix = prefix or self.address.prefix
        with self._translate_errors(prefix):
            pages = self.client.get_paginator("list_objects_v2").paginate(**self._bucket, Prefix=prefix)
            for page in pages:
                for entry in page.get("Contents", ()):
                    yield _make_listed_object(entry)

    def versions(self, prefix: str = "") -> Iterator[ListedObject]:
        prefix = prefix or self.address.prefix
        with self._translate_errors(prefix):
            pages = self.client.get_paginator("list_object_versions").paginate(**self._bucket, Prefix=prefix)
            for page in pages:
                entries = [(entry, False) for entry in page.get("Versions", ())]
                entries += [(entry, True) for entry in page.get("DeleteMarkers", ())]
                # A page lists versions and markers separately; the versions of a key are newest first.
                entries.sort(key=lambda pair: pair[0]["LastModified"], reverse=True)
                entries.sort(key=lambda pair: pair[0]["Key"].encode())
                for entry, is_marker in entries:
                    yield _make_listed_object(entry, is_marker)

    def head(self, key: str, version_id: str | None = None) -> ObjectHead | None:
        try:
            with self._translate_errors(key):
                response = self.client.head_object(**self._object(key, version_id), ChecksumMode="ENABLED")
        except ObjectMissing:
            return None
        checksums = {
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
            storage_class=response.get("StorageClass", "STANDARD"),
            encryption=response.get("ServerSideEncryption"),
            checksums=checksums,
        )

    def read(self, key: str, version_id: str | None = None) -> bytes:
        with self._translate_errors(key):
            content: bytes = self.client.get_object(**self._object(key, version_id))["Body"].read()
            return content

    def open(self, key: str, version_id: str | None = None) -> IO[bytes]:
        # Logs and manifests are small; data files of a report can have two gigabytes. The caller closes it.
        with self._translate_errors(key):
            response = self.client.get_object(**self._object(key, version_id))
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
            with self._translate_errors(key):
                self.client.put_object(**self._object(key), Body=content, **condition)
        except _KeyTaken:
            return False
        return True

    def delete(self, key: str, version_id: str | None = None) -> None:
        with self._translate_errors(key):
            self.client.delete_object(**self._object(key, version_id))

    def _object(self, key: str, version_id: str | None = None) -> dict[str, str]:
        return {**self._bucket, "Key": key, **({} if version_id is None else {"VersionId": version_id})}

    @contextmanager
    def _translate_errors(self, key: str) -> Iterator[None]:
        where = self.address.location(key)
        try:
            with s3.translate_errors():
                yield
        except S3Refused as error:
            if error.code in MISSING_CODES:
                raise ObjectMissing(where) from error
            if error.code in TAKEN_CODES:
                raise _KeyTaken(where, "the key exists", "Nothing was written.") from error
            raise make_refusal(where, error.code, str(error)) from error
        except S3Unreachable as error:
            raise make_unreachable_error(where, error) from error


class _KeyTaken(BackupError):
    """A conditional write failed because the key exists."""


def make_refusal(where: str, code: str, message: str) -> BackupError:
    reason = s3.REASONS.get(code, f"the store refused: {message}")
    return BackupError(where, reason, REMEDIES.get(code, "What is copied already stays."))


def make_unreachable_error(where: str, error: S3Unreachable) -> BackupError:
    return BackupError(where, f"the store cannot be reached: {error}", CHECK_ENDPOINT)


def make_s3_client(address: StoreAddress, service: str = "s3") -> Any:
    """A boto3 client for the store's endpoint and credentials; path addressing if an endpoint is given."""
    from botocore.config import Config
    from botocore.handlers import add_expect_header

    session = make_session(address)
    options: dict[str, Any] = {"addressing_style": "path"} if address.endpoint else {}
    config = Config(
        signature_version="s3v4",
        connect_timeout=CONNECT_S,
        read_timeout=RESPONSE_S,
        s3=options,
        retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
        # S3-compatible stores refuse checksums that are not required.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    client = session.client(service, endpoint_url=address.endpoint, config=config)
    # Written objects are small: `Expect: 100-continue` would cost a round trip for each.
    client.meta.events.unregister("before-call.s3", add_expect_header)
    return client


def make_session(address: StoreAddress) -> Any:
    """A boto3 session for the store's profile and region, which reads the credentials of now."""
    try:
        return s3.make_session(address.profile, address.region)
    except NoKeys as error:
        raise BackupError(str(address), error.what, CREDENTIALS) from error


def make_key_chain(address: StoreAddress, session: Any) -> KeyChain:
    service = Service(f"credentials of {address}")
    return KeyChain(lambda: session, lambda: service)


def find_keys(address: StoreAddress, chain: KeyChain) -> AwsKeys | None:
    """The current keys of a store, None if there are none; raises BackupError if they cannot be read or refreshed."""
    try:
        return chain.find()
    except Unavailable as error:
        detail = error.detail if isinstance(error, NoKeys) else ""
        raise BackupError(str(address), f"{error.what}: {detail}".removesuffix(": "), CREDENTIALS) from error


def _make_listed_object(entry: dict[str, Any], is_marker: bool = False) -> ListedObject:
    version = entry.get("VersionId")
    return ListedObject(
        entry["Key"],
        None if is_marker else entry["Size"],
        entry["LastModified"],
        None if is_marker else entry["ETag"].strip('"'),
        None if version == "null" else version,
        entry.get("IsLatest", True),
        is_marker,
        entry.get("StorageClass", "STANDARD"),
    )


def open_store(address: StoreAddress) -> BackupStore:
    return FolderStore(address) if address.kind == FOLDER else S3Store(address)


HEADS_AT_ONCE = 16


def head_existing(store: BackupStore, keys: Iterable[str]) -> list[ObjectHead]:
    """The heads of the objects that exist, by concurrent requests."""
    with ThreadPoolExecutor(HEADS_AT_ONCE) as pool:
        return [head for head in pool.map(store.head, keys) if head is not None]


FILE_PROPERTIES = {
    "AWS_REGION": "s3.region",
    "AWS_ACCESS_KEY_ID": "s3.access-key-id",
    "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
    "AWS_SESSION_TOKEN": "s3.session-token",
    "AWS_ENDPOINT_URL": "s3.endpoint",
}
"""pyiceberg's name of each option of object_store."""


def make_storage_options(address: StoreAddress, default_region: str | None = "us-east-1") -> dict[str, str]:
    if address.kind == FOLDER:
        return {}
    session = make_session(address)
    region = session.region_name or default_region
    options = {"AWS_REGION": region} if region else {}
    # Without keys, the reader of the options looks for some by itself.
    if (keys := find_keys(address, make_key_chain(address, session))) is not None:
        options |= {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}
        if keys.token:
            options["AWS_SESSION_TOKEN"] = keys.token
    if address.endpoint:
        options["AWS_ENDPOINT_URL"] = str(address.endpoint)
        if str(address.endpoint).startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
    return options


def make_file_properties(address: StoreAddress, default_region: str | None = "us-east-1") -> dict[str, str]:
    """Properties for pyiceberg's FileIO; empty for a folder. Without a region, pyiceberg finds the bucket's."""
    options = make_storage_options(address, default_region)
    return {FILE_PROPERTIES[name]: value for name, value in options.items() if name in FILE_PROPERTIES}
