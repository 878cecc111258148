"""Tables as Iceberg clients get them: which may be loaded, and their metadata, rewritten once for each publication.

The rewriting itself is in `protocol.iceberg_metadata`; how clients get at the files is in `iceberg_storage`.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from threading import Lock
from typing import Any, Literal

import orjson

from lakeshare_server.access.table_access import TableFolder, TableView, folder_refusal
from lakeshare_server.catalog import Catalog, GenerationCache
from lakeshare_server.errors import (
    BadRequest,
    LakeshareError,
    NotFound,
    StoreError,
    StoreMissing,
    Unavailable,
    Unserveable,
)
from lakeshare_server.iceberg_rest.metadata import (
    Fields,
    list_manifests,
    published_metadata,
    read_folder,
    without_counts,
)
from lakeshare_server.iceberg_rest.trimming import trim_metadata
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import (
    ParsedLocation,
    Signers,
    StoredObject,
    Stores,
    TemporaryCredentials,
    parse_location,
)
from lakeshare_server.storage.locations import GCS, LOCAL, S3
from lakeshare_server.tables.iceberg.deletes import deletion_vectors, targets_of
from lakeshare_server.tables.iceberg.manifests import live_files
from lakeshare_server.tables.iceberg.metadata import NO_SNAPSHOT, open_metadata, read_metadata_text
from lakeshare_server.tables.iceberg.partitions import always_has_text
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.versions import PinnedSnapshot, Version

VERSION = "delta-version"
METADATA_FILE = re.compile(r"v?(\d+)[-.][^/]*metadata\.json(\.gz)?")
# Of one table so many metadata files are looked at, the newest first; versions before that are not there.
MAX_METADATA_FILES = 32
MAX_CACHED_UNIFORM = 4096

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UniformVersion:
    """A Delta version in Iceberg's words."""

    version: int
    metadata_location: str
    snapshot_id: int


class UniformTables:
    """Finds the Iceberg metadata of Delta tables; for many threads."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        # What is in a file never changes; what is no conversion is None.
        self._read: OrderedDict[StoredObject, UniformVersion | None] = OrderedDict()
        self._has_same_files: OrderedDict[tuple[str, UniformVersion], bool] = OrderedDict()
        self._keeping = Lock()

    def is_one(self, view: TableView) -> bool:
        """Whether a table's newest version has UniForm on, whether it was converted or not.

        Raises:
            NotFound: nothing was published yet.
        """
        return view.versions.index(view.latest()).header.head.has_iceberg_metadata

    def snapshots(self, view: TableView) -> list[PinnedSnapshot]:
        """The readable versions that were converted, the newest last.

        Raises:
            NotFound: nothing was published yet.
            Unserveable: the newest version was not converted, or not as it is.
            Unavailable: its store does not answer.
        """
        try:
            return self._snapshots(view)
        # Nothing of what stores say goes out: it names places of the server.
        except StoreError as error:
            _log.error("the Iceberg metadata of %s cannot be read: %s", view.entry.lake_table, error)
            raise Unserveable(
                "The table's Iceberg metadata cannot be read.", "Provider: the server's log says why."
            ) from error
        except Unavailable as error:
            _log.warning("the Iceberg metadata of %s: %s", view.entry.lake_table, error)
            raise Unavailable("the table's store does not answer", "Try again in a moment.") from error

    def _snapshots(self, view: TableView) -> list[PinnedSnapshot]:
        newest, first = view.latest(), view.first_readable()
        found: dict[int, UniformVersion] = {}
        for one in self._converted(view.versions.location(), first):
            # A version that was converted again counts as it was the last time.
            found.setdefault(one.version, one)
        if newest.number not in found:
            raise Unserveable(
                f"Version {newest.number} of the table has no Iceberg metadata, which UniForm writes after a commit.",
                "Load it again later, or read it by Delta Sharing.",
            )
        pins = []
        for number in sorted(number for number in found if first <= number <= newest.number):
            version, one = view.versions.at(number), found[number]
            if version is not None and self._is_as_published(view, version, one):
                pins.append(PinnedSnapshot(version, one.metadata_location, one.snapshot_id))
        if not pins or pins[-1].version.number != newest.number:
            raise Unserveable(
                f"The Iceberg metadata of version {newest.number} of the table does not have its files.",
                "Read it by Delta Sharing. Provider: the server's log says which file it is.",
            )
        return pins

    def _converted(self, location: str, first: int) -> Iterator[UniformVersion]:
        """The conversions from a version on, the last one first."""
        for file in self._metadata_files(location):
            with self._keeping:
                known = file in self._read
                converted = self._read.get(file)
            if not known:
                try:
                    converted = self._keep(file, self._look(file.location))
                except StoreMissing:
                    # It was listed a moment ago; writers clean up behind themselves.
                    continue
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
        newest_first = sorted(numbered, key=lambda one: one[:2], reverse=True)
        return [file for _, _, file in newest_first[:MAX_METADATA_FILES]]

    def _look(self, location: str) -> UniformVersion | None:
        try:
            metadata: Any = trim_metadata(read_metadata_text(self._stores, location), ())
            version = metadata["properties"][VERSION]
            return UniformVersion(int(version), location, int(metadata["current-snapshot-id"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _log.info("%s is no Iceberg metadata of a Delta version: %r", location, error)
            return None

    def _keep(self, file: StoredObject, converted: UniformVersion | None) -> UniformVersion | None:
        with self._keeping:
            self._read[file] = converted
            while len(self._read) > MAX_CACHED_UNIFORM:
                self._read.popitem(last=False)
        return converted

    def _is_as_published(self, view: TableView, version: Version, converted: UniformVersion) -> bool:
        """Whether a conversion has the files of its version, and the same rows of them; looked at once."""
        # Of the whole table, whatever this recipient may read of it.
        index = view.versions.index(version)
        key = (index.header.head.table_id, converted)
        with self._keeping:
            known = self._has_same_files.get(key)
        if known is not None:
            return known
        converted_files = self._told_files(converted)
        if converted_files is None:
            return False
        found = converted_files == self._own_files(index)
        if not found:
            _log.error(
                "%s does not have the files of version %s", converted.metadata_location, version.number
            )
        with self._keeping:
            self._has_same_files[key] = found
            while len(self._has_same_files) > MAX_CACHED_UNIFORM:
                self._has_same_files.popitem(last=False)
        return found

    def _told_files(self, converted: UniformVersion) -> dict[str, int] | None:
        """How many rows of each file are deleted; None where the metadata cannot be used."""
        try:
            table, snapshot = open_metadata(self._stores, converted.metadata_location, converted.snapshot_id)
            live = live_files(self._stores, snapshot, table.location)
            paths, deleted = live.data.column("path").to_pylist(), {}
            if live.deletes:
                targets = targets_of(table, live.data)
                vectors = deletion_vectors(self._stores, targets, live.deletes, table.location)
                deleted = {number: vector.cardinality for number, vector in vectors.items()}
            return {self._place(path): deleted.get(number, 0) for number, path in enumerate(paths)}
        except (Unserveable, BadRequest) as error:
            _log.error("%s cannot be used: %s", converted.metadata_location, error)
            return None

    def _own_files(self, index: FileIndex) -> dict[str, int]:
        found: dict[str, int] = {}
        for batch in index.batches():
            paths = [self._place(path) for path in batch.column("path").to_pylist()]
            has_vectors = "dv_cardinality" in batch.schema.names
            deleted = batch.column("dv_cardinality").to_pylist() if has_vectors else [0] * len(paths)
            found.update(zip(paths, deleted, strict=True))
            index.give_back(batch)
        return found

    def _place(self, path: str) -> str:
        return self._stores.place(path).location


MAX_CACHED_TABLES = 512  # tables, as one kind of recipient sees them
# What a file that is not whole, or not Iceberg's at all, does to whoever takes it apart.
UNUSABLE_ERRORS = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True)
class LoadedTable:
    """What is handed out of a table, whose files lie below `location` in Iceberg's spelling.

    `metadata_location` is the newest snapshot's manifest list. Clients never open it as long as they have the metadata
    itself, but tell by it whether a table has changed, how to read it, and how long a file it is. Scans of one that is
    not plannable are planned by clients.
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
        """One of its schemas, the table's own when the id is None or not told."""
        by_id = {schema.get("schema-id", 0): schema for schema in self.schemas}
        return by_id.get(schema_id, by_id[self.current_schema_id])


class IcebergTables:
    """Rewritten tables, kept in memory; for many threads."""

    def __init__(self, catalog: Catalog, stores: Stores) -> None:
        self._stores, self._uniform = stores, UniformTables(stores)
        self._seen = GenerationCache[LoadedTable](catalog, MAX_CACHED_TABLES)
        self._folders = GenerationCache[TableFolder](catalog, MAX_CACHED_TABLES)
        self._made: OrderedDict[tuple[tuple[PinnedSnapshot, ...], bool], LoadedTable] = OrderedDict()
        self._keeping = Lock()
        # One for each table: a store that is slow holds up no table of another one.
        self._making: dict[str, Lock] = {}

    def peek(self, view: TableView, generation: int) -> LoadedTable | None:
        """The table, if its newest version was loaded in this generation of the catalog; never waits."""
        newest = view.versions.latest_now()
        return None if newest is None else self._seen.peek(_key(view, newest.number), generation)

    def load(self, view: TableView, generation: int | None = None) -> LoadedTable:
        """The table as this recipient may read it.

        Raises:
            NotFound: it is no Iceberg table, or nothing of it was published.
            Unserveable: its metadata cannot be handed out, or its partitions do not tell which rows may be read.
            StoreError, Unavailable: its metadata cannot be read, or not now.
        """
        return self._seen.get(_key(view, view.latest().number), lambda: self._loaded(view), generation)

    def folder(self, view: TableView, generation: int | None = None) -> TableFolder:
        """The table's folder and the stores of its files.

        Raises:
            NotFound, Unserveable, StoreError, Unavailable: as `load`.
        """
        key = _key(view, view.latest().number)
        return self._folders.get(key, lambda: read_folder(view, self._stores), generation)

    def lists(self, view: TableView) -> bool:
        """Whether listings of this catalog have the table."""
        try:
            return bool(view.snapshots()) or self._uniform.is_one(view)
        except LakeshareError:
            # A listing is not to fail for one table: whoever loads it is told.
            return False

    def _readable_snapshots(self, view: TableView) -> Sequence[PinnedSnapshot]:
        """The snapshots a recipient may load, the newest last: the one place that decides it.

        Whoever may load a table knows of its snapshots, but not of all their files: where a grant is restricted to
        some rows, manifests are not handed out, and scans are planned here (see `iceberg_scans` and
        `iceberg_signing`).
        """
        found = view.snapshots()
        if not found and self._uniform.is_one(view):
            found = self._uniform.snapshots(view)
        if not found:
            entry = view.entry
            raise NotFound("[Share/Schema/Table]", f"{entry.share.name}/{entry.schema}/{entry.name}")
        return found if not view.is_restricted else _decided_pins(view, found)

    def _loaded(self, view: TableView) -> LoadedTable:
        pins = tuple(self._readable_snapshots(view))
        made_of = pins, view.is_restricted
        # One at a time for each table: a file of many megabytes is not read and taken apart twice at once.
        with self._making.setdefault(view.entry.lake_table, Lock()):
            with self._keeping:
                made = self._made.get(made_of)
            if made is None:
                made = self._rewritten(*made_of)
                with self._keeping:
                    self._made[made_of] = made
                    while len(self._made) > MAX_CACHED_TABLES:
                        self._made.popitem(last=False)
        return made

    def _rewritten(self, pins: Sequence[PinnedSnapshot], is_restricted: bool) -> LoadedTable:
        newest, wanted = pins[-1], {pin.snapshot_id for pin in pins}
        try:
            published = published_metadata(pins, lambda location: self._read(location, wanted), self._specs)
            published = without_counts(published) if is_restricted else published
        except UNUSABLE_ERRORS as error:
            _log.error("the Iceberg metadata %s cannot be used: %r", newest.metadata_location, error)
            raise Unserveable(
                "The table's Iceberg metadata cannot be read.",
                "Provider: the server's log says which file it is.",
            ) from error
        body = orjson.dumps(published)
        location = published["location"].rstrip("/")
        lists = {one["snapshot-id"]: one.get("manifest-list") for one in published["snapshots"]}
        return LoadedTable(
            version=newest.version.number,
            location=location,
            metadata_location=lists.get(newest.snapshot_id) or _other_location(location, newest),
            metadata=body,
            pins=pins,
            snapshots=published["snapshots"],
            schemas=published["schemas"],
            current_schema_id=published["current-schema-id"],
            is_plannable=_is_plannable(published),
        )

    def _read(self, location: str, wanted: set[int]) -> Fields | None:
        try:
            text = read_metadata_text(self._stores, location)
        except StoreError as error:
            _log.warning("the Iceberg metadata %s cannot be read: %s", location, error)
            return None
        found: Fields = trim_metadata(text, wanted)
        return found

    def _specs(self, snapshot: Fields) -> set[int]:
        manifests = list_manifests(snapshot, self._stores)
        return {manifest.spec_id for manifest in manifests if manifest.spec_id is not None}


def _other_location(location: str, newest: PinnedSnapshot) -> str:
    """What stands for a manifest list; without a snapshot the number tells when the columns became others."""
    is_empty = newest.snapshot_id == NO_SNAPSHOT
    return f"{location}/metadata/{f'empty-{newest.version.number}' if is_empty else newest.snapshot_id}"


def _decided_pins(view: TableView, pins: Sequence[PinnedSnapshot]) -> list[PinnedSnapshot]:
    """The snapshots of which partitions tell what may be read: of the others no file is planned.

    Raises:
        Unserveable: the newest is none of them.
    """
    view.index(pins[-1].version)
    return [pin for pin in pins if pin is pins[-1] or _is_decided(view, pin)]


def _is_decided(view: TableView, pin: PinnedSnapshot) -> bool:
    try:
        view.index(pin.version)
    except (Unserveable, StoreError):
        return False
    return True


def _is_plannable(metadata: Fields) -> bool:
    """Whether plans can give the partition of each file: values of a column itself are of the column's type."""
    kinds = dict(_kinds(one for schema in metadata["schemas"] for one in schema["fields"]))
    return all(
        field["transform"] != "identity" or always_has_text(str(kinds.get(field["source-id"], "int")))
        for spec in metadata["partition-specs"]
        for field in spec["fields"]
    )


def _kinds(fields: Iterable[Fields]) -> Iterator[tuple[int, object]]:
    """The types of columns by id, those inside of structs too: partitions can be of no others."""
    for field in fields:
        yield field["id"], field["type"]
        if isinstance(field["type"], dict):
            yield from _kinds(field["type"].get("fields", ()))


def _key(view: TableView, version: int) -> tuple[object, ...]:
    # A followed table gets new versions while the catalog stays as it is.
    entry = view.entry
    return entry.lake_table, entry.history, entry.start_version, entry.publication, view.restriction, version


FileAccess = Literal["credentials", "signed requests", "disk"]
SIGNING = {"s3.remote-signing-enabled": "true", "s3.signer": "S3V4RestSigner"}


@dataclass(frozen=True)
class ClientStorage:
    """The parts of a load-table answer that say how its files are read; credentials are never shown in logs."""

    config: Mapping[str, str] = dataclass_field(default_factory=dict)
    credentials: Mapping[str, str] | None = dataclass_field(default=None, repr=False)


NO_STORAGE = ClientStorage()


def needs_no_storage(view: TableView, table: LoadedTable) -> bool:
    """Whether clients read the files by their paths alone: those of the server's own disk."""
    return table.location.startswith(("/", "file:")) and not view.is_restricted


def planning_config(view: TableView, table: LoadedTable, settings: ServerSettings) -> Mapping[str, str]:
    """Where a client is to plan its scans: Java's obey, whatever they were set to; PyIceberg's choose themselves."""
    if view.is_restricted or (settings.iceberg_planning == "server" and table.is_plannable):
        return {"scan-planning-mode": "server"}
    return {}


def choose_file_access(
    view: TableView, folder: TableFolder, signers: Signers, settings: ServerSettings
) -> FileAccess:
    """How Iceberg clients get at the files of a table.

    Raises:
        Unserveable: there is no way to read just what was published.
        Unavailable: what tells is not there now.
    """
    place = parse_location(folder.location, settings.azure_account)
    if place.kind == LOCAL and not view.is_restricted:
        return "disk"
    refusal = folder_refusal(view, folder, signers)
    if refusal is None:
        return "credentials"
    if place.kind != S3:
        raise Unserveable(
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
    """What a client needs to read the table; `sign_at` is where it has requests signed, below the catalog's URL.

    Raises:
        Unserveable: there is no way to read just what was published.
        Unavailable: credentials cannot be had now.
    """
    way = choose_file_access(view, folder, signers, settings)
    if way == "disk":
        return NO_STORAGE
    place = parse_location(table.location, settings.azure_account)
    config = signers.s3_client_config(place) if place.kind == S3 else {}
    if way == "credentials":
        granted = signers.vend(place.location, settings.url_life_s)
        return ClientStorage(config, credential_config(granted, place))
    return ClientStorage(
        {
            **config,
            **SIGNING,
            "s3.signer.uri": settings.iceberg_url(),
            "s3.signer.endpoint": sign_at,
        }
    )


def vended_storage(
    view: TableView, table: LoadedTable, folder: TableFolder, signers: Signers, settings: ServerSettings
) -> ClientStorage:
    """Fresh credentials alone.

    Raises:
        Unserveable: this table hands out none; says why.
        Unavailable: they cannot be had now.
    """
    place = parse_location(table.location, settings.azure_account)
    refusal = folder_refusal(view, folder, signers)
    if refusal is not None:
        raise Unserveable(f"{view.entry.path} hands out no credentials: {refusal}.", "Load the table again.")
    return ClientStorage({}, credential_config(signers.vend(place.location, settings.url_life_s), place))


def credential_config(granted: TemporaryCredentials, place: ParsedLocation) -> dict[str, str]:
    """Temporary credentials in the names that Iceberg's clients have for them."""
    fields, ends = granted.fields, str(granted.expires_at_ms)
    if place.kind == S3:
        return {
            "s3.access-key-id": fields["accessKeyId"],
            "s3.secret-access-key": fields["secretAccessKey"],
            "s3.session-token": fields["sessionToken"],
            "s3.session-token-expires-at-ms": ends,
        }
    if place.kind == GCS:
        return {"gcs.oauth2.token": fields["oauthToken"], "gcs.oauth2.token-expires-at": ends}
    host = place.root.partition("@")[2]
    return {f"adls.sas-token.{host}": fields["sasToken"], f"adls.sas-token-expires-at-ms.{host}": ends}
