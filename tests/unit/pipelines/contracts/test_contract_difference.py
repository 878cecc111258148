"""Each change of a contract has its class; breaking ones need a new major version."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakeshare_pipelines.cli.main import app
from lakeshare_pipelines.contracts import load_contract
from lakeshare_pipelines.contracts.difference import (
    Change,
    compare_contracts,
    find_level,
    is_looser,
    next_version,
)
from lakeshare_pipelines.contracts.partitioning import Partitioning, SecondDimension
from lakeshare_pipelines.errors import ContractError
from tests.builders.sets import CONTRACT

TEXT = CONTRACT.format(name="shop", format="iceberg", more="")
ID = "{name: id, logicalType: integer, physicalType: int, primaryKey: true, primaryKeyPosition: 1}"
CUSTOMER = "{name: customer, logicalType: string, required: true}"
EMAIL = "{name: email, logicalType: string, classification: pii}"
AMOUNT = "{name: amount, logicalType: number, physicalType: double, required: true}"
RULE = (
    "quality: [{{type: custom, engine: greatExpectations, severity: {severity}, implementation: "
    "{{type: expect_column_values_to_be_between, kwargs: {{min_value: {low}, max_value: {high}}}}}}}]"
)


def a_rule(severity: str = "error", low: int = 0, high: int = 9) -> str:
    rule = RULE.format(severity=severity, low=low, high=high)
    return AMOUNT.replace("required: true", f"required: true, {rule}")


DERIVE = """\
      - property: derive
        value: SELECT day, count(*) AS orders, sum(amount) AS amount FROM {orders} GROUP BY day
"""
SOURCE = "{property: source, value: items}, {property: write, value: replace}"
ITEMS = f"  - {{name: items, customProperties: [{SOURCE}], properties: [{ID}]}}\n"
RETIRED = "  - {property: retire, value: [{table: old, date: 2999-01-31}]}\n"
TRANSFORM = "      - {property: transform, value: 'lake.totals:count'}\n"
INPUTS = "      - {property: inputs, value: [reference.regions]}\n"

TABLE_PROPERTY = "      - {property: maxQ"
EMPTY = "      - {property: allowEmpty, value: true}\n"
DRIFT = "      - {property: drift, value: {maxShrinkFraction: 0.5}}\n"
WORDS = "    description: One row per order."


def a_reading(values: str) -> str:
    return TEXT.replace(
        TABLE_PROPERTY, f"      - {{property: reading, value: {{{values}}}}}\n{TABLE_PROPERTY}"
    )


def an_assertion(query: str = "amount < 0", severity: str = "error", words: str = "Sums.") -> str:
    """The contract with a rule in SQL."""
    sql = f'query: "SELECT count(*) FROM {{orders}} WHERE {query}", mustBe: 0'
    rule = f"{{type: sql, name: sums, description: {words}, severity: {severity}, {sql}}}"
    return TEXT.replace(WORDS, f"    quality: [{rule}]\n{WORDS}")


# What is replaced in the old text and in the new one, and the class and a text of the change.
CHANGES: dict[str, tuple[tuple[str, str], str, str]] = {
    "a column is dropped": ((f"      - {EMAIL}\n", ""), "breaking", "shop.orders.email: the column is gone"),
    "a column is renamed": (
        (EMAIL, EMAIL.replace("email", "mail").replace("}", ", customProperties: [{property: source, value: email}]}")),
        "breaking",
        "shop.orders.email: the column is renamed to mail",
    ),
    "a nullable column is added": (
        (EMAIL, f"{EMAIL}\n      - {{name: note, logicalType: string}}"),
        "minor",
        "shop.orders.note: new column, string",
    ),
    "a required column is added": (
        (EMAIL, f"{EMAIL}\n      - {{name: note, logicalType: string, required: true}}"),
        "breaking",
        "shop.orders.note: new required column",
    ),
    "a type is wider": ((ID, ID.replace("int,", "bigint,")), "minor", "shop.orders.id: type int → bigint"),
    "a type is another": (
        (AMOUNT, AMOUNT.replace("double", "'decimal(10,2)'")),
        "breaking",
        "shop.orders.amount: type double → decimal(10,2)",
    ),
    "a column is required": (
        (EMAIL, EMAIL.replace("string", "string, required: true")),
        "breaking",
        "shop.orders.email: the column is required now",
    ),
    "a column may be empty": (
        (CUSTOMER, CUSTOMER.replace(", required: true", "")),
        "minor",
        "shop.orders.customer: the column is not required any more",
    ),
    "another key": (
        (CUSTOMER, CUSTOMER.replace("required: true", "primaryKey: true, primaryKeyPosition: 2")),
        "breaking",
        "shop.orders: primary key id → id, customer",
    ),
    "another layout": (
        ("required: true, partitioned: true, partitionKeyPosition: 1}", "required: true}"),
        "breaking",
        "partitioned by identity(day) → nothing",
    ),
    "another arrival": (
        ("property: partitioning, value: daily", "property: partitioning, value: none"),
        "breaking",
        "set: partitioning daily → none",
    ),
    "a later first day": (("2024-01-01", "2024-02-01"), "breaking", "first partition 2024-01-01 → 2024-02-01"),
    "an earlier first day": (("2024-01-01", "2023-02-01"), "minor", "first partition 2024-01-01 → 2023-02-01"),
    "another format": (("format: iceberg", "format: delta"), "breaking", "format iceberg → delta"),
    "a share entry is gone": (("tables: [orders, totals]", "tables: [orders]"), "breaking", "shop.totals is gone"),
    "a new rule": ((AMOUNT, a_rule()), "breaking", "expect_column_values_to_be_between__amount: new rule"),
    "a new warning": ((AMOUNT, a_rule("warning")), "minor", "new rule of severity warning"),
    "more rows in quarantine": (("value: 0.5", "value: 0.6"), "minor", "50.00% → 60.00%"),
    "fewer rows in quarantine": (("value: 0.5", "value: 0.1"), "breaking", "50.00% → 10.00%"),
    "personal data": (
        (CUSTOMER, CUSTOMER.replace("}", ", classification: pii}")),
        "minor",
        "shop.orders.customer: the column is personal data now",
    ),
    "other words": (("One row per order.", "Orders."), "patch", "shop.orders: description changed"),
    "another owner": (("team: {name: lake}", "team: {name: sales}"), "patch", "set: owners changed"),
    "other files": (("value: orders}", "value: sales}"), "breaking", "source orders → sales"),
    "another derivation": (("count(*) AS orders", "count(id) AS orders"), "minor", "derive changed"),
    "other inputs": ((DERIVE, f"{DERIVE}{INPUTS}"), "minor", "shop.totals: inputs changed"),
    "a transform": ((DERIVE, f"{TRANSFORM}{INPUTS}"), "minor", "shop.totals: transform changed"),
    "a promise": (
        ("      - {property: maxQ", "      - {property: serveableTo, value: [spark]}\n      - {property: maxQ"),
        "minor",
        "spark is a promised client now",
    ),
    "another delimiter": (
        (
            "      - {property: maxQ",
            '      - {property: reading, value: {delimiter: ";"}}\n      - {property: maxQ',
        ),
        "breaking",
        "delimiter ',' → ';'",
    ),
    "a new table with files": (
        ("  - name: totals\n", f"{ITEMS}  - name: totals\n"),
        "minor",
        "shop.items: new table (deliveries need one more file)",
    ),
    "a table that was not published is retired": (
        ("customProperties:\n  - {property: part", f"customProperties:\n{RETIRED}  - {{property: part"),
        "",
        "",
    ),
    "another name": (("name: shop\n", "name: store\n"), "breaking", "set: name shop → store"),
    "another warehouse": (
        ("type: local, path: warehouse", "type: s3, location: 's3://lake/tables'"),
        "breaking",
        "set: warehouse of the settings → s3://lake/tables",
    ),
    "columns in another order": (
        (f"      - {CUSTOMER}\n      - {EMAIL}\n", f"      - {EMAIL}\n      - {CUSTOMER}\n"),
        "patch",
        "shop.orders: columns are in another order",
    ),
    "another name in deliveries": (
        (EMAIL, EMAIL.replace("}", ", customProperties: [{property: source, value: mail}]}")),
        "breaking",
        "shop.orders.email: delivered as email → mail",
    ),
    "other words of a column": (
        (EMAIL, EMAIL.replace("}", ", description: Mail.}")),
        "patch",
        "shop.orders.email: description changed",
    ),
    "a limit of drift that stops": (
        (TABLE_PROPERTY, f"{DRIFT[:-3]}, severity: error}}}}\n{TABLE_PROPERTY}"),
        "breaking",
        "the limits of drift changed",
    ),
    "a limit of drift that warns": (
        (TABLE_PROPERTY, f"{DRIFT}{TABLE_PROPERTY}"),
        "minor",
        "the limits of drift changed",
    ),
    "partitions without rows are allowed": (
        (TABLE_PROPERTY, f"{EMPTY}{TABLE_PROPERTY}"),
        "minor",
        "shop.orders: a partition may have no rows",
    ),
    "nothing but a comment": (("schema:", "# the tables\nschema:"), "", ""),
}  # fmt: skip


@pytest.fixture
def compare(tmp_path: Path) -> Callable[[str, str], tuple[Change, ...]]:
    def compared(old: str, new: str) -> tuple[Change, ...]:
        contracts = []
        for name, text in (("old", old), ("new", new)):
            (tmp_path / f"{name}.yaml").write_text(text)
            contracts.append(load_contract(tmp_path / f"{name}.yaml"))
        return compare_contracts(*contracts)

    return compared


def replaced(old: str, new: str) -> str:
    assert old in TEXT, old
    text = TEXT.replace(old, new, 1)
    # A set without days has no first one.
    return undated(text) if "value: none" in new else text


def test_each_change_has_its_class(
    compare: Callable[[str, str], tuple[Change, ...]], subtests: pytest.Subtests
) -> None:
    for name, (change, level, text) in CHANGES.items():
        with subtests.test(name):
            new, old = replaced(*change), TEXT
            if name == "another layout":
                # A daily set has to be partitioned by its day.
                old, new = (undated(one) for one in (old, new))
            changes = compare(old, new)
            assert (find_level(changes) or "") == level, changes
            assert not level or any(text in str(found) and found.level == level for found in changes), changes


def undated(text: str) -> str:
    text = text.replace('  - {property: firstPartition, value: "2024-01-01"}\n', "")
    return text.replace("value: daily", "value: none")


def test_to_allow_partitions_without_rows_no_longer_is_breaking(
    compare: Callable[[str, str], tuple[Change, ...]],
) -> None:
    [change] = compare(TEXT.replace(TABLE_PROPERTY, f"{EMPTY}{TABLE_PROPERTY}"), TEXT)
    assert (change.what, change.level) == ("a partition may have no rows no longer", "breaking")


def test_arguments_and_severities_of_a_rule_are_looser_or_stricter(
    compare: Callable[[str, str], tuple[Change, ...]],
) -> None:
    def level_of(old: str, new: str) -> str | None:
        return find_level(compare(TEXT.replace(AMOUNT, old), TEXT.replace(AMOUNT, new)))

    assert level_of(a_rule(), a_rule(low=-1, high=10)) == "minor"
    assert level_of(a_rule(), a_rule(low=1)) == "breaking"
    assert level_of(a_rule(), a_rule("warning")) == "minor"
    assert level_of(a_rule("warning"), a_rule()) == "breaking"
    assert level_of(a_rule("warning"), a_rule("warning", low=1)) == "minor"
    assert level_of(a_rule(), AMOUNT) == "minor"

    values, fewer, in_set = (
        {"value_set": ["a", "b"]},
        {"value_set": ["a"]},
        "expect_column_values_to_be_in_set",
    )
    assert is_looser(in_set, fewer, values)
    assert not is_looser(in_set, values, fewer)
    assert is_looser("expect_column_values_to_not_be_in_set", values, fewer)
    assert not is_looser("expect_column_distinct_values_to_equal_set", fewer, values)
    assert not is_looser("expect_column_values_to_match_regex", {"regex": "a"}, {"regex": "b"})
    assert is_looser(in_set, values, {**values, "mostly": 0.9})


@pytest.mark.parametrize(
    ("old", "new", "found", "back"),
    [
        (TEXT, an_assertion(), "breaking  shop.orders: sums: new rule in SQL", "minor"),
        (
            an_assertion(),
            an_assertion("id < 0"),
            "breaking  shop.orders: sums: it asserts something else",
            "breaking",
        ),
        (
            an_assertion(),
            an_assertion(severity="warning"),
            "minor     shop.orders: sums: severity error → warning",
            "breaking",
        ),
        (
            an_assertion(),
            an_assertion(words="Others."),
            "patch     shop.orders: sums: description changed",
            "patch",
        ),
        (TEXT, a_reading("multiline: true"), "breaking  shop.orders: multiline False → True", "breaking"),
        (
            a_reading("nullValues: ['NA']"),
            a_reading("nullValues: ['NA', '-']"),
            "minor     shop.orders: nullValues ['NA'] → ['NA', '-']",
            "breaking",
        ),
    ],
)
def test_rules_in_sql_and_formats_of_text(
    compare: Callable[[str, str], tuple[Change, ...]], old: str, new: str, found: str, back: str
) -> None:
    (change,) = compare(old, new)
    assert str(change).startswith(found)
    assert find_level(compare(new, old)) == back


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (
            Partitioning("daily", "2024-01-01"),
            Partitioning("daily", "2024-01-01", "Europe/Berlin"),
            [("breaking", "partitioning daily in UTC → daily in Europe/Berlin")],
        ),
        (
            Partitioning("daily", "2024-01-01", second=SecondDimension("region", ("eu", "us"))),
            Partitioning("daily", "2024-01-01", second=SecondDimension("region", ("eu", "asia"))),
            [("breaking", "names of region (eu, us) → region (eu, asia)")],
        ),
        (
            Partitioning("daily", "2024-01-01", second=SecondDimension("region", ("eu",))),
            Partitioning("daily", "2024-01-01", second=SecondDimension("region")),
            [("minor", "names of region (eu) → region (dynamic)")],
        ),
        (
            Partitioning("daily", "2024-01-01"),
            Partitioning("daily", "2024-01-01", second=SecondDimension("region")),
            [("breaking", "second dimension none → region")],
        ),
        (
            Partitioning("static", values=("eu", "us")),
            Partitioning("static", values=("eu", "asia")),
            [("breaking", "partition us is gone"), ("minor", "new partition asia")],
        ),
        (
            Partitioning("hourly", "2024-01-01-00", end_offset=1),
            Partitioning("hourly", "2024-01-01-00", lateness_hours=0),
            [("breaking", "latenessHours None → 0"), ("breaking", "end offset 1 → 0")],
        ),
        (
            Partitioning("hourly", "2024-01-01-00", lateness_hours=2),
            Partitioning("hourly", "2023-01-01-00", lateness_hours=3),
            [("minor", "first partition 2024-01-01-00 → 2023-01-01-00"), ("minor", "latenessHours 2 → 3")],
        ),
    ],
)
def test_changes_of_partitioning(
    tmp_path: Path, old: Partitioning, new: Partitioning, found: list[tuple[str, str]]
) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(TEXT)
    contract = load_contract(path)
    changes = compare_contracts(replace(contract, partitioning=old), replace(contract, partitioning=new))
    assert [(change.level, change.what) for change in changes] == found


def test_the_version_follows_from_the_class(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(TEXT.replace("version: 1.0.0", "version: 1.4.2"))
    contract = load_contract(path)
    levels = ("breaking", "minor", "patch", None)
    assert [next_version(contract, level) for level in levels] == ["2.0.0", "1.5.0", "1.4.3", "1.4.2"]
    path.write_text(TEXT.replace("version: 1.0.0", "version: summer"))
    with pytest.raises(ContractError, match=r"version: 'summer' is not MAJOR\.MINOR\.PATCH"):
        next_version(load_contract(path), "minor")


def test_the_command_refuses_a_breaking_change_without_a_new_major_version(tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(TEXT)
    dropped = TEXT.replace(f"      - {EMAIL}\n", "")
    new.write_text(dropped)
    ended = CliRunner().invoke(app, ["contract", "diff", str(old), str(new)])
    assert ended.exit_code == 1
    assert "breaking  shop.orders.email: the column is gone" in ended.output
    assert (
        "1 breaking, 0 minor, 0 patch changes; version 1.0.0 → 1.0.0: give it version 2.0.0" in ended.output
    )

    new.write_text(dropped.replace("version: 1.0.0", "version: 2.0.0"))
    ended = CliRunner().invoke(app, ["contract", "diff", str(old), str(new)])
    assert (ended.exit_code, "give it version" in ended.output) == (0, False), ended.output
