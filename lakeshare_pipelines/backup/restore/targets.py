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
    Placed,
    Say,
    Work,
    opened_delta,
    opened_iceberg,
    placed,
    read_whole,
    refuse_taken,
    unsaid,
)
from lakeshare_pipelines.backup.restore.delta import (
    committed_back,
    log_names,
    newest_commit,
    numbers_skipped,
    require_no_hole,
    taken_over,
    write_pointer,
)
from lakeshare_pipelines.backup.restore.selection import Chosen, RestoreRecord, Wish, chosen
from lakeshare_pipelines.backup.rewriting import (
    MOUNTED,
    Rewritten,
    require_whole,
    rewrite_table,
    whole_snapshots,
    with_current,
)
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.loader import load_contracts
from lakeshare_pipelines.errors import BackupError, NessieError, SparkError
from lakeshare_pipelines.nessie.client import TableContent
from lakeshare_pipelines.share.publication import pay_debts, pinned, record_rollbacks, rollback_properties
from lakeshare_pipelines.wap.delta import table_location
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog, Lease, Ledger, Publication, set_lock
from lakeshare_server.errors import Unavailable
from lakeshare_server.storage import Stores, normalised
from lakeshare_server.storage.locations import local_path
from lakeshare_server.tables import open_index
from lakeshare_server.tables.iceberg.metadata import LONGEST_BYTES, unpacked

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

WRITTEN_ANEW = r"(^|/)metadata/[^/]*(metadata\.json(\.gz)?|\.avro)$"
COPIED = "files"
"""Below the new root of an Iceberg table: its files as they were, beside the metadata that is written for them."""


def delta_elsewhere(work: Work) -> RestoreRecord:
    """A Delta table at a new root: its names are relative to it, so that copying is enough.

    Raises:
        BackupError: something else is there, or the table does not open.
    """
    copied_delta(work)
    return work.record(work.place, opened_delta(work.to, work.root, work.choice.version))


def iceberg_elsewhere(work: Work) -> RestoreRecord:
    """An Iceberg table at a new root, with metadata that names the new places.

    Raises:
        BackupError: something else is there, or the table does not open.
    """
    rewritten = copied_iceberg(work)
    location = rewritten.metadata_location
    return work.record(location, opened_iceberg(work.to, location, work.choice.version))


def new_places(work: Work) -> Callable[[str, str], tuple[str, str]]:
    """New bucket and key of an object by its original ones, at a place of its own."""
    root, to = work.choice.table.root, work.to.bucket
    folder = work.root if work.choice.table.format == "delta" else f"{work.root}/{COPIED}"

    def goes(bucket: str, key: str) -> tuple[str, str]:
        if bucket == work.choice.table.bucket:
            return to, f"{folder}/{key.removeprefix(root + '/')}"
        return to, f"{folder}/external/{bucket.strip('/')}/{key}"

    return goes


def brought(work: Work) -> Chosen:
    """What is copied to a place of its own: of an Iceberg table no metadata and no manifests, which are written anew.

    Left beside them, those of the original place would look like a table of their own.
    """
    if work.choice.table.format == "delta":
        return work.choice
    rows = work.choice.rows
    return replace(
        work.choice, rows=rows.filter(pc.invert(pc.match_substring_regex(rows["key"], WRITTEN_ANEW)))
    )


def copied_delta(work: Work) -> None:
    """Copy a Delta table to the work's root.

    Raises:
        BackupError: it has files outside of its root, which its log names by whole locations; something else is there.
    """
    root = work.choice.table.root
    outside = [key for key in work.choice.rows["key"].to_pylist() if not key.startswith(f"{root}/")]
    if outside:
        raise BackupError(
            f"table {root}",
            f"its log names files elsewhere, as {outside[0]}: at another place it would still read those",
            "Restore it in place.",
        )
    at = placed(work.choice, work.to, work.root, new_places(work))
    require_free(work, at)
    work.bring(at)
    write_pointer(work.store, work.root)


def copied_iceberg(work: Work) -> Rewritten:
    """Copy an Iceberg table to the work's root and write metadata for it.

    Raises:
        BackupError: something else is there, or a file of its metadata cannot be read.
    """
    choice, source = work.choice, work.backup.source
    if choice.proof.metadata_key is None:
        raise BackupError(
            f"table {choice.table.root}", "the point does not tell its metadata", "Use another point."
        )
    goes = new_places(work)
    at = placed(brought(work), work.to, work.root, goes)
    require_free(work, at)
    work.bring(at)
    held = {location(source, bucket, key): (bucket, key) for bucket, key in _keys(choice)}
    new = {old: work.to.location(goes(*at)[1]) for old, at in held.items()}
    read = copies_of(choice, source)
    rewritten = rewrite_table(
        read,
        source.location(choice.proof.metadata_key),
        work.moved(new),
        work.store,
        work.root,
        whole_snapshots(read, source.location(choice.proof.metadata_key), lambda one: normalised(one) in new),
        current=choice.version,
        tell=lambda done, of: work.say(f"{done:,} of {of:,} manifests rewritten") if done == of else None,
    )
    work.say(f"{len(rewritten.keys):,} files of metadata written for {work.place}")
    return rewritten


def copies_of(choice: Chosen, source: StoreAddress) -> Callable[[str], bytes]:
    """Reads a table's files by their original locations, from the copies; what was changed since is refused."""
    rows = choice.rows.select(["bucket", "key", "stored_key", "stored_version_id", "checksum"]).to_pylist()
    stored = {location(source, row["bucket"], row["key"]): row for row in rows}
    copies = open_store(choice.copies)

    def read(at: str) -> bytes:
        found = stored.get(normalised(at))
        if found is None:
            raise BackupError(at, f"point {choice.point.day} does not hold it", "Restore from another point.")
        return read_whole(choice, copies, found)

    return read


def location(source: StoreAddress, bucket: str, key: str) -> str:
    """An object's original location, in our spelling."""
    return normalised((source if bucket == source.bucket else source.at(bucket)).location(key))


def _keys(choice: Chosen) -> Iterator[tuple[str, str]]:
    return zip(choice.rows["bucket"].to_pylist(), choice.rows["key"].to_pylist(), strict=True)


def require_free(work: Work, at: Placed) -> None:
    """Refuse a place where something is that this restore did not write.

    Raises:
        BackupError: it names the first such object.
    """
    own = ("_delta_log/_last_checkpoint",) if work.choice.table.format == "delta" else ("metadata/",)
    others = [key for key in at.others if not key.removeprefix(f"{work.root}/").startswith(own)]
    refuse_taken(work.place, (*at.differing, *map(work.to.location, others)))


@dataclass(frozen=True)
class Mounted:
    """What opens: a Delta table's root with the version to ask for, or an Iceberg table's metadata.json."""

    location: str
    version: int


def mounted(
    points: Points, point: Point, table: str, version: int | None = None, say: Say = unsaid
) -> Mounted:
    """Where a table of a point opens in the store of its copies.

    A Delta table is at its copies; readers must ask for `version`, the log may go on behind it. For an Iceberg table
    metadata is written into the point's folder, which names the copies. That of the point is taken where it is still
    what was written.

    Raises:
        BackupError: the point does not hold the table whole.
    """
    choice = chosen(points, Wish(table, point.day, version))
    if choice.table.format == "delta":
        return Mounted(choice.copies.location(choice.table.stored_root), choice.version)
    mount, digest = choice.proof.mount, choice.proof.mount_digest
    if mount is not None and version in (None, choice.proof.snapshot_id):
        # Points of earlier releases have no digest of it.
        if digest is None or points.mount_digest(mount) == digest:
            return Mounted(mount, choice.version)
        say(f"The metadata at {mount} is not what was written; it is written anew.")
    return Mounted(_written(points, choice, say), choice.version)


def _written(points: Points, choice: Chosen, say: Say) -> str:
    source, key = points.backup.source, choice.proof.metadata_key
    if key is None:
        raise BackupError(
            f"table {choice.table.root}", "the point does not tell its metadata", "Use another point."
        )
    rows = choice.rows.select(["bucket", "key", "stored_key"]).to_pylist()
    new = {
        location(source, row["bucket"], row["key"]): choice.copies.location(row["stored_key"]) for row in rows
    }
    read = copies_of(choice, source)
    rewritten = rewrite_table(
        read,
        source.location(key),
        lambda at: new.get(normalised(at), at),
        points.store,
        f"{points.folder(choice.point.day)}mounts/{choice.version}/{choice.table.root}",
        whole_snapshots(read, source.location(key), lambda at: normalised(at) in new),
        current=choice.version,
        properties=MOUNTED,
    )
    say(f"{len(rewritten.keys):,} files of metadata written beside the point")
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
        with set_lock(self.catalog, self.contract.name, why, self.lake.settings.lock_wait_s) as lease:
            yield lease

    def published_as(self, **state: object) -> Publication | None:
        """The newest publication that pins this state (fields of a publication)."""
        for one in self.ledger.history(self.name, SEARCHED_PUBLICATIONS):
            if all(_same(getattr(one, field), said) for field, said in state.items()):
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
        there = {one.location for one in stores.list(normalised(index.header.location))}
        paths = (path for batch in index.batches() for path in batch.column("path").to_pylist())
        return all(normalised(path) in there or stores.head(path) is not None for path in paths)

    def append_again(self, publication: Publication, lease: Lease | None) -> Publication:
        """Give main's state a new number, as a publication that comes again after newer ones were lost.

        What it changes is not told: the files it would be compared with are gone.
        """
        if self.table is None or self.contract is None:
            return publication
        row = pinned(
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

    def pay_debts(self, lease: Lease | None) -> None:
        """Write what earlier runs of the set still owe the ledger.

        Raises:
            BackupError: that takes Spark.
        """
        if self.contract is None or lease is None:
            return
        try:
            pay_debts(self.lake, self.ledger, self.contract, lease)
        except SparkError as error:
            raise BackupError(
                f"table {self.name}",
                "a run of its set reached main but not the ledger, and recording its changes takes Spark",
                "Run the set once, then restore again; files that were missing are back already.",
            ) from error


def lake_table(lake: Lake, catalog: Catalog, location: str, kind: str) -> LakeTable | None:
    """The lake's table at a location, by the ledger, the contracts or Nessie's main; None when none knows it."""
    name = _by_ledger(Ledger(catalog), location) or _by_contract(lake, location)
    if name is None and kind == "iceberg":
        name = _by_main(lake, location)
    if name is None:
        return None
    for contract in load_contracts(lake.settings.contracts_dir):
        for table in contract.tables:
            if table.name == name:
                return LakeTable(lake, catalog, name, contract, table)
    return LakeTable(lake, catalog, name)


def root_of_name(catalog: Catalog, name: str) -> str | None:
    """Where the ledger says that a table of the lake is; None when it was never published."""
    latest = Ledger(catalog).latest(name)
    return None if latest is None else normalised(latest.location).partition(APART)[0]


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


def metadata_at(store: BackupStore, address: StoreAddress, location: str) -> dict[str, Any]:
    """What a metadata.json of a store says."""
    key = location.removeprefix(address.location(""))
    told: dict[str, Any] = json.loads(unpacked(store.read(key), LONGEST_BYTES))
    return told


def spelt(table: LakeTable | None, location: str) -> str:
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
            if one is not None and normalised(one) == location:
                return one
    return f"file://{location}" if location.startswith("/") else location


def _by_ledger(ledger: Ledger, location: str) -> str | None:
    for name in ledger.tables():
        latest = ledger.latest(name)
        if latest is not None and _is_at(latest.location, location):
            return name
    return None


def _by_contract(lake: Lake, location: str) -> str | None:
    for contract in load_contracts(lake.settings.contracts_dir):
        for table in contract.tables:
            if table.format == "delta" and str(table_location(lake.settings, table)) == location:
                return table.name
    return None


def _by_main(lake: Lake, location: str) -> str | None:
    nessie = lake.nessie()
    for name in nessie.tables("main"):
        content = nessie.content(name, "main")
        if content is not None and _is_at(content.metadata_location.rpartition("/metadata/")[0], location):
            return name
    return None


def _is_at(found: str, location: str) -> bool:
    place = normalised(found).rstrip("/")
    return place == location or place.startswith(location + APART)


def _same(one: object, other: object) -> bool:
    if isinstance(one, str) and isinstance(other, str) and ("/" in one or "/" in other):
        return normalised(one) == normalised(other)
    return one == other


HINT = "version-hint.text"


def iceberg_in_place(work: Work, lake: Lake, catalog: Catalog) -> RestoreRecord:
    """An Iceberg table at its own root, and on Nessie's main where a name of the lake belongs to it.

    Raises:
        BackupError: a copy is missing or damaged, or the table does not open; main shows what it did before.
        CatalogConflict: a run of the table's set is publishing and did not end in time.
    """
    table = lake_table(lake, catalog, normalised(work.place), "iceberg")
    with locked(table, work) as lease:
        metadata_location, is_beside = _iceberg_files(work, table)
        opened = opened_iceberg(work.to, local_path(metadata_location), work.choice.version)
        work.require_rows(metadata_location, opened)
        publication = None
        if table is None:
            work.notes.append(
                f"No name of the lake belongs to {work.place}: register {metadata_location} yourself."
            )
        else:
            publication = _shown_on_main(work, table, lease, metadata_location, is_beside=is_beside)
        return work.record(
            metadata_location,
            opened,
            registered_as=table and table.name,
            publication=publication and publication.version,
        )


def delta_in_place(work: Work, lake: Lake, catalog: Catalog) -> RestoreRecord:
    """A Delta table at its own root; a commit puts it back where its log went on.

    Raises:
        BackupError: a copy is missing or damaged, the table does not open, or cannot be committed to; it shows what
            it did before.
        CatalogConflict: a run of the table's set is publishing and did not end in time.
    """
    table = lake_table(lake, catalog, normalised(work.place), "delta")
    with locked(table, work) as lease:
        names = log_names(work.store, work.root)
        newest, version = newest_commit(names), work.choice.version
        at = _compared(work)
        if table is not None and newest is not None and (at.differing or newest > version):
            table.pay_debts(lease)
        published = None if table is None else table.published_as(delta_version=version)
        if at.differing:
            now = _delta_apart(work, at, {} if table is None else table.properties(published))
        else:
            require_no_hole(work.place, names, version)
            work.bring(at, into_live_log=newest is not None)
            write_pointer(work.store, work.root)
            now = version
            if newest is not None and newest > version:
                properties = {} if table is None else table.properties(published)
                now = committed_back(work.to, work.root, version, properties)
                work.say(f"{work.place} went on to version {newest}: version {now} shows {version} again")
        opened = opened_delta(work.to, work.root, now)
        work.require_rows(work.place, opened)
        publication = None if table is None else _numbered_delta(work, table, lease, now, published)
        return work.record(
            work.place,
            opened,
            registered_as=table and table.name,
            publication=publication and publication.version,
        )


def locked(table: LakeTable | None, work: Work) -> "AbstractContextManager[Lease | None]":
    """Nobody publishes the table's set meanwhile, where the lake knows the table."""
    return nullcontext() if table is None else table.locked(f"restore of {work.choice.table.root}")


def _compared(work: Work) -> Placed:
    at = placed(work.choice, work.to, work.root, lambda bucket, key: (bucket, key))
    if at.differing:
        work.say(f"{len(at.differing):,} keys of {work.place} are taken by others, as {at.differing[0]}")
    return at


def _apart(work: Work) -> Work:
    """The same restore, beside what lies at the table's own keys."""
    return replace(work, root=f"{work.root}{APART}{work.choice.point.day}", notes=work.notes)


def _counted(work: Work, beside: Work) -> None:
    work.objects, work.size_bytes = work.objects + beside.objects, work.size_bytes + beside.size_bytes


def _iceberg_files(work: Work, table: LakeTable | None) -> tuple[str, bool]:
    """Bring the files; returns the location of the metadata that shows them, and whether all lie beside the table's."""
    proof = work.choice.proof
    at = _compared(work)
    if at.differing:
        beside = _apart(work)
        rewritten = copied_iceberg(beside)
        _counted(work, beside)
        return spelt(table, rewritten.metadata_location), True
    if proof.metadata_key is None:
        raise BackupError(
            f"table {work.choice.table.root}", "the point does not tell its metadata", "Use another."
        )
    work.bring(at)
    key = proof.metadata_key
    if work.choice.version == proof.snapshot_id:
        _write_hint(work, key)
    else:
        key = _metadata_of_older(work, key)
    return spelt(table, normalised(work.to.location(key))), False


def _metadata_of_older(work: Work, metadata_key: str) -> str:
    """Write metadata beside the table's own that has an older snapshot as its newest; returns the key."""
    location, snapshot_id = work.to.location(metadata_key), work.choice.version
    read = work.store.read

    def is_there(at: str) -> bool:
        return work.store.head(normalised(at).removeprefix(work.to.location(""))) is not None

    content = read(metadata_key)
    require_whole(
        location,
        snapshot_id,
        whole_snapshots(
            lambda at: read(normalised(at).removeprefix(work.to.location(""))), location, is_there
        ),
    )
    name = f"00000-restored-{work.choice.point.day}-{snapshot_id}.metadata.json"
    key = f"{metadata_key.rpartition('/')[0]}/{name}"
    work.store.put(key, with_current(location, content, snapshot_id), if_absent=True)
    return key


def _write_hint(work: Work, metadata_key: str) -> None:
    """Catalogs of folders find their newest metadata by a hint, which is never copied."""
    folder, _, name = metadata_key.rpartition("/")
    number = name.removeprefix("v").partition(".")[0]
    if name.startswith("v") and number.isdecimal():
        work.store.put(f"{folder}/{HINT}", number.encode(), if_absent=True)


def _shown_on_main(
    work: Work, table: LakeTable, lease: Lease | None, location: str, *, is_beside: bool
) -> Publication | None:
    """Main shows the restored metadata; the newest publication is its state again, or a new number becomes it."""
    table.pay_debts(lease)
    newest = table.ledger.latest(table.name)
    snapshot_id = work.choice.version
    is_newest = newest is not None and table.pins(newest, location, snapshot_id)
    published = newest if is_newest else table.published_as(snapshot_id=snapshot_id)
    is_lost = newest is not None and not is_newest and (is_beside or not table.has_all_files(newest))
    properties = {} if is_newest or is_lost else table.properties(published)
    metadata = metadata_at(work.store, work.to, normalised(location))
    if show_on_main(table, location, metadata, snapshot_id, properties):
        work.say(f"main shows {table.name} at snapshot {snapshot_id} again")
    if newest is not None and published is None:
        work.notes.append(
            f"Snapshot {snapshot_id} of {table.name} was never published: recipients read it with the next run."
        )
    elif is_lost and newest is not None and published is not None:
        work.notes.append(
            f"What publication {newest.version} of {table.name} showed is lost, or not what it was."
        )
        return table.append_again(published, lease)
    return _numbered(work, table, lease)


def _numbered(work: Work, table: LakeTable, lease: Lease | None) -> Publication | None:
    try:
        return table.number(lease)
    except SparkError as error:
        work.notes.append(f"The new number of {table.name} is owed until the next run of its set: {error}")
        return None


def _delta_apart(work: Work, at: Placed, properties: Mapping[str, str]) -> int:
    """The restored table below `_restored/`, and its files taken over by a commit on the live one."""
    beside = _apart(work)
    copied_delta(beside)
    opened = opened_delta(beside.to, beside.root, work.choice.version)
    work.require_rows(beside.place, opened)
    _counted(work, beside)
    now = taken_over(work.to, work.root, beside.root, work.choice.version, properties)
    work.say(f"version {now} of {work.place} has the files that lie in {beside.place}")
    return now


def _numbered_delta(
    work: Work, table: LakeTable, lease: Lease | None, now: int, published: Publication | None
) -> Publication | None:
    """The newest publication is the table's state again, or a new number becomes it."""
    newest = table.ledger.latest(table.name)
    if newest is None:
        return None
    if published is None:
        work.notes.append(
            f"Version {work.choice.version} of {table.name} was never published: recipients read it with the next run."
        )
        return newest
    if now < newest.version:
        # Numbers are Delta versions and only grow: the lost ones must not be given to other states.
        now = numbers_skipped(work.to, work.root, now, newest.version, table.properties(published))
        work.notes.append(
            f"Publications {published.version + 1} to {newest.version} of {table.name} are lost: version {now} shows "
            f"{published.version} again."
        )
    table.pay_debts(lease)
    return _numbered(work, table, lease)
