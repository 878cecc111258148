"""Texts of predicates are read part by part: what is not understood is left open, and nothing is an error."""

import json
from random import Random
from typing import Any

import pytest
from sqlglot.parsers.spark import SparkParser

from lakeshare_server.protocol.requests import MAX_JSON_CHARS, parse_json_predicate
from lakeshare_server.protocol.sql_predicate import MAX_TOKENS_AGAIN, parse_sql_predicates
from lakeshare_server.tables.predicates import (
    And,
    Compare,
    Constant,
    IsNull,
    Not,
    Or,
    Predicate,
    Unknown,
    count_parts,
    limit_parts,
)
from tests.builders.pruning.casts import float32
from tests.builders.pruning.stated import compared, json_of, null_test, sql

COLUMN = {"op": "column", "name": "x", "valueType": "int"}
FIVE = {"op": "literal", "value": "5", "valueType": "int"}
NOT_UNDERSTOOD: list[Any] = [
    5,
    None,
    [],
    {},
    {"op": 5},
    {"op": "between", "children": [COLUMN, FIVE]},
    {"op": "equal"},
    {"op": "equal", "children": 5},
    {"op": "equal", "children": [COLUMN]},
    {"op": "equal", "children": [COLUMN, FIVE, FIVE]},
    {"op": "equal", "children": [COLUMN, COLUMN]},
    {"op": "equal", "children": [FIVE, FIVE]},
    {"op": "equal", "children": [None, FIVE]},
    {"op": "equal", "children": [COLUMN, {**FIVE, "valueType": "long"}]},
    {"op": "equal", "children": [{**COLUMN, "name": 5}, FIVE]},
    {"op": "equal", "children": [{**COLUMN, "valueType": ["int"]}, {**FIVE, "valueType": ["int"]}]},
    {"op": "equal", "children": [COLUMN, {**FIVE, "value": 5}]},
    {"op": "and", "children": []},
    {"op": "not", "children": [COLUMN, FIVE]},
    {"op": "isNull", "children": [COLUMN, FIVE]},
    {"op": "isNull", "children": [{**FIVE, "value": "null"}]},
    # Spark writes a null of type string like this text.
    {"op": "isNull", "children": [{"op": "literal", "value": "null", "valueType": "string"}]},
    {"op": "column", "name": "x", "valueType": "int"},
    {"op": "literal", "value": "5", "valueType": "int"},
    compared("x", "=", "5", "decimal"),
]
# Of each type: what Java does not write, or what is no value of the type.
NO_VALUES = {
    "int": ["1_000", " 5", "5.0", "\u0665", "2147483648", "-2147483649", "9" * 5000, "", "0x5", "true"],
    "long": ["9223372036854775808", "1e3"],
    "float": ["1_0.5", "nan", "inf", "0x1p3", "1e99999", ""],
    "double": ["1,5", " 1.5", "infinity", "1.5d"],
    "date": ["2020-W01-1", "20200101", "2020-1-1", "2020-02-30", "+2020-01-01", "2020-01-01T00:00:00"],
    "timestamp": ["2020-01-01", "2020-01-01T00:00:00", "2020-01-01T25:00:00Z", "now"],
    "bool": ["1", "yes", ""],
}


@pytest.mark.parametrize("node", NOT_UNDERSTOOD, ids=repr)
def test_what_json_says_wrongly_is_left_open_and_the_rest_is_read(node: Any) -> None:
    """protocol §1.7, `jsonPredicateHints`: any problem leaves files in, never an error"""
    assert json_of(node) == Unknown()
    both = json_of({"op": "and", "children": [node, compared("x", "=", "5", "int")]})
    assert both == And((Unknown(), Compare("x", "=", 5, "int")))


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in NO_VALUES.items() for text in texts]
)
def test_a_literal_that_is_no_value_of_its_type_is_left_open(kind: str, text: str) -> None:
    assert json_of(compared("x", "<", text, kind)) == Unknown()


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("bool", "TRUE", True),
        ("int", "-2147483648", -(2**31)),
        ("long", "9223372036854775807", 2**63 - 1),
        ("float", "0.1", float32(0.1)),
        ("float", "1.0E10", 1e10),
        ("float", "-Infinity", float("-inf")),
        ("double", "1.0E-5", 1e-5),
        ("double", ".5", 0.5),
        ("string", "NaN\u0000\ud800", "NaN\u0000\ud800"),
    ],
)
def test_literals_of_both_versions_are_read_as_java_writes_them(kind: str, text: str, value: Any) -> None:
    """protocol §1.14 valueType"""
    assert json_of(compared("x", "=", text, kind)) == Compare("x", "=", value, kind)


def test_sides_may_be_exchanged() -> None:
    node = compared("x", "<", "5", "int")
    assert json_of({**node, "children": node["children"][::-1]}) == Compare("x", ">", 5, "int")


@pytest.mark.parametrize(
    "text", ["bad-predicates", "", "[" * 100_000, '{"op":' * 50_000, "{" + " " * MAX_JSON_CHARS + "}"]
)
def test_texts_that_are_no_predicate_at_all_are_left_open(text: str) -> None:
    """protocol §7.3: invalid text gives all files"""
    assert parse_json_predicate(text) == Unknown()


def test_a_predicate_of_a_megabyte_is_read() -> None:
    node = {"op": "or", "children": [compared("x", "=", str(number), "int") for number in range(7500)]}
    text = json.dumps(node)
    assert MAX_JSON_CHARS * 0.9 < len(text) < MAX_JSON_CHARS
    assert count_parts(parse_json_predicate(text)) == 7501


def test_a_hundred_levels_are_read_and_the_ones_below_left_open() -> None:
    """protocol §1.14: tree depth 100"""

    def nested(levels: int) -> Predicate:
        node: dict[str, Any] = null_test("x", "int")
        for _ in range(levels - 1):
            node = {"op": "not", "children": [node]}
        return json_of(node)

    def innermost(predicate: Predicate) -> Predicate:
        while isinstance(predicate, Not):
            predicate = predicate.operand
        return predicate

    assert innermost(nested(100)) == IsNull("x", "int")
    assert innermost(nested(101)) == Unknown()


def test_the_null_safe_comparison_of_spark_is_read() -> None:
    null, literal_null = null_test("x", "int"), {"op": "isNull", "children": [FIVE]}
    equal = compared("x", "=", "5", "int")
    node = {
        "op": "or",
        "children": [
            {"op": "and", "children": [null, literal_null]},
            {
                "op": "and",
                "children": [*({"op": "not", "children": [one]} for one in (null, literal_null)), equal],
            },
        ],
    }
    is_null, is_five = IsNull("x", "int"), Compare("x", "=", 5, "int")
    assert json_of(node) == Or(
        (And((is_null, Constant(False))), And((Not(is_null), Not(Constant(False)), is_five)))
    )


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "x = 1; y = 2",
        "x = y",
        "x + 1 = 2",
        "x = NULL",
        "x IN (SELECT 1)",
        "x IN (1, 'a')",
        "x LIKE 'a%b%'",
        "x LIKE 'a_'",
        "x LIKE 'a\\%'",
        "x ILIKE 'a%'",
        "x RLIKE 'a'",
        "x = CAST(300 AS TINYINT)",
        "x = CAST('1.5' AS DECIMAL)",
        "x = DATE '2020-02-30'",
        "x = DATE '2020-1-1'",
        "CAST(CAST(x AS INT) AS BIGINT) = 5",
        "CAST(x AS INT) = 5L AND",
        "CAST(x AS INT) = 5D",
        "x = (",
        "x = '",
        "",
        "-- nothing",
        "x = 1 AS y",
        "x[0] = 1",
        "x !> 5",
    ],
)
def test_sql_that_is_not_understood_is_left_open_and_the_rest_is_read(text: str) -> None:
    """protocol §1.14: ignore what you cannot parse"""
    assert sql(text) == And((Unknown(),))
    assert parse_sql_predicates([text, "x = 5"]) == And((Unknown(), Compare(("x",), "=", 5, None)))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("(`x` IS NOT NULL)", "NOT x IS NULL"),
        ("x != 5", "NOT (x = 5)"),
        ("5 <> x", "NOT (x = 5)"),
        ("5 >= x", "x <= 5"),
        ("x BETWEEN 1 AND 2", "x >= 1 AND x <= 2"),
        ("x NOT BETWEEN 1 AND 2", "NOT (x >= 1 AND x <= 2)"),
        ("x IN (1, 2)", "x = 1 OR x = 2"),
        ("(NOT (x IN (1, 2)))", "NOT (x = 1 OR x = 2)"),
        ("x <=> 5", "x IS NOT NULL AND x = 5"),
        ("x <=> NULL", "x IS NULL"),
        ("x IS NOT DISTINCT FROM 5", "x <=> 5"),
        ("x LIKE 'ab%'", "startswith(x, 'ab')"),
        ("x NOT LIKE 'ab%'", "NOT startswith(x, 'ab')"),
        ("x = 5L", "x = CAST(5 AS BIGINT)"),
        ("x = 1.50BD", "x = CAST('1.50' AS DECIMAL(3,2))"),
        ("x = DATE '2020-01-01'", "x = CAST('2020-01-01' AS DATE)"),
        ("x = TIMESTAMP '2020-01-01 00:00:00'", "x = CAST('2020-01-01 00:00:00' AS TIMESTAMP)"),
        ("x IS TRUE", "x IS NOT NULL AND x"),
        ("x = -5", "x = (-(5))"),
        ("! x", "NOT x"),
    ],
)
def test_the_same_in_other_words_is_the_same_predicate(text: str, same: str) -> None:
    """What Catalyst's own text looks like, and how people write it."""

    def flat(predicate: Predicate) -> Predicate:
        match predicate:
            case And(operands) if len(operands) == 1:
                return flat(operands[0])
            case Compare(column, operator, value, kind) if kind == "bool":
                return Compare(column, operator, value, None)
            case Not(operand):
                return Not(flat(operand))
            case And(operands) | Or(operands):
                return type(predicate)(tuple(map(flat, operands)))
            case _:
                return predicate

    assert flat(sql(text)) == flat(sql(same))
    assert "Unknown" not in str(sql(text))


def test_a_text_that_may_be_null_in_the_columns_type_is_the_same_as_null() -> None:
    """5 <=> 'x' compares with null when 'x' is no number."""
    is_null, equal = IsNull(("x",)), Compare(("x",), "=", "a", None)
    assert sql("x <=> 'a'") == And((Or((And((Not(is_null), equal)), And((is_null, Unknown())))),))


def test_any_text_is_read_without_an_error() -> None:
    random = Random(5)
    words = (
        "x `a b` a.b = < >= <=> <> AND OR NOT ( ) IN BETWEEN LIKE IS NULL TRUE 5 5L 1.5 - 'a%' CAST AS INT"
    )
    words += (
        " DATE '2020-01-01' DECIMAL(3 , . [ ] CASE WHEN END interval 1 day || * SELECT { } x'1F' \x00 é -- /*"
    )
    words += " :: -> @ ? # ;"
    for _ in range(3000):
        text = " ".join(random.choice(words.split(" ")) for _ in range(random.randint(1, 12)))
        assert isinstance(parse_sql_predicates([text, text[::-1]]), And)


def test_more_sql_than_can_be_looked_at_is_left_open() -> None:
    hint = " OR ".join(["x = 99"] * 5000)
    parsed = parse_sql_predicates(["x = 5", hint, "x = 6"])
    assert parsed == And((Compare(("x",), "=", 5, None), Unknown(), Unknown()))


@pytest.mark.parametrize("word", ["DATE", "TIMESTAMP", "INT", "STRING", "STRUCT", "ARRAY", "MAP"])
def test_brackets_that_may_mean_two_things_are_not_tried_in_all_ways(word: str) -> None:
    """Each doubles the ways to read what is inside: without a bound the longer ones would not end at all."""
    for times in (13, 60):
        nested = f"{word} (" * times + "1" + ")" * times
        assert parse_sql_predicates(["x = 5", nested, "x = 6"]) == And(
            (Compare(("x",), "=", 5, None), Unknown(), Compare(("x",), "=", 6, None))
        )


def test_the_bound_on_trying_again_is_for_all_hints_together(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    advance = SparkParser._advance

    def counted(self: SparkParser, times: int = 1) -> None:
        looked_at.append(max(times, 0))
        advance(self, times)

    monkeypatch.setattr(SparkParser, "_advance", counted)
    many = f"DATE ({'DATE (' * 8}x IN ({'1,' * 40}1)" + ")" * 9
    hints = [many] * 100 + ["x = 5"]
    parsed = parse_sql_predicates(hints)
    assert isinstance(parsed, And)
    assert parsed.operands[-1] == Compare(("x",), "=", 5, None)
    assert sum(looked_at) < MAX_TOKENS_AGAIN + sum(map(len, hints))


def test_what_people_and_spark_write_is_read_whole_however_long() -> None:
    """Casts are read twice at their brackets: as many of them as fit are still within the bound."""
    casts = " OR ".join(["CAST(x AS INT)=1"] * 1600)
    parsed = parse_sql_predicates([casts])
    assert parsed == And((Or((Compare(("x",), "=", 1, "int"),) * 1600),))


def test_of_a_predicate_that_costs_too_much_the_first_parts_are_looked_at() -> None:
    five = Compare("x", "=", 5, "int")
    many = Or((five,) * 50)
    assert limit_parts(many, 60) == many
    assert limit_parts(And((five, many, five)), 20) == And((five, Unknown()))
