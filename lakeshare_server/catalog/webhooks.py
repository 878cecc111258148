"""Webhooks of recipients, and the outbox of their deliveries.

Administrators edit webhooks in transactions of `sharing.editing`. Servers fill and empty the outbox: a webhook has a
cursor into the ledger, so that no event is lost while no server runs, and a lease, so that one server sends at a time.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session

from lakeshare_server.catalog.credentials import insert_statement
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.feed import (
    EVENT_TYPES,
    FeedEvent,
    list_publications,
    list_retirements,
    newest_ledger_key,
    read_grants,
)
from lakeshare_server.catalog.listings import EffectiveGrant, Listings, select_granted
from lakeshare_server.catalog.models import (
    DeliveryRow,
    FollowedTableRow,
    PublicationRow,
    RecipientRow,
    SchemaRow,
    SharedTableRow,
    ShareRow,
    WebhookRow,
)
from lakeshare_server.catalog.sharing import Edit, require_not_revoked, require_storable, require_text
from lakeshare_server.catalog.states import JsonState, find_recipient_row, find_share_row, state_from_row
from lakeshare_server.errors import BadRequest, NotFound

DeliveryState = Literal["pending", "delivered", "dead", "withdrawn"]
MAX_WEBHOOKS = 20  # of one recipient
MAX_URL_CHARS = 2000
MAX_ERROR_CHARS = 300
# Publications that one transaction turns into deliveries.
AT_ONCE = 1000
KEPT_FOR = timedelta(days=30)
MAX_GRACE = timedelta(days=30)
# After so many failures in a row, a success lets all pending deliveries go on at once.
OUTAGE_FAILURES = 3
# A notice would be announced again if its delivery were removed.
RETIREMENT = EVENT_TYPES["retirement"]


@dataclass(frozen=True, kw_only=True)
class Webhook(JsonState):
    """A webhook without its secrets; `share` limits it to one share. Nothing is sent before `paused_until`."""

    key: int
    id: str
    recipient: str
    share: str | None
    url: str
    comment: str | None
    created_at: datetime
    created_by: str | None
    previous_secret_until: datetime | None
    failures: int
    paused_until: datetime | None
    delivered_at: datetime | None
    last_error: str | None
    pending: int = 0
    dead: int = 0

    def as_json(self) -> dict[str, Any]:
        """What administrators set, for the audit log."""
        names = "id", "recipient", "share", "url", "comment", "previous_secret_until"
        return {name: value for name, value in super().as_json().items() if name in names}


@dataclass(frozen=True, kw_only=True)
class Delivery(JsonState):
    """An event for a webhook and its attempts."""

    key: int
    event_id: str
    type: str
    table_id: str | None
    body: str
    state: DeliveryState
    created_at: datetime
    expires_at: datetime
    next_attempt_at: datetime
    attempts: int
    finished_at: datetime | None
    last_status: int | None
    last_error: str | None


@dataclass(frozen=True)
class SendingLease:
    """The right to send the deliveries of a webhook, until another server has a later number.

    `secrets` are sealed; `failures` are the outages in a row up to now.
    """

    webhook_key: int
    number: int
    url: str
    recipient_id: str
    secrets: tuple[str, ...]
    failures: int


@dataclass(frozen=True)
class Outcome:
    """The result of an attempt; `status` is None without a response. An outage is no fault of the event."""

    is_delivered: bool
    is_outage: bool
    status: int | None
    error: str | None
    retry_at: datetime
    paused_until: datetime


def add_webhook(
    edit: Edit, recipient: str, url: str, secret: str, *, share: str | None = None, comment: str | None = None
) -> Webhook:
    """Adds a webhook of a recipient; `secret` is sealed. It gets the publications from now on, and present notices."""
    row = find_recipient_row(edit.session, recipient)
    require_not_revoked(row)
    require_text(MAX_URL_CHARS, f"Give a URL of up to {MAX_URL_CHARS} characters.", "url", url)
    require_storable("url", url)
    if comment is not None:
        require_storable("comment", comment)
    own = select(func.count()).select_from(WebhookRow).where(WebhookRow.recipient_key == row.key)
    if (edit.session.scalar(own) or 0) >= MAX_WEBHOOKS:
        raise BadRequest("recipient", row.name, f"It has {MAX_WEBHOOKS} webhooks; remove one first.")
    made = WebhookRow(
        id=str(uuid.uuid4()),
        recipient_key=row.key,
        share_key=None if share is None else find_share_row(edit.session, share).key,
        url=url,
        comment=comment,
        secret=secret,
        created_at=edit.at,
        created_by=edit.by,
        cursor=newest_ledger_key(edit.session),
        failures=0,
        lease=0,
    )
    edit.add(made)
    return edit.changed("add_webhook", row.name, None, get_webhook(edit.session, made.id))


def remove_webhook(edit: Edit, webhook_id: str, recipient: str | None = None) -> Webhook:
    """Removes a webhook with its deliveries; `recipient` is the one that it must be of. Raises NotFound."""
    state = get_webhook(edit.session, webhook_id, recipient)
    row = edit.session.get_one(WebhookRow, state.key)
    return edit.delete("remove_webhook", state.recipient, row, state)


def rotate_webhook_secret(
    edit: Edit, webhook_id: str, secret: str, keep_old_for: timedelta, recipient: str | None = None
) -> Webhook:
    """Gives a webhook a new sealed secret; requests are also signed with the old one for a grace time.

    Raises:
        NotFound: there is no such webhook.
        BadRequest: the grace time is negative or too long.
    """
    before = get_webhook(edit.session, webhook_id, recipient)
    if not timedelta(0) <= keep_old_for <= MAX_GRACE:
        raise BadRequest("keep_old_for", str(keep_old_for), f"Give a time of up to {MAX_GRACE.days} days.")
    row = edit.session.get_one(WebhookRow, before.key)
    ends = edit.at + keep_old_for
    kept = (None, None) if not keep_old_for else (row.secret, ends)
    columns = {"secret": secret, "previous_secret": kept[0], "previous_secret_until": kept[1]}
    edit.update(row, columns)
    after = get_webhook(edit.session, webhook_id)
    return edit.changed("rotate_webhook_secret", before.recipient, before, after)


def queue_event(
    edit: Edit, webhook: Webhook, event_id: str, event_type: str, body: str, retry_for: timedelta
) -> None:
    """Queues an event that is not in the ledger, like that of a test."""
    values = _new_delivery(webhook.key, event_id, event_type, None, body, edit.at, retry_for)
    edit.add(DeliveryRow(**values))
    edit.changed("test_webhook", webhook.recipient, None, webhook)


def resend_deliveries(
    edit: Edit, webhook_id: str, event_ids: Sequence[str], retry_for: timedelta, recipient: str | None = None
) -> int:
    """Queues dead deliveries again, by default all of a webhook; returns their number. Raises NotFound."""
    webhook = get_webhook(edit.session, webhook_id, recipient)
    dead = (DeliveryRow.webhook_key == webhook.key) & (DeliveryRow.state == "dead")
    if event_ids:
        dead &= DeliveryRow.event_id.in_(event_ids)
    again = {"state": "pending", "attempts": 0, "finished_at": None, "next_attempt_at": edit.at}
    changed = update(DeliveryRow).where(dead).values(**again, expires_at=edit.at + retry_for)
    keys = edit.session.scalars(changed.returning(DeliveryRow.key)).all()
    if event_ids and len(keys) != len(set(event_ids)):
        raise NotFound("Dead delivery", ", ".join(event_ids))
    edit.update(edit.session.get_one(WebhookRow, webhook.key), {"paused_until": None})
    edit.changed("resend_deliveries", webhook.recipient, None, webhook)
    return len(keys)


def list_webhooks(session: Session, recipient: str | None = None) -> list[Webhook]:
    """Lists the webhooks, in the order of their creation; those of one recipient if it is given (raises NotFound)."""
    rows = _with_names()
    if recipient is not None:
        rows = rows.where(WebhookRow.recipient_key == find_recipient_row(session, recipient).key)
    return [_webhook_from_row(*row) for row in session.execute(rows.order_by(WebhookRow.key))]


def get_webhook(session: Session, webhook_id: str, recipient: str | None = None) -> Webhook:
    """Returns a webhook, of a recipient if one is given; raises NotFound."""
    row = session.execute(_with_names().where(WebhookRow.id == webhook_id)).one_or_none()
    webhook = None if row is None else _webhook_from_row(*row)
    if webhook is None or (recipient is not None and webhook.recipient.lower() != recipient.lower()):
        raise NotFound("Webhook", webhook_id)
    return webhook


def list_deliveries(
    session: Session, webhook: Webhook, state: DeliveryState | None = None, limit: int = 100
) -> list[Delivery]:
    """Lists the newest deliveries of a webhook, those in one state if it is given."""
    rows = select(DeliveryRow).where(DeliveryRow.webhook_key == webhook.key)
    if state is not None:
        rows = rows.where(DeliveryRow.state == state)
    found = session.scalars(rows.order_by(DeliveryRow.key.desc()).limit(limit))
    return [state_from_row(Delivery, row) for row in found]


def _with_names() -> Select[Any]:
    def count(state: str) -> Any:
        own = (DeliveryRow.webhook_key == WebhookRow.key) & (DeliveryRow.state == state)
        return select(func.count()).select_from(DeliveryRow).where(own).scalar_subquery()

    rows: Select[Any] = (
        select(WebhookRow, RecipientRow.name, ShareRow.name, count("pending"), count("dead"))
        .join(RecipientRow, RecipientRow.key == WebhookRow.recipient_key)
        .outerjoin(ShareRow, ShareRow.key == WebhookRow.share_key)
        .execution_options(populate_existing=True)
    )
    return rows


def _webhook_from_row(row: WebhookRow, recipient: str, share: str | None, pending: int, dead: int) -> Webhook:
    return state_from_row(Webhook, row, recipient=recipient, share=share, pending=pending, dead=dead)


def _new_delivery(
    webhook_key: int,
    event_id: str,
    event_type: str,
    table_id: str | None,
    body: str,
    now: datetime,
    retry_for: timedelta,
) -> dict[str, Any]:
    times = {"created_at": now, "next_attempt_at": now, "expires_at": now + retry_for}
    what = {"event_id": event_id, "type": event_type, "table_id": table_id, "body": body}
    return {"webhook_key": webhook_key, **what, **times, "state": "pending", "attempts": 0}


class Outbox:
    """The pending deliveries of all webhooks, for the servers on one catalog."""

    def __init__(self, catalog: Catalog, retry_for: timedelta, lease_for: timedelta) -> None:
        self.catalog, self._retry_for, self._lease_for = catalog, retry_for, lease_for

    def list_keys(self, now: datetime) -> list[int]:
        """The keys of the webhooks of all recipients in force."""
        keys = select(WebhookRow.key).join(RecipientRow, RecipientRow.key == WebhookRow.recipient_key)
        with self.catalog.reading() as session:
            return list(session.scalars(keys.where(_is_in_force(now))))

    def list_followed(self, now: datetime) -> list[str]:
        """The followed tables, by their lake names, that webhooks are for."""
        with self.catalog.reading() as session:
            pairs = session.execute(
                select(RecipientRow.id, WebhookRow.share_key)
                .join(WebhookRow, WebhookRow.recipient_key == RecipientRow.key)
                .where(_is_in_force(now))
                .distinct()
            )
            shares = {
                key
                for recipient_id, only in pairs.all()
                for key in session.scalars(select_granted(recipient_id, now))
                if only in (None, key)
            }
            names = (
                select(FollowedTableRow.table_name)
                .join(SharedTableRow, SharedTableRow.lake_table == FollowedTableRow.table_name)
                .join(SchemaRow, SchemaRow.key == SharedTableRow.schema_key)
            )
            return list(session.scalars(names.where(SchemaRow.share_key.in_(shares)).distinct()))

    def plan(self, webhook_key: int, make_body: Callable[[FeedEvent], str], now: datetime) -> bool:
        """Queues the events of publications after the cursor, and of new notices; True if more publications follow.

        The deliveries and the cursor are written in one transaction: each event is queued once.
        """
        own = select(WebhookRow).where(WebhookRow.key == webhook_key)
        with self.catalog.reading() as session:
            # Most webhooks have nothing new: a read first spares the writer lock.
            row = session.scalars(own).one_or_none()
            if row is None or not self._has_news(session, row, now):
                return False
        with self.catalog.writing(seen=False) as session:
            row = session.scalars(own.with_for_update()).one_or_none()
            if row is None:
                return False
            newest = newest_ledger_key(session)
            until = min(newest, row.cursor + AT_ONCE)
            shares = _granted_shares(session, row, now)
            of_ledger = (PublicationRow.key > row.cursor) & (PublicationRow.key <= until)
            events = list_publications(session, shares, of_ledger)[::-1]
            events += list_retirements(session, ShareRow.key.in_(shares))
            for event in events:
                what = event.id, event.type, event.table.id, make_body(event)
                values = _new_delivery(row.key, *what, now, self._retry_for)
                session.execute(insert_statement(session, DeliveryRow, values).on_conflict_do_nothing())
            row.cursor = until
            return until < newest

    def _has_news(self, session: Session, row: WebhookRow, now: datetime) -> bool:
        if newest_ledger_key(session) > row.cursor:
            return True
        notices = list_retirements(session, ShareRow.key.in_(_granted_shares(session, row, now)))
        known = select(DeliveryRow.event_id).where(DeliveryRow.webhook_key == row.key)
        announced = session.scalars(known.where(DeliveryRow.type == RETIREMENT))
        return not {event.id for event in notices} <= set(announced)

    def claim(self, now: datetime) -> SendingLease | None:
        """Claims the webhook with due deliveries that was served the longest time ago; None if there is none."""
        due = self._due(now)
        with self.catalog.reading() as session:
            if session.scalars(due).first() is None:
                return None
        with self.catalog.writing(seen=False) as session:
            key = session.scalars(due.with_for_update(skip_locked=True, of=WebhookRow)).first()
            if key is None:
                return None
            row = session.get_one(WebhookRow, key)
            row.lease += 1
            row.leased_until = now + self._lease_for
            return self._lease(session, row, now)

    def next_due(self, lease: SendingLease, now: datetime) -> Delivery | None:
        """Extends the lease, and returns its oldest due delivery; None if there is none, or the lease was lost.

        A delivery about a table that the recipient may not read any more is withdrawn.
        """
        while True:
            with self.catalog.writing(seen=False) as session:
                row = self._held(session, lease)
                if row is None or (row.paused_until is not None and row.paused_until > now):
                    return None
                row.leased_until = now + self._lease_for
                found = session.scalars(_due_deliveries(now, lease.webhook_key).limit(1)).one_or_none()
                if found is None:
                    return None
                delivery = state_from_row(Delivery, found)
            if delivery.table_id is None or self._may_read(lease.recipient_id, delivery.table_id):
                return delivery
            with self.catalog.writing(seen=False) as session:
                if self._held(session, lease) is not None:
                    values = {"state": "withdrawn", "finished_at": now}
                    session.execute(update(DeliveryRow).filter_by(key=delivery.key).values(values))

    def record(self, lease: SendingLease, delivery: Delivery, outcome: Outcome, now: datetime) -> None:
        """Records an attempt; a delivery whose time is over is dead. Does nothing if the lease was lost."""
        with self.catalog.writing(seen=False) as session:
            row = self._held(session, lease)
            if row is None:
                return
            error = None if outcome.error is None else outcome.error[:MAX_ERROR_CHARS]
            values: dict[str, Any] = {"attempts": delivery.attempts + 1, "last_status": outcome.status}
            values["last_error"] = error
            if outcome.is_delivered:
                values |= {"state": "delivered", "finished_at": now}
            elif now >= delivery.expires_at:
                values |= {"state": "dead", "finished_at": now}
            else:
                # The last attempt is at the end of its time.
                values["next_attempt_at"] = min(outcome.retry_at, delivery.expires_at)
            session.execute(update(DeliveryRow).filter_by(key=delivery.key).values(values))
            self._note(session, row, outcome, error, now)

    def release(self, lease: SendingLease, now: datetime) -> None:
        """Ends a lease."""
        with self.catalog.writing(seen=False) as session:
            row = self._held(session, lease)
            if row is not None:
                row.leased_until = now

    def purge(self, now: datetime) -> None:
        """Removes deliveries that have been finished for long."""
        is_over = DeliveryRow.finished_at.is_not(None) & (DeliveryRow.finished_at < now - KEPT_FOR)
        with self.catalog.writing(seen=False) as session:
            session.execute(delete(DeliveryRow).where(is_over, DeliveryRow.type != RETIREMENT))

    def _note(
        self, session: Session, row: WebhookRow, outcome: Outcome, error: str | None, now: datetime
    ) -> None:
        if not outcome.is_delivered:
            row.last_error = error
            if outcome.is_outage:
                row.failures += 1
                row.paused_until = outcome.paused_until
            return
        if row.failures >= OUTAGE_FAILURES:
            pending = (DeliveryRow.webhook_key == row.key) & (DeliveryRow.state == "pending")
            session.execute(update(DeliveryRow).where(pending).values(next_attempt_at=now))
        row.failures, row.paused_until, row.last_error, row.delivered_at = 0, None, None, now

    def _due(self, now: datetime) -> Select[Any]:
        is_free = or_(WebhookRow.leased_until.is_(None), WebhookRow.leased_until <= now)
        is_active = or_(WebhookRow.paused_until.is_(None), WebhookRow.paused_until <= now)
        pending = _due_deliveries(now, WebhookRow.key).correlate(WebhookRow)
        rows: Select[Any] = (
            select(WebhookRow.key)
            .join(RecipientRow, RecipientRow.key == WebhookRow.recipient_key)
            .where(_is_in_force(now), is_free, is_active, exists(pending.with_only_columns(DeliveryRow.key)))
            .order_by(func.coalesce(WebhookRow.leased_until, WebhookRow.created_at), WebhookRow.key)
            .limit(1)
        )
        return rows

    def _lease(self, session: Session, row: WebhookRow, now: datetime) -> SendingLease:
        recipient = session.get_one(RecipientRow, row.recipient_key)
        until = row.previous_secret_until
        has_previous = row.previous_secret is not None and until is not None and until > now
        secrets = (row.secret, str(row.previous_secret)) if has_previous else (row.secret,)
        return SendingLease(row.key, row.lease, row.url, recipient.id, secrets, row.failures)

    def _held(self, session: Session, lease: SendingLease) -> WebhookRow | None:
        held = select(WebhookRow).filter_by(key=lease.webhook_key, lease=lease.number).with_for_update()
        return session.scalars(held).one_or_none()

    def _may_read(self, recipient_id: str, table_id: str) -> bool:
        try:
            Listings(self.catalog, recipient_id).table_of_id(table_id)
        except NotFound:
            return False
        return True


def _granted_shares(session: Session, row: WebhookRow, now: datetime) -> Mapping[int, EffectiveGrant]:
    """The grants of a webhook's recipient that are in force, by the keys of the shares that the webhook is for."""
    recipient = session.get_one(RecipientRow, row.recipient_key)
    grants = read_grants(session, recipient.id, now)
    return grants if row.share_key is None else {key: grants[key] for key in grants if key == row.share_key}


def _due_deliveries(now: datetime, webhook_key: Any) -> Select[Any]:
    is_due = (DeliveryRow.state == "pending") & (DeliveryRow.next_attempt_at <= now)
    rows: Select[Any] = select(DeliveryRow).where(DeliveryRow.webhook_key == webhook_key, is_due)
    return rows.order_by(DeliveryRow.key)


def _is_in_force(now: datetime) -> ColumnElement[bool]:
    not_ended = or_(RecipientRow.expires_at.is_(None), RecipientRow.expires_at > now)
    return RecipientRow.revoked_at.is_(None) & not_ended
