"""Files of row-level deletes that name data files, written anew with the new names.

Position deletes name them in their rows (Iceberg spec, "Position Delete Files"), deletion vectors in the footer of
their Puffin file; equality deletes name none.
"""

import io
import json
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.rewriting.avro_files import changed_records, unreadable
from lakeshare_pipelines.errors import BackupError

PATH, POSITION = (2147483546, "file_path"), (2147483545, "pos")
"""Field ids that the specification reserves, and the names that it gives to them."""
PATH_ID = PATH[0]
PUFFIN = b"PFA1"
FOOTER_TAIL = struct.Struct("<iI4s")
"""Behind a Puffin footer's payload: how long that is, flags, the magic (Puffin spec, "Footer structure")."""
PACKED_FLAG = 1
Moved = Callable[[str], str]


@dataclass(frozen=True)
class NewDeletes:
    """A rewritten file, and the first and last data file it names, in order of their bytes; None when it has none."""

    content: bytes
    first: str | None = None
    last: str | None = None


def rewritten_deletes(location: str, file_format: str, content: bytes, moved: Moved) -> NewDeletes:
    """A file of position deletes (`PARQUET`, `ORC`, `AVRO`) or deletion vectors (`PUFFIN`) for data files that moved.

    Raises:
        BackupError: it cannot be read, or is of no format that Iceberg knows.
    """
    formats: dict[str, Callable[[str, bytes, Moved], NewDeletes]] = {
        "PARQUET": _parquet,
        "ORC": _orc,
        "AVRO": _avro,
        "PUFFIN": _puffin,
    }
    if file_format.upper() not in formats:
        raise BackupError(
            location, f"position deletes in {file_format} are unknown", "Compact the table's deletes first."
        )
    with _explained(location):
        return formats[file_format.upper()](location, content, moved)


def _parquet(location: str, content: bytes, moved: Moved) -> NewDeletes:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(io.BytesIO(content))
    columns = _columns(file.schema_arrow, b"PARQUET:field_id")
    deletes = _moved_rows(file.read(), columns, moved)
    written = io.BytesIO()
    pq.write_table(deletes, written, compression="zstd", store_schema=False)
    return _told(written.getvalue(), deletes.column(columns[0]))


def _orc(location: str, content: bytes, moved: Moved) -> NewDeletes:
    from pyarrow import orc

    file = orc.ORCFile(io.BytesIO(content))
    columns = _columns(file.schema, b"iceberg.id")
    deletes = _moved_rows(file.read(), columns, moved)
    written = io.BytesIO()
    orc.write_table(deletes, written, compression="zlib")
    return _told(written.getvalue(), deletes.column(columns[0]))


def _avro(location: str, content: bytes, moved: Moved) -> NewDeletes:
    names: set[str] = set()

    def change(record: dict[str, Any]) -> None:
        record["file_path"] = moved(record["file_path"])
        names.add(record["file_path"])

    changed = changed_records(location, content, change)
    ordered = sorted(names, key=str.encode)
    return NewDeletes(changed, ordered[0] if ordered else None, ordered[-1] if ordered else None)


def _puffin(location: str, content: bytes, moved: Moved) -> NewDeletes:
    """The blobs stay where they are: manifests tell their offsets."""
    size, flags, magic = FOOTER_TAIL.unpack(content[-FOOTER_TAIL.size :])
    start = len(content) - FOOTER_TAIL.size - size
    if magic != PUFFIN or content[start - len(PUFFIN) : start] != PUFFIN:
        raise ValueError("it does not end as Puffin files do")
    if flags & PACKED_FLAG:
        raise ValueError("its footer is compressed")
    footer = json.loads(content[start : -FOOTER_TAIL.size])
    for blob in footer["blobs"]:
        named = blob.get("properties", {}).get("referenced-data-file")
        if named is not None:
            blob["properties"]["referenced-data-file"] = moved(named)
    payload = json.dumps(footer, separators=(",", ":"), ensure_ascii=False).encode()
    return NewDeletes(content[:start] + payload + FOOTER_TAIL.pack(len(payload), flags, PUFFIN))


def _moved_rows(deletes: pa.Table, columns: tuple[str, str], moved: Moved) -> pa.Table:
    """The rows with new paths, in the order that the specification wants: by path, then by position."""
    place = deletes.column_names.index(columns[0])
    field = deletes.schema.field(place)
    paths = deletes.column(place).combine_chunks().cast(pa.string()).dictionary_encode()
    new = pa.array([moved(path) for path in paths.dictionary.to_pylist()], pa.string())
    deletes = deletes.set_column(place, field, new.take(paths.indices).cast(field.type))
    return deletes.take(pc.sort_indices(deletes.select(columns), [(name, "ascending") for name in columns]))


def _columns(schema: pa.Schema, id_key: bytes) -> tuple[str, str]:
    """The names that the columns of path and position have in a file."""
    ids = {(field.metadata or {}).get(id_key): field.name for field in schema}
    path, position = (str(ids.get(b"%d" % field_id, name)) for field_id, name in (PATH, POSITION))
    return path, position


def _told(content: bytes, paths: pa.ChunkedArray) -> NewDeletes:
    if not len(paths):
        return NewDeletes(content)
    return NewDeletes(content, paths[0].as_py(), paths[-1].as_py())


@contextmanager
def _explained(location: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, struct.error, pa.ArrowException) as error:
        raise unreadable(location, error) from error
