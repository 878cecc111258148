"""Contracts from their files: one file, or all of a folder."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from pydantic import ValidationError

from lakeshare_pipelines.contracts.build import build_set
from lakeshare_pipelines.contracts.document import (
    Document,
    Faults,
    Location,
    compute_digest,
    read_yaml,
    suggest,
)
from lakeshare_pipelines.contracts.model import (
    Column,
    Reference,
    SetContract,
    ShareEntry,
    SnowflakeEntry,
    Table,
)
from lakeshare_pipelines.errors import ContractError

TRANSFORMS = {
    "iceberg": {
        "identity": {"boolean", "int", "bigint", "string", "date", "decimal"},
        "month": {"date", "timestamp"},
        "day": {"date", "timestamp"},
        "hour": {"timestamp"},
    },
    "delta": {
        "identity": {"boolean", "tinyint", "smallint", "int", "bigint", "string", "date", "decimal"},
    },
}


def check_set(contract: SetContract, faults: Faults) -> SetContract:
    """Judge the set as a whole; returns it with its tables in dependency order and full table names."""
    _check_unique([table.short_name for table in contract.tables], ["schema"], "table", faults)
    for index, table in enumerate(contract.tables):
        _check_table(contract, table, ["schema", index], faults)
    if contract.partitioning == "daily" and contract.first_partition is None:
        faults.add(
            "customProperties", "a daily set needs firstPartition", "Give the first day, as 2013-01-01."
        )
    elif contract.first_partition is not None and not contract.is_partition(contract.first_partition):
        hint = "Give a day as 2013-01-01 and partitioning: daily, or leave it out."
        faults.add("customProperties", f"firstPartition cannot be {contract.first_partition!r}", hint)
    _check_unique_keys([make_share_key(entry) for entry in contract.shares], "share entry", faults)
    _check_unique_keys(
        [make_snowflake_key(entry) for entry in contract.snowflake], "table of Snowflake", faults
    )
    return _sort_tables(contract, faults)


def _check_table(contract: SetContract, table: Table, at: list[str | int], faults: Faults) -> None:
    _check_unique([column.name for column in table.columns], [*at, "properties"], "column", faults)
    _check_origin(contract, table, at, faults)
    if table.columns:
        _check_partitions(contract, table, at, faults)
    for column in table.columns:
        _check_column(contract, table, column, at, faults)
    for reference in table.references:
        _check_reference(contract, table, reference, at, faults)
    _check_unique([reference.name for reference in table.references], at, "reference", faults)
    if table.location is not None and table.format == "iceberg":
        faults.add(at, "location is given for an Iceberg table", "Leave it out: the catalog decides.")
    _check_promise(table, at, faults)


def _check_origin(contract: SetContract, table: Table, at: list[str | int], faults: Faults) -> None:
    given = [name for name in ("source", "derive", "view") if getattr(table, name) is not None]
    if len(given) != 1:
        faults.add(
            [*at, "customProperties"],
            f"table {table.short_name} has {' and '.join(given) or 'neither source nor derive nor view'}",
            "Give the file stem of its deliveries as source, or Spark SQL as derive, or a view of another table.",
        )
    if table.view is not None:
        return
    known = {other.short_name for other in contract.tables if other.view is None}
    for name in table.depends_on:
        if name not in known:
            hint = suggest(name, known)
            faults.add([*at, "customProperties"], f"derive speaks of an unknown table {{{name}}}", hint)
    if table.derive is not None and not table.depends_on:
        hint = f"Write a table of the set as {{name}}; there are: {', '.join(sorted(known))}."
        faults.add([*at, "customProperties"], "derive names no table of the set", hint)


def _check_promise(table: Table, at: list[str | int], faults: Faults) -> None:
    if not table.serveable_to.clients:
        return
    # Here, because most contracts are looked at without it: it brings all that reads tables.
    from lakeshare_server.tables.serveability import clients_of

    known = clients_of(table.format)
    for client in table.serveable_to.clients:
        if client not in known:
            hint = f"Known for {table.format} tables are: {', '.join(known)}."
            if client == "directory":
                hint = f"Directory access is allowed by hand for each shared table. {hint}"
            problem = f"serveableTo: {table.short_name} cannot be promised to {client!r}"
            faults.add([*at, "customProperties"], problem, hint)


def _check_column(
    contract: SetContract, table: Table, column: Column, at: list[str | int], faults: Faults
) -> None:
    index = [other.name for other in table.columns].index(column.name)
    here = [*at, "properties", index]
    if table.derive is not None and (column.source or column.expression):
        faults.add(
            here, f"column {column.name!r} of a derived table has a source of its own", "Say it in derive."
        )
    if column.source is not None and column.expression is not None:
        faults.add(here, f"column {column.name!r} has both source and transformLogic", "Keep one of them.")
    for name in column.lineage:
        if not _is_known(contract, table, name):
            hint = "Name it as table.column, or a column of the same table."
            faults.add([*here, "transformSourceObjects"], f"unknown column {name!r}", hint)


def _is_known(contract: SetContract, table: Table, name: str) -> bool:
    head, _, column = name.rpartition(".")
    try:
        (contract.table(head) if head else table).column(column)
    except KeyError:
        return False
    return True


def _check_partitions(contract: SetContract, table: Table, at: list[str | int], faults: Faults) -> None:
    known = TRANSFORMS[table.format]
    for name, transform in table.partition_by:
        index = [column.name for column in table.columns].index(name)
        here = [*at, "properties", index]
        kind = table.column(name).type.split("(", 1)[0]
        if transform not in known:
            hint = suggest(transform, known, f"A {table.format} table takes: {', '.join(known)}.")
            faults.add(here, f"partitionTransform {transform!r} is not known for {table.format}", hint)
        elif kind not in known[transform]:
            hint = f"{transform} takes: {', '.join(sorted(known[transform]))}."
            faults.add(here, f"a column of type {kind} cannot be partitioned by {transform}", hint)
    if contract.partitioning == "daily" and not _is_by_day(table):
        faults.add(
            [*at, "properties"],
            f"the set is daily, but {table.short_name} is not partitioned by its day first",
            "Mark a column of type date as partitioned, with partitionKeyPosition 1."
            if table.view is None
            else f"Put the day of {table.view.of} into the columns of the view.",
        )


def _is_by_day(table: Table) -> bool:
    if not table.partition_by:
        return False
    name, transform = table.partition_by[0]
    return table.column(name).type == "date" and transform in ("identity", "day")


def _check_reference(
    contract: SetContract, table: Table, reference: Reference, at: list[str | int], faults: Faults
) -> None:
    here = [*at, "relationships"]
    for name in reference.columns:
        if name not in {column.name for column in table.columns}:
            hint = suggest(name, [column.name for column in table.columns])
            faults.add(here, f"{table.short_name} has no column {name!r}", hint)
    try:
        target = contract.table(reference.to_table)
    except KeyError:
        hint = suggest(reference.to_table, [other.short_name for other in contract.tables])
        faults.add(here, f"the set has no table {reference.to_table!r}", hint)
        return
    for name in reference.to_columns:
        if name not in {column.name for column in target.columns}:
            hint = suggest(name, [column.name for column in target.columns])
            faults.add(here, f"{target.short_name} has no column {name!r}", hint)


def _check_unique_keys(keys: Sequence[tuple[str, ...]], kind: str, faults: Faults) -> None:
    for key, count in Counter(keys).items():
        if count > 1:
            hint = "Give one of them another name: {table: …, name: …}."
            faults.add("customProperties", f"the {kind} {'.'.join(key)} is given {count} times", hint)


def make_share_key(entry: ShareEntry) -> tuple[str, str, str]:
    """What a recipient calls the table; the protocol's names ignore case."""
    return entry.share.lower(), entry.schema.lower(), entry.name.lower()


def make_snowflake_key(entry: SnowflakeEntry) -> tuple[str, str, str]:
    """Which table of Snowflake is meant; names like these ignore case there."""
    return entry.database.lower(), entry.schema.lower(), entry.name.lower()


def _check_unique(names: Iterable[str], at: Location, kind: str, faults: Faults) -> None:
    # Spark, Delta and the protocol ignore case in names.
    for name, count in Counter(name.lower() for name in names).items():
        if count > 1:
            faults.add(
                at, f"the {kind} {name!r} is given {count} times", "Names must differ in more than case."
            )


def _sort_tables(contract: SetContract, faults: Faults) -> SetContract:
    by_name = {table.short_name: table for table in contract.tables}
    sorter = TopologicalSorter(
        {table.short_name: [n for n in table.depends_on if n in by_name] for table in contract.tables}
    )
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " → ".join(error.args[1])
        faults.add("schema", f"tables derive from each other in a circle: {circle}", "Break the circle.")
        return contract
    ordered: list[str] = []
    while sorter.is_active():
        free = set(sorter.get_ready())
        ready = [table.short_name for table in contract.tables if table.short_name in free]
        ordered += ready
        sorter.done(*ready)
    return dataclasses.replace(
        contract, tables=tuple(_full_names(by_name, by_name[name]) for name in ordered)
    )


def _full_names(by_name: dict[str, Table], table: Table) -> Table:
    def full(name: str) -> str:
        return by_name[name].name if name in by_name else name

    references = tuple(dataclasses.replace(r, to_table=full(r.to_table)) for r in table.references)
    depends_on = tuple(full(name) for name in table.depends_on)
    view = table.view and dataclasses.replace(table.view, of=full(table.view.of))
    return dataclasses.replace(table, references=references, depends_on=depends_on, view=view)


PACKAGED = Path(__file__).parent


def load_contract(path: Path) -> SetContract:
    """The contract in a file.

    Raises:
        ContractError: for the first thing wrong with it; its `also` holds all the others.
    """
    values = read_yaml(path)
    faults = Faults(path)
    try:
        document = Document.model_validate(values)
    except ValidationError as error:
        faults.add_invalid(error)
        faults.require_none()
        raise
    contract = build_set(document, compute_digest(values), path, faults)
    contract = check_set(contract, faults)
    faults.require_none()
    return contract


def load_contracts(folder: Path | None = None) -> tuple[SetContract, ...]:
    """The contracts of a folder, by file name; without a folder, the sets that ship with the package.

    Raises:
        ContractError: a file is wrong, the folder has none, or two files claim the same name.
    """
    folder = PACKAGED if folder is None else folder
    paths = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")], key=lambda path: path.name)
    if not paths:
        hint = "Put contract YAML files there, or set LAKESHARE_CONTRACTS_DIR to where they are."
        raise ContractError(
            folder, "the folder", "holds no contract" if folder.is_dir() else "does not exist", hint
        )
    contracts = tuple(load_contract(path) for path in paths)
    _refuse_shared_names(contracts)
    return contracts


def _refuse_shared_names(contracts: tuple[SetContract, ...]) -> None:
    taken: dict[tuple[str, ...], SetContract] = {}
    for contract in contracts:
        claims = [("set", contract.name.lower())]
        claims += [("table", table.name.lower()) for table in contract.tables]
        claims += [("share entry", ".".join(make_share_key(entry))) for entry in contract.shares]
        claims += [
            ("table of Snowflake", ".".join(make_snowflake_key(entry))) for entry in contract.snowflake
        ]
        for kind, name in claims:
            other = taken.setdefault((kind, name), contract)
            if other is not contract:
                raise ContractError(
                    contract.path,
                    "name",
                    f"the {kind} {name!r} is {other.path.name}'s already",
                    "Rename one of them.",
                )
