"""What an index batch knows of a column's values in each file: bounds, nulls, or the very value of a partition."""

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.columns import Column, Columns, Path
from lakeshare_server.tables.predicate import ColumnName
from lakeshare_server.tables.ruled_out import Bounds, Ruled

ZERO = pa.scalar(0, pa.int64())


@dataclass(frozen=True)
class Known:
    """Of one column: the bounds of its values, and how many of them are null; None where nobody noted it.

    With `is_exact` both bounds are the values themselves.
    """

    column: Column
    low: Bounds
    high: Bounds
    is_exact: bool
    null_counts: pa.Array | None = None
    rows: pa.Array | None = None

    @cached_property
    def no_nulls(self) -> Ruled:
        """Files that have no nulls in it."""
        if self.is_exact:
            return pc.is_valid(self.low)
        return False if self.null_counts is None else pc.equal(self.null_counts, ZERO)

    @cached_property
    def all_null(self) -> Ruled:
        """Files that have nothing else in it."""
        if self.is_exact:
            return pc.is_null(self.low)
        return False if self.null_counts is None else pc.equal(self.null_counts, self.rows)

    @property
    def bounds_type(self) -> pa.DataType | None:
        """The type in which bounds are kept; None when no file has any."""
        known = self.low if self.low is not None else self.high
        return None if known is None else known.type


class KnownValues:
    """The columns of one batch; each is looked up once."""

    def __init__(self, batch: pa.RecordBatch, columns: Columns) -> None:
        self._batch, self._columns = batch, columns
        self._known: dict[Path, Known] = {}

    def of(self, name: ColumnName) -> Known | None:
        """What is known of the column that a predicate names; None when it is not certain which that is."""
        column = self._columns.resolve(name)
        if column is None:
            return None
        if column.path not in self._known:
            self._known[column.path] = self._looked_up(column)
        return self._known[column.path]

    def _looked_up(self, column: Column) -> Known:
        values = self._values("partition", column.path)
        if values is not None:
            return _partition(column, values)
        counts = self._values("null_count", column.path)
        if counts is not None and not pa.types.is_integer(counts.type):
            counts = None
        return Known(column, *self._bounds(column), False, counts, self._batch.column("rows"))

    def _bounds(self, column: Column) -> tuple[Bounds, Bounds]:
        low, high = self._values("min", column.path), self._values("max", column.path)
        if low is not None and high is not None and low.type != high.type:
            return None, None
        if pa.types.is_float32(column.type):
            # A bound is written as the shortest text that is this float; read as a double it is another number.
            return _as_floats(low), _as_floats(high)
        return low, high

    def _values(self, struct: str, path: Path) -> Bounds:
        place = self._batch.schema.get_field_index(struct)
        if place < 0:
            return None
        kind, places = self._batch.schema.field(place).type, []
        for name in path:
            inside = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
            if inside < 0:
                return None
            places.append(inside)
            kind = kind.field(inside).type
        return None if pa.types.is_struct(kind) else pc.struct_field(self._batch.column(place), places)


def _partition(column: Column, values: pa.Array) -> Known:
    """What is known of a partition column.

    An empty text is a value to delta-spark and null to the Python client, so such a file may hold either.
    """
    is_text = pa.types.is_string(values.type) or pa.types.is_binary(values.type)
    is_empty = pc.fill_null(pc.equal(pc.binary_length(values), 0), False) if is_text else None
    if is_empty is None or not pc.any(is_empty).as_py():
        return Known(column, values, values, is_exact=True)
    nulls = pc.if_else(is_empty, pa.scalar(None, pa.int64()), pc.cast(pc.is_null(values), pa.int64()))
    return Known(column, values, values, False, nulls, pa.repeat(pa.scalar(1, pa.int64()), len(values)))


def _as_floats(values: Bounds) -> Bounds:
    return values if values is None or not pa.types.is_float64(values.type) else values.cast(pa.float32())
