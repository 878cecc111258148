"""Work in a process of its own that ends by SIGKILL right after one of its requests to a server."""

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

from botocore.httpsession import URLLib3Session

from lakeshare_pipelines.backup.async_s3 import AsyncS3

FORK = multiprocessing.get_context("fork")


def is_killed_after(work: Callable[[], None], requests: int) -> bool:
    """Run `work` until so many of its requests are answered; returns whether it was killed before its end."""

    def limited_work() -> None:
        kill_after(requests)
        work()

    process = FORK.Process(target=limited_work)
    process.start()
    process.join()
    assert process.exitcode in {0, -signal.SIGKILL}, f"it failed with {process.exitcode}"
    return process.exitcode != 0


def kill_after(requests: int) -> None:
    """Kill this process when so many of its requests are answered, before it sees the last answer."""
    request, send, answered = AsyncS3.request, URLLib3Session.send, itertools.count(1)

    def count_answer() -> None:
        if next(answered) == requests:
            os.kill(os.getpid(), signal.SIGKILL)

    async def counted_request(self: AsyncS3, *args: Any, **options: Any) -> Any:
        answer = await request(self, *args, **options)
        count_answer()
        return answer

    def counted_send(self: URLLib3Session, *args: Any) -> Any:
        answer = send(self, *args)
        count_answer()
        return answer

    AsyncS3.request = counted_request  # type: ignore[method-assign]
    URLLib3Session.send = counted_send
