"""Signed statements of publications, and the public keys that have signed them."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "evidence",
        sa.Column("key", key, nullable=False),
        sa.Column("table_name", sa.String(512), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("entries_digest", sa.String(64), nullable=False),
        sa.Column("salt", sa.String(64), nullable=False),
        sa.Column("envelope", sa.Text(), nullable=False),
        sa.Column("signed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_evidence"),
        sa.UniqueConstraint("table_name", "version", name="uq_evidence_table_name_version"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_evidence_entries_digest", "evidence", ["entries_digest"])
    op.create_table(
        "evidence_keys",
        sa.Column("key", key, nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("public_key", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("retired_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("key", name="pk_evidence_keys"),
        sa.UniqueConstraint("key_id", name="uq_evidence_keys_key_id"),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    op.drop_table("evidence_keys")
    op.drop_index("ix_evidence_entries_digest", "evidence")
    op.drop_table("evidence")
