"""Templates and the files beside them: everything a page needs comes from this package."""

import hashlib
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from lakeshare_server.pages.headers import STATIC_PATH
from lakeshare_server.settings import PORTAL_PATH, ServerSettings

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def page(template: str, settings: ServerSettings, status: int = 200, **told: Any) -> Response:
    """A page in HTML; whatever is told is text, never markup."""
    text = (
        _templates()
        .get_template(template)
        .render(
            provider=settings.provider_name or settings.host_name(),
            contact=settings.provider_contact,
            portal_path=settings.root_path() + PORTAL_PATH,
            static=lambda name: settings.root_path() + _static_path(name),
            **told,
        )
    )
    # Names may hold half a surrogate pair, which has no UTF-8.
    body = text.encode("utf-8", "replace")
    return Response(body, status, media_type="text/html; charset=utf-8")


def static_file(name: str) -> tuple[bytes, str, str] | None:
    """The bytes, media type and digest of a file of pages; None when there is none of that name."""
    return _static_files().get(name)


@lru_cache(1)
def _static_files() -> dict[str, tuple[bytes, str, str]]:
    found = {}
    for path in STATIC.iterdir():
        if path.suffix in MEDIA_TYPES:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:16]
            found[path.name] = content, MEDIA_TYPES[path.suffix], digest
    return found


@lru_cache(1)
def _templates() -> Environment:
    loader = PackageLoader("lakeshare_server.pages")
    made = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters.update(moment=moment, iso=_iso)
    return made


def _static_path(name: str) -> str:
    """The digest makes an edited file another one to the browser."""
    return f"{STATIC_PATH}/{name}?v={_static_files()[name][2]}"


def moment(at: datetime) -> str:
    """A time as a person reads it."""
    utc = at.astimezone(UTC)
    return f"{utc.day} {utc:%B %Y, %H:%M} UTC"


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
