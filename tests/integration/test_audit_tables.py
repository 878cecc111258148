"""What every table is held to: its columns, its days, its references, its row count, its rejected rows."""

import pytest

from lakeshare_pipelines.contracts import Column
from lakeshare_pipelines.contracts.model import Drift
from lakeshare_pipelines.wap.audit import audit
from lakeshare_pipelines.wap.checks import list_checks
from lakeshare_pipelines.wap.stage import staging_for
from tests.builders.audits import (
    DAY,
    FLIGHT_COLUMNS,
    NEXT_DAY,
    NOT_NULL,
    a_reference,
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


@pytest.mark.parametrize("kind", ["string", "date", "double"])
def test_staged_rows_are_read_as_delta_reads_them_whatever_their_partition(lake, kind):
    """Without Delta's log, but for types that it writes otherwise than folders are named."""
    columns = (Column("part", kind), Column("id", "int"), Column("seen", "timestamp"))
    parts = {
        "string": ("'a b'", "'ä%2F'", "'{x}[1]*?'", "'a=b/c:d'", "'\\\\'", "'__'", "'01'", "null"),
        "date": ("date'2024-02-29'", "date'0001-01-01'", "null"),
        "double": ("1.0d", "double('NaN')", "-1e300d", "null"),
    }[kind]
    rows = ", ".join(f"({part}, {at}, now())" for at, part in enumerate(parts))
    table = carriers(columns=columns, partition_by=(("part", "identity"),), format="delta")
    contract = a_set(table, partitioning="none")
    staged = stage_rows(lake, contract, carriers=f"SELECT col1 part, col2 id, col3 seen FROM VALUES {rows}")

    staging = staging_for(lake, contract)
    found = staging.rows_of_run(staged, contract.tables[0])

    location = staging.staged_location(contract.tables[0].name, staged.ref)
    expected = lake.spark.read.format("delta").load(location)
    assert found.schema == expected.schema
    read = sorted(map(repr, found.collect()))
    assert read == sorted(map(repr, expected.collect()))
    assert len(read) == len(parts)
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert ("InMemoryFileIndex" in plan) == (kind != "double"), plan


def test_a_missing_column_and_one_of_another_type_fail_the_structure_and_what_they_are_needed_for(lake):
    """What reading found wrong is a problem too. Iceberg refuses such rows; reading writes neither."""
    contract = a_set(
        carriers(format="delta"),
        flights(
            a_rule("carrier_known", NOT_NULL, column="carrier"),
            a_rule("delay_known", NOT_NULL, column="delay"),
            references=(a_reference("carrier", to="carriers.code"),),
            format="delta",
        ),
    )
    staged = stage_rows(
        lake,
        contract,
        flights=flight_rows(6, carrier="", delay="'late'"),
        carriers=carrier_rows("UA"),
        problems=["column 'delay' is given twice in a.csv"],
    )

    verdicts = audit(lake, contract, staged)

    assert [v.check for v in verdicts.verdicts] == [spec.name for spec in list_checks(contract)]
    structure = of(verdicts, "structure")
    problems = [
        "column 'delay' is given twice in a.csv",
        "column carrier is missing",
        "column delay is string, the contract says double",
    ]
    assert structure.observed["problems"] == problems
    assert structure.reason == "; ".join(problems)
    assert not verdicts.green
    missing = "not evaluated because column carrier is missing"
    assert of(verdicts, "carrier_known").reason == missing
    assert of(verdicts, "references__carriers__carrier").reason == missing
    assert of(verdicts, "delay_known").passed


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_column_more_than_on_main_is_fine_and_one_less_is_not(lake, table_format):
    fewer, more = FLIGHT_COLUMNS, (*FLIGHT_COLUMNS, Column("gate", "string"))
    before = a_set(flights(columns=fewer, format=table_format))
    publish_rows(lake, before, flights=flight_rows(6))
    after = a_set(flights(columns=more, format=table_format), name=before.name)

    added = audit(lake, after, stage_rows(lake, after, run_id="run1", flights=flight_rows(6, gate="'B1'")))

    assert of(added, "structure").passed, of(added, "structure").reason

    publish_rows(lake, after, run_id="run2", flights=flight_rows(6, gate="'B1'"))
    dropping = a_set(flights(columns=fewer, format=table_format), name=before.name)
    rows = flight_rows(6, gate="cast(null AS string)") if table_format == "iceberg" else flight_rows(6)
    dropped = audit(lake, dropping, stage_rows(lake, dropping, run_id="run3", flights=rows))

    assert "column gate is on main and would be dropped" in of(dropped, "structure").reason


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_each_day_of_a_range_needs_rows_and_no_other_day_gets_any(lake, table_format):
    in_table = a_rule("in_table", "expect_table_row_count_to_equal", value=8, scope="table")
    contract = a_set(flights(in_table, format=table_format))
    rows = f"{flight_rows(6)} UNION ALL {flight_rows(2, '2013-03-03')}"

    verdicts = audit(lake, contract, stage_rows(lake, contract, partitions=[DAY, NEXT_DAY], flights=rows))

    assert of(verdicts, "not_empty").reason == f"no rows for partition {NEXT_DAY}"
    assert of(verdicts, "within_partitions").observed["rows_outside"] == 2
    # A rule about the table is judged on these rows, too, though main has none yet.
    assert of(verdicts, "in_table").passed
    assert not verdicts.green


def test_no_rows_at_all_are_red(lake):
    contract = a_set(carriers(), partitioning="none")

    verdicts = audit(
        lake,
        contract,
        stage_rows(lake, contract, partitions=["all"], carriers=carrier_rows("UA") + " WHERE false"),
    )

    assert of(verdicts, "not_empty", "carriers").blocks


@pytest.mark.parametrize(
    ("table_format", "days"), [("iceberg", {60: True, 40: False}), ("delta", {160: False})]
)
def test_a_day_that_moves_too_far_from_the_days_before_is_red(lake, table_format, days):
    contract = a_set(flights(format=table_format, drift=Drift(0.5, 0.5, "error")))
    first = stage_rows(lake, contract, flights=flight_rows(100))
    assert of(audit(lake, contract, first), "drift").passed
    staging_for(lake, contract).land(first, {})

    for rows, passed in days.items():
        staged = stage_rows(
            lake, contract, partitions=[NEXT_DAY], run_id=f"run{rows}", flights=flight_rows(rows, NEXT_DAY)
        )
        drift = of(audit(lake, contract, staged), "drift")

        assert drift.passed is passed, rows
        assert (drift.observed["rows"], drift.observed["usual_rows"]) == (rows, 100)


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_whole_table_is_compared_with_main(lake, table_format):
    contract = a_set(carriers(format=table_format, drift=Drift(max_shrink_fraction=0.4)), partitioning="none")
    publish_rows(lake, contract, partitions=["all"], carriers=carrier_rows("UA", "AA", "DL", "B6"))

    staged = stage_rows(lake, contract, partitions=["all"], carriers=carrier_rows("UA", "AA"))
    verdict = of(audit(lake, contract, staged), "drift", "carriers")

    assert (verdict.passed, verdict.severity) == (False, "warning")
    assert verdict.observed["usual_rows"] == 4


def test_references_are_judged_on_the_whole_table_and_nulls_refer_to_nothing(lake):
    contract = a_set(
        carriers(partition_by=()), flights(references=(a_reference("carrier", to="carriers.code"),))
    )
    publish_rows(lake, contract, flights=flight_rows(10), carriers=carrier_rows("UA", "AA"))

    staged = stage_rows(
        lake,
        contract,
        partitions=[NEXT_DAY],
        flights=flight_rows(4, NEXT_DAY, carrier="if(id = 0, NULL, 'UA')"),
        carriers=carrier_rows("UA"),
    )
    verdict = of(audit(lake, contract, staged), "references__carriers__carrier")

    assert verdict.observed["failed_rows"] == 5
    assert {(row["day"], row["carrier"]) for row in verdict.samples} == {(DAY, "AA")}
