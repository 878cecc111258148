"""Verifications of the chain in a thread of a server, with their progress and results for all servers."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from lakeshare_server.catalog.audit.log import newest_event_number
from lakeshare_server.catalog.audit.maintenance import verify
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import AuditVerificationRow
from lakeshare_server.errors import CatalogConflict, LakeshareError, Unavailable

KEPT = 50
HEARTBEAT_S = 2.0
# A run without a heartbeat for this long has ended with its server.
LOST_AFTER = timedelta(seconds=60)
# Requests of the same process come first.
PAUSE_S = 0.005
STOPPED = "The server was stopped."

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VerificationRun:
    """A verification that a server runs or ran; `receipt` is that of its last event, None without a result."""

    key: int
    started_at: datetime
    started_by: str
    heartbeat_at: datetime
    finished_at: datetime | None
    done: int
    events: int
    unchained: int
    findings: Sequence[str]
    receipt: str | None
    problem: str | None

    @property
    def is_lost(self) -> bool:
        """Whether its server ended before it."""
        return self.finished_at is None and self.heartbeat_at < datetime.now(UTC) - LOST_AFTER

    @property
    def is_running(self) -> bool:
        return self.finished_at is None and not self.is_lost

    @property
    def is_sound(self) -> bool:
        """Whether it ended without a finding."""
        return self.finished_at is not None and self.problem is None and not self.findings


NAMES = tuple(VerificationRun.__dataclass_fields__)


def list_verifications(session: Session, limit: int) -> list[VerificationRun]:
    """The last verifications, newest first."""
    rows = session.scalars(
        select(AuditVerificationRow).order_by(AuditVerificationRow.key.desc()).limit(limit)
    )
    return [VerificationRun(**{name: getattr(row, name) for name in NAMES}) for row in rows]


class _StoppedError(Exception):
    """The server stops."""


class Verifications:
    """Runs verifications, one at a time, in a thread of this process."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, principal: str) -> None:
        """Starts a verification in the name of `principal`; raises CatalogConflict if one is running."""
        events, now = newest_event_number(self._catalog), datetime.now(UTC)
        with self._catalog.writing(seen=False) as session:
            last = list_verifications(session, 1)
            if last and last[0].is_running:
                raise CatalogConflict(
                    f"a verification by {last[0].started_by} is running", "Wait for its result."
                )
            row = AuditVerificationRow(
                started_at=now,
                started_by=principal,
                heartbeat_at=now,
                done=0,
                events=events,
                unchained=0,
                findings=[],
            )
            session.add(row)
            session.flush()
            key = row.key
            oldest = select(func.max(AuditVerificationRow.key)).scalar_subquery() - KEPT
            session.execute(delete(AuditVerificationRow).where(AuditVerificationRow.key <= oldest))
        self._thread = threading.Thread(target=self._run, args=(key,), name="audit-verification", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends a verification without a result."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, key: int) -> None:
        noted_at = time.monotonic()

        def note(done: int, events: int) -> None:
            nonlocal noted_at
            if self._closing.wait(PAUSE_S):
                raise _StoppedError
            if time.monotonic() - noted_at > HEARTBEAT_S:
                noted_at = time.monotonic()
                self._update(key, done=done, events=events)

        try:
            result = verify(self._catalog, progress=note)
            self._finish(
                key,
                done=result.events,
                events=result.events,
                unchained=result.unchained,
                findings=[finding.problem for finding in result.findings],
                receipt=str(result.head),
            )
        except _StoppedError:
            self._finish(key, problem=STOPPED)
        except (LakeshareError, SQLAlchemyError) as error:
            _log.warning("the verification of the audit log has no result: %s", error)
            self._finish(key, problem=f"It has no result: {error}")

    def _finish(self, key: int, **fields: Any) -> None:
        try:
            self._update(key, finished_at=datetime.now(UTC), **fields)
        except (Unavailable, SQLAlchemyError) as error:
            # Without further heartbeats it is shown as lost.
            _log.warning("the result of the verification of the audit log is not recorded: %s", error)

    def _update(self, key: int, **fields: Any) -> None:
        is_it = AuditVerificationRow.key == key
        with self._catalog.writing(seen=False) as session:
            session.execute(
                update(AuditVerificationRow).where(is_it).values(heartbeat_at=datetime.now(UTC), **fields)
            )
