"""The first rows that a recipient reads: of the files that its query is answered with, through their signed URLs."""

import io
import json
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_server.errors import Unserveable
from lakeshare_server.see_as.eyes import Eyes
from lakeshare_server.see_as.what_is_told import ToldFile, files_of, lines_of, metadata_of

LONGEST_TEXT = 60
STORE_S = 60


async def first_rows(
    eyes: Eyes, path: str, count: int, version: int | None
) -> tuple[list[str], list[list[str]]]:
    """The columns, and at most so many rows as texts. Ask with eyes that read the parquet format.

    Raises:
        Refused: the recipient gets no files in that format.
        Unserveable: a file cannot be fetched or read.
    """
    lines = lines_of(await eyes.post(f"{path}/query", {"limitHint": count, "version": version}))
    columns = [field["name"] for field in json.loads(metadata_of(lines)["schemaString"])["fields"]]
    rows: list[list[str]] = []
    for file in files_of(lines):
        if len(rows) >= count:
            break
        rows += _rows(await _fetched(eyes, file), file, columns, count - len(rows))
    return columns, rows


async def _fetched(eyes: Eyes, file: ToldFile) -> bytes:
    own = str(eyes.client.base_url)
    if file.url.startswith(own):
        answer = await eyes.client.get(file.url)
    else:
        async with httpx.AsyncClient(timeout=STORE_S) as store:
            answer = await store.get(file.url)
    if not answer.is_success:
        name = file.url.partition("?")[0]
        raise Unserveable(f"{name} answers {answer.status_code}", "See whether it is still in its store.")
    return answer.content


def _rows(content: bytes, file: ToldFile, columns: list[str], count: int) -> list[list[str]]:
    try:
        with pq.ParquetFile(io.BytesIO(content)) as parquet:
            there = [name for name in columns if name in parquet.schema_arrow.names]
            batch = next(parquet.iter_batches(batch_size=count, columns=there), None)
    except pa.ArrowException as error:
        name = file.url.partition("?")[0]
        raise Unserveable(f"{name} is no Parquet file: {error}", "See what lies in its store.") from error
    # A file without rows has no batch.
    values = {} if batch is None else {name: batch.column(name).to_pylist() for name in there}
    found = 0 if batch is None else batch.num_rows
    return [[_text(_value(name, row, values, file)) for name in columns] for row in range(found)]


def _value(name: str, row: int, values: dict[str, list[Any]], file: ToldFile) -> Any:
    # Delta keeps partition columns out of files; an empty text stands for null.
    return values[name][row] if name in values else file.partition_values.get(name) or None


def _text(value: Any) -> str:
    text = "" if value is None else str(value)
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
