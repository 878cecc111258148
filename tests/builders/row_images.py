"""The rows that a data file gives to a table: its parquet bytes, less its deletion vector, in the table's schema.

Applies column mapping, partition values, type widening and missing columns as the Delta protocol says.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.builders.canonical import Kind

CHANGE_TYPE = "_change_type"


@dataclass(frozen=True)
class TableShape:
    """What of a table's metadata its files are read by."""

    schema: Mapping[str, Any]
    mapping: str
    """Column mapping: none, name or id."""
    physical_partitions: bool
    """Whether partition values go by physical names, as in the log and in delta format."""

    @property
    def columns(self) -> list[tuple[str, Kind]]:
        return [(field["name"], field["type"]) for field in self.schema["fields"]]


@dataclass(frozen=True)
class Image:
    """One file and which of its rows count."""

    content: bytes
    partition_values: Mapping[str, str | None]
    deleted: np.ndarray | None = None
    only: np.ndarray | None = None
    """Take these rows and no others: the difference of two deletion vectors."""


def file_rows(shape: TableShape, image: Image, *, with_change_type: bool = False) -> list[list[Any]]:
    """The rows as plain values in the order of the schema; with `_change_type` last where the file has it."""
    table = pq.ParquetFile(io.BytesIO(image.content), coerce_int96_timestamp_unit="us").read()
    kept = np.ones(table.num_rows, bool)
    if image.deleted is not None:
        kept[image.deleted.astype(np.int64)] = False
    if image.only is not None:
        chosen = np.zeros(table.num_rows, bool)
        chosen[image.only.astype(np.int64)] = True
        kept &= chosen
    lists = [list(_column(shape, image, table, field)) for field in shape.schema["fields"]]
    if with_change_type:
        lists.append(table.column(CHANGE_TYPE).to_pylist())
    # Not by Arrow: it has no filter for the string views that deltalake's files ask for.
    return [list(row) for row in compress(zip(*lists, strict=True), kept)]


def _column(shape: TableShape, image: Image, table: pa.Table, field: Mapping[str, Any]) -> Iterator[Any]:
    name = physical_name(field) if shape.mapping != "none" and shape.physical_partitions else field["name"]
    if name in image.partition_values:
        value = partition_value(image.partition_values[name], field["type"])
        yield from [value] * table.num_rows
        return
    position = _position(table.schema, field, shape.mapping)
    if position is None:
        yield from [None] * table.num_rows
        return
    convert = _reader(table.schema.field(position).type, field["type"], shape.mapping)
    yield from (convert(value) for value in table.column(position).to_pylist())


def physical_name(field: Mapping[str, Any]) -> str:
    """The name a column has in files and in the log when it is mapped."""
    return field["metadata"].get("delta.columnMapping.physicalName", field["name"])


def _position(fields: pa.Schema | pa.StructType, field: Mapping[str, Any], mapping: str) -> int | None:
    if mapping == "id":
        wanted = str(field["metadata"]["delta.columnMapping.id"]).encode()
        for position, candidate in enumerate(fields):
            if (candidate.metadata or {}).get(b"PARQUET:field_id") == wanted:
                return position
        return None
    name = physical_name(field) if mapping == "name" else field["name"]
    names = [candidate.name for candidate in fields]
    return names.index(name) if name in names else None


def _reader(stored: pa.DataType, kind: Kind, mapping: str) -> Callable[[Any], Any]:
    """From a file's values to plain values of the schema's type, structs keyed by logical names."""
    if isinstance(kind, str):
        return lambda value: value
    match kind["type"]:
        case "array":
            item = _reader(stored.value_type, kind["elementType"], mapping)
            return lambda values: None if values is None else [item(value) for value in values]
        case "map":
            key = _reader(stored.key_type, kind["keyType"], mapping)
            inner = _reader(stored.item_type, kind["valueType"], mapping)
            return lambda pairs: None if pairs is None else [(key(k), inner(v)) for k, v in pairs]
    return _struct_reader(stored, kind["fields"], mapping)


def _struct_reader(
    stored: pa.StructType, fields: Sequence[Mapping[str, Any]], mapping: str
) -> Callable[[Any], Any]:
    members: list[tuple[str, str, Callable[[Any], Any]]] = []
    for field in fields:
        position = _position(stored, field, mapping)
        if position is not None:
            found = stored.field(position)
            members.append((field["name"], found.name, _reader(found.type, field["type"], mapping)))

    def read(value: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if value is None:
            return None
        return {logical: convert(value[name]) for logical, name, convert in members}

    return read


def partition_value(text: str | None, kind: Kind) -> Any:
    """What a partition value's text means to delta-spark: empty is null, except for strings and bytes."""
    if text is None or (text == "" and kind not in ("string", "binary")):
        return None
    assert isinstance(kind, str), f"no partition can be of type {kind}"
    if kind.startswith("decimal("):
        return Decimal(text)
    return PARSED[kind](text)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


PARSED: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    "boolean": lambda text: {"true": True, "false": False}[text.lower()],
    "string": str,
    "binary": lambda text: text.encode(),
    "date": lambda text: date.fromisoformat(text[:10]),
    "timestamp": _moment,
    "timestamp_ntz": _moment,
}
