"""Rows of Iceberg tables on main and at staging locations without Spark: for states that a test needs, not tests.

Spark plans for longer than it writes or reads a few rows. What it writes and reads itself is in the tests of staging.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table import CommitTableResponse, Transaction
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
)

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.spark.session import to_hadoop_path
from lakeshare_pipelines.spark.stores import make_pyiceberg_properties
from lakeshare_pipelines.wap.iceberg import iceberg_tables
from lakeshare_pipelines.wap.stage import run_properties
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.nessie import TableContent

TYPES: Mapping[str, PrimitiveType] = {
    "date": DateType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "string": StringType(),
}


class NessieBranch(NoopCatalog):
    """A branch of a lake's Nessie, as pyiceberg commits to it."""

    def __init__(self, lake: Lake, ref: str) -> None:
        super().__init__("nessie")
        self.lake, self.ref = lake, ref

    def find_table(self, name: str) -> IcebergTable | None:
        content = self.lake.nessie().content(name, self.ref)
        if content is None:
            return None
        location = content.metadata_location
        io = load_file_io(make_pyiceberg_properties(self.lake.stores, location), location)
        metadata = FromInputFile.table_metadata(io.new_input(location))
        return IcebergTable(tuple(name.split(".")), metadata, location, io, self)

    def new_table(self, table: Table) -> IcebergTable:
        """A table as Spark creates it from a contract; its first commit writes its first metadata file."""
        fields = [
            NestedField(number, column.name, TYPES[column.type], required=False)
            for number, column in enumerate(table.columns, 1)
        ]
        names = [field.name for field in fields]
        parts = [
            PartitionField(names.index(column) + 1, 1000 + at, IdentityTransform(), column)
            for at, (column, _) in enumerate(table.partition_by)
        ]
        root = table.warehouse or to_hadoop_path(self.lake.settings.lake_root)
        location = f"{root}/{table.name.replace('.', '/')}_{uuid4()}"
        metadata = new_table_metadata(
            Schema(*fields),
            PartitionSpec(*parts),
            UNSORTED_SORT_ORDER,
            location,
            {"format-version": "2", "write.parquet.compression-codec": "zstd"},
        )
        io = load_file_io(make_pyiceberg_properties(self.lake.stores, location), location)
        return IcebergTable(tuple(table.name.split(".")), metadata, "", io, self)

    def commit_table(
        self,
        table: IcebergTable,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        for requirement in requirements:
            requirement.validate(table.metadata)
        before = table.metadata_location or None
        metadata = update_table_metadata(table.metadata, updates, metadata_location=before)
        location = f"{metadata.location}/metadata/{len(metadata.metadata_log):05d}-{uuid4()}.metadata.json"
        ToOutputFile.table_metadata(metadata, table.io.new_output(location))
        nessie, name = self.lake.nessie(), ".".join(table.name())
        known, head = nessie.content(name, self.ref), nessie.reference(self.ref).hash
        assert metadata.current_snapshot_id is not None
        content = TableContent(
            "" if known is None else known.id,
            location,
            metadata.current_snapshot_id,
            metadata.current_schema_id,
            metadata.default_spec_id,
            metadata.default_sort_order_id,
        )
        nessie.put_table(name, content, self.ref, head, message=f"Write {name}", properties={})
        return CommitTableResponse(metadata=metadata, metadata_location=location)


def stage_iceberg_rows(
    lake: Lake,
    contract: SetContract,
    table: Table,
    ref: str,
    parts: Sequence[pa.Table],
    replaced: str,
    run_id: str,
) -> bool:
    """Replace the rows of a day at a staging location, each part in a file of its own, in one snapshot as Spark does.

    Returns False for a table that only Spark can create or has to change.
    """
    if not {column.type for column in table.columns} <= TYPES.keys():
        return False
    if lake.named_catalog is None:
        branch, branch_name = NessieBranch(lake, ref), "main"
        opened = branch.find_table(table.name) or branch.new_table(table)
    elif iceberg_tables(lake).find(table.name, ref) is None:
        # Only Spark makes a branch of a table without snapshots.
        return False
    else:
        opened, branch_name = lake.iceberg.load_table(table.name), ref
    schema = opened.schema().as_arrow()
    if schema.names != [column.name for column in table.columns]:
        return False
    transaction = Transaction(opened)
    properties = run_properties(contract, run_id)
    with transaction.update_snapshot(properties, branch=branch_name).overwrite() as overwrite:
        snapshot = opened.metadata.snapshot_by_name(branch_name)
        if snapshot is not None:
            where = f"{table.partition_by[0][0]} = '{replaced}'" if table.partition_by else "true"
            for task in opened.scan(where, snapshot_id=snapshot.snapshot_id).plan_files():
                overwrite.delete_data_file(task.file)
        for part in parts:
            for file in _dataframe_to_data_files(opened.metadata, part.cast(schema), opened.io):
                overwrite.append_data_file(file)
    transaction.commit_transaction()
    return True


def read_iceberg_rows(lake: Lake, name: str) -> list[dict[str, Any]]:
    """The rows of an Iceberg table on main, as pyiceberg reads them."""
    state = iceberg_tables(lake).find(name, "main")
    assert state is not None, f"{name} is not on main"
    location = state.metadata_location
    io = load_file_io(make_pyiceberg_properties(lake.stores, location), location)
    metadata = FromInputFile.table_metadata(io.new_input(location))
    opened = IcebergTable(tuple(name.split(".")), metadata, location, io, NoopCatalog("read"))
    rows: list[dict[str, Any]] = opened.scan(snapshot_id=state.snapshot_id).to_arrow().to_pylist()
    return rows
