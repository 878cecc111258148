"""Published tables as parameters of a project's own assets: the input `table_input` and the manager that reads it."""

from dataclasses import replace
from typing import Any

import dagster as dg

from lakeshare_pipelines.defs.wap import INPUTS_TAG, LakeResource, read_partition_keys, table_key
from lakeshare_pipelines.errors import InputError
from lakeshare_pipelines.wap.inputs import LakeshareTable, find_partitioned, parse_pins
from lakeshare_server.catalog import Ledger

TABLES = "lakeshare_tables"
"""Key of the input manager; `lakeshare_resources` has it."""
VERSION = "lakeshare/version"
READERS = {
    "lakeshare_pipelines.LakeshareTable": lambda table: table,
    "pandas.DataFrame": LakeshareTable.to_pandas,
    "pyarrow.Table": LakeshareTable.to_arrow,
    "pyspark.DataFrame": LakeshareTable.to_spark,
}
"""How a parameter is read, by package and name of its annotation: the packages are imported by the project."""


def table_input(
    name: str, *, version: int | None = None, partition_mapping: dg.PartitionMapping | None = None
) -> dg.AssetIn:
    """Returns the input of an asset, for `ins`, that takes a published table at `version`, or at the newest number.

    The parameter is annotated with `pandas.DataFrame`, `pyarrow.Table`, `pyspark.sql.DataFrame` or `LakeshareTable`.
    The tag `lakeshare/inputs` of a run pins the number of an input without `version`.

    An asset with partitions reads the rows of those that its own are mapped to, if the table is written by partition;
    otherwise, and with `dg.AllPartitionMapping()`, all rows are read.

    Example: `@dg.asset(ins={"orders": table_input("shop.orders")})` on `def report(orders: pandas.DataFrame)`.
    """
    metadata = {} if version is None else {VERSION: version}
    return dg.AssetIn(
        table_key(name), metadata=metadata, input_manager_key=TABLES, partition_mapping=partition_mapping
    )


@dg.input_manager(
    required_resource_keys={"lakeshare"},
    description="Reads published tables for parameters of assets, at one publication number.",
)
def table_manager(context: dg.InputContext) -> Any:
    """Reads the table of an input, and records its number as metadata of the input and of the step's assets.

    Raises:
        InputError: the annotation is of no known type, or the table has no such publication, or it has expired.
    """
    name, kind = ".".join(context.asset_key.path), context.dagster_type.typing_type
    package = getattr(kind, "__module__", "").partition(".")[0]
    read = READERS.get(f"{package}.{getattr(kind, '__name__', '')}")
    if read is None:
        found = context.dagster_type.display_name
        reason, fix = (
            f"cannot be read as {found}",
            f"Annotate the parameter with one of {', '.join(READERS)}.",
        )
        raise InputError(f"parameter {context.name} of {context.op_def.name}", name, reason, fix)
    lakeshare: LakeResource = context.resources.lakeshare
    version = context.definition_metadata.get(VERSION)
    if version is None:
        version = parse_pins(context.step_context.run_tags.get(INPUTS_TAG, "")).get(name)
    table = lakeshare.table(name, version=version)
    _record_number(context, table)
    return read(_select_partitions(context, lakeshare, table))


def _select_partitions(
    context: dg.InputContext, lakeshare: LakeResource, table: LakeshareTable
) -> LakeshareTable:
    """The table, of which the partitions of an input are read."""
    if not context.has_asset_partitions:
        return table
    keys = context.asset_partition_keys
    instance = context.step_context.instance
    every = context.asset_partitions_def.get_partition_keys(dynamic_partitions_store=instance)
    contract = (
        None if len(keys) == len(every) else find_partitioned(Ledger(lakeshare.catalog()), table.publication)
    )
    if contract is None:
        return table
    return replace(table, partitions=read_partition_keys(contract, keys), contract=contract)


def _record_number(context: dg.InputContext, table: LakeshareTable) -> None:
    metadata = {f"lakeshare/input/{table.name}": table.version}
    # Dagster adds no metadata to inputs of several partitions.
    if not context.has_asset_partitions or len(context.asset_partition_keys) == 1:
        context.add_input_metadata(metadata)
    assets = context.step_context.assets_def
    for key in [] if assets is None else assets.keys:
        context.step_context.add_asset_metadata(metadata, asset_key=key)
