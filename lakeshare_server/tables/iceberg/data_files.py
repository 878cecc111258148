"""The data files of a snapshot as Arrow columns: what their manifests say of them, not yet in any table's types."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.iceberg.entries import Entries, longs

DELETED = 2
COLUMNS: dict[str, pa.DataType] = {
    "path": pa.string(),
    "format": pa.string(),
    "rows": pa.int64(),
    "size": pa.int64(),
    "spec_id": pa.int32(),
    "snapshot_id": pa.int64(),
    "sequence_number": pa.int64(),
    "first_row_id": pa.int64(),
    "key_metadata": pa.binary(),
}
COUNTS = ("null_counts", "nan_counts")
PARTITION_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "float": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
}


@dataclass(frozen=True)
class DataFiles:
    """One row per live data file, in the order of the manifests.

    `columns` has path (as the manifest spells it), format (upper case), rows, size (bytes), spec_id, snapshot_id that
    added it, sequence_number, first_row_id (v3) and key_metadata (of encrypted files). `lower` and `upper` are bounds
    in Iceberg's single-value form, `null_counts` and `nan_counts` numbers, all by column id; a column of which no file
    says anything is missing. `partition` is by (spec id, partition field id), null for files of another spec: dates
    and times are integers in it, decimals and UUIDs bytes.
    """

    columns: pa.Table
    lower: Mapping[int, pa.Array]
    upper: Mapping[int, pa.Array]
    null_counts: Mapping[int, pa.Array]
    nan_counts: Mapping[int, pa.Array]
    partition: Mapping[tuple[int, int], pa.Array]

    def __len__(self) -> int:
        """How many files there are."""
        files: int = self.columns.num_rows
        return files

    def column(self, name: str) -> pa.Array:
        """One of `columns`, in one piece."""
        return self.columns.column(name).combine_chunks()

    def in_spec(self, spec_id: int) -> pa.BooleanArray:
        """Which files were written under a partition spec."""
        return pc.equal(self.column("spec_id"), spec_id)

    def filtered(self, kept: pa.BooleanArray) -> "DataFiles":
        """Some of the files."""
        return DataFiles(
            columns=self.columns.filter(kept),
            lower={key: values.filter(kept) for key, values in self.lower.items()},
            upper={key: values.filter(kept) for key, values in self.upper.items()},
            null_counts={key: values.filter(kept) for key, values in self.null_counts.items()},
            nan_counts={key: values.filter(kept) for key, values in self.nan_counts.items()},
            partition={key: values.filter(kept) for key, values in self.partition.items()},
        )


def arrow_chunk(entries: Entries) -> pa.Table:
    """The live ones of the entries read so far, in columns that `data_files` puts together."""
    arrays = {name: _array(entries.columns[name], kind) for name, kind in COLUMNS.items()}
    arrays |= {name: pa.array(entries.columns[name], pa.binary()) for name in COUNTS}
    for which, columns in (("lower", entries.lower), ("upper", entries.upper)):
        arrays |= {f"{which}:{key}": pa.array(column, pa.binary()) for key, column in columns.items()}
    for key, column in entries.partition.items():
        kind = PARTITION_TYPES.get(entries.partition_kinds[key], pa.int64())
        arrays[f"partition:{key[0]}:{key[1]}"] = _array(column, kind)
    status = entries.columns["status"]
    chunk = pa.table(arrays)
    return chunk.filter(pa.array([one != DELETED for one in status])) if DELETED in status else chunk


def data_files(chunks: list[pa.Table]) -> DataFiles:
    """The files of all chunks."""
    if not chunks:
        chunks = [pa.table({name: pa.nulls(0, kind) for name, kind in COLUMNS.items()})]
    whole = pa.concat_tables(chunks, promote_options="default").combine_chunks()
    columns = whole.select(list(COLUMNS))
    formats = pc.utf8_upper(columns.column("format"))
    return DataFiles(
        columns=columns.set_column(columns.schema.get_field_index("format"), "format", formats),
        lower=dict(_numbered(whole, "lower")),
        upper=dict(_numbered(whole, "upper")),
        null_counts=_counts(whole, "null_counts"),
        nan_counts=_counts(whole, "nan_counts"),
        partition={
            (int(name.split(":")[1]), int(name.split(":")[2])): _whole(whole, name)
            for name in whole.column_names
            if name.startswith("partition:")
        },
    )


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    # Texts come as bytes; the cast finds what is no UTF-8.
    return pa.array(values, pa.binary()).cast(kind) if pa.types.is_string(kind) else pa.array(values, kind)


def _whole(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks()


def _numbered(table: pa.Table, which: str) -> Iterator[tuple[int, pa.Array]]:
    for name in table.column_names:
        if name.startswith(f"{which}:"):
            yield int(name.removeprefix(f"{which}:")), _whole(table, name)


def _counts(table: pa.Table, name: str) -> dict[int, pa.Array]:
    """The packed counts by column id; each different text of counts is unpacked once."""
    if name not in table.column_names:
        return {}
    packed = _whole(table, name).dictionary_encode()
    unpacked = [longs(text) for text in packed.dictionary.to_pylist()]
    by_id = [dict(zip(numbers[::2], numbers[1::2], strict=True)) for numbers in unpacked]
    ids = sorted({key for counts in by_id for key in counts})
    return {
        key: pc.take(pa.array([counts.get(key) for counts in by_id], pa.int64()), packed.indices)
        for key in ids
    }
