"""Nested types of columns, `struct<…>`, `array<…>` and `map<string,…>`, parsed from Spark's spelling."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

MAX_DEPTH = 10
EXAMPLES = "Write struct<sku:string,qty:int>, array<string> or map<string,double>."


@dataclass(frozen=True)
class Nested:
    """A nested type; `parts` are the fields of a struct, `element` of an array, `key` and `value` of a map."""

    kind: Literal["struct", "array", "map"]
    parts: "tuple[tuple[str, Type], ...]"

    def __str__(self) -> str:
        inner = [f"{name}:{part}" if self.kind == "struct" else str(part) for name, part in self.parts]
        return f"{self.kind}<{','.join(inner)}>"


Type: TypeAlias = str | Nested


def is_nested(spark_type: str) -> bool:
    """Whether a type is spelled as a nested one."""
    return re.match(r"\s*(struct|array|map|object)\s*(<|$)", spark_type, re.IGNORECASE) is not None


def parse_type(text: str) -> Type:
    """Parses a type in Spark's spelling; names keep their case, and simple types are as they are written.

    `object`, as in Spark's schemas of variants, is a struct.

    Raises:
        ValueError: the text is no type, a struct has no field or one twice, or it is nested too deep.
    """
    reader = _TypeReader(text)
    parsed = reader.read_type()
    if reader.rest:
        raise ValueError(f"{reader.rest[:20]!r} follows the type")
    return parsed


def list_leaves(kind: Type, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the simple types within a type, each with its path, as `items.element.qty`."""
    if isinstance(kind, str):
        yield path, kind
        return
    for name, part in kind.parts:
        yield from list_leaves(part, f"{path}.{name}" if path else name)


def find_unknown_fields(expected: Type, found: Type, path: str) -> list[str]:
    """Returns the paths of the fields that `found` has beyond the expected ones; not below other types."""
    if isinstance(expected, str) or isinstance(found, str):
        return []
    if expected.kind == "map" and found.kind == "struct":
        # The schema of a variant has the keys of a map as fields.
        value = dict(expected.parts)["value"]
        return list(
            dict.fromkeys(each for _, part in found.parts for each in find_unknown_fields(value, part, path))
        )
    if expected.kind != found.kind:
        return []
    known = dict(expected.parts)
    unknown = []
    for name, part in found.parts:
        inner = f"{path}.{name}" if expected.kind == "struct" else path
        unknown += find_unknown_fields(known[name], part, inner) if name in known else [inner]
    return unknown


class _TypeReader:
    """Reads a type from the beginning of a text; `rest` is what was not read."""

    def __init__(self, text: str) -> None:
        self.rest = text.strip()
        self._depth = 0

    def read_type(self) -> Type:
        word = self._take(r"[A-Za-z_]\w*(\s*\([\d\s,]*\))?", "a type")
        if not self.rest.startswith("<"):
            return re.sub(r"\s+", "", word.lower())
        kind = {"object": "struct"}.get(word.lower(), word.lower())
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} times")
        self._take("<", "<")
        parts: tuple[tuple[str, Type], ...]
        if kind == "struct":
            parts = self._read_fields()
            if not parts and word.lower() != "object":
                raise ValueError("a struct has no fields")
        elif kind == "array":
            parts = (("element", self.read_type()),)
        elif kind == "map":
            key = self.read_type()
            if key != "string":
                raise ValueError(f"keys of a map are string, not {key}")
            self._take(",", "a comma")
            parts = (("key", key), ("value", self.read_type()))
        else:
            raise ValueError(f"{word!r} has no parts")
        self._take(">", "'>'")
        self._depth -= 1
        return Nested(kind, parts)  # type: ignore[arg-type]  # one of the three

    def _read_fields(self) -> tuple[tuple[str, Type], ...]:
        fields: list[tuple[str, Type]] = []
        while not self.rest.startswith(">"):
            if fields:
                self._take(",", "a comma")
            name = self._take(r"`(?:[^`]|``)*`|[^\W\d]\w*", "the name of a field")
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            if name.lower() in {known.lower() for known, _ in fields}:
                raise ValueError(f"it has the field {name!r} twice")
            self._take(":?", "a colon")
            fields.append((name, self.read_type()))
        return tuple(fields)

    def _take(self, pattern: str, expected: str) -> str:
        found = re.match(pattern, self.rest)
        if found is None:
            raise ValueError(f"{expected} is expected before {self.rest[:20]!r}")
        self.rest = self.rest[found.end() :].lstrip()
        return found[0]
