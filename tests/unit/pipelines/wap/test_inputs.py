"""What a transform may read, and how its function is found; frames are opaque, tests/integration has real ones."""

from pathlib import Path

import pytest

from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.contracts.model import Column, Table
from lakeshare_pipelines.errors import InputError, TransformError
from lakeshare_pipelines.wap.inputs import Inputs, digest_code, load_transform, parse_pins
from lakeshare_pipelines.wap.staged import Lake, ReadTable, Staged, StagedTable
from tests.builders.sets import a_contract

ROWS, WHOLE_TABLE = object(), object()


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inputs:
    """Inputs of a transform of the delivered table `shop.orders`."""
    top = "customProperties:\n  - {property: partitioning"
    table = """\
  - name: rates
    customProperties:
      - {property: transform, value: "lake.rates:make"}
      - {property: inputs, value: [orders]}
    properties:
      - {name: day, logicalType: date, partitioned: true}
"""
    contract = a_contract(tmp_path, "shop", "delta", **{top: table + top})
    rates = contract.table("rates")
    assert contract.tables.index(rates) > contract.tables.index(contract.table("orders"))
    lake: Lake = object.__new__(Lake)
    frames = {"shop.orders": ROWS, "shop.totals": ROWS}
    return Inputs(lake, contract, rates, ["2024-01-01"], frames, {}, lambda table: WHOLE_TABLE, {})  # type: ignore


def test_a_delivered_table_of_the_set_is_read_as_rows_of_the_run_or_whole(inputs):
    assert inputs.list_read() == {"shop.orders": ReadTable(None, None)}
    assert inputs.delivery("orders") is inputs.table("orders") is inputs.table("shop.orders") is ROWS
    assert inputs.list_read() == {"shop.orders": ReadTable(None, False)}
    assert inputs.table("orders", whole=True) is WHOLE_TABLE
    assert inputs.delivery("shop.orders") is ROWS
    assert inputs.list_read() == {"shop.orders": ReadTable(None, True)}


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (
            lambda inputs: inputs.delivery("order"),
            "input order is no delivered table of the set. Did you mean 'orders'?",
        ),
        (lambda inputs: inputs.delivery("totals"), "input totals is no delivered table of the set"),
        (
            lambda inputs: inputs.table("totals"),
            "input totals is no declared input of rates. Add it to the inputs",
        ),
        (lambda inputs: inputs.table("names.t"), "of other sets only published tables can be read"),
    ],
)
def test_what_is_not_declared_is_refused_with_the_remedy(inputs, read, message):
    with pytest.raises(InputError) as refused:
        read(inputs)
    assert "shop.yaml: rates.inputs: " in str(refused.value)
    assert message in str(refused.value)


MODULES = {
    "missing": (None, "ModuleNotFoundError: No module named 'code_missing'", "start the run in its folder"),
    "broken": ("def make(inputs:\n", "SyntaxError: '(' was never closed", "code_broken.py, line 1)"),
    "failing": (
        "import os\nRATES = os.environ['NO_SUCH_RATES']\n",
        "KeyError: 'NO_SUCH_RATES'",
        ".py, line 2)",
    ),
    "ending": ("raise SystemExit(3)\n", "SystemExit: 3", "Correct the module"),
    "others": ("def makes(inputs): ...\n", "is no function of", "Did you mean 'makes'?"),
    "classes": ("class make: ...\n", "is no function of", "Define it there"),
    "two": (
        "def make(inputs, spark): ...\n",
        "missing a required argument: 'spark'",
        "`def make(inputs: Inputs)",
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_function_that_cannot_be_called_is_refused_with_file_and_remedy(tmp_path, monkeypatch, name):
    source, *messages = MODULES[name]
    monkeypatch.syspath_prepend(str(tmp_path))
    if source is not None:
        (tmp_path / f"code_{name}.py").write_text(source)
    contract = a_contract(tmp_path / "contracts", "shop", "delta")
    with pytest.raises(TransformError) as refused:
        load_transform(contract, a_table(f"code_{name}:make"))
    for message in (f"{contract.path}: t.transform: code_{name}:make ", *messages):
        assert message in str(refused.value)


def a_table(transform: str) -> Table:
    return Table("shop.t", "delta", (Column("n", "int"),), transform=transform)


def test_the_file_of_a_transform_is_known_by_its_content_without_an_import(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    file, table = tmp_path / "code_digest.py", a_table("code_digest:make")
    assert digest_code(table) is None
    file.write_text("raise ImportError\n")
    first = digest_code(table)
    file.write_text("def make(inputs): ...\n")
    assert first is not None
    assert first != digest_code(table) == load_transform(SetContract.__new__(SetContract), table).code


def test_a_package_that_fails_is_reported_by_its_transform_only(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "code_package").mkdir()
    (tmp_path / "code_package" / "__init__.py").write_text("raise KeyError('rates')\n")
    table = a_table("code_package.gold:make")
    assert digest_code(table) is None
    with pytest.raises(TransformError, match=r"KeyError: 'rates' \(.*__init__\.py, line 1\)"):
        load_transform(a_contract(tmp_path / "contracts", "shop", "delta"), table)


def test_pins_are_numbers_of_tables():
    assert parse_pins(" reference.airports@3,flights.departures@12, ") == {
        "reference.airports": 3,
        "flights.departures": 12,
    }
    for text in ("flights.departures", "flights.departures@-1", "a@1@2", "a@1 b@2"):
        with pytest.raises(InputError, match="names no publication"):
            parse_pins(text)


def test_what_a_staged_table_was_made_of_survives_its_record():
    read = {"names.t": ReadTable(4, True), "shop.orders": ReadTable(None, False)}
    read["hours.t"] = ReadTable(2, False, ("daily", "hourly", "UTC"))
    table = StagedTable("shop.t", 3, inputs=read, code="c0de")
    staged = Staged(
        "shop", "run", ("all",), "ref", "base", "head", (table,), {"all": ""}, "digest", 0, {"names.t": 4}
    )

    again = Staged.from_record(staged.as_record())

    assert again == staged
    assert (again.inputs, again.code) == ({"names.t": 4, "hours.t": 2}, {"shop.t": "c0de"})


def test_a_set_without_inputs_is_described_by_nothing_more():
    staged = Staged("shop", "run", ("all",), "ref", "base", "head", (StagedTable("shop.t", 3),), {}, "digest")
    assert staged.describe_inputs() == {}


def test_contracts_show_what_makes_a_table(inputs, tmp_path, capsys):
    from lakeshare_pipelines.contracts.model import describe

    text = describe(load_contract(tmp_path / "shop.yaml"))
    assert "table shop.rates (delta, made by lake.rates:make from shop.orders, partitioned by day)" in text
