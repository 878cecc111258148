"""A contract as the pipelines use it: sets, tables, columns, rules, references, shares; types and expectations."""

import datetime as dt
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StrictBool, TypeAdapter
from pydantic.alias_generators import to_camel

from lakeshare_pipelines.contracts.nested import Nested, Type, is_nested, list_leaves, parse_type
from lakeshare_pipelines.contracts.partitioning import Partitioning

Severity = Literal["error", "warning"]
Scope = Literal["delta", "table"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Fraction = Annotated[float, Field(ge=0, strict=True)]
Sql = Annotated[str, Field(min_length=1), AfterValidator(str.strip)]


def wrap(field: str, kind: type, accepted: Any) -> BeforeValidator:
    """Accepts a value of `kind` in place of a mapping with this one `field`; `accepted` is both, for a JSON Schema."""
    return BeforeValidator(
        lambda value: {field: value} if isinstance(value, kind) else value, json_schema_input_type=accepted
    )


AnyClass = TypeVar("AnyClass", bound=type)


def declared(kind: AnyClass) -> AnyClass:
    """Lets pydantic read a dataclass from the document: camelCase names, no unknown fields.

    Only the document is validated, not what the constructor gets.
    """
    part: Any = kind
    part.__pydantic_config__ = ConfigDict(extra="forbid", alias_generator=to_camel)
    # A JSON Schema shows a default by the document's names.
    part.__pydantic_serializer__ = TypeAdapter(part).serializer
    return kind


WriteMode = Literal["replace_partitions", "append", "merge", "replace", "scd2"]
VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
"""The columns that a table with the write mode scd2 has besides those of its deliveries."""


@dataclass(frozen=True)
class Column:
    """A column; `type` is Spark's short spelling: `int`, `string`, `decimal(10,2)`.

    `source` is the column's name in the delivered file if it differs; `expression` is Spark SQL over the other columns
    for a computed column; `lineage` names the sources of a derived column, as `table.column`.
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
    """An expectation. Scope `delta` applies to the rows of a run, `table` to the whole table after the run."""

    name: str
    table: str
    expectation: str
    kwargs: Mapping[str, Any]
    severity: Severity = "error"
    scope: Scope = "delta"
    description: str = ""


@dataclass(frozen=True)
class Assertion:
    """A rule in Spark SQL over the tables of the set as they will be after the run, and the inputs of its table.

    `reads` are the tables that it names, by short name. Its query returns no row; with a `bound`, the operator of the
    standard and its values, it returns one number within it.
    """

    name: str
    table: str
    query: str
    reads: tuple[str, ...]
    bound: tuple[str, tuple[float, ...]] | None = None
    severity: Severity = "error"
    description: str = ""

    def holds(self, number: float) -> bool:
        """Whether a number is within the bound."""
        if self.bound is None:
            return False
        operator, values = self.bound
        return OPERATORS[operator](number, *values)

    def describe_bound(self) -> str:
        """What its query returns, like `no row` and `a number that must be between 1 and 5`."""
        if self.bound is None:
            return "no row"
        operator, values = self.bound
        words = re.sub(r"([A-Z])", r" \1", operator).lower()
        return f"a number that {words} {' and '.join(f'{value:g}' for value in values)}"


OPERATORS: Mapping[str, Callable[..., bool]] = MappingProxyType(
    {
        "mustBe": lambda number, value: number == value,
        "mustNotBe": lambda number, value: number != value,
        "mustBeGreaterThan": lambda number, value: number > value,
        "mustBeGreaterOrEqualTo": lambda number, value: number >= value,
        "mustBeLessThan": lambda number, value: number < value,
        "mustBeLessOrEqualTo": lambda number, value: number <= value,
        "mustBeBetween": lambda number, low, high: low <= number <= high,
        "mustNotBeBetween": lambda number, low, high: not low <= number <= high,
    }
)
"""The operators of the standard for the number that a query returns."""


@dataclass(frozen=True)
class Reference:
    """A foreign key: non-null values of `columns` exist as `to_columns` in `to_table` after the run."""

    name: str
    table: str
    columns: tuple[str, ...]
    to_table: str
    to_columns: tuple[str, ...]
    severity: Severity = "error"
    description: str = ""


@declared
@dataclass(frozen=True)
class Drift:
    """The largest change of a table's row count in one run, against main; None is unlimited."""

    max_shrink_fraction: Fraction | None = None
    max_growth_fraction: Fraction | None = None
    severity: Severity = "warning"


@declared
@dataclass(frozen=True)
class Write:
    """How a delivery changes the table.

    `sequence` is the column that orders the rows of a key. `delete_when` is Spark SQL over the columns of a delivered
    row; a row for which it is true deletes its key.
    """

    mode: WriteMode = "replace_partitions"
    sequence: Name | None = None
    delete_when: Sql | None = None

    @property
    def has_key(self) -> bool:
        """Whether delivered rows take the place of earlier rows with their key."""
        return self.mode in ("merge", "scd2")

    @property
    def is_incremental(self) -> bool:
        """Whether the table has rows of earlier deliveries of the same partition."""
        return self.has_key or self.mode == "append"


@declared
@dataclass(frozen=True)
class Reading:
    null_values: tuple[str, ...] = ("",)
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    multiline: StrictBool = False
    row_tag: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.-]*(:[A-Za-z_][\w.-]*)?$")] | None = None


@dataclass(frozen=True)
class Maintenance:
    """How a table is maintained: compaction into files of `target_mb` MiB, and the publications that stay readable.

    A publication expires when it is neither among the newest `keep_publications` nor published in the last `keep_days`;
    none does if both are None.
    """

    compacts: bool = True
    target_mb: int = 128
    sort_by: tuple[str, ...] = ()
    keep_publications: int | None = None
    keep_days: int | None = None


@dataclass(frozen=True)
class Promise:
    """Clients that must be able to read every publication, by their ids of `lakeshare_server.tables.serveability`.

    `severity` is that of the check; with `rewrite` the staged table is rewritten for clients that could not read it.
    """

    clients: tuple[str, ...] = ()
    severity: Severity = "error"
    rewrite: bool = True


@declared
@dataclass(frozen=True)
class PerRecipient:
    """The partition column of a view that assigns rows to recipients; null assigns a row to none.

    `value` is Spark SQL over the table's columns, for a column that the table lacks; an array assigns the row to
    several recipients. With `recipient_property` a recipient reads the rows that hold its own value of that property.
    """

    column: Name
    value: Sql | None = None
    recipient_property: Annotated[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$")] | None, Field(alias="property")
    ] = None

    @property
    def rule(self) -> str | None:
        name = self.recipient_property
        return None if name is None else f"{self.column} = current_recipient('{name}')"


@declared
@dataclass(frozen=True)
class View:
    """Columns of one table of the set, and the rows that satisfy a Spark SQL predicate."""

    of: Name
    columns: Annotated[tuple[Name, ...], Field(min_length=1)]
    where: Sql | None = None
    per_recipient: Annotated[PerRecipient | None, wrap("column", str, PerRecipient | str | None)] = None

    @property
    def digest(self) -> str:
        """SHA-256 of the fields that decide the view's rows; the rule that restricts recipients is left out."""
        fields = asdict(self)
        if self.per_recipient is not None:
            fields["per_recipient"].pop("recipient_property")
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


_DAILY = Partitioning("daily")


@dataclass(frozen=True)
class Input:
    """A published table of another set.

    `column` is its partition column if a run reads only the rows of its own partitions; `partitioning` is that of the
    other set.
    """

    table: str
    column: str | None = None
    column_type: str = "date"
    partitioning: Partitioning = _DAILY

    @property
    def short_name(self) -> str:
        return self.table.rsplit(".", 1)[-1]


Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Text = Annotated[str, Field(min_length=1)]


@declared
@dataclass(frozen=True)
class JdbcSource:
    """A table or query of a PostgreSQL database; `user` and `password` are names of environment variables.

    With `incremental` a run reads the rows with larger values of that column than the runs before it, and none that
    are younger than `lag_s` seconds. With `partition_by` it reads by `partitions` connections, each a range of values.
    """

    url: Annotated[str, Field(pattern=r"^jdbc:postgresql://[^\s?]+(\?\S*)?$")]
    table: Text | None = None
    query: Sql | None = None
    incremental: Text | None = None
    lag_s: Annotated[int, Field(ge=0, strict=True)] = 0
    partition_by: Text | None = None
    partitions: Annotated[int, Field(ge=1, le=256, strict=True)] = 1
    fetch_rows: Annotated[int, Field(ge=1, strict=True)] = 10_000
    user: Variable | None = None
    password: Variable | None = None


@declared
@dataclass(frozen=True)
class FilesSource:
    """Files that match `path`, a location with `*` and `?`; `options` are those of Spark's reader of the format."""

    path: Text
    format: Literal["parquet", "orc", "avro", "csv", "json", "xml"]
    options: Mapping[str, str] = field(default_factory=dict)


@declared
@dataclass(frozen=True)
class ShareSource:
    """A table of a foreign share, as `share.schema.table`; `profile` names an environment variable with the path."""

    profile: Variable
    table: Annotated[str, Field(pattern=r"^[^.#]+\.[^.#]+\.[^.#]+$")]


@declared
@dataclass(frozen=True)
class PythonSource:
    """A class of the user's, as `package.module:Class`, with its options."""

    source: Annotated[str, Field(alias="class", pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")]
    options: Mapping[str, Any] = field(default_factory=dict)


@declared
@dataclass(frozen=True)
class SourceEntry:
    """Where the rows of a table come from: files in landing, by the stem of their names, or one of the others.

    `table` is the location of a Delta or Iceberg table, or an Iceberg table in a catalog as
    `iceberg:CATALOG/NAMESPACE.TABLE`. `asset` is the key of the Dagster asset that writes the source, as `raw/orders`.
    """

    landing: Annotated[str, Field(min_length=1, pattern=r"^[^/\\]+$")] | None = None
    table: Text | None = None
    jdbc: JdbcSource | None = None
    files: FilesSource | None = None
    share: ShareSource | None = None
    python: PythonSource | None = None
    asset: Annotated[str, Field(pattern=r"^\w+(/\w+)*$")] | None = None

    @property
    def kinds(self) -> list[str]:
        """The kinds of source that are given; a valid entry has one."""
        return [name for name, value in vars(self).items() if value is not None and name != "asset"]

    @property
    def location(self) -> str | None:
        """The location that is read, if the source is in a store or a folder."""
        if self.files is not None:
            return self.files.path
        is_in_catalog = self.table is None or self.table.startswith(("iceberg:", "nessie:"))
        return None if is_in_catalog else self.table

    @property
    def has_positions(self) -> bool:
        """Whether a run can read only what is new since the run before it."""
        return self.python is not None or (self.jdbc is not None and self.jdbc.incremental is not None)

    def __str__(self) -> str:
        if self.jdbc is not None:
            place = self.jdbc.url.removeprefix("jdbc:").partition("?")[0]
            return f"{self.jdbc.table or 'a query'} of {place}"
        if self.files is not None:
            return f"{self.files.format} files {self.files.path}"
        if self.share is not None:
            return f"shared table {self.share.table}"
        return str(self.table) if self.python is None else self.python.source


@dataclass(frozen=True)
class Table:
    """A table with a source, a `derive` (Spark SQL), a `transform` or a `view`.

    The source is `source` (file stem or glob in the delivery), or `reads` for all others than files in landing.
    `transform` is a Python function, as `package.module:function`. `depends_on` are the tables of the set that a
    derivation, transform or view reads, `inputs` those of other sets.
    """

    name: str
    format: Literal["iceberg", "delta"]
    columns: tuple[Column, ...]
    partition_by: tuple[tuple[str, str], ...] = ()
    source: str | None = None
    reads: SourceEntry | None = None
    derive: str | None = None
    transform: str | None = None
    view: View | None = None
    depends_on: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = ()
    rules: tuple[Rule, ...] = ()
    assertions: tuple[Assertion, ...] = ()
    references: tuple[Reference, ...] = ()
    location: str | None = None
    warehouse: str | None = None
    """The location that the contract's server names; that of the settings by default."""
    description: str = ""
    allow_schema_changes: bool = False
    max_quarantined_fraction: float = 0.0
    write: Write = Write()
    drift: Drift = Drift()
    reading: Reading = Reading()
    maintenance: Maintenance = Maintenance()
    serveable_to: Promise = Promise()

    @property
    def short_name(self) -> str:
        """Name without its namespace; used as `{…}` in `derive`."""
        return self.name.rsplit(".", 1)[-1]

    @property
    def has_source(self) -> bool:
        """Whether its rows come from outside of the lake: files in landing, or another source."""
        return self.source is not None or self.reads is not None

    @property
    def namespace(self) -> str:
        return self.name.rsplit(".", 1)[0]

    @property
    def primary_key(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.primary_key)

    @property
    def partition_column(self) -> Column:
        """The first column that the table is partitioned by.

        Raises:
            KeyError: the table is not partitioned.
        """
        return self.column(self.partition_by[0][0] if self.partition_by else "")

    @property
    def merge_key(self) -> tuple[str, ...]:
        """The key of a delivered row; versions in a table with the write mode scd2 have their begin besides."""
        return tuple(name for name in self.primary_key if self.write.mode != "scd2" or name != VALID_FROM)

    def column(self, name: str) -> Column:
        """Returns the column `name`.

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

    @property
    def key(self) -> str:
        """The shared name; the protocol's names ignore case."""
        return f"{self.share}.{self.schema}.{self.name}".lower()


@dataclass(frozen=True)
class SnowflakeEntry:
    """Snowflake's table `database`.`schema`.`name` follows `table`."""

    database: str
    schema: str
    name: str
    table: str

    @property
    def key(self) -> str:
        """Snowflake's name; unquoted names ignore case."""
        return f"{self.database}.{self.schema}.{self.name}".lower()


@dataclass(frozen=True)
class Retirement:
    """A table that earlier versions of a contract published; it stays shared until the end of `date`, in UTC.

    `successor` is the table of the set to read instead.
    """

    table: str
    date: dt.date
    successor: str | None = None

    def is_over(self, today: dt.date) -> bool:
        return self.date < today


@dataclass(frozen=True)
class SetContract:
    """Tables that are published together, each after those that it depends on.

    `text` is the file; empty for contracts that are made in code.
    """

    name: str
    version: str
    description: str
    owners: tuple[str, ...]
    domain: str
    tables: tuple[Table, ...]
    partitioning: Partitioning
    shares: tuple[ShareEntry, ...]
    digest: str
    path: Path
    snowflake: tuple[SnowflakeEntry, ...] = ()
    maintenance_schedule: str = "0 4 * * 0"
    schedule: str | None = None
    """When a run of a set with sources starts, as cron."""
    warehouse: str | None = None
    endpoint: str | None = None
    """URL of the store of `warehouse`, if the contract requires one."""
    retirements: tuple[Retirement, ...] = ()
    text: str = field(default="", repr=False, compare=False)

    @property
    def takes_deliveries(self) -> bool:
        """Whether files are delivered for the set; otherwise it is made of other sources, or tables of other sets."""
        return any(table.source is not None for table in self.tables)

    @property
    def has_sources(self) -> bool:
        """Whether a table is read from a source other than landing."""
        return any(table.reads is not None for table in self.tables)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The published tables of other sets that the set is made of, each once."""
        return tuple(dict.fromkeys(each for table in self.tables for each in table.inputs))

    def table(self, name: str) -> Table:
        """Returns a table by its lake name or its short name.

        Raises:
            KeyError: the set has none.
        """
        for table in self.tables:
            if name in (table.name, table.short_name):
                return table
        raise KeyError(name)

    def is_by_partition(self, table: Table) -> bool:
        """Whether a run replaces the rows of its partitions in the table."""
        has_partitions = not self.partitioning.is_whole and bool(table.partition_by)
        return has_partitions and table.write.mode == "replace_partitions"

    def is_replaced(self, table: Table) -> bool:
        """Whether a run replaces the whole table."""
        return not table.write.is_incremental and not self.is_by_partition(table)

    def is_partition(self, key: str) -> bool:
        """Whether `key` names a partition of the set."""
        return self.partitioning.is_key(key)


ALIASES = {"integer": "int", "long": "bigint", "real": "float", "byte": "tinyint", "short": "smallint"}

_SAME_NAME = ("string", "date", "timestamp", "boolean")
DEFAULTS = {**{kind: kind for kind in _SAME_NAME}, "number": "double", "integer": "bigint"}
# Without fields, and so refused: these need a physicalType.
DEFAULTS |= {"object": "struct<>", "array": "array<>"}
PHYSICAL_TYPES = {
    **{kind: {kind} for kind in _SAME_NAME},
    "number": {"float", "double", "decimal"},
    "integer": {"tinyint", "smallint", "int", "bigint"},
    "object": {"struct", "map"},
    "array": {"array"},
}

_ICEBERG_TYPES = {"boolean", "int", "bigint", "float", "double", "decimal", "string", "date", "timestamp"}
# Iceberg has no integers below 32 bits: Spark would make ints of them and the table would not match its contract.
TYPES_OF_FORMAT = {"iceberg": _ICEBERG_TYPES, "delta": _ICEBERG_TYPES | {"tinyint", "smallint"}}

_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\((\d+)(?:,(\d+))?\)")
MAX_PRECISION = 38


def normalize_type(physical: str) -> str:
    """Returns Spark's short spelling of a type: `int` for `INTEGER`, `decimal(10,2)` for `Decimal(10, 2)`.

    A nested type that cannot be parsed stays as it is.
    """
    if is_nested(physical):
        try:
            parsed = parse_type(physical)
        except ValueError:
            return physical.strip()
        if isinstance(parsed, Nested):
            return str(_normalize_parts(parsed))
    text = re.sub(r"\s+", "", physical.lower())
    decimal = _DECIMAL.fullmatch(text)
    if decimal:
        return f"decimal({int(decimal[1])},{int(decimal[2] or 0)})"
    return ALIASES.get(text, text)


def _normalize_parts(kind: Type) -> Type:
    if isinstance(kind, str):
        return normalize_type(kind)
    return Nested(kind.kind, tuple((name, _normalize_parts(part)) for name, part in kind.parts))


def get_base_type(spark_type: str) -> str:
    return re.split(r"[(<]", spark_type, maxsplit=1)[0]


def can_widen(before: str, after: str) -> bool:
    """Whether Iceberg can promote a column's type from `before` to `after` (specification, "Schema Evolution")."""
    if (before, after) in (("int", "bigint"), ("float", "double")):
        return True
    narrow, wide = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(after)
    if narrow is None or wide is None:
        return False
    return int(narrow[2] or 0) == int(wide[2] or 0) and int(narrow[1]) < int(wide[1])


def explain_wrong_type(spark_type: str, logical: str | None, table_format: str) -> str | None:
    """Returns why a column cannot have this type, None if it can."""
    base = get_base_type(spark_type)
    if is_nested(spark_type):
        wrong = _explain_wrong_parts(spark_type, table_format)
        if wrong is None and logical is not None and base not in PHYSICAL_TYPES[logical]:
            return f"type {spark_type!r} contradicts logicalType {logical!r}"
        return wrong
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


def _explain_wrong_parts(spark_type: str, table_format: str) -> str | None:
    try:
        kind = parse_type(spark_type)
    except ValueError as error:
        return f"type {spark_type!r} cannot be read: {error}"
    if isinstance(kind, str):
        return f"type {spark_type!r} has no types of its parts"
    for path, leaf in list_leaves(kind):
        if (wrong := explain_wrong_type(leaf, None, table_format)) is not None:
            return f"{path} of type {spark_type!r}: {wrong}"
    return None


def describe(contract: SetContract) -> str:
    """Returns the set, its tables with columns and rules, and its shares, as plain text."""
    return "\n".join(_describe_set(contract)) + "\n"


def _describe_set(contract: SetContract) -> Iterator[str]:
    yield f"set {contract.name} {contract.version}: {contract.description}"
    yield f"  file     {contract.path}"
    yield f"  digest   {contract.digest}"
    yield f"  owners   {', '.join(contract.owners) or 'none'}"
    verb = "arrives" if contract.takes_deliveries else "is read" if contract.has_sources else "is made"
    yield f"  {verb}  {contract.partitioning.describe()}"
    for table in contract.tables:
        yield ""
        yield from _describe_table(table)
    yield ""
    for entry in contract.shares:
        yield f"shared as {entry.share}.{entry.schema}.{entry.name}: {entry.table}"
    for follower in contract.snowflake:
        yield f"in Snowflake as {follower.database}.{follower.schema}.{follower.name}: {follower.table}"
    for retired in contract.retirements:
        successor = f", then {retired.successor}" if retired.successor else ""
        yield f"retires {retired.table}, shared until {retired.date}{successor}"


def _describe_origin(table: Table) -> str:
    read = ", ".join([*table.depends_on, *(each.table for each in table.inputs)])
    if table.view is not None:
        return f"view of {table.view.of}"
    if table.transform is not None:
        return f"made by {table.transform}" + (f" from {read}" if read else "")
    if table.reads is not None:
        return f"read from {table.reads}"
    return f"files {table.source}*" if table.source else f"derived from {read}"


def _describe_table(table: Table) -> Iterator[str]:
    by = ", ".join(c if t == "identity" else f"{t}({c})" for c, t in table.partition_by)
    yield f"table {table.name} ({table.format}, {_describe_origin(table)}{', partitioned by ' + by if by else ''})"
    if table.description:
        yield f"  {table.description}"
    if table.write != Write():
        sequence = f" by {table.write.sequence}" if table.write.sequence else ""
        deletes = (
            f", deletes where {' '.join(table.write.delete_when.split())}" if table.write.delete_when else ""
        )
        yield f"  written with {table.write.mode}{sequence}{deletes}"
    yield from _describe_view(table.view)
    width = max(len(column.name) for column in table.columns)
    for column in table.columns:
        yield f"  {column.name:{width}}  {column.type:10} {_describe_column(column)}".rstrip()
    yield from _describe_rules(table)
    if table.serveable_to.clients:
        promise = table.serveable_to
        is_rewritten = promise.rewrite and table.format == "iceberg"
        rewritten = ", rewritten for them where needed" if is_rewritten else ""
        yield f"  can be read by {', '.join(promise.clients)}{rewritten} ({promise.severity})"
    yield f"  at most {table.max_quarantined_fraction:.1%} of rows in quarantine{_describe_drift(table.drift)}"


def _describe_rules(table: Table) -> Iterator[str]:
    if table.rules or table.assertions or table.references:
        yield "  rules"
    for rule in table.rules:
        kwargs = {name: value for name, value in rule.kwargs.items() if name not in ("column", "column_list")}
        shown = f" ({', '.join(f'{name}={value!r}' for name, value in kwargs.items())})" if kwargs else ""
        yield f"    {rule.severity:7} on the {rule.scope}: {rule.name}{shown}"
    for assertion in table.assertions:
        shown = assertion.describe_bound()
        yield f"    {assertion.severity:7} on the set: {assertion.name}: a query returns {shown}"
    for reference in table.references:
        target = f"{reference.to_table}({', '.join(reference.to_columns)})"
        yield f"    {reference.severity:7} on the table: {', '.join(reference.columns)} exists in {target}"


def _describe_view(view: View | None) -> Iterator[str]:
    if view is not None and view.where is not None:
        yield f"  rows where {' '.join(view.where.split())}"
    if view is None or view.per_recipient is None:
        return
    per = view.per_recipient
    value = f" = {' '.join(per.value.split())}" if per.value else ""
    yield f"  per recipient by {per.column}{value}" + (f": {per.rule}" if per.rule else "")


def _describe_column(column: Column) -> str:
    words = [
        "primary key" if column.primary_key else "required" if column.required else "",
        "unique" if column.unique else "",
        "pii" if column.pii else "",
        f"from {column.source}" if column.source else f"= {column.expression}" if column.expression else "",
        column.description,
    ]
    return "; ".join(word for word in words if word)


def _describe_drift(drift: Drift) -> str:
    limits = {"shrink": drift.max_shrink_fraction, "grow": drift.max_growth_fraction}
    return "".join(
        f"; may {verb} by {limit:.0%} in a run ({drift.severity})"
        for verb, limit in limits.items()
        if limit is not None
    )
