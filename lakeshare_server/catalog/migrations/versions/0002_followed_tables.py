"""Followed tables, async queries, the catalog's generation; what shares and shared tables say of themselves."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_followed_tables()
    _create_async_queries()
    state = op.create_table(
        "catalog_state",
        sa.Column("key", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_catalog_state")),
    )
    op.bulk_insert(state, [{"key": 1, "generation": 1}])
    op.add_column("shares", sa.Column("display_name", sa.String(length=255), nullable=True))
    op.add_column("shares", sa.Column("properties", sa.JSON(), nullable=True))
    op.add_column("shared_tables", sa.Column("start_version", sa.BigInteger(), nullable=True))
    op.add_column(
        "shared_tables",
        sa.Column("directory_access", sa.Boolean(), nullable=False, server_default=sa.false()),
    )


def downgrade() -> None:
    for column in ("directory_access", "start_version"):
        op.drop_column("shared_tables", column)
    for column in ("properties", "display_name"):
        op.drop_column("shares", column)
    for table in ("catalog_state", "async_queries", "followed_tables"):
        op.drop_table(table)


def _create_followed_tables() -> None:
    op.create_table(
        "followed_tables",
        sa.Column("key", KEY, autoincrement=True, nullable=False),
        sa.Column("table_name", sa.String(length=512), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("check_every_s", sa.Double(), nullable=False),
        sa.Column("start_version", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_followed_tables")),
        sa.UniqueConstraint("table_name", name=op.f("uq_followed_tables_table_name")),
        sqlite_autoincrement=True,
    )


def _create_async_queries() -> None:
    op.create_table(
        "async_queries",
        sa.Column("key", KEY, autoincrement=True, nullable=False),
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
