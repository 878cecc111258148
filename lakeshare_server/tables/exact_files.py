"""Files that hold nothing but rows which a restriction allows: what a grant that is restricted may hand out.

Pruning asks which files may have a wanted row, this asks which can have no other. Only partition values are believed:
they are the same in all rows of a file, while statistics are what some writer noted.
"""

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.predicate import Predicate
from lakeshare_server.tables.pruning import evaluate

# Partitions evolve: the values of the files of one spec are in a column with its id behind this.
OWN_PARTITION = "partition of spec "


def only_within(rule: Predicate, batch: pa.RecordBatch) -> pa.BooleanArray:
    """For each file of a batch, whether the rule is true for every row it may have.

    What the rule does not understand, names no partition column of the file or has a null is not true for it. The batch
    has the columns rows and spec_id, and those of `OWN_PARTITION`.
    """
    found = pa.repeat(pa.scalar(False), batch.num_rows)
    for spec_id in pc.unique(batch.column("spec_id")).to_pylist():
        if f"{OWN_PARTITION}{spec_id}" in batch.schema.names:
            partition = batch.column(f"{OWN_PARTITION}{spec_id}")
            own = pa.record_batch({"rows": batch.column("rows"), "partition": partition})
            is_own = pc.equal(batch.column("spec_id"), spec_id)
            found = pc.if_else(is_own, evaluate(rule, own).surely_all, found)
    return found
