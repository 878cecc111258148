"""From the document to the records: types, rules and references of each table, with every fault noted."""

import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from lakeshare_pipelines.contracts.document import (
    ColumnExtras,
    Document,
    Faults,
    Location,
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
    ViewExtras,
    read_extras,
    suggest,
)
from lakeshare_pipelines.contracts.model import (
    DEFAULTS,
    TYPES_OF_FORMAT,
    Column,
    Drift,
    PerRecipient,
    Promise,
    Reading,
    Reference,
    Rule,
    Scope,
    SetContract,
    ShareEntry,
    SnowflakeEntry,
    Table,
    View,
    explain_wrong_type,
    normalize_type,
)

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


def is_view(table: SchemaObject) -> bool:
    """Whether a part of the document says to be a view, well or not."""
    return any(one.property == "view" for one in table.custom_properties)


def check_shape(table: SchemaObject, at: Location, faults: Faults) -> None:
    """See that a table has columns, and that a view leaves them to its table."""
    if is_view(table) and table.properties:
        hint = "List their names as columns of the view: what is known of them is known from its table."
        faults.add([*at, "properties"], f"view {table.name} has properties of its own", hint)
    if is_view(table) or table.properties:
        if table.physical_type not in (None, "view" if is_view(table) else "table"):
            hint = "Leave physicalType out, or say as the property view what it shows."
            problem = f"{table.name} is called a {table.physical_type} and is none"
            faults.add([*at, "physicalType"], problem, hint)
        return
    hint = "List its columns; only a view, given as the property view, has those of its table."
    faults.add([*at, "properties"], f"table {table.name} has no columns", hint)


def build_view(extras: ViewExtras) -> View:
    """The view as the document has it; `of` is the table's short name until the set is whole."""
    stated, per = extras.per_recipient, None
    if stated is not None:
        value = None if stated.value is None else stated.value.strip()
        per = PerRecipient(stated.column, value, stated.recipient_property)
    where = None if extras.where is None else extras.where.strip()
    return View(of=extras.of, columns=tuple(extras.columns), where=where, per_recipient=per)


def build_view_columns(
    view: View, bases: Mapping[str, Table], at: Location, faults: Faults
) -> tuple[tuple[Column, ...], tuple[tuple[str, str], ...]]:
    """The columns and the partitions of a view, as its table has them."""
    place = [*at, "customProperties", "view"]
    base = bases.get(view.of)
    if base is None:
        hint = suggest(view.of, bases, "Name a table of the set that is no view.")
        faults.add(place, f"the set has no table {view.of!r} for a view", hint)
        return (), ()
    for name, what in _expressions(view):
        _check_expression(name, what, base, place, faults)
    known = {column.name: column for column in base.columns}
    for name in view.columns:
        if name not in known:
            faults.add(place, f"{view.of} has no column {name!r}", suggest(name, known))
    columns = tuple(_inherited(known[name], view) for name in view.columns if name in known)
    partition_by = tuple((name, kind) for name, kind in base.partition_by if name in view.columns)
    return _with_recipients(view, base, columns, partition_by, place, faults)


def _inherited(column: Column, view: View) -> Column:
    lineage = (f"{view.of}.{column.name}",)
    # The same row may be several recipients'.
    repeats = view.per_recipient is not None and view.per_recipient.value is not None
    is_unique = column.unique and not repeats
    return replace(column, unique=is_unique, source=None, expression=None, lineage=lineage)


def _with_recipients(
    view: View,
    base: Table,
    columns: tuple[Column, ...],
    partition_by: tuple[tuple[str, str], ...],
    place: Location,
    faults: Faults,
) -> tuple[tuple[Column, ...], tuple[tuple[str, str], ...]]:
    """The same with the column that tells recipients apart, which the view is partitioned by."""
    if not {column.name for column in columns if column.primary_key}.issuperset(base.primary_key):
        # Half a key is none.
        columns = tuple(replace(column, primary_key=False) for column in columns)
    per = view.per_recipient
    if per is None or not _is_sound(per, view, base, partition_by, place, faults):
        return columns, partition_by
    if per.value is not None:
        is_key = any(column.primary_key for column in columns)
        columns = (*columns, replace(_make_recipient_column(per, per.value, base), primary_key=is_key))
    field = (per.column, "identity")
    return columns, partition_by if field in partition_by else (*partition_by, field)


def _make_recipient_column(per: PerRecipient, value: str, base: Table) -> Column:
    """The column that a value per recipient makes; it is as personal as what it is made of."""
    words = {word.lower() for word, _ in WORD.findall(value)}
    sources = [column for column in base.columns if column.name.lower() in words]
    return Column(
        per.column,
        "string",
        required=True,
        pii=any(column.pii for column in sources),
        description="Whose the row is.",
        lineage=tuple(f"{base.short_name}.{column.name}" for column in sources),
    )


def _is_sound(
    per: PerRecipient,
    view: View,
    base: Table,
    partition_by: tuple[tuple[str, str], ...],
    place: Location,
    faults: Faults,
) -> bool:
    before = len(faults.found)
    if per.value is None and per.column not in view.columns:
        hint = f"Put it into its columns, or give a value for it: SQL over the columns of {view.of}."
        faults.add(place, f"perRecipient speaks of {per.column!r}, which the view does not have", hint)
    if per.value is not None and per.column.lower() in {column.name.lower() for column in base.columns}:
        hint = "Leave the value out to take the column as it is, or give the new one another name."
        faults.add(place, f"perRecipient has a value for {per.column!r}, a column of {view.of}", hint)
    if any(name == per.column and transform != "identity" for name, transform in partition_by):
        hint = "Rules are decided by the column's own values: let the table be partitioned by them."
        faults.add(place, f"{view.of} is partitioned by a transform of {per.column}", hint)
    return len(faults.found) == before


def _expressions(view: View) -> Iterator[tuple[str, str]]:
    if view.where is not None:
        yield "where", view.where
    if view.per_recipient is not None and view.per_recipient.value is not None:
        yield "perRecipient", view.per_recipient.value


def _check_expression(name: str, text: str, base: Table, place: Location, faults: Faults) -> None:
    """Refuse what gives other rows on another day: only the partitions of a run are made anew."""
    columns = {column.name.lower() for column in base.columns}
    for word, parenthesis in WORD.findall(QUOTED.sub("''", text)):
        found = word.lower()
        is_call = bool(parenthesis) or (found in CALLED_BARE and found not in columns)
        if found == "select":
            hint = f"It is Spark SQL over the columns of {base.short_name}; for more write a derived table."
            faults.add(place, f"{name} of a view cannot ask other tables", hint)
            return
        if found == CURRENT_RECIPIENT:
            hint = "Name the column in perRecipient, with the recipients' property that it is compared with."
            faults.add(place, f"{name} of a view cannot know who reads it", hint)
            return
        if found in CHANGING and is_call:
            hint = (
                "A view shows a row for as long as the table has it; write a derived table for anything else."
            )
            faults.add(place, f"{name} of a view calls {found}, which changes by itself", hint)
            return


Test = Callable[[Any], bool]


@dataclass(frozen=True)
class Argument:
    """What one argument takes: a test, the words for it, and whether it names columns of the table."""

    accepts: Test
    wants: str
    names_columns: bool = False


@dataclass(frozen=True)
class Expectation:
    """Arguments of one expectation type; of `one_of`, at least one must be given."""

    required: Mapping[str, Argument]
    optional: Mapping[str, Argument]
    one_of: tuple[str, ...] = ()

    @property
    def arguments(self) -> Mapping[str, Argument]:
        """All arguments it takes."""
        return {**self.required, **self.optional}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


COLUMN = Argument(lambda v: isinstance(v, str), "the name of a column", names_columns=True)
COLUMNS = Argument(lambda v: _is_texts(v) and len(v) > 1, "a list of two or more columns", names_columns=True)
COLUMN_LIST = Argument(_is_texts, "a list of columns", names_columns=True)
BOUND = Argument(
    lambda v: _is_number(v) or isinstance(v, str) or hasattr(v, "isoformat"), "a number or a date"
)
NUMBER = Argument(_is_number, "a number")
COUNT = Argument(
    lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 0, "a whole number from 0 up"
)
FRACTION = Argument(lambda v: _is_number(v) and 0 <= v <= 1, "a number from 0 to 1")
FLAG = Argument(lambda v: isinstance(v, bool), "true or false")
TEXT = Argument(lambda v: isinstance(v, str), "a text")
TEXTS = Argument(_is_texts, "a list of texts")
VALUES = Argument(lambda v: isinstance(v, list) and bool(v), "a list of values")
PAIRS = Argument(
    lambda v: isinstance(v, list) and bool(v) and all(isinstance(p, list) and len(p) == 2 for p in v),
    "a list of pairs",
)
MATCH = Argument(lambda v: v in ("any", "all"), "any or all")
IGNORE_PAIR = Argument(
    lambda v: v in ("both_values_are_missing", "either_value_is_missing", "neither"),
    "both_values_are_missing, either_value_is_missing or neither",
)
IGNORE_ROW = Argument(
    lambda v: v in ("all_values_are_missing", "any_value_is_missing", "never"),
    "all_values_are_missing, any_value_is_missing or never",
)

_BOUNDS = {"min_value": BOUND, "max_value": BOUND}
_STRICT = {"strict_min": FLAG, "strict_max": FLAG}
_MOSTLY = {"mostly": FRACTION}


def _values(required: Mapping[str, Argument] | None = None, **optional: Argument) -> Expectation:
    return Expectation({"column": COLUMN, **(required or {})}, {**_MOSTLY, **optional})


def _between(bound: Argument = BOUND, *, per_value: bool = False) -> Expectation:
    optional = {"min_value": bound, "max_value": bound, **_STRICT, **(_MOSTLY if per_value else {})}
    return Expectation({"column": COLUMN}, optional, one_of=("min_value", "max_value"))


def _distinct() -> Expectation:
    return Expectation({"column": COLUMN, "value_set": VALUES}, {})


def _pair(required: Mapping[str, Argument] | None = None, **optional: Argument) -> Expectation:
    columns = {"column_A": COLUMN, "column_B": COLUMN}
    return Expectation({**columns, **(required or {})}, {**_MOSTLY, "ignore_row_if": IGNORE_PAIR, **optional})


EXPECTATIONS: Mapping[str, Expectation] = MappingProxyType(
    {
        "expect_column_values_to_not_be_null": _values(),
        "expect_column_values_to_be_null": _values(),
        "expect_column_values_to_be_unique": _values(),
        "expect_column_values_to_be_in_set": _values({"value_set": VALUES}),
        "expect_column_values_to_not_be_in_set": _values({"value_set": VALUES}),
        "expect_column_values_to_be_between": _between(per_value=True),
        "expect_column_value_lengths_to_be_between": _between(COUNT, per_value=True),
        "expect_column_value_lengths_to_equal": _values({"value": COUNT}),
        "expect_column_values_to_match_regex": _values({"regex": TEXT}),
        "expect_column_values_to_not_match_regex": _values({"regex": TEXT}),
        "expect_column_values_to_match_regex_list": _values({"regex_list": TEXTS}, match_on=MATCH),
        "expect_column_min_to_be_between": _between(),
        "expect_column_max_to_be_between": _between(),
        "expect_column_mean_to_be_between": _between(),
        "expect_column_median_to_be_between": _between(),
        "expect_column_sum_to_be_between": _between(),
        "expect_column_stdev_to_be_between": _between(NUMBER),
        "expect_column_unique_value_count_to_be_between": _between(COUNT),
        "expect_column_proportion_of_unique_values_to_be_between": _between(FRACTION),
        "expect_column_proportion_of_non_null_values_to_be_between": _between(FRACTION),
        "expect_column_distinct_values_to_be_in_set": _distinct(),
        "expect_column_distinct_values_to_contain_set": _distinct(),
        "expect_column_distinct_values_to_equal_set": _distinct(),
        "expect_column_most_common_value_to_be_in_set": Expectation(
            {"column": COLUMN, "value_set": VALUES}, {"ties_okay": FLAG}
        ),
        "expect_column_pair_values_a_to_be_greater_than_b": _pair(or_equal=FLAG),
        "expect_column_pair_values_to_be_equal": _pair(),
        "expect_column_pair_values_to_be_in_set": _pair({"value_pairs_set": PAIRS}),
        "expect_compound_columns_to_be_unique": Expectation(
            {"column_list": COLUMNS}, {**_MOSTLY, "ignore_row_if": IGNORE_ROW}
        ),
        "expect_multicolumn_sum_to_equal": Expectation(
            {"column_list": COLUMNS, "sum_total": NUMBER}, {**_MOSTLY, "ignore_row_if": IGNORE_ROW}
        ),
        "expect_table_row_count_to_be_between": Expectation(
            {}, {"min_value": COUNT, "max_value": COUNT, **_STRICT}, one_of=("min_value", "max_value")
        ),
        "expect_table_row_count_to_equal": Expectation({"value": COUNT}, {}),
        "expect_table_column_count_to_equal": Expectation({"value": COUNT}, {}),
        "expect_table_columns_to_match_set": Expectation({"column_set": COLUMN_LIST}, {"exact_match": FLAG}),
    }
)

UNIQUENESS = (
    "expect_column_values_to_be_unique",
    "expect_compound_columns_to_be_unique",
)


def list_rule_columns(expectation: Expectation, kwargs: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The columns a rule speaks of, as (argument, column)."""
    found: list[tuple[str, str]] = []
    for name, argument in expectation.arguments.items():
        if argument.names_columns and name in kwargs and argument.accepts(kwargs[name]):
            value = kwargs[name]
            found += [(name, column) for column in ([value] if isinstance(value, str) else value)]
    return tuple(found)


def make_rule_name(expectation: str, kwargs: Mapping[str, Any]) -> str:
    """`expect_column_values_to_not_be_null__tailnum`: the expectation and its columns; a Dagster-legal check name."""
    known = EXPECTATIONS.get(expectation)
    columns = [column for _, column in list_rule_columns(known, kwargs)] if known else []
    return "__".join([expectation, "_".join(columns)]) if columns else expectation


ENGINE = "greatExpectations"


def build_rules(
    table_name: str,
    table: SchemaObject,
    columns: Sequence[Column],
    at: Location,
    faults: Faults,
    *,
    implies: bool,
) -> Iterator[Rule]:
    """The rules of a table: those its columns imply, where they do, and those that are written."""
    implied = tuple(_implied_rules(table_name, columns)) if implies else ()
    origins = {rule.name: "required, unique and primaryKey" for rule in implied}
    yield from implied
    names = {column.name for column in columns}
    for where, quality, column in _qualities(table, at):
        if quality.type == "text":
            continue
        rule = _rule(table_name, quality, column, where, faults)
        if rule is None or not _is_sound_rule(rule, names, where, faults):
            continue
        if rule.name in origins:
            faults.add(
                where,
                f"rule {rule.name!r} of {table_name} is made by {origins[rule.name]} already",
                "Remove one of them, or give this one a `name` of its own.",
            )
            continue
        origins[rule.name] = "an earlier rule"
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
    return Rule(make_rule_name(expectation, kwargs), table_name, expectation, kwargs, "error", scope)


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
        hint = suggest(expectation, EXPECTATIONS)
        faults.add([*where, "implementation", "type"], f"unknown expectation {expectation!r}", hint)
        return None
    if column is not None and "column" in known.arguments:
        kwargs.setdefault("column", column)
    extras = read_extras(RuleExtras, quality.custom_properties, where, faults)
    return Rule(
        name=quality.name or make_rule_name(expectation, kwargs),
        table=table_name,
        expectation=expectation,
        kwargs=kwargs,
        severity=quality.severity,
        scope=extras.scope or ("table" if expectation in UNIQUENESS else "delta"),
        description=" ".join(quality.description.split()),
    )


def _is_sound_rule(rule: Rule, columns: set[str], where: list[str | int], faults: Faults) -> bool:
    known = EXPECTATIONS[rule.expectation]
    before = len(faults.found)
    place = [*where, "implementation", "kwargs"]
    for name in rule.kwargs:
        if name not in known.arguments:
            hint = suggest(name, known.arguments)
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
    for name, column in list_rule_columns(known, rule.kwargs):
        if column not in columns:
            faults.add([*place, name], f"{rule.table} has no column {column!r}", suggest(column, columns))
    return len(faults.found) == before


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
    built: dict[int, Table] = {}
    bases: dict[str, Table] = {}
    for index, table in sorted(enumerate(document.tables), key=lambda one: is_view(one[1])):
        built[index] = build_table(document.name, table, table_format, ["schema", index], faults, bases)
        if not is_view(table):
            bases[built[index].short_name] = built[index]
    return tuple(built[index] for index in sorted(built))


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
    view = None if extras.view is None else build_view(extras.view)
    if view is None:
        columns, partition_by = _columns(table, table_format, at, faults)
    else:
        columns, partition_by = build_view_columns(view, bases, at, faults)
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
        rules=tuple(build_rules(name, table, columns, at, faults, implies=view is None)),
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
    kind = normalize_type(entry.physical_type or DEFAULTS[entry.logical_type or "string"])
    wrong = explain_wrong_type(kind, entry.logical_type, table_format)
    if wrong:
        field = "physicalType" if entry.physical_type else "logicalType"
        faults.add([*at, field], wrong, suggest(kind, TYPES_OF_FORMAT[table_format]))
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
                faults.add(where, f"the set has no table {named.table!r}", suggest(named.table, names))
                continue
            lake_name = names[named.table]
            yield entry, named.name or lake_name.rsplit(".", 1)[-1], lake_name
