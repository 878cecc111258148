"""The landing area, `<landing>/<set>/<partition>/<files>`, on the local disk or in an object store.

It lists, identifies and opens files where they are. When a delivery is complete is decided in `delivery.py`.
"""

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Protocol, cast

import pyarrow as pa

from lakeshare_pipelines.errors import DeliveryError, StoreError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.errors import BadRequest, StoreDenied, StoreMissing, Unavailable, Unserveable
from lakeshare_server.storage import Stores, s3
from lakeshare_server.storage.remote import StoredObject

log = logging.getLogger(__name__)

SUCCESS = "_SUCCESS"
MANIFEST = "_manifest.json"
MARKERS = (SUCCESS, MANIFEST)
NO_LINKS = "Deliver the files themselves: nothing outside the landing folder is read."
PLAIN_FILES = "Deliver plain files, without folders or dead links."
NO_FILE = "is not a file"
OUTSIDE = "is a link to a place outside the landing folder"

RACY_S = 2.0
CACHE_SIZE = 20_000
PIECE_BYTES = 8 << 20

_digests: dict[tuple[object, ...], str] = {}


@dataclass(frozen=True)
class DeliveredFile:
    """A file of a delivery as it was listed.

    In a store, `etag` and `modified_ms` change with the content; on the local disk both are empty. `problem` is the
    reason why it is not read, empty for plain files.
    """

    location: str
    name: str  # below the folder of the partition
    size_bytes: int
    etag: str = ""
    modified_ms: int = 0
    problem: str = ""


@dataclass(frozen=True)
class PartitionListing:
    """The content of the folder of one partition: data files in order of name, markers by name, the last change."""

    location: str
    files: tuple[DeliveredFile, ...]
    markers: Mapping[str, DeliveredFile]
    changed_at: float  # seconds since 1970


class Landing(Protocol):
    """A landing area. Methods raise StoreError if its store refuses a request or does not respond."""

    root: str

    def find_partitions(self, set_name: str, depth: int = 1) -> Mapping[str, PartitionListing | None]:
        """Returns the folders of partitions by name, as `2024-01-01/eu` at depth 2.

        None for those that are to be listed by `list_partition`. A folder with files above this depth is among them.
        """

    def list_partition(self, set_name: str, partition: str) -> PartitionListing:
        """Lists one partition.

        Raises:
            FileNotFoundError: there is no such folder.
            OSError: it cannot be read.
            DeliveryError: it is a link to a folder outside of landing, or has names that cannot be listed.
        """

    def compute_digest(self, files: Sequence[DeliveredFile]) -> str:
        """Returns the identity of the names and contents of files."""

    def compute_sha256(self, file: DeliveredFile) -> str:
        """Returns the SHA-256 of the bytes of a file; kept while the file is the same."""

    def open(self, file: DeliveredFile) -> BinaryIO:
        """Opens a file, which can seek, where it is."""

    def stream(self, file: DeliveredFile) -> BinaryIO:
        """Opens a file to read it from its beginning to its end, in large pieces."""

    def translate_errors(self, file: DeliveredFile) -> AbstractContextManager[None]:
        """Raises the errors of reading a file in the block as DeliveryErrors, except those of the local disk."""

    def replace(self, set_name: str, partition: str, contents: Mapping[str, bytes | Path]) -> None:
        """Writes a whole delivery as a sender does, `_SUCCESS` last; removes the earlier one. Paths are copied."""


def open_landing(settings: LakeSettings, stores: Stores | None = None) -> Landing:
    """Opens the landing area of the settings, with `stores` or with stores of its own."""
    if settings.landing_root.startswith("/"):
        return FolderLanding(settings.landing_root)
    return StoreLanding(settings.landing_root, stores or Stores(settings.landing_stores))


def is_data(name: str) -> bool:
    """Whether a name is that of a data file: markers and partial files begin with `_` or a dot."""
    return not name.startswith(("_", "."))


def _combine(lines: Sequence[tuple[str, str]]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(lines):
        digest.update(f"{len(name.encode())}:{name}:{content}\n".encode())
    return digest.hexdigest()


def _keep(key: tuple[object, ...], digest: str) -> str:
    if len(_digests) >= CACHE_SIZE:
        _digests.clear()
    _digests[key] = digest
    return digest


class FolderLanding:
    """A landing area on the local disk. Links are followed within it only; its own folder may be a link."""

    def __init__(self, root: str) -> None:
        self.root = root

    def find_partitions(self, set_name: str, depth: int = 1) -> Mapping[str, PartitionListing | None]:
        folder = self.find_set_folder(set_name)
        return dict.fromkeys(self._walk(folder, "", depth)) if folder.is_dir() else {}

    def _walk(self, folder: Path, above: str, depth: int) -> Iterator[str]:
        for path in folder.iterdir():
            if is_data(path.name) and path.is_dir():
                name = f"{above}{path.name}"
                # What a link outside leads to is not listed: `list_partition` refuses it.
                if depth == 1 or not self._is_inside(path) or any(map(_is_data_file, path.iterdir())):
                    yield name
                else:
                    yield from self._walk(path, f"{name}/", depth - 1)

    def list_partition(self, set_name: str, partition: str) -> PartitionListing:
        path = self.find_set_folder(set_name) / partition
        if not self._is_inside(path):
            raise DeliveryError(
                f"{set_name}/{partition}",
                f"{partition} is a link to a folder outside the landing folder",
                NO_LINKS,
            )
        names = sorted(entry.name for entry in path.iterdir())
        files = tuple(self._describe(path / name) for name in names if is_data(name))
        markers = {
            name: self._describe(path / name)
            for name in MARKERS
            if (path / name).exists() or not self._is_inside(path / name)
        }
        # Copies often keep the sender's mtime; ctime is the time of arrival.
        stats = [entry.lstat() for entry in (path, *(path / file.name for file in files))]
        changed_at = max(max(stat.st_mtime, stat.st_ctime) for stat in stats)
        return PartitionListing(str(path), files, markers, changed_at)

    def compute_digest(self, files: Sequence[DeliveredFile]) -> str:
        """Returns the SHA-256 over the names and bytes of files."""
        return _combine([(file.name, self.compute_sha256(file)) for file in files if not file.problem])

    def compute_sha256(self, file: DeliveredFile) -> str:
        """Returns the SHA-256 of a file; cached while size, times and inode stay the same."""
        path = Path(file.location)
        stat = path.stat()
        key = _key(path, stat)
        known = _digests.get(key)
        if known is not None:
            return known
        with path.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
            after = os.fstat(opened.fileno())
        is_settled = time.time() - max(stat.st_mtime, stat.st_ctime) > RACY_S
        return _keep(key, found) if is_settled and _key(path, after) == key else found

    def open(self, file: DeliveredFile) -> BinaryIO:
        return Path(file.location).open("rb")

    def stream(self, file: DeliveredFile) -> BinaryIO:
        return self.open(file)

    @contextmanager
    def translate_errors(self, file: DeliveredFile) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise make_changed_error(_get_delivery(file)) from error

    def replace(self, set_name: str, partition: str, contents: Mapping[str, bytes | Path]) -> None:
        """Readers see the earlier delivery or the new one, or for a moment none."""
        target = self.find_set_folder(set_name) / partition
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
            new, old = Path(scratch) / "new", Path(scratch) / "old"
            new.mkdir()
            for name, content in contents.items():
                if isinstance(content, bytes):
                    (new / name).write_bytes(content)
                else:
                    shutil.copyfile(content, new / name)
            (new / SUCCESS).touch()
            if target.exists():
                target.rename(old)
            new.rename(target)

    def find_set_folder(self, set_name: str) -> Path:
        """Returns the folder of a set's deliveries.

        Raises:
            DeliveryError: it is a link to a folder outside of landing.
        """
        folder = Path(self.root) / set_name
        if not self._is_inside(folder):
            fix = "Make it a folder, or mount the other one there; LAKESHARE_LANDING itself may be a link."
            raise DeliveryError(set_name, f"{folder} is a link to a folder outside the landing folder", fix)
        return folder

    def _describe(self, path: Path) -> DeliveredFile:
        problem = "" if self._is_inside(path) else OUTSIDE
        if not problem and path.is_file():
            return DeliveredFile(str(path), path.name, path.stat().st_size)
        return DeliveredFile(str(path), path.name, path.lstat().st_size, problem=problem or NO_FILE)

    def _is_inside(self, path: Path) -> bool:
        """Whether a path, with all links followed, is in the landing folder."""
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.root))


def _is_data_file(path: Path) -> bool:
    return is_data(path.name) and path.is_file()


def _key(path: Path, stat: os.stat_result) -> tuple[object, ...]:
    return str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


CREDENTIALS = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine a role."
CHECK_ENDPOINT = "Run again when it does; check LAKESHARE_LANDING_S3_ENDPOINT and the network."
CHECK_RIGHTS = "Allow these credentials to list and read there (in S3 s3:ListBucket and s3:GetObject)."
REMEDIES = {
    **dict.fromkeys(s3.REFUSED_KEYS, CREDENTIALS),
    **dict.fromkeys(s3.OTHER_REGION, "Set LAKESHARE_LANDING_S3_REGION to it."),
}


class StoreLanding:
    """A landing area in an object store, read in place. Contents are identified by their ETags, without a download."""

    def __init__(self, root: str, stores: Stores) -> None:
        self.root, self._stores = root, stores

    def find_partitions(self, set_name: str, depth: int = 1) -> Mapping[str, PartitionListing | None]:
        folder = f"{self.root}/{set_name}"
        with self._translate(folder):
            try:
                found = list(self._stores.list(folder))
            except Unserveable:
                # A key with an odd segment in one partition keeps no other from being listed.
                return dict.fromkeys(self._list_folders(folder, depth))
        partitions: dict[str, list[StoredObject]] = {}
        for entry in found:
            *folders, _ = entry.location.removeprefix(f"{folder}/").split("/")
            if folders and all(map(is_data, folders[:depth])):
                partitions.setdefault("/".join(folders[:depth]), []).append(entry)
        return {name: _list_objects(f"{folder}/{name}", objects) for name, objects in partitions.items()}

    def _list_folders(self, folder: str, depth: int) -> list[str]:
        names = list(self._stores.folders(folder))
        if depth == 1:
            return names
        return [
            f"{name}/{below}" for name in names for below in self._list_folders(f"{folder}/{name}", depth - 1)
        ]

    def list_partition(self, set_name: str, partition: str) -> PartitionListing:
        folder = f"{self.root}/{set_name}/{partition}"
        with self._translate(folder):
            found = list(self._stores.list(folder))
        if not found:
            raise FileNotFoundError(folder)
        return _list_objects(folder, found)

    def compute_digest(self, files: Sequence[DeliveredFile]) -> str:
        """Returns the SHA-256 over names, sizes and ETags of files."""
        lines = [(file.name, f"{file.size_bytes}:{file.etag}") for file in files if not file.problem]
        return _combine(lines)

    def compute_sha256(self, file: DeliveredFile) -> str:
        """Returns the SHA-256 of a file, which is read through for it; cached while the listed object is the same."""
        key = file.location, file.size_bytes, file.etag, file.modified_ms
        known = _digests.get(key)
        if known is not None:
            return known
        digest = hashlib.sha256()
        with self.translate_errors(file), self.stream(file) as opened:
            while piece := opened.read(PIECE_BYTES):
                digest.update(piece)
        return _keep(key, digest.hexdigest())

    def open(self, file: DeliveredFile) -> BinaryIO:
        # Each request is a range, and is refused by the store once the object has another ETag.
        return cast("BinaryIO", self._stores.open(file.location))

    def stream(self, file: DeliveredFile) -> BinaryIO:
        return cast("BinaryIO", pa.BufferedInputStream(self._stores.open(file.location), PIECE_BYTES))

    @contextmanager
    def translate_errors(self, file: DeliveredFile) -> Iterator[None]:
        try:
            with self._translate(file.location):
                yield
        except StoreError as error:
            if isinstance(error.__cause__, StoreMissing):
                raise make_changed_error(_get_delivery(file)) from error
            raise

    def replace(self, set_name: str, partition: str, contents: Mapping[str, bytes | Path]) -> None:
        folder = f"{self.root}/{set_name}/{partition}"
        with self._translate(folder):
            self._stores.delete(f"{folder}/{SUCCESS}")
            self._stores.delete_folder(folder)
            for name, content in contents.items():
                whole = content if isinstance(content, bytes) else content.read_bytes()
                self._stores.write(f"{folder}/{name}", whole)
            self._stores.write(f"{folder}/{SUCCESS}", b"")

    @contextmanager
    def _translate(self, location: str) -> Iterator[None]:
        try:
            yield
        except s3.NoKeys as error:
            raise StoreError(
                location, f"there are no usable credentials: {error.what}", CREDENTIALS
            ) from error
        except Unavailable as error:
            raise StoreError(location, f"the store did not answer: {error.what}", CHECK_ENDPOINT) from error
        except StoreDenied as error:
            code = error.code or ""
            reason = s3.REASONS.get(code, "access is denied")
            raise StoreError(location, reason, REMEDIES.get(code, CHECK_RIGHTS)) from error
        except StoreMissing as error:
            fix = "Create it, or correct LAKESHARE_LANDING."
            raise StoreError(location, "there is no such bucket", fix) from error
        except Unserveable as error:
            fix = f"Deliver plain files right below the partition. {error.fix}"
            raise DeliveryError(
                location, error.reason.removeprefix(f"{location} ").rstrip("."), fix
            ) from error
        except BadRequest as error:
            raise StoreError(location, str(error), "Correct LAKESHARE_LANDING.") from error


def _list_objects(folder: str, objects: Sequence[StoredObject]) -> PartitionListing:
    files, markers, changed_ms = [], {}, 0
    for found in objects:
        name = found.location.removeprefix(f"{folder}/")
        # Without an ETag the time of the last change identifies a content.
        etag = found.etag or str(found.modified_ms)
        file = DeliveredFile(found.location, name, found.size_bytes, etag, found.modified_ms)
        if name in MARKERS:
            markers[name] = file
        elif is_data(name):
            files.append(replace(file, problem=NO_FILE) if "/" in name else file)
            changed_ms = max(changed_ms, found.modified_ms)
    return PartitionListing(
        folder, tuple(sorted(files, key=lambda file: file.location)), markers, changed_ms / 1000
    )


def _get_delivery(file: DeliveredFile) -> str:
    return "/".join(file.location.removesuffix(f"/{file.name}").split("/")[-2:])


def make_changed_error(delivery: str) -> DeliveryError:
    fix = "Nothing of it was published. Let the sender finish, then run the partition again."
    return DeliveryError(delivery, "changed while it was read", fix)
