"""The YAML of a contract: the Open Data Contract Standard v3.1 with lakeshare's customProperties.

Unknown fields and wrong types are refused; standard fields that lakeshare does not use are accepted.
"""

import datetime as dt
import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from lakeshare_pipelines.errors import ContractError

Unused = Annotated[Any, "in the standard, not used here"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Fraction = Annotated[float, Field(ge=0)]
Severity = Literal["error", "warning"]


def _wrap(field: str, kind: type) -> BeforeValidator:
    """Accepts a value of `kind` in place of a mapping with this one `field`."""
    return BeforeValidator(lambda value: {field: value} if isinstance(value, kind) else value)


class Part(BaseModel):
    """A mapping of the document: camelCase names, no unknown fields, no conversions."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, frozen=True, strict=True)

    @classmethod
    def list_fields(cls) -> list[str]:
        return [field.alias or name for name, field in cls.model_fields.items()]


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
    team: Annotated[Team, _wrap("members", list)] = Team()  # v3.0 has a list of members
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


SharedTables = Annotated[list[Annotated[SharedTable, _wrap("table", str)]], Field(min_length=1)]


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


class KeepExtras(Part):
    publications: Annotated[int, Field(ge=1)] | None = None
    days: Annotated[int, Field(ge=1)] | None = None


class MaintenanceExtras(Part):
    compaction: CompactionExtras | Literal[False] = CompactionExtras()
    keep: Annotated[KeepExtras, _wrap("publications", int)] = KeepExtras()


class SetMaintenanceExtras(MaintenanceExtras):
    schedule: Annotated[str, Field(pattern=r"^\S+( \S+){4}$")] = "0 4 * * 0"


class SetExtras(Part):
    partitioning: Literal["daily", "none"] = "none"
    first_partition: Annotated[
        Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None,
        BeforeValidator(lambda value: value.isoformat() if isinstance(value, dt.date) else value),
    ] = None
    shares: list[SharedSchema] = []
    snowflake: list[SnowflakeSchema] = []
    maintenance: SetMaintenanceExtras = SetMaintenanceExtras()


class DriftExtras(Part):
    max_shrink_fraction: Fraction | None = None
    max_growth_fraction: Fraction | None = None
    severity: Severity = "warning"


class ReadingExtras(Part):
    null_values: list[str] = [""]
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    multiline: bool = False


class PromiseExtras(Part):
    clients: Annotated[list[str], Field(min_length=1)]
    severity: Severity = "error"
    rewrite: bool = True


class PerRecipientExtras(Part):
    column: Name
    value: Annotated[str, Field(min_length=1)] | None = None
    recipient_property: Annotated[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$")] | None, Field(alias="property")
    ] = None


class ViewExtras(Part):
    of: Name
    columns: Annotated[list[Name], Field(min_length=1)]
    where: Annotated[str, Field(min_length=1)] | None = None
    per_recipient: Annotated[PerRecipientExtras | None, _wrap("column", str)] = None


class WriteExtras(Part):
    mode: Literal["replace_partitions", "append", "merge", "replace", "scd2"] = "replace_partitions"
    sequence: Name | None = None
    delete_when: Annotated[str, Field(min_length=1)] | None = None


class TableExtras(Part):
    source: Annotated[str, Field(min_length=1, pattern=r"^[^/\\]+$")] | None = None
    derive: str | None = None
    view: ViewExtras | None = None
    location: str | None = None
    allow_schema_changes: bool = False
    max_quarantined_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    write: Annotated[WriteExtras, _wrap("mode", str)] = WriteExtras()
    drift: DriftExtras = DriftExtras()
    reading: ReadingExtras = ReadingExtras()
    maintenance: MaintenanceExtras = MaintenanceExtras()
    serveable_to: Annotated[PromiseExtras | None, _wrap("clients", list)] = None


class ColumnExtras(Part):
    source: Annotated[str, Field(min_length=1)] | None = None
    partition_transform: str = "identity"


class RuleExtras(Part):
    scope: Literal["delta", "table"] | None = None


class ReferenceExtras(Part):
    severity: Severity = "error"
    description: str = ""


# The model of each field, to suggest a known field for an unknown one.
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
    "write": WriteExtras,
    "drift": DriftExtras,
    "reading": ReadingExtras,
    "serveableTo": PromiseExtras,
    "view": ViewExtras,
    "perRecipient": PerRecipientExtras,
    "maintenance": SetMaintenanceExtras,
    "compaction": CompactionExtras,
    "keep": KeepExtras,
}


class _Loader(yaml.SafeLoader):
    """A SafeLoader that refuses duplicate keys, of which YAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads the mapping in a contract file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = "Give the path of a contract's YAML file."
        raise ContractError(path, "the file", "does not exist", hint) from None
    except (OSError, UnicodeDecodeError) as error:
        hint = "It must be a readable UTF-8 text."
        raise ContractError(path, "the file", f"cannot be read: {error}", hint) from error
    try:
        document = yaml.load(text, _Loader)  # noqa: S506  # a SafeLoader, only stricter
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ContractError(path, where, problem, "Correct the YAML there.") from error
    if not isinstance(document, dict):
        hint = "A contract begins with apiVersion, kind, id, name, version."
        raise ContractError(path, "the file", "is not a mapping", hint)
    return document


def compute_digest(document: dict[str, Any]) -> str:
    """Returns the SHA-256 of the content; comments, order of keys and layout do not count."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


Location = Sequence[str | int]
AnyPart = TypeVar("AnyPart", bound=Part)


@dataclass(frozen=True)
class Faults:
    """Collects the errors of one file at `where`, a path inside the file, in the order of their discovery."""

    path: Path
    where: Location = ()
    found: list[ContractError] = dataclass_field(default_factory=list)

    def at(self, *steps: str | int) -> "Faults":
        """Returns the collector of a path below; both add to the same errors."""
        return replace(self, where=(*self.where, *steps))

    def add(self, problem: str, hint: str) -> None:
        self.found.append(ContractError(self.path, format_path(self.where), problem, hint))

    def add_invalid(self, error: ValidationError) -> None:
        for fault in error.errors():
            where = [step for step in fault["loc"] if step != "[key]"]
            self.at(*where).add(*_explain(fault, Document))

    def require_none(self) -> None:
        """Raises the first error, if there is any, with the others in its `also`."""
        if self.found:
            first, *others = self.found
            raise ContractError(first.path, first.field, first.problem, first.hint, also=others)


def format_path(where: Location) -> str:
    """Formats a path as `schema[0].properties[3].logicalType`."""
    text = ""
    for step in where:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text or "the file"


def suggest(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Returns a hint that names the closest known word, else `otherwise` or all known words."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return otherwise or f"Known are: {', '.join(known)}."


def read_extras(part: type[AnyPart], properties: Sequence[CustomProperty], faults: Faults) -> AnyPart:
    """Parses the customProperties of an element; dotted names belong to other tools and are ignored."""
    values: dict[str, Any] = {}
    places: dict[str, Faults] = {}
    known = part.list_fields()
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
        for fault in error.errors():
            name, *rest = fault["loc"]
            places[str(name)].at(*rest).add(*_explain(fault, part))
        return part.model_validate({})


def _explain(fault: Mapping[str, Any], part: type[Part]) -> tuple[str, str]:
    kind, loc = fault["type"], fault["loc"]
    if kind == "extra_forbidden":
        holder = next((step for step in reversed(loc[:-1]) if isinstance(step, str)), "")
        return f"unknown field {loc[-1]!r}", suggest(str(loc[-1]), PARTS.get(holder, part).list_fields())
    if kind == "missing":
        return "is missing", "Add it; docs/reference/contract.md lists every field."
    value = fault["input"]
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    if kind == "literal_error":
        expected = str(fault["ctx"]["expected"])
        words = [word.strip("' ") for word in expected.replace(" or ", ",").split(",")]
        return f"cannot be {shown}", suggest(str(value), words, f"Use {expected}.")
    return f"cannot be {shown}", f"{fault['msg']}."
