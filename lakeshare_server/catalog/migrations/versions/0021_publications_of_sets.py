"""The publications of a set in the order of their keys: monitoring and the console read the last ones only."""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_publications_sets", "publications", ["set_name", "key"])
    op.drop_index("ix_publications_set_name", "publications")


def downgrade() -> None:
    op.create_index("ix_publications_set_name", "publications", ["set_name"])
    op.drop_index("ix_publications_sets", "publications")
