"""A day of trips to deliver, of twenty columns in Parquet, and the contract that audits it, for a plain job, too."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.settings import LakeSettings

DAY, FILES = "2024-01-01", 8
CARRIERS = ["AA", "B6", "DL", "EV", "UA", "US", "WN"]
NUMBERS = [f"measure_{number}" for number in range(12)]
CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: {name}
name: {name}
version: 1.0.0
status: active
domain: bench
description: {{purpose: Trips of twenty columns.}}
team: {{name: lake}}
servers:
  - {{server: lake, type: local, path: warehouse, format: {format}}}
schema:
  - name: trips
    physicalName: {name}.trips
    description: One row per trip.
    customProperties:
      - {{property: source, value: trips}}
    properties:
      - {{name: day, logicalType: date, required: true, partitioned: true, partitionKeyPosition: 1}}
      - {{name: id, logicalType: integer, physicalType: bigint, required: true}}
      - {{name: flight, logicalType: integer, physicalType: int, required: true}}
      - {{name: carrier, logicalType: string, required: true}}
      - {{name: origin, logicalType: string, required: true}}
      - {{name: destination, logicalType: string, required: true}}
      - {{name: tail_number, logicalType: string}}
      - {{name: departed_at, logicalType: timestamp, required: true}}
{measures}
customProperties:
  - {{property: partitioning, value: daily}}
  - {{property: firstPartition, value: "{day}"}}
  - property: shares
    value:
      - {{share: {name}_share, schema: bench, tables: [trips]}}
"""
MEASURE = """\
      - name: {name}
        logicalType: number
        physicalType: double
        quality:
          - type: custom
            engine: greatExpectations
            implementation: {{type: expect_column_values_to_be_between, kwargs: {{min_value: 0, max_value: 1000}}}}"""
REQUIRED = ("day", "id", "flight", "carrier", "origin", "destination", "departed_at")


def trips_contract(folder: Path, name: str, form: str) -> SetContract:
    """A daily set of one table with seven required columns and twelve ranges."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    measures = "\n".join(MEASURE.format(name=one) for one in NUMBERS)
    path.write_text(CONTRACT.format(name=name, format=form, day=DAY, measures=measures))
    return load_contract(path)


def write_trips(folder: Path, rows: int) -> None:
    """Writes a day of so many trips in some Parquet files."""
    folder.mkdir(parents=True)
    draw, size = np.random.default_rng(1), -(-rows // FILES)
    for number, first in enumerate(range(0, rows, size)):
        count = min(size, rows - first)
        ids = np.arange(first, first + count)
        columns: dict[str, Any] = {
            "day": pa.array(np.full(count, DAY, "datetime64[D]")),
            "id": ids,
            "flight": pa.array(draw.integers(1, 9999, count), pa.int32()),
            **{
                name: pa.array(CARRIERS).take(pa.array(draw.integers(0, len(CARRIERS), count)))
                for name in ("carrier", "origin", "destination")
            },
            "tail_number": pa.array(ids % 5000, pa.int64()).cast(pa.string()),
            "departed_at": pa.array(np.datetime64(DAY, "us") + ids % 86_400 * 1_000_000).cast(
                pa.timestamp("us", "UTC")
            ),
            **{name: np.round(draw.random(count) * 1000, 2) for name in NUMBERS},
        }
        pq.write_table(pa.table(columns), folder / f"trips-{number:02}.parquet")


def deliver_trips(settings: LakeSettings, contract: SetContract, files: Path) -> None:
    """Delivers files that were written once: as links, which take no time."""
    folder = Path(settings.landing_root) / contract.name / DAY
    folder.mkdir(parents=True)
    for file in files.iterdir():
        (folder / file.name).hardlink_to(file)
    (folder / "_SUCCESS").touch()


def observed(frame: DataFrame) -> tuple[DataFrame, Observation]:
    """The frame with the contract's rules, which are evaluated in the pass that writes it."""
    failures = [F.sum(F.col(name).isNull().cast("long")).alias(f"{name}_missing") for name in REQUIRED]
    failures += [
        F.sum((~F.col(name).between(0, 1000)).cast("long")).alias(f"{name}_outside") for name in NUMBERS
    ]
    observation = Observation("rules")
    return frame.observe(observation, F.count("*").alias("rows"), *failures), observation
