"""A Delta table at one version, ready to be indexed."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from lakeshare_server.errors import StoreMissing, TableFilesMissing, Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.storage.locations import from_uri
from lakeshare_server.tables.delta.files import mapping_mode, snapshot_files
from lakeshare_server.tables.delta.log import (
    NOT_AS_SPECIFIED,
    LogListing,
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
# Recipients get files, never the log: how it is kept, and by whom, makes no difference to them.
LOG_ONLY = CATALOG_MANAGED | {
    *("v2Checkpoint", "vacuumProtocolCheck", "inCommitTimestamp", "inCommitTimestamp-preview"),
    *("checkpointProtection", "checkpointProtection-experimental"),
}
# Their entries in the configuration would speak of a log that recipients do not have.
LOG_ONLY_PROPERTIES = (
    "delta.checkpointPolicy",
    "delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
    "delta.requireCheckpointProtectionBeforeVersion",
)
ROW_TRACKING = "delta.enableRowTracking"
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
# They have to be in the lists of readers and of writers.
READER_WRITER = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview"}
    | {"variantType", "variantType-preview", "variantShredding", "variantShredding-preview"}
    | {"geospatial", "geospatial-preview"}
)
KNOWN = LOG_ONLY | READER_WRITER
# With the writer version that implies each of them.
LEGACY_FEATURES = (
    *(("appendOnly", 2), ("invariants", 2), ("checkConstraints", 3), ("changeDataFeed", 4)),
    *(("generatedColumns", 4), ("columnMapping", 5), ("identityColumns", 6)),
)


def require_known(protocol: Mapping[str, Any]) -> None:
    """Refuse a table whose log means something this reader does not know.

    Raises:
        Unserveable: names the features or the version.
    """
    version = int(protocol.get("minReaderVersion", 1))
    unknown = sorted(set(protocol.get("readerFeatures") or ()) - KNOWN) if version == 3 else []
    if unknown:
        names = ", ".join(unknown)
        raise Unserveable(f"The table needs the reader features {names}.", f"Share a copy without {names}.")
    if version > 3:
        raise Unserveable(
            f"Delta protocol version ({version},{protocol.get('minWriterVersion')}) is too new for this server.",
            "Share a copy written with reader version 3 or lower.",
        )


def make_delta_head(protocol: Mapping[str, Any], metadata: Mapping[str, Any], adds: pa.Table) -> TableHead:
    """What recipients are told of a table with this protocol and metadata, and these files.

    Raises:
        Unserveable: a column has a type that no client reads.
        AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError: protocol or metadata are not
            what the specification says.
    """
    # A name or a comment with half a surrogate pair can be written into no line.
    parquet_format_schema(metadata["schemaString"]).encode()
    told, properties = _recipient_protocol(protocol), _recipient_properties(metadata)
    if properties.get(ROW_TRACKING) == "true" and adds.column("base_row_id").null_count:
        told, properties = _without_row_tracking(told, properties)
    hindered = find_hindrances(protocol, metadata, column_of(adds, "dv_storage"))
    return TableHead(
        table_id=str(metadata["id"]),
        name=metadata.get("name"),
        description=metadata.get("description"),
        schema_string=metadata["schemaString"],
        partition_columns=tuple(metadata.get("partitionColumns") or ()),
        protocol=_with_needed(told, [one.feature for one in hindered if one.feature is not None]),
        configuration=properties,
        created_time_ms=metadata.get("createdTime"),
        hindrances=hindered,
        commit_times_since=_commit_times_since(metadata),
        is_catalog_managed=is_catalog_managed(protocol, metadata),
    )


def is_catalog_managed(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether commits can be valid before they are in the log ("Catalog-managed tables")."""
    features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    properties = metadata.get("configuration") or {}
    return bool(features & CATALOG_MANAGED) or any(
        name.startswith(COORDINATOR_PROPERTIES) and value for name, value in properties.items()
    )


def _commit_times_since(metadata: Mapping[str, Any]) -> int | None:
    properties = metadata.get("configuration") or {}
    if properties.get("delta.enableInCommitTimestamps") != "true":
        return None
    return int(properties.get("delta.inCommitTimestampEnablementVersion") or 0)


def _recipient_protocol(protocol: Mapping[str, Any]) -> TableProtocol:
    """The protocol as recipients are told it, without what only readers of the log need."""
    return TableProtocol(
        int(protocol.get("minReaderVersion", 1)),
        int(protocol.get("minWriterVersion", 2)),
        _recipient_features(protocol.get("readerFeatures")),
        _recipient_features(protocol.get("writerFeatures")),
    )


def merge_protocols(protocols: Iterable[TableProtocol]) -> TableProtocol:
    """One protocol with the features of all, in the shape that the specification demands ("Table Features").

    Kernels refuse any other shape: a feature of readers is in both lists, or column mapping and implied by version 2.
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
    """The protocol with the features without which the table cannot be read, where what wrote it left them out."""
    supported = set(_writer_features(protocol))
    if protocol.min_reader_version >= 3:
        supported &= set(protocol.reader_features or ())
    elif protocol.min_reader_version < 2:
        supported.discard("columnMapping")
    lacking = tuple(dict.fromkeys(feature for feature in needed if feature not in supported))
    others = [TableProtocol(3, 7, lacking, lacking)] if lacking else []
    return merge_protocols([protocol, *others])


def _writer_features(protocol: TableProtocol) -> Sequence[str]:
    """The features of writers, named or implied by a version before 7 ("Writer Version Requirements")."""
    if protocol.min_writer_version >= 7:
        return protocol.writer_features or ()
    return [feature for feature, version in LEGACY_FEATURES if version <= protocol.min_writer_version]


def _recipient_properties(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The table's properties as recipients are told them."""
    logged = metadata.get("configuration") or {}
    properties = {str(key): str(value) for key, value in logged.items() if value is not None}
    dropped = {f"delta.feature.{feature}" for feature in LOG_ONLY} | set(LOG_ONLY_PROPERTIES)
    return {
        key: value
        for key, value in properties.items()
        if key not in dropped and not key.startswith(COORDINATOR_PROPERTIES)
    }


def _without_row_tracking(
    protocol: TableProtocol, properties: Mapping[str, str]
) -> tuple[TableProtocol, dict[str, str]]:
    """Both without row tracking: announced but missing in a file, it fails clients (delta-sharing #840)."""
    features = protocol.writer_features
    if features is not None:
        features = tuple(feature for feature in features if feature != "rowTracking")
    kept = {key: value for key, value in properties.items() if key != ROW_TRACKING}
    return (
        TableProtocol(
            protocol.min_reader_version, protocol.min_writer_version, protocol.reader_features, features
        ),
        kept,
    )


def find_hindrances(
    protocol: Mapping[str, Any], metadata: Mapping[str, Any], storage: pa.Array
) -> tuple[Hindrance, ...]:
    """What keeps the parquet response format from carrying a snapshot; `storage` is of its deletion vectors."""
    properties = metadata.get("configuration") or {}
    return (
        *_column_mapping(properties),
        *_deletion_vectors(protocol, properties, storage),
        *_types(metadata["schemaString"], tuple(metadata.get("partitionColumns") or ()), protocol),
    )


def _recipient_features(features: list[str] | None) -> tuple[str, ...] | None:
    return None if features is None else tuple(feature for feature in features if feature not in LOG_ONLY)


def _column_mapping(properties: Mapping[str, str | None]) -> Iterator[Hindrance]:
    mode = mapping_mode(properties)
    if mode != "none":
        yield Hindrance(
            "columnMapping",
            f"has column mapping in mode {mode}",
            "Share a copy without column mapping.",
            ReasonCode.RENAMED_COLUMNS,
        )


def _deletion_vectors(
    protocol: Mapping[str, Any], properties: Mapping[str, str | None], storage: pa.Array
) -> Iterator[Hindrance]:
    files = len(storage) - storage.null_count
    supported = "deletionVectors" in (protocol.get("readerFeatures") or ())
    enabled = supported and (properties.get("delta.enableDeletionVectors") or "false").lower() == "true"
    if files or enabled:
        yield Hindrance(
            "deletionVectors",
            f"has deletion vectors on {files} files" if files else "has deletion vectors switched on",
            "Run ALTER TABLE … SET TBLPROPERTIES ('delta.enableDeletionVectors'='false'), "
            "then REORG TABLE … APPLY (PURGE).",
            ReasonCode.ROW_LEVEL_DELETES,
        )


def _types(
    schema_string: str, partition_columns: tuple[str, ...], protocol: Mapping[str, Any]
) -> Iterator[Hindrance]:
    if has_metadata(schema_string, "delta.typeChanges"):
        feature = _spelt("typeWidening", protocol)
        yield Hindrance(
            feature,
            "has columns whose type was widened",
            "Rewrite the table with its new types.",
            ReasonCode.WIDENED_TYPES,
        )
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
            raise _unreadable_type(column, kind)


def _unreadable_type(column: str, kind: str) -> Unserveable:
    """The refusal of a type that the kernels of clients do not parse, so that they fail on the whole table."""
    code = ReasonCode.VOID_COLUMN if kind == "void" else ReasonCode.UNSUPPORTED_TYPE
    return Unserveable(f"The table has column {column} of type {json.dumps(kind)}.", code.fix, code)


def _spelt(feature: str, protocol: Mapping[str, Any]) -> str:
    """The feature as the table spells it: some have a preview of their own name."""
    preview = f"{feature}-preview"
    there = protocol.get("readerFeatures") or ()
    return preview if preview in there and feature not in there else feature


def read_delta(location: str, version: int | None = None, stores: Stores | None = None) -> TableSnapshot:
    """The table at a path, `file:` URL or store URL; `version` None means the latest.

    Raises:
        Unserveable: no such table or version, its log needs a feature this reader does not know, or the latest version
            is asked for and may not be in the log yet.
        StoreError: the store lacks a file of its log, or refuses it.
        Unavailable: the store does not answer.
    """
    stores = stores or Stores(ServerSettings())
    root = from_uri(location).rstrip("/")
    listing = _listing(stores, root, version)
    requested = listing.latest if version is None else version
    if requested > listing.latest:
        raise _no_such_version(root, requested, f"its latest is {listing.latest}")
    try:
        snapshot = snapshot_of(root, _replayed(stores, listing, requested))
    except TableFilesMissing as error:
        raise _no_such_version(root, requested, error.what) from error
    if version is None and snapshot.head.is_catalog_managed:
        require_published(stores, root, requested)
    return snapshot


def snapshot_of(root: str, state: TableState) -> TableSnapshot:
    """The snapshot of a replayed log.

    Raises:
        Unserveable, TableFilesMissing: as `read_delta` says.
    """
    try:
        require_known(state.protocol)
        head = make_delta_head(state.protocol, state.metadata, state.adds)
        files = snapshot_files(root, state.metadata, state.adds)
    except NOT_AS_SPECIFIED as error:
        raise TableFilesMissing(root, "the protocol or the metadata in its log is not whole") from error
    return TableSnapshot(format="delta", location=root, head=head, version=state.version, files=files)


def _replayed(stores: Stores, listing: LogListing, version: int) -> TableState:
    try:
        return replay(stores, listing, version)
    except TableFilesMissing:
        if not listing.since:
            raise
        # The checkpoint that the listing begins with cannot be read: what lies before it may tell the same.
        return replay(stores, list_log(stores, listing.root), version)


def _listing(stores: Stores, root: str, version: int | None) -> LogListing:
    try:
        listing = list_for_latest(stores, root) if version is None else list_log(stores, root)
        listing.latest  # noqa: B018  an empty log is no table
    except (TableFilesMissing, StoreMissing) as error:
        raise Unserveable(f"There is no Delta table at {root}.", "Check the table's location.") from error
    return listing


def _no_such_version(root: str, version: int, why: str) -> Unserveable:
    return Unserveable(
        f"The Delta table at {root} cannot be read at version {version}: {why}.",
        "Check that the version exists and that its log is whole.",
    )
