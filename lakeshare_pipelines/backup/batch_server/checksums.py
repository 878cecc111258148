"""Checksums of an object's whole content, read in ranges so that an object of any size fits in little memory."""

import functools
import hashlib
import zlib
from collections.abc import Callable
from typing import Protocol

from lakeshare_pipelines.backup.batch_server.endpoint import Endpoint
from lakeshare_pipelines.backup.batch_server.task import Task

RANGE_BYTES = 8 * 1024 * 1024
CRC32C_POLYNOMIAL, CRC64NVME_POLYNOMIAL = 0x82F63B78, 0x9A6C9329AC4BC9B5
"""Reversed, as the tables of a reflected CRC want them."""


class Sum(Protocol):
    """A checksum that grows."""

    def update(self, content: bytes, /) -> None:
        """Take more content in."""

    def digest(self) -> bytes:
        """The checksum so far, in network byte order."""


async def computed(endpoint: Endpoint, task: Task, algorithm: str) -> tuple[str, bytes]:
    """ETag and checksum of an object; every range is asked with the ETag of the first one.

    Raises:
        StoreRefused: the store refuses, or the object changed on the way (412).
    """
    version = {"versionId": task.version_id} if task.version_id else {}
    head = await endpoint.request(task.bucket, "HEAD", task.key, version)
    etag, size = head.headers["ETag"], int(head.headers["Content-Length"])
    total = SUMS[algorithm]()
    for start in range(0, size, RANGE_BYTES):
        asked = {"if-match": etag, "range": f"bytes={start}-{min(size, start + RANGE_BYTES) - 1}"}
        total.update((await endpoint.request(task.bucket, "GET", task.key, version, asked)).body)
    return etag.strip('"'), total.digest()


class Crc32:
    """The CRC of zlib."""

    def __init__(self) -> None:
        self._sum = 0

    def update(self, content: bytes) -> None:
        """Take more content in."""
        self._sum = zlib.crc32(content, self._sum)

    def digest(self) -> bytes:
        """Four bytes."""
        return self._sum.to_bytes(4, "big")


class TableCrc:
    """A reflected CRC by table: slow, right, and for stores that compute none themselves."""

    def __init__(self, polynomial: int, width_bytes: int) -> None:
        self._table, self._width = _table(polynomial), width_bytes
        self._ones = (1 << 8 * width_bytes) - 1
        self._sum = self._ones

    def update(self, content: bytes) -> None:
        """Take more content in."""
        table, left = self._table, self._sum
        for byte in content:
            left = table[(left ^ byte) & 0xFF] ^ (left >> 8)
        self._sum = left

    def digest(self) -> bytes:
        """As many bytes as it is wide."""
        return (self._sum ^ self._ones).to_bytes(self._width, "big")


@functools.cache
def _table(polynomial: int) -> tuple[int, ...]:
    rows = []
    for byte in range(256):
        left = byte
        for _ in range(8):
            left = (left >> 1) ^ polynomial if left & 1 else left >> 1
        rows.append(left)
    return tuple(rows)


SUMS: dict[str, Callable[[], Sum]] = {
    "CRC32": Crc32,
    "CRC32C": lambda: TableCrc(CRC32C_POLYNOMIAL, 4),
    "CRC64NVME": lambda: TableCrc(CRC64NVME_POLYNOMIAL, 8),
    "MD5": lambda: hashlib.md5(usedforsecurity=False),
    "SHA1": lambda: hashlib.sha1(usedforsecurity=False),
    "SHA256": hashlib.sha256,
    "SHA512": hashlib.sha512,
}
