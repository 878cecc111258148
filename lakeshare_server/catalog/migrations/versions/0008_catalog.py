"""The tables of the catalog: ledger, shares, recipients, grants, queries, audit log."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = None
branch_labels = None
depends_on = None

GENESIS = "0" * 64
KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
# Children before their parents.
TABLES = (
    "usage_days",
    "audit_journals",
    "audit_chain",
    "audit_log",
    "async_queries",
    "catalog_state",
    "admin_keys",
    "group_grants",
    "grants",
    "group_members",
    "groups",
    "federation_policies",
    "activations",
    "allowances",
    "token_uses",
    "tokens",
    "recipients",
    "shared_tables",
    "schemas",
    "shares",
    "followed_tables",
    "set_locks",
    "publications",
)


def upgrade() -> None:
    _create_ledger()
    _create_shares()
    _create_recipients()
    _create_grants()
    _create_administration()
    _create_requests()
    _create_audit_log()


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)


def _create_ledger() -> None:
    op.create_table(
        "publications",
        sa.Column("key", KEY, nullable=False),
        sa.Column("table_name", sa.String(length=512), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("set_name", sa.String(length=255), nullable=False),
        sa.Column("table_format", sa.String(length=16), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("table_id", sa.String(length=64), nullable=False),
        sa.Column("metadata_location", sa.Text(), nullable=True),
        sa.Column("snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("schema_id", sa.BigInteger(), nullable=True),
        sa.Column("delta_version", sa.BigInteger(), nullable=True),
        sa.Column("nessie_hash", sa.String(length=128), nullable=True),
        sa.Column("schema_string", sa.Text(), nullable=False),
        sa.Column("row_count", sa.BigInteger(), nullable=False),
        sa.Column("file_count", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("index_digest", sa.String(length=64), nullable=False),
        sa.Column("contract_digest", sa.String(length=128), nullable=False),
        sa.Column("verdicts", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("partition_key", sa.String(length=255), nullable=False),
        sa.Column("audited", sa.Boolean(), nullable=False),
        sa.Column("rollback_of", sa.BigInteger(), nullable=True),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changes_digest", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_publications")),
        sa.UniqueConstraint("table_name", "run_id", name=op.f("uq_publications_table_name_run_id")),
        sa.UniqueConstraint("table_name", "version", name=op.f("uq_publications_table_name_version")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_publications_nessie_hash"), "publications", ["nessie_hash"], unique=False)
    op.create_index(op.f("ix_publications_run_id"), "publications", ["run_id"], unique=False)
    op.create_table(
        "set_locks",
        sa.Column("set_name", sa.String(length=255), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.String(length=255), nullable=True),
        sa.Column("host", sa.String(length=255), nullable=True),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("process_start", sa.String(length=64), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("set_name", name=op.f("pk_set_locks")),
    )
    op.create_table(
        "followed_tables",
        sa.Column("key", KEY, nullable=False),
        sa.Column("table_name", sa.String(length=512), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("check_every_s", sa.Double(), nullable=False),
        sa.Column("start_version", sa.BigInteger(), nullable=False),
        sa.Column("table_id", sa.String(length=64), nullable=True),
        sa.Column("table_location", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("applied", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_followed_tables")),
        sa.UniqueConstraint("table_name", name=op.f("uq_followed_tables_table_name")),
        sqlite_autoincrement=True,
    )


def _create_shares() -> None:
    op.create_table(
        "shares",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("name_key", sa.String(length=255), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("declared", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("display_name", sa.String(length=255), nullable=True),
        sa.Column("properties", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("owner", sa.String(length=255), nullable=True),
        sa.Column("applied", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("revision", sa.BigInteger(), nullable=False, server_default="1"),
        sa.Column("created_by", sa.String(length=255), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("updated_by", sa.String(length=255), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_shares")),
        sa.UniqueConstraint("id", name=op.f("uq_shares_id")),
        sa.UniqueConstraint("name_key", name=op.f("uq_shares_name_key")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "schemas",
        sa.Column("key", KEY, nullable=False),
        sa.Column("share_key", KEY, nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("name_key", sa.String(length=255), nullable=False),
        sa.Column("declared", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["share_key"], ["shares.key"], name=op.f("fk_schemas_share_key"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_schemas")),
        sa.UniqueConstraint("share_key", "name_key", name=op.f("uq_schemas_share_key_name_key")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "shared_tables",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("schema_key", KEY, nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("name_key", sa.String(length=255), nullable=False),
        sa.Column("lake_table", sa.String(length=512), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("history", sa.Boolean(), nullable=False),
        sa.Column("declared", sa.Boolean(), nullable=False),
        sa.Column("start_version", sa.BigInteger(), nullable=True),
        sa.Column("directory_access", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("kind", sa.String(length=16), nullable=False, server_default="TABLE"),
        sa.Column("rule", sa.Text(), nullable=True),
        sa.Column("publication", sa.BigInteger(), nullable=True),
        sa.Column("applied", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("added_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("added_by", sa.String(length=255), nullable=True),
        sa.ForeignKeyConstraint(
            ["schema_key"], ["schemas.key"], name=op.f("fk_shared_tables_schema_key"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_shared_tables")),
        sa.UniqueConstraint("id", name=op.f("uq_shared_tables_id")),
        sa.UniqueConstraint("schema_key", "name_key", name=op.f("uq_shared_tables_schema_key_name_key")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_shared_tables_lake_table"), "shared_tables", ["lake_table"], unique=False)


def _create_recipients() -> None:
    op.create_table(
        "recipients",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("name_key", sa.String(length=255), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("owner", sa.String(length=255), nullable=True),
        sa.Column("properties", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("authentication", sa.String(length=32), nullable=False, server_default="TOKEN"),
        sa.Column("ip_allow", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("activated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("agreement", sa.Text(), nullable=True),
        sa.Column("agreement_accepted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("agreement_accepted_from", sa.String(length=64), nullable=True),
        sa.Column("applied", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("limits", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=False, server_default="1"),
        sa.Column("created_by", sa.String(length=255), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("updated_by", sa.String(length=255), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_recipients")),
        sa.UniqueConstraint("id", name=op.f("uq_recipients_id")),
        sa.UniqueConstraint("name_key", name=op.f("uq_recipients_name_key")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "tokens",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("recipient_key", KEY, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("superseded_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["recipient_key"], ["recipients.key"], name=op.f("fk_tokens_recipient_key"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
        sa.UniqueConstraint("id", name=op.f("uq_tokens_id")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "token_uses",
        sa.Column("key", KEY, nullable=False),
        sa.Column("token_id", sa.String(length=36), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_from", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_token_uses")),
        sa.UniqueConstraint("token_id", name=op.f("uq_token_uses_token_id")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "allowances",
        sa.Column("key", KEY, nullable=False),
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("window_began_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("taken", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_allowances")),
        sa.UniqueConstraint("subject", "kind", name=op.f("uq_allowances_subject_kind")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_allowances_window_began_at"), "allowances", ["window_began_at"], unique=False)
    op.create_table(
        "activations",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("recipient_key", KEY, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("token_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("used_from", sa.String(length=64), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["recipient_key"],
            ["recipients.key"],
            name=op.f("fk_activations_recipient_key"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_activations")),
        sa.UniqueConstraint("digest", name=op.f("uq_activations_digest")),
        sa.UniqueConstraint("id", name=op.f("uq_activations_id")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "federation_policies",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("recipient_key", KEY, nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("name_key", sa.String(length=255), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("subject_claim", sa.String(length=255), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("audiences", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["recipient_key"],
            ["recipients.key"],
            name=op.f("fk_federation_policies_recipient_key"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_federation_policies")),
        sa.UniqueConstraint("id", name=op.f("uq_federation_policies_id")),
        sa.UniqueConstraint(
            "recipient_key", "name_key", name=op.f("uq_federation_policies_recipient_key_name_key")
        ),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_federation_policies_issuer"), "federation_policies", ["issuer"], unique=False)
    op.create_table(
        "groups",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("name_key", sa.String(length=255), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("applied", sa.Boolean(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("updated_by", sa.String(length=255), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_groups")),
        sa.UniqueConstraint("id", name=op.f("uq_groups_id")),
        sa.UniqueConstraint("name_key", name=op.f("uq_groups_name_key")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "group_members",
        sa.Column("group_key", KEY, nullable=False),
        sa.Column("recipient_key", KEY, nullable=False),
        sa.ForeignKeyConstraint(
            ["group_key"], ["groups.key"], name=op.f("fk_group_members_group_key"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["recipient_key"],
            ["recipients.key"],
            name=op.f("fk_group_members_recipient_key"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("group_key", "recipient_key", name=op.f("pk_group_members")),
    )
    op.create_index(op.f("ix_group_members_recipient_key"), "group_members", ["recipient_key"], unique=False)


def _create_grants() -> None:
    op.create_table(
        "grants",
        sa.Column("key", KEY, nullable=False),
        sa.Column("recipient_key", KEY, nullable=False),
        sa.Column("share_key", KEY, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=True),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rule", sa.Text(), nullable=True),
        sa.Column("applied", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.ForeignKeyConstraint(
            ["recipient_key"], ["recipients.key"], name=op.f("fk_grants_recipient_key"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["share_key"], ["shares.key"], name=op.f("fk_grants_share_key"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_grants")),
        sa.UniqueConstraint("recipient_key", "share_key", name=op.f("uq_grants_recipient_key_share_key")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_grants_share_key"), "grants", ["share_key"], unique=False)
    op.create_table(
        "group_grants",
        sa.Column("key", KEY, nullable=False),
        sa.Column("group_key", KEY, nullable=False),
        sa.Column("share_key", KEY, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=True),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rule", sa.Text(), nullable=True),
        sa.Column("applied", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["group_key"], ["groups.key"], name=op.f("fk_group_grants_group_key"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["share_key"], ["shares.key"], name=op.f("fk_group_grants_share_key"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_group_grants")),
        sa.UniqueConstraint("group_key", "share_key", name=op.f("uq_group_grants_group_key_share_key")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_group_grants_share_key"), "group_grants", ["share_key"], unique=False)


def _create_administration() -> None:
    op.create_table(
        "admin_keys",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_admin_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_admin_keys_digest")),
        sa.UniqueConstraint("id", name=op.f("uq_admin_keys_id")),
        sa.UniqueConstraint("name", name=op.f("uq_admin_keys_name")),
        sqlite_autoincrement=True,
    )
    state = op.create_table(
        "catalog_state",
        sa.Column("key", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_catalog_state")),
    )
    op.bulk_insert(state, [{"key": 1, "generation": 1}])


def _create_requests() -> None:
    op.create_table(
        "async_queries",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("recipient_id", sa.String(length=36), nullable=False),
        sa.Column("table_id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=False),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error_code", sa.String(length=64), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_async_queries")),
        sa.UniqueConstraint("id", name=op.f("uq_async_queries_id")),
        sa.UniqueConstraint(
            "recipient_id",
            "table_id",
            "idempotency_key",
            name=op.f("uq_async_queries_recipient_id_table_id_idempotency_key"),
        ),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_async_queries_expires_at"), "async_queries", ["expires_at"], unique=False)
    op.create_index(op.f("ix_async_queries_state"), "async_queries", ["state"], unique=False)


def _create_audit_log() -> None:
    op.create_table(
        "audit_log",
        sa.Column("key", KEY, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("recipient", sa.String(length=255), nullable=True),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("object_name", sa.Text(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("error_code", sa.String(length=64), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=True),
        sa.Column("files", sa.BigInteger(), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("ip", sa.String(length=64), nullable=True),
        sa.Column("user_agent", sa.Text(), nullable=True),
        sa.Column("elapsed_ms", sa.BigInteger(), nullable=False),
        sa.Column("principal", sa.String(length=255), nullable=True),
        sa.Column("details", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False, server_default="request"),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("previous_hash", sa.String(length=64), nullable=True),
        sa.Column("hash", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_audit_log")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_audit_log_at"), "audit_log", ["at"], unique=False)
    op.create_index(
        "ix_audit_log_principal",
        "audit_log",
        ["principal"],
        unique=False,
        sqlite_where=sa.text("principal IS NOT NULL"),
        postgresql_where=sa.text("principal IS NOT NULL"),
    )
    op.create_index(op.f("ix_audit_log_recipient"), "audit_log", ["recipient"], unique=False)
    chain = op.create_table(
        "audit_chain",
        sa.Column("name", sa.String(length=16), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_audit_chain")),
    )
    op.bulk_insert(chain, [{"name": name, "number": 0, "hash": GENESIS} for name in ("head", "anchor")])
    op.create_table(
        "audit_journals",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("taken", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_audit_journals")),
    )
    op.create_table(
        "usage_days",
        sa.Column("key", KEY, nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("recipient", sa.String(length=255), nullable=False),
        sa.Column("object_name", sa.Text(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=True),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("queries", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("refused", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_usage_days")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_usage_days_day"), "usage_days", ["day"], unique=False)
