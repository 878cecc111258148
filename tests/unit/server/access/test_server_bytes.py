"""The byte endpoint serves exactly the bytes asked for of exactly the file that was signed, to GET, HEAD and Range."""

import json
import os
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from lakeshare_server.access.allowed_locations import FileTickets
from lakeshare_server.access.table_access import TableViews
from lakeshare_server.catalog import Credentials
from lakeshare_server.storage import LocalSigner, Stores, load_key
from lakeshare_server.versions import Versions
from tests.builders import plain_http
from tests.builders.sharing import Provider, Running, a_provider, a_server

CONTENT = bytes(range(256)) * 10_000
SIZE = len(CONTENT)
# Of bob, by state folder.
TOKENS: dict[Path, str] = {}


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    provider = a_provider(tmp_path_factory.mktemp("bytes"))
    provider.share("lake.flights")
    TOKENS[provider.settings.state_dir] = provider.recipient()
    return provider


@pytest.fixture(scope="module")
def server(provider: Provider) -> Iterator[Running]:
    with a_server(provider) as running:
        yield running


@pytest.fixture(scope="module")
def folder(provider: Provider) -> Path:
    return provider.settings.state_dir


@pytest.fixture(scope="module")
def url(provider: Provider, server: Running, folder: Path) -> str:
    (folder / "a file ü%20.parquet").write_bytes(CONTENT)
    return signed(provider, server, folder / "a file ü%20.parquet")


def signed(provider: Provider, server: Running, path: Path, life_s: float = 60) -> str:
    """A URL for a file of the folder, as bob would have it from a query."""
    key, catalog = load_key(provider.settings), provider.catalog
    views = TableViews(catalog, Versions(catalog, provider.settings, Stores(provider.settings)))
    access = Credentials(catalog).by_token(TOKENS[provider.settings.state_dir])
    assert access is not None
    view = views.table(access.reader, "flights", "lake", "flights")
    folder = provider.settings.state_dir
    ticket = FileTickets(key, catalog, views).issue(access.reader, access.credential_id, view, str(folder))
    name = os.fsencode(path).removeprefix(os.fsencode(folder) + b"/")
    signer = LocalSigner(key, server.url + "/files")
    [url] = signer.sign_all([name], ticket, int((time.time() + life_s) * 1000)).to_pylist()
    return url


def test_get_gives_the_whole_file(url: str) -> None:
    answer = plain_http.get(url)
    assert answer.status_code == 200
    assert answer.content == CONTENT
    assert answer.headers["accept-ranges"] == "bytes"
    assert int(answer.headers["content-length"]) == SIZE


def test_head_gives_the_size_and_nothing_else(url: str) -> None:
    answer = plain_http.head(url)
    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) == SIZE
    assert answer.content == b""


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-3", 0, 4),
        ("bytes=100-", 100, SIZE),
        ("bytes=-8", SIZE - 8, SIZE),
        (f"bytes=-{SIZE * 2}", 0, SIZE),
        (f"bytes={SIZE - 1}-{SIZE * 2}", SIZE - 1, SIZE),
        (f"bytes=1048000-{2 * 1048577}", 1048000, 2 * 1048577 + 1),
        ("Bytes = 5 - 6", 5, 7),
    ],
)
def test_a_range_gives_206_and_those_bytes(url: str, asked: str, start: int, end: int) -> None:
    answer = plain_http.get(url, headers={"Range": asked})
    assert answer.status_code == 206
    assert answer.content == CONTENT[start:end]
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{SIZE}"
    assert int(answer.headers["content-length"]) == end - start


@pytest.mark.parametrize("asked", [f"bytes={SIZE}-", f"bytes={SIZE}-{SIZE + 5}", "bytes=-0"])
def test_a_range_outside_the_file_gives_416_and_the_size(url: str, asked: str) -> None:
    answer = plain_http.get(url, headers={"Range": asked})
    assert answer.status_code == 416
    assert answer.headers["content-range"] == f"bytes */{SIZE}"
    assert answer.json()["errorCode"] == "INVALID_PARAMETER_VALUE"


@pytest.mark.parametrize(
    "asked", ["bytes=5-3", "bytes=", "bytes=-", "lines=0-1", "bytes=0-1,4-5", "nonsense", ""]
)
def test_a_range_that_is_none_gives_the_whole_file(url: str, asked: str) -> None:
    answer = plain_http.get(url, headers={"Range": asked})
    assert answer.status_code == 200
    assert len(answer.content) == SIZE


def test_a_range_of_a_file_that_changed_gives_the_whole_new_file(url: str) -> None:
    etag = plain_http.head(url).headers["etag"]
    same = plain_http.get(url, headers={"Range": "bytes=0-3", "If-Range": etag})
    other = plain_http.get(url, headers={"Range": "bytes=0-3", "If-Range": '"older"'})
    assert (same.status_code, other.status_code) == (206, 200)


def test_an_empty_file_is_served(provider: Provider, server: Running, folder: Path) -> None:
    (folder / "empty").write_bytes(b"")
    url = signed(provider, server, folder / "empty")
    assert plain_http.get(url).content == b""
    assert plain_http.get(url, headers={"Range": "bytes=0-"}).status_code == 416


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("%20ü", "x"),
        ("?expires=", "?recipient=bob&expires=9&"),
        ("X-Amz-Signature=", "X-Amz-Signature=0"),
        ("X-Amz-Signature=", "signature="),
        ("expires=", "expires=9"),
        ("expires=", "expires=-"),
        ("expires=", "expires=%D9%A3"),
        ("/files/", "/files/x"),
        ("a%20file", "%61%20file/../a%20file"),
        ("a%20file", "..%2Fa%20file"),
    ],
)
def test_a_url_that_was_changed_is_denied(url: str, part: str, changed: str) -> None:
    part = part if part in url else part.replace("%20ü", "%C3%BC")
    assert part in url
    status, body = raw_get(url.replace(part, changed, 1))
    assert status == 403
    assert json.loads(body)["errorCode"] == "PERMISSION_DENIED"


def raw_get(url: str) -> tuple[int, bytes]:
    """Status and body for the URL as it is: other clients fold `..` away before they ask."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        connection.request("GET", url.removeprefix(f"http://{urlsplit(url).netloc}"))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/etc/passwd", "//etc/passwd", "/", "", "/../../etc/passwd", "/%00"])
def test_nothing_is_served_without_a_signature(server: Running, path: str) -> None:
    status, body = raw_get(f"{server.url}/files{path}")
    assert status in (403, 404)
    assert b"root:" not in body


def test_an_ended_url_is_denied(provider: Provider, server: Running, folder: Path) -> None:
    (folder / "late").write_bytes(b"x")
    answer = plain_http.get(signed(provider, server, folder / "late", life_s=-1))
    assert answer.status_code == 403
    assert "expired" in answer.json()["message"]


def test_what_is_gone_or_no_file_is_not_found_and_no_path_is_told(
    provider: Provider, server: Running, folder: Path
) -> None:
    os.mkfifo(folder / "pipe")
    for path in (folder / "gone.parquet", folder, folder / "pipe"):
        answer = plain_http.get(signed(provider, server, path), timeout=10)
        assert answer.status_code == 404
        assert str(folder.parent) not in answer.text


def test_a_folder_in_a_files_place_keeps_nothing_open(
    provider: Provider, server: Running, folder: Path
) -> None:
    url = signed(provider, server, folder)
    with httpx.Client(verify=False) as client:
        client.get(url)
        before = open_files()
        for _ in range(40):
            client.get(url)
        assert open_files() < before + 40


def open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def test_other_methods_are_refused(url: str) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert plain_http.request(method, url).status_code == 405


def test_a_client_that_leaves_early_disturbs_nobody(url: str) -> None:
    for _ in range(5):
        with plain_http.stream("GET", url) as answer:
            next(answer.iter_raw(10))
    assert plain_http.get(url, headers={"Range": "bytes=0-3"}).content == CONTENT[:4]
