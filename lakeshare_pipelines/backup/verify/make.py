"""Verifying a day's copies: every object judged, every table replayed, healed where it lacks something, and opened.

Nothing is called verified that no independent reader opened at the newest version before as_of.
"""

import datetime as dt
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.copy.engine import Progress
from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.points import OWN_PREFIX, Points
from lakeshare_pipelines.backup.records import (
    CopyRecord,
    PlanRecord,
    Status,
    TableProof,
    Verification,
)
from lakeshare_pipelines.backup.rows import HELD, read_rows, write_rows
from lakeshare_pipelines.backup.stores import BackupStore, open_store
from lakeshare_pipelines.backup.verify.healing import Healer
from lakeshare_pipelines.backup.verify.objects import judged, listed_copies, prefixes_of, reported_objects
from lakeshare_pipelines.backup.verify.readings import (
    Reading,
    Readings,
    Rereading,
    read_row,
    repair_points,
    report_damage,
)
from lakeshare_pipelines.backup.verify.tables import Tables
from lakeshare_pipelines.backup.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

WORST: tuple[Status, ...] = ("failed", "degraded", "verified_with_fallback", "verified")
TOLD = 5
VANISHED = ("NoSuchKey", "NoSuchVersion", "PreconditionFailed", "404", "412")
UNSTORABLE = ("InvalidKey", "KeyTooLongError")
"""No copy can have such a key in the target; what is of a table is judged with the table."""
Tell = Callable[[str], None]


def verify_copies(
    backup: Backup,
    workspace: Workspace,
    plan: PlanRecord,
    copied: CopyRecord,
    points: Points,
    day: str,
    spark: "Callable[[], SparkSession] | None" = None,
    tell: Tell = _log.info,
    pointers: Sequence[str] = (),
) -> Verification:
    """Prove what a day's copies are worth, heal what can be healed, and write the rows of what the point holds.

    `pointers` are the locations of the metadata files that the catalog had at as_of, where there is one: which of an
    Iceberg table's metadata is current the files alone do not tell when branches are written beside it.
    Reads the folders `plan` and `done` of the workspace and writes `held`; called again it does all of it again.

    Raises:
        BackupError: source or target cannot be asked.
    """
    target = open_store(backup.target_of(day))
    reported, accounted_for = _reported(workspace, plan, points)
    tell(f"{reported.num_rows:,} objects: what the target lists is compared.")
    listed = listed_copies(target, prefixes_of(reported))
    objects = judged(reported, listed, backup.source, target)
    now = dt.datetime.now(dt.UTC)
    place, budget = backup.target_of(day).url, backup.scrub.bytes_per_run
    objects, readings = Rereading(points, place, target, budget, now).again(objects, day)
    healer = _healer(backup, workspace, plan, day, target, tell)
    tables = Tables(backup, plan, target, points, objects, pointers, spark, tell)
    tables.heal(healer)
    proofs = tables.proofs()
    held = tables.objects.filter(tables.objects["is_whole"])
    write_rows(workspace.clear("held"), HELD, [held.select(HELD.names)])
    _remember(points, place, target, tables.objects, readings, now)
    return _verification(tables.objects, proofs, held, healer.refusals, accounted_for=accounted_for)


def _remember(
    points: Points,
    place: str,
    target: BackupStore,
    objects: pa.Table,
    readings: list[dict[str, Any]],
    now: dt.datetime,
) -> None:
    """Keep what was read again; of held copies that were damaged tell the points that share them."""
    was = {row["stored_key"]: row for row in readings if row["problem"] is not None}
    is_rotten = pc.is_in(objects["stored_key"], pa.array(list(was), pa.string()))
    healed = objects.filter(pc.and_(objects["is_whole"], is_rotten))
    for row in healed.to_pylist():
        head = target.head(row["stored_key"])
        if head is not None:
            repair_points(points, place, row["stored_key"], head, was[row["stored_key"]])
            told = row | {"stored_etag": head.etag, "stored_version_id": head.version_id}
            readings.append(read_row(place, told, Reading(None), now + dt.timedelta(microseconds=1)))
    Readings(points).add(readings)
    if was:
        report_damage(points, now)


def _reported(workspace: Workspace, plan: PlanRecord, points: Points) -> tuple[pa.Table, bool]:
    held: Iterable[pa.RecordBatch] = ()
    if plan.previous is not None:
        held = points.held(points.get(plan.previous))
    return reported_objects(read_rows(workspace.rows("plan")), read_rows(workspace.rows("done")), held)


def _healer(
    backup: Backup, workspace: Workspace, plan: PlanRecord, day: str, target: BackupStore, tell: Tell
) -> Healer:
    from lakeshare_pipelines.backup.copy.local import LocalEngine

    def told(progress: Progress) -> None:
        tell(f"healing: {progress.objects:,} of {progress.objects_of:,} objects")

    work_prefix = f"{target.address.prefix}{OWN_PREFIX}{backup.name}/points/{day}/engine/"
    return Healer(backup, workspace, LocalEngine(), work_prefix, day, plan.as_of, target, told)


def _verification(
    objects: pa.Table,
    proofs: Sequence[TableProof],
    held: pa.Table,
    refusals: Sequence[str],
    *,
    accounted_for: bool,
) -> Verification:
    lost = objects.filter(pc.and_(pc.invert(objects["is_whole"]), pc.is_null(objects["table_root"])))
    problems = lost["problem"].to_pylist()
    reasons = [f"{count} of no table: {problem}." for problem, count in Counter(problems).most_common(TOLD)]
    reasons += [f"The source did not answer: {said}" for said in list(dict.fromkeys(refusals))[:TOLD]]
    statuses: list[Status] = [proof.status for proof in proofs]
    if statuses and set(statuses) != {"failed"}:
        # One table that nobody can open must not keep the others from having a point.
        statuses = ["degraded" if status == "failed" else status for status in statuses]
    if not accounted_for:
        statuses.append("failed")
        reasons.insert(0, "The engine's report does not tell of every planned object; run the copy again.")
    problems = [problem for problem in problems if problem.split(":")[0] not in UNSTORABLE]
    if problems:
        vanished = all(problem.split(":")[0] in VANISHED for problem in problems)
        # What is gone from the source, or was overwritten, since it was listed is no fault of the copy.
        statuses.append("verified_with_fallback" if vanished else "degraded")
    return Verification(
        status=min(statuses, key=WORST.index, default="verified"),
        tables=tuple(proofs),
        objects=held.num_rows,
        size_bytes=pc.sum(held["size_bytes"], min_count=0).as_py(),
        accounted_for=accounted_for,
        failed_objects=lost.num_rows,
        reasons=tuple(reasons),
    )
