"""Publications of Iceberg tables with their changes recorded, as the pipelines make them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lakeshare_pipelines.contracts import Column, Table
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.changes import TableState, record_changes_since_latest
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Ledger, Publication
from lakeshare_server.tables import Stores
from tests.builders.canonical import Rows
from tests.builders.lake_tables import IcebergState
from tests.builders.sharing import Provider
from tests.builders.spark_iceberg import SparkIceberg, frame_rows


@dataclass(frozen=True)
class RecordingLake:
    """Publishes tables of a Spark catalog as the pipelines do, and keeps what Spark read of each publication."""

    tables: SparkIceberg
    provider: Provider
    key: tuple[str, ...] = ()
    read: dict[str, list[Rows]] = field(default_factory=dict)

    @property
    def lake(self) -> Lake:
        settings = LakeSettings(_env_file=None, state_dir=self.provider.settings.state_dir)

        def spark() -> SparkSession:
            return self.tables.spark

        return Lake(settings, spark)

    def state(self, table: str) -> IcebergState:
        """What a publication of the newest snapshot pins, from the folder itself: Spark takes seconds to tell it."""
        warehouse = self.tables.spark.conf.get(f"spark.sql.catalog.{self.tables.name}.warehouse")
        assert warehouse is not None
        versions = (Path(warehouse.removeprefix("file://")) / "lake" / table / "metadata").glob(
            "v*.metadata.json"
        )
        newest = max(versions, key=lambda file: int(file.name.split(".")[0][1:]))
        return IcebergState(str(newest), json.loads(newest.read_text())["current-snapshot-id"])

    def publish(self, table: str, rows: Rows | None = None) -> Publication:
        """Publish the newest state, of which the rows are known or read."""
        self.read.setdefault(table, []).append(self.tables.rows(table) if rows is None else rows)
        return self.publish_state(table, self.state(table))

    def publish_state(self, table: str, state: IcebergState) -> Publication:
        """Publish a state whose rows are read later."""
        return publish_recorded(self.provider, self.lake, f"lake.{table}", state, self.key)

    def read_states(self, table: str, states: Sequence[IcebergState]) -> None:
        """Read the rows of all published states, which have the same columns, by one query."""
        name = self.tables.table(table)
        of_each = [
            f"SELECT {number} AS `#`, * FROM {name} VERSION AS OF {state.snapshot_id}"
            for number, state in enumerate(states)
        ]
        every = frame_rows(self.tables.spark.sql(" UNION ALL ".join(of_each)))
        self.read[table] = [
            every.where(partial(is_of_state, number)).without("#") for number in range(len(states))
        ]


def is_of_state(number: int, row: Mapping[str, Any]) -> bool:
    """Whether a row was read of the state of this number, which is in its column `#`."""
    return bool(row["#"] == number)


def publish_recorded(
    provider: Provider, lake: Lake, name: str, state: IcebergState, key: tuple[str, ...] = ()
) -> Publication:
    """Publish a state of a table with a record of what it changes."""
    columns = tuple(Column(name=column, type="string", primary_key=True) for column in key)
    table = Table(name=name, format="iceberg", columns=columns)
    pinned = TableState(state.metadata_location, state.snapshot_id, Stores(provider.settings))
    digest = record_changes_since_latest(lake, Ledger(provider.catalog), table, pinned)
    snapshot = pinned.read(provider.settings.vectors_dir)
    return provider.publish(name, snapshot, metadata_location=state.metadata_location, changes_digest=digest)
