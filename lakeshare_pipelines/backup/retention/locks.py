"""Object Lock of copies: set after they are made, longer where a newer point still needs them, and proved to stick.

Stores drop lock headers of copies without a word, so every lock is put by itself and read back.
"""

import datetime as dt
import json
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.records import Point
from lakeshare_pipelines.backup.rows import HELD
from lakeshare_pipelines.backup.stores.s3 import s3_client
from lakeshare_pipelines.errors import BackupError, DamagedRecord, ObjectMissing

_log = logging.getLogger(__name__)

COPY = ["stored_key", "stored_version_id"]
AT_ONCE = 16
TOLD_EACH = 5_000
LATER = "lock.json"
"""What tells in a point's folder that it was locked, or locked longer, after it was made."""
SECOND = dt.timedelta(seconds=1)
"""Stores keep a lock's end in whole seconds."""

Say = Callable[[str], None]
Row = dict[str, Any]  # a row of an Arrow table, by column


@dataclass(frozen=True)
class Locked:
    """What locking a point did."""

    until: dt.datetime
    extended: int
    """Copies whose lock was set, or made longer."""
    sufficient: int
    """Copies that were locked as long already."""


def lock_copies(
    backup: Backup,
    held: Iterable[pa.RecordBatch],
    points: Points,
    day: str,
    until: dt.datetime,
    say: Say = _log.info,
) -> Locked:
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
    columns = pa.schema([HELD.field(name) for name in COPY])
    copies = pa.Table.from_batches([batch.select(COPY) for batch in held], columns)
    rows = _unlocked(copies, points, day, until).to_pylist()
    locking = _Locking(backup, day, until.astimezone(dt.UTC).replace(microsecond=0) + SECOND)
    extended = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, len(rows), TOLD_EACH):
            some = rows[start : start + TOLD_EACH]
            extended += sum(pool.map(locking.lock, some))
            say(f"{day}: locked {start + len(some):,} of {len(rows):,} copies")
    return Locked(until, extended, copies.num_rows - extended)


def locked_until(points: Points, point: Point) -> dt.datetime | None:
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


def lock_point(points: Points, point: Point, until: dt.datetime, say: Say = _log.info) -> Locked:
    """Lock a finished point's copies until `until`, and keep that beside its record, which never changes.

    Raises:
        BackupError: a lock was refused, or did not stick.
    """
    locked = lock_copies(points.backup, points.held(point, COPY), points, point.day, until, say)
    ends = until
    try:
        ends = max(until, locked_until(points, point) or until)
    except DamagedRecord as error:
        say(f"{error} The record of the lock is written anew; locks of the store that last longer stay.")
    points.store.put(f"{points.folder(point.day)}{LATER}", json.dumps({"until": ends.isoformat()}).encode())
    return locked


def _unlocked(copies: pa.Table, points: Points, day: str, until: dt.datetime) -> pa.Table:
    """Those that no other point holds that is locked as long."""
    for point in points.readable()[0] if points.backup.layout == "incremental" else ():
        # Of a point that does not tell what it holds nothing is known to be locked: it is locked once more.
        with suppress(DamagedRecord):
            ends = locked_until(points, point)
            if point.day == day or ends is None or ends < until:
                continue
            for batch in points.held(point, COPY):
                copies = copies.filter(pc.invert(pc.is_in(_names(copies), _names(batch))))
    return copies


def _names(rows: pa.Table | pa.RecordBatch) -> pa.Array:
    versions = pc.fill_null(rows["stored_version_id"], "")
    return pc.binary_join_element_wise(rows["stored_key"], versions, "\0")


class _Locking:
    """Locks copies one by one; for many threads."""

    def __init__(self, backup: Backup, day: str, until: dt.datetime) -> None:
        address = backup.target_of(day)
        self._backup, self._until, self._address = backup, until, address
        self._mode = "" if backup.lock is None else backup.lock.mode.upper()
        self._client = s3_client(address)
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
        said = self._said(
            row["stored_key"],
            lambda: self._client.head_object(
                Bucket=self._address.bucket, Key=row["stored_key"], **version, **self._owner
            ),
        )
        return said.get("VersionId"), said.get("ObjectLockMode"), said.get("ObjectLockRetainUntilDate")

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
