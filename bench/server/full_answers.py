"""Warm full queries: files a second beside the limit and the naive server, and how time grows with the table."""

from dataclasses import replace
from statistics import median

from bench.server.goals import Goal, Picture, Report, Row, Series
from bench.server.load import Ask, Seen
from bench.server.ours import ON_S3
from bench.server.processes import Running, run
from bench.server.stage import Stage
from bench.server.turns import by_turns, clients_said, milliseconds, number, ratio, say

HEAD_LINES = 2
ANSWERS = 3
MANY_CLIENTS = 16


def measure_throughput(stage: Stage, report: Report) -> None:
    """Files a second of the middle table, by one client and by many: on the server's own disk, and on S3."""
    for where, place in (("", "on the server's disk"), (ON_S3, "on S3")):
        _measure_throughput(stage, report, where, place)


def _measure_throughput(stage: Stage, report: Report, where: str, place: str) -> None:
    files, clients = stage.plan.middle, stage.plan.clients
    require_whole(stage, files, where)
    medians: dict[str, list[float]] = {"ours": [], "limit": [], "naive": []}
    says, goals = [], []
    for count in clients:
        say(
            f"full query of {files:,} files {place}, {clients_said(count)}: ours, the limit and naive by turns"
        )
        rates = _rates(stage, files, where, count)
        for who, figures in medians.items():
            figures.append(median(rates[who]))
        of_limit, of_naive = (ratio(rates["ours"], rates[who]) for who in ("limit", "naive"))
        ours, limit, naive = (number(figures[-1]) for figures in medians.values())
        says.append(
            f"{clients_said(count)}: {ours} files/s, limit {limit} (x {of_limit:.2f}), naive {naive} (x {of_naive:.0f})"
        )
        goals.append(Goal(text=f"≥ 0.5 x limit ({clients_said(count)})", measured=of_limit, at_least=0.5))
        goals.append(Goal(text=f"≥ 20 x naive ({clients_said(count)})", measured=of_naive, at_least=20))
    report.rows.append(Row(f"warm full query, {files:,} files {place}", "; ".join(says), tuple(goals)))
    report.pictures.append(
        Picture(
            f"Files a second, {files:,} files {place}",
            tuple(clients_said(count) for count in clients),
            tuple(
                Series(name, tuple(figures))
                for name, figures in zip(("lakeshare", "limit", "naive"), medians.values(), strict=True)
            ),
        )
    )


def measure_growth(stage: Stage, report: Report) -> None:
    """Whole answers of every size by one client: seconds, first files, and the cost of each file."""
    sizes = stage.plan.sizes
    seen: dict[int, dict[str, list[Seen]]] = {size: {"ours": [], "limit": []} for size in sizes}
    asks = {
        (size, who): replace(ask, answers=ANSWERS, warm=1)
        for size in sizes
        for who, ask in (("ours", stage.table(size, "query", {})), ("limit", stage.limit(size)))
    }
    for turn in range(stage.plan.turns):
        say(f"full query of every size, turn {turn + 1} of {stage.plan.turns}")
        for (size, who), ask in asks.items():
            seen[size][who].append(run(ask))
    _add_first_file(stage, report, {size: seen[size]["ours"] for size in sizes})
    _add_growth(stage, report, {size: _wholes(seen[size]["ours"]) for size in sizes})
    report.pictures.append(
        Picture(
            "Milliseconds of a full answer, one client",
            tuple(f"{size:,} files" for size in sizes),
            tuple(
                Series(name, tuple(median(_wholes(seen[size][who])) * 1000 for size in sizes))
                for name, who in (("lakeshare", "ours"), ("limit", "limit"))
            ),
        )
    )


def require_whole(stage: Stage, files: int, where: str = "") -> None:
    """Nothing is worth measuring unless all of ours answer with every file."""
    run_whole(replace(stage.table(files, "query", {}, where=where), answers=1), files)
    run_whole(replace(stage.limit(files, where), answers=1), files)


def run_whole(ask: Ask, files: int) -> None:
    """Let clients do what was asked, and see that answers have that many files.

    Raises:
        RuntimeError: an answer had more or fewer.
    """
    lines = run(ask).lines_of_one
    if lines != files + HEAD_LINES:
        raise RuntimeError(f"{ask.path} answered {lines} lines instead of {files + HEAD_LINES}")


def _rates(stage: Stage, files: int, where: str, clients: int) -> dict[str, list[float]]:
    def ours() -> float:
        return _rate(stage, stage.table(files, "query", {}, where=where), clients, stage.ours)

    def limit() -> float:
        return _rate(stage, stage.limit(files, where), clients, stage.limit_server(files, where))

    def naive() -> float:
        return _naive_rate(stage, clients)

    return by_turns(stage.plan.turns, {"ours": ours, "limit": limit, "naive": naive})


def _rate(stage: Stage, ask: Ask, clients: int, server: Running) -> float:
    seen = run(replace(ask, clients=clients, window_s=stage.plan.window_s))
    server.settle()
    return seen.lines / seen.elapsed_s


def _naive_rate(stage: Stage, clients: int) -> float:
    # An answer is made of Python objects for all files: many clients would need many gigabytes, and see no line
    # before the time is over. One sees the first after a second or more.
    few = stage.plan.small if clients <= MANY_CLIENTS else stage.plan.sizes[0]
    files = stage.plan.middle if clients == 1 else few
    window_s = stage.plan.naive_window_s * (2 if clients == 1 else 1)
    seen = run(replace(stage.naive(files, {}), clients=clients, window_s=window_s))
    stage.restart_naive()
    return max(seen.lines, 1) / seen.elapsed_s


def _wholes(turns: list[Seen]) -> list[float]:
    return [median(seen.whole_s) for seen in turns]


def _add_first_file(stage: Stage, report: Report, seen: dict[int, list[Seen]]) -> None:
    small, big = stage.plan.small, stage.plan.big
    first_byte = {size: [median(one.first_byte_s) for one in seen[size]] for size in (small, big)}
    first_file = {size: [median(one.first_file_s) for one in seen[size]] for size in (small, big)}
    by_byte = ratio(first_byte[big], first_byte[small])
    by_file = ratio(first_file[big], first_file[small])
    report.rows.append(
        Row(
            f"time to first byte, {big:,} files",
            f"{milliseconds(median(first_byte[big]))} of {big:,}, {milliseconds(median(first_byte[small]))} of "
            f"{small:,} files; to the first file {milliseconds(median(first_file[big]))} and "
            f"{milliseconds(median(first_file[small]))}",
            (
                Goal(text=f"≤ 2 x that of {small:,} files", measured=by_byte, at_most=2),
                Goal(text="the same, to the first file", measured=by_file, at_most=2),
            ),
        )
    )


def _add_growth(stage: Stage, report: Report, wholes: dict[int, list[float]]) -> None:
    small, big = stage.plan.small, stage.plan.big
    growth = ratio(wholes[big], wholes[small]) / (big / small)
    said = ", ".join(f"{size:,} files {milliseconds(median(wholes[size]))}" for size in sorted(wholes))
    report.rows.append(
        Row(
            f"cost growth {small:,} → {big:,} files",
            f"{said}; a file of the big table costs {growth:.2f} x one of the small",
            (Goal(text="linear within 20 %", measured=growth, at_most=1.2),),
        )
    )
