"""Classes of expectations that the user wrote: what cannot be imported or called is refused before a run."""

import pytest

from lakeshare_pipelines.contracts import load_contract
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.wap.checks import list_checks, require_expectations
from tests.builders.sets import a_contract

OWN = "tests.builders.own_expectations"
RULE = """\
    quality:
      - type: custom
        engine: greatExpectations
        implementation: {type: "%s", kwargs: {column: id%s}}
    properties:
      - {name: day, logicalType: date, required"""


@pytest.fixture
def with_rule(tmp_path):
    def load(place, more=""):
        path = a_contract(tmp_path, "shop", "delta").path
        text = path.read_text()
        old = "    properties:\n      - {name: day, logicalType: date, required"
        path.write_text(text.replace(old, RULE % (place, more), 1))
        return load_contract(path)

    return load


def test_a_class_is_a_check_with_its_name_and_columns(with_rule):
    contract = with_rule(f"{OWN}:ExpectMultiples", ", factor: 2")
    require_expectations(contract)
    assert "ExpectMultiples__id" in {check.name for check in list_checks(contract)}


@pytest.mark.parametrize(
    ("place", "more", "problem"),
    [
        (
            f"{OWN}:ExpectMultiple",
            "",
            "AttributeError: module 'tests.builders.own_expectations' has no attribute",
        ),
        ("no_such_package:Expect", "", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("pathlib:Path", "", "pathlib:Path is no class of great_expectations"),
        (f"{OWN}:ExpectMultiples", "", "ExpectMultiples refuses its arguments: .*factor field required"),
        (f"{OWN}:ExpectMultiples", ", factor: 2, by: 3", "by extra fields not permitted"),
    ],
)
def test_what_cannot_be_made_is_refused_with_contract_field_and_remedy(with_rule, place, more, problem):
    contract = with_rule(place, more)
    with pytest.raises(ContractError, match=problem) as refused:
        require_expectations(contract)
    assert refused.value.field == "schema[shop.orders].quality"
    assert str(contract.path) in str(refused.value)
    assert "start the run in its folder" in str(refused.value)


def test_a_column_that_the_table_lacks_is_refused_when_the_contract_loads(with_rule):
    with pytest.raises(ContractError, match="has no column 'price'"):
        with_rule(f"{OWN}:ExpectMultiples", ", column_list: [price]")
