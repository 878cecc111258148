"""Changes between publications of an Iceberg table, without Spark: what files tell, and what is refused where they
do not."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from lakeshare_server.catalog import Ledger, Publication
from lakeshare_server.tables import FileIndex, TableSnapshot, open_index, read_iceberg, write_index
from lakeshare_server.tables.deletion_vectors import vector_columns, vector_of
from lakeshare_server.tables.file_difference import file_difference
from lakeshare_server.tables.iceberg.change_index import (
    FeedSource,
    StateChange,
    change_files_of,
    open_changes,
    write_change_index,
)
from lakeshare_server.tables.iceberg.lineage import column_conflict, keeps_rows
from lakeshare_server.tables.iceberg.vectors import with_vectors
from lakeshare_server.tables.index import index_path
from tests.builders.applied_changes import applied
from tests.builders.canonical import Rows, same_rows
from tests.builders.lake_tables import IcebergState, IcebergTable
from tests.builders.protocol_lines import Format
from tests.builders.protocol_reader import ProtocolReader, refusal
from tests.builders.sharing import Provider, a_provider, a_server

TABLE = "lake.people"
STATES = ("a" * 64, "b" * 64)


def people(*ids: int, day: int = 1) -> pa.Table:
    return pa.table({"day": pa.array([day] * len(ids), pa.int64()), "id": pa.array(ids, pa.int64())})


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_provider(tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    """Three people of a day in one file."""
    table = IcebergTable(tmp_path / "people", people().schema)
    table.append(people(1, 2, 3))
    return table


def read(table: IcebergTable) -> TableSnapshot:
    state = table.state()
    return read_iceberg(state.metadata_location, state.snapshot_id)


def files_of(provider: Provider, snapshot: TableSnapshot) -> FileIndex:
    return open_index(provider.settings.index_dir, write_index(snapshot, provider.settings.index_dir).digest)


def without_rows(snapshot: TableSnapshot, *rows: int) -> TableSnapshot:
    """The snapshot with some rows of its first file deleted."""
    columns = vector_columns({0: vector_of(BitMap64(rows))}, snapshot.files.num_rows, None)
    files = snapshot.files
    for name, values in columns.items():
        files = files.append_column(name, values)
    return replace(snapshot, head=with_vectors(snapshot.head, columns), files=files)


def a_change(before: FileIndex | None, after: FileIndex, **given: Any) -> StateChange:
    return StateChange(version=7, before=before, after=after, changed_at_ms=1_700_000_000_000, **given)


def source_of(before: FileIndex | None, after: FileIndex, **given: Any) -> FeedSource:
    return a_change(before, after, **given).source(file_difference(before, after))


def written(provider: Provider, change: StateChange) -> tuple[Any, list[dict[str, Any]]]:
    """What the index of a change says of its version, and its rows."""
    digest = write_change_index(change, STATES, provider.settings.index_dir)
    segment = open_changes(index_path(provider.settings.index_dir, digest), change.version, STATES)
    assert segment is not None
    one = segment.note.versions[change.version]
    batches = segment.rows(0, one.rows) if one.rows else ()
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
    path = index_path(provider.settings.index_dir, first)
    assert open_changes(path, change.version, STATES) is not None
    assert open_changes(path, change.version + 1, STATES) is None
    assert open_changes(path, change.version, STATES[::-1]) is None


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
    assert not keeps_rows(appended.metadata_location, appended.snapshot_id, first.snapshot_id)
    metadata = json.loads(Path(appended.metadata_location.removeprefix("file://")).read_text())
    metadata["snapshots"][-1]["summary"]["operation"] = "replace"
    compacted = tmp_path / "v9.metadata.json"
    compacted.write_text(json.dumps(metadata))
    assert keeps_rows(str(compacted), appended.snapshot_id, first.snapshot_id)
    assert not keeps_rows(str(compacted), appended.snapshot_id, 4711), "no ancestor at all"


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


def change_files(
    folder: Path, rows: list[tuple[int, int, str]], names_of: tuple[str, str] = ("day", "id")
) -> pa.Table:
    """Change files, one for each day, as the pipelines describe those that Spark wrote."""
    described = []
    for day in sorted({row[0] for row in rows}):
        ids, kinds = zip(*((one, kind) for its_day, one, kind in rows if its_day == day), strict=True)
        path = folder / "_changes" / "run" / f"{day}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows_of_day = people(*ids, day=day).rename_columns(list(names_of))
        pq.write_table(rows_of_day.append_column("_change_type", pa.array(kinds)), path)
        described.append((str(path), path.stat().st_size, 0, {"day": day}))
    columns = list(zip(*described, strict=True)) or [[], [], [], []]
    kinds_of = (pa.string(), pa.int64(), pa.int64(), pa.struct([("day", pa.int64())]))
    names = ("path", "size", "modification_time", "partition")
    return pa.table(
        {name: pa.array(values, kind) for name, values, kind in zip(names, columns, kinds_of, strict=True)}
    )


def publish(
    provider: Provider, table: IcebergTable, rows: list[tuple[int, int, str]] | None = None, **given: Any
) -> Publication:
    """Publish the newest state, with a record of its changes; `rows` are those of its change files."""
    state, snapshot = table.state(), read(table)
    latest = Ledger(provider.catalog).latest(TABLE)
    digest = write_index(snapshot, provider.settings.index_dir).digest
    change = StateChange(
        version=0 if latest is None else latest.version + 1,
        before=None if latest is None else open_index(provider.settings.index_dir, latest.index_digest),
        after=open_index(provider.settings.index_dir, digest),
        changed_at_ms=0,
        change_files=None
        if rows is None
        else change_files(
            Path(snapshot.location), rows, tuple(field.name for field in table.table.schema().fields)
        ),
        **given,
    )
    made_of = "" if latest is None else latest.index_digest, digest
    changes = write_change_index(change, made_of, provider.settings.index_dir)
    return provider.publish(
        TABLE, snapshot, metadata_location=state.metadata_location, changes_digest=changes
    )


@contextmanager
def a_reader(provider: Provider, fmt: Format = "delta") -> Iterator[ProtocolReader]:
    provider.share(TABLE, history=True)
    token = provider.recipient(f"r{fmt}")
    with a_server(provider) as running, running.client(token) as client, httpx.Client(timeout=30) as data:
        yield ProtocolReader(client, f"flights.{TABLE}", fmt, data)


def rows_at(reader: ProtocolReader, version: int) -> Rows:
    return reader.rows(reader.snapshot(version=version))


def refused(reader: ProtocolReader, start: int, end: int) -> str:
    asked = f"{reader.path}/changes?startingVersion={start}&endingVersion={end}"
    return str(refusal(reader.client.get(asked, headers=reader.headers()), 400)["message"])


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
    segment = open_changes(index_path(provider.settings.index_dir, published.changes_digest), 1, made_of)
    assert segment is not None
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
