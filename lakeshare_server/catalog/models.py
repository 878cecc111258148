"""The tables of the catalog as SQLAlchemy models, for every database; migrations create them.

Integer keys grow with every insert and never change: listings page on them.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from sqlalchemy import (
    BigInteger,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.types import JSON, TypeDecorator

from lakeshare_server.text_fields import TEXT_FIELDS


class AnyText(TypeDecorator[str]):
    """Text of any origin: NUL and halves of surrogate pairs, which not every database stores, become U+FFFD."""

    impl: type[String] = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or (value.isascii() and "\x00" not in value):
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\x00", "\ufffd")


class ShortText(AnyText):
    """`AnyText` of limited length."""

    impl = String
    cache_ok = True


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime, stored in UTC; SQLite has no time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# SQLite gives row ids to INTEGER only, and reuses the last one after its deletion, without `autoincrement`.
Key = BigInteger().with_variant(Integer(), "sqlite")
GROWING = {"sqlite_autoincrement": True}
GrowingKey = Annotated[int, mapped_column(Key, primary_key=True, autoincrement=True, sort_order=-2)]
PublicId = Annotated[str, mapped_column(ShortText(36), unique=True, sort_order=-1)]
Long = Annotated[int, mapped_column(BigInteger)]
Name = Annotated[str, mapped_column(ShortText(255))]
Word = Annotated[str, mapped_column(ShortText(64))]
RecipientKey = Annotated[int, mapped_column(ForeignKey("recipients.key", ondelete="CASCADE"))]
MAX_LONG = (1 << 63) - 1
# Later migrations can only alter constraints that have names.
NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base of the catalog's tables."""

    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map: ClassVar = {
        datetime: UtcDateTime,
        str: AnyText,
        dict[str, Any]: JSON(none_as_null=True),
        list[str]: JSON(none_as_null=True),
    }


class GrowingRow(Base):
    """Base of the tables whose integer key grows with every insert."""

    __abstract__ = True
    __table_args__: Any = GROWING

    key: Mapped[GrowingKey]


class IdRow(GrowingRow):
    """Base of the tables of objects with an id for clients."""

    __abstract__ = True

    id: Mapped[PublicId]


class Declarable:
    """Columns of the objects that files of `lakeshare apply` declare, in a configuration if it has a name."""

    applied: Mapped[bool] = mapped_column(default=False)
    configuration: Mapped[Name | None]


class Edited(Declarable):
    """Columns of the named objects that administrators edit; the revision grows with each edit."""

    name: Mapped[Name]
    name_key: Mapped[Name] = mapped_column(unique=True)
    comment: Mapped[str | None]
    created_at: Mapped[datetime]
    revision: Mapped[Long] = mapped_column(default=1)
    created_by: Mapped[Name | None]
    updated_at: Mapped[datetime | None]
    updated_by: Mapped[Name | None]


class PublicationRow(GrowingRow):
    """One publication of one table; never deleted, and never updated but for `changes_digest` after a loss."""

    __tablename__ = "publications"
    __table_args__ = (
        UniqueConstraint("table_name", "version"),
        UniqueConstraint("table_name", "run_id"),
        # Holds all that `Ledger.of_partitions` filters by: rows are long.
        Index(
            "ix_publications_partitions",
            *("table_name", "version", "partition_key", "rollback_of", "maintenance_of"),
        ),
        # The feed of a share is read newest first.
        Index("ix_publications_published_at", "published_at"),
        Index("ix_publications_sets", "set_name", "key"),
        GROWING,
    )

    table: Mapped[str] = mapped_column("table_name", ShortText(512))
    version: Mapped[Long]
    set_name: Mapped[Name]
    format: Mapped[str] = mapped_column("table_format", ShortText(16))
    location: Mapped[str]
    table_id: Mapped[Word]
    metadata_location: Mapped[str | None]
    snapshot_id: Mapped[Long | None]
    schema_id: Mapped[Long | None]
    delta_version: Mapped[Long | None]
    nessie_hash: Mapped[str | None] = mapped_column(ShortText(128), index=True)
    schema_string: Mapped[str]
    rows: Mapped[Long] = mapped_column("row_count")
    files: Mapped[Long] = mapped_column("file_count")
    size_bytes: Mapped[Long]
    index_digest: Mapped[Word]
    contract_digest: Mapped[str] = mapped_column(ShortText(128))
    verdicts: Mapped[dict[str, Any]]
    run_id: Mapped[Name] = mapped_column(index=True)
    partition: Mapped[Name] = mapped_column("partition_key")
    audited: Mapped[bool]
    rollback_of: Mapped[Long | None]
    published_at: Mapped[datetime]
    changes_digest: Mapped[Word | None]
    maintenance_of: Mapped[Long | None]
    started_at: Mapped[datetime | None]
    traceparent: Mapped[Word | None]


class EvidenceRow(GrowingRow):
    """The signed statement of a publication, replaced if it is signed again; `salt` opens its commitments."""

    __tablename__ = "evidence"
    __table_args__ = (UniqueConstraint("table_name", "version"), GROWING)

    table_name: Mapped[str] = mapped_column(ShortText(512))
    version: Mapped[Long]
    key_id: Mapped[Word]
    entries_digest: Mapped[Word] = mapped_column(index=True)
    salt: Mapped[Word]
    envelope: Mapped[str]
    signed_at: Mapped[datetime]


class EvidenceKeyRow(GrowingRow):
    """A public key that has signed statements; `retired_at` is set when another one took its place."""

    __tablename__ = "evidence_keys"

    key_id: Mapped[Word] = mapped_column(unique=True)
    public_key: Mapped[str]
    created_at: Mapped[datetime]
    retired_at: Mapped[datetime | None]


class ExpirationRow(GrowingRow):
    """From `expired_at` on, versions of a table below `oldest_version` are not readable; never updated."""

    __tablename__ = "expirations"

    table_name: Mapped[str] = mapped_column(ShortText(512), index=True)
    oldest_version: Mapped[Long]
    expired_at: Mapped[datetime]


class ContractRow(GrowingRow):
    """The text of a contract that a set was staged with, by the digest in its publications; never updated."""

    __tablename__ = "contracts"

    digest: Mapped[str] = mapped_column(ShortText(128), unique=True)
    set_name: Mapped[Name]
    version: Mapped[Name]
    text: Mapped[str]
    recorded_at: Mapped[datetime]


class SetLockRow(Base):
    """The lock for publishing a set; its fencing token stays after its holder."""

    __tablename__ = "set_locks"

    set_name: Mapped[Name] = mapped_column(primary_key=True)
    token: Mapped[Long]
    owner: Mapped[Name | None]
    host: Mapped[Name | None]
    pid: Mapped[Long | None]
    process_start: Mapped[Word | None]
    expires_at: Mapped[datetime | None]


class FollowedTableRow(Declarable, GrowingRow):
    """A table whose versions are found in storage; `applied`: a file of `lakeshare apply` declares it."""

    __tablename__ = "followed_tables"

    table_name: Mapped[str] = mapped_column(ShortText(512), unique=True)
    location: Mapped[str]
    check_every_s: Mapped[float]
    start_version: Mapped[Long]
    table_id: Mapped[Word | None]
    table_location: Mapped[str | None]
    created_at: Mapped[datetime]


class ShareRow(Edited, IdRow):
    """A share, `declared` by a contract, `applied` or made by hand; the revision counts edits of all that is in it."""

    __tablename__ = "shares"

    declared: Mapped[bool]
    display_name: Mapped[Name | None]
    properties: Mapped[dict[str, Any] | None]
    owner: Mapped[Name | None]


class SchemaRow(GrowingRow):
    """A schema of a share."""

    __tablename__ = "schemas"
    __table_args__ = (UniqueConstraint("share_key", "name_key"), GROWING)

    share_key: Mapped[int] = mapped_column(ForeignKey("shares.key", ondelete="CASCADE"))
    name: Mapped[Name]
    name_key: Mapped[Name]
    declared: Mapped[bool]


class SharedTableRow(Declarable, IdRow):
    """A table or view of a share; `publication` is the number that is served instead of the latest.

    `retire_date` is the last day on which a contract shares it, `successor` the table of the share to read instead.
    """

    __tablename__ = "shared_tables"
    __table_args__ = (UniqueConstraint("schema_key", "name_key"), GROWING)

    schema_key: Mapped[int] = mapped_column(ForeignKey("schemas.key", ondelete="CASCADE"))
    name: Mapped[Name]
    name_key: Mapped[Name]
    lake_table: Mapped[str] = mapped_column(ShortText(512), index=True)
    comment: Mapped[str | None]
    history: Mapped[bool]
    declared: Mapped[bool]
    start_version: Mapped[Long | None]
    directory_access: Mapped[bool] = mapped_column(default=False)
    kind: Mapped[str] = mapped_column(ShortText(16), default="TABLE")
    rule: Mapped[str | None]
    publication: Mapped[Long | None]
    added_at: Mapped[datetime | None]
    added_by: Mapped[Name | None]
    retire_date: Mapped[str | None] = mapped_column(ShortText(10))
    successor: Mapped[str | None]
    # When the retirement was announced, or its date was changed.
    retire_noticed_at: Mapped[datetime | None]


class RecipientRow(Edited, IdRow):
    """A recipient; the revision counts the edits of it, its tokens, its links and its policies."""

    __tablename__ = "recipients"

    revoked_at: Mapped[datetime | None]
    owner: Mapped[Name | None]
    properties: Mapped[dict[str, Any] | None]
    authentication: Mapped[str] = mapped_column(ShortText(32), default="TOKEN")
    ip_allow: Mapped[list[str] | None]
    expires_at: Mapped[datetime | None]
    activated_at: Mapped[datetime | None]
    agreement: Mapped[str | None]
    agreement_accepted_at: Mapped[datetime | None]
    agreement_accepted_from: Mapped[Word | None]
    limits: Mapped[dict[str, Any] | None]
    # Read only, in the order of creation, like the other relationships: operations write rows by their keys.
    tokens: Mapped[list["TokenRow"]] = relationship(viewonly=True, order_by="TokenRow.key")
    links: Mapped[list["ActivationRow"]] = relationship(viewonly=True, order_by="ActivationRow.key")
    policies: Mapped[list["FederationPolicyRow"]] = relationship(
        viewonly=True, order_by="FederationPolicyRow.key"
    )
    groups: Mapped[list["GroupRow"]] = relationship(
        secondary="group_members", viewonly=True, order_by="GroupRow.key"
    )


for _model, _texts in ((ShareRow, TEXT_FIELDS["share"]), (RecipientRow, TEXT_FIELDS["recipient"])):
    for _text in _texts:
        if _text.name not in _model.__table__.c:
            setattr(_model, _text.name, mapped_column(AnyText(), nullable=True))


class TokenRow(IdRow):
    """A bearer token or client secret of a recipient; its grace time began at `superseded_at`."""

    __tablename__ = "tokens"

    recipient_key: Mapped[RecipientKey] = mapped_column(index=True)
    kind: Mapped[str] = mapped_column(ShortText(16), default="bearer")
    digest: Mapped[str] = mapped_column(ShortText(64), unique=True)
    created_at: Mapped[datetime]
    created_by: Mapped[Name | None]
    expires_at: Mapped[datetime | None]
    superseded_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    use: Mapped["TokenUseRow | None"] = relationship(
        primaryjoin="foreign(TokenRow.id) == TokenUseRow.token_id", viewonly=True, lazy="joined"
    )


class TokenUseRow(GrowingRow):
    """The last use of a token, in a table of its own: recipients do not see it."""

    __tablename__ = "token_uses"

    token_id: Mapped[str] = mapped_column(ShortText(36), unique=True)
    last_used_at: Mapped[datetime]
    last_used_from: Mapped[Word | None]


class AllowanceRow(GrowingRow):
    """The permits of a kind that a recipient, or an address, has taken in a window of time."""

    __tablename__ = "allowances"
    __table_args__ = (UniqueConstraint("subject", "kind"), GROWING)

    subject: Mapped[Word]
    kind: Mapped[str] = mapped_column(ShortText(32))
    window_began_at: Mapped[datetime] = mapped_column(index=True)
    taken: Mapped[Long]


class ActivationRow(IdRow):
    """An activation link, which gives a recipient its profile once."""

    __tablename__ = "activations"

    recipient_key: Mapped[RecipientKey]
    digest: Mapped[str] = mapped_column(ShortText(64), unique=True)
    token_expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    created_by: Mapped[Name | None]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]
    used_from: Mapped[Word | None]
    revoked_at: Mapped[datetime | None]


class FederationPolicyRow(IdRow):
    """The claims of an issuer's tokens that identify a recipient: OIDC federation."""

    __tablename__ = "federation_policies"
    __table_args__ = (UniqueConstraint("recipient_key", "name_key"), GROWING)

    recipient_key: Mapped[RecipientKey]
    name: Mapped[Name]
    name_key: Mapped[Name]
    comment: Mapped[str | None]
    issuer: Mapped[str] = mapped_column(index=True)
    subject_claim: Mapped[Name]
    subject: Mapped[str]
    audiences: Mapped[list[str]]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime | None]


class GroupRow(Edited, IdRow):
    """Recipients that are granted shares together."""

    __tablename__ = "groups"

    members: Mapped[list[RecipientRow]] = relationship(
        secondary="group_members", viewonly=True, order_by=RecipientRow.key
    )


class GroupMemberRow(Base):
    """A recipient is in a group."""

    __tablename__ = "group_members"

    group_key: Mapped[int] = mapped_column(ForeignKey("groups.key", ondelete="CASCADE"), primary_key=True)
    recipient_key: Mapped[int] = mapped_column(
        ForeignKey("recipients.key", ondelete="CASCADE"), primary_key=True, index=True
    )


class GrantTerms(Declarable):
    """The time and the rule of a grant."""

    created_at: Mapped[datetime]
    created_by: Mapped[Name | None]
    starts_at: Mapped[datetime | None]
    ends_at: Mapped[datetime | None]
    rule: Mapped[str | None]


class GrantRow(GrantTerms, GrowingRow):
    """A recipient may read a share, within its time, where its rule is true."""

    __tablename__ = "grants"
    __table_args__ = (UniqueConstraint("recipient_key", "share_key"), GROWING)

    recipient_key: Mapped[RecipientKey]
    share_key: Mapped[int] = mapped_column(ForeignKey("shares.key", ondelete="RESTRICT"), index=True)
    reader: Mapped[RecipientRow] = relationship(viewonly=True)


class GroupGrantRow(GrantTerms, GrowingRow):
    """The members of a group may read a share, within its time, where its rule is true."""

    __tablename__ = "group_grants"
    __table_args__ = (UniqueConstraint("group_key", "share_key"), GROWING)

    group_key: Mapped[int] = mapped_column(ForeignKey("groups.key", ondelete="CASCADE"))
    share_key: Mapped[int] = mapped_column(ForeignKey("shares.key", ondelete="RESTRICT"), index=True)
    reader: Mapped[GroupRow] = relationship(viewonly=True)


class AdminKeyRow(IdRow):
    """An administrator's API key; roles are owner, steward and auditor."""

    __tablename__ = "admin_keys"

    name: Mapped[Name] = mapped_column(unique=True)
    role: Mapped[str] = mapped_column(ShortText(16))
    digest: Mapped[str] = mapped_column(ShortText(64), unique=True)
    created_at: Mapped[datetime]
    created_by: Mapped[Name | None]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class EndedSessionRow(Base):
    """A session of the console that was signed out before its cookie expires."""

    __tablename__ = "ended_sessions"

    id: Mapped[Word] = mapped_column(primary_key=True)
    expires_at: Mapped[datetime] = mapped_column(index=True)


class WebhookRow(IdRow):
    """A URL that gets the events of a recipient, or of one of its shares.

    Events of publications up to the key `cursor` of the ledger are in `webhook_deliveries`. Secrets are sealed with the
    server's key. The holder of the `lease` sends, until `leased_until`; nothing is sent before `paused_until`.
    """

    __tablename__ = "webhooks"

    recipient_key: Mapped[int] = mapped_column(ForeignKey("recipients.key", ondelete="CASCADE"), index=True)
    share_key: Mapped[int | None] = mapped_column(ForeignKey("shares.key", ondelete="CASCADE"))
    url: Mapped[str]
    comment: Mapped[str | None]
    secret: Mapped[str]
    previous_secret: Mapped[str | None]
    previous_secret_until: Mapped[datetime | None]
    created_at: Mapped[datetime]
    created_by: Mapped[Name | None]
    cursor: Mapped[Long]
    failures: Mapped[int] = mapped_column(default=0)
    paused_until: Mapped[datetime | None]
    delivered_at: Mapped[datetime | None]
    last_error: Mapped[str | None]
    lease: Mapped[Long] = mapped_column(default=0)
    leased_until: Mapped[datetime | None]


class DeliveryRow(GrowingRow):
    """An event for a webhook: pending, delivered, dead, or withdrawn because the recipient may not read the table."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        UniqueConstraint("webhook_key", "event_id"),
        Index("ix_webhook_deliveries_due", "state", "next_attempt_at"),
        GROWING,
    )

    webhook_key: Mapped[int] = mapped_column(ForeignKey("webhooks.key", ondelete="CASCADE"))
    event_id: Mapped[Word]
    type: Mapped[Word]
    table_id: Mapped[str | None] = mapped_column(ShortText(36))
    body: Mapped[str]
    state: Mapped[str] = mapped_column(ShortText(16))
    created_at: Mapped[datetime]
    # Retries of it end then.
    expires_at: Mapped[datetime]
    next_attempt_at: Mapped[datetime]
    attempts: Mapped[int] = mapped_column(default=0)
    finished_at: Mapped[datetime | None]
    last_status: Mapped[int | None]
    last_error: Mapped[str | None]


ADMINISTERS = text("principal IS NOT NULL")


class AsyncQueryRow(IdRow):
    """An asynchronous query; `attempts` is also the fencing token of its worker."""

    __tablename__ = "async_queries"
    __table_args__ = (UniqueConstraint("recipient_id", "table_id", "idempotency_key"), GROWING)

    recipient_id: Mapped[str] = mapped_column(ShortText(36))
    table_id: Mapped[str] = mapped_column(ShortText(36))
    kind: Mapped[str] = mapped_column(ShortText(16))
    request: Mapped[str]
    idempotency_key: Mapped[Name]
    request_digest: Mapped[Word]
    state: Mapped[str] = mapped_column(ShortText(16), index=True)
    attempts: Mapped[int]
    error_code: Mapped[Word | None]
    error_message: Mapped[str | None]
    version: Mapped[Long | None]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    expires_at: Mapped[datetime] = mapped_column(index=True)


class StateRow(Base):
    """One row: the generation counts the writes that can change what a recipient sees.

    `compatible_from` is the oldest revision of which a lakeshare can use the database.
    """

    __tablename__ = "catalog_state"

    key: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    generation: Mapped[Long]
    compatible_from: Mapped[Word]


class AuditRow(GrowingRow):
    """One event: a request and its result, or a change by an administrator with the states before and after.

    `recipient` reads, `principal` administers. Keys are dense, in the order of the chain; events from before the chain
    have no hash.
    """

    __tablename__ = "audit_log"
    # Most events are of recipients and have no principal.
    __table_args__ = (
        Index("ix_audit_log_principal", "principal", sqlite_where=ADMINISTERS, postgresql_where=ADMINISTERS),
        GROWING,
    )

    at: Mapped[datetime] = mapped_column(index=True)
    recipient: Mapped[Name | None] = mapped_column(index=True)
    action: Mapped[Word]
    object_name: Mapped[str | None]
    status: Mapped[int]
    error_code: Mapped[Word | None]
    version: Mapped[Long | None]
    files: Mapped[Long | None]
    request_id: Mapped[Word]
    ip: Mapped[Word | None]
    user_agent: Mapped[str | None]
    elapsed_ms: Mapped[Long]
    principal: Mapped[Name | None]
    details: Mapped[dict[str, Any] | None]
    kind: Mapped[str] = mapped_column(ShortText(16), default="request")
    size_bytes: Mapped[Long | None]
    rows: Mapped[Long | None]
    previous_hash: Mapped[Word | None]
    hash: Mapped[Word | None]


class AuditChainRow(Base):
    """Two rows: the `head`, number and hash of the newest event, and the `anchor`, of the last one that was pruned."""

    __tablename__ = "audit_chain"

    name: Mapped[str] = mapped_column(ShortText(16), primary_key=True)
    number: Mapped[Long]
    hash: Mapped[Word]


class AuditVerificationRow(GrowingRow):
    """A verification of the chain that a server runs; `done` of `events` are verified at `heartbeat_at`.

    `findings` are texts. `problem` is why it ended without a result.
    """

    __tablename__ = "audit_verifications"

    started_at: Mapped[datetime]
    started_by: Mapped[Name]
    heartbeat_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    done: Mapped[Long]
    events: Mapped[Long]
    unchained: Mapped[Long]
    findings: Mapped[list[str]]
    receipt: Mapped[str | None]
    problem: Mapped[str | None]


class UsageRow(GrowingRow):
    """The requests of a recipient for a version of a table on a day, of pruned events."""

    __tablename__ = "usage_days"

    day: Mapped[str] = mapped_column(ShortText(10), index=True)
    recipient: Mapped[Name]
    object_name: Mapped[str | None]
    version: Mapped[Long | None]
    requests: Mapped[Long]
    queries: Mapped[Long]
    files: Mapped[Long]
    size_bytes: Mapped[Long]
    refused: Mapped[Long]


class AuditJournalRow(Base):
    """The number of bytes of a process's journal of events that are in the log."""

    __tablename__ = "audit_journals"

    name: Mapped[str] = mapped_column(ShortText(64), primary_key=True)
    taken: Mapped[Long]
