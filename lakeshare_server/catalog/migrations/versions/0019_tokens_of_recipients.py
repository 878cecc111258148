"""An index of tokens by recipient, which the pages of recipients and their removal look up."""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_tokens_recipient_key", "tokens", ["recipient_key"])


def downgrade() -> None:
    op.drop_index("ix_tokens_recipient_key", "tokens")
