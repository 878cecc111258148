"""One state of one table as its own metadata tells it: the input of the file index, whatever the table's format."""

from dataclasses import dataclass

import pyarrow as pa

from lakeshare_server.tables.delta_schema import Field, parse_schema
from lakeshare_server.tables.head import TableHead


@dataclass(frozen=True, kw_only=True)
class TableSnapshot:
    """A table at one version or snapshot.

    `files` has one row per data file: path (absolute, not encoded), name (the path as the metadata spells it),
    size (bytes), modification_time (ms), rows, and the structs partition, min, max and null_count, whose fields
    are columns. A missing value means unknown. Where bounds leave out NaN, told_max has those that recipients may go
    by. Files of a Delta log also have what is passed on as it is there: partition_values and stats (texts), tags, row
    tracking, and the columns of the deletion vector (dv_…).
    """

    format: str
    location: str
    head: TableHead
    version: int | None = None
    snapshot_id: int | None = None
    files: pa.Table

    @property
    def table_id(self) -> str:
        """The table's own id."""
        return self.head.table_id

    @property
    def schema_string(self) -> str:
        """The schema in Delta's JSON form."""
        return self.head.schema_string

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Columns whose value is the same in all rows of a file."""
        return self.head.partition_columns

    @property
    def fields(self) -> tuple[Field, ...]:
        """The table's columns."""
        return parse_schema(self.schema_string)
