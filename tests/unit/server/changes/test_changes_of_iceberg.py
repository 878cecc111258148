"""Changes between publications of an Iceberg table, without Spark: what files tell, and what is refused where they
do not."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import StringType
from pyroaring import BitMap64

from lakeshare_server.errors import StoreMissing
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables import FileIndex, TableSnapshot, open_index, write_index
from lakeshare_server.tables.iceberg.changes import (
    FeedSource,
    StateChange,
    compare_files,
    is_made_of,
    open_changes,
    write_change_index,
)
from lakeshare_server.tables.iceberg.deletes import add_vector_feature, vector_columns, vector_of
from lakeshare_server.tables.iceberg.metadata import column_conflict, keeps_rows, restores_columns
from tests.builders.lake_tables import IcebergTable
from tests.builders.people import change_files, people, read
from tests.builders.sharing import Provider, a_provider

STORES = Stores(StoreSettings(_env_file=None))

STATES = ("a" * 64, "b" * 64)


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_provider(tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    """Three people of a day in one file."""
    table = IcebergTable(tmp_path / "people", people().schema)
    table.append(people(1, 2, 3))
    return table


def files_of(provider: Provider, snapshot: TableSnapshot) -> FileIndex:
    return open_index(provider.settings.index_dir, write_index(snapshot, provider.settings.index_dir).digest)


def without_rows(snapshot: TableSnapshot, *rows: int) -> TableSnapshot:
    """The snapshot with some rows of its first file deleted."""
    columns = vector_columns({0: vector_of(BitMap64(rows))}, snapshot.files.num_rows, None)
    files = snapshot.files
    for name, values in columns.items():
        files = files.append_column(name, values)
    return replace(snapshot, head=add_vector_feature(snapshot.head, columns), files=files)


def a_change(before: FileIndex | None, after: FileIndex, **given: Any) -> StateChange:
    return StateChange(version=7, before=before, after=after, changed_at_ms=1_700_000_000_000, **given)


def source_of(before: FileIndex | None, after: FileIndex, **given: Any) -> FeedSource:
    return a_change(before, after, **given).source(compare_files(before, after))


def written(provider: Provider, change: StateChange) -> tuple[Any, list[dict[str, Any]]]:
    """What the index of a change says of its version, and its rows."""
    digest = write_change_index(change, STATES, provider.settings.index_dir)
    segment = open_changes(provider.settings.index_dir, digest)
    assert is_made_of(segment, change.version, STATES)
    one = segment.note.versions[change.version]
    count = one.window_rows + one.cdc_rows
    batches = segment.rows(0, count) if count else ()
    return one, [row for batch in batches for row in batch.to_pylist()]


def test_appends_and_first_versions_are_told_by_their_files(provider: Provider, table: IcebergTable) -> None:
    first = files_of(provider, read(table))
    table.append(people(4, day=2))
    second = files_of(provider, read(table))
    assert source_of(None, first) == source_of(first, second) == FeedSource.FILES
    one, rows = written(provider, a_change(first, second))
    assert (one.window_rows, one.feed_rows, one.cdc_rows, one.feed_fault) == (1, 1, 0, None)
    assert [json.loads(f"{{{row['common']}}}")["partitionValues"] for row in rows] == [{"day": "2"}]


def test_whole_files_that_went_are_told_as_removes(provider: Provider, table: IcebergTable) -> None:
    table.append(people(4, day=2))
    before = files_of(provider, read(table))
    table.table.delete("day = 2")
    after = files_of(provider, read(table))
    assert source_of(before, after) == FeedSource.FILES
    _, [row] = written(provider, a_change(before, after))
    line = json.loads(f"{{{row['common']}{row['delta_rest']}}}")
    assert set(line) == {"partitionValues", "size", "deletionTimestamp", "dataChange", "extendedFileMetadata"}
    assert line["deletionTimestamp"] == 1_700_000_000_000


def test_vectors_with_braces_in_their_text_are_told_apart(provider: Provider, table: IcebergTable) -> None:
    """Z85, which vectors are written in, has braces as JSON has."""
    plain = read(table)
    states = [files_of(provider, plain)]
    states += [files_of(provider, without_rows(plain, row, 7 * row + 1)) for row in range(1, 120)]
    texts = [batch.column("delta_rest")[0].as_py() for one in states for batch in one.batches()]
    vectors = [text.partition('"pathOrInlineDv":"')[2].partition('"')[0] for text in texts]
    assert any("{" in text for text in vectors), "no text has a brace that opens"
    for one in states[1:]:
        assert compare_files(states[0], one).after.num_rows == 1


def test_columns_that_come_back_change_rows_of_shared_files(provider: Provider, table: IcebergTable) -> None:
    files = files_of(provider, read(table))
    assert source_of(files, files) == FeedSource.NOTHING
    assert source_of(files, files, brings_back_columns=True) == FeedSource.ROWS


def test_a_column_that_was_dropped_and_is_there_again_is_noticed(table: IcebergTable) -> None:
    whole = table.state()
    [*_, dropped] = [field.name for field in table.table.schema().fields]
    with table.table.update_schema() as change:
        change.delete_column(dropped)
    without = table.append(people(9).drop_columns([dropped]))
    with table.table.update_schema() as change:
        change.add_column("new", StringType())
    added = table.append(people(9).drop_columns([dropped]))
    old, less, more = ((one.metadata_location, one.snapshot_id) for one in (whole, without, added))
    assert restores_columns(STORES, less, old)
    assert not restores_columns(STORES, old, less)
    assert not restores_columns(STORES, less, more), "new columns are in no older file"


def test_rewritten_rows_are_told_by_change_files_alone(provider: Provider, table: IcebergTable) -> None:
    before = files_of(provider, read(table))
    table.table.delete("id = 2")
    after = files_of(provider, read(table))
    assert source_of(before, after) == FeedSource.ROWS
    one, _ = written(provider, a_change(before, after))
    assert (one.window_rows, one.feed_rows) == (2, 0)
    assert "only their files are known" in one.feed_fault


def test_a_deletion_vector_is_the_same_file_removed_and_added(
    provider: Provider, table: IcebergTable
) -> None:
    snapshot = read(table)
    before, after = files_of(provider, snapshot), files_of(provider, without_rows(snapshot, 1))
    assert source_of(before, after) == FeedSource.ROWS
    one, [removed, added] = written(provider, a_change(before, after))
    assert removed["path"] == added["path"]
    assert "deletionVector" not in removed["delta_rest"]
    assert json.loads(f"{{{added['delta_rest'][1:]}}}")["deletionVector"]["cardinality"] == 1
    assert (one.vectors, one.feed_vectors) == (1, 0)
    assert source_of(after, after) == FeedSource.NOTHING


def test_the_same_vector_is_no_change_when_the_files_time_is_not_known_any_more(
    provider: Provider, table: IcebergTable
) -> None:
    """Of files whose snapshot expired, the time is that of the snapshot that is read."""
    snapshot = without_rows(read(table), 1)
    place = snapshot.files.schema.get_field_index("modification_time")
    later = replace(snapshot, files=snapshot.files.set_column(place, "modification_time", pa.array([99])))
    assert source_of(files_of(provider, snapshot), files_of(provider, later)) == FeedSource.NOTHING


def test_what_keeps_the_rows_shows_nothing(provider: Provider, table: IcebergTable) -> None:
    before = files_of(provider, read(table))
    table.table.overwrite(people(1, 2, 3))
    after = files_of(provider, read(table))
    none = change_files(Path("/nowhere"), [])
    for given in ({"keeps_rows": True}, {"change_files": none}):
        one, rows = written(provider, a_change(before, after, **given))
        assert (rows, one.window_rows, one.feed_fault) == ([], 0, None)


def test_writing_changes_again_gives_the_same_file(provider: Provider, table: IcebergTable) -> None:
    change = a_change(None, files_of(provider, read(table)))
    first, second = (write_change_index(change, STATES, provider.settings.index_dir) for _ in range(2))
    assert first == second
    segment = open_changes(provider.settings.index_dir, first)
    assert is_made_of(segment, change.version, STATES)
    assert not is_made_of(segment, change.version + 1, STATES)
    assert not is_made_of(segment, change.version, STATES[::-1])
    with pytest.raises(StoreMissing):
        open_changes(provider.settings.index_dir, "0" * 64)


def test_a_column_of_the_feeds_own_name_keeps_the_feed_from_being_told(
    provider: Provider, tmp_path: Path
) -> None:
    rows = people(1).append_column("_change_type", pa.array(["mine"]))
    table = IcebergTable(tmp_path / "taken", rows.schema)
    table.append(rows)
    one, told = written(provider, a_change(None, files_of(provider, read(table))))
    assert "_change_type" in one.feed_fault
    assert (len(told), one.feed_rows) == (1, 0)


def test_only_replacing_snapshots_keep_rows(table: IcebergTable, tmp_path: Path) -> None:
    first = table.state()
    appended = table.append(people(4))
    assert not keeps_rows(STORES, appended.metadata_location, appended.snapshot_id, first.snapshot_id)
    metadata = json.loads(Path(appended.metadata_location.removeprefix("file://")).read_text())
    metadata["snapshots"][-1]["summary"]["operation"] = "replace"
    compacted = tmp_path / "v9.metadata.json"
    compacted.write_text(json.dumps(metadata))
    assert keeps_rows(STORES, str(compacted), appended.snapshot_id, first.snapshot_id)
    assert not keeps_rows(STORES, str(compacted), appended.snapshot_id, 4711), "no ancestor at all"


@pytest.mark.parametrize(
    ("versions", "column"),
    [
        ([{1: ("a", "int")}, {1: ("a", "int"), 2: ("b", "int")}], None),
        ([{1: ("a", "int"), 2: ("b", "int")}, {1: ("a", "int")}], None),
        ([{1: ("a", "int")}, {1: ("b", "int")}], "a"),
        ([{1: ("a", "int")}, {1: ("a", "long")}], "a"),
        ([{1: ("a", "int")}, {2: ("A", "int")}], "A"),
    ],
)
def test_columns_conflict_by_name_type_and_id(
    versions: list[Mapping[int, tuple[str, str]]], column: str | None
) -> None:
    assert column_conflict(versions) == column
