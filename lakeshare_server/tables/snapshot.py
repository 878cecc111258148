"""One state of one table as its own metadata tells it: the input of the file index, whatever the table's format."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from dataclasses import field as dataclass_field
from itertools import chain
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class TableProtocol:
    """What readers and writers of the table must know, in Delta's terms; features None below versions 3 and 7."""

    min_reader_version: int = 1
    min_writer_version: int = 2
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Hindrance:
    """Why the parquet response format cannot carry a table: the reader feature that is needed, if one is it.

    `code` is one of `ReasonCode`; indexes of earlier versions have none.
    """

    feature: str | None
    reason: str
    fix: str
    code: str | None = None


@dataclass(frozen=True, kw_only=True)
class TableHead:
    """Protocol and metadata as recipients may see them, whatever the format of the table.

    `commit_times_since` is the first version whose time stands in its commit, None when files' times count.
    `is_catalog_managed`: commits of the Delta table can be valid before they are in its log.
    `left_to_files` are columns that were partition columns at one of several states, and are read from the files in an
    answer about all of them.
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
        """The same for files that are all read without partition values; `others` are those of other states."""
        left = dict.fromkeys(chain(self.left_to_files, self.partition_columns, *others))
        return replace(self, partition_columns=(), left_to_files=tuple(left))

    @property
    def has_change_data_feed(self) -> bool:
        """Whether writers record row-level changes at this version."""
        return self.configuration.get("delta.enableChangeDataFeed", "false").lower() == "true"

    @property
    def has_iceberg_metadata(self) -> bool:
        """Whether writers of a Delta table convert it to Iceberg's format too (Delta, UniForm)."""
        formats = self.configuration.get("delta.universalFormat.enabledFormats", "").lower()
        return "iceberg" in [one.strip() for one in formats.split(",")]

    def as_json(self) -> dict[str, Any]:
        """The head as JSON's types; `from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "TableHead":
        """A head that `as_json` wrote."""
        read = {key: _tuple(value) for key, value in fields.items()}
        read["protocol"] = TableProtocol(**{key: _tuple(value) for key, value in fields["protocol"].items()})
        read["hindrances"] = tuple(Hindrance(**field) for field in fields["hindrances"])
        return cls(**read)


def _tuple(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    return tuple(value) if isinstance(value, list) else value


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
# Metadata of columns that recipients of the parquet format need: comments, and what changes how Spark compares strings.
# The lengths of CHAR and VARCHAR decide about padding, collations about equality and order.
READER_METADATA = ("comment", "__CHAR_VARCHAR_TYPE_STRING", "__COLLATIONS")
DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


@dataclass(frozen=True)
class Field:
    """A column; `type` is a name of the protocol for primitives, else the JSON object of a nested type."""

    name: str
    type: str | Mapping[str, Any]
    nullable: bool
    metadata: Mapping[str, Any]


def parse_schema(schema_string: str) -> tuple[Field, ...]:
    """The columns of a struct type in Delta's JSON form."""
    return _struct_fields(json.loads(schema_string))


def struct_fields(field: Field) -> tuple[Field, ...] | None:
    """The columns inside a struct column; None for any other type."""
    if isinstance(field.type, str) or field.type["type"] != "struct":
        return None
    return _struct_fields(field.type)


def arrow_type(type_name: str) -> pa.DataType | None:
    """The Arrow type of a primitive; None for a type of which nothing is known."""
    decimal = DECIMAL.fullmatch(type_name)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return PRIMITIVES.get(type_name)


def parquet_format_schema(schema_string: str) -> str:
    """The schema as it goes over the wire, with the metadata that recipients need and no other."""
    return json.dumps(_for_readers(json.loads(schema_string)), separators=(",", ":"), ensure_ascii=False)


def primitive_types(schema_string: str) -> Iterator[tuple[str, str]]:
    """`(column path, type name)` of every primitive in the schema, inside arrays and maps too."""
    for field in parse_schema(schema_string):
        yield from _primitives(field.name, field.type)


def has_metadata(schema_string: str, key: str) -> bool:
    """Whether any column, at any depth, carries this metadata key."""
    return f'"{key}"' in schema_string and key in _metadata_keys(json.loads(schema_string))


def _struct_fields(struct: Mapping[str, Any]) -> tuple[Field, ...]:
    return tuple(
        Field(member["name"], member["type"], member.get("nullable", True), member.get("metadata") or {})
        for member in struct["fields"]
    )


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


def _for_readers(node: Any) -> Any:
    if isinstance(node, list):
        return [_for_readers(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _for_readers(value) for key, value in node.items() if key != "metadata"}
    if "metadata" in node:
        metadata = node["metadata"] or {}
        kept["metadata"] = {key: metadata[key] for key in READER_METADATA if key in metadata}
    return kept


def _metadata_keys(node: Any) -> set[str]:
    if isinstance(node, list):
        return {key for item in node for key in _metadata_keys(item)}
    if not isinstance(node, dict):
        return set()
    inner = {key for name, value in node.items() if name != "metadata" for key in _metadata_keys(value)}
    return inner | set(node.get("metadata") or {})


@dataclass(frozen=True, kw_only=True)
class TableSnapshot:
    """A table at one version or snapshot.

    `files` has one row per data file: path (absolute, not encoded), name (the path as the metadata spells it),
    size (bytes), modification_time (ms), rows, and the structs partition, min, max and null_count, whose fields
    are columns. A missing value means unknown. Where bounds leave out NaN, told_max has those that recipients may go
    by. Files of a Delta log also have what is passed on as it is there: partition_values and stats (texts), tags, row
    tracking, and the columns of the deletion vector (dv_…).
    """

    format: str
    location: str
    head: TableHead
    version: int | None = None
    snapshot_id: int | None = None
    files: pa.Table

    @property
    def table_id(self) -> str:
        """The table's own id."""
        return self.head.table_id

    @property
    def schema_string(self) -> str:
        """The schema in Delta's JSON form."""
        return self.head.schema_string

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Columns whose value is the same in all rows of a file."""
        return self.head.partition_columns

    @property
    def fields(self) -> tuple[Field, ...]:
        """The table's columns."""
        return parse_schema(self.schema_string)
