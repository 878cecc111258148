"""Samples show which rows failed and why, never personal data, and as text that no terminal interprets."""

import pytest

from lakeshare_pipelines.contracts import Column
from lakeshare_pipelines.wap.checks import (
    RuleOutcome,
    make_failed_finding,
    make_rejected_sample,
    make_rule_finding,
    mask_rows,
    select_sample_columns,
)
from lakeshare_pipelines.wap.stage import format_rejected_rows, format_verdicts
from lakeshare_pipelines.wap.staged import Finding, Verdict, Verdicts
from tests.builders.audits import BETWEEN, a_rule, carriers, flights

ROW = {
    "day": "2013-01-01",
    "id": 7,
    "carrier": None,
    "delay": 3.0,
    "passenger": "Ada Lovelace",
    "note": "Ada",
}


def test_a_sample_shows_the_key_the_partition_and_what_was_judged():
    assert select_sample_columns(flights(), ["carrier"]) == ["day", "id", "carrier"]


def test_personal_and_unknown_columns_are_masked_and_nulls_stay_nulls():
    shown = mask_rows(flights(), [ROW, {**ROW, "passenger": None}], list(ROW))

    assert shown[0] == {**ROW, "passenger": "***", "note": "***"}
    assert shown[1]["passenger"] is None


def test_a_personal_key_is_masked_too():
    columns = (Column("mail", "string", primary_key=True, pii=True), Column("code", "string"))

    assert mask_rows(carriers(columns=columns), [{"mail": "a@b.c", "code": "x"}], ["mail", "code"]) == (
        {"mail": "***", "code": "x"},
    )


def test_there_are_at_most_twenty():
    assert len(mask_rows(flights(), (ROW for _ in range(100)), ["id"])) == 20


def test_a_found_value_of_a_personal_column_is_masked_but_not_a_count():
    least = a_rule("r", "expect_column_min_to_be_between", column="passenger", min_value="B")
    share = a_rule(
        "r", "expect_column_proportion_of_non_null_values_to_be_between", column="passenger", min_value=0.9
    )

    assert make_rule_finding(flights(), least, RuleOutcome(False, found="Ada")).observed["found"] == "***"
    assert "Ada" not in str(make_rule_finding(flights(), least, RuleOutcome(False, found="Ada")))
    assert make_rule_finding(flights(), share, RuleOutcome(False, found=0.5)).observed["found"] == 0.5


def test_a_failed_rule_says_how_many_rows_and_what_was_expected():
    rule = a_rule("r", BETWEEN, column="delay", min_value=0)

    finding = make_rule_finding(flights(), rule, RuleOutcome(False, rows=8, failed_rows=2, samples=(ROW,)))

    assert finding.observed["reason"] == "2 of 8 rows failed (25.00%)"
    assert finding.observed["expected"] == {"column": "delay", "min_value": 0}
    assert finding.samples == ({"day": "2013-01-01", "id": 7, "delay": 3.0},)


def test_an_error_message_does_not_quote_personal_data():
    message = (
        "[CAST_INVALID_INPUT] The value 'Ada Lovelace' of the type STRING cannot be cast. SQLSTATE: 22018"
    )

    assert "Ada" not in str(make_failed_finding(flights(), message))
    assert "CAST_INVALID_INPUT" in str(make_failed_finding(flights(), message))
    assert "Ada" in str(make_failed_finding(carriers(), message))


REJECTED = {"file": "a.csv", "line": 3, "reason": "delay: 'Ada's' is not double", "raw": "1,Ada"}
MASKED = {"file": "a.csv", "line": 3, "reason": "delay: '***' is not double"}


@pytest.mark.parametrize("table", [flights(), carriers()], ids=["personal", "not personal"])
def test_a_rejected_row_shows_no_values(table):
    assert make_rejected_sample(table, REJECTED, shows_values=False) == MASKED


def test_a_setting_shows_the_values_of_rejected_rows_but_none_of_tables_with_personal_data():
    assert make_rejected_sample(carriers(), REJECTED, shows_values=True) == REJECTED
    assert make_rejected_sample(flights(), REJECTED, shows_values=True) == MASKED


def test_the_day_of_a_stray_row_is_a_value_too():
    stray = {**REJECTED, "reason": "born is '1988-02-29', the delivery is of 2024-01-01"}
    shown = make_rejected_sample(carriers(), stray, shows_values=False)
    assert shown["reason"] == "born is '***', the delivery is of 2024-01-01"


def test_a_terminal_interprets_nothing_that_a_sender_wrote():
    row = {
        "table": "s.t",
        "file": "all/t.csv",
        "line": 2,
        "reason": "id: 'a\x1b[2J' is not int",
        "raw": "a\x1b[2J\n",
    }
    assert list(format_rejected_rows([row])) == [
        r"s.t  all/t.csv:2  id: 'a\x1b[2J' is not int",
        r"    a\x1b[2J\x0a",
    ]
    found = Finding.of(
        {}, "column 'b\x1b]0;t\x07' is not in the contract", ({"id": "1\r\x9b2K", "name": "é\u202e"},)
    )
    verdict = Verdict("s.t", "structure", "error", found.passed, "", found.observed, found.samples)
    assert format_verdicts(Verdicts("ref", "head", (verdict,), "digest")) == [
        r"  FAIL  s.t: structure: column 'b\x1b]0;t\x07' is not in the contract",
        r"          id=1\x0d\x9b2K  name=é\x202e",
    ]
