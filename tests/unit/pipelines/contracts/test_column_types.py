"""Nested types of columns: their spelling, fields beyond those expected, and what cannot refer to them."""

from pathlib import Path

import pytest

from lakeshare_pipelines.contracts.column_types import find_unknown_fields, normalize_type, parse_type
from lakeshare_pipelines.errors import ContractError
from tests.builders.landing import a_readings_contract

ITEMS = "array<struct<skuId:string,qty:int>>"
FIELDS = [
    {
        "name": "skuId",
        "logicalType": "string",
        "description": "as the shop writes it",
        "classification": "PII",
    },
    {"name": "qty", "logicalType": "integer", "physicalType": "int", "required": False},
]


def test_a_nested_type_has_one_spelling_and_keeps_the_names_of_its_fields() -> None:
    for text, expected in {
        "ARRAY < STRUCT<skuId: String, qty INTEGER> >": ITEMS,
        "struct<Price: DECIMAL(10, 2), tags: map<string, LONG>>": "struct<Price:decimal(10,2),tags:map<string,bigint>>",
        "struct<a: array<int>": "struct<a: array<int>",
    }.items():
        assert normalize_type(text) == expected


def test_properties_and_items_of_the_standard_are_another_spelling(tmp_path: Path) -> None:
    given: list[dict[str, object]] = [
        {"name": "items", "logicalType": "array", "items": {"logicalType": "object", "properties": FIELDS}},
        {
            "name": "place",
            "physicalType": "STRUCT",
            "properties": [{"name": "city", "logicalType": "string"}],
        },
        {
            "name": "days",
            "logicalType": "array",
            "items": {"logicalType": "array", "items": {"logicalType": "date"}},
        },
    ]
    contract = a_readings_contract(tmp_path, columns=given)
    assert [(column.name, column.type, column.pii) for column in contract.tables[0].columns] == [
        ("items", ITEMS, True),
        ("place", "struct<city:string>", False),
        ("days", "array<array<date>>", False),
    ]


def test_unknown_fields_are_found_at_any_depth() -> None:
    expected = parse_type("struct<l:array<struct<y:int>>,q:int,m:map<string,struct<a:int>>,s:struct<z:int>>")
    found = parse_type(
        "OBJECT<l: ARRAY<OBJECT<x: BIGINT>>, m: OBJECT<k: OBJECT<b: INT>, `j k`: OBJECT<b: INT, a: INT>>, "
        "q: DECIMAL(21,1), s: VARIANT, `a key`: OBJECT<>>"
    )
    assert find_unknown_fields(expected, found, "c") == ["c.l.x", "c.m.b", "c.a key"]


def test_a_type_of_values_may_be_one_that_no_contract_has() -> None:
    """Names may differ by case only; what is nested deeper than in a contract is not looked into."""
    deep = "ARRAY<" * 10 + "OBJECT<`a>b`: BIGINT>" + ">" * 10
    for text, reason, found in (
        (deep, "nested more than 10 times", "array<" * 10 + "string" + ">" * 10),
        (
            "OBJECT<a: BIGINT, A: OBJECT<b: STRING>>",
            "the field 'A' twice",
            "struct<a:BIGINT,A:struct<b:STRING>>",
        ),
    ):
        with pytest.raises(ValueError, match=reason):
            parse_type(text)
        assert str(parse_type(text, of_values=True)).lower() == found.lower()


@pytest.mark.parametrize(
    ("column", "reading", "reason"),
    [
        ({"unique": True}, {}, "items, of type array.*cannot be unique or a primary key"),
        (
            {"quality": [{"type": "custom", "engine": "greatExpectations", "implementation": {
                "type": "expect_column_values_to_be_in_set", "kwargs": {"value_set": ["a"]}}}]},
            {}, "in_set does not apply to 'items'.*transformLogic",
        ),
        ({"relationships": [{"to": "readings.id"}]}, {}, "'items', a column of a nested type, cannot refer"),
        ({}, {"property": "write", "value": {"mode": "merge", "sequence": "items"}}, "cannot be ordered by 'items'"),
        ({"physicalType": "map<string,int>"}, {"property": "write", "value": "append"}, "has a map, which append"),
    ],
)  # fmt: skip
def test_what_compares_values_is_refused_for_nested_columns(
    tmp_path: Path, column: dict[str, object], reading: dict[str, object], reason: str
) -> None:
    columns = [
        {"name": "id", "physicalType": "int", "primaryKey": True},
        {"name": "items", "physicalType": ITEMS, **column},
    ]
    with pytest.raises(ContractError, match=reason):
        a_readings_contract(tmp_path, columns=columns, extras=[reading] if reading else [])


def test_counting_nulls_applies_to_nested_columns(tmp_path: Path) -> None:
    columns = [{"name": "items", "physicalType": ITEMS, "required": True}]
    assert a_readings_contract(tmp_path, columns=columns).tables[0].column("items").type == ITEMS
