"""Without a valid token nobody holds a connection: refused requests end it, and an address has only so many."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lakeshare_server import app
from lakeshare_server.access.rate_limit import TrustedProxies
from lakeshare_server.routes.responses import BoundedConnection, ConnectionLimits
from tests.builders import plain_http
from tests.builders.sharing import Provider, Running, a_provider, a_server
from tests.builders.waiting import wait_until

SLOW_S = 0.5
PER_ADDRESS = 20
PATIENCE_S = 20


class OverHttptools(BoundedConnection, HttpToolsProtocol):
    """As the server runs where httptools is installed."""


class OverH11(BoundedConnection, H11Protocol):
    """As it runs elsewhere."""


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    settings = {"slow_client_s": SLOW_S, "connections_per_address": PER_ADDRESS}
    return a_provider(tmp_path_factory.mktemp("held"), **settings)


@pytest.fixture(scope="module", params=[OverHttptools, OverH11])
def server(provider: Provider, request: pytest.FixtureRequest) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "GuardedProtocol", request.param)
        with a_server(provider) as running:
            yield running


@contextmanager
def connected(server: Running) -> Iterator[socket.socket]:
    at = urlsplit(server.url)
    with socket.create_connection((at.hostname, at.port or 0), PATIENCE_S) as connection:
        yield connection


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.02)
    try:
        return connection.recv(65_536) == b""
    except TimeoutError:
        return False
    except (ConnectionResetError, BrokenPipeError):
        return True


def ends(connection: socket.socket, send: Callable[[], object] = lambda: None) -> None:
    """The server closes its end, and then takes nothing more, whatever is sent meanwhile."""

    def is_over() -> bool:
        with suppress(ConnectionResetError, BrokenPipeError):
            send()
        return is_closed(connection)

    wait_until(is_over)


HEADS = {
    "no token": "POST /delta-sharing/shares/a/schemas/b/tables/c/query HTTP/1.1",
    "no route": "POST /nothing HTTP/1.1",
    "a page": "GET /delta-sharing/shares HTTP/1.1",
    "an answer": "GET /healthz HTTP/1.1",
}
FRAMINGS = ["Content-Length: 1000000", "Transfer-Encoding: chunked"]


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("head", HEADS)
def test_a_body_that_never_arrives_is_not_waited_for(server: Running, head: str, framing: str) -> None:
    with connected(server) as connection:
        connection.sendall(f"{HEADS[head]}\r\nHost: x\r\n{framing}\r\n\r\n".encode())
        first = connection.recv(65_536)
        assert first.startswith(b"HTTP/1.1 ")
        assert b"\r\nconnection: close\r\n" in first.lower()
        ends(connection)


@pytest.mark.parametrize("sent", [b"1", b"\r\n"])
def test_a_body_that_drips_is_not_waited_for(server: Running, sent: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(f"{HEADS['no token']}\r\nHost: x\r\n{FRAMINGS[0]}\r\n\r\n".encode())
        assert connection.recv(65_536).startswith(b"HTTP/1.1 401")
        connection.sendall(sent)
        ends(connection)
    with connected(server) as connection:
        connection.sendall(f"{HEADS['no token']}\r\nHost: x\r\n{FRAMINGS[0]}\r\n\r\n".encode())
        ends(connection, lambda: connection.sendall(sent))


def test_empty_lines_between_requests_are_not_waited_for(server: Running) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"\r\n")
        ends(connection)
    with connected(server) as connection:
        ends(connection, lambda: connection.sendall(b"\r\n"))


def test_a_client_that_is_still_sending_reads_the_refusal(server: Running) -> None:
    size = 8 << 20
    with connected(server) as connection:
        sending = threading.Thread(target=quietly, args=(connection, bytes(size)))
        connection.sendall(f"{HEADS['no token']}\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
        sending.start()
        said = b""
        while piece := connection.recv(65_536):
            said += piece
        sending.join()
    assert said.startswith(b"HTTP/1.1 401")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["errorCode"] == "UNAUTHENTICATED"


def quietly(connection: socket.socket, content: bytes) -> None:
    with suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(content)


def test_a_refusal_after_a_whole_body_keeps_the_connection(server: Running) -> None:
    with connected(server) as connection:
        for _ in range(3):
            connection.sendall(f"{HEADS['no token']}\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            # Its head and its body may arrive one after the other.
            with HTTPResponse(connection) as response:
                response.begin()
                assert response.status == 401
                assert response.getheader("connection") != "close"
                assert json.loads(response.read())["errorCode"] == "UNAUTHENTICATED"


@pytest.mark.parametrize(
    "sent", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n"]
)
def test_what_is_no_http_is_refused_as_the_protocol_refuses(server: Running, sent: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(sent)
        said = b""
        while piece := connection.recv(65_536):
            said += piece
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/json; charset=utf-8" in head.lower()
    assert b"connection: close" in head.lower()
    assert json.loads(body)["errorCode"] == "MALFORMED_REQUEST"


def test_an_address_has_so_many_connections(server: Running) -> None:
    def answers() -> int | None:
        with suppress(httpx.TransportError):
            return plain_http.get(f"{server.url.removesuffix('/delta-sharing')}/healthz").status_code
        return None

    wait_until(lambda: answers() == 200)
    with ExitStack() as opened:
        held = [opened.enter_context(connected(server)) for _ in range(PER_ADDRESS)]
        # They are accepted in order: once the last one is waited for, all are counted.
        deadline = time.monotonic() + PATIENCE_S
        while (status := answers()) != 429:
            assert time.monotonic() < deadline
            for connection in held:
                with suppress(OSError):
                    connection.sendall(b"G")
            held += [opened.enter_context(connected(server)) for _ in range(PER_ADDRESS)]
        assert status == 429
        with connected(server) as refused:
            said = b""
            with suppress(ConnectionResetError):
                while piece := refused.recv(65_536):
                    said += piece
        if said:
            head, _, body = said.partition(b"\r\n\r\n")
            assert b"retry-after: 5" in head.lower()
            assert json.loads(body)["errorCode"] == "REQUEST_LIMIT_EXCEEDED"
    wait_until(lambda: answers() == 200)


def test_connections_are_counted_by_address_but_not_those_of_named_proxies() -> None:
    limits = ConnectionLimits(1, 2, TrustedProxies("10.0.0.5"))
    assert [limits.enter("192.0.2.1") for _ in range(3)] == [True, True, False]
    assert limits.enter("192.0.2.2")
    assert all(limits.enter("10.0.0.5") for _ in range(5))
    # Whoever has one address of IPv6 has all of its network.
    assert [limits.enter(f"2001:db8::{number}") for number in range(3)] == [True, True, False]
    limits.leave("192.0.2.1")
    assert limits.enter("192.0.2.1")
    assert not limits.enter("192.0.2.1")


def test_many_requests_without_a_token_leave_no_connection_behind(server: Running, tmp_path: Path) -> None:
    with ExitStack() as opened:
        held = [opened.enter_context(connected(server)) for _ in range(PER_ADDRESS - 5)]
        for connection in held:
            connection.sendall(f"{HEADS['no token']}\r\nHost: x\r\n{FRAMINGS[0]}\r\n\r\n".encode())
        for connection in held:
            assert connection.recv(65_536).startswith(b"HTTP/1.1 4")
            quietly(connection, b"1")
        for connection in held:
            ends(connection)
