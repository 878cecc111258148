"""How much a recipient may ask for, and how much it did."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("recipients", sa.Column("limits", sa.JSON(), nullable=True))
    op.create_table(
        "allowances",
        sa.Column("key", KEY, autoincrement=True, nullable=False),
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("window_began_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("taken", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_allowances")),
        sa.UniqueConstraint("subject", "kind", name=op.f("uq_allowances_subject_kind")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_allowances_window_began_at"), "allowances", ["window_began_at"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_allowances_window_began_at"), table_name="allowances")
    op.drop_table("allowances")
    op.drop_column("recipients", "limits")
