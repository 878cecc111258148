"""A run as text for the terminal, and as the part of `docs/performance.md` between its two markers."""

import os
import platform
from pathlib import Path

from bench.server.chart import svg
from bench.server.goals import Report

PAGE, CHART = "performance.md", "performance.svg"
BEGIN, END = "<!-- bench-server: made by `make bench-server`, from here -->", "<!-- bench-server: to here -->"


def printed(report: Report) -> str:
    """All rows, each with its goals."""
    parts = [report.machine, ""]
    for row in report.rows:
        parts.append(row.what)
        parts += [f"    {piece}" for piece in row.says.split("; ")]
        for goal in row.goals:
            measured = "" if goal.measured is None else f"{goal.measured:.3g}"
            parts.append(f"  {goal.verdict:>12}  {measured:>8}  {goal.text}")
        parts.append("")
    return "\n".join([*parts, *report.tables, ""])


def write_docs(report: Report, docs: Path) -> None:
    """Replace what stands between the markers of the page, and the chart beside it.

    Raises:
        ValueError: the page has not both markers.
    """
    page = docs / PAGE
    before, begins, rest = page.read_text().partition(BEGIN)
    _, ends, after = rest.partition(END)
    if not begins or not ends:
        raise ValueError(
            f"{page} has not both lines {BEGIN!r} and {END!r}; put them where the table is to stand"
        )
    page.write_text(f"{before}{BEGIN}\n\n{_markdown(report)}\n\n{END}{after}")
    (docs / CHART).write_text(svg(report.pictures))


def machine() -> str:
    """What the figures were measured on."""
    kernel = f"{platform.system()} {platform.machine()}"
    return f"{os.cpu_count()} cores ({_processor()}), {kernel}, Python {platform.python_version()}"


def _markdown(report: Report) -> str:
    rows = [
        f"| {row.what} | {'<br>'.join(row.says.split('; '))} | {_goals(row.goals)} |" for row in report.rows
    ]
    table = "\n".join(["| what | measured | goals |", "|---|---|---|", *rows])
    pictures = f"![Files a second, and time by size of the table]({CHART})"
    return "\n\n".join([f"Measured on {report.machine}.", table, pictures, *report.tables])


def _goals(goals) -> str:
    return "<br>".join(
        f"{goal.text}: {goal.verdict}" + ("" if goal.measured is None else f" ({goal.measured:.3g})")
        for goal in goals
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
