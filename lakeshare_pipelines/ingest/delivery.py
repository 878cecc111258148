"""Deliveries in landing, `<landing>/<set>/<partition>/<files>`: completeness and identity; and their copies from S3.

`<landing_s3>/<set>/<partition>/<files>` is copied into landing, whole or not at all; a record of the source's ETags
prevents a second copy.
"""

import datetime as dt
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.errors import DeliveriesRefused, DeliveryError, StoreError
from lakeshare_pipelines.file_lock import hold_lock
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.storage import s3
from lakeshare_server.storage.s3 import S3Refused, S3Unreachable

RACY_S = 2.0
CACHE_SIZE = 20_000

_Key = tuple[str, int, int, int, int]
_cache: dict[_Key, str] = {}


def compute_digest(root: Path, files: Iterable[Path]) -> str:
    """Returns the SHA-256 over the names below `root` and the bytes of `files`, in order of name."""
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in files):
        digest.update(f"{len(name.encode())}:{name}:{compute_file_digest(path)}\n".encode())
    return digest.hexdigest()


def compute_file_digest(path: Path) -> str:
    """Returns the SHA-256 of a file; cached while size, times and inode stay the same."""
    stat = path.stat()
    key = _key(path, stat)
    known = _cache.get(key)
    if known is not None:
        return known
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        after = os.fstat(file.fileno())
    is_settled = time.time() - max(stat.st_mtime, stat.st_ctime) > RACY_S
    if is_settled and _key(path, after) == key:
        if len(_cache) >= CACHE_SIZE:
            _cache.clear()
        _cache[key] = found
    return found


def _key(path: Path, stat: os.stat_result) -> _Key:
    return str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


FileFormat = Literal["csv", "jsonl", "parquet"]

FORMAT_BY_SUFFIX: dict[str, FileFormat] = {
    ".csv": "csv", ".csv.gz": "csv",
    ".jsonl": "jsonl", ".jsonl.gz": "jsonl", ".ndjson": "jsonl", ".ndjson.gz": "jsonl",
    ".json": "jsonl", ".json.gz": "jsonl",
    ".parquet": "parquet",
}  # fmt: skip

# Spark reads a path as a pattern and a URI: no character of a name may be special in either.
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+=,@-]*")

NO_LINKS = "Deliver the files themselves: nothing outside the landing folder is read."


@dataclass(frozen=True)
class LandingFile:
    """A file of a delivery, with the properties that follow from its name."""

    path: Path
    set_name: str
    partition: str
    table: Table
    format: FileFormat

    @property
    def label(self) -> str:
        """Name in the quarantine and in messages about the set: `2013-01-01/departures.csv.gz`."""
        return f"{self.partition}/{self.path.name}"

    @property
    def title(self) -> str:
        """Name in errors: `flights/2013-01-01/departures.csv.gz`."""
        return f"{self.set_name}/{self.label}"

    @property
    def is_compressed(self) -> bool:
        return self.path.suffix == ".gz"


def is_data(name: str) -> bool:
    """Whether a name is that of a data file: markers and partial files begin with `_` or a dot."""
    return not name.startswith(("_", "."))


def is_inside(landing: Path, path: Path) -> bool:
    """Whether a path, with all links followed, is in the landing folder, which itself may be a link."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(landing))


def assign_files(contract: SetContract, partition: str, files: Iterable[Path]) -> list[LandingFile]:
    """Assigns the files to tables."""
    sources = [table for table in contract.tables if table.source is not None]
    assigned = [_assign(contract, partition, sources, path) for path in files]
    for table in sources:
        if not any(file.table is table for file in assigned):
            fix = f"Deliver it as {table.source}.csv, .csv.gz, .jsonl or .parquet; all tables of a set arrive together."
            raise DeliveryError(f"{contract.name}/{partition}", f"holds no file for table {table.name}", fix)
    return assigned


def _assign(contract: SetContract, partition: str, tables: Sequence[Table], path: Path) -> LandingFile:
    title, name = f"{contract.name}/{partition}", path.name
    # `<landing>/<set>/<partition>/<file>`
    if not is_inside(path.parents[2], path):
        raise DeliveryError(title, f"{name} is a link to a place outside the landing folder", NO_LINKS)
    if not path.is_file():
        fix = "Deliver plain files, without folders or dead links."
        raise DeliveryError(title, f"{name} is not a file", fix)
    if not PLAIN_NAME.fullmatch(name):
        fix = "Use letters, digits and . _ - only."
        raise DeliveryError(title, f"the file name {name!r} has unusual characters", fix)
    suffixes = sorted(FORMAT_BY_SUFFIX, key=len, reverse=True)
    suffix = next((suffix for suffix in suffixes if name.endswith(suffix)), None)
    if suffix is None:
        fix = f"Known are {', '.join(FORMAT_BY_SUFFIX)}; a name that begins with _ is left alone."
        raise DeliveryError(title, f"{name} is of no known format", fix)
    stem = name.removesuffix(suffix)
    fitting = [t for t in tables if fnmatchcase(stem, t.source or "") or fnmatchcase(stem, f"{t.source}-*")]
    if not fitting:
        expected = ", ".join(f"{table.source}{{,-*}}" for table in tables)
        fix = f"Expected are files named {expected}."
        raise DeliveryError(title, f"{name} belongs to no table of the set", fix)
    # `departures_late` may be a table beside `departures*`: the longest source is the most specific.
    table = max(fitting, key=lambda t: len(t.source or ""))
    return LandingFile(path, contract.name, partition, table, FORMAT_BY_SUFFIX[suffix])


log = logging.getLogger(__name__)

SUCCESS = "_SUCCESS"
MANIFEST = "_manifest.json"


@dataclass(frozen=True)
class Delivery:
    """The files of an arrival, for one partition. `digest` is empty until the delivery is complete."""

    set_name: str
    partition: str
    path: Path
    files: tuple[Path, ...]
    digest: str
    complete: bool
    arrived_at: dt.datetime

    @property
    def title(self) -> str:
        return f"{self.set_name}/{self.partition}"

    @property
    def landing(self) -> Path:
        return self.path.parents[1]


def find_deliveries(settings: LakeSettings, contract: SetContract) -> list[Delivery]:
    """Returns all deliveries of a set in landing, by partition, with incomplete and invalid ones."""
    root = get_set_folder(settings, contract)
    if not root.is_dir():
        return []
    found = []
    for path in sorted(root.iterdir()):
        if not is_data(path.name) or not path.is_dir():
            continue
        if not contract.is_partition(path.name):
            log.warning("%s is no partition of set %s and is ignored", path, contract.name)
            continue
        if not is_inside(settings.landing, path):
            log.warning("%s is ignored: it is a link to a folder outside the landing folder", path)
            continue
        try:
            delivery = _inspect_delivery(settings, contract, path)
        except FileNotFoundError:
            continue  # replaced or removed at this moment: the next search finds it
        except OSError as error:
            log.warning("%s cannot be read and is ignored: %s", path, error.strerror)
            continue
        if delivery.files:
            found.append(delivery)
    return found


def find_delivery(settings: LakeSettings, contract: SetContract, partition: str) -> Delivery:
    """Returns the complete delivery of one partition.

    Raises:
        DeliveryError: there is none, or it is incomplete, empty, different from its manifest, or has links to locations
            outside landing.
    """
    title = f"{contract.name}/{partition}"
    if not contract.is_partition(partition):
        days = f"Give a day from {contract.first_partition} on, as 2013-01-01."
        fix = days if contract.partitioning == "daily" else "The set has one partition: all."
        raise DeliveryError(title, f"{partition!r} is no partition of set {contract.name}", fix)
    path = get_set_folder(settings, contract) / partition
    if not is_inside(settings.landing, path):
        raise DeliveryError(title, f"{partition} is a link to a folder outside the landing folder", NO_LINKS)
    try:
        delivery = _inspect_delivery(settings, contract, path)
    except FileNotFoundError:
        fix = f"Put its files into {path}, or make some with `lakeshare deliver {contract.name}`."
        raise DeliveryError(title, "has not arrived", fix) from None
    except OSError as error:
        fix = f"Check {path} and the permissions of its files."
        raise DeliveryError(title, f"cannot be read: {error.strerror}", fix) from error
    for marker in _markers_outside(settings, path):
        raise DeliveryError(title, f"{marker} is a link to a place outside the landing folder", NO_LINKS)
    if not any(file.lstat().st_size for file in delivery.files):
        names = ", ".join(file.name for file in delivery.files)
        what = f"is empty: {names} without a byte" if names else "is empty: no files"
        raise DeliveryError(title, what, f"Put its files into {path} and deliver again.")
    if not delivery.complete:
        fix = f"Write {SUCCESS} into {path}, or wait until it has been quiet for {settings.quiet_s} s."
        if (path / MANIFEST).exists():
            fix = f"Files that {MANIFEST} lists are still to come; run again when they are there."
        raise DeliveryError(title, "is not complete", fix)
    assign_files(contract, partition, delivery.files)
    _require_manifest(delivery)
    return delivery


def get_set_folder(settings: LakeSettings, contract: SetContract) -> Path:
    """Returns the folder of a set's deliveries."""
    root = settings.landing / contract.name
    if not is_inside(settings.landing, root):
        fix = "Make it a folder, or mount the other one there; LAKESHARE_LANDING_DIR itself may be a link."
        raise DeliveryError(contract.name, f"{root} is a link to a folder outside the landing folder", fix)
    return root


def require_unchanged(delivery: Delivery) -> None:
    """Checks that the files are the same as when the delivery was found."""
    try:
        files = _data_files(delivery.path)
        # A link could lead to other bytes when Spark opens it.
        is_same = (
            files == delivery.files
            and all(is_inside(delivery.landing, file) for file in (delivery.path, *files))
            and compute_digest(delivery.path, files) == delivery.digest
        )
    except OSError:
        is_same = False
    if not is_same:
        fix = "Nothing of it was published. Let the sender finish, then run the partition again."
        raise DeliveryError(delivery.title, "changed while it was read", fix)


@contextmanager
def blame_changed_delivery(deliveries: Sequence[Delivery]) -> Iterator[None]:
    """Attributes a failed read to a delivery that changed meanwhile.

    Raises:
        DeliveryError: the body failed and a delivery changed.
    """
    try:
        yield
    except DeliveryError:
        raise
    except Exception as error:
        for delivery in deliveries:
            try:
                require_unchanged(delivery)
            except DeliveryError as changed:
                raise changed from error
        raise


def _inspect_delivery(settings: LakeSettings, contract: SetContract, path: Path) -> Delivery:
    files = _data_files(path)
    # Copies often keep the sender's mtime; ctime is the time of arrival.
    stats = [entry.lstat() for entry in (path, *files)]
    changed_at = max(max(stat.st_mtime, stat.st_ctime) for stat in stats)
    complete = _is_complete(settings, path, files, changed_at)
    inside = [file for file in files if is_inside(settings.landing, file) and file.is_file()]
    return Delivery(
        set_name=contract.name,
        partition=path.name,
        path=path,
        files=files,
        digest=compute_digest(path, inside) if complete else "",
        complete=complete,
        arrived_at=dt.datetime.fromtimestamp(changed_at, dt.UTC),
    )


def _markers_outside(settings: LakeSettings, path: Path) -> list[str]:
    return [name for name in (SUCCESS, MANIFEST) if not is_inside(settings.landing, path / name)]


def _data_files(path: Path) -> tuple[Path, ...]:
    return tuple(sorted(entry for entry in path.iterdir() if is_data(entry.name)))


def _is_complete(settings: LakeSettings, path: Path, files: Sequence[Path], changed_at: float) -> bool:
    # A marker outside landing is never followed; `find_delivery` refuses it.
    if _markers_outside(settings, path) or (path / SUCCESS).exists():
        return True
    if not (path / MANIFEST).exists():
        return bool(files) and time.time() - changed_at >= settings.quiet_s
    try:
        entries = _read_manifest(path)
    except DeliveryError:
        return True  # `find_delivery` refuses the manifest
    sizes = {entry["name"]: entry.get("size") for entry in entries}
    return all(
        (path / name).is_file() and (size is None or (path / name).stat().st_size >= size)
        for name, size in sizes.items()
    )


def _require_manifest(delivery: Delivery) -> None:
    if not (delivery.path / MANIFEST).exists():
        return
    listed = {entry["name"]: entry for entry in _read_manifest(delivery.path)}
    present = {file.name: file for file in delivery.files}
    fix = f"Deliver again with a {MANIFEST} that fits."
    for name in sorted(listed.keys() ^ present.keys()):
        reason = f"{name} is not in {MANIFEST}"
        if name in listed:
            reason = f"{MANIFEST} lists {name}, which does not exist"
        raise DeliveryError(delivery.title, reason, fix)
    for name, entry in listed.items():
        size = present[name].stat().st_size
        if entry.get("size", size) != size:
            reason = f"{name} has {size} bytes, {MANIFEST} has {entry['size']}"
            raise DeliveryError(delivery.title, reason, fix)
        if entry.get("sha256") not in (None, compute_file_digest(present[name])):
            raise DeliveryError(delivery.title, f"{name} has another SHA-256 than in {MANIFEST}", fix)


def _read_manifest(path: Path) -> list[dict[str, Any]]:
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except ValueError as error:
        raise _make_manifest_error(path, str(error)) from error
    entries = manifest.get("files") if isinstance(manifest, dict) else None
    is_valid = isinstance(entries, list) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and entry["name"] == Path(entry["name"]).name
        and isinstance(entry.get("size"), int | None)
        and isinstance(entry.get("sha256"), str | None)
        for entry in entries
    )
    if not entries or not is_valid:
        raise _make_manifest_error(path, "it does not list files by name, size and sha256")
    return list(entries)


def _make_manifest_error(path: Path, reason: str) -> DeliveryError:
    form = '{"files": [{"name": "departures.csv", "size": 1234, "sha256": "…"}]}, size and sha256 optional'
    title = f"{path.parent.name}/{path.name}"
    return DeliveryError(title, f"{MANIFEST} cannot be read: {reason}", f"Write it as {form}.")


CHUNK_BYTES = 1 << 20
PROGRESS_S = 10.0
CREDENTIALS = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine a role."
CHECK_ENDPOINT = "Check LAKESHARE_LANDING_S3_ENDPOINT and the network; what has arrived already stays."
REMEDIES = {
    "NoSuchBucket": "Create it, or correct LAKESHARE_LANDING_S3.",
    "AccessDenied": "Allow these credentials s3:ListBucket and s3:GetObject there.",
    **dict.fromkeys(s3.REFUSED_KEYS, CREDENTIALS),
    **dict.fromkeys(s3.OTHER_REGION, "Set LAKESHARE_LANDING_S3_REGION to it."),
}
CHANGED = {"PreconditionFailed", "412", "NoSuchKey", "404"}


@dataclass(frozen=True)
class S3Folder:
    """`s3://bucket/prefix`; the prefix is empty or ends with a slash."""

    bucket: str
    prefix: str

    @classmethod
    def at(cls, url: str) -> "S3Folder":
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        return cls(bucket, prefix.strip("/") + "/" if prefix.strip("/") else "")

    def __truediv__(self, name: str) -> "S3Folder":
        return S3Folder(self.bucket, f"{self.prefix}{name}/")

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


@dataclass(frozen=True)
class S3Object:
    """An object of a listing; `name` is its key below the listed folder."""

    key: str
    name: str
    size_bytes: int
    etag: str
    modified_at: dt.datetime


# boto3 has no types.
def list_objects(client: Any, folder: S3Folder) -> Iterator[S3Object]:
    """Yields the objects below a folder in order of key, one page at a time."""
    with translate_errors(folder):
        paginator = client.get_paginator("list_objects_v2")
        for page in paginator.paginate(Bucket=folder.bucket, Prefix=folder.prefix):
            for entry in page.get("Contents", ()):
                name = entry["Key"].removeprefix(folder.prefix)
                yield S3Object(entry["Key"], name, entry["Size"], entry["ETag"], entry["LastModified"])


def copy_object(client: Any, folder: S3Folder, listed: S3Object, path: Path) -> None:
    """Copies an object, exactly as it was listed; the file appears when it is complete."""
    part = path.with_name(f".{path.name}.part")
    try:
        with translate_errors(folder, listed.key), part.open("wb") as file:
            response = client.get_object(Bucket=folder.bucket, Key=listed.key, IfMatch=listed.etag)
            size_bytes = 0
            logged_at = time.monotonic()
            for chunk in response["Body"].iter_chunks(CHUNK_BYTES):
                size_bytes += file.write(chunk)
                if time.monotonic() - logged_at > PROGRESS_S:
                    logged_at = time.monotonic()
                    log.info("%s: %d of %d bytes", listed.key, size_bytes, listed.size_bytes)
            file.flush()
            os.fsync(file.fileno())
        # Not every store honours If-Match.
        if size_bytes != listed.size_bytes or response["ETag"] != listed.etag:
            raise make_changed_error(folder, listed.key)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def make_changed_error(folder: S3Folder, key: str) -> DeliveryError:
    fix = "Nothing of its delivery was taken. It is taken when the sender has finished."
    return DeliveryError(f"s3://{folder.bucket}/{key}", "changed while it was read", fix)


@contextmanager
def translate_errors(folder: S3Folder, key: str = "") -> Iterator[None]:
    """Turns errors of boto3 into errors with the location and a fix."""
    where = f"s3://{folder.bucket}/{key}" if key else str(folder)
    try:
        with s3.translate_errors():
            yield
    except S3Refused as error:
        if key and error.code in CHANGED:
            raise make_changed_error(folder, key) from error
        code = {"403": "AccessDenied", "404": "NoSuchBucket"}.get(error.code, error.code)
        reason = s3.REASONS.get(code, f"S3 refused: {error}")
        raise StoreError(where, reason, REMEDIES.get(code, "What has arrived already stays.")) from error
    except S3Unreachable as error:
        if error.is_cut_off:
            raise StoreError(where, f"S3 did not answer, or broke off: {error}", CHECK_ENDPOINT) from error
        lacks_credentials = "redential" in error.kind or "Profile" in error.kind
        reason = "there are no usable credentials" if lacks_credentials else "it cannot be read"
        fix = CREDENTIALS if lacks_credentials else CHECK_ENDPOINT
        raise StoreError(where, f"{reason}: {error}", fix) from error


RECORD = ".s3.json"
NAME_BYTES = 240  # file systems take 255; a partial file has a longer name
MARKERS = (MANIFEST, SUCCESS)  # in the order of copying: the marker of completeness is last


@dataclass(frozen=True)
class S3Delivery:
    """A partition of a set in S3: files first, then markers."""

    folder: S3Folder
    partition: str
    files: tuple[S3Object, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def record(self) -> dict[str, list[str | int]]:
        """ETag and size of each file, which identify the content."""
        return {file.name: [file.etag, file.size_bytes] for file in self.files}

    def is_complete(self, quiet_s: int) -> bool:
        """Whether the sender has finished: there is a marker, or no change for `quiet_s`."""
        if not any(is_data(file.name) for file in self.files):
            return False
        if any(file.name in MARKERS for file in self.files):
            return True
        last = max(file.modified_at for file in self.files)
        return (dt.datetime.now(dt.UTC) - last).total_seconds() >= quiet_s


# boto3 has no types.
def fetch_deliveries(client: Any, settings: LakeSettings, contract: SetContract) -> list[str]:
    """Copies the set's complete deliveries that are new or changed; returns their partitions.

    A refused delivery does not prevent the others; its error is raised at the end.

    Raises:
        StoreError: S3 cannot be read.
        DeliveriesRefused: a delivery changed while it was read, or has names that no folder may hold.
        DeliveryError: the landing folder cannot be written.
    """
    if settings.landing_s3 is None:
        return []
    source = S3Folder.at(settings.landing_s3) / contract.name
    folder = get_set_folder(settings, contract)
    try:
        with ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(folder / ".s3.lock", wait_s=0))
            except TimeoutError:
                log.info("deliveries of %s are being fetched by another process", contract.name)
                return []
            return _fetch_all(client, settings, contract, source, folder)
    except OSError as error:
        fix = "Make room, or set LAKESHARE_LANDING_DIR to a folder that can be written."
        raise DeliveryError(str(source), f"cannot be copied to {folder}: {error.strerror}", fix) from error


def _fetch_all(
    client: Any, settings: LakeSettings, contract: SetContract, source: S3Folder, folder: Path
) -> list[str]:
    fetched: list[str] = []
    refused: list[DeliveryError] = []
    # Keys are in order, so that only one partition is in memory.
    inside = (found for found in list_objects(client, source) if "/" in found.name)
    for partition, objects in groupby(inside, key=lambda found: found.name.partition("/")[0]):
        if not contract.is_partition(partition):
            log.warning("%s%s is no partition of set %s and is ignored", source, partition, contract.name)
            continue
        try:
            delivery = _make_delivery(source / partition, partition, objects)
            if not delivery.is_complete(settings.quiet_s) or _is_fetched(delivery, folder / partition):
                continue
            _fetch(client, delivery, folder)
        except StoreError:
            raise  # the others would be refused as well, each after its attempts
        except DeliveryError as error:
            refused.append(error)
            continue
        fetched.append(partition)
    if refused:
        raise DeliveriesRefused(refused)
    return fetched


def _make_delivery(folder: S3Folder, partition: str, objects: Iterable[S3Object]) -> S3Delivery:
    files = []
    for found in objects:
        name = found.key.removeprefix(folder.prefix)
        if not name or (not is_data(name) and name not in MARKERS and not name.startswith("..")):
            continue  # the folder itself as consoles create it, or a sender's own files
        is_long = len(name.encode()) > NAME_BYTES
        if is_long or name.startswith("..") or any(sign in "/\\" or not sign.isprintable() for sign in name):
            reason = f"the name {name!r} is no plain file name that stays in its folder"
            fix = f"Deliver plain files right below the partition, with names of at most {NAME_BYTES} bytes."
            raise DeliveryError(f"s3://{folder.bucket}/{found.key!r}", reason, fix)
        files.append(replace(found, name=name))
    rank = {name: number for number, name in enumerate(MARKERS, 1)}
    return S3Delivery(folder, partition, tuple(sorted(files, key=lambda f: (rank.get(f.name, 0), f.name))))


def _is_fetched(delivery: S3Delivery, path: Path) -> bool:
    if path.is_symlink():
        return False
    try:
        return bool(json.loads((path / RECORD).read_text(encoding="utf-8")) == delivery.record)
    except (FileNotFoundError, ValueError):
        return False


def _fetch(client: Any, delivery: S3Delivery, folder: Path) -> None:
    """Copies a delivery into a scratch folder, checks that it is unchanged, and renames the folder."""
    started_at = time.monotonic()
    source, path = delivery.folder, folder / delivery.partition
    log.info("%s: fetching %d files, %d bytes", source, len(delivery.files), delivery.size_bytes)
    scratch = _make_scratch(delivery, path)
    for file in delivery.files:
        if not (scratch / file.name).exists():
            copy_object(client, source, file, scratch / file.name)
    now = _make_delivery(source, delivery.partition, list_objects(client, source))
    for name in sorted({*now.record, *delivery.record}):
        if now.record.get(name) != delivery.record.get(name):
            raise make_changed_error(source, f"{source.prefix}{name}")
    (scratch / RECORD).write_text(json.dumps(delivery.record), encoding="utf-8")
    if not any(file.name in MARKERS for file in delivery.files):
        (scratch / SUCCESS).touch()  # its quiet time in S3 has passed
    _replace_folder(path, scratch)
    log.info("%s: fetched in %.1f s", source, time.monotonic() - started_at)


def _make_scratch(delivery: S3Delivery, path: Path) -> Path:
    """Returns the hidden folder of exactly this content; complete files of an interrupted fetch stay in it."""
    digest = hashlib.sha256(json.dumps(delivery.record, sort_keys=True).encode()).hexdigest()
    scratch = path.with_name(f".s3-{delivery.partition}-{digest[:16]}")
    _restore_moved(_get_old_path(path), path)
    for other in path.parent.glob(f".s3-{delivery.partition}-*"):
        if other.is_symlink():
            other.unlink()  # it could lead outside of landing
        elif other != scratch:
            shutil.rmtree(other)
    scratch.mkdir(parents=True, exist_ok=True)
    return scratch


def _replace_folder(path: Path, new: Path) -> None:
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
    if old.exists() and not path.exists():
        old.rename(path)


def _get_old_path(path: Path) -> Path:
    return path.with_name(f".s3-{path.name}-old")
