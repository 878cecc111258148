"""A Delta table at one version, as input of the file index."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa

from lakeshare_server.errors import StoreMissing, TableFilesMissing, Unserveable
from lakeshare_server.locations import from_uri
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables.delta.files import mapping_mode, snapshot_files
from lakeshare_server.tables.delta.log import (
    NOT_AS_SPECIFIED,
    TableState,
    list_for_latest,
    list_log,
    replay,
    require_published,
)
from lakeshare_server.tables.lines import column_of
from lakeshare_server.tables.serveability import ReasonCode
from lakeshare_server.tables.snapshot import (
    DECIMAL,
    PRIMITIVES,
    Hindrance,
    TableHead,
    TableProtocol,
    TableSnapshot,
    has_metadata,
    parquet_format_schema,
    primitive_types,
)

CATALOG_MANAGED = frozenset(
    {"catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview", "managedCommit-preview"}
)
COORDINATOR_PROPERTIES = ("delta.coordinatedCommits.", "delta.managedCommits.")
# Features of the log only: recipients read files, never the log.
LOG_ONLY = CATALOG_MANAGED | {
    *("v2Checkpoint", "vacuumProtocolCheck", "inCommitTimestamp", "inCommitTimestamp-preview"),
    *("checkpointProtection", "checkpointProtection-experimental"),
}
LOG_ONLY_PROPERTIES = {
    "delta.checkpointPolicy",
    "delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
    "delta.requireCheckpointProtectionBeforeVersion",
    *(f"delta.feature.{feature}" for feature in LOG_ONLY),
}
ROW_TRACKING = "delta.enableRowTracking"
# Feature, reason, fix and code of types that need a reader feature.
BY_TYPE = {
    "timestamp_ntz": (
        *("timestampNtz", "has timestamps without a time zone", "Store them as timestamp."),
        ReasonCode.TIMESTAMPS_WITHOUT_ZONE,
    ),
    "variant": (
        *("variantType", "has variants", "Share a copy that stores them as text."),
        ReasonCode.VARIANTS,
    ),
}
# Features that have to be in the lists of readers and of writers.
READER_WRITER = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview"}
    | {"variantType", "variantType-preview", "variantShredding", "variantShredding-preview"}
    | {"geospatial", "geospatial-preview"}
)
# With the writer version that implies each of them.
LEGACY_FEATURES = (
    *(("appendOnly", 2), ("invariants", 2), ("checkConstraints", 3), ("changeDataFeed", 4)),
    *(("generatedColumns", 4), ("columnMapping", 5), ("identityColumns", 6)),
)


def read_delta(location: str, version: int | None = None, stores: Stores | None = None) -> TableSnapshot:
    """Reads the table at a path, `file:` URL or store URL; `version` None means the latest.

    Raises:
        Unserveable: there is no such table or version, its log needs an unknown feature, or the latest version was
            requested and may not be in the log yet.
        StoreError: the store lacks a file of the log, or denies access.
        Unavailable: the store does not answer.
    """
    stores = stores or Stores(ServerSettings())
    root = from_uri(location).rstrip("/")
    try:
        listing = list_for_latest(stores, root) if version is None else list_log(stores, root)
        latest = listing.latest
    except (TableFilesMissing, StoreMissing) as error:
        raise Unserveable(f"There is no Delta table at {root}.", "Check the table's location.") from error
    requested = latest if version is None else version
    if requested > latest:
        raise _no_such_version(root, requested, f"its latest is {latest}")
    try:
        try:
            state = replay(stores, listing, requested)
        except TableFilesMissing:
            if not listing.since:
                raise
            # The checkpoint that the listing starts with is unreadable; the version may be readable from earlier files.
            state = replay(stores, list_log(stores, root), requested)
        snapshot = snapshot_of(root, state)
    except TableFilesMissing as error:
        raise _no_such_version(root, requested, error.what) from error
    if version is None and snapshot.head.is_catalog_managed:
        require_published(stores, root, requested)
    return snapshot


def _no_such_version(root: str, version: int, why: str) -> Unserveable:
    return Unserveable(
        f"The Delta table at {root} cannot be read at version {version}: {why}.",
        "Check that the version exists and that its log is whole.",
    )


def snapshot_of(root: str, state: TableState, *, with_bounds: bool = True) -> TableSnapshot:
    """Returns the snapshot of a replayed log; without bounds, in half the time."""
    try:
        require_known(state.protocol)
        head = make_delta_head(state.protocol, state.metadata, state.adds)
        files = snapshot_files(root, state.metadata, state.adds, with_bounds=with_bounds)
    except NOT_AS_SPECIFIED as error:
        raise TableFilesMissing(root, "the protocol or the metadata in its log is not whole") from error
    complete = None if with_bounds else lambda: snapshot_of(root, state)
    return TableSnapshot(
        format="delta", location=root, head=head, version=state.version, files=files, complete=complete
    )


def require_known(protocol: Mapping[str, Any]) -> None:
    """Refuses a table whose log needs unknown features."""
    version = int(protocol.get("minReaderVersion", 1))
    known = LOG_ONLY | READER_WRITER
    unknown = sorted(set(protocol.get("readerFeatures") or ()) - known) if version == 3 else []
    if unknown:
        names = ", ".join(unknown)
        raise Unserveable(f"The table needs the reader features {names}.", f"Share a copy without {names}.")
    if version > 3:
        raise Unserveable(
            f"Delta protocol version ({version},{protocol.get('minWriterVersion')}) is too new for this server.",
            "Share a copy written with reader version 3 or lower.",
        )


def make_delta_head(protocol: Mapping[str, Any], metadata: Mapping[str, Any], adds: pa.Table) -> TableHead:
    """Returns the head for recipients of a table with this protocol, metadata and files.

    Raises:
        Unserveable: a column has a type that no client reads.
        AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError: protocol or metadata are not
            as specified.
    """
    # Raises for half a surrogate pair in a name or a comment: it cannot be encoded.
    parquet_format_schema(metadata["schemaString"]).encode()
    logged = metadata.get("configuration") or {}
    properties = {
        key: value
        for key, value in ((str(key), str(value)) for key, value in logged.items() if value is not None)
        if key not in LOG_ONLY_PROPERTIES and not key.startswith(COORDINATOR_PROPERTIES)
    }
    shared = TableProtocol(
        int(protocol.get("minReaderVersion", 1)),
        int(protocol.get("minWriterVersion", 2)),
        _without_log_only(protocol.get("readerFeatures")),
        _without_log_only(protocol.get("writerFeatures")),
    )
    if properties.get(ROW_TRACKING) == "true" and adds.column("base_row_id").null_count:
        # Row tracking that is announced but missing in a file breaks clients (delta-sharing #840).
        if shared.writer_features is not None:
            features = tuple(feature for feature in shared.writer_features if feature != "rowTracking")
            shared = replace(shared, writer_features=features)
        properties.pop(ROW_TRACKING)
    times_since = None
    if logged.get("delta.enableInCommitTimestamps") == "true":
        times_since = int(logged.get("delta.inCommitTimestampEnablementVersion") or 0)
    hindrances = find_hindrances(protocol, metadata, column_of(adds, "dv_storage"))
    needed = [hindrance.feature for hindrance in hindrances if hindrance.feature is not None]
    return TableHead(
        table_id=str(metadata["id"]),
        name=metadata.get("name"),
        description=metadata.get("description"),
        schema_string=metadata["schemaString"],
        partition_columns=tuple(metadata.get("partitionColumns") or ()),
        protocol=_with_needed(shared, needed),
        configuration=properties,
        created_time_ms=metadata.get("createdTime"),
        hindrances=hindrances,
        commit_times_since=times_since,
        is_catalog_managed=_is_catalog_managed(protocol, logged),
    )


def _without_log_only(features: list[str] | None) -> tuple[str, ...] | None:
    return None if features is None else tuple(feature for feature in features if feature not in LOG_ONLY)


def _is_catalog_managed(protocol: Mapping[str, Any], properties: Mapping[str, Any]) -> bool:
    """Whether commits can be valid before they are in the log ("Catalog-managed tables")."""
    features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    return bool(features & CATALOG_MANAGED) or any(
        name.startswith(COORDINATOR_PROPERTIES) and value for name, value in properties.items()
    )


def merge_protocols(protocols: Iterable[TableProtocol]) -> TableProtocol:
    """Returns a protocol with the features of all, in the form that the specification requires ("Table Features").

    Kernels refuse other forms: a reader feature is in both lists, or is column mapping implied by version 2.
    """
    different = list(dict.fromkeys(protocols))
    reads = max(protocol.min_reader_version for protocol in different)
    writes = max(protocol.min_writer_version for protocol in different)
    if writes < 7:
        return TableProtocol(reads, writes)
    readers = dict.fromkeys(chain.from_iterable(protocol.reader_features or () for protocol in different))
    implied = {"columnMapping"} if any(protocol.min_reader_version == 2 for protocol in different) else set()
    if reads >= 3:
        readers.update(dict.fromkeys(implied))
    writers = dict.fromkeys(chain.from_iterable(map(_writer_features, different)))
    supported = readers.keys() | implied
    kept = [feature for feature in writers if feature not in READER_WRITER or feature in supported]
    kept += [feature for feature in readers if feature not in writers]
    return TableProtocol(reads, writes, tuple(readers) if reads >= 3 else None, tuple(kept))


def _with_needed(protocol: TableProtocol, needed: Iterable[str]) -> TableProtocol:
    """The protocol with the features that reading the table needs, if the writer left them out."""
    supported = set(_writer_features(protocol))
    if protocol.min_reader_version >= 3:
        supported &= set(protocol.reader_features or ())
    elif protocol.min_reader_version < 2:
        supported.discard("columnMapping")
    lacking = tuple(dict.fromkeys(feature for feature in needed if feature not in supported))
    return merge_protocols([protocol, *([TableProtocol(3, 7, lacking, lacking)] if lacking else [])])


def _writer_features(protocol: TableProtocol) -> Sequence[str]:
    """The writer features, listed or implied by a version before 7 ("Writer Version Requirements")."""
    if protocol.min_writer_version >= 7:
        return protocol.writer_features or ()
    return [feature for feature, version in LEGACY_FEATURES if version <= protocol.min_writer_version]


def find_hindrances(
    protocol: Mapping[str, Any], metadata: Mapping[str, Any], storage: pa.Array
) -> tuple[Hindrance, ...]:
    """Why the parquet response format cannot carry a snapshot; `storage` has the types of its deletion vectors."""
    properties = metadata.get("configuration") or {}
    columns = tuple(metadata.get("partitionColumns") or ())
    hindrances: list[Hindrance] = []
    mode = mapping_mode(properties)
    if mode != "none":
        reason, fix = f"has column mapping in mode {mode}", "Share a copy without column mapping."
        hindrances.append(Hindrance("columnMapping", reason, fix, ReasonCode.RENAMED_COLUMNS))
    files = len(storage) - storage.null_count
    is_supported = "deletionVectors" in (protocol.get("readerFeatures") or ())
    is_enabled = (properties.get("delta.enableDeletionVectors") or "false").lower() == "true"
    if files or (is_supported and is_enabled):
        reason = f"has deletion vectors on {files} files" if files else "has deletion vectors switched on"
        switch_off = "Run ALTER TABLE … SET TBLPROPERTIES ('delta.enableDeletionVectors'='false')"
        fix = f"{switch_off}, then REORG TABLE … APPLY (PURGE)."
        hindrances.append(Hindrance("deletionVectors", reason, fix, ReasonCode.ROW_LEVEL_DELETES))
    return (*hindrances, *_hindrances_of_types(metadata["schemaString"], columns, protocol))


def _hindrances_of_types(
    schema_string: str, partition_columns: tuple[str, ...], protocol: Mapping[str, Any]
) -> Iterator[Hindrance]:
    if has_metadata(schema_string, "delta.typeChanges"):
        reason, fix = "has columns whose type was widened", "Rewrite the table with its new types."
        yield Hindrance(_spelt("typeWidening", protocol), reason, fix, ReasonCode.WIDENED_TYPES)
    kinds = set()
    for column, kind in primitive_types(schema_string):
        if kind in BY_TYPE and kind not in kinds:
            kinds.add(kind)
            feature, reason, fix, code = BY_TYPE[kind]
            yield Hindrance(_spelt(feature, protocol), f"{reason} (column {column})", fix, code)
        elif kind == "binary" and column in partition_columns:
            reason, code = f"is partitioned by binary column {column}", ReasonCode.BINARY_PARTITION
            yield Hindrance(None, reason, code.fix, code)
        elif kind.startswith(("geometry", "geography")):
            reason, code = f"has column {column} of type {json.dumps(kind)}", ReasonCode.UNSUPPORTED_TYPE
            yield Hindrance(_spelt("geospatial", protocol), reason, code.fix, code)
        elif kind not in BY_TYPE and kind not in PRIMITIVES and not DECIMAL.fullmatch(kind):
            # The kernels of clients do not parse such a type and fail on the whole table.
            code = ReasonCode.VOID_COLUMN if kind == "void" else ReasonCode.UNSUPPORTED_TYPE
            raise code.error(f"The table has column {column} of type {json.dumps(kind)}.")


def _spelt(feature: str, protocol: Mapping[str, Any]) -> str:
    """The feature as spelt by the table: the preview of some features has a name of its own."""
    preview, features = f"{feature}-preview", protocol.get("readerFeatures") or ()
    return preview if preview in features and feature not in features else feature
