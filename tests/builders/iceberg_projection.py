"""Iceberg tables with data files that lack columns, as files adopted from Hive do, and the rows that they have.

Files are written one by one and appended as they are. Which rows a table has is known from how it was made, not from
any reader: a column that a file lacks has the value of an identity partition field, else null (Iceberg spec, "Column
Projection").
"""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_server.tables.iceberg.schema import delta_type
from tests.builders.canonical import Rows
from tests.builders.lake_tables import IcebergState

Row = Mapping[str, Any]


@dataclass(frozen=True)
class ProjectedFile:
    """A data file, and what a reader has to find in it: rows by field id."""

    location: str
    rows: tuple[Mapping[int, Any], ...]


class ProjectedTable:
    """An Iceberg table in a catalog of its own; `files` have what a reader has to find, one file for each snapshot."""

    def __init__(
        self, folder: Path, schema: Any, partition_fields: Sequence[tuple[str, str]] = (), **properties: str
    ) -> None:
        from pyiceberg.catalog.memory import InMemoryCatalog

        folder.mkdir(parents=True, exist_ok=True)
        catalog = InMemoryCatalog("tests", warehouse=folder.as_uri())
        catalog.create_namespace("lake")
        self.table: Any = catalog.create_table("lake.projected", schema, properties=properties)
        self.files: list[ProjectedFile] = []
        self._numbers, self._fields = itertools.count(), itertools.count()
        self.partition_by(*partition_fields)

    def partition_by(self, *fields: tuple[str, str], without: Collection[str] = ()) -> None:
        """Change the partition spec: fields to add as (column, transform), and names of fields to remove."""
        from pyiceberg.transforms import parse_transform

        if without:
            with self.table.update_spec() as update:
                for name in without:
                    update.remove_field(name)
        if fields:
            with self.table.update_spec() as update:
                for column, transform in fields:
                    update.add_field(column, parse_transform(transform), f"p{next(self._fields)}")

    def rename(self, was: str, now: str) -> None:
        """Give a column another name."""
        with self.table.update_schema() as update:
            update.rename_column(was, now)

    def map_names(self) -> None:
        """Set a name mapping, so that files may go without field ids."""
        mapping = self.table.schema().name_mapping.model_dump_json()
        with self.table.transaction() as change:
            change.set_properties({"schema.name-mapping.default": mapping})

    def add_file(
        self,
        rows: Sequence[Row],
        lacking: Collection[str] = (),
        *,
        has_ids: bool = True,
        has_statistics: bool = True,
    ) -> None:
        """Append a data file of rows with equal partition values; of columns that it lacks it has no trace.

        `rows` have the values of partition columns that the file lacks, and none of other columns that it lacks.
        """
        file = self._written(rows, lacking, has_ids=has_ids, has_statistics=has_statistics)
        with self.table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            append.append_data_file(file)

    def rewrite(self) -> None:
        """Rewrite all files with all columns under the spec of now, as `rewrite_data_files` with `rewrite-all` does."""
        schema = self.table.schema()
        by_partition: dict[str, list[Row]] = {}
        for row in self.rows(schema):
            by_partition.setdefault(str(self._partition(row)), []).append(row)
        old = [task.file for task in self.table.scan().plan_files()]
        self.files.clear()
        with self.table.transaction() as transaction, _overwritten(transaction) as rewrite:
            for file in old:
                rewrite.delete_data_file(file)
            for rows in by_partition.values():
                rewrite.append_data_file(self._written(rows))

    def rows(self, schema: Any, count: int | None = None) -> Iterator[Row]:
        """The rows of the first `count` files, under the names of a schema."""
        for file in self.files[:count]:
            for row in file.rows:
                yield {field.name: row.get(field.field_id) for field in schema.fields}

    def _written(
        self,
        rows: Sequence[Row],
        lacking: Collection[str] = (),
        *,
        has_ids: bool = True,
        has_statistics: bool = True,
    ) -> Any:
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

        schema = self.table.schema()
        arrow = schema_to_pyarrow(schema)
        content = pa.Table.from_pylist([dict(row) for row in rows], arrow)
        kept = pa.schema([kept for field in arrow if (kept := _without(field, "", lacking)) is not None])
        stored = content.select(kept.names).to_pylist()
        written = pa.Table.from_pylist(stored, kept if has_ids else _without_ids(kept))
        location = f"{self.table.location()}/data/{next(self._numbers)}.parquet"
        path = Path(location.removeprefix("file://"))
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(written, path)
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=location,
            file_format=FileFormat.PARQUET,
            partition=self._partition(rows[0]),
            record_count=len(rows),
            file_size_in_bytes=path.stat().st_size,
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **(_statistics(path, schema, self.table.properties) if has_statistics and has_ids else {}),
        )
        file.spec_id = self.table.spec().spec_id
        by_id = {field.name: field.field_id for field in schema.fields}
        found = tuple({by_id[name]: value for name, value in row.items()} for row in rows)
        self.files.append(ProjectedFile(location, found))
        return file

    def state(self) -> IcebergState:
        """The newest snapshot."""
        return IcebergState(self.table.metadata_location, self.table.current_snapshot().snapshot_id)

    def expected(self, count: int | None = None) -> Rows:
        """The rows under the names of now; or of the first `count` files, under the names of then."""
        from pyiceberg.types import PrimitiveType

        schema = self.table.schema()
        if count is not None:
            snapshot = self.table.snapshot_by_id(self.table.history()[count - 1].snapshot_id)
            schema = self.table.schemas()[snapshot.schema_id]
        assert all(isinstance(field.field_type, PrimitiveType) for field in schema.fields)
        columns = [(field.name, delta_type(field.field_type) or "") for field in schema.fields]
        return Rows.of(columns, (tuple(row.values()) for row in self.rows(schema, count)))

    def _partition(self, row: Row) -> Any:
        """The partition of a file, as its manifest has it."""
        from pyiceberg.partitioning import _to_partition_representation
        from pyiceberg.typedef import Record

        schema, values = self.table.schema(), []
        for field in self.table.spec().fields:
            kind = schema.find_type(field.source_id)
            value = _to_partition_representation(kind, _value(row, schema.find_column_name(field.source_id)))
            values.append(field.transform.transform(kind)(value))
        return Record(*values)


def _overwritten(transaction: Any) -> Any:
    """An overwrite that finds the files to delete in all manifests: PyIceberg has no predicate for NaN."""
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _OverwriteFiles

    class Overwritten(_OverwriteFiles):
        def _build_delete_files_partition_predicate(self) -> None:
            pass

        def _build_manifest_evaluator(self, spec_id: int) -> Any:
            return lambda manifest: True

    return Overwritten(operation=Operation.OVERWRITE, transaction=transaction, io=transaction._table.io)


def _value(row: Row, name: str) -> Any:
    value: Any = row
    for part in name.split("."):
        value = None if value is None else value.get(part)
    return value


def _without(field: pa.Field, above: str, lacking: Collection[str]) -> pa.Field | None:
    path = above + field.name
    if path in lacking:
        return None
    if not pa.types.is_struct(field.type):
        return field
    members = [kept for inner in field.type if (kept := _without(inner, f"{path}.", lacking)) is not None]
    return field.with_type(pa.struct(members))


def _without_ids(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.remove_metadata() for field in schema])


def _statistics(path: Path, schema: Any, properties: Mapping[str, str]) -> dict[str, Any]:
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )

    footer = pq.read_metadata(path)
    found = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(schema, properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    told: dict[str, Any] = found.to_serialized_dict()
    return {name: value for name, value in told.items() if name != "record_count"}
