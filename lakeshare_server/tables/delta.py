"""Reading a Delta table at one version: its log through deltalake, checked for what recipients could misread."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.delta_schema import DECIMAL, PRIMITIVES, has_metadata, primitive_types
from lakeshare_server.tables.locations import from_uri, resolve_names
from lakeshare_server.tables.snapshot import TableProtocol, TableSnapshot

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Of use to whoever reads the log; recipients get the files and never see it.
LOG_ONLY_FEATURES = frozenset({"v2Checkpoint", "vacuumProtocolCheck"})
# In the protocol, but without effect as long as the checks below find nothing in the snapshot.
CHECKED_FEATURES = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview"}
)


def read_delta(location: str, version: int | None = None) -> TableSnapshot:
    """The table at a path, `file:` URL or store URL; `version` None means the latest.

    Raises:
        Unserveable: no such table or version, or the parquet response format cannot carry it.
    """
    root = from_uri(location).rstrip("/")
    table = _open(root, version)
    metadata = table.metadata()
    protocol = table.protocol()
    snapshot = TableSnapshot(
        format="delta",
        location=root,
        table_id=str(metadata.id),
        name=metadata.name,
        description=metadata.description,
        schema_string=table.schema().to_json(),
        partition_columns=tuple(metadata.partition_columns),
        protocol=TableProtocol(protocol.min_reader_version, tuple(protocol.reader_features or ())),
        version=table.version(),
        files=_files(root, table),
    )
    _require_parquet_format(snapshot, table, metadata.configuration)
    return snapshot


def _open(root: str, version: int | None) -> "DeltaTable":
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(root, version=version)
    except TableNotFoundError as error:
        raise Unserveable(f"There is no Delta table at {root}.", "Check the table's location.") from error
    except DeltaError as error:
        at = "its latest version" if version is None else f"version {version}"
        raise Unserveable(
            f"The Delta table at {root} cannot be read at {at}: {error}.",
            "Check that the version exists and that its log is whole.",
        ) from error


def _files(root: str, table: "DeltaTable") -> pa.Table:
    # pa.table() would import pandas to ask whether this is one of its frames.
    actions = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=False)).read_all()
    count = actions.num_rows
    names = _column(actions, "path", pa.string())
    columns = {
        "path": resolve_names(root, names),
        "name": names,
        "size": _column(actions, "size_bytes", pa.int64()),
        "modification_time": _column(actions, "modification_time", pa.int64()),
        "rows": _column(actions, "num_records", pa.int64()),
    }
    for struct in ("partition", "min", "max", "null_count"):
        if struct in actions.column_names:
            columns[struct] = actions.column(struct).combine_chunks()
        else:
            columns[struct] = pa.nulls(count, pa.struct([]))
    return pa.table(columns)


def _column(actions: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    if name not in actions.column_names:
        return pa.nulls(actions.num_rows, kind)
    return pc.cast(actions.column(name).combine_chunks(), kind)


def _require_parquet_format(
    snapshot: TableSnapshot, table: "DeltaTable", configuration: Mapping[str, str | None]
) -> None:
    problem = (
        _unknown_features(snapshot)
        or _column_mapping(configuration)
        or _deletion_vectors(snapshot, table, configuration)
        or _types(snapshot)
    )
    if problem is not None:
        reason, fix = problem
        # "Unsupported Delta Table Properties" is what clients' tests look for in the text.
        raise Unserveable(
            f"Unsupported Delta Table Properties: {snapshot.location} {reason}, which the parquet response "
            "format cannot carry.",
            fix,
        )


def _unknown_features(snapshot: TableSnapshot) -> tuple[str, str] | None:
    unknown = set(snapshot.protocol.reader_features) - LOG_ONLY_FEATURES - CHECKED_FEATURES
    if not unknown:
        return None
    names = ", ".join(sorted(unknown))
    return f"needs the reader features {names}", f"Share a copy of the table without {names}."


def _column_mapping(configuration: Mapping[str, str | None]) -> tuple[str, str] | None:
    mode = configuration.get("delta.columnMapping.mode") or "none"
    if mode == "none":
        return None
    return f"has column mapping in mode {mode}", "Share a copy without column mapping."


def _deletion_vectors(
    snapshot: TableSnapshot, table: "DeltaTable", configuration: Mapping[str, str | None]
) -> tuple[str, str] | None:
    if "deletionVectors" not in snapshot.protocol.reader_features:
        return None
    files = sum(batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()))
    enabled = (configuration.get("delta.enableDeletionVectors") or "false") == "true"
    if not files and not enabled:
        return None
    state = f"has deletion vectors on {files} files" if files else "has deletion vectors switched on"
    return state, (
        "Run ALTER TABLE … SET TBLPROPERTIES ('delta.enableDeletionVectors'='false'), "
        "then REORG TABLE … APPLY (PURGE)."
    )


def _types(snapshot: TableSnapshot) -> tuple[str, str] | None:
    if has_metadata(snapshot.schema_string, "delta.typeChanges"):
        return "has columns whose type was widened", "Rewrite the table with its new types."
    for column, kind in primitive_types(snapshot.schema_string):
        if kind == "timestamp_ntz":
            return f"has timestamps without a time zone (column {column})", "Store them as timestamp."
        if kind == "binary" and column in snapshot.partition_columns:
            return f"is partitioned by binary column {column}", "Partition by another type."
        if not _is_protocol_type(kind):
            return f"has column {column} of type {json.dumps(kind)}", "Share a copy without the column."
    return None


def _is_protocol_type(kind: str) -> bool:
    return (kind in PRIMITIVES and kind != "timestamp_ntz") or DECIMAL.fullmatch(kind) is not None
