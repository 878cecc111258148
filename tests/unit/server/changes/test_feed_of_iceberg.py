"""Changes of Iceberg tables as the server answers them, without Spark: recorded, of before, and lost ones."""

import json
from pathlib import Path

import pytest

from lakeshare_server.catalog import Ledger
from lakeshare_server.tables.iceberg.changes import change_files_of, is_made_of, open_changes
from lakeshare_server.tables.index import index_path
from tests.builders.applied_changes import applied
from tests.builders.canonical import same_rows
from tests.builders.lake_tables import IcebergState, IcebergTable
from tests.builders.people import TABLE, a_reader, people, publish, refused, rows_at
from tests.builders.protocol_lines import Format
from tests.builders.protocol_reader import refusal
from tests.builders.sharing import Provider, a_provider


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_provider(tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    """Three people of a day in one file."""
    table = IcebergTable(tmp_path / "people", people().schema)
    table.append(people(1, 2, 3))
    return table


@pytest.mark.parametrize("fmt", ["parquet", "delta"])
def test_change_files_are_read_in_both_formats(provider: Provider, table: IcebergTable, fmt: Format) -> None:
    publish(provider, table)
    table.append(people(8, 9, day=2))
    publish(provider, table)
    table.table.overwrite(people(1, 5, 6))
    went = [(1, 2, "delete"), (1, 3, "update_preimage"), (2, 8, "delete"), (2, 9, "delete")]
    publish(provider, table, [*went, (1, 5, "insert"), (1, 6, "update_postimage")])
    with a_reader(provider, fmt) as reader:
        for version in range(1, 3):
            changes = reader.change_rows(reader.changes(version, version))
            same_rows(applied(rows_at(reader, version - 1), changes), rows_at(reader, version))
        assert [file.kind for file in reader.changes(2, 2).files] == ["cdc", "cdc"]
        assert reader.changes(0, 2, maxFiles=1).pages == 4
        first = reader.snapshot(version=0)
        same_rows(reader.replica(first, [reader.window(1, 2)], first.head.shape), rows_at(reader, 2))


def test_publications_of_before_are_told_as_far_as_files_tell(
    provider: Provider, table: IcebergTable
) -> None:
    """No index of changes was made with them."""
    provider.publish_iceberg(TABLE, table.state())
    provider.publish_iceberg(TABLE, table.append(people(4)))
    table.table.delete("id = 2")
    provider.publish_iceberg(TABLE, table.state())
    provider.publish_iceberg(TABLE, table.append(people(5)))
    with a_reader(provider) as reader:
        for version in (1, 3):
            changes = reader.change_rows(reader.changes(version, version))
            same_rows(applied(rows_at(reader, version - 1), changes), rows_at(reader, version))
        message = refused(reader, 0, 3)
        assert "not recorded for version [2]: it was published without a record of its changes" in message
        assert "startingVersion=3" in message
        assert "No changes can be read up to version 2" in refused(reader, 1, 2)
        # What files tell is enough for windows.
        first = reader.snapshot(version=0)
        same_rows(reader.replica(first, [reader.window(1, 3)], first.head.shape), rows_at(reader, 3))


def test_compaction_of_before_shows_nothing(provider: Provider, table: IcebergTable, tmp_path: Path) -> None:
    provider.publish_iceberg(TABLE, table.state())
    table.table.overwrite(people(1, 2, 3))
    state = table.state()
    metadata = json.loads(Path(state.metadata_location.removeprefix("file://")).read_text())
    for snapshot in metadata["snapshots"][1:]:
        snapshot["summary"]["operation"] = "replace"
    compacted = tmp_path / "v9.metadata.json"
    compacted.write_text(json.dumps(metadata))
    provider.publish_iceberg(TABLE, IcebergState(str(compacted), state.snapshot_id))
    with a_reader(provider) as reader:
        assert not reader.changes(1, 1).files
        assert not reader.window(1, 1).files


def test_a_lost_index_of_changes_is_made_again_from_files_or_refused(
    provider: Provider, table: IcebergTable
) -> None:
    publish(provider, table)
    table.append(people(4))
    appended = publish(provider, table)
    table.table.delete("id = 2")
    deleted = publish(provider, table, [(1, 2, "delete")])
    for lost in (appended, deleted):
        index_path(provider.settings.index_dir, str(lost.changes_digest)).unlink()
    with a_reader(provider) as reader:
        same_rows(applied(rows_at(reader, 0), reader.change_rows(reader.changes(1, 1))), rows_at(reader, 1))
        assert "its index of changes is lost" in refused(reader, 0, 2)
        assert rows_at(reader, 2).rows


def test_changes_between_files_that_are_not_known_any_more_are_refused(
    provider: Provider, table: IcebergTable, tmp_path: Path
) -> None:
    first = provider.publish_iceberg(TABLE, table.state())
    provider.publish_iceberg(TABLE, table.append(people(4)))
    provider.publish_iceberg(TABLE, table.append(people(5)))
    index_path(provider.settings.index_dir, first.index_digest).unlink()
    Path(str(first.metadata_location).removeprefix("file://")).unlink()
    with a_reader(provider) as reader:
        message = refused(reader, 0, 2)
        assert "changes of version 1 are not readable any more" in message
        assert message.endswith("The first version whose changes are readable is 2.")
        assert str(tmp_path) not in message
        assert reader.changes(2, 2).files


def test_changes_need_no_index_of_files(provider: Provider, table: IcebergTable) -> None:
    """A range is answered from the indexes of changes alone, once they were made."""
    first = publish(provider, table)
    table.append(people(4))
    publish(provider, table)
    table.append(people(5))
    publish(provider, table)
    index_path(provider.settings.index_dir, first.index_digest).unlink()
    Path(str(first.metadata_location).removeprefix("file://")).unlink()
    with a_reader(provider) as reader:
        assert [file.version for file in reader.changes(0, 2).files] == [0, 1, 2]


def test_an_index_names_its_change_files(provider: Provider, table: IcebergTable) -> None:
    publish(provider, table)
    table.table.delete("id = 2")
    published = publish(provider, table, [(1, 2, "delete")])
    made_of = (Ledger(provider.catalog).at(TABLE, 0).index_digest, published.index_digest)
    segment = open_changes(provider.settings.index_dir, published.changes_digest)
    assert is_made_of(segment, 1, made_of)
    [(path, size)] = change_files_of(segment, 1).items()
    assert Path(path).stat().st_size == size


def test_change_files_of_a_table_with_renamed_columns_need_no_mapping(
    provider: Provider, table: IcebergTable
) -> None:
    """They have the names of their version, so that the parquet format carries them, too."""
    table.append(people(8, day=2))
    publish(provider, table)
    with table.table.update_schema() as update:
        update.rename_column("id", "number")
    table.table.delete("number = 2")
    publish(provider, table, [(1, 2, "delete")])
    with a_reader(provider, "parquet") as reader:
        for given in ({}, {"includeHistoricalMetadata": True}):
            changes = reader.change_rows(reader.changes(1, 1, **given))
            assert changes.names[:2] == ["day", "number"]
            assert [json.loads(row)[:3] for row in changes.rows] == [[1, 2, "delete"]]
        asked = f"{reader.path}/query"
        window = reader.client.post(asked, json={"startingVersion": 1}, headers=reader.headers())
        assert "field ids" in refusal(window, 400)["message"], "files of the table itself need the mapping"
