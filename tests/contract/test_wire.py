"""The lines and headers of an answer, field by field, as the protocol and its strictest clients want them."""

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.builders.delta_log import read_state
from tests.builders.lake_tables import a_delta_table, an_iceberg_table
from tests.builders.sharing import Provider, a_provider, a_server, lines

TABLE = "/shares/flights/schemas/lake/tables"
FILE_FIELDS = ["expirationTimestamp", "id", "url", "partitionValues", "size", "stats"]
DELTA_FIELDS = ["id", "format", "schemaString", "partitionColumns", "configuration", "createdTime"]
METADATA_FIELDS = ["id", "format", "schemaString", "partitionColumns", "configuration", "size", "numFiles"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wire")


@pytest.fixture(scope="module")
def provider(folder: Path) -> Provider:
    provider = a_provider(folder, page_size=2)
    provider.publish_delta("lake.delta", a_delta_table(folder / "table"))
    provider.publish_iceberg("lake.iceberg", an_iceberg_table(folder / "warehouse").state())
    provider.share("lake.delta", "lake.iceberg", "other.x", "third.x", "third.y")
    return provider


@pytest.fixture(scope="module")
def client(provider: Provider) -> Iterator[httpx.Client]:
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        yield client


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_an_answer_is_protocol_then_metadata_then_files_and_no_more(client: httpx.Client, table: str) -> None:
    """protocol §0.1, §0.4, §1.7, §2.1: nobody gets a line that was not asked for; `size` and `numFiles` are there."""
    answer = client.post(f"{TABLE}/{table}/query", json={})
    assert answer.headers["content-type"] == "application/x-ndjson; charset=utf-8"
    assert answer.headers["delta-table-version"] == "0"
    assert answer.headers["delta-sharing-capabilities"] == "responseformat=parquet"
    protocol, metadata, *found = lines(answer)
    assert protocol == {"protocol": {"minReaderVersion": 1}}
    assert list(metadata) == ["metaData"]
    assert list(metadata["metaData"]) == METADATA_FIELDS
    assert metadata["metaData"]["format"] == {"provider": "parquet"}
    assert metadata["metaData"]["configuration"] == {}
    assert len(found) == metadata["metaData"]["numFiles"] == 3
    for line in found:
        assert list(line) == ["file"]
        assert list(line["file"]) == FILE_FIELDS
    assert sum(line["file"]["size"] for line in found) == metadata["metaData"]["size"]
    assert len({line["file"]["id"] for line in found}) == 3


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_metadata_is_the_first_two_lines_of_a_query(client: httpx.Client, table: str) -> None:
    answer = client.get(f"{TABLE}/{table}/metadata")
    assert answer.text.splitlines() == client.post(f"{TABLE}/{table}/query").text.splitlines()[:2]
    assert answer.headers["delta-table-version"] == "0"


def test_urls_live_as_long_as_they_say(client: httpx.Client, provider: Provider) -> None:
    """protocol §0.2, §2.7: a key that clients recognise, and the truth about the end."""
    for line in lines(client.post(f"{TABLE}/delta/query"))[2:]:
        ends = line["file"]["expirationTimestamp"]
        assert f"expires={ends}&X-Amz-Signature=" in line["file"]["url"]
        assert abs(ends / 1000 - time.time() - provider.settings.url_life_s) < 60


def test_ids_are_the_md5_of_the_path_in_the_log(client: httpx.Client) -> None:
    """protocol §2.6."""
    for line in lines(client.post(f"{TABLE}/delta/query"))[2:]:
        path = httpx.URL(line["file"]["url"]).path
        name = path.partition("/files/")[2].partition("/")[2]
        assert line["file"]["id"] == hashlib.md5(name.encode()).hexdigest()


def test_the_version_is_told_to_those_who_asked_for_one(client: httpx.Client) -> None:
    """protocol §1.6, §2.1."""
    _, metadata, *found = lines(client.post(f"{TABLE}/delta/query", json={"version": 0}))
    assert metadata["metaData"]["version"] == 0
    assert {line["file"]["version"] for line in found} == {0}
    asked = client.get(f"{TABLE}/delta/metadata", params={"version": 0})
    assert lines(asked) == lines(client.post(f"{TABLE}/delta/query", json={"version": 0}))[:2]


@pytest.mark.parametrize(("method", "path"), [("GET", "/version"), ("HEAD", "/version"), ("HEAD", "")])
def test_the_version_is_a_header_and_nothing_else(client: httpx.Client, method: str, path: str) -> None:
    """protocol §1.5."""
    answer = client.request(method, f"{TABLE}/iceberg{path}")
    assert answer.status_code == 200
    assert answer.headers["delta-table-version"] == "0"
    assert answer.content == b""


DELTA = {"delta-sharing-capabilities": "responseformat=delta"}
END_HEADER = {"delta-sharing-capabilities": "includeEndStreamAction=True"}


@pytest.mark.parametrize(
    ("headers", "body", "echoed", "said", "found"),
    [
        (END_HEADER, {}, ";includeendstreamaction=true", [], 3),
        ({}, {"maxFiles": 1}, "", ["nextPageToken"], 1),
        ({}, {"maxFiles": 3}, "", [], 3),
        ({}, {"includeRefreshToken": True}, "", ["refreshToken"], 3),
        (END_HEADER, {"includeRefreshToken": "True"}, ";includeendstreamaction=true", ["refreshToken"], 3),
    ],
)
def test_those_who_read_the_last_line_get_one(
    client: httpx.Client,
    headers: dict[str, str],
    body: dict[str, object],
    echoed: str,
    said: list[str],
    found: int,
) -> None:
    """protocol §0.1, §1.11, §1.13: the closing line comes last, and to those only who asked for it."""
    answer = client.post(f"{TABLE}/delta/query", json=body, headers=headers)
    *others, last = lines(answer)
    assert answer.headers["delta-sharing-capabilities"] == "responseformat=parquet" + echoed
    assert list(last) == ["endStreamAction"]
    assert list(last["endStreamAction"]) == ["minUrlExpirationTimestamp", *said]
    ends = {line["file"]["expirationTimestamp"] for line in others[2:]}
    assert last["endStreamAction"]["minUrlExpirationTimestamp"] == min(ends)
    assert len(others) == 2 + found


def test_an_answer_without_files_has_no_urls_that_end(client: httpx.Client) -> None:
    """protocol §1.13: all members of the closing line are optional."""
    answer = client.post(f"{TABLE}/delta/query", json={"limitHint": 0}, headers=END_HEADER)
    assert lines(answer)[2:] == [{"endStreamAction": {}}]


def test_metadata_has_two_lines_whatever_was_announced(client: httpx.Client) -> None:
    """protocol §1.6."""
    headers = {"delta-sharing-capabilities": "responseformat=delta,parquet;includeendstreamaction=true"}
    answer = client.get(f"{TABLE}/delta/metadata", headers=headers)
    assert len(lines(answer)) == 2
    assert answer.headers["delta-sharing-capabilities"] == "responseformat=parquet"


def test_the_scheme_of_file_ids_is_echoed(client: httpx.Client) -> None:
    """protocol §1.12."""
    answer = client.post(f"{TABLE}/delta/query", headers={"fileidhash": "Parquet"})
    assert answer.headers["fileidhash"] == "parquet"


def test_ids_are_of_the_scheme_that_was_asked_for_whatever_the_format(client: httpx.Client) -> None:
    """protocol §1.12, §2.6: `fileidhash` only selects how ids are made."""
    ids = {}
    for response_format in ("parquet", "delta"):
        for scheme in ("parquet", "delta"):
            headers = {
                "delta-sharing-capabilities": f"responseformat={response_format}",
                "fileidhash": scheme,
            }
            answer = client.post(f"{TABLE}/delta/query", headers=headers)
            assert answer.headers["fileidhash"] == scheme
            ids[response_format, scheme] = [line["file"]["id"] for line in lines(answer)[2:]]
    assert ids["parquet", "parquet"] == ids["delta", "parquet"]
    assert ids["parquet", "delta"] == ids["delta", "delta"]
    assert {len(one) for one in ids["delta", "delta"]} == {64}
    assert {len(one) for one in ids["delta", "parquet"]} == {32}


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_the_delta_format_wraps_what_a_log_would_say(client: httpx.Client, table: str) -> None:
    """protocol §2.2: deltaProtocol, deltaMetadata with size and numFiles beside it, and an add in every file line."""
    answer = client.post(f"{TABLE}/{table}/query", headers=DELTA)
    assert answer.headers["delta-sharing-capabilities"] == "responseformat=delta"
    protocol, metadata, *found = lines(answer)
    assert protocol == {"protocol": {"deltaProtocol": {"minReaderVersion": 1, "minWriterVersion": 2}}}
    assert set(metadata["metaData"]) == {"deltaMetadata", "size", "numFiles"}
    said = metadata["metaData"]["deltaMetadata"]
    assert [name for name in DELTA_FIELDS if name in said] == list(said)
    assert said["format"] == {"provider": "parquet", "options": {}}
    assert len(found) == metadata["metaData"]["numFiles"] == 3
    for line in found:
        assert list(line["file"]) == ["expirationTimestamp", "id", "deltaSingleAction"]
        assert list(line["file"]["deltaSingleAction"]) == ["add"]
        add = line["file"]["deltaSingleAction"]["add"]
        assert list(add) == ["path", "partitionValues", "size", "stats", "modificationTime", "dataChange"]
    assert client.get(f"{TABLE}/{table}/metadata", headers=DELTA).text == "".join(
        answer.text.splitlines(keepends=True)[:2]
    )


def test_the_delta_format_repeats_the_log(client: httpx.Client, folder: Path) -> None:
    """protocol §2.2: schema, configuration and every add as they stand in the log, but for the path."""
    state = read_state(folder / "table")
    protocol, metadata, *found = lines(client.post(f"{TABLE}/delta/query", headers=DELTA))
    assert protocol["protocol"]["deltaProtocol"] == state.protocol
    assert metadata["metaData"]["deltaMetadata"] == {
        key: value for key, value in state.metadata.items() if value is not None
    }
    logged = {json.dumps(add["partitionValues"]): add for add in state.adds}
    for line in found:
        add = line["file"]["deltaSingleAction"]["add"]
        expected = logged.pop(json.dumps(add["partitionValues"]))
        assert "?expires=" in add.pop("path")
        told = {key: value for key, value in expected.items() if value is not None and key != "path"}
        assert add == told
    assert not logged


def test_listings_are_json_with_ids_that_stay(client: httpx.Client) -> None:
    answer = client.get("/shares")
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    [share] = answer.json()["items"]
    assert list(share) == ["name", "id"]
    assert client.get("/shares/flights").json() == {"share": share}
    tables = client.get("/shares/flights/all-tables").json()["items"]
    assert tables[0] == {
        "name": "delta",
        "schema": "lake",
        "share": "flights",
        "shareId": share["id"],
        "id": tables[0]["id"],
    }
    assert tables == client.get("/shares/flights/all-tables").json()["items"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/shares", ["flights"]),
        ("/shares/flights/schemas", ["lake", "other", "third"]),
        ("/shares/flights/schemas/third/tables", ["x", "y"]),
        ("/shares/flights/all-tables", ["delta", "iceberg", "x", "x", "y"]),
    ],
)
@pytest.mark.parametrize("size", [None, 1, 2, 500])
def test_listings_come_in_pages(
    client: httpx.Client, path: str, expected: list[str], size: int | None
) -> None:
    """protocol §1.0."""
    names: list[str] = []
    token: str | None = None
    while token is None or token:
        asked = {"maxResults": size, "pageToken": token}
        page = client.get(
            path, params={name: value for name, value in asked.items() if value is not None}
        ).json()
        assert len(page["items"]) <= min(size or 2, 2)
        names += [item["name"] for item in page["items"]]
        token = page.get("nextPageToken", "")
    assert names == expected


def test_paths_of_the_provider_show_in_urls_only_as_signed(client: httpx.Client, provider: Provider) -> None:
    text = client.get(f"{TABLE}/delta/metadata").text
    assert str(Path(provider.settings.state_dir).parent) not in text
