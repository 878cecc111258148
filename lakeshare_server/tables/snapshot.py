"""One state of a table, whatever its format: the input of the file index."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from dataclasses import field as dataclass_field
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter


@dataclass(frozen=True)
class TableProtocol:
    """The protocol of a Delta table; the features are None below the versions 3 and 7."""

    min_reader_version: int = 1
    min_writer_version: int = 2
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Hindrance:
    """Why the parquet format cannot carry a table; `feature` is the reader feature that would help, if any."""

    feature: str | None
    reason: str
    fix: str
    code: str | None = None


@dataclass(frozen=True, kw_only=True)
class TableHead:
    """Protocol and metadata of a table as recipients see them.

    `commit_times_since` is the first version with an in-commit timestamp, None when file times count.
    `is_catalog_managed`: commits of the Delta table can be valid before they are in its log.
    `left_to_files` are columns that are partition columns in only some of the states in one response: recipients read
    them from the files.
    """

    table_id: str
    name: str | None = None
    description: str | None = None
    schema_string: str
    partition_columns: tuple[str, ...]
    protocol: TableProtocol = dataclass_field(default_factory=TableProtocol)
    configuration: Mapping[str, str] = dataclass_field(default_factory=dict)
    created_time_ms: int | None = None
    hindrances: tuple[Hindrance, ...] = ()
    commit_times_since: int | None = None
    is_catalog_managed: bool = False
    left_to_files: tuple[str, ...] = ()

    def without_partitions(self, *others: Sequence[str]) -> "TableHead":
        """Returns the head without partition columns; `others` are the partition columns of other states."""
        left = dict.fromkeys(chain(self.left_to_files, self.partition_columns, *others))
        return replace(self, partition_columns=(), left_to_files=tuple(left))

    @property
    def has_change_data_feed(self) -> bool:
        """Whether writers record row-level changes at this version."""
        return self.configuration.get("delta.enableChangeDataFeed", "false").lower() == "true"

    @property
    def has_iceberg_metadata(self) -> bool:
        """Whether writers of the Delta table also write Iceberg metadata (Delta UniForm)."""
        formats = self.configuration.get("delta.universalFormat.enabledFormats", "").lower()
        return "iceberg" in [name.strip() for name in formats.split(",")]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "TableHead":
        return _HEADS.validate_python(fields)


_HEADS = TypeAdapter(TableHead)


PRIMITIVES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
# Column metadata for recipients of the parquet format: comments, the lengths of CHAR and VARCHAR, which decide about
# padding, and collations, which decide about equality and order.
READER_METADATA = ("comment", "__CHAR_VARCHAR_TYPE_STRING", "__COLLATIONS")
DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


@dataclass(frozen=True)
class Field:
    """A column; `type` is the protocol's name of a primitive type or the JSON object of a nested type."""

    name: str
    type: str | Mapping[str, Any]
    metadata: Mapping[str, Any]

    @cached_property
    def members(self) -> "tuple[Field, ...] | None":
        """The columns inside a struct; None for any other type."""
        return None if isinstance(self.type, str) or self.type["type"] != "struct" else _members(self.type)

    @property
    def physical(self) -> str:
        """The name in the log and in data files of a table with column mapping."""
        name = self.metadata.get("delta.columnMapping.physicalName")
        return str(self.name if name is None else name)


def parse_schema(schema_string: str) -> tuple[Field, ...]:
    return _members(json.loads(schema_string))


def _members(struct: Mapping[str, Any]) -> tuple[Field, ...]:
    return tuple(
        Field(member["name"], member["type"], member.get("metadata") or {}) for member in struct["fields"]
    )


def arrow_type(type_name: str) -> pa.DataType | None:
    decimal = DECIMAL.fullmatch(type_name)
    return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else PRIMITIVES.get(type_name)


# Each response of the parquet format has the schema of its table.
@lru_cache(64)
def parquet_format_schema(schema_string: str) -> str:
    """Returns the schema as recipients of the parquet format get it, with the metadata in `READER_METADATA` only."""
    schema = json.loads(schema_string, object_hook=_for_readers)
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def _for_readers(node: dict[str, Any]) -> dict[str, Any]:
    if "metadata" in node:
        metadata = node.pop("metadata") or {}
        node["metadata"] = {key: metadata[key] for key in READER_METADATA if key in metadata}
    return node


def primitive_types(schema_string: str) -> Iterator[tuple[str, str]]:
    """Yields `(column path, type name)` of every primitive column, including those in arrays and maps."""
    for field in parse_schema(schema_string):
        yield from _primitives(field.name, field.type)


def _primitives(path: str, kind: Any) -> Iterator[tuple[str, str]]:
    if isinstance(kind, str):
        yield path, kind
    elif kind["type"] == "struct":
        for member in kind["fields"]:
            yield from _primitives(f"{path}.{member['name']}", member["type"])
    elif kind["type"] == "array":
        yield from _primitives(f"{path}.element", kind["elementType"])
    else:
        yield from _primitives(f"{path}.key", kind["keyType"])
        yield from _primitives(f"{path}.value", kind["valueType"])


def has_metadata(schema_string: str, key: str) -> bool:
    """Whether a column at any depth has this metadata key."""
    found: set[str] = set()

    def collect(node: dict[str, Any]) -> dict[str, Any]:
        found.update(node.get("metadata") or ())
        return node

    if f'"{key}"' in schema_string:
        json.loads(schema_string, object_hook=collect)
    return key in found


@dataclass(frozen=True, kw_only=True)
class TableSnapshot:
    """A table at one version or snapshot.

    `files` has one row per data file: path (absolute, not encoded), name (the path as spelt in the metadata), size
    (bytes), modification_time (ms), rows, and the structs partition, min, max and null_count, whose fields are columns.
    Null means unknown. If bounds ignore NaN, client_max has the upper bounds that recipients may use. Files of a Delta
    log also have columns that are passed on unchanged: partition_values and stats (texts), tags, row tracking, and the
    deletion vector (dv_…). `complete` reads the snapshot with bounds (min, max and null_count) if this one has none.
    """

    format: str
    location: str
    head: TableHead
    version: int | None = None
    snapshot_id: int | None = None
    files: pa.Table
    complete: Callable[[], "TableSnapshot"] | None = None
