"""Many small objects in a bucket, written and read with little processor time."""

import asyncio
from collections.abc import Iterable

from lakeshare_pipelines.backup.async_s3 import AsyncS3
from lakeshare_pipelines.backup.stores import StoreAddress

AT_A_TIME = 32


def put_keys(bucket: StoreAddress, keys: Iterable[str]) -> None:
    """Put an object for each key; its content is its key."""
    put_objects(bucket, ((key, key.encode()) for key in keys))


def put_objects(bucket: StoreAddress, contents: Iterable[tuple[str, bytes]]) -> None:
    """Put an object for each key with its content."""
    asyncio.run(_request_all(bucket, "PUT", contents))


def read_objects(bucket: StoreAddress, keys: Iterable[str]) -> dict[str, bytes]:
    """The contents of objects by their keys."""
    return asyncio.run(_request_all(bucket, "GET", ((key, b"") for key in keys)))


async def _request_all(
    bucket: StoreAddress, method: str, bodies: Iterable[tuple[str, bytes]]
) -> dict[str, bytes]:
    async with AsyncS3(bucket, AT_A_TIME) as s3:
        left, answers = iter(bodies), dict[str, bytes]()

        async def request() -> None:
            for key, body in left:
                answer = await s3.request(method, key, body=body)
                assert answer.is_success, (key, answer)
                answers[key] = answer.body

        await asyncio.gather(*(request() for _ in range(AT_A_TIME)))
    return answers
