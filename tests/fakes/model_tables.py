"""Tables of the model server, in memory: their versions, the Parquet bytes of their files, their deletion vectors."""

import hashlib
import io
import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MAGIC = struct.pack("<I", 1681511377)
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
FIRST_COMMIT_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("amount", pa.float64()),
        ("note", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("sure", pa.bool_()),
        ("born", pa.date32()),
    ]
)
DELTA_TYPES = {
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.float64(): "double",
    pa.string(): "string",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.bool_(): "boolean",
    pa.date32(): "date",
}


@dataclass(frozen=True)
class Vector:
    """Deleted rows of a file: the bytes, and where they are kept."""

    deleted: tuple[int, ...]
    inline: bool

    @property
    def content(self) -> bytes:
        """Delta's portable layout of one array container."""
        count = len(self.deleted)
        bitmap = struct.pack("<IIHHI", 12346, 1, 0, count - 1, 16) + struct.pack(f"<{count}H", *self.deleted)
        return MAGIC + struct.pack("<QI", 1, 0) + bitmap

    @property
    def stored(self) -> bytes:
        framed = struct.pack(">I", len(self.content)) + self.content
        return b"\x01" + framed + struct.pack(">I", zlib.crc32(self.content))

    @property
    def text(self) -> str:
        padded = self.content + b"\0" * (-len(self.content) % 4)
        return "".join(z85(padded[start : start + 4]) for start in range(0, len(padded), 4))

    @property
    def id(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class File:
    """A file of a table."""

    path: str
    rows: pa.Table
    partition: dict[str, str | None] = field(default_factory=dict)
    vector: Vector | None = None
    base_row_id: int = 0

    @cached_property
    def content(self) -> bytes:
        sink = io.BytesIO()
        pq.write_table(self.rows, sink)
        return sink.getvalue()

    @cached_property
    def stats(self) -> str:
        bounded = [name for name in self.rows.column_names if name != "sure" and name != "_change_type"]
        bounds = {name: pc.min_max(self.rows.column(name)).as_py() for name in bounded}
        return json.dumps(
            {
                "numRecords": self.rows.num_rows,
                "minValues": {name: _json(of["min"]) for name, of in bounds.items() if of["min"] is not None},
                "maxValues": {name: _json(of["max"]) for name, of in bounds.items() if of["max"] is not None},
                "nullCount": {name: self.rows.column(name).null_count for name in self.rows.column_names},
            }
        )

    @property
    def live_rows(self) -> int:
        return self.rows.num_rows - (len(self.vector.deleted) if self.vector else 0)


@dataclass(frozen=True)
class Change:
    """One action of a commit: add, remove or cdc."""

    kind: str
    file: File
    data_change: bool = True


@dataclass(frozen=True)
class ModelTable:
    """A table with all its versions."""

    share: str
    schema: str
    name: str
    commits: tuple[tuple[Change, ...], ...]
    schemas: dict[int, tuple[pa.Field, ...]]
    partitioned_by: tuple[str, ...] = ()
    configuration: dict[str, str] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=lambda: {"minReaderVersion": 1, "minWriterVersion": 4})
    has_history: bool = True
    credentials: bool = False

    @property
    def id(self) -> str:
        return hashlib.md5(f"{self.share}.{self.schema}.{self.name}".encode()).hexdigest()

    @property
    def latest(self) -> int:
        return len(self.commits) - 1

    @property
    def is_simple(self) -> bool:
        return self.protocol["minReaderVersion"] == 1

    @property
    def has_changes(self) -> bool:
        return self.configuration.get("delta.enableChangeDataFeed") == "true" and self.has_history

    @property
    def is_mapped(self) -> bool:
        return "delta.columnMapping.mode" in self.configuration

    def timestamp_ms(self, version: int) -> int:
        return FIRST_COMMIT_MS + version * HOUR_MS

    def files(self, version: int) -> list[File]:
        found: dict[str, File] = {}
        for commit in self.commits[: version + 1]:
            for change in commit:
                if change.kind == "remove":
                    found.pop(change.file.path, None)
            for change in commit:
                if change.kind == "add":
                    found[change.file.path] = change.file
        return list(found.values())

    def fields(self, version: int) -> tuple[pa.Field, ...]:
        return self.schemas[max(number for number in self.schemas if number <= version)]

    def schema_string(self, version: int) -> str:
        fields = [self._field(number, one) for number, one in enumerate(self.fields(version), 1)]
        return json.dumps({"type": "struct", "fields": fields})

    def every_file(self) -> Iterator[File]:
        for commit in self.commits:
            yield from (change.file for change in commit)

    def _field(self, number: int, one: pa.Field) -> dict[str, Any]:
        metadata = {}
        if self.is_mapped:
            metadata = {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": physical(one.name),
            }
        return {"name": one.name, "type": DELTA_TYPES[one.type], "nullable": True, "metadata": metadata}


def physical(name: str) -> str:
    """The physical name of a mapped column."""
    return f"col-{hashlib.md5(name.encode()).hexdigest()[:8]}"


def some_rows(first: int, count: int) -> pa.Table:
    """Rows with ids from `first`, with nulls here and there and awkward values."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "id": list(numbers),
            "small": [None if n % 4 == 3 else n % 50 for n in numbers],
            "amount": [[1.5, -2.25, float("nan"), None][n % 4] for n in numbers],
            "note": [["ab", "it's", None, f"n{n}"][n % 4] for n in numbers],
            "at": [
                datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=n, microseconds=n * 7) for n in numbers
            ],
            "sure": [n % 3 == 0 for n in numbers],
            "born": [date(2000, 1, 1) + timedelta(days=n) for n in numbers],
        },
        schema=SCHEMA,
    )


def the_hidden_tables() -> tuple[ModelTable, ...]:
    """What another recipient of the model server sees: a share of its own."""
    commits = ((Change("add", File("h", some_rows(0, 3))),),)
    schemas = {0: tuple(SCHEMA)}
    return (ModelTable("gamma", "y", "secret", commits, schemas),)


def the_tables() -> tuple[ModelTable, ...]:
    """The tables of the model server: one for every kind that cases ask for."""
    return (_orders(), _vectors(), _closed(), _tiny())


def _orders() -> ModelTable:
    """Partitioned, with a history of appends, a new column, an update, a compaction and a delete."""

    def part(path: str, day: str | None, rows: pa.Table) -> File:
        return File(f"day={day}/{path}", rows, {"day": day})

    one, two = part("1", "2024-01-01", some_rows(0, 4)), part("2", "2024-01-02", some_rows(4, 6))
    three, none = part("3", "2024-01-02", some_rows(10, 5)), part("4", None, some_rows(15, 2))
    half = part("2b", "2024-01-02", some_rows(4, 3))
    gone = some_rows(7, 3).append_column("_change_type", pa.array(["delete"] * 3))
    both = part("23", "2024-01-02", pa.concat_tables([half.rows, three.rows]))
    commits = (
        (Change("add", one), Change("add", two)),
        (Change("add", three),),
        (),
        (Change("remove", two), Change("add", half), Change("cdc", part("c", "2024-01-02", gone))),
        (Change("add", none),),
        (Change("remove", half, False), Change("remove", three, False), Change("add", both, False)),
        (Change("remove", one),),
    )
    first = (*SCHEMA, pa.field("day", pa.date32()))
    return ModelTable(
        *("alpha", "main", "Orders", commits, {0: first, 2: (*first, pa.field("added", pa.string()))}),
        partitioned_by=("day",),
        configuration={"delta.enableChangeDataFeed": "true"},
    )


def _vectors() -> ModelTable:
    """Mapped columns, deletion vectors of both kinds, row tracking; not for parquet format."""
    features = ["columnMapping", "deletionVectors"]

    def stored(path: str, first: int, vector: Vector | None) -> File:
        rows = some_rows(first, 8).rename_columns([physical(name) for name in SCHEMA.names])
        return File(path, rows, {physical("region"): "north"}, vector, first)

    kept, old = stored("v1", 0, Vector((1, 5), False)), stored("v2", 8, None)
    inline, more = stored("v3", 16, Vector((0,), True)), stored("v4", 24, Vector((2, 3, 7), False))
    commits = (
        (Change("add", kept), Change("add", old)),
        (Change("remove", old), Change("add", replace(old, vector=Vector((4,), False)))),
        (Change("add", inline), Change("add", more)),
    )
    return ModelTable(
        *("alpha", "main", "vectors", commits, {0: (*SCHEMA, pa.field("region", pa.string()))}),
        partitioned_by=("region",),
        configuration={
            "delta.columnMapping.mode": "name",
            "delta.enableDeletionVectors": "true",
            "delta.enableRowTracking": "true",
        },
        protocol={
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": [*features, "rowTracking", "domainMetadata"],
        },
    )


def _closed() -> ModelTable:
    """Without history, and with credentials for its directory."""
    commits = (tuple(Change("add", File(f"c{n}", some_rows(n * 10, 10))) for n in range(3)),)
    return ModelTable(
        *("alpha", "other", "closed", commits, {0: tuple(SCHEMA)}), has_history=False, credentials=True
    )


def _tiny() -> ModelTable:
    return ModelTable(
        "beta", "x", "tiny", ((Change("add", File("t", some_rows(0, 3))),),), {0: tuple(SCHEMA)}
    )


def _json(value: object) -> object:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
    return value.isoformat() if isinstance(value, date) else value


def z85(four: bytes) -> str:
    """Four bytes as five letters."""
    (number,) = struct.unpack(">I", four)
    return "".join(Z85[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
