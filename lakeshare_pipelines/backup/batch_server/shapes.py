"""The shapes of s3control, as botocore's own service model has them: what is looked up, and what is checked.

The Stubber of botocore checks types and required members only; this checks enums, patterns, lengths and ranges too.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

# Shapes are botocore's, which comes without types.
Shape = Any

# Python's `re` knows no classes of Unicode properties; in the model's patterns they stand in brackets only.
PROPERTIES = {r"\p{L}": r"\w", r"\p{Z}": r"\s", r"\p{N}": r"\d"}
ONE_OF = {
    "JobOperation": "an operation",
    "JobManifestGenerator": "a manifest generator",
}


@cache
def operation(name: str) -> Any:
    """The model of one operation; botocore ships no types."""
    import botocore.session

    return botocore.session.get_session().get_service_model("s3control").operation_model(name)


def member_name(shape: Shape, member: str) -> str:
    """The element that holds a member of a structure."""
    name: str = shape.members[member].serialization.get("name", member)
    return name


def problems(shape: Shape, value: Any, path: str = "") -> Iterator[str]:
    """What is wrong with a value that should be of a shape: one sentence each, none when all is well."""
    if shape.type_name == "structure":
        yield from _problems_of_structure(shape, value, path)
    elif shape.type_name == "list":
        yield from _problems_of_length(shape, len(value), path, "members")
        for number, one in enumerate(value):
            yield from problems(shape.member, one, f"{path}[{number}]")
    elif shape.type_name == "map":
        yield from _problems_of_length(shape, len(value), path, "entries")
        for key, one in value.items():
            yield from problems(shape.key, key, f"{path} key {key!r}")
            yield from problems(shape.value, one, f"{path}.{key}")
    elif shape.type_name == "string":
        yield from _problems_of_string(shape, value, path)
    elif shape.type_name in ("integer", "long"):
        yield from _problems_of_length(shape, value, path, "")


def _problems_of_structure(shape: Shape, value: dict[str, Any], path: str) -> Iterator[str]:
    for name in shape.required_members:
        if name not in value:
            yield f"{_at(path, name)} is missing."
    if shape.name in ONE_OF and len(value) != 1:
        said = ", ".join(value) or "none"
        yield f"{path or shape.name} takes exactly one member, {ONE_OF[shape.name]}; it has {said}."
    for name, one in value.items():
        if name not in shape.members:
            yield f"{_at(path, name)} is not known."
        else:
            yield from problems(shape.members[name], one, _at(path, name))


def _problems_of_string(shape: Shape, value: str, path: str) -> Iterator[str]:
    if shape.enum and value not in shape.enum:
        yield f"{path} is {value!r}; it can be {', '.join(shape.enum)}."
    yield from _problems_of_length(shape, len(value), path, "characters")
    pattern = shape.metadata.get("pattern")
    if pattern is not None and not re.fullmatch(_for_python(pattern), value):
        yield f"{path} is {value!r}, which does not match {pattern}."


def _problems_of_length(shape: Shape, size: int, path: str, unit: str) -> Iterator[str]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    told = f"{size} {unit}".strip()
    if least is not None and size < least:
        yield f"{path} has {told}, at least {least} are wanted."
    if most is not None and size > most:
        yield f"{path} has {told}, at most {most} are allowed."


@cache
def _for_python(pattern: str) -> str:
    for theirs, ours in PROPERTIES.items():
        pattern = pattern.replace(theirs, ours)
    return pattern


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
