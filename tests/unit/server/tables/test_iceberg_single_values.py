"""Iceberg's bounds in bytes, as values: what was promoted, cut or is of a wrong length is still true, or unknown."""

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakeshare_server.tables.iceberg.partitions import decode_bounds

LONG, INT = struct.Struct("<q").pack, struct.Struct("<i").pack


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.int64(), [LONG(-1), LONG(2**62)], [-1, 2**62]),
        (pa.int64(), [INT(-7), LONG(2**40), None, b"", b"123"], [-7, 2**40, None, None, None]),
        (pa.int32(), [INT(-7), LONG(1)], [-7, None]),
        (pa.float64(), [struct.pack("<d", 0.1), struct.pack("<f", 1.5), None], [0.1, 1.5, None]),
        (
            pa.float64(),
            [struct.pack("<d", float("nan")), struct.pack("<d", float("inf"))],
            [None, float("inf")],
        ),
        (pa.float32(), [struct.pack("<f", -0.0)], [-0.0]),
        (pa.bool_(), [b"\x00", b"\x01", None], [False, True, None]),
        (pa.date32(), [INT(15706), INT(-1)], [date(2013, 1, 1), date(1969, 12, 31)]),
        (
            pa.timestamp("us", "UTC"),
            [LONG(1_356_998_400_123_456), INT(1)],
            [datetime(2013, 1, 1, 0, 0, 0, 123_456, UTC), None],
        ),
        # v3 lets a date become a timestamp without a zone: older files have days.
        (pa.timestamp("us"), [LONG(1), INT(1)], [datetime(1970, 1, 1, 0, 0, 0, 1), datetime(1970, 1, 2)]),  # noqa: DTZ001
        (
            pa.decimal128(38, 2),
            [
                b"\x00\xff",
                b"\xff",
                b"\x01",
                None,
                b"",
                bytes(17),
                (-(10**37)).to_bytes(16, "big", signed=True),
            ],
            [Decimal("2.55"), Decimal("-0.01"), Decimal("0.01"), None, None, None, Decimal(-(10**35))],
        ),
    ],
)
@pytest.mark.parametrize("before", [0, 3])
def test_bounds_become_the_values_they_are(
    kind: pa.DataType, values: list[bytes | None], expected: list[Any], before: int
) -> None:
    """Also as a part of a longer column, which begins elsewhere in its memory."""
    whole = pa.array([b"12345678"] * before + values, pa.binary())
    assert decode_bounds(whole.slice(before), kind, is_upper=False).to_pylist() == [
        None if one is None else pytest.approx(one) if isinstance(one, float) else one for one in expected
    ]


def test_a_text_cut_inside_a_character_bounds_from_below_only() -> None:
    values = pa.array([b"ab", "aä".encode()[:-1], b"\xff", None], pa.binary())
    assert decode_bounds(values, pa.string(), is_upper=False).to_pylist() == ["ab", "a", "", None]
    assert decode_bounds(values, pa.string(), is_upper=True).to_pylist() == ["ab", None, None, None]


@pytest.mark.parametrize("kind", [pa.int64(), pa.decimal128(9, 2), pa.string(), pa.bool_(), pa.float64()])
def test_columns_of_which_nothing_is_known_are_null(kind: pa.DataType) -> None:
    for values in ([], [None, None]):
        found = decode_bounds(pa.array(values, pa.binary()), kind, is_upper=True)
        assert (found.type, found.to_pylist()) == (kind, values)
