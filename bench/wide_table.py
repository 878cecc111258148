"""A Delta table of many files that exist in its log only: what an index is built from, without the data."""

import datetime
import json
from pathlib import Path

DAYS = 100
SIZE_BYTES = 1_048_576
ROWS = 10_000


def many_files_table(location: Path, files: int) -> None:
    """Make a Delta table of `files` files over a hundred partitions, with statistics and a checkpoint."""
    from deltalake import DeltaTable, Schema
    from deltalake.schema import Field, PrimitiveType
    from deltalake.transaction import AddAction, create_table_with_add_actions

    kinds = {
        "day": "date",
        "carrier": "string",
        "delay": "double",
        "distance": "long",
        "departed": "timestamp",
    }
    schema = Schema([Field(name, PrimitiveType(kind)) for name, kind in kinds.items()])
    adds = [AddAction(*_add(number)) for number in range(files)]
    create_table_with_add_actions(str(location), schema, adds, mode="error", partition_by=["day"])
    DeltaTable(location).create_checkpoint()


def _add(number: int) -> tuple[str, int, dict[str, str | None], int, bool, str]:
    day = (datetime.date(2013, 1, 1) + datetime.timedelta(days=number % DAYS)).isoformat()
    path = f"day={day}/part-{number:05d}-8b0086f2-7b27-4935-ac5a-{number:012d}.c000.snappy.parquet"
    stats = {
        "numRecords": ROWS,
        "minValues": {
            "carrier": "9E",
            "delay": -30.5,
            "distance": number,
            "departed": f"{day}T05:15:00.000Z",
        },
        "maxValues": {
            "carrier": "YV",
            "delay": 1301.25,
            "distance": number + 4983,
            "departed": f"{day}T23:59:00.000Z",
        },
        "nullCount": {"carrier": 0, "delay": 255, "distance": 0, "departed": 0},
    }
    return path, SIZE_BYTES, {"day": day}, 1_356_998_400_000 + number, True, json.dumps(stats)
