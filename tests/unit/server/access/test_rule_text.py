"""Rules are read strictly, and decided by partition values in the column's own type, with three values of truth."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from lakeshare_server.access.rules import (
    NOTHING,
    RecipientProperty,
    bind_properties,
    combine_rules,
    find_properties,
    parse_rule,
)
from lakeshare_server.catalog import EffectiveGrant
from lakeshare_server.errors import BadRequest
from lakeshare_server.tables.predicates import EVERYTHING, Column, Columns, Compare
from lakeshare_server.tables.restrictions import find_undecided, is_within

TYPES = {
    "region": pa.string(),
    "year": pa.int32(),
    "count": pa.int64(),
    "day": pa.date32(),
    "active": pa.bool_(),
    "price": pa.decimal128(10, 2),
    "ratio": pa.float64(),
    "at": pa.timestamp("us", "UTC"),
    "a b`c": pa.string(),
}
COLUMNS = Columns([Column((name,), kind) for name, kind in TYPES.items()])
ROW: Mapping[str, Any] = {
    "region": "EU",
    "year": 2024,
    "count": 1 << 40,
    "day": date(2024, 2, 29),
    "active": False,
    "price": Decimal("9.50"),
    "ratio": 0.5,
    "at": datetime(2024, 1, 1, tzinfo=UTC),
    "a b`c": "x",
}


def partition(*rows: Mapping[str, Any]) -> pa.StructArray:
    arrays = [pa.array([row.get(name) for row in rows], kind) for name, kind in TYPES.items()]
    return pa.StructArray.from_arrays(arrays, list(TYPES))


def is_true(rule: str, row: Mapping[str, Any] = ROW) -> bool:
    parsed, values = parse_rule(rule), partition(row)
    assert find_undecided(parsed, values.type, COLUMNS) is None, rule
    [found] = is_within(parsed, values, COLUMNS).to_pylist()
    return bool(found)


@pytest.mark.parametrize(
    "rule",
    [
        "region = 'EU'",
        "REGION=='EU'",
        "'EU' = region",
        "region <> 'US' and region != 'eu'",
        "region >= 'EU' AND 'EV' > region",
        "region LIKE 'E%'",
        "region NOT LIKE 'U%'",
        "region LIKE 'EU'",
        "region IN ('US', 'EU')",
        "region NOT IN ('US')",
        "year = 2024",
        "year = '2024'",
        "year between 2020 and 2030",
        "year NOT BETWEEN 2025 AND 2030",
        "count > 1000000000000",
        "year < 99999999999999",
        "year > -1",
        "year = 2024.0",
        "day = DATE '2024-02-29'",
        "day >= '2024-02-01' AND day < date'2024-03-01'",
        "active = false",
        "active = 'FALSE'",
        "NOT active",
        "price = 9.5 and price < 10 and price > '9.49'",
        "region IS NOT NULL AND NOT region IS NULL",
        "NOT NOT year = 2024",
        "((year = 1 OR year = 2024) AND (TRUE))",
        "`a b``c` = 'x'",
        "year = 1 OR true",
    ],
)
def test_true_rules(rule: str) -> None:
    assert is_true(rule)
    assert not is_true(f"NOT ({rule})")
    # Of nulls a rule is true only where it says so.
    if "IS " not in rule and "true" not in rule:
        assert not is_true(rule, {})
        assert not is_true(f"NOT ({rule})", {})


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("", "Its end is missing"),
        ("region =", "Its end is missing"),
        ("region = 'EU' AND", "Its end is missing"),
        ("region = 'EU", "From character 10 on, `'EU`"),
        ("region = year", "From character 10 on, `year`"),
        ("region = NULL", "From character 10 on, `NULL`"),
        ("'a' = 'a'", "From character 7"),
        ('region = "EU"', "From character 10"),
        ("region = 'EU\\'", "From character 10"),
        ("region = 'EU'; DROP TABLE shares", "From character 14 on, `; DROP"),
        ("region = 'EU' -- or more", "From character 15"),
        ("lower(region) = 'eu'", "From character 6"),
        ("region LIKE '%EU'", "LIKE takes a beginning alone"),
        ("region LIKE 'E_'", "LIKE takes a beginning alone"),
        ("day = DATE '2023-02-29'", "no day"),
        ("region = current_recipient()", "Its end is missing"),
        ("region = current_recipient(region)", "From character 28"),
        ("(" * 4000, "Its end is missing"),
        ("NOT (year = 1 OR " * 120 + "year = 1" + ")" * 120, "nested deeper than 100"),
    ],
)
def test_what_is_no_rule_is_refused_with_its_place(rule: str, said: str) -> None:
    with pytest.raises(BadRequest, match="rule") as refused:
        parse_rule(rule)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("rule", "column"),
    [
        ("nothing = 1", "nothing"),
        ("year = 'soon'", "year"),
        ("year = 2024.5", "year"),
        ("year = true", "year"),
        ("year LIKE '2%'", "year"),
        ("active = 1", "active"),
        ("region = 1", "region"),
        ("day = 20240229", "day"),
        ("day LIKE '2024%'", "day"),
        ("ratio = 0.5", "ratio"),
        ("at > DATE '2024-01-01'", "at"),
        ("true OR nothing IS NULL", "nothing"),
    ],
)
def test_what_is_compared_in_no_certain_way_is_not_decided(rule: str, column: str) -> None:
    values = partition(ROW)
    found = find_undecided(parse_rule(rule), values.type, COLUMNS)
    assert found is not None
    assert found.column == column
    [found_true] = is_within(parse_rule(rule), values, COLUMNS).to_pylist()
    # What is decided by another part alone is true all the same; whoever hands files out asks `undecided` first.
    assert found_true == rule.startswith("true OR")
    assert is_within(parse_rule(f"NOT ({rule})"), values, COLUMNS).to_pylist() == [False]


def test_truth_has_three_values_as_in_sql() -> None:
    """Random rules over three columns, against rows taken one by one in Python."""
    random, seen = Random(7), set()
    rows = [{"region": region, "year": year} for region in ("EU", "US", None) for year in (1, 2, None)]
    for _ in range(300):
        text, holds = a_rule(random, 3)
        expected = [holds(row) is True for row in rows]
        assert is_within(parse_rule(text), partition(*rows), COLUMNS).to_pylist() == expected, text
        seen.add(tuple(expected))
    assert len(seen) > 20


def a_rule(random: Random, depth: int) -> tuple[str, Any]:
    kind = random.choice(("and", "or", "not")) if depth and random.random() < 0.7 else "leaf"
    if kind == "not":
        text, inner = a_rule(random, depth - 1)
        return f"NOT ({text})", lambda row: None if inner(row) is None else not inner(row)
    if kind != "leaf":
        parts = [a_rule(random, depth - 1) for _ in range(random.randint(2, 3))]
        decides = kind == "or"

        def joined(row: Mapping[str, Any]) -> bool | None:
            found = [holds(row) for _, holds in parts]
            if decides in found:
                return decides
            return None if None in found else not decides

        return f" {kind.upper()} ".join(f"({text})" for text, _ in parts), joined
    column, value = random.choice((("region", "EU"), ("region", "US"), ("year", 1), ("year", 2)))
    if random.random() < 0.3:
        return f"{column} IS NULL", lambda row: row[column] is None
    sign = random.choice(("=", "<", ">="))

    def compared(row: Mapping[str, Any]) -> bool | None:
        if row[column] is None:
            return None
        return {"=": row[column] == value, "<": row[column] < value, ">=": row[column] >= value}[sign]

    return f"{column} {sign} {value!r}", compared


def test_properties_stand_for_texts_and_never_for_rules() -> None:
    for text in (
        "region = current_recipient('area')",
        "region = CURRENT_RECIPIENT().area",
        "current_recipient ( 'area' ) = region",
        "region = current_recipient().`area`",
    ):
        rule = parse_rule(text)
        assert rule == Compare(("region",), "=", RecipientProperty("area"), None)
        assert find_properties(rule) == {"area"}
        assert bind_properties(rule, {"area": "' OR '1'='1"}) == Compare(
            ("region",), "=", "' OR '1'='1", None
        )
    assert find_properties(parse_rule("region = current_recipient().lakeshare.name")) == {"lakeshare.name"}
    nested = parse_rule("NOT (year = current_recipient('y') OR region IN (current_recipient('r'), 'EU'))")
    assert find_properties(nested) == {"y", "r"}


def test_what_all_grants_come_to() -> None:
    def grant(*rules: str | None, **properties: str) -> EffectiveGrant:
        told = None if None in rules else tuple(rule for rule in rules if rule is not None)
        return EffectiveGrant("id-1", "bob", properties, told)

    eu, us = parse_rule("region = 'EU'"), parse_rule("region = 'US'")
    assert combine_rules(None, grant(None)) == EVERYTHING
    assert combine_rules(None, grant("region = 'EU'")) == eu
    assert combine_rules("region = 'EU'", grant(None)) == eu
    both = combine_rules("year = 2024", grant("region = 'EU'", "region = 'US'"))
    assert both.operands[0] == parse_rule("year = 2024")
    assert both.operands[1].operands == (eu, us)
    by_property = "region = current_recipient('area')"
    assert combine_rules(None, grant(by_property)) == NOTHING
    assert combine_rules(None, grant(by_property, area="EU")) == eu
    assert combine_rules(None, grant(f"NOT {by_property}")) == NOTHING
    named = combine_rules(None, grant("region = current_recipient('lakeshare.name')"))
    assert named == Compare(("region",), "=", "bob", None)
    assert combine_rules("no rule", grant(None)) == NOTHING
