"""Grandfather, father, son: what class a point gets when it is made, how long that is locked, and which points stay.

Pure: nothing here reads a store.
"""

import datetime as dt
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.config import Backup, Retention
from lakeshare_pipelines.backup.model import GOOD_STATUSES, POINT_COPIES, Point, Status
from lakeshare_pipelines.backup.points import SWEEP, Points, get_point_time
from lakeshare_pipelines.backup.stores import ListedObject
from lakeshare_pipelines.backup.stores.store import make_s3_client
from lakeshare_pipelines.errors import BackupError, DamagedRecord, ObjectMissing

if TYPE_CHECKING:
    import pyarrow as pa

RetentionClass = Literal["daily", "weekly", "monthly", "yearly"]
CLASSES: tuple[RetentionClass, ...] = get_args(RetentionClass)
"""Shortest first; a point of a class serves the shorter ones too."""

CLASS_DAYS = {"daily": 1, "weekly": 7, "monthly": 31, "yearly": 366}
"""Longest lengths of the periods, so that a lock never ends before its class does."""


@dataclass(frozen=True)
class RetentionCandidate:
    """A point as retention sees it."""

    day: str
    as_of: dt.datetime
    status: Status
    retention_class: RetentionClass
    is_damaged: bool = False
    """Copies of it rotted after it was made. It keeps its place, for the tables that are whole."""

    @classmethod
    def of(cls, point: Point) -> "RetentionCandidate":
        """What of a point matters here."""
        status = point.status_when_made or point.status
        return cls(point.day, point.as_of, status, point.retention_class, point.damage is not None)

    @property
    def is_good(self) -> bool:
        """Whether it counts."""
        return self.status in GOOD_STATUSES


def choose_class(
    as_of: dt.datetime, status: Status, others: Iterable[RetentionCandidate], retention: Retention
) -> RetentionClass:
    """The class of a new point: the longest one whose period has no good point of that class yet.

    A point that is not good is `daily`: it stands for nothing.
    """
    if status not in GOOD_STATUSES:
        return "daily"
    good = [one for one in others if one.is_good]
    for name in reversed(CLASSES[1:]):
        period = get_period(name, as_of)
        serving = (one for one in good if _serves(one, name))
        if getattr(retention, name) and all(get_period(name, one.as_of) != period for one in serving):
            return name
    return "daily"


def compute_lock_end(
    made_at: dt.datetime, retention_class: RetentionClass, retention: Retention
) -> dt.datetime:
    """Until when copies of a point of this class are locked."""
    return made_at + dt.timedelta(
        days=CLASS_DAYS[retention_class] * max(1, getattr(retention, retention_class))
    )


def select_kept_days(points: Sequence[RetentionCandidate], retention: Retention) -> set[str]:
    """The days of the points that stay: of each class the newest periods, and always the newest good point.

    Points that are not good take no place of others. They stay as long as days do, and while nothing good is newer.
    """
    good = sorted((one for one in points if one.is_good), key=lambda one: one.as_of, reverse=True)
    # The newest one of all, and the newest one that is whole.
    kept_names = {one.day for one in (*good[:1], *[one for one in good if not one.is_damaged][:1])}
    for name in CLASSES:
        serving = [one for one in good if _serves(one, name)]
        periods = _first_periods(getattr(retention, name), (get_period(name, one.as_of) for one in serving))
        kept_names |= {one.day for one in serving if get_period(name, one.as_of) in periods}
    days = _first_periods(retention.daily, (get_period("daily", one.as_of) for one in good))
    oldest = min(days, default=None)
    for one in points:
        if not one.is_good and (oldest is None or get_period("daily", one.as_of) >= oldest):
            kept_names.add(one.day)
    return kept_names


def get_period(name: RetentionClass, as_of: dt.datetime) -> tuple[int, ...]:
    """The day, ISO week, month or year a moment belongs to; midnight belongs to the day it ends."""
    date = (as_of.astimezone(dt.UTC) - dt.timedelta(microseconds=1)).date()
    return _PERIODS[name](date)


_PERIODS: dict[RetentionClass, Callable[[dt.date], tuple[int, ...]]] = {
    "daily": lambda date: (date.year, date.month, date.day),
    "weekly": lambda date: date.isocalendar()[:2],
    "monthly": lambda date: (date.year, date.month),
    "yearly": lambda date: (date.year,),
}


def _serves(point: RetentionCandidate, name: RetentionClass) -> bool:
    return CLASSES.index(point.retention_class) >= CLASSES.index(name)


def _first_periods(count: int, periods: Iterable[tuple[int, ...]]) -> set[tuple[int, ...]]:
    return set(list(dict.fromkeys(periods))[:count])


_log = logging.getLogger(__name__)

COPY = ["stored_key", "stored_version_id"]
AT_ONCE = 16
PROGRESS_EVERY = 5_000
LATER = "lock.json"
"""What tells in a point's folder that it was locked, or locked longer, after it was made."""
SECOND = dt.timedelta(seconds=1)
"""Stores keep a lock's end in whole seconds."""

ReportMessage = Callable[[str], None]
Row = dict[str, Any]  # a row of an Arrow table, by column


@dataclass(frozen=True)
class LockResult:
    """What locking a point did."""

    until: dt.datetime
    extended: int
    """Copies whose lock was set, or made longer."""
    sufficient: int
    """Copies that were locked as long already."""


def lock_copies(
    backup: Backup,
    batches: Iterable[pa.RecordBatch],
    points: Points,
    day: str,
    until: dt.datetime,
    report_message: ReportMessage = _log.info,
) -> LockResult:
    """Lock what a point holds (rows of schema HELD) until `until`; called again it does what is left.

    A lock is never shortened. What a point that is locked as long holds too is not looked at again.

    Raises:
        BackupError: a lock was refused, or did not stick; it names the first such copy.
    """
    if backup.lock is None:
        raise BackupError(
            f"backup {backup.name}",
            "it has no lock",
            "Declare `lock`, with a bucket that was made with Object Lock.",
        )
    columns = pa.schema([POINT_COPIES.field(name) for name in COPY])
    copies = pa.Table.from_batches([batch.select(COPY) for batch in batches], columns)
    rows = _select_unlocked(copies, points, day, until).to_pylist()
    locking = _CopyLocker(backup, day, until.astimezone(dt.UTC).replace(microsecond=0) + SECOND)
    extended = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, len(rows), PROGRESS_EVERY):
            some = rows[start : start + PROGRESS_EVERY]
            extended += sum(pool.map(locking.lock, some))
            report_message(f"{day}: locked {start + len(some):,} of {len(rows):,} copies")
    return LockResult(until, extended, copies.num_rows - extended)


def get_lock_end(points: Points, point: Point) -> dt.datetime | None:
    """Until when a point's copies are locked; None when they are not.

    Raises:
        DamagedRecord: they were locked longer, and until when cannot be read.
    """
    try:
        content = points.store.read(f"{points.folder(point.day)}{LATER}")
        later = dt.datetime.fromisoformat(json.loads(content)["until"])
    except ObjectMissing:
        return point.locked_until
    except (ValueError, TypeError, KeyError) as error:
        where = f"backup {points.backup.name}, point {point.day}"
        raise DamagedRecord(where, f"{LATER} cannot be read") from error
    return later if point.locked_until is None else max(later, point.locked_until)


def lock_point(
    points: Points, point: Point, until: dt.datetime, report_message: ReportMessage = _log.info
) -> LockResult:
    """Lock a finished point's copies until `until`, and keep that beside its record, which never changes.

    Raises:
        BackupError: a lock was refused, or did not stick.
    """
    locked = lock_copies(
        points.backup, points.read_copies(point, COPY), points, point.day, until, report_message
    )
    ends = until
    try:
        ends = max(until, get_lock_end(points, point) or until)
    except DamagedRecord as error:
        report_message(
            f"{error} The record of the lock is written anew; locks of the store that last longer stay."
        )
    points.store.put(f"{points.folder(point.day)}{LATER}", json.dumps({"until": ends.isoformat()}).encode())
    return locked


def _select_unlocked(copies: pa.Table, points: Points, day: str, until: dt.datetime) -> pa.Table:
    """Those that no other point holds that is locked as long."""
    for point in points.readable()[0] if points.backup.layout == "incremental" else ():
        # Of a point that does not tell what it holds nothing is known to be locked: it is locked once more.
        with suppress(DamagedRecord):
            ends = get_lock_end(points, point)
            if point.day == day or ends is None or ends < until:
                continue
            for batch in points.read_copies(point, COPY):
                copies = copies.filter(pc.invert(pc.is_in(_names(copies), _names(batch))))
    return copies


def _names(rows: pa.Table | pa.RecordBatch) -> pa.Array:
    versions = pc.fill_null(rows["stored_version_id"], "")
    return pc.binary_join_element_wise(rows["stored_key"], versions, "\0")


class _CopyLocker:
    """Locks copies one by one; for many threads."""

    def __init__(self, backup: Backup, day: str, until: dt.datetime) -> None:
        address = backup.target_of(day)
        self._backup, self._until, self._address = backup, until, address
        self._mode = "" if backup.lock is None else backup.lock.mode.upper()
        self._client = make_s3_client(address)
        self._owner = {"ExpectedBucketOwner": address.account} if address.account else {}

    def lock(self, row: Row) -> bool:
        """Lock a copy; False when it was locked as long already."""
        version, mode, until = self._asked(row)
        if until is not None and until >= self._until - SECOND and mode in {self._mode, "COMPLIANCE"}:
            return False
        # A lock in compliance stays one; nobody may weaken it.
        wanted = "COMPLIANCE" if mode == "COMPLIANCE" else self._mode
        self._put(row["stored_key"], version, wanted, max(self._until, until or self._until))
        _, mode, until = self._asked(row)
        if mode != wanted or until is None or until < self._until - SECOND:
            raise self._refused(
                row["stored_key"],
                f"its lock did not stick: the store says {mode or 'no mode'} until {until or 'no time'}",
                "Give the backup a bucket that was made with Object Lock, in a store that keeps it.",
            )
        return True

    def _asked(self, row: Row) -> tuple[str | None, str | None, dt.datetime | None]:
        """Version, mode and end of the lock of a copy, as the store tells."""
        version = {"VersionId": row["stored_version_id"]} if row["stored_version_id"] else {}
        response = self._said(
            row["stored_key"],
            lambda: self._client.head_object(
                Bucket=self._address.bucket, Key=row["stored_key"], **version, **self._owner
            ),
        )
        return (
            response.get("VersionId"),
            response.get("ObjectLockMode"),
            response.get("ObjectLockRetainUntilDate"),
        )

    def _put(self, key: str, version: str | None, mode: str, until: dt.datetime) -> None:
        self._said(
            key,
            lambda: self._client.put_object_retention(
                Bucket=self._address.bucket,
                Key=key,
                Retention={"Mode": mode, "RetainUntilDate": until},
                **({"VersionId": version} if version else {}),
                **self._owner,
            ),
        )

    def _said(self, key: str, ask: Callable[[], Any]) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return ask()
        except ClientError as error:
            code = error.response["Error"].get("Code", "")
            reason = (
                f"the store refused its lock: {code} {error.response['Error'].get('Message', '')}".rstrip(
                    ". "
                )
            )
            raise self._refused(key, reason, _remedy(code)) from error
        except BotoCoreError as error:
            reason = f"the store cannot be asked: {str(error).rstrip('.')}"
            raise self._refused(
                key, reason, "Check the endpoint, the network and the credentials."
            ) from error

    def _refused(self, key: str, reason: str, fix: str) -> BackupError:
        return BackupError(f"backup {self._backup.name}, {self._address.location(key)}", reason, fix)


def _remedy(code: str) -> str:
    if code in {"404", "NoSuchKey", "NoSuchVersion"}:
        return "The copy is not there: run the day again, verification tells what is missing."
    if code in {"AccessDenied", "403"}:
        return (
            "Allow s3:PutObjectRetention and s3:GetObjectRetention: `lakeshare backup policies` writes them."
        )
    return "Give the backup a bucket that was made with Object Lock, in a store that keeps it."


def apply_retention(
    points: Points,
    day: str,
    status: Status,
    made_at: dt.datetime,
    point_copies: "Iterable[pa.RecordBatch]",
    report_message: ReportMessage = _log.info,
) -> tuple[RetentionClass, dt.datetime | None]:
    """The class of a new point, and until when its copies (rows of schema HELD) are locked: they are, when it returns.

    Raises:
        BackupError: a lock was refused, or did not stick.
    """
    others = [RetentionCandidate.of(other) for other in points.readable()[0] if other.day != day]
    found = choose_class(get_point_time(day), status, others, points.backup.retention)
    if points.backup.lock is None:
        return found, None
    until = compute_lock_end(made_at, found, points.backup.retention)
    lock_copies(points.backup, point_copies, points, day, until, report_message)
    return found, until


LEASE = dt.timedelta(days=2)
SWEPT = "swept.json"
"""What says in a point's folder that its sweep began; written before leases are looked at, as leases are before it."""


@contextmanager
def hold_point(
    points: Points,
    day: str,
    reader: str,
    length: dt.timedelta = LEASE,
    *,
    as_made: bool = False,
    unwritable: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Hold a point for the length of a `with` block; `reader` names the holder for people.

    With `as_made` it does not matter what was found damaged since the point was made. Where `unwritable` is given, a
    target that cannot be written is read all the same: it gets a sentence about what that means.

    Raises:
        BackupError: the point is being swept, or is not there.
    """
    key = f"{points.folder(day)}leases/{uuid4().hex}.json"
    until = dt.datetime.now(dt.UTC) + length
    lease = json.dumps({"reader": reader, "until": until.isoformat()}).encode()
    try:
        points.store.put(key, lease)
        is_held = True
    except BackupError as error:
        if unwritable is None:
            raise
        is_held = False
        unwritable(f"No sweep is kept away from point {day} meanwhile, its place cannot be written: {error}")
    try:
        if points.store.head(f"{points.folder(day)}{SWEPT}") is not None:
            raise BackupError(
                f"backup {points.backup.name}, point {day}",
                "retention is removing it",
                "Take a newer one: `lakeshare backup list` tells which there are.",
            )
        points.get(day, as_made=as_made)
        yield
    finally:
        if is_held:
            points.store.delete(key)


def list_readers(points: Points, day: str, now: dt.datetime) -> list[str]:
    """Who holds a point; those whose lease ended are forgotten."""
    found = []
    for one in points.store.list(f"{points.folder(day)}leases/"):
        try:
            lease = json.loads(points.store.read(one.key))
        except ObjectMissing:
            continue  # It was given back since it was listed.
        except ValueError:
            lease = None
        found += _find_reader(one, lease, now)
    return sorted(found)


def _find_reader(listed: ListedObject, lease: Any, now: dt.datetime) -> list[str]:
    """Who holds a lease that has not ended."""
    try:
        until, reader = dt.datetime.fromisoformat(lease["until"]), str(lease["reader"])
        is_held = until > now
    except (ValueError, TypeError, KeyError):
        # It was written then, for no longer than that.
        is_held, reader = listed.last_modified + LEASE > now, "a reader whose lease cannot be read"
    return [reader] if is_held else []


CLAIM = "claim.json"


def list_claimed_days(points: Points) -> list[str]:
    """Days that somebody claimed and that have no point yet."""
    start = points.folder("x").removesuffix("x/")
    keys = [one.key.removeprefix(start) for one in points.store.list(start)]
    claimed = {key.split("/")[0] for key in keys if key.endswith(f"/{CLAIM}")}
    done = {key.split("/")[0] for key in keys if key.endswith(("/point.json", f"/{SWEPT}"))}
    return sorted(claimed - done)


def find_points_in_use(points: Points, finished: Sequence[Point]) -> dict[str, str]:
    """Points that days being made may build on, with the day that does.

    That is the newest point there was when the day was claimed, and any made since: a plan may be drawn again.
    """
    needed: dict[str, str] = {}
    for day in list_claimed_days(points):
        claim = points.store.head(f"{points.folder(day)}{CLAIM}")
        if claim is None:
            continue  # It was given up, or finished, since it was listed.
        earlier = sorted((point for point in finished if point.day < day), key=lambda point: point.day)
        before = [point for point in earlier if point.made_at <= claim.last_modified]
        since = [point for point in earlier if point.made_at > claim.last_modified]
        needed |= {point.day: day for point in (*before[-1:], *since)}
    return needed


@contextmanager
def block_claims(points: Points) -> Iterator[Callable[[], None]]:
    """Keep new days from being claimed during a `with` block; what it gives is called now and then to go on so.

    Raises:
        BackupError: another sweep runs.
    """

    def still() -> None:
        until = dt.datetime.now(dt.UTC) + SWEEP
        points.store.put(points.sweep_key, json.dumps({"until": until.isoformat()}).encode())

    until = points.swept_until()
    if until is not None and until > dt.datetime.now(dt.UTC):
        raise BackupError(
            f"backup {points.backup.name}",
            "another sweep runs",
            f"Wait for it, or sweep again after {until:%H:%M} UTC if it broke off.",
        )
    still()
    try:
        yield still
    finally:
        points.store.delete(points.sweep_key)
