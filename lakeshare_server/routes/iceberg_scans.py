"""Planning the scans of Iceberg clients: the files of a table that may have the rows they want.

A plan is complete with its first answer and kept nowhere, so that there is none to fetch or to cancel later.
"""

from fastapi import Request, Response

from lakeshare_server.access.iceberg import LoadedTable
from lakeshare_server.access.iceberg_scans import asked_task
from lakeshare_server.errors import NotFound, shown
from lakeshare_server.protocol.bodies import json_object
from lakeshare_server.protocol.iceberg_scans import PlanTask, ScanRequest, parse_scan_request, tasks_json
from lakeshare_server.routes.context import AskedTable, asked_table, body_of
from lakeshare_server.routes.iceberg_tables import JSON, loaded, text_field


async def plan_scan(request: Request) -> Response:
    by = await asked_table(request)
    table = await loaded(by)
    fields = json_object(await body_of(request, by))
    asked = parse_scan_request(fields)
    tasks = await by.run(_tasks, by, table, asked, asked_task(table, asked), _is_pyiceberg(request))
    return Response(f'{{"status":"completed",{tasks}}}', media_type=JSON)


async def fetch_plan(request: Request) -> Response:
    await loaded(await asked_table(request))
    raise NotFound("plan-id", shown(request.path_params["plan_id"]))


async def cancel_plan(request: Request) -> Response:
    return await fetch_plan(request)


async def fetch_scan_tasks(request: Request) -> Response:
    by = await asked_table(request)
    table = await loaded(by)
    fields = json_object(await body_of(request, by))
    asked, task = by.parts.plan_tasks.opened(by.asker, text_field(fields, "plan-task"))
    tasks = await by.run(_tasks, by, table, asked, task, _is_pyiceberg(request))
    return Response(f"{{{tasks}}}", media_type=JSON)


def _is_pyiceberg(request: Request) -> bool:
    return request.headers.get("user-agent", "").startswith("PyIceberg/")


def _tasks(
    by: AskedTable, table: LoadedTable, asked: ScanRequest, task: PlanTask, is_for_pyiceberg: bool
) -> str:
    by.require_signing()
    page = by.parts.iceberg_scans.page(
        by.view, table, asked, task, by.parts.settings.page_files, is_for_pyiceberg=is_for_pyiceberg
    )
    by.note.files = len(page.tasks)
    following = None
    if page.following is not None:
        next_task = PlanTask(task.snapshot_id, page.following)
        following = by.parts.plan_tasks.token(by.asker, asked, next_task)
    return tasks_json(page.tasks, page.deletes, following)
