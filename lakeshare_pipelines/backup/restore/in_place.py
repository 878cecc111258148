"""A table restored where it was: what is missing is put back, and the lake's own state made to show it.

Nothing that is there is overwritten or removed. Where other things lie at the table's keys, the restored table goes
beside them, below `_restored/`.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from lakeshare_pipelines.backup.restore.delta import (
    committed_back,
    log_names,
    newest_commit,
    numbers_skipped,
    require_no_hole,
    taken_over,
    write_pointer,
)
from lakeshare_pipelines.backup.restore.elsewhere import copied_delta, copied_iceberg
from lakeshare_pipelines.backup.restore.lake_table import (
    APART,
    LakeTable,
    lake_table,
    metadata_at,
    show_on_main,
    spelt,
)
from lakeshare_pipelines.backup.restore.opening import opened_delta, opened_iceberg
from lakeshare_pipelines.backup.restore.placed import Placed, placed
from lakeshare_pipelines.backup.restore.records import RestoreRecord
from lakeshare_pipelines.backup.restore.work import Work
from lakeshare_pipelines.backup.rewriting import require_whole, whole_snapshots, with_current
from lakeshare_pipelines.errors import BackupError, SparkError
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_server.catalog import Catalog, Lease, Publication
from lakeshare_server.stores import normalised
from lakeshare_server.tables.locations import local_path

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

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
