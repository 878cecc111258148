"""Restore of a table to another root or in its original place, with the state of the lake that shows it."""

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.model import Point, ReportMessage
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.restore.copies import (
    DestinationState,
    RestoreRecord,
    SelectedTable,
    TableRestore,
    ignore_message,
    read_verified,
    select_table,
)
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, make_storage_options, open_store
from lakeshare_pipelines.backup.verify import delta
from lakeshare_pipelines.backup.verify.rewriting import (
    MOUNT_PROPERTIES,
    RewrittenTable,
    find_whole_snapshots,
    require_whole_snapshot,
    rewrite_table,
    set_current_snapshot,
)
from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.loader import load_contracts
from lakeshare_pipelines.errors import BackupError, IcebergCatalogError, NessieError, SparkError
from lakeshare_pipelines.share.changes import find_index
from lakeshare_pipelines.share.publication import (
    complete_publications,
    pin_publication,
    prepare_evidence,
    record_repeats,
    repeat_properties,
)
from lakeshare_pipelines.wap.branches import BranchTables
from lakeshare_pipelines.wap.delta import make_add_actions, table_location
from lakeshare_pipelines.wap.iceberg import iceberg_tables
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog, Lease, Ledger, Publication, lock_set
from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.locations import local_path
from lakeshare_server.nessie import TableContent
from lakeshare_server.storage import normalise_location
from lakeshare_server.tables.delta.files import key_of
from lakeshare_server.tables.delta.log import ADD_FIELDS, Key, LogListing, parse_commit
from lakeshare_server.tables.iceberg.metadata import MAX_METADATA_BYTES, decompress_metadata

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from deltalake import DeltaTable

Copied = TypeVar("Copied")
Add: TypeAlias = dict[str, Any]  # an `add` action, as in the log

REWRITTEN_FILE = r"(^|/)metadata/[^/]*(metadata\.json(\.gz)?|\.avro)$"
COPIED = "files"  # Below the new root of an Iceberg table: its unchanged files


def map_to_new_keys(work: TableRestore) -> Callable[[str, str], tuple[str, str]]:
    """A function from original bucket and key to those at a new root."""
    root, to = work.selected.table.root, work.to.bucket
    folder = work.root if work.selected.table.format == "delta" else f"{work.root}/{COPIED}"

    def map_key(bucket: str, key: str) -> tuple[str, str]:
        if bucket == work.selected.table.bucket:
            return to, f"{folder}/{key.removeprefix(root + '/')}"
        return to, f"{folder}/external/{bucket.strip('/')}/{key}"

    return map_key


def select_copied(work: TableRestore) -> SelectedTable:
    """The objects that are copied to a new root: not Iceberg's metadata, which would look like another table."""
    if work.selected.table.format == "delta":
        return work.selected
    is_rewritten = pc.match_substring_regex(work.selected.rows["key"], REWRITTEN_FILE)
    return replace(work.selected, rows=work.selected.rows.filter(pc.invert(is_rewritten)))


def copy_delta(work: TableRestore) -> None:
    root = work.selected.table.root
    below = f"{root}/".lstrip("/")
    outside = [key for key in work.selected.rows["key"].to_pylist() if not key.startswith(below)]
    if outside:
        raise BackupError(
            f"table {root}",
            f"its log names files outside of its root, as {outside[0]}: at another place it would still read those",
            "Restore it in place.",
        )
    work.bring(compare_new_place(work))
    delta.write_pointer(work.store, work.root, work.selected.version)


def copy_iceberg(work: TableRestore) -> RewrittenTable:
    selected, source = work.selected, work.backup.source
    metadata_location = source.location(get_metadata_key(selected))
    map_key = map_to_new_keys(work)
    columns = (selected.rows[name].to_pylist() for name in ("bucket", "key"))
    new = {
        format_location(source, bucket, key): work.to.location(map_key(bucket, key)[1])
        for bucket, key in zip(*columns, strict=True)
    }
    read = make_copy_reader(selected, source)
    whole = find_whole_snapshots(read, metadata_location, lambda at: normalise_location(at) in new)
    if selected.version not in whole:
        fix = "Restore everything in place: `lakeshare restore all --in-place`."
        raise BackupError(f"table {selected.table.root}", "its state has files outside of its root", fix)
    work.bring(compare_new_place(work))
    rewritten = rewrite_table(
        read,
        metadata_location,
        work.moved(new),
        work.store,
        work.root,
        whole,
        current=selected.version,
        report_progress=lambda done, of: (
            work.report_message(f"{done:,} of {of:,} manifests rewritten") if done == of else None
        ),
    )
    work.report_message(f"{len(rewritten.keys):,} files of metadata written for {work.place}")
    return rewritten


def get_metadata_key(selected: SelectedTable) -> str:
    if selected.proof.metadata_key is None:
        subject = f"table {selected.table.root}"
        raise BackupError(subject, "the point does not state its metadata", "Use another point.")
    return selected.proof.metadata_key


def make_copy_reader(selected: SelectedTable, source: StoreAddress) -> Callable[[str], bytes]:
    """A function that reads a table's files by original location from the copies; changed copies are refused."""
    rows = selected.rows.select(["bucket", "key", "stored_key", "stored_version_id", "checksum"]).to_pylist()
    stored = {format_location(source, row["bucket"], row["key"]): row for row in rows}
    copies = open_store(selected.copies)

    def read(location: str) -> bytes:
        row = stored.get(normalise_location(location))
        if row is None:
            reason = f"point {selected.point.day} does not hold it"
            raise BackupError(location, reason, "Restore from another point.")
        return read_verified(selected, copies, row)

    return read


def format_location(source: StoreAddress, bucket: str, key: str) -> str:
    return normalise_location((source if bucket == source.bucket else source.at(bucket)).location(key))


def compare_new_place(work: TableRestore) -> DestinationState:
    """The state of a new root; raises BackupError if it has objects that this restore did not write."""
    at = replace(work, selected=select_copied(work)).compare(map_to_new_keys(work))
    own = ("_delta_log/_last_checkpoint",) if work.selected.table.format == "delta" else ("metadata/",)
    others = [key for key in at.others if not key.removeprefix(f"{work.root}/").startswith(own)]
    if taken := (*at.differing, *map(work.to.location, others)):
        reason = f"something else is there already: {taken[0]}"
        raise BackupError(work.place, reason, "Give an empty place; nothing was written.")
    return at


@dataclass(frozen=True)
class MountedTable:
    """A Delta table's root with the version to read, or an Iceberg table's metadata.json."""

    location: str
    version: int


def find_mount(
    points: Points,
    point: Point,
    table: str,
    version: int | None = None,
    report_message: ReportMessage = ignore_message,
) -> MountedTable:
    """The location at which a table of a point opens in the store of its copies.

    Readers of a Delta table must give `version`, since the log may have later ones. For an Iceberg table, metadata in
    the point's folder names the copies; it is written again if the point's own was changed.
    """
    selected = select_table(points, table, point.day, version)
    if selected.table.format == "delta":
        return MountedTable(selected.copies.location(selected.table.stored_root), selected.version)
    mount, digest = selected.proof.mount, selected.proof.mount_digest
    if mount is not None and version in (None, selected.proof.snapshot_id):
        # Points of earlier releases have no digest.
        if digest is None or points.mount_digest(mount) == digest:
            return MountedTable(mount, selected.version)
        report_message(f"The metadata at {mount} is not what was written; it is written again.")
    source = points.backup.source
    metadata_location = source.location(get_metadata_key(selected))
    rows = selected.rows.select(["bucket", "key", "stored_key"]).to_pylist()
    new = {
        format_location(source, row["bucket"], row["key"]): selected.copies.location(row["stored_key"])
        for row in rows
    }
    read = make_copy_reader(selected, source)
    rewritten = rewrite_table(
        read,
        metadata_location,
        lambda location: new.get(normalise_location(location), location),
        points.store,
        f"{points.folder(selected.point.day)}mounts/{selected.version}/{selected.table.root}",
        find_whole_snapshots(read, metadata_location, lambda location: normalise_location(location) in new),
        current=selected.version,
        properties=MOUNT_PROPERTIES,
    )
    report_message(f"{len(rewritten.keys):,} files of metadata written beside the point")
    return MountedTable(rewritten.metadata_location, selected.version)


APART = "/_restored/"  # Below a table's root: folders of tables that were restored beside it
SEARCHED_PUBLICATIONS = 1000
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LakeTable:
    """A table of the lake; `contract` and `table` are None if no set publishes it, as for followed tables."""

    lake: Lake
    catalog: Catalog
    name: str
    contract: SetContract | None = None
    table: Table | None = None

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.catalog)

    @contextmanager
    def lock(self, why: str) -> Iterator[Lease | None]:
        """Hold the lock of the table's set, so that no run publishes it."""
        if self.contract is None:
            yield None
            return
        with lock_set(self.catalog, self.contract.name, why, self.lake.settings.lock_wait_s) as lease:
            yield lease

    def published_as(self, **state: object) -> Publication | None:
        for publication in self.ledger.history(self.name, SEARCHED_PUBLICATIONS):
            if all(_is_same(getattr(publication, field), value) for field, value in state.items()):
                return publication
        return None

    def properties(self, publication: Publication | None) -> dict[str, str]:
        """Properties of the commit that shows a publication again: from them it gets a new number."""
        if publication is None or self.contract is None or self.table is None:
            return {}
        run_id = f"restore-{uuid.uuid4()}"
        return repeat_properties("rollback", self.contract, self.table, publication.version, run_id, None)

    def has_all_files(self, publication: Publication) -> bool:
        index = find_index(self.lake, publication.index_digest)
        if index is None:
            return False
        stores = self.lake.stores
        metadata = publication.metadata_location
        if metadata is not None and stores.head(metadata) is None:
            return False
        listed = {file.location for file in stores.list(normalise_location(index.header.location))}
        paths = (path for batch in index.batches() for path in batch.column("path").to_pylist())
        return all(normalise_location(path) in listed or stores.head(path) is not None for path in paths)

    def append_again(self, publication: Publication, lease: Lease | None) -> Publication:
        """Give main's state a new number, without changes: the files to compare with are lost."""
        if self.table is None or self.contract is None:
            return publication
        row = pin_publication(
            self.lake,
            self.ledger,
            self.table,
            nessie_hash=None
            if self.lake.named_catalog is not None
            else self.lake.nessie().reference("main").hash,
            delta_version=None,
            snapshot_id=publication.snapshot_id,
            set_name=self.contract.name,
            run_id=f"restore-{uuid.uuid4()}",
            partition=publication.partition,
            contract_digest=publication.contract_digest,
            verdicts=publication.verdicts,
            rollback_of=publication.version,
            records_changes=False,
        )
        sign = prepare_evidence(self.lake, self.ledger, [row])
        return self.ledger.append([row], lease, sign)[0]

    def complete_publications(self, lease: Lease | None) -> None:
        """Complete publications that earlier runs of the set left unfinished; an error if that needs Spark."""
        if self.contract is None or lease is None:
            return
        try:
            complete_publications(self.lake, self.ledger, self.contract, lease)
        except SparkError as error:
            reason = "a run of its set reached main but not the ledger, and recording its changes needs Spark"
            fix = "Run the set once, then restore again; missing files are already restored."
            raise BackupError(f"table {self.name}", reason, fix) from error


def find_lake_table(lake: Lake, catalog: Catalog, location: str, kind: str) -> LakeTable | None:
    """The lake's table at a location, by the ledger, the contracts or Nessie's main; None if all lack it."""
    contracts = load_contracts(lake.settings.contracts_dir)
    tables = [(contract, table) for contract in contracts for table in contract.tables]
    ledger = Ledger(catalog)
    latest = ((name, ledger.latest(name)) for name in ledger.tables())
    name = next((name for name, last in latest if last and _is_at(last.location, location)), None)
    if name is None:
        of_delta = (table for _, table in tables if table.format == "delta")
        at_location = (table for table in of_delta if table_location(lake.settings, table) == location)
        name = next((table.name for table in at_location), None)
    if name is None and kind == "iceberg":
        in_sets = [table.name for _, table in tables if table.format == "iceberg"]
        names = lake.nessie().tables("main") if lake.named_catalog is None else in_sets
        states = ((name, iceberg_tables(lake).find(name, "main")) for name in names)
        roots = (
            (name, found.metadata_location.rpartition("/metadata/")[0]) for name, found in states if found
        )
        name = next((name for name, root in roots if _is_at(root, location)), None)
    if name is None:
        return None
    contract, table = next((pair for pair in tables if pair[1].name == name), (None, None))
    return LakeTable(lake, catalog, name, contract, table)


def show_on_main(
    table: LakeTable,
    metadata_location: str,
    metadata: Mapping[str, Any],
    snapshot_id: int,
    properties: Mapping[str, str],
) -> bool:
    """Make main show a table's metadata; False if it did already.

    Raises:
        IcebergCatalogError: another catalog than Nessie has metadata of the table without the snapshot.
    """
    if table.lake.named_catalog is not None:
        tables = BranchTables(table.lake, table.lake.named_catalog)
        return tables.show(table.name, metadata_location, snapshot_id, properties)
    publisher = table.lake.nessie("publisher")
    head = publisher.reference("main").hash
    now = publisher.content(table.name, f"main@{head}")
    is_same = now is not None and _is_same(now.metadata_location, metadata_location)
    if now is not None and is_same and now.snapshot_id == snapshot_id:
        return False
    content = TableContent(
        "" if now is None else now.id,
        metadata_location,
        snapshot_id,
        metadata.get("current-schema-id", 0),
        metadata.get("default-spec-id", 0),
        metadata.get("default-sort-order-id", 0),
    )
    publisher.put_table(
        table.name, content, "main", head, message=f"Restore {table.name}", properties=dict(properties)
    )
    return True


def match_spelling(table: LakeTable | None, location: str) -> str:
    """A metadata location as main or the ledger have it, so that the text stays the same; else as a URI."""
    if table is not None:
        history = table.ledger.history(table.name, SEARCHED_PUBLICATIONS)
        known = [publication.metadata_location for publication in history]
        try:
            state = iceberg_tables(table.lake).find(table.name, "main")
        except (NessieError, IcebergCatalogError) as error:
            log.warning("the catalog did not return the location of %s: %s", location, error)
        else:
            known += [] if state is None else [state.metadata_location]
        for spelling in known:
            if spelling is not None and normalise_location(spelling) == location:
                return spelling
    return f"file://{location}" if location.startswith("/") else location


def _is_at(root: str, location: str) -> bool:
    root = normalise_location(root).rstrip("/")
    return root == location or root.startswith(location + APART)


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, str) and isinstance(other, str) and ("/" in one or "/" in other):
        return normalise_location(one) == normalise_location(other)
    return one == other


def restore_iceberg_in_place(work: TableRestore, lake: Lake, catalog: Catalog) -> RestoreRecord:
    """Restore an Iceberg table to its own root, and on Nessie's main if a name of the lake belongs to it."""
    table = find_lake_table(lake, catalog, normalise_location(work.place), "iceberg")
    with target_lock_set(table, work) as lease:
        metadata_location, is_beside = _restore_iceberg_files(work, table)
        opened = work.open_iceberg(local_path(metadata_location))
        work.require_rows(metadata_location, opened)
        publication = None
        if table is None:
            work.notes.append(
                f"No name of the lake belongs to {work.place}: register {metadata_location} yourself."
            )
        else:
            publication = _publish_on_main(work, table, lease, metadata_location, is_beside=is_beside)
        number = publication and publication.version
        return work.record(metadata_location, opened, registered_as=table and table.name, publication=number)


def restore_delta_in_place(work: TableRestore, lake: Lake, catalog: Catalog) -> RestoreRecord:
    """Restore a Delta table to its own root; a commit shows the restored state if its log has newer versions."""
    table = find_lake_table(lake, catalog, normalise_location(work.place), "delta")
    with target_lock_set(table, work) as lease:
        log = delta.sort_names(delta.list_log_names(work.store, work.root))
        newest, version = find_newest_commit(log), work.selected.version
        at = _compare_with_destination(work)
        if table is not None and newest is not None and (at.differing or newest > version):
            table.complete_publications(lease)
        published = None if table is None else table.published_as(delta_version=version)
        properties = {} if table is None else table.properties(published)
        if at.differing:
            now = _take_over_delta(work, properties)
        else:
            require_contiguous_commits(work.place, log, version)
            work.bring(at, into_live_log=newest is not None)
            delta.write_pointer(work.store, work.root, max(version, newest or 0))
            now = version
            if newest is not None and newest > version:
                now = commit_restore(work.to, work.root, version, properties)
                work.report_message(
                    f"{work.place} has newer versions to {newest}: version {now} shows {version} again"
                )
        opened = work.open_delta(now)
        work.require_rows(work.place, opened)
        publication = None if table is None else _number_delta(work, table, lease, now, published)
        number = publication and publication.version
        return work.record(work.place, opened, registered_as=table and table.name, publication=number)


def target_lock_set(table: LakeTable | None, work: TableRestore) -> "AbstractContextManager[Lease | None]":
    return nullcontext() if table is None else table.lock(f"restore of {work.selected.table.root}")


def _compare_with_destination(work: TableRestore) -> DestinationState:
    at = work.compare()
    if at.differing:
        message = f"{len(at.differing):,} keys of {work.place} have other objects, as {at.differing[0]}"
        work.report_message(message)
    return at


def _restore_beside(
    work: TableRestore, copy: Callable[[TableRestore], Copied]
) -> tuple[TableRestore, Copied]:
    beside = replace(work, root=f"{work.root}{APART}{work.selected.point.day}", notes=work.notes)
    result = copy(beside)
    work.objects, work.size_bytes = work.objects + beside.objects, work.size_bytes + beside.size_bytes
    return beside, result


def _restore_iceberg_files(work: TableRestore, table: LakeTable | None) -> tuple[str, bool]:
    """Restore the files; returns the location of their metadata, and whether they are beside the table."""
    at = _compare_with_destination(work)
    if at.differing:
        _, rewritten = _restore_beside(work, copy_iceberg)
        return match_spelling(table, rewritten.metadata_location), True
    key = get_metadata_key(work.selected)
    work.bring(at)
    if work.selected.version != work.selected.proof.snapshot_id:
        key = _write_older_metadata(work, key)
    else:
        # Catalogs of folders find their newest metadata by a hint, which is never copied.
        folder, _, name = key.rpartition("/")
        number = name.removeprefix("v").partition(".")[0]
        if name.startswith("v") and number.isdecimal():
            work.store.put(f"{folder}/version-hint.text", number.encode(), if_absent=True)
    return match_spelling(table, normalise_location(work.to.location(key))), False


def _write_older_metadata(work: TableRestore, metadata_key: str) -> str:
    """Write metadata with an older snapshot as the current one beside the table's own; returns the key."""
    location, snapshot_id = work.to.location(metadata_key), work.selected.version

    def get_key(location: str) -> str:
        return normalise_location(location).removeprefix(work.to.location(""))

    content = work.store.read(metadata_key)
    whole = find_whole_snapshots(
        lambda location: work.store.read(get_key(location)),
        location,
        lambda location: work.store.head(get_key(location)) is not None,
    )
    require_whole_snapshot(location, snapshot_id, whole)
    name = f"00000-restored-{work.selected.point.day}-{snapshot_id}.metadata.json"
    key = f"{metadata_key.rpartition('/')[0]}/{name}"
    work.store.put(key, set_current_snapshot(location, content, snapshot_id), if_absent=True)
    return key


def _publish_on_main(
    work: TableRestore, table: LakeTable, lease: Lease | None, location: str, *, is_beside: bool
) -> Publication | None:
    table.complete_publications(lease)
    newest = table.ledger.latest(table.name)
    snapshot_id = work.selected.version
    is_newest = newest is not None and (
        newest.snapshot_id == snapshot_id and _is_same(newest.metadata_location, location)
    )
    published = newest if is_newest else table.published_as(snapshot_id=snapshot_id)
    is_lost = newest is not None and not is_newest and (is_beside or not table.has_all_files(newest))
    properties = {} if is_newest or is_lost else table.properties(published)
    key = normalise_location(location).removeprefix(work.to.location(""))
    metadata: dict[str, Any] = json.loads(decompress_metadata(work.store.read(key), MAX_METADATA_BYTES))
    if show_on_main(table, location, metadata, snapshot_id, properties):
        work.report_message(f"main shows {table.name} at snapshot {snapshot_id} again")
    if newest is not None and published is None:
        work.notes.append(
            f"Snapshot {snapshot_id} of {table.name} was never published: recipients read it with the next run."
        )
    elif is_lost and newest is not None and published is not None:
        work.notes.append(
            f"The files of publication {newest.version} of {table.name} are lost, or were changed."
        )
        return table.append_again(published, lease)
    return _number_table(work, table, lease)


def _number_table(work: TableRestore, table: LakeTable, lease: Lease | None) -> Publication | None:
    try:
        if table.contract is not None and lease is not None:
            record_repeats(table.lake, table.ledger, table.contract, lease)
        return table.ledger.latest(table.name)
    except SparkError as error:
        work.notes.append(f"{table.name} gets its new number with the next run of its set: {error}")
        return None


def _take_over_delta(work: TableRestore, properties: Mapping[str, str]) -> int:
    beside, _ = _restore_beside(work, copy_delta)
    work.require_rows(beside.place, beside.open_delta(work.selected.version))
    now = commit_takeover(work.to, work.root, beside.root, work.selected.version, properties)
    work.report_message(f"version {now} of {work.place} has the files in {beside.place}")
    return now


def _number_delta(
    work: TableRestore, table: LakeTable, lease: Lease | None, now: int, published: Publication | None
) -> Publication | None:
    newest = table.ledger.latest(table.name)
    if newest is None:
        return None
    if published is None:
        work.notes.append(
            f"Version {work.selected.version} of {table.name} was never published: recipients read it with "
            "the next run."
        )
        return newest
    if now < newest.version:
        # Numbers are Delta versions: the lost ones must not get other states.
        now = skip_versions(work.to, work.root, now, newest.version, table.properties(published))
        work.notes.append(
            f"Publications {published.version + 1} to {newest.version} of {table.name} are lost: version {now} shows "
            f"{published.version} again."
        )
    table.complete_publications(lease)
    return _number_table(work, table, lease)


def find_newest_commit(log: LogListing) -> int | None:
    return max(log.commits, default=None)


def require_contiguous_commits(place: str, log: LogListing, version: int) -> None:
    """Refuse a log in which a commit after a version is missing: nothing can be committed to it."""
    missing = set(range(version + 1, max(log.commits, default=version))) - log.commits.keys()
    if missing:
        reason = f"its log has newer commits, but not {min(missing)}: nothing can be committed to it"
        fix = "Restore it to another place with --to; nothing was changed at this place."
        raise BackupError(place, reason, fix)


def commit_restore(address: StoreAddress, root: str, version: int, properties: Mapping[str, str]) -> int:
    """Commit an older state of a table (Delta's RESTORE) unless it is the current one; returns the newest version."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import CommitProperties

    location, options = address.location(root), make_storage_options(address) or None
    try:
        table, then = (DeltaTable(location, at, storage_options=options) for at in (None, version))
        if _get_state(table) == _get_state(then):
            return table.version()
        commit = CommitProperties(custom_metadata=dict(properties), max_commit_retries=0)
        table.restore(version, commit_properties=commit)
    except DeltaError as error:
        raise _make_commit_error(location, error) from error
    return int(table.version())


def commit_takeover(
    address: StoreAddress, root: str, beside: str, version: int, properties: Mapping[str, str]
) -> int:
    """Commit that a live table has only the files of another table below its root; returns the new version."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import CommitProperties

    location, options = address.location(root), make_storage_options(address) or None
    try:
        live = DeltaTable(location, storage_options=options)
        other = DeltaTable(address.location(beside), version, storage_options=options)
        adds = read_live_adds(open_store(address), beside, version).values()
        reason = ""
        partitions = other.metadata().partition_columns
        is_partitioned_alike = live.metadata().partition_columns == partitions
        if not is_partitioned_alike or live.schema().to_json() != other.schema().to_json():
            reason = "a table with other columns is at this place"
        elif any(add.get("deletionVector") for add in adds):
            reason = "another table is at this place, and the restored one has deletion vectors"
        if reason:
            raise BackupError(location, reason, "Restore it to another place with --to.")
        live.create_write_transaction(
            [*make_add_actions(adds, beside.removeprefix(f"{root}/"))],
            "overwrite",
            other.schema(),
            partitions,
            commit_properties=CommitProperties(custom_metadata=dict(properties), max_commit_retries=0),
        )
    except DeltaError as error:
        raise _make_commit_error(location, error) from error
    return int(DeltaTable(location, storage_options=options).version())


def skip_versions(
    address: StoreAddress, root: str, newest: int, last: int, properties: Mapping[str, str]
) -> int:
    """Commit empty versions up to one after `last`, which has `properties`; returns it."""
    for version in range(newest + 1, last + 2):
        commit_info = make_commit_info(newest) | dict(properties if version > last else {})
        put_commit(address, root, version, [{"commitInfo": commit_info}])
    return last + 1


def make_commit_info(version: int) -> dict[str, Any]:
    return {
        "timestamp": int(time.time() * 1000),
        "operation": "RESTORE",
        "isBlindAppend": False,
        "operationParameters": {"version": str(version)},
        "engineInfo": "lakeshare",
    }


def put_commit(address: StoreAddress, root: str, version: int, actions: Sequence[Mapping[str, Any]]) -> None:
    """Write a commit (Delta PROTOCOL.md, "Delta Log Entries"); an error if the version exists."""
    lines = "".join(json.dumps(action, ensure_ascii=False) + "\n" for action in actions)
    key = f"{delta.get_log_folder(root)}{delta.format_commit_name(version)}"
    if not open_store(address).put(key, lines.encode(), if_absent=True):
        place = address.location(root)
        reason = f"another writer committed version {version} meanwhile"
        raise BackupError(place, reason, "Run the restore again.")


def read_live_adds(store: BackupStore, root: str, version: int) -> dict[Key, Add]:
    """The `add` actions of a table at a version, by path and deletion vector, as in its log."""
    log, folder = delta.sort_names(delta.list_log_names(store, root)), delta.get_log_folder(root)
    try:
        segment = next(log.segments(version))
    except TableFilesMissing as error:
        newest = max((at for at in log.checkpoints if at <= version), default=-1)
        number = next(at for at in range(newest + 1, version + 1) if at not in log.commits)
        reason = (
            f"its log cannot be read: commit {number} is missing, and there is no classic checkpoint after it"
        )
        fix = "Restore the whole table instead."
        raise BackupError(f"{store.address.location(root)} at version {version}", reason, fix) from error
    adds: dict[Key, Add] = {}
    if segment.checkpoint is not None:
        states = delta.read_states(segment.checkpoint, lambda name: store.read(folder + name), ADD_FIELDS)
        for _, state in states:
            of_columns = (add for rows in state.adds for add in rows.to_pylist())
            for add in (*state.json_adds, *of_columns):
                adds[key_of(add)] = {**add, "partitionValues": dict(add["partitionValues"] or ())}
    for first, last, file in reversed(segment.deltas):
        commit = parse_commit(store.read(folder + file.location), first, last, 0)
        for remove in commit.removes:
            adds.pop(key_of(remove), None)
        adds |= {key_of(add): add for add in commit.adds}
    return adds


def _get_state(table: "DeltaTable") -> tuple[object, ...]:
    metadata, vectors = table.metadata(), []
    if "deletionVectors" in (table.protocol().reader_features or ()):
        vectors = pa.table(table.deletion_vectors().read_all()).to_pylist()
    return sorted(table.file_uris()), table.schema().to_json(), metadata.partition_columns, repr(vectors)


def _make_commit_error(location: str, error: Exception) -> BackupError:
    reason = str(error).splitlines()[0]
    fix = "Run the restore again, or restore to another place with --to."
    return BackupError(location, f"the restored state could not be committed: {reason}", fix)
