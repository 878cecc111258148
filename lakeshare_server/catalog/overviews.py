"""Lists for people, a page at a time: publications, shares, tables, recipients, grants; and what is at work now."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import CTE, ColumnElement, ScalarSelect, Subquery, func, or_, select
from sqlalchemy.orm import Session, aliased

from lakeshare_server.catalog.ledger import FollowedTable, followed_from_row
from lakeshare_server.catalog.models import (
    MAX_LONG,
    AsyncQueryRow,
    AuditJournalRow,
    ContractRow,
    FederationPolicyRow,
    FollowedTableRow,
    GrantRow,
    GroupGrantRow,
    GroupMemberRow,
    GroupRow,
    PublicationRow,
    RecipientRow,
    SchemaRow,
    SetLockRow,
    SharedTableRow,
    ShareRow,
    TokenRow,
)
from lakeshare_server.catalog.states import (
    OBJECTS,
    WHOLE_RECIPIENTS,
    Grant,
    RecipientState,
    Share,
    SharedTable,
    find_share_row,
    grant_from_row,
    object_from_row,
    recipient_from_row,
    share_from_row,
)
from lakeshare_server.errors import NotFound

PAGE, SHOWN_MEMBERS = 50, 20
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
class GroupOverview:
    """A group with the number of its members, and the names of the first of them."""

    name: str
    comment: str | None
    revision: int
    size: int
    members: Sequence[str]


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


@dataclass(frozen=True)
class PublicationOverview:
    """A publication without its schema; `contract` is the version of its contract, None if that is not recorded."""

    key: int
    table: str
    version: int
    set_name: str
    format: str
    rows: int
    files: int
    size_bytes: int
    verdicts: Mapping[str, Any]
    contract_digest: str
    run_id: str
    partition: str
    audited: bool
    rollback_of: int | None
    maintenance_of: int | None
    published_at: datetime
    contract: str | None


PUBLICATION_COLUMNS = [
    getattr(PublicationRow, name).label(name)
    for name in PublicationOverview.__dataclass_fields__
    if name != "contract"
]


def find_publications(
    session: Session, set_name: str = "", table: str = "", before: int | None = None
) -> Page[PublicationOverview]:
    """A page of publications, newest first, of a set and of a table if given.

    `next` is the `before` of the next page: a number of the table, or a key of the ledger without one.
    """
    order = PublicationRow.version if table else PublicationRow.key
    rows = select(*PUBLICATION_COLUMNS).order_by(order.desc()).limit(PAGE + 1)
    if set_name:
        rows = rows.where(PublicationRow.set_name == set_name)
    if table:
        rows = rows.where(PublicationRow.table == table)
    if before is not None:
        rows = rows.where(order < before)
    found = _publications(session, rows)
    shown = found[:PAGE]
    last = (shown[-1].version if table else shown[-1].key) if len(found) > PAGE else None
    return Page(shown, None if last is None else str(last))


def get_publication(session: Session, table: str, version: int) -> PublicationOverview:
    """The publication of a table with a number; raises NotFound."""
    rows = select(*PUBLICATION_COLUMNS).where(
        PublicationRow.table == table, PublicationRow.version == min(version, MAX_LONG)
    )
    found = _publications(session, rows)
    if not found:
        raise NotFound("Publication", f"{version} of {table}")
    return found[0]


def _publications(session: Session, statement: Any) -> list[PublicationOverview]:
    rows = [row._mapping for row in session.execute(statement)]
    digests = {row["contract_digest"] for row in rows}
    contracts = select(ContractRow.digest, ContractRow.version).where(ContractRow.digest.in_(digests))
    versions = {row.digest: row.version for row in session.execute(contracts)}
    return [PublicationOverview(**row, contract=versions.get(row["contract_digest"])) for row in rows]


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


@dataclass(frozen=True)
class RecipientKey:
    """A recipient; `name_key` is its place in lists."""

    name_key: str
    name: str


def list_active_recipients(session: Session, created_before: datetime) -> list[RecipientKey]:
    """The recipients from before a time that are activated or rotating, in the order of their names."""
    now, row = datetime.now(UTC), RecipientRow

    def is_open(ends_at: Any) -> ColumnElement[bool]:
        return or_(ends_at.is_(None), ends_at > now)

    # Lists instead of a look-up for each recipient: tokens have no index of their recipients.
    valid = select(TokenRow.recipient_key).where(TokenRow.revoked_at.is_(None), is_open(TokenRow.expires_at))
    has_access = row.key.in_(valid) | row.key.in_(select(FederationPolicyRow.recipient_key))
    rows = select(row.name_key, row.name).where(
        row.created_at < created_before, row.revoked_at.is_(None), is_open(row.expires_at), has_access
    )
    return [RecipientKey(*found) for found in session.execute(rows.order_by(row.name_key))]


def list_recipient_keys(session: Session, names: Collection[str]) -> list[RecipientKey]:
    """The recipients with these names, in their order."""
    rows = select(RecipientRow.name_key, RecipientRow.name).where(RecipientRow.name.in_(names))
    return [RecipientKey(*found) for found in session.execute(rows.order_by(RecipientRow.name_key))]


def list_recipients_named(session: Session, names: Collection[str]) -> list[RecipientState]:
    """The recipients with these names, in their order."""
    rows = WHOLE_RECIPIENTS.where(RecipientRow.name.in_(names)).order_by(RecipientRow.name_key)
    return [recipient_from_row(row) for [row] in session.execute(rows)]


def find_groups(session: Session, text: str = "", after: str = "") -> Page[GroupOverview]:
    """A page of groups whose name or comment contains the text."""
    matching = _contains(text, GroupRow.name_key, GroupRow.comment)
    rows, following = _page(session, select(GroupRow).where(*matching), GroupRow.name_key, after)
    counted = select(GroupMemberRow.group_key, func.count()).where(
        GroupMemberRow.group_key.in_([row.key for [row] in rows])
    )
    members = _count(session, counted.group_by(GroupMemberRow.group_key))
    items = [
        GroupOverview(
            row.name, row.comment, row.revision, members.get(row.key, 0), _list_members(session, row)
        )
        for [row] in rows
    ]
    return Page(items, following)


def _list_members(session: Session, group: GroupRow) -> list[str]:
    names = (
        select(RecipientRow.name)
        .join(GroupMemberRow, GroupMemberRow.recipient_key == RecipientRow.key)
        .where(GroupMemberRow.group_key == group.key)
    )
    return list(session.scalars(names.order_by(GroupMemberRow.recipient_key).limit(SHOWN_MEMBERS)))


def find_objects(session: Session, share: str, text: str = "", after: str = "") -> Page[SharedTable]:
    """A page of the tables of a share whose path or table contains the text; raises NotFound."""
    alias = SchemaRow.name_key + "." + SharedTableRow.name_key
    own = OBJECTS.where(
        ShareRow.key == find_share_row(session, share).key, *_contains(text, alias, SharedTableRow.lake_table)
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
    pairs = _granted_pairs([find_share_row(session, share).key])
    return session.scalar(select(func.count()).select_from(pairs.subquery())) or 0


@dataclass(frozen=True)
class Readership:
    """The places where a table is shared, the recipients of each share by its name, and the recipients of all.

    `more` is whether the table is shared at more places than are listed.
    """

    entries: Sequence[SharedTable]
    readers: Mapping[str, int]
    recipients: Page[str]
    more: bool


def find_readership(session: Session, table: str, after: str = "") -> Readership:
    """Where a table of the lake is shared and with whom; ended and future grants too."""
    places = OBJECTS.where(SharedTableRow.lake_table == table).order_by(SharedTableRow.key)
    found = session.execute(places.limit(PAGE + 1)).all()
    entries = [object_from_row(row, schema.name, parent) for parent, schema, row in found[:PAGE]]
    shares = (
        select(SchemaRow.share_key)
        .join(SharedTableRow, SharedTableRow.schema_key == SchemaRow.key)
        .where(SharedTableRow.lake_table == table)
    )
    pairs = _granted_pairs(shares).subquery()
    counted = _count(session, select(pairs.c.share_key, func.count()).group_by(pairs.c.share_key))
    names = {parent.key: parent.name for parent, _, _ in found}
    own = select(RecipientRow.name_key, RecipientRow.name).where(
        RecipientRow.key.in_(select(pairs.c.recipient_key))
    )
    rows, following = _page(session, own, RecipientRow.name_key, after, lambda row: str(row[0]))
    readers = {names[key]: number for key, number in counted.items() if key in names}
    return Readership(entries, readers, Page([row[1] for row in rows], following), len(found) > PAGE)


def _granted_pairs(shares: Any) -> Any:
    """The shares of a selection of keys with the recipients that they are granted to, each pair once."""
    own = select(GrantRow.share_key, GrantRow.recipient_key).where(GrantRow.share_key.in_(shares))
    in_groups = (
        select(GroupGrantRow.share_key, GroupMemberRow.recipient_key)
        .join(GroupMemberRow, GroupMemberRow.group_key == GroupGrantRow.group_key)
        .where(GroupGrantRow.share_key.in_(shares))
    )
    return own.union(in_groups)


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
    """A set with publications: the number of tables of its last run, and its newest publication."""

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


def set_names(after: str = "") -> CTE:
    """The names of the sets with publications, and null: each is looked up in an index after the one before."""
    column = PublicationRow.set_name
    names = select(func.min(column).label("name")).where(column > after).cte(recursive=True)
    following = select(func.min(column)).where(column > names.c.name).scalar_subquery()
    return names.union_all(select(following).where(names.c.name.is_not(None)))


def last_run(names: CTE | Subquery) -> ScalarSelect[str]:
    """The id of the last run that published the set of a row of `names`: rollbacks and maintenance are no runs."""
    row = aliased(PublicationRow)
    is_of_run = row.rollback_of.is_(None) & row.maintenance_of.is_(None)
    runs = select(row.run_id).where(row.set_name == names.c.name, is_of_run)
    return runs.order_by(row.key.desc()).limit(1).correlate(names).scalar_subquery()


def find_sets(session: Session, text: str = "", after: str = "") -> Page[SetOverview]:
    """A page of the sets with publications whose name contains the text."""
    row, names = PublicationRow, set_names(after)
    found = names.c.name.is_not(None), *_contains(text, names.c.name)
    page = select(names.c.name).where(*found).order_by(names.c.name).limit(PAGE + 1).subquery()
    newest = select(row.published_at).where(row.set_name == page.c.name).order_by(row.key.desc()).limit(1)
    # A run has few tables, a set many publications: the filter keeps the index of sets from being used.
    tables = select(func.count().filter(row.set_name == page.c.name)).where(row.run_id == last_run(page))
    columns = page.c.name, tables.scalar_subquery(), newest.scalar_subquery()
    rows = session.execute(select(*columns).order_by(page.c.name)).all()
    shown = rows[:PAGE]
    return Page([SetOverview(*each) for each in shown], shown[-1][0] if len(rows) > PAGE else None)


def list_set_runs(session: Session, set_name: str, limit: int) -> list[SetRun]:
    """The last publications of a set by its runs, the newest first; rollbacks and maintenance are left out."""
    row = PublicationRow
    is_of_run = (row.set_name == set_name) & row.rollback_of.is_(None) & row.maintenance_of.is_(None)
    last = select(row.run_id).where(is_of_run).group_by(row.run_id).order_by(func.max(row.key).desc())
    run_ids = list(session.scalars(last.limit(limit)))
    columns = row.run_id, row.partition, row.published_at, row.table, row.version, row.verdicts
    is_of_runs = row.run_id.in_(run_ids) & (row.set_name == set_name)
    rows = session.execute(select(*columns).where(is_of_runs).order_by(row.key))
    by_run: dict[str, list[Any]] = {run_id: [] for run_id in run_ids}
    for found in rows:
        by_run[found.run_id].append(found)
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


QUERY_STATES = ("pending", "running", "done", "failed")


@dataclass(frozen=True)
class HeldLock:
    """A set that a process is publishing."""

    set_name: str
    owner: str
    host: str
    pid: int
    expires_at: datetime


@dataclass(frozen=True)
class Operations:
    """`processes` are servers that have a journal of audit events; `queries` counts async queries by state."""

    processes: int
    locks: Sequence[HeldLock]
    queries: Mapping[str, int]
    oldest_pending: datetime | None


@dataclass(frozen=True)
class FollowedOverview:
    """A followed table; `version` is its newest one in the ledger, None for Delta tables, which have none there."""

    table: FollowedTable
    version: int | None
    published_at: datetime | None


def read_operations(session: Session) -> Operations:
    """What is at work now."""
    now = datetime.now(UTC)
    held = select(SetLockRow).where(SetLockRow.owner.is_not(None), SetLockRow.expires_at > now)
    locks = [
        HeldLock(
            row.set_name, row.owner or "", (row.host or "").partition("/")[0], row.pid or 0, row.expires_at
        )
        for row in session.scalars(held.order_by(SetLockRow.set_name).limit(PAGE))
        if row.expires_at is not None
    ]
    kept = AsyncQueryRow.expires_at > now
    counted = select(AsyncQueryRow.state, func.count()).where(kept).group_by(AsyncQueryRow.state)
    counts = {row[0]: row[1] for row in session.execute(counted)}
    pending = select(func.min(AsyncQueryRow.created_at)).where(kept, AsyncQueryRow.state == "pending")
    return Operations(
        session.scalar(select(func.count()).select_from(AuditJournalRow)) or 0,
        locks,
        {state: counts.pop(state, 0) for state in QUERY_STATES} | counts,
        session.scalar(pending),
    )


def find_followed(session: Session, after: str = "") -> Page[FollowedOverview]:
    """A page of the followed tables by name, with their newest numbers."""
    table, row = FollowedTableRow.table_name, PublicationRow
    newest = select(func.max(row.version)).where(row.table == table).correlate(FollowedTableRow)
    is_newest = (row.table == table) & (row.version == newest.scalar_subquery())
    rows = session.execute(
        select(FollowedTableRow, row.version, row.published_at)
        .outerjoin(row, is_newest)
        .where(table > after)
        .order_by(table)
        .limit(PAGE + 1)
    ).all()
    shown = rows[:PAGE]
    items = [FollowedOverview(followed_from_row(found), version, at) for found, version, at in shown]
    return Page(items, shown[-1][0].table_name if len(rows) > PAGE else None)
