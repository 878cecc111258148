"""First rows of the files that lines name: deleted ones left out, columns by their own names, values as texts."""

import json
import posixpath
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.pages.in_place import place_in
from lakeshare_server.routes.files import opened_file
from lakeshare_server.settings import ServerSettings
from lakeshare_server.stores import Stores
from lakeshare_server.stores.locations import LOCAL
from lakeshare_server.tables.deletion_vectors import MAGIC
from lakeshare_server.tables.z85 import z85_bytes

if TYPE_CHECKING:
    from pyroaring import BitMap64

BATCH_ROWS = 256
LONGEST_TEXT = 300
BINARY_BYTES = 16
WHOLE_SECONDS = re.compile(r"\.0+(?=Z|$)")
FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class Column:
    """A column of the schema that recipients see, with the name and id that it has in files."""

    name: str
    kind: Any
    physical_name: str
    field_id: int | None

    @classmethod
    def of(cls, field: Mapping[str, Any], mode: str) -> "Column":
        """The column of a field of a schema, whose columns are mapped in this mode."""
        metadata = field.get("metadata") or {}
        name = str(field["name"])
        physical = str(metadata.get("delta.columnMapping.physicalName", name)) if mode != "none" else name
        field_id = metadata.get("delta.columnMapping.id") if mode == "id" else None
        return cls(name, field["type"], physical, field_id)


class RowReader:
    """Reads rows of a table's files; the columns and how they are mapped come from its metadata line.

    `folders` are those of the server's own disk that the table has files in.
    """

    def __init__(
        self,
        settings: ServerSettings,
        stores: Stores,
        metadata: Mapping[str, Any],
        folders: Sequence[str],
    ) -> None:
        self._settings, self._stores, self._folders = settings, stores, folders
        self._mode = (metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")
        fields = json.loads(metadata["schemaString"])["fields"]
        self.columns = [Column.of(field, self._mode) for field in fields]

    def rows(self, add: Mapping[str, Any], wanted: int) -> Iterator[list[str | None]]:
        """At most so many rows of a file, as the delta format's `add` tells of it.

        Raises:
            StoreError, TableFilesMissing: the file is not there, or it is none that can be read.
            Unavailable: its store does not answer.
        """
        place = place_in(add["path"])
        deleted = self._deleted(add.get("deletionVector"))
        try:
            with closing(self._opened(place)) as source, pq.ParquetFile(source, buffer_size=1 << 16) as file:
                for batch, places in self._kept(file, deleted, wanted):
                    columns = [self._texts(column, batch, add["partitionValues"]) for column in self.columns]
                    yield from ([column[place] for column in columns] for place in places)
        except (pa.ArrowException, OSError) as error:
            raise TableFilesMissing(place, "one of its files is not whole") from error

    def _opened(self, place: str) -> Any:
        """A file as recipients may have it: of the local disk by the judgement of the byte endpoint."""
        if self._stores.place(place).kind != LOCAL:
            return self._stores.open(place)
        folder = next((one for one in self._folders if place.startswith(f"{one.rstrip('/')}/")), None)
        return opened_file(place, folder or posixpath.dirname(place), self._settings).stream

    def _kept(
        self, file: Any, deleted: "BitMap64 | None", wanted: int
    ) -> Iterator[tuple[pa.RecordBatch, list[int]]]:
        """Batches with the places in them that are shown."""
        names = [one for one in (self._stored(column, file.schema_arrow) for column in self.columns) if one]
        start = 0
        # Of a file without one of the columns the rows still count.
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names or None):
            places = [
                place for place in range(batch.num_rows) if deleted is None or start + place not in deleted
            ][:wanted]
            start += batch.num_rows
            wanted -= len(places)
            if places:
                yield batch, places
            if wanted <= 0:
                return

    def _stored(self, column: Column, schema: pa.Schema) -> str | None:
        """What a column is called in a file; None where the file has none."""
        if column.field_id is None:
            return column.physical_name if column.physical_name in schema.names else None
        wanted = str(column.field_id).encode()
        return next((one.name for one in schema if (one.metadata or {}).get(FIELD_ID) == wanted), None)

    def _texts(
        self, column: Column, batch: pa.RecordBatch, partition: Mapping[str, str | None]
    ) -> Sequence[str | None]:
        for name in (column.physical_name, column.name):
            if name in partition:
                return [_short(partition[name])] * batch.num_rows
        stored = self._stored(column, batch.schema)
        if stored is None:
            return [None] * batch.num_rows
        return [_short(text) for text in _texts(batch.column(stored), column.kind, self._mode)]

    def _deleted(self, vector: Mapping[str, Any] | None) -> "BitMap64 | None":
        """The rows of a file that are deleted (Delta PROTOCOL.md, "Deletion Vectors")."""
        if vector is None:
            return None
        from pyroaring import BitMap64

        text, size = str(vector["pathOrInlineDv"]), int(vector["sizeInBytes"])
        if vector["storageType"] == "i":
            content = z85_bytes(text)[:size]
        else:
            place = place_in(text)
            with closing(self._opened(place)) as source:
                source.seek(int(vector.get("offset") or 0))
                (length,) = struct.unpack(">I", source.read(4))
                content = source.read(length)
        if content[: len(MAGIC)] != MAGIC or len(content) < size:
            raise TableFilesMissing(text, "a deletion vector is not whole")
        return BitMap64.deserialize(content[len(MAGIC) :])


def _texts(values: pa.Array, kind: Any, mode: str) -> list[str | None]:
    stored = values.type
    if isinstance(kind, Mapping):
        try:
            found = values.to_pylist()
        except (ValueError, OverflowError):
            # Python has no dates before year 1 and after 9999.
            return ["(cannot be shown)"] * len(values)
        return [None if one is None else _json(_named(one, kind, mode)) for one in found]
    if (
        pa.types.is_binary(stored)
        or pa.types.is_large_binary(stored)
        or pa.types.is_fixed_size_binary(stored)
    ):
        return [None if one is None else _hex(one) for one in values.to_pylist()]
    if pa.types.is_nested(stored):
        return [f"({kind})" if one else None for one in values.is_valid().to_pylist()]
    try:
        texts: list[str | None] = pc.cast(values, pa.string()).to_pylist()
    except pa.ArrowNotImplementedError:
        return [f"({stored})" if one else None for one in values.is_valid().to_pylist()]
    return (
        [text and WHOLE_SECONDS.sub("", text) for text in texts] if pa.types.is_timestamp(stored) else texts
    )


def _named(value: Any, kind: Any, mode: str) -> Any:
    """A nested value with the names that recipients know."""
    if not isinstance(kind, Mapping) or value is None:
        return value
    match kind.get("type"):
        case "struct":
            columns = [Column.of(field, mode) for field in kind["fields"]]
            return {one.name: _named(value.get(one.physical_name), one.kind, mode) for one in columns}
        case "array":
            return [_named(one, kind["elementType"], mode) for one in value]
        case "map":
            pairs = ((_named(key, kind["keyType"], mode), one) for key, one in value)
            return {str(key): _named(one, kind["valueType"], mode) for key, one in pairs}
        case _:
            return value


def _json(value: Any) -> str:
    return json.dumps(
        value, ensure_ascii=False, default=lambda one: _hex(one) if isinstance(one, bytes) else str(one)
    )


def _hex(content: bytes) -> str:
    more = "…" if len(content) > BINARY_BYTES else ""
    return f"0x{content[:BINARY_BYTES].hex()}{more}"


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
