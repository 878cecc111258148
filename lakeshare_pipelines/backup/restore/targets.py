"""A table restored where it was: what is missing is put back, and the lake's own state made to show it.

Nothing that is there is overwritten or removed. Where other things lie at the table's keys, the restored table goes
beside them, below `_restored/`.
"""

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from lakeshare_pipelines.backup.model import Point
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.restore.copies import (
    DestinationState,
    ReportMessage,
    TableRestore,
    compare_destination,
    ignore_message,
    open_delta,
    open_iceberg,
    read_verified,
    require_not_taken,
)
from lakeshare_pipelines.backup.restore.delta import (
    commit_restore,
    commit_takeover,
    find_newest_commit,
    list_log_names,
    require_contiguous_commits,
    skip_versions,
    write_pointer,
)
from lakeshare_pipelines.backup.restore.selection import (
    RestoreRecord,
    RestoreRequest,
    SelectedTable,
    select_table,
)
from lakeshare_pipelines.backup.rewriting import (
    MOUNT_PROPERTIES,
    RewrittenTable,
    find_whole_snapshots,
    require_whole_snapshot,
    rewrite_table,
    set_current_snapshot,
)
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.loader import load_contracts
from lakeshare_pipelines.errors import BackupError, NessieError, SparkError
from lakeshare_pipelines.nessie.client import TableContent
from lakeshare_pipelines.share.publication import (
    complete_publications,
    pin_publication,
    record_rollbacks,
    rollback_properties,
)
from lakeshare_pipelines.wap.delta import table_location
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog, Lease, Ledger, Publication, lock_set
from lakeshare_server.errors import Unavailable
from lakeshare_server.storage import Stores, normalise_location
from lakeshare_server.storage.locations import local_path
from lakeshare_server.tables import open_index
from lakeshare_server.tables.iceberg.metadata import MAX_METADATA_BYTES, decompress_metadata

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

REWRITTEN_FILE = r"(^|/)metadata/[^/]*(metadata\.json(\.gz)?|\.avro)$"
COPIED = "files"
"""Below the new root of an Iceberg table: its files as they were, beside the metadata that is written for them."""


def restore_delta_elsewhere(work: TableRestore) -> RestoreRecord:
    """A Delta table at a new root: its names are relative to it, so that copying is enough.

    Raises:
        BackupError: something else is there, or the table does not open.
    """
    copy_delta(work)
    return work.record(work.place, open_delta(work.to, work.root, work.selected.version))


def restore_iceberg_elsewhere(work: TableRestore) -> RestoreRecord:
    """An Iceberg table at a new root, with metadata that names the new places.

    Raises:
        BackupError: something else is there, or the table does not open.
    """
    rewritten = copy_iceberg(work)
    location = rewritten.metadata_location
    return work.record(location, open_iceberg(work.to, location, work.selected.version))


def map_to_new_keys(work: TableRestore) -> Callable[[str, str], tuple[str, str]]:
    """New bucket and key of an object by its original ones, at a place of its own."""
    root, to = work.selected.table.root, work.to.bucket
    folder = work.root if work.selected.table.format == "delta" else f"{work.root}/{COPIED}"

    def map_key(bucket: str, key: str) -> tuple[str, str]:
        if bucket == work.selected.table.bucket:
            return to, f"{folder}/{key.removeprefix(root + '/')}"
        return to, f"{folder}/external/{bucket.strip('/')}/{key}"

    return map_key


def select_copied(work: TableRestore) -> SelectedTable:
    """What is copied to a place of its own: of an Iceberg table no metadata and no manifests, which are written anew.

    Left beside them, those of the original place would look like a table of their own.
    """
    if work.selected.table.format == "delta":
        return work.selected
    rows = work.selected.rows
    return replace(
        work.selected, rows=rows.filter(pc.invert(pc.match_substring_regex(rows["key"], REWRITTEN_FILE)))
    )


def copy_delta(work: TableRestore) -> None:
    """Copy a Delta table to the work's root.

    Raises:
        BackupError: it has files outside of its root, which its log names by whole locations; something else is there.
    """
    root = work.selected.table.root
    outside = [key for key in work.selected.rows["key"].to_pylist() if not key.startswith(f"{root}/")]
    if outside:
        raise BackupError(
            f"table {root}",
            f"its log names files elsewhere, as {outside[0]}: at another place it would still read those",
            "Restore it in place.",
        )
    at = compare_destination(work.selected, work.to, work.root, map_to_new_keys(work))
    require_free(work, at)
    work.bring(at)
    write_pointer(work.store, work.root)


def copy_iceberg(work: TableRestore) -> RewrittenTable:
    """Copy an Iceberg table to the work's root and write metadata for it.

    Raises:
        BackupError: something else is there, or a file of its metadata cannot be read.
    """
    selected, source = work.selected, work.backup.source
    if selected.proof.metadata_key is None:
        raise BackupError(
            f"table {selected.table.root}", "the point does not tell its metadata", "Use another point."
        )
    map_key = map_to_new_keys(work)
    at = compare_destination(select_copied(work), work.to, work.root, map_key)
    require_free(work, at)
    work.bring(at)
    originals = {format_location(source, bucket, key): (bucket, key) for bucket, key in _keys(selected)}
    new = {old: work.to.location(map_key(*at)[1]) for old, at in originals.items()}
    read = make_copy_reader(selected, source)
    rewritten = rewrite_table(
        read,
        source.location(selected.proof.metadata_key),
        work.moved(new),
        work.store,
        work.root,
        find_whole_snapshots(
            read, source.location(selected.proof.metadata_key), lambda one: normalise_location(one) in new
        ),
        current=selected.version,
        report_progress=lambda done, of: (
            work.report_message(f"{done:,} of {of:,} manifests rewritten") if done == of else None
        ),
    )
    work.report_message(f"{len(rewritten.keys):,} files of metadata written for {work.place}")
    return rewritten


def make_copy_reader(selected: SelectedTable, source: StoreAddress) -> Callable[[str], bytes]:
    """Reads a table's files by their original locations, from the copies; what was changed since is refused."""
    rows = selected.rows.select(["bucket", "key", "stored_key", "stored_version_id", "checksum"]).to_pylist()
    stored = {format_location(source, row["bucket"], row["key"]): row for row in rows}
    copies = open_store(selected.copies)

    def read(at: str) -> bytes:
        found = stored.get(normalise_location(at))
        if found is None:
            raise BackupError(
                at, f"point {selected.point.day} does not hold it", "Restore from another point."
            )
        return read_verified(selected, copies, found)

    return read


def format_location(source: StoreAddress, bucket: str, key: str) -> str:
    """An object's original location, in our spelling."""
    return normalise_location((source if bucket == source.bucket else source.at(bucket)).location(key))


def _keys(selected: SelectedTable) -> Iterator[tuple[str, str]]:
    return zip(selected.rows["bucket"].to_pylist(), selected.rows["key"].to_pylist(), strict=True)


def require_free(work: TableRestore, at: DestinationState) -> None:
    """Refuse a place where something is that this restore did not write.

    Raises:
        BackupError: it names the first such object.
    """
    own = ("_delta_log/_last_checkpoint",) if work.selected.table.format == "delta" else ("metadata/",)
    others = [key for key in at.others if not key.removeprefix(f"{work.root}/").startswith(own)]
    require_not_taken(work.place, (*at.differing, *map(work.to.location, others)))


@dataclass(frozen=True)
class MountedTable:
    """What opens: a Delta table's root with the version to ask for, or an Iceberg table's metadata.json."""

    location: str
    version: int


def find_mount(
    points: Points,
    point: Point,
    table: str,
    version: int | None = None,
    report_message: ReportMessage = ignore_message,
) -> MountedTable:
    """Where a table of a point opens in the store of its copies.

    A Delta table is at its copies; readers must ask for `version`, the log may go on behind it. For an Iceberg table
    metadata is written into the point's folder, which names the copies. That of the point is taken where it is still
    what was written.

    Raises:
        BackupError: the point does not hold the table whole.
    """
    selected = select_table(points, RestoreRequest(table, point.day, version))
    if selected.table.format == "delta":
        return MountedTable(selected.copies.location(selected.table.stored_root), selected.version)
    mount, digest = selected.proof.mount, selected.proof.mount_digest
    if mount is not None and version in (None, selected.proof.snapshot_id):
        # Points of earlier releases have no digest of it.
        if digest is None or points.mount_digest(mount) == digest:
            return MountedTable(mount, selected.version)
        report_message(f"The metadata at {mount} is not what was written; it is written anew.")
    return MountedTable(_write_mount(points, selected, report_message), selected.version)


def _write_mount(points: Points, selected: SelectedTable, report_message: ReportMessage) -> str:
    source, key = points.backup.source, selected.proof.metadata_key
    if key is None:
        raise BackupError(
            f"table {selected.table.root}", "the point does not tell its metadata", "Use another point."
        )
    rows = selected.rows.select(["bucket", "key", "stored_key"]).to_pylist()
    new = {
        format_location(source, row["bucket"], row["key"]): selected.copies.location(row["stored_key"])
        for row in rows
    }
    read = make_copy_reader(selected, source)
    rewritten = rewrite_table(
        read,
        source.location(key),
        lambda at: new.get(normalise_location(at), at),
        points.store,
        f"{points.folder(selected.point.day)}mounts/{selected.version}/{selected.table.root}",
        find_whole_snapshots(read, source.location(key), lambda at: normalise_location(at) in new),
        current=selected.version,
        properties=MOUNT_PROPERTIES,
    )
    report_message(f"{len(rewritten.keys):,} files of metadata written beside the point")
    return rewritten.metadata_location


APART = "/_restored/"
"""Below a table's root: folders of what was restored beside it."""
SEARCHED_PUBLICATIONS = 1000
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LakeTable:
    """A table of the lake; `contract` and `table` are None where no set publishes it, as with followed tables."""

    lake: Lake
    catalog: Catalog
    name: str
    contract: SetContract | None = None
    table: Table | None = None

    @property
    def ledger(self) -> Ledger:
        """All publications."""
        return Ledger(self.catalog)

    @contextmanager
    def locked(self, why: str) -> Iterator[Lease | None]:
        """Nobody publishes the table's set meanwhile; what an earlier run owes the ledger is written first.

        Raises:
            CatalogConflict: a run of the set is publishing and did not end in time.
        """
        if self.contract is None:
            yield None
            return
        with lock_set(self.catalog, self.contract.name, why, self.lake.settings.lock_wait_s) as lease:
            yield lease

    def published_as(self, **state: object) -> Publication | None:
        """The newest publication that pins this state (fields of a publication)."""
        for one in self.ledger.history(self.name, SEARCHED_PUBLICATIONS):
            if all(_same(getattr(one, field), value) for field, value in state.items()):
                return one
        return None

    def pins(self, publication: Publication, metadata_location: str, snapshot_id: int) -> bool:
        """Whether a publication of an Iceberg table is this very state."""
        return publication.snapshot_id == snapshot_id and _same(
            publication.metadata_location, metadata_location
        )

    def properties(self, publication: Publication | None) -> dict[str, str]:
        """What the commit that shows a publication again says of it: enough to give it a new number from storage."""
        if publication is None or self.contract is None or self.table is None:
            return {}
        return rollback_properties(
            self.contract, self.table, publication.version, f"restore-{uuid.uuid4()}", None
        )

    def has_all_files(self, publication: Publication) -> bool:
        """Whether what a publication sends recipients to is there."""
        try:
            index = open_index(self.lake.settings.index_dir, publication.index_digest)
        except Unavailable:
            return False
        stores = Stores(self.lake.settings)
        metadata = publication.metadata_location
        if metadata is not None and stores.head(metadata) is None:
            return False
        there = {one.location for one in stores.list(normalise_location(index.header.location))}
        paths = (path for batch in index.batches() for path in batch.column("path").to_pylist())
        return all(normalise_location(path) in there or stores.head(path) is not None for path in paths)

    def append_again(self, publication: Publication, lease: Lease | None) -> Publication:
        """Give main's state a new number, as a publication that comes again after newer ones were lost.

        What it changes is not told: the files it would be compared with are gone.
        """
        if self.table is None or self.contract is None:
            return publication
        row = pin_publication(
            self.lake,
            self.ledger,
            self.table,
            nessie_hash=self.lake.nessie().reference("main").hash,
            delta_version=None,
            set_name=self.contract.name,
            run_id=f"restore-{uuid.uuid4()}",
            partition=publication.partition,
            contract_digest=publication.contract_digest,
            verdicts=publication.verdicts,
            rollback_of=publication.version,
            tells_changes=False,
        )
        return self.ledger.append([row], lease)[0]

    def number(self, lease: Lease | None) -> Publication | None:
        """Write the numbers that main shows and the ledger lacks; returns the newest publication."""
        if self.contract is not None and lease is not None:
            record_rollbacks(self.lake, self.ledger, self.contract, lease)
        return self.ledger.latest(self.name)

    def complete_publications(self, lease: Lease | None) -> None:
        """Write what earlier runs of the set still owe the ledger.

        Raises:
            BackupError: that takes Spark.
        """
        if self.contract is None or lease is None:
            return
        try:
            complete_publications(self.lake, self.ledger, self.contract, lease)
        except SparkError as error:
            raise BackupError(
                f"table {self.name}",
                "a run of its set reached main but not the ledger, and recording its changes takes Spark",
                "Run the set once, then restore again; files that were missing are back already.",
            ) from error


def find_lake_table(lake: Lake, catalog: Catalog, location: str, kind: str) -> LakeTable | None:
    """The lake's table at a location, by the ledger, the contracts or Nessie's main; None when none knows it."""
    name = _find_by_ledger(Ledger(catalog), location) or _find_by_contract(lake, location)
    if name is None and kind == "iceberg":
        name = _find_by_main(lake, location)
    if name is None:
        return None
    for contract in load_contracts(lake.settings.contracts_dir):
        for table in contract.tables:
            if table.name == name:
                return LakeTable(lake, catalog, name, contract, table)
    return LakeTable(lake, catalog, name)


def find_root(catalog: Catalog, name: str) -> str | None:
    """Where the ledger says that a table of the lake is; None when it was never published."""
    latest = Ledger(catalog).latest(name)
    return None if latest is None else normalise_location(latest.location).partition(APART)[0]


def show_on_main(
    table: LakeTable,
    metadata_location: str,
    metadata: Mapping[str, Any],
    snapshot_id: int,
    properties: Mapping[str, str],
) -> bool:
    """Make main show a table's metadata; False when it did already.

    Raises:
        NessieError: the table changed meanwhile, or Nessie refused.
    """
    publisher = table.lake.nessie("publisher")
    head = publisher.reference("main").hash
    now = publisher.content(table.name, f"main@{head}")
    if now is not None and _same(now.metadata_location, metadata_location) and now.snapshot_id == snapshot_id:
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


def read_metadata(store: BackupStore, address: StoreAddress, location: str) -> dict[str, Any]:
    """What a metadata.json of a store says."""
    key = location.removeprefix(address.location(""))
    metadata: dict[str, Any] = json.loads(decompress_metadata(store.read(key), MAX_METADATA_BYTES))
    return metadata


def match_spelling(table: LakeTable | None, location: str) -> str:
    """A metadata location as main or the ledger spell it, so that it stays the same text; else as a URI."""
    if table is not None:
        found = [one.metadata_location for one in table.ledger.history(table.name, SEARCHED_PUBLICATIONS)]
        try:
            content = table.lake.nessie().content(table.name, "main")
        except NessieError as error:
            log.warning("Nessie does not tell how it spells %s: %s", location, error)
        else:
            found += [] if content is None else [content.metadata_location]
        for one in found:
            if one is not None and normalise_location(one) == location:
                return one
    return f"file://{location}" if location.startswith("/") else location


def _find_by_ledger(ledger: Ledger, location: str) -> str | None:
    for name in ledger.tables():
        latest = ledger.latest(name)
        if latest is not None and _is_at(latest.location, location):
            return name
    return None


def _find_by_contract(lake: Lake, location: str) -> str | None:
    for contract in load_contracts(lake.settings.contracts_dir):
        for table in contract.tables:
            if table.format == "delta" and str(table_location(lake.settings, table)) == location:
                return table.name
    return None


def _find_by_main(lake: Lake, location: str) -> str | None:
    nessie = lake.nessie()
    for name in nessie.tables("main"):
        content = nessie.content(name, "main")
        if content is not None and _is_at(content.metadata_location.rpartition("/metadata/")[0], location):
            return name
    return None


def _is_at(found: str, location: str) -> bool:
    place = normalise_location(found).rstrip("/")
    return place == location or place.startswith(location + APART)


def _same(one: object, other: object) -> bool:
    if isinstance(one, str) and isinstance(other, str) and ("/" in one or "/" in other):
        return normalise_location(one) == normalise_location(other)
    return one == other


HINT = "version-hint.text"


def restore_iceberg_in_place(work: TableRestore, lake: Lake, catalog: Catalog) -> RestoreRecord:
    """An Iceberg table at its own root, and on Nessie's main where a name of the lake belongs to it.

    Raises:
        BackupError: a copy is missing or damaged, or the table does not open; main shows what it did before.
        CatalogConflict: a run of the table's set is publishing and did not end in time.
    """
    table = find_lake_table(lake, catalog, normalise_location(work.place), "iceberg")
    with target_lock_set(table, work) as lease:
        metadata_location, is_beside = _restore_iceberg_files(work, table)
        opened = open_iceberg(work.to, local_path(metadata_location), work.selected.version)
        work.require_rows(metadata_location, opened)
        publication = None
        if table is None:
            work.notes.append(
                f"No name of the lake belongs to {work.place}: register {metadata_location} yourself."
            )
        else:
            publication = _publish_on_main(work, table, lease, metadata_location, is_beside=is_beside)
        return work.record(
            metadata_location,
            opened,
            registered_as=table and table.name,
            publication=publication and publication.version,
        )


def restore_delta_in_place(work: TableRestore, lake: Lake, catalog: Catalog) -> RestoreRecord:
    """A Delta table at its own root; a commit puts it back where its log went on.

    Raises:
        BackupError: a copy is missing or damaged, the table does not open, or cannot be committed to; it shows what
            it did before.
        CatalogConflict: a run of the table's set is publishing and did not end in time.
    """
    table = find_lake_table(lake, catalog, normalise_location(work.place), "delta")
    with target_lock_set(table, work) as lease:
        names = list_log_names(work.store, work.root)
        newest, version = find_newest_commit(names), work.selected.version
        at = _compare_with_destination(work)
        if table is not None and newest is not None and (at.differing or newest > version):
            table.complete_publications(lease)
        published = None if table is None else table.published_as(delta_version=version)
        if at.differing:
            now = _take_over_delta(work, at, {} if table is None else table.properties(published))
        else:
            require_contiguous_commits(work.place, names, version)
            work.bring(at, into_live_log=newest is not None)
            write_pointer(work.store, work.root)
            now = version
            if newest is not None and newest > version:
                properties = {} if table is None else table.properties(published)
                now = commit_restore(work.to, work.root, version, properties)
                work.report_message(
                    f"{work.place} went on to version {newest}: version {now} shows {version} again"
                )
        opened = open_delta(work.to, work.root, now)
        work.require_rows(work.place, opened)
        publication = None if table is None else _number_delta(work, table, lease, now, published)
        return work.record(
            work.place,
            opened,
            registered_as=table and table.name,
            publication=publication and publication.version,
        )


def target_lock_set(table: LakeTable | None, work: TableRestore) -> "AbstractContextManager[Lease | None]":
    """Nobody publishes the table's set meanwhile, where the lake knows the table."""
    return nullcontext() if table is None else table.locked(f"restore of {work.selected.table.root}")


def _compare_with_destination(work: TableRestore) -> DestinationState:
    at = compare_destination(work.selected, work.to, work.root, lambda bucket, key: (bucket, key))
    if at.differing:
        work.report_message(
            f"{len(at.differing):,} keys of {work.place} are taken by others, as {at.differing[0]}"
        )
    return at


def _make_side_restore(work: TableRestore) -> TableRestore:
    """The same restore, beside what lies at the table's own keys."""
    return replace(work, root=f"{work.root}{APART}{work.selected.point.day}", notes=work.notes)


def _add_counts(work: TableRestore, beside: TableRestore) -> None:
    work.objects, work.size_bytes = work.objects + beside.objects, work.size_bytes + beside.size_bytes


def _restore_iceberg_files(work: TableRestore, table: LakeTable | None) -> tuple[str, bool]:
    """Bring the files; returns the location of the metadata that shows them, and whether all lie beside the table's."""
    proof = work.selected.proof
    at = _compare_with_destination(work)
    if at.differing:
        beside = _make_side_restore(work)
        rewritten = copy_iceberg(beside)
        _add_counts(work, beside)
        return match_spelling(table, rewritten.metadata_location), True
    if proof.metadata_key is None:
        raise BackupError(
            f"table {work.selected.table.root}", "the point does not tell its metadata", "Use another."
        )
    work.bring(at)
    key = proof.metadata_key
    if work.selected.version == proof.snapshot_id:
        _write_hint(work, key)
    else:
        key = _write_older_metadata(work, key)
    return match_spelling(table, normalise_location(work.to.location(key))), False


def _write_older_metadata(work: TableRestore, metadata_key: str) -> str:
    """Write metadata beside the table's own that has an older snapshot as its newest; returns the key."""
    location, snapshot_id = work.to.location(metadata_key), work.selected.version
    read = work.store.read

    def is_there(at: str) -> bool:
        return work.store.head(normalise_location(at).removeprefix(work.to.location(""))) is not None

    content = read(metadata_key)
    require_whole_snapshot(
        location,
        snapshot_id,
        find_whole_snapshots(
            lambda at: read(normalise_location(at).removeprefix(work.to.location(""))), location, is_there
        ),
    )
    name = f"00000-restored-{work.selected.point.day}-{snapshot_id}.metadata.json"
    key = f"{metadata_key.rpartition('/')[0]}/{name}"
    work.store.put(key, set_current_snapshot(location, content, snapshot_id), if_absent=True)
    return key


def _write_hint(work: TableRestore, metadata_key: str) -> None:
    """Catalogs of folders find their newest metadata by a hint, which is never copied."""
    folder, _, name = metadata_key.rpartition("/")
    number = name.removeprefix("v").partition(".")[0]
    if name.startswith("v") and number.isdecimal():
        work.store.put(f"{folder}/{HINT}", number.encode(), if_absent=True)


def _publish_on_main(
    work: TableRestore, table: LakeTable, lease: Lease | None, location: str, *, is_beside: bool
) -> Publication | None:
    """Main shows the restored metadata; the newest publication is its state again, or a new number becomes it."""
    table.complete_publications(lease)
    newest = table.ledger.latest(table.name)
    snapshot_id = work.selected.version
    is_newest = newest is not None and table.pins(newest, location, snapshot_id)
    published = newest if is_newest else table.published_as(snapshot_id=snapshot_id)
    is_lost = newest is not None and not is_newest and (is_beside or not table.has_all_files(newest))
    properties = {} if is_newest or is_lost else table.properties(published)
    metadata = read_metadata(work.store, work.to, normalise_location(location))
    if show_on_main(table, location, metadata, snapshot_id, properties):
        work.report_message(f"main shows {table.name} at snapshot {snapshot_id} again")
    if newest is not None and published is None:
        work.notes.append(
            f"Snapshot {snapshot_id} of {table.name} was never published: recipients read it with the next run."
        )
    elif is_lost and newest is not None and published is not None:
        work.notes.append(
            f"What publication {newest.version} of {table.name} showed is lost, or not what it was."
        )
        return table.append_again(published, lease)
    return _number_table(work, table, lease)


def _number_table(work: TableRestore, table: LakeTable, lease: Lease | None) -> Publication | None:
    try:
        return table.number(lease)
    except SparkError as error:
        work.notes.append(f"The new number of {table.name} is owed until the next run of its set: {error}")
        return None


def _take_over_delta(work: TableRestore, at: DestinationState, properties: Mapping[str, str]) -> int:
    """The restored table below `_restored/`, and its files taken over by a commit on the live one."""
    beside = _make_side_restore(work)
    copy_delta(beside)
    opened = open_delta(beside.to, beside.root, work.selected.version)
    work.require_rows(beside.place, opened)
    _add_counts(work, beside)
    now = commit_takeover(work.to, work.root, beside.root, work.selected.version, properties)
    work.report_message(f"version {now} of {work.place} has the files that lie in {beside.place}")
    return now


def _number_delta(
    work: TableRestore, table: LakeTable, lease: Lease | None, now: int, published: Publication | None
) -> Publication | None:
    """The newest publication is the table's state again, or a new number becomes it."""
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
        # Numbers are Delta versions and only grow: the lost ones must not be given to other states.
        now = skip_versions(work.to, work.root, now, newest.version, table.properties(published))
        work.notes.append(
            f"Publications {published.version + 1} to {newest.version} of {table.name} are lost: version {now} shows "
            f"{published.version} again."
        )
    table.complete_publications(lease)
    return _number_table(work, table, lease)
