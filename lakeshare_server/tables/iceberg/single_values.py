"""Iceberg's single values in bytes (spec, Appendix D, "Single-value serialization") as Arrow columns.

Whatever is not of the length its type has becomes null, which is unknown: a bound that is missing rules out nothing.
"""

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.byte_strings import byte_strings

DECIMAL_BYTES = 16
DAY_US = 86_400_000_000
# Columns that were promoted keep the narrow bounds of older manifests (spec, "Schema Evolution").
NARROWER = {pa.int64(): pa.int32(), pa.float64(): pa.float32()}


def decoded(values: pa.BinaryArray, kind: pa.DataType, *, is_upper: bool) -> pa.Array:
    """Bounds in the type that values of their column are kept in."""
    if pa.types.is_string(kind):
        return _texts(values, is_upper=is_upper)
    if pa.types.is_decimal(kind):
        return _decimals(values, kind)
    if pa.types.is_boolean(kind):
        return pc.not_equal(_of_width(values, pa.uint8()), 0)
    numbers = _numbers(values, kind)
    # Old writers let NaN into bounds; it is in no order with anything.
    return pc.if_else(pc.is_nan(numbers), None, numbers) if pa.types.is_floating(kind) else numbers


def _numbers(values: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        exact = _of_width(values, pa.int64())
        # A date that became a timestamp (v3) has its bounds in days.
        days = (
            pc.multiply(_of_width(values, pa.int32()).cast(pa.int64()), DAY_US) if kind.tz is None else None
        )
        return (exact if days is None else pc.coalesce(exact, days)).cast(kind)
    own = _of_width(values, kind)
    if kind not in NARROWER or not own.null_count:
        return own
    return pc.coalesce(own, _of_width(values, NARROWER[kind]).cast(kind))


def _of_width(values: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Little-endian values of as many bytes as the type has; null for those of other lengths."""
    width = kind.bit_width // 8
    fits = pc.equal(pc.binary_length(values), width)
    is_plain = not values.null_count and pc.all(fits, min_count=0).as_py()
    if not is_plain:
        values = pc.if_else(pc.fill_null(fits, False), values, bytes(width))
    _, _, content = values.buffers()
    if content is None:
        return pa.nulls(len(values), kind)
    numbers = pa.Array.from_buffers(kind, len(values), [None, content.slice(_start(values))])
    return numbers if is_plain else pc.if_else(pc.fill_null(fits, False), numbers, None)


def _start(values: pa.BinaryArray) -> int:
    start: int = memoryview(values.buffers()[1]).cast("i")[values.offset]
    return start


def _decimals(values: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Two's complement, the highest byte first and as few as it takes; Arrow has sixteen, the lowest first."""
    different = values.dictionary_encode()
    said = byte_strings(different.dictionary)
    content = b"".join(
        value[::-1].ljust(DECIMAL_BYTES, b"\xff" if value[:1] > b"\x7f" else b"\x00")[:DECIMAL_BYTES]
        for value in said
    )
    numbers = pa.Array.from_buffers(kind, len(said), [None, pa.py_buffer(content)])
    fits = pa.array([0 < len(value) <= DECIMAL_BYTES for value in said], pa.bool_())
    return pc.take(pc.if_else(fits, numbers, None), different.indices)


def _texts(values: pa.BinaryArray, *, is_upper: bool) -> pa.StringArray:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(value, is_upper=is_upper) for value in values.to_pylist()], pa.string())


def _text(value: bytes | None, *, is_upper: bool) -> str | None:
    """A text that may be cut inside a character: what comes before it is as low, but not as high."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError as error:
        return None if is_upper else value[: error.start].decode() if value else None
