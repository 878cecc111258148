"""The line of a file in a parquet-format answer, rendered when it is published, but for its URL and what follows.

`{"file":{"url":"` + URL + rendered + what the request adds + `}}`.
"""

import hashlib

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.byte_strings import byte_strings, texts_of_width
from lakeshare_server.tables.json_text import NESTED, PLAIN, JsonText, Part, joined, value_text

LINE_HEAD = b'{"file":{"url":"'
LINE_TAIL = b"}}\n"


def parquet_lines(files: pa.Table, partition_columns: tuple[str, ...]) -> pa.Array:
    """The rendered part of each file's line; `files` is one chunk of a snapshot's files."""
    parts = [
        '","id":"',
        file_ids(_column(files, "name")),
        '","partitionValues":',
        *_partition_values(_column(files, "partition"), partition_columns),
        ',"size":',
        pc.cast(_column(files, "size"), pa.string()),
        *_stats(files),
    ]
    return joined(parts, null="")


def file_ids(names: pa.Array) -> pa.Array:
    """Ids as the reference server makes them for the parquet format: MD5 of the path as the metadata has it."""
    digests = [hashlib.md5(name, usedforsecurity=False).digest() for name in byte_strings(names)]
    return texts_of_width(b"".join(digests).hex().encode(), 32)


def _partition_values(partition: pa.StructArray, columns: tuple[str, ...]) -> list[Part]:
    members: list[tuple[str, list[Part]]] = []
    for column in columns:
        values = pc.struct_field(partition, [column])
        text = value_text(values)
        # Only strings can hold what JSON escapes.
        value = PLAIN.string(text) if pa.types.is_string(values.type) else ['"', text, '"']
        members.append((column, [pc.fill_null(joined(value), "null")] if text.null_count else value))
    return PLAIN.object(members)


def _stats(files: pa.Table) -> list[Part]:
    """`,"stats":"…"`: a JSON object inside a JSON string; null for a file of which the row count is not known."""
    rows = pc.cast(_column(files, "rows"), pa.string())
    members: list[tuple[str, list[Part]]] = [("numRecords", [rows])]
    for key, struct in (("minValues", "min"), ("maxValues", "max"), ("nullCount", "null_count")):
        members.append((key, _struct(_column(files, struct), NESTED)))
    parts = [',"stats":"', *NESTED.object(members), '"']
    if not rows.null_count:
        return parts
    # Bounds without a row count are of no use to a reader, and Delta's own readers want the count.
    return [pc.if_else(pc.is_valid(rows), joined(parts, null=""), None)]


def _struct(values: pa.StructArray, text: JsonText) -> list[Part]:
    members: list[tuple[str, list[Part]]] = []
    for position, member in enumerate(values.type):
        inner = pc.struct_field(values, [position])
        if pa.types.is_struct(member.type):
            members.append((member.name, _struct(inner, text)))
        else:
            value = text.value(inner)
            if value is not None:
                members.append((member.name, value))
    return text.object(members)


def _column(files: pa.Table, name: str) -> pa.Array:
    return files.column(name).combine_chunks()
