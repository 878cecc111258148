"""A table that only Iceberg clients can read is followed: the Iceberg REST API serves it, Delta Sharing refuses it."""

from pathlib import Path
from typing import Any

import pytest

from lakeshare_server.access.table_access import TableView
from lakeshare_server.catalog.listings import find_shared_table
from lakeshare_server.errors import Unserveable
from lakeshare_server.iceberg_rest.metadata import list_data_files
from lakeshare_server.iceberg_rest.tables import IcebergTables
from lakeshare_server.storage import Stores
from lakeshare_server.tables.serveability import CLIENTS, READ_BY_ICEBERG_CLIENTS
from lakeshare_server.versions import followed_iceberg
from tests.builders.followed_iceberg import OwnedTable, a_worker, following, pinned, refused, version_of
from tests.builders.iceberg_only import TABLES, equality_deletes
from tests.builders.iceberg_rest import TABLE, door, rest_catalog
from tests.builders.sharing import FLIGHTS, Provider, a_provider, a_server


@pytest.mark.parametrize("case", TABLES)
def test_a_table_that_delta_sharing_cannot_carry_is_served_to_iceberg_clients(
    tmp_path: Path, case: str
) -> None:
    folder, rows = TABLES[case](tmp_path / "warehouse")
    provider = following(a_provider(tmp_path), folder)
    token = provider.recipient()
    with a_server(provider) as server:
        table = rest_catalog(server, token).load_table("lake.flights")
        assert table.scan().to_arrow().to_pylist() == rows
        with server.client(token) as client:
            for one in CLIENTS:
                features = ",".join(one.features)
                told = f"responseformat={one.response_format};readerfeatures={features}"
                headers = {"delta-sharing-capabilities": told}
                for answer in (
                    client.post(f"{FLIGHTS}/query", headers=headers),
                    client.get(f"{FLIGHTS}/metadata", headers=headers),
                    client.post(f"{FLIGHTS}/query", json={"startingVersion": 0}, headers=headers),
                    client.get(f"{FLIGHTS}/changes", params={"startingVersion": 0}, headers=headers),
                ):
                    refused(answer, f"[{case.partition(' ')[0]}]")


def test_a_table_with_equality_deletes_is_followed_and_planned_by_the_server(tmp_path: Path) -> None:
    folder, _ = equality_deletes(tmp_path / "warehouse")
    provider = following(a_provider(tmp_path, iceberg_planning="server"), folder)
    with a_server(provider) as server, door(server, provider.recipient()) as client:
        answer = client.get(TABLE).raise_for_status().json()
        assert answer["metadata"]["current-snapshot-id"] == pinned(provider)[0]
        # Java's clients obey: the server's plans name the equality deletes of each file.
        assert answer["config"]["scan-planning-mode"] == "server"
        plan = client.post(f"{TABLE}/plan", json={}).raise_for_status().json()
        assert [one["content"] for one in plan["delete-files"]] == ["equality-deletes"]


def test_a_later_state_for_iceberg_clients_only_gets_the_next_number(tmp_path: Path) -> None:
    table = OwnedTable(tmp_path / "warehouse")
    provider = following(a_provider(tmp_path), table.folder)
    token = provider.recipient()
    with a_server(provider) as server, server.client(token) as client, door(server, token) as iceberg:
        assert version_of(client) == 0
        table.append_days(1)
        table.rewrite(with_a_time_column)
        assert version_of(client) == 1
        refused(client.post(f"{FLIGHTS}/query"), "[UNSUPPORTED_TYPE]")
        loaded = iceberg.get(TABLE).raise_for_status().json()["metadata"]
        assert [one["snapshot-id"] for one in loaded["snapshots"]] == pinned(provider)
        assert client.post(f"{FLIGHTS}/query", json={"version": 0}).status_code == 200


def with_a_time_column(metadata: dict[str, Any]) -> None:
    number = metadata["last-column-id"] = metadata["last-column-id"] + 1
    for schema in metadata["schemas"]:
        schema["fields"].append({"id": number, "name": "at", "type": "time", "required": False})


def test_the_refusal_is_remembered_and_the_manifests_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = TABLES["UNSUPPORTED_TYPE time"](tmp_path / "warehouse")
    versions = a_worker(following(a_provider(tmp_path), folder))
    latest = versions.latest()
    monkeypatch.setattr(followed_iceberg, "read_iceberg", lambda *_: pytest.fail("it was read again"))
    for _ in range(2):
        with pytest.raises(Unserveable, match="UNSUPPORTED_TYPE"):
            versions.index(latest)


def provider_view(provider: Provider) -> TableView:
    return TableView(find_shared_table(provider.catalog, "flights.lake.flights", "PATH"), a_worker(provider))


@pytest.mark.parametrize("case", ["FILE_FORMAT", "UNSUPPORTED_TYPE time"])
def test_files_of_a_version_without_an_index_are_known_by_its_manifests(tmp_path: Path, case: str) -> None:
    """What requests are signed for in S3, and what says whether credentials for the folder open all of it."""
    folder, _ = TABLES[case](tmp_path / "warehouse")
    provider = following(a_provider(tmp_path), folder)
    view, stores = provider_view(provider), Stores(provider.settings)
    pin = view.snapshots()[-1]
    live = {
        str(path) for path in (folder / "data").iterdir() if case != "FILE_FORMAT" or path.suffix == ".orc"
    }
    assert list_data_files(view, pin, stores) == live
    told = IcebergTables(provider.catalog, stores).folder(view)
    assert (told.location, told.elsewhere) == (str(folder), 0)


def test_every_code_that_iceberg_clients_do_not_mind_is_in_the_reference() -> None:
    page = (Path(__file__).parents[4] / "docs/reference/serveability.md").read_text()
    told = {line.split("`")[1] for line in page.splitlines() if "| Delta Sharing" in line}
    assert told == set(READ_BY_ICEBERG_CLIENTS)
