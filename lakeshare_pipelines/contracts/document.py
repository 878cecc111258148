"""The YAML of a contract: the Open Data Contract Standard v3.1 with lakeshare's customProperties.

Unknown fields and wrong types are refused; standard fields that lakeshare does not use are accepted.
"""

import datetime as dt
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from lakeshare_pipelines.contracts.model import (
    Drift,
    Name,
    Reading,
    SetContract,
    Severity,
    SourceEntry,
    View,
    Write,
    WriteMode,
    wrap,
)
from lakeshare_pipelines.errors import ContractError
from lakeshare_server.errors import suggest
from lakeshare_server.yaml_documents import (
    Parsed,
    PathInDocument,
    YamlFault,
    explain_faults,
    format_path,
    read,
)

REFERENCE = "docs/reference/contract.md"
Unused = Annotated[Any, "in the standard, not used here"]


class Part(BaseModel):
    """A mapping of the document: camelCase names, no unknown fields, no conversions."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, frozen=True, strict=True)


class CustomProperty(Part):
    property: str
    value: Any
    id: Unused = None
    description: Unused = None


class Described(Part):
    id: Unused = None
    description: str = ""
    business_name: Unused = None
    tags: list[str] = []
    authoritative_definitions: Unused = None
    custom_properties: list[CustomProperty] = []


class Implementation(Part):
    type: str
    arguments: Annotated[dict[str, Any], Field(alias="kwargs")] = {}


class Quality(Described):
    """A rule; rules of type `text` are not executed."""

    name: Name | None = None
    type: str
    engine: str | None = None
    implementation: Implementation | None = None
    query: Annotated[str, Field(min_length=1)] | None = None
    must_be: float | None = None
    must_not_be: float | None = None
    must_be_greater_than: float | None = None
    must_be_greater_or_equal_to: float | None = None
    must_be_less_than: float | None = None
    must_be_less_or_equal_to: float | None = None
    must_be_between: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    must_not_be_between: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    severity: Severity = "error"
    dimension: Unused = None
    business_impact: Unused = None
    method: Unused = None
    schedule: Unused = None
    scheduler: Unused = None
    unit: Unused = None


class PropertyRelationship(Part):
    type: Literal["foreignKey"] = "foreignKey"
    to: str
    custom_properties: list[CustomProperty] = []


class SchemaRelationship(Part):
    type: Literal["foreignKey"] = "foreignKey"
    from_: Annotated[str | list[str], Field(alias="from")]
    to: str | list[str]
    custom_properties: list[CustomProperty] = []


class Property(Described):
    name: Name
    logical_type: (
        Literal["string", "date", "timestamp", "number", "integer", "boolean", "object", "array"] | None
    ) = None
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
    server: str
    type: str
    format: Literal["iceberg", "delta"]
    path: Unused = None
    location: str | None = None
    endpoint_url: str | None = None
    catalog: Unused = None
    description: Unused = None
    environment: Unused = None
    roles: Unused = None
    custom_properties: Unused = None
    id: Unused = None


class Member(Part):
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
    name: str | None = None
    description: Unused = None
    members: list[Member] = []
    id: Unused = None
    tags: Unused = None
    custom_properties: Unused = None
    authoritative_definitions: Unused = None


class Description(Part):
    purpose: str = ""
    usage: str = ""
    limitations: str = ""
    authoritative_definitions: Unused = None
    custom_properties: Unused = None


class Document(Part):
    api_version: Annotated[str, Field(pattern=r"^v3\.\d+\.\d+$")]
    kind: Literal["DataContract"]
    id: str
    name: Name
    version: str
    status: str
    tables: Annotated[list[SchemaObject], Field(alias="schema", min_length=1)]
    description: Description = Description()
    domain: str = ""
    team: Annotated[Team, wrap("members", list, Team | list[Member])] = Team()  # v3.0 has a list of members
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
    table: str
    name: Name | None = None


SharedTables = Annotated[
    list[Annotated[SharedTable, wrap("table", str, SharedTable | str)]], Field(min_length=1)
]


class SharedSchema(Part):
    share: Name
    schema_name: Annotated[Name, Field(alias="schema")]
    tables: SharedTables


class SnowflakeSchema(Part):
    database: Name
    schema_name: Annotated[Name, Field(alias="schema")]
    tables: SharedTables


class CompactionExtras(Part):
    target_mb: Annotated[int, Field(ge=1)] = 128
    sort_by: list[Name] = []


class NoCompaction(CompactionExtras):
    """`false` in place of a mapping."""


class KeepExtras(Part):
    publications: Annotated[int, Field(ge=1)] | None = None
    days: Annotated[int, Field(ge=1)] | None = None


class MaintenanceExtras(Part):
    compaction: Annotated[
        CompactionExtras,
        BeforeValidator(
            lambda value: NoCompaction() if value is False else value,
            json_schema_input_type=CompactionExtras | Literal[False],
        ),
    ] = CompactionExtras()
    keep: Annotated[KeepExtras, wrap("publications", int, KeepExtras | Annotated[int, Field(ge=1)])] = (
        KeepExtras()
    )


Cron = Annotated[str, Field(pattern=r"^\S+( \S+){4}$")]


class SetMaintenanceExtras(MaintenanceExtras):
    schedule: Cron = "0 4 * * 0"


NamedKind = Literal["hourly", "daily", "weekly", "monthly", "dynamic", "none"]


class SecondExtras(Part):
    column: Annotated[str, Field(min_length=1)]
    kind: Literal["dynamic"] | None = None
    static: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = None


class PartitioningExtras(Part):
    kind: NamedKind = "none"
    static: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = None
    time_zone: str = "UTC"
    end_offset: Annotated[int, Field(ge=0, le=100_000, strict=True)] = 0
    lateness_hours: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] | None = None
    second: SecondExtras | None = None


Date = Annotated[
    dt.date,
    BeforeValidator(
        lambda value: parse_date(value) if isinstance(value, str) else value,
        json_schema_input_type=Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")],
    ),
]


def parse_date(text: str) -> dt.date | str:
    """Returns a date that is written as a text; another text as it is."""
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return text


class RetireExtras(Part):
    table: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]
    date: Date
    successor: Annotated[str, Field(min_length=1)] | None = None


class SetExtras(Part):
    partitioning: Annotated[PartitioningExtras, wrap("kind", str, PartitioningExtras | NamedKind)] = (
        PartitioningExtras()
    )
    first_partition: Annotated[
        Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}(-\d{2})?$")] | None,
        BeforeValidator(lambda value: value.isoformat() if isinstance(value, dt.date) else value),
    ] = None
    shares: list[SharedSchema] = []
    snowflake: list[SnowflakeSchema] = []
    maintenance: SetMaintenanceExtras = SetMaintenanceExtras()
    schedule: Cron | None = None
    retire: list[RetireExtras] = []


Clients = Annotated[list[str], Field(min_length=1)]


class PromiseExtras(Part):
    clients: Clients
    severity: Severity = "error"
    rewrite: bool = True


class TableExtras(Part):
    source: Annotated[
        SourceEntry | None,
        wrap("landing", str, SourceEntry | Annotated[str, Field(min_length=1, pattern=r"^[^/\\]+$")] | None),
    ] = None
    derive: str | None = None
    transform: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")] | None = None
    inputs: list[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]] = []
    view: View | None = None
    location: str | None = None
    allow_schema_changes: bool = False
    max_quarantined_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    write: Annotated[Write, wrap("mode", str, Write | WriteMode)] = Write()
    drift: Drift = Drift()
    reading: Reading = Reading()
    maintenance: MaintenanceExtras = MaintenanceExtras()
    serveable_to: Annotated[PromiseExtras | None, wrap("clients", list, PromiseExtras | Clients | None)] = (
        None
    )


class ColumnExtras(Part):
    source: Annotated[str, Field(min_length=1)] | None = None
    partition_transform: str = "identity"


class RuleExtras(Part):
    scope: Literal["delta", "table"] | None = None


class ReferenceExtras(Part):
    severity: Severity = "error"
    description: str = ""


def read_yaml(path: Path) -> Parsed:
    """Reads the mapping in a contract file."""
    try:
        parsed = read(path)
    except YamlFault as fault:
        raise ContractError(path, "the file", fault.problem, fault.hint, line=fault.line) from fault
    if not isinstance(parsed.values, dict):
        hint = "A contract begins with apiVersion, kind, id, name, version."
        raise ContractError(path, "the file", "is not a mapping", hint, line=1)
    return parsed


def compute_digest(document: dict[str, Any]) -> str:
    """Returns the SHA-256 of the content; comments, order of keys and layout do not count."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def find_line(contract: SetContract, *where: str | int) -> int | None:
    """The line of a path in the file of a loaded contract; None if its content is not there any more.

    Tables, columns and customProperties may be given by name.
    """
    try:
        parsed = read(contract.path)
    except YamlFault:
        return None
    return parsed.line(where) if compute_digest(parsed.values) == contract.digest else None


AnyPart = TypeVar("AnyPart", bound=Part)


@dataclass(frozen=True)
class Faults:
    """Collects the errors of one file at `where`, a path inside the file, in the order of their discovery."""

    path: Path
    parsed: Parsed
    where: PathInDocument = ()
    found: list[ContractError] = dataclass_field(default_factory=list)

    def at(self, *steps: str | int) -> "Faults":
        """Returns the collector of a path below; both add to the same errors."""
        return replace(self, where=(*self.where, *steps))

    def add(self, problem: str, hint: str, near: PathInDocument = ()) -> None:
        """Adds an error; `near` is a path below for the line, like the name of the property that it is about."""
        line = self.parsed.line((*self.where, *near))
        self.found.append(ContractError(self.path, format_path(self.where), problem, hint, line=line))

    def add_invalid(self, error: ValidationError) -> None:
        for where, problem, hint in explain_faults(error, Document, REFERENCE):
            self.at(*where).add(problem, hint)

    def has_none(self) -> bool:
        """Whether no error was found at the path or below it."""
        return not any(error.field.startswith(format_path(self.where)) for error in self.found)

    def require_none(self) -> None:
        """Raises the first error, if there is any, with the others in its `also`."""
        if self.found:
            first, *others = self.found
            raise ContractError(first.path, first.field, first.problem, first.hint, others, line=first.line)


def read_extras(part: type[AnyPart], properties: Sequence[CustomProperty], faults: Faults) -> AnyPart:
    """Parses the customProperties of an element; dotted names belong to other tools and are ignored.

    A property with a fault has its default in the result.
    """
    values: dict[str, Any] = {}
    places: dict[str, Faults] = {}
    known = [field.alias or name for name, field in part.model_fields.items()]
    for index, entry in enumerate(properties):
        place = faults.at("customProperties", index)
        if "." in entry.property:
            continue
        if entry.property not in known:
            problem = f"unknown property {entry.property!r}"
            place.at("property").add(problem, suggest(entry.property, known))
        elif entry.property in values:
            place.at("property").add(f"{entry.property!r} is given twice", "Keep one of them.")
        else:
            values[entry.property], places[entry.property] = entry.value, place.at("value")
    try:
        return part.model_validate(values)
    except ValidationError as error:
        for (name, *rest), problem, hint in explain_faults(error, part, REFERENCE):
            places[str(name)].at(*rest).add(problem, hint)
            values.pop(str(name), None)
        return part.model_validate(values)
