"""What the official delta-sharing client reads through the server is what was published, row for row, and no more."""

from pathlib import Path

import delta_sharing
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.builders.lake_tables import IcebergTable, a_delta_table, an_iceberg_table, append_delta, some_rows
from tests.builders.sharing import Provider, Running, a_server


def read(server: Running, token: str, table: str, **options: object) -> pd.DataFrame:
    return delta_sharing.load_as_pandas(f"{server.profile(token)}#flights.{table}", **options)


def same_rows(found: pd.DataFrame, expected: pa.Table) -> None:
    order = ["distance"]
    wanted = expected.to_pandas(date_as_object=True).sort_values(order, ignore_index=True)
    found = found.sort_values(order, ignore_index=True)[list(wanted.columns)]
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False)


PARTITIONS = ((), ("day",), ("day", "carrier"))


def test_a_table_reads_as_it_was_written(
    provider: Provider, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Delta and Iceberg, by different partitions, in both formats; one of each in that of the client's choice."""
    names: list[str] = []
    for columns in (*PARTITIONS, ("cancelled",), ("departed",)):
        names.append(f"lake.delta_{'_'.join(columns)}")
        location = a_delta_table(tmp_path / f"odd name ü {names[-1]}", partitioned_by=columns)
        provider.publish_delta(names[-1], location)
    for columns in (*PARTITIONS, ("flight",)):
        names.append(f"lake.iceberg_{'_'.join(columns)}")
        table = an_iceberg_table(tmp_path / names[-1], partitioned_by=columns)
        provider.publish_iceberg(names[-1], table.state())
    provider.share(*names)
    token = provider.recipient()
    with a_server(provider) as server:
        for name in names:
            for use_delta_format in (None, False, True) if name.endswith("_day") else (False, True):
                with subtests.test(table=name, use_delta_format=use_delta_format):
                    same_rows(read(server, token, name, use_delta_format=use_delta_format), some_rows())


def test_the_client_lists_exactly_what_was_granted(provider: Provider, tmp_path: Path) -> None:
    provider.publish_delta("lake.flights", a_delta_table(tmp_path / "table"))
    provider.share("lake.flights", "lake.planned")
    token = provider.recipient()
    with a_server(provider) as server:
        client = delta_sharing.SharingClient(str(server.profile(token)))
        names = [f"{table.share}.{table.schema}.{table.name}" for table in client.list_all_tables()]
        assert names == ["flights.lake.flights", "flights.lake.planned"]


def test_a_delta_commit_that_is_not_published_is_not_seen(provider: Provider, tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "table")
    provider.publish_delta("lake.flights", location)
    provider.share("lake.flights")
    token = provider.recipient()
    append_delta(location, some_rows(days=1))
    assert DeltaTable(location).to_pyarrow_table().num_rows == 16
    with a_server(provider) as server:
        same_rows(read(server, token, "lake.flights"), some_rows())
        profile = f"{server.profile(token)}#flights.lake.flights"
        assert delta_sharing.get_table_version(profile) == 0


def test_an_iceberg_snapshot_that_is_not_published_is_not_seen(provider: Provider, tmp_path: Path) -> None:
    table = an_iceberg_table(tmp_path / "warehouse")
    provider.publish_iceberg("lake.flights", table.state())
    provider.share("lake.flights")
    token = provider.recipient()
    table.append(some_rows(days=1))
    with a_server(provider) as server:
        same_rows(read(server, token, "lake.flights"), some_rows())


def test_earlier_publications_are_read_by_their_number(provider: Provider, tmp_path: Path) -> None:
    table = IcebergTable(tmp_path / "warehouse", some_rows().schema)
    for rows in (some_rows(days=1), some_rows(days=2)):
        provider.publish_iceberg("lake.flights", table.append(rows))
    provider.share("lake.flights")
    token = provider.recipient()
    with a_server(provider) as server:
        assert len(read(server, token, "lake.flights")) == 12
        same_rows(read(server, token, "lake.flights", version=0), some_rows(days=1))
        assert len(read(server, token, "lake.flights", version=1)) == 12


def test_a_limit_gives_that_many_rows_and_zero_gives_the_columns(provider: Provider, tmp_path: Path) -> None:
    provider.publish_delta("lake.flights", a_delta_table(tmp_path / "table"))
    provider.share("lake.flights")
    token = provider.recipient()
    with a_server(provider) as server:
        assert len(read(server, token, "lake.flights", limit=5)) == 5
        empty = read(server, token, "lake.flights", limit=0)
        assert len(empty) == 0
        assert list(empty.columns) == some_rows().column_names


def test_a_predicate_leaves_out_files_that_cannot_match(provider: Provider, tmp_path: Path) -> None:
    provider.publish_delta("lake.flights", a_delta_table(tmp_path / "table"))
    provider.share("lake.flights")
    token = provider.recipient()
    hint = (
        '{"op":"equal","children":[{"op":"column","name":"day","valueType":"date"},'
        '{"op":"literal","value":"2013-01-02","valueType":"date"}]}'
    )
    with a_server(provider) as server:
        found = read(server, token, "lake.flights", jsonPredicateHints=hint)
    assert {str(day) for day in found["day"]} == {"2013-01-02"}
    assert len(found) == 4


def test_metadata_carries_size_files_and_the_columns(provider: Provider, tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "table")
    published = provider.publish_delta("lake.flights", location)
    provider.share("lake.flights")
    token = provider.recipient()
    with a_server(provider) as server:
        metadata = delta_sharing.get_table_metadata(f"{server.profile(token)}#flights.lake.flights")
    assert metadata.id == str(DeltaTable(location).metadata().id)
    assert (metadata.size, metadata.num_files) == (published.size_bytes, published.files)
    assert metadata.partition_columns == ["day"]
    assert metadata.schema_string == DeltaTable(location).schema().to_json()


def test_a_table_without_files_reads_empty(provider: Provider, tmp_path: Path) -> None:
    from deltalake import Schema

    location = tmp_path / "table"
    DeltaTable.create(location, Schema.from_arrow(some_rows().schema), partition_by=["day"])
    provider.publish_delta("lake.flights", location)
    provider.share("lake.flights")
    token = provider.recipient()
    with a_server(provider) as server:
        empty = read(server, token, "lake.flights")
    assert len(empty) == 0
    assert list(empty.columns) == some_rows().column_names
