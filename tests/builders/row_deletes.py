"""Data files and files of row-level deletes as manifests tell of them; the deletes are really there."""

import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_server.tables.iceberg.deletes import Target
from lakeshare_server.tables.iceberg.manifests import DeleteFile
from tests.builders.deletion_vector import positions, serialized

ROWS = 100


def a_target(path: str = "a", **different: Any) -> Target:
    given = {"path": path, "spec_id": 0, "partition": (), "sequence_number": 1, "rows": ROWS, **different}
    return Target(**given)


def a_delete_file(path: Path | str, **different: Any) -> DeleteFile:
    given = {"content": "position", "path": str(path), "format": "PARQUET", "spec_id": 0, "partition": ()}
    return DeleteFile(**{**given, "sequence_number": 2, "rows": 1, "size_bytes": 1, **different})


def position_deletes(
    folder: Path, deleted: Sequence[tuple[str | None, int | None]], group_rows: int = 1000, **different: Any
) -> DeleteFile:
    """A real file with these deletes, in this order."""
    path = folder / f"{len(list(folder.iterdir()))}-deletes.parquet"
    paths, places = [one for one, _ in deleted], [one for _, one in deleted]
    rows = pa.table({"file_path": pa.array(paths, pa.string()), "pos": pa.array(places, pa.int64())})
    pq.write_table(rows, path, row_group_size=group_rows)
    return a_delete_file(path, **different)


def a_vector(folder: Path, deleted: Iterable[int], /, of: str = "a", **different: Any) -> DeleteFile:
    """A vector of Iceberg v3 somewhere in a file."""
    content = serialized(deleted)
    blob = struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))
    path = folder / f"{len(list(folder.iterdir()))}-deletes.puffin"
    path.write_bytes(b"PFA1" + blob + b"more")
    told = {"referenced_data_file": of, "content_offset": 4, "content_size_in_bytes": len(blob)}
    return a_delete_file(path, **{"format": "PUFFIN", "rows": len(positions(content)), **told, **different})
