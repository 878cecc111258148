"""Pages: templates, static files, headers, and the snippets of a table."""

import hashlib
from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakeshare_server.access.table_access import TableView
from lakeshare_server.catalog import states
from lakeshare_server.catalog.states import RecipientState
from lakeshare_server.provider.serveability import TableServeability
from lakeshare_server.routes.context import AppState, TableRequest
from lakeshare_server.settings import ACTIVATION_PATH, CONSOLE_PATH, PORTAL_PATH, ServerSettings
from lakeshare_server.snippets import EngineSnippet, make_snippet_table, make_snippets

STATIC_PATH = "/pages"

# Scripts are our own files, and write only text into a page: no script of a provider or recipient runs.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    # A link is a secret until it was used: no other site may learn the reader's address.
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "X-Robots-Tag": "noindex, nofollow",
}
# Under `no-referrer` browsers name the origin of a form `null`, and the console compares it.
CONSOLE_HEADERS = HEADERS | {"Referrer-Policy": "same-origin"}
NO_STORE = "no-store"
LOOK_ACTION = "look_at_link"


class PageHeaders:
    """Adds the headers to every response below the paths of pages, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_of_pages(scope["path"]):
            await self.app(scope, receive, send)
            return
        if scope["path"].startswith(f"{ACTIVATION_PATH}/"):
            # The audit log records the path of unknown routes, and these paths are secrets.
            scope["state"]["audit_record"].action = LOOK_ACTION

        is_of_console = _is_below(scope["path"], CONSOLE_PATH)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in (CONSOLE_HEADERS if is_of_console else HEADERS).items():
                    headers[name] = value
                # Static files have their own; profiles, links and rows are not cached.
                headers.setdefault("Cache-Control", NO_STORE)
            await send(message)

        await self.app(scope, receive, send_guarded)


def _is_of_pages(path: str) -> bool:
    roots = (ACTIVATION_PATH, PORTAL_PATH, CONSOLE_PATH, STATIC_PATH)
    return path == "/" or any(_is_below(path, root) for root in roots)


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")


STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def render_page(template: str, settings: ServerSettings, status: int = 200, **values: Any) -> Response:
    """A page in HTML; values are text, never markup."""
    template_file = _templates().get_template(template)
    text = template_file.render(
        provider=settings.provider_name or settings.host_name(),
        contact=settings.provider_contact,
        portal_path=settings.root_path() + PORTAL_PATH,
        # With its digest, an edited file is another file to the browser.
        static=lambda name: f"{settings.root_path()}{STATIC_PATH}/{name}?v={static_files()[name][2]}",
        **values,
    )
    # Names may contain half a surrogate pair, which has no UTF-8.
    body = text.encode("utf-8", "replace")
    return Response(body, status, media_type="text/html; charset=utf-8")


@lru_cache(1)
def static_files() -> dict[str, tuple[bytes, str, str]]:
    """The bytes, media type and digest of each static file."""
    files = {}
    for path in STATIC.iterdir():
        if path.suffix in MEDIA_TYPES:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:16]
            files[path.name] = content, MEDIA_TYPES[path.suffix], digest
    return files


@lru_cache(1)
def _templates() -> Environment:
    loader = PackageLoader("lakeshare_server.pages")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["moment"] = format_moment
    environment.filters["short"] = lambda at: f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"
    environment.filters["bytes"] = format_bytes
    environment.filters["iso"] = lambda at: at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return environment


def format_moment(at: datetime) -> str:
    utc = at.astimezone(UTC)
    return f"{utc.day} {utc:%B %Y, %H:%M} UTC"


def table_code(request: TableRequest) -> list[dict[str, Any]]:
    """The snippets of a table as JSON types. Raises `NotFound`: the table has no publication."""
    with request.app_state.catalog.reading() as session:
        recipient = states.get_recipient(session, request.reader.name)
    return [asdict(snippet) for snippet in view_code(request.app_state, request.view, recipient)]


def view_code(app_state: AppState, view: TableView, recipient: RecipientState) -> list[EngineSnippet]:
    """The snippets of a table that a recipient may read; raises as `table_code`."""
    judging = TableServeability(app_state.iceberg_tables, app_state.signers, app_state.settings)
    served = judging.judge(view)
    table = make_snippet_table(
        view.entry,
        served,
        profile=profile_name(recipient.name),
        iceberg_url=app_state.settings.iceberg_url(),
        sharing_url=app_state.settings.base_url(),
    )
    # Snippets for the Iceberg REST API read a bearer token from the profile; other profiles have none.
    return make_snippets(table, served, None if recipient.authentication == "TOKEN" else "delta-sharing")


def profile_name(recipient: str) -> str:
    """The file name of a recipient's profile, without characters that files or URLs of tables cannot have."""
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in recipient)
    return f"{plain.strip('.-')[:100] or 'recipient'}.share"


def format_bytes(size: int | None) -> str:
    """A size in bytes for people, like 1.5 GB; an empty text without one."""
    if size is None:
        return ""
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = min(max(len(str(size)) - 1, 0) // 3, len(units) - 1)
    value = size / 1000**power
    return f"{value:.1f} {units[power]}" if power and value < 100 else f"{value:.0f} {units[power]}"
