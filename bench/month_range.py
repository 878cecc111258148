"""A month of flights in one range run against thirty single runs; fails below four times as fast.

Both sides run Dagster's job in this process on a warm JVM, so the ratio leaves out what single runs would pay for
processes and JVMs of their own. Each side has a state folder of its own.
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.demo.processes import ProgressReporter, deliver, launch_run, open_instance
from lakeshare_pipelines.nessie.server import nessie_for
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.catalog import Ledger, open_catalog

DAYS = tuple(f"2013-01-{day:02}" for day in range(1, 31))
ROWS = 26_076  # departures of these days, as the source counts them
WANTED = 4.0


def main() -> int:
    """Print both times and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        # First a day that nobody counts: JVM, imports, class loading.
        seconds("warm-up", Path(folder), [DAYS[:1]])
        together = seconds("one range run", Path(folder), [DAYS])
        single = seconds("thirty single runs", Path(folder), [(day,) for day in DAYS])
    ratio = single / together
    print(
        f"one range run {together:.1f} s, thirty single runs {single:.1f} s: {ratio:.1f} times as fast (≥ {WANTED})"
    )
    return 0 if ratio >= WANTED else 1


def seconds(title: str, folder: Path, runs: Sequence[Sequence[str]]) -> float:
    """Time to publish the days, grouped into runs, in a new lake; refuses a wrong row count."""
    state = folder / title.replace(" ", "_")
    home = state / "dagster_home"
    home.mkdir(parents=True)
    os.environ |= {"LAKESHARE_STATE_DIR": str(state), "DAGSTER_HOME": str(home)}
    settings = LakeSettings(_env_file=None)
    flights = next(contract for contract in load_contracts() if contract.name == "flights")
    days = [day for run in runs for day in run]
    for day in days:
        deliver(settings, flights, partition=day)
    with nessie_for(settings, keep=False), open_instance() as on:
        started = time.monotonic()
        for run in runs:
            ran = launch_run(
                ProgressReporter(), on, "publish_flights", f"{title}: {run[0]} to {run[-1]}", run
            )
            if not ran.succeeded:
                raise SystemExit(f"run {ran.run_id} failed: {ran.failed_checks}")
        spent = time.monotonic() - started
    latest = Ledger(open_catalog(settings.catalog_url)).latest("flights.departures")
    if latest is None or (len(days) == len(DAYS) and latest.rows != ROWS):
        raise SystemExit(f"{latest} does not hold the {ROWS} rows of the source")
    return spent


if __name__ == "__main__":
    sys.exit(main())
