"""The head of an Iceberg table: features, column mapping and refusals, each as its live files need it."""

import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables import TableSnapshot, open_index, read_iceberg, write_index
from lakeshare_server.tables.iceberg.deletes import add_vector_feature, vector_columns, vector_of
from lakeshare_server.tables.iceberg.manifests import live_files
from lakeshare_server.tables.iceberg.schema import columns_in_files, iceberg_head
from tests.builders.lake_tables import IcebergState, IcebergTable, an_iceberg_table, some_rows


def read(table: IcebergTable, location: str | None = None) -> TableSnapshot:
    state = table.state()
    return read_iceberg(location or state.metadata_location, state.snapshot_id)


def rename(table: IcebergTable, column: str, name: str) -> None:
    with table.table.update_schema() as update:
        update.rename_column(column, name)


def written_again(table: IcebergTable, folder: Path, change: Any) -> str:
    """The table's metadata after a change of its JSON, in a file of its own."""
    metadata = json.loads(Path(table.state().metadata_location.removeprefix("file://")).read_text())
    change(metadata)
    path = folder / "changed.metadata.json"
    path.write_text(json.dumps(metadata))
    return str(path)


def by_name(snapshot: TableSnapshot) -> dict[str, Any]:
    return {field["name"]: field for field in json.loads(snapshot.head.schema_string)["fields"]}


def told_file(snapshot: TableSnapshot, folder: Path) -> dict[str, Any]:
    """What both formats say of the only file."""
    [batch] = open_index(folder, write_index(snapshot, folder).digest).batches()
    [common] = batch.column("common").to_pylist()
    return json.loads(f"{{{common}}}")


def test_an_ordinary_table_needs_nothing_of_its_readers(tmp_path: Path) -> None:
    head = read(an_iceberg_table(tmp_path)).head
    assert (head.protocol.min_reader_version, head.protocol.reader_features) == (1, None)
    assert (head.configuration, head.hindrances) == ({}, ())


def test_renamed_columns_go_out_with_column_mapping_by_id(tmp_path: Path) -> None:
    table = an_iceberg_table(tmp_path)
    rename(table, "carrier", "airline")
    rename(table, "crew.lead", "captain")
    head = read(table).head
    assert head.protocol.reader_features == head.protocol.writer_features == ("columnMapping",)
    assert head.configuration == {"delta.columnMapping.mode": "id", "delta.columnMapping.maxColumnId": "10"}
    fields = by_name(read(table))
    ids = {field.name: field.field_id for field in table.table.schema().fields}
    assert fields["airline"]["metadata"] == {
        "delta.columnMapping.id": ids["airline"],
        "delta.columnMapping.physicalName": f"col-{ids['airline']}",
    }
    captain = fields["crew"]["type"]["fields"][1]
    assert captain["metadata"]["delta.columnMapping.id"] == 10


def test_lines_of_a_mapped_table_go_by_physical_names_and_pruning_by_the_tables(tmp_path: Path) -> None:
    table = an_iceberg_table(tmp_path / "table", some_rows(days=1))
    rename(table, "flight", "number")
    rename(table, "crew.pilots", "crew_size")
    snapshot = read(table)
    told = told_file(snapshot, tmp_path)
    # The files have the partition column too, and the Python client's kernel fails on mapped partition columns.
    assert (told["partitionValues"], snapshot.head.partition_columns) == ({}, ())
    stats = json.loads(told["stats"])
    assert stats["minValues"]["col-3"] == 1000
    assert stats["nullCount"]["col-8"] == {"col-9": 0, "col-10": 0}
    [batch] = open_index(tmp_path, write_index(snapshot, tmp_path).digest).batches()
    assert batch.column("min").to_pylist()[0]["number"] == 1000
    assert batch.column("partition").to_pylist()[0]["day"] == date(2013, 1, 1)


def test_a_snapshot_from_before_the_rename_is_read_by_its_own_names(tmp_path: Path) -> None:
    table = an_iceberg_table(tmp_path)
    before = table.state().snapshot_id
    rename(table, "carrier", "airline")
    rows = some_rows(days=1)
    table.append(
        rows.rename_columns(["airline" if name == "carrier" else name for name in rows.column_names])
    )
    old = read_iceberg(table.state().metadata_location, before)
    assert ("carrier" in by_name(old), old.head.hindrances) == (True, ())
    assert [one.code for one in read(table).head.hindrances] == ["RENAMED_COLUMNS"]


def test_a_name_that_files_spell_otherwise_is_read_by_id(tmp_path: Path) -> None:
    """Iceberg's writers spell `a b` as `a_x20b`, so a reader by name would find nothing but nulls.

    Files that are written anew spell it so again: the fix is another name.
    """
    table = an_iceberg_table(tmp_path, pa.table({"a b": [1, 2]}), partitioned_by=())
    snapshot = read(table)
    [file] = snapshot.files.column("path").to_pylist()
    assert pq.read_schema(file).names == ["a_x20b"]
    assert [one.code for one in snapshot.head.hindrances] == ["NAMES_SPELT_OTHERWISE"]
    rename(table, "a b", "a_b")
    table.table.overwrite(pa.table({"a_b": [1]}))
    assert read(table).head.hindrances == ()


def test_a_column_that_became_a_struct_of_its_name_is_read_by_id(tmp_path: Path) -> None:
    from pyiceberg.types import LongType, NestedField, StructType

    table = an_iceberg_table(tmp_path)
    with table.table.update_schema() as update:
        update.delete_column("delay")
    with table.table.update_schema() as update:
        update.add_column("delay", StructType(NestedField(100, "minutes", LongType(), required=False)))
    [hindrance] = read(table).head.hindrances
    assert hindrance.reason.endswith("has an older, dropped column under the name delay")


def test_a_dropped_name_that_comes_back_in_another_case_is_read_by_id(tmp_path: Path) -> None:
    """Spark's readers by name would take the old column for the new one."""
    from pyiceberg.types import DoubleType

    table = an_iceberg_table(tmp_path)
    with table.table.update_schema() as update:
        update.delete_column("delay")
    with table.table.update_schema() as update:
        update.add_column("Delay", DoubleType())
    [hindrance] = read(table).head.hindrances
    assert hindrance.reason.endswith("has an older, dropped column under the name delay")


def test_a_time_without_zone_needs_a_feature_and_is_told_without_zone(tmp_path: Path) -> None:
    rows = pa.table({"at": pa.array([1_000_000], pa.timestamp("us"))})
    snapshot = read(an_iceberg_table(tmp_path / "table", rows, partitioned_by=()))
    assert by_name(snapshot)["at"]["type"] == "timestamp_ntz"
    assert snapshot.head.protocol.reader_features == ("timestampNtz",)
    assert [one.code for one in snapshot.head.hindrances] == ["TIMESTAMPS_WITHOUT_ZONE"]
    least = json.loads(told_file(snapshot, tmp_path)["stats"])["minValues"]["at"]
    assert least.startswith("1970-01-01T00:00:01")
    assert not least.endswith("Z")


def test_promotions_inside_lists_and_maps_have_their_place(tmp_path: Path) -> None:
    from pyiceberg.types import DoubleType, LongType

    kind = pa.map_(pa.string(), pa.float32())
    rows = pa.table({"l": pa.array([[1]], pa.list_(pa.int32())), "m": pa.array([[("k", 1.0)]], kind)})
    table = an_iceberg_table(tmp_path, rows, partitioned_by=())
    with table.table.update_schema() as update:
        update.update_column("l.element", LongType())
        update.update_column("m.value", DoubleType())
    fields = by_name(read(table))
    assert fields["l"]["metadata"]["delta.typeChanges"] == [
        {"fromType": "integer", "toType": "long", "fieldPath": "element"}
    ]
    assert fields["m"]["metadata"]["delta.typeChanges"] == [
        {"fromType": "float", "toType": "double", "fieldPath": "value"}
    ]


def test_a_decimal_that_grew_twice_tells_both_steps(tmp_path: Path) -> None:
    from decimal import Decimal

    from pyiceberg.types import DecimalType

    def rows(precision: int) -> pa.Table:
        return pa.table({"d": pa.array([Decimal("1.25")], pa.decimal128(precision, 2))})

    table = an_iceberg_table(tmp_path, rows(9), partitioned_by=())
    for precision in (10, 20):
        with table.table.update_schema() as update:
            update.update_column("d", DecimalType(precision, 2))
        table.append(rows(precision))
    assert by_name(read(table))["d"]["metadata"]["delta.typeChanges"] == [
        {"fromType": "decimal(9,2)", "toType": "decimal(10,2)"},
        {"fromType": "decimal(10,2)", "toType": "decimal(20,2)"},
    ]


def test_names_that_differ_by_case_only_are_refused(tmp_path: Path) -> None:
    table = an_iceberg_table(tmp_path, pa.table({"n": [1], "N": [2]}), partitioned_by=())
    with pytest.raises(Unserveable, match=r"columns n and N, .* \[NAMES_DIFFER_BY_CASE\]"):
        read(table)


def test_an_unknown_type_is_named_with_its_column(tmp_path: Path) -> None:
    table = an_iceberg_table(tmp_path, pa.table({"s": [{"n": 1}]}), partitioned_by=())

    def into_another(metadata: dict[str, Any]) -> None:
        metadata["format-version"] = 3
        metadata["schemas"][0]["fields"][0]["type"]["fields"][0]["type"] = "hologram(3)"

    location = written_again(table, tmp_path, into_another)
    with pytest.raises(Unserveable, match=r"Column s\.n of .* has the type hologram\(3\).* \[UNKNOWN_TYPE\]"):
        read(table, location)


@pytest.mark.parametrize(
    ("odd", "advised", "fix"),
    [
        (pa.time64("us"), pa.string(), "Store it as string or as long."),
        (pa.time64("us"), pa.int64(), "Store it as string or as long."),
        (pa.binary(16), pa.binary(), "Store it as binary."),
        (pa.uuid(), pa.string(), "Store it as string."),
    ],
)
def test_a_type_that_nobody_can_be_told_of_is_refused_and_its_fix_works(
    tmp_path: Path, odd: pa.DataType, advised: pa.DataType, fix: str
) -> None:
    rows = pa.table({"n": [1], "odd": pa.nulls(1, odd)})
    with pytest.raises(Unserveable, match=r"Column odd of .* \[UNSUPPORTED_TYPE\]") as refused:
        read(an_iceberg_table(tmp_path / "odd", rows, partitioned_by=()))
    assert refused.value.fix == fix
    stored_otherwise = pa.table({"n": [1], "odd": pa.nulls(1, advised)})
    assert (
        read(an_iceberg_table(tmp_path / "fixed", stored_otherwise, partitioned_by=())).head.hindrances == ()
    )


@pytest.mark.parametrize(
    "name",
    ["timestamp_ns", "timestamptz_ns", "geometry", "geography", "unknown", "geometry(OGC:CRS84)", "fixed[x]"],
)
def test_types_of_the_third_version_are_refused_by_name(tmp_path: Path, name: str) -> None:
    table = an_iceberg_table(tmp_path, pa.table({"n": [1], "odd": ["x"]}), partitioned_by=())

    def into_odd(metadata: dict[str, Any]) -> None:
        metadata["format-version"], metadata["next-row-id"] = 3, 0
        metadata["schemas"][0]["fields"][1]["type"] = name

    with pytest.raises(
        Unserveable, match=rf"Column odd of .* has the type {re.escape(name)}.* \[UNSUPPORTED_TYPE\]"
    ):
        read(table, written_again(table, tmp_path, into_odd))


VARIANT = [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary())]
SHREDDED = [*VARIANT, pa.field("typed_value", pa.int64())]


def a_table_of_variants(folder: Path, members: list[pa.Field]) -> TableSnapshot:
    """PyIceberg writes no variants: a file of them stands where it wrote another one."""
    table = an_iceberg_table(folder, pa.table({"n": [1], "v": [b"x"]}), partitioned_by=())
    [task] = table.table.scan().plan_files()
    ids = [{"PARQUET:field_id": str(number)} for number in (1, 2)]
    fields = [pa.field("n", pa.int64(), metadata=ids[0]), pa.field("v", pa.struct(members), metadata=ids[1])]
    row = {"n": 1, "v": {member.name: None if member.nullable else b"" for member in members}}
    file = task.file.file_path.removeprefix("file://")
    pq.write_table(pa.Table.from_pylist([row], pa.schema(fields)), file)

    def into_variant(metadata: dict[str, Any]) -> None:
        metadata["format-version"], metadata["next-row-id"] = 3, 0
        metadata["schemas"][0]["fields"][1]["type"] = "variant"

    return read(table, written_again(table, folder, into_variant))


def test_variants_need_their_feature_and_shredded_ones_one_more(tmp_path: Path) -> None:
    whole = a_table_of_variants(tmp_path / "whole", VARIANT)
    assert by_name(whole)["v"]["type"] == "variant"
    assert whole.head.protocol.reader_features == ("variantType",)
    assert [one.code for one in whole.head.hindrances] == ["VARIANTS"]
    shredded = a_table_of_variants(tmp_path / "shredded", SHREDDED)
    assert shredded.head.protocol.reader_features == ("variantType", "variantShredding")
    assert [one.code for one in shredded.head.hindrances] == ["VARIANTS", "SHREDDED_VARIANTS"]


def test_a_struct_with_the_names_of_a_variants_parts_is_none(tmp_path: Path) -> None:
    ids = [{"PARQUET:field_id": str(number)} for number in (3, 4)]
    members = [one.with_metadata(told) for one, told in zip(VARIANT, ids, strict=True)]
    with pytest.raises(Unserveable, match=r"column v as struct, the table has it as variant"):
        a_table_of_variants(tmp_path, members)


def with_default(table: IcebergTable, folder: Path, default: int) -> str:
    def change(metadata: dict[str, Any]) -> None:
        metadata["format-version"], metadata["next-row-id"] = 3, 0
        schema = next(one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"])
        schema["fields"][-1]["initial-default"] = default

    return written_again(table, folder, change)


def test_a_default_is_refused_while_a_file_lacks_the_column(tmp_path: Path) -> None:
    from pyiceberg.types import LongType

    table = an_iceberg_table(tmp_path, pa.table({"n": [1]}), partitioned_by=())
    with table.table.update_schema() as update:
        update.add_column("added", LongType())
    with pytest.raises(Unserveable, match=r"lacks column added.*rewrite_data_files.*\[COLUMN_DEFAULTS\]"):
        read(table, with_default(table, tmp_path, 7))
    table.table.overwrite(pa.table({"n": [1], "added": [7]}))
    assert read(table, with_default(table, tmp_path, 7)).head.hindrances == ()


class Imported:
    """A table of one file that carries no field ids: it is found by the table's name mapping."""

    def __init__(self, folder: Path) -> None:
        rows = pa.table({"n": [1], "s": ["x"]})
        self.table = IcebergTable(folder, rows.schema, partitioned_by=())
        self.file = folder / "imported.parquet"
        pq.write_table(rows, self.file)
        self.table.table.add_files([str(self.file)])

    def state(self) -> IcebergState:
        return self.table.state()


def test_imported_files_are_read_by_name_as_long_as_it_means_the_same(tmp_path: Path) -> None:
    imported = Imported(tmp_path)
    assert read(imported.table).head.hindrances == ()
    rename(imported.table, "s", "text")
    with pytest.raises(
        Unserveable, match=r"no field ids, and has column text under .* \[FILES_WITHOUT_IDS\]"
    ):
        read(imported.table)


def test_an_imported_file_beside_one_that_is_read_by_id_is_refused(tmp_path: Path) -> None:
    from pyiceberg.types import StringType

    imported = Imported(tmp_path)
    table = imported.table
    with table.table.update_schema() as update:
        update.add_column("odd name", StringType())
    table.append(pa.table({"n": [2], "s": ["y"], "odd name": ["z"]}))
    with pytest.raises(Unserveable, match=r"imported\.parquet has no field ids.*\[FILES_WITHOUT_IDS\]"):
        read(table)


@pytest.mark.parametrize("content", [None, b"no parquet"])
def test_a_file_that_cannot_be_looked_at_is_named(tmp_path: Path, content: bytes | None) -> None:
    imported = Imported(tmp_path)
    imported.file.unlink()
    if content is not None:
        imported.file.write_bytes(content)
    with pytest.raises(Unserveable, match=r"footer of .*imported\.parquet cannot be read"):
        read(imported.table)


def test_a_name_mapping_is_for_files_without_ids_only(tmp_path: Path) -> None:
    """The mapping gives a dropped column's name to the new column of that name; a file with ids means the old one."""
    from pyiceberg.types import StringType

    table = an_iceberg_table(tmp_path, pa.table({"n": [1], "s": ["old"]}), partitioned_by=())
    with table.table.update_schema() as update:
        update.delete_column("s")
    with table.table.update_schema() as update:
        update.add_column("s", StringType())
    mapping = [{"field-id": 1, "names": ["n"]}, {"field-id": 3, "names": ["s"]}]
    with table.table.transaction() as change:
        change.set_properties({"schema.name-mapping.default": json.dumps(mapping)})
    [hindrance] = read(table).head.hindrances
    assert hindrance.reason.endswith("has an older, dropped column under the name s")


def test_row_level_deletes_add_deletion_vectors_to_what_else_is_needed(tmp_path: Path) -> None:
    table = an_iceberg_table(tmp_path)
    rename(table, "carrier", "airline")
    schema = table.table.schema()
    stores = Stores(ServerSettings())
    files = live_files(stores, table.table.current_snapshot(), "t").data
    in_files = columns_in_files(stores, table.table.metadata, schema, files, "t", {})
    vectors = vector_columns({0: vector_of(BitMap64([1]))}, len(files), None)
    head = add_vector_feature(iceberg_head(table.table.metadata, schema, "t", (), in_files), vectors)
    assert (
        head.protocol.reader_features == head.protocol.writer_features == ("columnMapping", "deletionVectors")
    )
    assert head.configuration["delta.enableDeletionVectors"] == "true"
    assert [one.code for one in head.hindrances] == ["RENAMED_COLUMNS", "ROW_LEVEL_DELETES"]
