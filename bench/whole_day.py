"""A large day through write, audit and publication, against one plain Spark job that writes and checks it in one pass.

Run: `python -m bench.whole_day`; `--rows 20000000` is the size of the goal, which takes a quarter of an hour on two
cores. Twenty columns in Parquet with nineteen rules, as Iceberg and Delta table, on the local disk and on an S3 server
(SeaweedFS) of the same machine. The goal (issue 18): at most 1.3 times.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.lake import make_lake_in
from bench.lake.days import write_trips
from bench.server.turns import say
from tests.integration.s3_server import running_s3

ROWS, GOAL, RUN_S = 2_000_000, 1.3, 3600
FORMATS = ("iceberg", "delta")


def main() -> int:
    """Prints seconds and ratios; 1 if one is over the goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.whole_day", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the day")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    options = parser.parse_args()
    is_met = True
    with tempfile.TemporaryDirectory(prefix="lakeshare-whole-day-") as name:
        folder = Path(name)
        say(f"a day of {options.rows:,} rows")
        write_trips(folder / "day", options.rows)
        seconds = {"the local disk": run(folder, "local", {}, options.formats)}
        with running_s3(folder) as s3:
            environment = make_lake_in(s3)
            seconds["S3"] = run(folder, "s3", environment, options.formats)
    print(f"a day of {options.rows:,} rows with 20 columns and 19 rules:")
    for place, by_format in seconds.items():
        for form, steps in by_format.items():
            plain_s = steps.pop("plain")
            ratio = sum(steps.values()) / plain_s
            is_met &= ratio <= GOAL
            each = ", ".join(f"{step} {step_s:.1f} s" for step, step_s in steps.items())
            print(
                f"  {form} on {place}: {sum(steps.values()):.1f} s ({each}), a plain job {plain_s:.1f} s: {ratio:.2f} "
                f"times (goal: at most {GOAL}: {'met' if ratio <= GOAL else 'missed'})"
            )
    return int(not is_met)


def run(
    folder: Path, name: str, environment: Mapping[str, str], formats: list[str]
) -> dict[str, dict[str, float]]:
    """Runs both ways in a process with a state folder of its own; returns the seconds of each step and format."""
    say(f"both ways on {name}")
    state = {"LAKESHARE_STATE_DIR": str(folder / name), "LAKESHARE_SPARK_DRIVER_MEMORY": "4g"}
    ran = subprocess.run(
        [sys.executable, "-m", "bench.lake.day_run", str(folder / "day"), *formats],
        env={**os.environ, **state, **environment},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(ran.stderr[-3000:])
    seconds: dict[str, dict[str, float]] = json.loads(ran.stdout.splitlines()[-1])
    return seconds


if __name__ == "__main__":
    sys.exit(main())
