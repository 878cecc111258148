"""API keys of administrators: random, shown once, kept only as their SHA-256. Roles are judged in `access`."""

import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast, get_args

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import AdminKeyRow
from lakeshare_server.catalog.sharing.editing import Edit, editing, require_aware
from lakeshare_server.catalog.tokens import new_token, token_digest
from lakeshare_server.errors import BadRequest, NameTaken, NotFound

Role = Literal["owner", "steward", "auditor"]
# Whoever finds a key where none should be, a person or a scanner, knows what it is.
PREFIX = "lakeshare-admin-"
FIRST = "first"
FIRST_BY = "lakeshare serve"
NAME = re.compile(r"[^\x00-\x20\x7f:/]{1,200}")


@dataclass(frozen=True)
class AdminKey:
    """A key, without the key itself."""

    id: str
    name: str
    role: Role
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    revoked_at: datetime | None

    def is_valid(self, now: datetime) -> bool:
        """Whether it opens anything at that moment."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


def add_admin_key(
    edit: Edit, name: str, role: str, *, expires_at: datetime | None = None
) -> tuple[AdminKey, str]:
    """Make a key; returns it with the key itself, told only here.

    Raises:
        BadRequest: the name, the role or the end cannot be used.
        NameTaken: a key has, or had, this name.
    """
    if not NAME.fullmatch(name):
        hint = "Use 1 to 200 characters without space, slash or colon: the audit log tells people by them."
        raise BadRequest("name", name, hint)
    if role not in get_args(Role):
        raise BadRequest("role", role, f"It is one of {', '.join(get_args(Role))}.")
    require_aware("expires_at", expires_at)
    if expires_at is not None and expires_at <= edit.at:
        raise BadRequest("expires_at", expires_at.isoformat(), "Give a time that is still to come.")
    if _row(edit.session, name) is not None:
        hint = "Choose another name, like one with a date: the audit log knows whom by the old one."
        raise NameTaken(f"there is, or was, an administrator's key {name}", hint)
    key = PREFIX + new_token()
    row = AdminKeyRow(
        id=str(uuid.uuid4()),
        name=name,
        role=role,
        digest=token_digest(key),
        created_at=edit.at,
        created_by=edit.by,
        expires_at=expires_at,
    )
    edit.session.add(row)
    edit.session.flush()
    edit.changed("add_admin_key", name, None, _told(row))
    return _key(row), key


def revoke_admin_key(edit: Edit, name: str) -> AdminKey:
    """End a key at once; its name stays taken.

    Raises:
        NotFound: there is no such key.
    """
    row = _row(edit.session, name)
    if row is None:
        raise NotFound("Administrator's key", name)
    before = _told(row)
    row.revoked_at = row.revoked_at or edit.at
    edit.session.flush()
    edit.changed("revoke_admin_key", name, before, _told(row))
    return _key(row)


def admin_keys(session: Session) -> list[AdminKey]:
    """All keys in the order they were made, revoked ones too."""
    return [_key(row) for row in session.scalars(select(AdminKeyRow).order_by(AdminKeyRow.key))]


def admin_key_of(session: Session, key: str) -> AdminKey | None:
    """What is kept of a key, if it is one that is valid now."""
    # Looked up by a digest of 256 random bits: how long it takes tells nothing about another key.
    row = session.scalars(select(AdminKeyRow).where(AdminKeyRow.digest == token_digest(key))).one_or_none()
    found = None if row is None else _key(row)
    return found if found is not None and found.is_valid(datetime.now(UTC)) else None


def first_admin_key(catalog: Catalog) -> str | None:
    """The first key of a catalog, an owner's; None when it ever had one: nobody is let in a second time.

    Raises:
        Unavailable: the database does not answer.
    """
    with catalog.reading() as session:
        if _has_any(session):
            return None
    with editing(catalog, FIRST_BY) as edit:
        # Writers take turns: of two servers that start at once, the second sees the first one's key.
        return None if _has_any(edit.session) else add_admin_key(edit, FIRST, "owner")[1]


def _has_any(session: Session) -> bool:
    return session.scalars(select(AdminKeyRow.key).limit(1)).one_or_none() is not None


def _row(session: Session, name: str) -> AdminKeyRow | None:
    return session.scalars(select(AdminKeyRow).where(AdminKeyRow.name == name)).one_or_none()


def _key(row: AdminKeyRow) -> AdminKey:
    return AdminKey(
        id=row.id,
        name=row.name,
        role=cast(Role, row.role),
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )


def _told(row: AdminKeyRow) -> dict[str, Any]:
    ends = {
        name: moment.isoformat()
        for name, moment in (("expires_at", row.expires_at), ("revoked_at", row.revoked_at))
        if moment is not None
    }
    return {"name": row.name, "role": row.role, **ends}
