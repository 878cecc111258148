"""The S3 endpoint that jobs work on: one connection pool for each bucket they name, with the stand-in's identity."""

import asyncio
from collections.abc import Mapping
from urllib.parse import quote

from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.async_s3 import Answer, AsyncS3


class StoreRefused(Exception):
    """The store answered with an error: its status, code and words."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.status} {answer.code}: {answer.message}")
        self.status, self.code, self.message = answer.status, answer.code, answer.message


class Endpoint:
    """All buckets of one endpoint, asked by one event loop."""

    def __init__(self, address: StoreAddress, in_flight: int) -> None:
        self._address, self._in_flight = address, in_flight
        self._buckets: dict[str, AsyncS3] = {}

    async def request(
        self,
        bucket: str,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        """The store's answer to a request that it takes.

        Raises:
            StoreRefused: it does not take it.
            BackupError: it does not answer, or there are no credentials.
        """
        answer = await self._bucket(bucket).request(method, key, query or {}, headers or {}, body)
        if not answer.is_success:
            raise StoreRefused(answer)
        return answer

    async def read(self, bucket: str, key: str, version_id: str | None = None) -> tuple[str, bytes]:
        """ETag (without quotes) and content of an object."""
        query = {"versionId": version_id} if version_id else {}
        answer = await self.request(bucket, "GET", key, query)
        return answer.headers.get("ETag", "").strip('"'), answer.body

    async def put(self, bucket: str, key: str, content: bytes, content_type: str) -> None:
        """Write a small object."""
        await self.request(bucket, "PUT", key, headers={"content-type": content_type}, body=content)

    async def close(self) -> None:
        """Let go of all connections."""
        await asyncio.gather(*(bucket.close() for bucket in self._buckets.values()))

    def _bucket(self, name: str) -> AsyncS3:
        if name not in self._buckets:
            first = next(iter(self._buckets.values()), None)
            self._buckets[name] = (
                AsyncS3(self._address.at(name), self._in_flight) if first is None else first.at(name)
            )
        return self._buckets[name]


def copy_source(bucket: str, key: str, version_id: str | None) -> str:
    """The value of `x-amz-copy-source`."""
    version = f"?versionId={quote(version_id, safe='')}" if version_id else ""
    return f"/{bucket}/{quote(key, safe='/~')}{version}"
