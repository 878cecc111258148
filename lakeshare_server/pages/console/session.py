"""Sign-in to the console, and the checks before each page and each change.

A page needs a session whose role permits it; a change needs also the form token of the session.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse

from lakeshare_server import errors
from lakeshare_server.access.authentication import PERMISSIONS_BY_ROLE, Permission
from lakeshare_server.access.console_sessions import COOKIE, OTHER_SITE, SIGN_IN_COOKIE, ConsoleSession
from lakeshare_server.pages.rendering import render_page
from lakeshare_server.routes.admin import AdminErrors, AdminRequest
from lakeshare_server.routes.context import ISSUERS, AppState, AuditRecord, client_address, read_bounded_body
from lakeshare_server.routes.errors import Headers
from lakeshare_server.settings import CONSOLE_PATH, ServerSettings

FORM_TOKEN = "form_token"  # noqa: S105 - the name of a field
MAX_FIELDS = 1000
SAME_SITE = ("same-origin", "none")
# The parts of paths that name the object of a request in the audit log: a table in its share, or else one object.
OBJECTS = (("share", "schema", "table"), ("recipient",), ("group",), ("table",), ("reference",), ("backup",))
# What a page reports after a change, by the query's `done`: texts of the URL are never shown.
DONE = {
    "created": "Created.",
    "changed": "The change is made.",
    "removed": "Removed.",
    "granted": "Granted.",
    "revoked": "Revoked. It gives no access from now on.",
    "rolled-back": "Rolled back. The new number is the newest one now.",
    "discarded": "Discarded. Published data is unchanged.",
    "retried": "The audit has run again.",
    "started": "It has started. Open this page again for its progress.",
}


# The first part of the paths of pages, and its title in the navigation.
SECTIONS = (
    ("publications", "Publications"),
    ("quality", "Quality"),
    ("shares", "Shares"),
    ("recipients", "Recipients"),
    ("audit", "Audit"),
    ("backups", "Backups"),
    ("system", "System"),
)

SECTION_OF = {"tables": "shares", "drift": "shares", "groups": "recipients", "jobs": "quality"}


def console_url(settings: ServerSettings, *parts: object, **query: object) -> str:
    """The path of a page of the console, from unquoted parts; fields of the query without a value are left out."""
    path = "".join(f"/{quote(str(part), safe='')}" for part in parts)
    fields = {name: value for name, value in query.items() if value not in (None, "")}
    return settings.root_path() + CONSOLE_PATH + path + (f"?{urlencode(fields)}" if fields else "")


class Entered(dict[str, str]):
    """The fields of a refused form; others are empty texts."""

    def __missing__(self, _name: str) -> str:
        return ""


@dataclass(frozen=True)
class ConsoleRequest(AdminRequest):
    """A request of a signed-in administrator whose role permits it; `form` has the fields of a change."""

    session: ConsoleSession
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def revision(self) -> int | None:
        """The revision that a form was made of; None without one. Raises BadRequest for other values."""
        text = self.value("revision")
        if text and not (text.isascii() and text.isdigit() and len(text) < 19):
            raise errors.BadRequest("revision", text, "Open the page again and repeat the change.")
        return int(text) if text else None

    def may(self, permission: str) -> bool:
        """Whether the role permits `LOOK`, `SHARE` or `ADMINISTER`."""
        return Permission[permission] in PERMISSIONS_BY_ROLE[self.administrator.role]

    def url(self, *parts: object, **query: object) -> str:
        return console_url(self.app_state.settings, *parts, **query)

    def value(self, name: str) -> str:
        """A field of the form without spaces around it; empty if it is missing."""
        return self.form.get(name, "").strip()

    def text(self, name: str) -> str | None:
        """A field of the form; None if it is empty."""
        return self.value(name) or None

    def query(self, name: str) -> str:
        """A field of the query without spaces around it; empty if it is missing."""
        return self.http_request.query_params.get(name, "").strip()

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        """A page; `problem` is why a form was refused, `entered` its fields."""
        entered = Entered(values.pop("entered", ()))
        page = self.http_request.url.path.removeprefix(f"{CONSOLE_PATH}/").partition("/")[0]
        return render_page(
            f"console/{template}",
            self.app_state.settings,
            status,
            request=self,
            form_token=self.app_state.console_sessions.form_token(self.session),
            sections=SECTIONS,
            section=SECTION_OF.get(page, page),
            entered=entered,
            **{"problem": None, "done": DONE.get(self.query("done"))} | values,
        )

    def redirect(self, *parts: object, **query: object) -> Response:
        """The response to a change that was made: the browser opens a page, and reloading it repeats nothing."""
        return RedirectResponse(self.url(*parts, **query), 303)


def authorize(permission: Permission) -> Callable[[Request], ConsoleRequest]:
    """A dependency: the request of a session whose role has the permission. Raises Unauthenticated or Denied."""

    def authenticate(http_request: Request) -> ConsoleRequest:
        app_state: AppState = http_request.app.state.app_state
        audit_record: AuditRecord = http_request.state.audit_record
        audit_record.action = f"console_{http_request.scope['endpoint'].__name__}"
        audit_record.object_name = _find_object(http_request.path_params)
        session = app_state.console_sessions.open(http_request.cookies.get(COOKIE))
        administrator = app_state.console_sessions.administrator(session)
        audit_record.principal = administrator.name
        administrator.require(permission)
        return ConsoleRequest(http_request, app_state, administrator, session)

    return authenticate


def _find_object(named: Mapping[str, str]) -> str | None:
    for names in OBJECTS:
        if names[0] in named:
            return ".".join(named[name] for name in names if name in named)
    return None


def with_form(permission: Permission) -> Callable[..., Awaitable[ConsoleRequest]]:
    """A dependency: the request of a form of the session's own pages. Raises as `authorize`, and MalformedRequest."""

    async def read(
        http_request: Request, request: Annotated[ConsoleRequest, Depends(authorize(permission))]
    ) -> ConsoleRequest:
        require_own_page(http_request)
        form = await read_form(http_request, request.app_state)
        request.app_state.console_sessions.require_form_token(form.get(FORM_TOKEN, ""), request.session)
        return replace(request, form=form)

    return read


def require_own_page(http_request: Request) -> None:
    """Raises Denied if the browser names another site as the one that made the request."""
    site, origin = (http_request.headers.get(name) for name in ("sec-fetch-site", "origin"))
    if site is not None:
        is_own = site in SAME_SITE
    else:
        # Over plain HTTP browsers send the origin only.
        settings: ServerSettings = http_request.app.state.app_state.settings
        own = {http_request.headers.get("host"), urlsplit(settings.console_url()).netloc}
        is_own = origin is None or urlsplit(origin).netloc in own
    if not is_own:
        raise errors.Denied(OTHER_SITE)


async def read_form(http_request: Request, app_state: AppState) -> dict[str, str]:
    """The fields of a form; the last value of a field that is there several times. Raises MalformedRequest."""
    settings = app_state.settings
    body = await read_bounded_body(http_request, settings.max_body_bytes, settings.slow_client_s)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError as error:
        raise errors.MalformedRequest("the form cannot be read", "Send it URL-encoded, in UTF-8.") from error


PageDep = Annotated[ConsoleRequest, Depends(authorize(Permission.LOOK))]
SharePageDep = Annotated[ConsoleRequest, Depends(authorize(Permission.SHARE))]
ChangeDep = Annotated[ConsoleRequest, Depends(with_form(Permission.SHARE))]

# Refusals that a form shows beside its fields; the others have a page of their own.
SHOWN_IN_FORMS = (
    errors.BadRequest,
    errors.CatalogConflict,
    errors.MalformedRequest,
    errors.NotFound,
    errors.Unserveable,
)


def shown_on(page: Callable[..., Response]) -> Callable[[Callable[..., Response]], Callable[..., Response]]:
    """Shows the refusal of a change on `page`, which is called as the route, with the reason and what was entered."""

    def decorate(route: Callable[..., Response]) -> Callable[..., Response]:
        @wraps(route)
        def change(request: ConsoleRequest, **named: Any) -> Response:
            try:
                return route(request, **named)
            except SHOWN_IN_FORMS as error:
                status, code = ConsoleErrors.find_response(error)
                audit_record: AuditRecord = request.http_request.state.audit_record
                audit_record.error_code = code
                return page(
                    request, **named, status=status, problem=error.for_provider(), entered=request.form
                )

        return change

    return decorate


class ConsoleErrors(AdminErrors):
    """Errors as pages; without a session, GET requests lead to the page for signing in."""

    unknown_path = "is no page of the console."

    @classmethod
    def find_response(cls, error: errors.LakeshareError) -> tuple[int, str]:
        kinds = (kind for kind in type(error).__mro__ if kind in cls.responses)
        return cls.responses.get(next(kinds, errors.LakeshareError), (500, "INTERNAL_ERROR"))

    def lakeshare_error(self, request: Request, error: Exception) -> Response:
        response = super().lakeshare_error(request, error)
        if isinstance(error, errors.Unauthenticated) and request.method == "GET":
            settings: ServerSettings = request.app.state.app_state.settings
            path = settings.root_path() + request.url.path
            path += f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(console_url(settings, "sign-in", next=path), 303)
        return response

    def respond(
        self, request: Request, status: int, code: str, message: str, headers: Headers, missing: str | None
    ) -> Response:
        settings: ServerSettings = request.app.state.app_state.settings
        response = render_page(
            "console/refused.html",
            settings,
            status,
            title=TITLES.get(status, "That did not work"),
            message=message,
            console=console_url(settings),
            is_signed_out=status == 401,
        )
        response.headers.update(headers or {})
        return response


TITLES = {
    401: "Sign in first",
    403: "Not permitted",
    404: "There is no such page",
    412: "Changed meanwhile",
    429: "Too many attempts",
    503: "Not available now",
}

router = APIRouter()


@router.get("/")
def console(request: PageDep) -> Response:
    """Leads to the first page."""
    return request.redirect("publications")


@router.get("/sign-in")
def sign_in_page(http_request: Request) -> Response:
    """The page for signing in; `next` is the page that opens afterwards."""
    http_request.state.audit_record.action = "console_sign_in_page"
    return _sign_in_page(http_request, http_request.query_params.get("next", ""))


@router.post("/sign-in")
async def sign_in(http_request: Request) -> Response:
    """Begins a session with an administrator's key."""
    app_state: AppState = http_request.app.state.app_state
    http_request.state.audit_record.action = "console_sign_in"
    require_own_page(http_request)
    form = await read_form(http_request, app_state)
    return await run_in_threadpool(_sign_in, http_request, form)


def _sign_in(http_request: Request, form: Mapping[str, str]) -> Response:
    app_state: AppState = http_request.app.state.app_state
    audit_record: AuditRecord = http_request.state.audit_record
    try:
        header = f"Bearer {form.get('key', '').strip()}"
        administrator = app_state.admin_authenticator.authenticate(header, client_address(http_request))
    except (errors.Unauthenticated, errors.TooManyRequests, errors.Denied, errors.Unavailable) as error:
        status, audit_record.error_code = ConsoleErrors.find_response(error)
        return _sign_in_page(http_request, form.get("next", ""), status, str(error))
    audit_record.principal = administrator.name
    response = RedirectResponse(own_path(app_state.settings, form.get("next", "")), 303)
    app_state.console_sessions.begin(response, administrator)
    return response


# Pages of the issuer come in between: these wait for it in the pool of issuers.
@router.get("/sign-in/issuer")
async def sign_in_by_issuer(http_request: Request) -> Response:
    """Leads to the issuer's page."""
    http_request.state.audit_record.action = "console_sign_in_by_issuer"
    app_state: AppState = http_request.app.state.app_state
    next_path = own_path(app_state.settings, http_request.query_params.get("next", ""))
    url, cookie = await app_state.pools.run(ISSUERS, app_state.issuer_sign_in.begin, next_path)
    response = RedirectResponse(url, 303)
    app_state.issuer_sign_in.set_cookie(response, cookie)
    return response


@router.get("/sign-in/callback")
async def finish_sign_in(http_request: Request) -> Response:
    """Begins a session with what the issuer answers."""
    http_request.state.audit_record.action = "console_sign_in"
    app_state: AppState = http_request.app.state.app_state
    return await app_state.pools.run(ISSUERS, _finish_sign_in, http_request)


def _finish_sign_in(http_request: Request) -> Response:
    app_state: AppState = http_request.app.state.app_state
    audit_record: AuditRecord = http_request.state.audit_record
    try:
        administrator, next_path = app_state.issuer_sign_in.finish(
            http_request.cookies.get(SIGN_IN_COOKIE), http_request.query_params
        )
    except (errors.BadRequest, errors.Unauthenticated, errors.Denied, errors.Unavailable) as error:
        status, audit_record.error_code = ConsoleErrors.find_response(error)
        return _sign_in_page(http_request, "", status, error.for_provider())
    audit_record.principal = administrator.name
    response = RedirectResponse(own_path(app_state.settings, next_path), 303)
    app_state.console_sessions.begin(response, administrator)
    return response


def _sign_in_page(
    http_request: Request, next_path: str, status: int = 200, problem: str | None = None
) -> Response:
    app_state: AppState = http_request.app.state.app_state
    settings = app_state.settings
    return render_page(
        "console/sign_in.html",
        settings,
        status,
        action=console_url(settings, "sign-in"),
        issuer=app_state.issuer_sign_in.issuer,
        issuer_url=console_url(settings, "sign-in", "issuer", next=next_path),
        next_path=next_path,
        problem=problem,
    )


def own_path(settings: ServerSettings, path: str) -> str:
    """A path of the console; the first page instead of any other path, which could lead to another site."""
    root = console_url(settings)
    is_own = (path == root or path.startswith((f"{root}/", f"{root}?"))) and path.isprintable()
    return path if is_own and "\\" not in path and "//" not in path.partition("?")[0] else root


@router.post("/sign-out")
def sign_out(request: Annotated[ConsoleRequest, Depends(with_form(Permission.LOOK))]) -> Response:
    """Ends the session."""
    response = request.redirect("sign-in")
    request.app_state.console_sessions.end(response, request.session)
    return response
