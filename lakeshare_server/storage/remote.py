"""What every store does: read, open, list and look at objects by their location."""

import hashlib
import hmac
import io
import logging
import os
import posixpath
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import quote_from_bytes, urlsplit

import obstore
import pyarrow as pa
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from lakeshare_server.errors import (
    BadRequest,
    Denied,
    LakeshareError,
    StoreDenied,
    StoreError,
    StoreMissing,
    Unavailable,
    Unserveable,
)
from lakeshare_server.outbound import Service
from lakeshare_server.settings import ServerSettings, make_private
from lakeshare_server.storage.locations import ParsedLocation

if TYPE_CHECKING:
    from obstore import BytesStream, ObjectMeta
    from obstore.store import BackoffConfig, ClientConfig, ObjectStore, RetryConfig

LASTING = (StoreError, BadRequest)


@dataclass(frozen=True)
class StoredObject:
    """One object as its store describes it."""

    location: str
    size_bytes: int
    modified_ms: int
    etag: str | None


class Store(Protocol):
    """One root of one kind of store.

    Everything here raises StoreMissing, StoreDenied (lasting) or Unavailable (passing), and nothing else.
    """

    def read(self, place: ParsedLocation) -> bytes:
        """The whole object."""
        ...

    # A pyarrow.NativeFile; pyarrow comes without types.
    def open(self, place: ParsedLocation) -> Any:
        """The object as a file that seeks."""
        ...

    def list(self, prefix: ParsedLocation, after: ParsedLocation | None) -> Iterator[StoredObject]:
        """Every object below `prefix`, however deep, in the order of their keys."""
        ...

    def folders(self, prefix: ParsedLocation) -> Sequence[str]:
        """The names of the folders right below `prefix`, in order; none of what is in them is listed."""
        ...

    def head(self, place: ParsedLocation) -> StoredObject | None:
        """The object's description, None when there is none."""
        ...


logger = logging.getLogger(__name__)

# The URL in front of it holds no space, and the store's own text comes after it.
STATUS = re.compile(r"status code: (\d{3})")
CODE = re.compile(r"<Code>(\w{1,60})</Code>")
NO_KEYS = "credential provider"
WRONG_REGION = "Received redirect without LOCATION"
PASSING = {408, 412, 425, 429}
LATER = "Try again later."


@contextmanager
def translate_errors(place: ParsedLocation) -> Iterator[None]:
    """Every failure of the store inside becomes one of ours, about `place`.

    Raises:
        StoreMissing, StoreDenied, Unserveable: asking again changes nothing.
        Unavailable: it passes.
    """
    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        raise _translate(place, error) from None


def _translate(place: ParsedLocation, error: BaseError | FileNotFoundError) -> LakeshareError:
    text = str(error)
    status, code = STATUS.search(text), CODE.search(text)
    said = " ".join(found[1] for found in (status, code) if found) or type(error).__name__
    # Looking for what is not there is normal: the next commit of a log, say. Whoever needs the object raises.
    level = logging.DEBUG if _is_missing(error, status) else logging.WARNING
    logger.log(level, "%s: the store answered %s", place.location, said)
    if NO_KEYS in text and isinstance(error, UnauthenticatedError):
        return Unavailable(
            f"no credentials for {place.root} could be had", "Look at the identity the server runs with."
        )
    for kinds, ours in _BY_KIND:
        if isinstance(error, kinds):
            return ours(place)
    if status is None and WRONG_REGION not in text:
        return _unavailable(place)
    return _by_status(place, int(status[1]) if status else 301)


def _is_missing(error: BaseError | FileNotFoundError, status: re.Match[str] | None) -> bool:
    return isinstance(error, FileNotFoundError) or (status is not None and status[1] == "404")


def _by_status(place: ParsedLocation, status: int) -> LakeshareError:
    if status == 404:
        return StoreMissing(place.location)
    # A wrong region, a wrong host or a key the store does not know.
    if 300 <= status < 500 and status not in PASSING:
        return StoreDenied(place.location)
    return _unavailable(place)


def _unavailable(place: ParsedLocation) -> LakeshareError:
    return Unavailable(f"{place.root} does not answer as it should", LATER)


_BY_KIND = (
    (FileNotFoundError, lambda place: StoreMissing(place.location)),
    ((PermissionDeniedError, UnauthenticatedError), lambda place: StoreDenied(place.location)),
    (PreconditionError, lambda place: Unavailable(f"{place.location} changed while it was read", LATER)),
    (
        InvalidPathError,
        lambda place: Unserveable(
            f"{place.location} cannot be listed: a key below it has an empty segment, one of dots or a control "
            "character.",
            "Move or remove the object.",
        ),
    ),
)


REQUEST_BYTES = 16 * 1024 * 1024


class RangeFile(io.RawIOBase):
    """Reads `place`, which has `size_bytes`, and fails as passing when its content is no longer `etag`."""

    def __init__(
        self, store: "ObjectStore", place: ParsedLocation, size_bytes: int, etag: str | None, service: Service
    ) -> None:
        self._store = store
        self._service = service
        self._place = place
        self._size = size_bytes
        self._etag = etag
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        """The object's size; pyarrow asks for it."""
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        pieces = []
        while wanted:
            piece = self._range(self._position, min(wanted, REQUEST_BYTES))
            pieces.append(piece)
            self._position += len(piece)
            wanted -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _range(self, start: int, length: int) -> bytes:
        def read() -> bytes:
            with translate_errors(self._place):
                answer = obstore.get(
                    self._store,
                    self._place.key,
                    options={"range": (start, start + length), "if_match": self._etag},
                )
                return answer.bytes().to_bytes()

        return self._service.call(read)


CONNECT_S = 5
READ_TIMEOUT_S = 30  # between two pieces of an answer
ANSWER_S = 600  # a whole answer, however slowly it trickles
RETRIES_S = 15
RETRIES = 7
LIST_PAGE = 1000
# What one call reads of an object.
PIECE_BYTES = 8 << 20

# obstore folds or refuses such keys: what it would read is another object.
NOT_AS_IT_IS = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")


def client_options(endpoint: str | None) -> "ClientConfig":
    """How long to wait for the store, and that an endpoint without TLS is meant."""
    return {
        "allow_http": bool(endpoint and endpoint.startswith("http:")),
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "read_timeout": timedelta(seconds=READ_TIMEOUT_S),
        "timeout": timedelta(seconds=ANSWER_S),
    }


def retries() -> "RetryConfig":
    """A store that says 503 or breaks off is asked again for about a quarter of a minute."""
    pauses: BackoffConfig = {
        "init_backoff": timedelta(seconds=0.1),
        "max_backoff": timedelta(seconds=4),
        "base": 2,
    }
    return {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRIES_S), "backoff": pauses}


class RemoteStore:
    """One root, opened; `in_key_order` is False of a store that lists in an order of its own.

    Every request is a call of `service`, with its deadline and circuit breaker.
    """

    def __init__(self, root: str, store: "ObjectStore", service: Service, in_key_order: bool = True) -> None:
        self._root = root
        self._store = store
        self._service = service
        self._in_key_order = in_key_order

    def read(self, place: ParsedLocation) -> bytes:
        _require_exact(place)

        def begin() -> "bytes | BytesStream":
            with translate_errors(place):
                found = obstore.get(self._store, place.key)
                is_small = found.meta["size"] <= PIECE_BYTES
                return found.bytes().to_bytes() if is_small else found.stream(min_chunk_size=PIECE_BYTES)

        pieces = self._service.call(begin)
        if isinstance(pieces, bytes):
            return pieces
        # Each piece has the deadline of a call: a large object may take as long as it needs.
        return b"".join(iter(partial(self._next, place, pieces), b""))

    def open(self, place: ParsedLocation) -> Any:
        _require_exact(place)
        found = self._head(place)
        file = RangeFile(self._store, place, found["size"], found["e_tag"], self._service)
        return pa.PythonFile(file, mode="r")

    def list(self, prefix: ParsedLocation, after: ParsedLocation | None) -> Iterator[StoredObject]:
        folder = ParsedLocation(prefix.kind, prefix.root, prefix.key.rstrip("/"))
        if folder.key:
            _require_exact(folder)
        listed = self._listed(folder, after)
        if not self._in_key_order:
            listed = iter(sorted(listed, key=lambda found: found.location.encode()))
        return _without_folder_marks(listed, folder.location + "/")

    def folders(self, prefix: ParsedLocation) -> Sequence[str]:
        folder = ParsedLocation(prefix.kind, prefix.root, prefix.key.rstrip("/"))
        if folder.key:
            _require_exact(folder)

        def list_folders() -> Sequence[str]:
            with translate_errors(folder):
                return obstore.list_with_delimiter(self._store, folder.key or None)["common_prefixes"]

        return sorted(path.rstrip("/").rpartition("/")[2] for path in self._service.call(list_folders))

    def head(self, place: ParsedLocation) -> StoredObject | None:
        if not place.key:
            return None
        _require_exact(place)
        try:
            return self._described(self._head(place))
        except StoreMissing:
            return None

    def _next(self, place: ParsedLocation, pieces: "BytesStream") -> bytes:
        def next_piece() -> bytes:
            with translate_errors(place):
                return bytes(next(pieces, b""))

        return self._service.call(next_piece)

    def _head(self, place: ParsedLocation) -> "ObjectMeta":
        def head() -> "ObjectMeta":
            with translate_errors(place):
                return obstore.head(self._store, place.key)

        return self._service.call(head)

    def _listed(self, folder: ParsedLocation, after: ParsedLocation | None) -> Iterator[StoredObject]:
        offset = after.key if after else None
        pages = iter(obstore.list(self._store, folder.key or None, offset=offset, chunk_size=LIST_PAGE))

        def next_page() -> "Sequence[ObjectMeta] | None":
            with translate_errors(folder):
                return next(pages, None)

        while (page := self._service.call(next_page)) is not None:
            for found in page:
                # Not every store knows of an offset.
                if offset is None or found["path"].encode() > offset.encode():
                    yield self._described(found)

    def _described(self, found: "ObjectMeta") -> StoredObject:
        modified_ms = int(found["last_modified"].timestamp() * 1000)
        return StoredObject(f"{self._root}/{found['path']}", found["size"], modified_ms, found["e_tag"])


def _without_folder_marks(listed: Iterator[StoredObject], below: str) -> Iterator[StoredObject]:
    """Some tools mark a folder by "t/" of no bytes; it comes out of obstore as "t", in front of "t/x"."""
    held: StoredObject | None = None
    for found in listed:
        if held and not (held.size_bytes == 0 and found.location.startswith(held.location + "/")):
            yield held
        held = found if found.location.startswith(below) else None
    if held:
        yield held


def _require_exact(place: ParsedLocation) -> None:
    if NOT_AS_IT_IS.search(place.key):
        raise Unserveable(
            f"{place.location} cannot be read: its key has an empty segment, one of dots or a control character.",
            "Move the table to a name without them.",
        )


def missing_extra_error(library: str, extra: str) -> Unavailable:
    """The error that names the extra to install."""
    return Unavailable(f"{library} is not installed", f"Install lakeshare[{extra}] where the server runs.")


KEY_BYTES = 32
KEY_FILE = "signing.key"


def load_key(settings: ServerSettings) -> bytes:
    """The signing key in force.

    Raises:
        BadRequest: the key that is given is too short.
        Unavailable: the key's file cannot be made or read, or others may read it.
    """
    if settings.signing_key is not None:
        return _require_long_key(settings.signing_key.get_secret_value().encode())
    path = settings.state_dir / KEY_FILE
    try:
        if not path.exists():
            _make(path)
        key = path.read_bytes()
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise Unavailable(
            f"the signing key {path} cannot be used: {error}", "Check the state folder."
        ) from error
    if mode & 0o077 or len(key) < KEY_BYTES:
        raise Unavailable(
            f"the signing key {path} is too short or has mode {mode:o}",
            "Remove it, a new one is made; signed URLs that are out stop working.",
        )
    return key


def _require_long_key(key: bytes) -> bytes:
    # Whoever guesses the key reads every file that the server can.
    if len(key) < KEY_BYTES:
        raise BadRequest(
            "LAKESHARE_SIGNING_KEY",
            f"{len(key)} bytes",
            f"Give {KEY_BYTES} bytes or more (openssl rand -hex {KEY_BYTES}), or unset it: a key is made in the "
            "state folder.",
        )
    return key


def _make(path: Path) -> None:
    """Whichever process links its key first has made the key; the others take it."""
    make_private(path.parent)
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{KEY_FILE}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(descriptor)
        path.hardlink_to(scratch)
    except FileExistsError:
        return
    finally:
        Path(scratch).unlink()


MAX_URL_LIFE_S = 604_800


def now_s() -> int:
    """The clock that signatures are dated by."""
    return int(time.time())


def remaining_life(moment_s: int, life_s: int, ends_ms: int | None, longest_s: int = MAX_URL_LIFE_S) -> int:
    """The life in force at `moment_s` for what is signed with credentials that end at `ends_ms`.

    Raises:
        Unavailable: they have ended.
    """
    left_s = life_s if ends_ms is None else min(life_s, ends_ms // 1000 - moment_s)
    if left_s < 1:
        raise Unavailable(
            "the credentials that sign URLs have ended",
            "Whoever issues them must renew them; try again then.",
        )
    return min(left_s, longest_s)


@dataclass(frozen=True)
class TemporaryCredentials:
    """For reading below `location` and nothing else; `kind` and `fields` are named as on the wire."""

    location: str
    kind: str
    fields: Mapping[str, str] = field(repr=False)
    expires_at_ms: int


class Vendor(Protocol):
    """Issues temporary credentials of one kind of store."""

    def refusal(self, place: ParsedLocation) -> str | None:
        """Why none can be issued for this folder, as far as can be told without asking for some.

        Raises:
            Unavailable: what tells is not there now.
        """
        ...

    def vend(self, place: ParsedLocation, life_s: int, now_s: int) -> TemporaryCredentials:
        """Credentials that read below the folder.

        Raises:
            Unserveable: the store will not issue them.
            Unavailable: it does not now.
        """
        ...


class PreparedHmac(NamedTuple):
    """The two hashes of an HMAC; copy `inner`, feed it the text's end, and feed a copy of `outer` its digest.

    Twice as fast as a call of hmac for each text, three steps of a loop being as many as it can bear.
    """

    inner: "hashlib._Hash"
    outer: "hashlib._Hash"


def prepare_hmac(key: bytes, beginning: bytes) -> PreparedHmac:
    """For texts that begin with `beginning`."""
    block = (hashlib.sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block) + beginning)
    return PreparedHmac(inner, hashlib.sha256(bytes(byte ^ 0x5C for byte in block)))


UNRESERVED = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
# Above so many different bytes, key by key is faster.
MIN_BATCH = 24


def quote_keys(keys: list[bytes], safe: bytes) -> list[bytes]:
    """Each key with every byte percent-encoded that is neither unreserved nor in `safe`, as `quote` does it."""
    together = b"\n".join(keys)
    encoded: AbstractSet[int] = set(together.translate(None, UNRESERVED + safe + b"\n"))
    if not keys or together.count(b"\n") >= len(keys) or len(encoded) > MIN_BATCH:
        return [quote_from_bytes(key, safe).encode() for key in keys]
    # "%" first, or it would be encoded again.
    for byte in sorted(encoded, key=lambda byte: byte != ord("%")):
        together = together.replace(bytes([byte]), b"%%%02X" % byte)
    return together.split(b"\n")


SIGNATURE = "X-Amz-Signature"
PURPOSE = b"lakeshare file url v2"
SAFE = b"/="


@dataclass(frozen=True)
class Claim:
    """What a signed URL allows."""

    ticket: str
    name: str
    expires_at_ms: int


class LocalSigner:
    """Signs and checks URLs below `base_url`, the root of the byte endpoint."""

    def __init__(self, key: bytes, base_url: str) -> None:
        self.base_url = base_url.rstrip("/")
        # A key of its own for this purpose: no other signature of ours can be passed off as one.
        self._key = hmac.digest(key, PURPOSE, hashlib.sha256)

    def sign_all(self, names: list[bytes], ticket: str, expires_at_ms: int) -> list[bytes]:
        """One URL for each name, in order; names as they are in UTF-8, tickets fit for a URL."""
        ends = f"?expires={expires_at_ms}&{SIGNATURE}=".encode()
        root = f"{self.base_url}/{ticket}/".encode()
        inner, outer = (state.copy for state in prepare_hmac(self._key, self._claimed(ticket, expires_at_ms)))
        urls = []
        for name, url_path in zip(names, quote_keys(names, SAFE), strict=True):
            within, around = inner(), outer()
            within.update(name)
            around.update(within.digest())
            urls.append(root + url_path + ends + around.hexdigest().encode())
        return urls

    def verify(self, claim: Claim, signature: str) -> None:
        """Refuse a claim that was not signed by us, or has ended.

        Raises:
            Denied: says which of the two.
        """
        before = self._claimed(claim.ticket, claim.expires_at_ms)
        expected = self._signature(before + claim.name.encode("utf-8", "surrogateescape"))
        if not hmac.compare_digest(expected, signature.encode("utf-8", "replace")):
            raise Denied("The URL's signature does not match. Query the table again for fresh URLs.")
        if claim.expires_at_ms <= time.time() * 1000:
            raise Denied("The URL has expired. Query the table again for fresh URLs.")

    def _claimed(self, ticket: str, expires_at_ms: int) -> bytes:
        # The ticket's length goes first: no two claims spell the same text.
        text = ticket.encode("utf-8", "surrogatepass")
        return b"%d\n%d\n%s\n" % (expires_at_ms, len(text), text)

    def _signature(self, text: bytes) -> bytes:
        return hmac.digest(self._key, text, "sha256").hex().encode()


class LocalFolders:
    """Signs the files of some folders of the server's own disk, each below the folder that it is in.

    `issue` gives the ticket of a folder, or refuses the folder.
    """

    def __init__(
        self, signer: LocalSigner, issue: Callable[[str], str], folders: Sequence[str], expires_at_ms: int
    ) -> None:
        self._signer, self._issue, self.expires_at_ms = signer, issue, expires_at_ms
        self._tickets = {_prefix(folder): issue(folder) for folder in folders}

    def sign(self, keys: list[bytes]) -> list[bytes]:
        """A URL for each absolute path, in order.

        Raises:
            Unserveable: the table may not have files in one of their folders.
        """
        urls: dict[int, bytes] = {}
        left: Sequence[int] = range(len(keys))
        for prefix, ticket in self._tickets.items():
            inside = [number for number in left if keys[number].startswith(prefix)]
            names = [keys[number][len(prefix) :] for number in inside]
            signed = self._signer.sign_all(names, ticket, self.expires_at_ms)
            if len(signed) == len(keys):
                return signed
            urls.update(zip(inside, signed, strict=True))
            left = [number for number in left if number not in urls]
        for number in left:
            # Versions of a table may lie where its newest one does not.
            folder = posixpath.dirname(os.fsdecode(keys[number]))
            prefix, name = _prefix(folder), os.fsencode(posixpath.basename(os.fsdecode(keys[number])))
            ticket = self._tickets.get(prefix) or self._issue(folder)
            self._tickets[prefix] = ticket
            [urls[number]] = self._signer.sign_all([name], ticket, self.expires_at_ms)
        return [urls[number] for number in range(len(keys))]


def _prefix(folder: str) -> bytes:
    return os.fsencode(folder.rstrip("/") + "/")


DEFAULT_PORTS = {"http": 80, "https": 443}


def host_header(url: str) -> str:
    """The host of a URL as clients send it in their header: without the port that goes without saying."""
    parts = urlsplit(url)
    return parts.netloc.removesuffix(f":{DEFAULT_PORTS[parts.scheme]}")
