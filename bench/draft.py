"""The time to draft a contract from a large CSV file, at most 60 s for 1 GB on two cores, start of Spark included.

Run: `python -m bench.draft [MB]`, 1024 by default. Beside it, in the same Spark: one plain pass that counts the values
of all columns as text. The ratio is of the draft without the start of Spark.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from pyspark.sql import functions as F

from lakeshare_pipelines.ingest.draft import draft_contract, render
from lakeshare_pipelines.ingest.profile import read_files
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import spark_session

MB = 1024
GOAL_S_PER_GB = 60.0
CHUNK_ROWS = 200_000
STATUSES = np.array(["open", "paid", "sent", "returned"])


def make_chunk(first: int, random: np.random.Generator) -> pa.Table:
    """Orders with keys, text, numbers, days, times, a small set of values and empty values."""
    ids = np.arange(first, first + CHUNK_ROWS)
    customers = random.integers(1, 900_000, CHUNK_ROWS)
    cents = random.integers(1, 1_000_000, CHUNK_ROWS)
    seconds = 1_704_067_200 + ids
    return pa.table(
        {
            "order_id": ids,
            "customer_id": customers,
            "email": np.char.add(np.char.add("customer", customers.astype(str)), "@example.org"),
            "amount": pa.array(cents / 100, mask=cents % 10 == 0),
            "weight": random.random(CHUNK_ROWS),
            "status": STATUSES[random.integers(0, len(STATUSES), CHUNK_ROWS)],
            "day": seconds.astype("datetime64[s]").astype("datetime64[D]"),
            "ordered_at": seconds.astype("datetime64[s]"),
            "note": np.char.add(
                "parcel is with neighbour number ", random.integers(1, 10**6, CHUNK_ROWS).astype(str)
            ),
        }
    )


def write_file(path: Path, size_bytes: int) -> int:
    """Writes about so many bytes; returns the number of rows."""
    random, rows = np.random.default_rng(7), 0
    with path.open("wb") as file:
        while file.tell() < size_bytes:
            options = pa_csv.WriteOptions(include_header=rows == 0, quoting_style="none")
            pa_csv.write_csv(make_chunk(rows, random), file, options)
            rows += CHUNK_ROWS
    return rows


def measure(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def main() -> int:
    """Measure, print, and return the exit code."""
    size_mb = int(sys.argv[1]) if len(sys.argv) > 1 else MB
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "orders.csv"
        rows = write_file(path, size_mb << 20)
        settings = LakeSettings(_env_file=None, state_dir=Path(folder) / "state")
        load = os.getloadavg()[0]
        started = time.monotonic()
        with spark_session(settings) as spark:
            start_s = time.monotonic() - started
            texts: list[str] = []
            draft_s = measure(
                lambda: texts.append(render(draft_contract(read_files(spark, [str(path)], Path(folder)))))
            )
            frame = read_files(spark, [str(path)]).frame
            plain_s = measure(lambda: frame.agg(*(F.count(name) for name in frame.columns)).collect())
    whole_s, goal_s = start_s + draft_s, GOAL_S_PER_GB * max(size_mb, MB) / 1024
    print(f"{size_mb} MB, {rows:,} rows; load before {load:.1f}, {len(os.sched_getaffinity(0))} cores")
    print(
        f"start of Spark {start_s:.1f} s, draft {draft_s:.1f} s, together {whole_s:.1f} s (goal {goal_s:.0f} s)"
    )
    print(f"a plain pass {plain_s:.1f} s; the draft takes {draft_s / plain_s:.1f} times as long")
    return int(whole_s > goal_s)


if __name__ == "__main__":
    sys.exit(main())
