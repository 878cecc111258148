"""One state of an Iceberg table, as publications pin it, and how Spark reads it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lakeshare_server.tables import Stores, TableSnapshot, read_iceberg
from lakeshare_server.tables.iceberg.metadata import open_metadata, schema_at

if TYPE_CHECKING:
    from pyiceberg.types import StructType
    from pyspark.sql import DataFrame, SparkSession

CHANGES_FOLDER = "_changes"
"""The folder beside a table's own files that each publication has a folder of change files in."""


@dataclass(frozen=True)
class TableState:
    """One state of an Iceberg table: a metadata file, and a snapshot that it lists."""

    metadata_location: str
    snapshot_id: int
    stores: Stores

    @property
    def place(self) -> tuple[str, int]:
        """The metadata location and the snapshot id."""
        return self.metadata_location, self.snapshot_id

    def read(self, vectors_dir: Path) -> TableSnapshot:
        """The table as recipients get it; large deletion vectors are written to `vectors_dir`.

        Raises:
            Unserveable: no client could read it.
            Unavailable: its store does not answer.
        """
        return read_iceberg(self.metadata_location, self.snapshot_id, vectors_dir, self.stores)

    def columns(self) -> "StructType":
        """The columns that readers of the state get."""
        return schema_at(*open_metadata(self.stores, self.metadata_location, self.snapshot_id)).as_struct()

    def written_ms(self) -> int:
        """When the snapshot was written."""
        return open_metadata(self.stores, self.metadata_location, self.snapshot_id)[1].timestamp_ms

    def frame(self, spark: "SparkSession") -> "DataFrame":
        """The rows."""
        table, snapshot = open_metadata(self.stores, self.metadata_location, self.snapshot_id)
        reader = spark.read.format("iceberg")
        # Told by its id, a snapshot has the columns of the time it was written: the newest one has today's.
        if snapshot.snapshot_id != table.current_snapshot_id:
            reader = reader.option("snapshot-id", str(self.snapshot_id))
        return reader.load(self.metadata_location)
