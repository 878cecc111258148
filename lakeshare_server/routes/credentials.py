"""Temporary credentials for a table's folder (protocol §1.10)."""

from fastapi import APIRouter, Response

from lakeshare_server.access.directory import require_directory_access
from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.bodies import json_object
from lakeshare_server.protocol.parameters import optional_text
from lakeshare_server.routes.context import BodyDep, TableDep
from lakeshare_server.routes.pools import in_table_pool
from lakeshare_server.routes.responses import json_response
from lakeshare_server.stores import normalised

router = APIRouter(prefix="/shares/{share}/schemas/{schema}/tables/{table}")


@router.post("/temporary-table-credentials", name="table_credentials")
@in_table_pool
def table_credentials(by: TableDep, body: BodyDep) -> Response:
    asked = optional_text(json_object(body), "location")
    location = require_directory_access(by.view, by.parts.signers)
    account = by.parts.settings.azure_account
    if asked is not None and normalised(asked, account).rstrip("/") != location:
        raise BadRequest("location", asked, f"It is not a location of {by.view.entry.path}. Leave it out.")
    granted = by.parts.signers.vend(location, by.parts.settings.url_life_s)
    by.note.details = {
        "vended": granted.kind,
        "location": granted.location,
        "expires_at_ms": granted.expires_at_ms,
    }
    said = {
        "location": granted.location,
        granted.kind: dict(granted.fields),
        "expirationTime": granted.expires_at_ms,
    }
    return json_response({"credentials": said})
