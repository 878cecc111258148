"""Views of a contract: what of a table they show, and that this is the same on every day.

A view takes its columns with all that is known of them from its table; only what is listed is shown, so that a new
column of the table shows nowhere by itself.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from lakeshare_pipelines.contracts.document import SchemaObject, ViewExtras
from lakeshare_pipelines.contracts.faults import Faults, Location, did_you_mean
from lakeshare_pipelines.contracts.model import Column, PerRecipient, Table, View

# Texts and quoted names say nothing about the words around them.
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


def view_of(extras: ViewExtras) -> View:
    """The view as the document has it; `of` is the table's short name until the set is whole."""
    said, per = extras.per_recipient, None
    if said is not None:
        value = None if said.value is None else said.value.strip()
        per = PerRecipient(said.column, value, said.recipient_property)
    where = None if extras.where is None else extras.where.strip()
    return View(of=extras.of, columns=tuple(extras.columns), where=where, per_recipient=per)


def columns_of_view(
    view: View, bases: Mapping[str, Table], at: Location, faults: Faults
) -> tuple[tuple[Column, ...], tuple[tuple[str, str], ...]]:
    """The columns and the partitions of a view, as its table has them."""
    place = [*at, "customProperties", "view"]
    base = bases.get(view.of)
    if base is None:
        hint = did_you_mean(view.of, bases, "Name a table of the set that is no view.")
        faults.add(place, f"the set has no table {view.of!r} for a view", hint)
        return (), ()
    for name, what in _expressions(view):
        _check_expression(name, what, base, place, faults)
    known = {column.name: column for column in base.columns}
    for name in view.columns:
        if name not in known:
            faults.add(place, f"{view.of} has no column {name!r}", did_you_mean(name, known))
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
        columns = (*columns, replace(_whose(per, per.value, base), primary_key=is_key))
    field = (per.column, "identity")
    return columns, partition_by if field in partition_by else (*partition_by, field)


def _whose(per: PerRecipient, value: str, base: Table) -> Column:
    """The column that a value per recipient makes; it is as personal as what it is made of."""
    said = {word.lower() for word, _ in WORD.findall(value)}
    sources = [column for column in base.columns if column.name.lower() in said]
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
