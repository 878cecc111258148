"""Tables as S3 Metadata keeps them (live inventory and journal), as plain Iceberg tables in a folder.

Columns as in the S3 User Guide, "S3 Metadata journal tables schema" and "… live inventory tables schema".
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

COLUMNS = pa.schema(
    [
        pa.field("bucket", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("sequence_number", pa.string(), nullable=False),
        pa.field("version_id", pa.string()),
        pa.field("is_delete_marker", pa.bool_()),
        pa.field("size", pa.int64()),
        pa.field("last_modified_date", pa.timestamp("us")),
        pa.field("e_tag", pa.string()),
        pa.field("storage_class", pa.string()),
        pa.field("is_multipart", pa.bool_()),
        pa.field("encryption_status", pa.string()),
        pa.field("is_bucket_key_enabled", pa.bool_()),
        pa.field("kms_key_arn", pa.string()),
        pa.field("checksum_algorithm", pa.string()),
    ]
)
OF_JOURNAL = pa.schema(
    [
        pa.field("record_type", pa.string(), nullable=False),
        pa.field("record_timestamp", pa.timestamp("us"), nullable=False),
        pa.field("requester", pa.string()),
    ]
)
MODIFIED = dt.datetime(2026, 11, 20, 9, 30, 15, tzinfo=dt.UTC)


def a_record(key: str, sequence: str, version: str | None = None, **more: object) -> dict[str, object]:
    """One record of either table; `type` and `at` make it one of the journal."""
    record = {
        "bucket": "lake",
        "key": key,
        "sequence_number": sequence,
        "version_id": version,
        "is_delete_marker": False,
        "size": 3,
        "last_modified_date": MODIFIED.replace(tzinfo=None),
        "e_tag": "900150983cd24fb0d6963f7d28e17f72",
        "storage_class": "STANDARD",
        "is_multipart": False,
        "encryption_status": "SSE-S3",
        "checksum_algorithm": "CRC64NVME",
    }
    if "type" in more:
        record |= {
            "record_type": more.pop("type"),
            "record_timestamp": more.pop("at").replace(tzinfo=None),
            "requester": "111122223333",
        }
    return record | more


@dataclass(frozen=True)
class MetadataTables:
    """A catalog of such tables in a folder."""

    folder: Path

    @cached_property
    def catalog(self) -> Any:
        """pyiceberg's own, on SQLite; typed by what it is asked for."""
        from pyiceberg.catalog.sql import SqlCatalog

        self.folder.mkdir(parents=True, exist_ok=True)
        catalog = SqlCatalog("s3", uri=f"sqlite:///{self.folder}/catalog.db", warehouse=str(self.folder))
        catalog.create_namespace_if_not_exists("b_lake")
        return catalog

    def write(
        self, name: str, records: Sequence[dict[str, object]], schema: pa.Schema | None = None
    ) -> dt.datetime:
        """Replace a table's rows in one snapshot; returns when that was made."""
        if schema is None:
            schema = pa.schema([*COLUMNS, *OF_JOURNAL]) if name == "journal" else COLUMNS
        table = self.catalog.create_table_if_not_exists(f"b_lake.{name}", schema)
        rows = pa.Table.from_pylist(list(records), schema)
        table.append(rows) if table.current_snapshot() is None else table.overwrite(rows)
        return dt.datetime.fromtimestamp(table.current_snapshot().timestamp_ms / 1000, dt.UTC)

    def place(self, name: str) -> str:
        """The folder of a table."""
        return str(self.catalog.load_table(f"b_lake.{name}").location()).removeprefix("file://")
