"""Types of columns in Spark's spelling: those of each table format, and `struct<…>`, `array<…>`, `map<string,…>`."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

LogicalType = Literal["string", "date", "timestamp", "number", "integer", "boolean", "object", "array"]
TableFormat = Literal["iceberg", "delta"]

ALIASES = {"integer": "int", "long": "bigint", "real": "float", "byte": "tinyint", "short": "smallint"}

_SAME_NAME = ("string", "date", "timestamp", "boolean")
DEFAULTS = {**{kind: kind for kind in _SAME_NAME}, "number": "double", "integer": "bigint"}
# Without fields, and so refused: these need a physicalType.
DEFAULTS |= {"object": "struct<>", "array": "array<>"}
PHYSICAL_TYPES = {
    **{kind: {kind} for kind in _SAME_NAME},
    "string": {"string", "binary"},
    "number": {"float", "double", "decimal"},
    "integer": {"tinyint", "smallint", "int", "bigint"},
    "object": {"struct", "map"},
    "array": {"array"},
}

_ICEBERG_TYPES = {*_SAME_NAME, "int", "bigint", "float", "double", "decimal", "binary"}
# Iceberg has no integers below 32 bits: Spark would make ints of them and the table would not match its contract.
TYPES_OF_FORMAT = {"iceberg": _ICEBERG_TYPES, "delta": _ICEBERG_TYPES | {"tinyint", "smallint"}}

_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\((\d+)(?:,(\d+))?\)")
MAX_PRECISION = 38
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


def parse_type(text: str, *, of_values: bool = False) -> Type:
    """Parses a type in Spark's spelling; names keep their case, and simple types are as they are written.

    `object`, as in Spark's schemas of variants, is a struct. A type of values, not of a contract, may have fields that
    differ by case only; what is nested too deep in it is a string.

    Raises:
        ValueError: the text is no type, a struct has no field or one twice, or it is nested too deep.
    """
    reader = _TypeReader(text, of_values)
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


def map_leaves(kind: Type, change: Callable[[str], str]) -> Type:
    """Returns a type with others in place of the simple types within it."""
    if isinstance(kind, str):
        return change(kind)
    return Nested(kind.kind, tuple((name, map_leaves(part, change)) for name, part in kind.parts))


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
            return str(map_leaves(parsed, normalize_type))
    text = re.sub(r"\s+", "", physical.lower())
    decimal = _DECIMAL.fullmatch(text)
    if decimal:
        return f"decimal({int(decimal[1])},{int(decimal[2] or 0)})"
    return ALIASES.get(text, text)


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


def explain_wrong_type(spark_type: str, logical: str | None, table_format: TableFormat) -> str | None:
    """Returns why a column cannot have this type, None if it can."""
    base, decimal = get_base_type(spark_type), _DECIMAL.fullmatch(spark_type)
    if is_nested(spark_type):
        wrong = _explain_wrong_parts(spark_type, table_format)
        if wrong is not None:
            return wrong
    elif base not in TYPES_OF_FORMAT[table_format]:
        return f"type {spark_type!r} cannot be used in a table of format {table_format}"
    precision, scale = (int(part or 0) for part in decimal.groups()) if decimal else (0, 0)
    if base == "decimal" and not (1 <= precision <= MAX_PRECISION and scale <= precision):
        return f"type {spark_type!r} needs a precision of 1 to {MAX_PRECISION} and a scale up to it"
    if logical is not None and base not in PHYSICAL_TYPES[logical]:
        return f"type {spark_type!r} contradicts logicalType {logical!r}"
    return None


def _explain_wrong_parts(spark_type: str, table_format: TableFormat) -> str | None:
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


class _TypeReader:
    """Reads a type from the beginning of a text; `rest` is what was not read."""

    def __init__(self, text: str, of_values: bool) -> None:
        self.rest, self._of_values = text.strip(), of_values
        self._depth = 0

    def read_type(self) -> Type:
        word = self._take(r"[A-Za-z_]\w*(\s*\([\d\s,]*\))?", "a type")
        if not self.rest.startswith("<"):
            return re.sub(r"\s+", "", word.lower())
        kind = {"object": "struct"}.get(word.lower(), word.lower())
        if self._depth == MAX_DEPTH:
            return self._skip_parts()
        self._depth += 1
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

    def _skip_parts(self) -> Type:
        depth = 0
        for found in re.finditer(r"`(?:[^`]|``)*`|[<>]", self.rest if self._of_values else ""):
            depth += {"<": 1, ">": -1}.get(found[0], 0)
            if not depth:
                self.rest = self.rest[found.end() :].lstrip()
                return "string"
        raise ValueError(f"it is nested more than {MAX_DEPTH} times")

    def _read_fields(self) -> tuple[tuple[str, Type], ...]:
        fields: list[tuple[str, Type]] = []
        while not self.rest.startswith(">"):
            if fields:
                self._take(",", "a comma")
            name = self._take(r"`(?:[^`]|``)*`|[^\W\d]\w*", "the name of a field")
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            if not self._of_values and name.lower() in {known.lower() for known, _ in fields}:
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
