"""Delta tables: each version as its log has it, and what of it the parquet format cannot carry, with the remedy."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakeshare_server.errors import Unserveable
from lakeshare_server.protocol.lines import Capabilities, negotiate_format
from lakeshare_server.tables import lines, read_delta, write_index
from lakeshare_server.tables.delta import log as delta_log
from lakeshare_server.tables.index import FileIndex
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows
from tests.builders.written_log import WrittenLog, add, metadata, protocol


def rewrite_log(location: Path, action: str, **changes: Any) -> None:
    """Change fields of an action in the first commit, as another writer would have written them."""
    log = location / "_delta_log" / "00000000000000000000.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if action in line:
            line[action].update(changes)
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_version_has_the_files_it_had(tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "table")
    append_delta(location, some_rows(days=1))
    assert [read_delta(str(location), version).files.num_rows for version in (0, 1, None)] == [3, 4, 4]
    assert read_delta(str(location)).version == 1


def test_removed_files_are_gone(tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "table")
    write_deltalake(location, some_rows(days=1), mode="overwrite")
    snapshot = read_delta(str(location))
    assert snapshot.files.num_rows == 1
    assert read_delta(str(location), 0).files.num_rows == 3


def test_paths_are_those_on_the_disk_whatever_the_partition_is_called(tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "table", partitioned_by=("carrier", "departed"))
    paths = read_delta(str(location)).files.column("path").to_pylist()
    assert len(paths) == 12
    assert all(Path(path).is_file() for path in paths)


def test_an_absolute_path_in_the_log_stays_what_it_is(tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "table", some_rows(days=1), partitioned_by=())
    [file] = read_delta(str(location)).files.column("path").to_pylist()
    moved = Path(file).rename(tmp_path / "else where.parquet")
    rewrite_log(location, "add", path=moved.as_uri())
    assert read_delta(str(location)).files.column("path").to_pylist() == [str(moved)]


def test_a_path_with_dots_is_folded(tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "table", some_rows(days=1), partitioned_by=())
    rewrite_log(location, "add", path="sub/../x.parquet")
    assert read_delta(str(location)).files.column("path").to_pylist() == [str(location / "x.parquet")]


def test_files_without_statistics_are_files(tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "table", some_rows(days=1))
    rewrite_log(location, "add", stats=None)
    files = read_delta(str(location)).files
    assert files.num_rows == 1
    assert files.column("rows").to_pylist() == [None]


def test_a_checkpoint_changes_nothing(tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "table")
    before = read_delta(str(location)).files
    DeltaTable(location).create_checkpoint()
    (location / "_delta_log" / "00000000000000000000.json").unlink()
    after = read_delta(str(location)).files
    assert before.sort_by("path").to_pylist() == after.sort_by("path").to_pylist()


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_table_that_is_read_in_pieces_has_the_same_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_checkpoint: bool
) -> None:
    location = tmp_path / "table"
    kinds = {"day": "date", "few": "long", "none": "long", "p": "string"}
    nested = {"type": "struct", "fields": [{"name": "in", "type": "long", "nullable": True, "metadata": {}}]}
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in {**kinds, "deep": nested}.items()
    ]
    log = WrittenLog(location)
    log.commit(protocol(), metadata(partitions=("day", "p"), schema={"type": "struct", "fields": fields}))
    for number in range(25):
        # Few files have statistics of a column, and one has a partition value that is none, which no checkpoint takes.
        bounds = {"few": number, "deep": {"in": number}} if number in (3, 4, 21) else {}
        stats = {"numRecords": number, "minValues": bounds, "maxValues": bounds, "nullCount": {}}
        day = "no day" if number == 13 and not has_checkpoint else f"2024-01-{number + 1:02}"
        values = {"day": day, "p": str(number)}
        log.commit(add(f"{number * 7 % 25:02}.parquet", partitionValues=values, stats=json.dumps(stats)))
    if has_checkpoint:
        DeltaTable(location).create_checkpoint()
    whole = read_delta(str(location))
    index = FileIndex(write_index(whole, tmp_path / "whole").path)
    for rows in (1, 4, 24):
        # A piece takes a commit, or as many rows of a checkpoint.
        for module in (lines, delta_log):
            monkeypatch.setattr(module, "PIECE_ROWS", rows)
        pieces = read_delta(str(location))
        assert pieces.files.column("path").num_chunks > 1
        assert pieces.files.to_pylist() == whole.files.to_pylist()
        assert pieces.files.schema == whole.files.schema
        other = FileIndex(write_index(pieces, tmp_path / f"pieces{rows}").path)
        assert other.header == index.header
        assert pa.Table.from_batches(other.batches()).equals(pa.Table.from_batches(index.batches()))


def test_no_table_and_no_version_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(Unserveable, match="There is no Delta table at"):
        read_delta(str(tmp_path / "nothing"))
    location = a_delta_table(tmp_path / "table")
    with pytest.raises(Unserveable, match="cannot be read at version 7"):
        read_delta(str(location), 7)


REFUSED = {
    "column mapping": (
        {"minReaderVersion": 2, "minWriterVersion": 5},
        {"configuration": {"delta.columnMapping.mode": "name"}},
        "column mapping in mode name",
    ),
    "deletion vectors": (
        {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors"],
        },
        {"configuration": {"delta.enableDeletionVectors": "true"}},
        "deletion vectors switched on",
    ),
}


def refused_for(location: Path, reason: str) -> None:
    """Reading it is no trouble; whoever takes the parquet format only is refused, with a remedy."""
    head = read_delta(str(location)).head
    with pytest.raises(Unserveable, match=f"Unsupported Delta Table Properties.*{reason}") as refused:
        negotiate_format(Capabilities(), head, "s.s.t")
    assert refused.value.fix


@pytest.mark.parametrize("case", REFUSED)
def test_what_parquet_cannot_carry_is_refused(tmp_path: Path, case: str) -> None:
    protocol, metadata, reason = REFUSED[case]
    rows = some_rows().drop_columns(["crew"])
    location = a_delta_table(tmp_path / "table", rows)
    schema = json.loads(read_delta(str(location)).head.schema_string)
    for number, field in enumerate(schema["fields"], 1):
        name = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
        field["metadata"] = name if case == "column mapping" else {}
    rewrite_log(location, "protocol", **protocol)
    rewrite_log(location, "metaData", **metadata, schemaString=json.dumps(schema))
    refused_for(location, reason)


def test_timestamps_without_a_zone_are_refused_by_column(tmp_path: Path) -> None:
    rows = pa.table({"at": pa.array([0], pa.timestamp("us"))})
    location = a_delta_table(tmp_path / "table", rows, partitioned_by=())
    refused_for(location, r"without a time zone \(column at\).*Store them as timestamp")


def test_features_that_only_log_readers_need_are_no_hindrance(tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "table")
    feature = ["vacuumProtocolCheck"]
    rewrite_log(
        location,
        "protocol",
        minReaderVersion=3,
        minWriterVersion=7,
        readerFeatures=feature,
        writerFeatures=feature,
    )
    snapshot = read_delta(str(location))
    assert snapshot.files.num_rows == 3
    assert snapshot.head.hindrances == ()
    assert snapshot.head.protocol.reader_features == snapshot.head.protocol.writer_features == ()


def test_a_feature_nobody_here_knows_is_refused_by_name(tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "table")
    features = ["deletionVectors", "tomorrow", "nextYear"]
    rewrite_log(
        location,
        "protocol",
        minReaderVersion=3,
        minWriterVersion=7,
        readerFeatures=features,
        writerFeatures=features,
    )
    with pytest.raises(Unserveable, match="needs the reader features nextYear, tomorrow"):
        read_delta(str(location))


def test_a_reader_version_nobody_here_knows_is_refused(tmp_path: Path) -> None:
    location = a_delta_table(tmp_path / "table")
    rewrite_log(location, "protocol", minReaderVersion=4, minWriterVersion=9)
    with pytest.raises(Unserveable, match=r"version \(4,9\) is too new"):
        read_delta(str(location))


@pytest.mark.parametrize(("value", "wanted"), [("x", ""), (1, None)])
def test_an_empty_partition_text_is_what_delta_spark_reads(
    tmp_path: Path, value: object, wanted: str | None
) -> None:
    rows = pa.table({"p": [value], "n": [1]})
    location = a_delta_table(tmp_path / "table", rows, partitioned_by=("p",))
    rewrite_log(location, "add", partitionValues={"p": ""})
    assert read_delta(str(location)).files.column("partition").to_pylist() == [{"p": wanted}]
