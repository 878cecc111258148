"""What every store does: read, open, list and look at objects by their location."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lakeshare_server.errors import BadRequest, StoreError
from lakeshare_server.stores.locations import Place

# What asking again for the same location does not change.
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

    def read(self, place: Place) -> bytes:
        """The whole object."""
        ...

    # A pyarrow.NativeFile; pyarrow comes without types.
    def open(self, place: Place) -> Any:
        """The object as a file that seeks."""
        ...

    def list(self, prefix: Place, after: Place | None) -> Iterator[StoredObject]:
        """Every object below `prefix`, however deep, in the order of their keys."""
        ...

    def folders(self, prefix: Place) -> Sequence[str]:
        """The names of the folders right below `prefix`, in order; none of what is in them is listed."""
        ...

    def head(self, place: Place) -> StoredObject | None:
        """The object's description, None when there is none."""
        ...
