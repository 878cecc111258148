"""From the document to the records: types, rules and references of each table, with every fault noted."""

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from lakeshare_pipelines.contracts.document import (
    ColumnExtras,
    Document,
    PromiseExtras,
    Property,
    Quality,
    ReferenceExtras,
    RuleExtras,
    SchemaObject,
    SetExtras,
    SharedSchema,
    SnowflakeSchema,
    TableExtras,
)
from lakeshare_pipelines.contracts.expectations import EXPECTATIONS, UNIQUENESS, columns_of, rule_name
from lakeshare_pipelines.contracts.faults import Faults, Location, did_you_mean, read_extras
from lakeshare_pipelines.contracts.model import (
    Column,
    Drift,
    Promise,
    Reading,
    Reference,
    Rule,
    Scope,
    SetContract,
    ShareEntry,
    SnowflakeEntry,
    Table,
)
from lakeshare_pipelines.contracts.types import DEFAULTS, TYPES_OF_FORMAT, spelled, wrong_type

Tables = TypeVar("Tables", SharedSchema, SnowflakeSchema)

ENGINE = "greatExpectations"
OWNER = re.compile(r"[A-Za-z0-9_]+|[^@\s]+@[^@\s]+\.[^@\s]+")


def build_set(document: Document, digest: str, path: Path, faults: Faults) -> SetContract:
    """The set a document describes; tables stand in the order of the file."""
    extras = read_extras(SetExtras, document.custom_properties, [], faults)
    table_format = document.servers[0].format
    tables = tuple(
        build_table(document.name, table, table_format, ["schema", index], faults)
        for index, table in enumerate(document.tables)
    )
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


def build_table(
    set_name: str,
    table: SchemaObject,
    table_format: Literal["iceberg", "delta"],
    at: Location,
    faults: Faults,
) -> Table:
    """One table with its columns, rules and references."""
    name = table.physical_name or f"{set_name}.{table.name}"
    extras = read_extras(TableExtras, table.custom_properties, at, faults)
    columns, partition_by = _columns(table, table_format, at, faults)
    derive = extras.derive.strip() if extras.derive else None
    return Table(
        name=name,
        format=table_format,
        columns=columns,
        partition_by=partition_by,
        source=extras.source,
        derive=derive,
        depends_on=_placeholders(derive, at, faults),
        rules=tuple(_rules(name, table, columns, at, faults)),
        references=tuple(_references(name, table, at, faults)),
        location=extras.location,
        description=" ".join(table.description.split()),
        allow_schema_changes=extras.allow_schema_changes,
        max_quarantined_fraction=extras.max_quarantined_fraction,
        drift=Drift(**extras.drift.model_dump()),
        reading=Reading(
            tuple(extras.reading.null_values), extras.reading.delimiter, extras.reading.multiline
        ),
        serveable_to=_promise(extras.serveable_to),
    )


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


def _rules(
    table_name: str, table: SchemaObject, columns: Sequence[Column], at: Location, faults: Faults
) -> Iterator[Rule]:
    made = {rule.name: "required, unique and primaryKey" for rule in _implied_rules(table_name, columns)}
    yield from _implied_rules(table_name, columns)
    names = {column.name for column in columns}
    for where, quality, column in _qualities(table, at):
        if quality.type == "text":
            continue
        rule = _rule(table_name, quality, column, where, faults)
        if rule is None or not _is_sound(rule, names, where, faults):
            continue
        if rule.name in made:
            faults.add(
                where,
                f"rule {rule.name!r} of {table_name} is made by {made[rule.name]} already",
                "Remove one of them, or give this one a `name` of its own.",
            )
            continue
        made[rule.name] = "an earlier rule"
        yield rule


def _implied_rules(table_name: str, columns: Sequence[Column]) -> Iterator[Rule]:
    for column in columns:
        if column.required:
            yield _implied(
                table_name, "expect_column_values_to_not_be_null", {"column": column.name}, "delta"
            )
    key = [column.name for column in columns if column.primary_key]
    singles = [column.name for column in columns if column.unique]
    if len(key) == 1 and key[0] not in singles:
        singles += key
    for name in singles:
        yield _implied(table_name, UNIQUENESS[0], {"column": name}, "table")
    if len(key) > 1:
        yield _implied(table_name, UNIQUENESS[1], {"column_list": key}, "table")


def _implied(table_name: str, expectation: str, kwargs: Mapping[str, Any], scope: Scope) -> Rule:
    return Rule(rule_name(expectation, kwargs), table_name, expectation, kwargs, "error", scope)


def _qualities(table: SchemaObject, at: Location) -> Iterator[tuple[list[str | int], Quality, str | None]]:
    for index, quality in enumerate(table.quality):
        yield [*at, "quality", index], quality, None
    for number, entry in enumerate(table.properties):
        for index, quality in enumerate(entry.quality):
            yield [*at, "properties", number, "quality", index], quality, entry.name


def _rule(
    table_name: str, quality: Quality, column: str | None, where: list[str | int], faults: Faults
) -> Rule | None:
    if quality.type != "custom" or quality.engine != ENGINE or quality.implementation is None:
        faults.add(
            where,
            "only rules of type custom, engine greatExpectations, with an implementation are run",
            f"Write type: custom, engine: {ENGINE}, implementation: {{type: expect_…, kwargs: {{…}}}}.",
        )
        return None
    expectation, kwargs = quality.implementation.type, dict(quality.implementation.arguments)
    known = EXPECTATIONS.get(expectation)
    if known is None:
        hint = did_you_mean(expectation, EXPECTATIONS)
        faults.add([*where, "implementation", "type"], f"unknown expectation {expectation!r}", hint)
        return None
    if column is not None and "column" in known.arguments:
        kwargs.setdefault("column", column)
    extras = read_extras(RuleExtras, quality.custom_properties, where, faults)
    return Rule(
        name=quality.name or rule_name(expectation, kwargs),
        table=table_name,
        expectation=expectation,
        kwargs=kwargs,
        severity=quality.severity,
        scope=extras.scope or ("table" if expectation in UNIQUENESS else "delta"),
        description=" ".join(quality.description.split()),
    )


def _is_sound(rule: Rule, columns: set[str], where: list[str | int], faults: Faults) -> bool:
    known = EXPECTATIONS[rule.expectation]
    before = len(faults.found)
    place = [*where, "implementation", "kwargs"]
    for name in rule.kwargs:
        if name not in known.arguments:
            hint = did_you_mean(name, known.arguments)
            faults.add([*place, name], f"{rule.expectation} takes no argument {name!r}", hint)
    for name in known.required:
        if name not in rule.kwargs:
            faults.add(
                place,
                f"{rule.expectation} needs the argument {name!r}",
                f"Give {known.required[name].wants}.",
            )
    for name, argument in known.arguments.items():
        if name in rule.kwargs and not argument.accepts(rule.kwargs[name]):
            faults.add([*place, name], f"cannot be {rule.kwargs[name]!r}", f"Give {argument.wants}.")
    if known.one_of and not any(rule.kwargs.get(name) is not None for name in known.one_of):
        faults.add(
            place, f"{rule.expectation} needs {' or '.join(known.one_of)}", "Give at least one of them."
        )
    for name, column in columns_of(known, rule.kwargs):
        if column not in columns:
            faults.add(
                [*place, name], f"{rule.table} has no column {column!r}", did_you_mean(column, columns)
            )
    return len(faults.found) == before


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
