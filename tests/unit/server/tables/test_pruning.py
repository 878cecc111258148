"""Predicates really leave files out, of every type and in every way they are written; what is not certain stays.

What only a random search would find is in `test_pruning_property.py`; names and casts in
`test_pruning_columns.py`, parsing alone in `test_pruning_texts.py`.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.builders.pruning.stated import a_batch, a_file, compared, json_of, kept, null_test, sql, sure

# A type, the bounds of three files, and predicates in both languages that only the second file can match.
SELECTIVE: list[tuple[str, list[Any], list[str], list[tuple[str, str, str]]]] = [
    ("byte", [(0, 1), (2, 3), (4, 5)], ["x = 2", "x > 1 AND x < 4", "x IN (2, 3)"], [("=", "3", "int")]),
    ("short", [(0, 1), (2, 3), (4, 5)], ["x BETWEEN 2 AND 3", "x = 2S"], [("=", "3", "long")]),
    (
        "integer",
        [(0, 1), (2, 3), (4, 5)],
        ["x = 2L", "3 = x", "x = 2.0", "x > 1.5 AND x < 3.5"],
        [("=", "2", "double")],
    ),
    (
        "long",
        [(0, 1), (2, 3), (4, 5)],
        ["x = '2'", "CAST(x AS DOUBLE) = 2.0D", "x <=> 3"],
        [("=", "3", "long")],
    ),
    ("float", [(0, 0.1), (0.25, 0.5), (1, 2)], ["x = 0.5", "x = 0.3F", "x = 0.3D"], [("=", "0.3", "float")]),
    ("double", [(0, 0.1), (0.25, 0.5), (1, 2)], ["x = 0.3", "x = 5e-1"], [("=", "0.3", "double")]),
    (
        "decimal(10,2)",
        [(0, 0.1), (0.25, 0.5), (1, 2)],
        ["x = 0.3", "x > 0.2 AND x < 0.6"],
        [("=", "0.3", "double")],
    ),
    (
        "string",
        [("a", "b"), ("c", "d"), ("e", "f")],
        ["x = 'c'", "x LIKE 'd%'", "startswith(x, 'c')"],
        [("=", "cc", "string")],
    ),
    (
        "date",
        ["2020-01-01", "2020-01-02", "2020-01-03"],
        ["x = '2020-01-02'", "x = DATE '2020-01-02'", "x > '2020-01-01' AND x < '2020-01-03'"],
        [("=", "2020-01-02", "date")],
    ),
    (
        "timestamp",
        ["2020-01-01T12:00:00.000Z", "2020-01-05T12:00:00.000Z", "2020-01-09T12:00:00.000Z"],
        [
            "x BETWEEN '2020-01-04' AND '2020-01-06'",
            "x = TIMESTAMP '2020-01-05 12:00:00'",
            "x = TIMESTAMP '2020-01-05 13:00:00+01:00'",
            "x > DATE '2020-01-04' AND x < DATE '2020-01-07'",
            "CAST(x AS DATE) = '2020-01-05'",
        ],
        [("=", "2020-01-05T12:00:00.000Z", "timestamp"), ("=", "2020-01-05", "date")],
    ),
    (
        "timestamp_ntz",
        ["2020-01-01T12:00:00.000", "2020-01-02T12:00:00.000", "2020-01-03T12:00:00.000"],
        [
            "x = TIMESTAMP_NTZ '2020-01-02 12:00:00'",
            "x = '2020-01-02 12:00:00'",
            "CAST(x AS DATE) = '2020-01-02'",
        ],
        [("=", "2020-01-02", "date")],
    ),
]


@pytest.mark.parametrize(("kind", "bounds", "texts", "nodes"), SELECTIVE, ids=[one[0] for one in SELECTIVE])
def test_statistics_of_every_type_leave_files_out(
    tmp_path: Path, kind: str, bounds: list[Any], texts: list[str], nodes: list[tuple[str, str, str]]
) -> None:
    """protocol §1.14, both versions of JSON predicates, and SQL hints"""
    batch = a_batch(tmp_path, {"x": kind}, [a_file(x=pair) for pair in bounds])
    for text in texts:
        assert kept(sql(text), batch) == [1], text
    for operator, value, declared in nodes:
        assert kept(json_of(compared("x", operator, value, declared)), batch) == [1], (value, declared)


@pytest.mark.parametrize(
    ("kind", "texts", "predicates"),
    [
        ("integer", ["1", "2", None], ["x = 2", "x > 1", "x NOT IN (1, 3)", "x <> 1"]),
        ("string", ["a", "b", None], ["x = 'b'", "x > 'a'", "x LIKE 'b%'", "NOT x = 'a'"]),
        ("date", ["2020-01-01", "2020-01-02", None], ["x = '2020-01-02'", "x > DATE '2020-01-01'"]),
        ("boolean", ["false", "true", None], ["x", "x = TRUE", "x IS TRUE", "NOT x = FALSE"]),
        ("float", ["0.1", "0.5", None], ["x = 0.5", "x > 0.25", "x >= 0.5D"]),
        ("double", ["0.1", "0.5", None], ["x = 0.5", "x > 0.25"]),
        ("decimal(10,2)", ["0.10", "0.50", None], ["x = 0.5", "x > 0.1", "x = 0.5D"]),
        ("timestamp", ["2020-01-01 00:00:00", "2020-01-09 00:00:00", None], ["x > '2020-01-05'"]),
        (
            "timestamp_ntz",
            ["2020-01-01 00:00:00", "2020-01-02 00:00:00", None],
            ["x > TIMESTAMP_NTZ '2020-01-01 12:00:00'"],
        ),
    ],
)
def test_partition_values_of_every_type_leave_files_out(
    tmp_path: Path, kind: str, texts: list[str | None], predicates: list[str]
) -> None:
    """protocol §11 'SQL hints on partition columns'"""
    files = [{**a_file(), "partitionValues": {"x": text}} for text in texts]
    batch = a_batch(tmp_path, {"x": kind, "y": "integer"}, files, ["x"])
    for text in predicates:
        assert kept(sql(text), batch) == [1], text
    assert kept(sql("x IS NULL"), batch) == sure(sql("x IS NULL"), batch) == [2]
    assert kept(sql("x IS NOT NULL"), batch) == [0, 1]


def test_three_valued_logic_sees_through_not_and_or(tmp_path: Path) -> None:
    files = [a_file(x=(0, 1), y=(0, 1)), a_file(x=(2, 3), y=(0, 1)), a_file(x=(2, 3), y=(5, 6))]
    batch = a_batch(tmp_path, {"x": "integer", "y": "integer"}, files)
    for text, expected in {
        "NOT (x < 2 OR y > 1)": [1],
        "NOT (x >= 2 AND y < 5)": [0, 2],
        "x = 2 AND rlike(y, 'a')": [1, 2],
        "x = 2 OR rlike(y, 'a')": [0, 1, 2],
        "x IS DISTINCT FROM 2 AND y = 5": [2],
        "NOT rlike(y, 'a') AND x < 2": [0],
        "FALSE": [],
        "TRUE": [0, 1, 2],
    }.items():
        assert kept(sql(text), batch) == expected, text


def test_null_counts_decide_what_is_null(tmp_path: Path) -> None:
    """protocol §5.8: neither bounds nor missing statistics say anything about nulls"""
    files = [a_file(x=(1, 2), nulls={"x": count}) for count in (0, 3)]
    files += [
        a_file(nulls={"x": 10}),
        a_file(x=(1, 2), nulls={}),
        a_file(10, deleted=4, x=(1, 2), nulls={"x": 4}),
    ]
    files += [{**a_file(), "stats": None}]
    batch = a_batch(tmp_path, {"x": "integer"}, files)
    is_null = json_of(null_test("x", "int"))
    assert kept(is_null, batch) == [1, 2, 3, 4, 5]
    assert kept(json_of({"op": "not", "children": [null_test("x", "int")]}), batch) == [0, 1, 3, 4, 5]
    assert sure(is_null, batch) == [2]
    assert kept(sql("x > 0"), batch) == [0, 1, 3, 4, 5]
    # A row of null is neither above nor not above: only the file without nulls is wanted whole.
    assert sure(sql("x > 0"), batch) == [0]
    assert kept(sql("NOT (x > 0)"), batch) == [5]


def test_a_column_of_booleans_stands_by_itself(tmp_path: Path) -> None:
    files = [{**a_file(), "partitionValues": {"x": text}} for text in ("true", "false", None)]
    batch = a_batch(tmp_path, {"x": "boolean", "y": "integer"}, files, ["x"])
    itself = {"op": "column", "name": "x", "valueType": "bool"}
    assert kept(json_of(itself), batch) == [0]
    assert kept(json_of({"op": "not", "children": [itself]}), batch) == [1]


def test_what_may_be_nan_is_never_below_an_upper_bound(tmp_path: Path) -> None:
    """Spark takes NaN for greater than all numbers; statistics leave it out, or say NaN and nothing else."""
    for kind in ("float", "double"):
        files = [a_file(x=(0.0, 1.0)), a_file(x=(5.0, "NaN")), a_file(x=("NaN", "NaN"))]
        batch = a_batch(tmp_path / kind, {"x": kind}, files)
        assert kept(sql("x > 100"), batch) == kept(sql("x >= 100"), batch) == [0, 1, 2]
        assert kept(sql("x < 3"), batch) == [0, 2]
        assert kept(sql("x = 0.5"), batch) == [0, 2]
        assert kept(sql("NOT (x >= 0)"), batch) == [0, 1, 2]
        assert kept(sql("x = CAST('NaN' AS DOUBLE)"), batch) == [0, 1, 2]
        assert sure(sql("x >= 0 OR x < 0"), batch) == []


def test_a_float_is_not_the_double_of_the_same_text(tmp_path: Path) -> None:
    """Writers tell a float by its shortest text; read as a double that is another number."""
    batch = a_batch(tmp_path, {"x": "float"}, [a_file(x=0.1), a_file(x=0.5)])
    assert kept(json_of(compared("x", "=", "0.10000000149011612", "double")), batch) == [0]
    assert kept(json_of(compared("x", "=", "0.1", "float")), batch) == [0]
    assert kept(json_of(compared("x", "=", "0.1", "double")), batch) == []
    assert kept(sql("x = 0.1"), batch) == [0]


def test_doubles_that_were_floats_have_bounds_of_floats(tmp_path: Path) -> None:
    widened = {
        "type": "double",
        "metadata": {"delta.typeChanges": [{"fromType": "float", "toType": "double"}]},
    }
    files = [a_file(x=0.1), a_file(x=0.5)]
    assert kept(sql("x = 0.10000000149011612D"), a_batch(tmp_path / "a", {"x": widened}, files)) == [0]
    assert kept(sql("x = 0.10000000149011612D"), a_batch(tmp_path / "b", {"x": "double"}, files)) == []


def test_both_ends_of_a_cut_time_are_a_millisecond_wide(tmp_path: Path) -> None:
    """protocol §1.14: clients cut constants to milliseconds, writers cut statistics."""
    files = [a_file(x="2020-01-01T00:00:00.123Z"), a_file(x="1969-12-31T23:59:59.999Z")]
    batch = a_batch(tmp_path, {"x": "timestamp"}, files)
    # The row of .123999, asked for as later than .1235, which was sent as .123.
    assert 0 in kept(json_of(compared("x", ">", "2020-01-01T00:00:00.123Z", "timestamp")), batch)
    # The row of .1231, asked for as earlier than .1235, which was sent as .123.
    assert 0 in kept(json_of(compared("x", "<", "2020-01-01T00:00:00.123Z", "timestamp")), batch)
    assert 0 not in kept(json_of(compared("x", ">", "2020-01-01T00:00:00.126Z", "timestamp")), batch)
    # Before 1970 a constant of half a millisecond less than zero is sent as zero.
    assert 1 in kept(json_of(compared("x", ">=", "1970-01-01T00:00:00Z", "timestamp")), batch)
    assert 0 not in sure(json_of(compared("x", "=", "2020-01-01T00:00:00.123Z", "timestamp")), batch)


def test_a_time_without_a_zone_may_be_a_day_off(tmp_path: Path) -> None:
    files = [a_file(x=f"2020-01-0{day}T12:00:00.000Z") for day in (1, 2, 3, 4, 5)]
    batch = a_batch(tmp_path / "a", {"x": "timestamp"}, files)
    assert kept(sql("x = '2020-01-03'"), batch) == [1, 2]
    assert kept(sql("x < TIMESTAMP '2020-01-02 00:00:00'"), batch) == [0, 1]
    assert kept(sql("x = TIMESTAMP '2020-01-03 12:00:00Z'"), batch) == [2]
    assert kept(sql("CAST(x AS DATE) > DATE '2020-01-03'"), batch) == [1, 2, 3, 4]
    assert sure(sql("CAST(x AS DATE) > DATE '2020-01-02'"), batch) == [3, 4]
    local = [a_file(x=f"2020-01-0{day}T12:00:00.000") for day in (1, 2, 3, 4, 5)]
    batch = a_batch(tmp_path / "b", {"x": "timestamp_ntz"}, local)
    assert kept(sql("x = TIMESTAMP_NTZ '2020-01-03 12:00:00'"), batch) == [2]
    assert kept(json_of(compared("x", "=", "2020-01-03T00:00:00Z", "timestamp")), batch) == [1, 2]


def test_times_in_partitions_are_read_in_the_clients_zone(tmp_path: Path) -> None:
    files = [{**a_file(), "partitionValues": {"x": f"2020-01-0{day} 00:00:00"}} for day in (1, 2, 3, 4, 5)]
    batch = a_batch(tmp_path, {"x": "timestamp", "y": "integer"}, files, ["x"])
    at_noon = compared("x", "=", "2020-01-03T12:00:00Z", "timestamp")
    assert kept(json_of(at_noon), batch) == [2, 3]
    assert sure(sql("x > '2020-01-02'"), batch) == [3, 4]


def test_upper_bounds_of_old_writers_are_not_above_all_texts(tmp_path: Path) -> None:
    prefix = "a" * 32
    batch = a_batch(tmp_path, {"x": "string"}, [a_file(x=(prefix, prefix + "\ufffd")), a_file(x=("b", "c"))])
    assert kept(sql(f"x > '{prefix}\ufffda'"), batch) == [0, 1]
    assert kept(sql(f"x = '{prefix}\U0001f600'"), batch) == [0]
    assert kept(sql(f"x = '{prefix}z'"), batch) == [0]
    assert kept(sql("x > 'ab'"), batch) == [1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"x > {1 << 40}", []),
        (f"x < {1 << 40}", [0]),
        (f"x >= -{1 << 40}", [0]),
        ("x < 1e300", [0]),
        (f"x = {'9' * 400}", []),
        ("x < 99999999999999999999999999999.5", [0]),
        ("x > 1e999", [0]),
        ("x > 0.5", [0]),
        ("x > 1.5", []),
        ("x <> 1.5", [0]),
    ],
)
def test_numbers_beyond_the_columns_own_compare_as_numbers(
    tmp_path: Path, text: str, expected: list[int]
) -> None:
    batch = a_batch(tmp_path, {"x": "integer"}, [a_file(x=1)])
    assert kept(sql(text), batch) == expected


def test_a_list_of_several_types_is_compared_in_one_of_them(tmp_path: Path) -> None:
    files = [{**a_file(), "partitionValues": {"x": "1.0"}}]
    batch = a_batch(tmp_path, {"x": "double", "y": "integer"}, files, ["x"])
    # As texts, '1.0' is neither '1' nor 'a'.
    assert kept(sql("x NOT IN (1, 'a')"), batch) == [0]
    assert kept(sql("x NOT IN ('1')"), batch) == [0]
    assert kept(sql("x NOT IN (1, 2)"), batch) == []


def test_a_text_is_a_number_only_when_it_is_written_like_one(tmp_path: Path) -> None:
    """In lists some clients compare numbers with texts as texts."""
    batch = a_batch(
        tmp_path, {"x": "integer", "y": "integer"}, [{**a_file(), "partitionValues": {"x": "5"}}], ["x"]
    )
    assert kept(sql("x NOT IN ('5')"), batch) == kept(sql("x = '6'"), batch) == []
    for text in ("05", "+5", " 5", "5.0", "5e0", "-0"):
        assert kept(sql(f"x NOT IN ('{text}')"), batch) == kept(sql(f"x = '{text}'"), batch) == [0]


def test_floats_in_sql_are_compared_as_floats_or_as_doubles(tmp_path: Path) -> None:
    files = [
        {**a_file(), "partitionValues": {"x": "0.1"}},
        {**a_file(), "partitionValues": {"x": "16777216"}},
    ]
    batch = a_batch(tmp_path, {"x": "float", "y": "integer"}, files, ["x"])
    assert kept(sql("x = 0.1"), batch) == kept(sql("x = 0.1F"), batch) == [0]
    assert kept(sql("x = 0.1D"), batch) == []
    # As a float this number is the one before it.
    assert kept(sql("x = 16777217"), batch) == [1]
    assert kept(sql("NOT (x = 0.1)"), batch) == [0, 1]


def test_decimals_are_compared_with_doubles_as_doubles(tmp_path: Path) -> None:
    files = [
        {**a_file(), "partitionValues": {"x": text}}
        for text in ("0.100000000000000000", "0.100000000000001000")
    ]
    batch = a_batch(tmp_path, {"x": "decimal(20,18)", "y": "integer"}, files, ["x"])
    # The double of this text is a little more than the decimal.
    assert kept(sql("x = 0.1D"), batch) == kept(sql("x = 0.1"), batch) == [0]


def test_files_without_statistics_stay(tmp_path: Path) -> None:
    batch = a_batch(
        tmp_path, {"x": "integer"}, [{**a_file(), "stats": None}, a_file(x=(None, 5)), a_file(x=(1, None))]
    )
    assert kept(sql("x = 9"), batch) == [0, 2]
    assert kept(sql("x = 0"), batch) == [0, 1]
    assert sure(sql("x > -1"), batch) == [2]


@pytest.mark.parametrize("kind", ["integer", "string", "date", "double"])
def test_a_long_list_leaves_out_what_lies_between_its_constants(tmp_path: Path, kind: str) -> None:
    def value(number: int) -> Any:
        day = f"2020-01-{number:02}"
        return {"integer": number, "string": f"{number:02}", "date": day, "double": float(number)}[kind]

    pairs = [(2, 3), (3, 3), (3, 4), (4, 5), (1, 1), (29, 30), (30, 31), (31, 31)]
    files = [a_file(x=(value(low), value(high))) for low, high in pairs]
    # Every second day: 2, 4, …, 30.
    listed = [value(number) for number in (*range(2, 31, 2), 30, 2)]
    texts = ", ".join(f"'{one}'" if isinstance(one, str) else repr(one) for one in listed)
    batch = a_batch(tmp_path, {"x": kind}, files)
    assert kept(sql(f"x IN ({texts})"), batch) == [0, 2, 3, 5, 6]
    assert sure(sql(f"x IN ({texts})"), batch) == []
    some = [{**a_file(), "partitionValues": {"x": str(value(number))}} for number in (1, 2, 3, 30, 31)]
    some.append({**a_file(), "partitionValues": {"x": None}})
    batch = a_batch(tmp_path / "partitioned", {"x": kind, "y": "integer"}, some, ["x"])
    assert kept(sql(f"x IN ({texts})"), batch) == sure(sql(f"x IN ({texts})"), batch) == [1, 3]
    assert kept(sql(f"x NOT IN ({texts})"), batch) == [0, 2, 4]
