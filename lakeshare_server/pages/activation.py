"""The page of an activation link. GET, as mail scanners send it, changes nothing; one form gives the profile, once.

`lakeshare activate` requests the same paths as JSON.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from lakeshare_server.access.authentication import format_profile, make_profile
from lakeshare_server.access.rate_limit import require_allowed
from lakeshare_server.catalog import Catalog, Listings, Reader, SharedTable, states
from lakeshare_server.catalog.credentials import find_link, redeem_link
from lakeshare_server.catalog.sharing import editing
from lakeshare_server.catalog.states import LinkState, RecipientState
from lakeshare_server.errors import BadRequest, Denied, LakeshareError, LinkEnded, MalformedRequest, NotFound
from lakeshare_server.pages.rendering import LOOK_ACTION, format_moment, profile_name, render_page, view_code
from lakeshare_server.protocol.requests import optional_boolean, parse_json_object
from lakeshare_server.routes.context import (
    AppState,
    AppStateDep,
    AuditRecord,
    AuditRecordDep,
    client_address,
    read_bounded_body,
)
from lakeshare_server.routes.errors import RESPONSES
from lakeshare_server.routes.responses import error_response, json_response
from lakeshare_server.settings import ACTIVATION_PATH
from lakeshare_server.snippets import EngineSnippet

MAX_SHARES, MAX_TABLES = 20, 50
MAX_BODY_BYTES = 4096
MAX_NAME_CHARS = 255
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
TITLES = {"used": "This link was used already", "expired": "This link has expired"}
ASK_AGAIN = "Ask your provider for a new link."

router = APIRouter()


@dataclass(frozen=True)
class OfferedShare:
    """A share with its first tables; `ends_at` is the end of its last grant."""

    name: str
    title: str
    comment: str | None
    tables: Sequence[SharedTable]
    has_more: bool
    ends_at: datetime | None


@dataclass(frozen=True)
class Offer:
    """A link, its recipient, and the shares that the recipient may read."""

    link: LinkState
    recipient: RecipientState
    shares: Sequence[OfferedShare]

    @property
    def asks_agreement(self) -> bool:
        """Whether there is an agreement that was not accepted yet."""
        return self.recipient.agreement is not None and self.recipient.agreement_accepted_at is None

    @property
    def profile_ends_at(self) -> datetime | None:
        """The end of the link's profile: the token's or the recipient's, whichever is earlier."""
        ends = [at for at in (self.link.token_expires_at, self.recipient.expires_at) if at is not None]
        return min(ends, default=None)

    def as_json(self) -> Mapping[str, Any]:
        ends = self.profile_ends_at
        return {
            "recipient": self.recipient.name,
            "linkExpiresAt": self.link.expires_at.isoformat(),
            "profileExpiresAt": None if ends is None else ends.isoformat(),
            "agreement": self.recipient.agreement if self.asks_agreement else None,
            "shares": [
                {
                    "name": share.name,
                    "comment": share.comment,
                    "tables": [table.path for table in share.tables],
                }
                for share in self.shares
            ],
        }


def make_offer(catalog: Catalog, link: LinkState, recipient: RecipientState) -> Offer:
    """The shares that a link offers now, as in the recipient's own listings."""
    # The end of each share is that of its last grant; None if one of its grants has no end.
    ends: dict[str, datetime | None] = {}
    with catalog.reading() as session:
        for grant in states.list_grants(session, recipient=recipient.name):
            before, end = ends.get(grant.share, grant.ends_at), grant.ends_at
            ends[grant.share] = None if before is None or end is None else max(before, end)
    listings = Listings(catalog, recipient.id)
    offered = []
    for share in listings.shares(0, MAX_SHARES):
        tables = listings.tables(share.name, None, 0, MAX_TABLES + 1)
        title = share.display_name or share.name
        shown, has_more = tables[:MAX_TABLES], len(tables) > MAX_TABLES
        offered.append(OfferedShare(share.name, title, share.comment, shown, has_more, ends.get(share.name)))
    return Offer(link, recipient, offered)


# One route for all methods and paths, so that no malformed request leaves a link in the audit log.
@router.api_route(f"{ACTIVATION_PATH}/{{code:path}}", methods=METHODS, name="activation")
async def activation(
    code: str, request: Request, app_state: AppStateDep, audit_record: AuditRecordDep
) -> Response:
    audit_record.action = "redeem_link" if request.method == "POST" else LOOK_ACTION
    wants_json = "application/json" in request.headers.get("accept", "")
    try:
        if request.method == "POST":
            body = await read_bounded_body(request, MAX_BODY_BYTES, app_state.settings.slow_client_s)
            accepts = _accepts(body, request)
            call = partial(_redeem, code, request, app_state, audit_record, accepts, wants_json)
            return await run_in_threadpool(call)
        if request.method not in ("GET", "HEAD"):
            raise MalformedRequest(f"{request.method} is nothing to do with a link", "Open it in a browser.")
        return await run_in_threadpool(_show_offer, code, request, app_state, audit_record, wants_json)
    except LakeshareError as error:
        return _respond_to_error(error, app_state, audit_record, wants_json)


def _show_offer(
    code: str, request: Request, app_state: AppState, audit_record: AuditRecord, wants_json: bool
) -> Response:
    link, recipient = find_link(app_state.catalog, code)
    audit_record.recipient = recipient.name
    require_allowed(recipient.name, recipient.ip_allow, client_address(request))
    offer = make_offer(app_state.catalog, link, recipient)
    if not wants_json:
        return _offer_page(app_state, offer, None)
    provider = app_state.settings.provider_name or app_state.settings.host_name()
    return json_response({"provider": provider, "fileName": profile_name(recipient.name), **offer.as_json()})


def _redeem(
    code: str,
    request: Request,
    app_state: AppState,
    audit_record: AuditRecord,
    accepts: bool,
    wants_json: bool,
) -> Response:
    link, recipient = find_link(app_state.catalog, code)
    audit_record.recipient = recipient.name
    address = client_address(request)
    require_allowed(recipient.name, recipient.ip_allow, address)
    try:
        with editing(app_state.catalog, f"recipient:{recipient.name}"[:MAX_NAME_CHARS]) as edit:
            recipient, issued = redeem_link(edit, code, from_address=address, accepts_agreement=accepts)
            # In the transaction: if the profile cannot be made, the link is not used up.
            profile = make_profile(recipient, issued, app_state.settings)
    except BadRequest as error:
        if wants_json:
            raise
        status, audit_record.error_code = RESPONSES[BadRequest]
        return _offer_page(app_state, make_offer(app_state.catalog, link, recipient), error.hint, status)
    if wants_json:
        return json_response({"fileName": profile_name(recipient.name), "profile": profile})
    offer = make_offer(app_state.catalog, link, recipient)
    path, snippets = _first_code(app_state, offer)
    return render_page(
        "activated.html",
        app_state.settings,
        file_name=profile_name(recipient.name),
        profile=base64.b64encode(format_profile(profile).encode()).decode(),
        offer=offer,
        path=path,
        snippets=snippets,
    )


def _offer_page(app_state: AppState, offer: Offer, problem: str | None, status: int = 200) -> Response:
    return render_page("activate.html", app_state.settings, status, offer=offer, problem=problem)


def _first_code(app_state: AppState, offer: Offer) -> tuple[str | None, list[EngineSnippet]]:
    """The snippets of the first table that can be read."""
    reader = Reader(offer.recipient.id, offer.recipient.name)
    for share in offer.shares:
        for table in share.tables:
            try:
                view = app_state.views.table(reader, table.share, table.schema, table.name)
                return table.path, view_code(app_state, view, offer.recipient)
            except LakeshareError:
                # Not published yet, or its store does not respond: the profile is given anyway.
                continue
    return None, []


def _respond_to_error(
    error: LakeshareError, app_state: AppState, audit_record: AuditRecord, wants_json: bool
) -> Response:
    status, audit_record.error_code = RESPONSES.get(type(error), (500, "INTERNAL_ERROR"))
    if wants_json:
        return error_response(status, audit_record.error_code, error.for_recipient())
    title, reason, remedy, used_from = "That did not work", error.for_recipient(), "", None
    match error:
        case LinkEnded(why=why, at=at):
            used_from = error.used_from
            verb = "It expired" if why == "expired" else f"It was {why}"
            title, remedy = TITLES.get(why, "This link does not work any more"), ASK_AGAIN
            reason = f"{verb} on {format_moment(at)}{f' from {used_from}' if used_from else ''}."
        case NotFound():
            title, remedy = "There is no such link", ASK_AGAIN
            reason = "Check that you have opened the whole link: mail programs break long ones."
        case Denied():
            title = "Not from here"
            remedy = "Open the link from an address that is allowed, or ask your provider to allow this one."
        case _:
            # The link may still work.
            remedy = "Open the link again in a moment. If that does not help, ask your provider."
    fields = {"title": title, "reason": reason, "remedy": remedy, "used_from": used_from}
    return render_page("no_link.html", app_state.settings, status, **fields)


def _accepts(body: bytes, request: Request) -> bool:
    """Whether the agreement is accepted, in a form or in JSON."""
    if request.headers.get("content-type", "").startswith("application/json"):
        return optional_boolean(parse_json_object(body), "acceptsAgreement")
    return parse_qs(body.decode("utf-8", "replace")).get("accept") == ["yes"]
