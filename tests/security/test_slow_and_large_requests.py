"""A client that sends too much, too slowly or never to the end is cut off; nobody else waits for it."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest

from lakeshare_server.routes.responses import MAX_HEAD_BYTES
from tests.builders import plain_http
from tests.builders.lake_tables import a_delta_table
from tests.builders.sharing import FLIGHTS, Provider, Running, a_provider, a_server

SLOW_S = 0.5
MOST_BODY = 10_000
# Long enough for a busy machine; what is waited for comes far sooner.
PATIENCE_S = 20


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    folder = tmp_path_factory.mktemp("slow")
    provider = a_provider(folder, slow_client_s=SLOW_S, max_body_bytes=MOST_BODY)
    provider.publish_delta("lake.flights", a_delta_table(folder / "table"))
    provider.share("lake.flights")
    return provider


@pytest.fixture(scope="module")
def token(provider: Provider) -> str:
    return provider.recipient("slow")


@pytest.fixture(scope="module")
def server(provider: Provider) -> Iterator[Running]:
    with a_server(provider) as running:
        yield running


@contextmanager
def connected(server: Running) -> Iterator[socket.socket]:
    at = urlsplit(server.url)
    with socket.create_connection((at.hostname, at.port or 0), PATIENCE_S) as connection:
        yield connection


def read_until(connection: socket.socket, text: bytes) -> bytes:
    """What comes until it has the text: head and body of a response may come apart; less when the server closes."""
    received = b""
    while text not in received and (piece := connection.recv(65_536)):
        received += piece
    return received


def answer_to_the_end(connection: socket.socket) -> bytes:
    """What comes until the server closes; a TimeoutError when it does not."""
    said = b""
    try:
        while piece := connection.recv(65_536):
            said += piece
    except (ConnectionResetError, BrokenPipeError):
        # It was still being sent to: that is how a closed connection looks from here.
        pass
    return said


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(SLOW_S / 20)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def head(server: Running, token: str, *more: str, path: str = f"{FLIGHTS}/query") -> bytes:
    at = urlsplit(server.url)
    lines = [
        f"POST {at.path}{path} HTTP/1.1",
        f"Host: {at.netloc}",
        f"Authorization: Bearer {token}",
        *more,
        "",
        "",
    ]
    return "\r\n".join(lines).encode()


def polls(server: Running, token: str) -> int:
    answer = plain_http.get(
        f"{server.url}{FLIGHTS}/version", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S
    )
    return answer.status_code


@pytest.mark.parametrize("sent", [b"", b"GET ", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_headers_that_do_not_end_are_waited_for_as_long_as_is_set(server: Running, sent: bytes) -> None:
    began = time.monotonic()
    with connected(server) as connection:
        connection.sendall(sent)
        assert answer_to_the_end(connection) == b""
    assert time.monotonic() - began >= SLOW_S * 0.9


def test_headers_that_come_byte_by_byte_do_not_get_more_time(server: Running) -> None:
    began = time.monotonic()
    with connected(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        while not is_closed(connection):
            assert time.monotonic() - began < PATIENCE_S
            with suppress(ConnectionResetError, BrokenPipeError):
                connection.sendall(b"x")
    assert time.monotonic() - began >= SLOW_S * 0.9


def test_the_second_request_of_a_connection_is_waited_for_no_longer_than_the_first(
    server: Running, token: str
) -> None:
    with connected(server) as connection:
        connection.sendall(head(server, token, "Content-Length: 0", path=f"{FLIGHTS}/nothing"))
        assert connection.recv(65_536).startswith(b"HTTP/1.1 404")
        connection.sendall(b"GET /delta-sharing/shares HTTP/1.1\r\nX-Slow: ")
        began = time.monotonic()
        answer_to_the_end(connection)
        assert SLOW_S * 0.9 <= time.monotonic() - began < PATIENCE_S


def test_a_flood_of_headers_ends_early(server: Running, token: str) -> None:
    with connected(server) as connection:
        sent = 0
        try:
            connection.sendall(head(server, token)[:-2])
            while sent < 100 * MAX_HEAD_BYTES:
                connection.sendall(b"X-Flood: " + b"x" * 1000 + b"\r\n")
                sent += 1000
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert sent < 100 * MAX_HEAD_BYTES
    assert polls(server, token) == 200


def test_a_header_of_great_length_is_refused(server: Running, token: str) -> None:
    with connected(server) as connection:
        with suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(head(server, token)[:-2] + b"X-Long: " + b"x" * 10 * MAX_HEAD_BYTES)
        said = answer_to_the_end(connection)
    assert said == b"" or said.startswith(b"HTTP/1.1 400")


def test_a_body_that_does_not_come_is_refused_in_time_and_others_are_answered_meanwhile(
    server: Running, token: str
) -> None:
    with connected(server) as connection:
        connection.sendall(head(server, token, "Content-Length: 100") + b'{"limitHint"')
        assert [polls(server, token) for _ in range(5)] == [200] * 5
        received = read_until(connection, b"did not arrive within")
    assert received.startswith(b"HTTP/1.1 400")
    assert b"did not arrive within" in received


@pytest.mark.parametrize("framing", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
def test_a_body_of_great_size_is_refused_before_its_end(server: Running, token: str, framing: str) -> None:
    piece, reason = b"x" * 5000, f"larger than {MOST_BODY} bytes".encode()
    if "chunked" in framing:
        piece = b"1388\r\n" + piece + b"\r\n"
    with connected(server) as connection:
        connection.sendall(head(server, token, framing) + piece * 3)
        received = read_until(connection, reason)
    assert received.startswith(b"HTTP/1.1 400")
    assert reason in received


def test_a_body_without_a_valid_token_is_not_read(server: Running) -> None:
    with connected(server) as connection:
        connection.sendall(head(server, "invented", "Content-Length: 1000000"))
        assert connection.recv(65_536).startswith(b"HTTP/1.1 401")


def test_many_silent_clients_keep_nobody_waiting(server: Running, token: str) -> None:
    at = urlsplit(server.url)
    silent = [socket.create_connection((at.hostname, at.port or 0), PATIENCE_S) for _ in range(200)]
    try:
        for connection in silent:
            connection.sendall(b"GET / HTTP/1.1\r\nX")
        assert [polls(server, token) for _ in range(5)] == [200] * 5
        for connection in silent:
            assert answer_to_the_end(connection) == b""
    finally:
        for connection in silent:
            connection.close()
