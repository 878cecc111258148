"""OAuth 2.0 client credentials (RFC 6749 §4.4): access tokens at the profile's path and the path of Iceberg clients."""

from urllib.parse import parse_qsl, unquote_plus

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from lakeshare_server.access.authentication import split_basic_credential
from lakeshare_server.errors import MalformedRequest, Unauthenticated
from lakeshare_server.routes.context import client_address, get_app_state, get_audit_record, read_bounded_body
from lakeshare_server.routes.responses import json_response
from lakeshare_server.settings import ICEBERG_PATH, TOKEN_PATH

CLIENT_CREDENTIALS = "client_credentials"
MAX_BODY_BYTES = 65_536
MAX_FIELDS = 50
NOT_STORED = {"Cache-Control": "no-store", "Pragma": "no-cache"}

router = APIRouter()

iceberg_router = APIRouter(prefix=ICEBERG_PATH)


@iceberg_router.post("/v1/oauth/tokens", name="issue_access_token")
@router.post(TOKEN_PATH, name="issue_access_token")
async def issue_access_token(request: Request) -> Response:
    app_state, audit_record = await get_app_state(request), await get_audit_record(request)
    audit_record.action = "issue_access_token"
    try:
        fields = parse_form(
            await read_bounded_body(request, MAX_BODY_BYTES, app_state.settings.slow_client_s)
        )
    except MalformedRequest as error:
        return _refused(400, "invalid_request", str(error))
    if fields.get("grant_type") != CLIENT_CREDENTIALS:
        description = f"grant_type is not {CLIENT_CREDENTIALS}, the only one that is offered."
        return _refused(400, "unsupported_grant_type", description)
    client_id, secret = _client(request, fields)
    if not (client_id and secret):
        return _refused(401, "invalid_client", "Send the profile's clientId and clientSecret.")
    address = client_address(request)
    try:
        access = await run_in_threadpool(
            app_state.authenticator.authenticate_client, client_id, secret, address
        )
    except Unauthenticated as error:
        audit_record.error_code = "UNAUTHENTICATED"
        return _refused(401, "invalid_client", str(error))
    audit_record.recipient, audit_record.access = access.reader.name, access
    audit_record.credential = "oauth"
    app_state.authenticator.require_allowed_address(access, address)
    token, life_s = app_state.access_tokens.issue(access.credential_id, access.reader.expires_at)
    content = {"access_token": token, "token_type": "bearer", "expires_in": life_s}
    if fields.get("scope"):
        # The only scope is all grants: any requested scope is confirmed.
        content["scope"] = fields["scope"]
    return json_response(content, headers=NOT_STORED)


def parse_form(body: bytes) -> dict[str, str]:
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise MalformedRequest(
            "The body is no form", "Send grant_type=client_credentials, as application/x-www-form-urlencoded."
        ) from error
    if len(dict(fields)) < len(fields):
        raise MalformedRequest("A field of the form is given twice", "Give each once.")
    return dict(fields)


def _client(request: Request, fields: dict[str, str]) -> tuple[str, str]:
    scheme, _, credentials = (request.headers.get("authorization") or "").partition(" ")
    if scheme.lower() != "basic":
        return fields.get("client_id", ""), fields.get("client_secret", "")
    name, _, password = split_basic_credential(credentials.strip())
    # The standard encodes both like form values, which does not change lakeshare's ids and secrets.
    return unquote_plus(name), unquote_plus(password)


def _refused(status: int, error: str, description: str) -> Response:
    headers = {**NOT_STORED, "WWW-Authenticate": "Basic"} if status == 401 else NOT_STORED
    return json_response({"error": error, "error_description": description}, status, headers)
