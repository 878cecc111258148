"""The file index: the files of one publication in one Arrow IPC file, named by the SHA-256 of its bytes.

Written once, when a table is published, and memory-mapped by every server process. What is in it never changes.
"""

import json
import logging
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lakeshare_server.errors import Unavailable
from lakeshare_server.tables.head import TableHead

logger = logging.getLogger(__name__)

# Grows whenever columns or rendering change; an index of another layout is not opened.
LAYOUT = 4
HEADER_KEY = b"lakeshare"
# Indexes up to this size stay in memory between requests.
KEPT_BYTES = 64 << 20


@dataclass(frozen=True)
class IndexHeader:
    """What is true for all files of an index.

    `parquet_schema_string` is what recipients of the parquet format may see of the schema; `roots` are the stores
    that files and deletion vectors are in, or the folders of local ones outside of the table's own location, and
    `elsewhere` is the number of all those outside of it.
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
    """An open index. Batches are views into the mapped file, made once."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        buffer = pa.py_buffer(self._mapped)
        self._begin = buffer.address
        reader = pa.ipc.open_file(pa.BufferReader(buffer))
        self.schema: pa.Schema = reader.schema
        self.header = _header(self.schema)
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The files in batches of some thousand, in the order of their paths."""
        return iter(self._batches)

    def give_back(self, batch: pa.RecordBatch) -> None:
        """Say that a batch was read for now: of a large index no more is to stay in memory than what is being read."""
        if len(self._mapped) <= KEPT_BYTES:
            return
        # Empty ones lie anywhere, outside of the file, too.
        buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer]
        if not buffers:
            return
        start = min(buffer.address for buffer in buffers) - self._begin
        end = max(buffer.address + buffer.size for buffer in buffers) - self._begin
        start -= start % mmap.PAGESIZE
        # The pages stay in the system's cache: whoever reads them next has them back at once.
        self._mapped.madvise(mmap.MADV_DONTNEED, start, end - start)


def open_index(index_dir: Path, digest: str) -> FileIndex:
    """Map the index with this digest.

    Raises:
        Unavailable: it is not there, or of another layout.
    """
    path = index_path(index_dir, digest)
    try:
        index = FileIndex(path)
    except (OSError, KeyError, TypeError, ValueError) as error:
        logger.warning("%s cannot be opened: %s", path, error)
        raise Unavailable(
            f"the file index {digest} cannot be opened",
            "Restore the server's index folder from its backup, or publish the table again.",
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
