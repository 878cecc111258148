"""All stores behind one interface, what a store lets a writer do, and sessions that sign the files of a response.

A session signs Arrow columns of locations, thousands in one call; signing blocks and belongs into a thread.
"""

import errno
import io
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from stat import S_ISDIR, S_ISREG
from threading import Lock
from typing import Any, BinaryIO
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import BadRequest, Denied, StoreDenied, StoreMissing, Unavailable, Unserveable
from lakeshare_server.locations import LOCAL, S3, STORE_KINDS, ParsedLocation, parse_location
from lakeshare_server.outbound import Services
from lakeshare_server.settings import ServerSettings, StoreSettings, make_private
from lakeshare_server.storage import location_columns, remote, s3
from lakeshare_server.storage.remote import (
    LocalFolders,
    LocalSigner,
    RootSigner,
    StoreAccess,
    StoredObject,
    TemporaryCredentials,
)
from lakeshare_server.storage.s3 import S3Access

NO_SUCH_NAME = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
UNFINISHED = ".lakeshare-unfinished-"
"""Begins the names of files that are being written."""

_log = logging.getLogger(__name__)


class LocalStore:
    def read(self, place: ParsedLocation) -> bytes:
        with _translate_errors(place.key):
            return Path(place.key).read_bytes()

    def open(self, place: ParsedLocation) -> Any:
        with _translate_errors(place.key):
            if Path(place.key).is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return pa.OSFile(os.fsencode(place.key))

    def list(self, prefix: ParsedLocation, after: ParsedLocation | None) -> Iterator[StoredObject]:
        root = os.fsencode(prefix.key.rstrip("/"))
        with _translate_errors(prefix.key):
            for path, found in walk_files(root, os.fsencode(after.key) if after else b""):
                yield _described(os.fsdecode(path), found)

    def folders(self, prefix: ParsedLocation) -> Sequence[str]:
        with _translate_errors(prefix.key), os.scandir(prefix.key.rstrip("/") or "/") as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def head(self, place: ParsedLocation) -> StoredObject | None:
        try:
            with _translate_errors(place.key):
                found = Path(place.key).stat()
        except StoreMissing:
            return None
        return None if S_ISDIR(found.st_mode) else _described(place.key, found)

    def write(self, place: ParsedLocation, content: bytes, *, if_absent: bool) -> bool:
        with _translate_errors(place.key, "write"):
            return write_file(Path(place.key), content, if_absent=if_absent, mode=0o600)

    def upload(self, path: Path, place: ParsedLocation) -> None:
        with _translate_errors(place.key, "write"), path.open("rb") as source:
            write_file(Path(place.key), source, if_absent=False, mode=0o600)

    def download(self, place: ParsedLocation, path: Path) -> None:
        with _translate_errors(place.key):
            shutil.copyfile(place.key, path)

    def delete(self, place: ParsedLocation) -> None:
        with suppress(StoreMissing), _translate_errors(place.key, "delete"):
            Path(place.key).unlink()

    def delete_folder(self, prefix: ParsedLocation) -> None:
        with suppress(StoreMissing), _translate_errors(prefix.key, "delete"):
            shutil.rmtree(prefix.key)


def write_file(path: Path, content: bytes | BinaryIO, *, if_absent: bool, mode: int = 0o666) -> bool:
    """Writes a file to disk under another name, then renames it; returns False if `if_absent` and the name exists."""
    make_private(path.parent)
    unfinished = path.with_name(f"{UNFINISHED}{uuid4().hex}")
    try:
        with os.fdopen(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
            shutil.copyfileobj(io.BytesIO(content) if isinstance(content, bytes) else content, file)
            file.flush()
            os.fsync(file.fileno())
        return move_into_place(unfinished, path, if_absent=if_absent)
    finally:
        unfinished.unlink(missing_ok=True)


def move_into_place(unfinished: Path, path: Path, *, if_absent: bool) -> bool:
    """Renames a written file; returns False, without renaming, if `if_absent` and the name exists."""
    if not if_absent:
        unfinished.replace(path)
        return True
    try:
        os.link(unfinished, path)
    except FileExistsError:
        return False
    return True


KEY_BYTES = 32
KEY_FILE = "signing.key"


def load_key(settings: ServerSettings) -> bytes:
    """Returns the signing key."""
    if settings.signing_key is not None:
        key = settings.signing_key.get_secret_value().encode()
        # A guessed key gives access to every file that the server can read.
        if len(key) < KEY_BYTES:
            hint = (
                f"Give {KEY_BYTES} bytes or more (openssl rand -hex {KEY_BYTES}), or unset it: a key is made in the "
                "state folder."
            )
            raise BadRequest("LAKESHARE_SIGNING_KEY", f"{len(key)} bytes", hint)
        return key
    path = settings.state_dir / KEY_FILE
    try:
        if not path.exists():
            # Another process may make it first.
            write_file(path, secrets.token_bytes(KEY_BYTES), if_absent=True, mode=0o600)
        key = path.read_bytes()
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        what = f"the signing key {path} cannot be used: {error}"
        raise Unavailable(what, "Check the state folder.") from error
    if mode & 0o077 or len(key) < KEY_BYTES:
        what = f"the signing key {path} is too short or has mode {mode:o}"
        raise Unavailable(what, "Remove it, a new one is made; signed URLs that are out stop working.")
    if not settings.catalog_url.startswith("sqlite"):
        _log.warning(
            "LAKESHARE_SIGNING_KEY is not set, so that this host has a key of its own: other hosts on the database "
            "refuse its page tokens and access tokens. Give all hosts one key."
        )
    return key


def walk_files(
    folder: bytes, after: bytes = b"", above: tuple[tuple[int, int], ...] = ()
) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yields regular files below `folder` with a path greater than `after`, in order of path, without unfinished ones.

    Links are followed, but not to a folder above.
    """
    found = _stat(folder or b"/")
    if found is None or (identity := (found.st_dev, found.st_ino)) in above:  # a link to a folder above
        return
    try:
        with os.scandir(folder or b"/") as entries:
            # In key order, in which a folder's name has its slash: `a-b` comes before `a/b`.
            paths = sorted(
                folder + b"/" + entry.name + b"/" * entry.is_dir()
                for entry in entries
                if not entry.name.startswith(UNFINISHED.encode())
            )
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in paths:
        if path.endswith(b"/"):
            if after < path or after.startswith(path):
                yield from walk_files(path.rstrip(b"/"), after, (*above, identity))
        elif path > after and (status := _stat(path)) is not None and S_ISREG(status.st_mode):
            yield path, status


def _stat(path: bytes) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - pathlib takes no bytes
    except (FileNotFoundError, NotADirectoryError):
        return None


def _described(path: str, found: os.stat_result) -> StoredObject:
    etag = f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    return StoredObject(path, found.st_size, found.st_mtime_ns // 1_000_000, etag)


@contextmanager
def _translate_errors(path: str, request: str = "hand out") -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # a null byte, or text that no file system supports
        raise StoreMissing(path) from error
    except OSError as error:
        if error.errno in NO_SUCH_NAME:
            raise StoreMissing(path) from error
        if error.errno in NOT_ALLOWED:
            raise StoreDenied(path, request) from error
        what = "read" if request == "hand out" else "changed"
        raise Unavailable(f"{path} cannot be {what}: {error.strerror}", "Try again later.") from error


class Stores:
    """Reads, writes and deletes objects of every store by location; thread-safe.

    Methods raise StoreMissing or StoreDenied, Unserveable for an unsupported key, Unavailable for a passing failure,
    and BadRequest for an invalid location.
    """

    def __init__(self, settings: StoreSettings, services: Services | None = None) -> None:
        self.settings = settings
        self.services = services or Services(settings.outside_answer_s)
        self.s3 = S3Access(settings, self.services)
        self._access: dict[str, StoreAccess] = {S3: self.s3}
        self._opened: dict[str, LocalStore | remote.RemoteStore] = {"": LocalStore()}
        # One lock per root: slow credentials of one store do not delay others.
        self._opening: dict[str, Lock] = {}

    def read(self, location: str) -> bytes:
        place = self.place(location)
        return self._store(place).read(place)

    def open(self, location: str) -> Any:
        """Opens the object as a pyarrow file that seeks and reads by range."""
        place = self.place(location)
        return self._store(place).open(place)

    def list(self, prefix_location: str, after: str | None = None) -> Iterator[StoredObject]:
        """Lists every object below `prefix_location/`, in key order, starting after the location `after`.

        A store with folders lists in its own order: give an `after` only among files of one folder.
        """
        prefix = self.place(prefix_location)
        return self._store(prefix).list(prefix, self.place(after) if after else None)

    def folders(self, prefix_location: str, *, missing_ok: bool = False) -> Sequence[str]:
        """Returns the sorted names of the folders directly below `prefix_location/`.

        Raises:
            StoreMissing: there is no such folder, and not `missing_ok`; object stores have none, and return nothing.
        """
        prefix = self.place(prefix_location)
        try:
            return self._store(prefix).folders(prefix)
        except StoreMissing:
            if not missing_ok:
                raise
            return []

    def written_between(self, prefix_location: str) -> tuple[int, int] | None:
        """Returns when the oldest and newest object below `prefix_location/` were written, in ms; None if none is.

        Empty objects do not count: some tools write them for folders.
        """
        times_ms = [found.modified_ms for found in self.list(prefix_location) if found.size_bytes]
        return (min(times_ms), max(times_ms)) if times_ms else None

    def head(self, location: str) -> StoredObject | None:
        place = self.place(location)
        return self._store(place).head(place)

    def write(self, location: str, content: bytes, *, if_absent: bool = False) -> bool:
        """Writes an object whole or not at all; returns False, and writes nothing, if `if_absent` and it exists."""
        place = self.place(location)
        return self._store(place).write(place, content, if_absent=if_absent)

    def upload(self, path: Path, location: str) -> None:
        """Writes an object from a file, in parts if it is large."""
        place = self.place(location)
        self._store(place).upload(path, place)

    def download(self, location: str, path: Path) -> None:
        """Writes an object to a file, in pieces if it is large; after an error the file may have a part of it."""
        place = self.place(location)
        self._store(place).download(place, path)

    def delete(self, location: str) -> None:
        """Deletes an object; succeeds if it does not exist."""
        place = self.place(location)
        self._store(place).delete(place)

    def delete_folder(self, prefix_location: str) -> None:
        """Deletes every object below `prefix_location/`."""
        prefix = self.place(prefix_location)
        self._store(prefix).delete_folder(prefix)

    def place(self, location: str) -> ParsedLocation:
        """Parses a location; its `location` is normalised."""
        return parse_location(location, self.settings.azure_account)

    def services_of(self, location: str) -> tuple[str, ...]:
        """Returns the service name of a location's store; nothing for the local disk."""
        place = self.place(location)
        return () if place.kind == LOCAL else (place.root,)

    def access(self, place: ParsedLocation) -> StoreAccess:
        """Returns the access to an object store."""
        access = self._access.get(place.kind)
        if access is None:
            create: Callable[..., StoreAccess] = resolve_name(STORE_KINDS[place.kind].access)
            # Of two threads, both keep the first: it caches credentials and their locks.
            access = self._access.setdefault(place.kind, create(self.settings, self.services))
        return access

    def _store(self, place: ParsedLocation) -> LocalStore | remote.RemoteStore:
        opened = self._opened.get(place.root)
        if opened is None:
            with self._opening.setdefault(place.root, Lock()):
                opened = self._opened.get(place.root)
                if opened is None:
                    opened = self._opened[place.root] = self.access(place).open(place)
        return opened


MAX_SKEW_S = 60
RIGHTS = (
    "reading, writing, listing and deleting, in S3 s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket, in "
    "Google Cloud Storage roles/storage.objectUser, in Azure Storage Blob Data Contributor"
)
ONE_WRITER = (
    "Use a store that refuses a second write with `If-None-Match: *`, as AWS, MinIO, Ceph and SeaweedFS do."
)


@dataclass(frozen=True)
class Shortcoming:
    """What a store does not do for a writer, and the remedy."""

    what: str
    remedy: str


def find_shortcoming(stores: Stores, location: str) -> Shortcoming | None:
    """Writes, lists, reads and deletes an object in a folder of its own below `location`."""
    folder = _make_folder(location)
    probe, written_at_s = f"{folder}/object", time.time()
    try:
        stores.write(probe, b"1")
        found = next(iter(stores.list(folder)), None)
        stores.read(probe)
        stores.delete_folder(folder)
        is_exclusive = takes_first_write(stores, location)
    except StoreMissing:
        return Shortcoming(
            f"{location} is in no bucket that exists", "Create the bucket, or correct the location."
        )
    except StoreDenied as error:
        return Shortcoming(str(error).rstrip("."), f"Allow these credentials {RIGHTS}.")
    except Unavailable as error:
        return Shortcoming(error.what, error.fix)
    if found is None:
        what = f"the store of {location} does not list an object that was written just before"
        return Shortcoming(what, "Use a store whose listings are consistent: tables are read by them.")
    skew_s = abs(found.modified_ms / 1000 - written_at_s)
    if skew_s > MAX_SKEW_S:
        what = f"the clock of the store of {location} differs by {skew_s:.0f} s from this host's"
        return Shortcoming(what, "Set both clocks by NTP: ages of files and signatures depend on them.")
    if not is_exclusive:
        what = f"the store of {location} lets a second write replace what must be written once"
        return Shortcoming(what, f"{ONE_WRITER} Commits of Delta tables overwrite each other otherwise.")
    return None


def takes_first_write(stores: Stores, location: str) -> bool:
    """Whether of two writes of an object that must not exist the store refuses the second.

    Raises StoreDenied or Unavailable: the store does not let the object be written, or does not respond.
    """
    folder = _make_folder(location)
    try:
        first = stores.write(f"{folder}/object", b"1", if_absent=True)
        return first and not stores.write(f"{folder}/object", b"2", if_absent=True)
    finally:
        stores.delete_folder(folder)


def _make_folder(location: str) -> str:
    return f"{location}/.lakeshare-probe-{uuid4().hex}"


LOCAL_REFUSAL = "the table is on the server's own disk, which only the server hands out"


class SigningSession:
    """Signs the URLs of one response; `expires_at_ms` is the earliest end.

    `slow_store` names a store whose URLs take more than about a microsecond each (RSA, or signed by Google), if any.
    """

    def __init__(self, signers: dict[str, RootSigner], stores: Stores, *, slow_store: str | None) -> None:
        self.slow_store = slow_store
        self._signers = signers
        self._stores = stores
        self.expires_at_ms = min(signer.expires_at_ms for signer in signers.values())

    def sign(self, paths: pa.StringArray) -> pa.StringArray:
        """Returns a URL for each location, in order."""
        if len(self._signers) == 1:
            root, signer = next(iter(self._signers.items()))
            if pc.all(pc.starts_with(paths, f"{root}/"), min_count=0).as_py():
                names, start = location_columns.byte_strings(paths), len(root.encode()) + 1
                return signer.sign([name[start:] for name in names] if root else names)
        return self._sign_scattered(paths)

    def _sign_scattered(self, paths: pa.StringArray) -> pa.StringArray:
        places = [self._stores.place(path) for path in paths.to_pylist()]
        numbers_by_root: dict[str, list[int]] = {}
        for number, place in enumerate(places):
            numbers_by_root.setdefault(place.root, []).append(number)
        for root, numbers in numbers_by_root.items():
            if root not in self._signers:
                location = places[numbers[0]].location
                reason = f"{location} lies in a store that this table is not known to use."
                raise Unserveable(reason, "Provider: follow the table anew.", places=[location])
        return location_columns.join_groups(
            numbers_by_root,
            lambda root, numbers: self._signers[root].sign([places[n].key.encode() for n in numbers]),
        )


class Signers:
    """Makes signing sessions and temporary credentials for all kinds of stores; thread-safe."""

    def __init__(self, settings: StoreSettings, local: LocalSigner, stores: Stores | None = None) -> None:
        self._local = local
        self._stores = stores or Stores(settings)

    def session(self, roots: Sequence[str], issue: Callable[[str], str], life_s: int) -> SigningSession:
        """Returns a session for files below the given roots; no URL outlives `life_s` or its credentials.

        Roots of the local disk are folders; `issue` returns the ticket for URLs of files below a folder.

        Raises:
            Unserveable: the server's credentials read a store, but cannot sign for it.
            Unavailable: the credentials of a store are not available now.
        """
        moment_s = remote.now_s()
        places = [self._stores.place(root or "/") for root in (roots or [""])]
        folders = [place.key for place in places if place.kind == LOCAL]
        remote_roots = {
            place.root: (place, self._stores.access(place)) for place in places if place.kind != LOCAL
        }
        signers = {
            root: access.signer(place, life_s, moment_s) for root, (place, access) in remote_roots.items()
        }
        if folders:
            ends_ms = (moment_s + life_s) * 1000
            signers[""] = LocalFolders(self._local, issue, folders, ends_ms)
        slow = [root for root, (_, access) in remote_roots.items() if access.signs_slowly]
        return SigningSession(signers, self._stores, slow_store=slow[0] if slow else None)

    def can_vend(self, location: str) -> str | None:
        """Returns why no temporary credentials are available for a table's location; None if they are.

        Raises:
            Unavailable: a service that decides it does not respond.
        """
        place = self._stores.place(location)
        if place.kind == LOCAL:
            return LOCAL_REFUSAL
        try:
            return self._stores.access(place).refusal(place)
        except Unserveable as error:
            return str(error)

    def vend(self, location: str, life_s: int) -> TemporaryCredentials:
        """Returns temporary credentials that read below `location` only.

        Raises:
            Unserveable: this store, or these credentials, issue none.
            Unavailable: the store issues none now.
        """
        refusal = self.can_vend(location)
        if refusal:
            reason = f"No temporary credentials for {location}: {refusal}."
            raise Unserveable(reason, "Read the files by their URLs.", places=[location])
        place = self._stores.place(location)
        return self._stores.access(place).vend(place, life_s, remote.now_s())

    def client_config(self, location: str) -> Mapping[str, str]:
        """Returns the properties by which an Iceberg client finds a location's store."""
        place = self._stores.place(location)
        return self._stores.s3.client_config(place) if place.kind == S3 else {}

    def s3_read(self, location: str, method: str, uri: str) -> str:
        """Returns the location that a client's request reads, in the bucket of the table at `location`."""
        place = self._stores.place(location)
        if place.kind != S3:
            raise Denied("Requests are signed for tables in S3 only.")
        key = s3.read_key(self._stores.s3.bucket(place.bucket, public=True), method, uri)
        return f"{place.root}/{key}"

    def signed_read(self, location: str, method: str, headers: s3.Headers) -> s3.SignedRequest:
        """Signs a read of this S3 object with the server's keys."""
        place = self._stores.place(location)
        bucket = self._stores.s3.bucket(place.bucket, public=True)
        return s3.signed_request(bucket, self._stores.s3.keys(), method, place.key, headers)
