"""An audit gives exactly the verdicts that were announced, on the sealed state and no other, in either format."""

from dataclasses import replace
from pathlib import Path

import pytest

from lakeshare_pipelines.contracts.model import Drift
from lakeshare_pipelines.errors import BranchMoved
from lakeshare_pipelines.wap.audit import audit
from lakeshare_pipelines.wap.checks import list_checks
from lakeshare_pipelines.wap.delta import table_location
from lakeshare_pipelines.wap.staged import Verdicts
from tests.builders.audits import (
    BETWEEN,
    NOT_NULL,
    UNIQUE,
    a_reference,
    a_rule,
    a_set,
    carrier_rows,
    carriers,
    flight_rows,
    flights,
    of,
    stage_rows,
)

RULES = (
    a_rule("carrier_known", NOT_NULL, column="carrier"),
    a_rule("id_unique", UNIQUE, column="id", scope="table"),
    a_rule("delay_sane", BETWEEN, column="delay", min_value=-60, max_value=3000, mostly=0.99),
    a_rule(
        "delay_usual", "expect_column_mean_to_be_between", column="delay", max_value=20, severity="warning"
    ),
)


@pytest.fixture(params=["iceberg", "delta"])
def contract(request):
    table_format = request.param
    return a_set(
        carriers(a_rule("code_unique", UNIQUE, column="code", scope="table"), format=table_format),
        flights(
            *RULES,
            format=table_format,
            references=(a_reference("carrier", to="carriers.code"),),
            drift=Drift(0.5, 0.5),
        ),
    )


def announced(contract):
    return [(spec.table, spec.name, spec.severity, spec.description) for spec in list_checks(contract)]


def given(verdicts: Verdicts):
    return [(v.table, v.check, v.severity, v.description) for v in verdicts.verdicts]


def test_good_rows_are_green_despite_a_warning_and_a_state_other_than_the_staged_one_is_not_judged(
    lake, contract, monkeypatch
):
    """Rows that are too many to be held in memory get the same verdicts."""
    staged = stage_rows(lake, contract, flights=flight_rows(600), carriers=carrier_rows("UA", "AA"))

    verdicts = audit(lake, contract, staged)

    assert given(verdicts) == announced(contract)
    assert verdicts.green
    assert [verdict.check for verdict in verdicts.failed] == ["delay_usual"]
    assert (verdicts.staged_ref, verdicts.head) == (staged.ref, staged.head)
    assert verdicts.contract_digest == contract.digest
    assert of(verdicts, "carrier_known").observed["rows"] == 600
    assert Verdicts.from_record(verdicts.as_record()) == verdicts
    with pytest.raises(BranchMoved):
        audit(lake, contract, replace(staged, head="0" * 64))
    monkeypatch.setattr("lakeshare_pipelines.wap.audit.MAX_HELD_VALUES", 0)
    assert audit(lake, contract, staged) == verdicts


@pytest.mark.parametrize("contract", ["iceberg"], indirect=True)
def test_bad_rows_are_red_with_counts_and_samples(lake, contract):
    """What is counted and shown does not depend on the format; test_audit_rules.py has red rows of Delta."""
    staged = stage_rows(
        lake,
        contract,
        flights=flight_rows(600, carrier="if(id < 30, NULL, 'XX')", id="id % 599"),
        carriers=carrier_rows("UA", "AA"),
    )

    verdicts = audit(lake, contract, staged)

    assert given(verdicts) == announced(contract)
    assert not verdicts.green
    assert {v.check for v in verdicts.failed if v.blocks} == {
        "carrier_known",
        "id_unique",
        "references__carriers__carrier",
    }
    missing = of(verdicts, "carrier_known")
    assert (missing.observed["failed_rows"], missing.observed["failed_fraction"]) == (30, 0.05)
    assert len(missing.samples) == 20
    assert set(missing.samples[0]) == {"day", "id", "carrier"}
    assert sorted(row["id"] for row in of(verdicts, "id_unique").samples) == [0, 0]
    orphans = of(verdicts, "references__carriers__carrier")
    assert orphans.observed["failed_rows"] == 570
    assert {row["carrier"] for row in orphans.samples} == {"XX"}


def test_a_table_that_cannot_be_read_fails_all_its_checks_and_no_other(lake):
    contract = a_set(carriers(format="delta"), flights(*RULES, format="delta"))
    staged = stage_rows(lake, contract, flights=flight_rows(6), carriers=carrier_rows("UA", "AA"))
    folder = f"{table_location(lake.settings, contract.table('flights'))}/_staged/{staged.ref}"
    for file in Path(folder).rglob("*.parquet"):
        file.unlink()

    verdicts = audit(lake, contract, staged)

    assert given(verdicts) == announced(contract)
    untouched = contract.table("carriers").name
    assert all(verdict.passed for verdict in verdicts.verdicts if verdict.table == untouched)
    unanswered = {v.check for v in verdicts.failed if v.reason.startswith("not evaluated because")}
    assert unanswered == {check for table, check, *_ in announced(contract) if table != untouched}
