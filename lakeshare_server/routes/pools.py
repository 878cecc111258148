"""Threads for requests whose tables are outside of this process: a pool for each store and catalog (a bulkhead).

The pool that all other synchronous work shares never waits for a store: a request for a table in one runs in that
store's own pool, queues for it on the event loop, and is answered 503 when its deadline passes. The work itself goes on
then: an index that takes long is there when the client asks again.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial, wraps
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi.concurrency import run_in_threadpool

from lakeshare_server.errors import Unavailable
from lakeshare_server.outbound import LATER, PAUSE_S

if TYPE_CHECKING:
    from lakeshare_server.routes.context import AskedTable

# Threads of one pool. What they do waits for the store, or computes under the interpreter's lock.
THREADS = 16
# What may look at tables of several stores, or wait for the database to write, in one request.
LISTINGS, READINESS = ("listings",), ("readiness",)
# Tokens of OIDC issuers, and those from addresses that have tried too many wrong ones.
ISSUERS, GUESSING = ("issuers",), ("guessing",)

Result = TypeVar("Result")


class Pools:
    """The pools of this process, each made when it is first used."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._executors: dict[tuple[str, ...], ThreadPoolExecutor] = {}
        self._turn = Lock()

    async def run(self, services: Sequence[str], work: Callable[..., Result], *arguments: Any) -> Result:
        """Run `work` where waiting for these services delays nobody else; for none of them, in the shared pool.

        Raises:
            Unavailable: it did not end in time. It goes on, but nobody waits for it.
        """
        if not services:
            return await run_in_threadpool(work, *arguments)
        call = partial(copy_context().run, work, *arguments)
        running = asyncio.get_running_loop().run_in_executor(self.executor(services), call)
        try:
            async with asyncio.timeout(self._within_s) as deadline:
                return await running
        except TimeoutError:
            if not deadline.expired():
                raise
            what = f"{' and '.join(services)} did not answer within {self._within_s:g} seconds"
            raise Unavailable(what, LATER, math.ceil(PAUSE_S)) from None

    def executor(self, services: Sequence[str]) -> ThreadPoolExecutor:
        """The threads for work that needs these services."""
        key = tuple(services)
        found = self._executors.get(key)
        if found is None:
            with self._turn:
                found = self._executors.get(key) or ThreadPoolExecutor(THREADS, "-".join(key))
                self._executors[key] = found
        return found

    def close(self) -> None:
        """Start nothing new; what is running ends by itself."""
        for executor in self._executors.values():
            executor.shutdown(wait=False, cancel_futures=True)


def in_table_pool(route: Callable[..., Result]) -> Callable[..., Awaitable[Result]]:
    """A synchronous route of a table, whose first parameter is `by`, run in the pool of the table's services."""

    @wraps(route)
    async def pooled(by: "AskedTable", **named: Any) -> Result:
        return await by.run(partial(route, by, **named))

    return pooled
