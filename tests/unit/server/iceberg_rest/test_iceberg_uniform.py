"""Delta tables with UniForm in the Iceberg door: at the versions that are readable and converted, and at no others."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lakeshare_server.catalog import Ledger
from lakeshare_server.tables import open_index
from lakeshare_server.tables.serveability import judge_serveability
from tests.builders.grants import grant_to
from tests.builders.iceberg_rest import TABLE, door, rest_catalog, told_values
from tests.builders.lake_tables import a_delta_table, some_rows
from tests.builders.sharing import Provider, Running, a_provider, a_server
from tests.builders.uniform import UniformTable

LISTING = "/v1/shares/flights/namespaces/lake/tables"


@pytest.fixture
def made(tmp_path: Path) -> UniformTable:
    return UniformTable(tmp_path / "flights")


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    provider = a_provider(tmp_path)
    provider.share("lake.flights")
    return provider


@pytest.fixture
def running(provider: Provider) -> Iterator[tuple[Running, httpx.Client, str]]:
    token = provider.recipient()
    with a_server(provider) as server, door(server, token) as client:
        yield server, client, token


def published(provider: Provider, made: UniformTable, **options: object) -> None:
    provider.publish_delta("lake.flights", made.location)
    provider.share("lake.flights", **options)


def refusal(client: httpx.Client) -> str:
    answer = client.get(TABLE)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestException")
    return str(answer.json()["error"]["message"])


def test_a_converted_table_is_listed_loaded_and_read(
    provider: Provider, made: UniformTable, running: tuple[Running, httpx.Client, str]
) -> None:
    server, client, token = running
    snapshot = made.convert()
    made.table.transaction().set_properties({"owner": "secret-owner"}).commit_transaction()
    published(provider, made)
    assert client.get(LISTING).json()["identifiers"] == [{"namespace": ["lake"], "name": "flights"}]
    for options in ({}, {"scan-planning-mode": "server"}):
        table = rest_catalog(server, token, **options).load_table("lake.flights")
        rows = table.scan(row_filter="distance >= 5000000000000").to_arrow().sort_by("distance")
        assert rows.column("flight").to_pylist() == some_rows().column("flight").to_pylist()[5:]
    told = client.get(TABLE).json()["metadata"]
    assert told["current-snapshot-id"] == snapshot
    assert {"delta-version", "delta-timestamp", "secret-owner"}.isdisjoint(told_values(told))


def test_scans_are_planned_of_the_files_that_a_rule_allows(
    provider: Provider, made: UniformTable, running: tuple[Running, httpx.Client, str]
) -> None:
    _, client, _ = running
    made.append(some_rows(days=1))
    made.convert()
    published(provider, made)
    for rule, files in (("NOT FALSE", 2), ("FALSE", 0)):
        grant_to(provider, "bob", rule=rule)
        assert len(client.post(f"{TABLE}/plan", json={}).json()["file-scan-tasks"]) == files


def test_each_readable_version_that_was_converted_is_a_snapshot(
    provider: Provider, made: UniformTable, running: tuple[Running, httpx.Client, str]
) -> None:
    server, client, token = running
    first = made.convert()
    published(provider, made, history=True)
    unpublished_version = made.append(some_rows(days=1))
    unpublished = made.convert()
    made.delete("distance < 3000000000000")
    last = made.convert()
    published(provider, made, history=True)
    told = client.get(TABLE).json()["metadata"]
    assert unpublished_version == 1
    assert {one["snapshot-id"] for one in told["snapshots"]} == {first, last}
    assert str(unpublished) not in told_values(told)
    table = rest_catalog(server, token).load_table("lake.flights")
    assert table.scan().to_arrow().num_rows == 9 + 1
    assert table.scan(snapshot_id=first).to_arrow().num_rows == 12
    provider.share("lake.flights", history=False)
    told = client.get(TABLE).json()["metadata"]
    assert [one["snapshot-id"] for one in told["snapshots"]] == [last]


def test_a_version_that_is_not_converted_is_refused_until_it_is(
    provider: Provider, made: UniformTable, running: tuple[Running, httpx.Client, str]
) -> None:
    client = running[1]
    made.convert()
    made.append(some_rows(days=1))
    published(provider, made, history=True)
    assert "Version 1 of the table has no Iceberg metadata" in (told := refusal(client))
    assert str(made.location) not in told
    assert client.get(LISTING).json()["identifiers"] != []
    made.convert()
    assert client.get(TABLE).json()["metadata"]["properties"] is not None
    assert len(client.get(TABLE).json()["metadata"]["snapshots"]) == 1


def test_metadata_that_does_not_have_the_versions_files_is_refused(
    provider: Provider, made: UniformTable, running: tuple[Running, httpx.Client, str]
) -> None:
    """It says that it is version 0, and shows what was never published."""
    made.append(some_rows(days=1))
    made.convert()
    made.table.transaction().set_properties({"delta-version": "0"}).commit_transaction()
    provider.publish_delta("lake.flights", made.location, 0)
    provider.share("lake.flights")
    assert "does not have its files" in refusal(running[1])


def test_an_older_version_whose_metadata_shows_something_else_is_left_out(
    provider: Provider, made: UniformTable, running: tuple[Running, httpx.Client, str]
) -> None:
    client = running[1]
    provider.publish_delta("lake.flights", made.location, 0)
    made.append(some_rows(days=1))
    unpublished = made.convert(1)
    made.table.transaction().set_properties({"delta-version": "0"}).commit_transaction()
    made.append(some_rows(days=2))
    last = made.convert()
    published(provider, made, history=True)
    told = client.get(TABLE).json()["metadata"]
    assert [one["snapshot-id"] for one in told["snapshots"]] == [last]
    assert str(unpublished) not in told_values(told)


def test_a_followed_table_moves_on_with_its_log(
    provider: Provider, made: UniformTable, running: tuple[Running, httpx.Client, str]
) -> None:
    server, client, token = running
    made.convert()
    provider.follow("lake.flights", made.location)
    provider.share("lake.flights", history=True)
    assert rest_catalog(server, token).load_table("lake.flights").scan().to_arrow().num_rows == 12
    made.append(some_rows(days=1))
    assert "Version 1 of the table has no Iceberg metadata" in refusal(client)
    made.convert()
    table = rest_catalog(server, token).load_table("lake.flights")
    assert table.scan().to_arrow().num_rows == 16
    assert len(table.snapshots()) == 2


def test_delta_tables_without_uniform_are_not_there(
    provider: Provider, tmp_path: Path, running: tuple[Running, httpx.Client, str]
) -> None:
    client = running[1]
    provider.publish_delta("lake.flights", a_delta_table(tmp_path / "plain"))
    provider.share("lake.flights")
    assert client.get(LISTING).json()["identifiers"] == []
    answer = client.get(TABLE)
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NoSuchTableException")


def test_conversions_that_cannot_be_read_are_refused_without_their_places(
    provider: Provider, made: UniformTable, running: tuple[Running, httpx.Client, str]
) -> None:
    made.convert()
    published(provider, made)
    for listing in (made.location / "metadata").glob("snap-*.avro"):
        listing.unlink()
    assert str(made.location) not in refusal(running[1])
    assert serveability_of(provider)["Iceberg REST"] == "iceberg"


def serveability_of(provider: Provider) -> dict[str, str | None]:
    publication = Ledger(provider.catalog).latest("lake.flights")
    assert publication is not None
    header = open_index(provider.settings.index_dir, publication.index_digest).header
    return {one.client: one.served_as for one in judge_serveability(header.table_format, header.head)}


def test_files_that_are_no_conversions_are_passed_over(
    provider: Provider, made: UniformTable, running: tuple[Running, httpx.Client, str]
) -> None:
    made.convert()
    folder = made.location / "metadata"
    (folder / "00098-broken.metadata.json").write_text("{")
    (folder / "00097-other.metadata.json").write_text(json.dumps({"properties": {"delta-version": "x"}}))
    (folder / "00096-list.metadata.json").write_text("[]")
    published(provider, made)
    assert running[1].get(TABLE).status_code == 200
