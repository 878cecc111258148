"""The files of a snapshot as planning a scan needs them: what prunes, and what clients are told, already rendered.

Written once for each publication and mapped by the server's processes, like a file index. Columns go by their field
ids here: clients may ask with the names of today, or with those that the snapshot had.
"""

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.stores import Stores
from lakeshare_server.tables.exact_files import OWN_PARTITION
from lakeshare_server.tables.iceberg.bounds import bounded_type, maxima, minima, null_counts
from lakeshare_server.tables.iceberg.data_files import DataFiles
from lakeshare_server.tables.iceberg.delete_targets import Targets, targets_of
from lakeshare_server.tables.iceberg.manifests import DeleteFile, live_files
from lakeshare_server.tables.iceberg.metadata import open_metadata, schema_at
from lakeshare_server.tables.iceberg.partition_texts import PartitionTexts
from lakeshare_server.tables.iceberg.partitions import identity_columns, partition_columns, partition_values
from lakeshare_server.tables.iceberg.transforms import partition_ranges
from lakeshare_server.tables.locations import local_path

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

# Grows whenever columns or rendering change.
LAYOUT = 3
BATCH_ROWS = 16_000
# An equality delete of an unpartitioned table applies to all older data files: only so many pairs are kept.
MOST_REFERENCES = 5_000_000
DELETE_FILES, MAY_LACK_COLUMNS = b"delete files", b"may lack columns"
# In JSON, partition values of other types are texts, which stand for something else.
SAME_IN_JSON = frozenset({"boolean", "int", "long", "float", "double", "string"})
# Raw statistics, for those who ask for them; the column's id stands behind the name.
STATISTICS = ("lower", "upper", "null_counts", "nan_counts")


class ScanFiles:
    """The data files, mapped; `delete_files` are JSON objects, `delete_paths` where they are.

    `may_lack_columns` is whether a file may be without a column whose partition value is a text in a plan, like a date:
    its statistics do not show that it has the column.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        reader = pa.ipc.open_file(pa.py_buffer(mapped))
        self.delete_files: Sequence[Mapping[str, Any]] = orjson.loads(reader.schema.metadata[DELETE_FILES])
        self.may_lack_columns = reader.schema.metadata[MAY_LACK_COLUMNS] == b"true"
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The files in the order of the manifests, some thousand at a time."""
        return iter(self._batches)


def write_scan_files(
    stores: Stores, metadata_location: str, snapshot_id: int, told: "Schema", path: Path
) -> None:
    """Write the files of a snapshot; `told` is the schema that clients bind partition specs to.

    Raises:
        Unserveable: the metadata or a manifest cannot be read, or the files have what cannot be told.
        Unavailable: the store does not answer.
    """
    table, snapshot = open_metadata(stores, metadata_location, snapshot_id)
    root = local_path(table.location)
    live = live_files(stores, snapshot, root)
    targets = targets_of(table, live.data) if live.deletes else Targets(())
    by_file, used = _deletes_of(targets, live.deletes, len(live.data), root)
    columns = _by_id(told, schema_at(table, snapshot))
    partitions = PartitionTexts(table, told, root)
    rows = pa.table(
        {
            "path": live.data.column("path"),
            "rows": live.data.column("rows"),
            "spec_id": live.data.column("spec_id"),
            **_own_partitions(columns, live.data, table),
            **_pruning(columns, live.data, partition_columns(table, columns, live.data), table),
            "data_file": pa.array(_data_files(live.data, partitions), pa.string()),
            "deletes": pa.array(by_file, pa.list_(pa.int32())),
            **_statistics(live.data, columns),
        }
    )
    told_deletes = [_delete_file(delete, partitions) for delete in used]
    lacks = _may_lack_columns(table, columns, live.data)
    noted = {DELETE_FILES: orjson.dumps(told_deletes), MAY_LACK_COLUMNS: orjson.dumps(lacks)}
    schema = rows.schema.with_metadata(noted)
    with pa.OSFile(os.fsencode(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_table(rows.cast(schema).combine_chunks(), max_chunksize=BATCH_ROWS)


def _may_lack_columns(table: "TableMetadata", columns: "Schema", files: DataFiles) -> bool:
    for field_id, is_partitioned in identity_columns(table, columns, files).items():
        counts = files.null_counts.get(field_id, pa.nulls(len(files), pa.int64()))
        is_lacking = pc.any(pc.and_(is_partitioned, pc.is_null(counts)), min_count=0).as_py()
        if is_lacking and str(columns.find_type(field_id)) not in SAME_IN_JSON:
            return True
    return False


def _by_id(told: "Schema", own: "Schema") -> "Schema":
    """All primitive columns that rows have at most one value of, flat, each named by its id."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField, StructType

    found: dict[int, NestedField] = {}

    def collect(fields: Sequence[NestedField]) -> None:
        for field in fields:
            if isinstance(field.field_type, StructType):
                collect(field.field_type.fields)
            elif field.field_type.is_primitive:
                found.setdefault(
                    field.field_id, NestedField(field.field_id, str(field.field_id), field.field_type, False)
                )

    # Clients read with the types that they are told, into which columns of older snapshots were promoted.
    collect(told.fields)
    collect(own.fields)
    return Schema(*found.values())


def _pruning(
    columns: "Schema", files: DataFiles, partitioned_by: tuple[str, ...], table: "TableMetadata"
) -> dict[str, pa.Array]:
    ranges = partition_ranges(table, columns, files, bounded_type)
    structs = {
        "partition": partition_values(table, columns, files, partitioned_by),
        "min": minima(columns.fields, files, ranges),
        "max": maxima(columns.fields, files, ranges),
        "null_count": null_counts(columns.fields, files, ranges),
    }
    return {name: struct for name, struct in structs.items() if struct.type.num_fields}


def _own_partitions(columns: "Schema", files: DataFiles, table: "TableMetadata") -> dict[str, pa.Array]:
    """For each spec, what its files are partitioned by, null for all others."""
    found: dict[str, pa.Array] = {}
    for spec_id in pc.unique(files.column("spec_id")).to_pylist():
        is_own = files.in_spec(spec_id)
        own = files.filtered(is_own)
        values = partition_values(table, columns, own, partition_columns(table, columns, own))
        if values.type.num_fields:
            places = pc.subtract(pc.cumulative_sum(is_own.cast(pa.int64())), 1)
            found[f"{OWN_PARTITION}{spec_id}"] = pc.take(values, pc.if_else(is_own, places, None))
    return found


def _statistics(files: DataFiles, columns: "Schema") -> dict[str, pa.Array]:
    known = columns.field_ids
    return {
        f"{name}:{field_id}": values
        for name in STATISTICS
        for field_id, values in getattr(files, name).items()
        if field_id in known
    }


def _data_files(files: DataFiles, partitions: PartitionTexts) -> Iterator[str]:
    names = ("path", "format", "spec_id", "size", "rows", "first_row_id", "sequence_number")
    columns = [files.column(name).to_pylist() for name in names]
    for (path, kind, spec_id, size, rows, row_id, number), partition in zip(
        zip(*columns, strict=True), partitions.of(files), strict=True
    ):
        lineage = "" if row_id is None else f',"first-row-id":{row_id}'
        lineage += f',"data-sequence-number":{number}' if lineage and number is not None else ""
        yield (
            f'{{"spec-id":{spec_id},"content":"data","file-path":{orjson.dumps(path).decode()},'
            f'"file-format":"{kind.lower()}","partition":{partition},"file-size-in-bytes":{size},'
            f'"record-count":{rows}{lineage}}}'
        )


def _delete_file(delete: DeleteFile, partitions: PartitionTexts) -> dict[str, Any]:
    described: dict[str, Any] = {
        "spec-id": delete.spec_id,
        "content": f"{delete.content}-deletes",
        "file-path": delete.path,
        "file-format": delete.format.lower(),
        "partition": partitions.values(delete.spec_id, dict(delete.partition)),
        "file-size-in-bytes": delete.size_bytes,
        "record-count": delete.rows,
        "referenced-data-file": delete.referenced_data_file,
        "content-offset": delete.content_offset,
        "content-size-in-bytes": delete.content_size_in_bytes,
        "equality-ids": list(delete.equality_ids) or None,
    }
    return {name: value for name, value in described.items() if value is not None}


def _deletes_of(
    targets: Targets, deletes: Sequence[DeleteFile], files: int, root: str
) -> tuple[list[list[int]], list[DeleteFile]]:
    """For each data file the places of the deletes that apply to it, among those that apply to any."""
    by_file: list[list[int]] = [[] for _ in range(files)]
    vectors: dict[int, int] = {}
    used: list[DeleteFile] = []
    by_equality: set[int] = set()
    references = 0
    for delete in deletes:
        numbers = _numbers(targets, delete)
        references += len(numbers)
        if references > MOST_REFERENCES:
            raise Unserveable(
                f"{root} has more than {MOST_REFERENCES} pairs of data files and files of deletes.",
                "Plan scans in the client, or compact the table.",
            )
        if not numbers:
            continue
        if delete.content == "equality":
            by_equality.add(len(used))
        for number in numbers:
            if delete.format == "PUFFIN":
                vectors[number] = len(used)
            by_file[number].append(len(used))
        used.append(delete)
    # A vector has taken over all positions that were deleted before it, but no keys.
    for number, place in vectors.items():
        by_file[number] = [one for one in by_file[number] if one == place or one in by_equality]
    return by_file, used


def _numbers(targets: Targets, delete: DeleteFile) -> list[int]:
    if delete.content == "equality":
        return targets.older_in_scope(delete)
    found = (targets.number_of(path, delete) for path in targets.near(delete))
    return [number for number in found if number is not None]
