"""One state of one table as its own metadata tells it: the input of the file index, whatever the table's format."""

from dataclasses import dataclass, field

import pyarrow as pa

from lakeshare_server.tables.delta_schema import Field, parse_schema


@dataclass(frozen=True)
class TableProtocol:
    """What a reader of the data files must know, in Delta's terms."""

    min_reader_version: int = 1
    reader_features: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TableSnapshot:
    """A table at one version or snapshot.

    `files` has one row per data file: path (absolute, not encoded), name (the path as the metadata spells it),
    size (bytes), modification_time (ms), rows, and the structs partition, min, max and null_count, whose fields
    are columns. A missing value means unknown.
    """

    format: str
    location: str
    table_id: str
    name: str | None = None
    description: str | None = None
    schema_string: str
    partition_columns: tuple[str, ...]
    protocol: TableProtocol = field(default_factory=TableProtocol)
    version: int | None = None
    snapshot_id: int | None = None
    files: pa.Table

    @property
    def fields(self) -> tuple[Field, ...]:
        """The table's columns."""
        return parse_schema(self.schema_string)
