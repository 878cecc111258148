"""The files of a snapshot: a log's `add` actions with their places, values and statistics made usable."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.arrays import column_of
from lakeshare_server.tables.delta.adds import vector_ids
from lakeshare_server.tables.delta.leaves import leaves_of
from lakeshare_server.tables.delta.partitions import typed, without_empty
from lakeshare_server.tables.delta.stats import parse_stats
from lakeshare_server.tables.delta.vectors import require_whole, vector_paths
from lakeshare_server.tables.delta_schema import parse_schema
from lakeshare_server.tables.locations import resolve_names

AS_IN_THE_LOG = (
    "tags",
    "base_row_id",
    "default_row_commit_version",
    "clustering_provider",
    "dv_storage",
    "dv_offset",
    "dv_size",
)


def snapshot_files(root: str, metadata: Mapping[str, Any], adds: pa.Table) -> pa.Table:
    """The files as `TableSnapshot` describes them.

    Raises:
        TableFilesMissing: a deletion vector is described by nothing the specification knows.
    """
    adds = adds.combine_chunks()
    names = column_of(adds, "path")
    schema_string = metadata["schemaString"]
    partition_columns = list(metadata.get("partitionColumns") or ())
    kinds = {field.name: field.type for field in parse_schema(schema_string)}
    types = [str(kinds[column]) for column in partition_columns]
    texts = without_empty(column_of(adds, "partition_values"), types)
    said = parse_stats(column_of(adds, "stats"), leaves_of(schema_string, partition_columns))
    storage = column_of(adds, "dv_storage")
    require_whole(root, adds)
    vector_path = vector_paths(root, adds)
    return pa.table(
        {
            "path": resolve_names(root, names),
            "name": names,
            "size": column_of(adds, "size"),
            "modification_time": column_of(adds, "modification_time"),
            "rows": said.rows,
            "dv_cardinality": pc.fill_null(column_of(adds, "dv_cardinality"), 0),
            "partition": typed(texts, list(zip(partition_columns, types, strict=True))),
            "min": said.min,
            "max": said.max,
            "null_count": said.null_count,
            "partition_values": texts,
            "stats": said.text,
            "dv_id": pc.if_else(pc.is_valid(storage), vector_ids(adds), None),
            "dv_path": vector_path,
            "dv_inline": pc.if_else(pc.equal(storage, "i"), column_of(adds, "dv_path"), None),
            **{name: column_of(adds, name) for name in AS_IN_THE_LOG},
        }
    )
