"""The notice of a share for its recipients."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("shares", sa.Column("notice", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("shares", "notice")
