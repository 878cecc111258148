"""Making a point: claim the day, list, plan, copy, verify, dump the catalog, write the point.

Each step reads what the one before left in the workspace, so each can be run alone, and again.
"""

import datetime as dt
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import md5, sha256
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.copy.engine import CopyEngine, CopyTask, Progress, ReportProgress
from lakeshare_pipelines.backup.model import (
    GOOD_STATUSES,
    CatalogRecord,
    CopyRecord,
    ListingRecord,
    PlanRecord,
    Point,
    TableProof,
    Verification,
    read_rows,
)
from lakeshare_pipelines.backup.points import Points, Workspace, get_point_time
from lakeshare_pipelines.backup.restore.copies import ReportMessage as DrillSay
from lakeshare_pipelines.backup.restore.copies import TableRestore, ignore_message
from lakeshare_pipelines.backup.restore.selection import RestoreRecord, get_point
from lakeshare_pipelines.backup.restore.tables import PointRestore
from lakeshare_pipelines.backup.restore.targets import map_to_new_keys, select_copied
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Record = TypeVar("Record", bound=BaseModel)
ReportMessage = Callable[[str], None]


@dataclass(frozen=True)
class BackupRun:
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
            as_of=get_point_time(self.day),
            copy_limit_bytes=self.backup.copy_limit_bytes,
            in_flight=self.backup.in_flight,
        )


def make_point(
    backup_run: BackupRun, now: dt.datetime, report_message: ReportMessage, report_progress: ReportProgress
) -> Point:
    """Make the point of a day, from the listing to its record; called again after a crash it goes on.

    Raises:
        BackupError: there is no listing yet; the plan is beyond its bounds; nothing could be proved; somebody else
            makes the day, or it has its point.
    """
    listing = ensure_listing(backup_run, now)
    if listing is None:
        raise BackupError(
            f"backup {backup_run.backup.name}, point {backup_run.day}",
            "the store has not reported yet",
            "Run it again later: `lakeshare inventory status` tells which reports there are.",
        )
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
    report_message(f"{proof.status}: {len(proof.tables)} tables looked at")
    return finish_point(backup_run, now)


def ensure_listing(backup_run: BackupRun, now: dt.datetime) -> ListingRecord | None:
    """The day's listing; None while the store has not reported.

    Raises:
        BackupError: somebody else makes the day, or the report is not whole.
    """
    from lakeshare_pipelines.backup.inventory.sources import make_listing

    _require_no_point(backup_run)
    backup_run.points.claim(backup_run.day, backup_run.owner)
    found = backup_run.workspace.load("listing", ListingRecord)
    if found is None:
        found = make_listing(
            backup_run.backup, backup_run.workspace, backup_run.day, now, backup_run.open_spark
        )
        if found is not None:
            backup_run.workspace.save("listing", found)
    return found


def ensure_plan(backup_run: BackupRun) -> PlanRecord:
    """The day's plan.

    Raises:
        BackupError: it is beyond the backup's bounds; nothing was copied.
    """
    from lakeshare_pipelines.backup.plan import make_plan

    found = backup_run.workspace.load("plan", PlanRecord)
    if found is None:
        found = make_plan(
            backup_run.backup,
            backup_run.workspace,
            _load_or_run(backup_run, "listing", ListingRecord, "list"),
            backup_run.points,
            backup_run.day,
            backup_run.open_spark,
        )
        backup_run.workspace.save("plan", found)
    return found


def ensure_copies(backup_run: BackupRun, report_progress: ReportProgress) -> CopyRecord:
    """The day's copies, as the engine reports them.

    Raises:
        BackupError: the engine gave up; what is copied stays, and the next call goes on.
    """
    _load_or_run(backup_run, "plan", PlanRecord, "plan")
    found = backup_run.workspace.load("copied", CopyRecord)
    if found is None:
        _thaw(backup_run, report_progress)
        found = make_engine(backup_run).copy(backup_run.task(), report_progress)
        backup_run.workspace.save("copied", found)
    return found


def ensure_verification(backup_run: BackupRun) -> Verification:
    """What is proved of the day's copies."""
    from lakeshare_pipelines.backup.verify.iceberg import list_main_pointers
    from lakeshare_pipelines.backup.verify.run import verify_copies

    found = backup_run.workspace.load("verified", Verification)
    if found is None:
        plan = _load_or_run(backup_run, "plan", PlanRecord, "plan")
        # Only Iceberg's metadata files do not tell themselves which of them is the table's.
        asks = any(table.format == "iceberg" for table in plan.tables)
        found = verify_copies(
            backup_run.backup,
            backup_run.workspace,
            plan,
            _load_or_run(backup_run, "copied", CopyRecord, "copy"),
            backup_run.points,
            backup_run.day,
            backup_run.open_spark,
            pointers=list_main_pointers(backup_run.settings, plan.as_of) if asks else (),
        )
        backup_run.workspace.save("verified", found)
    return found


def finish_point(backup_run: BackupRun, now: dt.datetime) -> Point:
    """The day's point, written; a day that failed gets none and can be made again.

    Raises:
        BackupError: nothing could be proved, or somebody else wrote the point.
    """
    from lakeshare_pipelines.backup.catalog_dump import dump_catalog
    from lakeshare_pipelines.backup.retention import apply_retention

    proof = _load_or_run(backup_run, "verified", Verification, "verify")
    if proof.status == "failed":
        raise _make_failed_error(backup_run, proof)
    catalog = backup_run.workspace.load("catalog", CatalogRecord)
    if catalog is None:
        catalog = dump_catalog(backup_run.settings, backup_run.backup, backup_run.points, backup_run.day)
        backup_run.workspace.save("catalog", catalog)
    copies = backup_run.workspace.rows("held")
    kept_as, locked_until = apply_retention(
        backup_run.points, backup_run.day, proof.status, now, read_rows(copies)
    )
    point = Point(
        backup=backup_run.backup.name,
        day=backup_run.day,
        as_of=get_point_time(backup_run.day),
        made_at=now,
        layout=backup_run.backup.layout,
        status=proof.status,
        target=backup_run.backup.target_of(backup_run.day).url,
        listing=_load_or_run(backup_run, "listing", ListingRecord, "list"),
        plan=_load_or_run(backup_run, "plan", PlanRecord, "plan"),
        copied=_load_or_run(backup_run, "copied", CopyRecord, "copy"),
        verification=proof,
        catalog=catalog,
        retention_class=kept_as,
        locked_until=locked_until,
    )
    backup_run.points.write(point, copies)
    backup_run.workspace.remove()
    return point


def abandon_point(backup_run: BackupRun) -> None:
    """Give a day's making up: stop its copies, forget its steps, let the next one claim it. Copies stay."""
    make_engine(backup_run).cancel(backup_run.task())
    backup_run.workspace.remove()
    backup_run.points.release(backup_run.day)


def make_engine(backup_run: BackupRun) -> CopyEngine:
    """The engine that the backup names.

    Raises:
        BackupError: it is `spark`, and whoever runs this has no Spark.
    """
    if backup_run.backup.engine == "aws_batch":
        from lakeshare_pipelines.backup.copy.aws_batch import AwsBatchEngine

        return AwsBatchEngine(backup_run.backup)
    if backup_run.backup.engine == "spark":
        from lakeshare_pipelines.backup.copy.spark import SparkEngine

        if backup_run.open_spark is None:
            raise BackupError(
                f"backup {backup_run.backup.name}", "its engine needs Spark", "Run it with Spark."
            )
        return SparkEngine(backup_run.open_spark)
    from lakeshare_pipelines.backup.copy.local import LocalEngine

    return LocalEngine()


def format_progress(progress: Progress) -> str:
    """One line that tells how far a copy is."""
    left = "" if progress.seconds_left is None else f", {progress.seconds_left:.0f} s left"
    failed = f", {progress.failed:,} failed" if progress.failed else ""
    return (
        f"{progress.objects:,} of {progress.objects_of:,} objects, {progress.size_bytes / 1e6:,.1f} of "
        f"{progress.size_bytes_of / 1e6:,.1f} MB{failed}{left}"
    )


def _thaw(backup_run: BackupRun, report_progress: ReportProgress) -> None:
    if backup_run.backup.source.kind != "s3":
        return
    from lakeshare_pipelines.backup.copy.engine import archived_in_plan, thaw

    archived = list(archived_in_plan(backup_run.workspace.rows("plan")))
    if archived:
        thaw(backup_run.backup.source, archived, report_progress)


def _load_or_run(backup_run: BackupRun, name: str, kind: type[Record], step: str) -> Record:
    found = backup_run.workspace.load(name, kind)
    if found is None:
        raise BackupError(
            f"backup {backup_run.backup.name}, point {backup_run.day}",
            f"its step `{step}` has not run on this host",
            "Run the day from its first step: copies that are made are found again.",
        )
    return found


def _require_no_point(backup_run: BackupRun) -> None:
    if backup_run.day in backup_run.points.days():
        raise BackupError(
            f"backup {backup_run.backup.name}, point {backup_run.day}",
            "it is made already, and a point is never replaced",
            f"Look at it with `lakeshare backup show {backup_run.backup.name} {backup_run.day}`, or make one of now.",
        )


def _make_failed_error(backup_run: BackupRun, proof: Verification) -> BackupError:
    reasons = " ".join([*proof.reasons, *(reason for table in proof.tables for reason in table.reasons)][:5])
    return BackupError(
        f"backup {backup_run.backup.name}, point {backup_run.day}",
        f"nothing of it could be proved: {reasons or 'no table opens'}",
        f"Correct what is told, then `lakeshare backup release {backup_run.backup.name} "
        f"{backup_run.day}` and run it again.",
    )


LOOK_BACK_DAYS = 7
"""Older days are not made by themselves: what they held may have been vacuumed since."""


def list_due_days(backup: Backup, now: dt.datetime) -> list[str]:
    """Days to make now, oldest first.

    Of a backup without any point only the newest due day: the others would copy the same again.

    Raises:
        BackupError: the place of the reports, or the target, cannot be read.
    """
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


MAX_COMPARED = 10_000
"""So many files are compared with what was backed up, drawn by lot; of smaller tables all."""
BLOCK_BYTES = 1 << 20
MD5_HEX = 32


class DrillRecord(BaseModel):
    """What a drill found; kept beside the point."""

    model_config = ConfigDict(frozen=True)

    backup: str
    day: str
    table: str
    passed: bool
    reasons: tuple[str, ...] = ()
    """Sentences: what failed, with the object's name."""
    started_at: dt.datetime
    rows: int | None = None
    files: int = 0
    compared: int = 0
    """Files whose content was compared with the checksum of the backup."""
    objects: int = 0
    size_bytes: int = 0
    rto_s: float
    """From the decision to restore to a table that is open and compared."""
    rpo_s: float
    """How old the state is that one would have got."""
    seed: str


def run_drill(
    backup: Backup,
    points: Points,
    settings: LakeSettings,
    seed: str,
    report_message: DrillSay = ignore_message,
) -> DrillRecord:
    """Drill one table; the same seed draws the same table of the same point.

    A table that does not come back is a drill that failed, not an error.

    Raises:
        BackupError: there is no good point, or it has no good table.
    """
    random, started = Random(seed), dt.datetime.now(dt.UTC)  # noqa: S311  a lot, no secret
    point = get_point(points, None, report_message)
    proof = draw_table(backup, point, random)
    report_message(f"drill of point {point.day}: table {proof.table.root}")
    began = time.monotonic()
    reasons: list[str] = []
    restored, compared = None, 0
    with _scratch(settings, backup) as folder:
        try:
            place = StoreAddress(url=str(folder / "table"))
            work, restored = PointRestore(settings, backup, point, report_message).work_elsewhere(
                proof.table.root, place
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
        **_make_record_fields(restored),
    )
    name = f"{started:%Y-%m-%dT%H%M%S.%fZ}"
    points.store.put(
        f"{points.folder(point.day)}drills/{name}.json", record.model_dump_json(indent=1).encode()
    )
    return record


def draw_table(backup: Backup, point: Point, random: Random) -> TableProof:
    """A table by lot, by the weights of the backup.

    Raises:
        BackupError: the point has no good table, or all weigh nothing.
    """
    good = [proof for proof in point.verification.tables if proof.status in GOOD_STATUSES]
    weights = [backup.drill_weights.get(proof.table.root, 1.0) for proof in good]
    if not any(weight > 0 for weight in weights):
        raise BackupError(
            f"point {point.day}", "it has no table to drill", "Back up tables, or correct `drill_weights`."
        )
    return random.choices(good, [max(weight, 0.0) for weight in weights])[0]


@contextmanager
def _scratch(settings: LakeSettings, backup: Backup) -> Iterator[Path]:
    """A folder of one drill, gone afterwards."""
    above = settings.state_dir / "drills" / backup.name
    above.mkdir(parents=True, exist_ok=True)
    folder = above / dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S%f")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _find_differences(work: TableRestore, random: Random) -> tuple[int, list[str]]:
    """How many restored files were compared with what was backed up, and sentences about those that differ."""
    rows = select_copied(work).rows.select(["bucket", "key", "etag", "stored_etag", "checksum"]).to_pylist()
    if len(rows) > MAX_COMPARED:
        rows = random.sample(rows, MAX_COMPARED)
    map_key = map_to_new_keys(work)
    compared, wrong = 0, []
    for row in rows:
        wanted = _get_expected_digest(row, work.backup.source.kind)
        if wanted is not None:
            compared += 1
            _, key = map_key(row["bucket"], row["key"])
            if _digest(Path(work.to.url) / key, wanted[0]) != wanted[1]:
                wrong.append(f"{row['key']}: what was restored is not what was backed up.")
    return compared, wrong


def _get_expected_digest(row: dict[str, Any], source: str) -> tuple[str, str] | None:
    """Algorithm and digest of what was backed up, where something tells them.

    The ETag of an S3 object is its MD5, of one uploaded in one part the MD5 of that, but where a key of KMS encrypts
    it: then that of a copy is another.
    """
    kind, _, digest = (row["checksum"] or "").partition(":")
    if kind == "sha256":
        return kind, digest
    etag, _, parts = (row["etag"] or "").partition("-")
    if source != "s3" or row["etag"] != row["stored_etag"] or len(etag) != MD5_HEX or parts not in ("", "1"):
        return None
    return ("md5 of md5" if parts else "md5", etag)


def _digest(path: Path, kind: str) -> str:
    digest = sha256() if kind == "sha256" else md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    if kind == "md5 of md5":
        digest = md5(digest.digest(), usedforsecurity=False)
    return digest.hexdigest()


def _make_record_fields(restored: RestoreRecord | None) -> dict[str, Any]:
    if restored is None:
        return {}
    return {
        "rows": restored.rows,
        "files": restored.files,
        "objects": restored.objects,
        "size_bytes": restored.size_bytes,
    }
