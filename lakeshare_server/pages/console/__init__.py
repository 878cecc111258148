"""The console: pages where a provider's team sees and changes its sharing, rendered by the server.

An application of its own below `/console`, with its own errors; each module has the pages of one subject.
"""

import time

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import RedirectResponse

from lakeshare_server.pages.console import (
    audit,
    backups,
    jobs,
    publications,
    quality,
    recipients,
    session,
    shares,
    system,
)
from lakeshare_server.pages.console.jobs import ConsoleWork, make_jobs
from lakeshare_server.pages.console.pipelines import PipelineCalls
from lakeshare_server.pages.console.session import ConsoleErrors, console_url
from lakeshare_server.routes.context import AppState, AppStateDep, AuditRecordDep
from lakeshare_server.routes.errors import add_error_responses
from lakeshare_server.settings import CONSOLE_PATH

PARTS = (session, publications, quality, shares, recipients, audit, backups, system, jobs)

entrance = APIRouter()


@entrance.get(CONSOLE_PATH)
def console_root(app_state: AppStateDep, audit_record: AuditRecordDep) -> Response:
    """Leads from the path without a slash at its end to the application's first page."""
    audit_record.action = "console"
    return RedirectResponse(console_url(app_state.settings) + "/")


def open_console_work(app_state: AppState) -> ConsoleWork:
    """The calls of the pipelines and the jobs of the console; its jobs are closed with the server."""
    settings = app_state.settings
    calls = PipelineCalls(settings, app_state.services, app_state.pools)
    return ConsoleWork(calls, make_jobs(settings, settings.console_job_s))


def console_app(app_state: AppState, server: FastAPI, work: ConsoleWork) -> FastAPI:
    """The application; `server` is the one that serves recipients, for previews as a recipient."""
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.state.app_state, app.state.server, app.state.work = app_state, server, work
    app.state.folder_sizes, app.state.started_at = system.FolderSizes(), time.monotonic()
    add_error_responses(app, ConsoleErrors())
    for part in PARTS:
        app.include_router(part.router)
    return app
