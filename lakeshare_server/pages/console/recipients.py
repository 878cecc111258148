"""Pages of recipients and groups: state, tokens, invitations, limits, issuers, and a preview of what one reads."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from lakeshare_server.catalog import credentials, overviews, sharing, states
from lakeshare_server.catalog.overviews import Page, RecipientKey
from lakeshare_server.catalog.sharing import Edit
from lakeshare_server.catalog.states import FederationPolicy, RecipientState
from lakeshare_server.errors import BadRequest, Unauthenticated
from lakeshare_server.pages.console.session import ChangeDep, ConsoleRequest, PageDep, SharePageDep, shown_on
from lakeshare_server.protocol.requests import optional_integer
from lakeshare_server.provider.usage import KEPT_DAYS, CountedUsage
from lakeshare_server.routes.context import impersonating_client, make_impersonation
from lakeshare_server.settings import PORTAL_PATH
from lakeshare_server.text_fields import TEXT_FIELDS, TextField

AUTHENTICATIONS = (
    ("TOKEN", "A bearer token, in a profile file"),
    ("OAUTH_CLIENT_CREDENTIALS", "OAuth client credentials, in a profile file"),
    ("OIDC_FEDERATION", "Tokens of its own OIDC issuer"),
)
LIMITS = (
    ("requests_per_minute", "Requests in a minute"),
    ("urls_per_day", "Files in a day"),
    ("bytes_per_day", "Bytes in a day"),
)
MAX_GRACE_HOURS = 24 * 36_500
# Lists of recipients by their usage.
SHOWN = ("", "silent", "spiking")
MAX_SPIKES = 500

router = APIRouter()


@router.get("/recipients")
def list_recipients(request: PageDep) -> Response:
    return recipients_page(request)


def recipients_page(request: ConsoleRequest, **refused: Any) -> Response:
    shown = request.query("show")
    if shown not in SHOWN:
        raise BadRequest("show", shown, f"It is one of {', '.join(SHOWN[1:])}, or missing.")
    counted = request.app_state.usage.read() if shown else None
    silent_days = min(request.app_state.settings.silent_days, KEPT_DAYS)
    page: Page[RecipientState] | None = None
    with request.app_state.catalog.reading() as session:
        if not shown:
            page = overviews.find_recipients(session, request.query("q"), request.query("after"))
        elif counted is not None:
            find: Callable[[Session, CountedUsage], list[RecipientKey]] = find_spiking
            if shown == "silent":
                find = partial(find_silent, days=silent_days)
            page = _page_of_names(session, find(session, counted), request.query("after"))
    return request.render(
        "recipients.html",
        page=page,
        texts=TEXT_FIELDS["recipient"],
        kinds=AUTHENTICATIONS,
        shown=shown,
        silent_days=silent_days,
        last_days=counted.last_days if counted else {},
        spikes=counted.spikes if counted and shown == "spiking" else [],
        **refused,
    )


def find_silent(session: Session, counted: CountedUsage, days: int) -> list[RecipientKey]:
    """The active recipients that are not new, and had no answered request for some days."""
    since = counted.at.date() - timedelta(days=days)
    old = overviews.list_active_recipients(session, datetime.combine(since, time.min, UTC))
    return [recipient for recipient in old if counted.last_days.get(recipient.name, date.min) < since]


def find_spiking(session: Session, counted: CountedUsage) -> list[RecipientKey]:
    """The recipients with far more use today than usual."""
    names = dict.fromkeys(spike.recipient for spike in counted.spikes)
    return overviews.list_recipient_keys(session, list(names)[:MAX_SPIKES])


def _page_of_names(session: Session, found: Sequence[RecipientKey], after: str) -> Page[RecipientState]:
    rest = [recipient for recipient in found if recipient.name_key > after]
    shown = rest[: overviews.PAGE]
    states_shown = overviews.list_recipients_named(session, [recipient.name for recipient in shown])
    return Page(states_shown, shown[-1].name_key if len(rest) > len(shown) else None)


@router.post("/recipients")
@shown_on(recipients_page)
def create_recipient(request: ChangeDep) -> Response:
    """Creates a recipient and shows its activation link, once; OIDC federation needs no link."""
    fields: dict[str, Any] = {
        **read_texts(request, TEXT_FIELDS["recipient"]),
        "owner": request.text("owner"),
        "authentication": request.value("authentication") or "TOKEN",
    }
    with request.editing() as edit:
        recipient = sharing.create_recipient(edit, request.value("name"), **fields)
        if request.text("share"):
            sharing.grant(edit, request.value("share"), recipient=recipient.name)
        needs_link = recipient.authentication != "OIDC_FEDERATION"
        link = _create_link(request, edit, recipient.name) if needs_link else None
    if link is None:
        return request.redirect("recipients", recipient.name, done="created")
    return _link_page(request, *link)


def _create_link(request: ConsoleRequest, edit: Edit, recipient: str) -> tuple[states.LinkState, str]:
    days = read_number(request, "link_days", least=1, most=credentials.MAX_LINK_LIFE.days)
    life = credentials.DEFAULT_LINK_LIFE if days is None else timedelta(days=days)
    ends_at = read_moment(request, "token_expires_at")
    return credentials.create_link(edit, recipient, link_life=life, token_expires_at=ends_at)


def _link_page(request: ConsoleRequest, link: states.LinkState, code: str) -> Response:
    url = request.app_state.settings.activation_url(code)
    return request.render(
        "link.html", link=link, url=url, done="The link is made. It is shown on this page only."
    )


@router.get("/recipients/{recipient}")
def show_recipient(request: PageDep, recipient: str) -> Response:
    return recipient_page(request, recipient)


def recipient_page(request: ConsoleRequest, recipient: str, **refused: Any) -> Response:
    with request.app_state.catalog.reading() as session:
        state = states.get_recipient(session, recipient)
        grants = states.list_grants(session, recipient=recipient)
        tables = overviews.list_granted_tables(session, grants)
    counted = request.app_state.usage.read()
    return request.render(
        "recipient.html",
        recipient=state,
        grants=grants,
        tables=tables,
        texts=TEXT_FIELDS["recipient"],
        limits=LIMITS,
        now=datetime.now(UTC),
        days=None if counted is None else counted.by_day(recipient=state.name),
        **refused,
    )


@router.post("/recipients/{recipient}")
@shown_on(recipient_page)
def alter_recipient(request: ChangeDep, recipient: str) -> Response:
    fields: dict[str, Any] = {
        **read_texts(request, TEXT_FIELDS["recipient"]),
        "owner": request.text("owner"),
        "expires_at": read_moment(request, "expires_at"),
        "ip_allow": request.value("ip_allow").split() or None,
        "properties": _read_properties(request),
        "limits": {name: read_number(request, name) for name, _ in LIMITS},
    }
    with request.editing() as edit:
        sharing.alter_recipient(edit, recipient, revision=request.revision, **fields)
    return request.redirect("recipients", recipient, done="changed")


@router.post("/recipients/{recipient}/invite")
@shown_on(recipient_page)
def invite(request: ChangeDep, recipient: str) -> Response:
    """Makes an activation link; unused earlier links end, tokens stay."""
    with request.editing() as edit:
        link = _create_link(request, edit, recipient)
    return _link_page(request, *link)


@router.post("/recipients/{recipient}/rotate")
@shown_on(recipient_page)
def rotate(request: ChangeDep, recipient: str) -> Response:
    """Ends the tokens after a grace time and makes a link for the next one."""
    hours = read_number(request, "grace_hours", most=MAX_GRACE_HOURS) or 0
    with request.editing() as edit:
        credentials.shorten_tokens(edit, recipient, existing_expire_in=timedelta(hours=hours))
        link = _create_link(request, edit, recipient)
    return _link_page(request, *link)


@router.post("/recipients/{recipient}/tokens/{token}/revoke")
@shown_on(recipient_page)
def revoke_token(request: ChangeDep, recipient: str, token: str) -> Response:
    with request.editing() as edit:
        credentials.revoke_token(edit, recipient, token)
    return request.redirect("recipients", recipient, done="revoked")


@router.post("/recipients/{recipient}/revoke")
@shown_on(recipient_page)
def revoke_recipient(request: ChangeDep, recipient: str) -> Response:
    """Ends all access of a recipient for good."""
    with request.editing() as edit:
        sharing.revoke_recipient(edit, recipient, revision=request.revision)
    return request.redirect("recipients", recipient, done="revoked")


@router.post("/recipients/{recipient}/drop")
@shown_on(recipient_page)
def drop_recipient(request: ChangeDep, recipient: str) -> Response:
    with request.editing() as edit:
        sharing.drop_recipient(edit, recipient, revision=request.revision)
    return request.redirect("recipients", done="removed")


@router.post("/recipients/{recipient}/policies")
@shown_on(recipient_page)
def put_policy(request: ChangeDep, recipient: str) -> Response:
    """Accepts the tokens of an issuer whose claims are those of the form."""
    policy = FederationPolicy(
        name=request.value("policy_name"),
        issuer=request.value("issuer"),
        subject_claim=request.value("subject_claim") or "sub",
        subject=request.value("subject"),
        audiences=tuple(request.value("audiences").split()),
        comment=request.text("policy_comment"),
    )
    with request.editing() as edit:
        credentials.put_policy(edit, recipient, policy)
    return request.redirect("recipients", recipient, done="changed")


@router.post("/recipients/{recipient}/policies/{policy}/drop")
@shown_on(recipient_page)
def drop_policy(request: ChangeDep, recipient: str, policy: str) -> Response:
    with request.editing() as edit:
        credentials.drop_policy(edit, recipient, policy)
    return request.redirect("recipients", recipient, done="removed")


@router.get("/recipients/{recipient}/as/{share}/{schema}/{table}")
async def preview_as(request: SharePageDep, recipient: str, share: str, schema: str, table: str) -> Response:
    """The first rows and the versions of a table as the recipient gets them."""
    principal = request.administrator.name
    try:
        impersonation = make_impersonation(request.app_state.catalog, recipient, principal)
    except Unauthenticated as error:
        raise BadRequest("recipient", recipient, str(error)) from error
    server = request.http_request.app.state.server
    path = "/".join(("shares", share, "schemas", schema, "tables", table))
    version = optional_integer(request.http_request.query_params, "version", label="version")
    query = {} if version is None else {"version": version}
    replies: dict[str, Any] = {}
    problem, status = None, 200
    async with impersonating_client(server, impersonation, "http://lakeshare") as client:
        for name, fields in (("about", {}), ("preview", query), ("versions", {})):
            response = await client.get(f"{PORTAL_PATH}/api/{path}/{name}", params=fields)
            if not response.is_success:
                problem, status = str(response.json().get("message")), response.status_code
                break
            replies[name] = response.json()
    return request.render(
        "preview.html",
        status,
        recipient=impersonation.reader.name,
        table=f"{share}.{schema}.{table}",
        about=replies.get("about"),
        preview=replies.get("preview"),
        versions=replies.get("versions"),
        problem=problem,
    )


@router.get("/groups")
def list_groups(request: PageDep) -> Response:
    return groups_page(request)


def groups_page(request: ConsoleRequest, **refused: Any) -> Response:
    altered = refused.pop("group", None)
    with request.app_state.catalog.reading() as session:
        page = overviews.find_groups(session, request.query("q"), request.query("after"))
    return request.render("groups.html", page=page, altered=altered, **refused)


@router.post("/groups")
@shown_on(groups_page)
def create_group(request: ChangeDep) -> Response:
    with request.editing() as edit:
        sharing.create_group(
            edit,
            request.value("name"),
            comment=request.text("comment"),
            members=request.value("members").split(),
        )
    return request.redirect("groups", done="created")


@router.post("/groups/{group}")
@shown_on(groups_page)
def alter_group(request: ChangeDep, group: str) -> Response:
    """Adds and removes members."""
    with request.editing() as edit:
        sharing.alter_group(
            edit,
            group,
            add=request.value("add").split(),
            remove=request.value("remove").split(),
            revision=request.revision,
        )
    return request.redirect("groups", done="changed")


@router.post("/groups/{group}/drop")
@shown_on(groups_page)
def drop_group(request: ChangeDep, group: str) -> Response:
    with request.editing() as edit:
        sharing.drop_group(edit, group, revision=request.revision)
    return request.redirect("groups", done="removed")


def read_texts(request: ConsoleRequest, texts: Sequence[TextField]) -> Mapping[str, str | None]:
    """The comment and these texts, None for those that are empty."""
    return {name: request.text(name) for name in ("comment", *(text.name for text in texts))}


def _read_properties(request: ConsoleRequest) -> dict[str, str]:
    """The properties in lines like region=EU. Raises BadRequest."""
    properties = dict[str, str]()
    for line in filter(None, map(str.strip, request.value("properties").splitlines())):
        name, equals, value = map(str.strip, line.partition("="))
        if not (equals and name) or name in properties:
            raise BadRequest("properties", line, "Write one in a line, like region=EU, and each once.")
        properties[name] = value
    return properties


def read_number(request: ConsoleRequest, name: str, least: int = 0, most: int = (1 << 63) - 1) -> int | None:
    """A field of a form that is a whole number; None if it is empty. Raises BadRequest."""
    text = request.value(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise BadRequest(name, text, f"Give a whole number from {least} to {most}, or nothing.")
    return int(text)


def read_moment(request: ConsoleRequest, name: str) -> datetime | None:
    """A field of a form that is a time in UTC, like 2027-01-31 or 2027-01-31T18:00; None if it is empty."""
    return parse_moment(name, request.value(name))


def parse_moment(name: str, text: str) -> datetime | None:
    """The time in a field's text, as in `read_moment`. Raises BadRequest."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        hint = "Give a time in UTC, like 2027-01-31 or 2027-01-31T18:00, or nothing."
        raise BadRequest(name, text, hint) from error
