"""A symbolic link in a table's folder hands out nothing that lies outside of the folder, whatever names it."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakeshare_server.errors import NotFound
from lakeshare_server.routes.files import open_file
from tests.builders import plain_http
from tests.builders.lake_tables import an_iceberg_table
from tests.builders.sharing import Provider, a_provider, a_server, lines
from tests.builders.written_log import FEED, WrittenLog, metadata, protocol

SECRET = b"a file that was never shared"
SHARED = b"a file of the table"
TABLE = "/shares/flights/schemas/lake/tables/orders"
CAPABILITIES = {
    "delta-sharing-capabilities": "responseformat=delta;readerfeatures=deletionvectors,columnmapping"
}


def file_link(table: Path, outside: Path) -> str:
    (table / "link.parquet").symlink_to(outside / "secret.parquet")
    return "link.parquet"


def relative_link(table: Path, outside: Path) -> str:
    (table / "link.parquet").symlink_to(f"../{outside.name}/secret.parquet")
    return "link.parquet"


def folder_link(table: Path, outside: Path) -> str:
    (table / "p=1").symlink_to(outside)
    return "p=1/secret.parquet"


def chain(table: Path, outside: Path) -> str:
    (table / "second").symlink_to(outside)
    (table / "first").symlink_to("second")
    (table / "link.parquet").symlink_to("first/secret.parquet")
    return "link.parquet"


LINKS = [file_link, relative_link, folder_link, chain]


def followed(folder: Path, link: Callable[[Path, Path], str], **settings: Any) -> Provider:
    """A Delta table whose only file, whose deletion vector and whose change file are behind the link."""
    outside = folder / "outside"
    outside.mkdir(parents=True)
    (outside / "secret.parquet").write_bytes(SECRET)
    provider = a_provider(folder, **settings)
    log = WrittenLog(folder / "orders")
    name = link(log.location, outside)
    described = {"partitionValues": {"p": "1"}, "size": len(SECRET), "dataChange": True}
    vector = {
        "storageType": "p",
        "pathOrInlineDv": f"file://{log.location}/{name}",
        "offset": 1,
        "sizeInBytes": 10,
        "cardinality": 1,
    }
    log.commit(
        protocol(features=("deletionVectors", "changeDataFeed")),
        metadata(FEED),
        {"add": {**described, "path": name, "modificationTime": 1, "deletionVector": vector}},
        {"cdc": {**described, "path": name, "dataChange": False}},
    )
    provider.follow("lake.orders", log.location)
    provider.share("lake.orders")
    return provider


def signed(provider: Provider) -> list[httpx.Response]:
    """What the server's own URLs answer, of a query and of the changes."""
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        client.headers.update(CAPABILITIES)
        answers = [client.post(f"{TABLE}/query", json={}), client.get(f"{TABLE}/changes?startingVersion=0")]
        found = [url for answer in answers for line in lines(answer) for url in urls_in(line)]
        assert found
        return [plain_http.get(url) for url in found]


def urls_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [url for one in value.values() for url in urls_in(one)]
    return [value] if isinstance(value, str) and value.startswith("http") else []


@pytest.mark.parametrize("link", LINKS)
def test_data_vectors_and_changes_behind_a_link_are_not_served(
    tmp_path: Path, link: Callable[[Path, Path], str], caplog: pytest.LogCaptureFixture
) -> None:
    answers = signed(followed(tmp_path, link))
    assert len(answers) == 3, "a file, its deletion vector and a change file"
    for answer in answers:
        assert answer.status_code == 404
        assert SECRET not in answer.content
        assert str(tmp_path) not in answer.text
    assert "LAKESHARE_FILES_ALSO_IN" in caplog.text


def test_a_link_within_the_table_and_one_to_an_allowed_folder_are_served(tmp_path: Path) -> None:
    def within(table: Path, _outside: Path) -> str:
        (table / "data").mkdir()
        (table / "data" / "file.parquet").write_bytes(SHARED)
        (table / "link.parquet").symlink_to("data/file.parquet")
        return "link.parquet"

    assert {answer.content for answer in signed(followed(tmp_path / "one", within))} == {SHARED}
    allowed = followed(tmp_path / "two", file_link, files_also_in=str(tmp_path / "two" / "outside"))
    assert {answer.content for answer in signed(allowed)} == {SECRET}


def test_a_table_whose_folder_is_a_link_is_served(tmp_path: Path) -> None:
    provider = followed(tmp_path, lambda table, _: (table / "file").write_bytes(SHARED) and "file")
    (tmp_path / "orders").rename(tmp_path / "moved")
    (tmp_path / "orders").symlink_to(tmp_path / "moved")
    assert {answer.content for answer in signed(provider)} == {SHARED}


def test_a_data_file_of_an_iceberg_table_behind_a_link_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    table = an_iceberg_table(tmp_path / "warehouse")
    provider = a_provider(tmp_path)
    provider.publish_iceberg("lake.orders", table.state())
    provider.share("lake.orders")
    for number, file in enumerate(sorted((tmp_path / "warehouse").rglob("*.parquet"))):
        moved = tmp_path / "outside" / f"{number}.parquet"
        file.rename(moved)
        file.symlink_to(moved)
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        urls = [url for line in lines(client.post(f"{TABLE}/query", json={})) for url in urls_in(line)]
        assert urls
        assert {plain_http.get(url).status_code for url in urls} == {404}
        preview = plain_http.get(
            server.url.replace("/delta-sharing", "/portal/api/tables/flights/lake/orders/preview"),
            headers=client.headers,
        )
        assert b'"rows"' not in preview.content


def test_a_link_that_changes_while_files_are_opened_never_leads_outside(tmp_path: Path) -> None:
    provider = a_provider(tmp_path)
    table, outside = tmp_path / "orders", tmp_path / "outside"
    for folder, content in ((table / "inside", SHARED), (outside, SECRET)):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(content)
    link, stop = table / "link", threading.Event()
    link.symlink_to(table / "inside")

    def swap() -> None:
        while not stop.is_set():
            for target in (outside, table / "inside"):
                (table / "next").symlink_to(target)
                (table / "next").rename(link)

    thread = threading.Thread(target=swap)
    thread.start()
    read: dict[bytes, int] = {}
    try:
        # Each outcome is possible at each try: both have to be seen before the third is called impossible.
        while min(read.get(SHARED, 0), read.get(b"", 0)) < 100 or sum(read.values()) < 1500:
            try:
                with open_file(str(link / "file"), str(table), provider.settings).stream as stream:
                    content = stream.read()
            except NotFound:
                content = b""
            read[content] = read.get(content, 0) + 1
    finally:
        stop.set()
        thread.join()
    assert SECRET not in read
