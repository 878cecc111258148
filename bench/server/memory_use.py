"""The most memory each server has while it answers four clients at once, and that it does not grow with the table."""

from dataclasses import replace

from bench.server.full_answers import run_whole
from bench.server.goals import Goal, Report, Row
from bench.server.processes import Memory, PeakMemory, run
from bench.server.stage import Stage
from bench.server.turns import say

CLIENTS = 4
MOST_BYTES = 500 * 1_000_000
# Twice as much for ten times the files would be growth; a few buffers more are not.
MOST_GROWTH = 1.2


def measure_memory(stage: Stage, report: Report) -> None:
    """Each of ours in a fresh process, so that nothing from before counts."""
    before, last = stage.plan.sizes[-2:]
    small, big = _ours(stage, before), _ours(stage, last)
    limit, naive = _limit(stage), _naive(stage)
    says = (
        f"{_megabytes(big)} at {last:,} files, {_megabytes(small)} at {before:,}; "
        f"limit (holds the answer) {_megabytes(limit)}; naive at {stage.plan.middle:,} files {_megabytes(naive)}"
    )
    growth = big.resident_bytes / small.resident_bytes
    report.rows.append(
        Row(
            f"peak memory, {last:,} files to {CLIENTS} clients",
            says,
            (
                Goal(text="≤ 500 MB resident", measured=big.resident_bytes / 1e6, at_most=MOST_BYTES / 1e6),
                Goal(text="not growing with the table", measured=growth, at_most=MOST_GROWTH),
            ),
        )
    )


def _ours(stage: Stage, files: int) -> Memory:
    say(f"peak memory with {CLIENTS} clients of {files:,} files")
    with stage.another() as server, PeakMemory(server) as peak:
        run_whole(replace(stage.table(files, "query", {}, server), clients=CLIENTS, answers=CLIENTS), files)
    return peak


def _limit(stage: Stage) -> Memory:
    with PeakMemory(stage.limit_server(stage.plan.big)) as peak:
        run(replace(stage.limit(stage.plan.big), clients=CLIENTS, answers=CLIENTS))
    return peak


def _naive(stage: Stage) -> Memory:
    say("peak memory of naive")
    ask = replace(stage.naive(stage.plan.middle, {}), clients=CLIENTS, window_s=2 * stage.plan.naive_window_s)
    with PeakMemory(stage.naive_server()) as peak:
        run(ask)
    stage.restart_naive()
    return peak


def _megabytes(memory: Memory) -> str:
    return f"{memory.resident_bytes / 1e6:.0f} MB resident ({memory.anonymous_bytes / 1e6:.0f} MB its own)"
