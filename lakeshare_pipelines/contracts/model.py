"""A contract: sets, tables, columns, rules, references, shares, as YAML has them and as the pipelines use them.

Each class is read from the document (`declared` in `document.py`); `loader.py` fills in what is `Computed`, which
follows from other parts of the document.
"""

import datetime as dt
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WrapValidator

from lakeshare_pipelines.contracts.column_types import (
    DEFAULTS,
    EXAMPLES,
    TYPES_OF_FORMAT,
    LogicalType,
    TableFormat,
    explain_wrong_type,
    is_nested,
    normalize_type,
)
from lakeshare_pipelines.contracts.document import (
    OF_ALL,
    PROPERTIES,
    REQUIRED,
    TAGS,
    Computed,
    Custom,
    CustomProperty,
    Faults,
    Function,
    Listed,
    Name,
    NonEmpty,
    Part,
    ReadAs,
    Sql,
    Text,
    Written,
    declared,
    wrap,
)
from lakeshare_pipelines.contracts.partitioning import NamedKind, Partitioning
from lakeshare_pipelines.contracts.rules import Assertion, Rule, Severity
from lakeshare_pipelines.contracts.sources import SourceEntry, Stem
from lakeshare_server.errors import BadRequest, suggest
from lakeshare_server.locations import AZURE, GCS, LOCAL, S3, parse_location
from lakeshare_server.service_levels import find_freshness_goal
from lakeshare_server.yaml_documents import written_as

Fraction = Annotated[float, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Cron = Annotated[str, written_as(r"^\S+( \S+){4}$", "the five fields of cron, as in 30 6 * * *")]
FullName = Annotated[str, written_as(r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$", "schema.table")]
FirstKey = Annotated[
    Annotated[str, written_as(r"^\d{4}-\d{2}-\d{2}(-\d{2})?$", "2026-03-01, or 2026-03-01-12 for an hour")],
    # YAML takes a day for a date.
    BeforeValidator(lambda value: value.isoformat() if isinstance(value, dt.date) else value),
]
Dotted = Annotated[str, written_as(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", "names with dots between them")]
Tag = Annotated[str, written_as(r"^[A-Za-z_][\w.-]*(:[A-Za-z_][\w.-]*)?$", "an element's name without <>")]
Property = Annotated[str, written_as(r"^[A-Za-z_][A-Za-z0-9_.-]*$", "letters, digits, _.-, a letter first")]

Date = Annotated[
    dt.date,
    BeforeValidator(
        lambda value: parse_date(value) if isinstance(value, str) else value,
        json_schema_input_type=Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")],
    ),
]
FOREIGN_KEY = (Literal["foreignKey"], "foreignKey")


def parse_date(text: str) -> dt.date | str:
    """Returns a date that is written as a text; another text as it is."""
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return text


WriteMode = Literal["replace_partitions", "append", "merge", "replace", "scd2"]
VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
"""The columns that a table with the write mode scd2 has besides those of its deliveries."""


def is_pii(classification: str | None) -> bool:
    return (classification or "").lower() == "pii"


IS_PII = ReadAs(str | None, is_pii)
ONE_NAME = ReadAs(str, lambda name: (name,))
NAMES = ReadAs(str | list[str], lambda names: (names,) if isinstance(names, str) else tuple(names))


@declared(type=FOREIGN_KEY)
class Reference:
    """A foreign key: non-null values of `columns` exist as `to_columns` in `to_table` after the run.

    In the document both columns have the names of their tables before them.
    """

    name: Computed[str] = ""
    table: Computed[str] = ""
    columns: Annotated[tuple[str, ...], NAMES, Field(alias="from"), REQUIRED] = ()
    to_table: Computed[str] = ""
    to_columns: Annotated[tuple[str, ...], NAMES, Field(alias="to"), REQUIRED] = ()
    severity: Custom[Severity] = "error"
    description: Custom[str] = ""

    def complete(self, table: str, columns: tuple[str, ...], faults: Faults) -> "Reference":
        """Returns the reference of columns of a table, with its name and what it refers to."""
        pairs = [name.rpartition(".") for name in self.to_columns]
        targets = {target for target, _, _ in pairs}
        if len(targets) != 1 or "" in targets or len(pairs) != len(columns):
            hint = "Name as many columns as in `from`, of one table, each as table.column."
            faults.add(f"`to` is {', '.join(self.to_columns)}", hint)
        to_table, to_columns = pairs[0][0], tuple(column for _, _, column in pairs)
        name = "__".join(["references", to_table.rsplit(".", 1)[-1], "_".join(columns)])
        return Reference(name, table, columns, to_table, to_columns, self.severity, self.description)


@declared(type=FOREIGN_KEY)
class ColumnReference(Reference):
    """A foreign key of one column, which has it in the document."""

    columns: Computed[tuple[str, ...]] = ()
    to_columns: Annotated[tuple[str, ...], ONE_NAME, Field(alias="to"), REQUIRED] = ()


class Items(Part):
    """The elements of an array, by the standard's `items`, or a field of a struct."""

    logical_type: LogicalType | None = None
    physical_type: str | None = None
    properties: "Listed[StructField]" = ()
    items: "Items | None" = None
    required: bool = False
    classification: str | None = None
    tags: Listed[str] = ()
    description: str = ""
    id: Any = None
    business_name: Any = None
    examples: Any = None
    logical_type_options: Any = None
    custom_properties: Listed[CustomProperty] = ()
    authoritative_definitions: Any = None

    @property
    def has_pii(self) -> bool:
        """Whether it, or a part of it, is personal data."""
        parts = [*self.properties, *([] if self.items is None else [self.items])]
        return is_pii(self.classification) or any(part.has_pii for part in parts)

    def spell_type(self, faults: Faults) -> str:
        """Returns the type in Spark's spelling, with the types of the parts; empty if there is none."""
        if self.required:
            hint = "Leave it out; a rule of type sql can require it."
            faults.at("required").add("a part of a column cannot be required", hint)
        for index, entry in enumerate(self.custom_properties):
            if "." not in entry.property:
                place = faults.at(PROPERTIES, index, "property")
                place.add(f"{entry.property!r} is no property of a part", "Give it to the column.")
        if not self.properties and self.items is None:
            return self.physical_type or DEFAULTS.get(self.logical_type or "", "")
        kind, logical = ("struct", "object") if self.items is None else ("array", "array")
        place = faults.at("properties" if self.items is None else "items")
        if self.properties and self.items is not None:
            place.add("it has properties and items", "Give properties for an object, items for an array.")
        elif self.logical_type not in (None, logical):
            place.add(f"it has logicalType {self.logical_type!r}", f"Give logicalType: {logical}.")
        elif self.physical_type and self.physical_type.strip().lower() != kind:
            problem = f"it has physicalType {self.physical_type!r}, too"
            place.add(problem, "Leave one of them out: each gives the types of the parts.")
        if self.items is not None:
            return f"array<{self.items.spell_part(place)}>"
        parts = [
            f"{part.name}:{part.spell_part(place.at(index))}" for index, part in enumerate(self.properties)
        ]
        return f"struct<{','.join(parts)}>"

    def spell_part(self, faults: Faults) -> str:
        """Returns the type as `spell_type`; a part without one is a fault."""
        spelled = self.spell_type(faults)
        if not spelled:
            faults.add("it has no type", "Give logicalType, and physicalType where it matters.")
        return spelled or DEFAULTS["string"]


class StructField(Items):
    name: Name


@declared(
    f"{OF_ALL} logical_type_options physical_name critical_data_element encrypted_name examples "
    "transform_description",
    tags=TAGS,
    primary_key_position=(int, -1),
)
class Column:
    """A column; `type` is Spark's short spelling: `int`, `string`, `decimal(10,2)`.

    `source` is the column's name in the delivered file if it differs; `expression` is Spark SQL over the other columns
    for a computed column; `lineage` names the sources of a derived column, as `table.column`.
    """

    name: Name
    type: Annotated[str, ReadAs(str | None), Field(alias="physicalType")] = ""
    required: bool = False
    unique: bool = False
    primary_key: bool = False
    pii: Annotated[bool, IS_PII, Field(alias="classification")] = False
    description: Text = ""
    source: Custom[NonEmpty | None] = None
    expression: Annotated[str | None, Field(alias="transformLogic")] = None
    lineage: Annotated[Listed[str], Field(alias="transformSourceObjects")] = ()
    logical_type: Written[LogicalType | None] = None
    properties: Written[Listed[StructField]] = ()
    items: Written[Items | None] = None
    partitioned: Written[bool] = False
    partition_key_position: Written[int] = -1
    partition_transform: Written[Custom[str]] = "identity"
    relationships: Written[Listed[ColumnReference]] = ()
    quality: Written[Listed[Rule]] = ()

    @property
    def delivered_as(self) -> str | None:
        """Name in the delivered file; None for a computed column."""
        return None if self.expression else self.source or self.name

    def complete(self, table_format: TableFormat, faults: Faults) -> "Column":
        """Returns the column with its type, which can be that of its logical type."""
        parts = Items.model_construct(
            logical_type=self.logical_type,
            physical_type=self.type,
            properties=self.properties,
            items=self.items,
        )
        spelled = parts.spell_type(faults)
        if not spelled:
            hint = "Give logicalType, and physicalType where it matters."
            faults.add(f"column {self.name!r} has no type", hint)
        kind = normalize_type(spelled or DEFAULTS["string"])
        wrong = explain_wrong_type(kind, self.logical_type, table_format)
        if wrong:
            field = "physicalType" if self.type else "logicalType"
            hint = EXAMPLES if is_nested(kind) else suggest(kind, TYPES_OF_FORMAT[table_format])
            faults.at(field).add(wrong, hint)
        has_pii, required = self.pii or parts.has_pii, self.required or self.primary_key
        return replace(self, type=kind, required=required, pii=has_pii)


@declared()
class Drift:
    """The largest change of a table's row count in one run, against main; None is unlimited."""

    max_shrink_fraction: Fraction | None = None
    max_growth_fraction: Fraction | None = None
    severity: Severity = "warning"


@declared()
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


@declared()
class Reading:
    null_values: Listed[str] = ("",)
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    multiline: bool = False
    row_tag: Tag | None = None


@declared()
class Compaction:
    """Compaction into files of `target_mb` MiB; false in place of it for none."""

    target_mb: Positive = 128
    sort_by: Listed[Name] = ()
    is_wanted: Computed[bool] = True


@declared()
class Keep:
    """A publication expires when it is neither among the newest `publications` nor published in the last `days`.

    None does if both are None.
    """

    publications: Positive | None = None
    days: Positive | None = None


@declared()
class Maintenance:
    """How a table is maintained; what it does not give is that of its set."""

    compaction: Annotated[
        Compaction,
        WrapValidator(
            lambda value, read: Compaction(is_wanted=False) if value is False else read(value),
            json_schema_input_type=Compaction | Literal[False],
        ),
    ] = Compaction()
    keep: Annotated[Keep, wrap("publications", int, Keep | Positive)] = Keep()

    def complete(self, of_set: "Maintenance", columns: Sequence[Column], faults: Faults) -> "Maintenance":
        """Returns the maintenance of a table; what it does not give is that of its set."""
        place, names = faults.at(PROPERTIES, "maintenance"), [column.name for column in columns]
        for name in self.compaction.sort_by:
            if name not in names:
                place.add(
                    f"compaction sorts by {name!r}, which the table does not have", suggest(name, names)
                )
        given = place.get() or {}
        compaction = (self if "compaction" in given else of_set).compaction
        sort_by = tuple(name for name in compaction.sort_by if name in names)
        return Maintenance(replace(compaction, sort_by=sort_by), (self if "keep" in given else of_set).keep)


@declared()
class SetMaintenance(Maintenance):
    schedule: Cron = "0 4 * * 0"


Clients = Annotated[Listed[str], Field(min_length=1)]


@declared()
class Promise:
    """Clients that must be able to read every publication, by their ids in docs/reference/serveability.md.

    `severity` is that of the check; with `rewrite` the staged table is rewritten for clients that could not read it.
    """

    clients: Annotated[Clients, AfterValidator(lambda names: tuple(dict.fromkeys(names))), REQUIRED] = ()
    severity: Severity = "error"
    rewrite: bool = True


@declared()
class PerRecipient:
    """The partition column of a view that assigns rows to recipients; null assigns a row to none.

    `value` is Spark SQL over the table's columns, for a column that the table lacks; an array assigns the row to
    several recipients. With `recipient_property` a recipient reads the rows that hold its own value of that property.
    """

    column: Name
    value: Sql | None = None
    recipient_property: Annotated[Property | None, Field(alias="property")] = None

    @property
    def rule(self) -> str | None:
        name = self.recipient_property
        return None if name is None else f"{self.column} = current_recipient('{name}')"


@declared()
class View:
    """Columns of one table of the set, and the rows that satisfy a Spark SQL predicate."""

    of: Name
    columns: Annotated[Listed[Name], Field(min_length=1)]
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


INPUTS = ReadAs(list[Dotted], lambda names: tuple(map(Input, dict.fromkeys(names))), [])
PROMISE = ReadAs(
    Annotated[Promise | None, wrap("clients", list, Promise | Clients | None)],
    lambda given: given or Promise(),
)


@declared(f"{OF_ALL} data_granularity_description", tags=TAGS, logical_type=(Literal["object"], "object"))
class Table:
    """A table with a source, a `derive` (Spark SQL), a `transform` or a `view`.

    The source is `source` (file stem or glob in the delivery), or `reads` for all others than files in landing.
    `transform` is a Python function, as `package.module:function`. `depends_on` are the tables of the set that a
    derivation, transform or view reads, `inputs` those of other sets.
    """

    name: Name
    """With the name of the set before it, or `physical_name`, when the set is loaded."""
    format: Computed[TableFormat] = "iceberg"
    columns: Annotated[Listed[Column], Field(alias="properties")] = ()
    partition_by: Computed[tuple[tuple[str, str], ...]] = ()
    source: Computed[str | None] = None
    reads: Annotated[
        Custom[SourceEntry | None], Field(alias="source"), wrap("landing", str, SourceEntry | Stem | None)
    ] = None
    derive: Custom[Annotated[str, AfterValidator(lambda text: text.strip() if text else None)] | None] = None
    transform: Custom[Function | None] = None
    view: Custom[View | None] = None
    depends_on: Computed[tuple[str, ...]] = ()
    inputs: Custom[Annotated[tuple[Input, ...], INPUTS]] = ()
    rules: Annotated[Listed[Rule], Field(alias="quality")] = ()
    """Also those of its columns, and those that its columns imply, when the set is loaded."""
    assertions: Computed[tuple[Assertion, ...]] = ()
    references: Annotated[Listed[Reference], Field(alias="relationships")] = ()
    location: Custom[str | None] = None
    warehouse: Computed[str | None] = None
    """The location that the contract's server names; that of the settings by default."""
    description: Text = ""
    allow_schema_changes: Custom[bool] = False
    allow_empty: Custom[bool] = False
    """Whether a partition of a run may have no rows."""
    max_quarantined_fraction: Custom[Annotated[float, Field(ge=0, le=1)]] = 0.0
    write: Custom[Annotated[Write, wrap("mode", str, Write | WriteMode)]] = Write()
    drift: Custom[Drift] = Drift()
    reading: Custom[Reading] = Reading()
    maintenance: Custom[Maintenance] = Maintenance()
    serveable_to: Custom[Annotated[Promise, PROMISE]] = Promise()
    physical_name: Written[FullName | None] = None
    physical_type: Written[Literal["table", "view"] | None] = None

    @property
    def short_name(self) -> str:
        """Name without its namespace; used as `{…}` in `derive`."""
        return self.name.rsplit(".", 1)[-1]

    @property
    def has_source(self) -> bool:
        """Whether its rows come from outside of the lake: files in landing, or another source."""
        return self.source is not None or self.reads is not None

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


@declared()
class SharedTable:
    """A table in a list of shared ones, and its name there, by default the one that it has."""

    table: str
    name: Name | None = None


SharedTables = Annotated[
    Listed[Annotated[SharedTable, wrap("table", str, SharedTable | str)]], Field(min_length=1), REQUIRED
]


@declared()
class ShareEntry:
    """Recipients of `share` read `table` as `schema`.`name`; the document has several `tables` of a schema."""

    share: Name
    schema: Name
    name: Computed[str] = ""
    table: Computed[str] = ""
    tables: Written[SharedTables] = ()

    @property
    def key(self) -> str:
        """The shared name; the protocol's names ignore case."""
        return f"{self.share}.{self.schema}.{self.name}".lower()


@declared()
class SnowflakeEntry:
    """Snowflake's table `database`.`schema`.`name` follows `table`; the document has several `tables` of a schema."""

    database: Name
    schema: Name
    name: Computed[str] = ""
    table: Computed[str] = ""
    tables: Written[SharedTables] = ()

    @property
    def key(self) -> str:
        """Snowflake's name; unquoted names ignore case."""
        return f"{self.database}.{self.schema}.{self.name}".lower()


@declared()
class Retirement:
    """A table that earlier versions of a contract published; it stays shared until the end of `date`, in UTC.

    `successor` is the table of the set to read instead.
    """

    table: Dotted
    date: Date
    successor: NonEmpty | None = None

    def is_over(self, today: dt.date) -> bool:
        return self.date < today

    def complete(self, set_name: str, names: Mapping[str, str], faults: Faults) -> "Retirement":
        """Returns the retirement with full names of tables; `names` are those of the set's tables."""
        table = self.table if "." in self.table else f"{set_name}.{self.table}"
        if table in names.values():
            hint = "Give the new version of the table another physicalName, or remove the entry."
            faults.add(f"{table} is retired and a table of the set", hint)
        if self.successor is not None and self.successor not in names:
            hint = suggest(self.successor, names, "Name a table of the set, or leave the successor out.")
            faults.add(f"the set has no table {self.successor!r} to read instead of {table}", hint)
        return replace(self, table=table, successor=names.get(self.successor or ""))


@declared("path catalog description environment roles custom_properties id", server=(str, ...))
class Server:
    """The format of the tables and their `location`, on the store `endpoint_url` if the contract requires one."""

    type: Annotated[str, REQUIRED] = "local"
    format: Annotated[TableFormat, REQUIRED] = "iceberg"
    location: str | None = None
    endpoint_url: str | None = None

    def complete(self, faults: Faults) -> "Server":
        """Returns the server with its location as it is used."""
        if self.location is None:
            if self.endpoint_url is not None:
                hint = "Give the location, like s3://bucket/prefix, or remove endpointUrl."
                faults.at("endpointUrl").add(f"{self.endpoint_url!r} has no location beside it", hint)
            return self
        try:
            place = parse_location(self.location)
        except BadRequest as error:
            faults.at("location").add(f"{self.location!r} is not the location of a store", error.hint)
            return self
        if self.type not in STORES or place.kind == LOCAL:
            hint = "Give a location in a store with type s3, azure, gcs or custom, or remove it: the tables are then "
            hint += "in LAKESHARE_WAREHOUSE."
            faults.at("location").add(f"{self.location!r} is not possible with type {self.type!r}", hint)
        elif place.kind not in STORES[self.type]:
            faults.at("type").add(f"{self.type!r} does not fit {self.location!r}", f"Give {place.kind!r}.")
        return replace(self, location=place.location.rstrip("/"))


STORES = {"s3": (S3,), "azure": (AZURE,), "gcs": (GCS,), "custom": (S3, GCS, AZURE)}
"""The kinds of stores by the type of a contract's server. The standard has no type for Google Cloud Storage."""
Servers = Annotated[list[Server], Field(min_length=1, max_length=1)]
OWNER = re.compile(r"[A-Za-z0-9_]+|[^@\s]+@[^@\s]+\.[^@\s]+")
OF_TEAM = "description id tags custom_properties authoritative_definitions"


@declared(f"{OF_TEAM} name date_in date_out replaced_by_username")
class Member:
    username: NonEmpty
    role: str | None = None


@declared(OF_TEAM)
class Team:
    name: str | None = None
    members: Listed[Member] = ()

    def list_owners(self, faults: Faults) -> tuple[str, ...]:
        """Returns the members with the role of an owner, or the team, as Dagster takes them."""
        names = [
            (index, m.username) for index, m in enumerate(self.members) if (m.role or "").lower() == "owner"
        ]
        for index, name in names:
            if not OWNER.fullmatch(name):
                hint = "Give an e-mail address, or a team's name of letters, digits and _."
                place = faults.at("members", index, "username")
                place.add(f"owner {name!r} is neither person nor team", hint)
        owners = [name for _, name in names] or ([self.name] if self.name else [])
        return tuple(name if "@" in name else f"team:{name}" for name in owners)


def _require_times(properties: Any) -> Any:
    find_freshness_goal(properties)
    return properties


@declared("authoritative_definitions custom_properties", usage=(str, ""), limitations=(str, ""))
class Description:
    purpose: Text = ""


@declared(
    "tenant tags data_product support price roles sla_default_element",
    sla_properties=(Annotated[Any, AfterValidator(_require_times)], None),
    authoritative_definitions=(Any, None),
    contract_created_ts=(Any, None),
    api_version=(Annotated[str, written_as(r"^v3\.\d+\.\d+$", "a version 3, as v3.1.0")], ...),
    kind=(Literal["DataContract"], ...),
    id=(str, ...),
    status=(str, ...),
)
class SetContract:
    """Tables that are published together, each after those that it depends on.

    `text` is the file; empty for contracts that are made in code.
    """

    name: Name
    version: str
    description: Annotated[str, ReadAs(Description, lambda given: given.purpose, Description())] = ""
    owners: Computed[tuple[str, ...]] = ()
    """As Dagster takes them: addresses, or `team:name`."""
    domain: str = ""
    tables: Annotated[Listed[Table], Field(alias="schema", min_length=1), REQUIRED] = ()
    partitioning: Custom[Annotated[Partitioning, wrap("kind", str, Partitioning | NamedKind)]] = (
        Partitioning()
    )
    shares: Custom[Listed[ShareEntry]] = ()
    digest: Computed[str] = ""
    path: Computed[Path] = Path()
    snowflake: Custom[Listed[SnowflakeEntry]] = ()
    maintenance: Custom[SetMaintenance] = SetMaintenance()
    schedule: Custom[Cron | None] = None
    """When a run of a set with sources starts, as cron."""
    server: Annotated[
        Server, ReadAs(Servers, lambda servers: servers[0]), Field(alias="servers"), REQUIRED
    ] = Server()
    retirements: Annotated[Custom[Listed[Retirement]], Field(alias="retire")] = ()
    # Version 3.0 of the standard has a list of members.
    team: Written[Annotated[Team, wrap("members", list, Team | list[Member])]] = Team()
    first_partition: Written[Custom[FirstKey | None]] = None
    text: Written[Computed[str]] = ""

    @property
    def maintenance_schedule(self) -> str:
        """When the tables are maintained, as cron."""
        return self.maintenance.schedule

    @property
    def warehouse(self) -> str | None:
        """The location of the tables; None for that of the settings."""
        return self.server.location

    @property
    def endpoint(self) -> str | None:
        """URL of the store of `warehouse`, if the contract requires one."""
        return self.server.endpoint_url

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
    empty = "; a partition may have no rows" if table.allow_empty else ""
    quarantined = f"at most {table.max_quarantined_fraction:.1%} of rows in quarantine"
    yield f"  {quarantined}{empty}{_describe_drift(table.drift)}"


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
