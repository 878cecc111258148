"""Per-file statistics: from the JSON texts of a log to typed columns, with the table's own column names.

Delta's PROTOCOL.md, "Per-file Statistics". What does not parse is unknown, one value at a time, never an error.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from lakeshare_server.tables.arrays import column_of
from lakeshare_server.tables.byte_strings import is_printable
from lakeshare_server.tables.delta.leaves import Leaf, arrow_struct, shaped
from lakeshare_server.tables.json_text import PLAIN, Part, joined

BLOCK_BYTES = 1 << 22
# A block that does not parse is halved down to this size, then read row by row.
ROW_BY_ROW = 256
# What does not stand behind an object, within another one or at the end of a text: something else begins there.
BEHIND_OBJECT = r"\}\s*[^\s,}\]\"]"


@dataclass(frozen=True)
class Statistics:
    """Typed statistics, one row per file; `text` is null where the log has none that a reader could use."""

    rows: pa.Array
    min: pa.StructArray
    max: pa.StructArray
    null_count: pa.StructArray
    text: pa.Array


def parse_stats(texts: pa.Array, leaves: Sequence[Leaf]) -> Statistics:
    """The statistics in the log's texts."""
    schema = pa.schema(
        [
            ("numRecords", pa.int64()),
            ("minValues", arrow_struct(leaves, lambda leaf: leaf.read_as)),
            ("maxValues", arrow_struct(leaves, lambda leaf: leaf.read_as)),
            ("nullCount", arrow_struct(leaves, lambda _: pa.int64())),
        ]
    )
    table, is_json = _parsed(texts, schema)
    rows = column_of(table, "numRecords")
    rows = pc.if_else(pc.greater_equal(rows, 0), rows, None)
    usable = pc.and_(is_json, pc.is_valid(rows))
    return Statistics(
        rows=rows,
        min=shaped(column_of(table, "minValues"), leaves, lambda leaf, values: leaf.low(values)),
        max=shaped(column_of(table, "maxValues"), leaves, lambda leaf, values: leaf.high(values)),
        null_count=shaped(column_of(table, "nullCount"), leaves, lambda _, values: values),
        text=texts if pc.all(usable, min_count=0).as_py() else pc.if_else(usable, texts, None),
    )


def stats_texts(texts: pa.Array, adds: pa.StructArray) -> pa.Array:
    """The JSON texts of a checkpoint's files; those it has as a struct only are written as JSON here."""
    if not texts.null_count or adds.type.get_field_index("stats_parsed") < 0:
        return texts
    parsed = pc.struct_field(adds, ["stats_parsed"])
    return pc.coalesce(texts, pc.if_else(pc.is_valid(parsed), joined(_object(parsed), null=""), None))


def _object(values: pa.StructArray) -> list[Part]:
    members: list[tuple[str, list[Part]]] = []
    for position, member in enumerate(values.type):
        inner = pc.struct_field(values, [position])
        if pa.types.is_struct(member.type):
            members.append((member.name, _object(inner)))
        elif pa.types.is_boolean(member.type):
            members.append((member.name, [pc.cast(inner, pa.string())]))
        else:
            value = PLAIN.value(inner)
            if value is not None:
                members.append((member.name, value))
    return PLAIN.object(members)


def _parsed(texts: pa.Array, schema: pa.Schema) -> tuple[pa.Table, pa.Array]:
    """The texts as columns, and which of them are JSON; a text that is missing has nothing but nulls."""
    try:
        return _by_arrow(texts, schema), pc.is_valid(texts)
    except pa.ArrowInvalid:
        if len(texts) <= ROW_BY_ROW:
            return _by_row(texts, schema)
    half = len(texts) // 2
    first, second = _parsed(texts.slice(0, half), schema), _parsed(texts.slice(half), schema)
    return pa.concat_tables([first[0], second[0]]), pa.concat_arrays([first[1], second[1]])


def _by_arrow(texts: pa.Array, schema: pa.Schema) -> pa.Table:
    if not len(texts):
        return schema.empty_table()
    texts = pc.fill_null(texts, "{}")
    _require_one_object_each(texts)
    one_line = texts if is_printable(texts) else pc.replace_substring(texts, "\n", " ")
    lines = pc.binary_join_element_wise(one_line, "", "\n")
    table = pj.read_json(
        pa.BufferReader(_bytes_of(lines)),
        read_options=pj.ReadOptions(block_size=BLOCK_BYTES),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(texts):
        raise pa.ArrowInvalid("a statistics text is more or less than one JSON object")
    return table


def _require_one_object_each(texts: pa.Array) -> None:
    """Refuse what Arrow would read on into the next text, or crash on: it takes a bare null for an empty column."""
    bounded = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    one = pc.and_(bounded, pc.invert(pc.match_substring_regex(texts, BEHIND_OBJECT)))
    if not pc.all(one, min_count=0).as_py():
        raise pa.ArrowInvalid("a statistics text is not one JSON object")


def _bytes_of(lines: pa.StringArray) -> pa.Buffer:
    _, offsets, characters = lines.buffers()
    ends = memoryview(offsets).cast("i")
    first, last = ends[lines.offset], ends[lines.offset + len(lines)]
    return characters.slice(first, last - first)


def _by_row(texts: pa.Array, schema: pa.Schema) -> tuple[pa.Table, pa.Array]:
    said = [_json(text) for text in texts.to_pylist()]
    rows = [_kept(one, pa.struct(list(schema))) if isinstance(one, dict) else {} for one in said]
    table = pa.table(
        {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in schema}
    )
    return table, pa.array([isinstance(one, dict) for one in said], pa.bool_())


def _json(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def _kept(said: Mapping[str, Any], kind: pa.StructType) -> dict[str, Any]:
    kept = {}
    for member in kind:
        value = said.get(member.name)
        if pa.types.is_struct(member.type):
            kept[member.name] = _kept(value, member.type) if isinstance(value, dict) else None
        else:
            kept[member.name] = _leaf(value, member.type)
    return kept


def _leaf(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, bool):
        return None
    if pa.types.is_integer(kind):
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return int(value) if whole and -(1 << 63) <= value < 1 << 63 else None
    if pa.types.is_floating(kind):
        return _float(value)
    return value if isinstance(value, str) and _is_text(value) else None


def _is_text(value: str) -> bool:
    """Whether it can be written: a writer that cuts texts may leave half a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _float(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number
