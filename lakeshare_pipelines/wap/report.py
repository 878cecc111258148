"""A staged set in words, for the terminal."""

from collections.abc import Iterable, Iterator, Mapping

from lakeshare_pipelines.wap.branches import StagingPlace
from lakeshare_pipelines.wap.counts import SHOW_REJECTED
from lakeshare_pipelines.wap.verdicts import Verdict, Verdicts


def report(place: StagingPlace) -> str:
    """Where it is, what it holds, what its audit said."""
    return "\n".join(_lines(place))


def verdict_lines(verdicts: Verdicts) -> list[str]:
    """One line per verdict, failed ones with the rows that broke the rule."""
    return [line for verdict in verdicts.verdicts for line in _verdict(verdict)]


def _lines(place: StagingPlace) -> Iterator[str]:
    yield f"{place.ref}: set {place.set_name}, {place.state}, since {place.since:%Y-%m-%d %H:%M} UTC"
    if place.attempt is None:
        yield "  its run ended before everything was written; run the partition again, or discard it"
        return
    staged = place.attempt.staged
    yield f"  partition {staged.partition}, run {staged.run_id}, at {staged.head}, from main at {staged.base}"
    for table in staged.tables:
        rejected = f", {table.rejected} rejected (quarantined)" if table.rejected else ""
        rewritten = f", rewritten for {', '.join(table.rewritten)}" if table.rewritten else ""
        yield f"  {table.table}: {table.rows} rows{rejected}{rewritten}"
    if place.attempt.verdicts is None:
        yield "  not audited yet: `lakeshare wap retry` does it"
        return
    yield from verdict_lines(place.attempt.verdicts)


def _verdict(verdict: Verdict) -> Iterator[str]:
    mark = "ok  " if verdict.passed else "FAIL" if verdict.blocks else "warn"
    yield f"  {mark}  {verdict.name}" + ("" if verdict.passed else f": {verdict.reason}")
    for row in verdict.samples:
        yield f"          {_row(row)}"
    if SHOW_REJECTED in verdict.observed:
        yield f"        as delivered: `{verdict.observed[SHOW_REJECTED]}`"


def rejected_lines(rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """Rows of the quarantine, each with what was delivered."""
    for row in rows:
        yield f"{row['table']}  {row['file']}:{row['line']}  {row['reason']}"
        # A terminal must not obey what a sender wrote.
        yield "    " + "".join(
            sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in str(row["raw"])
        )


def _row(row: Mapping[str, object]) -> str:
    return "  ".join(f"{name}={value}" for name, value in row.items())
