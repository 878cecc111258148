"""What HTTP leaves to agreement: versions, methods, conditions, ranges and compression, with either parser."""

import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pytest

from lakeshare_server import app
from lakeshare_server.protocol.lines import PIECE_ROWS
from lakeshare_server.protocol.requests import matches_etag, parse_range
from lakeshare_server.routes.responses import LinesResponse, parse_weights
from lakeshare_server.storage import SigningSession
from tests.builders import plain_http
from tests.builders.sharing import (
    FLIGHTS,
    LONG,
    LONG_FILES,
    Provider,
    Running,
    a_provider_of_flights,
    a_server,
    files,
    lines,
    share_long_table,
)
from tests.security.test_held_connections import OverH11, OverHttptools

ELSEWHERE = {"X-Forwarded-For": "203.0.113.7"}
LONG_MAX = 2**63 - 1


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    provider = a_provider_of_flights(tmp_path_factory.mktemp("http"), trusted_proxies="127.0.0.1")
    share_long_table(provider)
    return provider


@pytest.fixture(scope="module")
def token(provider: Provider) -> str:
    return provider.recipient()


@pytest.fixture(scope="module", params=[OverHttptools, OverH11])
def server(provider: Provider, request: pytest.FixtureRequest) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "GuardedProtocol", request.param)
        with a_server(provider) as running:
            yield running


@pytest.fixture(scope="module")
def client(server: Running, token: str) -> Iterator[httpx.Client]:
    with server.client(token) as client:
        yield client


@pytest.fixture(scope="module")
def url(client: httpx.Client) -> str:
    return str(files(client.post(f"{FLIGHTS}/query"))[0]["url"])


def test_a_range_to_the_end_of_javas_numbers_is_a_range(url: str) -> None:
    whole = plain_http.get(url).content
    answer = plain_http.get(url, headers={"Range": f"bytes=4-{LONG_MAX}"})
    assert answer.status_code == 206
    assert answer.content == whole[4:]
    assert answer.headers["content-range"] == f"bytes 4-{len(whole) - 1}/{len(whole)}"
    assert plain_http.get(url, headers={"Range": f"bytes={LONG_MAX}-"}).status_code == 416
    assert plain_http.get(url, headers={"Range": f"bytes=-{LONG_MAX}"}).content == whole
    # Python itself refuses to make numbers of so many digits.
    assert plain_http.get(url, headers={"Range": f"bytes=0-{'9' * 5000}"}).status_code == 200


@pytest.mark.parametrize("end", [9, 10**18, LONG_MAX, 2**64, 10**30])
def test_ranges_end_with_the_file(end: int) -> None:
    found = parse_range(f"bytes=4-{end}", 10)
    assert found is not None
    assert (found.start, found.length, found.is_partial) == (4, 6, True)


def test_conditions_on_the_entity_tag_are_kept(url: str) -> None:
    etag = plain_http.head(url).headers["etag"]
    for method in ("GET", "HEAD"):
        for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
            answer = plain_http.request(method, url, headers={"If-None-Match": known})
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
        for wanted in ('"other"', "", '"a", "b"'):
            answer = plain_http.request(method, url, headers={"If-Match": wanted})
            assert answer.status_code == 412
        for headers in ({"If-None-Match": '"other"'}, {"If-Match": etag}, {"If-Match": f'"other", {etag}'}):
            assert plain_http.request(method, url, headers=headers).status_code == 200
    # If-Match goes first, and what it lets through is not asked again.
    assert plain_http.get(url, headers={"If-Match": etag, "If-None-Match": etag}).status_code == 200
    assert plain_http.get(url, headers={"If-Match": etag, "Range": "bytes=0-3"}).status_code == 206


def test_tags_are_told_apart() -> None:
    assert matches_etag('"a", "b"', '"b"')
    assert matches_etag(" * ", '"b"')
    assert not matches_etag('"ab"', '"b"')
    assert not matches_etag("b", '"b"')


@pytest.mark.parametrize(
    "path",
    [
        "/shares",
        "/shares/flights",
        "/shares/flights/schemas",
        "/shares/flights/schemas/lake/tables",
        "/shares/flights/all-tables",
        f"{FLIGHTS}/metadata",
        f"{FLIGHTS}/version",
    ],
)
def test_head_has_the_headers_of_get_and_no_body(client: httpx.Client, path: str) -> None:
    got, head = client.get(path), client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    varying = {"date", "x-request-id"}
    assert {name: value for name, value in head.headers.items() if name not in varying} == {
        name: value for name, value in got.headers.items() if name not in varying
    }
    assert client.head("/shares/hidden/schemas").status_code == 404


def raw(server: Running, token: str, version: str, path: str) -> tuple[bytes, bytes]:
    """Head and body of a query as they came, until the connection ended."""
    at = urlsplit(server.url)
    with socket.create_connection((at.hostname, at.port or 0), 30) as connection:
        connection.sendall(
            f"POST {at.path}{path} HTTP/{version}\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            "Content-Length: 2\r\nConnection: close\r\n\r\n{}".encode()
        )
        said = b""
        while piece := connection.recv(65_536):
            said += piece
    head, _, body = said.partition(b"\r\n\r\n")
    return head.lower(), body


def test_a_client_of_http_1_0_gets_no_chunks(server: Running, token: str, client: httpx.Client) -> None:
    head, body = raw(server, token, "1.0", f"{LONG}/query")
    assert head.split(b"\r\n")[0].endswith(b"200 ok")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert len(body.splitlines()) == LONG_FILES + 2
    for line in body.splitlines():
        json.loads(line)
    head, body = raw(server, token, "1.1", f"{FLIGHTS}/query")
    assert b"transfer-encoding: chunked" in head


def test_a_response_to_http_1_0_that_fails_is_reset_and_not_whole(
    server: Running, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = SigningSession.sign
    calls: list[int] = []

    def sign_once(self: SigningSession, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise OSError("the key is gone")
        return sign(self, *arguments)

    monkeypatch.setattr(SigningSession, "sign", sign_once)
    with pytest.raises(ConnectionResetError):
        raw(server, token, "1.0", f"{LONG}/query")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_lines_are_compressed_for_clients_elsewhere(client: httpx.Client, encoding: str) -> None:
    plain = client.post(f"{LONG}/query", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.headers["vary"] == "Accept-Encoding"
    with client.stream("POST", f"{LONG}/query", headers={"Accept-Encoding": encoding, **ELSEWHERE}) as answer:
        packed = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == encoding
    assert answer.headers["vary"] == "Accept-Encoding"
    assert len(packed) < len(plain.content) / 2
    if encoding == "gzip":
        text = gzip.decompress(packed)
    else:
        text = pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read()
    found = [json.loads(line) for line in text.splitlines()]
    assert [line["file"]["id"] for line in found[2:]] == [line["file"]["id"] for line in lines(plain)[2:]]


@pytest.mark.parametrize(
    ("asked", "headers"),
    [
        ("gzip, zstd", {}),  # on this host
        ("identity", ELSEWHERE),
        ("gzip;q=0, br", ELSEWHERE),
        ("", ELSEWHERE),
    ],
)
def test_lines_are_plain_on_this_host_and_for_those_who_take_no_compression(
    client: httpx.Client, asked: str, headers: dict[str, str]
) -> None:
    answer = client.post(f"{FLIGHTS}/query", headers={"Accept-Encoding": asked, **headers})
    assert "content-encoding" not in answer.headers
    assert len(lines(answer)) == 5


def test_compression_can_be_turned_off(provider: Provider, token: str) -> None:
    settings = provider.settings.model_copy(update={"compress_lines": False})
    with a_server(Provider(settings, provider.catalog)) as server, server.client(token) as client:
        answer = client.post(f"{FLIGHTS}/query", headers={"Accept-Encoding": "gzip", **ELSEWHERE})
    assert "content-encoding" not in answer.headers


def test_the_first_piece_can_be_unpacked_before_the_last_is_made() -> None:
    from lakeshare_server.routes.responses import Gzip, Zstd

    piece = b'{"file":{}}\n' * PIECE_ROWS
    packed = Gzip().encode(memoryview(piece))
    assert zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed) == piece
    encoder = Zstd()
    assert encoder.encode(memoryview(piece)) != b""
    assert LinesResponse(b"x", iter([]), {}).headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize(
    ("header", "weights"),
    [
        ("gzip, deflate;q=0.5", {"gzip": 1.0, "deflate": 0.5}),
        ("GZIP ; q=0", {"gzip": 0.0}),
        ("gzip;q=x, zstd;q=9, br;q=-1", {"gzip": 0.0, "zstd": 0.0, "br": 0.0}),
    ],
)
def test_weights_of_encodings_are_understood(header: str, weights: dict[str, float]) -> None:
    assert parse_weights(header) == weights
