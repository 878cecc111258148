"""What backups ask of a store, one object at a time. Mass copies have a client of their own (backup/copy)."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Protocol

from lakeshare_pipelines.backup.stores.address import StoreAddress


@dataclass(frozen=True)
class Listed:
    """One version of one key, as the store's own listing tells it.

    `etag` has no quotes. `version_id` is None for the null version and in stores without versions. A delete marker
    has no etag and no size. Of a folder the etag is made of modification time and size: it tells change, not content.
    """

    key: str
    size_bytes: int | None
    last_modified: dt.datetime
    etag: str | None
    version_id: str | None = None
    is_latest: bool = True
    is_delete_marker: bool = False
    storage_class: str | None = None
    checksum_algorithm: str | None = None


@dataclass(frozen=True)
class Head:
    """What a store says of one object; `checksums` by algorithm ("crc64nvme"), their values spelt as the store does."""

    key: str
    size_bytes: int
    last_modified: dt.datetime
    etag: str
    version_id: str | None = None
    storage_class: str | None = None
    encryption: str | None = None
    parts: int | None = None
    restore: str | None = None
    checksums: dict[str, str] = field(default_factory=dict)


class BackupStore(Protocol):
    """A store; for many threads.

    Every call raises BackupError when the store refuses or does not answer: it names the place and what to do.
    """

    address: StoreAddress

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[Listed]:
        """Current objects whose key begins with `prefix`, in order of the key's UTF-8 bytes."""
        ...

    def versions(self, prefix: str = "") -> Iterator[Listed]:
        """All versions and delete markers; newest first within a key. The same as `list` in a folder."""
        ...

    def head(self, key: str, version_id: str | None = None) -> Head | None:
        """What the store says of an object; None when it is not there (or its newest version is a delete marker)."""
        ...

    def read(self, key: str, version_id: str | None = None) -> bytes:
        """A whole object. Raises ObjectMissing when it is not there."""
        ...

    def open(self, key: str, version_id: str | None = None) -> IO[bytes]:
        """An object as a file that seeks. Raises ObjectMissing when it is not there."""
        ...

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        """Write an object, whole or not at all; False when `if_absent` and the key is taken."""
        ...

    def delete(self, key: str, version_id: str | None = None) -> None:
        """Remove an object (one version of it, when told); what is not there stays not there."""
        ...
