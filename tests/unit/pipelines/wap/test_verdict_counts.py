"""Counts: empty days, strayed rows, too many rejected rows, a row count that moves too far."""

import pytest

from lakeshare_pipelines.contracts.model import Drift
from lakeshare_pipelines.wap.checks import (
    check_drift,
    check_not_empty,
    check_rows_parsed,
    check_within_partitions,
    compute_usual_rows,
)
from lakeshare_pipelines.wap.staged import StagedTable
from tests.builders.audits import flights

DAYS = ("2013-01-01", "2013-01-02")


@pytest.mark.parametrize(
    ("allowed", "rows", "rejected", "passed"),
    [(0.0, 10, 0, True), (0.0, 10, 1, False), (0.1, 9, 1, True), (0.1, 8, 2, False), (0.0, 0, 0, True)],
)
def test_rejected_rows_count_against_the_limit(allowed, rows, rejected, passed):
    finding = check_rows_parsed(
        flights(max_quarantined_fraction=allowed), StagedTable("flights", rows, rejected)
    )

    assert finding.passed is passed
    assert finding.observed["delivered_rows"] == rows + rejected


def test_each_day_of_a_run_must_have_rows():
    assert check_not_empty({DAYS[0]: 3, DAYS[1]: 1}, DAYS).passed
    finding = check_not_empty({DAYS[0]: 3}, DAYS)
    assert (finding.passed, finding.observed["reason"]) == (False, "no rows for partition 2013-01-02")


@pytest.mark.parametrize(
    ("rows", "written", "strayed"),
    [
        ({DAYS[0]: 3}, 3, 0),
        ({DAYS[0]: 3, "2012-12-31": 2}, 5, 2),
        ({DAYS[0]: 3}, 5, 2),
        ({DAYS[0]: 3, "None": 1}, 4, 1),
    ],
    ids=["all inside", "seen outside", "out of sight", "without a day"],
)
def test_rows_of_other_days_are_found(rows, written, strayed):
    finding = check_within_partitions(rows, DAYS[:1], written)

    assert finding.passed is (strayed == 0)
    assert finding.observed["rows_outside"] == strayed


@pytest.mark.parametrize(
    ("rows", "passed"), [(100, True), (50, True), (49, False), (150, True), (151, False), (0, False)]
)
def test_a_count_may_move_as_far_as_the_limits(rows, passed):
    limits = Drift(max_shrink_fraction=0.5, max_growth_fraction=0.5)

    assert check_drift(limits, {"table": rows}, {"table": 100}).passed is passed


def test_a_missing_limit_lets_it_move_any_far():
    assert check_drift(Drift(max_shrink_fraction=0.5), {"table": 10_000}, {"table": 100}).passed
    assert check_drift(Drift(max_growth_fraction=0.5), {"table": 1}, {"table": 100}).passed


@pytest.mark.parametrize("usual", [None, 0])
def test_a_first_publication_has_nothing_to_drift_from(usual):
    assert check_drift(Drift(0.1, 0.1), {"table": 100}, {"table": usual}).passed


def test_each_day_is_compared_with_the_seven_published_before_it():
    counts = {f"2013-01-{day:02}": day * 100 for day in range(1, 15)} | {"2013-01-20": 5}

    assert compute_usual_rows(counts, ["2013-01-10", "2013-01-20"]) == {
        "2013-01-10": (300 + 400 + 500 + 600 + 700 + 800 + 900) / 7,
        "2013-01-20": (700 + 800 + 900 + 1100 + 1200 + 1300 + 1400) / 7,
    }


def test_a_day_before_all_others_is_compared_with_the_first_of_them():
    assert compute_usual_rows({"2013-01-01": 9, "2013-01-05": 100}, ["2013-01-01"]) == {"2013-01-01": 100}
    regions = {"2013-01-01/eu": 100, "2013-01-01/us": 2, "2013-01-02/eu": 99, "2013-01-02/us": 3}
    assert compute_usual_rows(regions, ["2013-01-02/us"]) == {"2013-01-02/us": 2}


def test_many_days_are_named_in_part():
    finding = check_drift(Drift(0.1), {str(at): 1 for at in range(50)}, {str(at): 100 for at in range(50)})

    assert finding.observed["reason"].count("where 100 are usual") == 20
    assert finding.observed["reason"].endswith("…")
