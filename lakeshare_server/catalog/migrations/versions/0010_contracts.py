"""Published contracts, and the dates on which tables of their earlier versions are not shared any more."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "contracts",
        sa.Column("key", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("digest", sa.String(128), nullable=False),
        sa.Column("set_name", sa.String(255), nullable=False),
        sa.Column("version", sa.String(255), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_contracts"),
        sa.UniqueConstraint("digest", name="uq_contracts_digest"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_publications_set_name", "publications", ["set_name"])
    op.add_column("shared_tables", sa.Column("retire_date", sa.String(10), nullable=True))
    op.add_column("shared_tables", sa.Column("successor", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("shared_tables", "successor")
    op.drop_column("shared_tables", "retire_date")
    op.drop_index("ix_publications_set_name", "publications")
    op.drop_table("contracts")
