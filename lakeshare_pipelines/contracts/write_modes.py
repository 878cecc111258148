"""How deliveries change a table, as its contract has it: the mode, the columns of versions, what is refused."""

from collections.abc import Iterator, Sequence

from lakeshare_pipelines.contracts import document as odcs
from lakeshare_pipelines.contracts import model
from lakeshare_pipelines.contracts.document import Faults
from lakeshare_pipelines.contracts.model import Column, SetContract, Table
from lakeshare_server.errors import suggest


def build_write(extras: odcs.TableExtras, base: Table | None, faults: Faults) -> model.Write:
    """Returns how a table is written; a view of a table without partitions of runs is replaced as a whole."""
    if extras.view is not None and "write" in extras.model_fields_set:
        hint = "Leave it out: a view is written with its table."
        faults.at("customProperties", "write").add("a view has no write mode of its own", hint)
    if base is not None:
        return model.Write() if base.write.mode == "replace_partitions" else model.Write("replace")
    return extras.write


def make_history_columns(write: model.Write, columns: Sequence[Column]) -> Iterator[Column]:
    """Yields the columns of versions; as delivered, a row is valid from its sequence value on."""
    kind = next((column.type for column in columns if column.name == write.sequence), "timestamp")
    begin = f"`{write.sequence}`"
    description = "Since when the row is valid."
    yield Column(
        model.VALID_FROM, kind, required=True, primary_key=True, expression=begin, description=description
    )
    description = "When it was replaced or deleted; null for the current row."
    yield Column(model.VALID_TO, kind, expression=f"CAST(NULL AS {kind})", description=description)
    description = "Whether it is the current row of its key."
    yield Column(model.IS_CURRENT, "boolean", required=True, expression="true", description=description)


def check_write(contract: SetContract, table: Table, faults: Faults) -> None:
    write, names = table.write, [column.name for column in table.columns]
    if write.is_incremental and not table.has_source:
        hint = "Give it a source, or write it with replace."
        faults.add(f"{write.mode} needs deliveries, and {table.short_name} is computed", hint)
    computed_from = [contract.table(name) for name in table.depends_on if _has_table(contract, name)]
    grown = [base.short_name for base in computed_from if base.write.mode != "replace_partitions"]
    if table.derive is not None and contract.is_daily(table) and grown:
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


def _has_table(contract: SetContract, name: str) -> bool:
    return any(name in (table.name, table.short_name) for table in contract.tables)
