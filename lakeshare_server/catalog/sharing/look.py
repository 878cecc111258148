"""Reading what administrators edit: whole lists in a handful of queries, single objects by name."""

from collections import defaultdict
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from lakeshare_server.catalog.models import (
    ActivationRow,
    FederationPolicyRow,
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
    TokenRow,
    TokenUseRow,
)
from lakeshare_server.catalog.sharing.states import (
    FederationPolicy,
    Grant,
    Group,
    LinkState,
    RecipientState,
    Share,
    SharedObject,
    TokenState,
)
from lakeshare_server.catalog.sharing.told import (
    told_grant,
    told_group,
    told_link,
    told_object,
    told_policy,
    told_recipient,
    told_share,
    told_token,
)
from lakeshare_server.errors import NotFound


def shares(session: Session, after: int = 0, limit: int | None = None) -> list[Share]:
    """The shares in the order they were made: all, or so many with a key behind `after`."""
    wanted = select(ShareRow).where(ShareRow.key > after).order_by(ShareRow.key).limit(limit)
    return [told_share(row) for row in session.scalars(wanted)]


def share(session: Session, name: str) -> Share:
    """A share by its name.

    Raises:
        NotFound: there is none.
    """
    return told_share(share_row(session, name))


def objects(session: Session, share: str | None = None) -> list[SharedObject]:
    """The tables and views of a share, or of all shares, in the order they were added.

    Raises:
        NotFound: there is no such share.
    """
    rows = (
        select(SharedTableRow, SchemaRow.name, ShareRow.name)
        .join(SchemaRow, SchemaRow.key == SharedTableRow.schema_key)
        .join(ShareRow, ShareRow.key == SchemaRow.share_key)
        .order_by(SharedTableRow.key)
    )
    if share is not None:
        rows = rows.where(ShareRow.key == share_row(session, share).key)
    return [told_object(row, schema, parent) for row, schema, parent in session.execute(rows)]


def newest_publication(session: Session, table: str) -> int | None:
    """The number of the newest publication of a table of the lake, None when it has none."""
    return session.scalar(select(func.max(PublicationRow.version)).where(PublicationRow.table_name == table))


def is_followed(session: Session, table: str) -> bool:
    """Whether versions of this table of the lake are found in storage."""
    known = select(FollowedTableRow.key).where(FollowedTableRow.table_name == table)
    return session.scalar(known) is not None


def shares_with_rules(session: Session) -> set[str]:
    """The shares, in lower case, with a grant that has a rule: tables that come to them are held against it."""
    found: set[str] = set()
    for grants in (GrantRow, GroupGrantRow):
        named = select(ShareRow.name_key).join(grants, grants.share_key == ShareRow.key)
        found.update(session.scalars(named.where(grants.rule.is_not(None)).distinct()))
    return found


def groups(session: Session) -> list[Group]:
    """All groups with their members, in the order they were made."""
    members: defaultdict[int, list[str]] = defaultdict(list)
    pairs = select(GroupMemberRow.group_key, RecipientRow.name).join(
        RecipientRow, RecipientRow.key == GroupMemberRow.recipient_key
    )
    for key, name in session.execute(pairs.order_by(RecipientRow.key)):
        members[key].append(name)
    rows = session.scalars(select(GroupRow).order_by(GroupRow.key))
    return [told_group(row, members[row.key]) for row in rows]


def group(session: Session, name: str) -> Group:
    """A group by its name.

    Raises:
        NotFound: there is none.
    """
    row = group_row(session, name)
    members = select(RecipientRow.name).join(GroupMemberRow, GroupMemberRow.recipient_key == RecipientRow.key)
    in_group = members.where(GroupMemberRow.group_key == row.key).order_by(RecipientRow.key)
    return told_group(row, list(session.scalars(in_group)))


def recipients(session: Session, after: int = 0, limit: int | None = None) -> list[RecipientState]:
    """The recipients in the order they were made, revoked ones too: all, or so many with a key behind `after`."""
    wanted = select(RecipientRow).where(RecipientRow.key > after).order_by(RecipientRow.key)
    return _told_recipients(session, wanted.limit(limit), is_whole=limit is None)


def recipient(session: Session, name: str) -> RecipientState:
    """A recipient by its name.

    Raises:
        NotFound: there is none.
    """
    row = recipient_row(session, name)
    return _told_recipients(session, select(RecipientRow).where(RecipientRow.key == row.key))[0]


def grants(session: Session) -> list[Grant]:
    """All grants: those of recipients, then those of groups, each in the order they were made."""
    return _grants_of_recipients(session, None, None) + _grants_of_groups(session, None, None)


def grants_on(session: Session, share: str) -> list[Grant]:
    """Who may read a share, ended grants and those still to begin too.

    Raises:
        NotFound: there is no such share.
    """
    key = share_row(session, share).key
    return _grants_of_recipients(session, key, None) + _grants_of_groups(session, key, None)


def grants_to(session: Session, recipient: str) -> list[Grant]:
    """What a recipient may read, by itself or as a member of a group, ended and to begin too.

    Raises:
        NotFound: there is no such recipient.
    """
    key = recipient_row(session, recipient).key
    return _grants_of_recipients(session, None, key) + _grants_of_groups(session, None, key)


def share_row(session: Session, name: str) -> ShareRow:
    """The row of a share.

    Raises:
        NotFound: there is none.
    """
    row: ShareRow = _named(session, ShareRow, name, "Share")
    return row


def recipient_row(session: Session, name: str) -> RecipientRow:
    """The row of a recipient.

    Raises:
        NotFound: there is none.
    """
    row: RecipientRow = _named(session, RecipientRow, name, "Recipient")
    return row


def group_row(session: Session, name: str) -> GroupRow:
    """The row of a group.

    Raises:
        NotFound: there is none.
    """
    row: GroupRow = _named(session, GroupRow, name, "Group")
    return row


def object_row(
    session: Session, share: str, schema: str, name: str
) -> tuple[ShareRow, SchemaRow, SharedTableRow]:
    """The rows of a shared table, with its share and its schema.

    Raises:
        NotFound: there is no such shared table.
    """
    found = session.execute(
        select(ShareRow, SchemaRow, SharedTableRow)
        .join(SchemaRow, SchemaRow.share_key == ShareRow.key)
        .join(SharedTableRow, SharedTableRow.schema_key == SchemaRow.key)
        .where(
            ShareRow.name_key == share.lower(),
            SchemaRow.name_key == schema.lower(),
            SharedTableRow.name_key == name.lower(),
        )
    ).one_or_none()
    if found is None:
        raise NotFound("[Share/Schema/Table]", f"{share}/{schema}/{name}")
    grandparent, parent, row = found
    return grandparent, parent, row


def _named(session: Session, model: Any, name: str, kind: str) -> Any:  # of any model with a name_key
    row = session.scalars(select(model).where(model.name_key == name.lower())).one_or_none()
    if row is None:
        raise NotFound(kind, name)
    return row


def _told_recipients(
    session: Session, wanted: Select[RecipientRow], *, is_whole: bool = False
) -> list[RecipientState]:
    rows = list(session.scalars(wanted))
    # Of some recipients their own, of all of them everything: never a query for each.
    keys = None if is_whole else [row.key for row in rows]

    def of_them(model: Any) -> Any:  # of any model with a recipient_key
        every = select(model).order_by(model.key)
        return every if keys is None else every.where(model.recipient_key.in_(keys))

    tokens: defaultdict[int, list[TokenState]] = defaultdict(list)
    uses = (
        of_them(TokenRow).add_columns(TokenUseRow).outerjoin(TokenUseRow, TokenUseRow.token_id == TokenRow.id)
    )
    for token, use in session.execute(uses):
        tokens[token.recipient_key].append(told_token(token, use))
    names = {row.key: row.name for row in rows}
    links: defaultdict[int, list[LinkState]] = defaultdict(list)
    for link in session.scalars(of_them(ActivationRow)):
        links[link.recipient_key].append(told_link(link, names[link.recipient_key]))
    policies: defaultdict[int, list[FederationPolicy]] = defaultdict(list)
    for policy in session.scalars(of_them(FederationPolicyRow)):
        policies[policy.recipient_key].append(told_policy(policy))
    of_groups: defaultdict[int, list[str]] = defaultdict(list)
    pairs = select(GroupMemberRow.recipient_key, GroupRow.name).join(
        GroupRow, GroupRow.key == GroupMemberRow.group_key
    )
    if keys is not None:
        pairs = pairs.where(GroupMemberRow.recipient_key.in_(keys))
    for key, name in session.execute(pairs.order_by(GroupRow.key)):
        of_groups[key].append(name)
    return [
        told_recipient(row, tokens[row.key], links[row.key], policies[row.key], of_groups[row.key])
        for row in rows
    ]


def _grants_of_recipients(session: Session, share_key: int | None, recipient_key: int | None) -> list[Grant]:
    rows = (
        select(GrantRow, ShareRow.name, RecipientRow.name)
        .join(ShareRow, ShareRow.key == GrantRow.share_key)
        .join(RecipientRow, RecipientRow.key == GrantRow.recipient_key)
        .order_by(GrantRow.key)
    )
    if share_key is not None:
        rows = rows.where(GrantRow.share_key == share_key)
    if recipient_key is not None:
        rows = rows.where(GrantRow.recipient_key == recipient_key)
    return [told_grant(row, share, recipient=name) for row, share, name in session.execute(rows)]


def _grants_of_groups(session: Session, share_key: int | None, recipient_key: int | None) -> list[Grant]:
    rows = (
        select(GroupGrantRow, ShareRow.name, GroupRow.name)
        .join(ShareRow, ShareRow.key == GroupGrantRow.share_key)
        .join(GroupRow, GroupRow.key == GroupGrantRow.group_key)
        .order_by(GroupGrantRow.key)
    )
    if share_key is not None:
        rows = rows.where(GroupGrantRow.share_key == share_key)
    if recipient_key is not None:
        of_recipient = select(GroupMemberRow.group_key).where(GroupMemberRow.recipient_key == recipient_key)
        rows = rows.where(GroupGrantRow.group_key.in_(of_recipient))
    return [told_grant(row, share, group=name) for row, share, name in session.execute(rows)]
