"""Manifests and manifest lists of any format version, written by PyIceberg's own writers, and tables of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SNAPSHOT = 77


@dataclass(frozen=True)
class ToldSnapshot:
    """What `live_files` needs of a snapshot."""

    manifest_list: str
    snapshot_id: int = SNAPSHOT


def the_schema() -> Any:
    """A number, a text and a time."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

    return Schema(
        NestedField(1, "n", LongType()),
        NestedField(2, "s", StringType()),
        NestedField(3, "at", TimestamptzType()),
    )


def by_day() -> Any:
    """A spec that partitions by the day of the time, with number 3."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import DayTransform

    return PartitionSpec(PartitionField(3, 1007, DayTransform(), "at_day"), spec_id=3)


def an_entry(number: int = 1, status: int = 1, **said: Any) -> Any:
    """An entry of a data file; `said` changes its fields, or those of its file."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus
    from pyiceberg.typedef import Record

    own = {name: said.pop(name) for name in ("snapshot_id", "sequence_number") if name in said}
    fields = {
        "content": DataFileContent.DATA,
        "file_path": f"s3://lake/t/{number}.parquet",
        "file_format": FileFormat.PARQUET,
        "partition": Record(number),
        "record_count": 10 * number,
        "file_size_in_bytes": 1000 + number,
        "null_value_counts": {1: 0, 2: number},
        "nan_value_counts": {},
        "lower_bounds": {1: number.to_bytes(8, "little"), 2: b"a"},
        "upper_bounds": {1: (number + 1).to_bytes(8, "little")},
        "split_offsets": [4, 400_000],
        "column_sizes": {1: 3, 2: 4_000_000},
    } | said
    file = DataFile.from_args(_table_format_version=3, **fields)
    return ManifestEntry.from_args(
        _table_format_version=3, status=ManifestEntryStatus(status), data_file=file, **own
    )


def a_manifest(
    path: Path,
    entries: Sequence[Any],
    *,
    version: int = 2,
    deletes: bool = False,
    codec: str = "deflate",
    spec: Any = None,
    schema: Any = None,
) -> Any:
    """A manifest file, and what a manifest list says of it; by default of `the_schema` in days."""
    from pyiceberg.avro.file import AvroOutputFile
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestWriterV1, ManifestWriterV2

    class Writer(ManifestWriterV1 if version == 1 else ManifestWriterV2):  # type: ignore[misc]
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES if deletes else ManifestContent.DATA

        @property
        def version(self) -> int:
            return version

        def new_writer(self) -> Any:
            return AvroOutputFile[ManifestEntry](
                output_file=self._output_file,
                file_schema=with_int_ids(self._with_partition(version)),
                record_schema=with_int_ids(self._with_partition(3)),
                schema_name="manifest_entry",
                metadata=self._meta,
            )

        def prepare_entry(self, entry: ManifestEntry) -> ManifestEntry:
            return entry

    output = PyArrowFileIO().new_output(str(path))
    with Writer(spec or by_day(), schema or the_schema(), output, SNAPSHOT, codec) as writer:
        for entry in entries:
            writer.add_entry(entry)
    return writer.to_manifest_file()


def with_int_ids(schema: Any) -> Any:
    """A schema of manifests with equality ids as the specification has them: PyIceberg says they are longs."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import IntegerType, ListType, StructType

    def changed(kind: Any) -> Any:
        if isinstance(kind, ListType) and kind.element_id == 136:
            return ListType(136, IntegerType(), element_required=True)
        if not isinstance(kind, StructType):
            return kind
        fields = [field.model_copy(update={"field_type": changed(field.field_type)}) for field in kind.fields]
        return StructType(*fields)

    return Schema(*changed(schema.as_struct()).fields, schema_id=schema.schema_id)


def a_snapshot(folder: Path, manifests: Sequence[Any], *, version: int = 2, **said: Any) -> ToldSnapshot:
    """A snapshot with these manifests; `said` changes what its list says of the last one, by field name."""
    from pyiceberg.avro.file import AvroOutputFile
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestFile

    folder.mkdir(parents=True, exist_ok=True)
    names = [field.name for field in MANIFEST_LIST_FILE_SCHEMAS[3].fields]
    rows = []
    for manifest in manifests:
        values = dict(zip(names, manifest._data, strict=False)) | {
            "sequence_number": 5,
            "min_sequence_number": 5,
        }
        rows.append(values)
    rows[-1] |= said
    listing = folder / "list.avro"
    with AvroOutputFile[ManifestFile](
        output_file=PyArrowFileIO().new_output(str(listing)),
        file_schema=MANIFEST_LIST_FILE_SCHEMAS[version],  # type: ignore[index]
        record_schema=MANIFEST_LIST_FILE_SCHEMAS[3],
        schema_name="manifest_file",
        metadata={"format-version": str(version)},
    ) as writer:
        writer.write_block([ManifestFile.from_args(_table_format_version=3, **row) for row in rows])
    return ToldSnapshot(str(listing))


def a_told_table(folder: Path, schema: Any, spec: Any, entries: Sequence[Any]) -> str:
    """The metadata location of a table of which there are no data files; its snapshot is `SNAPSHOT`."""
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    folder.mkdir(parents=True, exist_ok=True)
    metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, str(folder))
    manifest = a_manifest(folder / "m.avro", entries, spec=metadata.spec(), schema=metadata.schema())
    told = json.loads(metadata.model_dump_json())
    told["snapshots"] = [
        {
            "snapshot-id": SNAPSHOT,
            "sequence-number": 5,
            "timestamp-ms": told["last-updated-ms"],
            "manifest-list": a_snapshot(folder, [manifest]).manifest_list,
            "summary": {"operation": "append"},
            "schema-id": told["current-schema-id"],
        }
    ]
    told |= {"current-snapshot-id": SNAPSHOT, "last-sequence-number": 5}
    location = folder / "v1.metadata.json"
    location.write_text(json.dumps(told))
    return str(location)
