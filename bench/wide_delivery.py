"""Staging a table of 400 columns, compared with four tables of 100 columns: processor time of Spark's driver.

Run: `python -m bench.wide_delivery`. The values are the same, CSV of six types, in a set of one table and in a set of
four, which are staged by turns in one driver, after a turn that does not count. Spark's search for constraints would
take time with the square of the number of columns (`wap/stage.py`). The goal: at most 1.3 times.
"""

import sys
import tempfile
from datetime import date, timedelta
from pathlib import Path
from statistics import median
from uuid import uuid4

import psutil

from bench.server.turns import say
from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.nessie.server import nessie_for
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Lake, open_lake
from tests.builders.shared_spark import driver_pid

COLUMNS, TABLES, ROWS, TURNS, GOAL = 400, 4, 2_000, 3, 1.3
FORMATS = ("iceberg", "delta")
# The type in a contract, and a value by row.
TYPES = (
    ("{logicalType: integer, physicalType: int}", str),
    ("{logicalType: integer, physicalType: bigint}", lambda row: str(row * 10**10)),
    ('{logicalType: number, physicalType: "decimal(12,2)"}', lambda row: f"{row}.25"),
    ("{logicalType: date}", lambda row: str(date(2024, 1, 1) + timedelta(row))),
    ("{logicalType: timestamp}", lambda row: f"2024-01-01T00:00:{row % 60:02}Z"),
    ("{logicalType: string}", lambda row: f"text {row}"),
)


def main() -> int:
    """Prints the processor times of both sets and their ratio; 1 if one is over the goal."""
    missed = False
    with tempfile.TemporaryDirectory(prefix="lakeshare-wide-delivery-") as name:
        folder = Path(name)
        settings = LakeSettings(_env_file=None, state_dir=folder / "state")
        with nessie_for(settings, keep=False), open_lake(settings) as lake:
            for form in FORMATS:
                sets = [make_set(folder, settings, form, tables) for tables in (1, TABLES)]
                seconds: list[list[float]] = [[], []]
                for turn in range(TURNS + 1):
                    say(f"{form}, turn {turn} of {TURNS}")
                    for contract, taken in zip(sets, seconds, strict=True):
                        taken.append(measure_staging(lake, contract))
                wide, narrow = (median(taken[1:]) for taken in seconds)
                ratio = wide / narrow
                missed |= ratio > GOAL
                print(
                    f"{form}: one table of {COLUMNS} columns {wide:.1f} s, {TABLES} tables of {COLUMNS // TABLES} "
                    f"{narrow:.1f} s: {ratio:.2f} times (goal: at most {GOAL}: {'met' if ratio <= GOAL else 'missed'})",
                    flush=True,
                )
    return int(missed)


def make_set(folder: Path, settings: LakeSettings, form: str, tables: int) -> SetContract:
    """A set of tables with 400 columns in all, and its delivery."""
    name, width = f"{form}_{tables}", COLUMNS // tables
    landing = Path(settings.landing_root) / name / "all"
    landing.mkdir(parents=True)
    lines = [
        "apiVersion: v3.1.0",
        "kind: DataContract",
        f"id: {name}",
        f"name: {name}",
        "version: 1.0.0",
        "status: active",
        "servers:",
        f"  - {{server: lake, type: local, path: warehouse, format: {form}}}",
        "schema:",
    ]
    for table in range(tables):
        lines += [
            f"  - name: t{table}",
            f"    physicalName: {name}.t{table}",
            "    customProperties: [{property: source, value: " + f"t{table}}}]",
            "    properties:",
        ]
        kinds = [TYPES[column % len(TYPES)] for column in range(width)]
        lines += [f"      - {{name: c{at}, {kind[1:]}" for at, (kind, _) in enumerate(kinds)]
        header = ",".join(f"c{at}" for at in range(width))
        rows = [",".join(value(row) for _, value in kinds) for row in range(ROWS)]
        (landing / f"t{table}.csv").write_text("\n".join([header, *rows, ""]))
    (landing / "_SUCCESS").touch()
    path = folder / f"{name}.yaml"
    path.write_text("\n".join([*lines, ""]))
    return load_contract(path)


def measure_staging(lake: Lake, contract: SetContract) -> float:
    """Stages the delivery; returns the seconds of processor time that the driver took."""
    driver = psutil.Process(driver_pid())
    before = driver.cpu_times()
    staged = stage(lake, contract, ["all"], str(uuid4()))
    after = driver.cpu_times()
    if any(table.rows != ROWS or table.rejected for table in staged.tables):
        raise RuntimeError(f"{contract.name}: {[(table.rows, table.rejected) for table in staged.tables]}")
    return after.user + after.system - before.user - before.system


if __name__ == "__main__":
    sys.exit(main())
