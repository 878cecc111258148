"""Pages of long lists for people: shares, tables, recipients and grants by a part of their name, in its order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, distinct, func, or_, select
from sqlalchemy.orm import Session

from lakeshare_server.catalog.models import (
    FollowedTableRow,
    GrantRow,
    GroupGrantRow,
    GroupMemberRow,
    GroupRow,
    PublicationRow,
    RecipientRow,
    SchemaRow,
    SharedTableRow,
    ShareRow,
)
from lakeshare_server.catalog.states import (
    OBJECTS,
    WHOLE_GROUPS,
    WHOLE_RECIPIENTS,
    Grant,
    Group,
    RecipientState,
    Share,
    SharedTable,
    find_share_row,
    grant_from_row,
    group_from_row,
    object_from_row,
    recipient_from_row,
    share_from_row,
)

PAGE = 50
Item = TypeVar("Item")


@dataclass(frozen=True)
class Page(Generic[Item]):
    """Some items in the order of their names; `next` is the name after which the next page begins, None at the end."""

    items: Sequence[Item]
    next: str | None


@dataclass(frozen=True)
class ShareOverview:
    """A share with the number of its tables and of its grants."""

    share: Share
    tables: int
    grants: int


@dataclass(frozen=True)
class TableOverview:
    """A table of the lake: its newest number, and the paths under which it is shared."""

    table: str
    is_followed: bool
    version: int | None
    published_at: datetime | None
    rows: int | None
    size_bytes: int | None
    format: str | None
    paths: Sequence[str]


def find_shares(session: Session, text: str = "", after: str = "") -> Page[ShareOverview]:
    """A page of shares whose name, display name or comment contains the text."""
    matching = _contains(text, ShareRow.name_key, ShareRow.display_name, ShareRow.comment)
    rows, following = _page(session, select(ShareRow).where(*matching), ShareRow.name_key, after)
    keys = [row.key for [row] in rows]
    tables = _count(
        session,
        select(SchemaRow.share_key, func.count())
        .join(SharedTableRow, SharedTableRow.schema_key == SchemaRow.key)
        .where(SchemaRow.share_key.in_(keys))
        .group_by(SchemaRow.share_key),
    )
    grants: dict[int, int] = {}
    for model in (GrantRow, GroupGrantRow):
        counted = select(model.share_key, func.count()).where(model.share_key.in_(keys))
        for key, number in _count(session, counted.group_by(model.share_key)).items():
            grants[key] = grants.get(key, 0) + number
    items = [
        ShareOverview(share_from_row(row), tables.get(row.key, 0), grants.get(row.key, 0)) for [row] in rows
    ]
    return Page(items, following)


def find_recipients(session: Session, text: str = "", after: str = "") -> Page[RecipientState]:
    """A page of recipients whose name, comment or owner contains the text, revoked ones too."""
    matching = _contains(text, RecipientRow.name_key, RecipientRow.comment, RecipientRow.owner)
    rows, following = _page(session, WHOLE_RECIPIENTS.where(*matching), RecipientRow.name_key, after)
    return Page([recipient_from_row(row) for [row] in rows], following)


def find_groups(session: Session, text: str = "", after: str = "") -> Page[Group]:
    """A page of groups whose name or comment contains the text."""
    matching = _contains(text, GroupRow.name_key, GroupRow.comment)
    rows, following = _page(session, WHOLE_GROUPS.where(*matching), GroupRow.name_key, after)
    return Page([group_from_row(row) for [row] in rows], following)


def find_objects(session: Session, share: str, text: str = "", after: str = "") -> Page[SharedTable]:
    """A page of the tables of a share whose path or table contains the text; raises NotFound."""
    alias = SchemaRow.name_key + "." + SharedTableRow.name_key
    own = OBJECTS.where(
        ShareRow.key == find_share_row(session, share).key,
        *_contains(text, alias, SharedTableRow.lake_table),
    )
    rows, following = _page(session, own, alias, after, lambda row: f"{row[1].name_key}.{row[2].name_key}")
    return Page([object_from_row(row, schema.name, parent) for parent, schema, row in rows], following)


def find_grants(session: Session, share: str, text: str = "", after: str = "") -> Page[Grant]:
    """A page of the grants on a share to recipients whose name contains the text; raises NotFound."""
    parent = find_share_row(session, share)
    own = (
        select(GrantRow, RecipientRow)
        .join(RecipientRow, RecipientRow.key == GrantRow.recipient_key)
        .where(GrantRow.share_key == parent.key, *_contains(text, RecipientRow.name_key))
    )
    rows, following = _page(session, own, RecipientRow.name_key, after, lambda row: str(row[1].name_key))
    return Page([grant_from_row(row, parent.name, reader.name) for row, reader in rows], following)


def list_group_grants(session: Session, share: str) -> list[Grant]:
    """The grants on a share to groups, in the order of the groups' names; raises NotFound."""
    parent = find_share_row(session, share)
    own = select(GroupGrantRow, GroupRow.name).join(GroupRow, GroupRow.key == GroupGrantRow.group_key)
    rows = session.execute(own.where(GroupGrantRow.share_key == parent.key).order_by(GroupRow.name_key))
    return [grant_from_row(row, parent.name, reader) for row, reader in rows]


def count_readers(session: Session, share: str) -> int:
    """The recipients with a grant on a share, of their own or of a group; ended and future ones too."""
    key = find_share_row(session, share).key
    own = select(GrantRow.recipient_key).where(GrantRow.share_key == key)
    in_groups = (
        select(GroupMemberRow.recipient_key)
        .join(GroupGrantRow, GroupGrantRow.group_key == GroupMemberRow.group_key)
        .where(GroupGrantRow.share_key == key)
    )
    return session.scalar(select(func.count()).select_from(own.union(in_groups).subquery())) or 0


def list_granted_tables(session: Session, grants: Sequence[Grant]) -> list[SharedTable]:
    """The first tables of the shares of some grants."""
    shares = {grant.share.lower() for grant in grants}
    rows = OBJECTS.where(ShareRow.name_key.in_(shares)).order_by(ShareRow.name_key, SharedTableRow.key)
    return [
        object_from_row(row, schema.name, parent) for parent, schema, row in session.execute(rows.limit(PAGE))
    ]


def list_paths(session: Session, table: str) -> list[str]:
    """The paths under which a table of the lake is shared."""
    return _shared_paths(session, [table]).get(table, [])


def find_tables(session: Session, text: str = "", after: str = "") -> Page[TableOverview]:
    """A page of the tables of the lake, published and followed ones, whose name contains the text."""
    newest = (
        select(PublicationRow.table.label("table"), func.max(PublicationRow.version).label("version"))
        .where(*_contains(text, PublicationRow.table), PublicationRow.table > after)
        .group_by(PublicationRow.table)
        .order_by(PublicationRow.table)
        .limit(PAGE + 1)
        .subquery()
    )
    is_newest = (PublicationRow.table == newest.c.table) & (PublicationRow.version == newest.c.version)
    names = ("table", "version", "published_at", "rows", "size_bytes", "format")
    columns = [getattr(PublicationRow, name).label(name) for name in names]
    published = {row.table: row._mapping for row in session.execute(select(*columns).join(newest, is_newest))}
    following = (
        select(FollowedTableRow.table_name)
        .where(*_contains(text, FollowedTableRow.table_name), FollowedTableRow.table_name > after)
        .order_by(FollowedTableRow.table_name)
        .limit(PAGE + 1)
    )
    followed = set(session.scalars(following))
    found = sorted({*published, *followed})
    shown = found[:PAGE]
    paths = _shared_paths(session, shown)
    empty = dict.fromkeys(names)
    items = [
        TableOverview(
            **{**empty, **published.get(name, {}), "table": name},
            is_followed=name in followed,
            paths=paths.get(name, []),
        )
        for name in shown
    ]
    return Page(items, shown[-1] if len(found) > PAGE else None)


@dataclass(frozen=True)
class SetOverview:
    """A set with publications: its tables, and its newest publication."""

    name: str
    tables: int
    published_at: datetime


@dataclass(frozen=True)
class SetRun:
    """A publication of a set: the numbers of its tables, and what its audit found.

    `checks` is the number of checks, None if no audit is recorded; `failed` are the names of those that failed.
    """

    run_id: str
    partition: str
    published_at: datetime
    versions: Mapping[str, int]
    checks: int | None
    failed: Sequence[str]


def find_sets(session: Session, text: str = "", after: str = "") -> Page[SetOverview]:
    """A page of the sets with publications whose name contains the text."""
    name, newest = PublicationRow.set_name, func.max(PublicationRow.key)
    rows = session.execute(
        select(name, newest, func.count(distinct(PublicationRow.table)))
        .where(*_contains(text, name), name > after, name != "")
        .group_by(name)
        .order_by(name)
        .limit(PAGE + 1)
    ).all()
    shown = rows[:PAGE]
    times = select(PublicationRow.key, PublicationRow.published_at).where(
        PublicationRow.key.in_([key for _, key, _ in shown])
    )
    published = {row[0]: row[1] for row in session.execute(times)}
    items = [SetOverview(name, tables, published[key]) for name, key, tables in shown]
    return Page(items, shown[-1][0] if len(rows) > PAGE else None)


def list_set_runs(session: Session, set_name: str, limit: int) -> list[SetRun]:
    """The last publications of a set by its runs, the newest first; rollbacks and maintenance are left out."""
    newest = func.max(PublicationRow.key)
    is_of_run = PublicationRow.rollback_of.is_(None) & PublicationRow.maintenance_of.is_(None)
    run_ids = list(
        session.scalars(
            select(PublicationRow.run_id)
            .where(PublicationRow.set_name == set_name, is_of_run)
            .group_by(PublicationRow.run_id)
            .order_by(newest.desc())
            .limit(limit)
        )
    )
    names = ("run_id", "partition", "published_at", "table", "version", "verdicts")
    columns = [getattr(PublicationRow, name).label(name) for name in names]
    rows = session.execute(
        select(*columns)
        .where(PublicationRow.run_id.in_(run_ids), PublicationRow.set_name == set_name)
        .order_by(PublicationRow.key)
    )
    by_run: dict[str, list[Any]] = {run_id: [] for run_id in run_ids}
    for row in rows:
        by_run[row.run_id].append(row)
    return [_make_set_run(of_run) for of_run in by_run.values()]


def _make_set_run(rows: Sequence[Any]) -> SetRun:
    newest = rows[-1]
    checks = newest.verdicts.get("checks")
    return SetRun(
        newest.run_id,
        newest.partition,
        newest.published_at,
        {row.table: row.version for row in rows},
        checks if isinstance(checks, int) else None,
        tuple(map(str, newest.verdicts.get("failed_checks", ()))),
    )


def _shared_paths(session: Session, tables: Sequence[str]) -> dict[str, list[str]]:
    paths: dict[str, list[str]] = {}
    rows = OBJECTS.where(SharedTableRow.lake_table.in_(tables)).order_by(SharedTableRow.key)
    for parent, schema, row in session.execute(rows):
        paths.setdefault(row.lake_table, []).append(f"{parent.name}.{schema.name}.{row.name}")
    return paths


def _contains(text: str, *columns: Any) -> list[ColumnElement[bool]]:
    """The condition that one of the columns contains a text in any case; none for an empty text."""
    if not text:
        return []
    return [or_(*(func.lower(column).contains(text.lower(), autoescape=True) for column in columns))]


def _page(
    session: Session,
    rows: Any,  # a `Select`
    name: Any,
    after: str,
    name_of: Any = lambda row: row[0].name_key,
) -> tuple[list[Any], str | None]:
    """The rows of a page in the order of a column, and the last value of the column if there are more."""
    found = list(session.execute(rows.where(name > after).order_by(name).limit(PAGE + 1)))
    return found[:PAGE], name_of(found[PAGE - 1]) if len(found) > PAGE else None


def _count(session: Session, statement: Any) -> dict[int, int]:
    return {row[0]: row[1] for row in session.execute(statement)}
