"""Full queries of a table of 100,000 files by eight clients: a server with two workers against one with one.

Run: `python -m bench.server_workers`; `--files` and `--turns` set the amount. Both servers have the same state folder
and are queried in turn, for some seconds each; workers and clients share the machine's cores. The goal (issue 18), on
two cores: at least 1.6 times.
"""

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench.server.catalogs import serving
from bench.server.full_answers import run_whole
from bench.server.load import Ask, Seen
from bench.server.ours import publish, table_path
from bench.server.processes import Running, run
from bench.server.tables import big_table
from bench.server.turns import by_turns, number, ratio, say

FILES, TURNS, WINDOW_S, CLIENTS, GOAL = 100_000, 5, 6.0, 8, 1.6
TABLE = "workers"


def main() -> int:
    """Prints the rates of both and their ratio; 1 if it is below the goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.server_workers", description=__doc__)
    parser.add_argument("--files", type=int, default=FILES, help="files of the table")
    parser.add_argument("--turns", type=int, default=TURNS, help="how often each server is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lakeshare-server-workers-") as folder:
        provided = publish(Path(folder) / "state", {TABLE: big_table(Path(folder), options.files)})
        with serving(provided.state_dir) as one, serving(provided.state_dir, "--workers", "2") as two:
            asks = {
                server: Ask(
                    port=server.port,
                    path=f"{server.prefix}{table_path(TABLE)}/query",
                    token=provided.token,
                    body="{}",
                    clients=CLIENTS,
                    counts_lines=False,
                )
                for server in (one, two)
            }
            for ask in asks.values():
                # Each connection's first response is not counted: every worker has the index open then.
                run_whole(replace(ask, answers=CLIENTS, counts_lines=True), options.files)
            say(f"{options.turns} turns of {WINDOW_S:.0f} s")
            works = {
                name: lambda server=server: rate(server, asks[server])
                for name, server in (("one", one), ("two", two))
            }
            rates = by_turns(options.turns, works)
    times = ratio(rates["two"], rates["one"])
    cores = len(os.sched_getaffinity(0))
    print(
        f"full query of {options.files:,} files, {CLIENTS} clients, {cores} cores: "
        f"{number(median(rates['two']))} MB/s by two workers, {number(median(rates['one']))} by one: "
        f"{times:.2f} times (goal: at least {GOAL}: {'met' if times >= GOAL else 'missed'})"
    )
    return int(times < GOAL)


def rate(server: Running, ask: Ask) -> float:
    """Megabytes a second that the clients received."""
    seen: Seen = run(replace(ask, window_s=WINDOW_S, warm=1))
    server.settle()
    return seen.bytes / seen.elapsed_s / 1e6


if __name__ == "__main__":
    sys.exit(main())
