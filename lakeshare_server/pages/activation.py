"""The page behind an activation link. Looking, as mail scanners do, uses nothing up; one form gives the profile, once.

`lakeshare activate` asks the same paths for JSON.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from lakeshare_server.access.authentication import profile_of, profile_text
from lakeshare_server.access.rate_limit import require_allowed
from lakeshare_server.catalog import Catalog, Listings, Reader, TableEntry
from lakeshare_server.catalog.sharing import (
    Grant,
    LinkState,
    RecipientState,
    editing,
    look_at_link,
    redeem,
    states,
)
from lakeshare_server.errors import BadRequest, Denied, LakeshareError, LinkEnded, MalformedRequest, NotFound
from lakeshare_server.pages.rendering import LOOK, moment, page, profile_name, view_code
from lakeshare_server.protocol.requests import json_object, optional_truth
from lakeshare_server.routes.context import Note, NoteDep, Parts, PartsDep, address_of, whole_body
from lakeshare_server.routes.errors import RESPONSES
from lakeshare_server.routes.responses import error_response, json_response
from lakeshare_server.settings import ACTIVATION_PATH
from lakeshare_server.snippets import ToldSnippet

MOST_SHARES, MOST_TABLES = 20, 50


@dataclass(frozen=True)
class OfferedShare:
    """A share with its first tables; it ends when the last grant of it does."""

    name: str
    title: str
    comment: str | None
    tables: Sequence[TableEntry]
    has_more: bool
    ends_at: datetime | None


@dataclass(frozen=True)
class Offer:
    """A link, its recipient, and what that may read."""

    link: LinkState
    recipient: RecipientState
    shares: Sequence[OfferedShare]

    @property
    def reader(self) -> Reader:
        """The recipient as whoever it will be with its profile."""
        return Reader(self.recipient.id, self.recipient.name)

    @property
    def asks_agreement(self) -> bool:
        """Whether there is an agreement that nobody has accepted yet."""
        return self.recipient.agreement is not None and self.recipient.agreement_accepted_at is None

    @property
    def profile_ends_at(self) -> datetime | None:
        """When the profile of this link ends; with the recipient at the latest."""
        ends = [one for one in (self.link.token_expires_at, self.recipient.expires_at) if one is not None]
        return min(ends, default=None)

    def as_json(self) -> Mapping[str, Any]:
        """The offer for programs."""
        ends = self.profile_ends_at
        return {
            "recipient": self.recipient.name,
            "linkExpiresAt": self.link.expires_at.isoformat(),
            "profileExpiresAt": None if ends is None else ends.isoformat(),
            "agreement": self.recipient.agreement if self.asks_agreement else None,
            "shares": [
                {"name": one.name, "comment": one.comment, "tables": [table.path for table in one.tables]}
                for one in self.shares
            ],
        }


def offer_of(catalog: Catalog, link: LinkState, recipient: RecipientState) -> Offer:
    """What a link offers now: as the recipient's own listings tell it."""
    with catalog.reading() as session:
        ends = _ends(states.grants_to(session, recipient.name))
    listings = Listings(catalog, recipient.id)
    offered = []
    for share in listings.shares(0, MOST_SHARES):
        tables = listings.tables(share.name, None, 0, MOST_TABLES + 1)
        title = share.display_name or share.name
        shown, has_more = tables[:MOST_TABLES], len(tables) > MOST_TABLES
        offered.append(OfferedShare(share.name, title, share.comment, shown, has_more, ends.get(share.name)))
    return Offer(link, recipient, offered)


def _ends(grants: Sequence[Grant]) -> dict[str, datetime | None]:
    """The end of each share: that of its last grant, none if one of them has none."""
    ends: dict[str, datetime | None] = {}
    for one in grants:
        before = ends.get(one.share, one.ends_at)
        ends[one.share] = None if before is None or one.ends_at is None else max(before, one.ends_at)
    return ends


MOST_BODY_BYTES = 4096
LONGEST_BY = 255
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
TITLES = {"used": "This link was used already", "expired": "This link has expired"}
REPLACED = "This link does not work any more"
ELSEWHERE, FAILED = "Not from here", "That did not work"
LATER = "Open the link again in a moment. If that does not help, ask your provider."
UNKNOWN = "There is no such link"

router = APIRouter()


# One route for all methods and paths: what is asked wrongly is not to leave a link in the audit log either.
@router.api_route(f"{ACTIVATION_PATH}/{{code:path}}", methods=METHODS, name="activation")
async def activation(code: str, request: Request, parts: PartsDep, note: NoteDep) -> Response:
    note.action = "redeem_link" if request.method == "POST" else LOOK
    wants_json = "application/json" in request.headers.get("accept", "")
    try:
        if request.method == "POST":
            body = await whole_body(request, MOST_BODY_BYTES, parts.settings.slow_client_s)
            accepts = _accepts(body, request)
            return await run_in_threadpool(_redeemed, code, request, parts, note, accepts, wants_json)
        if request.method not in ("GET", "HEAD"):
            raise MalformedRequest(f"{request.method} is nothing to do with a link", "Open it in a browser.")
        return await run_in_threadpool(_looked_at, code, request, parts, note, wants_json)
    except LakeshareError as error:
        return _refused(error, parts, note, wants_json)


def _looked_at(code: str, request: Request, parts: Parts, note: Note, wants_json: bool) -> Response:
    link, recipient = look_at_link(parts.catalog, code)
    note.recipient = recipient.name
    require_allowed(recipient.name, recipient.ip_allow, address_of(request))
    offer = offer_of(parts.catalog, link, recipient)
    if wants_json:
        return json_response(
            {"provider": _provider(parts), "fileName": profile_name(offer.recipient.name), **offer.as_json()}
        )
    return _offer_page(parts, offer, None)


def _redeemed(
    code: str, request: Request, parts: Parts, note: Note, accepts: bool, wants_json: bool
) -> Response:
    link, recipient = look_at_link(parts.catalog, code)
    note.recipient = recipient.name
    address = address_of(request)
    require_allowed(recipient.name, recipient.ip_allow, address)
    try:
        with editing(parts.catalog, f"recipient:{recipient.name}"[:LONGEST_BY]) as edit:
            recipient, given = redeem(edit, code, from_address=address, accepts_agreement=accepts)
            # Within the transaction: what cannot be given out has not used the link up.
            profile = profile_of(recipient, given, parts.settings)
    except BadRequest as error:
        if wants_json:
            raise
        note.error_code = RESPONSES[BadRequest][1]
        return _offer_page(
            parts, offer_of(parts.catalog, link, recipient), error.hint, RESPONSES[BadRequest][0]
        )
    if wants_json:
        return json_response({"fileName": profile_name(recipient.name), "profile": profile})
    offer = offer_of(parts.catalog, link, recipient)
    path, snippets = _first_code(parts, offer)
    return page(
        "activated.html",
        parts.settings,
        file_name=profile_name(recipient.name),
        profile=base64.b64encode(profile_text(profile).encode()).decode(),
        profile_ends_at=offer.profile_ends_at,
        shares=offer.shares,
        path=path,
        snippets=snippets,
    )


def _offer_page(parts: Parts, offer: Offer, problem: str | None, status: int = 200) -> Response:
    return page(
        "activate.html",
        parts.settings,
        status,
        recipient=offer.recipient,
        link=offer.link,
        shares=offer.shares,
        asks_agreement=offer.asks_agreement,
        profile_ends_at=offer.profile_ends_at,
        problem=problem,
    )


def _first_code(parts: Parts, offer: Offer) -> tuple[str | None, list[ToldSnippet]]:
    """Code for the first table that has something to read."""
    for share in offer.shares:
        for table in share.tables:
            try:
                view = parts.views.table(offer.reader, table.share.name, table.schema, table.name)
                return table.path, view_code(parts, view, offer.recipient)
            except LakeshareError:
                # Not published yet, or its store does not answer: the profile is given all the same.
                continue
    return None, []


def _refused(error: LakeshareError, parts: Parts, note: Note, wants_json: bool) -> Response:
    status, note.error_code = RESPONSES.get(type(error), (500, "INTERNAL_ERROR"))
    if wants_json:
        return error_response(status, note.error_code, error.for_recipient())
    return page("no_link.html", parts.settings, status, **_reason(error))


def _reason(error: LakeshareError) -> dict[str, Any]:
    again = "Ask your provider for a new link."
    match error:
        case LinkEnded(why=why, at=at, used_from=used_from):
            where = f" from {used_from}" if used_from else ""
            verb = "It expired" if why == "expired" else f"It was {why}"
            title = TITLES.get(why, REPLACED)
            return {
                "title": title,
                "reason": f"{verb} on {moment(at)}{where}.",
                "remedy": again,
                "used_from": used_from,
            }
        case NotFound():
            reason = "Check that you have opened the whole link: mail programs break long ones."
            return {"title": UNKNOWN, "reason": reason, "remedy": again, "used_from": None}
        case Denied():
            remedy = "Open the link from an address that is allowed, or ask your provider to allow this one."
            return {"title": ELSEWHERE, "reason": error.for_recipient(), "remedy": remedy, "used_from": None}
        case _:
            # It may be open still: what failed is something else.
            return {"title": FAILED, "reason": error.for_recipient(), "remedy": LATER, "used_from": None}


def _accepts(body: bytes, request: Request) -> bool:
    """Whether the agreement is accepted, by a form or by JSON."""
    if request.headers.get("content-type", "").startswith("application/json"):
        return optional_truth(json_object(body), "acceptsAgreement")
    return parse_qs(body.decode("utf-8", "replace")).get("accept") == ["yes"]


def _provider(parts: Parts) -> str:
    return parts.settings.provider_name or parts.settings.host_name()
