"""Reads the YAML files that users write: strict, and with the line of every value for errors.

Contracts, files of `lakeshare apply` and declarations of backups are read with it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field, ValidationError

from lakeshare_server.errors import shorten_value, suggest

PathInDocument = tuple[str | int, ...]
MAX_VALUES = 5_000_000
# libyaml's own stack, and the process, ends somewhere above 10,000.
DEEPEST = 50
TEXT, MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


class YamlFault(Exception):
    """The text cannot be used; `line` counts from 1."""

    def __init__(self, line: int, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.line, self.problem, self.hint = line, problem, hint


class _Loader(yaml.CSafeLoader):
    """libyaml's safe loader, ten times as fast as the one in Python, with a limit of depth."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0
        self.tags: dict[str, str] = {}

    def descend_resolver(self, current_node: yaml.Node | None, current_index: Any) -> None:
        # The composer calls this method before each node.
        self.depth += 1
        if self.depth > DEEPEST:
            line = 1 if current_node is None else _line(current_node)
            raise YamlFault(line, "it is nested deeper than any file of ours", "Correct the YAML there.")

    def ascend_resolver(self) -> None:
        self.depth -= 1

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        is_plain = kind is yaml.ScalarNode and implicit[0]
        # Cached: files repeat the same words, and matching one against every pattern takes longer than reading it.
        tag = self.tags.get(value) if is_plain else None
        if tag is None:
            tag = str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]  # has no types
            if is_plain:
                self.tags[value] = tag
        return tag


@dataclass(frozen=True)
class Parsed:
    """The values of a text, its nodes for their lines, and the text."""

    values: Any
    root: yaml.Node | None
    text: str = ""

    def line(self, where: Sequence[str | int]) -> int:
        """The line of the value at a path, or of the innermost existing part around it."""
        node, line = self.root, 1
        for step in where:
            child = None if node is None else _child(node, step)
            if child is None:
                break
            line, node = child
        return line


def read(path: Path) -> Parsed:
    """Reads a YAML file; raises YamlFault, also for a file that cannot be read."""
    hint = "Give a readable YAML file in UTF-8."
    try:
        content = path.read_bytes()
        return parse(content.decode())
    except OSError as error:
        raise YamlFault(1, f"cannot be read: {error.strerror}", hint) from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise YamlFault(line, f"cannot be read: {error}", hint) from error


def parse(text: str) -> Parsed:
    """Parses YAML; raises YamlFault, also for a key that is given twice and for aliases to too many values."""
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is not None:
                _require_sound(root)
            values = None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or str(error).splitlines()[0]
        raise YamlFault(1 if mark is None else mark.line + 1, problem, "Correct the YAML there.") from error
    except (yaml.YAMLError, ValueError) as error:
        # A character that YAML forbids, or a date like 2024-02-31.
        raise YamlFault(1, str(error).splitlines()[0], "Correct the YAML there.") from error
    return Parsed(values, root, text)


def _require_sound(root: yaml.Node) -> None:
    sizes: dict[int, int] = {}
    open_: set[int] = set()

    def size(node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) in open_:
            raise YamlFault(_line(node), "it contains itself", "Write it out without the alias.")
        if id(node) not in sizes:
            open_.add(id(node))
            if isinstance(node, yaml.MappingNode):
                _require_single_keys(node)
                inner = [part for pair in node.value for part in pair]
            else:
                inner = list(node.value)
            sizes[id(node)] = 1 + sum(map(size, inner))
            open_.discard(id(node))
        return sizes[id(node)]

    unfolded = size(root)
    if unfolded > MAX_VALUES:
        hint = f"At most {MAX_VALUES:,} are read from one file; write fewer aliases, or several files."
        raise YamlFault(_line(root), f"it unfolds to {unfolded:,} values", hint)


def _require_single_keys(node: yaml.MappingNode) -> None:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise YamlFault(_line(key), "a key is no text", "Use names as keys.")
        if key.tag not in (TEXT, MERGE):
            raise YamlFault(_line(key), f"the key {key.value!r} is no text to YAML", "Write it in quotes.")
        if key.value in seen:
            problem = f"the key {key.value!r} is given twice, first in line {seen[key.value]}"
            raise YamlFault(_line(key), problem, "Keep one of them.")
        seen[key.value] = _line(key)


def _child(node: yaml.Node, step: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return _line(key), value
    elif isinstance(node, yaml.SequenceNode):
        if isinstance(step, int):
            return (_line(node.value[step]), node.value[step]) if step < len(node.value) else None
        for item in node.value:
            # A list of names is short for a mapping without values; elements of contracts have their names inside.
            is_named = isinstance(item, yaml.MappingNode) and any(
                key.value in ("property", "name") and value.value == step for key, value in item.value
            )
            if item.value == step or is_named:
                return _line(item), item
    return None


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line + 1
    return line


def format_path(where: Sequence[str | int]) -> str:
    """`shares.partners.tables["sales.orders"].rule`."""
    text = ""
    for step in where:
        if isinstance(step, int):
            text += f"[{step}]"
        elif "." in step:
            text += f'["{step}"]'
        else:
            text += f".{step}" if text else step
    return text or "the file"


FORMS: dict[str, str] = {}


def written_as(pattern: str, form: str) -> Any:
    """A field of texts that match a pattern; errors describe them by `form`."""
    FORMS[pattern] = form
    return Field(pattern=pattern)


def explain_faults(
    error: ValidationError, model: type[BaseModel], reference: str
) -> Iterator[tuple[PathInDocument, str, str]]:
    """Yields path, problem and remedy of each fault that pydantic found in a document; `reference` lists its fields."""
    faults = error.errors()
    holders = {fault["loc"][:depth] for fault in faults for depth in range(len(fault["loc"]))}
    for fault in faults:
        kind, where = fault["type"], tuple(step for step in fault["loc"] if step != "[key]")
        # Items with faults do not count for pydantic, which then finds their list too short.
        if kind == "too_short" and where in holders:
            continue
        if kind in ("extra_forbidden", "unexpected_keyword_argument"):
            hint = suggest(str(where[-1]), list_fields(model, where[:-1]))
            yield where, f"unknown field {where[-1]!r}", hint
        elif kind == "missing":
            yield where, "is missing", f"Add it; {reference} lists every field."
        else:
            yield where, f"cannot be {_show_value(fault)}", _find_remedy(fault)


def _show_value(fault: Mapping[str, Any]) -> str:
    """The refused value; only its type if that is wrong and it is a mapping or a list."""
    value = fault["input"]
    if isinstance(value, date):
        return value.isoformat()
    if fault["type"] == "value_error" and isinstance(value, dict | list):
        return shorten_value(json.dumps(value, ensure_ascii=False, default=str))
    is_plain = isinstance(value, str | int | float | bool | None)
    return shorten_value(repr(value)) if is_plain else f"a {type(value).__name__}"


def _find_remedy(fault: Mapping[str, Any]) -> str:
    match fault["type"]:
        case "literal_error":
            expected = str(fault["ctx"]["expected"])
            words = [word.strip("' ") for word in expected.replace(" or ", ",").split(",")]
            return suggest(str(fault["input"]), words, f"Use {expected}.")
        case "model_type" | "dataclass_type":
            return "Input should be a mapping."
        case "value_error":
            return f"{str(fault['ctx']['error']).rstrip('.')}."
        # Pydantic counts the characters of a text with a check of its own as items.
        case "too_short" if isinstance(fault["input"], str):
            return f"Give {fault['ctx']['min_length']} or more characters."
        case "too_long" if isinstance(fault["input"], str):
            return f"Give {fault['ctx']['max_length']} or fewer characters."
        case "string_pattern_mismatch" if (form := FORMS.get(fault["ctx"]["pattern"])) is not None:
            return f"Write {form}."
        case "string_type" if isinstance(fault["input"], int | float | date):
            return "Write it in quotes: YAML takes it for something else than text."
    return f"{fault['msg']}.".replace("tuple", "list").replace("Tuple", "List")


def list_fields(model: type[BaseModel], where: Sequence[str | int]) -> list[str]:
    """Lists the fields that a model accepts at a path of its document; nothing where it has no known fields."""
    schema = _make_schema(model)
    found: list[Mapping[str, Any]] = [schema]
    for step in where:
        # A step of pydantic that is not in the document, like the alternative of a union, leads nowhere.
        found = [inner for part in found for inner in _list_inner(part, step, schema)] or found
    return sorted({name for part in found for name in part.get("properties", {}) if "." not in name})


@cache
def _make_schema(model: type[BaseModel]) -> Mapping[str, Any]:
    return model.model_json_schema()


def _list_inner(
    schema: Mapping[str, Any], step: str | int, root: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """The alternatives of the value at a step below a schema."""
    if isinstance(step, int):
        inner = schema.get("items")
    else:
        inner = schema.get("properties", {}).get(step) or schema.get("additionalProperties")
    if isinstance(inner, Mapping):
        yield from _list_alternatives(inner, root)


def _list_alternatives(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "$ref" in schema:
        yield from _list_alternatives(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    elif "anyOf" in schema:
        for part in schema["anyOf"]:
            yield from _list_alternatives(part, root)
    else:
        yield schema
