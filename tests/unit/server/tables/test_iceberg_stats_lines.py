"""What recipients are told of an Iceberg file's statistics: wide bounds that say so, times in milliseconds."""

import json

import pyarrow as pa
import pytest

from lakeshare_server.tables.lines import LINE_COLUMNS, render_lines

KIND = pa.timestamp("us", "UTC")


def common(kind: pa.DataType, low: int, high: int) -> str:
    """The part of a file's line that both formats have, for a file with bounds of one column of times."""

    def struct(value: int) -> pa.StructArray:
        return pa.StructArray.from_arrays([pa.array([value], pa.int64()).cast(kind)], ["at"])

    files = pa.table(
        {
            "path": ["/t/f"],
            "name": ["/t/f"],
            "size": [7],
            "modification_time": [1],
            "rows": [2],
            "partition": pa.nulls(1, pa.struct([])),
            "min": struct(low),
            "max": struct(high),
            "null_count": pa.StructArray.from_arrays([pa.array([0])], ["at"]),
        }
    )
    [said] = render_lines(files, ())[LINE_COLUMNS.index("common")].to_pylist()
    return said


def test_bounds_are_said_to_be_wide_and_times_have_milliseconds_byte_for_byte() -> None:
    """Delta PROTOCOL, "Per-file Statistics": tightBounds absent would mean exact bounds"""
    assert common(KIND, 1_356_998_400_123_456, 1_356_998_400_123_001) == (
        '"partitionValues":{},"size":7,"stats":"{\\"numRecords\\":2,'
        '\\"minValues\\":{\\"at\\":\\"2013-01-01T00:00:00.123Z\\"},'
        '\\"maxValues\\":{\\"at\\":\\"2013-01-01T00:00:00.124Z\\"},'
        '\\"nullCount\\":{\\"at\\":0},\\"tightBounds\\":false}"'
    )


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-1, -1, ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z")),
        (-1001, -1001, ("1969-12-31T23:59:59.998Z", "1969-12-31T23:59:59.999Z")),
        (-2000, 2000, ("1969-12-31T23:59:59.998Z", "1970-01-01T00:00:00.002Z")),
        (0, 1, ("1970-01-01T00:00:00.000Z", "1970-01-01T00:00:00.001Z")),
    ],
)
def test_a_lower_bound_is_rounded_down_and_an_upper_up_before_1970_too(
    low: int, high: int, said: tuple[str, str]
) -> None:
    stats = json.loads(json.loads(f"{{{common(KIND, low, high)}}}")["stats"])
    assert (stats["minValues"]["at"], stats["maxValues"]["at"]) == said


def test_an_upper_bound_beyond_the_year_9999_is_left_out() -> None:
    stats = json.loads(json.loads(f"{{{common(KIND, 0, 253_402_300_799_999_001)}}}")["stats"])
    assert (stats["minValues"], stats["maxValues"]) == ({"at": "1970-01-01T00:00:00.000Z"}, {})


def test_times_without_a_zone_have_no_zone() -> None:
    stats = json.loads(json.loads(f"{{{common(pa.timestamp('us'), 0, 1)}}}")["stats"])
    assert stats["maxValues"] == {"at": "1970-01-01T00:00:00.001"}
