"""How deliveries change tables, as a contract has it: partitions, modes, columns of versions, what is refused."""

from collections.abc import Iterator, Sequence

from lakeshare_pipelines.contracts.document import PROPERTIES, Faults
from lakeshare_pipelines.contracts.model import (
    IS_CURRENT,
    VALID_FROM,
    VALID_TO,
    Column,
    SetContract,
    Table,
    Write,
)
from lakeshare_pipelines.contracts.partitioning import SecondDimension
from lakeshare_server.errors import suggest


def check_partition_column(contract: SetContract, table: Table, faults: Faults) -> None:
    """Checks that a run can replace the rows of its partitions in a table."""
    partitioning = contract.partitioning
    if partitioning.is_whole or table.write.mode != "replace_partitions":
        return
    if table.partition_by:
        column, transform = table.partition_column, table.partition_by[0][1]
        if partitioning.can_divide(column.type, transform):
            _check_second_column(partitioning.second, table, faults)
            return
    noun, types = partitioning.noun, " or ".join(partitioning.column_types)
    if partitioning.kind == "daily":
        types = "date"
    hint = f"Mark a column of type {types} as partitioned, with partitionKeyPosition 1."
    if table.view is not None:
        hint = f"Put the {noun} of {table.view.of} into the columns of the view."
    elif table.partition_by and table.partition_column.type == "timestamp" and partitioning.is_time:
        zone = "" if partitioning.time_zone == "UTC" else f", in {partitioning.time_zone}"
        hint = f"Give the column partitionTransform: hour, so that no file has rows of two partitions{zone}."
    problem = f"the set is {partitioning.kind}, but {table.short_name} is not partitioned by its {noun} first"
    faults.at("properties").add(problem, hint)


def _check_second_column(second: SecondDimension | None, table: Table, faults: Faults) -> None:
    if second is None:
        return
    kinds = {column.name: column.type for column in table.columns}
    is_second = len(table.partition_by) > 1 and table.partition_by[1] == (second.column, "identity")
    if not is_second or kinds.get(second.column) != "string":
        hint = f"Mark {second.column}, of type string, as partitioned, with partitionKeyPosition 2."
        if table.view is not None:
            hint = f"Put {second.column} of {table.view.of} into the columns of the view."
        problem = (
            f"the set is divided by {second.column}, but {table.short_name} is not partitioned by it second"
        )
        faults.at("properties").add(problem, hint)


def build_write(table: Table, base: Table | None, faults: Faults) -> Write:
    """Returns how a table is written; a view of a table without partitions of runs is replaced as a whole."""
    place = faults.at(PROPERTIES, "write")
    if table.view is not None and place.get() is not None:
        hint = "Leave it out: a view is written with its table."
        place.add("a view has no write mode of its own", hint)
    if base is not None:
        return Write() if base.write.mode == "replace_partitions" else Write("replace")
    return table.write


def make_history_columns(write: Write, columns: Sequence[Column]) -> Iterator[Column]:
    """Yields the columns of versions; as delivered, a row is valid from its sequence value on."""
    kind = next((column.type for column in columns if column.name == write.sequence), "timestamp")
    begin = f"`{write.sequence}`"
    description = "Since when the row is valid."
    yield Column(VALID_FROM, kind, required=True, primary_key=True, expression=begin, description=description)
    description = "When it was replaced or deleted; null for the current row."
    yield Column(VALID_TO, kind, expression=f"CAST(NULL AS {kind})", description=description)
    description = "Whether it is the current row of its key."
    yield Column(IS_CURRENT, "boolean", required=True, expression="true", description=description)


def check_write(contract: SetContract, table: Table, faults: Faults) -> None:
    write, names = table.write, [column.name for column in table.columns]
    if write.is_incremental and not table.has_source:
        hint = "Give it a source, or write it with replace."
        faults.add(f"{write.mode} needs deliveries, and {table.short_name} is computed", hint)
    by_name = {name: each for each in contract.tables for name in (each.name, each.short_name)}
    computed_from = [by_name[name] for name in table.depends_on if name in by_name]
    grown = [base.short_name for base in computed_from if base.write.mode != "replace_partitions"]
    if table.derive is not None and contract.is_by_partition(table) and grown:
        hint = "Give it write: replace; it is then computed from whole tables."
        faults.add(f"{table.short_name} replaces days, and {', '.join(grown)} is not written by days", hint)
    if write.has_key and not table.merge_key:
        faults.at("mode").add(
            f"{write.mode} needs a primary key", "Mark the columns of the key as primaryKey."
        )
    for field, value in (("sequence", write.sequence), ("deleteWhen", write.delete_when)):
        if value is not None and not write.has_key:
            hint = "Leave it out, or set mode to merge or scd2."
            faults.at(field).add(f"{write.mode} uses no {field}", hint)
    if write.sequence is not None and write.sequence not in names:
        problem = f"{table.short_name} has no column {write.sequence!r}"
        faults.at("sequence").add(problem, suggest(write.sequence, names))
    elif write.sequence in table.merge_key:
        faults.at("sequence").add(f"{write.sequence!r} is part of the key", "Name a column that is not.")
    if write.mode == "scd2":
        _check_history(table, faults)


def _check_history(table: Table, faults: Faults) -> None:
    kinds = {column.name: column.type for column in table.columns}
    sequence = table.write.sequence
    if sequence is None:
        hint = "Name the column of type date or timestamp since when a row is valid."
        faults.add("scd2 needs a sequence", hint)
    elif kinds.get(sequence, "date") not in ("date", "timestamp"):
        problem = f"scd2 cannot order versions by {sequence!r}, of type {kinds[sequence]}"
        faults.at("sequence").add(problem, "Name a column of type date or timestamp.")
