"""Structure: the contract's columns and types, and nothing taken away from readers of main."""

import pytest

from lakeshare_pipelines.wap.checks import find_structure_problems
from tests.builders.audits import flights

DECLARED = {"id": "bigint", "carrier": "string"}
MAIN = {"id": "bigint", "carrier": "string", "delay": "double"}


@pytest.mark.parametrize(
    ("staged", "main", "problems"),
    [
        (DECLARED, None, []),
        (DECLARED, DECLARED, []),
        (DECLARED, {"id": "bigint"}, []),
        ({"id": "bigint"}, None, ["column carrier is missing"]),
        ({**DECLARED, "id": "int"}, None, ["column id is int, the contract says bigint"]),
        ({**DECLARED, "extra": "int"}, None, ["column extra is not in the contract"]),
    ],
    ids=["first", "same", "added", "missing", "another type", "unknown"],
)
def test_the_columns_are_the_contracts(staged, main, problems):
    assert find_structure_problems(flights(), staged, DECLARED, main) == problems


@pytest.mark.parametrize("staged", [DECLARED, MAIN], ids=["gone", "still in the table"])
def test_a_column_that_the_contract_drops_is_refused(staged):
    problems = find_structure_problems(flights(), staged, DECLARED, MAIN)

    assert problems[0] == "column delay is on main and would be dropped"
    assert "allow it in the contract" in problems[-1]


@pytest.mark.parametrize(("table_format", "before"), [("iceberg", "string"), ("delta", "int")])
def test_a_type_that_changes_is_refused(table_format, before):
    table, main = flights(format=table_format), {**DECLARED, "id": before}

    problems = find_structure_problems(table, DECLARED, DECLARED, main)

    assert problems[0] == f"column id is {before} on main and would become bigint"


def test_a_type_of_an_iceberg_table_may_become_wider():
    assert find_structure_problems(flights(), DECLARED, DECLARED, {**DECLARED, "id": "int"}) == []


@pytest.mark.parametrize("staged", [DECLARED, MAIN], ids=["gone", "still in the table"])
def test_changes_pass_when_the_contract_allows_them(staged):
    table = flights(allow_schema_changes=True)

    assert find_structure_problems(table, staged, DECLARED, {**MAIN, "id": "int"}) == []


def test_allowing_changes_does_not_excuse_from_the_contract():
    assert find_structure_problems(flights(allow_schema_changes=True), {"id": "bigint"}, DECLARED, MAIN) == [
        "column carrier is missing"
    ]
