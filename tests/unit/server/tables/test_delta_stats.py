"""Statistics as writers left them: what parses becomes a typed bound, what does not is unknown, one value at a time.

A wrong bound would lose rows, an error would lose the table: neither may come of any text.
"""

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakeshare_server.tables.delta import files
from lakeshare_server.tables.delta.files import Statistics, parse_stats
from lakeshare_server.tables.snapshot import parse_schema
from tests.builders.campaign import campaign_size

KINDS: dict[str, Any] = {
    "text": "string",
    "byte": "byte",
    "short": "short",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "decimal": "decimal(20,2)",
    "date": "date",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "truth": "boolean",
    "raw": "binary",
    "future": "interval of tomorrow",
    "list": {"type": "array", "elementType": "long", "containsNull": True},
}


def a_field(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def a_schema(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "struct", "fields": list(fields)})


SCHEMA = a_schema(*(a_field(name, kind) for name, kind in KINDS.items()))


def parsed(*texts: str | None, schema: str = SCHEMA, left_out: tuple[str, ...] = ()) -> Statistics:
    fields = [field for field in parse_schema(schema) if field.name not in left_out]
    return parse_stats(pa.array(texts, pa.string()), fields)


def low_of(text: str, column: str) -> Any:
    return parsed(text).min.to_pylist()[0].get(column)


def low(column: str, value: str) -> Any:
    """What becomes of a lower bound whose JSON is `value`; the row count shows that the rest was read."""
    other, beside = ("long", 7) if column == "text" else ("text", "beside")
    said = parsed(f'{{"numRecords":3,"minValues":{{"{column}":{value},"{other}":{json.dumps(beside)}}}}}')
    assert said.rows.to_pylist() == [3]
    [bounds] = said.min.to_pylist()
    assert bounds[other] == beside
    return bounds.get(column)


EVERY = {
    "text": ("aé", "aé"),
    "byte": (-128, -128),
    "short": (32767, 32767),
    "int": (-(2**31), -(2**31)),
    "long": (2**63 - 1, 2**63 - 1),
    "float": (1.5, 1.5),
    "double": (-0.0, -0.0),
    "date": ("2013-01-02", date(2013, 1, 2)),
    "at": ("2013-01-02T03:04:05.678Z", datetime(2013, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)),
    "local": ("2013-01-02T03:04:05.678", datetime.fromisoformat("2013-01-02T03:04:05.678")),
}


@pytest.mark.parametrize("column", EVERY)
def test_bounds_have_the_type_of_their_column(column: str) -> None:
    written, expected = EVERY[column]
    assert low(column, json.dumps(written)) == expected
    said = parsed(json.dumps({"numRecords": 1, "maxValues": {column: written}, "nullCount": {column: 1}}))
    assert said.max.to_pylist() == [{column: expected}]
    assert said.null_count.to_pylist() == [{column: 1}]
    kinds = {"byte": pa.int8(), "short": pa.int16(), "int": pa.int32(), "date": pa.date32()}
    if column in kinds:
        assert said.max.type.field(column).type == kinds[column]


UNKNOWN = [
    ("int", "2147483648"),
    ("byte", "128"),
    ("short", "-32769"),
    ("long", "9223372036854775808"),
    ("long", "1e30"),
    ("long", "123456789012345678901234567890"),
    ("long", '"12"'),
    ("long", "1.5"),
    ("long", "true"),
    ("long", "{}"),
    ("long", "[1]"),
    ("long", "null"),
    ("double", '"NaN"'),
    ("double", "true"),
    ("double", '"x"'),
    ("double", "[]"),
    ("float", '"nan"'),
    ("decimal", '"x"'),
    ("decimal", "true"),
    ("text", "5"),
    ("text", "[]"),
    ("date", '"+12013-01-02"'),
    ("date", '"2013-02-30"'),
    ("date", '"2013-01-02T00:00:00"'),
    ("date", '"yesterday"'),
    ("date", "20130102"),
    ("at", '"2013-01-02T03:04:05"'),
    ("at", '"+12013-01-02T03:04:05Z"'),
    ("at", '"later"'),
    ("at", "5"),
    ("local", '"2013-01-02T03:04:05Z"'),
    ("local", "{}"),
    ("truth", "false"),
    ("raw", '"AAAA"'),
    ("future", "5"),
    ("list", "[1]"),
]


@pytest.mark.parametrize(("column", "value"), UNKNOWN)
def test_what_is_no_value_of_its_column_is_unknown_and_nothing_else_is(column: str, value: str) -> None:
    assert low(column, value) is None


def test_a_bound_that_is_no_number_is_no_number_or_unknown() -> None:
    found = low("double", "NaN")
    assert found is None or math.isnan(found)


KNOWN = [
    ("long", "12.0", 12),
    ("long", "1e3", 1000),
    ("long", "-9223372036854775808", -(2**63)),
    ("double", "12", 12.0),
    ("double", '"12.5"', 12.5),
    ("double", "1e999", math.inf),
    ("double", '"Infinity"', math.inf),
    ("double", "-Infinity", -math.inf),
    ("text", '"a\\u0000\\n\\"\\ud83d\\ude00"', 'a\x00\n"\U0001f600'),
    ("date", '"0001-01-01"', date(1, 1, 1)),
    ("date", '"9999-12-31"', date(9999, 12, 31)),
    ("at", '"1583-01-01T00:00:00Z"', datetime(1583, 1, 1, tzinfo=UTC)),
    ("at", '"2013-01-02T03:04:05.123456Z"', datetime(2013, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)),
    ("at", '"2013-01-02T03:04:05+01:00"', datetime(2013, 1, 2, 2, 4, 5, tzinfo=UTC)),
]


@pytest.mark.parametrize(("column", "value", "expected"), KNOWN)
def test_odd_spellings_that_mean_a_value_are_read(column: str, value: str, expected: object) -> None:
    assert low(column, value) == expected


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**18), max_value=10**18))
@settings(deadline=None)
def test_bounds_of_decimals_are_never_tighter_than_they_were_written(value: Decimal) -> None:
    """JSON readers take decimals for doubles: the bounds are widened by what that may lose."""
    for text in (str(value), f'"{value}"'):
        said = parsed(f'{{"numRecords":1,"minValues":{{"decimal":{text}}},"maxValues":{{"decimal":{text}}}}}')
        [least], [most] = said.min.to_pylist(), said.max.to_pylist()
        assert Decimal(least["decimal"]) <= value <= Decimal(most["decimal"])
        assert abs(most["decimal"] - least["decimal"]) <= abs(float(value)) * 1e-14


NO_STATISTICS = [
    None,
    "",
    " ",
    "null",
    "5",
    '"x"',
    "[]",
    "{",
    '{"numRecords":1',
    '{"numRecords":1}}',
    '{"numRecords":1}{"numRecords":2}',
    '{"numRecords":1} x',
    "{'numRecords':1}",
    "[" * 5000,
    '{"a":' * 5000,
    "\x00",
]


@pytest.mark.parametrize("text", NO_STATISTICS)
def test_what_is_no_statistics_says_nothing_and_is_not_passed_on(text: str | None) -> None:
    good = '{"numRecords":2,"minValues":{"long":1}}'
    said = parsed(good, text, good)
    assert said.rows.to_pylist() == [2, None, 2]
    assert said.text.to_pylist() == [good, None, good]
    assert [bounds["long"] for bounds in said.min.to_pylist()] == [1, None, 1]


def test_texts_that_only_together_look_right_are_not_mixed_up() -> None:
    """As many objects as texts, but not one in each: nothing may be taken for a neighbour's."""
    said = parsed("", '{"numRecords":1}{"numRecords":2}', '{"numRecords":3}')
    assert said.rows.to_pylist() == [None, None, 3]
    said = parsed('{"numRecords":1', "}", '{"numRecords":2}{"numRecords":3}')
    assert said.rows.to_pylist() == [None, None, None]


@pytest.mark.parametrize("count", ["-1", '"x"', "1.5", "null", "true", "{}", "1e40", "9223372036854775808"])
def test_a_row_count_that_is_none_leaves_the_bounds(count: str) -> None:
    """The bounds hold for pruning; the text is not passed on, Delta's readers want the count."""
    said = parsed(f'{{"numRecords":{count},"minValues":{{"long":1}}}}')
    assert said.rows.to_pylist() == [None]
    assert said.min.to_pylist() == [{"long": 1}]
    assert said.text.to_pylist() == [None]


def test_texts_may_have_lines_and_members_nobody_knows() -> None:
    text = json.dumps(
        {"numRecords": 2, "tightBounds": False, "minValues": {"long": 1, "gone": [1]}, "x": {"y": None}},
        indent=2,
    )
    said = parsed(text, text.replace("\n", "\r\n"))
    assert said.rows.to_pylist() == [2, 2]
    assert said.min.to_pylist() == [{"long": 1}] * 2
    assert said.text.to_pylist()[0] == text


def test_a_part_of_statistics_that_is_no_object_leaves_the_others() -> None:
    said = parsed('{"numRecords":2,"minValues":[1],"maxValues":{"long":5},"nullCount":"x"}')
    assert said.rows.to_pylist() == [2]
    assert said.max.to_pylist() == [{"long": 5}]
    assert (said.min.type.num_fields, said.null_count.type.num_fields) == (0, 0)


DEEP = {"type": "struct", "fields": [a_field("s", "string")]}
NESTED = a_schema(
    a_field("outer", {"type": "struct", "fields": [a_field("a.b", "long"), a_field("deep", DEEP)]}),
    a_field("map", {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}),
)


def test_bounds_of_nested_columns_are_nested() -> None:
    bounds = '{"outer":{"a.b":3,"deep":{"s":"x"}},"map":{"k":1}}'
    text = f'{{"numRecords":1,"minValues":{bounds},"nullCount":{{"outer":{{"a.b":0}}}}}}'
    said = parsed(text, '{"numRecords":1,"minValues":{"outer":5}}', schema=NESTED)
    assert said.min.to_pylist()[0] == {"outer": {"a.b": 3, "deep": {"s": "x"}}}
    assert said.null_count.to_pylist()[0] == {"outer": {"a.b": 0}}
    second = said.min.to_pylist()[1]
    assert second["outer"] in (None, {"a.b": None, "deep": {"s": None}}, {"a.b": None, "deep": None})


def mapped(name: str, kind: Any, physical: str) -> dict[str, Any]:
    return a_field(name, kind, **{"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": 1})


def test_statistics_of_mapped_columns_are_told_by_their_logical_names() -> None:
    """Also when one column's logical name is another's physical one, after renames."""
    inner = {"type": "struct", "fields": [mapped("b", "long", "col-2")]}
    schema = a_schema(mapped("a", "long", "b"), mapped("b", "long", "a"), mapped("s", inner, "col-1"))
    text = '{"numRecords":1,"minValues":{"a":1,"b":2,"col-1":{"col-2":3},"s":{"b":4}}}'
    said = parsed(text, schema=schema)
    assert said.min.to_pylist() == [{"a": 2, "b": 1, "s": {"b": 3}}]
    assert said.text.to_pylist() == [text]


def test_partition_columns_have_no_statistics() -> None:
    said = parsed('{"numRecords":1,"minValues":{"long":1,"int":2}}', left_out=("long",))
    assert said.min.to_pylist() == [{"int": 2}]


def test_no_texts_and_no_columns_are_no_trouble() -> None:
    assert len(parsed().rows) == 0
    assert parsed(None, None).rows.to_pylist() == [None, None]
    assert parsed('{"numRecords":1}', schema=a_schema()).rows.to_pylist() == [1]


def test_a_text_longer_than_a_block_is_read() -> None:
    long = json.dumps({"numRecords": 1, "minValues": {"text": "x" * 6_000_000}})
    said = parsed('{"numRecords":2}', long)
    assert said.rows.to_pylist() == [2, 1]
    assert len(said.min.to_pylist()[1]["text"]) == 6_000_000


def test_one_bad_text_among_many_costs_only_itself() -> None:
    texts = [f'{{"numRecords":{number},"minValues":{{"long":{number}}}}}' for number in range(3000)]
    texts[1500] = "no JSON"
    texts[2999] = '{"numRecords":1,"minValues":{"long":"x"}}'
    said = parsed(*texts)
    expected: list[int | None] = list(range(3000))
    expected[1500], expected[2999] = None, None
    assert [bounds["long"] for bounds in said.min.to_pylist()] == expected
    assert said.rows.to_pylist() == [*expected[:2999], 1]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["2013-01-02", "2013-01-02T03:04:05Z", "NaN", "1e400"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*KINDS, "x"]), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
BOUNDS = st.dictionaries(st.sampled_from([*KINDS, "x"]), VALUES, max_size=4)
STATISTICS = st.fixed_dictionaries(
    {},
    optional={
        "numRecords": st.integers(0, 100) | VALUES,
        "minValues": BOUNDS | VALUES,
        "maxValues": BOUNDS,
        "nullCount": BOUNDS,
    },
).map(json.dumps)
TEXTS = STATISTICS | st.sampled_from(NO_STATISTICS) | st.text(max_size=8)


def told(said: Statistics, place: int) -> list[Any]:
    """What is known of one file, whatever columns its neighbours know."""
    structs = [
        {name: value for name, value in (one[place].as_py() or {}).items() if value is not None and value == value}
        for one in (said.min, said.max, said.null_count)
    ]  # fmt: skip
    return [said.rows[place].as_py(), said.text[place].as_py(), structs]


@pytest.mark.campaign
@given(st.lists(TEXTS, min_size=1, max_size=6))
@settings(deadline=None, max_examples=campaign_size(in_ci=100, in_campaign=3_000))
def test_what_is_known_of_a_file_does_not_depend_on_its_neighbours(texts: list[str | None]) -> None:
    together = parsed(*texts)
    assert len(together.rows) == len(together.min) == len(together.text) == len(texts)
    for place, text in enumerate(texts):
        assert told(together, place) == told(parsed(text), 0), text


NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=4)
VALUES = st.dictionaries(
    st.text(max_size=4), LEAVES | st.dictionaries(st.text(max_size=2), LEAVES, max_size=2)
)
OBJECTS = st.fixed_dictionaries(
    {"numRecords": NUMBERS | LEAVES},
    optional={
        "minValues": VALUES,
        "maxValues": VALUES,
        "nullCount": VALUES,
        "tightBounds": LEAVES,
        "more": LEAVES,
    },
)
DAMAGES = st.sampled_from(["", ",", "}", "{", '"', "\\", "\n", "0", "-", "e", "\x00", ":", "null"])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A statistics text as a writer may have left it: one in two is damaged at one place."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    text = json.dumps(draw(OBJECTS), separators=separators, ensure_ascii=draw(st.booleans()))
    if draw(st.booleans()):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(DAMAGES) + text[place + draw(st.integers(0, 2)) :]
    return text


@given(st.lists(st.none() | texts(), max_size=3))
@settings(max_examples=campaign_size(300, 20_000), deadline=None)
def test_row_counts_are_the_same_with_and_without_columns(found: list[str | None]) -> None:
    """Without columns, texts of the usual form are matched and not parsed: the results must not differ."""
    alone, beside = parsed(*found, schema=a_schema()), parsed(*found, schema=a_schema(a_field("id", "long")))
    assert alone.rows.to_pylist() == beside.rows.to_pylist()
    assert alone.text.to_pylist() == beside.text.to_pylist()


@pytest.mark.parametrize(
    "text",
    [
        '{"numRecords":3}',
        '{"numRecords":0,"minValues":{},"maxValues":{"a b":-0.5e-7},"nullCount":{"a":null,"é":"\u00e9"}}',
        '{"numRecords":10,"minValues":{"a":"x","b":true},"maxValues":{"a":"y"},"tightBounds":false}',
    ],
)
def test_usual_texts_are_matched(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_parsed", None)
    assert parsed(text, text, None, schema=a_schema()).text.to_pylist() == [text, text, None]
