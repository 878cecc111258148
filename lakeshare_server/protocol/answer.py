"""The lines of a table's answer in parquet format: protocol, metadata, then the files, a batch at a time.

Files come from the index of one publication. Memory is bounded by the batch, not by the table.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.protocol.requests import QueryRequest
from lakeshare_server.tables.byte_strings import byte_strings
from lakeshare_server.tables.index import FileIndex, IndexHeader
from lakeshare_server.tables.lines import LINE_HEAD, LINE_TAIL
from lakeshare_server.tables.predicate import EVERYTHING
from lakeshare_server.tables.pruning import evaluate

Sign = Callable[[pa.StringArray], list[bytes]]


@dataclass(frozen=True)
class FileAnswer:
    """Which files of an index answer a request, and how their lines end."""

    index: FileIndex
    request: QueryRequest
    expires_at_ms: int
    ends_with_action: bool

    def parts(self, sign: Sign, counted: Callable[[int], None]) -> Iterator[bytes]:
        """The file lines and the closing action; `counted` is told of each part's number of files."""
        asked = "" if self.request.version is None else f',"version":{self.request.version}'
        between = f'{asked},"expirationTimestamp":{self.expires_at_ms}'.encode() + LINE_TAIL
        for batch in self._wanted():
            urls = sign(batch.column("path"))
            lines = byte_strings(batch.column("parquet_line"))
            counted(len(urls))
            yield b"".join(
                piece
                for url, line in zip(urls, lines, strict=True)
                for piece in (LINE_HEAD, url, line, between)
            )
        if self.ends_with_action:
            yield end_stream_action({"minUrlExpirationTimestamp": self.expires_at_ms})

    def _wanted(self) -> Iterator[pa.RecordBatch]:
        if self.request.predicate == EVERYTHING and self.request.limit is None:
            yield from self.index.batches()
            return
        still_wanted = self.request.limit
        for batch in self.index.batches():
            if still_wanted is not None and still_wanted <= 0:
                return
            maybe = evaluate(self.request.predicate, batch)
            kept = batch.filter(maybe.true)
            if still_wanted is not None:
                kept, still_wanted = _limited(kept, maybe.surely_all.filter(maybe.true), still_wanted)
            if kept.num_rows:
                yield kept


def head(header: IndexHeader, asked_version: int | None) -> bytes:
    """The two lines that every answer begins with. The version is told to those who asked for one."""
    metadata = {
        "id": header.table_id,
        "name": header.name,
        "description": header.description,
        "format": {"provider": "parquet"},
        "schemaString": header.schema_string,
        "partitionColumns": list(header.partition_columns),
        "configuration": {},
        "version": asked_version,
        "size": header.size_bytes,
        "numFiles": header.files,
    }
    said = {key: value for key, value in metadata.items() if value is not None}
    return _line({"protocol": {"minReaderVersion": 1}}) + _line({"metaData": said})


def end_stream_action(fields: dict[str, object]) -> bytes:
    """The closing line, for those who asked for it."""
    return _line({"endStreamAction": fields})


def _limited(batch: pa.RecordBatch, surely_all: pa.BooleanArray, wanted: int) -> tuple[pa.RecordBatch, int]:
    """The files up to the one that fills the limit: only rows that surely pass the predicate count."""
    rows = pc.fill_null(pc.if_else(surely_all, batch.column("rows"), 0), 0)
    before = pc.subtract(pc.cumulative_sum(rows), rows)
    return batch.filter(pc.less(before, wanted)), wanted - (pc.sum(rows).as_py() or 0)


def _line(wrapped: dict[str, object]) -> bytes:
    return json.dumps(wrapped, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
