"""One bucket or container of a remote store, read with obstore; the same for all vendors."""

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa

from lakeshare_server.errors import StoreMissing, Unserveable
from lakeshare_server.outbound import Service
from lakeshare_server.stores.faults import faults_of
from lakeshare_server.stores.locations import Place
from lakeshare_server.stores.range_file import RangeFile
from lakeshare_server.stores.store import StoredObject

if TYPE_CHECKING:  # obstore has these for type checkers only
    from obstore import BytesStream, ObjectMeta
    from obstore.store import BackoffConfig, ClientConfig, ObjectStore, RetryConfig

CONNECT_S = 5
SILENCE_S = 30  # between two pieces of an answer
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
        "read_timeout": timedelta(seconds=SILENCE_S),
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

    def read(self, place: Place) -> bytes:
        _require_exact(place)

        def begin() -> "bytes | BytesStream":
            with faults_of(place):
                found = obstore.get(self._store, place.key)
                is_small = found.meta["size"] <= PIECE_BYTES
                return found.bytes().to_bytes() if is_small else found.stream(min_chunk_size=PIECE_BYTES)

        pieces = self._service.call(begin)
        if isinstance(pieces, bytes):
            return pieces
        # Each piece has the deadline of a call: a large object may take as long as it needs.
        return b"".join(iter(partial(self._next, place, pieces), b""))

    def open(self, place: Place) -> Any:
        _require_exact(place)
        found = self._head(place)
        file = RangeFile(self._store, place, found["size"], found["e_tag"], self._service)
        return pa.PythonFile(file, mode="r")

    def list(self, prefix: Place, after: Place | None) -> Iterator[StoredObject]:
        folder = Place(prefix.kind, prefix.root, prefix.key.rstrip("/"))
        if folder.key:
            _require_exact(folder)
        listed = self._listed(folder, after)
        if not self._in_key_order:
            listed = iter(sorted(listed, key=lambda found: found.location.encode()))
        return _without_folder_marks(listed, folder.location + "/")

    def folders(self, prefix: Place) -> Sequence[str]:
        folder = Place(prefix.kind, prefix.root, prefix.key.rstrip("/"))
        if folder.key:
            _require_exact(folder)

        def list_folders() -> Sequence[str]:
            with faults_of(folder):
                return obstore.list_with_delimiter(self._store, folder.key or None)["common_prefixes"]

        return sorted(path.rstrip("/").rpartition("/")[2] for path in self._service.call(list_folders))

    def head(self, place: Place) -> StoredObject | None:
        if not place.key:
            return None
        _require_exact(place)
        try:
            return self._described(self._head(place))
        except StoreMissing:
            return None

    def _next(self, place: Place, pieces: "BytesStream") -> bytes:
        def next_piece() -> bytes:
            with faults_of(place):
                return bytes(next(pieces, b""))

        return self._service.call(next_piece)

    def _head(self, place: Place) -> "ObjectMeta":
        def head() -> "ObjectMeta":
            with faults_of(place):
                return obstore.head(self._store, place.key)

        return self._service.call(head)

    def _listed(self, folder: Place, after: Place | None) -> Iterator[StoredObject]:
        offset = after.key if after else None
        pages = iter(obstore.list(self._store, folder.key or None, offset=offset, chunk_size=LIST_PAGE))

        def next_page() -> "Sequence[ObjectMeta] | None":
            with faults_of(folder):
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


def _require_exact(place: Place) -> None:
    if NOT_AS_IT_IS.search(place.key):
        raise Unserveable(
            f"{place.location} cannot be read: its key has an empty segment, one of dots or a control character.",
            "Move the table to a name without them.",
        )
