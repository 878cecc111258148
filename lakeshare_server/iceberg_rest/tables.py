"""Tables as Iceberg clients load them: their metadata, rewritten once per publication, and how clients read the files.

The rewriting itself is in `iceberg_rest.metadata`.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from threading import Lock
from typing import Any, Literal

import orjson

from lakeshare_server import errors
from lakeshare_server.access.table_access import TableView, folder_refusal
from lakeshare_server.catalog import Catalog, GenerationCache
from lakeshare_server.iceberg_rest.metadata import (
    Fields,
    list_manifests,
    published_metadata,
    read_folder,
    replace_errors,
    walk_fields,
    without_counts,
)
from lakeshare_server.iceberg_rest.trimming import trim_metadata
from lakeshare_server.locations import LOCAL, S3
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Signers, StoredObject, Stores, parse_location
from lakeshare_server.tables.iceberg.deletes import deletion_vectors, targets_of
from lakeshare_server.tables.iceberg.manifests import live_files
from lakeshare_server.tables.iceberg.metadata import NO_SNAPSHOT, UNUSABLE, open_metadata, read_metadata_text
from lakeshare_server.tables.iceberg.partitions import always_has_text
from lakeshare_server.tables.index import FileIndex, RecentValues, TableFolder
from lakeshare_server.versions import PinnedSnapshot, Version

VERSION = "delta-version"
METADATA_FILE = re.compile(r"v?(\d+)[-.][^/]*metadata\.json(\.gz)?")
# Limit for the metadata files of a table, the newest first; older versions are not available.
MAX_METADATA_FILES = 32
MAX_CACHED_UNIFORM = 4096
UNREADABLE = "The table's Iceberg metadata cannot be read."
LOG_NAMES_FILE = "Provider: the server's log says which file it is."

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UniformVersion:
    version: int
    metadata_location: str
    snapshot_id: int


class UniformTables:
    """Finds the Iceberg metadata of Delta tables (UniForm); safe from any thread."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        # Files never change; None means that a file is no conversion of a Delta version.
        self._conversions = RecentValues[StoredObject, tuple[UniformVersion | None]](MAX_CACHED_UNIFORM)
        self._has_same_files = RecentValues[tuple[str, UniformVersion], bool](MAX_CACHED_UNIFORM)

    def is_uniform(self, view: TableView) -> bool:
        """Whether a table's newest version has UniForm on, converted or not. Raises NotFound as `TableView.latest`."""
        return view.versions.index(view.latest()).header.head.has_iceberg_metadata

    def snapshots(self, view: TableView) -> list[PinnedSnapshot]:
        """The readable converted versions, the newest last. Raises NotFound, Unserveable or Unavailable."""
        what = f"the Iceberg metadata of {view.entry.table} cannot be read"
        with replace_errors(
            what, (errors.StoreError, errors.Unavailable), UNREADABLE, "Provider: the server's log says why."
        ):
            return self._snapshots(view)

    def _snapshots(self, view: TableView) -> list[PinnedSnapshot]:
        newest, first = view.latest(), view.first_readable()
        by_number: dict[int, UniformVersion] = {}
        for converted in self._converted(view.versions.location(), first):
            # Of several conversions of a version the last one counts.
            by_number.setdefault(converted.version, converted)
        if newest.number not in by_number:
            raise errors.Unserveable(
                f"Version {newest.number} of the table has no Iceberg metadata, which UniForm writes after a commit.",
                "Load it again later, or read it by Delta Sharing.",
            )
        pins = []
        for number in sorted(number for number in by_number if first <= number <= newest.number):
            version, converted = view.versions.at(number), by_number[number]
            if version is not None and self._is_as_published(view, version, converted):
                pins.append(PinnedSnapshot(version, converted.metadata_location, converted.snapshot_id))
        if not pins or pins[-1].version.number != newest.number:
            raise errors.Unserveable(
                f"The Iceberg metadata of version {newest.number} of the table does not have its files.",
                "Read it by Delta Sharing. Provider: the server's log says which file it is.",
            )
        return pins

    def _converted(self, location: str, first: int) -> Iterator[UniformVersion]:
        for file in self._metadata_files(location):
            known = self._conversions.get(file)
            if known is None:
                try:
                    known = self._conversions.keep(file, (self._read(file.location),))
                except errors.StoreMissing:
                    continue
            [converted] = known
            if converted is not None:
                yield converted
                if converted.version < first:
                    return

    def _metadata_files(self, location: str) -> list[StoredObject]:
        folder = f"{location.rstrip('/')}/metadata"
        start = len(self._stores.place(folder).location) + 1
        numbered = []
        for file in self._stores.list(folder):
            name = METADATA_FILE.fullmatch(file.location[start:])
            if name is not None:
                numbered.append((int(name[1]), file.modified_ms, file))
        newest_first = sorted(numbered, key=lambda entry: entry[:2], reverse=True)
        return [file for _, _, file in newest_first[:MAX_METADATA_FILES]]

    def _read(self, location: str) -> UniformVersion | None:
        try:
            metadata: Any = trim_metadata(read_metadata_text(self._stores, location), ())
            version = metadata["properties"][VERSION]
            return UniformVersion(int(version), location, int(metadata["current-snapshot-id"]))
        except UNUSABLE as error:
            _log.info("%s is no Iceberg metadata of a Delta version: %r", location, error)
            return None

    def _is_as_published(self, view: TableView, version: Version, converted: UniformVersion) -> bool:
        """Whether a conversion has the files of its version with the same deleted rows."""
        # The index of the whole table, not of the rows that this recipient may read.
        index = view.versions.index(version)
        key = (index.header.head.table_id, converted)
        known = self._has_same_files.get(key)
        if known is not None:
            return known
        converted_files = self._converted_files(converted)
        if converted_files is None:
            return False
        has_same = converted_files == self._published_files(index)
        if not has_same:
            _log.error(
                "%s does not have the files of version %s", converted.metadata_location, version.number
            )
        return self._has_same_files.keep(key, has_same)

    def _converted_files(self, converted: UniformVersion) -> dict[str, int] | None:
        try:
            table, snapshot = open_metadata(self._stores, converted.metadata_location, converted.snapshot_id)
            live = live_files(self._stores, snapshot, table.location)
            paths, deleted = live.data.column("path").to_pylist(), {}
            if live.deletes:
                targets = targets_of(table, live.data)
                vectors = deletion_vectors(self._stores, targets, live.deletes, table.location)
                deleted = {number: vector.cardinality for number, vector in vectors.items()}
            return {
                self._stores.place(path).location: deleted.get(number, 0) for number, path in enumerate(paths)
            }
        except (errors.Unserveable, errors.BadRequest) as error:
            _log.error("%s cannot be used: %s", converted.metadata_location, error)
            return None

    def _published_files(self, index: FileIndex) -> dict[str, int]:
        files: dict[str, int] = {}
        for batch in index.batches():
            paths = [self._stores.place(path).location for path in batch.column("path").to_pylist()]
            has_vectors = "dv_cardinality" in batch.schema.names
            deleted = batch.column("dv_cardinality").to_pylist() if has_vectors else [0] * len(paths)
            files.update(zip(paths, deleted, strict=True))
            index.give_back(batch)
        return files


MAX_CACHED_TABLES = 512  # tables, counted once per kind of recipient
# The snapshots, whether a rule restricts the recipient, and the properties that are added.
LoadedKey = tuple[tuple[PinnedSnapshot, ...], bool, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class LoadedTable:
    """The published metadata of a table; `location` is its folder as Iceberg writes it.

    `metadata_location` is the newest snapshot's manifest list. Clients that have the metadata do not open the list, but
    use its location to detect changes. Clients plan the scans of a table that is not plannable.
    """

    version: int
    location: str
    metadata_location: str
    metadata: bytes
    pins: Sequence[PinnedSnapshot]
    snapshots: Sequence[Fields]
    schemas: Sequence[Fields]
    current_schema_id: int
    is_plannable: bool

    def schema(self, schema_id: int | None = None) -> Fields:
        by_id = {schema.get("schema-id", 0): schema for schema in self.schemas}
        return by_id.get(schema_id, by_id[self.current_schema_id])


class IcebergTables:
    """Loads and caches the published metadata of tables; safe from any thread."""

    def __init__(self, catalog: Catalog, stores: Stores) -> None:
        self._stores, self._uniform = stores, UniformTables(stores)
        self._seen = GenerationCache[LoadedTable](catalog, MAX_CACHED_TABLES)
        self._folders = GenerationCache[TableFolder](catalog, MAX_CACHED_TABLES)
        self._loaded = RecentValues[LoadedKey, LoadedTable](MAX_CACHED_TABLES)
        # One lock per table, so that a slow store does not block tables of other stores.
        self._loading: dict[str, Lock] = {}

    def peek(self, view: TableView, generation: int) -> LoadedTable | None:
        newest = view.versions.latest_now()
        return None if newest is None else self._seen.peek(_key(view, newest.number), generation)

    def load(self, view: TableView, generation: int | None = None) -> LoadedTable:
        """The table as the recipient may read it. Raises NotFound, Unserveable, StoreError or Unavailable."""
        return self._seen.get(_key(view, view.latest().number), lambda: self._load(view), generation)

    def folder(self, view: TableView, generation: int | None = None) -> TableFolder:
        """The table's folder and the stores of its files. Raises the same errors as `load`."""
        key = _key(view, view.latest().number)
        return self._folders.get(key, lambda: read_folder(view, self._stores), generation)

    def lists(self, view: TableView) -> bool:
        try:
            return bool(view.snapshots()) or self._uniform.is_uniform(view)
        except errors.LakeshareError:
            # One table must not fail a listing; loading it raises the error.
            return False

    def _readable_snapshots(self, view: TableView) -> Sequence[PinnedSnapshot]:
        """The snapshots that a recipient may load, the newest last.

        A restricted recipient gets no manifests, and the server plans its scans.
        """
        snapshots = view.snapshots()
        if not snapshots and self._uniform.is_uniform(view):
            snapshots = self._uniform.snapshots(view)
        if not snapshots:
            entry = view.entry
            raise errors.NotFound("[Share/Schema/Table]", f"{entry.share}/{entry.schema}/{entry.name}")
        if not view.is_restricted:
            return snapshots
        # Scans are planned only of snapshots whose partitions decide the rule; the newest must be one of them.
        view.index(snapshots[-1].version)
        return [pin for pin in snapshots if pin is snapshots[-1] or _is_decided(view, pin)]

    def _load(self, view: TableView) -> LoadedTable:
        pins = tuple(self._readable_snapshots(view))
        key = pins, view.is_restricted, tuple(view.entry.notice_properties.items())
        # One thread per table: large files are not parsed twice at once.
        with self._loading.setdefault(view.entry.table, Lock()):
            return self._loaded.get(key) or self._loaded.keep(key, self._rewrite(*key))

    def _rewrite(
        self, pins: Sequence[PinnedSnapshot], is_restricted: bool, properties: Sequence[tuple[str, str]]
    ) -> LoadedTable:
        newest, snapshot_ids = pins[-1], {pin.snapshot_id for pin in pins}
        what, fix = f"the Iceberg metadata {newest.metadata_location} cannot be used", LOG_NAMES_FILE
        with replace_errors(what, UNUSABLE, UNREADABLE, fix):
            published = published_metadata(
                pins, lambda location: self._read(location, snapshot_ids), self._specs
            )
            published = without_counts(published) if is_restricted else published
            published["properties"] |= dict(properties)
        location = published["location"].rstrip("/")
        lists = {
            snapshot["snapshot-id"]: snapshot.get("manifest-list") for snapshot in published["snapshots"]
        }
        # Without a snapshot, the version's number shows that the columns have changed.
        is_empty = newest.snapshot_id == NO_SNAPSHOT
        other = f"{location}/metadata/{f'empty-{newest.version.number}' if is_empty else newest.snapshot_id}"
        return LoadedTable(
            version=newest.version.number,
            location=location,
            metadata_location=lists.get(newest.snapshot_id) or other,
            metadata=orjson.dumps(published),
            pins=pins,
            snapshots=published["snapshots"],
            schemas=published["schemas"],
            current_schema_id=published["current-schema-id"],
            is_plannable=_is_plannable(published),
        )

    def _read(self, location: str, snapshot_ids: set[int]) -> Fields | None:
        try:
            text = read_metadata_text(self._stores, location)
        except errors.StoreError as error:
            _log.warning("the Iceberg metadata %s cannot be read: %s", location, error)
            return None
        metadata: Fields = trim_metadata(text, snapshot_ids)
        return metadata

    def _specs(self, snapshot: Fields) -> set[int]:
        manifests = list_manifests(snapshot, self._stores)
        return {manifest.spec_id for manifest in manifests if manifest.spec_id is not None}


def _is_decided(view: TableView, pin: PinnedSnapshot) -> bool:
    try:
        view.index(pin.version)
    except (errors.Unserveable, errors.StoreError):
        return False
    return True


def _is_plannable(metadata: Fields) -> bool:
    """Whether plans can have the partition of each file: identity partitions need a type with a text in JSON."""
    fields = walk_fields(field for schema in metadata["schemas"] for field in schema["fields"])
    kinds = {field["id"]: field["type"] for _, field in fields}
    return all(
        field["transform"] != "identity" or always_has_text(str(kinds.get(field["source-id"], "int")))
        for spec in metadata["partition-specs"]
        for field in spec["fields"]
    )


def _key(view: TableView, version: int) -> tuple[object, ...]:
    # A followed table gets new versions without a change of the catalog.
    return *view.terms, version


FileAccess = Literal["credentials", "signed requests", "disk"]
SIGNING = {"s3.remote-signing-enabled": "true", "s3.signer": "S3V4RestSigner"}


@dataclass(frozen=True)
class ClientStorage:
    """How clients read a table's files, as part of a load-table response; credentials are hidden in logs."""

    config: Mapping[str, str] = dataclass_field(default_factory=dict)
    credentials: Mapping[str, str] | None = dataclass_field(default=None, repr=False)


NO_STORAGE = ClientStorage()


def needs_no_storage(view: TableView, table: LoadedTable) -> bool:
    return table.location.startswith(("/", "file:")) and not view.is_restricted


def planning_config(view: TableView, table: LoadedTable, settings: ServerSettings) -> Mapping[str, str]:
    """Where a client plans its scans: Java clients obey, PyIceberg decides itself."""
    if view.is_restricted or (settings.iceberg_planning == "server" and table.is_plannable):
        return {"scan-planning-mode": "server"}
    return {}


def choose_file_access(
    view: TableView, folder: TableFolder, signers: Signers, settings: ServerSettings
) -> FileAccess:
    """How Iceberg clients read a table's files. Raises Unserveable if no way is limited to what was published."""
    parsed = parse_location(folder.location, settings.azure_account)
    if parsed.kind == LOCAL and not view.is_restricted:
        return "disk"
    refusal = folder_refusal(view, folder, signers)
    if refusal is None:
        return "credentials"
    if parsed.kind != S3:
        raise errors.Unserveable(
            f"{view.entry.path} cannot be read by Iceberg clients: {refusal}.", "Query it by Delta Sharing."
        )
    return "signed requests"


def client_storage(
    view: TableView,
    table: LoadedTable,
    folder: TableFolder,
    signers: Signers,
    settings: ServerSettings,
    sign_at: str,
) -> ClientStorage:
    """What a client needs to read the table; `sign_at` is the signing path below the catalog's URL."""
    access = choose_file_access(view, folder, signers, settings)
    if access == "disk":
        return NO_STORAGE
    parsed = parse_location(table.location, settings.azure_account)
    config = signers.client_config(parsed.location)
    if access == "credentials":
        return ClientStorage(config, signers.vend(parsed.location, settings.url_life_s).iceberg_config)
    signer = {"s3.signer.uri": settings.iceberg_url(), "s3.signer.endpoint": sign_at}
    return ClientStorage({**config, **SIGNING, **signer})


def vended_storage(
    view: TableView, table: LoadedTable, folder: TableFolder, signers: Signers, settings: ServerSettings
) -> ClientStorage:
    """Fresh credentials alone. Raises Unserveable with the reason if the table has none, or Unavailable."""
    parsed = parse_location(table.location, settings.azure_account)
    refusal = folder_refusal(view, folder, signers)
    if refusal is not None:
        raise errors.Unserveable(
            f"{view.entry.path} hands out no credentials: {refusal}.", "Load the table again."
        )
    return ClientStorage({}, signers.vend(parsed.location, settings.url_life_s).iceberg_config)
