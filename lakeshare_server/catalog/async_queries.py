"""Queries that recipients come back for: who asked what, who works on it, what became of it.

All of it is in the database, so any worker of any server can take a query over, also after a restart.
"""

import hashlib
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, cast

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import AsyncQueryRow
from lakeshare_server.errors import BadRequest, NotFound, Unavailable

LIFE_S = 3600.0
HEARTBEAT_S = 5.0
# Several beats: one that is late does not make two workers of one.
DEAD_AFTER_S = 30.0
# A query that ends its worker each time is not given to another for ever.
MAX_ATTEMPTS = 3
MAX_PENDING_PER_RECIPIENT = 100

State = Literal["pending", "running", "done", "failed"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AsyncQuery:
    """A submitted query; `version` is the one its answer has, from the moment that is known."""

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
    """The right to work on a query, as long as nobody has a later attempt."""

    query: AsyncQuery
    attempt: int

    @property
    def is_last(self) -> bool:
        """Whether nobody may try again after this."""
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
        """Take a query in, or find the one that was taken in under this key; `request` is canonical JSON.

        Raises:
            BadRequest: the key cannot be used, or came with another request before.
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
            request_digest=_digest(kind, request),
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
            # The same submission came in twice at the same moment: the other one was first.
            with self.catalog.writing(seen=False) as session:
                return _submitted(session, new)

    def get(self, query_id: str, recipient_id: str, table_id: str) -> AsyncQuery:
        """The query as it stands, for who submitted it.

        Raises:
            NotFound: there is none of this recipient and table, or its time is over.
        """
        known = select(AsyncQueryRow).where(
            AsyncQueryRow.id == query_id,
            AsyncQueryRow.recipient_id == recipient_id,
            AsyncQueryRow.table_id == table_id,
            AsyncQueryRow.expires_at > datetime.now(UTC),
        )
        with self.catalog.reading() as session:
            row = session.scalars(known).one_or_none()
            if row is None:
                raise NotFound("Query", query_id)
            return _query(row)

    def claim(self) -> Claim | None:
        """The oldest query that nobody works on, or whose worker is dead; None when there is none."""
        # Workers look often and mostly find nothing: only what is there is worth a writer's turn.
        with self.catalog.reading() as session:
            if session.scalars(select(AsyncQueryRow.key).where(self._free()).limit(1)).first() is None:
                return None
        with self.catalog.writing(seen=False) as session:
            oldest = select(AsyncQueryRow).where(self._free()).order_by(AsyncQueryRow.key).limit(1)
            row = session.scalars(oldest.with_for_update(skip_locked=True)).one_or_none()
            return None if row is None else self._taken(row)

    def beat(self, claim: Claim) -> bool:
        """Say that the query is still worked on; False when somebody else does, or it is gone."""
        return self._change(claim, heartbeat_at=datetime.now(UTC))

    @contextmanager
    def working(self, claim: Claim) -> Iterator[None]:
        """Beat during the block, until the claim is lost."""
        stop = threading.Event()
        heart = threading.Thread(
            target=self._keep_beating, args=(claim, stop), name=f"query-{claim.query.id}", daemon=True
        )
        heart.start()
        try:
            yield
        finally:
            stop.set()
            heart.join()

    def finish(self, claim: Claim, version: int) -> bool:
        """The answer can be fetched, at this version; False when the claim was lost."""
        return self._end(claim, state="done", version=version)

    def fail(self, claim: Claim, code: str, message: str) -> bool:
        """There will be no answer; `code` is the error's name. False when the claim was lost."""
        return self._end(claim, state="failed", error_code=code, error_message=message)

    def purge(self) -> int:
        """Forget the queries whose time is over; returns how many."""
        with self.catalog.writing(seen=False) as session:
            over = AsyncQueryRow.expires_at <= datetime.now(UTC)
            return len(session.scalars(delete(AsyncQueryRow).where(over).returning(AsyncQueryRow.key)).all())

    def _free(self) -> ColumnElement[bool]:
        now = datetime.now(UTC)
        dead = (AsyncQueryRow.state == "running") & (AsyncQueryRow.heartbeat_at < now - self._dead_after)
        return (AsyncQueryRow.expires_at > now) & ((AsyncQueryRow.state == "pending") | dead)

    def _taken(self, row: AsyncQueryRow) -> Claim | None:
        now = datetime.now(UTC)
        if row.attempts >= MAX_ATTEMPTS:
            row.state, row.finished_at, row.expires_at = "failed", now, now + self._life
            row.error_code = "INTERNAL_ERROR"
            row.error_message = f"The query ended its worker {row.attempts} times. Ask for less at once."
            return None
        row.state, row.attempts = "running", row.attempts + 1
        row.started_at = row.heartbeat_at = now
        return Claim(_query(row), row.attempts)

    def _keep_beating(self, claim: Claim, stop: threading.Event) -> None:
        while not stop.wait(HEARTBEAT_S):
            try:
                if not self.beat(claim):
                    return
            except (SQLAlchemyError, Unavailable) as error:
                _log.warning("query %s: a heartbeat failed: %s", claim.query.id, error)

    def _end(self, claim: Claim, **values: object) -> bool:
        now = datetime.now(UTC)
        return self._change(claim, finished_at=now, expires_at=now + self._life, **values)

    def _change(self, claim: Claim, **values: object) -> bool:
        mine = (
            (AsyncQueryRow.id == claim.query.id)
            & (AsyncQueryRow.attempts == claim.attempt)
            & (AsyncQueryRow.state == "running")
        )
        changed = update(AsyncQueryRow).where(mine).values(values).returning(AsyncQueryRow.key)
        with self.catalog.writing(seen=False) as session:
            return session.scalars(changed).one_or_none() is not None


def _submitted(session: Session, new: AsyncQueryRow) -> AsyncQuery:
    same = select(AsyncQueryRow).where(
        AsyncQueryRow.recipient_id == new.recipient_id,
        AsyncQueryRow.table_id == new.table_id,
        AsyncQueryRow.idempotency_key == new.idempotency_key,
    )
    existing = session.scalars(same).one_or_none()
    if existing is not None and existing.expires_at <= new.created_at:
        session.delete(existing)
        session.flush()
        existing = None
    if existing is None:
        _require_room(session, new.recipient_id)
        session.add(new)
        session.flush()
        return _query(new)
    if existing.request_digest != new.request_digest:
        hint = "It came with other parameters before. Take a new key for another query."
        raise BadRequest("idempotency_key", new.idempotency_key, hint)
    return _query(existing)


def _require_room(session: Session, recipient_id: str) -> None:
    waits = (AsyncQueryRow.recipient_id == recipient_id) & (AsyncQueryRow.state == "pending")
    waiting = session.scalar(select(func.count()).select_from(AsyncQueryRow).where(waits)) or 0
    if waiting >= MAX_PENDING_PER_RECIPIENT:
        raise Unavailable(
            f"{waiting} async queries of this recipient wait already", "Fetch their answers, then ask again."
        )


def _digest(kind: str, request: str) -> str:
    return hashlib.sha256(f"{kind}\n{request}".encode(errors="surrogatepass")).hexdigest()


def _query(row: AsyncQueryRow) -> AsyncQuery:
    return AsyncQuery(
        id=row.id,
        recipient_id=row.recipient_id,
        table_id=row.table_id,
        kind=row.kind,
        request=row.request,
        state=cast("State", row.state),
        version=row.version,
        error_code=row.error_code,
        error_message=row.error_message,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )
