"""Reading for equality deletes: the key columns of Parquet files, found by field id; files ahead; within limits."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import StoreSettings
from lakeshare_server.tables.iceberg.equality_keys import KeyColumn, value_of_lacking
from lakeshare_server.tables.iceberg.footers import FIELD_ID
from lakeshare_server.tables.reason_codes import ReasonCode

if TYPE_CHECKING:
    import pyarrow.parquet as pq

BATCH_ROWS = 1 << 18
Place = tuple[int, ...]
"""Indices that lead to a column: of a top-level column, of a field in it, and so on."""

# Files that are read before their turn.
AHEAD = 16
BYTES_SETTING, SECONDS_SETTING = "LAKESHARE_EQUALITY_DELETE_BYTES", "LAKESHARE_EQUALITY_DELETE_S"
Read = TypeVar("Read")


@dataclass
class Budget:
    """How much may still be read, by all threads together."""

    settings: StoreSettings
    root: str
    files: int
    began: float
    read_bytes: int = 0
    is_stopped: bool = False
    lock: Lock = field(default_factory=Lock)

    def take(self, size_bytes: int) -> None:
        """Count bytes that are about to be read.

        Raises:
            Unserveable: they are too many, or time is up.
            CancelledError: another thread has failed.
        """
        if self.is_stopped:
            raise CancelledError
        with self.lock:
            self.read_bytes += size_bytes
        most_bytes, most_s = self.settings.equality_delete_bytes, self.settings.equality_delete_s
        if self.read_bytes > most_bytes:
            raise self._exceeded(f"{BYTES_SETTING} is {most_bytes} bytes", BYTES_SETTING)
        if time.monotonic() - self.began > most_s:
            raise self._exceeded(f"{SECONDS_SETTING} is {most_s:g} seconds", SECONDS_SETTING)

    def _exceeded(self, limit: str, setting: str) -> Unserveable:
        return Unserveable(
            f"{self.root} has {self.files} files of equality deletes, and finding the rows they delete takes more "
            f"than is allowed: {limit}.",
            f"Raise {setting}; what was read so far is kept for the next attempt. Without it: "
            f"{ReasonCode.EQUALITY_DELETES.fix}",
            ReasonCode.EQUALITY_DELETES,
        )


class KeyReading:
    """The key columns of one Parquet file; `constants` has those, by id, that are not read from it."""

    def __init__(
        self,
        stream: object,
        keys: Sequence[KeyColumn],
        mapped: Mapping[str, int],
        constants: Mapping[int, pa.Array],
    ) -> None:
        import pyarrow.parquet as pq

        self._file: pq.ParquetFile = pq.ParquetFile(stream)
        self._keys, self._mapped, self._constants = keys, mapped, constants
        schema, footer = self._file.schema_arrow, self._file.metadata
        self._places = places_by_id(schema, mapped)
        self.has_ids, self.rows = bool(self._places), footer.num_rows
        # Of a file that lacks a column in a struct, the struct tells where it is null itself.
        wanted = [
            [one for one in (*key.structs, key.field_id) if one in self._places and one not in constants][-1:]
            for key in keys
        ]
        self._columns = sorted({_dotted(schema, self._places[one]) for [one] in filter(None, wanted)})
        self.size_bytes = _size_of(footer, self._columns)

    def require_all(self) -> None:
        """See that the file has all key columns, as files of deletes do.

        Raises:
            ValueError: it lacks one.
        """
        missing = [key.name for key in self._keys if key.field_id not in self._places]
        if missing:
            raise ValueError(f"it has no column {missing[0]}, by which it deletes")

    def batches(self) -> Iterator[list[pa.Array]]:
        """The parts of the keys, some rows at a time."""
        for count, batch in self._read():
            places = places_by_id(batch.schema, self._mapped)
            yield [part for key in self._keys for part in self._parts(count, batch, places, key)]

    def _parts(
        self, count: int, batch: pa.RecordBatch, places: Mapping[int, Place], key: KeyColumn
    ) -> Iterator[pa.Array]:
        """Whether each struct around a column is null, then the column, in comparable form."""
        for struct in key.structs:
            is_null = (
                column_at(batch, places[struct]).is_null() if struct in places else pa.repeat(True, count)
            )
            yield is_null.cast(pa.int64())
        if key.field_id in self._constants:
            yield pa.repeat(self._constants[key.field_id][0], count)
        elif key.field_id in places:
            yield key.comparable(column_at(batch, places[key.field_id]))
        else:
            yield pa.repeat(value_of_lacking(key)[0], count)

    def _read(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches with their numbers of rows: without a column they have none to count."""
        if self._columns:
            for batch in self._file.iter_batches(BATCH_ROWS, columns=self._columns, use_threads=False):
                yield batch.num_rows, batch
            return
        for start in range(0, self.rows, BATCH_ROWS):
            yield min(BATCH_ROWS, self.rows - start), pa.record_batch([], pa.schema([]))


def places_by_id(schema: pa.Schema, mapped: Mapping[str, int]) -> dict[int, Place]:
    """Where a Parquet file has its columns, those inside of structs too; `mapped` are the ids of files without any."""
    has_ids = any(True for field in schema if _has_id(field))
    return dict(_places(list(schema), (), "", None if has_ids else mapped))


def _has_id(field: pa.Field) -> bool:
    if FIELD_ID in (field.metadata or {}):
        return True
    return any(_has_id(field.type.field(place)) for place in range(field.type.num_fields))


def _places(
    fields: Sequence[pa.Field], above: Place, path: str, mapped: Mapping[str, int] | None
) -> "list[tuple[int, Place]]":
    found: list[tuple[int, Place]] = []
    for index, column in enumerate(fields):
        place, name = (*above, index), path + column.name
        own = (column.metadata or {}).get(FIELD_ID)
        field_id = mapped.get(name) if mapped is not None else None if own is None else int(own)
        if field_id is not None:
            found.append((field_id, place))
        if pa.types.is_struct(column.type):
            inner = [column.type.field(number) for number in range(column.type.num_fields)]
            found += _places(inner, place, f"{name}.", mapped)
    return found


def column_at(batch: pa.RecordBatch, place: Place) -> pa.Array:
    """A column, null where a struct around it is."""
    first, *inner = place
    values = batch.column(first)
    return pc.struct_field(values, inner) if inner else values


def _dotted(schema: pa.Schema, place: Place) -> str:
    names, fields = [], list(schema)
    for index in place:
        names.append(fields[index].name)
        kind = fields[index].type
        fields = [kind.field(number) for number in range(kind.num_fields)]
    return ".".join(names)


def _size_of(footer: "pq.FileMetaData", columns: Collection[str]) -> int:
    """How many bytes these columns have, compressed."""
    wanted, inside = set(columns), tuple(f"{column}." for column in columns)
    paths = [footer.schema.column(leaf).path for leaf in range(footer.num_columns)]
    leaves = [leaf for leaf, path in enumerate(paths) if path in wanted or path.startswith(inside)]
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    return sum(group.column(leaf).total_compressed_size for group in groups for leaf in leaves)


def read_ahead(
    files: ThreadPoolExecutor, jobs: Iterable[tuple[bool, Callable[[], Iterator[Read]]]]
) -> Iterator[Read]:
    """What the jobs read, in their order: some of the small ones are read whole before their turn."""
    ahead: deque[Future[list[Read]] | Callable[[], Iterator[Read]]] = deque()
    for is_small, read in jobs:
        ahead.append(files.submit(_whole, read) if is_small else read)
        if len(ahead) > AHEAD:
            yield from _result(ahead.popleft())
    while ahead:
        yield from _result(ahead.popleft())


def _whole(read: Callable[[], Iterator[Read]]) -> list[Read]:
    return list(read())


def _result(reading: Future[list[Read]] | Callable[[], Iterator[Read]]) -> Iterable[Read]:
    return reading.result() if isinstance(reading, Future) else reading()
