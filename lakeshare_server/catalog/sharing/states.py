"""Reading what administrators edit: whole lists in a handful of queries, single objects by name."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Literal, cast

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
from lakeshare_server.errors import NotFound

Kind = Literal["TABLE", "VIEW"]
Authentication = Literal["TOKEN", "OAUTH_CLIENT_CREDENTIALS", "OIDC_FEDERATION"]
LifeCycle = Literal["invited", "activated", "rotating", "expired", "revoked"]


class JsonState:
    """Something that can be told as JSON."""

    def as_json(self) -> dict[str, Any]:
        """Its fields, those without a value left out; times in ISO 8601."""
        told = {one.name: _json(getattr(self, one.name)) for one in fields(self)}  # type: ignore[arg-type]  # of dataclasses
        return {name: value for name, value in told.items() if value not in (None, [], {})}


def _json(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, JsonState):
        return value.as_json()
    if isinstance(value, tuple):
        return [_json(one) for one in value]
    return dict(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True, kw_only=True)
class Share(JsonState):
    """A share; its revision counts the edits of everything in it."""

    key: int
    id: str
    name: str
    comment: str | None
    display_name: str | None
    properties: Mapping[str, str]
    owner: str | None
    created_at: datetime
    created_by: str | None
    updated_at: datetime | None
    updated_by: str | None
    revision: int
    declared: bool
    applied: bool


@dataclass(frozen=True, kw_only=True)
class SharedObject(JsonState):
    """A table or view as a share names it; the fields behind `directory_access` are read, never given."""

    schema: str
    name: str
    table: str
    kind: Kind = "TABLE"
    comment: str | None = None
    history: bool = True
    start_version: int | None = None
    rule: str | None = None
    publication: int | None = None
    directory_access: bool = False
    share: str = ""
    id: str = ""
    added_at: datetime | None = None
    added_by: str | None = None
    declared: bool = False
    applied: bool = False

    @property
    def path(self) -> str:
        """`share.schema.table`, as recipients write it."""
        return f"{self.share}.{self.schema}.{self.name}"


@dataclass(frozen=True, kw_only=True)
class Grant(JsonState):
    """A recipient, or the members of a group, may read a share."""

    share: str
    recipient: str | None = None
    group: str | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    rule: str | None = None
    created_at: datetime
    created_by: str | None = None
    applied: bool = False


@dataclass(frozen=True, kw_only=True)
class TokenState(JsonState):
    """A bearer token or client secret, without the secret."""

    id: str
    kind: str
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    superseded_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = None
    last_used_from: str | None = None

    def is_valid(self, now: datetime) -> bool:
        """Whether it opens anything at that moment."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


@dataclass(frozen=True, kw_only=True)
class LinkState(JsonState):
    """An activation link, without its code."""

    id: str
    recipient: str
    created_at: datetime
    created_by: str | None
    expires_at: datetime
    token_expires_at: datetime | None
    used_at: datetime | None
    used_from: str | None
    revoked_at: datetime | None

    def is_open(self, now: datetime) -> bool:
        """Whether it can be redeemed at that moment."""
        return self.used_at is None and self.revoked_at is None and self.expires_at > now


@dataclass(frozen=True, kw_only=True)
class FederationPolicy(JsonState):
    """Whose tokens of an issuer are a recipient's."""

    name: str
    issuer: str
    subject_claim: str
    subject: str
    audiences: tuple[str, ...]
    comment: str | None = None
    id: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class RecipientState(JsonState):
    """A recipient with everything by which it gets in."""

    key: int
    id: str
    name: str
    state: LifeCycle
    comment: str | None
    owner: str | None
    properties: Mapping[str, str]
    authentication: Authentication
    ip_allow: tuple[str, ...]
    expires_at: datetime | None
    activated_at: datetime | None
    agreement: str | None
    agreement_accepted_at: datetime | None
    agreement_accepted_from: str | None
    created_at: datetime
    created_by: str | None
    updated_at: datetime | None
    updated_by: str | None
    revoked_at: datetime | None
    revision: int
    applied: bool
    tokens: tuple[TokenState, ...] = ()
    links: tuple[LinkState, ...] = ()
    policies: tuple[FederationPolicy, ...] = ()
    groups: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Group(JsonState):
    """Recipients that are granted shares together."""

    key: int
    id: str
    name: str
    comment: str | None
    members: tuple[str, ...]
    created_at: datetime
    created_by: str | None
    updated_at: datetime | None
    updated_by: str | None
    revision: int
    applied: bool


@dataclass(frozen=True)
class IssuedSecret:
    """A secret that is shown once, beside what is kept of it."""

    state: TokenState
    secret: str = field(repr=False)


def share_from_row(row: ShareRow) -> Share:
    """A share's row as administrators see it."""
    return Share(
        key=row.key,
        id=row.id,
        name=row.name,
        comment=row.comment,
        display_name=row.display_name,
        properties=row.properties or {},
        owner=row.owner,
        created_at=row.created_at,
        created_by=row.created_by,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
        revision=row.revision,
        declared=row.declared,
        applied=row.applied,
    )


def object_from_row(row: SharedTableRow, schema: str, share: str) -> SharedObject:
    """A shared table's row as administrators see it."""
    return SharedObject(
        schema=schema,
        name=row.name,
        table=row.lake_table,
        kind=cast(Kind, row.kind),
        comment=row.comment,
        history=row.history,
        start_version=row.start_version,
        rule=row.rule,
        publication=row.publication,
        directory_access=row.directory_access,
        share=share,
        id=row.id,
        added_at=row.added_at,
        added_by=row.added_by,
        declared=row.declared,
        applied=row.applied,
    )


def group_from_row(row: GroupRow, members: Sequence[str]) -> Group:
    """A group's row as administrators see it."""
    return Group(
        key=row.key,
        id=row.id,
        name=row.name,
        comment=row.comment,
        members=tuple(members),
        created_at=row.created_at,
        created_by=row.created_by,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
        revision=row.revision,
        applied=row.applied,
    )


def token_from_row(row: TokenRow, use: TokenUseRow | None = None) -> TokenState:
    """A token's row as administrators see it."""
    return TokenState(
        id=row.id,
        kind=row.kind,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        superseded_at=row.superseded_at,
        revoked_at=row.revoked_at,
        last_used_at=None if use is None else use.last_used_at,
        last_used_from=None if use is None else use.last_used_from,
    )


def link_from_row(row: ActivationRow, recipient: str) -> LinkState:
    """A link's row as administrators see it."""
    return LinkState(
        id=row.id,
        recipient=recipient,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        token_expires_at=row.token_expires_at,
        used_at=row.used_at,
        used_from=row.used_from,
        revoked_at=row.revoked_at,
    )


def policy_from_row(row: FederationPolicyRow) -> FederationPolicy:
    """A policy's row as administrators see it."""
    return FederationPolicy(
        name=row.name,
        issuer=row.issuer,
        subject_claim=row.subject_claim,
        subject=row.subject,
        audiences=tuple(row.audiences),
        comment=row.comment,
        id=row.id,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def grant_from_row(
    row: GrantRow | GroupGrantRow, share: str, *, recipient: str | None = None, group: str | None = None
) -> Grant:
    """A grant's row as administrators see it."""
    return Grant(
        share=share,
        recipient=recipient,
        group=group,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        rule=row.rule,
        created_at=row.created_at,
        created_by=row.created_by,
        applied=row.applied,
    )


def recipient_from_row(
    row: RecipientRow,
    tokens: Sequence[TokenState],
    links: Sequence[LinkState],
    policies: Sequence[FederationPolicy],
    of_groups: Sequence[str],
) -> RecipientState:
    return RecipientState(
        key=row.key,
        id=row.id,
        name=row.name,
        state=_life_cycle(row, tokens, links, policies),
        comment=row.comment,
        owner=row.owner,
        properties=row.properties or {},
        authentication=cast(Authentication, row.authentication),
        ip_allow=tuple(row.ip_allow or ()),
        expires_at=row.expires_at,
        activated_at=row.activated_at,
        agreement=row.agreement,
        agreement_accepted_at=row.agreement_accepted_at,
        agreement_accepted_from=row.agreement_accepted_from,
        created_at=row.created_at,
        created_by=row.created_by,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
        revoked_at=row.revoked_at,
        revision=row.revision,
        applied=row.applied,
        tokens=tuple(tokens),
        links=tuple(links),
        policies=tuple(policies),
        groups=tuple(of_groups),
        limits=row.limits or {},
    )


def _life_cycle(
    row: RecipientRow,
    tokens: Sequence[TokenState],
    links: Sequence[LinkState],
    policies: Sequence[FederationPolicy],
) -> LifeCycle:
    now = datetime.now(UTC)
    if row.revoked_at is not None:
        return "revoked"
    if row.expires_at is not None and row.expires_at <= now:
        return "expired"
    valid = [token for token in tokens if token.is_valid(now)]
    is_invited = any(link.is_open(now) for link in links)
    if any(token.superseded_at is not None for token in valid) or (valid and is_invited):
        return "rotating"
    if valid or policies:
        return "activated"
    if is_invited or (not tokens and not links):
        return "invited"
    return "expired"


def list_shares(session: Session, after: int = 0, limit: int | None = None) -> list[Share]:
    """The shares in the order they were made: all, or so many with a key behind `after`."""
    statement = select(ShareRow).where(ShareRow.key > after).order_by(ShareRow.key).limit(limit)
    return [share_from_row(row) for row in session.scalars(statement)]


def get_share(session: Session, name: str) -> Share:
    """A share by its name.

    Raises:
        NotFound: there is none.
    """
    return share_from_row(find_share_row(session, name))


def list_objects(session: Session, share: str | None = None) -> list[SharedObject]:
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
        rows = rows.where(ShareRow.key == find_share_row(session, share).key)
    return [object_from_row(row, schema, parent) for row, schema, parent in session.execute(rows)]


def newest_publication_number(session: Session, table: str) -> int | None:
    """The number of the newest publication of a table of the lake, None when it has none."""
    return session.scalar(select(func.max(PublicationRow.version)).where(PublicationRow.table_name == table))


def is_followed(session: Session, table: str) -> bool:
    """Whether versions of this table of the lake are found in storage."""
    known = select(FollowedTableRow.key).where(FollowedTableRow.table_name == table)
    return session.scalar(known) is not None


def list_shares_with_rules(session: Session) -> set[str]:
    """The shares, in lower case, with a grant that has a rule: tables that come to them are held against it."""
    found: set[str] = set()
    for grants in (GrantRow, GroupGrantRow):
        named = select(ShareRow.name_key).join(grants, grants.share_key == ShareRow.key)
        found.update(session.scalars(named.where(grants.rule.is_not(None)).distinct()))
    return found


def list_groups(session: Session) -> list[Group]:
    """All groups with their members, in the order they were made."""
    members: defaultdict[int, list[str]] = defaultdict(list)
    pairs = select(GroupMemberRow.group_key, RecipientRow.name).join(
        RecipientRow, RecipientRow.key == GroupMemberRow.recipient_key
    )
    for key, name in session.execute(pairs.order_by(RecipientRow.key)):
        members[key].append(name)
    rows = session.scalars(select(GroupRow).order_by(GroupRow.key))
    return [group_from_row(row, members[row.key]) for row in rows]


def get_group(session: Session, name: str) -> Group:
    """A group by its name.

    Raises:
        NotFound: there is none.
    """
    row = find_group_row(session, name)
    members = select(RecipientRow.name).join(GroupMemberRow, GroupMemberRow.recipient_key == RecipientRow.key)
    in_group = members.where(GroupMemberRow.group_key == row.key).order_by(RecipientRow.key)
    return group_from_row(row, list(session.scalars(in_group)))


def list_recipients(session: Session, after: int = 0, limit: int | None = None) -> list[RecipientState]:
    """The recipients in the order they were made, revoked ones too: all, or so many with a key behind `after`."""
    statement = select(RecipientRow).where(RecipientRow.key > after).order_by(RecipientRow.key)
    return _read_recipients(session, statement.limit(limit), is_whole=limit is None)


def get_recipient(session: Session, name: str) -> RecipientState:
    """A recipient by its name.

    Raises:
        NotFound: there is none.
    """
    row = find_recipient_row(session, name)
    return _read_recipients(session, select(RecipientRow).where(RecipientRow.key == row.key))[0]


def list_grants(session: Session) -> list[Grant]:
    """All grants: those of recipients, then those of groups, each in the order they were made."""
    return _grants_of_recipients(session, None, None) + _grants_of_groups(session, None, None)


def list_grants_on(session: Session, share: str) -> list[Grant]:
    """Who may read a share, ended grants and those still to begin too.

    Raises:
        NotFound: there is no such share.
    """
    key = find_share_row(session, share).key
    return _grants_of_recipients(session, key, None) + _grants_of_groups(session, key, None)


def list_grants_to(session: Session, recipient: str) -> list[Grant]:
    """What a recipient may read, by itself or as a member of a group, ended and to begin too.

    Raises:
        NotFound: there is no such recipient.
    """
    key = find_recipient_row(session, recipient).key
    return _grants_of_recipients(session, None, key) + _grants_of_groups(session, None, key)


def find_share_row(session: Session, name: str) -> ShareRow:
    """The row of a share.

    Raises:
        NotFound: there is none.
    """
    row: ShareRow = _find_named(session, ShareRow, name, "Share")
    return row


def find_recipient_row(session: Session, name: str) -> RecipientRow:
    """The row of a recipient.

    Raises:
        NotFound: there is none.
    """
    row: RecipientRow = _find_named(session, RecipientRow, name, "Recipient")
    return row


def find_group_row(session: Session, name: str) -> GroupRow:
    """The row of a group.

    Raises:
        NotFound: there is none.
    """
    row: GroupRow = _find_named(session, GroupRow, name, "Group")
    return row


def find_object_row(
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


def _find_named(session: Session, model: Any, name: str, kind: str) -> Any:  # of any model with a name_key
    row = session.scalars(select(model).where(model.name_key == name.lower())).one_or_none()
    if row is None:
        raise NotFound(kind, name)
    return row


def _read_recipients(
    session: Session, statement: Select[RecipientRow], *, is_whole: bool = False
) -> list[RecipientState]:
    rows = list(session.scalars(statement))
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
        tokens[token.recipient_key].append(token_from_row(token, use))
    names = {row.key: row.name for row in rows}
    links: defaultdict[int, list[LinkState]] = defaultdict(list)
    for link in session.scalars(of_them(ActivationRow)):
        links[link.recipient_key].append(link_from_row(link, names[link.recipient_key]))
    policies: defaultdict[int, list[FederationPolicy]] = defaultdict(list)
    for policy in session.scalars(of_them(FederationPolicyRow)):
        policies[policy.recipient_key].append(policy_from_row(policy))
    of_groups: defaultdict[int, list[str]] = defaultdict(list)
    pairs = select(GroupMemberRow.recipient_key, GroupRow.name).join(
        GroupRow, GroupRow.key == GroupMemberRow.group_key
    )
    if keys is not None:
        pairs = pairs.where(GroupMemberRow.recipient_key.in_(keys))
    for key, name in session.execute(pairs.order_by(GroupRow.key)):
        of_groups[key].append(name)
    return [
        recipient_from_row(row, tokens[row.key], links[row.key], policies[row.key], of_groups[row.key])
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
    return [grant_from_row(row, share, recipient=name) for row, share, name in session.execute(rows)]


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
    return [grant_from_row(row, share, group=name) for row, share, name in session.execute(rows)]
