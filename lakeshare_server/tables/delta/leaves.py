"""The columns that statistics speak of, under their physical and their logical names, and how bounds are read."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.delta.mapping import physical_name
from lakeshare_server.tables.delta_schema import DECIMAL, arrow_type

# Bounds of decimals are read as doubles, which are off by less than this part of the value.
DOUBLE_ERROR = 1e-15


@dataclass(frozen=True)
class Leaf:
    """A column, or with `members` a struct of columns; `type` is the protocol's name of a primitive."""

    name: str
    physical: str
    type: str | None = None
    members: tuple["Leaf", ...] = ()

    @property
    def read_as(self) -> pa.DataType | None:
        """The Arrow type its bounds are read from JSON as; None for a type that has no bounds."""
        if self.type is None or self.type in ("boolean", "binary"):
            return None
        if DECIMAL.fullmatch(self.type):
            return pa.float64()
        kind = arrow_type(self.type)
        if kind is None:
            return None
        if pa.types.is_integer(kind):
            return pa.int64()
        if pa.types.is_floating(kind):
            return pa.float64()
        # Read as text, so that each is judged on its own, and a time without the zone it should have is none.
        return pa.string() if pa.types.is_temporal(kind) else kind

    def low(self, values: pa.Array) -> pa.Array:
        """Lower bounds as read, in the type they are compared in."""
        return self._bound(values, -DOUBLE_ERROR)

    def high(self, values: pa.Array) -> pa.Array:
        """Upper bounds as read, in the type they are compared in."""
        return self._bound(values, DOUBLE_ERROR)

    def _bound(self, values: pa.Array, error: float) -> pa.Array:
        if self.type is not None and DECIMAL.fullmatch(self.type):
            return pc.add(values, pc.multiply(pc.abs(values), error))
        kind = arrow_type(self.type) if self.type is not None else None
        if kind is not None and pa.types.is_temporal(kind):
            return _moments(values, kind)
        if kind is not None and pa.types.is_integer(kind) and kind != values.type:
            return _narrowed(values, kind)
        return values


def leaves_of(schema_string: str, left_out: Sequence[str] = ()) -> tuple[Leaf, ...]:
    """The columns of a schema, without those named, which are partition columns."""
    members = json.loads(schema_string)["fields"]
    return tuple(_leaf(member) for member in members if member["name"] not in left_out)


def arrow_struct(leaves: Sequence[Leaf], kind: Callable[[Leaf], pa.DataType | None]) -> pa.StructType:
    """A struct of the leaves' physical names; leaves without a type are left out."""
    fields = []
    for leaf in leaves:
        its = arrow_struct(leaf.members, kind) if leaf.members else kind(leaf)
        if its is not None and not (leaf.members and not its.num_fields):
            fields.append(pa.field(leaf.physical, its))
    return pa.struct(fields)


def shaped(
    values: pa.StructArray, leaves: Sequence[Leaf], convert: Callable[[Leaf, pa.Array], pa.Array]
) -> pa.StructArray:
    """The values under logical names; columns that are null in every file are left out."""
    arrays, names = [], []
    for leaf in leaves:
        if values.type.get_field_index(leaf.physical) < 0:
            continue
        inner = pc.struct_field(values, [leaf.physical])
        inner = shaped(inner, leaf.members, convert) if leaf.members else convert(leaf, inner)
        if (leaf.members and inner.type.num_fields) or (not leaf.members and inner.null_count < len(inner)):
            arrays.append(inner)
            names.append(leaf.name)
    if not arrays:
        return pa.nulls(len(values), pa.struct([]))
    return pa.StructArray.from_arrays(arrays, names)


def _leaf(member: Mapping[str, Any]) -> Leaf:
    kind = member["type"]
    if isinstance(kind, dict) and kind["type"] == "struct":
        inner = tuple(_leaf(one) for one in kind["fields"])
        return Leaf(member["name"], physical_name(member), members=inner)
    return Leaf(member["name"], physical_name(member), type=kind if isinstance(kind, str) else None)


def _moments(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Dates or times; null for a text that is none. Bad ones are searched for by halves: there are few."""
    try:
        return pc.cast(texts, kind)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, kind)
    half = len(texts) // 2
    return pa.concat_arrays([_moments(texts.slice(0, half), kind), _moments(texts.slice(half), kind)])


def _narrowed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    limit = 1 << (kind.bit_width - 1)
    fits = pc.and_(pc.greater_equal(values, -limit), pc.less(values, limit))
    return pc.cast(pc.if_else(fits, values, None), kind)
