"""What the audit log costs: requests a second beside the same server without one, at most 15 % fewer.

Run: `python -m bench.audit [TURNS]`, 5 by default. Beside it, without a goal, the way that was not taken: every reply
waits for its event's transaction. Servers have one core, the clients another; they are asked by turns.
"""

import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench.server.load import Ask
from bench.server.ours import publish, table_path
from bench.server.processes import Running, run
from bench.server.stage import SERVE
from bench.server.turns import by_turns, clients_said, number, ratio, say
from bench.wide_table import many_files_table

TURNS, WINDOW_S, CLIENTS = 5, 2.0, (1, 8, 64)
FILES = 100
LEAST = 0.85
WAYS = {
    "ours": SERVE,
    "no audit": ["bench.server.unaudited", "nothing"],
    "commits": ["bench.server.unaudited", "commits"],
}


@dataclass(frozen=True)
class Call:
    """A request that is measured."""

    name: str
    path: str
    body: str | None


CALLS = (Call("version poll", "version", None), Call(f"query of {FILES} files", "query", "{}"))


def main() -> int:
    """Measure, print, and return the exit code."""
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else TURNS
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        log, servers, asks = Path(folder) / "servers.log", {}, {}
        os.sched_setaffinity(0, cores[:1])
        for way, words in WAYS.items():
            # Each has a state of its own: the logs of the others are not to grow into its way.
            table = Path(folder) / way / "small"
            many_files_table(table, FILES)
            provided = publish(Path(folder) / way / "state", {"small": table}, "small")
            servers[way] = Running(words, {**provided.environment, "LAKESHARE_PORT": "0"}, log)
            stack.callback(servers[way].stop)
            asks[way] = Ask(
                port=servers[way].port,
                path=servers[way].prefix + table_path("small"),
                token=provided.token,
                window_s=WINDOW_S,
                warm=1,
            )
        os.sched_setaffinity(0, cores[-1:])
        met = [_compared(asks, servers, call, count, turns) for call in CALLS for count in CLIENTS]
    return 0 if all(met) else 1


def _compared(asks: dict[str, Ask], servers: dict[str, Running], call: Call, count: int, turns: int) -> bool:
    say(f"{call.name}, {clients_said(count)}")
    spent: dict[str, list[float]] = {way: [] for way in asks}
    works = {way: lambda way=way: _rate(asks[way], servers[way], call, count, spent[way]) for way in asks}
    rates = by_turns(turns, works)
    print(f"{call.name}, {clients_said(count)}:")
    for way, measured in rates.items():
        of_none = ratio(measured, rates["no audit"])
        print(
            f"  {way}: {number(median(measured))}/s (x {of_none:.2f}), "
            f"{median(spent[way]) * 1e6:.0f} µs of the server's processor each"
        )
    kept = ratio(rates["ours"], rates["no audit"])
    print(f"  ours ≥ {LEAST} x no audit: {'met' if kept >= LEAST else 'missed'} ({kept:.2f})", flush=True)
    return kept >= LEAST


def _rate(ask: Ask, server: Running, call: Call, count: int, spent: list[float]) -> float:
    server.settle()
    before = _processor_s(server)
    seen = run(replace(ask, path=f"{ask.path}/{call.path}", body=call.body, clients=count))
    # What is written after the last answer was caused by them, too.
    server.settle()
    spent.append((_processor_s(server) - before) / seen.answers)
    return seen.answers / seen.elapsed_s


def _processor_s(server: Running) -> float:
    times = server.process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    sys.exit(main())
