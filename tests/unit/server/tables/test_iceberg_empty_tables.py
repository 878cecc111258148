"""Iceberg tables without a snapshot: a schema and no rows, through every API, and the first rows when they come."""

import json
from pathlib import Path
from typing import Any

import delta_sharing
import httpx
import pyarrow as pa
import pytest

from lakeshare_server.tables import read_iceberg
from tests.builders.followed_iceberg import NAME, a_reader, following, numbered, pinned
from tests.builders.hostile.served import quietly
from tests.builders.iceberg_rest import door, rest_catalog
from tests.builders.lake_tables import IcebergState, IcebergTable, some_rows
from tests.builders.protocol_reader import ProtocolReader
from tests.builders.sharing import FLIGHTS, Provider, a_provider, a_server, lines

NO_SNAPSHOT = -1
COLUMNS = [field.name for field in some_rows().schema]


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    return IcebergTable(tmp_path / "warehouse", some_rows().schema)


def followed(provider: Provider, table: IcebergTable) -> None:
    following(provider, Path(table.table.location().removeprefix("file://")))


def published(provider: Provider, table: IcebergTable) -> None:
    provider.publish_iceberg(NAME, IcebergState(table.table.metadata_location, NO_SNAPSHOT))
    provider.share(NAME, history=True)


# The client forgets a folder when a table has no files.
@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
@pytest.mark.parametrize("make", [followed, published])
def test_an_empty_table_has_its_columns_and_no_rows_through_every_api(
    tmp_path: Path, table: IcebergTable, make: Any
) -> None:
    provider = a_provider(tmp_path)
    make(provider, table)
    token = provider.recipient()
    with a_server(provider) as server, server.client(token) as client, httpx.Client(timeout=30) as data:
        listed = client.get("/shares/flights/schemas/lake/tables").json()["items"]
        assert [one["name"] for one in listed] == ["flights"]
        for fmt in ("parquet", "delta"):
            reader = ProtocolReader(client, "flights.lake.flights", fmt, data)
            assert reader.version() == 0
            for answer in (reader.snapshot(), reader.snapshot(version=0), reader.metadata()):
                assert answer.files == ()
                columns = json.loads(answer.head.metadata["schemaString"])["fields"]
                assert [column["name"] for column in columns] == COLUMNS
            assert reader.changes(0).files == ()
            assert reader.window(0).files == ()
            url = f"{server.profile(token)}#flights.lake.flights"
            frame = quietly(delta_sharing.load_as_pandas, url, use_delta_format=fmt == "delta")
            assert (list(frame.columns), len(frame)) == (COLUMNS, 0)
        catalog = rest_catalog(server, token)
        assert catalog.list_tables("lake") == [("lake", "flights")]
        loaded = catalog.load_table(NAME)
        assert loaded.current_snapshot() is None
        found = loaded.scan().to_arrow()
        assert (found.column_names, found.num_rows) == (COLUMNS, 0)
        with door(server, token) as plain:
            planned = plain.post("/v1/shares/flights/namespaces/lake/tables/flights/plan", json={})
            assert planned.status_code == 200, planned.text
            assert not planned.json().get("file-scan-tasks")


def test_the_first_rows_are_the_next_version(tmp_path: Path, table: IcebergTable) -> None:
    provider = a_provider(tmp_path)
    followed(provider, table)
    with a_reader(provider) as client:
        assert lines(client.post(f"{FLIGHTS}/query", json={}))[2:] == []
        with table.table.transaction() as change:
            change.set_properties({"owner": "ann"})
        assert lines(client.post(f"{FLIGHTS}/query", json={}))[2:] == []
        assert pinned(provider) == [NO_SNAPSHOT]
        first = table.append(some_rows(days=2)).snapshot_id
        assert len(lines(client.post(f"{FLIGHTS}/query", json={}))) == 4
        assert pinned(provider) == [NO_SNAPSHOT, first]
        assert lines(client.post(f"{FLIGHTS}/query", json={"version": 0}))[2:] == []
        changes = lines(client.get(f"{FLIGHTS}/changes", params={"startingVersion": 0}))
        assert [line["add"]["version"] for line in changes if "add" in line] == [1, 1]


def test_other_columns_of_an_empty_table_are_a_version(tmp_path: Path, table: IcebergTable) -> None:
    from pyiceberg.types import StringType

    provider = a_provider(tmp_path)
    followed(provider, table)
    with a_reader(provider) as client:
        client.post(f"{FLIGHTS}/query", json={})
        with table.table.update_schema() as update:
            update.add_column("remark", StringType())
        [_, metadata] = lines(client.post(f"{FLIGHTS}/query", json={}))
        assert '"remark"' in metadata["metaData"]["schemaString"]
        assert [one.snapshot_id for one in numbered(provider)] == [NO_SNAPSHOT, NO_SNAPSHOT]
        [_, before] = lines(client.post(f"{FLIGHTS}/query", json={"version": 0}))
        assert '"remark"' not in before["metaData"]["schemaString"]


def test_an_empty_table_may_not_be_read_from_metadata_with_a_snapshot(table: IcebergTable) -> None:
    from lakeshare_server.errors import Unserveable

    empty = read_iceberg(table.table.metadata_location, NO_SNAPSHOT)
    assert (empty.files.num_rows, empty.head.partition_columns) == (0, ("day",))
    table.append(pa.Table.from_pylist(some_rows().to_pylist(), some_rows().schema))
    with pytest.raises(Unserveable, match="has no snapshot -1"):
        read_iceberg(table.table.metadata_location, NO_SNAPSHOT)
