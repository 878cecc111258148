"""OAuth 2.0 client credentials: an access token for a client's secret (RFC 6749 §4.4), in the words of OAuth.

At the path that profiles name, and where Iceberg clients look for one.
"""

from urllib.parse import parse_qsl, unquote_plus

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from lakeshare_server.access.authentication import name_and_password
from lakeshare_server.errors import MalformedRequest, Unauthenticated
from lakeshare_server.routes.context import address_of, note_of, parts_of, whole_body
from lakeshare_server.routes.responses import json_response
from lakeshare_server.settings import ICEBERG_PATH, TOKEN_PATH

CLIENT_CREDENTIALS = "client_credentials"
MOST_BYTES = 65_536
MOST_FIELDS = 50
NOT_STORED = {"Cache-Control": "no-store", "Pragma": "no-cache"}

router = APIRouter()
# Iceberg clients look here (REST specification, `/v1/oauth/tokens`).
iceberg_router = APIRouter(prefix=ICEBERG_PATH)


@iceberg_router.post("/v1/oauth/tokens", name="issue_access_token")
@router.post(TOKEN_PATH, name="issue_access_token")
async def issue_access_token(request: Request) -> Response:
    parts, note = await parts_of(request), await note_of(request)
    note.action = "issue_access_token"
    try:
        fields = form_fields(await whole_body(request, MOST_BYTES, parts.settings.slow_client_s))
    except MalformedRequest as error:
        return _refused(400, "invalid_request", str(error))
    if fields.get("grant_type") != CLIENT_CREDENTIALS:
        told = f"grant_type is not {CLIENT_CREDENTIALS}, the only one that is offered."
        return _refused(400, "unsupported_grant_type", told)
    client_id, secret = _client(request, fields)
    if not (client_id and secret):
        return _refused(401, "invalid_client", "Send the profile's clientId and clientSecret.")
    address = address_of(request)
    try:
        access = await run_in_threadpool(parts.readers.client, client_id, secret, address)
    except Unauthenticated as error:
        note.error_code = "UNAUTHENTICATED"
        return _refused(401, "invalid_client", str(error))
    note.recipient, note.access = access.reader.name, access
    parts.readers.let_in(access, address)
    token, life_s = parts.access_tokens.given(access.credential_id, access.reader.expires_at)
    said = {"access_token": token, "token_type": "bearer", "expires_in": life_s}
    if fields.get("scope"):
        # There is one scope, everything that is granted: whatever a client asks for, it is told that it has it.
        said["scope"] = fields["scope"]
    return json_response(said, headers=NOT_STORED)


def form_fields(body: bytes) -> dict[str, str]:
    """The fields of a form.

    Raises:
        MalformedRequest: it is none.
    """
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise MalformedRequest(
            "The body is no form", "Send grant_type=client_credentials, as application/x-www-form-urlencoded."
        ) from error
    if len(dict(fields)) < len(fields):
        raise MalformedRequest("A field of the form is given twice", "Give each once.")
    return dict(fields)


def _client(request: Request, fields: dict[str, str]) -> tuple[str, str]:
    scheme, _, said = (request.headers.get("authorization") or "").partition(" ")
    if scheme.lower() != "basic":
        return fields.get("client_id", ""), fields.get("client_secret", "")
    name, _, password = name_and_password(said.strip())
    # The standard has both encoded like a form's values; neither an id nor a secret of ours looks different then.
    return unquote_plus(name), unquote_plus(password)


def _refused(status: int, error: str, told: str) -> Response:
    headers = {**NOT_STORED, "WWW-Authenticate": "Basic"} if status == 401 else NOT_STORED
    return json_response({"error": error, "error_description": told}, status, headers)
