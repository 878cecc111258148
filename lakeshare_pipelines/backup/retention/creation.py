"""What is decided when a point is made: its class, and with a lock until when its copies are locked."""

import datetime as dt
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.records import Status
from lakeshare_pipelines.backup.retention.classes import Kept, RetentionClass, class_of, lock_ends
from lakeshare_pipelines.backup.retention.locks import Say, lock_copies
from lakeshare_pipelines.backup.workspace import end_of

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


def retained(
    points: Points,
    day: str,
    status: Status,
    made_at: dt.datetime,
    held: "Iterable[pa.RecordBatch]",
    say: Say = _log.info,
) -> tuple[RetentionClass, dt.datetime | None]:
    """The class of a new point, and until when its copies (rows of schema HELD) are locked: they are, when it returns.

    Raises:
        BackupError: a lock was refused, or did not stick.
    """
    others = [Kept.of(other) for other in points.readable()[0] if other.day != day]
    found = class_of(end_of(day), status, others, points.backup.retention)
    if points.backup.lock is None:
        return found, None
    until = lock_ends(made_at, found, points.backup.retention)
    lock_copies(points.backup, held, points, day, until, say)
    return found, until
