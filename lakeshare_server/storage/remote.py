"""Stores: errors, object stores over obstore and signed URLs of the local disk."""

import hashlib
import hmac
import io
import logging
import os
import posixpath
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from urllib.parse import quote_from_bytes, urlsplit

import obstore
import pyarrow as pa
import pyarrow.compute as pc
from obstore import exceptions

from lakeshare_server import errors
from lakeshare_server.locations import ParsedLocation
from lakeshare_server.outbound import Service
from lakeshare_server.storage import location_columns

if TYPE_CHECKING:
    from obstore import BytesStream, GetOptions, ObjectMeta, WritableFile
    from obstore.store import BackoffConfig, ClientConfig, ObjectStore, RetryConfig

LASTING = (errors.StoreError, errors.BadRequest)
Result = TypeVar("Result")
Operation = Literal["read", "list", "head", "write", "delete"]


@dataclass(frozen=True)
class StoredObject:
    location: str
    size_bytes: int
    modified_ms: int
    etag: str | None


logger = logging.getLogger(__name__)

# The URL before the status has no space; the store's own text follows.
STATUS = re.compile(r"status code: (\d{3})")
CODE = re.compile(r"<Code>(\w{1,60})</Code>")
NO_KEYS = "credential provider"
WRONG_REGION = "Received redirect without LOCATION"
NOT_DELETED = "(code: AccessDenied)"
PASSING = {408, 412, 416, 425, 429}
LATER = "Try again later."


@contextmanager
def translate_errors(place: ParsedLocation) -> Iterator[None]:
    """Turns failures of the store into LakeshareErrors about `place`.

    Raises:
        StoreMissing, StoreDenied, Unserveable: a retry fails too.
        Unavailable: a retry may succeed.
    """
    try:
        yield
    # The errors of a writer are OSErrors with the text of the others.
    except (exceptions.BaseError, OSError) as error:
        translated = _translate(place, error)
        if isinstance(translated, errors.StoreError) and (code := CODE.search(str(error))):
            translated.code = code[1]
        raise translated from None


def _translate(place: ParsedLocation, error: exceptions.BaseError | OSError) -> errors.LakeshareError:
    text = str(error)
    matches = (STATUS.search(text), CODE.search(text))
    status = int(matches[0][1]) if matches[0] else None
    # A missing object is normal (the next commit of a log); a caller that needs the object raises.
    level = logging.DEBUG if isinstance(error, FileNotFoundError) or status == 404 else logging.WARNING
    response = " ".join(match[1] for match in matches if match) or type(error).__name__
    logger.log(level, "%s: the store answered %s", place.location, response)
    if NO_KEYS in text and isinstance(error, exceptions.UnauthenticatedError):
        what = f"no credentials for {place.root} are available"
        return errors.Unavailable(what, "Check the identity the server runs with.")
    for kinds, make_error in _BY_KIND:
        if isinstance(error, kinds):
            return make_error(place)
    if status is None and WRONG_REGION in text:
        status = 301
    if status is None and NOT_DELETED in text:
        status = 403
    if status == 404:
        return errors.StoreMissing(place.location)
    # A wrong region, a wrong host or an unknown key.
    if status is not None and 300 <= status < 500 and status not in PASSING:
        return errors.StoreDenied(place.location)
    return errors.Unavailable(f"{place.root} does not answer as it should", LATER)


_BY_KIND = (
    (FileNotFoundError, lambda place: errors.StoreMissing(place.location)),
    (
        (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError),
        lambda place: errors.StoreDenied(place.location),
    ),
    (
        exceptions.PreconditionError,
        lambda place: errors.Unavailable(f"{place.location} changed while it was read", LATER),
    ),
    (
        exceptions.InvalidPathError,
        lambda place: errors.Unserveable(
            f"{place.location} cannot be listed: a key below it has an empty segment, one of dots or a control "
            "character.",
            "Move or remove the object.",
        ),
    ),
)


REQUEST_BYTES = 16 * 1024 * 1024


class RangeFile(io.RawIOBase):
    """Reads `place`, which has `size_bytes`; raises a passing error if its content is no longer `etag`."""

    def __init__(
        self, store: "ObjectStore", place: ParsedLocation, size_bytes: int, etag: str | None, service: Service
    ) -> None:
        self._store, self._service, self._place = store, service, place
        self._size, self._etag, self._position = size_bytes, etag, 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._position)
        left = left if size is None or size < 0 else min(size, left)
        pieces = []

        def read_range() -> bytes:
            with translate_errors(self._place):
                end = self._position + min(left, REQUEST_BYTES)
                options: GetOptions = {"range": (self._position, end), "if_match": self._etag}
                return obstore.get(self._store, self._place.key, options=options).bytes().to_bytes()

        while left:
            piece = self._service.call(read_range, operation="read")
            pieces.append(piece)
            self._position += len(piece)
            left -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


CONNECT_S = 5
READ_TIMEOUT_S = 30  # between two pieces of a response
ANSWER_S = 600  # a whole response
RETRIES_S = 15
RETRIES = 7
LIST_PAGE = 1000
# Bytes that one call reads of an object, or writes of a large one.
PIECE_BYTES = 8 << 20
# Parts of a large object that are sent at once.
UPLOADED_PARTS = 2

# obstore folds or refuses such keys, and would read another object.
NOT_AS_IT_IS = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")


def client_options(endpoint: str | None) -> "ClientConfig":
    """Returns the timeouts; permits an endpoint without TLS."""
    return {
        "allow_http": bool(endpoint and endpoint.startswith("http:")),
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "read_timeout": timedelta(seconds=READ_TIMEOUT_S),
        "timeout": timedelta(seconds=ANSWER_S),
    }


def retries() -> "RetryConfig":
    """Returns the retries of a store that responds 503 or breaks off: 15 seconds in total."""
    pauses: BackoffConfig = {
        "init_backoff": timedelta(seconds=0.1),
        "max_backoff": timedelta(seconds=4),
        "base": 2,
    }
    return {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRIES_S), "backoff": pauses}


class RemoteStore:
    """An opened root; `in_key_order` is False for a store that lists in another order.

    Every request is a call of `service`, with its deadline and circuit breaker. `delete_keys` deletes objects by keys
    with a slash at their end, which some tools write for folders and obstore cannot name.
    """

    def __init__(
        self,
        root: str,
        store: "ObjectStore",
        service: Service,
        in_key_order: bool = True,
        delete_keys: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self._root, self._store, self._service = root, store, service
        self._in_key_order, self._delete_keys = in_key_order, delete_keys

    def read(self, place: ParsedLocation) -> bytes:
        pieces = list(self._read_pieces(place))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def download(self, place: ParsedLocation, path: Path) -> None:
        with path.open("wb") as file:
            file.writelines(self._read_pieces(place))

    def upload(self, path: Path, place: ParsedLocation) -> None:
        _require_exact(place)
        with path.open("rb") as file:
            piece = file.read(PIECE_BYTES)
            if len(piece) < PIECE_BYTES:
                self.write(place, piece, if_absent=False)
                return
            # Each part has its own deadline: a large object may take longer. An error leaves no object.
            writer = self._call(place, lambda: self._open_writer(place), "write")
            while piece:
                self._call(place, partial(writer.write, piece), "write")
                piece = file.read(PIECE_BYTES)
            self._call(place, writer.close, "write")

    def _open_writer(self, place: ParsedLocation) -> "WritableFile":
        return obstore.open_writer(
            self._store, place.key, buffer_size=PIECE_BYTES, max_concurrency=UPLOADED_PARTS
        )

    def _read_pieces(self, place: ParsedLocation) -> Iterator[bytes]:
        _require_exact(place)

        def begin() -> "bytes | BytesStream":
            found = obstore.get(self._store, place.key)
            is_small = found.meta["size"] <= PIECE_BYTES
            return found.bytes().to_bytes() if is_small else found.stream(min_chunk_size=PIECE_BYTES)

        content = self._call(place, begin)
        if isinstance(content, bytes):
            yield content
            return
        # Each piece has its own deadline: a large object may take longer.
        pieces = content
        yield from iter(lambda: self._call(place, lambda: bytes(next(pieces, b""))), b"")

    def open(self, place: ParsedLocation) -> Any:
        found = self._head(place)
        file = RangeFile(self._store, place, found["size"], found["e_tag"], self._service)
        return pa.PythonFile(file, mode="r")

    def list(self, prefix: ParsedLocation, after: ParsedLocation | None) -> Iterator[StoredObject]:
        folder = _require_folder(prefix)
        objects = self._list(folder, after)
        if not self._in_key_order:
            objects = iter(sorted(objects, key=lambda found: found.location.encode()))
        return _without_folder_marks(objects, folder.location + "/")

    def folders(self, prefix: ParsedLocation) -> Sequence[str]:
        folder = _require_folder(prefix)
        listed = self._call(
            folder, lambda: obstore.list_with_delimiter(self._store, folder.key or None), "list"
        )
        return sorted(path.rstrip("/").rpartition("/")[2] for path in listed["common_prefixes"])

    def head(self, place: ParsedLocation) -> StoredObject | None:
        if not place.key:
            return None
        try:
            return self._describe(self._head(place))
        except errors.StoreMissing:
            return None

    def write(self, place: ParsedLocation, content: bytes, *, if_absent: bool) -> bool:
        _require_exact(place)

        def put() -> bool:
            try:
                mode: Literal["create", "overwrite"] = "create" if if_absent else "overwrite"
                obstore.put(self._store, place.key, content, mode=mode, use_multipart=False)
            except exceptions.AlreadyExistsError:
                return False
            return True

        return self._call(place, put, "write")

    def delete(self, place: ParsedLocation) -> None:
        _require_exact(place)
        with suppress(errors.StoreMissing):
            self._call(place, lambda: obstore.delete(self._store, place.key), "delete")

    def delete_folder(self, prefix: ParsedLocation) -> None:
        folder = _require_folder(prefix)
        if not folder.key:
            raise errors.BadRequest("location", folder.location, "A whole bucket is not deleted.")
        found = [entry for page in self._pages(folder, None) for entry in page]
        keys = [entry["path"] for entry in found]
        for start in range(0, len(keys), LIST_PAGE):
            batch = keys[start : start + LIST_PAGE]
            try:
                self._call(folder, partial(obstore.delete, self._store, batch), "delete")
            except errors.StoreMissing:
                # Another process deletes here, too, and the rest of the batch is left.
                for key in batch:
                    self.delete(replace(folder, key=key))
        marks = [f"{entry['path']}/" for entry in found if not entry["size"]]
        if self._delete_keys and found:
            self._service.call(partial(self._delete_keys, [*marks, f"{folder.key}/"]), operation="delete")

    def _call(
        self, place: ParsedLocation, request: Callable[[], Result], operation: Operation = "read"
    ) -> Result:
        what = operation if operation in ("write", "delete") else "hand out"

        def translated() -> Result:
            try:
                with translate_errors(place):
                    return request()
            except errors.StoreDenied as error:
                denied = errors.StoreDenied(place.location, what)
                denied.code = error.code
                raise denied from None

        return self._service.call(translated, operation=operation)

    def _head(self, place: ParsedLocation) -> "ObjectMeta":
        _require_exact(place)
        return self._call(place, lambda: obstore.head(self._store, place.key), "head")

    def _list(self, folder: ParsedLocation, after: ParsedLocation | None) -> Iterator[StoredObject]:
        offset = after.key if after else None
        for page in self._pages(folder, offset):
            for found in page:
                # Not every store supports an offset.
                if offset is None or found["path"].encode() > offset.encode():
                    yield self._describe(found)

    def _pages(self, folder: ParsedLocation, offset: str | None) -> "Iterator[Sequence[ObjectMeta]]":
        pages = iter(obstore.list(self._store, folder.key or None, offset=offset, chunk_size=LIST_PAGE))
        while (page := self._call(folder, lambda: next(pages, None), "list")) is not None:
            yield page

    def _describe(self, found: "ObjectMeta") -> StoredObject:
        modified_ms = int(found["last_modified"].timestamp() * 1000)
        return StoredObject(f"{self._root}/{found['path']}", found["size"], modified_ms, found["e_tag"])


def _without_folder_marks(objects: Iterator[StoredObject], below: str) -> Iterator[StoredObject]:
    """Leaves out empty objects "t/" that some tools write for a folder: obstore lists "t" in front of "t/x"."""
    previous: StoredObject | None = None
    for found in objects:
        if previous and not (previous.size_bytes == 0 and found.location.startswith(previous.location + "/")):
            yield previous
        previous = found if found.location.startswith(below) else None
    if previous:
        yield previous


def _require_exact(place: ParsedLocation) -> None:
    if NOT_AS_IT_IS.search(place.key):
        reason = f"{place.location} cannot be read: its key has an empty segment, one of dots or a control character."
        raise errors.Unserveable(reason, "Move the table to a name without them.")


def _require_folder(prefix: ParsedLocation) -> ParsedLocation:
    folder = replace(prefix, key=prefix.key.rstrip("/"))
    if folder.key:
        _require_exact(folder)
    return folder


@contextmanager
def require_extra(library: str, extra: str) -> Iterator[None]:
    """Raises Unavailable if an import in the block fails because `library` is not installed."""
    try:
        yield
    except ImportError:
        fix = f"Install lakeshare[{extra}] where the server runs."
        raise errors.Unavailable(f"{library} is not installed", fix) from None


MAX_URL_LIFE_S = 604_800


def now_s() -> int:
    return int(time.time())


def remaining_life(moment_s: int, life_s: int, ends_ms: int | None, longest_s: int = MAX_URL_LIFE_S) -> int:
    """Returns the life at `moment_s` of a signature with credentials that end at `ends_ms`."""
    left_s = life_s if ends_ms is None else min(life_s, ends_ms // 1000 - moment_s)
    if left_s < 1:
        what = "the credentials that sign URLs have ended"
        raise errors.Unavailable(what, "Renew them, or try again when they are renewed.")
    return min(left_s, longest_s)


@dataclass(frozen=True)
class TemporaryCredentials:
    """Credentials to read below `location` only; `kind` and `fields` have the names of the wire."""

    location: str
    kind: str
    fields: Mapping[str, str] = field(repr=False)
    expires_at_ms: int
    # The properties by which an Iceberg client takes them.
    iceberg_config: Mapping[str, str] = field(repr=False)


class RootSigner(Protocol):
    """Signs keys below one root; those of the local disk, whose root is empty, are whole paths."""

    @property
    def expires_at_ms(self) -> int:
        """The end of all its URLs."""

    def sign(self, keys: list[bytes]) -> pa.StringArray:
        """Returns a URL for each key, in order."""


class StoreAccess(Protocol):
    """Access to all roots of one kind of object store with the server's credentials; thread-safe.

    Methods raise Unserveable if the credentials cannot do it, and Unavailable if they or the store do not respond.
    """

    @property
    def signs_slowly(self) -> bool:
        """Whether a URL takes more than about a microsecond (RSA, or signed by a service)."""

    def open(self, place: ParsedLocation) -> "RemoteStore":
        """Opens a root."""

    def signer(self, place: ParsedLocation, life_s: int, now_s: int) -> RootSigner:
        """Returns a signer of URLs of a root that live for `life_s` from `now_s`, or as long as its credentials."""

    def refusal(self, place: ParsedLocation) -> str | None:
        """Returns why no credentials are limited to a location; None if they are."""

    def vend(self, place: ParsedLocation, life_s: int, now_s: int) -> TemporaryCredentials:
        """Issues credentials that read below a location only."""


def sign_texts(key: bytes, beginning: bytes, texts: Iterable[bytes]) -> list[bytes]:
    """Returns the HMAC-SHA256 of `beginning` with each text; twice as fast as a call of hmac for each text."""
    block = (hashlib.sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block) + beginning)
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))
    digests = []
    for text in texts:
        within, around = inner.copy(), outer.copy()
        within.update(text)
        around.update(within.digest())
        digests.append(around.digest())
    return digests


def join_urls(before: str, names: list[bytes], between: str, signatures: pa.StringArray) -> pa.StringArray:
    """Returns the URLs of ASCII names, each with its signature behind `between`."""
    return pc.binary_join_element_wise(before, location_columns.texts(names), between, signatures, "")


UNRESERVED = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
# With more different bytes than this, one key at a time is faster.
MIN_BATCH = 24


def quote_keys(keys: list[bytes], safe: bytes) -> list[bytes]:
    """Percent-encodes every byte of the keys that is neither unreserved nor in `safe`, as `quote` does."""
    encoded: AbstractSet[int] = set(b"".join(keys).translate(None, UNRESERVED + safe))
    if not encoded:
        return keys
    if ord("\n") in encoded or len(encoded) > MIN_BATCH:
        return [quote_from_bytes(key, safe).encode() for key in keys]
    together = b"\n".join(keys)
    # "%" first, so that it is not encoded twice.
    for byte in sorted(encoded, key=lambda byte: byte != ord("%")):
        together = together.replace(bytes([byte]), b"%%%02X" % byte)
    return together.split(b"\n")


SIGNATURE = "X-Amz-Signature"
PURPOSE = b"lakeshare file url v2"
SAFE = b"/="


@dataclass(frozen=True)
class Claim:
    ticket: str
    name: str
    expires_at_ms: int


class LocalSigner:
    """Signs and verifies URLs below `base_url`, the root of the byte endpoint."""

    def __init__(self, key: bytes, base_url: str) -> None:
        self.base_url = base_url.rstrip("/")
        # A separate key for this purpose: no other signature is valid for a URL.
        self._key = hmac.digest(key, PURPOSE, hashlib.sha256)

    def sign_all(self, names: list[bytes], ticket: str, expires_at_ms: int) -> pa.StringArray:
        """Returns a URL for each name (UTF-8), in order."""
        signatures = sign_texts(self._key, self._claimed(ticket, expires_at_ms), names)
        return join_urls(
            f"{self.base_url}/{ticket}/",
            quote_keys(names, SAFE),
            f"?expires={expires_at_ms}&{SIGNATURE}=",
            location_columns.hex_texts(signatures),
        )

    def verify(self, claim: Claim, signature: str) -> None:
        """Refuses a claim with a wrong signature, or that has expired."""
        before = self._claimed(claim.ticket, claim.expires_at_ms)
        text = before + claim.name.encode("utf-8", "surrogateescape")
        expected = hmac.digest(self._key, text, "sha256").hex().encode()
        if not hmac.compare_digest(expected, signature.encode("utf-8", "replace")):
            raise errors.Denied("The URL's signature does not match. Query the table again for fresh URLs.")
        if claim.expires_at_ms <= time.time() * 1000:
            raise errors.Denied("The URL has expired. Query the table again for fresh URLs.")

    def _claimed(self, ticket: str, expires_at_ms: int) -> bytes:
        # With the ticket's length, no two claims have the same text.
        text = ticket.encode("utf-8", "surrogatepass")
        return b"%d\n%d\n%s\n" % (expires_at_ms, len(text), text)


class LocalFolders:
    """Signs files of several folders of the local disk.

    `issue` returns the ticket of a folder, or refuses the folder.
    """

    def __init__(
        self, signer: LocalSigner, issue: Callable[[str], str], folders: Sequence[str], expires_at_ms: int
    ) -> None:
        self._signer, self._issue, self.expires_at_ms = signer, issue, expires_at_ms
        self._tickets = {_prefix(folder): issue(folder) for folder in folders}

    def sign(self, keys: list[bytes]) -> pa.StringArray:
        """Returns a URL for each absolute path, in order."""
        least, greatest = (min(keys), max(keys)) if keys else (b"", b"")
        for prefix in self._tickets:
            # What is between two texts that begin alike begins like them.
            if least.startswith(prefix) and greatest.startswith(prefix):
                return self._sign_inside(prefix, keys)
        numbers: dict[bytes, list[int]] = {}
        for number, key in enumerate(keys):
            prefix = next(filter(key.startswith, self._tickets), b"")
            if not prefix:
                # Versions of a table may be in other folders than its newest one.
                folder = posixpath.dirname(os.fsdecode(key))
                prefix = _prefix(folder)
                self._tickets[prefix] = self._issue(folder)
            numbers.setdefault(prefix, []).append(number)
        return location_columns.join_groups(
            numbers, lambda prefix, own: self._sign_inside(prefix, [keys[number] for number in own])
        )

    def _sign_inside(self, prefix: bytes, keys: list[bytes]) -> pa.StringArray:
        names = [key[len(prefix) :] for key in keys]
        return self._signer.sign_all(names, self._tickets[prefix], self.expires_at_ms)


def _prefix(folder: str) -> bytes:
    return os.fsencode(folder.rstrip("/") + "/")


DEFAULT_PORTS = {"http": 80, "https": 443}


def host_header(url: str) -> str:
    """Returns the host of a URL as in the Host header: without the default port."""
    parts = urlsplit(url)
    return parts.netloc.removesuffix(f":{DEFAULT_PORTS[parts.scheme]}")
