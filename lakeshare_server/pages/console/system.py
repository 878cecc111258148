"""The page of the system: database, processes, services, caches, followed tables, queries, settings, and `doctor`."""

import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import sqlalchemy
from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import SecretStr

from lakeshare_server.catalog import overviews
from lakeshare_server.catalog.database import HEAD
from lakeshare_server.catalog.overviews import FollowedOverview
from lakeshare_server.errors import LakeshareError
from lakeshare_server.pages.console.jobs import ConsoleWork
from lakeshare_server.pages.console.pipelines import EXAMINE, EXAMINE_S, Finding
from lakeshare_server.pages.console.session import ChangeDep, ConsoleRequest, PageDep
from lakeshare_server.settings import ServerSettings
from lakeshare_server.versions import Freshness

# The sizes of folders are read by walking them, at most so often.
FOLDER_LIFE_S = 30.0
FOLDERS = ("console folders",)
SHOWN_JOBS = 10

router = APIRouter()


@dataclass(frozen=True)
class FolderSize:
    files: int
    size_bytes: int


@dataclass(frozen=True)
class FollowedState:
    """A followed table with what this worker knows of it."""

    overview: FollowedOverview
    freshness: Freshness


@dataclass(frozen=True)
class ChangedSetting:
    """A setting that is not its default; of secrets only that they are set."""

    name: str
    value: str
    description: str


class FolderSizes:
    """The sizes of folders, read at intervals."""

    def __init__(self) -> None:
        self._turn = Lock()
        self._known: dict[Path, tuple[float, FolderSize]] = {}

    def measure(self, folder: Path) -> FolderSize:
        with self._turn:
            known = self._known.get(folder)
            if known is not None and time.monotonic() - known[0] < FOLDER_LIFE_S:
                return known[1]
            sizes = list(_list_sizes(folder))
            measured = FolderSize(len(sizes), sum(sizes))
            self._known[folder] = time.monotonic(), measured
            return measured


def _list_sizes(folder: Path) -> Iterator[int]:
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _list_sizes(Path(entry.path))
            else:
                yield entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue  # removed since it was listed


@router.get("/system")
async def show_system(request: PageDep) -> Response:
    """The state of the system as this worker knows it."""
    return await _render_system(request)


@router.post("/system/examine")
async def examine(request: ChangeDep) -> Response:
    """What `lakeshare doctor` finds on this host now."""
    calls = ConsoleWork.of(request.http_request).calls
    try:
        findings = await calls.run(EXAMINE, EXAMINE_S, lambda pipelines: pipelines.examine())
    except LakeshareError as error:
        return await _render_system(request, problem=error.for_provider())
    return await _render_system(request, findings=findings)


async def _render_system(
    request: ConsoleRequest, findings: Sequence[Finding] | None = None, problem: str | None = None
) -> Response:
    sizes: FolderSizes = request.http_request.app.state.folder_sizes
    settings, pools = request.app_state.settings, request.app_state.pools
    missing = await ConsoleWork.of(request.http_request).calls.find_problem()
    unread = None
    try:
        folders = [
            (title, await pools.run(FOLDERS, sizes.measure, folder))
            for title, folder in (
                ("File indexes", settings.index_dir),
                ("Cache of indexes", settings.index_dir / "cache"),
                ("Journals of audit events", settings.audit_dir),
                ("Deletion vectors", settings.vectors_dir),
            )
        ]
    except (LakeshareError, OSError) as error:
        folders, unread = [], f"The folders cannot be read: {error}"
    return await run_in_threadpool(_render, request, findings, problem, missing, folders, unread)


def _render(
    request: ConsoleRequest,
    findings: Sequence[Finding] | None,
    problem: str | None,
    missing: str | None,
    folders: Sequence[tuple[str, FolderSize]],
    unread: str | None,
) -> Response:
    app_state = request.app_state
    with app_state.catalog.reading() as session:
        work = overviews.read_operations(session)
        followed = overviews.find_followed(session, request.query("after"))
    url = app_state.catalog.engine.url
    return request.render(
        "system.html",
        findings=findings,
        problem=problem,
        missing=missing,
        database=url.set(query={}).render_as_string(hide_password=True),
        schema=app_state.catalog.schema_state(),
        expected_revision=HEAD,
        operations=work,
        services=app_state.services.states(),
        folders=folders,
        unread=unread,
        cache_bytes=app_state.settings.index_cache_bytes,
        backlog=app_state.audit.backlog,
        followed=[FollowedState(row, app_state.versions.find_freshness(row.table)) for row in followed.items],
        next_followed=followed.next,
        changed_settings=list(list_changed_settings(app_state.settings)),
        jobs=ConsoleWork.of(request.http_request).jobs.list_newest(SHOWN_JOBS),
        host=platform.node(),
        pid=os.getpid(),
        process_uptime_s=time.monotonic() - request.http_request.app.state.started_at,
    )


def list_changed_settings(settings: ServerSettings) -> Iterator[ChangedSetting]:
    """The settings that differ from their defaults, without secrets and passwords."""
    for name, field in type(settings).model_fields.items():
        value, default = getattr(settings, name), field.get_default()
        if value == (default.resolve() if isinstance(default, Path) else default):
            continue
        variable = f"LAKESHARE_{name.upper()}"
        yield ChangedSetting(variable, _format_setting(name, value), field.description or "")


def _format_setting(name: str, value: object) -> str:
    if isinstance(value, SecretStr):
        return "(set)"
    if name == "database_url" and isinstance(value, str):
        return sqlalchemy.make_url(value).set(query={}).render_as_string(hide_password=True)
    return str(value)
