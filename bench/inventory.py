"""Listing a bucket for an inventory costs at most a third of the processor time that boto3's paginator needs for it.

Run: `python -m bench.inventory [--keys 100000]`. Both list the same bucket of SeaweedFS by turns, one of them after the
other; the medians count. Keys a second and core are those of the client alone: the server shares the machine.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lakeshare_pipelines.backup.inventory.list_objects import list_rows
from lakeshare_pipelines.backup.stores import StoreAddress, make_s3_client
from tests.builders.backup_keys import put_keys
from tests.integration.s3_server import REGION, running_s3

TURNS = 5
MUST, AIM = 3.0, 5.0


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=100_000)
    count = parser.parse_args().keys
    with tempfile.TemporaryDirectory() as folder, running_s3(Path(folder)) as server:
        os.environ["AWS_ACCESS_KEY_ID"] = server.admin.access_key
        os.environ["AWS_SECRET_ACCESS_KEY"] = server.admin.secret_key
        bucket = StoreAddress(url="s3://lake", endpoint=server.endpoint, region=REGION)
        make_s3_client(bucket).create_bucket(Bucket="lake")
        print(f"putting {count:,} objects into SeaweedFS", flush=True)
        put_keys(bucket, _keys(count))
        turns = [
            (_spent(lambda: _ours(bucket), count), _spent(lambda: _boto3(bucket), count))
            for _ in range(TURNS)
        ]
    ours, theirs = ([turn[who] for turn in turns] for who in (0, 1))
    for name, spent in (("generator", ours), ("boto3's paginator", theirs)):
        cpu, wall = (statistics.median(count / one[what] for one in spent) for what in (0, 1))
        print(f"{name}: {cpu:,.0f} keys/s/core, {wall:,.0f} keys/s with the server on the same cores")
    ratio = statistics.median(b[0] / a[0] for a, b in turns)
    print(
        f"keys/s/core against boto3: {ratio:.1f}x (must {MUST}, aim {AIM}); server SeaweedFS, {TURNS} turns"
    )
    return 0 if ratio >= MUST else 1


def _keys(count: int) -> list[str]:
    """Like those of a lake: partitions of some tables, some ninety characters each."""
    return [
        f"warehouse/sales/{('orders', 'customers', 'returns')[number % 3]}/day=2026-{number // 300 % 12 + 1:02}-"
        f"{number // 3600 % 28 + 1:02}/part-{number:05}-{number * 2654435761 % 2**32:08x}-c000.snappy.parquet"
        for number in range(count)
    ]


def _ours(bucket: StoreAddress) -> int:
    return sum(batch.num_rows for batch in list_rows(bucket))


def _boto3(bucket: StoreAddress) -> int:
    pages = make_s3_client(bucket).get_paginator("list_objects_v2").paginate(Bucket=bucket.bucket)
    return sum(len(page.get("Contents", ())) for page in pages)


def _spent(count_keys: Callable[[], int], expected: int) -> tuple[float, float]:
    """Seconds of this process's processor time, and of the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    found = count_keys()
    if found != expected:
        raise SystemExit(f"listed {found} of {expected} keys")
    return time.process_time() - cpu, time.perf_counter() - wall


if __name__ == "__main__":
    sys.exit(main())
