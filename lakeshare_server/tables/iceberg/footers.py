"""The columns of a Parquet file as its footer tells them: names, field ids and types, at every depth."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

FIELD_ID = b"PARQUET:field_id"
# What a variant is made of (Parquet's "Variant Binary Encoding"), and what shredding adds to it.
VARIANT = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
SHREDDED = "typed_value"


@dataclass(frozen=True)
class FileColumn:
    """A column or a group of them; `name` is the path to it, `field_id` None where the file has none."""

    name: str
    field_id: int | None
    type: pa.DataType
    is_shredded: bool = False

    @property
    def is_variant(self) -> bool:
        """Whether it is a variant; what that is made of are no columns."""
        return bool(self.type == VARIANT)

    @property
    def is_leaf(self) -> bool:
        """Whether it holds values itself."""
        return not pa.types.is_nested(self.type)

    @property
    def shape(self) -> str:
        """The type with the spellings that mean the same to a reader folded into one."""
        if pa.types.is_struct(self.type):
            return "variant" if self.is_variant else "struct"
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


def columns_of_table(schema: "Schema") -> dict[str, FileColumn]:
    """The same of a table, by their paths; what is in a nested type is not told with it."""
    found = (
        column for field in schema.fields for column in _told(field.name, field.field_id, field.field_type)
    )
    return {column.name: column for column in found}


def _told(path: str, field_id: int, kind: "IcebergType") -> Iterator[FileColumn]:
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, StructType):
        yield FileColumn(path, field_id, pa.struct([]))
        for field in kind.fields:
            yield from _told(f"{path}.{field.name}", field.field_id, field.field_type)
    elif isinstance(kind, MapType):
        yield FileColumn(path, field_id, pa.map_(pa.string(), pa.null()))
        yield from _told(f"{path}.key", kind.key_id, kind.key_type)
        yield from _told(f"{path}.value", kind.value_id, kind.value_type)
    elif isinstance(kind, ListType):
        yield FileColumn(path, field_id, pa.list_(pa.null()))
        yield from _told(f"{path}.element", kind.element_id, kind.element_type)
    elif str(kind) == "variant":
        yield FileColumn(path, field_id, VARIANT)
    else:
        yield FileColumn(path, field_id, schema_to_pyarrow(kind))


def _columns(path: str, field: pa.Field) -> Iterator[FileColumn]:
    kind, field_id = field.type, (field.metadata or {}).get(FIELD_ID)
    if field_id is not None and _is_variant(kind):
        yield FileColumn(path, int(field_id), VARIANT, kind.get_field_index(SHREDDED) >= 0)
        return
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


def _is_variant(kind: pa.DataType) -> bool:
    """Whether a group is a variant: Arrow keeps nothing of that annotation, but only variants have no ids inside."""
    if not pa.types.is_struct(kind):
        return False
    members = [kind.field(place) for place in range(kind.num_fields)]
    names = {member.name for member in members}
    has_ids = any(FIELD_ID in (member.metadata or {}) for member in members)
    return not has_ids and {"metadata"} < names <= {"metadata", "value", SHREDDED}
