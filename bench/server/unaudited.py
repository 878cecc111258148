"""Our server in other ways of keeping its audit log, to measure what ours costs.

Run by the benchmark as `python -m bench.server.unaudited nothing|commits`: nothing is kept at all, or every reply waits
for the transaction that brings its event into the database, shared by all that wait at that moment.
"""

import asyncio
import sys
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakeshare_server.app import make_server
from lakeshare_server.catalog import AuditEvent
from lakeshare_server.catalog.audit.log import append_events
from lakeshare_server.routes import errors
from lakeshare_server.settings import ServerSettings


def keep_nothing() -> None:
    """Make no events."""

    def mark_written(self: errors._AuditedRequest, _kind: str) -> None:
        self._written = self._outcome()

    errors._AuditedRequest._write = mark_written  # type: ignore[method-assign]


class Commits:
    """One transaction at a time; whoever comes meanwhile shares the next."""

    def __init__(self, write: Callable[[list[AuditEvent]], None]) -> None:
        self._write = write
        self._waiting: list[tuple[AuditEvent, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    def take(self, event: AuditEvent) -> asyncio.Future[None]:
        """Take an event; done when it is committed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append((event, future))
        if self._task is None:
            self._task = loop.create_task(self._run())
        return future

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            await asyncio.get_running_loop().run_in_executor(None, self._write, [event for event, _ in batch])
            for _, future in batch:
                future.set_result(None)
        self._task = None


class WaitForCommit:
    """Around the audit's own middleware: holds the beginning of a reply back until its event is committed."""

    def __init__(self, app: ASGIApp, commits: Commits, taken: list[AuditEvent]) -> None:
        self._app, self._commits, self._taken = app, commits, taken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_committed(message: Message) -> None:
            if message["type"] == "http.response.start" and self._taken:
                await self._commits.take(self._taken.pop())
            await send(message)

        await self._app(scope, receive, send_committed)


def main() -> None:
    """Serve until killed."""
    way = sys.argv[1]
    if way == "nothing":
        keep_nothing()
    server, listening = make_server(ServerSettings(port=0), lambda url: print(f"ready {url}", flush=True))
    if way == "commits":
        app = server.config.app
        parts = app.state.app_state  # type: ignore[union-attr]  # it is ours
        taken: list[AuditEvent] = []

        def write(events: list[AuditEvent]) -> None:
            with parts.catalog.writing(seen=False) as session:
                append_events(session, events)

        parts.audit.record = taken.append
        app.add_middleware(WaitForCommit, commits=Commits(write), taken=taken)  # type: ignore[union-attr]
    with listening:
        server.run(sockets=[listening])


if __name__ == "__main__":
    main()
