"""Pages of backups: points with their levels and problems, drills with RTO and RPO, and the plan of a restore."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fastapi import APIRouter, Response

from lakeshare_server.errors import LakeshareError, NotFound
from lakeshare_server.pages.console.jobs import ConsoleWork
from lakeshare_server.pages.console.pipelines import (
    BACKUP_S,
    BackupState,
    DeclaredBackup,
    Drill,
    PipelineCalls,
    RestorePlan,
)
from lakeshare_server.pages.console.session import ConsoleRequest, PageDep

DECLARED = "pipelines: backups"
SHOWN_DRILLS = 40

router = APIRouter()


@dataclass(frozen=True)
class BackupOverview:
    """A declared backup with its state, or why that cannot be read."""

    backup: DeclaredBackup
    state: BackupState | None
    problem: str | None


@router.get("/backups")
async def list_backups(request: PageDep) -> Response:
    """The declared backups."""
    calls = ConsoleWork.of(request.http_request).calls
    missing, overviews, problem = await calls.find_problem(), list[BackupOverview](), None
    if missing is None:
        try:
            declared = await _list_declared(calls)
        except LakeshareError as error:
            problem = f"The backups cannot be read: {error.for_provider()}"
        else:
            overviews = await asyncio.gather(*(_read_overview(calls, backup) for backup in declared))
    return request.render(
        "backups.html", missing=missing, overviews=overviews, unread=problem, now=datetime.now(UTC)
    )


@router.get("/backups/{backup}")
async def show_backup(request: PageDep, backup: str) -> Response:
    """The points of a backup and its drills."""
    overview = await _find_overview(request, backup)
    drills = list(overview.state.drills[:SHOWN_DRILLS]) if overview.state is not None else []
    return request.render(
        "backup.html",
        backup=overview.backup,
        state=overview.state,
        unread=overview.problem,
        drills=drills,
        charts=_make_charts(drills),
        now=datetime.now(UTC),
    )


@router.get("/backups/{backup}/points/{day}")
async def show_point(request: PageDep, backup: str, day: str) -> Response:
    """The tables of a point; with `plan`, the root of a table, what its restore in place would do."""
    overview = await _find_overview(request, backup)
    state = overview.state
    point = None if state is None else next((each for each in state.points if each.day == day), None)
    if state is not None and point is None and day not in state.damaged:
        raise NotFound("Backup point", f"{backup} {day}")
    plan, problem, root = None, overview.problem, request.query("plan")
    if point is not None and root:
        if root not in [proof.root for proof in point.tables]:
            raise NotFound("Table of the point", root)
        try:
            plan = await _plan_restore(request, backup, day, root)
        except LakeshareError as error:
            problem = f"The restore cannot be planned: {error.for_provider()}"
    return request.render(
        "point.html",
        backup=overview.backup,
        day=day,
        point=point,
        damaged=None if state is None else state.damaged.get(day),
        plan=plan,
        unread=problem,
        now=datetime.now(UTC),
    )


async def _plan_restore(request: ConsoleRequest, backup: str, day: str, root: str) -> RestorePlan:
    calls = ConsoleWork.of(request.http_request).calls
    return await calls.run(
        f"pipelines: backup {backup}", BACKUP_S, lambda pipelines: pipelines.plan_restore(backup, day, root)
    )


async def _list_declared(calls: PipelineCalls) -> Sequence[DeclaredBackup]:
    return await calls.run(DECLARED, BACKUP_S, lambda pipelines: pipelines.list_backups())


async def _find_overview(request: ConsoleRequest, name: str) -> BackupOverview:
    """A declared backup: only those have services and threads of their own. Raises NotFound."""
    calls = ConsoleWork.of(request.http_request).calls
    declared = await _list_declared(calls)
    backup = next((backup for backup in declared if backup.name == name), None)
    if backup is None:
        raise NotFound("Backup", name)
    return await _read_overview(calls, backup)


async def _read_overview(calls: PipelineCalls, backup: DeclaredBackup) -> BackupOverview:
    try:
        state = await calls.run(
            f"pipelines: backup {backup.name}", BACKUP_S, lambda pipelines: pipelines.read_backup(backup.name)
        )
    except LakeshareError as error:
        return BackupOverview(backup, None, f"Its points cannot be read: {error.for_provider()}")
    return BackupOverview(backup, state, None)


def _make_charts(drills: Sequence[Drill]) -> dict[str, list[tuple[str, float, str]]]:
    """Bars of the recovery times and points, the oldest drill first."""
    oldest_first = drills[::-1]
    return {
        "rto": [
            (f"{drill.started_at:%Y-%m-%d}", drill.rto_s, f"{drill.started_at:%Y-%m-%d}: {drill.rto_s:.1f} s")
            for drill in oldest_first
        ],
        "rpo": [
            (
                f"{drill.started_at:%Y-%m-%d}",
                drill.rpo_s,
                f"{drill.started_at:%Y-%m-%d}: {drill.rpo_s / 3600:.1f} hours",
            )
            for drill in oldest_first
        ],
    }
