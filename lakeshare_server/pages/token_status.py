"""How it stands with the token that a page was opened with."""

from datetime import UTC, datetime, timedelta
from typing import Any

from lakeshare_server.catalog.sharing import look
from lakeshare_server.routes.context import Asked

SOON = timedelta(days=14)


def token_status(by: Asked) -> dict[str, Any]:
    """Whose token it is, its state and its end, as JSON's types."""
    used = by.note.access.credential_id if by.note.access is not None else None
    with by.parts.catalog.reading() as session:
        tokens = look.recipient(session, by.reader.name).tokens
    # Those of an issuer elsewhere are not ours to tell of.
    token = next((one for one in tokens if one.id == used), None)
    ends = by.reader.expires_at
    now = datetime.now(UTC)
    is_replaced = token is not None and token.superseded_at is not None
    state = "replaced" if is_replaced else "ends soon" if ends is not None and ends - now < SOON else "valid"
    told = {
        "recipient": by.reader.name,
        "state": state,
        "told": _told(ends, is_replaced=is_replaced),
        "expiresAt": _iso(ends),
        "createdAt": _iso(token.created_at if token else None),
        "lastUsedAt": _iso(token.last_used_at if token else None),
    }
    return {name: value for name, value in told.items() if value is not None}


def _told(ends: datetime | None, *, is_replaced: bool) -> str:
    until = "further notice" if ends is None else f"{ends.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    if is_replaced:
        return f"There is a newer token; this one works until {until}"
    return f"The token works until {until}"


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat()
