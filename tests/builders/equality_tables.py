"""Iceberg tables with equality deletes: real Parquet files with field ids, manifests, and a naive model.

Values are Python's: days and microseconds for dates and times, as Iceberg counts them.
"""

import json
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.builders.deletion_vector import serialized
from tests.builders.iceberg_manifests import SNAPSHOT, a_manifest, a_snapshot, an_entry
from tests.builders.lake_tables import IcebergState

Row = Mapping[int, Any]
"""Values by field id; a struct is the mapping of its fields, or None."""


@dataclass(frozen=True)
class Column:
    """A column of a table, or of a struct in it."""

    id: int
    name: str
    type: str = "long"
    fields: "tuple[Column, ...]" = ()
    default: Any = None

    @property
    def json(self) -> dict[str, Any]:
        kind: Any = self.type
        if self.fields:
            kind = {"type": "struct", "fields": [one.json for one in self.fields]}
        default = {} if self.default is None else {"initial-default": self.default}
        return {"id": self.id, "name": self.name, "required": False, "type": kind, **default}

    def arrow(self, narrow: frozenset[int] = frozenset(), *, ids: bool = True) -> pa.Field:
        """As a file has it: with its field id, and with the older type where it is a narrow one."""
        inner = [one.arrow(narrow, ids=ids) for one in self.fields]
        kind = pa.struct(inner) if inner else arrow_type(self.type, is_narrow=self.id in narrow)
        return pa.field(self.name, kind, metadata={"PARQUET:field_id": str(self.id)} if ids else None)


POSITION = (Column(2147483546, "file_path", "string"), Column(2147483545, "pos"))
NARROW = {"long": pa.int32(), "double": pa.float32(), "decimal(9, 2)": pa.decimal128(5, 2)}
TYPES = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "date": pa.date32(), "time": pa.time64("us"), "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"), "string": pa.string(), "binary": pa.binary(), "uuid": pa.binary(16),
    "decimal(9, 2)": pa.decimal128(9, 2),
}  # fmt: skip


def arrow_type(kind: str, *, is_narrow: bool = False) -> pa.DataType:
    return NARROW[kind] if is_narrow else TYPES[kind]


@dataclass(frozen=True)
class File:
    """A data file with its rows, or a file of equality deletes with its keys; `columns` are those that it has."""

    path: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    sequence_number: int
    spec_id: int = 0
    partition: tuple[Any, ...] = ()
    keys: tuple[int, ...] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)
    positions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    vector_of: str | None = None


def write_rows(
    path: Path,
    columns: Sequence[Column],
    rows: Sequence[Row],
    narrow: frozenset[int] = frozenset(),
    *,
    ids: bool = True,
) -> None:
    """A Parquet file of these rows."""
    schema = pa.schema([column.arrow(narrow, ids=ids) for column in columns])
    arrays = [
        pa.array([_value(column, row.get(column.id)) for row in rows], one.type)
        for column, one in zip(columns, schema, strict=True)
    ]
    pq.write_table(pa.table(arrays, schema=schema), path, row_group_size=7)


def _value(column: Column, value: Any) -> Any:
    if column.fields and value is not None:
        return {one.name: _value(one, value.get(one.id)) for one in column.fields}
    return value


@dataclass
class EqualityTable:
    """A table being made: its columns, partition specs as JSON, and live files."""

    folder: Path
    columns: Sequence[Column]
    specs: Sequence[Mapping[str, Any]] = ({"spec-id": 0, "fields": []},)
    dropped: Sequence[Column] = ()
    version: int = 2
    properties: Mapping[str, str] = field(default_factory=dict)
    data: list[File] = field(default_factory=list)
    deletes: list[File] = field(default_factory=list)
    commits: int = 0

    def add_rows(
        self,
        rows: Sequence[Row],
        sequence_number: int,
        *,
        columns: Sequence[Column] | None = None,
        narrow: frozenset[int] = frozenset(),
        ids: bool = True,
        **said: Any,
    ) -> File:
        """A data file; by default it has all columns."""
        path = self.folder / f"data-{len(list(self.folder.iterdir()))}.parquet"
        own = self.columns if columns is None else columns
        write_rows(path, own, rows, narrow, ids=ids)
        self.data.append(File(str(path), own, rows, sequence_number, **said))
        return self.data[-1]

    def delete_keys(
        self,
        columns: Sequence[Column],
        keys: Sequence[Row],
        sequence_number: int,
        *,
        ids: tuple[int, ...] | None = None,
        narrow: frozenset[int] = frozenset(),
        **said: Any,
    ) -> File:
        """A file of equality deletes by columns, those with `ids` of them where these are given."""
        path = self.folder / f"equality-{len(list(self.folder.iterdir()))}.parquet"
        write_rows(path, columns, keys, narrow)
        by = ids or tuple(column.id for column in columns)
        self.deletes.append(File(str(path), columns, keys, sequence_number, keys=by, **said))
        return self.deletes[-1]

    def delete_positions(self, file: File, rows: Sequence[int], sequence_number: int) -> None:
        """A file of position deletes for one data file."""
        path = self.folder / f"positions-{len(list(self.folder.iterdir()))}.parquet"
        write_rows(path, POSITION, [{2147483546: file.path, 2147483545: row} for row in rows])
        own = {"spec_id": file.spec_id, "partition": file.partition, "positions": {file.path: rows}}
        self.deletes.append(File(str(path), (), (), sequence_number, **own))

    def delete_by_vector(self, file: File, rows: Sequence[int], sequence_number: int) -> None:
        """A deletion vector of version 3."""
        content = serialized(rows)
        blob = struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))
        path = self.folder / f"vector-{len(list(self.folder.iterdir()))}.puffin"
        path.write_bytes(b"PFA1" + blob + b"more")
        own = {"spec_id": file.spec_id, "partition": file.partition, "positions": {file.path: rows}}
        self.deletes.append(
            File(
                str(path), (), (), sequence_number, vector_of=file.path, **own, statistics={"size": len(blob)}
            )
        )

    def commit(self) -> str:
        """Write manifests and metadata of the live files, as a snapshot of its own; returns the metadata location."""
        from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
        from pyiceberg.schema import Schema
        from pyiceberg.table.metadata import new_table_metadata
        from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

        self.commits += 1
        place = self.folder / f"commit-{self.commits}"
        place.mkdir()
        schemas = [{"type": "struct", "schema-id": 1, "fields": [one.json for one in self.columns]}]
        if self.dropped:
            older = [one.json for one in (*self.columns, *self.dropped)]
            schemas.insert(0, {"type": "struct", "schema-id": 0, "fields": older})
        made = new_table_metadata(
            Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, str(self.folder)
        )
        told = json.loads(made.model_dump_json()) | {
            "table-uuid": "5c5b4ddc-ad9d-4a6e-8b2b-0d5c8f2a3b11",
            "format-version": self.version,
            "next-row-id": 0,
            "schemas": schemas,
            "current-schema-id": 1,
            "partition-specs": list(self.specs),
            "properties": dict(self.properties),
            "last-column-id": 99,
            "last-partition-id": 1999,
        }
        number = max((file.sequence_number for file in (*self.data, *self.deletes)), default=1)
        manifests = list(self._manifests(place, schemas[-1]))
        told["snapshots"] = [
            {
                "snapshot-id": SNAPSHOT + self.commits,
                "sequence-number": number,
                "timestamp-ms": told["last-updated-ms"] + self.commits,
                "manifest-list": a_snapshot(place, manifests, version=self.version).manifest_list,
                "summary": {"operation": "append"},
                "schema-id": 1,
            }
        ]
        told |= {"current-snapshot-id": SNAPSHOT + self.commits, "last-sequence-number": number}
        location = self.folder / "metadata" / f"v{self.commits}.metadata.json"
        location.parent.mkdir(exist_ok=True)
        (location.parent / "version-hint.text").write_text(str(self.commits))
        location.write_text(json.dumps(told))
        return str(location)

    def state(self) -> IcebergState:
        """What a publication of one more commit pins."""
        return IcebergState(self.commit(), SNAPSHOT + self.commits)

    def _manifests(self, place: Path, schema: Mapping[str, Any]) -> Any:
        from pyiceberg.partitioning import PartitionSpec
        from pyiceberg.schema import Schema

        older = {**schema, "fields": [one.json for one in (*self.columns, *self.dropped)]}
        for is_deletes, files in ((False, self.data), (True, self.deletes)):
            for told in self.specs:
                own = [file for file in files if file.spec_id == told["spec-id"]]
                if own:
                    spec, path = (
                        PartitionSpec.model_validate(told),
                        place / f"{is_deletes}-{told['spec-id']}.avro",
                    )
                    entries = [_entry(number, file) for number, file in enumerate(own)]
                    yield a_manifest(
                        path, entries, version=self.version, deletes=is_deletes, spec=spec,
                        schema=Schema.model_validate(older),
                    )  # fmt: skip

    def deleted(self) -> dict[str, list[int]]:
        """The rows that are deleted by the rules of the specification, by the paths of their files."""
        found = {}
        for file in self.data:
            rows = {row for row in range(len(file.rows)) if self._is_deleted(file, row)}
            if rows:
                found[file.path] = sorted(rows)
        return found

    def _is_deleted(self, file: File, row: int) -> bool:
        vector = [one for one in self.deletes if one.vector_of == file.path]
        for delete in vector or [one for one in self.deletes if one.positions]:
            if row in delete.positions.get(file.path, ()) and delete.sequence_number >= file.sequence_number:
                return True
        return any(
            self._applies(delete, file) and self._matches(delete, file, row) for delete in self.deletes
        )

    def _applies(self, delete: File, file: File) -> bool:
        if not delete.keys or delete.sequence_number <= file.sequence_number:
            return False
        [spec] = [one for one in self.specs if one["spec-id"] == delete.spec_id]
        if all(one["transform"] == "void" for one in spec["fields"]):
            return True
        same = all(is_same(own, other) for own, other in zip(delete.partition, file.partition, strict=False))
        return delete.spec_id == file.spec_id and same

    def _matches(self, delete: File, file: File, row: int) -> bool:
        own = {key: self._value(file, file.rows[row], key) for key in delete.keys}
        # A struct that is null differs from one that has only nulls.
        boxes = [one for one in self.columns if any(_has(one.fields, key) for key in delete.keys)]
        empty = [
            (one.id, file.rows[row].get(one.id) is None or not _has(file.columns, one.id)) for one in boxes
        ]
        return any(
            all(is_same(own[key], _inside(delete.columns, deleted, key)) for key in delete.keys)
            and all((deleted.get(one) is None) == is_empty for one, is_empty in empty)
            for deleted in delete.rows
        )

    def _value(self, file: File, row: Row, key: int) -> Any:
        [spec] = [one for one in self.specs if one["spec-id"] == file.spec_id]
        for value, one in zip(file.partition, spec["fields"], strict=True):
            if one["source-id"] == key and one["transform"] == "identity":
                return value
        if _has(file.columns, key):
            return _inside(file.columns, row, key)
        [column] = [one for one in _flat((*self.columns, *self.dropped)) if one.id == key]
        return column.default


def is_same(one: Any, other: Any) -> bool:
    """Equality as Iceberg's readers have it."""
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


def _flat(columns: Sequence[Column]) -> list[Column]:
    return [one for column in columns for one in (column, *_flat(column.fields))]


def _has(columns: Sequence[Column], key: int) -> bool:
    return any(column.id == key for column in _flat(columns))


def _inside(columns: Sequence[Column], row: Row | None, key: int) -> Any:
    for column in columns:
        value = None if row is None else row.get(column.id)
        if column.id == key:
            return value
        if _has(column.fields, key):
            return _inside(column.fields, value, key)
    return None


def _entry(number: int, file: File) -> Any:
    from pyiceberg.manifest import DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    said: dict[str, Any] = {
        "file_path": file.path,
        "partition": Record(*file.partition),
        "record_count": len(file.rows),
        "file_size_in_bytes": Path(file.path).stat().st_size,
        **{name: {} for name in ("null_value_counts", "lower_bounds", "upper_bounds")},
    }
    if file.keys:
        said |= {"content": DataFileContent.EQUALITY_DELETES, "equality_ids": list(file.keys)}
        said |= file.statistics
    elif file.positions:
        [(path, rows)] = file.positions.items()
        said |= {"content": DataFileContent.POSITION_DELETES, "record_count": len(rows)}
        said |= {name: {2147483546: path.encode()} for name in ("lower_bounds", "upper_bounds")}
    else:
        said |= file.statistics
    if file.vector_of is not None:
        said |= {
            "file_format": FileFormat.PUFFIN,
            "referenced_data_file": file.vector_of,
            "content_offset": 4,
        }
        said |= {"content_size_in_bytes": file.statistics["size"]}
    return an_entry(number, sequence_number=file.sequence_number, snapshot_id=SNAPSHOT, **said)


def statistics_of(columns: Sequence[Column], rows: Sequence[Row]) -> dict[str, Any]:
    """Bounds and numbers of nulls as writers state them: of top-level columns, texts cut to one character."""
    from pyiceberg.conversions import to_bytes
    from pyiceberg.types import IcebergType

    said: dict[str, dict[int, Any]] = {
        name: {} for name in ("null_value_counts", "lower_bounds", "upper_bounds")
    }
    for column in columns:
        if column.fields:
            continue
        values = [row[column.id] for row in rows if row.get(column.id) is not None]
        said["null_value_counts"][column.id] = len(rows) - len(values)
        values = [value for value in values if not (isinstance(value, float) and math.isnan(value))]
        if not values or column.type in ("uuid", "boolean"):
            continue
        kind = IcebergType.model_validate(column.type)
        low, high = min(values), max(values)
        said["lower_bounds"][column.id] = to_bytes(kind, low[:1] if column.type == "string" else low)
        if column.type != "string" or len(high) < 2:
            said["upper_bounds"][column.id] = to_bytes(kind, high)
    return said


def decimal(unscaled: int) -> Decimal:
    return Decimal(unscaled).scaleb(-2)


ID, NAME, PLACE = Column(1, "id"), Column(2, "name", "string"), Column(3, "place", "string")
BY_PLACE: Sequence[Mapping[str, Any]] = (
    {"spec-id": 0, "fields": []},
    {"spec-id": 1, "fields": [{"source-id": 3, "field-id": 1000, "transform": "identity", "name": "place"}]},
    {"spec-id": 2, "fields": [{"source-id": 3, "field-id": 1000, "transform": "void", "name": "place"}]},
    {"spec-id": 3, "fields": [{"source-id": 1, "field-id": 1001, "transform": "bucket[4]", "name": "by_id"}]},
)


def a_table(folder: Path, *columns: Column, **said: Any) -> EqualityTable:
    folder.mkdir(parents=True, exist_ok=True)
    return EqualityTable(folder, columns or (ID, NAME, PLACE), **said)


def ids(*values: int | None) -> list[Row]:
    return [{1: value} for value in values]
