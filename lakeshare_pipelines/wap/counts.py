"""Checks that count: rows that were not understood, empty partitions, a row count that moves too far."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from lakeshare_pipelines.contracts import Drift, Table
from lakeshare_pipelines.wap.staged import StagedTable
from lakeshare_pipelines.wap.verdicts import Finding, share

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECENT_DAYS = 7
NAMED = 20
SHOW_REJECTED = "show_rejected_rows"
"""Name of the observation that holds the command which shows rejected rows as they were delivered."""


def rows_parsed(table: Table, staged: StagedTable) -> Finding:
    """Whether few enough of the delivered rows went to quarantine."""
    delivered = staged.rows + staged.rejected
    fraction = staged.rejected / delivered if delivered else 0.0
    observed = {
        "delivered_rows": delivered,
        "rejected_rows": staged.rejected,
        "rejected_fraction": fraction,
        "allowed_fraction": table.max_quarantined_fraction,
    }
    if fraction <= table.max_quarantined_fraction:
        return Finding(True, observed)
    reason = (
        f"{staged.rejected} of {delivered} delivered rows went to quarantine ({share(staged.rejected, delivered)}); "
        f"{table.max_quarantined_fraction:.2%} are allowed"
    )
    return Finding(False, {**observed, "reason": reason})


def not_empty(rows: Mapping[str, int], expected: Iterable[str]) -> Finding:
    """Whether each expected partition has rows; `rows` counts them by partition."""
    empty = [partition for partition in expected if not rows.get(partition)]
    observed = {"rows": sum(rows.values()), "partitions": len(rows), "empty_partitions": len(empty)}
    if not empty:
        return Finding(True, observed)
    return Finding(False, {**observed, "reason": f"no rows for partition {_some(empty, ', ')}"})


def within_partitions(rows: Mapping[str, int], expected: Iterable[str], written: int) -> Finding:
    """Whether all of the `written` rows are in partitions of the run, where its checks look."""
    inside = set(expected)
    outside = {partition: count for partition, count in rows.items() if partition not in inside}
    strayed = written - sum(count for partition, count in rows.items() if partition in inside)
    observed = {"rows": written, "rows_outside": strayed}
    if not strayed:
        return Finding(True, observed)
    named = f" ({_some(sorted(outside), ', ')})" if outside else ""
    reason = f"{strayed} of {written} rows belong to other partitions{named} than those delivered"
    return Finding(False, {**observed, "reason": reason})


def drifted(limits: Drift, rows: Mapping[str, int], usual: Mapping[str, float | None]) -> Finding:
    """Whether a row count moved further than the limits from what is usual; None: nothing to compare."""
    known = {name: before for name, before in usual.items() if before and name in rows}
    observed: dict[str, object] = {
        "rows": sum(rows.values()),
        "usual_rows": sum(known.values()),
        "partitions_compared": len(known),
        "max_shrink_fraction": limits.max_shrink_fraction,
        "max_growth_fraction": limits.max_growth_fraction,
    }
    moved = [text for name in sorted(known) if (text := _movement(limits, name, rows[name], known[name]))]
    if not moved:
        return Finding(True, observed)
    return Finding(False, {**observed, "reason": _some(moved, "; ")})


def usual_rows(counts: Mapping[str, int], of_run: Iterable[str]) -> dict[str, float | None]:
    """Per partition of a run the mean of those next before it on main, or of the first ones."""
    run = set(of_run)
    others = sorted(set(counts) - run)
    usual: dict[str, float | None] = {}
    for partition in run:
        before = [name for name in others if name < partition]
        near = before[-RECENT_DAYS:] or others[:RECENT_DAYS]
        usual[partition] = sum(counts[name] for name in near) / len(near) if near else None
    return usual


def rows_by_day(frame: "DataFrame", table: Table) -> dict[str, int]:
    """Rows of the frame by the day they belong to, as the partitions of a daily set are named."""
    from pyspark.sql import functions as F

    day = F.col(f"`{table.partition_by[0][0]}`").cast("date").cast("string")
    counted = frame.groupBy(day.alias("day")).count().collect()
    return {str(row["day"]): int(row["count"]) for row in counted}


def _movement(limits: Drift, name: str, count: int, before: float) -> str:
    change = (count - before) / before
    text = f"{name}: {count} rows where {before:.0f} are usual ({change:+.0%})"
    if limits.max_shrink_fraction is not None and -change > limits.max_shrink_fraction:
        return f"{text}, at most -{limits.max_shrink_fraction:.0%} is allowed"
    if limits.max_growth_fraction is not None and change > limits.max_growth_fraction:
        return f"{text}, at most +{limits.max_growth_fraction:.0%} is allowed"
    return ""


def _some(names: Sequence[str], separator: str) -> str:
    return separator.join([*names[:NAMED], *(["…"] if len(names) > NAMED else [])])
