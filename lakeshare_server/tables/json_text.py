"""JSON text made of Arrow columns: whole columns at a time, no Python object per value.

Text is kept as parts, constants and columns in turn, and joined once at the end: joining is what costs time.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.byte_strings import is_plain

# The years 1 to 9999, in the units Arrow counts them in.
DAYS = (-719_162, 2_932_896)
MILLISECOND_CHARACTERS = len("2013-01-01T00:00:00.000")
MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)

Part: TypeAlias = str | pa.Array


@dataclass(frozen=True)
class JsonText:
    """How text is quoted: plainly, or for JSON that itself goes into a JSON string."""

    quote: str
    depth: int

    def string(self, values: pa.Array) -> list[Part]:
        """Each string as a JSON string."""
        if not is_plain(values, without=b'"'):
            different = pc.drop_null(pc.unique(values))
            escaped = pa.array([self.escaped(value) for value in different.to_pylist()], pa.string())
            values = pc.take(escaped, pc.index_in(values, different))
        return [self.quote, values, self.quote]

    def value(self, values: pa.Array, *, is_upper: bool = False) -> list[Part] | None:
        """Values the way statistics write them; None for a type that statistics do not carry.

        Times have milliseconds there (Delta PROTOCOL, "Per-file Statistics"): a lower bound goes down, an upper up.
        """
        kind = values.type
        if pa.types.is_string(kind):
            return self.string(values)
        if pa.types.is_date(kind):
            return [self.quote, value_text(values), self.quote]
        if pa.types.is_timestamp(kind):
            text = pc.replace_substring(value_text(_milliseconds(values, is_upper=is_upper)), " ", "T")
            zone = "" if kind.tz is None else "Z"
            return [self.quote, pc.utf8_slice_codeunits(text, 0, MILLISECOND_CHARACTERS), zone + self.quote]
        if pa.types.is_floating(kind):
            finite = pc.is_finite(values)
            kept = values if pc.all(finite, min_count=0).as_py() else pc.if_else(finite, values, None)
            return [pc.cast(kept, pa.string())]
        if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
            return [pc.cast(values, pa.string())]
        return None

    def object(self, members: Sequence[tuple[str, Sequence[Part]]]) -> list[Part]:
        """An object per row; a member that is null in a row is left out of it."""
        parts: list[Part] = []
        for name, value in members:
            named = [f",{self.quote}{self.escaped(name)}{self.quote}:", *value]
            parts += [pc.fill_null(joined(named), "")] if _has_nulls(value) else named
        if not parts:
            return ["{}"]
        if isinstance(parts[0], str):
            return ["{" + parts[0].removeprefix(","), *parts[1:], "}"]
        return ["{", pc.ascii_ltrim(joined(parts, null=""), ","), "}"]

    def escaped(self, value: str) -> str:
        """A string's characters as they stand between the quotes."""
        for _ in range(self.depth):
            value = json.dumps(value, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")
        return value


PLAIN = JsonText('"', 1)
NESTED = JsonText('\\"', 2)


def joined(parts: Sequence[Part], null: str | None = None) -> pa.Array:
    """The parts as one column; a row with a null part is null, or has `null` in its place."""
    if null is None:
        return pc.binary_join_element_wise(*parts, "")
    return pc.binary_join_element_wise(*parts, "", null_handling="replace", null_replacement=null)


def value_text(values: pa.Array) -> pa.Array:
    """Values as the protocol writes partition values, without quotes. What it has no text for becomes null."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        return pc.cast(
            pc.cast(_common_years(values, pa.int64(), MICROSECONDS), pa.timestamp("us")), pa.string()
        )
    if pa.types.is_date(kind):
        return pc.cast(_common_years(values, pa.int32(), DAYS), pa.string())
    if pa.types.is_binary(kind):
        return pa.nulls(len(values), pa.string())
    return pc.cast(values, pa.string())


def partition_text(values: pa.Array) -> pa.Array:
    """Partition values as text, null for a value without one.

    Times with a zone have the form that names it (Delta PROTOCOL, "Partition Value Serialization"): in the other form
    they would be of each client's own zone.
    """
    text = value_text(values)
    if not pa.types.is_timestamp(values.type) or values.type.tz is None:
        return text
    return pc.binary_join_element_wise(pc.replace_substring(text, " ", "T"), "Z", "")


def _milliseconds(values: pa.Array, *, is_upper: bool) -> pa.Array:
    """Times in microseconds, rounded to whole milliseconds."""
    numbers = pc.cast(values, pa.int64())
    # Arrow's division rounds towards zero, and a bound has to go its own way before 1970 too.
    part = pc.subtract(numbers, pc.multiply(pc.divide(numbers, 1000), 1000))
    down = pc.subtract(numbers, pc.if_else(pc.less(part, 0), pc.add(part, 1000), part))
    rounded = pc.if_else(pc.greater(numbers, down), pc.add(down, 1000), down) if is_upper else down
    return pc.cast(rounded, values.type)


def _has_nulls(parts: Sequence[Part]) -> bool:
    return any(not isinstance(part, str) and part.null_count for part in parts)


def _common_years(values: pa.Array, since: pa.DataType, limits: tuple[int, int]) -> pa.Array:
    """The values of four-digit years; others have no text that every reader takes."""
    numbers = pc.cast(values, since)
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or (limits[0] <= ends["min"] and ends["max"] <= limits[1]):
        return values
    common = pc.and_(pc.greater_equal(numbers, limits[0]), pc.less_equal(numbers, limits[1]))
    return pc.if_else(common, values, None)
