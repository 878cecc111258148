"""The public calls of recipients' activation links: whoever has the code needs nothing else."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from lakeshare_server.access.addresses import require_allowed
from lakeshare_server.access.profile import profile_of
from lakeshare_server.catalog.sharing import editing, look, look_at_link, redeem
from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.admin.fields import in_ms
from lakeshare_server.protocol.admin.replies import ActivationInfo
from lakeshare_server.routes.admin.context import NOT_KEPT, reply
from lakeshare_server.routes.context import Note, Parts, address_of
from lakeshare_server.routes.responses import json_response

router = APIRouter(tags=["activation"])
LONGEST_CODE = 200
LONGEST_BY = 255


def code_in(request: Request, activation_url: str) -> str:
    """The code of a link, given by itself or as the whole link."""
    note: Note = request.state.note
    note.action = request.scope["endpoint"].__name__
    code = activation_url.rstrip("/").rpartition("/")[2]
    if len(code) > LONGEST_CODE:
        raise BadRequest("activation_url", code, "Give the link, or the code at its end.")
    return code


def parts_of(request: Request) -> Parts:
    """The parts of the server."""
    parts: Parts = request.app.state.parts
    return parts


CodeDep = Annotated[str, Depends(code_in)]
PartsDep = Annotated[Parts, Depends(parts_of)]


@router.get("/data_sharing_activation_info/{activation_url:path}", response_model=ActivationInfo)
def look_at_activation(request: Request, code: CodeDep, parts: PartsDep) -> Response:
    """What a link is good for; asking does not use it up."""
    link, recipient = look_at_link(parts.catalog, code)
    require_allowed(recipient.name, recipient.ip_allow, address_of(request))
    with parts.catalog.reading() as session:
        shares = sorted({grant.share for grant in look.grants_to(session, recipient.name)})
    told = ActivationInfo(
        recipient=recipient.name,
        expires_at=in_ms(link.expires_at),
        agreement=recipient.agreement,
        shares=shares,
    )
    return reply(told)


@router.get("/data_sharing_activation/{activation_url:path}")
def redeem_activation(
    request: Request, code: CodeDep, parts: PartsDep, accepts_agreement: Annotated[bool, Query()] = False
) -> Response:
    """The recipient's profile, once; `accepts_agreement` says yes to its agreement, if there is one."""
    _, recipient = look_at_link(parts.catalog, code)
    address = address_of(request)
    require_allowed(recipient.name, recipient.ip_allow, address)
    with editing(parts.catalog, f"recipient:{recipient.name}"[:LONGEST_BY]) as edit:
        found, given = redeem(edit, code, from_address=address, accepts_agreement=accepts_agreement)
    note: Note = request.state.note
    note.recipient = found.name
    return json_response(profile_of(found, given, parts.settings), headers=NOT_KEPT)
