"""The configuration of an object that files declare."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

TABLES = ("followed_tables", "shares", "shared_tables", "recipients", "groups", "grants", "group_grants")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("configuration", sa.String(255), nullable=True))


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "configuration")
