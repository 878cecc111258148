"""Rules: each is judged by itself, on the rows it is about, and one that cannot be judged has failed."""

import pytest

from lakeshare_pipelines.wap.audit import audit
from tests.builders.audits import (
    BETWEEN,
    DAY,
    NEXT_DAY,
    NOT_NULL,
    UNIQUE,
    UNIQUE_TOGETHER,
    a_rule,
    a_set,
    carrier_rows,
    carriers,
    flight_rows,
    flights,
    of,
    publish_rows,
    stage_rows,
)


def test_rules_that_cannot_be_judged_fail_and_leave_the_others_their_verdict(lake):
    contract = a_set(
        flights(
            a_rule("known", NOT_NULL, column="carrier"),
            a_rule("no_such_column", NOT_NULL, column="carier"),
            a_rule("number_of_text", BETWEEN, column="carrier", min_value=1, max_value=2),
            a_rule("bad_regex", "expect_column_values_to_match_regex", column="carrier", regex="["),
            a_rule("bad_argument", BETWEEN, column="delay", min_value="soon"),
            a_rule("negative", BETWEEN, column="delay", max_value=-1),
        )
    )

    verdicts = audit(lake, contract, stage_rows(lake, contract, flights=flight_rows(60)))

    assert of(verdicts, "known").passed
    assert of(verdicts, "negative").observed["failed_rows"] == 60
    assert of(verdicts, "no_such_column").reason == "not evaluated because column carier is missing"
    for check in ("number_of_text", "bad_regex", "bad_argument"):
        assert of(verdicts, check).reason.startswith("not evaluated because "), check
        assert of(verdicts, check).blocks


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_rule_about_the_table_sees_the_days_before_and_one_about_the_run_does_not(lake, table_format):
    contract = a_set(
        flights(
            a_rule("in_table", UNIQUE, column="id", scope="table"),
            a_rule("in_run", UNIQUE, column="id", scope="delta"),
            a_rule("with_day", UNIQUE_TOGETHER, column_list=["day", "id"], scope="table"),
            a_rule("rows", "expect_table_row_count_to_equal", value=15, scope="table"),
            format=table_format,
        )
    )
    publish_rows(lake, contract, flights=flight_rows(10, id="id"))
    staged = stage_rows(lake, contract, partitions=[NEXT_DAY], flights=flight_rows(5, NEXT_DAY, id="id + 8"))

    verdicts = audit(lake, contract, staged)

    assert {
        v.check: v.passed for v in verdicts.verdicts if v.check in {r.name for r in contract.tables[0].rules}
    } == {
        "in_table": False,
        "in_run": True,
        "with_day": True,
        "rows": True,
    }
    assert sorted((row["day"], row["id"]) for row in of(verdicts, "in_table").samples) == [
        (DAY, 8), (DAY, 9), (NEXT_DAY, 8), (NEXT_DAY, 9),
    ]  # fmt: skip


def test_the_table_after_a_correction_is_without_the_rows_it_replaces(lake):
    contract = a_set(flights(a_rule("in_table", UNIQUE, column="id", scope="table")))
    publish_rows(lake, contract, flights=flight_rows(10))

    verdicts = audit(lake, contract, stage_rows(lake, contract, flights=flight_rows(10)))

    assert of(verdicts, "in_table").passed
    assert of(verdicts, "in_table").observed["rows"] == 10


def test_samples_of_a_rule_on_personal_data_hold_none_of_it(lake):
    contract = a_set(
        flights(
            a_rule("named", "expect_column_values_to_match_regex", column="passenger", regex="^Captain"),
            a_rule("first", "expect_column_values_to_be_in_set", column="passenger", value_set=["Captain"]),
            a_rule("number", BETWEEN, column="passenger", min_value=1),
        )
    )

    verdicts = audit(lake, contract, stage_rows(lake, contract, flights=flight_rows(30)))

    assert not verdicts.green
    assert {row["passenger"] for row in of(verdicts, "named").samples} == {"***"}
    assert "Passenger" not in str(verdicts.as_record())


def test_the_same_rule_under_two_names_is_judged_twice(lake):
    contract = a_set(
        flights(
            a_rule("known", NOT_NULL, column="carrier"),
            a_rule("known_too", NOT_NULL, column="carrier", severity="warning"),
        )
    )

    verdicts = audit(
        lake, contract, stage_rows(lake, contract, flights=flight_rows(6, carrier="if(id > 0, 'UA', NULL)"))
    )

    assert [(v.check, v.severity, v.observed["failed_rows"]) for v in verdicts.failed] == [
        ("known", "error", 1),
        ("known_too", "warning", 1),
    ]


def test_mostly_lets_a_share_of_rows_fail(lake):
    contract = a_set(
        flights(
            a_rule("loose", BETWEEN, column="delay", max_value=53, mostly=0.9),
            a_rule("tight", BETWEEN, column="delay", max_value=53, mostly=0.95),
        )
    )

    verdicts = audit(lake, contract, stage_rows(lake, contract, flights=flight_rows(60)))

    assert (of(verdicts, "loose").passed, of(verdicts, "loose").observed["failed_rows"]) == (True, 6)
    assert not of(verdicts, "tight").passed


def test_a_column_of_nulls_only_fails_the_rule_that_forbids_them(lake):
    contract = a_set(flights(a_rule("known", NOT_NULL, column="carrier")))

    verdicts = audit(
        lake, contract, stage_rows(lake, contract, flights=flight_rows(6, carrier="cast(null AS string)"))
    )

    assert of(verdicts, "known").observed["failed_rows"] == 6


def test_every_expectation_a_contract_may_use_can_be_judged_on_spark(lake):
    rules = [
        a_rule(f"rule_{at}", expectation, **arguments)
        for at, (expectation, arguments) in enumerate(GOOD.items())
    ]
    contract = a_set(carriers(*rules), partitioning="none")
    staged = stage_rows(lake, contract, partitions=["all"], carriers=carrier_rows("UA", "AA", "DL"))

    verdicts = audit(lake, contract, staged)

    assert [(GOOD_NAMES[v.check], v.reason) for v in verdicts.failed] == []


GOOD = {
    "expect_column_values_to_not_be_null": {"column": "code"},
    "expect_column_values_to_be_unique": {"column": "code"},
    "expect_column_values_to_be_in_set": {"column": "code", "value_set": ["UA", "AA", "DL"]},
    "expect_column_values_to_not_be_in_set": {"column": "code", "value_set": ["XX"]},
    "expect_column_value_lengths_to_be_between": {"column": "code", "min_value": 1, "max_value": 2},
    "expect_column_value_lengths_to_equal": {"column": "code", "value": 2},
    "expect_column_values_to_match_regex": {"column": "code", "regex": "^[A-Z]+$"},
    "expect_column_values_to_not_match_regex": {"column": "code", "regex": "[0-9]"},
    "expect_column_values_to_match_regex_list": {
        "column": "code",
        "regex_list": ["^U", "A$", "^D"],
        "match_on": "any",
    },
    "expect_column_unique_value_count_to_be_between": {"column": "code", "min_value": 3, "max_value": 3},
    "expect_column_proportion_of_unique_values_to_be_between": {"column": "code", "min_value": 1},
    "expect_column_proportion_of_non_null_values_to_be_between": {"column": "name", "min_value": 1},
    "expect_column_distinct_values_to_be_in_set": {"column": "code", "value_set": ["UA", "AA", "DL", "B6"]},
    "expect_column_distinct_values_to_contain_set": {"column": "code", "value_set": ["UA"]},
    "expect_column_distinct_values_to_equal_set": {"column": "code", "value_set": ["UA", "AA", "DL"]},
    "expect_column_most_common_value_to_be_in_set": {
        "column": "code",
        "value_set": ["UA"],
        "ties_okay": True,
    },
    "expect_compound_columns_to_be_unique": {"column_list": ["code", "name"]},
    "expect_table_row_count_to_be_between": {"min_value": 1, "max_value": 3},
    "expect_table_row_count_to_equal": {"value": 3},
    "expect_table_column_count_to_equal": {"value": 2},
    "expect_table_columns_to_match_set": {"column_set": ["code", "name"], "exact_match": True},
}
GOOD_NAMES = {f"rule_{at}": name for at, name in enumerate(GOOD)}
