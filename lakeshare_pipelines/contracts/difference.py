"""The difference of two versions of a contract: each change with its class, and the version number that it needs.

Classes are those of semantic versioning. A change is breaking if a reader of the tables, or a sender whose deliveries
passed, has to change something. `lakeshare_pipelines.wap.evolution` compares contracts with what is published.
"""

import datetime as dt
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from lakeshare_pipelines.contracts.column_types import can_widen
from lakeshare_pipelines.contracts.model import (
    Column,
    Reference,
    Retirement,
    SetContract,
    ShareEntry,
    SnowflakeEntry,
    Table,
)
from lakeshare_pipelines.contracts.partitioning import Partitioning, SecondDimension
from lakeshare_pipelines.contracts.rules import Assertion, Rule, list_implied_rules
from lakeshare_pipelines.errors import ContractError

Level = Literal["breaking", "minor", "patch"]
Checked = Rule | Assertion | Reference
LEVELS: tuple[Level, ...] = ("breaking", "minor", "patch")

SENDERS = "deliveries that passed until now can be refused"
LOOSER = "what passed until now passes"
READERS = "readers that use it fail, or get something else"


@dataclass(frozen=True)
class Change:
    """A change at `where` (`set`, `shop.orders`, `shop.orders.amount`), its class and the reason for the class.

    `needs_new_table`: readers of the published table would fail, so that the table cannot be continued.
    """

    where: str
    what: str
    level: Level
    reason: str
    needs_new_table: bool = False

    def __str__(self) -> str:
        return f"{self.level:8}  {self.where}: {self.what} ({self.reason})"


def compare_contracts(old: SetContract, new: SetContract, today: dt.date | None = None) -> tuple[Change, ...]:
    """Returns the changes from `old` to `new`, breaking ones first, each class in the order of the contract.

    Tables whose retirement is over on `today`, by default the day in UTC, can be left out.
    """
    today = today or dt.datetime.now(dt.UTC).date()
    changes = [
        *_compare_sets(old, new),
        *_compare_retirements(old, new, today),
        *_compare_lists_of_tables(old, new),
    ]
    return tuple(sorted(changes, key=lambda change: LEVELS.index(change.level)))


def find_level(changes: Iterable[Change]) -> Level | None:
    """Returns the highest class of the changes; None if there is no change."""
    found = {change.level for change in changes}
    return next((level for level in LEVELS if level in found), None)


def next_version(old: SetContract, level: Level | None) -> str:
    """Returns the lowest version number for changes of this class.

    Raises:
        ContractError: the version of `old` is not made of numbers.
    """
    major, minor, patch = parse_version(old)
    match level:
        case "breaking":
            return f"{major + 1}.0.0"
        case "minor":
            return f"{major}.{minor + 1}.0"
        case "patch":
            return f"{major}.{minor}.{patch + 1}"
    return f"{major}.{minor}.{patch}"


def find_missing_version(old: SetContract, new: SetContract, level: Level | None) -> str | None:
    """Returns the version that changes of this class need; None if `new` has it or a higher one.

    Raises:
        ContractError: a version is not made of numbers.
    """
    needed = next_version(old, level)
    return None if parse_version(new) >= tuple(int(part) for part in needed.split(".")) else needed


def has_new_major_version(old: SetContract, new: SetContract) -> bool:
    """Whether the major version grew.

    Raises:
        ContractError: a version is not made of numbers.
    """
    return parse_version(new)[0] > parse_version(old)[0]


def parse_version(contract: SetContract) -> tuple[int, int, int]:
    """Returns major, minor and patch; missing parts are 0.

    Raises:
        ContractError: the version is not made of numbers.
    """
    found = VERSION.fullmatch(contract.version)
    if found is None:
        problem = f"{contract.version!r} is not MAJOR.MINOR.PATCH, by which versions are compared"
        raise ContractError(contract.path, "version", problem, "Write it like 1.0.0.")
    major, minor, patch = (int(part or 0) for part in found.groups())
    return major, minor, patch


VERSION = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?")


def _compare_sets(old: SetContract, new: SetContract) -> Iterator[Change]:
    if old.name != new.name:
        reason = "deliveries, tables and assets are found by it"
        yield Change("set", f"name {old.name} → {new.name}", "breaking", reason)
    yield from _compare_partitionings(old.partitioning, new.partitioning)
    if (old.warehouse, old.endpoint) != (new.warehouse, new.endpoint):
        what = f"warehouse {old.warehouse or 'of the settings'} → {new.warehouse or 'of the settings'}"
        yield Change("set", what, "breaking", "published tables are not found at another location")
    retired = {each.table for each in new.retirements}
    # They stay shared until their date.
    kept = [entry for entry in old.shares if entry.table not in retired]
    yield from _compare_entries("share entry", kept, new.shares)
    yield from _compare_entries("table of Snowflake", old.snowflake, new.snowflake)
    for field in ("description", "owners", "domain", "maintenance_schedule", "schedule"):
        if getattr(old, field) != getattr(new, field):
            yield _describe_patch("set", field)


def _compare_second(old: SecondDimension | None, new: SecondDimension | None) -> Iterator[Change]:
    if old is None or new is None or old.column != new.column:
        if old != new:
            columns = [each.column if each is not None else "none" for each in (old, new)]
            what = f"second dimension {columns[0]} → {columns[1]}"
            yield Change("set", what, "breaking", "deliveries arrive and replace rows in another way")
        return
    if old.values != new.values:
        is_stricter = new.values is not None and (old.values is None or not {*old.values} <= {*new.values})
        what = f"names of {old.describe()} → {new.describe()}"
        reasons = "deliveries of other names are refused", "more names are accepted"
        yield _describe_bound("set", what, *reasons, is_stricter=is_stricter)


def _compare_partitionings(old: Partitioning, new: Partitioning) -> Iterator[Change]:
    if (old.kind, old.time_zone) != (new.kind, new.time_zone):
        before, after = (
            each.kind if old.time_zone == new.time_zone else f"{each.kind} in {each.time_zone}"
            for each in (old, new)
        )
        what = f"partitioning {before} → {after}"
        yield Change("set", what, "breaking", "deliveries arrive and replace rows in another way")
    elif old.first != new.first:
        is_later = str(new.first) > str(old.first)
        what = f"first partition {old.first} → {new.first}"
        parts = "days" if new.kind == "daily" else "partitions"
        reasons = "earlier deliveries are refused", f"more {parts} are accepted"
        yield _describe_bound("set", what, *reasons, is_stricter=is_later)
    for name in sorted({*old.values} ^ {*new.values}) if old.kind == new.kind else ():
        is_gone = name in old.values
        what = f"partition {name} is gone" if is_gone else f"new partition {name}"
        reason = "its deliveries are refused" if is_gone else "nothing that exists changes"
        yield Change("set", what, "breaking" if is_gone else "minor", reason)
    yield from _compare_second(old.second, new.second)
    if old.lateness_hours != new.lateness_hours:
        limits = [math.inf if each.lateness_hours is None else each.lateness_hours for each in (old, new)]
        is_stricter = limits[1] < limits[0]
        what = f"latenessHours {old.lateness_hours} → {new.lateness_hours}"
        reasons = "late deliveries are refused", "later deliveries are accepted"
        yield _describe_bound("set", what, *reasons, is_stricter=is_stricter)
    if old.end_offset != new.end_offset:
        what = f"end offset {old.end_offset} → {new.end_offset}"
        reasons = "early deliveries are refused", "earlier deliveries are accepted"
        yield _describe_bound("set", what, *reasons, is_stricter=new.end_offset < old.end_offset)


def _compare_entries(
    kind: str, old: Sequence[ShareEntry | SnowflakeEntry], new: Sequence[ShareEntry | SnowflakeEntry]
) -> Iterator[Change]:
    before, after = ({entry.key: entry.table for entry in entries} for entries in (old, new))
    for key in dict.fromkeys([*before, *after]):
        if key not in after:
            yield Change("set", f"{kind} {key} is gone", "breaking", READERS)
        elif key not in before:
            yield Change("set", f"new {kind} {key}", "minor", "nothing that exists changes")
        elif before[key] != after[key]:
            yield Change("set", f"{kind} {key}: {before[key]} → {after[key]}", "breaking", READERS)


def _compare_retirements(old: SetContract, new: SetContract, today: dt.date) -> Iterator[Change]:
    """Yields changes of dates; a table that is retired for the first time is a change of the list of tables."""
    after = {each.table: each for each in new.retirements}
    published_again = {table.name for table in new.tables}
    for before in old.retirements:
        if before.table in published_again or (before.is_over(today) and before.table not in after):
            continue
        yield from _compare_retirement(before, after.get(before.table))


def _compare_retirement(old: Retirement, new: Retirement | None) -> Iterator[Change]:
    if new is None:
        what = f"it was to be shared until {old.date} and is not retired any more"
        yield Change(old.table, what, "breaking", READERS)
    elif new.date != old.date:
        what = f"retired on {old.date} → {new.date}"
        reasons = "readers rely on the date that they were given", "readers have more time"
        yield _describe_bound(old.table, what, *reasons, is_stricter=new.date < old.date)
    elif new.successor != old.successor:
        yield _describe_patch(old.table, "successor")


def _describe_bound(where: str, what: str, stricter: str, looser: str, *, is_stricter: bool) -> Change:
    """Returns a change that is breaking if a bound is stricter now, with the reason for it or for the other case."""
    return Change(where, what, "breaking" if is_stricter else "minor", stricter if is_stricter else looser)


def _describe_patch(where: str, field: str) -> Change:
    return Change(where, f"{field.replace('_', ' ')} changed", "patch", "no row and no column changes")


def _compare_lists_of_tables(old: SetContract, new: SetContract) -> Iterator[Change]:
    before = {table.name: table for table in old.tables}
    after = {table.name: table for table in new.tables}
    retired = {each.table: each.date for each in new.retirements}
    for name, table in before.items():
        if name in after:
            yield from _compare_tables(table, after[name])
        elif name in retired:
            yield Change(name, f"the table is retired on {retired[name]}", "breaking", READERS)
        else:
            yield Change(name, "the table is gone", "breaking", READERS)
    for name, table in after.items():
        if name not in before:
            # All tables of a set arrive together.
            is_delivered = table.source is not None
            reason = "deliveries need one more file" if is_delivered else "nothing that exists changes"
            yield Change(name, "new table", "minor", reason)


def _compare_tables(old: Table, new: Table) -> Iterator[Change]:
    name = old.name
    for field in ("format", "location"):
        before, after = getattr(old, field), getattr(new, field)
        if before != after:
            reason = "the published table cannot be continued; a new one needs another physicalName"
            yield Change(name, f"{field} {before} → {after}", "breaking", reason, needs_new_table=True)
    yield from _compare_origins(old, new)
    yield from _compare_columns(old, new)
    if old.primary_key != new.primary_key:
        keys = [", ".join(table.primary_key) or "none" for table in (old, new)]
        reason = "readers that join or merge by the key fail, and deliveries are checked by another one"
        yield Change(name, f"primary key {keys[0]} → {keys[1]}", "breaking", reason, needs_new_table=True)
    if old.partition_by != new.partition_by:
        columns = [[f"{how}({name})" for name, how in table.partition_by] for table in (old, new)]
        by = [", ".join(names) or "nothing" for names in columns]
        reason = "files are laid out in another way, and rules of grants are decided by partitions"
        yield Change(name, f"partitioned by {by[0]} → {by[1]}", "breaking", reason, needs_new_table=True)
    yield from _compare_rules(old, new)
    yield from _compare_assertions(old, new)
    yield from _compare_references(old, new)
    yield from _compare_limits(old, new)
    for field in ("description", "maintenance", "allow_schema_changes"):
        if getattr(old, field) != getattr(new, field):
            yield _describe_patch(name, field)


def _compare_origins(old: Table, new: Table) -> Iterator[Change]:
    if old.source != new.source:
        what = f"source {old.source} → {new.source}"
        yield Change(old.name, what, "breaking", "deliveries have to name their files otherwise")
    if old.reads != new.reads:
        reason = "the columns stay, their values may differ"
        yield Change(old.name, f"read from {new.reads or 'landing'}, or in another way", "minor", reason)
    if (old.view is None) != (new.view is None) or (
        old.view is not None and new.view is not None and old.view.digest != new.view.digest
    ):
        reason = "a published view keeps its definition; a changed one needs another physicalName"
        what = "the definition of the view changed"
        yield Change(old.name, what, "breaking", reason, needs_new_table=True)
    elif old.view != new.view:
        yield Change(old.name, "the rule per recipient changed", "breaking", READERS)
    for field in ("derive", "transform", "inputs"):
        if getattr(old, field) != getattr(new, field):
            yield Change(old.name, f"{field} changed", "minor", "the columns stay, their values may differ")
    yield from _compare_reading(old, new)


def _compare_reading(old: Table, new: Table) -> Iterator[Change]:
    before, after = old.reading, new.reading
    for field in ("delimiter", "multiline"):
        values = [getattr(reading, field) for reading in (before, after)]
        if values[0] != values[1]:
            yield Change(old.name, f"{field} {values[0]!r} → {values[1]!r}", "breaking", SENDERS)
    if before.row_tag not in (None, after.row_tag):
        yield Change(old.name, f"rowTag {before.row_tag!r} → {after.row_tag!r}", "breaking", SENDERS)
    if before.null_values != after.null_values:
        is_stricter = not set(before.null_values) <= set(after.null_values)
        what = f"nullValues {list(before.null_values)} → {list(after.null_values)}"
        yield _describe_bound(old.name, what, SENDERS, LOOSER, is_stricter=is_stricter)


def _compare_columns(old: Table, new: Table) -> Iterator[Change]:
    before = {column.name: (place, column) for place, column in enumerate(old.columns)}
    after = {column.name: (place, column) for place, column in enumerate(new.columns)}
    added = [column for name, (_, column) in after.items() if name not in before]
    renamed: set[str] = set()
    for name, (_, column) in before.items():
        where = f"{old.name}.{name}"
        if name in after:
            yield from _compare_column(where, column, after[name][1], new.format)
            continue
        heir = _find_new_name(column, [other for other in added if other.name not in renamed])
        if heir is None:
            yield Change(where, "the column is gone", "breaking", READERS, needs_new_table=True)
        else:
            renamed.add(heir.name)
            what = f"the column is renamed to {heir.name}"
            yield Change(where, what, "breaking", READERS, needs_new_table=True)
    for column in added:
        where = f"{old.name}.{column.name}"
        if column.name in renamed:
            continue
        if column.required and column.expression is None and new.source is not None:
            yield Change(where, "new required column", "breaking", SENDERS)
        else:
            yield Change(where, f"new column, {column.type}", "minor", "readers may ignore it")
    kept = [name for name in before if name in after]
    if kept != [name for name in after if name in before]:
        yield Change(old.name, "columns are in another order", "patch", "columns are found by name")


def _find_new_name(column: Column, added: Iterable[Column]) -> Column | None:
    """Returns the new column that holds what `column` held: delivered as the same, or described in the same words."""
    for other in added:
        is_same_source = column.delivered_as is not None and column.delivered_as == other.delivered_as
        is_same_text = bool(column.description) and column.description == other.description
        if column.type == other.type and (is_same_source or is_same_text):
            return other
    return None


INTEGERS = ("tinyint", "smallint", "int", "bigint")


def is_widened(before: str, after: str) -> bool:
    """Whether each value of a type is a value of the other, and tables can be promoted to it."""
    if before in INTEGERS and after in INTEGERS:
        return INTEGERS.index(before) < INTEGERS.index(after)
    return can_widen(before, after)


def _compare_types(where: str, old: str, new: str, table_format: str) -> Iterator[Change]:
    what = f"type {old} → {new}"
    if not is_widened(old, new):
        reason = "values may not fit, and readers expect the old type"
        yield Change(where, what, "breaking", reason, needs_new_table=True)
    elif table_format == "delta":
        reason = "a published Delta table keeps the types of its columns"
        yield Change(where, what, "breaking", reason, needs_new_table=True)
    else:
        yield Change(where, what, "minor", "every value still fits")


def _compare_column(where: str, old: Column, new: Column, table_format: str) -> Iterator[Change]:
    if old.type != new.type:
        yield from _compare_types(where, old.type, new.type, table_format)
    for word, was, is_now in (("required", old.required, new.required), ("unique", old.unique, new.unique)):
        if is_now and not was:
            yield Change(where, f"the column is {word} now", "breaking", SENDERS)
        elif was and not is_now:
            yield Change(where, f"the column is not {word} any more", "minor", LOOSER)
    if old.delivered_as != new.delivered_as:
        names = [column.delivered_as or "computed" for column in (old, new)]
        is_computed = new.delivered_as is None
        reason = "files need not have it any more" if is_computed else "deliveries have to name it otherwise"
        yield Change(where, f"delivered as {names[0]} → {names[1]}", "breaking", reason)
    elif old.expression != new.expression:
        yield Change(where, "its expression changed", "minor", "the type stays, values may differ")
    if old.pii != new.pii:
        what = "the column is personal data now" if new.pii else "the column is no personal data any more"
        reason = "its values are hidden in reports" if new.pii else "its values are shown in reports"
        yield Change(where, what, "minor", reason)
    for field in ("description", "lineage"):
        if getattr(old, field) != getattr(new, field):
            yield _describe_patch(where, field)


def _list_written_rules(table: Table) -> dict[str, Rule]:
    """Returns the rules by name, without those that required, unique and primaryKey imply."""
    implied = [(rule.expectation, rule.kwargs) for rule in list_implied_rules(table.name, table.columns)]
    return {rule.name: rule for rule in table.rules if (rule.expectation, rule.kwargs) not in implied}


def _compare_rules(old: Table, new: Table) -> Iterator[Change]:
    before, after = _list_written_rules(old).values(), _list_written_rules(new).values()
    yield from _compare_named("rule", "its arguments are stricter, or others", old.name, before, after)


def _describe_stricter(where: str, what: str, rule: Checked) -> Change:
    if rule.severity == "warning":
        return Change(where, f"{what} of severity warning", "minor", "a warning stops no delivery")
    return Change(where, what, "breaking", SENDERS)


def _compare_checked(where: str, differs: str, old: Checked, new: Checked) -> Iterator[Change]:
    if old.severity != new.severity:
        what, is_stricter = f"severity {old.severity} → {new.severity}", new.severity == "error"
        yield _describe_bound(where, what, SENDERS, LOOSER, is_stricter=is_stricter)
    if isinstance(old, Rule) and isinstance(new, Rule):
        is_same = (old.expectation, old.scope) == (new.expectation, new.scope)
        if is_same and old.kwargs != new.kwargs and is_looser(old.expectation, old.kwargs, new.kwargs):
            yield Change(where, "its arguments are looser", "minor", LOOSER)
        elif not is_same or old.kwargs != new.kwargs:
            yield _describe_stricter(where, differs, new)
    elif replace(old, severity=new.severity, description=new.description) != new:
        yield _describe_stricter(where, differs, new)
    if old.description != new.description:
        yield _describe_patch(where, "description")


def is_looser(expectation: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether arguments of an expectation let everything pass that other arguments of it let pass."""
    changed = [name for name in old.keys() | new.keys() if old.get(name) != new.get(name)]
    return all(_is_looser_argument(expectation, name, old.get(name), new.get(name)) for name in changed)


def _is_looser_argument(expectation: str, name: str, old: Any, new: Any) -> bool:
    """Compares values of one argument, None if it is not given; of an argument that is not known: False."""
    match name:
        case "min_value":
            return new is None or (old is not None and _is_at_most(new, old))
        case "max_value":
            return new is None or (old is not None and _is_at_most(old, new))
        case "mostly":
            return bool((1 if new is None else new) <= (1 if old is None else old))
        case "strict_min" | "strict_max":
            return not new
        case "value_set" if expectation.endswith("_to_be_in_set"):
            return all(value in new for value in old)
        case "value_set" if expectation.endswith(("_not_be_in_set", "_contain_set")):
            return all(value in old for value in new)
    return False


def _is_at_most(low: Any, high: Any) -> bool:
    is_numeric = isinstance(low, int | float) and isinstance(high, int | float)
    return (is_numeric or type(low) is type(high)) and bool(low <= high)


def _compare_references(old: Table, new: Table) -> Iterator[Change]:
    leads_to = "the reference leads to other columns"
    yield from _compare_named("reference", leads_to, old.name, old.references, new.references)


def _compare_assertions(old: Table, new: Table) -> Iterator[Change]:
    asserts = "it asserts something else"
    yield from _compare_named("rule in SQL", asserts, old.name, old.assertions, new.assertions)


def _compare_named(
    kind: str, differs: str, table: str, old: Iterable[Checked], new: Iterable[Checked]
) -> Iterator[Change]:
    before, after = ({each.name: each for each in checks} for checks in (old, new))
    for name in dict.fromkeys([*before, *after]):
        where, was, will = f"{table}: {name}", before.get(name), after.get(name)
        if will is None:
            yield Change(where, f"the {kind} is gone", "minor", LOOSER)
        elif was is None:
            yield _describe_stricter(where, f"new {kind}", will)
        else:
            yield from _compare_checked(where, differs, was, will)


def _compare_limits(old: Table, new: Table) -> Iterator[Change]:
    before, after = old.max_quarantined_fraction, new.max_quarantined_fraction
    if before != after:
        what = f"at most {before:.2%} → {after:.2%} of rows in quarantine"
        yield _describe_bound(old.name, what, SENDERS, LOOSER, is_stricter=after < before)
    if old.allow_empty != new.allow_empty:
        what = f"a partition may have no rows{'' if new.allow_empty else ' no longer'}"
        yield _describe_bound(old.name, what, SENDERS, LOOSER, is_stricter=old.allow_empty)
    if old.drift != new.drift:
        limits = [field.name for field in fields(old.drift) if field.name != "severity"]
        values = [(getattr(old.drift, name), getattr(new.drift, name)) for name in limits]
        is_looser = all(new is None or (old is not None and new >= old) for old, new in values)
        is_stricter = new.drift.severity == "error" and (not is_looser or old.drift.severity == "warning")
        reasons = SENDERS, "it is looser, or a warning"
        yield _describe_bound(old.name, "the limits of drift changed", *reasons, is_stricter=is_stricter)
    for client in old.serveable_to.clients:
        if client not in new.serveable_to.clients:
            yield Change(old.name, f"{client} is no promised client any more", "breaking", READERS)
    for client in new.serveable_to.clients:
        if client not in old.serveable_to.clients:
            yield Change(old.name, f"{client} is a promised client now", "minor", "one more can read it")
