"""Events in a chain: each holds the hash of the one before it. Those that are there already stay outside of it."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

GENESIS = "0" * 64
KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
COUNTS = ("requests", "queries", "files", "size_bytes", "refused")


def upgrade() -> None:
    op.drop_index(op.f("ix_audit_log_principal"), table_name="audit_log")
    some = sa.text("principal IS NOT NULL")
    op.create_index(
        op.f("ix_audit_log_principal"), "audit_log", ["principal"], sqlite_where=some, postgresql_where=some
    )
    op.add_column(
        "audit_log", sa.Column("kind", sa.String(length=16), nullable=False, server_default="request")
    )
    op.add_column("audit_log", sa.Column("size_bytes", sa.BigInteger(), nullable=True))
    op.add_column("audit_log", sa.Column("rows", sa.BigInteger(), nullable=True))
    op.add_column("audit_log", sa.Column("previous_hash", sa.String(length=64), nullable=True))
    op.add_column("audit_log", sa.Column("hash", sa.String(length=64), nullable=True))
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
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTS),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_usage_days")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_usage_days_day"), "usage_days", ["day"], unique=False)
    chain = op.create_table(
        "audit_chain",
        sa.Column("name", sa.String(length=16), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_audit_chain")),
    )
    newest = op.get_bind().execute(sa.text("SELECT max(key) FROM audit_log")).scalar() or 0
    ends = [{"name": name, "number": newest, "hash": GENESIS} for name in ("head", "anchor")]
    op.bulk_insert(chain, ends)


def downgrade() -> None:
    op.drop_index(op.f("ix_audit_log_principal"), table_name="audit_log")
    op.create_index(op.f("ix_audit_log_principal"), "audit_log", ["principal"], unique=False)
    op.drop_index(op.f("ix_usage_days_day"), table_name="usage_days")
    op.drop_table("usage_days")
    op.drop_table("audit_chain")
    op.drop_table("audit_journals")
    for column in ("hash", "previous_hash", "rows", "size_bytes", "kind"):
        op.drop_column("audit_log", column)
