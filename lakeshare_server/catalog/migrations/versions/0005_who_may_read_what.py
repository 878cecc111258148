"""Who may read what: life cycles, rules and end dates of grants, groups, links, policies, administrators' keys."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KEEPS_NUMBERS = {"sqlite_autoincrement": True}


def upgrade() -> None:
    _create_admin_keys()
    _create_groups()
    _create_token_uses()
    _create_activations()
    _create_federation_policies()
    _create_group_grants()
    _create_group_members()
    op.add_column("audit_log", sa.Column("principal", sa.String(length=255), nullable=True))
    op.add_column("audit_log", sa.Column("details", sa.JSON(), nullable=True))
    op.create_index(op.f("ix_audit_log_principal"), "audit_log", ["principal"], unique=False)
    op.add_column("grants", sa.Column("created_by", sa.String(length=255), nullable=True))
    op.add_column("grants", sa.Column("starts_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("grants", sa.Column("ends_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("grants", sa.Column("rule", sa.Text(), nullable=True))
    op.add_column("grants", sa.Column("applied", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index(op.f("ix_grants_share_key"), "grants", ["share_key"], unique=False)
    _alter_recipients()
    _alter_shares()
    _alter_tokens()


def downgrade() -> None:
    with op.batch_alter_table("tokens", table_kwargs=KEEPS_NUMBERS) as tokens:
        tokens.drop_constraint(op.f("uq_tokens_id"), type_="unique")
        for column in ("superseded_at", "created_by", "kind", "id"):
            tokens.drop_column(column)
    op.drop_column("shares", "updated_by")
    op.drop_column("shares", "updated_at")
    op.drop_column("shares", "created_by")
    op.drop_column("shares", "revision")
    op.drop_column("shares", "applied")
    op.drop_column("shares", "owner")
    op.drop_column("shared_tables", "added_by")
    op.drop_column("shared_tables", "added_at")
    op.drop_column("shared_tables", "applied")
    op.drop_column("shared_tables", "publication")
    op.drop_column("shared_tables", "rule")
    op.drop_column("shared_tables", "kind")
    op.drop_column("recipients", "updated_by")
    op.drop_column("recipients", "updated_at")
    op.drop_column("recipients", "created_by")
    op.drop_column("recipients", "revision")
    op.drop_column("recipients", "applied")
    op.drop_column("recipients", "agreement_accepted_from")
    op.drop_column("recipients", "agreement_accepted_at")
    op.drop_column("recipients", "agreement")
    op.drop_column("recipients", "activated_at")
    op.drop_column("recipients", "expires_at")
    op.drop_column("recipients", "ip_allow")
    op.drop_column("recipients", "authentication")
    op.drop_column("recipients", "properties")
    op.drop_column("recipients", "owner")
    op.drop_index(op.f("ix_grants_share_key"), table_name="grants")
    op.drop_column("grants", "applied")
    op.drop_column("grants", "rule")
    op.drop_column("grants", "ends_at")
    op.drop_column("grants", "starts_at")
    op.drop_column("grants", "created_by")
    op.drop_index(op.f("ix_audit_log_principal"), table_name="audit_log")
    op.drop_column("audit_log", "details")
    op.drop_column("audit_log", "principal")
    op.drop_index(op.f("ix_group_members_recipient_key"), table_name="group_members")
    op.drop_table("group_members")
    op.drop_index(op.f("ix_group_grants_share_key"), table_name="group_grants")
    op.drop_table("group_grants")
    op.drop_index(op.f("ix_federation_policies_issuer"), table_name="federation_policies")
    op.drop_table("federation_policies")
    op.drop_table("activations")
    op.drop_table("token_uses")
    op.drop_table("groups")
    op.drop_table("admin_keys")


def _alter_recipients() -> None:
    op.add_column("recipients", sa.Column("owner", sa.String(length=255), nullable=True))
    op.add_column("recipients", sa.Column("properties", sa.JSON(), nullable=True))
    op.add_column(
        "recipients",
        sa.Column("authentication", sa.String(length=32), nullable=False, server_default="TOKEN"),
    )
    op.add_column("recipients", sa.Column("ip_allow", sa.JSON(), nullable=True))
    op.add_column("recipients", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("recipients", sa.Column("activated_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("recipients", sa.Column("agreement", sa.Text(), nullable=True))
    op.add_column("recipients", sa.Column("agreement_accepted_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("recipients", sa.Column("agreement_accepted_from", sa.String(length=64), nullable=True))
    op.add_column("recipients", sa.Column("applied", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("recipients", sa.Column("revision", sa.BigInteger(), nullable=False, server_default="1"))
    op.add_column("recipients", sa.Column("created_by", sa.String(length=255), nullable=True))
    op.add_column("recipients", sa.Column("updated_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("recipients", sa.Column("updated_by", sa.String(length=255), nullable=True))


def _alter_shares() -> None:
    op.add_column(
        "shared_tables", sa.Column("kind", sa.String(length=16), nullable=False, server_default="TABLE")
    )
    op.add_column("shared_tables", sa.Column("rule", sa.Text(), nullable=True))
    op.add_column("shared_tables", sa.Column("publication", sa.BigInteger(), nullable=True))
    op.add_column(
        "shared_tables", sa.Column("applied", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("shared_tables", sa.Column("added_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("shared_tables", sa.Column("added_by", sa.String(length=255), nullable=True))
    op.add_column("shares", sa.Column("owner", sa.String(length=255), nullable=True))
    op.add_column("shares", sa.Column("applied", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("shares", sa.Column("revision", sa.BigInteger(), nullable=False, server_default="1"))
    op.add_column("shares", sa.Column("created_by", sa.String(length=255), nullable=True))
    op.add_column("shares", sa.Column("updated_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("shares", sa.Column("updated_by", sa.String(length=255), nullable=True))


def _alter_tokens() -> None:
    for column in ("id", "kind", "created_by"):
        length = {"id": 36, "kind": 16, "created_by": 255}[column]
        op.add_column("tokens", sa.Column(column, sa.String(length=length), nullable=True))
    op.add_column("tokens", sa.Column("superseded_at", sa.DateTime(timezone=True), nullable=True))
    tokens = sa.table("tokens", sa.column("key"), sa.column("id"), sa.column("kind"))
    connection = op.get_bind()
    for key in connection.scalars(sa.select(tokens.c.key)).all():
        named = sa.update(tokens).where(tokens.c.key == key)
        connection.execute(named.values(id=str(uuid.uuid4()), kind="bearer"))
    with op.batch_alter_table("tokens", table_kwargs=KEEPS_NUMBERS) as batch:
        batch.alter_column("id", existing_type=sa.String(length=36), nullable=False)
        batch.alter_column("kind", existing_type=sa.String(length=16), nullable=False)
        batch.create_unique_constraint(op.f("uq_tokens_id"), ["id"])


def _create_admin_keys() -> None:
    op.create_table(
        "admin_keys",
        sa.Column("key", KEY, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_admin_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_admin_keys_digest")),
        sa.UniqueConstraint("id", name=op.f("uq_admin_keys_id")),
        sa.UniqueConstraint("name", name=op.f("uq_admin_keys_name")),
        sqlite_autoincrement=True,
    )


def _create_groups() -> None:
    op.create_table(
        "groups",
        sa.Column("key", KEY, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("name_key", sa.String(length=255), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("applied", sa.Boolean(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("updated_by", sa.String(length=255), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_groups")),
        sa.UniqueConstraint("id", name=op.f("uq_groups_id")),
        sa.UniqueConstraint("name_key", name=op.f("uq_groups_name_key")),
        sqlite_autoincrement=True,
    )


def _create_token_uses() -> None:
    op.create_table(
        "token_uses",
        sa.Column("key", KEY, autoincrement=True, nullable=False),
        sa.Column("token_id", sa.String(length=36), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_from", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_token_uses")),
        sa.UniqueConstraint("token_id", name=op.f("uq_token_uses_token_id")),
        sqlite_autoincrement=True,
    )


def _create_activations() -> None:
    op.create_table(
        "activations",
        sa.Column("key", KEY, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("recipient_key", KEY, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("token_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("used_from", sa.String(length=64), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["recipient_key"],
            ["recipients.key"],
            name=op.f("fk_activations_recipient_key"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_activations")),
        sa.UniqueConstraint("digest", name=op.f("uq_activations_digest")),
        sa.UniqueConstraint("id", name=op.f("uq_activations_id")),
        sqlite_autoincrement=True,
    )


def _create_federation_policies() -> None:
    op.create_table(
        "federation_policies",
        sa.Column("key", KEY, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("recipient_key", KEY, nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("name_key", sa.String(length=255), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("subject_claim", sa.String(length=255), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("audiences", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["recipient_key"],
            ["recipients.key"],
            name=op.f("fk_federation_policies_recipient_key"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_federation_policies")),
        sa.UniqueConstraint("id", name=op.f("uq_federation_policies_id")),
        sa.UniqueConstraint(
            "recipient_key", "name_key", name=op.f("uq_federation_policies_recipient_key_name_key")
        ),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_federation_policies_issuer"), "federation_policies", ["issuer"], unique=False)


def _create_group_grants() -> None:
    op.create_table(
        "group_grants",
        sa.Column("key", KEY, autoincrement=True, nullable=False),
        sa.Column("group_key", KEY, nullable=False),
        sa.Column("share_key", KEY, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=True),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rule", sa.Text(), nullable=True),
        sa.Column("applied", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["group_key"], ["groups.key"], name=op.f("fk_group_grants_group_key"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["share_key"], ["shares.key"], name=op.f("fk_group_grants_share_key"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_group_grants")),
        sa.UniqueConstraint("group_key", "share_key", name=op.f("uq_group_grants_group_key_share_key")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_group_grants_share_key"), "group_grants", ["share_key"], unique=False)


def _create_group_members() -> None:
    op.create_table(
        "group_members",
        sa.Column("group_key", KEY, nullable=False),
        sa.Column("recipient_key", KEY, nullable=False),
        sa.ForeignKeyConstraint(
            ["group_key"], ["groups.key"], name=op.f("fk_group_members_group_key"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["recipient_key"],
            ["recipients.key"],
            name=op.f("fk_group_members_recipient_key"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("group_key", "recipient_key", name=op.f("pk_group_members")),
    )
    op.create_index(op.f("ix_group_members_recipient_key"), "group_members", ["recipient_key"], unique=False)
