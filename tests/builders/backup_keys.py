"""Many small objects in a bucket, by their keys alone; each one's content is its key."""

import asyncio
from collections.abc import Sequence

from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.async_s3 import AsyncS3

AT_A_TIME = 32


def put_keys(bucket: StoreAddress, keys: Sequence[str]) -> None:
    """Put an object for each key."""
    asyncio.run(_put(bucket, keys))


async def _put(bucket: StoreAddress, keys: Sequence[str]) -> None:
    async with AsyncS3(bucket, AT_A_TIME) as s3:

        async def put(some: Sequence[str]) -> None:
            for key in some:
                answer = await s3.request("PUT", key, body=key.encode())
                assert answer.is_success, (key, answer)

        await asyncio.gather(*(put(keys[start::AT_A_TIME]) for start in range(AT_A_TIME)))
