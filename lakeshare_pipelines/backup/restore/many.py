"""Restoring more than a table: the tables of a set, or all that a point holds, what belongs to no table too."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.records import FoundTable, Point, TableProof
from lakeshare_pipelines.backup.restore.chosen import Chosen
from lakeshare_pipelines.backup.restore.placed import placed, require_outside_target
from lakeshare_pipelines.backup.restore.records import RestoreRecord
from lakeshare_pipelines.backup.restore.work import Say, Work, silent, unsaid
from lakeshare_pipelines.backup.retention.leases import reading
from lakeshare_pipelines.backup.rows import HELD
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.contracts.loader import load_contracts
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.errors import LakeshareError


@dataclass(frozen=True)
class Restored:
    """What became of several tables: one that failed keeps none of the others."""

    records: tuple[RestoreRecord, ...]
    failures: tuple[str, ...]
    """Sentences, each with the table's name."""


def restore_each(
    names: Iterable[str], restore: Callable[[str], RestoreRecord], say: Say = unsaid
) -> Restored:
    """Restore tables one after the other; what fails is told of, and the next one begun."""
    records, failures = [], []
    for name in names:
        try:
            records.append(restore(name))
        except LakeshareError as error:
            failures.append(f"{name}: {error}")
            say(f"{name} could not be restored: {error}")
    return Restored(tuple(records), tuple(failures))


def tables_of_set(settings: LakeSettings, name: str) -> list[str]:
    """The tables that a contract publishes together.

    Raises:
        BackupError: there is no such set.
    """
    contracts = {contract.name: contract for contract in load_contracts(settings.contracts_dir)}
    if name not in contracts:
        raise BackupError(f"set {name}", f"the contracts are {', '.join(contracts)}", "Name one of them.")
    return [table.name for table in contracts[name].tables]


def tables_of_point(point: Point) -> list[str]:
    """The roots of all tables of a point."""
    return [proof.table.root for proof in point.verification.tables]


def restore_other_files(
    settings: LakeSettings, backup: Backup, point: Point, to: StoreAddress | None, say: Say = unsaid
) -> int:
    """Bring back what belongs to no table, in its place or below `to`; returns how many objects were missing.

    What is another object now stays in its place.

    Raises:
        BackupError: a copy is missing or damaged, or something else is at an object's key below `to`.
    """
    if to is not None:
        require_outside_target(backup, to)
    points = Points(backup)
    rows = [batch.filter(pc.is_null(batch.column("table_root"))) for batch in points.held(point)]
    table = FoundTable(bucket=backup.source.bucket, root="", format="delta", stored_root="")
    proof = TableProof(table=table, status="verified", version=0)
    held = pa.Table.from_batches([one.cast(HELD) for one in rows], HELD)
    choice = Chosen(point, proof, 0, held, backup.target_of(point.day))
    address = backup.source if to is None else to
    work = Work(settings, backup, choice, address, address.prefix.rstrip("/"), say, silent)

    def goes(bucket: str, key: str) -> tuple[str, str]:
        if to is None:
            return bucket, key
        return to.bucket, f"{to.prefix}{key.removeprefix(backup.source.prefix)}"

    with reading(points, point.day, work.title, unwritable=say):
        at = placed(choice, address, work.root, goes)
        if at.differing and to is None:
            say(f"{len(at.differing):,} objects of no table are others now and stay, as {at.differing[0]}")
        elif at.differing:
            raise BackupError(
                at.differing[0],
                f"something else is there now, as at {len(at.differing) - 1:,} other keys",
                "Restore to another place with --to.",
            )
        work.bring(at)
    return work.objects
