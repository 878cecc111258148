"""What a contract says, as the pipelines use it: sets, tables, columns, rules, references, shares.

The YAML is read in `document.py`, judged in `checks.py` and turned into these records in `loader.py`.
"""

import datetime as dt
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Severity = Literal["error", "warning"]
Scope = Literal["delta", "table"]


@dataclass(frozen=True)
class Column:
    """One column. `type` is Spark's own short spelling: `int`, `string`, `decimal(10,2)`.

    `source` is the column's name in the delivered file when it differs; `expression` is Spark SQL over the other
    columns for one that no file holds; `lineage` names what a derived column comes from, as `table.column`.
    """

    name: str
    type: str
    required: bool = False
    unique: bool = False
    primary_key: bool = False
    pii: bool = False
    description: str = ""
    source: str | None = None
    expression: str | None = None
    lineage: tuple[str, ...] = ()

    @property
    def delivered_as(self) -> str | None:
        """Name in the delivered file; None for a computed column."""
        return None if self.expression else self.source or self.name


@dataclass(frozen=True)
class Rule:
    """One expectation. Scope `delta` judges the rows of a run, `table` the table as it stands after it."""

    name: str
    table: str
    expectation: str
    kwargs: Mapping[str, Any]
    severity: Severity = "error"
    scope: Scope = "delta"
    description: str = ""


@dataclass(frozen=True)
class Reference:
    """Each non-null combination of `columns` in `table` exists as `to_columns` in `to_table`, after the run."""

    name: str
    table: str
    columns: tuple[str, ...]
    to_table: str
    to_columns: tuple[str, ...]
    severity: Severity = "error"
    description: str = ""


@dataclass(frozen=True)
class Drift:
    """How far the table's row count may move in one run, against main; None: any far."""

    max_shrink_fraction: float | None = None
    max_growth_fraction: float | None = None
    severity: Severity = "warning"


@dataclass(frozen=True)
class Reading:
    """How the delivered text files are to be understood; Parquet speaks for itself."""

    null_values: tuple[str, ...] = ("",)
    delimiter: str = ","
    multiline: bool = False


@dataclass(frozen=True)
class Promise:
    """Clients that are to read every publication of a table, by their ids of `lakeshare_server.tables.serveability`.

    `severity` is of the check that they can; with `rewrite` the staged table is rewritten where they could not.
    """

    clients: tuple[str, ...] = ()
    severity: Severity = "error"
    rewrite: bool = True


@dataclass(frozen=True)
class PerRecipient:
    """The partition column of a view that tells whose a row is; rows without a value in it are nobody's.

    `value` is Spark SQL over the table's columns, for a column that the table does not have; an array of values gives
    the row to each. With `recipient_property` each recipient reads the rows that hold its own value of that property.
    """

    column: str
    value: str | None = None
    recipient_property: str | None = None

    @property
    def rule(self) -> str | None:
        """What restricts every recipient of the view."""
        name = self.recipient_property
        return None if name is None else f"{self.column} = current_recipient('{name}')"


@dataclass(frozen=True)
class View:
    """Columns, and the rows a Spark SQL predicate is true for, of one table of the set."""

    of: str
    columns: tuple[str, ...]
    where: str | None = None
    per_recipient: PerRecipient | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of all that decides which rows the view has; whose they are is decided by its rule."""
        fields = asdict(self)
        if self.per_recipient is not None:
            fields["per_recipient"].pop("recipient_property")
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Table:
    """One table: of a `source` (file stem or glob in the delivery), or a `derive` (Spark SQL), or a `view`."""

    name: str
    format: Literal["iceberg", "delta"]
    columns: tuple[Column, ...]
    partition_by: tuple[tuple[str, str], ...] = ()
    source: str | None = None
    derive: str | None = None
    view: View | None = None
    depends_on: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    references: tuple[Reference, ...] = ()
    location: str | None = None
    description: str = ""
    allow_schema_changes: bool = False
    max_quarantined_fraction: float = 0.0
    drift: Drift = Drift()
    reading: Reading = Reading()
    serveable_to: Promise = Promise()

    @property
    def short_name(self) -> str:
        """Name without its namespace; what `{…}` stands for in `derive`."""
        return self.name.rsplit(".", 1)[-1]

    @property
    def namespace(self) -> str:
        """Name up to the last dot."""
        return self.name.rsplit(".", 1)[0]

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Columns of the primary key; empty when there is none."""
        return tuple(column.name for column in self.columns if column.primary_key)

    def column(self, name: str) -> Column:
        """The column of that name.

        Raises:
            KeyError: there is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


@dataclass(frozen=True)
class ShareEntry:
    """Recipients of `share` read `table` as `schema`.`name`."""

    share: str
    schema: str
    name: str
    table: str


@dataclass(frozen=True)
class SnowflakeEntry:
    """Snowflake's table `database`.`schema`.`name` follows `table`."""

    database: str
    schema: str
    name: str
    table: str


@dataclass(frozen=True)
class SetContract:
    """Tables that are published together, each after the ones it depends on."""

    name: str
    version: str
    description: str
    owners: tuple[str, ...]
    domain: str
    tables: tuple[Table, ...]
    partitioning: Literal["daily", "none"]
    first_partition: str | None
    shares: tuple[ShareEntry, ...]
    digest: str
    path: Path
    snowflake: tuple[SnowflakeEntry, ...] = ()

    def table(self, name: str) -> Table:
        """A table by its lake name or its short name.

        Raises:
            KeyError: the set has none of that name.
        """
        for table in self.tables:
            if name in (table.name, table.short_name):
                return table
        raise KeyError(name)

    def is_partition(self, key: str) -> bool:
        """Whether `key` names a partition of the set: `all`, or a day from `first_partition` on."""
        if self.partitioning == "none":
            return key == "all"
        try:
            day = dt.date.fromisoformat(key)
        except ValueError:
            return False
        # fromisoformat also takes 20130101 and 2013-W01-1, which would be second names of a day.
        return day.isoformat() == key and (self.first_partition is None or key >= self.first_partition)


ALIASES = {"integer": "int", "long": "bigint", "real": "float", "byte": "tinyint", "short": "smallint"}

DEFAULTS = {
    "string": "string",
    "date": "date",
    "timestamp": "timestamp",
    "number": "double",
    "integer": "bigint",
    "boolean": "boolean",
}

PHYSICAL_TYPES = {
    "string": {"string"},
    "date": {"date"},
    "timestamp": {"timestamp"},
    "number": {"float", "double", "decimal"},
    "integer": {"tinyint", "smallint", "int", "bigint"},
    "boolean": {"boolean"},
}

# Iceberg has no integers below 32 bits: Spark would make ints of them and the table would not match its contract.
TYPES_OF_FORMAT = {
    "iceberg": {"boolean", "int", "bigint", "float", "double", "decimal", "string", "date", "timestamp"},
    "delta": {
        *("boolean", "tinyint", "smallint", "int", "bigint"),
        *("float", "double", "decimal", "string", "date", "timestamp"),
    },
}

_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\((\d+)(?:,(\d+))?\)")
MAX_PRECISION = 38


def normalize_type(physical: str) -> str:
    """Spark's short spelling of a type: `INTEGER` → `int`, `Decimal(10, 2)` → `decimal(10,2)`."""
    text = re.sub(r"\s+", "", physical.lower())
    decimal = _DECIMAL.fullmatch(text)
    if decimal:
        return f"decimal({int(decimal[1])},{int(decimal[2] or 0)})"
    return ALIASES.get(text, text)


def get_base_type(spark_type: str) -> str:
    """The type without its parameters."""
    return spark_type.split("(", 1)[0]


def can_widen(before: str, after: str) -> bool:
    """Whether a column of one type can become one of the other without touching its values.

    The promotions of Iceberg's specification, "Schema Evolution", that both types of a contract can be.
    """
    if (before, after) in (("int", "bigint"), ("float", "double")):
        return True
    narrow, wide = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(after)
    if narrow is None or wide is None:
        return False
    return int(narrow[2] or 0) == int(wide[2] or 0) and int(narrow[1]) < int(wide[1])


def explain_wrong_type(spark_type: str, logical: str | None, table_format: str) -> str | None:
    """Why a column cannot have this type; None when it can."""
    base = get_base_type(spark_type)
    known = TYPES_OF_FORMAT[table_format]
    if base not in known:
        return f"type {spark_type!r} cannot be used in a table of format {table_format}"
    if base == "decimal":
        decimal = _DECIMAL.fullmatch(spark_type)
        if (
            decimal is None
            or not 1 <= int(decimal[1]) <= MAX_PRECISION
            or int(decimal[2] or 0) > int(decimal[1])
        ):
            return f"type {spark_type!r} needs a precision of 1 to {MAX_PRECISION} and a scale up to it"
    if logical is not None and base not in PHYSICAL_TYPES[logical]:
        return f"type {spark_type!r} contradicts logicalType {logical!r}"
    return None


def describe(contract: SetContract) -> str:
    """The set, its tables with columns and rules, and what is shared, as plain text."""
    return "\n".join(_lines(contract)) + "\n"


def _lines(contract: SetContract) -> Iterator[str]:
    yield f"set {contract.name} {contract.version}: {contract.description}"
    yield f"  file     {contract.path}"
    yield f"  digest   {contract.digest}"
    yield f"  owners   {', '.join(contract.owners) or 'nobody'}"
    days = (
        f"daily, from {contract.first_partition}"
        if contract.partitioning == "daily"
        else "one partition, all"
    )
    yield f"  arrives  {days}"
    for table in contract.tables:
        yield ""
        yield from _table_lines(table)
    yield ""
    for entry in contract.shares:
        yield f"shared as {entry.share}.{entry.schema}.{entry.name}: {entry.table}"
    for follower in contract.snowflake:
        yield f"in Snowflake as {follower.database}.{follower.schema}.{follower.name}: {follower.table}"


def _table_lines(table: Table) -> Iterator[str]:
    origin = f"files {table.source}*" if table.source else f"derived from {', '.join(table.depends_on)}"
    if table.view is not None:
        origin = f"view of {table.view.of}"
    by = ", ".join(c if t == "identity" else f"{t}({c})" for c, t in table.partition_by)
    yield f"table {table.name} ({table.format}, {origin}{', partitioned by ' + by if by else ''})"
    if table.description:
        yield f"  {table.description}"
    yield from _view_lines(table.view)
    width = max(len(column.name) for column in table.columns)
    for column in table.columns:
        yield f"  {column.name:{width}}  {column.type:10} {_column_words(column)}".rstrip()
    if table.rules or table.references:
        yield "  rules"
    for rule in table.rules:
        arguments = ", ".join(
            f"{k}={v!r}" for k, v in rule.kwargs.items() if k not in ("column", "column_list")
        )
        shown = f" ({arguments})" if arguments else ""
        yield f"    {rule.severity:7} on the {rule.scope}: {rule.name}{shown}"
    for reference in table.references:
        target = f"{reference.to_table}({', '.join(reference.to_columns)})"
        yield f"    {reference.severity:7} on the table: {', '.join(reference.columns)} exists in {target}"
    if table.serveable_to.clients:
        yield f"  {_promise_words(table)}"
    yield f"  at most {table.max_quarantined_fraction:.1%} of rows in quarantine{_drift_words(table.drift)}"


def _view_lines(view: View | None) -> Iterator[str]:
    if view is not None and view.where is not None:
        yield f"  rows where {' '.join(view.where.split())}"
    if view is None or view.per_recipient is None:
        return
    per = view.per_recipient
    value = f" = {' '.join(per.value.split())}" if per.value else ""
    yield f"  per recipient by {per.column}{value}" + (f": {per.rule}" if per.rule else "")


def _column_words(column: Column) -> str:
    words = [
        "primary key" if column.primary_key else "required" if column.required else "",
        "unique" if column.unique else "",
        "pii" if column.pii else "",
        f"from {column.source}" if column.source else f"= {column.expression}" if column.expression else "",
        column.description,
    ]
    return "; ".join(word for word in words if word)


def _promise_words(table: Table) -> str:
    promise = table.serveable_to
    is_rewritten = promise.rewrite and table.format == "iceberg"
    rewritten = ", rewritten for them where needed" if is_rewritten else ""
    return f"can be read by {', '.join(promise.clients)}{rewritten} ({promise.severity})"


def _drift_words(drift: Drift) -> str:
    words = ""
    if drift.max_shrink_fraction is not None:
        words += f"; may shrink by {drift.max_shrink_fraction:.0%} in a run ({drift.severity})"
    if drift.max_growth_fraction is not None:
        words += f"; may grow by {drift.max_growth_fraction:.0%} in a run ({drift.severity})"
    return words
