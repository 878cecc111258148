"""Pages of quality: what is staged and what failed, retry and discard, and the trend of each check of a set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from lakeshare_server.catalog import overviews
from lakeshare_server.catalog.overviews import SetRun
from lakeshare_server.errors import LakeshareError, NotFound
from lakeshare_server.pages.console.jobs import ConsoleWork, start_job
from lakeshare_server.pages.console.pipelines import STAGED, STAGED_S, DeclaredCheck, StagedSet, StagedSets
from lakeshare_server.pages.console.session import ChangeDep, ConsoleRequest, PageDep

RUNS = 30
# Stands in a publication's record for names of checks that did not fit into it.
CUT_SHORT = "…"
CANNOT_READ = "What is staged cannot be read now"

router = APIRouter()


@router.get("/quality")
async def list_staged(request: PageDep) -> Response:
    """What is staged now, and the sets with publications."""
    work = ConsoleWork.of(request.http_request)
    missing, staged, problem = await work.calls.find_problem(), StagedSets(()), None
    if missing is None:
        try:
            staged = await work.calls.run(STAGED, STAGED_S, lambda pipelines: pipelines.list_staged())
        except LakeshareError as error:
            problem = f"{CANNOT_READ}: {error.for_provider()}"
    return await run_in_threadpool(_render_quality, request, work, staged, problem, missing)


def _render_quality(
    request: ConsoleRequest, work: ConsoleWork, staged: StagedSets, unread: str | None, missing: str | None
) -> Response:
    with request.app_state.catalog.reading() as session:
        sets = overviews.find_sets(session, request.query("q"), request.query("after"))
    return request.render(
        "quality.html",
        staged=staged.sets,
        unread=unread,
        partial=staged.problem,
        missing=missing,
        sets=sets,
        jobs=[job for job in work.jobs.list_newest(RUNS) if job.is_running],
    )


@router.get("/quality/{reference}")
async def show_staged(request: PageDep, reference: str) -> Response:
    """A staged set: its tables, its checks, and the rows that broke them."""
    staged = await _find_staged(request, reference)
    return request.render("staged.html", staged=staged)


async def _find_staged(request: ConsoleRequest, reference: str) -> StagedSet:
    calls = ConsoleWork.of(request.http_request).calls
    return await calls.run(STAGED, STAGED_S, lambda pipelines: pipelines.find_staged(reference), CANNOT_READ)


@router.post("/quality/{reference}/retry")
async def retry(request: ChangeDep, reference: str) -> Response:
    """Starts another audit of a staged set in its current state, which publishes it if it is green."""
    staged = await _find_staged(request, reference)
    start = partial(
        start_job,
        request,
        *("wap", "retry", "--", reference),
        action="retry",
        object_name=reference,
        set_name=staged.set_name,
    )
    return await run_in_threadpool(start)


@router.post("/quality/{reference}/discard")
async def discard(request: ChangeDep, reference: str) -> Response:
    """Removes a staged set; published data is unchanged."""
    work = ConsoleWork.of(request.http_request)
    staged = await _find_staged(request, reference)
    with work.jobs.hold_set(staged.set_name):
        await work.calls.run(
            STAGED,
            STAGED_S,
            lambda pipelines: pipelines.discard(reference),
            f"{reference} is not discarded; `lakeshare wap discard {reference}` does it, too",
        )
    return request.redirect("quality", done="discarded")


@dataclass(frozen=True)
class CheckTrend:
    """A check over runs, the newest first: True passed, False failed, None unknown."""

    check: DeclaredCheck
    passed: Sequence[bool | None]

    @property
    def failures(self) -> int:
        return sum(each is False for each in self.passed)


@router.get("/quality/sets/{name}")
async def show_set(request: PageDep, name: str) -> Response:
    """The checks of a set over its last publications."""
    work, problem = ConsoleWork.of(request.http_request), None
    declared: Sequence[DeclaredCheck] = ()
    if await work.calls.find_problem() is None:
        try:
            declared = await work.calls.run(STAGED, STAGED_S, lambda pipelines: pipelines.list_checks(name))
        except LakeshareError as error:
            problem = f"The contract cannot be read: {error.for_provider()}"
    return await run_in_threadpool(_render_set, request, name, declared, problem)


def _render_set(
    request: ConsoleRequest, name: str, declared: Sequence[DeclaredCheck], problem: str | None
) -> Response:
    with request.app_state.catalog.reading() as session:
        runs = overviews.list_set_runs(session, name, RUNS)
    if not runs and not declared:
        raise NotFound("Set", name)
    audited = [run for run in runs if run.checks is not None]
    return request.render(
        "set.html", name=name, runs=audited, trends=find_trends(declared, audited), problem=problem
    )


def find_trends(declared: Sequence[DeclaredCheck], runs: Sequence[SetRun]) -> list[CheckTrend]:
    """The trend of each declared check, and of those that failed and are declared no more."""
    checks: Mapping[str, DeclaredCheck] = {f"{check.table}: {check.check}": check for check in declared}
    failed = (name for run in runs for name in run.failed if name != CUT_SHORT)
    former = {
        name: DeclaredCheck(*name.partition(": ")[::2], "", "The contract has it no more.")
        for name in failed
        if name not in checks
    }
    return [
        CheckTrend(check, [_has_passed(name, run) for run in runs])
        for name, check in {**checks, **former}.items()
    ]


def _has_passed(name: str, run: SetRun) -> bool | None:
    if name in run.failed:
        return False
    # The record does not name the checks that passed: one that was declared later may not have run.
    return None if CUT_SHORT in run.failed else True
