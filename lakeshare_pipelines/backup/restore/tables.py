"""Restoring one table of a point: in its original place, or at another one.

Which table and version is chosen.py's, copying copied.py's, the lake's own state lake_table.py's.
"""

from lakeshare_pipelines.backup.copy.engine import Tell
from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.records import Point
from lakeshare_pipelines.backup.restore.chosen import Chosen, chosen
from lakeshare_pipelines.backup.restore.elsewhere import delta_elsewhere, iceberg_elsewhere
from lakeshare_pipelines.backup.restore.estimate import plan_of
from lakeshare_pipelines.backup.restore.in_place import delta_in_place, iceberg_in_place, locked
from lakeshare_pipelines.backup.restore.lake_table import lake_table, root_of_name
from lakeshare_pipelines.backup.restore.partition import Wanted, plan_of_partition, restore_partition
from lakeshare_pipelines.backup.restore.records import RestorePlan, RestoreRecord, Wish
from lakeshare_pipelines.backup.restore.work import Say, Work, silent, unsaid
from lakeshare_pipelines.backup.retention.leases import reading
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.lake import without_spark
from lakeshare_server.catalog import Catalog
from lakeshare_server.stores import normalised


def restore_in_place(
    settings: LakeSettings,
    catalog: Catalog,
    backup: Backup,
    point: Point,
    table: str,
    version: int | None = None,
    *,
    say: Say = unsaid,
    tell: Tell = silent,
) -> RestoreRecord:
    """Bring a table back where it was, and let the lake and its recipients see it again.

    What is missing is put back at its key; nothing that is there is overwritten or removed. Where the table went on
    since, it shows the restored state by a new commit; where other things lie at its keys, the restored table lies
    below `_restored/` beside them. Called again after a crash it goes on.

    Raises:
        BackupError: the point does not hold the table whole, or the place refuses; the lake shows what it did before.
        CatalogConflict: a run of the table's set is publishing and did not end in time.
    """
    points = Points(backup)
    choice = chosen(points, Wish(_root(catalog, backup, point, table), point.day, version))
    work = Work(settings, backup, choice, backup.source, choice.table.root, say, tell)
    lake = without_spark(settings)
    with reading(points, point.day, work.title):
        restore = delta_in_place if choice.table.format == "delta" else iceberg_in_place
        return restore(work, lake, catalog)


def restore_elsewhere(
    settings: LakeSettings,
    backup: Backup,
    point: Point,
    table: str,
    to: StoreAddress,
    version: int | None = None,
    *,
    say: Say = unsaid,
    tell: Tell = silent,
) -> RestoreRecord:
    """Restore a table to a place of its own; `to` is its new root, where nothing else may be.

    Nothing is registered. Called again after a crash it goes on.

    Raises:
        BackupError: the point does not hold the table whole, or something else is at that place.
    """
    return restored_to(settings, backup, point, table, to, version, say=say, tell=tell)[1]


def restored_to(
    settings: LakeSettings,
    backup: Backup,
    point: Point,
    table: str,
    to: StoreAddress,
    version: int | None = None,
    *,
    say: Say = unsaid,
    tell: Tell = silent,
) -> tuple[Work, RestoreRecord]:
    """`restore_elsewhere`, with the work that was done: it knows where each object went."""
    points = Points(backup)
    choice = chosen(points, Wish(table, point.day, version))
    work = _elsewhere(settings, backup, choice, to, say, tell)
    with reading(points, point.day, work.title):
        restore = delta_elsewhere if choice.table.format == "delta" else iceberg_elsewhere
        return work, restore(work)


def plan_restore(
    settings: LakeSettings,
    catalog: Catalog,
    backup: Backup,
    point: Point,
    table: str,
    to: StoreAddress | None,
    version: int | None = None,
) -> RestorePlan:
    """What restoring a table would do and take, in place where `to` is None; nothing is written.

    Raises:
        BackupError: it would be refused.
    """
    points = Points(backup)
    root = _root(catalog, backup, point, table) if to is None else table
    choice = chosen(points, Wish(root, point.day, version))
    if to is None:
        return plan_of(Work(settings, backup, choice, backup.source, choice.table.root), in_place=True)
    return plan_of(_elsewhere(settings, backup, choice, to, unsaid, silent), in_place=False)


def restore_partition_in_place(
    settings: LakeSettings,
    catalog: Catalog,
    backup: Backup,
    point: Point,
    table: str,
    partition: Wanted,
    version: int | None = None,
    *,
    say: Say = unsaid,
    tell: Tell = silent,
) -> RestoreRecord:
    """Put a partition of a live Delta table back to what it was in a point, by one commit.

    Raises:
        BackupError: the table is Iceberg's, or as `restore_partition` says.
        CatalogConflict: a run of the table's set is publishing and did not end in time.
    """
    work = _of_partition(settings, catalog, backup, point, table, version)
    work.say, work.tell = say, tell
    known = lake_table(without_spark(settings), catalog, normalised(work.place), "delta")
    with reading(Points(backup), point.day, work.title), locked(known, work):
        return restore_partition(work, partition)


def plan_partition(
    settings: LakeSettings,
    catalog: Catalog,
    backup: Backup,
    point: Point,
    table: str,
    partition: Wanted,
    version: int | None = None,
) -> RestorePlan:
    """What `restore_partition_in_place` would do and take; nothing is written.

    Raises:
        BackupError: it would be refused.
    """
    return plan_of_partition(_of_partition(settings, catalog, backup, point, table, version), partition)


def _of_partition(
    settings: LakeSettings, catalog: Catalog, backup: Backup, point: Point, table: str, version: int | None
) -> Work:
    choice = chosen(Points(backup), Wish(_root(catalog, backup, point, table), point.day, version))
    if choice.table.format != "delta":
        raise BackupError(
            f"table {choice.table.root}",
            "partitions of Iceberg tables are not put back by themselves",
            "Open the copy with `lakeshare restore table --mount`, and overwrite the partition from there with Spark.",
        )
    return Work(settings, backup, choice, backup.source, choice.table.root)


def _elsewhere(
    settings: LakeSettings, backup: Backup, choice: Chosen, to: StoreAddress, say: Say, tell: Tell
) -> Work:
    if to.kind == "folder":
        # The folder above is the store: what an engine keeps for itself does not belong into a table.
        above, _, name = to.url.rpartition("/")
        return Work(settings, backup, choice, to.model_copy(update={"url": above or "/"}), name, say, tell)
    root = to.prefix.rstrip("/")
    whole = to.model_copy(update={"url": f"s3://{to.bucket}"})
    return Work(settings, backup, choice, whole, root, say, tell)


def _root(catalog: Catalog, backup: Backup, point: Point, table: str) -> str:
    """The root's key, where the ledger knows the table by that name: its Iceberg tables have an id in their folder."""
    location = root_of_name(catalog, table)
    roots = {proof.table.root for proof in point.verification.tables}
    for root in roots:
        if location is not None and backup.source.location(root) == location:
            return root
    return table
