"""Columns of Arrow tables as arrays."""

import pyarrow as pa


def column_of(table: pa.Table, name: str) -> pa.Array:
    """A column in one piece; what is one already is not copied."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
