"""How many rows the source holds, counted from its own files without Spark: what the reads are held against."""

import csv
from collections.abc import Sequence

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.ingest.samples import sample_lines


def source_rows(contract: SetContract, table_name: str, partitions: Sequence[str]) -> int:
    """Rows of a table when exactly these partitions are published."""
    table = contract.table(table_name)
    if table.source is not None:
        return sum(len(sample_lines(contract.name, table, partition)) - 1 for partition in partitions)
    return sum(_groups(contract, partition) for partition in partitions)


def _groups(contract: SetContract, partition: str) -> int:
    """Rows of `flights.daily_delays` for a day: its airports and airlines that had a departure."""
    departures = contract.table("departures")
    rows = csv.DictReader(sample_lines(contract.name, departures, partition))
    return len({(row["origin"], row["carrier"]) for row in rows})
