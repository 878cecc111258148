"""The columns that predicates can speak of: their own types, and which one a name means.

A name that means no column, or may mean more than one, is not resolved: nothing is known of it then.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from lakeshare_server.tables.delta_schema import Field, arrow_type, parse_schema, struct_fields
from lakeshare_server.tables.predicate import ColumnName

Path = tuple[str, ...]
SCHEMAS_KEPT = 64
# The narrowest first: what a file index knows of its columns when it has no schema to go by.
STRUCTS = ("null_count", "min", "partition")


@dataclass(frozen=True)
class Column:
    """A primitive column, in a struct or not.

    `is_binary` is False for texts in a collation, which compare in an order that bounds do not know; `was_float` is
    True for doubles of which older files have floats.
    """

    path: Path
    type: pa.DataType
    is_binary: bool = True
    was_float: bool = False

    @property
    def name(self) -> str:
        """The name as people write it."""
        return ".".join(self.path)


class Columns:
    """The columns of a table by the names that predicates give them, in any case."""

    def __init__(self, columns: Sequence[Column], others: Sequence[Path] = ()) -> None:
        self._by_path: dict[Path, Column | None] = {}
        self._by_text: dict[str, Column | None] = {}
        for path, column in [
            *((column.path, column) for column in columns),
            *((path, None) for path in others),
        ]:
            lower = tuple(part.lower() for part in path)
            # The second of a name makes it mean neither.
            self._by_path[lower] = None if lower in self._by_path else column
            text = ".".join(lower)
            self._by_text[text] = None if text in self._by_text else column
        self._tops = {path[0] for path in self._by_path}

    def resolve(self, name: ColumnName) -> Column | None:
        """The column a predicate means; None when that is not certain."""
        if isinstance(name, str):
            # A column that is really called `a.b` comes before the field b of a.
            lower = (name.lower(),)
            return self._by_path[lower] if lower in self._by_path else self._by_text.get(lower[0])
        return self._of_sql(tuple(part.lower() for part in name))

    def _of_sql(self, parts: Path) -> Column | None:
        """What is in front of a column's name may be the table's: only one way of reading it is certain."""
        start = next((place for place, part in enumerate(parts) if part in self._tops), None)
        if start is None or any(parts[later:] in self._by_path for later in range(start + 1, len(parts))):
            return None
        return self._by_path.get(parts[start:])


def columns_of(schema_string: str | None, schema: pa.Schema) -> Columns:
    """The columns of a table; without its schema, those of which an index has statistics."""
    return _of_arrow(schema) if schema_string is None else _of_delta(schema_string)


@lru_cache(SCHEMAS_KEPT)
def _of_delta(schema_string: str) -> Columns:
    columns: list[Column] = []
    others: list[Path] = []
    for path, field in _primitives(parse_schema(schema_string), ()):
        kind = arrow_type(field.type) if isinstance(field.type, str) else None
        if kind is None:
            others.append(path)
        else:
            columns.append(Column(path, kind, _is_binary(field.metadata), _was_float(field)))
    return Columns(columns, others)


def _primitives(fields: Sequence[Field], above: Path) -> Iterator[tuple[Path, Field]]:
    for field in fields:
        path = (*above, field.name)
        inside = struct_fields(field)
        if inside is None:
            yield path, field
        else:
            yield from _primitives(inside, path)


def _is_binary(metadata: Mapping[str, Any]) -> bool:
    return "__COLLATIONS" not in metadata


def _was_float(field: Field) -> bool:
    changes = field.metadata.get("delta.typeChanges")
    return field.type == "double" and isinstance(changes, list) and "float" in str(changes)


def _of_arrow(schema: pa.Schema) -> Columns:
    found: dict[Path, Column] = {}
    for struct in STRUCTS:
        place = schema.get_field_index(struct)
        if place >= 0:
            found.update({path: Column(path, kind) for path, kind in _members(schema.field(place).type, ())})
    return Columns(list(found.values()))


def _members(struct: pa.StructType, above: Path) -> Iterator[tuple[Path, pa.DataType]]:
    for member in struct:
        path = (*above, member.name)
        if pa.types.is_struct(member.type):
            yield from _members(member.type, path)
        else:
            yield path, member.type
