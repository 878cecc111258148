"""Maintenance of tables: publications that only hold other files, and versions that expired."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("publications", sa.Column("maintenance_of", sa.BigInteger(), nullable=True))
    op.create_index(
        "ix_publications_partitions",
        "publications",
        ["table_name", "version", "partition_key", "rollback_of", "maintenance_of"],
    )
    op.create_table(
        "expirations",
        sa.Column("key", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("table_name", sa.String(512), nullable=False),
        sa.Column("oldest_version", sa.BigInteger(), nullable=False),
        sa.Column("expired_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_expirations"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_expirations_table_name", "expirations", ["table_name"])


def downgrade() -> None:
    op.drop_table("expirations")
    op.drop_index("ix_publications_partitions", "publications")
    op.drop_column("publications", "maintenance_of")
