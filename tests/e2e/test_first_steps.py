"""The commands of docs/first-steps.md work as they are written there, and print what it shows."""

import os
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from lakeshare_pipelines.demo.processes import free_port, sharing_server
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.apart import Apart, process_apart
from tests.builders.shared_spark import SharedSpark, driver_of_all_workers
from tests.builders.spark_apart import run_command, use_driver

PAGE = (Path(__file__).parents[2] / "docs" / "first-steps.md").read_text()
[CSV] = re.findall(r"^```csv\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
STEPS: list[tuple[str, list[str]]] = [
    (command, output.splitlines())
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]
# The defect: an amount that is no number, a status that is empty.
BAD = CSV.replace("12.50,paid", "much,paid").replace("7.00,open", "7.00,")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with a CSV file."""
    folder = tmp_path_factory.mktemp("first") / "shop"
    folder.mkdir()
    (folder / "orders.csv").write_text(CSV)
    return folder


@pytest.fixture(scope="module")
def port() -> int:
    return free_port(0)


@pytest.fixture(scope="module")
def user(shop: Path, port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    """A process in that folder, without settings of its own but a port, which uses the tests' Spark driver."""
    settings = LakeSettings(_env_file=None, state_dir=tmp_path_factory.mktemp("driver"))
    with (
        driver_of_all_workers(settings, tmp_path_factory) as spark,
        process_apart({"LAKESHARE_PORT": str(port)}) as process,
    ):
        process(enter, shop)
        process(use_driver, SharedSpark.of(spark))
        yield process


def enter(folder: Path) -> None:
    """Goes to a folder as a user without an instance of Dagster."""
    os.chdir(folder)
    os.environ.pop("DAGSTER_HOME", None)


def run_python(code: str) -> tuple[object, str]:
    """What `python -c` prints."""
    printed = StringIO()
    with redirect_stdout(printed):
        exec(code, {})
    return 0, printed.getvalue()


def masked(line: str) -> str:
    """A line without times, versions of Java, and ports."""
    line = re.sub(r"^ +\d+\.\d s", "N s", line.rstrip())
    return re.sub(r"Java \d+|127\.0\.0\.1:\d+", "N", line)


def test_each_command_prints_what_the_page_shows(user: Apart, shop: Path, port: int) -> None:
    assert 4 <= len(STEPS) <= 6, STEPS
    is_served = False
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.chdir(shop)
        for command, expected in STEPS:
            words = shlex.split(command)
            if words[:2] == ["lakeshare", "serve"]:
                assert words[2:] == ["--no-first-key", "&"]
                root = stack.enter_context(sharing_server(port, shop / "server.log"))
                printed = (shop / "server.log").read_text()
                assert f"{root}/delta-sharing" in printed
                is_served = True
            else:
                run = run_python if words[0] == "python" else run_command
                arguments = words[2:] if words[0] == "python" else words
                code, printed = user(run, *arguments)
                assert code in (0, None), (command, printed)
            assert [masked(line) for line in printed.splitlines()] == [masked(line) for line in expected], (
                command
            )
    assert is_served


def test_a_delivery_that_breaks_the_contract_is_stopped_and_explained(user: Apart, shop: Path) -> None:
    """Runs after the page's commands."""
    (shop / "bad.csv").write_text(BAD)
    code, printed = user(run_command, "lakeshare", "publish", "orders", "--on", "bad.csv")
    assert code == 1, printed
    assert "FAIL  orders.orders: rows_parsed: 1 of 10 delivered rows went to quarantine (10.00%)" in printed
    assert "FAIL  orders.orders: expect_column_values_to_not_be_null__status: 1 of 9 rows failed" in printed
    assert "nothing was published; lakeshare wap show wap-orders-all-" in printed
    assert "much" not in printed


def test_a_contract_is_tried_on_a_file_and_nothing_is_delivered(user: Apart, shop: Path) -> None:
    (shop / "bad.csv").write_text(BAD)
    before = sorted(path for path in shop.rglob("*") if "logs" not in path.parts)
    code, printed = user(
        run_command, "lakeshare", "contract", "test", "contracts/orders.yaml", "--on", "bad.csv"
    )
    assert code == 1, printed
    assert printed.startswith("orders.orders: 9 rows, 1 rejected\n")
    assert "line=2  reason=amount: '***' is not decimal(10,2)" in printed
    assert printed.endswith("red: it would be stopped\n")
    assert "lakeshare wap rejected" not in printed
    assert sorted(path for path in shop.rglob("*") if "logs" not in path.parts) == before


def test_a_contract_is_drafted_from_a_table_a_location_or_a_query(user: Apart, shop: Path) -> None:
    location = str(shop / "warehouse" / "orders" / "orders")
    query = f"SELECT status, sum(amount) AS total FROM delta.`{location}` GROUP BY status"
    for data, found in (
        ("orders.orders", "# primary key: order_id is unique in the sample"),
        (location, 'physicalType: "decimal(10,2)"'),
        (query, "- name: total"),
    ):
        code, printed = user(run_command, "lakeshare", "contract", "draft", data, "-o", "-")
        assert code in (0, None), printed
        assert found in printed, printed
    code, printed = user(
        run_command, "lakeshare", "contract", "draft", "SELECT nothing FROM nowhere ", "-o", "-"
    )
    assert code == 1
    assert "lakeshare: the query SELECT nothing FROM nowhere: [TABLE_OR_VIEW_NOT_FOUND]" in printed
    assert "Traceback" not in printed


def run_project_test(folder: Path) -> list[str]:
    """Runs the test that `lakeshare init` wrote; its name."""
    sys.path.insert(0, str(folder))
    found = runpy.run_path(str(folder / "tests" / "test_contracts.py"))
    tests = [name for name in found if name.startswith("test_")]
    for name in tests:
        found[name]()
    return tests


def test_the_test_of_the_project_passes(user: Apart, shop: Path) -> None:
    assert user(run_project_test, shop) == ["test_contracts_load_and_their_tables_are_assets"]
