"""An audit row for every request, whatever becomes of it: around the whole application, streamed bodies included."""

import asyncio
import random
import time
from datetime import UTC, datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakeshare_server.catalog import AuditEntry, AuditLog
from lakeshare_server.routes.context import Note

WATCHED_PATHS = frozenset({"/healthz", "/readyz"})
BROKEN_OFF = "CONNECTION_LOST"
FULL_S = 0.1
NO_RESPONSE = 499  # as web servers log a client that left before its answer
LONGEST = {"recipient": 255, "principal": 255, "ip": 64, "user_agent": 1000, "object_name": 4000}


class AuditMiddleware:
    """Gives each request a note to fill in, and writes it down when the answer has ended."""

    def __init__(self, app: ASGIApp, audit: AuditLog) -> None:
        self.app, self.audit = app, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in WATCHED_PATHS:
            await self.app(scope, receive, send)
            return
        note = Note(f"{random.getrandbits(128):032x}")
        scope.setdefault("state", {})["note"] = note
        status, is_whole = NO_RESPONSE, False
        began, at = time.monotonic(), datetime.now(UTC)

        async def send_noted(message: Message) -> None:
            nonlocal status, is_whole
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", note.request_id.encode()),
                ]
            await send(message)
            is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self.app(scope, receive, send_noted)
        except Exception:
            if status == NO_RESPONSE:
                # The error's response is made outside of here, by the framework's last resort.
                status, note.error_code = 500, "INTERNAL_ERROR"
            raise
        finally:
            if not is_whole and note.error_code is None:
                note.error_code = BROKEN_OFF
            await self._write_down(_entry(note, scope, status, at, time.monotonic() - began))

    async def _write_down(self, entry: AuditEntry) -> None:
        try:
            # This request waits, the server goes on: its health is asked for on the same thread.
            while self.audit.is_full:
                await asyncio.sleep(FULL_S)
        finally:
            self.audit.record(entry)


def _entry(note: Note, scope: Scope, status: int, at: datetime, elapsed_s: float) -> AuditEntry:
    client = scope.get("client")
    agent = next((value for name, value in scope["headers"] if name == b"user-agent"), None)
    return AuditEntry(
        at=at,
        recipient=_text(note.recipient, "recipient"),
        principal=_text(note.principal, "principal"),
        action=note.action,
        object_name=_text(
            note.object_name or (scope["path"] if note.action == "unknown" else None), "object_name"
        ),
        status=status,
        error_code=note.error_code,
        version=note.version,
        files=note.files,
        request_id=note.request_id,
        ip=_text(client[0] if client else None, "ip"),
        user_agent=_text(agent.decode("latin-1") if agent else None, "user_agent"),
        elapsed_ms=round(elapsed_s * 1000),
    )


def _text(value: str | None, column: str) -> str | None:
    """What a database takes as text: of bounded length, without NUL and halves of surrogate pairs."""
    if value is None:
        return None
    return value[: LONGEST[column]].replace("\x00", "�").encode("utf-8", "replace").decode()
