"""The recipient's portal: a page without anything of a recipient's, and what it asks for with a profile's token."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from lakeshare_server.pages.headers import NO_STORE, STATIC_PATH
from lakeshare_server.pages.preview import Previews
from lakeshare_server.pages.rendering import page, static_file
from lakeshare_server.pages.table_code import table_code
from lakeshare_server.pages.table_facts import table_facts
from lakeshare_server.pages.table_history import table_history
from lakeshare_server.pages.token_status import token_status
from lakeshare_server.protocol.byte_range import matches
from lakeshare_server.routes.context import AskedDep, NoteDep, PartsDep, TableDep
from lakeshare_server.routes.pools import in_table_pool
from lakeshare_server.routes.responses import error_response, json_response
from lakeshare_server.settings import PORTAL_PATH

API = f"{PORTAL_PATH}/api"
TABLE = f"{API}/shares/{{share}}/schemas/{{schema}}/tables/{{table}}"
FOR_EVER = "public, max-age=31536000, immutable"
ASKED_AGAIN = "no-cache"

router = APIRouter()


async def previews_of(request: Request) -> Previews:
    """What reads rows for pages."""
    previews: Previews = request.app.state.previews
    return previews


PreviewsDep = Annotated[Previews, Depends(previews_of)]


@router.get("/", name="root")
def root(parts: PartsDep, note: NoteDep) -> Response:
    """Redirect a person who opens the server in a browser to the portal."""
    note.action = "root"
    return RedirectResponse(parts.settings.root_path() + PORTAL_PATH)


@router.get(PORTAL_PATH, name="portal")
def portal(parts: PartsDep, note: NoteDep) -> Response:
    note.action = "portal"
    settings = parts.settings
    endpoint = settings.root_path() + settings.endpoint.rstrip("/")
    return page("portal.html", settings, endpoint=endpoint, protocol=settings.base_url())


@router.get(f"{STATIC_PATH}/{{name}}", name="page_file")
def page_file(name: str, request: Request, note: NoteDep) -> Response:
    note.action = "page_file"
    found = static_file(name)
    if found is None:
        return error_response(
            404, "RESOURCE_DOES_NOT_EXIST", "There is no such file.", {"Cache-Control": NO_STORE}
        )
    content, media_type, digest = found
    is_named = request.query_params.get("v") == digest
    headers = {"Cache-Control": FOR_EVER if is_named else ASKED_AGAIN, "ETag": f'"{digest}"'}
    if matches(request.headers.get("if-none-match", ""), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


@router.get(f"{API}/status", name="portal_status")
def portal_status(by: AskedDep) -> Response:
    return json_response(token_status(by))


@router.get(f"{TABLE}/about", name="portal_about")
@in_table_pool
def portal_about(by: TableDep, previews: PreviewsDep) -> Response:
    by.note.version = by.view.latest().number
    return json_response(table_facts(by, previews.signers))


@router.get(f"{TABLE}/versions", name="portal_versions")
@in_table_pool
def portal_versions(by: TableDep, previews: PreviewsDep) -> Response:
    return json_response(table_history(by, previews.signers))


@router.get(f"{TABLE}/preview", name="portal_preview")
async def portal_preview(by: TableDep, previews: PreviewsDep) -> Response:
    # Waiting for its turn it holds none of the threads that answer the others.
    async with previews.turns(by.view.services):
        return json_response(await by.run(previews.preview, by))


@router.get(f"{TABLE}/code", name="portal_code")
@in_table_pool
def portal_code(by: TableDep) -> Response:
    return json_response({"snippets": table_code(by)})
