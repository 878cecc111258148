"""How a contract is read: the Open Data Contract Standard v3.1 with lakeshare's customProperties.

Pydantic reads the classes of `model.py` (`declared`): camelCase, without unknown fields, without conversions. What a
class cannot decide alone is checked afterwards, with `Faults` at its place in the file.
"""

import hashlib
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import MISSING, dataclass, fields, replace
from dataclasses import Field as DataclassField
from dataclasses import field as dataclass_field
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast, dataclass_transform, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    Strict,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.alias_generators import to_camel

from lakeshare_pipelines.errors import ContractError
from lakeshare_server.errors import suggest
from lakeshare_server.yaml_documents import (
    Parsed,
    PathInDocument,
    YamlFault,
    explain_faults,
    format_path,
    read,
    written_as,
)

if TYPE_CHECKING:
    from lakeshare_pipelines.contracts.model import SetContract

REFERENCE = "docs/reference/contract.md"
PROPERTIES = "customProperties"
FAULTY = ".faulty"
CUSTOM, COMPUTED, WRITTEN, REQUIRED = "custom", "computed", "written", "required"
AnyClass = TypeVar("AnyClass")
Item = TypeVar("Item")

Custom = Annotated[Item, CUSTOM]
"""A field that the document has as an entry of customProperties."""
Computed = Annotated[Item, COMPUTED]
"""A field that the document does not have: it follows from others."""
Written = Annotated[Item, WRITTEN]
"""A field that is used only while the contract is loaded; it is not compared."""
Listed = Annotated[tuple[Item, ...], Strict(False)]
Name = Annotated[str, written_as(r"^[A-Za-z_][A-Za-z0-9_]*$", "letters, digits and _, no digit first")]
NonEmpty = Annotated[str, Field(min_length=1)]
Sql = Annotated[str, Field(min_length=1), AfterValidator(str.strip)]
Function = Annotated[str, written_as(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", "package.module:name")]
Text = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]
OF_ALL = "id business_name authoritative_definitions"
"""Fields of the standard for sets, tables, columns and rules that are not used here."""
TAGS: tuple[Any, Any] = (list[str], [])


@dataclass(frozen=True)
class ReadAs:
    """The form that a field has in the document, its default there, and the function that makes the field of it."""

    kind: Any
    convert: Callable[[Any], Any] = lambda value: value
    default: Any = None


def wrap(field: str, kind: type, accepted: Any) -> BeforeValidator:
    """Accepts a value of `kind` in place of a mapping with this one `field`; `accepted` is both, for a JSON Schema."""
    return BeforeValidator(
        lambda value: {field: value} if isinstance(value, kind) else value, json_schema_input_type=accepted
    )


class Part(BaseModel):
    """A mapping of the document: camelCase names, no unknown fields, no conversions."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, frozen=True, strict=True)
    known: ClassVar[frozenset[str]] = frozenset()
    """The customProperties that are read."""


class CustomProperty(Part):
    property: str
    value: Any
    id: Any = None
    description: Any = None


class Element(Part):
    """A mapping with customProperties. Those of lakeshare are read as fields, dotted names belong to other tools."""

    custom_properties: list[CustomProperty] = []

    @model_validator(mode="before")
    @classmethod
    def lift_properties(cls, given: Any) -> Any:
        """Returns the mapping with its properties as fields `customProperties.NAME`."""
        if not isinstance(given, dict):
            return given
        if found := [name for name in given if name.startswith(f"{PROPERTIES}.")]:
            raise ValueError(f"Give {found[0]} as an entry of {PROPERTIES}")
        lifted: dict[str, Any] = {}
        entries = given.get(PROPERTIES)
        for entry in entries if isinstance(entries, list) else ():
            name = entry.get("property") if isinstance(entry, dict) else None
            if isinstance(name, str) and name in cls.known and "value" in entry:
                lifted.setdefault(f"{PROPERTIES}.{name}", entry["value"])
        return {**given, **lifted}


@dataclass_transform(frozen_default=True, field_specifiers=(dataclass_field,))
def declared(unused: str = "", **others: Any) -> Callable[[type[AnyClass]], type[AnyClass]]:
    """Makes a frozen dataclass that pydantic reads from a document; its constructor validates nothing.

    `unused` are fields of the standard that are accepted and not read, `others` those that are validated and not kept,
    as pairs of type and default.
    """

    def declare(kind: type[AnyClass]) -> type[AnyClass]:
        text, hints = kind.__doc__, get_type_hints(kind, include_extras=True)
        for name, hint in hints.items():
            if WRITTEN in getattr(hint, "__metadata__", ()):
                setattr(kind, name, dataclass_field(default=getattr(kind, name), repr=False, compare=False))
        dataclass(frozen=True)(kind)
        given: dict[str, Any] = {**dict.fromkeys(unused.split(), (Any, None)), **others}
        aliases: dict[str, str] = {}
        forms: dict[str, ReadAs] = {}
        for field in fields(cast("Any", kind)):
            name, hint = field.name, hints[field.name]
            marks = getattr(hint, "__metadata__", ())
            if COMPUTED in marks:
                continue
            aliases[name] = _find_alias(name, marks)
            forms.update((name, mark) for mark in marks if isinstance(mark, ReadAs))
            form = forms.get(name, ReadAs(hint, default=_find_default(field)))
            default = ... if REQUIRED in marks else form.default
            given[f"{name}_"] = Annotated[form.kind, Field(alias=aliases[name])], default
        document = _make_document(kind, text, given, aliases)
        parts = [(name, f"{name}_", forms[name].convert if name in forms else None) for name in aliases]

        def make(values: BaseModel) -> AnyClass:
            read = vars(values)
            return kind(
                **{name: convert(read[key]) if convert else read[key] for name, key, convert in parts}
            )

        def get_schema(source: Any, handler: GetCoreSchemaHandler) -> Any:
            return handler(Annotated[document, AfterValidator(make)])

        def show(value: Any) -> dict[str, Any]:
            shown = {alias: getattr(value, name) for name, alias in aliases.items()}
            return shown | {aliases[name]: form.default for name, form in forms.items()}

        part: Any = kind
        part.__document__ = document
        part.__get_pydantic_core_schema__ = staticmethod(get_schema)
        # A JSON Schema shows a default by the document's names.
        part.__pydantic_serializer__ = TypeAdapter(Annotated[Any, PlainSerializer(show)]).serializer
        return kind

    return declare


def _make_document(
    kind: type, text: str | None, given: dict[str, Any], aliases: dict[str, str]
) -> type[Part]:
    """Returns the model of a class; its fields end with `_`, since pydantic has names of its own."""
    known = frozenset(alias.partition(".")[2] for alias in aliases.values() if "." in alias)
    base: type[Part] = Element if known else Part
    document: type[Part] = create_model(
        kind.__name__, __base__=base, __doc__=text, __module__=kind.__module__, **given
    )
    document.known = known
    return document


def _find_alias(name: str, marks: tuple[Any, ...]) -> str:
    alias = next((mark.alias for mark in marks if getattr(mark, "alias", None)), to_camel(name))
    return f"{PROPERTIES}.{alias}" if CUSTOM in marks else alias


def _find_default(field: "DataclassField[Any]") -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return ... if field.default is MISSING else field.default


def get_document(kind: type) -> type[Part]:
    """Returns the model that reads a declared class."""
    document: type[Part] = vars(kind)["__document__"]
    return document


@cache
def _make_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


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


def find_line(contract: "SetContract", *where: str | int) -> int | None:
    """The line of a path in the file of a loaded contract; None if its content is not there any more.

    Tables, columns and customProperties may be given by name.
    """
    try:
        parsed = read(contract.path)
    except YamlFault:
        return None
    return parsed.line(where) if compute_digest(parsed.values) == contract.digest else None


Fault = tuple[PathInDocument, str, str]


@dataclass(frozen=True)
class Faults:
    """Collects the errors of one file at `where`, a path inside the file, in the order of their discovery."""

    path: Path
    parsed: Parsed
    where: PathInDocument = ()
    found: list[ContractError] = dataclass_field(default_factory=list)
    of_properties: list[Fault] = dataclass_field(default_factory=list)
    """Faults of values of customProperties that are not among the errors yet."""

    def at(self, *steps: str | int) -> "Faults":
        """Returns the collector of a path below; both add to the same errors."""
        # The constructor takes a fifth of the time of replace.
        return Faults(self.path, self.parsed, (*self.where, *steps), self.found, self.of_properties)

    def add(self, problem: str, hint: str, near: PathInDocument = ()) -> None:
        """Adds an error; `near` is a path below for the line, like the name of the property that it is about."""
        line = self.parsed.line((*self.where, *near))
        self.found.append(ContractError(self.path, format_path(self.where), problem, hint, line=line))

    def has_none(self) -> bool:
        """Whether no error was found at the path or below it."""
        return not any(error.field.startswith(format_path(self.where)) for error in self.found)

    def require_none(self) -> None:
        """Raises the first error, if there is any, with the others in its `also`."""
        self.add_faults_of_properties()
        if self.found:
            first, *others = self.found
            raise ContractError(first.path, first.field, first.problem, first.hint, others, line=first.line)

    def get(self, *steps: str | int) -> Any:
        """Returns the value at a path below, a property by its name; None if the document has none there."""
        value = self.parsed.values
        for step in (*self.where, *steps):
            if isinstance(value, list) and isinstance(step, str):
                value = next((entry["value"] for entry in value if entry["property"] == step), None)
            elif isinstance(value, list) and isinstance(step, int):
                value = value[step]
            else:
                value = value.get(step) if isinstance(value, dict) else None
        return value

    def list_properties(self) -> list[str]:
        """Lists the names of the customProperties of an element; those with a fault end with FAULTY."""
        return [entry["property"] for entry in self.get(PROPERTIES) or ()]

    def check_properties(self, kind: type) -> None:
        """Adds what is wrong with the customProperties of an element, which is read as `kind`."""
        known, taken = get_document(kind).known, set[str]()
        for index, name in enumerate(self.list_properties()):
            name = name.removesuffix(FAULTY)
            place = self.at(PROPERTIES, index, "property")
            if "." in name:
                continue
            if name not in known:
                place.add(f"unknown property {name!r}", suggest(name, known))
            elif name in taken:
                place.add(f"{name!r} is given twice", "Keep one of them.")
            taken.add(name)
        self.at(PROPERTIES).add_faults_of_properties()

    def add_faults_of_properties(self) -> None:
        depth = len(self.where)
        own = [fault for fault in self.of_properties if fault[0][:depth] == self.where]
        for fault in own:
            self.of_properties.remove(fault)
            replace(self, where=fault[0]).add(*fault[1:])

    def read_document(self, kind: type[AnyClass]) -> tuple[AnyClass, "Faults"]:
        """Reads the document; a property with a fault has its default in the result, and is not in the document then.

        Raises:
            ContractError: something else has a fault.
        """
        values, validate = self.parsed.values, _make_adapter(cast("Any", kind)).validate_python
        try:
            return validate(values), self
        except ValidationError as error:
            faults = tuple(explain_faults(error, get_document(kind), REFERENCE))
        for where, problem, hint in faults:
            if (place := self._find_properties(where)) == where:
                self.at(*place).add(problem, hint)
            else:
                self.of_properties.append((place, problem, hint))
        if self.found:
            self.require_none()
        values = deepcopy(values)
        for place, _, _ in self.of_properties:
            entries, index = (
                reduce(getitem, place[: place.index(PROPERTIES) + 1], values),
                place.index(PROPERTIES) + 1,
            )
            name = entries[place[index]]["property"].removesuffix(FAULTY)
            for entry in entries:
                entry["property"] += FAULTY if entry["property"] == name else ""
        return validate(values), replace(self, parsed=replace(self.parsed, values=values))

    def _find_properties(self, where: PathInDocument) -> PathInDocument:
        """Returns a path of fields as the document has it: with the entries of customProperties that were fields."""
        place: list[str | int] = []
        for step in where:
            if not isinstance(step, str) or not step.startswith(f"{PROPERTIES}."):
                place.append(step)
                continue
            names = [
                isinstance(entry, dict) and entry.get("property") for entry in self.get(*place, PROPERTIES)
            ]
            place += [PROPERTIES, names.index(step.partition(".")[2]), "value"]
        return tuple(place)
