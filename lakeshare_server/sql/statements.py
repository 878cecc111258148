"""What a person can say in SQL, as data. Nothing here knows how it was spelt or how it is done."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

SharedKind = Literal["TABLE", "VIEW"]
Kind = Literal["TABLE", "VIEW", "MODEL"]
Verb = Literal["ADD", "ALTER"]
Fields = Mapping[str, Any]  # names and values as the operations of the catalog take them


class Now:
    """A start version: the latest publication at the moment the statement is done."""


@dataclass(frozen=True)
class Statement:
    """Any of them."""


@dataclass(frozen=True)
class Change(Statement):
    """One that changes the catalog."""


@dataclass(frozen=True)
class Look(Statement):
    """One that only reads."""


# --- shares


@dataclass(frozen=True)
class CreateShare(Change):
    """CREATE SHARE."""

    name: str
    if_not_exists: bool = False
    comment: str | None = None


@dataclass(frozen=True)
class AlterShare(Change):
    """ALTER SHARE … RENAME TO | OWNER TO | COMMENT | SET DISPLAY NAME."""

    name: str
    fields: Fields


@dataclass(frozen=True)
class DropShare(Change):
    """DROP SHARE."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class PutObject(Change):
    """ALTER SHARE … ADD | ALTER TABLE | VIEW: all about the object, so that ALTER states it again."""

    share: str
    verb: Verb
    kind: Kind
    path: tuple[str, ...]
    alias: tuple[str, str]
    comment: str | None = None
    rule: str | None = None
    history: bool = True
    start_version: int | Now | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class PutSchema(Change):
    """ALTER SHARE … ADD | ALTER SCHEMA: every published table of a schema of the lake."""

    share: str
    verb: Verb
    path: tuple[str, ...]
    comment: str | None = None


@dataclass(frozen=True)
class RemoveObject(Change):
    """ALTER SHARE … REMOVE TABLE | VIEW: by the name recipients see, or by the table's own."""

    share: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class RemoveSchema(Change):
    """ALTER SHARE … REMOVE SCHEMA."""

    share: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class PinPublication(Change):
    """ALTER SHARE … SET | UNSET PUBLICATION: of one object, or of all in the share; None serves the latest."""

    share: str
    publication: int | None
    path: tuple[str, ...] | None = None


# --- recipients and groups


@dataclass(frozen=True)
class Policy:
    """Whose tokens of which issuer are the recipient's."""

    issuer: str
    subject: str
    subject_claim: str = "sub"
    audiences: tuple[str, ...] = ()
    name: str = "default"


@dataclass(frozen=True)
class CreateRecipient(Change):
    """CREATE RECIPIENT."""

    name: str
    if_not_exists: bool = False
    comment: str | None = None
    authentication: Literal["TOKEN", "OAUTH_CLIENT_CREDENTIALS", "OIDC_FEDERATION"] = "TOKEN"
    policy: Policy | None = None
    metastore_id: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    ip_allow: tuple[str, ...] | None = None
    agreement: str | None = None
    until: datetime | None = None


@dataclass(frozen=True)
class AlterRecipient(Change):
    """ALTER RECIPIENT … RENAME | OWNER | COMMENT | SET/UNSET IP ALLOW | AGREEMENT | UNTIL."""

    name: str
    fields: Fields


@dataclass(frozen=True)
class SetProperties(Change):
    """ALTER RECIPIENT … SET PROPERTIES: those not named stay."""

    name: str
    properties: Mapping[str, str]


@dataclass(frozen=True)
class UnsetProperties(Change):
    """ALTER RECIPIENT … UNSET PROPERTIES."""

    name: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class RotateToken(Change):
    """ALTER RECIPIENT … ROTATE TOKEN."""

    name: str
    keep_old_for: timedelta = timedelta()
    until: datetime | None = None


@dataclass(frozen=True)
class RevokeToken(Change):
    """REVOKE TOKEN: one by its id, or all of the recipient."""

    name: str
    token_id: str | None = None


@dataclass(frozen=True)
class Invite(Change):
    """ALTER RECIPIENT … INVITE: a new activation link."""

    name: str
    link_life: timedelta | None = None


@dataclass(frozen=True)
class PutPolicy(Change):
    """ALTER RECIPIENT … ADD OIDC."""

    name: str
    policy: Policy


@dataclass(frozen=True)
class DropPolicy(Change):
    """ALTER RECIPIENT … DROP OIDC."""

    name: str
    policy: str


@dataclass(frozen=True)
class RevokeRecipient(Change):
    """REVOKE RECIPIENT: all access ends, name and history stay."""

    name: str


@dataclass(frozen=True)
class DropRecipient(Change):
    """DROP RECIPIENT."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class CreateGroup(Change):
    """CREATE GROUP."""

    name: str
    if_not_exists: bool = False
    comment: str | None = None


@dataclass(frozen=True)
class AlterGroup(Change):
    """ALTER GROUP … RENAME TO | COMMENT."""

    name: str
    fields: Fields


@dataclass(frozen=True)
class ChangeMembers(Change):
    """ALTER GROUP … ADD | REMOVE RECIPIENT."""

    name: str
    verb: Literal["ADD", "REMOVE"]
    recipients: tuple[str, ...]


@dataclass(frozen=True)
class DropGroup(Change):
    """DROP GROUP."""

    name: str
    if_exists: bool = False


# --- grants


@dataclass(frozen=True)
class Grantee:
    """To whom something is granted."""

    kind: Literal["RECIPIENT", "GROUP"]
    name: str


@dataclass(frozen=True)
class Grant(Change):
    """GRANT SELECT ON SHARE: again states the whole grant again."""

    share: str
    to: Grantee
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    rule: str | None = None


@dataclass(frozen=True)
class Revoke(Change):
    """REVOKE SELECT ON SHARE."""

    share: str
    grantee: Grantee


@dataclass(frozen=True)
class Publish(Change):
    """PUBLISH TABLE … FROM BRANCH: understood, and left to the pipelines."""

    path: tuple[str, ...]
    branch: str


# --- looking


@dataclass(frozen=True)
class ShowShares(Look):
    """SHOW SHARES."""

    pattern: str | None = None


@dataclass(frozen=True)
class ShowSharesInProvider(Look):
    """SHOW SHARES IN PROVIDER."""

    provider: str


@dataclass(frozen=True)
class ShowAllInShare(Look):
    """SHOW ALL IN SHARE."""

    share: str


@dataclass(frozen=True)
class ShowRecipients(Look):
    """SHOW RECIPIENTS."""

    pattern: str | None = None


@dataclass(frozen=True)
class ShowGroups(Look):
    """SHOW GROUPS."""

    pattern: str | None = None


@dataclass(frozen=True)
class ShowGrantsOnShare(Look):
    """SHOW GRANTS ON SHARE."""

    share: str


@dataclass(frozen=True)
class ShowGrantsTo(Look):
    """SHOW GRANTS TO RECIPIENT | GROUP."""

    grantee: Grantee


@dataclass(frozen=True)
class ShowUsage(Look):
    """SHOW USAGE FOR RECIPIENT."""

    recipient: str
    since: datetime | None = None


@dataclass(frozen=True)
class DescribeShare(Look):
    """DESCRIBE SHARE."""

    name: str


@dataclass(frozen=True)
class DescribeRecipient(Look):
    """DESCRIBE RECIPIENT."""

    name: str


@dataclass(frozen=True)
class DescribeGroup(Look):
    """DESCRIBE GROUP."""

    name: str


@dataclass(frozen=True)
class SelectAll(Look):
    """SELECT * FROM information_schema.…."""

    path: tuple[str, ...]
    limit: int | None = None


# --- the session itself


@dataclass(frozen=True)
class SetRecipient(Statement):
    """SET RECIPIENT: from here on the session shows what that recipient sees; None ends it."""

    name: str | None
