"""When the run of a publication began, and its trace."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("publications", sa.Column("started_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("publications", sa.Column("traceparent", sa.String(64), nullable=True))


def downgrade() -> None:
    op.drop_column("publications", "traceparent")
    op.drop_column("publications", "started_at")
