"""Catalogs of many rows, written at once, servers over them, and one connection that measures single requests."""

import os
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from bench.server.load import BUFFER_BYTES, Body
from bench.server.processes import Running
from bench.server.stage import SERVE
from lakeshare_server.catalog.credentials import new_token, token_digest
from lakeshare_server.catalog.models import RecipientRow, TokenRow

ROWS_AT_ONCE = 5_000


@dataclass(frozen=True)
class TokenHolder:
    """A recipient's token, and a share that it was granted."""

    token: str
    share: str


def add_rows(session: Session, model: Any, rows: Iterable[Mapping[str, Any]]) -> None:
    """Inserts rows of a model, some thousand with each statement."""
    left = iter(rows)
    while some := list(islice(left, ROWS_AT_ONCE)):
        session.execute(insert(model), some)


def add_recipients(session: Session, count: int, now: datetime) -> dict[int, str]:
    """Adds recipients, each with a token; returns the tokens by the keys of recipients."""
    add_rows(
        session,
        RecipientRow,
        ({**named_row(f"r{one}", now), "authentication": "TOKEN"} for one in range(count)),
    )
    keys = session.scalars(select(RecipientRow.key).order_by(RecipientRow.key))
    tokens = {key: new_token() for key in keys}
    add_rows(
        session,
        TokenRow,
        (
            {
                "id": str(uuid.uuid4()),
                "recipient_key": key,
                "digest": token_digest(token),
                "created_at": now,
                "kind": "bearer",
            }
            for key, token in tokens.items()
        ),
    )
    return tokens


def named_row(name: str, now: datetime) -> dict[str, Any]:
    """The columns that all objects with a name have."""
    return {
        "id": str(uuid.uuid4()),
        "name": name,
        "name_key": name,
        "created_at": now,
        "revision": 1,
        "applied": False,
    }


@contextmanager
def serving(state_dir: Path, *arguments: str, **environment: str) -> Iterator[Running]:
    """A server over a state folder, with more settings from `environment`."""
    whole = {**os.environ, "LAKESHARE_STATE_DIR": str(state_dir), **environment}
    server = Running([*SERVE, *arguments], whole, state_dir / "server.log")
    try:
        yield server
    finally:
        server.stop()


class Connection:
    """One connection that is kept, so that little but the server's own time is measured."""

    def __init__(self, server: Running) -> None:
        self._prefix = server.prefix
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(BUFFER_BYTES)

    def seconds(self, path: str, token: str, body: str | None = None) -> float:
        """Requests a path below the protocol's root; returns the seconds until the response is whole.

        Raises:
            RuntimeError: the response is not 200.
        """
        method, content = ("GET", "") if body is None else ("POST", body)
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        response = Body()
        began = time.perf_counter()
        self._socket.sendall(f"{head}\r\n{content}".encode())
        while not response.is_whole:
            size = self._socket.recv_into(self._buffer)
            if not size:
                raise RuntimeError(f"{path} was cut off")
            response.take(self._buffer, size)
        elapsed_s = time.perf_counter() - began
        if not response.head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{path}: {response.head.decode('latin-1')}")
        return elapsed_s

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()
