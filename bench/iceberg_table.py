"""An Iceberg table of many data files that are only told of: its metadata and manifests, as PyIceberg writes them."""

import json
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table.metadata import TableMetadata

SNAPSHOT = 4_217_000_000_000_000_001
FIRST_DAY = 19_000
DAY_US = 86_400_000_000


def told_table(location: Path, files: int, manifests: int) -> str:
    """The metadata location of a table of ten columns, partitioned by day, with statistics of all of them."""
    done = location / "v1.metadata.json"
    if done.exists():
        return str(done)
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import write_manifest_list

    location.mkdir(parents=True, exist_ok=True)
    metadata, io = _metadata(location), PyArrowFileIO()
    per_manifest = files // manifests
    written = [_manifest(metadata, location, place, per_manifest) for place in range(manifests)]
    listing = location / "snapshot.avro"
    with write_manifest_list(2, io.new_output(str(listing)), SNAPSHOT, None, 1, "deflate") as writer:
        writer.add_manifests(written)
    _finish(metadata, done, listing)
    return str(done)


def _metadata(location: Path) -> "TableMetadata":
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
    from pyiceberg.transforms import DayTransform
    from pyiceberg.types import (
        BooleanType,
        DateType,
        DecimalType,
        DoubleType,
        IntegerType,
        LongType,
        NestedField,
        StringType,
        TimestamptzType,
    )

    kinds = {
        "departed": TimestamptzType(),
        "day": DateType(),
        "carrier": StringType(),
        "tail": StringType(),
        "flight": IntegerType(),
        "distance": LongType(),
        "delay": DoubleType(),
        "fare": DecimalType(12, 2),
        "cancelled": BooleanType(),
        "remark": StringType(),
    }
    fields = [
        NestedField(place, name, kind, required=False) for place, (name, kind) in enumerate(kinds.items(), 1)
    ]
    spec = PartitionSpec(PartitionField(1, 1000, DayTransform(), "departed_day"))
    return new_table_metadata(Schema(*fields), spec, UNSORTED_SORT_ORDER, str(location))


def _manifest(metadata: "TableMetadata", location: Path, place: int, count: int) -> "ManifestFile":
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import write_manifest

    output = PyArrowFileIO().new_output(str(location / f"manifest-{place:05}.avro"))
    with write_manifest(2, metadata.spec(), metadata.schema(), output, SNAPSHOT, "deflate") as writer:
        for entry in _entries(location, place, count):
            writer.add_entry(entry)
    return writer.to_manifest_file()


def _entries(location: Path, place: int, count: int) -> "Iterator[ManifestEntry]":
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus
    from pyiceberg.typedef import Record

    for number in range(place * count, (place + 1) * count):
        day = FIRST_DAY + number // 50
        columns = range(1, 11)
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{location}/data/departed_day={day}/{number:08}-{uuid.UUID(int=number)}.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(day),
            record_count=100_000 + number % 977,
            file_size_in_bytes=9_000_000 + number % 7919,
            column_sizes={column: 400_000 + number % 311 * column for column in columns},
            value_counts=dict.fromkeys(columns, 100_000 + number % 977),
            null_value_counts={column: number % 3 * (column - 1) for column in columns},
            nan_value_counts={7: 0},
            lower_bounds=_bounds(day, number, 0),
            upper_bounds=_bounds(day, number, 1),
            split_offsets=[4],
        )
        yield ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=SNAPSHOT, data_file=file)


def _bounds(day: int, number: int, upper: int) -> dict[int, bytes]:
    return {
        1: struct.pack("<q", day * DAY_US + number % 50 * 1_000_000 + upper * 900_000),
        2: struct.pack("<i", day + upper),
        3: (b"AA", b"YX")[upper],
        4: (b"N%05d" % (number % 90_000), b"Y%05d" % (number % 90_000))[upper],
        5: struct.pack("<i", 1 + upper * 8500),
        6: struct.pack("<q", 17 + upper * 4983),
        7: struct.pack("<d", -43.0 + upper * 1301),
        8: (4900 + upper * 1_000_000).to_bytes(3, "big"),
        9: bytes([upper]),
        10: (b"a remark of the ", b"z remark of the!")[upper],
    }


def _finish(metadata: "TableMetadata", done: Path, listing: Path) -> None:
    text = json.loads(metadata.model_dump_json())
    snapshot = {
        "snapshot-id": SNAPSHOT,
        "sequence-number": 1,
        "timestamp-ms": text["last-updated-ms"],
        "manifest-list": str(listing),
        "summary": {"operation": "append"},
        "schema-id": text["current-schema-id"],
    }
    text |= {
        "snapshots": [snapshot],
        "current-snapshot-id": SNAPSHOT,
        "last-sequence-number": 1,
        "refs": {"main": {"snapshot-id": SNAPSHOT, "type": "branch"}},
    }
    done.write_text(json.dumps(text))
