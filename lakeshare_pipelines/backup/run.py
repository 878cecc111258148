"""Make a backup point in steps that can run alone, and again: each reads what the step before left in the workspace."""

import datetime as dt
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import file_digest, md5, sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel

from lakeshare_pipelines.backup import model
from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.copy.engine import (
    CopyEngine,
    CopyTask,
    Progress,
    ReportProgress,
    archived_in_plan,
    thaw,
)
from lakeshare_pipelines.backup.points import Points, Record, Workspace, get_point_time
from lakeshare_pipelines.backup.restore.copies import TableRestore, get_point, ignore_message
from lakeshare_pipelines.backup.restore.tables import PointRestore
from lakeshare_pipelines.backup.restore.targets import map_to_new_keys, select_copied
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError, ObjectMissing
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.file_lock import hold_lock
from lakeshare_server.telemetry.logs import run_step
from lakeshare_server.telemetry.tracing import add_attributes, span

log = logging.getLogger(__name__)

DRILLS = "drills/"  # In a point's folder: the records of its drills


@dataclass(frozen=True)
class BackupRun:
    """One day of one backup, made by `owner` (a run); Spark is opened only where rows are many."""

    settings: LakeSettings
    backup: Backup
    day: str
    owner: str
    open_spark: model.OpenSpark | None = None

    @cached_property
    def points(self) -> Points:
        return Points(self.backup)

    @cached_property
    def workspace(self) -> Workspace:
        return Workspace.of(self.settings, self.backup, self.day)

    @property
    def title(self) -> str:
        return f"backup {self.backup.name}, point {self.day}"

    def task(self) -> CopyTask:
        target = self.backup.target_of(self.day)
        return CopyTask(
            source=self.backup.source,
            target=target,
            plan=self.workspace.rows("plan"),
            done=self.workspace.rows("done"),
            work_prefix=f"{target.prefix}_lakeshare/{self.backup.name}/points/{self.day}/engine/",
            as_of=get_point_time(self.day),
            copy_limit_bytes=self.backup.copy_limit_bytes,
            in_flight=self.backup.in_flight,
        )


def make_point(
    backup_run: BackupRun,
    now: dt.datetime,
    report_message: model.ReportMessage,
    report_progress: ReportProgress,
) -> model.Point:
    """Make the point of a day, from the listing to its record; called again after a crash it continues.

    Raises BackupError if there is no listing yet, the plan exceeds its bounds, no table was proved, the day has a
    point or another run or process makes it.
    """
    backup, day = backup_run.backup.name, backup_run.day
    with run_step("backup", backup_run.owner, backup=backup, day=day), ExitStack() as held:
        try:
            held.enter_context(hold_lock(backup_run.workspace.folder / "run.lock", wait_s=0))
        except TimeoutError as error:
            reason, fix = "another process on this host is making it", "Wait for it, or end it."
            raise BackupError(backup_run.title, reason, fix) from error
        return _make_point(backup_run, now, report_message, report_progress)


def _make_point(
    backup_run: BackupRun,
    now: dt.datetime,
    report_message: model.ReportMessage,
    report_progress: ReportProgress,
) -> model.Point:
    listing = ensure_listing(backup_run, now)
    if listing is None:
        fix = "Run it again later: `lakeshare inventory status` lists the reports."
        raise BackupError(backup_run.title, "the store has not reported yet", fix)
    report_message(f"listed {listing.rows:,} objects, {listing.size_bytes:,} bytes, by {listing.kind}")
    plan = ensure_plan(backup_run)
    estimate = plan.estimate
    report_message(
        f"planned {len(plan.tables)} tables; {estimate.objects:,} objects, {estimate.size_bytes:,} bytes to copy; "
        f"{estimate.held_objects:,} are held since {plan.previous or 'no earlier point'}"
    )
    done = ensure_copies(backup_run, report_progress)
    report_message(f"copied {done.succeeded:,} objects in {done.seconds:.1f} s, {done.failed:,} failed")
    proof = ensure_verification(backup_run)
    whole = sum(table.status == "verified" for table in proof.tables)
    report_message(f"{proof.status}: {whole} of {len(proof.tables)} tables verified")
    return finish_point(backup_run, now)


def ensure_listing(backup_run: BackupRun, now: dt.datetime) -> model.ListingRecord | None:
    """The day's listing; None while the store has not reported."""
    from lakeshare_pipelines.backup.inventory.sources import make_listing

    name, day, workspace = backup_run.backup.name, backup_run.day, backup_run.workspace
    if day in backup_run.points.days():
        fix = f"Look at it with `lakeshare backup show {name} {day}`, or make a point of now."
        raise BackupError(backup_run.title, "the point exists already, and a point is never replaced", fix)
    if now < get_point_time(day):
        reason = f"it can be made from {get_point_time(day):%Y-%m-%d %H:%M} UTC on"
        raise BackupError(backup_run.title, reason, "Run it again then, or make a point of now.")
    backup_run.points.claim(day, backup_run.owner)
    known = workspace.load("listing", model.ListingRecord)
    listing = known or make_listing(backup_run.backup, workspace, day, now)
    if listing is None:
        backup_run.points.release(day)
    return listing


def ensure_plan(backup_run: BackupRun) -> model.PlanRecord:
    from lakeshare_pipelines.backup.plan import make_plan

    workspace = backup_run.workspace
    plan = workspace.load("plan", model.PlanRecord)
    if plan is None:
        listing = _load_step(backup_run, "listing", model.ListingRecord)
        plan = make_plan(backup_run.backup, workspace, listing, backup_run.points, backup_run.day)
        workspace.save("plan", plan)
    return plan


def ensure_copies(backup_run: BackupRun, report_progress: ReportProgress) -> model.CopyRecord:
    _load_step(backup_run, "plan", model.PlanRecord)
    workspace, source = backup_run.workspace, backup_run.backup.source
    record = workspace.load("copied", model.CopyRecord)
    if record is None:
        if source.kind == "s3" and (archived := list(archived_in_plan(workspace.rows("plan")))):
            thaw(source, archived, report_progress)
        with span("lakeshare.backup.copy", backup=backup_run.backup.name, day=backup_run.day):
            record = make_engine(backup_run).copy(backup_run.task(), report_progress)
            add_attributes(objects=record.succeeded, failed=record.failed)
        workspace.save("copied", record)
    return record


def ensure_verification(backup_run: BackupRun) -> model.Verification:
    from lakeshare_pipelines.backup.verify.iceberg import list_main_pointers
    from lakeshare_pipelines.backup.verify.run import verify_copies

    verification = backup_run.workspace.load("verified", model.Verification)
    if verification is None:
        _load_step(backup_run, "copied", model.CopyRecord)
        plan = _load_step(backup_run, "plan", model.PlanRecord)
        # Iceberg's metadata files do not show which of them is current.
        has_iceberg = any(table.format == "iceberg" for table in plan.tables)
        with span("lakeshare.backup.verify", backup=backup_run.backup.name, day=backup_run.day):
            verification = verify_copies(
                backup_run.backup,
                backup_run.workspace,
                plan,
                backup_run.points,
                backup_run.day,
                backup_run.open_spark,
                pointers=list_main_pointers(backup_run.settings, plan.as_of) if has_iceberg else (),
            )
            add_attributes(status=verification.status, tables=len(verification.tables))
        backup_run.workspace.save("verified", verification)
    return verification


def finish_point(backup_run: BackupRun, now: dt.datetime) -> model.Point:
    """Write the day's point; a day that failed gets none and can be made again.

    Raises BackupError if no table was proved, or another run has claimed the day: the two would write over each other.
    """
    from lakeshare_pipelines.backup.catalog_dump import dump_catalog
    from lakeshare_pipelines.backup.retention import apply_retention

    backup, points, day = backup_run.backup, backup_run.points, backup_run.day
    proof = _load_step(backup_run, "verified", model.Verification)
    owner = points.read_owner(day)
    if owner != backup_run.owner:
        reason = f"its claim was taken over by {owner}" if owner else "its claim was released"
        raise BackupError(backup_run.title, reason, "The next run of the day finds the copies of this one.")
    if proof.status == "failed":
        reasons = [*proof.reasons, *(reason for table in proof.tables for reason in table.reasons)][:5]
        reason = f"nothing of it could be proved: {' '.join(reasons) or 'no table opens'}"
        fix = f"Correct the causes, then `lakeshare backup release {backup.name} {day}` and run it again."
        raise BackupError(backup_run.title, reason, fix)
    catalog = backup_run.workspace.load("catalog", model.CatalogRecord)
    if catalog is None:
        catalog = dump_catalog(backup_run.settings, backup, points, day)
        backup_run.workspace.save("catalog", catalog)
    copies = backup_run.workspace.rows("held")
    retention_class, locked_until = apply_retention(points, day, proof.status, now, model.read_rows(copies))
    point = model.Point(
        backup=backup.name,
        day=day,
        as_of=get_point_time(day),
        made_at=now,
        layout=backup.layout,
        status=proof.status,
        target=backup.target_of(day).url,
        listing=_load_step(backup_run, "listing", model.ListingRecord),
        plan=_load_step(backup_run, "plan", model.PlanRecord),
        copied=_load_step(backup_run, "copied", model.CopyRecord),
        verification=proof,
        catalog=catalog,
        retention_class=retention_class,
        locked_until=locked_until,
    )
    points.write(point, copies)
    backup_run.workspace.remove()
    return point


def abandon_point(backup_run: BackupRun) -> None:
    """Stop the copies of a day, remove its steps and its claim; finished copies stay. Raises BackupError if no run has
    claimed it."""
    if backup_run.day not in backup_run.points.unfinished():
        fix = f"`lakeshare backup list {backup_run.backup.name}` lists the points that are made."
        raise BackupError(backup_run.title, "no run has claimed it", fix)
    make_engine(backup_run).cancel(backup_run.task())
    backup_run.workspace.remove()
    backup_run.points.release(backup_run.day)


def make_engine(backup_run: BackupRun) -> CopyEngine:
    if backup_run.backup.engine == "aws_batch":
        from lakeshare_pipelines.backup.copy.aws_batch import AwsBatchEngine

        return AwsBatchEngine(backup_run.backup)
    if backup_run.backup.engine == "spark":
        from lakeshare_pipelines.backup.copy.spark import SparkEngine

        if backup_run.open_spark is None:
            fix = "Run it with Spark."
            raise BackupError(f"backup {backup_run.backup.name}", "its engine needs Spark", fix)
        return SparkEngine(backup_run.open_spark)
    from lakeshare_pipelines.backup.copy.local import LocalEngine

    return LocalEngine()


def report_every(seconds: float, report: Callable[[str, bool], None]) -> ReportProgress:
    """A reporter that calls `report` with a line at most so often, and with True for the last one."""
    reported_at = time.monotonic()

    def report_progress(progress: Progress) -> None:
        nonlocal reported_at
        is_last = progress.objects == progress.objects_of
        if not is_last and time.monotonic() - reported_at < seconds:
            return
        reported_at = time.monotonic()
        left = "" if progress.seconds_left is None else f", {progress.seconds_left:.0f} s left"
        failed = f", {progress.failed:,} failed" if progress.failed else ""
        sizes = f"{progress.size_bytes / 1e6:,.1f} of {progress.size_bytes_of / 1e6:,.1f} MB"
        report(f"{progress.objects:,} of {progress.objects_of:,} objects, {sizes}{failed}{left}", is_last)

    return report_progress


STEPS = {"listing": "list", "plan": "plan", "copied": "copy", "verified": "verify"}  # Steps by record


def _load_step(backup_run: BackupRun, name: str, kind: type[Record]) -> Record:
    record = backup_run.workspace.load(name, kind)
    if record is None:
        fix = "Run the day from its first step: finished copies are found again."
        raise BackupError(backup_run.title, f"its step `{STEPS[name]}` has not run on this host", fix)
    return record


LOOK_BACK_DAYS = 7  # Older days are not made automatically: their files may have been vacuumed since


def list_due_days(backup: Backup, now: dt.datetime) -> list[str]:
    """Days to make now, oldest first; only the newest if there is no point yet, since the others would be equal."""
    from lakeshare_pipelines.backup.inventory.sources import is_listing_ready

    days_made = Points(backup).days()
    yesterday = now.astimezone(dt.UTC).date() - dt.timedelta(days=1)
    due: list[str] = []
    for ago in range(LOOK_BACK_DAYS):
        day = yesterday - dt.timedelta(days=ago)
        if (
            day < backup.first_day
            or day.isoformat() in days_made
            or (days_made and day.isoformat() < days_made[-1][:10])
        ):
            continue
        if is_listing_ready(backup, day.isoformat(), now):
            due.append(day.isoformat())
            if not days_made:
                break
    return due[::-1]


MAX_COMPARED = 10_000  # Larger tables are compared by a random sample of this many files
MD5_HEX = 32


class DrillRecord(BaseModel, frozen=True):
    backup: str
    day: str
    table: str
    passed: bool
    reasons: tuple[str, ...] = ()  # Sentences: each failure, with the object's name
    started_at: dt.datetime
    rows: int | None = None
    files: int = 0
    compared: int = 0  # Files whose content was compared with the checksum of the backup
    objects: int = 0
    size_bytes: int = 0
    rto_s: float  # From the decision to restore until the table is opened and compared
    rpo_s: float  # The age of the restored state
    seed: str


def run_drill(
    backup: Backup,
    points: Points,
    settings: LakeSettings,
    seed: str,
    report_message: model.ReportMessage = ignore_message,
) -> DrillRecord:
    """Restore one table of a point and compare it; the same seed draws the same table of the same point.

    A table that cannot be restored is a failed drill, not an error. Raises BackupError if there is no good point, or
    it has no good table.
    """
    random, started = Random(seed), dt.datetime.now(dt.UTC)  # noqa: S311  sampling, not a secret
    point = get_point(points, None, report_message)
    proof = draw_table(backup, point, random)
    report_message(f"drill of point {point.day}: table {proof.table.root}")
    began = time.monotonic()
    reasons: list[str] = []
    restored, compared = None, 0
    above = settings.state_dir / "drills" / backup.name
    above.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=above) as folder:
        try:
            work, restored = PointRestore(settings, backup, point, report_message).work_elsewhere(
                proof.table.root, StoreAddress(url=f"{folder}/table")
            )
            compared, reasons = _find_differences(work, random)
        except BackupError as error:
            reasons.append(str(error))
    record = DrillRecord(
        backup=backup.name,
        day=point.day,
        table=proof.table.root,
        passed=not reasons,
        reasons=tuple(reasons),
        started_at=started,
        compared=compared,
        rto_s=time.monotonic() - began,
        rpo_s=max(0.0, (started - point.as_of).total_seconds()),
        seed=seed,
        **(restored.model_dump(include={"rows", "files", "objects", "size_bytes"}) if restored else {}),
    )
    name = f"{started:%Y-%m-%dT%H%M%S.%fZ}"
    key = f"{points.folder(point.day)}{DRILLS}{name}.json"
    points.store.put(key, record.model_dump_json(indent=1).encode())
    return record


def read_drills(points: Points, limit: int) -> list[DrillRecord]:
    """The newest drills of all points, the newest first; records that cannot be read are left out."""
    days = points.folder("x").removesuffix("x/")
    listed = [file.key for file in points.store.list(days) if f"/{DRILLS}" in file.key]
    drills = []
    for key in sorted(listed, key=lambda key: key.rpartition("/")[2], reverse=True)[:limit]:
        try:
            drills.append(DrillRecord.model_validate_json(points.store.read(key)))
        except (ValueError, ObjectMissing) as error:
            log.warning("the drill %s cannot be read: %s", key, error)
    return drills


def draw_table(backup: Backup, point: model.Point, random: Random) -> model.TableProof:
    good = [proof for proof in point.verification.tables if proof.status in model.GOOD_STATUSES]
    weights = [backup.drill_weights.get(proof.table.root, 1.0) for proof in good]
    if not any(weight > 0 for weight in weights):
        fix = "Back up tables, or correct `drill_weights`."
        raise BackupError(f"point {point.day}", "it has no table to drill", fix)
    return random.choices(good, [max(weight, 0.0) for weight in weights])[0]


def _find_differences(work: TableRestore, random: Random) -> tuple[int, list[str]]:
    """How many restored files were compared with the backup, and a sentence about each that differs."""
    rows = select_copied(work).rows.select(["bucket", "key", "etag", "stored_etag", "checksum"]).to_pylist()
    if len(rows) > MAX_COMPARED:
        rows = random.sample(rows, MAX_COMPARED)
    map_key = map_to_new_keys(work)
    compared, differences = 0, []
    for row in rows:
        expected = _get_expected_digest(row, work.backup.source.kind)
        if expected is not None:
            compared += 1
            _, key = map_key(row["bucket"], row["key"])
            if _compute_digest(Path(work.to.url) / key, expected[0]) != expected[1]:
                differences.append(f"{row['key']}: what was restored is not what was backed up.")
    return compared, differences


def _get_expected_digest(row: dict[str, Any], source: str) -> tuple[str, str] | None:
    """Algorithm and digest of the backed-up content, where they are known. The ETag of an S3 object without a KMS key
    is its MD5, of an upload in one part the MD5 of that."""
    kind, _, digest = (row["checksum"] or "").partition(":")
    if kind == "sha256":
        return kind, digest
    etag, _, parts = (row["etag"] or "").partition("-")
    if source != "s3" or row["etag"] != row["stored_etag"] or len(etag) != MD5_HEX or parts not in ("", "1"):
        return None
    return ("md5 of md5" if parts else "md5", etag)


def _compute_digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        digest = file_digest(file, sha256 if kind == "sha256" else partial(md5, usedforsecurity=False))
    if kind == "md5 of md5":
        digest = md5(digest.digest(), usedforsecurity=False)
    return digest.hexdigest()
