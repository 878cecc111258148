"""A table of 10,000,000 files against one of 1,000,000: index build, full query, 1 % filters, memory of the server.

Run: `python -m bench.large_table`; `--files` sets the size of the large table, of which the small one is a tenth. The
tables are Delta logs without data files. Each has an index that is built in a process of its own, and a server of its
own with one client. The goals (issue 18): ten times the files take at most 11 times as long, and the server has at most
500 MB of resident memory.
"""

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench.server.catalogs import serving
from bench.server.filtered_answers import distance_range, one_partition
from bench.server.full_answers import HEAD_LINES
from bench.server.load import Ask
from bench.server.ours import Provided, publish, table_path
from bench.server.processes import PeakMemory, run
from bench.server.tables import PARTITIONS, big_table
from bench.server.turns import milliseconds, number, say

TIMES, GROWTH, MOST_MB = 10, 11.0, 500.0
FULL_ANSWERS, FILTERED_ANSWERS = 3, 10
TABLE = "large"


@dataclass(frozen=True)
class Figures:
    """Seconds of what was done once, or the median; the most memory of the builder and of the server, in bytes."""

    seconds: dict[str, float]
    builder_bytes: int
    server_bytes: int


def main() -> int:
    """Prints the figures of both tables and their ratios; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.large_table", description=__doc__)
    parser.add_argument("--files", type=int, default=10_000_000, help="files of the large table")
    files = parser.parse_args().files
    with tempfile.TemporaryDirectory(prefix="lakeshare-large-table-") as folder:
        small, large = (measure(Path(folder), size) for size in (files // TIMES, files))
    is_met = True
    print(f"a table of {files:,} files against one of {files // TIMES:,}:")
    for what, few_s in small.seconds.items():
        ratio = large.seconds[what] / few_s
        is_met &= ratio <= GROWTH
        print(
            f"  {what}: {milliseconds(large.seconds[what])} and {milliseconds(few_s)}: {ratio:.1f} times "
            f"(goal: at most {GROWTH:.0f}: {verdict(ratio <= GROWTH)})"
        )
    server_mb = large.server_bytes / 1e6
    is_met &= server_mb <= MOST_MB
    print(
        f"  memory of the server: {number(server_mb)} MB and {number(small.server_bytes / 1e6)} MB resident "
        f"(goal: at most {MOST_MB:.0f}: {verdict(server_mb <= MOST_MB)})"
    )
    print(
        f"  memory of the process that builds the index: {number(large.builder_bytes / 1e6)} MB and "
        f"{number(small.builder_bytes / 1e6)} MB (no goal)"
    )
    return int(not is_met)


def verdict(is_met: bool) -> str:
    """As the line of a goal names it."""
    return "met" if is_met else "missed"


def measure(folder: Path, files: int) -> Figures:
    """Makes a table of that many files, publishes it, and queries it."""
    say(f"a table of {files:,} files")
    state_dir = folder / f"state{files}"
    location = big_table(folder, files)
    say("its index")
    # A new process each time: memory that one build leaves does not make the next one faster.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        provided, built_s, builder_bytes = pool.submit(build, state_dir, location).result()
    say("queries")
    requests = {
        "warm full query": ({}, files, FULL_ANSWERS),
        "warm query for 1 % by partition": (one_partition(), files // PARTITIONS, FILTERED_ANSWERS),
        "warm query for 1 % by statistics": (distance_range(files), files // PARTITIONS, FILTERED_ANSWERS),
    }
    seconds = {"index build": built_s}
    with serving(state_dir) as server, PeakMemory(server) as peak:
        for what, (body, expected, answers) in requests.items():
            path = f"{server.prefix}{table_path(TABLE)}/query"
            ask = Ask(port=server.port, path=path, token=provided.token, body=json.dumps(body))
            seen = run(replace(ask, answers=answers, warm=1))
            if seen.lines_of_one != expected + HEAD_LINES:
                raise RuntimeError(f"{what}: {seen.lines_of_one} lines instead of {expected + HEAD_LINES}")
            seconds[what] = median(seen.whole_s)
    return Figures(seconds, builder_bytes, peak.resident_bytes)


def build(state_dir: Path, location: Path) -> tuple[Provided, float, int]:
    """Publishes a table; returns the seconds, most of which its index takes, and the process's peak memory in bytes."""
    began = time.perf_counter()
    provided = publish(state_dir, {TABLE: location})
    elapsed_s = time.perf_counter() - began
    return provided, elapsed_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
