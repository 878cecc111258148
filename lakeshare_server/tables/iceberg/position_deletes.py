"""Position deletes in Parquet files, each read once, as bitmaps of the data files' rows.

Only the columns of path and position are read, and of these only row groups that speak of live data files.
"""

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.stores import LASTING, Stores
from lakeshare_server.tables.deletion_vectors import Vector, bitmap_of, vector_of
from lakeshare_server.tables.iceberg.delete_targets import Targets
from lakeshare_server.tables.iceberg.manifests import DeleteFile

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyroaring import BitMap64

# Field ids that the specification reserves, and the names that it gives to them.
PATH, POSITION = (2147483546, "file_path"), (2147483545, "pos")
FIELD_ID = b"PARQUET:field_id"
# They are small files and come from stores that take their time: many are asked for at once.
READERS = 16

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PositionFile:
    """A file of position deletes, and the paths, in order, of the data files of which it may delete rows."""

    delete: DeleteFile
    near: Sequence[str]


def deleted_positions(
    stores: Stores, targets: Targets, files: Sequence[PositionFile], root: str
) -> dict[int, Vector]:
    """The vectors of all data files with deleted rows, by number.

    Raises:
        Unserveable: a file is missing, cannot be read, or is not what the specification says.
    """
    merged: dict[int, BitMap64] = {}
    with ThreadPoolExecutor(READERS) as pool:
        for found in pool.map(lambda file: _read(stores, targets, file, root), files):
            for number, positions in found:
                if number in merged:
                    merged[number] |= positions
                else:
                    merged[number] = positions
    for number, positions in merged.items():
        # What is deleted behind the end was never there, and readers count by what a vector says.
        if positions.max() >= targets.files[number].rows:
            positions.remove_range(targets.files[number].rows, positions.max() + 1)
    return {number: vector_of(positions) for number, positions in merged.items() if positions}


def _read(stores: Stores, targets: Targets, file: PositionFile, root: str) -> "list[tuple[int, BitMap64]]":
    path = file.delete.path
    try:
        return list(_positions(stores, targets, file))
    except (*LASTING, OSError, ValueError, KeyError) as error:
        _log.warning("the deletes %s of %s cannot be read: %s", path, root, error)
        raise Unserveable(
            f"The position deletes {path} of {root} cannot be read.",
            "Check that the file is there and whole; publish the table again.",
        ) from error


def _positions(stores: Stores, targets: Targets, file: PositionFile) -> "Iterator[tuple[int, BitMap64]]":
    import pyarrow.parquet as pq

    with stores.open(file.delete.path) as stream:
        footer = pq.read_metadata(stream)
        columns = [_name_of(footer.schema.to_arrow_schema(), *which) for which in (PATH, POSITION)]
        # Paths repeat for row after row: as a dictionary each of them is one text.
        parquet = pq.ParquetFile(stream, metadata=footer, read_dictionary=columns[:1])
        groups = [
            group
            for group in range(footer.num_row_groups)
            if _speaks_of(footer.row_group(group), columns[0], file.near)
        ]
        rows = parquet.read_row_groups(groups, columns=columns, use_threads=False).select(columns)
    for batch in rows.rename_columns(["path", "position"]).to_batches():
        for path, positions in _by_path(batch):
            number = targets.number_of(path, file.delete)
            if number is not None:
                yield number, positions


def _name_of(schema: pa.Schema, field_id: int, name: str) -> str:
    ids = {(field.metadata or {}).get(FIELD_ID): field.name for field in schema}
    return str(ids.get(b"%d" % field_id, name))


def _speaks_of(group: "pq.RowGroupMetaData", column: str, live: Sequence[str]) -> bool:
    """Whether a row group may name one of the data files: one lies between its first and last path."""
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema == column and chunk.statistics is not None and chunk.statistics.has_min_max:
            first = bisect_left(live, chunk.statistics.min)
            return first < len(live) and live[first] <= chunk.statistics.max
    return True


def _by_path(batch: pa.RecordBatch) -> "Iterator[tuple[str, BitMap64]]":
    paths, positions = batch.columns
    if paths.null_count or positions.null_count or pc.min(positions).as_py() < 0:
        raise ValueError("a delete has no path, no position, or one before the file's begin")
    if not pa.types.is_dictionary(paths.type):
        paths = paths.dictionary_encode()
    names = paths.dictionary.to_pylist()
    for code, start, end in _runs(paths.indices):
        yield names[code], bitmap_of(positions.slice(start, end - start))


def _runs(codes: pa.Array) -> Iterator[tuple[int, int, int]]:
    """Stretches of the same code: files are sorted by path, so that there is one for each."""
    runs: Any = pc.run_end_encode(codes)
    start = 0
    for code, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield code, start, end
        start = end
