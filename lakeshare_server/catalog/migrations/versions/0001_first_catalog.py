"""The catalog as it began: publications, set locks, shares, recipients, requests."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import SchemaItem

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
# Children before their parents.
TABLES = (
    "audit_log",
    "grants",
    "tokens",
    "recipients",
    "shared_tables",
    "schemas",
    "shares",
    "set_locks",
    "publications",
)


def upgrade() -> None:
    _create_ledger()
    _create_shares()
    _create_recipients()
    _create_audit_log()


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)


def _create_ledger() -> None:
    _growing_table(
        "publications",
        sa.Column("table_name", sa.String(length=512), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("set_name", sa.String(length=255), nullable=False),
        sa.Column("table_format", sa.String(length=16), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("table_id", sa.String(length=64), nullable=False),
        sa.Column("metadata_location", sa.Text(), nullable=True),
        sa.Column("snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("delta_version", sa.BigInteger(), nullable=True),
        sa.Column("nessie_hash", sa.String(length=128), nullable=True),
        sa.Column("schema_string", sa.Text(), nullable=False),
        sa.Column("row_count", sa.BigInteger(), nullable=False),
        sa.Column("file_count", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("index_digest", sa.String(length=64), nullable=False),
        sa.Column("contract_digest", sa.String(length=128), nullable=False),
        sa.Column("verdicts", sa.JSON(), nullable=False),
        sa.Column("run_id", sa.String(length=255), nullable=False),
        sa.Column("partition_key", sa.String(length=255), nullable=False),
        sa.Column("audited", sa.Boolean(), nullable=False),
        sa.Column("rollback_of", sa.BigInteger(), nullable=True),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("table_name", "run_id", name=op.f("uq_publications_table_name_run_id")),
        sa.UniqueConstraint("table_name", "version", name=op.f("uq_publications_table_name_version")),
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


def _create_shares() -> None:
    _growing_table(
        "shares",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("name_key", sa.String(length=255), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("declared", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("id", name=op.f("uq_shares_id")),
        sa.UniqueConstraint("name_key", name=op.f("uq_shares_name_key")),
    )
    _growing_table(
        "schemas",
        sa.Column("share_key", KEY, nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("name_key", sa.String(length=255), nullable=False),
        sa.Column("declared", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["share_key"], ["shares.key"], name=op.f("fk_schemas_share_key"), ondelete="CASCADE"
        ),
        sa.UniqueConstraint("share_key", "name_key", name=op.f("uq_schemas_share_key_name_key")),
    )
    _growing_table(
        "shared_tables",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("schema_key", KEY, nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("name_key", sa.String(length=255), nullable=False),
        sa.Column("lake_table", sa.String(length=512), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("history", sa.Boolean(), nullable=False),
        sa.Column("declared", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["schema_key"], ["schemas.key"], name=op.f("fk_shared_tables_schema_key"), ondelete="CASCADE"
        ),
        sa.UniqueConstraint("id", name=op.f("uq_shared_tables_id")),
        sa.UniqueConstraint("schema_key", "name_key", name=op.f("uq_shared_tables_schema_key_name_key")),
    )
    op.create_index(op.f("ix_shared_tables_lake_table"), "shared_tables", ["lake_table"], unique=False)


def _create_recipients() -> None:
    _growing_table(
        "recipients",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("name_key", sa.String(length=255), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.UniqueConstraint("id", name=op.f("uq_recipients_id")),
        sa.UniqueConstraint("name_key", name=op.f("uq_recipients_name_key")),
    )
    _growing_table(
        "tokens",
        sa.Column("recipient_key", KEY, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["recipient_key"], ["recipients.key"], name=op.f("fk_tokens_recipient_key"), ondelete="CASCADE"
        ),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    _growing_table(
        "grants",
        sa.Column("recipient_key", KEY, nullable=False),
        sa.Column("share_key", KEY, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["recipient_key"], ["recipients.key"], name=op.f("fk_grants_recipient_key"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["share_key"], ["shares.key"], name=op.f("fk_grants_share_key"), ondelete="RESTRICT"
        ),
        sa.UniqueConstraint("recipient_key", "share_key", name=op.f("uq_grants_recipient_key_share_key")),
    )


def _create_audit_log() -> None:
    _growing_table(
        "audit_log",
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
    )
    op.create_index(op.f("ix_audit_log_at"), "audit_log", ["at"], unique=False)
    op.create_index(op.f("ix_audit_log_recipient"), "audit_log", ["recipient"], unique=False)


def _growing_table(name: str, *parts: SchemaItem) -> None:
    """A table whose integer key grows with every insert and is never used again."""
    op.create_table(
        name,
        sa.Column("key", KEY, autoincrement=True, nullable=False),
        *parts,
        sa.PrimaryKeyConstraint("key", name=op.f(f"pk_{name}")),
        sqlite_autoincrement=True,
    )
