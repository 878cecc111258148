"""The columns of a Parquet file as its footer tells them: names, field ids and types, at every depth."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class FileColumn:
    """A column or a group of them; `name` is the path to it, `field_id` None where the file has none."""

    name: str
    field_id: int | None
    type: pa.DataType

    @property
    def is_leaf(self) -> bool:
        """Whether it holds values itself."""
        return not pa.types.is_nested(self.type)

    @property
    def shape(self) -> str:
        """The type with the spellings that mean the same to a reader folded into one."""
        if pa.types.is_struct(self.type):
            return "struct"
        if pa.types.is_map(self.type):
            return "map"
        if pa.types.is_nested(self.type):
            return "list"
        if pa.types.is_timestamp(self.type):
            return "timestamp with zone" if self.type.tz else "timestamp"
        return str(self.type).removeprefix("large_")

    def mapped(self, ids: Mapping[str, int]) -> "FileColumn":
        """The column with the id that a name mapping has for its name."""
        return replace(self, field_id=ids.get(self.name))


def columns_of(schema: pa.Schema) -> list[FileColumn]:
    """All columns and groups of a footer."""
    return [column for field in schema for column in _columns(field.name, field)]


def named_columns(schema: pa.Schema) -> dict[str, FileColumn]:
    """The same by their paths."""
    return {column.name: column for column in columns_of(schema)}


def _columns(path: str, field: pa.Field) -> Iterator[FileColumn]:
    kind, field_id = field.type, (field.metadata or {}).get(FIELD_ID)
    yield FileColumn(path, None if field_id is None else int(field_id), kind)
    if pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            inner = kind.field(place)
            yield from _columns(f"{path}.{inner.name}", inner)
    elif pa.types.is_map(kind):
        yield from _columns(f"{path}.key", kind.key_field)
        yield from _columns(f"{path}.value", kind.item_field)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _columns(f"{path}.element", kind.value_field)
