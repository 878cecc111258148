"""Warm queries that want one file in a hundred, beside the naive server and beside a listing call."""

import json
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from bench.server.full_answers import HEAD_LINES
from bench.server.goals import Goal, Report, Row
from bench.server.load import Ask
from bench.server.ours import ON_S3
from bench.server.processes import run
from bench.server.stage import Stage
from bench.server.tables import PARTITIONS, distances, first_partition
from bench.server.turns import by_turns, milliseconds, ratio, say

ANSWERS = 30
NAIVE_ANSWERS = 1
LISTINGS = 100


def measure_filters(stage: Stage, report: Report) -> None:
    """The latency of a filter on a partition column, and of one that only statistics can answer."""
    files = stage.plan.middle
    asks: dict[str, Ask] = {"listing": replace(stage.listing(), answers=LISTINGS, warm=1)}
    for name, (body, where) in _questions(files).items():
        asks[name] = replace(stage.table(files, "query", body, where=where), answers=ANSWERS, warm=1)
        _require_hundredth(asks[name], files)
        asks[f"naive {name}"] = replace(stage.naive(files, body), answers=NAIVE_ANSWERS)
    say("queries for one file in a hundred: ours, naive and a listing by turns")
    works = {name: lambda ask=ask: median(run(ask).whole_s) for name, ask in asks.items()}
    times = by_turns(stage.plan.turns, works)
    names = list(_questions(files))
    report.rows.append(Row(f"warm 1 % filter, {files:,} files", _said(times, names), _goals(times, names)))


def _questions(files: int) -> Mapping[str, tuple[Mapping[str, str], str]]:
    """Bodies, and where the table's files are."""
    return {
        "by partition": (one_partition(), ""),
        "by statistics": (distance_range(files), ""),
        "by statistics, on S3": (distance_range(files), ON_S3),
    }


def one_partition() -> Mapping[str, str]:
    """The body of a query for one partition."""
    return _hints({"op": "equal", "children": _leaves("day", "date", first_partition())})


def distance_range(files: int) -> Mapping[str, str]:
    """The body of a query for a range of a column that is in every partition."""
    low, high = distances(files)
    at_least = {"op": "greaterThanOrEqual", "children": _leaves("distance", "long", str(low))}
    below = {"op": "lessThan", "children": _leaves("distance", "long", str(high))}
    return _hints({"op": "and", "children": [at_least, below]})


def _hints(tree: Mapping[str, object]) -> Mapping[str, str]:
    return {"jsonPredicateHints": json.dumps(tree)}


def _leaves(column: str, kind: str, value: str) -> list[Mapping[str, str]]:
    return [
        {"op": "column", "name": column, "valueType": kind},
        {"op": "literal", "value": value, "valueType": kind},
    ]


def _require_hundredth(ask: Ask, files: int) -> None:
    lines = run(replace(ask, answers=1)).lines_of_one - HEAD_LINES
    if lines != files // PARTITIONS:
        raise RuntimeError(f"a filter that wants {files // PARTITIONS} files was answered with {lines}")


def _said(times: dict[str, list[float]], names: list[str]) -> str:
    parts = [
        f"{name}: {milliseconds(median(times[name]))}, naive {milliseconds(median(times[f'naive {name}']))}"
        for name in names
    ]
    return "; ".join([*parts, f"a listing {milliseconds(median(times['listing']))}"])


def _goals(times: dict[str, list[float]], names: list[str]) -> tuple[Goal, ...]:
    goals = []
    for name in names:
        of_naive = ratio(times[name], times[f"naive {name}"])
        of_listing = ratio(times[name], times["listing"])
        goals.append(Goal(text=f"≤ 1/20 of naive ({name})", measured=of_naive, at_most=1 / 20))
        goals.append(Goal(text=f"≤ 5 x a listing ({name})", measured=of_listing, at_most=5))
    return tuple(goals)
