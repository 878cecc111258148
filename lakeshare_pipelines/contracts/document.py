"""The YAML of a contract with the names of the Open Data Contract Standard v3.1, and our customProperties.

Only the shape is judged here: unknown fields, wrong kinds of values. What they mean together is in `checks.py`.
Fields of the standard that nothing here uses are accepted and left alone.
"""

import datetime as dt
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

Unused = Annotated[Any, "in the standard, not used here"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Fraction = Annotated[float, Field(ge=0)]
Severity = Literal["error", "warning"]


class Part(BaseModel):
    """Any mapping of the document: camelCase names, nothing unknown, no silent conversions."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, frozen=True, strict=True)


class CustomProperty(Part):
    """One `{property, value}` pair."""

    property: str
    value: Any
    id: Unused = None
    description: Unused = None


class Described(Part):
    """What every element of the standard may carry."""

    id: Unused = None
    description: str = ""
    business_name: Unused = None
    tags: list[str] = []
    authoritative_definitions: Unused = None
    custom_properties: list[CustomProperty] = []


class Implementation(Part):
    """An expectation as Great Expectations writes it."""

    type: str
    arguments: Annotated[dict[str, Any], Field(alias="kwargs")] = {}


class Quality(Described):
    """A rule; `text` is for people only."""

    name: Name | None = None
    type: str
    engine: str | None = None
    implementation: Implementation | None = None
    severity: Severity = "error"
    dimension: Unused = None
    business_impact: Unused = None
    method: Unused = None
    schedule: Unused = None
    scheduler: Unused = None
    unit: Unused = None


class PropertyRelationship(Part):
    """A reference of one column."""

    type: Literal["foreignKey"] = "foreignKey"
    to: str
    custom_properties: list[CustomProperty] = []


class SchemaRelationship(Part):
    """A reference of one or several columns."""

    type: Literal["foreignKey"] = "foreignKey"
    from_: Annotated[str | list[str], Field(alias="from")]
    to: str | list[str]
    custom_properties: list[CustomProperty] = []


class Property(Described):
    """A column."""

    name: Name
    logical_type: Literal["string", "date", "timestamp", "number", "integer", "boolean"] | None = None
    logical_type_options: Unused = None
    physical_type: str | None = None
    physical_name: Unused = None
    required: bool = False
    unique: bool = False
    primary_key: bool = False
    primary_key_position: int = -1
    partitioned: bool = False
    partition_key_position: int = -1
    classification: str | None = None
    critical_data_element: Unused = None
    encrypted_name: Unused = None
    examples: Unused = None
    transform_source_objects: list[str] = []
    transform_logic: str | None = None
    transform_description: Unused = None
    relationships: list[PropertyRelationship] = []
    quality: list[Quality] = []


class SchemaObject(Described):
    """A table, or a view, which has the columns of its table."""

    name: Name
    logical_type: Literal["object"] = "object"
    physical_name: Annotated[
        str | None, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$")
    ] = None
    physical_type: Literal["table", "view"] | None = None
    data_granularity_description: Unused = None
    properties: list[Property] = []
    relationships: list[SchemaRelationship] = []
    quality: list[Quality] = []


class Server(Part):
    """Where the tables are; its `format` is the table format of the set."""

    server: str
    type: str
    format: Literal["iceberg", "delta"]
    path: Unused = None
    location: Unused = None
    catalog: Unused = None
    description: Unused = None
    environment: Unused = None
    roles: Unused = None
    custom_properties: Unused = None
    id: Unused = None


class Member(Part):
    """A person or group of the team."""

    username: Annotated[str, Field(min_length=1)]
    name: Unused = None
    role: str | None = None
    description: Unused = None
    date_in: Unused = None
    date_out: Unused = None
    replaced_by_username: Unused = None
    id: Unused = None
    tags: Unused = None
    custom_properties: Unused = None
    authoritative_definitions: Unused = None


class Team(Part):
    """Who answers for the set."""

    name: str | None = None
    description: Unused = None
    members: list[Member] = []
    id: Unused = None
    tags: Unused = None
    custom_properties: Unused = None
    authoritative_definitions: Unused = None


class Description(Part):
    """Why the set exists."""

    purpose: str = ""
    usage: str = ""
    limitations: str = ""
    authoritative_definitions: Unused = None
    custom_properties: Unused = None


def _team_of_members(value: Any) -> Any:
    # v3.0 has a plain list of members where v3.1 has a team.
    return {"members": value} if isinstance(value, list) else value


class Document(Part):
    """A whole contract file."""

    api_version: Annotated[str, Field(pattern=r"^v3\.\d+\.\d+$")]
    kind: Literal["DataContract"]
    id: str
    name: Name
    version: str
    status: str
    tables: Annotated[list[SchemaObject], Field(alias="schema", min_length=1)]
    description: Description = Description()
    domain: str = ""
    team: Annotated[Team, BeforeValidator(_team_of_members)] = Team()
    servers: Annotated[list[Server], Field(min_length=1, max_length=1)]
    custom_properties: list[CustomProperty] = []
    tenant: Unused = None
    tags: Unused = None
    data_product: Unused = None
    support: Unused = None
    price: Unused = None
    roles: Unused = None
    sla_default_element: Unused = None
    sla_properties: Unused = None
    authoritative_definitions: Unused = None
    contract_created_ts: Unused = None


class SharedTable(Part):
    """A table in a share, under its own name or another."""

    table: str
    name: Name | None = None


def _shared_table(value: Any) -> Any:
    return {"table": value} if isinstance(value, str) else value


class SharedSchema(Part):
    """Which tables of the set a share holds under which schema."""

    share: Name
    schema_name: Annotated[Name, Field(alias="schema")]
    tables: Annotated[list[Annotated[SharedTable, BeforeValidator(_shared_table)]], Field(min_length=1)]


class SnowflakeSchema(Part):
    """Which tables of the set follow along in a schema of Snowflake."""

    database: Name
    schema_name: Annotated[Name, Field(alias="schema")]
    tables: Annotated[list[Annotated[SharedTable, BeforeValidator(_shared_table)]], Field(min_length=1)]


def _iso_day(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.date) else value


class SetExtras(Part):
    """customProperties of the contract."""

    partitioning: Literal["daily", "none"] = "none"
    first_partition: Annotated[
        Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None, BeforeValidator(_iso_day)
    ] = None
    shares: list[SharedSchema] = []
    snowflake: list[SnowflakeSchema] = []


class DriftExtras(Part):
    """How far the row count may move in one run."""

    max_shrink_fraction: Fraction | None = None
    max_growth_fraction: Fraction | None = None
    severity: Severity = "warning"


class ReadingExtras(Part):
    """How delivered text is understood."""

    null_values: list[str] = [""]
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    multiline: bool = False


class PromiseExtras(Part):
    """Which clients will be able to read the table, and what is done for that."""

    clients: Annotated[list[str], Field(min_length=1)]
    severity: Severity = "error"
    rewrite: bool = True


def _promise(value: Any) -> Any:
    return {"clients": value} if isinstance(value, list) else value


class PerRecipientExtras(Part):
    """The column of a view by which rules tell the rows of one recipient from those of another."""

    column: Name
    value: Annotated[str, Field(min_length=1)] | None = None
    recipient_property: Annotated[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$")] | None, Field(alias="property")
    ] = None


def _per_recipient(value: Any) -> Any:
    return {"column": value} if isinstance(value, str) else value


class ViewExtras(Part):
    """Which rows and columns of which table a view shows."""

    of: Name
    columns: Annotated[list[Name], Field(min_length=1)]
    where: Annotated[str, Field(min_length=1)] | None = None
    per_recipient: Annotated[PerRecipientExtras | None, BeforeValidator(_per_recipient)] = None


class TableExtras(Part):
    """customProperties of a table."""

    source: Annotated[str, Field(min_length=1, pattern=r"^[^/\\]+$")] | None = None
    derive: str | None = None
    view: ViewExtras | None = None
    location: str | None = None
    allow_schema_changes: bool = False
    max_quarantined_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    drift: DriftExtras = DriftExtras()
    reading: ReadingExtras = ReadingExtras()
    serveable_to: Annotated[PromiseExtras | None, BeforeValidator(_promise)] = None


class ColumnExtras(Part):
    """customProperties of a column."""

    source: Annotated[str, Field(min_length=1)] | None = None
    partition_transform: str = "identity"


class RuleExtras(Part):
    """customProperties of a rule."""

    scope: Literal["delta", "table"] | None = None


class ReferenceExtras(Part):
    """customProperties of a relationship."""

    severity: Severity = "error"
    description: str = ""


# Which part a field holds, to name the fields that an unknown one may have been meant for.
PARTS: dict[str, type[Part]] = {
    "": Document,
    "schema": SchemaObject,
    "properties": Property,
    "quality": Quality,
    "implementation": Implementation,
    "relationships": SchemaRelationship,
    "servers": Server,
    "team": Team,
    "members": Member,
    "description": Description,
    "customProperties": CustomProperty,
    "shares": SharedSchema,
    "snowflake": SnowflakeSchema,
    "tables": SharedTable,
    "drift": DriftExtras,
    "reading": ReadingExtras,
    "serveableTo": PromiseExtras,
    "view": ViewExtras,
    "perRecipient": PerRecipientExtras,
}
