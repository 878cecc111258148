"""Promotions that Iceberg and Delta both know: a column's older, narrower type in files that are still alive."""

from collections.abc import Collection

import pyarrow as pa


def older_type(in_file: pa.DataType, today: pa.DataType) -> str | None:
    """The type in a file, in Delta's words; None unless readers widen it to today's."""
    if pa.types.is_int32(in_file) and pa.types.is_int64(today):
        return "integer"
    if pa.types.is_float32(in_file) and pa.types.is_float64(today):
        return "float"
    if pa.types.is_decimal(in_file) and pa.types.is_decimal(today):
        is_wider = in_file.scale == today.scale and in_file.precision < today.precision
        return f"decimal({in_file.precision},{in_file.scale})" if is_wider else None
    return None


def widest_last(types: Collection[str]) -> tuple[str, ...]:
    """The older types of one column in the order in which it had them: of several, all are decimals."""
    return tuple(sorted(types, key=lambda name: (len(name), name)))
