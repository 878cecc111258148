"""The oldest revision that can use the database, so that old and new servers share it during an upgrade."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A later migration that old servers cannot live with raises it to its own revision (docs/adr/0085).
    op.add_column(
        "catalog_state", sa.Column("compatible_from", sa.String(64), nullable=False, server_default=revision)
    )


def downgrade() -> None:
    op.drop_column("catalog_state", "compatible_from")
