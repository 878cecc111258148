"""`make bench-server`: measure everything, print the table, write it into the documents, fail on a missed goal."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from bench.server.costs import measure_costs
from bench.server.filtered_answers import measure_filters
from bench.server.first_answers import measure_first_after_start, measure_first_of_followed
from bench.server.full_answers import measure_growth, measure_throughput
from bench.server.goals import Report
from bench.server.memory_use import measure_memory
from bench.server.polls import measure_polls, measure_polls_under_load
from bench.server.report import machine, printed, write_docs
from bench.server.stage import Plan, Stage, on_stage

# In the order of the table.
MEASUREMENTS: dict[str, Callable[[Stage, Report], None]] = {
    "throughput": measure_throughput,
    "filters": measure_filters,
    "start": measure_first_after_start,
    "followed": measure_first_of_followed,
    "polls": measure_polls,
    "growth": measure_growth,
    "latency": measure_polls_under_load,
    "memory": measure_memory,
    "costs": measure_costs,
}
SIZES = [1_000, 10_000, 100_000, 1_000_000]
QUICK_SIZES = SIZES[:3]


def main() -> int:
    """Measure and return the exit code."""
    asked = _arguments()
    plan = _plan(asked)
    report = Report(machine())
    with on_stage(plan) as stage:
        for name in asked.only or MEASUREMENTS:
            MEASUREMENTS[name](stage, report)
    print(printed(report))
    if asked.docs is not None and not asked.quick:
        write_docs(report, asked.docs)
    for missed in report.missed:
        print(f"missed: {missed}", file=sys.stderr)
    return 1 if report.missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.server", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tables up to 100,000 files, few turns")
    parser.add_argument("--sizes", type=int, nargs="+", help="files of the tables: three or more, ascending")
    parser.add_argument("--turns", type=int, help="how often each thing is measured")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64], help="clients at once")
    parser.add_argument("--workers", type=int, default=1, help="workers of the empty route")
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), help="some of the measurements")
    parser.add_argument(
        "--docs",
        type=Path,
        help="folder whose performance page and chart are written anew, unless the run is a quick one",
    )
    parser.add_argument(
        "--cache", type=Path, default=Path(".lakeshare/bench"), help="where tables are kept between runs"
    )
    return parser.parse_args()


def _plan(asked: argparse.Namespace) -> Plan:
    sizes = sorted(asked.sizes or (QUICK_SIZES if asked.quick else SIZES))
    if len(sizes) < 3:
        sys.exit("--sizes: give three sizes or more, like 1000 10000 100000")
    return Plan(
        sizes=tuple(sizes),
        clients=tuple(asked.clients),
        turns=asked.turns or (3 if asked.quick else 5),
        window_s=2.0 if asked.quick else 4.0,
        naive_window_s=4.0 if asked.quick else 8.0,
        workers=asked.workers,
        cache=asked.cache.resolve(),
    )


if __name__ == "__main__":
    sys.exit(main())
