"""Tables as Iceberg clients get them: which may be loaded, and their metadata, rewritten once for each publication.

The rewriting itself is in `protocol.iceberg_metadata`; how clients get at the files is in `iceberg_storage`.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import orjson

from lakeshare_server.access.directory import Folder
from lakeshare_server.access.iceberg_files import folder_of, manifests_of
from lakeshare_server.access.uniform import UniformTables
from lakeshare_server.access.view import TableView
from lakeshare_server.catalog import Catalog, GenerationCache
from lakeshare_server.errors import LakeshareError, NotFound, StoreError, Unserveable
from lakeshare_server.protocol.iceberg_metadata import Fields, published_metadata, without_counts
from lakeshare_server.protocol.iceberg_trimming import trimmed
from lakeshare_server.stores import Stores
from lakeshare_server.tables.iceberg.metadata import NO_SNAPSHOT, metadata_text
from lakeshare_server.tables.iceberg.partition_texts import always_has_text
from lakeshare_server.versions import PinnedSnapshot

KEPT = 512  # tables, as one kind of recipient sees them
# What a file that is not whole, or not Iceberg's at all, does to whoever takes it apart.
UNUSABLE = (KeyError, TypeError, ValueError, AttributeError)

_log = logging.getLogger(__name__)


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
        by_id = {one.get("schema-id", 0): one for one in self.schemas}
        return by_id.get(schema_id, by_id[self.current_schema_id])


class IcebergTables:
    """Rewritten tables, kept in memory; for many threads."""

    def __init__(self, catalog: Catalog, stores: Stores) -> None:
        self._stores, self._uniform = stores, UniformTables(stores)
        self._seen = GenerationCache[LoadedTable](catalog, KEPT)
        self._folders = GenerationCache[Folder](catalog, KEPT)
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

    def folder(self, view: TableView, generation: int | None = None) -> Folder:
        """The table's folder and the stores of its files.

        Raises:
            NotFound, Unserveable, StoreError, Unavailable: as `load`.
        """
        key = _key(view, view.latest().number)
        return self._folders.get(key, lambda: folder_of(view, self._stores), generation)

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
        return found if not view.is_restricted else _decided(view, found)

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
                    while len(self._made) > KEPT:
                        self._made.popitem(last=False)
        return made

    def _rewritten(self, pins: Sequence[PinnedSnapshot], is_restricted: bool) -> LoadedTable:
        newest, wanted = pins[-1], {pin.snapshot_id for pin in pins}
        try:
            told = published_metadata(pins, lambda location: self._read(location, wanted), self._specs)
            told = without_counts(told) if is_restricted else told
        except UNUSABLE as error:
            _log.error("the Iceberg metadata %s cannot be used: %r", newest.metadata_location, error)
            raise Unserveable(
                "The table's Iceberg metadata cannot be read.",
                "Provider: the server's log says which file it is.",
            ) from error
        body = orjson.dumps(told)
        location = told["location"].rstrip("/")
        lists = {one["snapshot-id"]: one.get("manifest-list") for one in told["snapshots"]}
        return LoadedTable(
            version=newest.version.number,
            location=location,
            metadata_location=lists.get(newest.snapshot_id) or _other_location(location, newest),
            metadata=body,
            pins=pins,
            snapshots=told["snapshots"],
            schemas=told["schemas"],
            current_schema_id=told["current-schema-id"],
            is_plannable=_is_plannable(told),
        )

    def _read(self, location: str, wanted: set[int]) -> Fields | None:
        try:
            text = metadata_text(self._stores, location)
        except StoreError as error:
            _log.warning("the Iceberg metadata %s cannot be read: %s", location, error)
            return None
        found: Fields = trimmed(text, wanted)
        return found

    def _specs(self, snapshot: Fields) -> set[int]:
        manifests = manifests_of(snapshot, self._stores)
        return {manifest.spec_id for manifest in manifests if manifest.spec_id is not None}


def _other_location(location: str, newest: PinnedSnapshot) -> str:
    """What stands for a manifest list; without a snapshot the number tells when the columns became others."""
    is_empty = newest.snapshot_id == NO_SNAPSHOT
    return f"{location}/metadata/{f'empty-{newest.version.number}' if is_empty else newest.snapshot_id}"


def _decided(view: TableView, pins: Sequence[PinnedSnapshot]) -> list[PinnedSnapshot]:
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
    for one in fields:
        yield one["id"], one["type"]
        if isinstance(one["type"], dict):
            yield from _kinds(one["type"].get("fields", ()))


def _key(view: TableView, version: int) -> tuple[object, ...]:
    # A followed table gets new versions while the catalog stays as it is.
    entry = view.entry
    return entry.lake_table, entry.history, entry.start_version, entry.publication, view.restriction, version
