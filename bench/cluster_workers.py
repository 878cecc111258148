"""A day through write, audit and publication on a Spark cluster with two workers of one core, against one of them.

Run: `python -m bench.cluster_workers`; `--rows 20000000` is the size of the goal. The standalone cluster, its S3 store
(SeaweedFS) and PostgreSQL are those of `lakeshare demo --store s3`, and all of them, and the driver, run on this
machine. The goal (issue 18), where each worker has a core of its own: at least 1.6 times as fast.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from bench.lake.days import write_trips
from bench.server.turns import say
from bench.whole_day import FORMATS, run
from lakeshare_pipelines.demo.processes import ProgressReporter, object_store_servers, postgres_folder
from lakeshare_pipelines.settings import LakeSettings

ROWS, GOAL = 2_000_000, 1.6


def main() -> int:
    """Prints seconds with one and two workers and their ratio; 1 if it is below the goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster_workers", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the day")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["iceberg"])
    options = parser.parse_args()
    seconds = {}
    with tempfile.TemporaryDirectory(prefix="lakeshare-cluster-workers-") as name:
        folder = Path(name)
        say(f"a day of {options.rows:,} rows")
        write_trips(folder / "day", options.rows)
        settings = LakeSettings(_env_file=None, state_dir=folder / "servers")
        settings.state_dir.mkdir()
        try:
            with object_store_servers(settings, ProgressReporter()) as variables:
                for workers in (1, 2):
                    properties = folder / f"{workers}.properties"
                    properties.write_text(f"spark.cores.max {workers}\nspark.executor.cores 1\n")
                    environment = {**variables, "LAKESHARE_SPARK_CONF": str(properties)}
                    seconds[workers] = run(folder, f"{workers} workers", environment, options.formats)
        finally:
            # Of root's PostgreSQL it is outside of the state folder.
            shutil.rmtree(postgres_folder(settings), ignore_errors=True)
    is_met = True
    print(f"a day of {options.rows:,} rows on a cluster, {len(os.sched_getaffinity(0))} cores for all of it:")
    for form in options.formats:
        one_s, two_s = (
            sum(seconds[workers][form].values()) - seconds[workers][form]["plain"] for workers in (1, 2)
        )
        times = one_s / two_s
        is_met &= times >= GOAL
        print(
            f"  {form}: {one_s:.1f} s with one worker, {two_s:.1f} s with two: {times:.2f} times as fast "
            f"(goal: at least {GOAL}: {'met' if times >= GOAL else 'missed'})"
        )
    return int(not is_met)


if __name__ == "__main__":
    sys.exit(main())
