"""The expectations a contract may use and the arguments each takes, so that a wrong rule fails at load.

Great Expectations itself is not imported here; a test compares this table with the installed version.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Test = Callable[[Any], bool]


@dataclass(frozen=True)
class Argument:
    """What one argument takes: a test, the words for it, and whether it names columns of the table."""

    accepts: Test
    wants: str
    names_columns: bool = False


@dataclass(frozen=True)
class Expectation:
    """Arguments of one expectation type; of `one_of`, at least one must be given."""

    required: Mapping[str, Argument]
    optional: Mapping[str, Argument]
    one_of: tuple[str, ...] = ()

    @property
    def arguments(self) -> Mapping[str, Argument]:
        """All arguments it takes."""
        return {**self.required, **self.optional}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


COLUMN = Argument(lambda v: isinstance(v, str), "the name of a column", names_columns=True)
COLUMNS = Argument(lambda v: _is_texts(v) and len(v) > 1, "a list of two or more columns", names_columns=True)
COLUMN_LIST = Argument(_is_texts, "a list of columns", names_columns=True)
BOUND = Argument(
    lambda v: _is_number(v) or isinstance(v, str) or hasattr(v, "isoformat"), "a number or a date"
)
NUMBER = Argument(_is_number, "a number")
COUNT = Argument(
    lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 0, "a whole number from 0 up"
)
FRACTION = Argument(lambda v: _is_number(v) and 0 <= v <= 1, "a number from 0 to 1")
FLAG = Argument(lambda v: isinstance(v, bool), "true or false")
TEXT = Argument(lambda v: isinstance(v, str), "a text")
TEXTS = Argument(_is_texts, "a list of texts")
VALUES = Argument(lambda v: isinstance(v, list) and bool(v), "a list of values")
PAIRS = Argument(
    lambda v: isinstance(v, list) and bool(v) and all(isinstance(p, list) and len(p) == 2 for p in v),
    "a list of pairs",
)
MATCH = Argument(lambda v: v in ("any", "all"), "any or all")
IGNORE_PAIR = Argument(
    lambda v: v in ("both_values_are_missing", "either_value_is_missing", "neither"),
    "both_values_are_missing, either_value_is_missing or neither",
)
IGNORE_ROW = Argument(
    lambda v: v in ("all_values_are_missing", "any_value_is_missing", "never"),
    "all_values_are_missing, any_value_is_missing or never",
)

_BOUNDS = {"min_value": BOUND, "max_value": BOUND}
_STRICT = {"strict_min": FLAG, "strict_max": FLAG}
_MOSTLY = {"mostly": FRACTION}


def _values(required: Mapping[str, Argument] | None = None, **optional: Argument) -> Expectation:
    return Expectation({"column": COLUMN, **(required or {})}, {**_MOSTLY, **optional})


def _between(bound: Argument = BOUND, *, per_value: bool = False) -> Expectation:
    optional = {"min_value": bound, "max_value": bound, **_STRICT, **(_MOSTLY if per_value else {})}
    return Expectation({"column": COLUMN}, optional, one_of=("min_value", "max_value"))


def _distinct() -> Expectation:
    return Expectation({"column": COLUMN, "value_set": VALUES}, {})


def _pair(required: Mapping[str, Argument] | None = None, **optional: Argument) -> Expectation:
    columns = {"column_A": COLUMN, "column_B": COLUMN}
    return Expectation({**columns, **(required or {})}, {**_MOSTLY, "ignore_row_if": IGNORE_PAIR, **optional})


EXPECTATIONS: Mapping[str, Expectation] = MappingProxyType(
    {
        "expect_column_values_to_not_be_null": _values(),
        "expect_column_values_to_be_null": _values(),
        "expect_column_values_to_be_unique": _values(),
        "expect_column_values_to_be_in_set": _values({"value_set": VALUES}),
        "expect_column_values_to_not_be_in_set": _values({"value_set": VALUES}),
        "expect_column_values_to_be_between": _between(per_value=True),
        "expect_column_value_lengths_to_be_between": _between(COUNT, per_value=True),
        "expect_column_value_lengths_to_equal": _values({"value": COUNT}),
        "expect_column_values_to_match_regex": _values({"regex": TEXT}),
        "expect_column_values_to_not_match_regex": _values({"regex": TEXT}),
        "expect_column_values_to_match_regex_list": _values({"regex_list": TEXTS}, match_on=MATCH),
        "expect_column_min_to_be_between": _between(),
        "expect_column_max_to_be_between": _between(),
        "expect_column_mean_to_be_between": _between(),
        "expect_column_median_to_be_between": _between(),
        "expect_column_sum_to_be_between": _between(),
        "expect_column_stdev_to_be_between": _between(NUMBER),
        "expect_column_unique_value_count_to_be_between": _between(COUNT),
        "expect_column_proportion_of_unique_values_to_be_between": _between(FRACTION),
        "expect_column_proportion_of_non_null_values_to_be_between": _between(FRACTION),
        "expect_column_distinct_values_to_be_in_set": _distinct(),
        "expect_column_distinct_values_to_contain_set": _distinct(),
        "expect_column_distinct_values_to_equal_set": _distinct(),
        "expect_column_most_common_value_to_be_in_set": Expectation(
            {"column": COLUMN, "value_set": VALUES}, {"ties_okay": FLAG}
        ),
        "expect_column_pair_values_a_to_be_greater_than_b": _pair(or_equal=FLAG),
        "expect_column_pair_values_to_be_equal": _pair(),
        "expect_column_pair_values_to_be_in_set": _pair({"value_pairs_set": PAIRS}),
        "expect_compound_columns_to_be_unique": Expectation(
            {"column_list": COLUMNS}, {**_MOSTLY, "ignore_row_if": IGNORE_ROW}
        ),
        "expect_multicolumn_sum_to_equal": Expectation(
            {"column_list": COLUMNS, "sum_total": NUMBER}, {**_MOSTLY, "ignore_row_if": IGNORE_ROW}
        ),
        "expect_table_row_count_to_be_between": Expectation(
            {}, {"min_value": COUNT, "max_value": COUNT, **_STRICT}, one_of=("min_value", "max_value")
        ),
        "expect_table_row_count_to_equal": Expectation({"value": COUNT}, {}),
        "expect_table_column_count_to_equal": Expectation({"value": COUNT}, {}),
        "expect_table_columns_to_match_set": Expectation({"column_set": COLUMN_LIST}, {"exact_match": FLAG}),
    }
)

UNIQUENESS = (
    "expect_column_values_to_be_unique",
    "expect_compound_columns_to_be_unique",
)


def columns_of(expectation: Expectation, kwargs: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The columns a rule speaks of, as (argument, column)."""
    found: list[tuple[str, str]] = []
    for name, argument in expectation.arguments.items():
        if argument.names_columns and name in kwargs and argument.accepts(kwargs[name]):
            value = kwargs[name]
            found += [(name, column) for column in ([value] if isinstance(value, str) else value)]
    return tuple(found)


def rule_name(expectation: str, kwargs: Mapping[str, Any]) -> str:
    """`expect_column_values_to_not_be_null__tailnum`: the expectation and its columns; a Dagster-legal check name."""
    known = EXPECTATIONS.get(expectation)
    columns = [column for _, column in columns_of(known, kwargs)] if known else []
    return "__".join([expectation, "_".join(columns)]) if columns else expectation
