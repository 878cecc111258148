"""Signing the files of an answer: one session, one end for all its URLs, any number of stores.

A session is made for each answer; it signs Arrow columns of locations, thousands in one call. Nothing here is quick
enough for an event loop: call it from a thread.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR
from threading import Lock
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Denied, StoreDenied, StoreMissing, Unavailable, Unserveable
from lakeshare_server.outbound import Services
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage.azure import AzureAccess, AzureUrls, AzureVendor
from lakeshare_server.storage.gcs import GcsAccess, GcsUrls, GcsVendor
from lakeshare_server.storage.locations import (
    AZURE,
    GCS,
    LOCAL,
    S3,
    ParsedLocation,
    byte_strings,
    parse_location,
)
from lakeshare_server.storage.remote import (
    LocalFolders,
    LocalSigner,
    Store,
    StoredObject,
    TemporaryCredentials,
    Vendor,
    now_s,
)
from lakeshare_server.storage.s3 import (
    AWS,
    AwsKeys,
    Bucket,
    Headers,
    S3Access,
    S3Vendor,
    SignedRequest,
    read_key,
    s3_signer,
    signed_request,
)

NO_SUCH_NAME = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
NOT_ALLOWED = {errno.EACCES, errno.EPERM}


class LocalStore:
    """Files of this host."""

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
            yield from _listed(root, os.fsencode(after.key) if after else b"", ())

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


def _listed(folder: bytes, after: bytes, above: tuple[tuple[int, int], ...]) -> Iterator[StoredObject]:
    """Files below `folder` whose path is greater than `after`; `above` are the folders we came through."""
    here = _identity(folder)
    if here is None or here in above:  # a link to a folder above would never end
        return
    for path, is_folder in _in_key_order(folder):
        if is_folder:
            if after < path or after.startswith(path):
                yield from _listed(path.rstrip(b"/"), after, (*above, here))
        elif path > after and (found := _stat(path)) is not None:
            yield _described(os.fsdecode(path), found)


def _in_key_order(folder: bytes) -> list[tuple[bytes, bool]]:
    """The folder's entries; a folder's own name counts with its slash, so `a-b` comes before `a/b`."""
    try:
        with os.scandir(folder or b"/") as entries:
            found = [(folder + b"/" + entry.name, entry.is_dir()) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((path + b"/", True) if is_folder else (path, False) for path, is_folder in found)


def _identity(folder: bytes) -> tuple[int, int] | None:
    found = _stat(folder or b"/")
    return None if found is None else (found.st_dev, found.st_ino)


def _stat(path: bytes) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - pathlib takes no bytes
    except (FileNotFoundError, NotADirectoryError):
        return None


def _described(path: str, found: os.stat_result) -> StoredObject:
    etag = f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    return StoredObject(path, found.st_size, found.st_mtime_ns // 1_000_000, etag)


@contextmanager
def _translate_errors(path: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # a null byte, or text that no file system holds
        raise StoreMissing(path) from error
    except OSError as error:
        if error.errno in NO_SUCH_NAME:
            raise StoreMissing(path) from error
        if error.errno in NOT_ALLOWED:
            raise StoreDenied(path) from error
        raise Unavailable(f"{path} cannot be read: {error.strerror}", "Try again later.") from error


class Stores:
    """Reads objects of every store by location; may be used from many threads.

    Everything raises StoreMissing or StoreDenied, Unserveable for a key that the store cannot be asked for,
    Unavailable for what passes, and BadRequest for a location of an unknown spelling.
    """

    def __init__(self, settings: StoreSettings, services: Services | None = None) -> None:
        self.settings = settings
        self.services = services or Services(settings.outside_answer_s)
        self.s3 = S3Access(settings, self.services)
        self.gcs = GcsAccess(settings, self.services)
        self.azure = AzureAccess(settings, self.services)
        self._azure_account = settings.azure_account
        self._opened: dict[str, Store] = {"": LocalStore()}
        # One for each root: a vendor whose credentials take long keeps nobody from the others.
        self._opening: dict[str, Lock] = {}

    def read(self, location: str) -> bytes:
        """The whole object."""
        place = self.place(location)
        return self._store(place).read(place)

    def open(self, location: str) -> Any:
        """The object as a pyarrow file that seeks and reads by range."""
        place = self.place(location)
        return self._store(place).open(place)

    def list(self, prefix_location: str, after: str | None = None) -> Iterator[StoredObject]:
        """Every object below `prefix_location/`, in key order, starting after the location `after`.

        A store that keeps folders starts where its own order says: give an `after` only among files of one folder.
        """
        prefix = self.place(prefix_location)
        return self._store(prefix).list(prefix, self.place(after) if after else None)

    def folders(self, prefix_location: str) -> Sequence[str]:
        """The names of the folders right below `prefix_location/`, in order."""
        prefix = self.place(prefix_location)
        return self._store(prefix).folders(prefix)

    def head(self, location: str) -> StoredObject | None:
        """The object's description, None when there is none."""
        place = self.place(location)
        return self._store(place).head(place)

    def place(self, location: str) -> ParsedLocation:
        """The location taken apart; its `location` is our spelling of it."""
        return parse_location(location, self._azure_account)

    def services_of(self, location: str) -> tuple[str, ...]:
        """The store of a location by its name as a service; none of a location on the local disk."""
        place = self.place(location)
        return () if place.kind == LOCAL else (place.root,)

    def _store(self, place: ParsedLocation) -> Store:
        opened = self._opened.get(place.root)
        if opened is None:
            with self._opening.setdefault(place.root, Lock()):
                opened = self._opened.get(place.root) or self._open(place)
                self._opened[place.root] = opened
        return opened

    def _open(self, place: ParsedLocation) -> Store:
        if place.kind == LOCAL:
            return self._opened[""]
        if place.kind == S3:
            return self.s3.open(place)
        return self.gcs.open(place) if place.kind == GCS else self.azure.open(place)


LOCAL_REFUSAL = "the table is on the server's own disk, which only the server hands out"


class RootSigner(Protocol):
    """Signs keys below one root; those of the local disk, whose root is empty, are whole paths."""

    @property
    def expires_at_ms(self) -> int:
        """When all its URLs end."""
        ...

    def sign(self, keys: list[bytes]) -> list[bytes]:
        """A URL for each key, in order."""
        ...


class SigningSession:
    """URLs of one answer; `expires_at_ms` is when the first of them ends.

    `slow_store` names the store whose URLs take more than about a microsecond each, being signed with RSA or by Google;
    None if there is none.
    """

    def __init__(self, signers: dict[str, RootSigner], stores: Stores, *, slow_store: str | None) -> None:
        self.slow_store = slow_store
        self._signers = signers
        self._stores = stores
        self.expires_at_ms = min(signer.expires_at_ms for signer in signers.values())

    def sign(self, paths: pa.StringArray) -> list[bytes]:
        """One URL for each location, in order.

        Raises:
            Unserveable: a location lies below none of the session's roots.
            Unavailable: the store's credentials cannot sign now.
        """
        if len(self._signers) == 1:
            root, signer = next(iter(self._signers.items()))
            if pc.all(pc.starts_with(paths, f"{root}/"), min_count=0).as_py():
                locations = byte_strings(paths)
                return signer.sign(_below(root, locations) if root else locations)
        return self._sign_scattered(paths)

    def _sign_scattered(self, paths: pa.StringArray) -> list[bytes]:
        urls = [b""] * len(paths)
        places = [self._stores.place(path) for path in paths.to_pylist()]
        at: dict[str, list[int]] = {}
        for number, place in enumerate(places):
            at.setdefault(place.root, []).append(number)
        for root, numbers in at.items():
            if root not in self._signers:
                location = places[numbers[0]].location
                raise Unserveable(
                    f"{location} lies in a store that this table is not known to use.",
                    "Provider: follow the table anew.",
                    places=[location],
                )
            keys = [places[number].key.encode() for number in numbers]
            for number, url in zip(numbers, self._signers[root].sign(keys), strict=True):
                urls[number] = url
        return urls


class Signers:
    """All the ways to sign, behind one door; made once, for many threads."""

    def __init__(self, settings: StoreSettings, local: LocalSigner, stores: Stores | None = None) -> None:
        self._settings = settings
        self._local = local
        self._stores = stores = stores or Stores(settings)
        self._gcs = GcsUrls(stores.gcs)
        self._azure = AzureUrls(stores.azure)
        self._vendors: dict[str, Vendor] = {
            S3: S3Vendor(stores.s3, settings),
            GCS: GcsVendor(stores.gcs),
            AZURE: AzureVendor(stores.azure, self._azure),
        }

    def session(self, roots: Sequence[str], issue: Callable[[str], str], life_s: int) -> SigningSession:
        """For files below the given roots of stores; no URL outlives `life_s` or what it is signed with.

        Roots of the server's own disk are folders; `issue` gives the ticket that URLs of files below one have.

        Raises:
            Unserveable: the server's credentials read a store, but cannot sign for it.
            Unavailable: the credentials of a store cannot be had now.
        """
        moment_s = now_s()
        places = [self._stores.place(root or "/") for root in (roots or [""])]
        folders = [place.key for place in places if place.kind == LOCAL]
        signers: dict[str, RootSigner] = {
            place.root: self._signer(place, life_s, moment_s) for place in places if place.kind != LOCAL
        }
        if folders:
            ends_ms = (moment_s + life_s) * 1000
            signers[""] = LocalFolders(self._local, issue, folders, ends_ms)
        slow = [place.root for place in places if place.kind == GCS and not self._settings.gcs_hmac_secret]
        return SigningSession(signers, self._stores, slow_store=slow[0] if slow else None)

    def can_vend(self, location: str) -> str | None:
        """Why no temporary credentials can be had for a table's location; None when they can.

        Raises:
            Unavailable: what tells is not there now.
        """
        place = self._stores.place(location)
        if place.kind == LOCAL:
            return LOCAL_REFUSAL
        try:
            return self._vendors[place.kind].refusal(place)
        except Unserveable as error:
            return str(error)

    def vend(self, location: str, life_s: int) -> TemporaryCredentials:
        """Temporary credentials that read below `location`, and nothing else.

        Raises:
            Unserveable: this store, or these credentials, issue none.
            Unavailable: the store issues none now.
        """
        refusal = self.can_vend(location)
        if refusal:
            raise Unserveable(
                f"No temporary credentials for {location}: {refusal}.",
                "Read the files by their URLs.",
                places=[location],
            )
        place = self._stores.place(location)
        return self._vendors[place.kind].vend(place, life_s, now_s())

    def s3_client_config(self, place: ParsedLocation) -> dict[str, str]:
        """Where an Iceberg client finds the bucket of a place in S3, in the names it knows.

        Raises:
            Unavailable: AWS does not tell now where the bucket is.
        """
        bucket = self._stores.s3.bucket(place.bucket, public=True)
        config = {"s3.region": bucket.region, "client.region": bucket.region}
        if not AWS.fullmatch(bucket.endpoint):
            config["s3.endpoint"] = bucket.endpoint
        config["s3.path-style-access"] = str(bucket.path_style).lower()
        return config

    def s3_read(self, location: str, method: str, uri: str) -> str:
        """Which location a client's request would read, in the bucket of the table at `location`.

        Raises:
            Denied: it is no plain read of this bucket.
        """
        place = self._stores.place(location)
        if place.kind != S3:
            raise Denied("Requests are signed for tables in S3 only.")
        key = read_key(self._stores.s3.bucket(place.bucket, public=True), method, uri)
        return f"{place.root}/{key}"

    def signed_read(self, location: str, method: str, headers: Headers) -> SignedRequest:
        """A read of this object of S3, signed with the server's keys.

        Raises:
            Unavailable: there are no keys now.
        """
        place = self._stores.place(location)
        bucket = self._stores.s3.bucket(place.bucket, public=True)
        return signed_request(bucket, self._stores.s3.keys(), method, place.key, headers)

    def _signer(self, place: ParsedLocation, life_s: int, moment_s: int) -> RootSigner:
        if place.kind == S3:
            bucket = self._stores.s3.bucket(place.bucket, public=True)
            payer = self._settings.s3_request_payer
            return s3_signer(bucket, self._stores.s3.keys(), life_s, moment_s, payer)
        if place.kind == GCS:
            return self._google_signer(place, life_s, moment_s)
        return self._azure.signer(place, life_s, moment_s)

    def _google_signer(self, place: ParsedLocation, life_s: int, moment_s: int) -> RootSigner:
        secret, key_id = self._settings.gcs_hmac_secret, self._settings.gcs_hmac_id
        if not (secret and key_id):
            return self._gcs.signer(place.bucket, life_s, moment_s)
        # Google takes S3's signatures with such a key.
        bucket = Bucket(place.bucket, "auto", self._stores.gcs.endpoint(public=True), path_style=True)
        return s3_signer(bucket, AwsKeys(key_id, secret.get_secret_value(), None, None), life_s, moment_s)


def _below(root: str, locations: list[bytes]) -> list[bytes]:
    start = len(root.encode()) + 1
    return [location[start:] for location in locations]
