"""The sets that ship with the package load, say what design asks of them, and load without the heavy libraries."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lakeshare_pipelines.contracts import load_contract, load_contracts
from lakeshare_pipelines.contracts.column_types import can_widen
from lakeshare_pipelines.contracts.model import Promise, describe
from lakeshare_pipelines.errors import ContractError
from lakeshare_server.tables.serveability import clients_of
from tests.builders.sets import a_contract

FLIGHTS, REFERENCE = load_contracts()


def test_two_sets_ship_with_the_package() -> None:
    assert [(contract.name, contract.partitioning.kind) for contract in load_contracts()] == [
        ("flights", "daily"),
        ("reference", "none"),
    ]


def test_flights_are_iceberg_by_day_with_the_delays_after_what_they_derive_from() -> None:
    departures, delays = FLIGHTS.tables
    assert (departures.name, delays.name) == ("flights.departures", "flights.daily_delays")
    assert {table.format for table in FLIGHTS.tables} == {"iceberg"}
    assert departures.partition_by == delays.partition_by == (("flight_date", "identity"),)
    assert delays.depends_on == ("flights.departures",)
    assert FLIGHTS.partitioning.first == "2013-01-01"


def test_reference_tables_are_delta_and_weather_is_partitioned_by_month() -> None:
    assert {table.format for table in REFERENCE.tables} == {"delta"}
    assert REFERENCE.table("weather").partition_by == (("month", "identity"),)


def test_every_table_is_shared_in_aviation_under_the_schema_of_its_set() -> None:
    entries = [entry for contract in (FLIGHTS, REFERENCE) for entry in contract.shares]
    assert {(entry.share, f"{entry.schema}.{entry.name}") for entry in entries} == {
        ("aviation", table.name) for contract in (FLIGHTS, REFERENCE) for table in contract.tables
    }


def test_required_unique_and_primary_key_are_rules_of_their_own() -> None:
    rules = {rule.name: rule for rule in FLIGHTS.table("departures").rules}
    assert rules["expect_column_values_to_not_be_null__carrier"].severity == "error"
    key = rules["expect_compound_columns_to_be_unique__flight_date_carrier_flight_origin"]
    assert (key.scope, key.kwargs) == (
        "table",
        {"column_list": ["flight_date", "carrier", "flight", "origin"]},
    )
    faa = {rule.name: rule for rule in REFERENCE.table("airports").rules}[
        "expect_column_values_to_be_unique__faa"
    ]
    assert faa.scope == "table"


def test_a_missing_tail_number_is_a_warning_about_the_delta() -> None:
    rule = next(
        r
        for r in FLIGHTS.table("departures").rules
        if r.name == "expect_column_values_to_not_be_null__tailnum"
    )
    assert (rule.severity, rule.scope, rule.kwargs) == (
        "warning",
        "delta",
        {"mostly": 0.95, "column": "tailnum"},
    )


def test_names_of_rules_and_references_are_unique_in_their_table_and_legal_for_dagster() -> None:
    for contract in (FLIGHTS, REFERENCE):
        for table in contract.tables:
            names = [rule.name for rule in table.rules] + [reference.name for reference in table.references]
            assert len(names) == len(set(names))
            assert all(name.replace("_", "a").isalnum() and name.isascii() for name in names)


def test_owners_are_what_dagster_takes() -> None:
    assert FLIGHTS.owners == ("team:lake",)


@pytest.mark.parametrize(
    ("key", "is_one"),
    [
        ("2013-01-01", True),
        ("2030-12-31", True),
        ("2012-12-31", False),
        ("20130101", False),
        ("2013-02-30", False),
        ("all", False),
    ],
)
def test_a_daily_set_has_days_from_its_first_on_as_partitions(key: str, is_one: bool) -> None:
    assert FLIGHTS.is_partition(key) is is_one
    assert REFERENCE.is_partition(key) is (key == "all")


def test_the_digest_follows_what_is_said_and_not_how(tmp_path: Path) -> None:
    text = FLIGHTS.path.read_text()
    same, other = tmp_path / "same.yaml", tmp_path / "other.yaml"
    same.write_text("# a comment\n" + text)
    other.write_text(text.replace("min_value: 500", "min_value: 501"))
    assert load_contract(same).digest == FLIGHTS.digest
    assert load_contract(other).digest != FLIGHTS.digest


def test_tables_come_in_dependency_order_whatever_the_order_of_the_file(tmp_path: Path) -> None:
    head, departures, delays, tail = _split(FLIGHTS.path.read_text())
    path = tmp_path / "turned.yaml"
    path.write_text(head + delays + departures + tail)
    assert [table.short_name for table in load_contract(path).tables] == ["departures", "daily_delays"]


def test_a_description_names_tables_columns_rules_and_shares() -> None:
    text = describe(FLIGHTS)
    for part in (
        "flights.departures (iceberg, files departures*",
        "flight_date  ",
        "expect_column_values_to_match_regex__dest",
    ):
        assert part in text
    assert "shared as aviation.flights.daily_delays: flights.daily_delays" in text
    allowed = replace(FLIGHTS, tables=tuple(replace(table, allow_empty=True) for table in FLIGHTS.tables))
    of_departures = "at most 1.0% of rows in quarantine; a partition may have no rows; may shrink"
    assert of_departures in describe(allowed)


def test_the_sets_that_ship_promise_every_client_of_their_format() -> None:
    for contract in (FLIGHTS, REFERENCE):
        for table in contract.tables:
            promise = table.serveable_to
            assert (promise.clients, promise.severity, promise.rewrite) == (
                clients_of(table.format),
                "error",
                True,
            )


@pytest.mark.parametrize(
    ("value", "promise"),
    [
        ("[spark, spark]", Promise(("spark",))),
        (
            "{clients: [spark], severity: warning, rewrite: false}",
            Promise(("spark",), "warning", rewrite=False),
        ),
    ],
    ids=["a list", "in full"],
)
def test_clients_are_promised_in_short_or_in_full(tmp_path: Path, value: str, promise: Promise) -> None:
    path = tmp_path / "flights.yaml"
    before = "[python-parquet, python-delta, spark, iceberg-rest]"
    path.write_text(FLIGHTS.path.read_text().replace(before, value))
    contract = load_contract(path)
    assert {table.serveable_to for table in contract.tables} == {promise}
    rewritten = ", rewritten for them where needed (error)" if promise.rewrite else " (warning)"
    assert f"  can be read by spark{rewritten}\n" in describe(contract)


def test_of_delta_tables_no_rewrite_is_told() -> None:
    assert "  can be read by python-parquet, python-delta, spark (error)\n" in describe(REFERENCE)


def test_a_contract_that_promises_nobody_has_no_promise(tmp_path: Path) -> None:
    path = tmp_path / "flights.yaml"
    lines = [line for line in FLIGHTS.path.read_text().splitlines() if "serveableTo" not in line]
    path.write_text("\n".join(lines))
    assert {table.serveable_to.clients for table in load_contract(path).tables} == {()}


@pytest.mark.parametrize(
    ("before", "after", "can"),
    [
        ("int", "bigint", True),
        ("float", "double", True),
        ("decimal(5,2)", "decimal(12,2)", True),
        ("int", "int", False),
        ("bigint", "int", False),
        ("int", "double", False),
        ("decimal(5,2)", "decimal(5,2)", False),
        ("decimal(5,2)", "decimal(12,3)", False),
        ("decimal(12,2)", "decimal(5,2)", False),
        ("decimal(5,2)", "double", False),
        ("date", "timestamp", False),
    ],
)
def test_types_widen_as_iceberg_lets_them(before: str, after: str, can: bool) -> None:
    assert can_widen(before, after) is can


def test_loading_contracts_imports_neither_spark_nor_great_expectations() -> None:
    code = (
        "import sys; from lakeshare_pipelines.contracts import load_contracts; import lakeshare_pipelines.ingest;"
        "load_contracts(); print(sorted({'pyspark', 'great_expectations', 'pandas', 'dagster'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _split(text: str) -> tuple[str, str, str, str]:
    first = text.index("  - name: departures")
    second = text.index("  - name: daily_delays")
    last = text.index("customProperties:\n  - {property: partitioning")
    return text[:first], text[first:second], text[second:last], text[last:]


def test_a_set_names_the_tables_that_follow_along_in_snowflake(tmp_path: Path) -> None:
    more = """\
  - property: snowflake
    value:
      - {database: LAKE, schema: SHOP, tables: [orders, {table: totals, name: daily}]}
"""
    contract = a_contract(tmp_path, "shop", "iceberg", more)
    assert [(entry.name, entry.table) for entry in contract.snowflake] == [
        ("orders", "shop.orders"),
        ("daily", "shop.totals"),
    ]
    assert "in Snowflake as LAKE.SHOP.daily: shop.totals" in describe(contract)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ("[ordres]", r"customProperties\[3\].value\[0\].tables\[0\]: the set has no table 'ordres'"),
        (
            "[orders, {table: totals, name: Orders}]",
            "the table of Snowflake lake.shop.orders is given 2 times",
        ),
        ("[{table: orders, name: a b}]", "cannot be 'a b'"),
        ("[]", "cannot be"),
    ],
)
def test_a_follower_that_cannot_be_is_refused_by_its_place(tmp_path: Path, tables: str, said: str) -> None:
    value = f"{{database: LAKE, schema: SHOP, tables: {tables}}}"
    with pytest.raises(ContractError, match=said):
        a_contract(tmp_path, "shop", "iceberg", f"  - property: snowflake\n    value: [{value}]\n")


def test_two_sets_cannot_follow_into_one_table(tmp_path: Path) -> None:
    value = "{database: LAKE, schema: SHOP, tables: [{table: orders, name: o}]}"
    for name in ("shop", "sales"):
        a_contract(tmp_path, name, "iceberg", f"  - property: snowflake\n    value: [{value}]\n")
    with pytest.raises(
        ContractError, match=r"the table of Snowflake 'lake\.shop\.o' is sales.yaml's already"
    ):
        load_contracts(tmp_path)
