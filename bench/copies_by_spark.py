"""The engine `spark` copies 50,000 small objects at least 0.6 times as fast as s5cmd, and 1.3 times as fast as rclone.

Run: `python -m bench.copies_by_spark [--objects 50000] [--turns 5]`. All copy inside one SeaweedFS, by turns, each with
the keys it is to copy at hand; figures are medians. Ours starts a JVM and its workers in every turn: with that, and
with its portions, probes, ledgers and reports in its time, it is compared with s5cmd; without that, with rclone. Both
are printed, for with so few objects the start is a quarter of the whole.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import psutil
import pyarrow as pa

from bench.copies import OBJECT_BYTES, WORKERS, Bench
from lakeshare_pipelines.backup.copy.spark import SparkEngine
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import spark_session
from tests.builders.shared_spark import driver_pid
from tests.integration.s3_server import REGION, S3Server, running_s3

MUST_S5CMD, MUST_RCLONE = 0.6, 1.3
TURNS, OBJECTS = 5, 50_000


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=OBJECTS)
    parser.add_argument("--turns", type=int, default=TURNS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_s3(Path(folder)) as server:
        os.environ |= {
            "AWS_ACCESS_KEY_ID": server.admin.access_key,
            "AWS_SECRET_ACCESS_KEY": server.admin.secret_key,
            "AWS_REGION": REGION,
        }
        bench = SparkBench(Path(folder), server, asked.objects)
        settings = LakeSettings(_env_file=None, state_dir=Path(folder) / "state")
        seconds = bench.timed(settings, server.endpoint, asked.turns)
    whole, started, s5cmd, rclone = (
        median(seconds[tool]) for tool in ("spark", "started", "s5cmd", "rclone")
    )
    print(
        f"{asked.objects} x {OBJECT_BYTES} B on SeaweedFS: spark {asked.objects / whole:.0f}/s with its start-up of "
        f"{whole - started:.0f} s, {asked.objects / started:.0f}/s without, "
        f"s5cmd ({WORKERS} workers) {asked.objects / s5cmd:.0f}/s, "
        f"rclone ({WORKERS} transfers) {asked.objects / rclone:.0f}/s; "
        f"with its start-up ours is {s5cmd / whole:.2f} x s5cmd (must {MUST_S5CMD}) and {rclone / whole:.2f} x rclone, "
        f"without {rclone / started:.2f} x rclone (must {MUST_RCLONE})"
    )
    return 0 if s5cmd / whole >= MUST_S5CMD and rclone / started >= MUST_RCLONE else 1


class SparkBench(Bench):
    """The bench of the engine `local`, with Spark in its place."""

    def __init__(self, folder: Path, server: S3Server, objects: int) -> None:
        super().__init__(folder, server, objects)
        self._started: list[float] = []

    def timed(self, settings: LakeSettings, endpoint: str, turns: int) -> dict[str, list[float]]:
        """The seconds of each tool, by turns."""
        tools: dict[str, Callable[[str, str], None]] = {
            "spark": lambda where, prefix: self._by_spark(settings, where, prefix),
            "s5cmd": self._s5cmd,
            "rclone": self._rclone,
        }
        seconds: dict[str, list[float]] = {tool: [] for tool in tools}
        for turn in range(turns):
            for tool, copy in tools.items():
                prefix = f"{tool}-{turn}/"
                self._prepare(prefix)
                began = time.perf_counter()
                copy(endpoint, prefix)
                seconds[tool].append(time.perf_counter() - began)
                self._require_all(prefix)
                _end_driver()
        return seconds | {"started": self._started}

    def _by_spark(self, settings: LakeSettings, endpoint: str, prefix: str) -> None:
        with spark_session(settings) as spark:
            # Workers, with what they import.
            spark.range(0, 2, 1, 2).mapInArrow(_ready, "id long").collect()
            began = time.perf_counter()
            record = SparkEngine(lambda: spark).copy(self._task(endpoint, prefix, WORKERS), lambda _: None)
            self._started.append(time.perf_counter() - began)
        assert record.succeeded == self.objects, record


def _ready(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    import aiohttp  # noqa: F401

    import lakeshare_pipelines.backup.copy.spark  # noqa: F401

    yield from batches


def _end_driver() -> None:
    """The JVM outlives its session: each turn is to start one."""
    pid = driver_pid()
    if pid is not None:
        driver = psutil.Process(pid)
        driver.kill()
        driver.wait()


if __name__ == "__main__":
    sys.exit(main())
