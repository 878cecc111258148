"""The console: pages where a provider's team sees and changes its sharing, rendered by the server.

An application of its own below `/console`, with its own errors; each module has the pages of one subject.
"""

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import RedirectResponse

from lakeshare_server.pages.console import recipients, session, shares
from lakeshare_server.pages.console.session import ConsoleErrors, console_url
from lakeshare_server.routes.context import AppState, AppStateDep, AuditRecordDep
from lakeshare_server.routes.errors import add_error_responses
from lakeshare_server.settings import CONSOLE_PATH

PARTS = (session, shares, recipients)

entrance = APIRouter()


@entrance.get(CONSOLE_PATH)
def console_root(app_state: AppStateDep, audit_record: AuditRecordDep) -> Response:
    """Leads from the path without a slash at its end to the application's first page."""
    audit_record.action = "console"
    return RedirectResponse(console_url(app_state.settings) + "/")


def console_app(app_state: AppState, server: FastAPI) -> FastAPI:
    """The application; `server` is the one that serves recipients, for previews as a recipient."""
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.state.app_state, app.state.server = app_state, server
    add_error_responses(app, ConsoleErrors())
    for part in PARTS:
        app.include_router(part.router)
    return app
