"""Scrub: read copies of all points again, those first that were not read for the longest time, and repair damage."""

import datetime as dt
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import ARCHIVES, ReportMessage, open_database
from lakeshare_pipelines.backup.points import OWN_PREFIX, Points, Workspace, get_point_time
from lakeshare_pipelines.backup.restore.copies import ignore_progress
from lakeshare_pipelines.backup.retention import hold_point
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from lakeshare_pipelines.backup.verify import objects
from lakeshare_pipelines.backup.verify.run import Healer, MissingObject
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings

if TYPE_CHECKING:
    import duckdb

_log = logging.getLogger(__name__)

PORTION = 1_000
MAX_REMEMBERED = 20_000  # Readings are written after this many: an interrupted scrub continues behind them
COLUMNS = (
    "bucket", "key", "version_id", "size_bytes", "etag", "storage_class", "stored_key", "table_root", "first_point",
    "stored_etag", "stored_version_id", "checksum",
)  # fmt: skip
Row = dict[str, Any]


class ScrubRecord(BaseModel, frozen=True):
    backup: str
    started_at: dt.datetime
    copies: int  # All copies that points hold
    size_bytes: int
    read: int
    read_bytes: int
    archived: int  # Archived copies, which are not read
    compared_since: dt.datetime | None  # All copies were compared at this time or later
    repaired: tuple[str, ...] = ()  # Sentences: damaged copies that were made again, and from where
    damaged: tuple[str, ...] = ()  # Sentences: copies that cannot be repaired, unreadable records of points
    downgraded: tuple[str, ...] = ()  # Days of the points that these degrade
    warnings: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.damaged


def scrub(
    backup: Backup,
    points: Points,
    settings: LakeSettings,
    now: dt.datetime,
    *,
    budget_bytes: int | None = None,
    everything: bool = False,
    report_message: ReportMessage = _log.info,
) -> ScrubRecord:
    """Read copies again, repair damaged ones, and downgrade the points that hold what cannot be repaired.

    By default a share of all bytes and all that is overdue is read, within `scrub.bytes_per_scrub`; `everything`
    reads all copies. Called again after an interruption, it continues. Raises BackupError if the target does not
    answer, or refuses.
    """
    with ExitStack() as leases, open_database() as on:
        whole, damaged = points.readable(as_made=True)
        # No sweep removes a copy while it is read.
        for point in whole:
            leases.enter_context(hold_point(points, point.day, "scrub", as_made=True))
        unreadable = objects.load_copies(on, points, whole, COLUMNS).values()
        sentences = [str(error) for error in (*damaged, *unreadable)]
        scrubbing = _ScrubRun(backup, points, settings, now, report_message, on)
        return scrubbing.run(sentences, budget_bytes=budget_bytes, everything=everything)


@dataclass(frozen=True)
class _ScrubRun:
    backup: Backup
    points: Points
    settings: LakeSettings
    now: dt.datetime
    report_message: ReportMessage
    on: "duckdb.DuckDBPyConnection"  # With the table `copies`

    def run(self, sentences: list[str], *, budget_bytes: int | None, everything: bool) -> ScrubRecord:
        copies, unarchived, total_bytes, overdue_bytes = self._order()
        declared = self.backup.scrub
        limit = total_bytes
        if not everything and budget_bytes is not None:
            limit = budget_bytes
        elif not everything:
            share = -(-total_bytes // declared.within_days)
            limit = min(max(overdue_bytes, share), declared.bytes_per_scrub)
        self.on.execute(
            "CREATE TEMP TABLE chosen AS SELECT * FROM held WHERE through <= ? OR through = size_bytes",
            [limit],
        )
        count, size_bytes = _row(self.on, "SELECT count(*), coalesce(sum(size_bytes), 0) FROM chosen")
        self.report_message(f"reading {count:,} of {copies:,} copies, {size_bytes:,} bytes")
        damaged = self._read_chosen()
        # Damage that was found earlier and could not be repaired is tried again.
        left = "FROM held WHERE place || stored_key NOT IN (SELECT place || stored_key FROM chosen)"
        damaged += [
            (row, row["problem"]) for row in _rows(self.on, f"SELECT * {left} AND problem IS NOT NULL")
        ]
        repaired = self._repair_all(damaged, sentences)
        warnings = []
        if total_bytes > declared.bytes_per_scrub * declared.within_days:
            warnings.append(
                f"With one scrub a day of {declared.bytes_per_scrub:,} bytes all {total_bytes:,} are read in "
                f"{-(-total_bytes // declared.bytes_per_scrub):,} days, not in {declared.within_days}: raise "
                "`scrub.bytes_per_scrub`, or scrub more often."
            )
        (oldest,) = _row(self.on, f"SELECT min(compared_at) {left}")
        compared_since = self.now if oldest is None else oldest.replace(tzinfo=dt.UTC)
        return ScrubRecord(
            backup=self.backup.name,
            started_at=self.now,
            copies=copies,
            size_bytes=total_bytes,
            read=count,
            read_bytes=int(size_bytes),
            archived=copies - unarchived,
            compared_since=compared_since if unarchived else None,
            repaired=repaired,
            damaged=tuple(sentences),
            downgraded=tuple(objects.report_damage(self.points, self.now)),
            warnings=tuple(warnings),
        )

    def _repair_all(self, damaged: Sequence[tuple[Row, str]], sentences: list[str]) -> tuple[str, ...]:
        """Returns a sentence for each damaged copy that was copied again; those of others go to `sentences`."""
        repaired = []
        for row, problem in damaged:
            source = self._repair(row)
            where = StoreAddress(url=row["place"]).location(row["stored_key"])
            if source is None:
                sentences.append(f"{where}: {problem}, and no other copy of it was found.")
            else:
                repaired.append(f"{where}: {problem}; copied again from {source}.")
        return tuple(repaired)

    def _order(self) -> tuple[int, int, int, int]:
        objects.register_readings(self.on, self.points)
        made_at = objects.MADE_AT
        self.on.execute(
            "CREATE TEMP TABLE once AS SELECT DISTINCT ON (place, stored_key, stored_version_id) * FROM copies "
            "ORDER BY place, stored_key, stored_version_id, day DESC"
        )
        archives = ", ".join(f"'{name}'" for name in sorted(ARCHIVES))
        # The only values that are not bound are constants of this package.
        self.on.execute(
            "CREATE TEMP TABLE held AS SELECT *, sum(size_bytes) OVER "  # noqa: S608
            "(ORDER BY compared_at, place, stored_key, stored_version_id ROWS UNBOUNDED PRECEDING) AS through FROM ("
            f"SELECT o.*, r.sha256, r.problem, greatest(coalesce(r.read_at, {made_at}), {made_at}) AS compared_at "
            "FROM once o LEFT JOIN readings r ON o.place = r.place AND o.stored_key = r.stored_key "
            "AND o.stored_version_id IS NOT DISTINCT FROM r.stored_version_id "
            f"WHERE coalesce(o.storage_class, '') NOT IN ({archives}))"
        )
        overdue = self.now - dt.timedelta(days=self.backup.scrub.within_days)
        (copies,) = _row(self.on, "SELECT count(*) FROM once")
        found = _row(
            self.on,
            "SELECT count(*), coalesce(sum(size_bytes), 0), "
            "coalesce(sum(size_bytes) FILTER (WHERE compared_at < ?), 0) FROM held",
            [overdue.replace(tzinfo=None)],
        )
        return copies, found[0], int(found[1]), int(found[2])

    def _read_chosen(self) -> list[tuple[Row, str]]:
        damaged, readings = list[tuple[Row, str]](), objects.ReadingStore(self.points)
        unsaved = list[Row]()
        with ThreadPoolExecutor(objects.CONTENT_READERS) as pool:
            for batch in self.on.sql("SELECT * FROM chosen ORDER BY through").to_arrow_reader(PORTION):
                rows = batch.to_pylist()
                for row, result in zip(rows, pool.map(self._read, rows), strict=True):
                    unsaved.append(result)
                    if result["problem"] is not None:
                        damaged.append((row, result["problem"]))
                if len(unsaved) >= MAX_REMEMBERED:
                    readings.add(unsaved)
                    unsaved = []
        readings.add(unsaved)
        return damaged

    def _read(self, row: Row) -> Row:
        problem, sha256 = objects.read_copy(self._store(row["place"]), row, row["sha256"])
        return objects.make_reading_row(row["place"], row, self.now, problem, sha256)

    def _store(self, place: str) -> BackupStore:
        return open_store(self.backup.target.model_copy(update={"url": place}))

    def _repair(self, row: Row) -> str | None:
        target = self._store(row["place"])
        for where, copy_again in ((str(self.backup.source), self._copy_source), *self._list_others(row)):
            if not copy_again(row, target):
                continue
            head = target.head(row["stored_key"])
            if head is None:
                continue
            new = row | {"stored_etag": head.etag, "stored_version_id": head.version_id}
            problem, sha256 = objects.read_copy(target, new, row["sha256"])
            if problem is None:
                objects.repair_points(self.points, row["place"], row["stored_key"], head, row)
                later = self.now + dt.timedelta(microseconds=1)
                old, again = (
                    objects.make_reading_row(row["place"], copy, later, None, sha256) for copy in (row, new)
                )
                objects.ReadingStore(self.points).add([old, again])
                return where
        return None

    def _get_work_prefix(self, target: BackupStore) -> str:
        return f"{target.address.prefix}{OWN_PREFIX}{self.backup.name}/scrub/"

    @property
    def _workspace(self) -> Workspace:
        return Workspace(self.settings.state_dir / "backup_work" / self.backup.name / "scrub")

    def _copy_source(self, row: Row, target: BackupStore) -> bool:
        healer = Healer(
            self.backup,
            self._workspace,
            self._get_work_prefix(target),
            row["first_point"],
            get_point_time(row["first_point"]),
            target,
            ignore_progress,
        )
        names = ("bucket", "key", "stored_key", "table_root", "size_bytes", "etag")
        try:
            healed = healer.heal([MissingObject(*(row[name] for name in names))])
        except BackupError as error:
            self.report_message(f"{row['stored_key']}: the source cannot be read: {error}")
            return False
        return healed.num_rows == 1 and bool(healed["is_whole"][0].as_py())

    def _list_others(self, row: Row) -> Iterator[tuple[str, Callable[[Row, BackupStore], bool]]]:
        """Other copies of the same object or with the same checksum, as pairs of their origin and a copy function."""
        names = ("place", "stored_key", "size_bytes", "checksum", "bucket", "key", "etag")
        found = _rows(
            self.on,
            "SELECT DISTINCT ON (place, stored_key) * FROM copies WHERE (place, stored_key) <> (?, ?) "
            "AND size_bytes = ? AND ((checksum LIKE 'sha256:%' AND checksum = ?) "
            "OR (bucket = ? AND key = ? AND etag = ?)) ORDER BY place, stored_key",
            [row[name] for name in names],
        )
        for other in found:
            yield f"point {other['day']}", partial(self._copy_other, other=other)

    def _copy_other(self, row: Row, target: BackupStore, *, other: Row) -> bool:
        source = self._store(other["place"])
        if objects.read_copy(source, other, row["sha256"])[0] is not None:
            return False
        head = source.head(other["stored_key"], other["stored_version_id"])
        if head is None:
            return False
        planned = objects.make_plan_row(
            head,
            self.backup,
            bucket=source.address.bucket,
            key=other["stored_key"],
            version_id=other["stored_version_id"],
            stored_key=row["stored_key"],
            table_root=row["table_root"],
            first_point=row["first_point"],
        )
        ends, prefix = (source.address, target.address), self._get_work_prefix(target)
        done = objects.copy_rows(
            self.backup, self._workspace, [planned], *ends, prefix, self.now, ignore_progress
        )
        return bool(done["status"].to_pylist() == ["succeeded"])


def _rows(on: "duckdb.DuckDBPyConnection", query: str, values: Sequence[Any] = ()) -> list[Row]:
    return objects.fetch_rows(on.sql(query, params=list(values)))


def _row(on: "duckdb.DuckDBPyConnection", query: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
    found: tuple[Any, ...] = on.execute(query, list(values)).fetchall()[0]
    return found
