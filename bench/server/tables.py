"""Delta tables of up to a million files that exist in their logs only, kept between runs.

The log is the one of a table in use: a checkpoint in Spark's layout, and after it a commit that is not in it yet.
"""

import datetime
import json
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

PARTITIONS = 100
# Of the files whose statistics a predicate on `distance` can tell apart.
DISTANCE_STEP = 10
SIZE_BYTES = 1_048_576
ROWS = 10_000
CHECKPOINT_VERSION = 10
FILES_AFTER_CHECKPOINT = 10
# Rows of one row group; Spark's are of 128 MB, which is about as many.
CHUNK_FILES = 100_000
# Grows whenever the tables change: those of another layout are made again.
LAYOUT = "1"
MARK = ".layout"
FIRST_DAY = datetime.date(2013, 1, 1)
MODIFIED_MS = 1_356_998_400_000
COLUMNS = {"day": "date", "carrier": "string", "delay": "double", "distance": "long", "departed": "timestamp"}

# Placeholders of the texts of a file.
DAY, FIVE_DIGITS, TWELVE_DIGITS, LOWEST, HIGHEST = "<day>", "<5 digits>", "<12 digits>", "<low>", "<high>"
FILE_NAME = f"day={DAY}/part-{FIVE_DIGITS}-8b0086f2-7b27-4935-ac5a-{TWELVE_DIGITS}.c000.snappy.parquet"
STATS = (
    f'{{"numRecords":{ROWS},"minValues":{{"carrier":"9E","delay":-30.5,"distance":{LOWEST},'
    f'"departed":"{DAY}T05:15:00.000Z"}},"maxValues":{{"carrier":"YV","delay":1301.25,'
    f'"distance":{HIGHEST},"departed":"{DAY}T23:59:00.000Z"}},'
    '"nullCount":{"carrier":0,"delay":255,"distance":0,"departed":0}}'
)

_TEXTS = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
        "maxRowIndex": pa.int64(),
    }
)
_ROW_TRACKING = {"baseRowId": pa.int64(), "defaultRowCommitVersion": pa.int64()}
_ADD = pa.struct(
    {
        "path": pa.string(),
        "partitionValues": _TEXTS,
        "size": pa.int64(),
        "modificationTime": pa.int64(),
        "dataChange": pa.bool_(),
        "tags": _TEXTS,
        "deletionVector": _VECTOR,
        **_ROW_TRACKING,
        "clusteringProvider": pa.string(),
        "stats": pa.string(),
    }
)
_REMOVE = pa.struct(
    {
        "path": pa.string(),
        "deletionTimestamp": pa.int64(),
        "dataChange": pa.bool_(),
        "extendedFileMetadata": pa.bool_(),
        "partitionValues": _TEXTS,
        "size": pa.int64(),
        "deletionVector": _VECTOR,
        **_ROW_TRACKING,
    }
)
CHECKPOINT = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": _ADD,
        "remove": _REMOVE,
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _TEXTS,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": pa.list_(pa.string()),
                "writerFeatures": pa.list_(pa.string()),
            }
        ),
        "domainMetadata": pa.struct(
            {"domain": pa.string(), "configuration": pa.string(), "removed": pa.bool_()}
        ),
    }
)


def big_table(folder: Path, files: int) -> Path:
    """The table of that many files below `folder`, made unless it is there."""
    location = folder / f"t{files}"
    mark = location / MARK
    if not mark.exists() or mark.read_text() != LAYOUT:
        shutil.rmtree(location, ignore_errors=True)
        _write(location / "_delta_log", files)
        mark.write_text(LAYOUT)
    return location


def file_name(number: int) -> str:
    """The path of a file below the table."""
    digits = {DAY: _day(number), FIVE_DIGITS: f"{number:05d}", TWELVE_DIGITS: f"{number:012d}"}
    return _replaced(FILE_NAME, digits)


def first_partition() -> str:
    """The partition value that one file in a hundred has."""
    return _day(0)


def distances(files: int) -> tuple[int, int]:
    """Bounds, the upper one excluded, between which are all distances of one file in a hundred, and of no other."""
    some = files // PARTITIONS
    first = files // 2
    return first * DISTANCE_STEP, (first + some) * DISTANCE_STEP


def _day(number: int) -> str:
    return (FIRST_DAY + datetime.timedelta(days=number % PARTITIONS)).isoformat()


def _write(log: Path, files: int) -> None:
    log.mkdir(parents=True)
    in_checkpoint = files - FILES_AFTER_CHECKPOINT
    checkpoint = log / f"{CHECKPOINT_VERSION:020d}.checkpoint.parquet"
    with pq.ParquetWriter(checkpoint, CHECKPOINT, compression="snappy") as writer:
        writer.write_table(_head(files))
        for first in range(0, in_checkpoint, CHUNK_FILES):
            writer.write_table(_adds(range(first, min(first + CHUNK_FILES, in_checkpoint))))
    # What a checkpoint covers may have been cleaned up, but for the commit of its own version.
    _commit(log, CHECKPOINT_VERSION, [in_checkpoint - 1])
    _commit(log, CHECKPOINT_VERSION + 1, range(in_checkpoint, files))
    pointer = {
        "version": CHECKPOINT_VERSION,
        "size": in_checkpoint + 2,
        "sizeInBytes": checkpoint.stat().st_size,
        "numOfAddFiles": in_checkpoint,
    }
    (log / "_last_checkpoint").write_text(json.dumps(pointer))


def _head(files: int) -> pa.Table:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in COLUMNS.items()
    ]
    metadata = {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"lakeshare bench {files}")),
        "format": {"provider": "parquet", "options": []},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": ["day"],
        "configuration": [],
        "createdTime": MODIFIED_MS,
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    return pa.Table.from_pylist([{"protocol": protocol}, {"metaData": metadata}], CHECKPOINT)


def _adds(numbers: range) -> pa.Table:
    # By columns, without objects for files: ten million take seconds instead of minutes.
    count, number = len(numbers), pa.array(numbers, pa.int64())
    names = pa.array([_day(one) for one in range(PARTITIONS)], pa.string())
    day = names.take(pa.array(np.arange(numbers.start, numbers.stop) % PARTITIONS))
    distance = pc.multiply(number, DISTANCE_STEP)
    texts = {
        DAY: day,
        FIVE_DIGITS: pc.utf8_lpad(number.cast(pa.string()), 5, "0"),
        TWELVE_DIGITS: pc.utf8_lpad(number.cast(pa.string()), 12, "0"),
        LOWEST: distance.cast(pa.string()),
        HIGHEST: pc.add(distance, DISTANCE_STEP - 1).cast(pa.string()),
    }
    columns = {
        "path": _filled(FILE_NAME, texts),
        "partitionValues": pa.MapArray.from_arrays(
            pa.array(np.arange(count + 1), pa.int32()), pa.repeat("day", count), day
        ),
        "size": pa.repeat(SIZE_BYTES, count),
        "modificationTime": pc.add(number, MODIFIED_MS),
        "dataChange": pa.repeat(False, count),
        "stats": _filled(STATS, texts),
    }
    members = [columns.get(field.name, pa.nulls(count, field.type)) for field in _ADD]
    add = pa.StructArray.from_arrays(members, fields=list(_ADD))
    others = {field.name: pa.nulls(count, field.type) for field in CHECKPOINT}
    return pa.table({**others, "add": add}, CHECKPOINT)


def _filled(template: str, texts: Mapping[str, pa.Array]) -> pa.Array:
    """The template with its placeholders replaced by the texts, one for each file."""
    pieces = [texts.get(piece, piece) for piece in re.split(f"({'|'.join(map(re.escape, texts))})", template)]
    return pc.binary_join_element_wise(*pieces, "")


def _commit(log: Path, version: int, numbers: "range | list[int]") -> None:
    modified_ms = MODIFIED_MS + version
    said = {
        "timestamp": modified_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": '["day"]'},
    }
    actions: list[dict[str, object]] = [{"commitInfo": said}]
    actions += [{"add": add} for add in _actions(numbers)]
    text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
    (log / f"{version:020d}.json").write_text(text)


def _actions(numbers: "range | list[int]") -> Iterator[dict[str, object]]:
    for number in numbers:
        day = _day(number)
        yield {
            "path": file_name(number),
            "partitionValues": {"day": day},
            "size": SIZE_BYTES,
            "modificationTime": MODIFIED_MS + number,
            "dataChange": True,
            "stats": _stats(day, number * DISTANCE_STEP),
        }


def _stats(day: str, distance: int) -> str:
    return _replaced(STATS, {DAY: day, LOWEST: str(distance), HIGHEST: str(distance + DISTANCE_STEP - 1)})


def _replaced(template: str, texts: Mapping[str, str]) -> str:
    for placeholder, text in texts.items():
        template = template.replace(placeholder, text)
    return template
