"""Predicates name columns and types in their own way: which column is meant, and what a cast on it still tells."""

from pathlib import Path
from typing import Any

import pytest

from tests.builders.pruning.stated import a_batch, a_file, compared, json_of, kept, null_test, sql, sure

INNER = {
    "type": {"type": "struct", "fields": [{"name": "b", "type": "integer", "nullable": True, "metadata": {}}]}
}


def test_names_mean_one_column_or_nothing(tmp_path: Path) -> None:
    fields = {"a": INNER, "a.b": "integer", "B": "integer", "c": INNER, "ü x": "integer"}
    high = {"a": {"b": 9}, "a.b": 9, "B": 9, "c": {"b": 9}, "ü x": 9}
    nulls = {"a": {"b": 0}, "a.b": 0, "B": 0, "c": {"b": 0}, "ü x": 0}

    def one_low(name: str) -> dict[str, Any]:
        """Only this column can be zero, in this file."""
        low = {**high, name: {"b": 0} if name in "ac" else 0}
        return a_file(nulls=nulls, **{key: (low[key], high[key]) for key in high})

    batch = a_batch(tmp_path, fields, [one_low(name) for name in fields])
    everywhere = [0, 1, 2, 3, 4]
    # JSON: the column of that very name comes before the field of a struct; case is nothing.
    assert kept(json_of(compared("a.b", "=", "0", "int")), batch) == [1]
    assert kept(json_of(compared("C.B", "=", "0", "int")), batch) == [3]
    assert kept(json_of(compared("b", "=", "0", "int")), batch) == [2]
    assert kept(json_of(compared("nowhere", "=", "0", "int")), batch) == everywhere
    # SQL: what is in front of a name may be the table's.
    assert kept(sql("`a.b` = 0"), batch) == [1]
    assert (
        kept(sql("b = 0"), batch)
        == kept(sql("tab.b = 0"), batch)
        == kept(sql("cat.db.tab.B = 0"), batch)
        == [2]
    )
    assert kept(sql("`Ü X` = 0"), batch) == [4]
    assert kept(sql("a.b = 0"), batch) == kept(sql("c.b = 0"), batch) == everywhere
    assert kept(sql("a = 0"), batch) == kept(sql("a.z = 0"), batch) == everywhere


def test_fields_of_structs_leave_files_out(tmp_path: Path) -> None:
    def inner(low: int, high: int, nulls: int) -> dict[str, Any]:
        return a_file(s=({"b": low}, {"b": high}), nulls={"s": {"b": nulls}})

    batch = a_batch(tmp_path, {"s": INNER}, [inner(0, 1, 0), inner(2, 3, 1), inner(4, 5, 10)])
    assert kept(sql("s.b = 2"), batch) == kept(sql("t.`s`.b = 2"), batch) == [1]
    assert kept(json_of(null_test("s.b", "int")), batch) == [1, 2]
    assert kept(sql("s.b IS NOT NULL"), batch) == [0, 1]


CASTS = [
    ("string", "a", compared("x", "=", "5", "int")),
    ("string", "2020-01-01", compared("x", "=", "2020-01-02", "date")),
    ("long", 1, compared("x", "=", "5", "int")),
    ("integer", 1, compared("x", "=", "5", "string")),
    ("integer", 1, compared("x", "=", "16777217", "float")),
    ("long", 1, compared("x", "=", "9007199254740993", "double")),
    ("double", 1.5, compared("x", "=", "5", "int")),
    ("double", 1.5, compared("x", "<", "0.5", "float")),
    ("decimal(10,2)", 1.5, compared("x", "=", "5", "long")),
    ("date", "2020-01-01", compared("x", "=", "2020-01-05", "string")),
    ("date", "2020-01-01", compared("x", "=", "2020-01-05T00:00:00Z", "timestamp")),
    ("timestamp", "2020-01-01T00:00:00.000Z", compared("x", "=", "5", "long")),
    ("integer", 1, compared("x", "=", "5", "int", "long")),
    (
        "string",
        "a",
        {**compared("x", "=", "A", "string"), "exprCtx": {"collationIdentifier": "spark.UTF8_LCASE.75.1"}},
    ),
]


@pytest.mark.parametrize(("kind", "value", "node"), CASTS, ids=str)
def test_casts_that_change_the_order_leave_nothing_out(
    tmp_path: Path, kind: str, value: Any, node: dict[str, Any]
) -> None:
    """protocol §1.14: a column may be declared with another type than its own"""
    batch = a_batch(tmp_path, {"x": kind}, [a_file(x=value)])
    assert kept(json_of(node), batch) == [0]
    assert kept(json_of({"op": "not", "children": [node]}), batch) == [0]
    assert sure(json_of(node), batch) == []


def test_a_cast_may_make_nulls_but_no_values_of_them(tmp_path: Path) -> None:
    batch = a_batch(tmp_path, {"x": "integer"}, [a_file(x=1), a_file(nulls={"x": 10})])
    assert kept(json_of(null_test("x", "int")), batch) == [1]
    # Of casts in a row a client tells the innermost only: the outer one may turn any value into null.
    assert kept(json_of(null_test("x", "long")), batch) == [0, 1]
    assert kept(json_of({"op": "not", "children": [null_test("x", "long")]}), batch) == [0]


def test_texts_in_a_collation_are_not_compared_with_bounds(tmp_path: Path) -> None:
    collated = {"type": "string", "metadata": {"__COLLATIONS": {"x": "spark.UTF8_LCASE"}}}
    batch = a_batch(tmp_path, {"x": collated}, [a_file(x="abc"), a_file(nulls={"x": 10})])
    assert kept(sql("x = 'ABC'"), batch) == [0]
    assert kept(sql("x IS NULL"), batch) == [1]


def test_a_name_that_two_structs_share_means_neither(tmp_path: Path) -> None:
    def struct(inner: str) -> dict[str, Any]:
        fields = [{"name": inner, "type": "integer", "nullable": True, "metadata": {}}]
        return {"type": {"type": "struct", "fields": fields}}

    stated = a_file(
        nulls={"a": {"b.c": 0}, "a.b": {"c": 0}}, a=({"b.c": 1}, {"b.c": 1}), **{"a.b": ({"c": 2}, {"c": 2})}
    )
    batch = a_batch(tmp_path, {"a": struct("b.c"), "a.b": struct("c")}, [stated])
    assert kept(json_of(compared("a.b.c", "=", "9", "int")), batch) == [0]
    assert kept(sql("`a.b`.c = 9"), batch) == kept(sql("a.`b.c` = 9"), batch) == []
