"""The benchmark measures what it says: tables open, clients count, the limit sends our bytes, goals bite."""

import importlib
import pkgutil
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import bench
from bench.server.filtered_answers import measure_filters
from bench.server.full_answers import require_whole
from bench.server.goals import Goal, Picture, Report, Row, Series
from bench.server.ours import ON_S3
from bench.server.processes import run
from bench.server.report import BEGIN, END, write_docs
from bench.server.stage import Plan, on_stage
from bench.server.tables import CHECKPOINT_VERSION, PARTITIONS, big_table, distances, first_partition

SIZES = (200, 300, 1000)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory):
    plan = Plan(
        sizes=SIZES,
        clients=(1,),
        turns=1,
        window_s=0.2,
        naive_window_s=0.2,
        workers=1,
        cache=tmp_path_factory.mktemp("bench"),
    )
    with on_stage(plan) as made:
        yield made


def test_every_benchmark_can_be_imported() -> None:
    names = [module.name for module in pkgutil.walk_packages(bench.__path__, "bench.")]
    assert len(names) > 30
    for name in names:
        importlib.import_module(name)


def test_a_big_table_opens_with_every_file_partition_and_statistic(tmp_path: Path) -> None:
    table = DeltaTable(big_table(tmp_path, 1000))
    files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert table.version() == CHECKPOINT_VERSION + 1
    assert len({file["path"] for file in files}) == 1000
    assert len({file["partition.day"] for file in files}) == PARTITIONS
    assert sum(str(file["partition.day"]) == first_partition() for file in files) == 10
    low, high = distances(1000)
    assert sum(file["max.distance"] >= low and file["min.distance"] < high for file in files) == 10


def test_a_big_table_is_made_once(tmp_path: Path) -> None:
    location = big_table(tmp_path, 200)
    (location / "kept").touch()
    assert (big_table(tmp_path, 200) / "kept").exists()


@pytest.mark.parametrize(("where", "files"), [("", 1000), (ON_S3, 300)])
def test_the_limit_sends_as_many_bytes_and_lines_as_our_server(stage, where: str, files: int) -> None:
    ours = run(replace(stage.table(files, "query", {}, where=where), answers=1))
    limit = run(replace(stage.limit(files, where), answers=1))
    captured = stage.capture(files, where).read_bytes()
    assert (b".amazonaws.com/" in captured) == (where == ON_S3)
    body = len(captured)
    assert ours.lines_of_one == limit.lines_of_one == files + 2
    # Both are that body in its framing, and a head.
    assert body < limit.bytes < body + 500
    assert body < ours.bytes < body + 1000


def test_a_short_answer_is_not_measured(stage) -> None:
    with pytest.raises(RuntimeError, match="answered 302 lines instead of 303"):
        require_whole(
            SimpleNamespace(table=lambda files, call, body, where: stage.table(300, call, body)), 301
        )


def test_a_refusal_is_not_measured(stage) -> None:
    with pytest.raises(RuntimeError, match="404 Not Found"):
        run(replace(stage.table(999, "query", {}), answers=1))


def test_clients_see_the_answers_they_were_told_to_wait_for(stage) -> None:
    seen = run(replace(stage.table(300, "query", {}), clients=3, answers=7, warm=2))
    assert seen.answers == len(seen.whole_s) == 7
    assert seen.lines == 7 * 302
    assert all(0 < first <= whole for first, whole in zip(seen.first_file_s, seen.whole_s, strict=True))


def test_filters_are_answered_with_the_same_hundredth_by_ours_and_by_naive(stage) -> None:
    report = Report("here")
    measure_filters(stage, report)
    assert {goal.is_met is None for goal in report.rows[0].goals} == {False}


def test_a_missed_goal_is_told_and_an_unmeasured_one_is_not_met() -> None:
    missed = Goal(text="≤ 2 x warm", measured=2.5, at_most=2)
    unmeasured = Goal(text="≥ 1", measured=None, at_least=1)
    met = Goal(text="≥ 1", measured=1.0, at_least=1)
    report = Report("here", [Row("first query", "so long", (missed, unmeasured, met))])
    assert report.missed == ["first query: ≤ 2 x warm, measured 2.50"]
    assert [goal.verdict for goal in report.rows[0].goals] == ["missed", "not measured", "met"]


def test_the_page_keeps_what_stands_around_the_table(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    picture = Picture(
        "Files & time", ("1", "8"), (Series("ours", (10.0, 2000.0)), Series("naive", (1.0, None)))
    )
    goal = Goal(text="≤ 2 x warm", measured=1.5, at_most=2)
    write_docs(Report("here", [Row("first query", "so long", (goal,))], [picture]), tmp_path)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "| first query | so long | ≤ 2 x warm: met (1.5) |" in text
    chart = ElementTree.fromstring((tmp_path / "performance.svg").read_text())
    assert len(chart.findall(".//{*}rect")) == 1 + 2 + 3  # ground, legend, bars


def test_the_page_in_the_documents_can_be_written() -> None:
    page = (Path(__file__).parents[3] / "docs" / "performance.md").read_text()
    assert re.search(re.escape(BEGIN) + ".*" + re.escape(END), page, re.DOTALL)


def test_make_bench_leaves_the_naive_server_alone() -> None:
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    loop = re.search(r"^bench:.*\n(.*)$", makefile, re.MULTILINE)
    assert loop is not None
    assert "*/naive_server.py" in loop[1]
