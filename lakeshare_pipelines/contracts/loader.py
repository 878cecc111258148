"""Loads contracts: builds a set from the document, checks it, and reports every error of a file at once."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeVar

from lakeshare_pipelines.contracts.column_types import get_base_type
from lakeshare_pipelines.contracts.document import (
    FAULTY,
    PROPERTIES,
    Faults,
    compute_digest,
    find_line,
    read_yaml,
)
from lakeshare_pipelines.contracts.model import (
    Column,
    ColumnReference,
    Input,
    PerRecipient,
    Reference,
    Retirement,
    SetContract,
    ShareEntry,
    SnowflakeEntry,
    Table,
    View,
)
from lakeshare_pipelines.contracts.rules import (
    BRACES,
    build_assertions,
    build_rules,
    check_assertions,
    check_nested,
    list_placeholders,
)
from lakeshare_pipelines.contracts.sources import (
    NO_TRANSFORMS,
    check_origin,
    check_sources,
    connect_transforms,
)
from lakeshare_pipelines.contracts.write_modes import (
    build_write,
    check_partition_column,
    check_write,
    make_history_columns,
)
from lakeshare_pipelines.errors import ContractError
from lakeshare_server.errors import suggest
from lakeshare_server.yaml_documents import Parsed

Partitioning = tuple[tuple[str, str], ...]
PACKAGED = Path(__file__).parent
OF_OTHERS = "Name a table of another contract, as set.table."


def list_contract_files(folder: Path | None = None) -> list[Path]:
    """Lists the contract files of a folder by name; without a folder, those that ship with the package."""
    folder = folder or PACKAGED
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")], key=lambda path: path.name)


def load_contract(path: Path, transforms: Mapping[str, str] | None = NO_TRANSFORMS) -> SetContract:
    """Loads a contract; `transforms` are functions of tables that are given in code, as `package.module:function`.

    None is for a contract of which nothing is run: its tables may be without an origin.
    """
    return build_contract(read_yaml(path), path, transforms)


def build_contract(
    parsed: Parsed, path: Path, transforms: Mapping[str, str] | None = NO_TRANSFORMS
) -> SetContract:
    """Builds the contract of a parsed text; `path` is its file in errors, `transforms` as in `load_contract`."""
    contract, faults = Faults(path, parsed).read_document(SetContract)
    contract = replace(contract, digest=compute_digest(parsed.values), path=path, text=parsed.text)
    contract = _build_set(contract, faults)
    contract = connect_transforms(contract, transforms or NO_TRANSFORMS, faults)
    contract = _check_set(contract, faults, is_run=transforms is not None)
    faults.require_none()
    return contract


def load_contracts(folder: Path | None = None) -> tuple[SetContract, ...]:
    """Loads the contracts of a folder, by file name; without a folder, the sets that ship with the package."""
    folder = folder or PACKAGED
    paths = list_contract_files(folder)
    if not paths:
        hint = "Put contract YAML files there, or set LAKESHARE_CONTRACTS_DIR to where they are."
        problem = "holds no contract" if folder.is_dir() else "does not exist"
        raise ContractError(folder, "the folder", problem, hint)
    return _connect_contracts([load_contract(path) for path in paths])


def load_connected(
    path: Path, upstream: Sequence[Path] = (), transforms: Mapping[str, str] | None = NO_TRANSFORMS
) -> SetContract:
    """Loads one contract, with the contracts of the sets that it reads; `transforms` as in `load_contract`."""
    others = [load_contract(other, None) for other in upstream if other != path]
    return _connect_contracts([load_contract(path, transforms), *others])[0]


def _connect_contracts(contracts: Sequence[SetContract]) -> tuple[SetContract, ...]:
    taken: dict[tuple[str, str], SetContract] = {}
    for contract in contracts:
        names = [("set", contract.name.lower())]
        names += [("table", table.name.lower()) for table in contract.tables]
        names += [("share entry", entry.key) for entry in contract.shares]
        names += [("table of Snowflake", entry.key) for entry in contract.snowflake]
        for kind, name in names:
            other = taken.setdefault((kind, name), contract)
            if other is not contract:
                problem = f"the {kind} {name!r} is {other.path.name}'s already"
                line = find_line(contract, "name")
                raise ContractError(contract.path, "name", problem, "Rename one of them.", line=line)
    return _connect_sets(contracts)


def _connect_sets(contracts: Sequence[SetContract]) -> tuple[SetContract, ...]:
    """Checks the inputs of the sets against each other; returns the sets with the columns of days of their inputs."""
    owners = {table.name: contract for contract in contracts for table in contract.tables}
    for contract in contracts:
        for table in contract.tables:
            for read in table.inputs:
                if read.table not in owners:
                    hint = _suggest_successor(read.table, contracts) or suggest(read.table, owners, OF_OTHERS)
                    problem = f"no contract has the table {read.table!r}"
                    place = ("schema", table.short_name, "customProperties", "inputs")
                    line = find_line(contract, *place)
                    raise ContractError(contract.path, f"{table.short_name}.inputs", problem, hint, line=line)
    reads = {
        contract.name: sorted({owners[read.table].name for read in contract.inputs}) for contract in contracts
    }
    try:
        TopologicalSorter(reads).prepare()
    except CycleError as error:
        # The sorter lists each set before those that read it.
        path: list[str] = error.args[1][::-1]
        paths = {contract.name: contract.path for contract in contracts}
        problem = f"sets read each other in a circle: {' → '.join(path)}"
        hint = "Remove one of these inputs, or put the tables into one set."
        raise ContractError(paths[path[0]], "inputs", problem, hint) from None
    return tuple(_connect_inputs(contract, owners) for contract in contracts)


def _suggest_successor(table: str, contracts: Iterable[SetContract]) -> str | None:
    """Returns what to read instead of a retired table of one of the contracts; None for other tables."""
    for contract in contracts:
        for each in contract.retirements:
            if each.table == table:
                instead = f"Read {each.successor} instead" if each.successor else "Nothing takes its place"
                return f"Set {contract.name} {contract.version} retires it. {instead}."
    return None


def _connect_inputs(contract: SetContract, owners: Mapping[str, SetContract]) -> SetContract:
    if contract.partitioning.is_whole:
        return contract

    def find_column(read: Input) -> Input:
        owner = owners[read.table]
        table = owner.table(read.table)
        if not owner.is_by_partition(table) or not contract.partitioning.can_map(owner.partitioning):
            return read
        zones = owner.partitioning.time_zone, contract.partitioning.time_zone
        if owner.partitioning.is_time and zones[0] != zones[1]:
            # Dagster maps times of one zone only.
            problem = f"{read.table} has partitions in {zones[0]}, the set has them in {zones[1]}"
            line = find_line(contract, "customProperties", "partitioning")
            hint = "Give both sets the same timeZone."
            raise ContractError(contract.path, "customProperties", problem, hint, line=line)
        column = table.partition_column
        return Input(read.table, column.name, column.type, owner.partitioning)

    tables = tuple(
        replace(table, inputs=tuple(map(find_column, table.inputs))) if table.inputs else table
        for table in contract.tables
    )
    connected = replace(contract, tables=tables)
    is_time = contract.partitioning.is_time
    alike = [read for read in connected.inputs if read.column and read.partitioning.is_time == is_time]
    if not connected.takes_deliveries and not alike:
        kind = contract.partitioning.kind
        parts, like = ("days", "daily") if kind == "daily" else ("partitions", "partitioned alike")
        problem = f"a {kind} set without deliveries has the {parts} of its inputs, and none of them is {like}"
        hint = f"Add a table of a {kind} set to the inputs, or give partitioning: none."
        line = find_line(contract, "customProperties", "partitioning")
        raise ContractError(contract.path, "customProperties", problem, hint, line=line)
    return connected


Entry = TypeVar("Entry", ShareEntry, SnowflakeEntry)


def _build_set(contract: SetContract, faults: Faults) -> SetContract:
    """Returns the set with what follows from its parts."""
    faults.check_properties(SetContract)
    contract = replace(contract, server=contract.server.complete(faults.at("servers", 0)))
    tables = _build_tables(contract, faults)
    names = {name: table.name for table in tables for name in (table.short_name, table.name)}
    return replace(
        contract,
        tables=tuple(_split_inputs(table, names) for table in tables),
        owners=contract.team.list_owners(faults.at("team")),
        partitioning=contract.partitioning.complete(contract.first_partition, faults),
        shares=tuple(_list_shared("shares", contract.shares, names, faults)),
        retirements=_list_retirements(contract, names, faults.at(PROPERTIES, "retire")),
        snowflake=tuple(_list_shared("snowflake", contract.snowflake, names, faults)),
    )


def _build_tables(contract: SetContract, faults: Faults) -> tuple[Table, ...]:
    """Returns all tables, in the order of the file; views are built after their tables."""
    built: dict[int, Table] = {}
    bases: dict[str, Table] = {}
    places = [faults.at("schema", index) for index in range(len(contract.tables))]
    for index in sorted(range(len(places)), key=lambda index: is_view(places[index])):
        built[index] = _build_table(contract, contract.tables[index], places[index], bases)
        if not is_view(places[index]):
            bases[built[index].short_name] = built[index]
    return tuple(built[index] for index in sorted(built))


def _build_table(contract: SetContract, given: Table, faults: Faults, bases: Mapping[str, Table]) -> Table:
    """Returns a table with what follows from its parts; a view has the columns of one of the `bases`."""
    _check_shape(given, faults)
    faults.check_properties(Table)
    table = replace(
        given,
        name=given.physical_name or f"{contract.name}.{given.name}",
        format=contract.server.format,
        warehouse=contract.warehouse,
        source=None if given.reads is None else given.reads.landing,
        reads=given.reads and given.reads.complete(faults.at(PROPERTIES)),
    )
    view, base = table.view, None if table.view is None else bases.get(table.view.of)
    if view is None:
        columns, partition_by = _build_columns(table, faults)
    else:
        columns, partition_by = _build_view_columns(view, bases, faults)
    write = build_write(table, base, faults)
    if write.mode == "scd2":
        columns = (*columns, *make_history_columns(write, columns))
    return replace(
        table,
        columns=columns,
        partition_by=partition_by,
        depends_on=_list_read(table, faults),
        rules=tuple(build_rules(table, columns, faults)),
        assertions=tuple(build_assertions(table, faults)),
        references=tuple(_build_references(table, faults)),
        allow_schema_changes=table.allow_schema_changes or (base is not None and base.allow_schema_changes),
        write=write,
        maintenance=table.maintenance.complete(contract.maintenance, columns, faults),
    )


def _split_inputs(table: Table, names: Mapping[str, str]) -> Table:
    """Returns the table with declared inputs of its own set in `depends_on`, by short name, and others in `inputs`."""
    if not table.inputs:
        return table
    own = [names[read.table].rsplit(".", 1)[-1] for read in table.inputs if read.table in names]
    inputs = tuple(read for read in table.inputs if read.table not in names)
    read = {each.short_name for each in inputs if each.short_name not in names}
    depends_on = dict.fromkeys(name for name in (*table.depends_on, *own) if name not in read)
    return replace(table, depends_on=tuple(depends_on), inputs=inputs)


def _build_columns(table: Table, faults: Faults) -> tuple[tuple[Column, ...], Partitioning]:
    columns: list[Column] = []
    for index, given in enumerate(table.columns):
        place = faults.at("properties", index)
        place.check_properties(Column)
        columns.append(given.complete(table.format, place))
    by = sorted(
        (column for column in columns if column.partitioned), key=lambda column: column.partition_key_position
    )
    return tuple(columns), tuple((column.name, column.partition_transform) for column in by)


def _build_references(table: Table, faults: Faults) -> Iterator[Reference]:
    for index, reference in enumerate(table.references):
        place = faults.at("relationships", index)
        if isinstance(place.get("from"), str) != isinstance(place.get("to"), str):
            place.add("`from` and `to` are of different kinds", "Make both a text, or both a list.")
            continue
        place.check_properties(Reference)
        columns = tuple(name.rpartition(".")[2] for name in reference.columns)
        yield reference.complete(table.name, columns, place)
    for number, column in enumerate(table.columns):
        for index, of_column in enumerate(column.relationships):
            place = faults.at("properties", number, "relationships", index)
            place.check_properties(ColumnReference)
            yield of_column.complete(table.name, (column.name,), place)


def _list_read(table: Table, faults: Faults) -> tuple[str, ...]:
    """Returns the tables that a view or a derivation reads, as they are named there."""
    if table.view is not None:
        return (table.view.of,)
    if table.derive is None:
        return ()
    try:
        return list_placeholders(table.derive)
    except ValueError as error:
        faults.add(f"derive: {error}", BRACES, near=(PROPERTIES, "derive"))
        return ()


def _list_shared(
    property_name: str, entries: Sequence[Entry], names: Mapping[str, str], faults: Faults
) -> Iterator[Entry]:
    """Yields an entry for each table of a schema, with its name there and its name in the lake."""
    properties = faults.list_properties()
    index = properties.index(property_name) if property_name in properties else 0
    for number, entry in enumerate(entries):
        for position, named in enumerate(entry.tables):
            if named.table not in names:
                place = faults.at(PROPERTIES, index, "value", number, "tables", position)
                place.add(f"the set has no table {named.table!r}", suggest(named.table, names))
                continue
            lake_name = names[named.table]
            yield replace(entry, name=named.name or lake_name.rsplit(".", 1)[-1], table=lake_name, tables=())


def _list_retirements(
    contract: SetContract, names: Mapping[str, str], faults: Faults
) -> tuple[Retirement, ...]:
    found = tuple(each.complete(contract.name, names, faults) for each in contract.retirements)
    for name, count in Counter(each.table for each in found).items():
        if count > 1:
            faults.add(f"{name} is given {count} times", "Keep one of them.")
    return found


QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`", re.DOTALL)
WORD = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\s*\()?")
# Spark takes these for calls also where no parentheses follow.
CALLED_BARE = frozenset(
    {"current_date", "current_timestamp", "localtimestamp", "current_time", "current_user", "session_user"}
    | {"user"}
)
CHANGING = CALLED_BARE | {
    *("now", "curdate", "unix_timestamp", "rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle"),
    *("input_file_name", "monotonically_increasing_id", "spark_partition_id", "current_timezone"),
    *("current_catalog", "current_database", "current_schema", "version"),
}
CURRENT_RECIPIENT = "current_recipient"


def is_view(faults: Faults) -> bool:
    """Whether a table of the document is declared as a view, valid or not."""
    return not {"view", f"view{FAULTY}"}.isdisjoint(faults.list_properties())


def _check_shape(table: Table, faults: Faults) -> None:
    view = is_view(faults)
    if view and table.columns:
        hint = "List their names as columns of the view: their properties are those of its table."
        faults.at("properties").add(f"view {table.name} has properties of its own", hint)
    if not view and not table.columns:
        hint = "List its columns; only a view, given as the property view, has those of its table."
        faults.at("properties").add(f"table {table.name} has no columns", hint)
    elif table.physical_type not in (None, "view" if view else "table"):
        hint = "Leave physicalType out, or give the property view with the rows and columns to show."
        problem = f"{table.name} is called a {table.physical_type} and is none"
        faults.at("physicalType").add(problem, hint)


def _build_view_columns(
    view: View, bases: Mapping[str, Table], faults: Faults
) -> tuple[tuple[Column, ...], Partitioning]:
    faults = faults.at("customProperties", "view")
    base = bases.get(view.of)
    if base is None:
        hint = suggest(view.of, bases, "Name a table of the set that is no view.")
        faults.add(f"the set has no table {view.of!r} for a view", hint)
        return (), ()
    per = view.per_recipient
    if view.where is not None:
        _check_expression("where of a view", view.where, base, faults)
    if per is not None and per.value is not None:
        _check_expression("perRecipient of a view", per.value, base, faults)
    known = {column.name: column for column in base.columns}
    for name in view.columns:
        if name not in known:
            faults.add(f"{view.of} has no column {name!r}", suggest(name, known))
    # With a value per recipient a row may belong to several recipients: nothing is unique.
    repeats = per is not None and per.value is not None
    columns = tuple(
        replace(
            known[name],
            unique=known[name].unique and not repeats,
            source=None,
            expression=None,
            lineage=(f"{view.of}.{name}",),
        )
        for name in view.columns
        if name in known
    )
    partition_by = tuple((name, kind) for name, kind in base.partition_by if name in view.columns)
    if not {column.name for column in columns if column.primary_key}.issuperset(base.primary_key):
        columns = tuple(replace(column, primary_key=False) for column in columns)
    if per is None or not _is_sound(per, view, base, partition_by, faults):
        return columns, partition_by
    if per.value is not None:
        is_key = any(column.primary_key for column in columns)
        columns = (*columns, _make_recipient_column(per, per.value, base, is_key=is_key))
    field = (per.column, "identity")
    return columns, partition_by if field in partition_by else (*partition_by, field)


def _make_recipient_column(per: PerRecipient, value: str, base: Table, *, is_key: bool) -> Column:
    """Returns the column of a value per recipient; it is personal data if one of its sources is."""
    words = {word.lower() for word, _ in WORD.findall(value)}
    sources = [column for column in base.columns if column.name.lower() in words]
    return Column(
        per.column,
        "string",
        required=True,
        primary_key=is_key,
        pii=any(column.pii for column in sources),
        description="Whose the row is.",
        lineage=tuple(f"{base.short_name}.{column.name}" for column in sources),
    )


def _is_sound(per: PerRecipient, view: View, base: Table, partition_by: Partitioning, faults: Faults) -> bool:
    before = len(faults.found)
    if per.value is None and per.column not in view.columns:
        hint = f"Put it into its columns, or give a value for it: SQL over the columns of {view.of}."
        faults.add(f"perRecipient names {per.column!r}, which the view does not have", hint)
    if per.value is not None and per.column.lower() in {column.name.lower() for column in base.columns}:
        hint = "Leave the value out to take the column as it is, or give the new one another name."
        faults.add(f"perRecipient has a value for {per.column!r}, a column of {view.of}", hint)
    if any(name == per.column and transform != "identity" for name, transform in partition_by):
        hint = "Rules are decided by the column's own values: let the table be partitioned by them."
        faults.add(f"{view.of} is partitioned by a transform of {per.column}", hint)
    return len(faults.found) == before


def _check_expression(name: str, text: str, base: Table, faults: Faults) -> None:
    """Refuses expressions whose value changes over time or depends on more than a row."""
    columns = {column.name.lower() for column in base.columns}
    for word, parenthesis in WORD.findall(QUOTED.sub("''", text)):
        word = word.lower()
        is_call = bool(parenthesis) or (word in CALLED_BARE and word not in columns)
        if word == "select":
            problem = "cannot ask other tables"
            hint = f"It is Spark SQL over the columns of {base.short_name}; for more write a derived table."
        elif word == CURRENT_RECIPIENT:
            problem = "cannot know who reads it"
            hint = "Name the column in perRecipient, with the recipients' property that it is compared with."
        elif word in CHANGING and is_call:
            problem = f"calls {word}, which changes by itself"
            hint = (
                "Write it over the columns of the row: a view shows a row for as long as the table has it; "
                "write a derived table for anything else."
            )
        else:
            continue
        faults.add(f"{name} {problem}", hint, near=("value", name.partition(" ")[0]))
        return


TRANSFORMS = {
    "iceberg": {
        "identity": {"boolean", "int", "bigint", "string", "date", "decimal"},
        "month": {"date", "timestamp"},
        "day": {"date", "timestamp"},
        "hour": {"timestamp"},
    },
    "delta": {"identity": {"boolean", "tinyint", "smallint", "int", "bigint", "string", "date", "decimal"}},
}


def _check_set(contract: SetContract, faults: Faults, *, is_run: bool) -> SetContract:
    """Checks the set as a whole; returns it with its tables in dependency order and full table names."""
    _check_unique([table.short_name for table in contract.tables], "table", faults.at("schema"))
    for index, table in enumerate(contract.tables):
        _check_table(contract, table, faults.at("schema", index), is_run=is_run)
    has_transform = any(table.transform is not None for table in contract.tables)
    check_sources(contract, faults)
    if has_transform and not (contract.takes_deliveries or contract.has_sources or contract.inputs):
        problem = f"set {contract.name} has neither deliveries nor inputs: nothing would start it"
        faults.at("schema").add(problem, "Give a table a source, or name tables of other sets as inputs.")
    properties = faults.at("customProperties")
    contract.partitioning.check_first(properties)
    for name, entries, kind in (
        ("shares", contract.shares, "share entry"),
        ("snowflake", contract.snowflake, "table of Snowflake"),
    ):
        for key, count in Counter(entry.key for entry in entries).items():
            if count > 1:
                hint = "Give one of them another name: {table: …, name: …}."
                problem = f"the {kind} {key} is given {count} times"
                properties.add(problem, hint, near=(name,))
    return _sort_tables(contract, faults)


def _check_table(contract: SetContract, table: Table, faults: Faults, *, is_run: bool) -> None:
    _check_unique([column.name for column in table.columns], "column", faults.at("properties"))
    check_origin(contract, table, faults, is_run=is_run)
    check_assertions(contract, table, faults)
    check_nested(table, faults)
    written = faults.at("customProperties", "write")
    check_write(contract, table, written)
    if table.write.delete_when is not None:
        _check_expression("deleteWhen", table.write.delete_when, table, written.at("deleteWhen"))
    if table.columns:
        _check_partitions(contract, table, faults)
    for column in table.columns:
        _check_column(contract, table, column, faults)
    for reference in table.references:
        _check_reference(contract, table, reference, faults.at("relationships"))
    _check_unique([reference.name for reference in table.references], "reference", faults)
    if table.location is not None and table.format == "iceberg":
        hint = "Leave it out: the catalog decides."
        faults.add("location is given for an Iceberg table", hint, near=("customProperties", "location"))
    if table.serveable_to.clients:
        _check_promise(table, faults)


def _check_promise(table: Table, faults: Faults) -> None:
    # Imported on use: it imports all readers of tables.
    from lakeshare_server.tables.serveability import clients_of

    known = clients_of(table.format)
    for client in table.serveable_to.clients:
        if client not in known:
            hint = f"Known for {table.format} tables are: {', '.join(known)}."
            if client == "directory":
                hint = f"Directory access is allowed by hand for each shared table. {hint}"
            problem = f"serveableTo: {table.short_name} cannot be promised to {client!r}"
            faults.at("customProperties").add(problem, hint, near=("serveableTo",))


def _check_column(contract: SetContract, table: Table, column: Column, faults: Faults) -> None:
    place = _locate_column(table, column.name, faults)
    if (table.derive or table.transform) is not None and (column.source or column.expression):
        problem = f"column {column.name!r} of a derived table has a source of its own"
        place.add(problem, f"Give it in {'derive' if table.derive is not None else 'the transform'}.")
    if column.source is not None and column.expression is not None:
        place.add(f"column {column.name!r} has both source and transformLogic", "Keep one of them.")
    for name in column.lineage:
        head, _, source = name.rpartition(".")
        if any(head == read.table for read in table.inputs):
            continue
        try:
            (contract.table(head) if head else table).column(source)
        except KeyError:
            hint = "Name it as table.column, or a column of the same table."
            place.at("transformSourceObjects").add(f"unknown column {name!r}", hint)


def _locate_column(table: Table, name: str, faults: Faults) -> Faults:
    return faults.at("properties", [column.name for column in table.columns].index(name))


def _check_partitions(contract: SetContract, table: Table, faults: Faults) -> None:
    known = TRANSFORMS[table.format]
    for name, transform in table.partition_by:
        place = _locate_column(table, name, faults)
        kind = get_base_type(table.column(name).type)
        if transform not in known:
            hint = suggest(transform, known, f"A {table.format} table takes: {', '.join(known)}.")
            place.add(f"partitionTransform {transform!r} is not known for {table.format}", hint)
        elif kind not in known[transform]:
            hint = f"{transform} takes: {', '.join(sorted(known[transform]))}."
            place.add(f"a column of type {kind} cannot be partitioned by {transform}", hint)
    check_partition_column(contract, table, faults)


def _check_reference(contract: SetContract, table: Table, reference: Reference, faults: Faults) -> None:
    _check_columns(table, reference.columns, faults)
    try:
        target = contract.table(reference.to_table)
    except KeyError:
        hint = suggest(reference.to_table, [other.short_name for other in contract.tables])
        faults.add(f"the set has no table {reference.to_table!r}", hint)
    else:
        _check_columns(target, reference.to_columns, faults)


def _check_columns(table: Table, names: Iterable[str], faults: Faults) -> None:
    known = {column.name for column in table.columns}
    for name in names:
        if name not in known:
            faults.add(f"{table.short_name} has no column {name!r}", suggest(name, known))


def _check_unique(names: Iterable[str], kind: str, faults: Faults) -> None:
    # Spark, Delta and the protocol ignore case in names.
    for name, count in Counter(name.lower() for name in names).items():
        if count > 1:
            hint = "Names must differ in more than case."
            faults.add(f"the {kind} {name!r} is given {count} times", hint)


def _sort_tables(contract: SetContract, faults: Faults) -> SetContract:
    by_name = {table.short_name: table for table in contract.tables}
    sorter = TopologicalSorter(
        {table.short_name: [n for n in table.depends_on if n in by_name] for table in contract.tables}
    )
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " → ".join(error.args[1])
        faults.at("schema").add(f"tables derive from each other in a circle: {circle}", "Break the circle.")
        return contract
    ordered: list[Table] = []
    while sorter.is_active():
        free = set(sorter.get_ready())
        ordered += [table for table in contract.tables if table.short_name in free]
        sorter.done(*free)

    def full(name: str) -> str:
        return by_name[name].name if name in by_name else name

    return replace(
        contract,
        tables=tuple(
            replace(
                table,
                references=tuple(replace(ref, to_table=full(ref.to_table)) for ref in table.references),
                depends_on=tuple(full(name) for name in table.depends_on),
                view=table.view and replace(table.view, of=full(table.view.of)),
            )
            for table in ordered
        ),
    )
