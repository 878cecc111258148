"""A remote object as a file that seeks: each read is a ranged request, and all of them see one content."""

import io
from typing import TYPE_CHECKING

import obstore

from lakeshare_server.outbound import Service
from lakeshare_server.stores.faults import faults_of
from lakeshare_server.stores.locations import Place

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# What one request reads has to arrive within a call's deadline.
REQUEST_BYTES = 16 * 1024 * 1024


class RangeFile(io.RawIOBase):
    """Reads `place`, which has `size_bytes`, and fails as passing when its content is no longer `etag`."""

    def __init__(
        self, store: "ObjectStore", place: Place, size_bytes: int, etag: str | None, service: Service
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
            with faults_of(self._place):
                answer = obstore.get(
                    self._store,
                    self._place.key,
                    options={"range": (start, start + length), "if_match": self._etag},
                )
                return answer.bytes().to_bytes()

        return self._service.call(read)
