"""Asynchronous queries of recipients: their requests, the workers on them, and their results.

All state is in the database: any worker of any server can take a query over, also after a restart.
"""

import hashlib
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Literal

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog, heartbeat
from lakeshare_server.catalog.models import AsyncQueryRow
from lakeshare_server.errors import BadRequest, NotFound, Unavailable

LIFE_S = 3600.0
HEARTBEAT_S = 5.0
# Several heartbeats: a late one does not start a second worker.
DEAD_AFTER_S = 30.0
# Limits the attempts of a query that ends its worker each time.
MAX_ATTEMPTS = 3
MAX_PENDING_PER_RECIPIENT = 100

State = Literal["pending", "running", "done", "failed"]


@dataclass(frozen=True)
class AsyncQuery:
    """A submitted query; `version` is that of its response, once it is known."""

    id: str
    recipient_id: str
    table_id: str
    kind: str
    request: str
    state: State
    version: int | None
    error_code: str | None
    error_message: str | None
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class Claim:
    """The right to work on a query, until another worker has a later attempt."""

    query: AsyncQuery
    attempt: int

    @property
    def is_last(self) -> bool:
        """Whether no attempt follows."""
        return self.attempt >= MAX_ATTEMPTS


class AsyncQueries:
    """The async queries of the catalog. Done and failed ones are kept for `life_s`."""

    def __init__(self, catalog: Catalog, life_s: float = LIFE_S, dead_after_s: float = DEAD_AFTER_S) -> None:
        self.catalog = catalog
        self._life, self._dead_after = timedelta(seconds=life_s), timedelta(seconds=dead_after_s)

    def submit(
        self,
        recipient_id: str,
        table_id: str,
        *,
        kind: str,
        request: str,
        idempotency_key: str,
        version: int | None = None,
    ) -> AsyncQuery:
        """Adds a query, or returns the query of this key; `request` is canonical JSON.

        Raises:
            BadRequest: the key cannot be used, or belongs to another request.
            Unavailable: too many queries of this recipient wait.
        """
        if not 0 < len(idempotency_key) <= 255:
            raise BadRequest("idempotency_key", idempotency_key, "Give 1 to 255 characters, like a UUID.")
        now = datetime.now(UTC)
        new = AsyncQueryRow(
            id=str(uuid.uuid4()),
            recipient_id=recipient_id,
            table_id=table_id,
            kind=kind,
            request=request,
            idempotency_key=idempotency_key,
            request_digest=hashlib.sha256(f"{kind}\n{request}".encode(errors="surrogatepass")).hexdigest(),
            state="pending",
            attempts=0,
            version=version,
            created_at=now,
            expires_at=now + self._life,
        )
        try:
            with self.catalog.writing(seen=False) as session:
                return _submitted(session, new)
        except IntegrityError:
            # The same submission was added at the same time by another worker.
            with self.catalog.writing(seen=False) as session:
                return _submitted(session, new)

    def get(self, query_id: str, recipient_id: str, table_id: str) -> AsyncQuery:
        """Returns a query of a recipient and table; raises NotFound, also if it has expired."""
        own = select(AsyncQueryRow).filter_by(id=query_id, recipient_id=recipient_id, table_id=table_id)
        with self.catalog.reading() as session:
            row = session.scalars(own.where(AsyncQueryRow.expires_at > datetime.now(UTC))).one_or_none()
            if row is None:
                raise NotFound("Query", query_id)
            return _query(row)

    def claim(self) -> Claim | None:
        """Claims the oldest query without a live worker; None if there is none."""
        # Workers poll often and find mostly nothing: a read first spares the writer lock.
        with self.catalog.reading() as session:
            if session.scalars(select(AsyncQueryRow.key).where(self._free()).limit(1)).first() is None:
                return None
        with self.catalog.writing(seen=False) as session:
            oldest = select(AsyncQueryRow).where(self._free()).order_by(AsyncQueryRow.key).limit(1)
            row = session.scalars(oldest.with_for_update(skip_locked=True)).one_or_none()
            return None if row is None else self._take(row)

    def beat(self, claim: Claim) -> bool:
        """Records a heartbeat; False if the claim was lost."""
        return self._change(claim, heartbeat_at=datetime.now(UTC))

    def working(self, claim: Claim) -> AbstractContextManager[None]:
        """Records heartbeats during the block, until the claim is lost."""
        return heartbeat(f"query-{claim.query.id}", HEARTBEAT_S, lambda: self.beat(claim))

    def finish(self, claim: Claim, version: int) -> bool:
        """Marks the query as done, at this version; False if the claim was lost."""
        return self._end(claim, state="done", version=version)

    def fail(self, claim: Claim, code: str, message: str) -> bool:
        """Marks the query as failed; `code` is the error's name. False if the claim was lost."""
        return self._end(claim, state="failed", error_code=code, error_message=message)

    def purge(self) -> int:
        """Deletes the expired queries; returns their number."""
        with self.catalog.writing(seen=False) as session:
            over = AsyncQueryRow.expires_at <= datetime.now(UTC)
            return len(session.scalars(delete(AsyncQueryRow).where(over).returning(AsyncQueryRow.key)).all())

    def _free(self) -> ColumnElement[bool]:
        now = datetime.now(UTC)
        dead = (AsyncQueryRow.state == "running") & (AsyncQueryRow.heartbeat_at < now - self._dead_after)
        return (AsyncQueryRow.expires_at > now) & ((AsyncQueryRow.state == "pending") | dead)

    def _take(self, row: AsyncQueryRow) -> Claim | None:
        now = datetime.now(UTC)
        if row.attempts >= MAX_ATTEMPTS:
            row.state, row.finished_at, row.expires_at = "failed", now, now + self._life
            row.error_code = "INTERNAL_ERROR"
            row.error_message = f"The query ended its worker {row.attempts} times. Ask for less at once."
            return None
        row.state, row.attempts = "running", row.attempts + 1
        row.started_at = row.heartbeat_at = now
        return Claim(_query(row), row.attempts)

    def _end(self, claim: Claim, **values: object) -> bool:
        now = datetime.now(UTC)
        return self._change(claim, finished_at=now, expires_at=now + self._life, **values)

    def _change(self, claim: Claim, **values: object) -> bool:
        own = update(AsyncQueryRow).filter_by(id=claim.query.id, attempts=claim.attempt, state="running")
        changed = own.values(values).returning(AsyncQueryRow.key)
        with self.catalog.writing(seen=False) as session:
            return session.scalars(changed).one_or_none() is not None


def _submitted(session: Session, new: AsyncQueryRow) -> AsyncQuery:
    unique = "recipient_id", "table_id", "idempotency_key"
    same = select(AsyncQueryRow).filter_by(**{name: getattr(new, name) for name in unique})
    existing = session.scalars(same).one_or_none()
    if existing is not None and existing.expires_at <= new.created_at:
        session.delete(existing)
        session.flush()
        existing = None
    if existing is None:
        waits = (AsyncQueryRow.recipient_id == new.recipient_id) & (AsyncQueryRow.state == "pending")
        waiting = session.scalar(select(func.count()).select_from(AsyncQueryRow).where(waits)) or 0
        if waiting >= MAX_PENDING_PER_RECIPIENT:
            what = f"{waiting} async queries of this recipient wait already"
            raise Unavailable(what, "Fetch their answers, then ask again.")
        session.add(new)
        session.flush()
        return _query(new)
    if existing.request_digest != new.request_digest:
        hint = "It came with other parameters before. Take a new key for another query."
        raise BadRequest("idempotency_key", new.idempotency_key, hint)
    return _query(existing)


def _query(row: AsyncQueryRow) -> AsyncQuery:
    return AsyncQuery(**{field.name: getattr(row, field.name) for field in fields(AsyncQuery)})
