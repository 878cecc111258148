"""Audit events of every request, whatever becomes of it: around the whole application, streamed bodies included.

One is written before the reply begins; another once the reply has ended, where that tells more than was known before.
"""

import asyncio
import logging
import random
import time
from datetime import UTC, datetime
from typing import Any

from fastapi import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakeshare_server.catalog import AuditEvent, AuditLog
from lakeshare_server.catalog.audit import Kind
from lakeshare_server.errors import Unavailable
from lakeshare_server.routes.context import Note
from lakeshare_server.routes.metrics import Metrics
from lakeshare_server.routes.responses import error_response, iceberg_error
from lakeshare_server.routes.traces import WATCHED_PATHS, Trace
from lakeshare_server.settings import ICEBERG_PATH

BROKEN_OFF = "CONNECTION_LOST"
FULL_S = 0.1
NO_RESPONSE = 499  # as web servers log a client that left before its answer

_log = logging.getLogger(__name__)


class AuditMiddleware:
    """Gives each request a note to fill in, and writes down what it says before the reply begins and when it ends."""

    def __init__(self, app: ASGIApp, audit: AuditLog, metrics: Metrics, *, names: bool = False) -> None:
        self.app, self.audit = app, audit
        self._metrics, self._names = metrics, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in WATCHED_PATHS:
            await self.app(scope, receive, send)
            return
        request = _Request(scope, self.audit, Trace(scope, names=self._names))

        refused: Response | None = None

        async def send_noted(message: Message) -> None:
            nonlocal refused
            if refused is not None:
                # What the application goes on to say is not for anybody.
                return
            if message["type"] == "http.response.start":
                try:
                    request.begin(message)
                except Unavailable as error:
                    refused = _refusal(scope, error)
                    await refused(scope, receive, send)
                    return
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_last:
                request.trace()
            await send(message)
            request.is_whole = is_last

        try:
            await self.app(scope, receive, send_noted)
        except Exception:
            request.fail()
            raise
        finally:
            request.end(self._metrics)
            # This connection waits, the server goes on: its health is asked for on the same thread.
            while self.audit.is_full:
                await asyncio.sleep(FULL_S)


def _refusal(scope: Scope, error: Unavailable) -> Response:
    code, later = 503, {"Retry-After": "5"}
    if scope["path"].startswith(f"{ICEBERG_PATH}/v1/"):
        return iceberg_error(code, "ServiceUnavailableException", str(error), later)
    return error_response(code, "TEMPORARILY_UNAVAILABLE", str(error), later)


class _Request:
    """A request under way, and what of it is written down already."""

    def __init__(self, scope: Scope, audit: AuditLog, span: Trace) -> None:
        self.note = Note(f"{random.getrandbits(128):032x}")
        self.is_whole = False
        self._scope, self._audit, self._span = scope, audit, span
        self._status = NO_RESPONSE
        self._told: tuple[Any, ...] | None = None
        self._began, self._at = time.monotonic(), datetime.now(UTC)
        scope.setdefault("state", {})["note"] = self.note

    def begin(self, message: Message) -> None:
        """Write the event, durably, before the first byte of the reply leaves.

        Raises:
            Unavailable: it cannot be written, so there is no reply.
        """
        self._status = message["status"]
        try:
            self._write("request")
        except OSError as error:
            self._status, self.note.error_code = 503, "TEMPORARILY_UNAVAILABLE"
            _log.critical("request %s is refused, its audit event cannot be written: %s", self.note, error)
            raise Unavailable(
                "the request cannot be recorded", "Try again; the server's log says why."
            ) from error
        message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.note.request_id.encode())]

    def fail(self) -> None:
        """Note that the reply will be the framework's last resort, which is made outside of here."""
        if self._status == NO_RESPONSE:
            self._status, self.note.error_code = 500, "INTERNAL_ERROR"

    def trace(self) -> None:
        """Tell the span what came of it, before the framework ends it with the reply."""
        note = self.note
        self._span.say(
            note.recipient,
            request_id=note.request_id,
            action=note.action,
            object=note.object_name if note.action != "read_file" else None,
            error_code=note.error_code,
            version=note.version,
            files=note.files,
            size_bytes=note.size_bytes,
        )

    def end(self, metrics: Metrics) -> None:
        """Count it, and write what came of it unless that is written already."""
        if not self.is_whole and self.note.error_code is None:
            self.note.error_code = BROKEN_OFF
        metrics.count(self.note, self._status, time.monotonic() - self._began)
        if self._told == self._outcome():
            return
        try:
            self._write("request" if self._told is None else "end")
        except OSError as error:
            _log.critical("the audit event of request %s cannot be written: %s", self.note, error)

    def _outcome(self) -> tuple[Any, ...]:
        note = self.note
        return self._status, note.error_code, note.files, note.size_bytes, note.rows

    def _write(self, kind: Kind) -> None:
        note, scope = self.note, self._scope
        client = scope.get("client")
        agent = next((value for name, value in scope["headers"] if name == b"user-agent"), None)
        self._audit.record(
            AuditEvent(
                kind=kind,
                at=datetime.now(UTC) if kind == "end" else self._at,
                recipient=note.recipient,
                principal=note.principal,
                action=note.action,
                object_name=note.object_name or (scope["path"] if note.action == "unknown" else None),
                status=self._status,
                error_code=note.error_code,
                version=note.version,
                files=note.files,
                size_bytes=note.size_bytes,
                rows=note.rows,
                request_id=note.request_id,
                ip=client[0] if client else None,
                user_agent=agent.decode("latin-1") if agent else None,
                elapsed_ms=round((time.monotonic() - self._began) * 1000),
                details=note.details,
            )
        )
        self._told = self._outcome()
