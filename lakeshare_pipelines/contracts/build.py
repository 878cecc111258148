"""From the document to the records: types, rules and references of each table, with every fault noted."""

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from lakeshare_pipelines.contracts.document import (
    ColumnExtras,
    Document,
    PromiseExtras,
    Property,
    ReferenceExtras,
    SchemaObject,
    SetExtras,
    SharedSchema,
    SnowflakeSchema,
    TableExtras,
)
from lakeshare_pipelines.contracts.faults import Faults, Location, did_you_mean, read_extras
from lakeshare_pipelines.contracts.model import (
    Column,
    Drift,
    Promise,
    Reading,
    Reference,
    SetContract,
    ShareEntry,
    SnowflakeEntry,
    Table,
    View,
)
from lakeshare_pipelines.contracts.rules import rules_of
from lakeshare_pipelines.contracts.types import DEFAULTS, TYPES_OF_FORMAT, spelled, wrong_type
from lakeshare_pipelines.contracts.views import check_shape, columns_of_view, is_view, view_of

Tables = TypeVar("Tables", SharedSchema, SnowflakeSchema)

OWNER = re.compile(r"[A-Za-z0-9_]+|[^@\s]+@[^@\s]+\.[^@\s]+")


def build_set(document: Document, digest: str, path: Path, faults: Faults) -> SetContract:
    """The set a document describes; tables stand in the order of the file."""
    extras = read_extras(SetExtras, document.custom_properties, [], faults)
    table_format = document.servers[0].format
    tables = _tables(document, table_format, faults)
    names = {name: table.name for table in tables for name in (table.short_name, table.name)}
    shares = tuple(_share_entries(extras, names, faults, document))
    snowflake = tuple(_snowflake_entries(extras, names, faults, document))
    return SetContract(
        name=document.name,
        version=document.version,
        description=" ".join(document.description.purpose.split()),
        owners=_owners(document, faults),
        domain=document.domain,
        tables=tables,
        partitioning=extras.partitioning,
        first_partition=extras.first_partition,
        shares=shares,
        digest=digest,
        path=path,
        snowflake=snowflake,
    )


def _tables(
    document: Document, table_format: Literal["iceberg", "delta"], faults: Faults
) -> tuple[Table, ...]:
    """All tables, in the order of the file; views after the tables that they take their columns from."""
    made: dict[int, Table] = {}
    bases: dict[str, Table] = {}
    for index, table in sorted(enumerate(document.tables), key=lambda one: is_view(one[1])):
        made[index] = build_table(document.name, table, table_format, ["schema", index], faults, bases)
        if not is_view(table):
            bases[made[index].short_name] = made[index]
    return tuple(made[index] for index in sorted(made))


def build_table(
    set_name: str,
    table: SchemaObject,
    table_format: Literal["iceberg", "delta"],
    at: Location,
    faults: Faults,
    bases: Mapping[str, Table],
) -> Table:
    """One table with its columns, rules and references; a view has those of one of the `bases`."""
    name = table.physical_name or f"{set_name}.{table.name}"
    check_shape(table, at, faults)
    extras = read_extras(TableExtras, table.custom_properties, at, faults)
    view = None if extras.view is None else view_of(extras.view)
    if view is None:
        columns, partition_by = _columns(table, table_format, at, faults)
    else:
        columns, partition_by = columns_of_view(view, bases, at, faults)
    derive = extras.derive.strip() if extras.derive else None
    return Table(
        name=name,
        format=table_format,
        columns=columns,
        partition_by=partition_by,
        source=extras.source,
        derive=derive,
        view=view,
        depends_on=_placeholders(derive, at, faults) if view is None else (view.of,),
        # What is required of the table's rows is true of any selection of them.
        rules=tuple(rules_of(name, table, columns, at, faults, implies=view is None)),
        references=tuple(_references(name, table, at, faults)),
        location=extras.location,
        description=" ".join(table.description.split()),
        allow_schema_changes=extras.allow_schema_changes or _follows_changes(view, bases),
        max_quarantined_fraction=extras.max_quarantined_fraction,
        drift=Drift(**extras.drift.model_dump()),
        reading=Reading(
            tuple(extras.reading.null_values), extras.reading.delimiter, extras.reading.multiline
        ),
        serveable_to=_promise(extras.serveable_to),
    )


def _follows_changes(view: View | None, bases: Mapping[str, Table]) -> bool:
    base = None if view is None else bases.get(view.of)
    return base is not None and base.allow_schema_changes


def _promise(extras: PromiseExtras | None) -> Promise:
    if extras is None:
        return Promise()
    return Promise(tuple(dict.fromkeys(extras.clients)), extras.severity, extras.rewrite)


def _columns(
    table: SchemaObject, table_format: str, at: Location, faults: Faults
) -> tuple[tuple[Column, ...], tuple[tuple[str, str], ...]]:
    columns: list[Column] = []
    parts: list[tuple[int, str, str]] = []
    for index, entry in enumerate(table.properties):
        here = [*at, "properties", index]
        extras = read_extras(ColumnExtras, entry.custom_properties, here, faults)
        columns.append(
            Column(
                name=entry.name,
                type=_type(entry, table_format, here, faults),
                required=entry.required or entry.primary_key,
                unique=entry.unique,
                primary_key=entry.primary_key,
                pii=(entry.classification or "").lower() == "pii",
                description=" ".join(entry.description.split()),
                source=extras.source,
                expression=entry.transform_logic,
                lineage=tuple(entry.transform_source_objects),
            )
        )
        if entry.partitioned:
            parts.append((entry.partition_key_position, entry.name, extras.partition_transform))
    ordered = sorted(parts, key=lambda part: part[0])
    return tuple(columns), tuple((name, transform) for _, name, transform in ordered)


def _type(entry: Property, table_format: str, at: Location, faults: Faults) -> str:
    if entry.physical_type is None and entry.logical_type is None:
        faults.add(
            at, f"column {entry.name!r} has no type", "Give logicalType, and physicalType where it matters."
        )
        return "string"
    kind = spelled(entry.physical_type or DEFAULTS[entry.logical_type or "string"])
    wrong = wrong_type(kind, entry.logical_type, table_format)
    if wrong:
        field = "physicalType" if entry.physical_type else "logicalType"
        faults.add([*at, field], wrong, did_you_mean(kind, TYPES_OF_FORMAT[table_format]))
    return kind


def _references(table_name: str, table: SchemaObject, at: Location, faults: Faults) -> Iterator[Reference]:
    for index, many in enumerate(table.relationships):
        where = [*at, "relationships", index]
        if isinstance(many.from_, str) != isinstance(many.to, str):
            faults.add(where, "`from` and `to` are of different kinds", "Make both a text, or both a list.")
            continue
        mine = [_split(name, table.name)[1] for name in _listed(many.from_)]
        extras = read_extras(ReferenceExtras, many.custom_properties, where, faults)
        yield _reference(table_name, mine, _listed(many.to), extras, where, faults)
    for number, entry in enumerate(table.properties):
        for index, one in enumerate(entry.relationships):
            where = [*at, "properties", number, "relationships", index]
            extras = read_extras(ReferenceExtras, one.custom_properties, where, faults)
            yield _reference(table_name, [entry.name], [one.to], extras, where, faults)


def _reference(
    table_name: str,
    mine: Sequence[str],
    theirs: Sequence[str],
    extras: ReferenceExtras,
    where: Location,
    faults: Faults,
) -> Reference:
    pairs = [_split(name, "") for name in theirs]
    targets = {table for table, _ in pairs}
    if len(targets) != 1 or "" in targets or len(pairs) != len(mine):
        faults.add(
            where,
            f"`to` is {', '.join(theirs)}",
            "Name as many columns as in `from`, of one table, each as table.column.",
        )
    target = pairs[0][0]
    name = "__".join(["references", target.rsplit(".", 1)[-1], "_".join(mine)])
    columns = tuple(column for _, column in pairs)
    return Reference(name, table_name, tuple(mine), target, columns, extras.severity, extras.description)


def _split(name: str, table: str) -> tuple[str, str]:
    head, _, column = name.rpartition(".")
    return head or table, column


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _placeholders(derive: str | None, at: Location, faults: Faults) -> tuple[str, ...]:
    if derive is None:
        return ()
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(derive) if name is not None]
    except ValueError as error:
        faults.add(at, f"derive: {error}", "Write a brace that is not a placeholder twice: {{ or }}.")
        return ()
    return tuple(dict.fromkeys(fields))


def _owners(document: Document, faults: Faults) -> tuple[str, ...]:
    """Owners as Dagster takes them: an address, or `team:name`."""
    members = document.team.members
    names = [(index, m.username) for index, m in enumerate(members) if (m.role or "").lower() == "owner"]
    for index, name in names:
        if not OWNER.fullmatch(name):
            hint = "Give an e-mail address, or a team's name of letters, digits and _."
            faults.add(
                ["team", "members", index, "username"], f"owner {name!r} is neither person nor team", hint
            )
    owners = [name for _, name in names] or ([document.team.name] if document.team.name else [])
    return tuple(name if "@" in name else f"team:{name}" for name in owners)


def _share_entries(
    extras: SetExtras, names: Mapping[str, str], faults: Faults, document: Document
) -> Iterator[ShareEntry]:
    for entry, name, lake_name in _named_tables("shares", extras.shares, names, faults, document):
        yield ShareEntry(entry.share, entry.schema_name, name, lake_name)


def _snowflake_entries(
    extras: SetExtras, names: Mapping[str, str], faults: Faults, document: Document
) -> Iterator[SnowflakeEntry]:
    for entry, name, lake_name in _named_tables("snowflake", extras.snowflake, names, faults, document):
        yield SnowflakeEntry(entry.database, entry.schema_name, name, lake_name)


def _named_tables(
    property_name: str,
    schemas: Sequence[Tables],
    names: Mapping[str, str],
    faults: Faults,
    document: Document,
) -> Iterator[tuple[Tables, str, str]]:
    """Each table under each schema of a property: what names it, its name there, and its name in the lake."""
    properties = [entry.property for entry in document.custom_properties]
    index = properties.index(property_name) if property_name in properties else 0
    for number, entry in enumerate(schemas):
        for place, named in enumerate(entry.tables):
            if named.table not in names:
                where: Location = ["customProperties", index, "value", number, "tables", place]
                faults.add(where, f"the set has no table {named.table!r}", did_you_mean(named.table, names))
                continue
            lake_name = names[named.table]
            yield entry, named.name or lake_name.rsplit(".", 1)[-1], lake_name
