"""The commands of docs/first-steps.md work as they are written there, and print what it shows."""

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.page_commands import PageUser, page_user, read_steps
from tests.builders.spark_apart import run_command

PAGE = (Path(__file__).parents[2] / "docs" / "first-steps.md").read_text()
[CSV] = re.findall(r"^```csv\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
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
def user(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageUser]:
    """A user in that folder."""
    with page_user(shop, tmp_path_factory) as user:
        yield user


def test_each_command_prints_what_the_page_shows(user: PageUser) -> None:
    commands = [step.command for step in read_steps(PAGE)]
    assert 4 <= len(commands) <= 6, commands
    assert "lakeshare serve --no-first-key &" in commands
    user.follow(PAGE)


def test_a_delivery_that_breaks_the_contract_is_stopped_and_explained(user: PageUser, shop: Path) -> None:
    """Runs after the page's commands."""
    (shop / "bad.csv").write_text(BAD)
    code, printed = user.process(run_command, "lakeshare", "publish", "orders", "--on", "bad.csv")
    assert code == 1, printed
    assert "FAIL  orders.orders: rows_parsed: 1 of 10 delivered rows went to quarantine (10.00%)" in printed
    assert "FAIL  orders.orders: expect_column_values_to_not_be_null__status: 1 of 9 rows failed" in printed
    assert "nothing was published; lakeshare wap show wap-orders-all-" in printed
    assert "much" not in printed


def test_a_contract_is_tried_on_a_file_and_nothing_is_delivered(user: PageUser, shop: Path) -> None:
    (shop / "bad.csv").write_text(BAD)
    before = sorted(path for path in shop.rglob("*") if "logs" not in path.parts)
    code, printed = user.process(
        run_command, "lakeshare", "contract", "test", "contracts/orders.yaml", "--on", "bad.csv"
    )
    assert code == 1, printed
    progress = "starting Spark …\nreading and auditing bad.csv …\n"
    assert printed.startswith(f"{progress}orders.orders: 9 rows, 1 rejected\n")
    assert "line=2  reason=amount: '***' is not decimal(10,2)" in printed
    assert printed.endswith("red: it would be stopped\n")
    assert "lakeshare wap rejected" not in printed
    assert sorted(path for path in shop.rglob("*") if "logs" not in path.parts) == before


def test_a_contract_is_drafted_from_a_table_a_location_or_a_query(user: PageUser, shop: Path) -> None:
    location = str(shop / "warehouse" / "orders" / "orders")
    query = f"SELECT status, sum(amount) AS total FROM delta.`{location}` GROUP BY status"
    for data, found in (
        ("orders.orders", "# primary key: order_id is unique in the sample"),
        (location, 'physicalType: "decimal(10,2)"'),
        (query, "- name: total"),
    ):
        code, printed = user.process(run_command, "lakeshare", "contract", "draft", data, "-o", "-")
        assert code in (0, None), printed
        assert found in printed, printed
    code, printed = user.process(
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


def test_the_test_of_the_project_passes(user: PageUser, shop: Path) -> None:
    assert user.process(run_project_test, shop) == ["test_contracts_load_and_their_tables_are_assets"]
