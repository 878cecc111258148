"""Making a point: claim the day, list, plan, copy, verify, dump the catalog, write the point.

Each step reads what the one before left in the workspace, so each can be run alone, and again.
"""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from lakeshare_pipelines.backup.copy.engine import CopyEngine, CopyTask, Progress, Tell
from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.records import (
    CatalogRecord,
    CopyRecord,
    ListingRecord,
    PlanRecord,
    Point,
    Verification,
)
from lakeshare_pipelines.backup.rows import read_rows
from lakeshare_pipelines.backup.workspace import Workspace, end_of
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Record = TypeVar("Record", bound=BaseModel)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Making:
    """One day of one backup, being made by `owner` (a run); `open_spark` is asked only where rows are many."""

    settings: LakeSettings
    backup: Backup
    day: str
    owner: str
    open_spark: "Callable[[], SparkSession] | None" = None

    @cached_property
    def points(self) -> Points:
        """The backup's points."""
        return Points(self.backup)

    @cached_property
    def workspace(self) -> Workspace:
        """The day's own folder on this host."""
        return Workspace.of(self.settings, self.backup, self.day)

    @property
    def work_prefix(self) -> str:
        """Where in the target the engine keeps what is its own."""
        target = self.backup.target_of(self.day)
        return f"{target.prefix}_lakeshare/{self.backup.name}/points/{self.day}/engine/"

    def task(self) -> CopyTask:
        """What the engine is given."""
        return CopyTask(
            source=self.backup.source,
            target=self.backup.target_of(self.day),
            plan=self.workspace.rows("plan"),
            done=self.workspace.rows("done"),
            work_prefix=self.work_prefix,
            as_of=end_of(self.day),
            copy_limit_bytes=self.backup.copy_limit_bytes,
            in_flight=self.backup.in_flight,
        )


def make_point(making: Making, now: dt.datetime, say: Say, tell: Tell) -> Point:
    """Make the point of a day, from the listing to its record; called again after a crash it goes on.

    Raises:
        BackupError: there is no listing yet; the plan is beyond its bounds; nothing could be proved; somebody else
            makes the day, or it has its point.
    """
    listing = listed(making, now)
    if listing is None:
        raise BackupError(
            f"backup {making.backup.name}, point {making.day}",
            "the store has not reported yet",
            "Run it again later: `lakeshare inventory status` tells which reports there are.",
        )
    say(f"listed {listing.rows:,} objects, {listing.size_bytes:,} bytes, by {listing.kind}")
    plan = planned(making)
    estimate = plan.estimate
    say(
        f"planned {len(plan.tables)} tables; {estimate.objects:,} objects, {estimate.size_bytes:,} bytes to copy; "
        f"{estimate.held_objects:,} are held since {plan.previous or 'no earlier point'}"
    )
    done = copied(making, tell)
    say(f"copied {done.succeeded:,} objects in {done.seconds:.1f} s, {done.failed:,} failed")
    proof = verified(making)
    say(f"{proof.status}: {len(proof.tables)} tables looked at")
    return finished(making, now)


def listed(making: Making, now: dt.datetime) -> ListingRecord | None:
    """The day's listing; None while the store has not reported.

    Raises:
        BackupError: somebody else makes the day, or the report is not whole.
    """
    from lakeshare_pipelines.backup.listing.make import make_listing

    _require_no_point(making)
    making.points.claim(making.day, making.owner)
    found = making.workspace.load("listing", ListingRecord)
    if found is None:
        found = make_listing(making.backup, making.workspace, making.day, now, making.open_spark)
        if found is not None:
            making.workspace.save("listing", found)
    return found


def planned(making: Making) -> PlanRecord:
    """The day's plan.

    Raises:
        BackupError: it is beyond the backup's bounds; nothing was copied.
    """
    from lakeshare_pipelines.backup.plan.make import make_plan

    found = making.workspace.load("plan", PlanRecord)
    if found is None:
        found = make_plan(
            making.backup,
            making.workspace,
            _kept(making, "listing", ListingRecord, "list"),
            making.points,
            making.day,
            making.open_spark,
        )
        making.workspace.save("plan", found)
    return found


def copied(making: Making, tell: Tell) -> CopyRecord:
    """The day's copies, as the engine reports them.

    Raises:
        BackupError: the engine gave up; what is copied stays, and the next call goes on.
    """
    _kept(making, "plan", PlanRecord, "plan")
    found = making.workspace.load("copied", CopyRecord)
    if found is None:
        _thaw(making, tell)
        found = engine_of(making).copy(making.task(), tell)
        making.workspace.save("copied", found)
    return found


def verified(making: Making) -> Verification:
    """What is proved of the day's copies."""
    from lakeshare_pipelines.backup.verify.iceberg.pointers import pointers_of_main
    from lakeshare_pipelines.backup.verify.make import verify_copies

    found = making.workspace.load("verified", Verification)
    if found is None:
        plan = _kept(making, "plan", PlanRecord, "plan")
        # Only Iceberg's metadata files do not tell themselves which of them is the table's.
        asks = any(table.format == "iceberg" for table in plan.tables)
        found = verify_copies(
            making.backup,
            making.workspace,
            plan,
            _kept(making, "copied", CopyRecord, "copy"),
            making.points,
            making.day,
            making.open_spark,
            pointers=pointers_of_main(making.settings, plan.as_of) if asks else (),
        )
        making.workspace.save("verified", found)
    return found


def finished(making: Making, now: dt.datetime) -> Point:
    """The day's point, written; a day that failed gets none and can be made again.

    Raises:
        BackupError: nothing could be proved, or somebody else wrote the point.
    """
    from lakeshare_pipelines.backup.catalog.dump import dump_catalog
    from lakeshare_pipelines.backup.retention.creation import retained

    proof = _kept(making, "verified", Verification, "verify")
    if proof.status == "failed":
        raise _failed(making, proof)
    catalog = making.workspace.load("catalog", CatalogRecord)
    if catalog is None:
        catalog = dump_catalog(making.settings, making.backup, making.points, making.day)
        making.workspace.save("catalog", catalog)
    held = making.workspace.rows("held")
    kept_as, locked_until = retained(making.points, making.day, proof.status, now, read_rows(held))
    point = Point(
        backup=making.backup.name,
        day=making.day,
        as_of=end_of(making.day),
        made_at=now,
        layout=making.backup.layout,
        status=proof.status,
        target=making.backup.target_of(making.day).url,
        listing=_kept(making, "listing", ListingRecord, "list"),
        plan=_kept(making, "plan", PlanRecord, "plan"),
        copied=_kept(making, "copied", CopyRecord, "copy"),
        verification=proof,
        catalog=catalog,
        retention_class=kept_as,
        locked_until=locked_until,
    )
    making.points.write(point, held)
    making.workspace.remove()
    return point


def given_up(making: Making) -> None:
    """Give a day's making up: stop its copies, forget its steps, let the next one claim it. Copies stay."""
    engine_of(making).cancel(making.task())
    making.workspace.remove()
    making.points.release(making.day)


def engine_of(making: Making) -> CopyEngine:
    """The engine that the backup names.

    Raises:
        BackupError: it is `spark`, and whoever runs this has no Spark.
    """
    if making.backup.engine == "aws_batch":
        from lakeshare_pipelines.backup.copy.aws_batch import AwsBatchEngine

        return AwsBatchEngine(making.backup)
    if making.backup.engine == "spark":
        from lakeshare_pipelines.backup.copy.spark import SparkEngine

        if making.open_spark is None:
            raise BackupError(f"backup {making.backup.name}", "its engine needs Spark", "Run it with Spark.")
        return SparkEngine(making.open_spark)
    from lakeshare_pipelines.backup.copy.local import LocalEngine

    return LocalEngine()


def progress_line(progress: Progress) -> str:
    """One line that tells how far a copy is."""
    left = "" if progress.seconds_left is None else f", {progress.seconds_left:.0f} s left"
    failed = f", {progress.failed:,} failed" if progress.failed else ""
    return (
        f"{progress.objects:,} of {progress.objects_of:,} objects, {progress.size_bytes / 1e6:,.1f} of "
        f"{progress.size_bytes_of / 1e6:,.1f} MB{failed}{left}"
    )


def _thaw(making: Making, tell: Tell) -> None:
    if making.backup.source.kind != "s3":
        return
    from lakeshare_pipelines.backup.copy.thaw import archived_in_plan, thaw

    archived = list(archived_in_plan(making.workspace.rows("plan")))
    if archived:
        thaw(making.backup.source, archived, tell)


def _kept(making: Making, name: str, kind: type[Record], step: str) -> Record:
    found = making.workspace.load(name, kind)
    if found is None:
        raise BackupError(
            f"backup {making.backup.name}, point {making.day}",
            f"its step `{step}` has not run on this host",
            "Run the day from its first step: copies that are made are found again.",
        )
    return found


def _require_no_point(making: Making) -> None:
    if making.day in making.points.days():
        raise BackupError(
            f"backup {making.backup.name}, point {making.day}",
            "it is made already, and a point is never replaced",
            f"Look at it with `lakeshare backup show {making.backup.name} {making.day}`, or make one of now.",
        )


def _failed(making: Making, proof: Verification) -> BackupError:
    reasons = " ".join([*proof.reasons, *(reason for table in proof.tables for reason in table.reasons)][:5])
    return BackupError(
        f"backup {making.backup.name}, point {making.day}",
        f"nothing of it could be proved: {reasons or 'no table opens'}",
        f"Correct what is told, then `lakeshare backup release {making.backup.name} {making.day}` and run it again.",
    )
