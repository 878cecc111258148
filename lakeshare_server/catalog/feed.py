"""What is new for a recipient: publications of the tables that it may read, and notices of tables that are to retire.

A publication is visible under the conditions of `access.table_access.TableView`: its share is granted, it has not
expired, and the history, start version and pinned publication of the shared table allow its number.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, and_, case, exists, func, or_, select
from sqlalchemy.orm import Session, aliased

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.listings import EffectiveGrant, effective_grant, select_granted, select_grants
from lakeshare_server.catalog.models import (
    ExpirationRow,
    FollowedTableRow,
    PublicationRow,
    SchemaRow,
    SharedTableRow,
    ShareRow,
)
from lakeshare_server.catalog.states import Share, SharedTable, object_from_row, share_from_row
from lakeshare_server.errors import NotFound

EventKind = Literal["publication", "retirement"]
# Sorts notices of a table behind its publications of the same time.
NO_NUMBER = -1


@dataclass(frozen=True)
class FeedPosition:
    """The place of an item in the feed, which is sorted by these fields, newest first."""

    at: datetime
    table_key: int
    number: int


@dataclass(frozen=True, kw_only=True)
class FeedEvent:
    """A publication of a table, or the notice that it is to retire; `id` is stable and the same for all recipients.

    `schema_changed` is None if the recipient may not read the number before. Counts are None for recipients under a
    rule, and for followed tables.
    """

    kind: EventKind
    id: str
    table: SharedTable
    at: datetime
    number: int | None = None
    schema_changed: bool | None = None
    rows: int | None = None
    size_bytes: int | None = None

    @property
    def position(self) -> FeedPosition:
        """Its place in the feed."""
        return FeedPosition(self.at, self.table.key, NO_NUMBER if self.number is None else self.number)


@dataclass(frozen=True)
class FeedPage:
    """A page of the feed of a share; `next` is the position of its last item if there are more."""

    share: Share
    events: Sequence[FeedEvent]
    next: FeedPosition | None


def read_feed(
    catalog: Catalog,
    recipient_id: str,
    share: str,
    table: str | None = None,
    *,
    after: FeedPosition | None = None,
    limit: int,
) -> FeedPage:
    """The page of a share's feed after a position; `table` (`schema.table`) leaves out all other tables.

    Raises:
        NotFound: the share or the table does not exist, or is not granted.
    """
    now = datetime.now(UTC)
    with catalog.reading() as session:
        granted = ShareRow.key.in_(select_granted(recipient_id, now))
        row = session.scalars(
            select(ShareRow).where(granted, ShareRow.name_key == share.lower())
        ).one_or_none()
        if row is None:
            raise NotFound("Share", share)
        condition = ShareRow.key == row.key
        if table is not None:
            condition &= SharedTableRow.key == _find_table(session, row, table)
        grants = read_grants(session, recipient_id, now)
        found = list_publications(session, grants, condition, after=after, limit=limit + 1)
        found += list_retirements(session, condition)
        events = sorted(found, key=_order, reverse=True)
        if after is not None:
            events = [event for event in events if _order(event) < _order_of(after)]
        page, has_more = events[:limit], len(events) > limit
        return FeedPage(share_from_row(row), page, page[-1].position if has_more and page else None)


def list_followed(catalog: Catalog, share: str) -> list[tuple[str, str]]:
    """The followed tables of a share by schema and name: their numbers are in the ledger once they were looked at."""
    rows = _with_share(select(SchemaRow.name, SharedTableRow.name))
    followed = rows.join(FollowedTableRow, FollowedTableRow.table_name == SharedTableRow.lake_table)
    with catalog.reading() as session:
        found = session.execute(followed.where(ShareRow.name_key == share.lower()))
        return [(schema, name) for schema, name in found]


def read_grants(session: Session, recipient_id: str, now: datetime) -> Mapping[int, EffectiveGrant]:
    """The recipient's grants that are in force, by the keys of their shares."""
    by_share: dict[int, list[Any]] = {}
    for row in session.execute(select(*select_grants(recipient_id).c)):
        by_share.setdefault(row.share_key, []).append(row)
    combined = {key: effective_grant(recipient_id, rows, now) for key, rows in by_share.items()}
    return {key: grant for key, grant in combined.items() if grant is not None}


def list_publications(
    session: Session,
    grants: Mapping[int, EffectiveGrant],
    condition: ColumnElement[bool],
    *,
    after: FeedPosition | None = None,
    limit: int | None = None,
) -> list[FeedEvent]:
    """The visible publications of shares that are granted, newest first; `condition` is on shares, tables and rows."""
    rows = _select_visible().where(condition, ShareRow.key.in_(grants))
    order = PublicationRow.published_at, SharedTableRow.key, PublicationRow.version
    if after is not None:
        rows = rows.where(_is_before(order, (after.at, after.table_key, after.number)))
    rows = rows.order_by(*(column.desc() for column in order)).limit(limit)
    return [_publication_event(grants, *row) for row in session.execute(rows)]


def list_retirements(session: Session, condition: ColumnElement[bool]) -> list[FeedEvent]:
    """The notices of tables that are to retire; `condition` is on shares and tables."""
    rows = _with_share(select(ShareRow, SchemaRow.name, SharedTableRow))
    noticed = SharedTableRow.retire_date.is_not(None) & SharedTableRow.retire_noticed_at.is_not(None)
    events = []
    for share, schema, row in session.execute(rows.where(noticed, condition)):
        table = object_from_row(row, schema, share)
        event_id = make_event_id(table, f"retires {table.retire_date}")
        events.append(FeedEvent(kind="retirement", id=event_id, table=table, at=row.retire_noticed_at))
    return events


def make_event_id(table: SharedTable, what: str) -> str:
    """The id of an event of a shared table: a UUID, which does not show the lake's name of the table."""
    return str(uuid.uuid5(uuid.UUID(table.id), f"{table.table} {what}"))


def newest_ledger_key(session: Session) -> int:
    """The key of the last publication in the ledger, 0 without one; writers of the ledger take turns."""
    return session.scalar(select(func.max(PublicationRow.key))) or 0


def _publication_event(
    grants: Mapping[int, EffectiveGrant],
    share: ShareRow,
    schema: str,
    row: SharedTableRow,
    version: int,
    at: datetime,
    audited: bool,
    rows: int,
    size_bytes: int,
    schema_changed: bool | None,
) -> FeedEvent:
    table = object_from_row(row, schema, share)
    has_counts = audited and row.rule is None and grants[share.key].rules is None
    return FeedEvent(
        kind="publication",
        id=make_event_id(table, str(version)),
        table=table,
        at=at,
        number=version,
        schema_changed=None if schema_changed is None else bool(schema_changed),
        rows=rows if has_counts else None,
        size_bytes=size_bytes if has_counts else None,
    )


def _find_table(session: Session, share: ShareRow, alias: str) -> int:
    schema, _, name = alias.lower().partition(".")
    named = _with_share(select(SharedTableRow.key)).where(
        ShareRow.key == share.key, SchemaRow.name_key == schema, SharedTableRow.name_key == name
    )
    key: int | None = session.scalars(named).one_or_none()
    if key is None:
        raise NotFound("[Share/Schema/Table]", f"{share.name}/{alias.replace('.', '/', 1)}")
    return key


def _select_visible() -> Select[Any]:
    """The shared tables with their visible publications: share, schema, table, and fields of the publication."""
    row, table, followed = PublicationRow, SharedTableRow, FollowedTableRow
    before = aliased(PublicationRow)
    latest = _latest(row_alias := aliased(PublicationRow), row_alias.version)
    start = func.coalesce(table.start_version, 0)
    is_of_history = (
        table.history & (row.version >= start) & (row.version >= func.coalesce(followed.start_version, 0))
    )
    earlier = aliased(PublicationRow)
    number_before = (
        _latest(earlier, earlier.version)
        .where(earlier.version < row.version, earlier.version >= start)
        .scalar_subquery()
    )
    is_same = case(
        (row.schema_id.is_(None) & before.schema_id.is_(None), before.schema_string == row.schema_string),
        else_=before.schema_id == row.schema_id,
    )
    changed = case((before.key.is_(None), None), (is_same, 0), else_=1)
    fields = row.version, row.published_at, row.audited, row.rows, row.size_bytes, changed
    joined = _with_share(select(ShareRow, SchemaRow.name, table, *fields))
    return (
        joined.join(row, row.table == table.lake_table)
        .outerjoin(followed, followed.table_name == table.lake_table)
        .outerjoin(
            before, and_(before.table == row.table, table.history.is_(True), before.version == number_before)
        )
        .where(
            _is_served(row),
            table.publication.is_(None) | (row.version <= table.publication),
            (row.version == latest.scalar_subquery()) | is_of_history,
            table.publication.is_(None) | _is_pin_served(),
        )
    )


def _with_share(columns: Any) -> Select[Any]:
    """A query of columns of shared tables, joined with their schemas and shares."""
    of_schemas = columns.select_from(ShareRow).join(SchemaRow, SchemaRow.share_key == ShareRow.key)
    joined: Select[Any] = of_schemas.join(SharedTableRow, SharedTableRow.schema_key == SchemaRow.key)
    return joined


def _is_served(row: Any) -> ColumnElement[bool]:
    """Whether a publication is one of the lake's table now: audited and kept, or of the table that is followed."""
    followed = FollowedTableRow
    oldest = (
        select(func.coalesce(func.max(ExpirationRow.oldest_version), 0))
        .where(ExpirationRow.table_name == row.table)
        .correlate(row)
        .scalar_subquery()
    )
    is_kept = followed.key.is_(None) & row.audited.is_(True) & (row.version >= oldest)
    is_followed = followed.key.is_not(None) & row.audited.is_(False)
    return or_(is_kept, is_followed & (followed.table_id.is_(None) | (followed.table_id == row.table_id)))


def _latest(row: Any, column: Any) -> Select[Any]:
    """The number that recipients of a shared table read now."""
    return (
        select(func.max(column))
        .where(
            row.table == SharedTableRow.lake_table,
            _is_served(row),
            SharedTableRow.publication.is_(None) | (row.version <= SharedTableRow.publication),
        )
        .correlate(SharedTableRow, FollowedTableRow, PublicationRow)
    )


def _is_pin_served() -> ColumnElement[bool]:
    pinned = aliased(PublicationRow)
    return (
        exists()
        .where(
            pinned.table == SharedTableRow.lake_table,
            pinned.version == SharedTableRow.publication,
            _is_served(pinned),
        )
        .correlate(SharedTableRow, FollowedTableRow)
    )


def _is_before(columns: Sequence[Any], values: Sequence[Any]) -> ColumnElement[bool]:
    """Whether the columns, compared in order, are below the values."""
    cases = []
    for index, (column, value) in enumerate(zip(columns, values, strict=True)):
        equal = [before == known for before, known in zip(columns[:index], values[:index], strict=True)]
        cases.append(and_(*equal, column < value))
    return or_(*cases)


def _order(event: FeedEvent) -> tuple[datetime, int, int]:
    return _order_of(event.position)


def _order_of(position: FeedPosition) -> tuple[datetime, int, int]:
    return position.at, position.table_key, position.number
