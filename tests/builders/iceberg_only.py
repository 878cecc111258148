"""Iceberg tables that the Delta Sharing API cannot carry and Iceberg's own clients read; made without Spark."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyiceberg.catalog.memory import InMemoryCatalog
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
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import FixedType, IcebergType, LongType, NestedField, StringType, TimeType, UUIDType

Made = tuple[Path, list[dict[str, Any]]]
"""The table's folder, and its rows as PyIceberg reads them."""


def _table(warehouse: Path, *columns: tuple[str, IcebergType]) -> Any:
    warehouse.mkdir(parents=True)
    catalog = InMemoryCatalog("tests", warehouse=warehouse.as_uri())
    catalog.create_namespace("lake")
    fields = [NestedField(place, name, kind) for place, (name, kind) in enumerate(columns, 1)]
    return catalog.create_table("lake.flights", Schema(*fields))


def _folder(table: Any) -> Path:
    return Path(table.location().removeprefix("file://"))


def _appended(table: Any, rows: list[dict[str, Any]]) -> Made:
    table.append(pa.Table.from_pylist(rows, table.schema().as_arrow()))
    return _folder(table), rows


def uuids(warehouse: Path) -> Made:
    table = _table(warehouse, ("id", LongType()), ("odd", UUIDType()))
    folder, rows = _appended(table, [{"id": 1, "odd": uuid.UUID(int=7).bytes}])
    return folder, [{**row, "odd": uuid.UUID(bytes=row["odd"])} for row in rows]


def times(warehouse: Path) -> Made:
    from datetime import time

    return _appended(
        _table(warehouse, ("id", LongType()), ("odd", TimeType())), [{"id": 1, "odd": time(3, 4, 5)}]
    )


def fixed(warehouse: Path) -> Made:
    return _appended(
        _table(warehouse, ("id", LongType()), ("odd", FixedType(4))), [{"id": 1, "odd": b"abcd"}]
    )


def names_that_differ_by_case(warehouse: Path) -> Made:
    return _appended(
        _table(warehouse, ("id", LongType()), ("ID", StringType())),
        [{"id": 1, "ID": "a"}, {"id": 2, "ID": "b"}],
    )


def a_default(warehouse: Path) -> Made:
    """A column with a default for the files that lack it, as format version 3 has it."""
    table = _table(warehouse, ("id", LongType()))
    folder, rows = _appended(table, [{"id": 1}])

    def with_default(metadata: dict[str, Any]) -> None:
        extra = {"id": 2, "name": "extra", "type": "long", "required": False}
        metadata["schemas"][0]["fields"].append({**extra, "initial-default": 7, "write-default": 7})
        metadata.update({"last-column-id": 2, "format-version": 3, "next-row-id": 1})

    _rewrite(table, with_default)
    return folder, [{**row, "extra": 7} for row in rows]


def orc_data(warehouse: Path) -> Made:
    """A data file in ORC, whose columns are known by the table's name mapping."""
    table = _table(warehouse, ("id", LongType()), ("name", StringType()))
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    with table.transaction() as change:
        mapping = [{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["name"]}]
        change.set_properties({"schema.name-mapping.default": json.dumps(mapping)})
    table.append(pa.Table.from_pylist(rows, table.schema().as_arrow()))
    path = _folder(table) / "data" / "rows.orc"
    orc.write_table(pa.Table.from_pylist(rows), path)
    _replace_manifests(table, [_data_file(path, FileFormat.ORC, len(rows))], [])
    return _folder(table), rows


def equality_deletes(warehouse: Path) -> Made:
    """A delete file by the values of a column, as Flink's upserts write it: the rows that are left have id 2."""
    table = _table(warehouse, ("id", LongType()), ("name", StringType()))
    _appended(table, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    path = _folder(table) / "data" / "deletes.parquet"
    key = pa.schema([pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})])
    pq.write_table(pa.Table.from_pylist([{"id": 1}], key), path)
    delete = _data_file(path, FileFormat.PARQUET, 1, DataFileContent.EQUALITY_DELETES, equality_ids=[1])
    _replace_manifests(table, None, [delete])
    return _folder(table), [{"id": 2, "name": "b"}]


def a_file_listed_twice(warehouse: Path) -> Made:
    """Iceberg's readers read a file as often as it is listed."""
    table = _table(warehouse, ("id", LongType()))
    folder, rows = _appended(table, [{"id": 1}])
    [file] = [task.file for task in table.scan().plan_files()]
    path = Path(file.file_path.removeprefix("file://"))
    entry = _data_file(path, FileFormat.PARQUET, 1)
    _replace_manifests(table, [entry, entry], [])
    return folder, rows * 2


TABLES: dict[str, Callable[[Path], Made]] = {
    "UNSUPPORTED_TYPE uuid": uuids,
    "UNSUPPORTED_TYPE time": times,
    "UNSUPPORTED_TYPE fixed": fixed,
    "NAMES_DIFFER_BY_CASE": names_that_differ_by_case,
    "COLUMN_DEFAULTS": a_default,
    "FILE_FORMAT": orc_data,
    "DUPLICATE_FILES": a_file_listed_twice,
}
"""Each by the code that the Delta Sharing API refuses it with; the code ends at the space."""


def _data_file(
    path: Path,
    kind: FileFormat,
    rows: int,
    content: DataFileContent = DataFileContent.DATA,
    equality_ids: list[int] | None = None,
) -> DataFile:
    return DataFile.from_args(
        content=content,
        file_path=path.as_uri(),
        file_format=kind,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=path.stat().st_size,
        equality_ids=equality_ids,
    )


class _DeleteWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def _replace_manifests(table: Any, data: list[DataFile] | None, deletes: list[DataFile]) -> None:
    """Let the newest snapshot have these data files, None for its own, and these deletes; PyIceberg writes no such."""
    snapshot, folder = table.current_snapshot(), _folder(table) / "metadata"
    manifests = [] if data is not None else list(snapshot.manifests(table.io))
    for writer_class, files in ((ManifestWriterV2, data), (_DeleteWriter, deletes)):
        if files:
            output = table.io.new_output(str(folder / f"{writer_class.__name__}.avro"))
            arguments = (table.spec(), table.schema(), output, snapshot.snapshot_id, "null")
            with writer_class(*arguments) as writer:
                for file in files:
                    added = ManifestEntryStatus.ADDED
                    writer.add_entry(
                        ManifestEntry.from_args(
                            status=added, snapshot_id=snapshot.snapshot_id, data_file=file
                        )
                    )
            manifests.append(writer.to_manifest_file())
    listing = str(folder / "other-manifests.avro")
    output = table.io.new_output(listing)
    number = snapshot.sequence_number + (1 if deletes else 0)
    with write_manifest_list(2, output, snapshot.snapshot_id, None, number, "null") as written:
        written.add_manifests(manifests)

    def with_list(metadata: dict[str, Any]) -> None:
        told = metadata["snapshots"][-1]
        told["manifest-list"] = f"file://{listing}"
        told["sequence-number"] = metadata["last-sequence-number"] = number
        told["summary"] = {"operation": "overwrite", "total-equality-deletes": str(len(deletes))}

    _rewrite(table, with_list)


def _rewrite(table: Any, change: Callable[[dict[str, Any]], None]) -> None:
    """The next metadata file, made by hand from the newest one."""
    newest = max((_folder(table) / "metadata").glob("*.metadata.json"))
    metadata = json.loads(newest.read_text())
    change(metadata)
    number = int(newest.name.partition("-")[0]) + 1
    newest.with_name(f"{number:05d}-{uuid.UUID(int=number)}.metadata.json").write_text(json.dumps(metadata))
