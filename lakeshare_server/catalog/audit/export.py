"""The log in files: JSON lines and Parquet, with the hashes, so that a copy can be verified elsewhere."""

import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_server.catalog.audit.reading import ChainedEvent
from lakeshare_server.errors import BadRequest

Format = Literal["jsonl", "parquet"]
ROWS = 10_000
SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("kind", pa.string()),
        ("recipient", pa.string()),
        ("principal", pa.string()),
        ("action", pa.string()),
        ("object_name", pa.string()),
        ("status", pa.int32()),
        ("error_code", pa.string()),
        ("version", pa.int64()),
        ("files", pa.int64()),
        ("size_bytes", pa.int64()),
        ("rows", pa.int64()),
        ("request_id", pa.string()),
        ("ip", pa.string()),
        ("user_agent", pa.string()),
        ("elapsed_ms", pa.int64()),
        # JSON text: what was before and after a change differs from object to object.
        ("details", pa.string()),
        ("previous_hash", pa.string()),
        ("hash", pa.string()),
    ]
)


def format_of(path: Path) -> Format:
    """The format that a file's name asks for.

    Raises:
        BadRequest: none that there is.
    """
    match path.suffix:
        case ".jsonl" | ".ndjson":
            return "jsonl"
        case ".parquet":
            return "parquet"
    raise BadRequest("file", path.name, "Let its name end in .jsonl or .parquet.")


def export(events: Iterable[ChainedEvent], path: Path) -> int:
    """Write events to a file that is not there yet; it appears when it is whole. Returns how many they were.

    Raises:
        BadRequest: there is such a file already, or its name asks for no format that there is.
        OSError: it cannot be written.
    """
    wanted = format_of(path)
    if path.exists():
        raise BadRequest("file", str(path), "It is there already. Name another, or remove it.")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        count = _write_lines(events, unfinished) if wanted == "jsonl" else _write_parquet(events, unfinished)
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def line_of(event: ChainedEvent) -> bytes:
    """An event as a line of JSON."""
    return orjson.dumps(event.as_json(), option=orjson.OPT_APPEND_NEWLINE)


def _write_lines(events: Iterable[ChainedEvent], path: Path) -> int:
    count = 0
    with path.open("wb") as file:
        for event in events:
            file.write(line_of(event))
            count += 1
    return count


def _write_parquet(events: Iterable[ChainedEvent], path: Path) -> int:
    count = 0
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for rows in _batches(events):
            writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
            count += len(rows)
    return count


def _batches(events: Iterable[ChainedEvent]) -> Iterator[list[dict[str, Any]]]:
    left = iter(events)
    while batch := list(islice(left, ROWS)):
        yield [_row(event) for event in batch]


def _row(event: ChainedEvent) -> dict[str, Any]:
    said = {**event.as_json(), "at": event.event.at}
    if said["details"] is not None:
        said["details"] = json.dumps(said["details"], ensure_ascii=False)
    return said
