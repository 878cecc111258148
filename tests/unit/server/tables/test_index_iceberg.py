"""Iceberg tables: each snapshot as its metadata has it; what reading by name would get wrong is not read by name."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables import TableSnapshot, read_iceberg
from lakeshare_server.tables.iceberg.manifests import DataFiles
from lakeshare_server.tables.iceberg.partitions import client_maxima
from lakeshare_server.tables.lines import LINE_COLUMNS, render_lines
from lakeshare_server.tables.snapshot import parse_schema
from tests.builders.lake_tables import IcebergTable, an_iceberg_table, some_rows


def read(table: IcebergTable) -> TableSnapshot:
    state = table.state()
    return read_iceberg(state.metadata_location, state.snapshot_id)


def columns(snapshot: TableSnapshot, struct: str) -> list[dict[str, Any]]:
    return snapshot.files.sort_by("path").column(struct).to_pylist()


def test_a_snapshot_has_the_files_it_had(tmp_path: Path) -> None:
    table = an_iceberg_table(tmp_path)
    first = table.state()
    table.append(some_rows(days=1))
    assert read(table).files.num_rows == 4
    old = read_iceberg(table.state().metadata_location, first.snapshot_id)
    assert old.files.num_rows == 3
    assert sum(old.files.column("rows").to_pylist()) == 12


def test_the_schema_is_said_in_deltas_words(tmp_path: Path) -> None:
    snapshot = read(an_iceberg_table(tmp_path))
    assert {field.name: field.type for field in parse_schema(snapshot.head.schema_string)} == {
        "day": "date",
        "carrier": "string",
        "flight": "integer",
        "distance": "long",
        "delay": "double",
        "cancelled": "boolean",
        "departed": "timestamp",
        "crew": {
            "type": "struct",
            "fields": [
                {"name": "pilots", "type": "long", "nullable": True, "metadata": {}},
                {"name": "lead", "type": "string", "nullable": True, "metadata": {}},
            ],
        },
    }


def test_comments_and_required_columns_stay(tmp_path: Path) -> None:
    table = an_iceberg_table(tmp_path)
    with table.table.update_schema() as update:
        update.update_column("carrier", doc="who flies")
    table.append(some_rows(days=1))
    [carrier] = [field for field in parse_schema(read(table).head.schema_string) if field.name == "carrier"]
    assert carrier.metadata == {"comment": "who flies"}


def test_statistics_are_those_of_the_files(tmp_path: Path) -> None:
    snapshot = read(an_iceberg_table(tmp_path))
    for path, low, high, nulls in zip(
        sorted(snapshot.files.column("path").to_pylist()),
        *(columns(snapshot, struct) for struct in ("min", "max", "null_count")),
        strict=True,
    ):
        rows = pq.ParquetFile(path).read()
        for name in ("flight", "distance", "departed", "cancelled"):
            values = [value for value in rows.column(name).to_pylist() if value is not None]
            assert (low[name], high[name]) == (min(values), max(values))
            assert nulls[name] == rows.column(name).null_count


def test_a_column_that_may_hold_nan_has_no_upper_bound_for_recipients(tmp_path: Path) -> None:
    """For Spark NaN is greater than all numbers, and bounds leave it out; the server's own pruning knows of that."""
    table = an_iceberg_table(
        tmp_path, pa.table({"d": [1.0, 3.0, float("nan")], "n": [1, 2, 3]}), partitioned_by=()
    )
    snapshot = read(table)
    assert columns(snapshot, "max") == [{"d": 3.0, "n": 3}]
    [common] = render_lines(snapshot.files, ())[LINE_COLUMNS.index("common")].to_pylist()
    told = json.loads(json.loads(f"{{{common}}}")["stats"])
    assert (told["minValues"], told["maxValues"]) == ({"d": 1.0, "n": 1}, {"n": 3})


def test_a_column_without_nan_keeps_its_upper_bound() -> None:
    """Where the writer counted: pyiceberg does not."""
    from pyiceberg.types import DoubleType, FloatType, NestedField, StructType

    fields = [
        NestedField(1, "d", DoubleType(), required=False),
        NestedField(2, "s", StructType(NestedField(3, "f", FloatType(), required=False)), required=False),
    ]
    counts = {1: pa.array([0, 0, 1, None]), 3: pa.array([0, 2, None, None])}
    columns = pa.table({"path": ["a", "b", "c", "d"]})
    files = DataFiles(columns, lower={}, upper={}, null_counts={}, nan_counts=counts, partition={})
    kind = pa.struct([("d", pa.float64()), ("s", pa.struct([("f", pa.float32())]))])
    maxima = pa.array([{"d": 9.0, "s": {"f": 5.0}}] * len(files), kind)
    told = [(one["d"], one["s"]["f"]) for one in client_maxima(maxima, fields, files).to_pylist()]
    assert told == [(9.0, 5.0), (9.0, None), (None, None), (None, None)]


def test_identity_partitions_are_the_protocols_partitions(tmp_path: Path) -> None:
    snapshot = read(an_iceberg_table(tmp_path))
    assert snapshot.head.partition_columns == ("day",)
    assert [values["day"] for values in columns(snapshot, "partition")] == [
        date(2013, 1, d) for d in (1, 2, 3)
    ]


def test_other_transforms_are_left_to_statistics(tmp_path: Path) -> None:
    from pyiceberg.transforms import MonthTransform

    table = IcebergTable(tmp_path, some_rows().schema, partitioned_by=())
    with table.table.update_spec() as spec:
        spec.add_field("day", MonthTransform())
    file = tmp_path / "january.parquet"
    pq.write_table(some_rows(), file)
    table.table.add_files([str(file)])
    snapshot = read(table)
    assert snapshot.head.partition_columns == ()
    assert columns(snapshot, "partition") == [None]
    assert columns(snapshot, "min")[0]["day"] == date(2013, 1, 1)


def test_a_partition_that_came_later_is_an_ordinary_column(tmp_path: Path) -> None:
    table = an_iceberg_table(tmp_path, partitioned_by=())
    with table.table.update_spec() as spec:
        spec.add_identity("day")
    table.append(some_rows(days=2))
    snapshot = read(table)
    assert snapshot.files.num_rows == 3
    assert snapshot.head.partition_columns == ()


def test_a_column_with_empty_partition_texts_is_left_to_the_files(tmp_path: Path) -> None:
    rows = pa.table({"s": ["", None, "x"], "n": [1, 2, 3]})
    assert read(an_iceberg_table(tmp_path / "a", rows, partitioned_by=("s",))).head.partition_columns == ()
    kept = an_iceberg_table(tmp_path / "b", rows.slice(1), partitioned_by=("s",))
    assert read(kept).head.partition_columns == ("s",)


def test_equality_deletes_that_are_gone_are_refused(tmp_path: Path) -> None:
    table = an_iceberg_table(tmp_path)
    state = with_a_delete_manifest(table, tmp_path)
    with pytest.raises(Unserveable, match=r"equality deletes .*deletes.parquet of .* cannot be read"):
        read_iceberg(state, table.state().snapshot_id)


def with_a_delete_manifest(table: IcebergTable, folder: Path) -> str:
    """The table's metadata with its manifest list naming one more manifest, of deletes; pyiceberg writes none."""
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
        write_manifest_list,
    )
    from pyiceberg.typedef import Record

    class DeleteWriter(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    iceberg = table.table
    snapshot = iceberg.current_snapshot()
    entry = ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=snapshot.snapshot_id,
        data_file=DataFile.from_args(
            content=DataFileContent.EQUALITY_DELETES,
            file_path=str(folder / "deletes.parquet"),
            file_format=FileFormat.PARQUET,
            partition=Record(15706),
            equality_ids=[1],
            record_count=1,
            file_size_in_bytes=1,
        ),
    )
    output = iceberg.io.new_output(str(folder / "deletes.avro"))
    with DeleteWriter(iceberg.spec(), iceberg.schema(), output, snapshot.snapshot_id, "null") as writer:
        writer.add_entry(entry)
    listing = str(folder / "manifest-list.avro")
    with write_manifest_list(
        2, iceberg.io.new_output(listing), snapshot.snapshot_id, None, 2, "null"
    ) as manifests:
        manifests.add_manifests([*snapshot.manifests(iceberg.io), writer.to_manifest_file()])
    metadata = json.loads(Path(iceberg.metadata_location.removeprefix("file://")).read_text())
    metadata["snapshots"][-1]["manifest-list"] = listing
    changed = folder / "changed.metadata.json"
    changed.write_text(json.dumps(metadata))
    return str(changed)


def hindrance(snapshot: TableSnapshot) -> tuple[str | None, str]:
    """The feature and the reason of the only thing that keeps the parquet format from carrying it."""
    [only] = snapshot.head.hindrances
    return only.feature, only.reason


def test_a_renamed_column_is_read_by_id_while_files_have_the_old_name(tmp_path: Path) -> None:
    table = an_iceberg_table(tmp_path)
    with table.table.update_schema() as update:
        update.rename_column("carrier", "airline")
    table.append(renamed(some_rows(days=1)))
    reason = "is read by field ids: a file has column airline under its other name carrier"
    assert hindrance(read(table)) == ("columnMapping", reason)


def renamed(rows: pa.Table) -> pa.Table:
    return rows.rename_columns(["airline" if name == "carrier" else name for name in rows.column_names])


def test_a_renamed_column_is_served_once_the_files_are_rewritten(tmp_path: Path) -> None:
    table = an_iceberg_table(tmp_path)
    with table.table.update_schema() as update:
        update.rename_column("carrier", "airline")
    table.table.overwrite(renamed(some_rows()))
    snapshot = read(table)
    assert (snapshot.files.num_rows, snapshot.head.hindrances) == (3, ())


def test_a_name_used_again_for_another_column_is_read_by_id(tmp_path: Path) -> None:
    from pyiceberg.types import DoubleType

    table = an_iceberg_table(tmp_path)
    with table.table.update_schema() as update:
        update.delete_column("delay")
    with table.table.update_schema() as update:
        update.add_column("delay", DoubleType())
    reason = "is read by field ids: a file has an older, dropped column under the name delay"
    assert hindrance(read(table)) == ("columnMapping", reason)


def test_a_promoted_column_is_a_widened_one_while_files_have_the_old_type(tmp_path: Path) -> None:
    from pyiceberg.types import LongType

    table = an_iceberg_table(tmp_path)
    with table.table.update_schema() as update:
        update.update_column("flight", LongType())
    table.append(some_rows(days=1).set_column(2, "flight", pa.array([1, 2, 3, 4], pa.int64())))
    snapshot = read(table)
    assert hindrance(snapshot)[0] == "typeWidening"
    [flight] = [field for field in parse_schema(snapshot.head.schema_string) if field.name == "flight"]
    assert flight.metadata == {"delta.typeChanges": [{"fromType": "integer", "toType": "long"}]}


def test_an_added_column_is_no_hindrance(tmp_path: Path) -> None:
    from pyiceberg.types import StringType

    table = an_iceberg_table(tmp_path)
    with table.table.update_schema() as update:
        update.add_column("remark", StringType())
    table.append(some_rows(days=1).append_column("remark", pa.array(["x"] * 4)))
    snapshot = read(table)
    assert snapshot.files.num_rows == 4
    assert parse_schema(snapshot.head.schema_string)[-1].name == "remark"


def expired(table: IcebergTable, folder: Path, *, first_kept: bool = False) -> TableSnapshot:
    """The table once `expire_snapshots(clean_expired_metadata => true)` left its newest snapshot and schema.

    With `first_kept` its schemas have the numbers they have when each was expired before the next one was made.
    """
    state = table.state()
    metadata = json.loads(Path(state.metadata_location.removeprefix("file://")).read_text())
    [snapshot] = [one for one in metadata["snapshots"] if one["snapshot-id"] == state.snapshot_id]
    snapshot.pop("parent-snapshot-id", None)
    schemas = {one["schema-id"]: one for one in metadata["schemas"]}
    newest = schemas[metadata["current-schema-id"]]
    metadata |= {"snapshots": [snapshot], "snapshot-log": metadata["snapshot-log"][-1:], "schemas": [newest]}
    if first_kept:
        metadata |= {"schemas": [schemas[0], newest], "current-schema-id": 1}
        newest["schema-id"] = snapshot["schema-id"] = 1
    location = folder / "expired.metadata.json"
    location.write_text(json.dumps(metadata))
    return read_iceberg(str(location), state.snapshot_id)


def test_a_rename_is_noticed_after_its_schema_expired(tmp_path: Path) -> None:
    table = an_iceberg_table(tmp_path)
    with table.table.update_schema() as update:
        update.rename_column("carrier", "airline")
    table.append(renamed(some_rows(days=1)))
    assert "column airline under its other name carrier" in hindrance(expired(table, tmp_path))[1]


@pytest.mark.parametrize("first_kept", [True, False])
def test_a_dropped_column_is_noticed_after_its_schema_expired(tmp_path: Path, first_kept: bool) -> None:
    """Also when the numbers of the schemas have no gap: a change that is taken back gives its number away."""
    from pyiceberg.types import StringType

    table = an_iceberg_table(tmp_path)
    with_remark = some_rows(days=1).append_column("remark", pa.array(["x"] * 4))
    with table.table.update_schema() as update:
        update.add_column("remark", StringType())
    table.append(with_remark)
    with table.table.update_schema() as update:
        update.delete_column("remark")
    assert read(table).files.num_rows == 4
    with table.table.update_schema() as update:
        update.add_column("remark", StringType())
    table.append(with_remark)
    read_by_id = expired(table, tmp_path, first_kept=first_kept)
    assert "older, dropped column under the name remark" in hindrance(read_by_id)[1]


def test_an_added_column_is_no_hindrance_after_its_schema_expired(tmp_path: Path) -> None:
    from pyiceberg.types import StringType

    table = an_iceberg_table(tmp_path)
    with table.table.update_schema() as update:
        update.add_column("remark", StringType())
    table.append(some_rows(days=1).append_column("remark", pa.array(["x"] * 4)))
    assert expired(table, tmp_path).files.num_rows == 4


def test_footers_of_an_ordinary_table_are_not_read(tmp_path: Path) -> None:
    """Nested columns have numbers of their own, and a dropped one keeps its own as long as its schema is there."""
    rows = some_rows().append_column("tags", pa.array([[{"k": "v"}]] * 12))
    table = an_iceberg_table(tmp_path, rows)
    with table.table.update_schema() as update:
        update.delete_column("delay")
    for file in read(table).files.column("path").to_pylist():
        Path(file).unlink()
    assert read(table).files.num_rows == 3


@pytest.mark.parametrize(("kind", "name"), [(pa.time64("us"), "time"), (pa.binary(16), "fixed")])
def test_types_that_delta_cannot_say_are_refused_by_column(
    tmp_path: Path, kind: pa.DataType, name: str
) -> None:
    table = an_iceberg_table(tmp_path, pa.table({"odd": pa.nulls(1, kind)}), partitioned_by=())
    with pytest.raises(Unserveable, match=rf"Column odd of .* has the type {name}.* \[UNSUPPORTED_TYPE\]"):
        read(table)


def test_metadata_that_is_gone_or_broken_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = an_iceberg_table(tmp_path)
    with pytest.raises(Unserveable, match=r"nothing\.metadata\.json cannot be read"):
        read_iceberg(str(tmp_path / "nothing.metadata.json"), 1)
    broken = tmp_path / "broken.metadata.json"
    broken.write_text('{"format-version": 2')
    with pytest.raises(Unserveable) as refused:
        read_iceberg(str(broken), 1)
    # Nothing of what the library says goes out: it may have the whole text, and places of the server.
    said = f"The Iceberg metadata {broken} cannot be read: it is no JSON, or cut off."
    assert str(refused.value) == f"{said} Check that the file is there and whole."
    assert f"{broken} cannot be read" in caplog.text
    with pytest.raises(Unserveable, match="has no snapshot 1"):
        read_iceberg(table.state().metadata_location, 1)
