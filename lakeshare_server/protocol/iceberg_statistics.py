"""Statistics of data files for clients that ask for some columns' (REST specification, `stats-fields`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from lakeshare_server.protocol.iceberg_names import NamedColumn

# As they are called, and the columns they are kept in. Bounds go out as manifests have them, in hexadecimal.
COUNTS = {"null-value-counts": "null_counts", "nan-value-counts": "nan_counts"}
BOUNDS = {"lower-bounds": "lower", "upper-bounds": "upper"}


@dataclass(frozen=True)
class Statistics:
    """The columns of which statistics are asked for, by field id."""

    field_ids: Sequence[int]

    @classmethod
    def of(cls, columns: Iterable[NamedColumn | None]) -> "Statistics":
        """Those that are known."""
        return cls(sorted({column.field_id for column in columns if column is not None}))

    def added(self, files: pa.RecordBatch) -> list[str]:
        """The data files as JSON objects, with these statistics."""
        texts: list[str] = files.column("data_file").to_pylist()
        if not self.field_ids:
            return texts
        told = self._told(files)
        return [text[:-1] + "," + statistics[1:] for text, statistics in zip(texts, told, strict=True)]

    def _told(self, files: pa.RecordBatch) -> list[str]:
        rows = files.column("rows").to_pylist()
        # Each row has one value of such a column, null or not.
        maps = [("value-counts", dict.fromkeys(self.field_ids, rows))]
        for name, kept in (*COUNTS.items(), *BOUNDS.items()):
            maps.append((name, self._columns(files, kept, is_bound=name in BOUNDS)))
        return [
            orjson.dumps({name: _map(columns, place) for name, columns in maps}).decode()
            for place in range(files.num_rows)
        ]

    def _columns(self, files: pa.RecordBatch, kept: str, *, is_bound: bool) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for field_id in self.field_ids:
            if f"{kept}:{field_id}" in files.schema.names:
                values = files.column(f"{kept}:{field_id}").to_pylist()
                found[field_id] = [_hex(one) for one in values] if is_bound else values
        return found


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex().upper()


def _map(columns: dict[int, list[Any]], place: int) -> dict[str, list[Any]]:
    known = [(field_id, values[place]) for field_id, values in columns.items() if values[place] is not None]
    return {"keys": [key for key, _ in known], "values": [value for _, value in known]}
