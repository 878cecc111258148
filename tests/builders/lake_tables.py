"""Small Delta and Iceberg tables without Spark, and what is in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

CREW = pa.struct([("pilots", pa.int64()), ("lead", pa.string())])
FIRST_DAY = date(2013, 1, 1)


def some_rows(days: int = 3, per_day: int = 4) -> pa.Table:
    """Flights of a few days: every type that both formats and the protocol know, with nulls and odd characters."""
    count = days * per_day
    numbers = range(count)
    return pa.table(
        {
            "day": pa.array([FIRST_DAY + timedelta(days=n // per_day) for n in numbers], pa.date32()),
            "carrier": pa.array([["UA", "a b/ü%", 'q"\\', None][n % 4] for n in numbers], pa.string()),
            "flight": pa.array([None if n % 5 == 4 else 1000 + n for n in numbers], pa.int32()),
            "distance": pa.array([n * 10**12 for n in numbers], pa.int64()),
            "delay": pa.array([[1.5, -2.25, float("nan"), None][n % 4] for n in numbers], pa.float64()),
            "cancelled": pa.array([n % 3 == 0 for n in numbers], pa.bool_()),
            "departed": pa.array(
                [
                    datetime(2013, 1, 1, 5, 15, tzinfo=UTC) + timedelta(hours=n, microseconds=n)
                    for n in numbers
                ],
                pa.timestamp("us", "UTC"),
            ),
            "crew": pa.array([{"pilots": n % 3, "lead": f"p{n}"} for n in numbers], CREW),
        }
    )


def a_delta_table(
    location: Path, rows: pa.Table | None = None, *, partitioned_by: Sequence[str] = ("day",)
) -> Path:
    """A Delta table with one commit."""
    from deltalake import write_deltalake

    write_deltalake(
        location, some_rows() if rows is None else rows, partition_by=list(partitioned_by) or None
    )
    return location


def append_delta(location: Path, rows: pa.Table) -> int:
    """One more commit; returns its version."""
    from deltalake import DeltaTable, write_deltalake

    write_deltalake(location, rows, mode="append")
    return DeltaTable(location).version()


@dataclass(frozen=True)
class IcebergState:
    """What a publication pins of an Iceberg table."""

    metadata_location: str
    snapshot_id: int


class IcebergTable:
    """An Iceberg table in a catalog of its own below `folder`, or below a location in another store."""

    def __init__(
        self,
        folder: Path | str,
        schema: pa.Schema,
        *,
        partitioned_by: Sequence[str] = ("day",),
        **options: str,
    ) -> None:
        from pyiceberg.catalog.memory import InMemoryCatalog

        if isinstance(folder, Path):
            folder.mkdir(parents=True, exist_ok=True)
            folder = folder.as_uri()
        self.catalog = InMemoryCatalog("tests", warehouse=folder, **options)
        self.catalog.create_namespace("lake")
        self.table: Any = self.catalog.create_table("lake.flights", schema)
        if partitioned_by:
            with self.table.update_spec() as spec:
                for column in partitioned_by:
                    spec.add_identity(column)

    def append(self, rows: pa.Table) -> IcebergState:
        """One more snapshot."""
        self.table.append(rows)
        return self.state()

    def state(self) -> IcebergState:
        """The newest snapshot."""
        return IcebergState(self.table.metadata_location, self.table.current_snapshot().snapshot_id)


def an_iceberg_table(
    folder: Path, rows: pa.Table | None = None, *, partitioned_by: Sequence[str] = ("day",)
) -> IcebergTable:
    """An Iceberg table with one snapshot."""
    content = some_rows() if rows is None else rows
    table = IcebergTable(folder, content.schema, partitioned_by=partitioned_by)
    table.append(content)
    return table
