"""Restoring tables of a point: in their original place, or at another one.

Which table and version is chosen.py's, copying copied.py's, the lake's own state lake_table.py's.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass

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
from lakeshare_pipelines.backup.restore.placed import require_outside_target
from lakeshare_pipelines.backup.restore.records import RestorePlan, RestoreRecord, Wish
from lakeshare_pipelines.backup.restore.work import Say, Work, silent, unsaid
from lakeshare_pipelines.backup.retention.leases import reading
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.lake import without_spark
from lakeshare_server.catalog import Catalog
from lakeshare_server.stores import normalised


@dataclass(frozen=True)
class Restores:
    """Tables of one point, on their way back. `say` gets sentences, `tell` how far the copying is."""

    settings: LakeSettings
    backup: Backup
    point: Point
    say: Say = unsaid
    tell: Tell = silent

    def in_place(self, catalog: Catalog, table: str, version: int | None = None) -> RestoreRecord:
        """Bring a table back where it was, and let the lake and its recipients see it again.

        What is missing is put back at its key; nothing that is there is overwritten or removed. Where the table went
        on since, it shows the restored state by a new commit; where other things lie at its keys, the restored table
        lies below `_restored/` beside them. Called again after a crash it goes on.

        Raises:
            BackupError: the point does not hold the table whole, or the place refuses; the lake shows what it did
                before.
            CatalogConflict: a run of the table's set is publishing and did not end in time.
        """
        work = self._where_it_was(catalog, table, version)
        restore = delta_in_place if work.choice.table.format == "delta" else iceberg_in_place
        with self._reading(work):
            return restore(work, without_spark(self.settings), catalog)

    def elsewhere(self, table: str, to: StoreAddress, version: int | None = None) -> RestoreRecord:
        """Restore a table to a place of its own; `to` is its new root, where nothing else may be.

        Nothing is registered. Called again after a crash it goes on.

        Raises:
            BackupError: the point does not hold the table whole, or something else is at that place.
        """
        return self.work_elsewhere(table, to, version)[1]

    def work_elsewhere(
        self, table: str, to: StoreAddress, version: int | None = None
    ) -> tuple[Work, RestoreRecord]:
        """`elsewhere`, with the work that was done: it knows where each object went."""
        work = self._beside(table, to, version)
        restore = delta_elsewhere if work.choice.table.format == "delta" else iceberg_elsewhere
        with self._reading(work):
            return work, restore(work)

    def plan(
        self, catalog: Catalog, table: str, to: StoreAddress | None, version: int | None = None
    ) -> RestorePlan:
        """What restoring a table would do and take, in place where `to` is None; nothing is written.

        Raises:
            BackupError: it would be refused.
        """
        if to is None:
            return plan_of(self._where_it_was(catalog, table, version), in_place=True)
        return plan_of(self._beside(table, to, version), in_place=False)

    def partition(
        self, catalog: Catalog, table: str, partition: Wanted, version: int | None = None
    ) -> RestoreRecord:
        """Put a partition of a live Delta table back to what it was in the point, by one commit.

        Raises:
            BackupError: the table is Iceberg's, or as `restore_partition` says.
            CatalogConflict: a run of the table's set is publishing and did not end in time.
        """
        work = self._of_partitions(catalog, table, version)
        known = lake_table(without_spark(self.settings), catalog, normalised(work.place), "delta")
        with self._reading(work), locked(known, work):
            return restore_partition(work, partition)

    def plan_of_partition(
        self, catalog: Catalog, table: str, partition: Wanted, version: int | None = None
    ) -> RestorePlan:
        """What `partition` would do and take; nothing is written.

        Raises:
            BackupError: it would be refused.
        """
        return plan_of_partition(self._of_partitions(catalog, table, version), partition)

    def _where_it_was(self, catalog: Catalog, table: str, version: int | None) -> Work:
        choice = self._chosen(_root(catalog, self.backup, self.point, table), version)
        return self._work(choice, self.backup.source, choice.table.root)

    def _of_partitions(self, catalog: Catalog, table: str, version: int | None) -> Work:
        work = self._where_it_was(catalog, table, version)
        if work.choice.table.format != "delta":
            raise BackupError(
                f"table {work.choice.table.root}",
                "partitions of Iceberg tables are not put back by themselves",
                "Open the copy with `lakeshare restore table --mount`, and overwrite the partition from there with "
                "Spark.",
            )
        return work

    def _beside(self, table: str, to: StoreAddress, version: int | None) -> Work:
        require_outside_target(self.backup, to)
        choice = self._chosen(table, version)
        if to.kind == "folder":
            # The folder above is the store: what an engine keeps for itself does not belong into a table.
            above, _, name = to.url.rpartition("/")
            return self._work(choice, to.model_copy(update={"url": above or "/"}), name)
        return self._work(choice, to.model_copy(update={"url": f"s3://{to.bucket}"}), to.prefix.rstrip("/"))

    def _chosen(self, table: str, version: int | None) -> Chosen:
        return chosen(Points(self.backup), Wish(table, self.point.day, version))

    def _work(self, choice: Chosen, to: StoreAddress, root: str) -> Work:
        return Work(self.settings, self.backup, choice, to, root, self.say, self.tell)

    def _reading(self, work: Work) -> AbstractContextManager[None]:
        return reading(Points(self.backup), self.point.day, work.title, unwritable=self.say)


def _root(catalog: Catalog, backup: Backup, point: Point, table: str) -> str:
    """The root's key, where the ledger knows the table by that name: its Iceberg tables have an id in their folder."""
    location = root_of_name(catalog, table)
    roots = {proof.table.root for proof in point.verification.tables}
    for root in roots:
        if location is not None and backup.source.location(root) == location:
            return root
    return table
