"""The file index: the files of one publication in one Arrow IPC file, named by the SHA-256 of its bytes.

Written once, when a table is published, and memory-mapped by every server process. What is in it never changes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lakeshare_server.errors import Unavailable
from lakeshare_server.tables.head import TableHead

# Grows whenever columns or rendering change; an index of another layout is not opened.
LAYOUT = 2
HEADER_KEY = b"lakeshare"


@dataclass(frozen=True)
class IndexHeader:
    """What is true for all files of an index.

    `parquet_schema_string` is what recipients of the parquet format may see of the schema; `roots` are the stores
    that files and deletion vectors are in, `elsewhere` the number of those outside of the table's own location.
    """

    layout: int
    table_format: str
    location: str
    head: TableHead
    parquet_schema_string: str
    roots: tuple[str, ...]
    elsewhere: int
    rows: int
    files: int
    size_bytes: int


class FileIndex:
    """An open index. Batches are views into the mapped file."""

    def __init__(self, source: pa.MemoryMappedFile) -> None:
        self._reader = pa.ipc.open_file(source)
        self.header = _header(self._reader.schema)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the batches: path, size, rows, dv_cardinality, the structs there are, and those of lines."""
        return self._reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The files in batches of a few thousand, in the order of their paths."""
        for number in range(self._reader.num_record_batches):
            yield self._reader.get_batch(number)


def open_index(index_dir: Path, digest: str) -> FileIndex:
    """Map the index with this digest.

    Raises:
        Unavailable: it is not there, or of another layout.
    """
    path = index_path(index_dir, digest)
    try:
        index = FileIndex(pa.memory_map(str(path)))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Unavailable(
            f"the file index {digest} cannot be opened in {index_dir}: {error}",
            "Restore the folder from its backup, or publish the table again.",
        ) from error
    if index.header.layout != LAYOUT:
        raise Unavailable(
            f"the file index {digest} has layout {index.header.layout}, this lakeshare reads {LAYOUT}",
            "Publish the table again with this version.",
        )
    return index


def index_path(index_dir: Path, digest: str) -> Path:
    """Where the index with this digest is."""
    return index_dir / f"{digest}.arrow"


def _header(schema: pa.Schema) -> IndexHeader:
    fields = json.loads(schema.metadata[HEADER_KEY])
    fields["head"] = TableHead.from_json(fields["head"])
    return IndexHeader(**{**fields, "roots": tuple(fields["roots"])})
