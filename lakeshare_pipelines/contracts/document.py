"""The YAML of a contract with the names of the Open Data Contract Standard v3.1, and our customProperties.

Only the shape is judged here: unknown fields, wrong kinds of values. What they mean together is in `checks.py`.
Fields of the standard that nothing here uses are accepted and left alone.
"""

import datetime as dt
import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where YAML silently keeps the last."""

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
    """The mapping in a contract file.

    Raises:
        ContractError: no such file, not UTF-8, not YAML, or not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ContractError(
            path, "the file", "does not exist", "Give the path of a contract's YAML file."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(
            path, "the file", f"cannot be read: {error}", "It must be a readable UTF-8 text."
        ) from error
    try:
        document = yaml.load(text, _Loader)  # noqa: S506  # a SafeLoader, only stricter
    except yaml.YAMLError as error:
        raise ContractError(path, _place(error), _problem(error), "Correct the YAML there.") from error
    if not isinstance(document, dict):
        raise ContractError(
            path,
            "the file",
            "is not a mapping",
            "A contract begins with apiVersion, kind, id, name, version.",
        )
    return document


def compute_digest(document: dict[str, Any]) -> str:
    """SHA-256 of what the file says; comments, order of keys and layout do not count."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"


def _problem(error: yaml.YAMLError) -> str:
    return getattr(error, "problem", None) or str(error).splitlines()[0]


Location = Sequence[str | int]
AnyPart = TypeVar("AnyPart", bound=Part)


@dataclass
class Faults:
    """All faults of one file, in the order they were found."""

    path: Path
    found: list[ContractError] = dataclass_field(default_factory=list)

    def add(self, where: Location | str, problem: str, hint: str) -> None:
        """Note one fault; `where` is the place inside the file."""
        place = where if isinstance(where, str) else format_path(where)
        self.found.append(ContractError(self.path, place, problem, hint))

    def add_invalid(self, error: ValidationError, at: Location = (), part: type[Part] = PARTS[""]) -> None:
        """Note everything pydantic found below `at`."""
        for fault in error.errors():
            where = [*at, *(step for step in fault["loc"] if step != "[key]")]
            problem, hint = _explain(fault, fault["loc"], part)
            self.add(where, problem, hint)

    def require_none(self) -> None:
        """Raise what was found.

        Raises:
            ContractError: for the first fault; the others are in its `also`.
        """
        if self.found:
            first, *others = self.found
            raise ContractError(first.path, first.field, first.problem, first.hint, also=others)


def format_path(where: Location) -> str:
    """`schema[0].properties[3].logicalType`."""
    text = ""
    for step in where:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text or "the file"


def suggest(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """A hint that names the closest known word, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return otherwise or f"Known are: {', '.join(known)}."


def read_extras(
    part: type[AnyPart], properties: Sequence[CustomProperty], at: Location, faults: Faults
) -> AnyPart:
    """The customProperties of one element as their model; a dotted name belongs to another tool and is left alone."""
    values: dict[str, Any] = {}
    places: dict[str, Location] = {}
    known = [field.alias or name for name, field in part.model_fields.items()]
    for index, entry in enumerate(properties):
        where = [*at, "customProperties", index]
        if "." in entry.property:
            continue
        if entry.property not in known:
            faults.add(
                [*where, "property"],
                f"unknown property {entry.property!r}",
                suggest(entry.property, known),
            )
        elif entry.property in values:
            faults.add([*where, "property"], f"{entry.property!r} is given twice", "Keep one of them.")
        else:
            values[entry.property], places[entry.property] = entry.value, [*where, "value"]
    return _validated(part, values, places, faults)


def _validated(
    part: type[AnyPart], values: Mapping[str, Any], places: Mapping[str, Location], faults: Faults
) -> AnyPart:
    try:
        return part.model_validate(values)
    except ValidationError as error:
        for fault in error.errors():
            name, *rest = fault["loc"]
            problem, hint = _explain(fault, fault["loc"], part)
            faults.add([*places[str(name)], *rest], problem, hint)
        return part.model_validate({})


def _explain(fault: Mapping[str, Any], loc: Location, part: type[Part]) -> tuple[str, str]:
    kind = fault["type"]
    if kind == "extra_forbidden":
        holder = next((step for step in reversed(loc[:-1]) if isinstance(step, str)), "")
        known = [entry.alias or name for name, entry in PARTS.get(holder, part).model_fields.items()]
        return f"unknown field {loc[-1]!r}", suggest(str(loc[-1]), known)
    if kind == "missing":
        return "is missing", "Add it; docs/reference/contract.md lists every field."
    value = fault["input"]
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    if kind == "literal_error":
        expected = str(fault["ctx"]["expected"])
        words = [word.strip("' ") for word in expected.replace(" or ", ",").split(",")]
        return f"cannot be {shown}", suggest(str(value), words, f"Use {expected}.")
    return f"cannot be {shown}", f"{fault['msg']}."
