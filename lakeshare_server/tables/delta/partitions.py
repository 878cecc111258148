"""Partition values: from the texts of a log to typed columns (Delta's PROTOCOL.md, "Partition Value Serialization")."""

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.delta_schema import arrow_type


def without_empty(texts: pa.StructArray) -> pa.StructArray:
    """The texts with null for the empty one: the two are the same by the specification, clients take null for sure."""
    if not texts.type.num_fields:
        return texts
    arrays = []
    for place in range(texts.type.num_fields):
        values = pc.struct_field(texts, [place])
        arrays.append(pc.if_else(pc.equal(values, ""), None, values))
    return pa.StructArray.from_arrays(arrays, [member.name for member in texts.type])


def typed(texts: pa.StructArray, columns: list[tuple[str, str]]) -> pa.StructArray:
    """The texts as values; `columns` are the logical names and types, in the struct's order.

    A column with a text that is no value of its type is left out: nothing is known of it.
    """
    arrays, names = [], []
    for place, (name, type_name) in enumerate(columns):
        values = _values(pc.struct_field(texts, [place]), type_name)
        if values is not None:
            arrays.append(values)
            names.append(name)
    if not arrays:
        return pa.nulls(len(texts), pa.struct([]))
    return pa.StructArray.from_arrays(arrays, names)


def _values(texts: pa.Array, type_name: str) -> pa.Array | None:
    kind = arrow_type(type_name)
    if kind is None or pa.types.is_binary(kind):
        return None
    if pa.types.is_timestamp(kind):
        # With or without a zone, by writer; whose zone is meant is known to the client only.
        texts, kind = pc.replace_substring_regex(texts, r"(Z|[+-]\d\d:?\d\d)$", ""), pa.timestamp("us")
    try:
        values = pc.cast(texts, kind)
    except pa.ArrowInvalid:
        return None
    return pc.cast(values, pa.timestamp("us", "UTC")) if type_name == "timestamp" else values
