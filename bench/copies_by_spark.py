"""The engine `spark` copies 50,000 small objects at least 0.6 times as fast as s5cmd, and 1.3 times as fast as rclone.

Run: `python -m bench.copies_by_spark [--objects 50000] [--turns 5]`. All copy inside one SeaweedFS, by turns, each with
the keys it is to copy at hand; figures are medians. Ours starts a JVM in every turn, and has that, its portions,
probes, ledgers and reports in its time.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psutil

from bench.copies import OBJECT_BYTES, WORKERS, Bench
from lakeshare_pipelines.backup.copy.spark import SparkEngine
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import driver_pid, spark_session
from tests.integration.s3_server import REGION, running_s3

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
    ours, s5cmd, rclone = (median(seconds[tool]) for tool in ("spark", "s5cmd", "rclone"))
    print(
        f"{asked.objects} x {OBJECT_BYTES} B on SeaweedFS: spark with its start-up {asked.objects / ours:.0f}/s, "
        f"s5cmd ({WORKERS} workers) {asked.objects / s5cmd:.0f}/s, "
        f"rclone ({WORKERS} transfers) {asked.objects / rclone:.0f}/s; "
        f"ours is {s5cmd / ours:.2f} x s5cmd (must {MUST_S5CMD}) and {rclone / ours:.2f} x rclone (must {MUST_RCLONE})"
    )
    return 0 if s5cmd / ours >= MUST_S5CMD and rclone / ours >= MUST_RCLONE else 1


class SparkBench(Bench):
    """The bench of the engine `local`, with Spark in its place."""

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
        return seconds

    def _by_spark(self, settings: LakeSettings, endpoint: str, prefix: str) -> None:
        with spark_session(settings) as spark:
            record = SparkEngine(lambda: spark).copy(self._task(endpoint, prefix, WORKERS), lambda _: None)
        assert record.succeeded == self.objects, record


def _end_driver() -> None:
    """The JVM outlives its session: each turn is to start one."""
    pid = driver_pid()
    if pid is not None:
        driver = psutil.Process(pid)
        driver.kill()
        driver.wait()


if __name__ == "__main__":
    sys.exit(main())
