"""Expiry: which publications of a table stay readable, and the files that neither they nor any snapshot or branch need.

The ledger is read first. A number expires at once for recipients; its files go `LAKESHARE_BRANCH_DAYS` later, when no
URL for them is valid any more. No file is removed while one that must stay is missing from the listing.
"""

import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import orjson

from lakeshare_pipelines.backup.config import load_backups
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.contracts import Table
from lakeshare_pipelines.errors import WarehouseError
from lakeshare_pipelines.share.changes import TableState
from lakeshare_pipelines.wap.delta import PUBLISHED, STAGED_FOLDER
from lakeshare_pipelines.wap.iceberg import CHANGES_FOLDER, iceberg_tables
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import EvidenceStore, Ledger, Publication
from lakeshare_server.errors import StoreError, StoreMissing, Unserveable
from lakeshare_server.storage import LASTING
from lakeshare_server.storage.location_columns import resolve_names
from lakeshare_server.storage.remote import StoredObject
from lakeshare_server.tables import Stores
from lakeshare_server.tables.delta.files import from_actions, vector_paths
from lakeshare_server.tables.delta.log import LOG, list_log, read_commits
from lakeshare_server.tables.iceberg.manifests import list_all_files
from lakeshare_server.tables.iceberg.metadata import open_metadata, read_metadata_text
from lakeshare_server.tables.index import index_path
from lakeshare_server.tables.lines import column_of

log = logging.getLogger(__name__)

DELETERS = 16
# Iceberg writes nothing of a table outside of these.
ICEBERG_FOLDERS = ("data", "metadata")
CHANGE_DATA = "_change_data"
LOG_FILE, METADATA_NUMBER = re.compile(r"(\d{20})\."), re.compile(r"\d+")


def find_oldest_kept(ledger: Ledger, table: Table, now: datetime) -> int | None:
    """The oldest number that the table's contract keeps; None before the first publication.

    A publication of maintenance counts as the one whose rows it holds. Numbers from one that a share pins on are kept.
    """
    keep, history = table.maintenance.keep, ledger.history(table.name)
    if not history:
        return None
    if keep.publications is None and keep.days is None:
        return history[-1].version
    since = None if keep.days is None else now - timedelta(days=keep.days)
    oldest, newer = history[0].version, 0
    for publication in history:
        is_among_newest = keep.publications is not None and newer < keep.publications
        if not is_among_newest and (since is None or publication.published_at < since):
            break
        oldest = publication.version
        newer += publication.maintenance_of is None
    pinned = ledger.pinned_by_shares(table.name)
    return oldest if pinned is None else min(oldest, pinned)


def list_removable_snapshots(
    lake: Lake, ledger: Ledger, table: Table, latest: Publication, oldest: int, state: TableState
) -> list[int]:
    """The snapshots in an Iceberg table's metadata that no publication from the number `oldest` on pins.

    Without those of branches and tags, and those from the latest publication to `state`: they show that its rows stay
    the same.
    """
    metadata = _load_metadata(lake.stores, state.metadata_location)
    parents = {
        each["snapshot-id"]: each.get("parent-snapshot-id") for each in metadata.get("snapshots") or ()
    }
    kept = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    kept |= {metadata.get("current-snapshot-id"), latest.snapshot_id}
    kept |= {each.snapshot_id for each in ledger.numbered_snapshots(table.name) if each.version >= oldest}
    ancestor: int | None = state.snapshot_id
    while ancestor in parents and ancestor != latest.snapshot_id:
        kept.add(ancestor)
        ancestor = parents[ancestor]
    return [snapshot_id for snapshot_id in parents if snapshot_id not in kept]


def write_metadata_without(stores: Stores, metadata_location: str, removed: Collection[int]) -> str:
    """Write an Iceberg table's metadata without some snapshots as its next file; returns that file's location.

    As `RemoveSnapshots` of Iceberg, without removing a file; a history with a gap begins after it.
    """
    if not removed:
        return metadata_location
    metadata, gone = _load_metadata(stores, metadata_location), set(removed)
    for name in ("snapshots", "statistics", "partition-statistics"):
        if name in metadata:
            metadata[name] = [each for each in metadata[name] if each["snapshot-id"] not in gone]
    history = metadata.get("snapshot-log") or []
    since = max((at for at, each in enumerate(history, 1) if each["snapshot-id"] in gone), default=0)
    metadata["snapshot-log"] = history[since:]
    longest = int((metadata.get("properties") or {}).get("write.metadata.previous-versions-max", 100))
    previous = {"timestamp-ms": metadata["last-updated-ms"], "metadata-file": metadata_location}
    metadata["metadata-log"] = [*(metadata.get("metadata-log") or []), previous][-longest:]
    metadata["last-updated-ms"] = max(metadata["last-updated-ms"], int(time.time() * 1000))
    folder, _, name = metadata_location.rpartition("/")
    number = METADATA_NUMBER.match(name)
    location = f"{folder}/{int(number[0]) + 1 if number else 0:05d}-{uuid4()}.metadata.json"
    stores.write(location, orjson.dumps(metadata))
    return location


def _load_metadata(stores: Stores, location: str) -> dict[str, Any]:
    metadata: dict[str, Any] = orjson.loads(read_metadata_text(stores, location))
    return metadata


@dataclass(frozen=True)
class UnusedFiles:
    """Files of a table that may be removed; `folders` are staging locations of which no file is used."""

    files: tuple[StoredObject, ...] = ()
    folders: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()  # digests

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def find_unused_files(lake: Lake, ledger: Ledger, table: Table, now: datetime) -> UnusedFiles:
    """The files of a table, older than `branch_days`, that no readable or just expired publication needs.

    For Iceberg also those that no snapshot of main, a branch or a tag has; for Delta those of the newest version.

    Raises:
        WarehouseError: a file that must stay is not listed, another table is in the same folder, or a backup is being
            made: then no file may be removed.
    """
    before = now - timedelta(days=lake.settings.branch_days)
    history, oldest = ledger.history(table.name), ledger.oldest_readable(table.name, before)
    kept = [publication for publication in history if publication.version >= oldest]
    if not kept:
        return UnusedFiles()
    roots = sorted({publication.location.rstrip("/") for publication in history})
    _require_own_folders(ledger, table, roots)
    _require_no_backup(lake, roots)
    log.info("listing the files of %s and those in use", table.name)
    # Listed first: what comes into use after the listing is in use when that is looked for, or is not listed.
    listed = {root: _list_folder(lake.stores, root) for root in roots}
    used = _find_used(lake, table, kept, listed)
    before_ms, files, folders = before.timestamp() * 1000, list[StoredObject](), list[str]()
    for root, found_there in listed.items():
        old = [
            found
            for name, found in found_there.items()
            if _without_checksum(name) not in used and found.modified_ms <= before_ms
        ]
        if table.format == "iceberg":
            files += [found for found in old if found.location.removeprefix(f"{root}/").startswith(_FOLDERS)]
        else:
            staged = _Staged.of(root, found_there, used, before_ms)
            folders += staged.unused
            whole = tuple(f"{folder}/" for folder in staged.unused)
            files += [found for name, found in found_there.items() if name.startswith(whole)]
            files += [found for found in old if staged.may_remove(found.location)]
            needed = _find_needed_checkpoint(lake.stores, root, kept)
            files += [found for found in old if _get_log_version(root, found, needed) < needed]
    digests = {digest for row in kept for digest in (row.index_digest, row.changes_digest)}
    expired = (row for row in history if row.version < oldest)
    indexes = {digest for row in expired for digest in (row.index_digest, row.changes_digest) if digest}
    evidence = EvidenceStore(ledger.catalog)
    kept_entries = evidence.entries_digests(table.name, oldest)
    indexes |= evidence.entries_digests(table.name) - kept_entries
    return UnusedFiles(tuple(files), tuple(folders), tuple(sorted(indexes - digests)))


def _list_folder(stores: Stores, root: str) -> dict[str, StoredObject]:
    try:
        return {found.location: found for found in stores.list(root)}
    except StoreError as error:
        fix = "No file was removed. Give the pipelines the right to list it"
        raise WarehouseError(root, f"the folder of the table cannot be listed: {error}", fix) from error


def _find_used(
    lake: Lake, table: Table, kept: Sequence[Publication], listed: Mapping[str, Mapping[str, StoredObject]]
) -> set[str]:
    """The locations that must stay; raises WarehouseError if one of the newest publication is not listed."""
    try:
        newest = _list_indexed_files(lake, kept[0])
        list_files = _list_iceberg_files if table.format == "iceberg" else _list_delta_files
        names = {*newest, *list_files(lake, table, kept), *_list_changed_files(lake, kept[-1])}
        used = {lake.stores.place(name).location for name in names}
    except (*LASTING, Unserveable, OSError, KeyError, TypeError, ValueError, OverflowError) as error:
        fix = "No file was removed. Restore what is missing, or publish the table again."
        reason = f"the files in use cannot be determined: {error}"
        raise WarehouseError(kept[0].location, reason, fix) from error
    for root, found_there in listed.items():
        missing = [name for name in newest if name.startswith(f"{root}/") and name not in found_there]
        if missing:
            reason = f"{len(missing)} files of the newest publication are not listed, such as {min(missing)}"
            fix = "No file was removed. Restore them, or look whether the store's listings lag."
            raise WarehouseError(root, reason, fix)
    return used


def _without_checksum(location: str) -> str:
    """The file of a checksum that Hadoop writes beside each file on a local disk; another location as it is."""
    folder, _, name = location.rpartition("/")
    return f"{folder}/{name[1:-4]}" if name.startswith(".") and name.endswith(".crc") else location


_FOLDERS = tuple(f"{folder}/" for folder in ICEBERG_FOLDERS)


@dataclass(frozen=True)
class _Staged:
    """The published staging locations of a Delta table, and the folders of those of which no file is used.

    Others, also those that a run did not mark before it ended, are left to the janitor.
    """

    root: str
    published: frozenset[str]
    unused: tuple[str, ...]

    @classmethod
    def of(cls, root: str, listed: Mapping[str, StoredObject], used: set[str], before_ms: float) -> "_Staged":
        above = f"{root}/{STAGED_FOLDER}/"
        kept, published = set[str](), set[str]()
        for name, found in listed.items():
            if name.startswith(above):
                ref, _, file = name.removeprefix(above).partition("/")
                if file == PUBLISHED:
                    published.add(ref)
                elif _without_checksum(name) in used or found.modified_ms > before_ms:
                    kept.add(ref)
        return cls(root, frozenset(published), tuple(above + ref for ref in sorted(published - kept)))

    def may_remove(self, location: str) -> bool:
        """Whether an unused file is one of the table's data: the log and whole folders have rules of their own."""
        first, _, rest = _without_checksum(location).removeprefix(f"{self.root}/").partition("/")
        if first == STAGED_FOLDER:
            ref, _, file = rest.partition("/")
            is_data = not file.startswith((LOG, PUBLISHED))
            return is_data and ref in self.published and f"{self.root}/{first}/{ref}" not in self.unused
        # As VACUUM: hidden folders are not the table's, but a partition column may begin with an underscore.
        return first == CHANGE_DATA or not first.startswith(("_", ".")) or ("=" in first and bool(rest))


def remove_files(lake: Lake, unused: UnusedFiles) -> None:
    """Remove unused files, and the indexes of expired publications."""
    stores, settings = lake.stores, lake.settings
    whole = tuple(f"{folder}/" for folder in unused.folders)
    locations = [file.location for file in unused.files if not file.location.startswith(whole)]
    if settings.shared_root is not None:
        locations += [f"{settings.shared_root}/index/{digest}.arrow" for digest in unused.indexes]
    with ThreadPoolExecutor(DELETERS) as pool:
        for number, _ in enumerate(pool.map(stores.delete, locations), 1):
            if number % 10_000 == 0:
                log.info("removed %s of %s files", f"{number:,}", f"{len(locations):,}")
    for folder in unused.folders:
        stores.delete_folder(folder)
    for digest in unused.indexes:
        index_path(settings.index_dir, digest).unlink(missing_ok=True)


def _require_own_folders(ledger: Ledger, table: Table, roots: Sequence[str]) -> None:
    for root in roots:
        for other, location in ledger.find_tables_within(root):
            if other != table.name:
                reason = f"table {other} is in the same folder, at {location}"
                raise WarehouseError(
                    root, reason, "No file was removed. Give each table a folder of its own."
                )


def _require_no_backup(lake: Lake, roots: Sequence[str]) -> None:
    for backup in load_backups(lake.settings):
        source = backup.source.url.rstrip("/")
        is_source = any(f"{root}/".startswith(f"{source}/") for root in roots)
        if is_source and (days := Points(backup).unfinished()):
            reason = f"backup {backup.name} is making its point {days[0]}"
            fix = f"No file was removed. A later run does it; `lakeshare backup release {backup.name} {days[0]}` ends "
            raise WarehouseError(roots[-1], reason, fix + "a point that was given up.")


def _list_iceberg_files(lake: Lake, table: Table, kept: Sequence[Publication]) -> set[str]:
    """Metadata files and all files of their snapshots: all of main, branches and tags, and the pinned ones."""
    stores, snapshots, names = lake.stores, dict[int, Any](), set[str]()
    for head in iceberg_tables(lake).heads(table.name):
        if head.metadata_location not in names:
            opened, _ = open_metadata(stores, head.metadata_location, head.snapshot_id)
            snapshots |= {snapshot.snapshot_id: snapshot for snapshot in opened.snapshots}
            names |= {head.metadata_location, *_list_statistics(stores, head.metadata_location)}
    for row in kept:
        if row.metadata_location is not None and row.snapshot_id is not None:
            names.add(row.metadata_location)
            # The metadata of main lists the snapshots that are kept; one that it lost is in its own metadata.
            if row.snapshot_id not in snapshots:
                _, snapshots[row.snapshot_id] = open_metadata(stores, row.metadata_location, row.snapshot_id)
                names.update(_list_statistics(stores, row.metadata_location))
    return names | set(list_all_files(stores, snapshots.values()))


def _list_statistics(stores: Stores, metadata_location: str) -> Iterator[str]:
    metadata = _load_metadata(stores, metadata_location)
    for kind in ("statistics", "partition-statistics"):
        yield from (each["statistics-path"] for each in metadata.get(kind) or ())


def _list_indexed_files(lake: Lake, publication: Publication) -> set[str]:
    """The data files and deletion vectors of a publication."""
    names = set[str]()
    for batch in lake.publications.index(publication).batches():
        names.update(batch.column("path").to_pylist())
        names.update(path for path in batch.column("dv_path").to_pylist() if path is not None)
    return names


def _list_delta_files(lake: Lake, table: Table, kept: Sequence[Publication]) -> set[str]:
    """The files of kept publications, and all that the log names since the oldest of them: changes need them."""
    names = set[str]()
    for root in {publication.location.rstrip("/") for publication in kept}:
        there = [row for row in kept if row.location.rstrip("/") == root]
        oldest = there[-1].version
        logged = {at: file for at, file in list_log(lake.stores, root).commits.items() if at >= oldest}
        is_whole = logged.keys() >= set(range(oldest + 1, there[0].version + 1))
        # Later publications have the files of the oldest, and those that commits added since.
        for publication in there[-1:] if is_whole else there:
            names |= _list_indexed_files(lake, publication)
        commits = [(at, at, file) for at, file in logged.items()]
        for commit in read_commits(lake.stores, root, commits) if commits else ():
            files = from_actions([*commit.adds, *commit.removes, *commit.cdc], ())
            names.update(resolve_names(root, column_of(files, "path")).to_pylist())
            names.update(vector_paths(root, files).drop_null().to_pylist())
    return names


def _list_changed_files(lake: Lake, oldest: Publication) -> set[str]:
    """The files that left a table with its oldest kept publication; those of later ones are files of the one before."""
    if oldest.changes_digest is None:
        return set()
    segment = lake.publications.find_changes(oldest.changes_digest)
    if segment is None:
        raise StoreMissing(f"the index of changes of publication {oldest.version}")
    version, names = segment.note.versions[oldest.version], set[str]()
    for batch in segment.rows(version.first_row, version.end_row):
        names.update(batch.column("path").to_pylist())
    return {name for name in names if f"/{CHANGES_FOLDER}/" not in name}


def _find_needed_checkpoint(stores: Stores, root: str, kept: Sequence[Publication]) -> int:
    """The version of the last checkpoint before the oldest kept publication; 0 without one."""
    versions = [row.version for row in kept if row.location.rstrip("/") == root]
    checkpoints = list_log(stores, root).checkpoints if versions else ()
    return max((at for at in checkpoints if at < min(versions)), default=0)


def _get_log_version(root: str, found: StoredObject, otherwise: int) -> int:
    """The version of a file in a Delta log; `otherwise` for other files."""
    name = LOG_FILE.match(_without_checksum(found.location).removeprefix(f"{root}/{LOG}/"))
    return otherwise if name is None else int(name[1])
