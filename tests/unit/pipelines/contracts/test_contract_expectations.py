"""The table of expectations is what the installed Great Expectations takes, no more."""

import pytest

from lakeshare_pipelines.contracts.rules import EXPECTATIONS, make_rule_name


def class_of(expectation: str) -> type:
    # Imported here, because every worker of a test run collects this file.
    import great_expectations.expectations as gx

    return getattr(gx, "".join(word.capitalize() for word in expectation.split("_")))


@pytest.mark.parametrize("expectation", EXPECTATIONS)
def test_an_expectation_and_its_arguments_exist(expectation: str) -> None:
    known = EXPECTATIONS[expectation]
    fields = class_of(expectation).__fields__
    assert set(known.arguments) <= set(fields)
    assert {name for name, field in fields.items() if field.required} <= set(known.required)
    assert set(known.one_of) <= set(known.optional)


def test_a_name_has_expectation_and_columns() -> None:
    assert (
        make_rule_name("expect_column_values_to_not_be_null", {"column": "tailnum"})
        == "expect_column_values_to_not_be_null__tailnum"
    )
    assert make_rule_name("expect_compound_columns_to_be_unique", {"column_list": ["a", "b"]}).endswith(
        "unique__a_b"
    )
    assert (
        make_rule_name("expect_table_row_count_to_equal", {"value": 3}) == "expect_table_row_count_to_equal"
    )
