"""First queries: after a start, when the index is there, and of a followed table, when there is none yet."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench.server.goals import Goal, Report, Row
from bench.server.load import Ask, Seen
from bench.server.ours import follow, table_path
from bench.server.processes import Running, run
from bench.server.stage import SERVE, Stage, name_of
from bench.server.turns import milliseconds, ratio, say

WARM = 3
# Opening is what is timed, not the import.
LIST_WITH_DELTALAKE = """
import sys, time
import pyarrow as pa
from deltalake import DeltaTable
began = time.perf_counter()
files = pa.table(DeltaTable(sys.argv[1]).get_add_actions()).num_rows
print(time.perf_counter() - began, files)
"""


def measure_first_after_start(stage: Stage, report: Report) -> None:
    """The very first request that a fresh process gets is a full query of a publication."""
    files = stage.plan.middle
    first, warm = [], []
    for turn in range(stage.plan.turns):
        say(f"first query after a start, turn {turn + 1} of {stage.plan.turns}")
        with stage.another() as server:
            ask = stage.table(files, "query", {}, server)
            first.append(median(run(replace(ask, answers=1)).whole_s))
            warm.append(median(run(replace(ask, answers=WARM)).whole_s))
    says = f"{milliseconds(median(first))}, warm {milliseconds(median(warm))}"
    goal = Goal(text="≤ 2 x warm", measured=ratio(first, warm), at_most=2)
    report.rows.append(Row(f"first query after a start, {files:,} files", says, (goal,)))


def measure_first_of_followed(stage: Stage, report: Report) -> None:
    """A running server is asked for a followed table that it has never looked at."""
    what = "first query of a followed table"
    sizes = sorted({stage.plan.middle, stage.plan.big})
    says, goals = [], []
    for size in sizes:
        seen, listed = [], []
        for turn in range(stage.plan.turns):
            say(f"followed table of {size:,} files, turn {turn + 1} of {stage.plan.turns}")
            seen.append(_first_of_followed(stage, size))
            listed.append(_listed_by_deltalake(stage.location(size), size))
        whole = [one.whole_s[0] for one in seen]
        began = [one.first_file_s[0] for one in seen]
        says.append(
            f"{size:,} files: {milliseconds(median(whole))}, the first file after "
            f"{milliseconds(median(began))}; deltalake lists them in {milliseconds(median(listed))} "
            f"(x {ratio(began, listed):.2f} to the first file)"
        )
        goals.append(
            Goal(text=f"≤ 1.5 x deltalake ({size:,} files)", measured=ratio(whole, listed), at_most=1.5)
        )
    report.rows.append(Row(what, "; ".join(says), tuple(goals)))


def _first_of_followed(stage: Stage, files: int) -> Seen:
    state_dir = stage.plan.cache / "followed"
    shutil.rmtree(state_dir, ignore_errors=True)
    # The other table warms the process: it is the table that is new, not the server.
    other = stage.plan.sizes[0]
    provided = follow(state_dir, {name_of(size): stage.location(size) for size in (other, files)})
    server = Running(SERVE, provided.environment, stage.plan.log)
    try:
        asks = [
            Ask(
                port=server.port,
                path=f"{server.prefix}{table_path(name_of(size))}/query",
                token=provided.token,
                body="{}",
                answers=1,
            )
            for size in (other, files)
        ]
        run(asks[0])
        return run(asks[1])
    finally:
        server.stop()


def _listed_by_deltalake(location: Path, files: int) -> float:
    ended = subprocess.run(
        [sys.executable, "-c", LIST_WITH_DELTALAKE, str(location)], check=True, capture_output=True, text=True
    )
    seconds, found = ended.stdout.split()
    if int(found) != files:
        raise RuntimeError(f"deltalake found {found} files instead of {files}")
    return float(seconds)
