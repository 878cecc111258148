"""Checks are known before a run, without Spark, under names that Dagster takes."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.contracts.model import Drift, Promise
from lakeshare_pipelines.contracts.partitioning import Partitioning
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.wap.checks import list_checks, needs_whole_table
from tests.builders.audits import (
    NOT_NULL,
    UNIQUE,
    UNIQUE_TOGETHER,
    a_reference,
    a_rule,
    a_set,
    carriers,
    flights,
)


def names(contract):
    return [(spec.table.rsplit(".")[-1], spec.name, spec.severity) for spec in list_checks(contract)]


def test_every_rule_and_reference_is_a_check_beside_ours():
    contract = a_set(
        carriers(source=None, derive="SELECT 1"),
        flights(
            a_rule("carrier_known", NOT_NULL, column="carrier"),
            a_rule("delay_known", NOT_NULL, column="delay", severity="warning"),
            references=(a_reference("carrier", to="carriers.code", severity="warning"),),
            drift=Drift(max_shrink_fraction=0.5, severity="error"),
            serveable_to=Promise(("spark",), severity="warning"),
        ),
    )

    assert names(contract) == [
        ("carriers", "structure", "error"),
        ("carriers", "not_empty", "error"),
        ("carriers", "serveable", "error"),
        ("flights", "structure", "error"),
        ("flights", "rows_parsed", "error"),
        ("flights", "not_empty", "error"),
        ("flights", "within_partitions", "error"),
        ("flights", "carrier_known", "error"),
        ("flights", "delay_known", "warning"),
        ("flights", "references__carriers__carrier", "warning"),
        ("flights", "drift", "error"),
        ("flights", "serveable", "warning"),
    ]


def test_a_table_that_may_be_empty_has_no_check_of_it():
    assert "not_empty" not in [name for _, name, _ in names(a_set(flights(allow_empty=True)))]


def test_a_set_without_partitions_has_no_check_of_them():
    assert "within_partitions" not in [name for _, name, _ in names(a_set(flights(), partitioning="none"))]


def test_a_rule_cannot_take_the_name_of_another_check():
    contract = a_set(flights(a_rule("structure", NOT_NULL, column="carrier")))

    with pytest.raises(ContractError, match="two checks are named structure"):
        list_checks(contract)


def test_the_sets_that_ship_have_checks_with_names_and_words():
    specs = [spec for contract in load_contracts() for spec in list_checks(contract)]

    assert specs
    assert [spec.name for spec in specs if not re.fullmatch(r"[A-Za-z0-9_]+", spec.name)] == []
    assert [spec.name for spec in specs if not spec.description.endswith((".", "!"))] == []


def test_knowing_the_checks_needs_neither_spark_nor_great_expectations():
    script = (
        "import sys, lakeshare_pipelines.wap.checks, lakeshare_pipelines.wap.audit\n"
        "print([name for name in ('pyspark', 'great_expectations', 'pandas') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("rule", "whole"),
    [
        (a_rule("r", NOT_NULL, column="carrier"), False),
        (a_rule("r", UNIQUE, column="id", scope="table"), True),
        (a_rule("r", UNIQUE_TOGETHER, column_list=["day", "id"], scope="table"), False),
        (a_rule("r", NOT_NULL, column="day", scope="table"), True),
    ],
    ids=["rows of the run", "a key", "a key with the day", "no uniqueness"],
)
def test_the_whole_table_is_read_only_for_rules_that_need_it(rule, whole):
    contract = a_set(flights(rule))
    table = contract.tables[0]

    assert needs_whole_table(contract, table, rule) is whole
    assert needs_whole_table(replace(contract, partitioning=Partitioning()), table, rule) is False
