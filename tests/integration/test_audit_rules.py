"""Rules: each is judged by itself, on the rows it is about, and one that cannot be judged has failed."""

import pytest

from lakeshare_pipelines.contracts import Column
from lakeshare_pipelines.contracts.rules import Assertion
from lakeshare_pipelines.wap import checks
from lakeshare_pipelines.wap.audit import audit
from tests.builders.audits import (
    BETWEEN,
    DAY,
    FLIGHT_COLUMNS,
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

OWN = "tests.builders.own_expectations"


def test_each_rule_is_judged_by_itself_on_the_rows_it_is_about(lake):
    """Good rules, bad ones and ones that cannot be judged, on one staged set: none changes the verdict of another."""
    contract = a_set(
        flights(
            a_rule("known", NOT_NULL, column="id"),
            a_rule("no_such_column", NOT_NULL, column="carier"),
            a_rule("number_of_text", BETWEEN, column="carrier", min_value=1, max_value=2),
            a_rule("bad_regex", "expect_column_values_to_match_regex", column="carrier", regex="["),
            a_rule("bad_argument", BETWEEN, column="delay", min_value="soon"),
            a_rule("negative", BETWEEN, column="delay", max_value=-1),
            a_rule("loose", BETWEEN, column="delay", max_value=53, mostly=0.9),
            a_rule("tight", BETWEEN, column="delay", max_value=53, mostly=0.95),
            a_rule("carrier_known", NOT_NULL, column="carrier"),
            a_rule("carrier_known_too", NOT_NULL, column="carrier", severity="warning"),
            a_rule("only_nulls", NOT_NULL, column="gate"),
            a_rule("named", "expect_column_values_to_match_regex", column="passenger", regex="^Captain"),
            a_rule("first", "expect_column_values_to_be_in_set", column="passenger", value_set=["Captain"]),
            a_rule("number", BETWEEN, column="passenger", min_value=1),
            a_rule("own", f"{OWN}:ExpectMultiples", column="id", factor=2),
            a_rule("own_that_holds", f"{OWN}:ExpectMultiples", column="id", factor=1),
            a_rule("own_that_is_gone", f"{OWN}:ExpectMultiple", column="id", factor=1),
            columns=(*FLIGHT_COLUMNS, Column("gate", "string")),
        )
    )
    rows = flight_rows(60, carrier="if(id > 0, 'UA', NULL)", gate="cast(null AS string)")

    verdicts = audit(lake, contract, stage_rows(lake, contract, flights=rows))

    assert not verdicts.green
    assert of(verdicts, "known").passed
    assert of(verdicts, "negative").observed["failed_rows"] == 60
    assert of(verdicts, "no_such_column").reason == "not evaluated because column carier is missing"
    for check in ("number_of_text", "bad_regex", "bad_argument"):
        assert of(verdicts, check).reason.startswith("not evaluated because "), check
        assert of(verdicts, check).blocks
    # `mostly` lets a share of the rows fail.
    assert (of(verdicts, "loose").passed, of(verdicts, "loose").observed["failed_rows"]) == (True, 6)
    assert not of(verdicts, "tight").passed
    # The same rule under two names is judged twice.
    twice = [of(verdicts, check) for check in ("carrier_known", "carrier_known_too")]
    assert [(v.severity, v.observed["failed_rows"]) for v in twice] == [("error", 1), ("warning", 1)]
    assert of(verdicts, "own").observed["failed_rows"] == 30
    assert {row["id"] % 2 for row in of(verdicts, "own").samples} == {1}
    assert of(verdicts, "own_that_holds").passed
    assert (
        "AttributeError: module 'tests.builders.own_expectations'" in of(verdicts, "own_that_is_gone").reason
    )
    assert of(verdicts, "only_nulls").observed["failed_rows"] == 60
    # Samples have no personal data.
    assert {row["passenger"] for row in of(verdicts, "named").samples} == {"***"}
    assert "Passenger" not in str(verdicts.as_record())


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_rule_about_the_table_sees_the_days_before_and_one_about_the_run_does_not(
    lake, table_format, monkeypatch
):
    """The rows of both, which are few, are held in memory until the audit has ended."""
    evaluate, held = checks.evaluate_rules, []

    def noted(frame, rules):
        held.append((frame, frame.storageLevel.useMemory))
        return evaluate(frame, rules)

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
    monkeypatch.setattr(checks, "evaluate_rules", noted)

    verdicts = audit(lake, contract, staged)

    assert {
        v.check: v.passed for v in verdicts.verdicts if v.check in {r.name for r in contract.tables[0].rules}
    } == {"in_table": False, "in_run": True, "with_day": True, "rows": True}
    assert [in_memory for _, in_memory in held] == [True, True]
    assert not any(frame.storageLevel.useMemory for frame, _ in held)
    assert sorted((row["day"], row["id"]) for row in of(verdicts, "in_table").samples) == [
        (DAY, 8), (DAY, 9), (NEXT_DAY, 8), (NEXT_DAY, 9),
    ]  # fmt: skip


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_the_table_after_a_correction_is_without_the_rows_it_replaces(lake, table_format):
    contract = a_set(flights(a_rule("in_table", UNIQUE, column="id", scope="table"), format=table_format))
    publish_rows(lake, contract, flights=flight_rows(10))

    verdicts = audit(lake, contract, stage_rows(lake, contract, flights=flight_rows(10)))

    assert of(verdicts, "in_table").passed
    assert of(verdicts, "in_table").observed["rows"] == 10


def an_assertion(name, query, reads, bound=None, **more):
    return Assertion(name, "flights", query, reads, bound, **more)


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_rules_in_sql_read_the_tables_of_the_set_as_they_will_be(lake, table_format):
    """Over several tables, days of main included; rows that break a rule are shown with personal data masked."""
    late = "SELECT id, passenger, delay FROM {flights} WHERE delay > 30"
    unknown = "SELECT f.carrier FROM {flights} f LEFT ANTI JOIN {carriers} c ON f.carrier = c.code"
    count, days = "SELECT count(*) FROM {flights}", "SELECT count(DISTINCT day) / 2 FROM {flights}"
    contract = a_set(
        carriers(format=table_format),
        flights(
            format=table_format,
            assertions=(
                an_assertion("late", late, ("flights",)),
                an_assertion("unknown_carrier", unknown, ("flights", "carriers"), severity="warning"),
                an_assertion(
                    "known_carrier",
                    unknown.replace("ANTI", "SEMI") + " WHERE id < 0",
                    ("flights", "carriers"),
                ),
                an_assertion("rows", count, ("flights",), ("mustBeBetween", (60, 90))),
                an_assertion("few", count, ("flights",), ("mustBeLessThan", (60.0,))),
                an_assertion("whole_days", days, ("flights",), ("mustBe", (1,))),
                an_assertion("two", "SELECT id FROM {flights}", ("flights",), ("mustBe", (1,))),
                an_assertion(
                    "no_number", "SELECT max(carrier) FROM {flights}", ("flights",), ("mustBe", (1,))
                ),
                an_assertion("no_column", "SELECT nothing FROM {flights}", ("flights",)),
            ),
        ),
    )
    publish_rows(lake, contract, carriers=carrier_rows("AA"), flights=flight_rows(30))
    staged = stage_rows(
        lake, contract, carriers=carrier_rows("AA"), flights=flight_rows(40, NEXT_DAY), partitions=[NEXT_DAY]
    )

    verdicts = audit(lake, contract, staged)

    late = of(verdicts, "late")
    assert (late.passed, late.blocks, late.observed["failed_rows"]) == (False, True, 9)
    assert {row["passenger"] for row in late.samples} == {"***"}
    assert all(row["delay"] > 30 for row in late.samples)
    assert (of(verdicts, "unknown_carrier").passed, of(verdicts, "unknown_carrier").blocks) == (False, False)
    assert of(verdicts, "known_carrier").passed
    assert (of(verdicts, "rows").passed, of(verdicts, "rows").observed["found"]) == (True, 70)
    assert of(verdicts, "few").reason == "the query returned 70, not a number that must be less than 60"
    assert of(verdicts, "whole_days").passed
    for check in ("two", "no_number", "no_column"):
        assert of(verdicts, check).reason.startswith("not evaluated because "), check
        assert of(verdicts, check).blocks


def test_every_expectation_a_contract_may_use_can_be_judged_on_spark(lake):
    rules = [
        a_rule(f"rule_{at}", expectation, **arguments)
        for at, (expectation, arguments) in enumerate(GOOD.items())
    ]
    contract = a_set(carriers(*rules), partitioning="none")
    staged = stage_rows(lake, contract, partitions=["all"], carriers=carrier_rows("UA", "AA", "DL"))
    lake.spark.sparkContext.setJobDescription(contract.name)

    verdicts = audit(lake, contract, staged)

    assert [(GOOD_NAMES[v.check], v.reason) for v in verdicts.failed] == []
    # Great Expectations would also run a query per rule for no sample values, which needs no job.
    lake.spark.sparkContext.setJobDescription(None)
    jobs = jobs_of_queries(lake, contract.name)
    assert jobs
    assert 0 not in jobs


def jobs_of_queries(lake, description: str) -> list[int]:
    """How many jobs each of the queries had that Spark ran under a description."""
    lake.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    listed = lake.spark._jsparkSession.sharedState().statusStore().executionsList()
    queries = [listed.apply(at) for at in range(listed.size())]
    return [query.jobs().size() for query in queries if query.description() == description]


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
