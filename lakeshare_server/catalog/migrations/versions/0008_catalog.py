"""The tables of the catalog: ledger, shares, recipients, grants, queries, audit log."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = None
branch_labels = None
depends_on = None

GENESIS = "0" * 64
# Children before their parents.
TABLES = (
    "usage_days", "audit_journals", "audit_chain", "audit_log", "async_queries", "catalog_state", "admin_keys",
    "group_grants", "grants", "group_members", "groups", "federation_policies", "activations", "allowances",
    "token_uses", "tokens", "recipients", "shared_tables", "schemas", "shares", "followed_tables", "set_locks",
    "publications",
)


Column = Callable[..., sa.Column[Any]]  # makes the column of a name


def _column(type_: Any, **options: Any) -> Column:
    return partial(sa.Column, type_=type_, nullable=False, **options)


def _optional(column: Column) -> Column:
    return partial(column, nullable=True)


KEY = _column(sa.BigInteger().with_variant(sa.Integer(), "sqlite"))
ID, KIND, WORD, NAME, TABLE = (_column(sa.String(length)) for length in (36, 16, 64, 255, 512))
TEXT, LONG, INTEGER, BOOLEAN = map(_column, (sa.Text(), sa.BigInteger(), sa.Integer(), sa.Boolean()))
TIME, JSON = _column(sa.DateTime(timezone=True)), _column(sa.JSON(none_as_null=True))
FLAG = partial(BOOLEAN, server_default=sa.false())
EDITED: dict[str, Any] = {"created_by": _optional(NAME), "updated_at": _optional(TIME), "updated_by": _optional(NAME)}
TERMS: dict[str, Any] = {
    "created_at": TIME, "created_by": _optional(NAME), "starts_at": _optional(TIME), "ends_at": _optional(TIME),
    "rule": _optional(TEXT),
}


def _create_table(
    name: str, primary: str = "key", /, *, parents: Mapping[str, tuple[str, str]] | None = None,
    unique: Sequence[str] = (), indexes: Sequence[str] = (), **columns: Column,
) -> sa.Table:
    """Creates a table; `parents` maps columns to their parent table and its ON DELETE action.

    A table whose primary key is `key` has this column first, and SQLite never uses a number of it again.
    """
    is_growing = primary == "key" and "key" not in columns
    columns = {"key": KEY, **columns} if is_growing else columns
    table = op.create_table(
        name,
        *(make(column) for column, make in columns.items()),
        *(
            sa.ForeignKeyConstraint([column], [f"{parent}.key"], name=f"fk_{name}_{column}", ondelete=action)
            for column, (parent, action) in (parents or {}).items()
        ),
        sa.PrimaryKeyConstraint(*primary.split(), name=f"pk_{name}"),
        *(sa.UniqueConstraint(*names.split(), name=f"uq_{name}_{'_'.join(names.split())}") for names in unique),
        **({"sqlite_autoincrement": True} if is_growing else {}),
    )
    for column in indexes:
        op.create_index(f"ix_{name}_{column}", name, [column])
    return table


def upgrade() -> None:
    # ledger
    _create_table(
        "publications", table_name=TABLE, version=LONG, set_name=NAME, table_format=KIND, location=TEXT,
        table_id=WORD, metadata_location=_optional(TEXT), snapshot_id=_optional(LONG),
        schema_id=_optional(LONG), delta_version=_optional(LONG), nessie_hash=_optional(_column(sa.String(128))),
        schema_string=TEXT, row_count=LONG, file_count=LONG, size_bytes=LONG, index_digest=WORD,
        contract_digest=_column(sa.String(128)), verdicts=JSON, run_id=NAME, partition_key=NAME, audited=BOOLEAN,
        rollback_of=_optional(LONG), published_at=TIME, changes_digest=_optional(WORD),
        unique=["table_name run_id", "table_name version"], indexes=["nessie_hash", "run_id"],
    )
    _create_table(
        "set_locks", "set_name", set_name=NAME, token=LONG, owner=_optional(NAME), host=_optional(NAME),
        pid=_optional(LONG), process_start=_optional(WORD), expires_at=_optional(TIME),
    )
    _create_table(
        "followed_tables", table_name=TABLE, location=TEXT, check_every_s=_column(sa.Double()), start_version=LONG,
        table_id=_optional(WORD), table_location=_optional(TEXT), created_at=TIME, applied=FLAG,
        unique=["table_name"],
    )
    # shares
    _create_table(
        "shares", id=ID, name=NAME, name_key=NAME, comment=_optional(TEXT), declared=BOOLEAN, created_at=TIME,
        display_name=_optional(NAME), properties=_optional(JSON), owner=_optional(NAME), applied=FLAG,
        revision=partial(LONG, server_default="1"), **EDITED, unique=["id", "name_key"],
    )
    _create_table(
        "schemas", share_key=KEY, name=NAME, name_key=NAME, declared=BOOLEAN,
        parents={"share_key": ("shares", "CASCADE")}, unique=["share_key name_key"],
    )
    _create_table(
        "shared_tables", id=ID, schema_key=KEY, name=NAME, name_key=NAME, lake_table=TABLE, comment=_optional(TEXT),
        history=BOOLEAN, declared=BOOLEAN, start_version=_optional(LONG), directory_access=FLAG,
        kind=partial(KIND, server_default="TABLE"), rule=_optional(TEXT), publication=_optional(LONG), applied=FLAG,
        added_at=_optional(TIME), added_by=_optional(NAME), parents={"schema_key": ("schemas", "CASCADE")},
        unique=["id", "schema_key name_key"], indexes=["lake_table"],
    )
    # recipients
    of_recipient = {"recipient_key": ("recipients", "CASCADE")}
    _create_table(
        "recipients", id=ID, name=NAME, name_key=NAME, comment=_optional(TEXT), created_at=TIME,
        revoked_at=_optional(TIME), owner=_optional(NAME), properties=_optional(JSON),
        authentication=_column(sa.String(32), server_default="TOKEN"), ip_allow=_optional(JSON),
        expires_at=_optional(TIME), activated_at=_optional(TIME), agreement=_optional(TEXT),
        agreement_accepted_at=_optional(TIME), agreement_accepted_from=_optional(WORD), applied=FLAG,
        limits=_optional(JSON), revision=partial(LONG, server_default="1"), **EDITED, unique=["id", "name_key"],
    )
    _create_table(
        "tokens", id=ID, recipient_key=KEY, kind=KIND, digest=WORD, created_at=TIME, created_by=_optional(NAME),
        expires_at=_optional(TIME), superseded_at=_optional(TIME), revoked_at=_optional(TIME),
        parents=of_recipient, unique=["digest", "id"],
    )
    _create_table(
        "token_uses", token_id=ID, last_used_at=TIME, last_used_from=_optional(WORD), unique=["token_id"]
    )
    _create_table(
        "allowances", subject=WORD, kind=_column(sa.String(32)), window_began_at=TIME, taken=LONG,
        unique=["subject kind"], indexes=["window_began_at"],
    )
    _create_table(
        "activations", id=ID, recipient_key=KEY, digest=WORD, token_expires_at=_optional(TIME), created_at=TIME,
        created_by=_optional(NAME), expires_at=TIME, used_at=_optional(TIME), used_from=_optional(WORD),
        revoked_at=_optional(TIME), parents=of_recipient, unique=["digest", "id"],
    )
    _create_table(
        "federation_policies", id=ID, recipient_key=KEY, name=NAME, name_key=NAME, comment=_optional(TEXT),
        issuer=TEXT, subject_claim=NAME, subject=TEXT, audiences=JSON, created_at=TIME, updated_at=_optional(TIME),
        parents=of_recipient, unique=["id", "recipient_key name_key"], indexes=["issuer"],
    )
    _create_table(
        "groups", id=ID, name=NAME, name_key=NAME, comment=_optional(TEXT), created_at=TIME, applied=BOOLEAN,
        revision=LONG, **EDITED, unique=["id", "name_key"],
    )
    _create_table(
        "group_members", "group_key recipient_key", group_key=KEY, recipient_key=KEY,
        parents={"group_key": ("groups", "CASCADE"), **of_recipient}, indexes=["recipient_key"],
    )
    # grants
    share = {"share_key": ("shares", "RESTRICT")}
    _create_table(
        "grants", recipient_key=KEY, share_key=KEY, **TERMS, applied=FLAG,
        parents={"recipient_key": ("recipients", "CASCADE"), **share}, unique=["recipient_key share_key"],
        indexes=["share_key"],
    )
    _create_table(
        "group_grants", group_key=KEY, share_key=KEY, **TERMS, applied=BOOLEAN,
        parents={"group_key": ("groups", "CASCADE"), **share}, unique=["group_key share_key"],
        indexes=["share_key"],
    )
    # administration
    _create_table(
        "admin_keys", id=ID, name=NAME, role=KIND, digest=WORD, created_at=TIME, created_by=_optional(NAME),
        expires_at=_optional(TIME), revoked_at=_optional(TIME), unique=["digest", "id", "name"],
    )
    state = _create_table("catalog_state", key=partial(INTEGER, autoincrement=False), generation=LONG)
    op.bulk_insert(state, [{"key": 1, "generation": 1}])
    _create_table(
        "async_queries", id=ID, recipient_id=ID, table_id=ID, kind=KIND, request=TEXT, idempotency_key=NAME,
        request_digest=WORD, state=KIND, attempts=INTEGER, error_code=_optional(WORD),
        error_message=_optional(TEXT), version=_optional(LONG), created_at=TIME, started_at=_optional(TIME),
        heartbeat_at=_optional(TIME), finished_at=_optional(TIME), expires_at=TIME,
        unique=["id", "recipient_id table_id idempotency_key"], indexes=["expires_at", "state"],
    )
    # audit log
    _create_table(
        "audit_log", at=TIME, recipient=_optional(NAME), action=WORD, object_name=_optional(TEXT), status=INTEGER,
        error_code=_optional(WORD), version=_optional(LONG), files=_optional(LONG), request_id=WORD,
        ip=_optional(WORD), user_agent=_optional(TEXT), elapsed_ms=LONG, principal=_optional(NAME),
        details=_optional(JSON), kind=partial(KIND, server_default="request"), size_bytes=_optional(LONG),
        rows=_optional(LONG), previous_hash=_optional(WORD), hash=_optional(WORD), indexes=["at"],
    )
    has_principal = sa.text("principal IS NOT NULL")
    op.create_index(
        "ix_audit_log_principal", "audit_log", ["principal"], sqlite_where=has_principal,
        postgresql_where=has_principal,
    )
    op.create_index("ix_audit_log_recipient", "audit_log", ["recipient"])
    chain = _create_table("audit_chain", "name", name=KIND, number=LONG, hash=WORD)
    op.bulk_insert(chain, [{"name": name, "number": 0, "hash": GENESIS} for name in ("head", "anchor")])
    _create_table("audit_journals", "name", name=WORD, taken=LONG)
    _create_table(
        "usage_days", day=_column(sa.String(10)), recipient=NAME, object_name=_optional(TEXT),
        version=_optional(LONG), requests=LONG, queries=LONG, files=LONG, size_bytes=LONG, refused=LONG,
        indexes=["day"],
    )


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)
