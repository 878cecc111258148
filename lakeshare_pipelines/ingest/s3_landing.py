"""Deliveries that land in S3: complete ones are copied into the landing folder, whole or not at all.

`<landing_s3>/<set>/<partition>/<files>` becomes `<landing>/<set>/<partition>/<files>`; what follows, from finding to
publishing, knows the folder only. A delivery carries the record of what it was copied from, so it is copied once.
"""

import datetime as dt
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import DeliveriesRefused, DeliveryError, StoreError
from lakeshare_pipelines.file_lock import hold_lock
from lakeshare_pipelines.ingest.delivery import MANIFEST, SUCCESS, get_set_folder, is_data
from lakeshare_pipelines.settings import LakeSettings

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
PROGRESS_S = 10.0
CREDENTIALS = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine a role."
CHECK_ENDPOINT = "Check LAKESHARE_LANDING_S3_ENDPOINT and the network; what has arrived already stays."

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
    with translate_errors(folder):
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
        with translate_errors(folder, wanted.key), part.open("wb") as file:
            response = client.get_object(Bucket=folder.bucket, Key=wanted.key, IfMatch=wanted.etag)
            size_bytes = 0
            logged_at = time.monotonic()
            for chunk in response["Body"].iter_chunks(CHUNK_BYTES):
                size_bytes += file.write(chunk)
                if time.monotonic() - logged_at > PROGRESS_S:
                    logged_at = time.monotonic()
                    log.info("%s: %d of %d bytes", wanted.key, size_bytes, wanted.size_bytes)
            file.flush()
            os.fsync(file.fileno())
        # Not every store honours If-Match: the answer's own ETag and size are looked at as well.
        if size_bytes != wanted.size_bytes or response["ETag"] != wanted.etag:
            raise make_changed_error(folder, wanted.key)
        part.rename(path)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def make_changed_error(folder: S3Folder, key: str) -> DeliveryError:
    """The error for an object that is not what the listing said."""
    return DeliveryError(
        f"s3://{folder.bucket}/{key}",
        "changed while it was read",
        "Nothing of its delivery was taken. The next look takes it, once the sender has finished.",
    )


@contextmanager
def translate_errors(folder: S3Folder, key: str = "") -> Iterator[None]:
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
            raise make_changed_error(folder, key) from error
        if code in {"403", "404"}:
            code = {"403": "AccessDenied", "404": "NoSuchBucket"}[code]
        reason, fix = REFUSALS.get(code, (f"S3 refused: {error}", "What has arrived already stays."))
        raise StoreError(where, reason, fix) from error
    except (ConnectionRefused, HTTPClientError, IncompleteReadError) as error:
        raise StoreError(where, f"S3 did not answer, or broke off: {error}", CHECK_ENDPOINT) from error
    except BotoCoreError as error:
        is_credentials = "redential" in type(error).__name__ or "Profile" in type(error).__name__
        reason = "there are no usable credentials" if is_credentials else "it cannot be asked"
        raise StoreError(
            where, f"{reason}: {str(error).rstrip('.')}", CREDENTIALS if is_credentials else CHECK_ENDPOINT
        ) from error


RECORD = ".s3.json"
NAME_BYTES = 240  # file systems take 255; a file still being copied has a longer name
MARKERS = (MANIFEST, SUCCESS)  # in the order they are copied: what says "complete" comes last


@dataclass(frozen=True)
class S3Delivery:
    """One partition of a set as S3 lists it: files first, then markers."""

    folder: S3Folder
    partition: str
    files: tuple[S3Object, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def record(self) -> dict[str, list[str | int]]:
        """What tells it from another delivery of the partition: ETag and size of each file."""
        return {file.name: [file.etag, file.size_bytes] for file in self.files}

    def is_complete(self, quiet_s: int) -> bool:
        """Whether its sender has finished: there is a marker, or nothing has come for a while."""
        if not any(is_data(file.name) for file in self.files):
            return False
        if any(file.name in MARKERS for file in self.files):
            return True
        last = max(file.modified_at for file in self.files)
        return (dt.datetime.now(dt.UTC) - last).total_seconds() >= quiet_s


# Any: boto3 makes the classes of its clients at run time and ships no types.
def fetch_deliveries(client: Any, settings: LakeSettings, contract: SetContract) -> list[str]:
    """Copy the set's complete deliveries that are new or changed; returns their partitions.

    A delivery that cannot be taken does not keep the others from being taken; its error is raised at the end.

    Raises:
        StoreError: S3 cannot be asked.
        DeliveriesRefused: a delivery changed while it was read, or has names that no folder may hold.
        DeliveryError: the landing folder cannot be written.
    """
    if settings.landing_s3 is None:
        return []
    source = S3Folder.at(settings.landing_s3) / contract.name
    place = get_set_folder(settings, contract)
    try:
        with ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(place / ".s3.lock", wait_s=0))
            except TimeoutError:
                log.info("deliveries of %s are being fetched by another process", contract.name)
                return []
            return _fetch_all(client, settings, contract, source, place)
    except OSError as error:
        raise DeliveryError(
            str(source),
            f"cannot be copied to {place}: {error.strerror}",
            "Make room, or set LAKESHARE_LANDING_DIR to a folder that can be written.",
        ) from error


def _fetch_all(
    client: Any, settings: LakeSettings, contract: SetContract, source: S3Folder, place: Path
) -> list[str]:
    fetched: list[str] = []
    refused: list[DeliveryError] = []
    for partition, objects in _by_partition(list_objects(client, source)):
        if not contract.is_partition(partition):
            log.warning("%s%s is no partition of set %s and is left alone", source, partition, contract.name)
            continue
        try:
            delivery = _delivery(source / partition, partition, objects)
            if not delivery.is_complete(settings.quiet_s) or _is_fetched(delivery, place / partition):
                continue
            _fetch(client, delivery, place)
        except StoreError:
            raise  # the others would be refused as well, each after its attempts
        except DeliveryError as error:
            refused.append(error)
            continue
        fetched.append(partition)
    if refused:
        raise DeliveriesRefused(refused)
    return fetched


def _by_partition(objects: Iterator[S3Object]) -> Iterator[tuple[str, list[S3Object]]]:
    # Keys come in order, so those of a partition come together: one partition in memory, however many there are.
    inside = (found for found in objects if "/" in found.name)
    for partition, group in groupby(inside, key=lambda found: found.name.partition("/")[0]):
        yield partition, list(group)


def _delivery(folder: S3Folder, partition: str, objects: Sequence[S3Object]) -> S3Delivery:
    files = []
    for found in objects:
        name = found.key.removeprefix(folder.prefix)
        if not name or (not is_data(name) and name not in MARKERS and not name.startswith("..")):
            continue  # the folder itself as consoles make it, or what senders keep for themselves
        _require_plain(folder, found.key, name)
        files.append(S3Object(found.key, name, found.size_bytes, found.etag, found.modified_at))
    rank = {name: number for number, name in enumerate(MARKERS, 1)}
    return S3Delivery(folder, partition, tuple(sorted(files, key=lambda f: (rank.get(f.name, 0), f.name))))


def _require_plain(folder: S3Folder, key: str, name: str) -> None:
    is_long = len(name.encode()) > NAME_BYTES
    if is_long or name.startswith("..") or any(sign in "/\\" or not sign.isprintable() for sign in name):
        raise DeliveryError(
            f"s3://{folder.bucket}/{key!r}",
            f"the name {name!r} is no plain file name that stays in its folder",
            f"Deliver plain files right below the partition, with names of at most {NAME_BYTES} bytes.",
        )


def _is_fetched(delivery: S3Delivery, path: Path) -> bool:
    if path.is_symlink():
        return False
    try:
        return bool(json.loads((path / RECORD).read_text(encoding="utf-8")) == delivery.record)
    except (FileNotFoundError, ValueError):
        return False


def _fetch(client: Any, delivery: S3Delivery, place: Path) -> None:
    """Copy a delivery beside its place, look whether it is still the same, and move it there."""
    started_at = time.monotonic()
    log.info("%s: fetching %d files, %d bytes", delivery.folder, len(delivery.files), delivery.size_bytes)
    scratch = _scratch(delivery, place)
    for file in delivery.files:
        if not (scratch / file.name).exists():
            copy_object(client, delivery.folder, file, scratch / file.name)
    _require_unchanged(client, delivery)
    (scratch / RECORD).write_text(json.dumps(delivery.record), encoding="utf-8")
    if not any(file.name in MARKERS for file in delivery.files):
        (scratch / SUCCESS).touch()  # it has been quiet in S3: it need not be so here again
    _move(scratch, place / delivery.partition)
    log.info("%s: fetched in %.1f s", delivery.folder, time.monotonic() - started_at)


def _scratch(delivery: S3Delivery, place: Path) -> Path:
    """The hidden folder for exactly this content: what a stopped fetch left there is whole and is kept."""
    digest = hashlib.sha256(json.dumps(delivery.record, sort_keys=True).encode()).hexdigest()
    scratch = place / f".s3-{delivery.partition}-{digest[:16]}"
    _restore_moved(_get_old_path(place / delivery.partition), place / delivery.partition)
    for other in place.glob(f".s3-{delivery.partition}-*"):
        if other.is_symlink():
            other.unlink()  # not ours: it could lead outside of landing
        elif other != scratch:
            shutil.rmtree(other)
    scratch.mkdir(parents=True, exist_ok=True)
    return scratch


def _require_unchanged(client: Any, delivery: S3Delivery) -> None:
    now = _delivery(delivery.folder, delivery.partition, list(list_objects(client, delivery.folder)))
    for name in sorted({*now.record, *delivery.record}):
        if now.record.get(name) != delivery.record.get(name):
            raise make_changed_error(delivery.folder, f"{delivery.folder.prefix}{name}")


def _move(new: Path, path: Path) -> None:
    old = _get_old_path(path)
    if path.is_symlink():
        path.unlink()
    with suppress(FileNotFoundError):
        path.rename(old)
    try:
        new.rename(path)
    except OSError:
        _restore_moved(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _restore_moved(old: Path, path: Path) -> None:
    """What was moved away for another that never came, be it by a crash."""
    if old.exists() and not path.exists():
        old.rename(path)


def _get_old_path(path: Path) -> Path:
    return path.with_name(f".s3-{path.name}-old")
