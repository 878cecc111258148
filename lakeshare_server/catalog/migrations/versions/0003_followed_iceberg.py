"""Followed Iceberg tables: which table it was when it was followed, and the columns of each numbered snapshot."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # All that was followed before is a Delta table, which has neither.
    op.add_column("followed_tables", sa.Column("table_id", sa.String(length=64), nullable=True))
    op.add_column("followed_tables", sa.Column("table_location", sa.Text(), nullable=True))
    op.add_column("publications", sa.Column("schema_id", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("publications", "schema_id")
    for column in ("table_location", "table_id"):
        op.drop_column("followed_tables", column)
