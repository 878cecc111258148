"""Verdicts: what is green, and records that come back as they went, whatever Spark put into them."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from lakeshare_pipelines.wap.staged import Severity, Verdict, Verdicts, format_percentage


def a_verdict(
    check: str = "structure", passed: bool = True, severity: Severity = "error", **more: Any
) -> Verdict:
    return Verdict("air.flights", check, severity, passed, "What it says.", **more)


def verdicts(*given: Verdict, head: str = "abc") -> Verdicts:
    return Verdicts("wap-air-1", head, given, "c0ffee")


FAILED = a_verdict("required", passed=False)
WARNED = a_verdict("mean", passed=False, severity="warning")


@pytest.mark.parametrize(
    ("given", "green"),
    [
        ([a_verdict()], True),
        ([a_verdict(), WARNED], True),
        ([a_verdict(), FAILED], False),
        ([FAILED, WARNED], False),
        ([], False),
    ],
    ids=["all passed", "a warning", "an error", "both", "nothing was judged"],
)
def test_green_means_judged_and_no_error(given, green):
    assert verdicts(*given).green is green


def test_failed_verdicts_come_with_the_blocking_ones_first():
    assert verdicts(WARNED, a_verdict(), FAILED).failed == (FAILED, WARNED)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (date(2013, 1, 1), "2013-01-01"),
        (datetime(2013, 1, 1, 5, tzinfo=UTC), "2013-01-01T05:00:00+00:00"),
        (Decimal("1.50"), "1.50"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (b"\x00\xff", "00ff"),
        (np.int64(7), 7),
        (np.float64("nan"), "nan"),
        (np.array([1, 2]), [1, 2]),
        ((1, (2, "x")), [1, [2, "x"]]),
        pytest.param({"b", "a"}, ["a", "b"], id="a set"),
        ({1: None}, {"1": None}),
        ("x" * 301, "x" * 299 + "…"),
        (True, True),
    ],
    ids=str,
)
def test_values_become_what_json_has(value, kept):
    verdict = a_verdict(observed={"found": value}, samples=({"column": value},))

    assert verdict.observed == {"found": kept}
    assert verdict.samples == ({"column": kept},)


def test_a_record_comes_back_as_it_went():
    before = verdicts(
        a_verdict(
            passed=False, observed={"day": date(2013, 1, 1)}, samples=({"a": float("nan")}, {"a": None})
        ),
        WARNED,
    )

    after = Verdicts.from_record(json.loads(json.dumps(before.as_record(), allow_nan=False)))

    assert after == before
    assert after.digest == before.digest


@pytest.mark.parametrize(
    "other",
    [
        verdicts(a_verdict(), head="abd"),
        verdicts(a_verdict(passed=False)),
        verdicts(a_verdict(observed={"rows": 1})),
        verdicts(a_verdict(), a_verdict("other")),
    ],
    ids=["another state", "another answer", "other counts", "another check"],
)
def test_the_digest_tells_records_apart(other):
    assert other.digest != verdicts(a_verdict()).digest


def test_evidence_of_a_thousand_failures_stays_small_and_says_how_many():
    many = verdicts(
        *(a_verdict(f"expect_column_values_to_not_be_null__{at}", passed=False) for at in range(1000))
    )

    evidence = many.as_evidence()

    assert len(json.dumps(evidence)) < 2000
    assert (evidence["checks"], evidence["failed"], evidence["blocking"]) == (1000, 1000, 1000)
    assert evidence["failed_checks"][0] == "air.flights: expect_column_values_to_not_be_null__0"
    assert evidence["failed_checks"][-1] == "…"
    assert evidence["digest"] == many.digest


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(1, 8, "12.50%"), (1, 30_000, "less than 0.01%"), (0, 5, "0.00%"), (0, 0, "none")],
)
def test_a_share_is_never_rounded_to_nothing(part, whole, text):
    assert format_percentage(part, whole) == text


def test_a_failed_verdict_gives_its_reason_and_a_passed_one_none():
    assert a_verdict(passed=False, observed={"reason": "3 of 4 rows failed"}).reason == "3 of 4 rows failed"
    assert a_verdict(passed=False).reason == "What it says."
    assert a_verdict(observed={"reason": "none"}).reason == ""
