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
# The types of CloudEvents.
EVENT_TYPES: Mapping[EventKind, str] = {
    "publication": "lakeshare.table.published",
    "retirement": "lakeshare.table.retiring",
}
# Sorts notices of a table behind its publications of the same time.
NO_NUMBER = -1
# For a share of many tables, the newest publications of the lake are tried first: so many times those of a page.
MANY_TABLES = 100
WINDOWS = (4, 40)


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
    def type(self) -> str:
        """The type of its CloudEvent."""
        return EVENT_TYPES[self.kind]

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
        found = _list_newest(session, grants, condition, after, limit + 1)
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
    visible = _select_visible().where(condition, ShareRow.key.in_(grants))
    order = PublicationRow.published_at, SharedTableRow.key, PublicationRow.version
    if after is not None:
        visible = visible.where(_is_before(order, (after.at, after.table_key, after.number)))
    visible = visible.order_by(*(column.desc() for column in order)).limit(limit)
    pairs = [(row, table) for row, table in session.execute(visible)]
    details = {
        (key, fields[2].key): _publication_event(grants, *fields)
        for key, *fields in session.execute(_select_details(pairs))
    }
    return [details[pair] for pair in pairs]


def _list_newest(
    session: Session,
    grants: Mapping[int, EffectiveGrant],
    condition: ColumnElement[bool],
    after: FeedPosition | None,
    limit: int,
) -> list[FeedEvent]:
    """As `list_publications`. Databases would read and sort all publications of a share of many tables."""
    tables = _with_share(select(func.count())).where(condition)
    if (session.scalar(tables) or 0) > MANY_TABLES:
        row = PublicationRow
        newest = select(row.key, row.published_at).order_by(row.published_at.desc(), row.key.desc())
        if after is not None:
            newest = newest.where(row.published_at <= after.at)
        for size in (limit * pages for pages in WINDOWS):
            window = session.execute(newest.limit(size)).all()
            is_whole = len(window) < size
            # Of the oldest time in the window, some publications may be outside.
            keys = [key for key, at in window if is_whole or at > window[-1].published_at]
            found = list_publications(
                session, grants, condition & row.key.in_(keys), after=after, limit=limit
            )
            if len(found) == limit or is_whole:
                return found
    return list_publications(session, grants, condition, after=after, limit=limit)


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
    """The keys of publications and of the shared tables in which they are visible."""
    row, table = PublicationRow, SharedTableRow
    is_of_history = table.history & (row.version >= func.coalesce(table.start_version, 0))
    return _with_publications(row.key, table.key).where(
        _is_served(row),
        table.publication.is_(None) | (row.version <= table.publication),
        is_of_history | (row.version == _latest().scalar_subquery()),
        table.publication.is_(None) | _is_pin_served(),
    )


def _select_details(pairs: Sequence[tuple[int, int]]) -> Select[Any]:
    """Share, schema, table, and fields of the publication, for keys of publications and shared tables."""
    row, table, before = PublicationRow, SharedTableRow, aliased(PublicationRow)
    # Schemas are long: they are compared in the database, and for these rows only.
    is_same = case(
        (row.schema_id.is_(None) & before.schema_id.is_(None), before.schema_string == row.schema_string),
        else_=before.schema_id == row.schema_id,
    )
    changed = case((before.key.is_(None), None), (is_same, 0), else_=1)
    fields = row.version, row.published_at, row.audited, row.rows, row.size_bytes, changed
    number_before = _latest(row).scalar_subquery()
    is_before = (before.table == row.table) & table.history.is_(True) & (before.version == number_before)
    rows, tables = zip(*pairs, strict=True) if pairs else ((), ())
    return (
        _with_publications(row.key, ShareRow, SchemaRow.name, table, *fields)
        .outerjoin(before, is_before)
        .where(row.key.in_(set(rows)), table.key.in_(set(tables)))
    )


def _with_publications(*columns: Any) -> Select[Any]:
    """A query of columns of shared tables and the publications of their lake tables, visible or not."""
    row, followed = PublicationRow, FollowedTableRow
    joined = _with_share(select(*columns)).join(row, row.table == SharedTableRow.lake_table)
    return joined.outerjoin(followed, followed.table_name == SharedTableRow.lake_table)


def _with_share(columns: Any) -> Select[Any]:
    """A query of columns of shared tables, joined with their schemas and shares."""
    of_schemas = columns.select_from(ShareRow).join(SchemaRow, SchemaRow.share_key == ShareRow.key)
    joined: Select[Any] = of_schemas.join(SharedTableRow, SharedTableRow.schema_key == SchemaRow.key)
    return joined


def _is_served(row: Any) -> ColumnElement[bool]:
    """Whether a publication is one of the lake's table now: audited and kept, or of the table that is followed."""
    followed = FollowedTableRow
    # Of the outer table: databases then read it once for each table, and not for each publication.
    oldest = (
        select(func.coalesce(func.max(ExpirationRow.oldest_version), 0))
        .where(ExpirationRow.table_name == SharedTableRow.lake_table)
        .correlate(SharedTableRow)
        .scalar_subquery()
    )
    is_kept = followed.key.is_(None) & row.audited.is_(True) & (row.version >= oldest)
    newest = aliased(PublicationRow)
    newest_number = (
        select(newest.version)
        .where(newest.table == SharedTableRow.lake_table)
        .order_by(newest.version.desc())
        .limit(1)
        .correlate(SharedTableRow)
        .scalar_subquery()
    )
    # The newest version of a followed table is readable below its start version, too.
    is_followed = (
        followed.key.is_not(None)
        & row.audited.is_(False)
        & (followed.table_id.is_(None) | (followed.table_id == row.table_id))
        & ((row.version >= followed.start_version) | (row.version == newest_number))
    )
    return or_(is_kept, is_followed)


def _latest(before: Any = None) -> Select[Any]:
    """The number that recipients of a shared table read now, or that they read before a publication."""
    row, table = aliased(PublicationRow), SharedTableRow
    numbers = select(row.version).where(
        row.table == table.lake_table,
        _is_served(row),
        table.publication.is_(None) | (row.version <= table.publication),
    )
    if before is not None:
        start = func.coalesce(table.start_version, 0)
        numbers = numbers.where(row.version < before.version, row.version >= start)
    # The first of an index from its end: a maximum would read all publications of the table.
    newest = numbers.order_by(row.version.desc()).limit(1)
    return newest.correlate(SharedTableRow, FollowedTableRow, PublicationRow)


def _is_pin_served() -> ColumnElement[bool]:
    pinned = aliased(PublicationRow)
    is_it = (pinned.table == SharedTableRow.lake_table) & (pinned.version == SharedTableRow.publication)
    return exists().where(is_it, _is_served(pinned)).correlate(SharedTableRow, FollowedTableRow)


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
