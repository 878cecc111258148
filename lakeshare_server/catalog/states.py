"""Reads the objects that administrators edit: whole lists in a few queries, single objects by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session, selectinload

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
)
from lakeshare_server.errors import NotFound
from lakeshare_server.text_fields import TEXT_FIELDS, TextOwner

Kind = Literal["TABLE", "VIEW"]
Authentication = Literal["TOKEN", "OAUTH_CLIENT_CREDENTIALS", "OIDC_FEDERATION"]
LifeCycle = Literal["invited", "activated", "rotating", "expired", "revoked"]
NamedRow = TypeVar("NamedRow", ShareRow, RecipientRow, GroupRow)


class JsonState:
    """A dataclass that the audit log keeps as JSON."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Its fields without those that have no value; times in ISO 8601."""
        values = {name: _json(getattr(self, name)) for name in self.__dataclass_fields__}
        return {name: value for name, value in values.items() if value not in (None, [], {})}


State = TypeVar("State", bound=JsonState)


def add_texts(owner: TextOwner) -> Callable[[type[State]], type[State]]:
    """A class decorator: adds those texts of an object that the dataclass does not have yet, each None by default."""

    def decorate(state: type[State]) -> type[State]:
        known = state.__dataclass_fields__
        texts = [
            (text.name, str | None, field(default=None))
            for text in TEXT_FIELDS[owner]
            if text.name not in known
        ]
        derived = make_dataclass(state.__name__, texts, bases=(state,), frozen=True, kw_only=True)
        derived.__module__, derived.__doc__ = state.__module__, state.__doc__
        return derived

    return decorate


def _json(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, JsonState):
        return value.as_json()
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


@add_texts("share")
@dataclass(frozen=True, kw_only=True)
class Share(JsonState):
    """A share; its revision counts the edits of everything in it, its key grows in listing order and never changes."""

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
    configuration: str | None


# Fields of shared tables for listings.
LISTED = ("key", "share_id", "share_notice")


@dataclass(frozen=True)
class SharedTable(JsonState):
    """A table or view of a share: `schema.name` for recipients, `table` in the ledger.

    `history`: recipients may read earlier publications by number. `start_version`: the first version that they may
    read, None leaves it to the history. `rule` restricts every recipient, in addition to the grants. `publication`: the
    version that they read instead of the latest, and none after it. `directory_access`: the operator lets them read all
    that lies under the prefix of the table. `retire_date`: a contract shares the table until the end of that day (ISO,
    UTC); `successor`: its successor in the same share, as `schema.table`.

    Operations ignore the fields after `successor`. Contracts state those up to `rule`, where None leaves a rule
    that was set by hand, and the last two.
    """

    schema: str
    name: str
    table: str
    comment: str | None = None
    history: bool = True
    kind: Kind = "TABLE"
    rule: str | None = None
    start_version: int | None = None
    publication: int | None = None
    directory_access: bool = False
    retire_date: str | None = None
    successor: str | None = None
    share: str = ""
    id: str = ""
    added_at: datetime | None = None
    added_by: str | None = None
    declared: bool = False
    applied: bool = False
    configuration: str | None = None
    key: int = 0
    share_id: str = ""
    share_notice: str | None = None

    @property
    def alias(self) -> str:
        """`schema.table`, its name in the share."""
        return f"{self.schema}.{self.name}"

    @property
    def path(self) -> str:
        """`share.schema.table`, as recipients write it."""
        return f"{self.share}.{self.alias}"

    @property
    def notice(self) -> str | None:
        """What recipients have to know: the end of the table, and the notice of the share; None without both."""
        parts = [] if self.share_notice is None else [self.share_notice]
        if self.retire_date is not None:
            end = f"{self.retire_date} (end of the day, UTC)"
            parts.append(f"This table gets no new data and is shared until {end}.")
            if self.successor is not None:
                parts.append(f"Read {self.share}.{self.successor} instead.")
        return " ".join(parts) or None

    @property
    def notice_properties(self) -> dict[str, str]:
        """The notice as properties of the table for clients; empty without one."""
        values = {"retire": self.retire_date, "successor": self.successor, "notice": self.notice}
        return {f"lakeshare.{name}": value for name, value in values.items() if value is not None}

    def as_json(self) -> dict[str, Any]:
        """Its fields, without those for listings."""
        return {name: value for name, value in super().as_json().items() if name not in LISTED}


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
    configuration: str | None = None

    @property
    def privileges(self) -> tuple[str, ...]:
        """The only privilege."""
        return ("SELECT",)

    @property
    def reader(self) -> str:
        """The name of the recipient or of the group."""
        return self.recipient or self.group or ""

    @property
    def principal(self) -> str:
        """The recipient, or the group as `group:NAME`."""
        return self.recipient or f"group:{self.group}"


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
        """Whether it gives access at that moment."""
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
    """The claims of an issuer's tokens that identify a recipient."""

    name: str
    issuer: str
    subject_claim: str
    subject: str
    audiences: tuple[str, ...]
    comment: str | None = None
    id: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None

    @property
    def claims(self) -> "FederationPolicy":
        """Itself, for bodies that nest the issuer and its claims."""
        return self

    @property
    def edited_at(self) -> datetime | None:
        """The last change, or the creation."""
        return self.updated_at or self.created_at


@add_texts("recipient")
@dataclass(frozen=True, kw_only=True)
class RecipientState(JsonState):
    """A recipient with its tokens, links, policies and groups."""

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
    configuration: str | None
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
    configuration: str | None


@dataclass(frozen=True)
class IssuedSecret:
    """A secret that is shown once, with the state of its token."""

    state: TokenState
    secret: str = field(repr=False)


def state_from_row(state: type[State], row: Any, /, **others: Any) -> State:  # of any model
    """A state with the columns of a row that have its fields' names, and with other values."""
    columns = {name: getattr(row, name) for name in state.__dataclass_fields__ if name not in others}
    return state(**columns, **others)


def share_from_row(row: ShareRow) -> Share:
    return state_from_row(Share, row, properties=row.properties or {})


def object_from_row(row: SharedTableRow, schema: str, share: ShareRow | Share) -> SharedTable:
    # The texts of a share follow from their declaration.
    parent = {"share": share.name, "share_id": share.id, "share_notice": getattr(share, "notice")}  # noqa: B009
    return state_from_row(SharedTable, row, schema=schema, table=row.lake_table, **parent)


def token_from_row(row: TokenRow) -> TokenState:
    last_used = (None, None) if row.use is None else (row.use.last_used_at, row.use.last_used_from)
    return state_from_row(TokenState, row, last_used_at=last_used[0], last_used_from=last_used[1])


def link_from_row(row: ActivationRow, recipient: str) -> LinkState:
    return state_from_row(LinkState, row, recipient=recipient)


def policy_from_row(row: FederationPolicyRow) -> FederationPolicy:
    return state_from_row(FederationPolicy, row, audiences=tuple(row.audiences))


def grant_from_row(row: GrantRow | GroupGrantRow, share: str, reader: str) -> Grant:
    """The state of a grant's row on the share to the recipient, or group, of these names."""
    kind = "recipient" if isinstance(row, GrantRow) else "group"
    return state_from_row(Grant, row, share=share, **{"recipient": None, "group": None, kind: reader})


def group_from_row(row: GroupRow) -> Group:
    return state_from_row(Group, row, members=tuple(member.name for member in row.members))


def recipient_from_row(row: RecipientRow) -> RecipientState:
    tokens, policies = tuple(map(token_from_row, row.tokens)), tuple(map(policy_from_row, row.policies))
    links = tuple(link_from_row(link, row.name) for link in row.links)
    return state_from_row(
        RecipientState,
        row,
        state=_life_cycle(row, tokens, links, policies),
        properties=row.properties or {},
        ip_allow=tuple(row.ip_allow or ()),
        tokens=tokens,
        links=links,
        policies=policies,
        groups=tuple(group.name for group in row.groups),
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
    """Lists the shares in the order of their creation; `limit` of them with a key above `after`."""
    statement = select(ShareRow).where(ShareRow.key > after).order_by(ShareRow.key).limit(limit)
    return [share_from_row(row) for row in session.scalars(statement)]


def get_share(session: Session, name: str) -> Share:
    """Returns a share; raises NotFound."""
    return share_from_row(find_share_row(session, name))


# Read again also within a transaction that changes them, with one query for each kind of object in them.
WHOLE_RECIPIENTS = (
    select(RecipientRow)
    .options(*map(selectinload, (RecipientRow.tokens, RecipientRow.links)))
    .options(*map(selectinload, (RecipientRow.policies, RecipientRow.groups)))
    .execution_options(populate_existing=True)
)
WHOLE_GROUPS = (
    select(GroupRow).options(selectinload(GroupRow.members)).execution_options(populate_existing=True)
)
# The shared tables with their shares and schemas.
OBJECTS = (
    select(ShareRow, SchemaRow, SharedTableRow)
    .join(SchemaRow, SchemaRow.share_key == ShareRow.key)
    .join(SharedTableRow, SharedTableRow.schema_key == SchemaRow.key)
)


def list_objects(session: Session, share: str | None = None) -> list[SharedTable]:
    """Lists the tables and views of a share (raises NotFound), or of all, in the order they were added."""
    rows = OBJECTS.order_by(SharedTableRow.key)
    if share is not None:
        rows = rows.where(ShareRow.key == find_share_row(session, share).key)
    return [object_from_row(row, schema.name, parent) for parent, schema, row in session.execute(rows)]


def newest_publication_number(session: Session, table: str) -> int | None:
    """The newest publication's number of a table of the lake, None before its first publication."""
    return session.scalar(select(func.max(PublicationRow.version)).where(PublicationRow.table == table))


def is_followed(session: Session, table: str) -> bool:
    """Whether a table of the lake is a followed table."""
    known = select(FollowedTableRow.key).where(FollowedTableRow.table_name == table)
    return session.scalar(known) is not None


def list_shares_with_rules(session: Session) -> set[str]:
    """The names, in lower case, of the shares with a grant that has a rule."""
    names: set[str] = set()
    for grants in (GrantRow, GroupGrantRow):
        of_grants = select(ShareRow.name_key).join(grants, grants.share_key == ShareRow.key)
        names.update(session.scalars(of_grants.where(grants.rule.is_not(None)).distinct()))
    return names


def list_groups(session: Session) -> list[Group]:
    """Lists the groups with their members, in the order of their creation."""
    return list(map(group_from_row, session.scalars(WHOLE_GROUPS.order_by(GroupRow.key))))


def get_group(session: Session, name: str) -> Group:
    """Returns a group with its members; raises NotFound."""
    key = find_group_row(session, name).key
    return group_from_row(session.scalars(WHOLE_GROUPS.where(GroupRow.key == key)).one())


def list_recipients(session: Session, after: int = 0, limit: int | None = None) -> list[RecipientState]:
    """Lists the recipients, revoked ones too, in the order of their creation; `limit` of them after a key."""
    page = WHOLE_RECIPIENTS.where(RecipientRow.key > after).order_by(RecipientRow.key).limit(limit)
    return list(map(recipient_from_row, session.scalars(page)))


def get_recipient(session: Session, name: str) -> RecipientState:
    """Returns a recipient; raises NotFound."""
    key = find_recipient_row(session, name).key
    return recipient_from_row(session.scalars(WHOLE_RECIPIENTS.where(RecipientRow.key == key)).one())


def list_grants(session: Session, *, share: str | None = None, recipient: str | None = None) -> list[Grant]:
    """Lists all grants, ended and future ones too: to recipients, then to groups, in the order of their creation.

    Only those on a share, or to a recipient and its groups, if one is given; raises NotFound.
    """
    own = select(GrantRow, ShareRow.name, RecipientRow.name).select_from(GrantRow)
    own = own.join(ShareRow).join(RecipientRow).order_by(GrantRow.key)
    of_groups = select(GroupGrantRow, ShareRow.name, GroupRow.name).select_from(GroupGrantRow)
    of_groups = of_groups.join(ShareRow).join(GroupRow).order_by(GroupGrantRow.key)
    if share is not None:
        share_key = find_share_row(session, share).key
        own = own.where(GrantRow.share_key == share_key)
        of_groups = of_groups.where(GroupGrantRow.share_key == share_key)
    if recipient is not None:
        row = find_recipient_row(session, recipient)
        own = own.where(GrantRow.recipient_key == row.key)
        of_recipient = select(GroupMemberRow.group_key).filter_by(recipient_key=row.key)
        of_groups = of_groups.where(GroupGrantRow.group_key.in_(of_recipient))
    return [grant_from_row(*found) for rows in (own, of_groups) for found in session.execute(rows)]


def find_object_row(
    session: Session, share: str, schema: str, name: str
) -> tuple[ShareRow, SchemaRow, SharedTableRow]:
    """Returns the rows of a share, a schema and a shared table; raises NotFound."""
    rows = session.execute(
        OBJECTS.where(
            ShareRow.name_key == share.lower(),
            SchemaRow.name_key == schema.lower(),
            SharedTableRow.name_key == name.lower(),
        )
    ).one_or_none()
    if rows is None:
        raise NotFound("[Share/Schema/Table]", f"{share}/{schema}/{name}")
    return rows


def _find_row(model: type[NamedRow], session: Session, name: str) -> NamedRow:
    """Returns the row of this name; raises NotFound."""
    row = session.scalars(select(model).where(model.name_key == name.lower())).one_or_none()
    if row is None:
        raise NotFound(model.__name__.removesuffix("Row"), name)
    return row


find_share_row = partial(_find_row, ShareRow)
find_recipient_row = partial(_find_row, RecipientRow)
find_group_row = partial(_find_row, GroupRow)
