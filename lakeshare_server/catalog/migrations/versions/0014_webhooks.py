"""Webhooks of recipients with their deliveries, and the times of the feed."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("shared_tables", sa.Column("retire_noticed_at", MOMENT, nullable=True))
    # Notices of earlier releases have no time: the feed shows them from the time of this migration on.
    op.execute("UPDATE shared_tables SET retire_noticed_at = CURRENT_TIMESTAMP WHERE retire_date IS NOT NULL")
    op.create_index("ix_publications_published_at", "publications", ["published_at"])
    op.create_table(
        "webhooks",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("recipient_key", KEY, nullable=False),
        sa.Column("share_key", KEY, nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("previous_secret", sa.Text(), nullable=True),
        sa.Column("previous_secret_until", MOMENT, nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("created_by", sa.String(255), nullable=True),
        sa.Column("cursor", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("paused_until", MOMENT, nullable=True),
        sa.Column("delivered_at", MOMENT, nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("lease", sa.BigInteger(), nullable=False),
        sa.Column("leased_until", MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("key", name="pk_webhooks"),
        sa.UniqueConstraint("id", name="uq_webhooks_id"),
        sa.ForeignKeyConstraint(
            ["recipient_key"], ["recipients.key"], name="fk_webhooks_recipient_key", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["share_key"], ["shares.key"], name="fk_webhooks_share_key", ondelete="CASCADE"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_webhooks_recipient_key", "webhooks", ["recipient_key"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("key", KEY, nullable=False),
        sa.Column("webhook_key", KEY, nullable=False),
        sa.Column("event_id", sa.String(64), nullable=False),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("table_id", sa.String(36), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.Column("next_attempt_at", MOMENT, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("finished_at", MOMENT, nullable=True),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("key", name="pk_webhook_deliveries"),
        sa.UniqueConstraint("webhook_key", "event_id", name="uq_webhook_deliveries_webhook_key_event_id"),
        sa.ForeignKeyConstraint(
            ["webhook_key"], ["webhooks.key"], name="fk_webhook_deliveries_webhook_key", ondelete="CASCADE"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_webhook_deliveries_due", "webhook_deliveries", ["state", "next_attempt_at"])


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_table("webhooks")
    op.drop_index("ix_publications_published_at", "publications")
    op.drop_column("shared_tables", "retire_noticed_at")
