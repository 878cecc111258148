"""Scrubbing: copies of all points are read again, compared with what was backed up, and made again where they rotted.

Those that were not read for the longest time come first, within a budget of bytes, so that everything is read within
`scrub.within_days`. A point that holds a copy which cannot be made again is downgraded at once.
"""

import datetime as dt
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.copy.engine import ARCHIVES, CopyTask, Progress
from lakeshare_pipelines.backup.copy.local import LocalEngine
from lakeshare_pipelines.backup.model import PLAN, Point, write_rows
from lakeshare_pipelines.backup.points import OWN_PREFIX, Points, Workspace, get_point_time
from lakeshare_pipelines.backup.retention import hold_point
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from lakeshare_pipelines.backup.verify.objects import (
    CONTENT_READERS,
    ReadingStore,
    make_reading_row,
    read_copy,
    repair_points,
    report_damage,
)
from lakeshare_pipelines.backup.verify.run import Healer, MissingObject
from lakeshare_pipelines.errors import BackupError, DamagedRecord
from lakeshare_pipelines.settings import LakeSettings

_log = logging.getLogger(__name__)

DUCKDB_MEMORY = "2GB"
PORTION = 1_000
MAX_REMEMBERED = 20_000
"""So many readings are remembered at a time: a scrub that breaks off goes on behind them."""
COLUMNS = (
    "bucket",
    "key",
    "version_id",
    "size_bytes",
    "etag",
    "storage_class",
    "stored_key",
    "table_root",
    "first_point",
    "stored_etag",
    "stored_version_id",
    "checksum",
)
ReportMessage = Callable[[str], None]
Row = dict[str, Any]


class ScrubRecord(BaseModel):
    """What a scrub read and found."""

    model_config = ConfigDict(frozen=True)

    backup: str
    started_at: dt.datetime
    copies: int
    """All copies that points hold."""
    size_bytes: int
    read: int
    read_bytes: int
    archived: int
    """Copies in an archive, which are not read."""
    compared_since: dt.datetime | None
    """Every copy was compared with what was backed up at this moment or later."""
    repaired: tuple[str, ...] = ()
    """Sentences: copies that had rotted and were made again, and where from."""
    damaged: tuple[str, ...] = ()
    """Sentences: copies that have rotted and are nowhere else, and records of points that cannot be read."""
    downgraded: tuple[str, ...] = ()
    """Days of the points that are degraded by that."""
    warnings: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether everything that points hold is whole, as far as it was read."""
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
    """Read copies again, repair what has rotted, and downgrade the points that hold what cannot be repaired.

    By default a share of all bytes is read, and all that is overdue, within `scrub.bytes_per_scrub`; `everything` reads
    all copies. Called again after it broke off, it goes on.

    Raises:
        BackupError: the target does not answer, or refuses.
    """
    scrubbing = _ScrubRun(backup, points, settings, now, report_message)
    with ExitStack() as leases, TemporaryDirectory(prefix="lakeshare-scrub-") as folder:
        whole, damaged = points.readable(as_made=True)
        # No sweep takes a copy away while it is read.
        for point in whole:
            leases.enter_context(hold_point(points, point.day, "scrub", as_made=True))
        with duckdb.connect(f"{folder}/copies.duckdb") as on:
            on.execute("SET memory_limit = ?", [DUCKDB_MEMORY])
            sentences = [str(error) for error in (*damaged, *_load(on, points, whole))]
            return scrubbing.run(on, sentences, budget_bytes=budget_bytes, everything=everything)


@dataclass(frozen=True)
class _HeldTotals:
    """What all points hold together, each copy once."""

    copies: int
    archived: int
    size_bytes: int
    """Without what is archived."""
    overdue_bytes: int


@dataclass(frozen=True)
class _ScrubRun:
    backup: Backup
    points: Points
    settings: LakeSettings
    now: dt.datetime
    report_message: ReportMessage

    def run(
        self,
        on: duckdb.DuckDBPyConnection,
        sentences: list[str],
        *,
        budget_bytes: int | None,
        everything: bool,
    ) -> ScrubRecord:
        """Choose, read, repair, report."""
        totals = self._order(on)
        limit = totals.size_bytes if everything else self._limit(totals, budget_bytes)
        on.execute(
            "CREATE TABLE chosen AS SELECT * FROM held WHERE through <= ? OR through = size_bytes", [limit]
        )
        count, size_bytes = _row(on, "SELECT count(*), coalesce(sum(size_bytes), 0) FROM chosen")
        self.report_message(f"{count:,} of {totals.copies:,} copies are read, {size_bytes:,} bytes")
        rotten = self._read_chosen(on)
        # What was found earlier and could not be repaired then is tried again.
        left = "FROM held WHERE place || stored_key NOT IN (SELECT place || stored_key FROM chosen)"
        rotten += [(row, row["problem"]) for row in _rows(on, f"SELECT * {left} AND problem IS NOT NULL")]
        repaired = []
        for row, problem in rotten:
            source = self._repaired(on, row)
            where = StoreAddress(url=row["place"]).location(row["stored_key"])
            if source is None:
                sentences.append(f"{where}: {problem}, and no other copy of it was found.")
            else:
                repaired.append(f"{where}: {problem}; copied again from {source}.")
        (oldest,) = _row(on, f"SELECT min(compared_at) {left}")
        compared_since = self.now if oldest is None else oldest.replace(tzinfo=dt.UTC)
        return ScrubRecord(
            backup=self.backup.name,
            started_at=self.now,
            copies=totals.copies,
            size_bytes=totals.size_bytes,
            read=count,
            read_bytes=int(size_bytes),
            archived=totals.archived,
            compared_since=compared_since if totals.copies > totals.archived else None,
            repaired=tuple(repaired),
            damaged=tuple(sentences),
            downgraded=tuple(report_damage(self.points, self.now)),
            warnings=tuple(self._warnings(totals.size_bytes)),
        )

    def _order(self, on: duckdb.DuckDBPyConnection) -> "_HeldTotals":
        """Make the table `held`: every copy once, those first that were not compared for the longest time.

        `through` is how many bytes there are up to and with a copy.
        """
        known = ReadingStore(self.points).load()
        times = known["read_at"].cast(pa.timestamp("us"))
        on.register("readings", known.set_column(known.column_names.index("read_at"), "read_at", times))
        made_at = (
            "CASE WHEN contains(first_point, 'T') THEN strptime(first_point, '%Y-%m-%dT%H%M%SZ') "
            "ELSE strptime(first_point, '%Y-%m-%d') + INTERVAL 1 DAY END"
        )
        on.execute(
            "CREATE TABLE once AS SELECT DISTINCT ON (place, stored_key, stored_version_id) * FROM copies "
            "ORDER BY place, stored_key, stored_version_id, day DESC"
        )
        # The only values that are not bound are constants of this package.
        on.execute(
            "CREATE TABLE held AS SELECT *, sum(size_bytes) OVER "  # noqa: S608
            "(ORDER BY compared_at, place, stored_key, stored_version_id ROWS UNBOUNDED PRECEDING) AS through FROM ("
            f"SELECT o.*, r.sha256, r.problem, greatest(coalesce(r.read_at, {made_at}), {made_at}) AS compared_at "
            "FROM once o LEFT JOIN readings r ON o.place = r.place AND o.stored_key = r.stored_key "
            "AND o.stored_version_id IS NOT DISTINCT FROM r.stored_version_id "
            f"WHERE coalesce(o.storage_class, '') NOT IN ({_quote_texts(ARCHIVES)}))"
        )
        overdue = self.now - dt.timedelta(days=self.backup.scrub.within_days)
        (copies,) = _row(on, "SELECT count(*) FROM once")
        found = _row(
            on,
            "SELECT count(*), coalesce(sum(size_bytes), 0), "
            "coalesce(sum(size_bytes) FILTER (WHERE compared_at < ?), 0) FROM held",
            [overdue.replace(tzinfo=None)],
        )
        return _HeldTotals(copies, copies - found[0], int(found[1]), int(found[2]))

    def _limit(self, totals: "_HeldTotals", budget_bytes: int | None) -> int:
        if budget_bytes is not None:
            return budget_bytes
        share = -(-totals.size_bytes // self.backup.scrub.within_days)
        return min(max(totals.overdue_bytes, share), self.backup.scrub.bytes_per_scrub)

    def _read_chosen(self, on: duckdb.DuckDBPyConnection) -> list[tuple[Row, str]]:
        """Read what was chosen; returns the copies that are not what was backed up, and why."""
        rotten, readings = list[tuple[Row, str]](), ReadingStore(self.points)
        found = list[Row]()
        with ThreadPoolExecutor(CONTENT_READERS) as pool:
            for batch in on.sql("SELECT * FROM chosen ORDER BY through").to_arrow_reader(PORTION):
                rows = batch.to_pylist()
                for row, result in zip(rows, pool.map(self._read, rows), strict=True):
                    found.append(result)
                    if result["problem"] is not None:
                        rotten.append((row, result["problem"]))
                if len(found) >= MAX_REMEMBERED:
                    readings.add(found)
                    found = []
        readings.add(found)
        return rotten

    def _warnings(self, total: int) -> Iterator[str]:
        scrub = self.backup.scrub
        if total > scrub.bytes_per_scrub * scrub.within_days:
            days = -(-total // scrub.bytes_per_scrub)
            yield (
                f"With one scrub a day of {scrub.bytes_per_scrub:,} bytes all {total:,} are read in {days:,} days, "
                f"not in {scrub.within_days}: raise `scrub.bytes_per_scrub`, or scrub more often."
            )

    def _read(self, row: Row) -> Row:
        found = read_copy(self._store(row["place"]), row, row["sha256"])
        return make_reading_row(row["place"], row, found, self.now)

    def _store(self, place: str) -> BackupStore:
        return open_store(self.backup.target.model_copy(update={"url": place}))

    def _repaired(self, on: duckdb.DuckDBPyConnection, row: Row) -> str | None:
        """Make a copy again, from the source or from another point; where from, or None."""
        target = self._store(row["place"])
        for where, copy_again in ((str(self.backup.source), self._from_source), *self._others(on, row)):
            if not copy_again(row, target):
                continue
            head = target.head(row["stored_key"])
            if head is None:
                continue
            new = row | {"stored_etag": head.etag, "stored_version_id": head.version_id}
            found = read_copy(target, new, row["sha256"])
            if found.problem is None:
                repair_points(self.points, row["place"], row["stored_key"], head, row)
                later = self.now + dt.timedelta(microseconds=1)
                was = make_reading_row(row["place"], row, found, later)
                ReadingStore(self.points).add([was, make_reading_row(row["place"], new, found, later)])
                return where
        return None

    def _from_source(self, row: Row, target: BackupStore) -> bool:
        workspace = Workspace(self.settings.state_dir / "backup_work" / self.backup.name / "scrub")
        prefix = self._work_prefix(target)
        healer = Healer(
            self.backup,
            workspace,
            LocalEngine(),
            prefix,
            row["first_point"],
            get_point_time(row["first_point"]),
            target,
            _ignore_progress,
        )
        wanted = MissingObject(
            row["bucket"], row["key"], row["stored_key"], row["table_root"], row["size_bytes"], row["etag"]
        )
        try:
            healed = healer.heal([wanted])
        except BackupError as error:
            self.report_message(f"{row['stored_key']}: the source cannot be asked: {error}")
            return False
        finally:
            _remove_engine_files(target, prefix, workspace)
        return healed.num_rows == 1 and bool(healed["is_whole"][0].as_py())

    def _others(
        self, on: duckdb.DuckDBPyConnection, row: Row
    ) -> Iterator[tuple[str, Callable[[Row, BackupStore], bool]]]:
        """Other copies of the same content: of the same object at another place, or of one with the same checksum."""
        found = _rows(
            on,
            "SELECT DISTINCT ON (place, stored_key) * FROM copies WHERE (place, stored_key) <> (?, ?) "
            "AND size_bytes = ? AND ((checksum LIKE 'sha256:%' AND checksum = ?) "
            "OR (bucket = ? AND key = ? AND etag = ?)) ORDER BY place, stored_key",
            [
                row[name]
                for name in ("place", "stored_key", "size_bytes", "checksum", "bucket", "key", "etag")
            ],
        )
        for other in found:
            yield f"point {other['day']}", partial(self._from_copy, other=other)

    def _from_copy(self, row: Row, target: BackupStore, *, other: Row) -> bool:
        source = self._store(other["place"])
        if read_copy(source, other, row["sha256"]).problem is not None:
            return False
        head = source.head(other["stored_key"], other["stored_version_id"])
        if head is None:
            return False
        workspace = Workspace(self.settings.state_dir / "backup_work" / self.backup.name / "scrub")
        plan, done, prefix = workspace.clear("plan"), workspace.clear("done"), self._work_prefix(target)
        lane = "large" if head.size_bytes > self.backup.copy_limit_bytes else "small"
        planned = {
            "bucket": source.address.bucket,
            "key": other["stored_key"],
            "version_id": other["stored_version_id"],
            "is_latest": True,
            "is_delete_marker": False,
            "size_bytes": head.size_bytes,
            "last_modified": head.last_modified,
            "etag": head.etag,
            "storage_class": head.storage_class,
            "lane": lane,
            "stored_key": row["stored_key"],
            "table_root": row["table_root"],
            "first_point": row["first_point"],
        }
        write_rows(plan, PLAN, [pa.Table.from_pylist([planned], PLAN)])
        task = CopyTask(
            source=source.address,
            target=target.address,
            plan=plan,
            done=done,
            work_prefix=prefix,
            as_of=self.now,
            copy_limit_bytes=self.backup.copy_limit_bytes,
            in_flight=self.backup.in_flight,
        )
        try:
            return LocalEngine().copy(task, _ignore_progress).succeeded == 1
        finally:
            _remove_engine_files(target, prefix, workspace)

    def _work_prefix(self, target: BackupStore) -> str:
        return f"{target.address.prefix}{OWN_PREFIX}{self.backup.name}/scrub/{uuid4().hex}/"


def _load(on: duckdb.DuckDBPyConnection, points: Points, whole: Sequence[Point]) -> list[DamagedRecord]:
    """Load what all points hold into the table `copies`; returns the points whose rows cannot be read."""
    columns = ", ".join(f"{name} {'BIGINT' if name == 'size_bytes' else 'VARCHAR'}" for name in COLUMNS)
    on.execute(f"CREATE TABLE copies (day VARCHAR, place VARCHAR, {columns})")
    damaged = []
    for point in whole:
        place = points.backup.target_of(point.day).url
        on.execute("BEGIN")
        try:
            for batch in points.read_copies(point, list(COLUMNS)):
                on.register("held", pa.table({name: batch[name] for name in COLUMNS}))
                on.execute("INSERT INTO copies SELECT ?, ?, * FROM held", [point.day, place])
                on.unregister("held")
        except DamagedRecord as error:
            on.execute("ROLLBACK")
            damaged.append(error)
        else:
            on.execute("COMMIT")
    return damaged


def _remove_engine_files(target: BackupStore, prefix: str, workspace: Workspace) -> None:
    """Remove what an engine kept for itself."""
    for one in list(target.list(prefix)):
        target.delete(one.key)
    shutil.rmtree(workspace.folder, ignore_errors=True)


def _ignore_progress(progress: Progress) -> None:
    """The progress of a single object."""


def _rows(on: duckdb.DuckDBPyConnection, query: str, values: Sequence[Any] = ()) -> list[Row]:
    found: list[Row] = on.sql(query, params=list(values)).to_arrow_table().to_pylist()
    return found


def _row(on: duckdb.DuckDBPyConnection, query: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
    found: tuple[Any, ...] = on.execute(query, list(values)).fetchall()[0]
    return found


def _quote_texts(texts: Iterable[str]) -> str:
    return ", ".join(f"'{text}'" for text in sorted(texts))
