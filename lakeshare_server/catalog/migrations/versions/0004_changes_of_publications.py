"""Publications name the index of what they changed."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("publications", sa.Column("changes_digest", sa.String(length=64), nullable=True))


def downgrade() -> None:
    op.drop_column("publications", "changes_digest")
