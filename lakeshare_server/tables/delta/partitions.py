"""Partition values: from the texts of a log to typed columns (Delta's PROTOCOL.md, "Partition Value Serialization")."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.delta_schema import arrow_type

# An empty text is null by the specification ("Partition Value Serialization"), but delta-spark, the reference
# implementation, reads it as a value of these types (seen with 4.4.0), and other writers than Spark write it for that.
WITH_EMPTY_VALUES = ("string", "binary")


def without_empty(texts: pa.StructArray, types: Sequence[str]) -> pa.StructArray:
    """The texts with null for the empty ones that are no values; `types` are those of the columns, in their order."""
    if not texts.type.num_fields:
        return texts
    arrays = []
    for place, type_name in enumerate(types):
        values = pc.struct_field(texts, [place])
        is_value = type_name in WITH_EMPTY_VALUES
        arrays.append(values if is_value else pc.if_else(pc.equal(values, ""), None, values))
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
