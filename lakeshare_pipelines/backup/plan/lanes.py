"""Which way each object of a plan goes (backup/rows.py, LANES)."""

import pyarrow as pa
import pyarrow.compute as pc

ARCHIVED = ("GLACIER", "DEEP_ARCHIVE")
"""Storage classes that cannot be read before they are thawed; GLACIER_IR can."""


def lanes_of(objects: pa.RecordBatch, copy_limit_bytes: int) -> pa.Array:
    """The lane of each row of schema LISTING that is to be copied.

    An archived object may be above the limit of one copy request as well.
    """
    is_archived = pc.is_in(objects["storage_class"], pa.array(ARCHIVED))
    is_large = pc.fill_null(pc.greater(objects["size_bytes"], copy_limit_bytes), False)
    return pc.if_else(is_archived, "archived", pc.if_else(is_large, "large", "small"))
