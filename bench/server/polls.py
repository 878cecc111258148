"""Version polls: how many beside an empty route, and how long the slowest wait while big answers stream."""

from dataclasses import replace
from statistics import median, quantiles

from bench.server.goals import Goal, Report, Row
from bench.server.load import Ask, Seen
from bench.server.processes import Clients, run
from bench.server.stage import Stage
from bench.server.turns import by_turns, clients_said, milliseconds, number, ratio, say

STREAMS = 4
# Polls come with pauses: a client that never waits would be a load of its own.
PAUSE_S = 0.005
HEAD_START_S = 1.0


def measure_polls(stage: Stage, report: Report) -> None:
    """Version polls a second, by one client and by many."""
    says, goals = [], []
    for count in stage.plan.clients:
        say(f"version polls, {clients_said(count)}: ours and an empty route by turns")
        asks = {"ours": stage.table(stage.plan.middle, "version"), "empty": stage.empty()}
        rates = by_turns(
            stage.plan.turns,
            {
                who: lambda ask=ask, count=count: _rate(
                    run(replace(ask, clients=count, warm=1, window_s=stage.plan.window_s / 2))
                )
                for who, ask in asks.items()
            },
        )
        of_empty = ratio(rates["ours"], rates["empty"])
        says.append(
            f"{clients_said(count)}: {number(median(rates['ours']))}/s, empty route "
            f"{number(median(rates['empty']))}/s (x {of_empty:.2f})"
        )
        # Medians of some runs met the goal and those of others did not: it is met when every turn meets it.
        lowest = min(ours / empty for ours, empty in zip(rates["ours"], rates["empty"], strict=True))
        text = f"≥ 0.5 x an empty route in every turn ({clients_said(count)})"
        goals.append(Goal(text=text, measured=lowest, at_least=0.5))
    report.rows.append(Row("version poll, requests/s", "; ".join(says), tuple(goals)))


def measure_polls_under_load(stage: Stage, report: Report) -> None:
    """The 99th percentile of a poll's time, idle and while four big answers stream."""
    idle, loaded = [], []
    for turn in range(stage.plan.turns):
        say(f"version polls while {STREAMS} big answers stream, turn {turn + 1} of {stage.plan.turns}")
        idle.append(_p99(run(_polls(stage))))
        streams = Clients(
            replace(
                stage.table(stage.plan.big, "query", {}),
                clients=STREAMS,
                window_s=2 * HEAD_START_S + 2 * stage.plan.window_s,
            )
        )
        warm = replace(_polls(stage), window_s=HEAD_START_S)
        run(warm)
        loaded.append(_p99(run(_polls(stage))))
        if not streams.seen().lines:
            raise RuntimeError("nothing was streamed while polls were measured")
        stage.ours.settle()
    goal = Goal(text="≤ 10 x idle", measured=ratio(loaded, idle), at_most=10)
    loaded_said, idle_said = milliseconds(median(loaded)), milliseconds(median(idle))
    says = f"{loaded_said} with {STREAMS} x {stage.plan.big:,} files, {idle_said} idle"
    report.rows.append(Row("version poll, p99 while streaming", says, (goal,)))


def _polls(stage: Stage) -> Ask:
    ask = stage.table(stage.plan.middle, "version")
    return replace(ask, warm=1, pause_s=PAUSE_S, window_s=stage.plan.window_s)


def _rate(seen: Seen) -> float:
    return seen.answers / seen.elapsed_s


def _p99(seen: Seen) -> float:
    return quantiles(seen.whole_s, n=100)[98]
