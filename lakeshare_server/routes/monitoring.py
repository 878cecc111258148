"""Prometheus metrics: the counters of all workers, and the state that they share, read from the database.

The definitions are in `lakeshare_server/metrics.py`.
"""

import logging
import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.exc import SQLAlchemyError

from lakeshare_server import metrics as defined
from lakeshare_server.catalog.database import HEAD
from lakeshare_server.catalog.monitoring import FreshnessGoals, LakeState, read_lake_state
from lakeshare_server.errors import Unavailable
from lakeshare_server.metrics import PROCESS, Samples, StateCollector, format_metrics
from lakeshare_server.outbound import Service, SharedRefresh
from lakeshare_server.routes.context import AppState, AppStateDep
from lakeshare_server.routes.health import CATALOG, CHECKS, Problem, find_problems, may_read_metrics
from lakeshare_server.routes.responses import error_response

# How long a scrape waits for the database.
STATE_S = 3.0
FAILED_S = 5.0

router = APIRouter()
_log = logging.getLogger(__name__)


@router.get("/metrics", name="metrics")
def metrics(request: Request, app_state: AppStateDep) -> Response:
    if not may_read_metrics(request, app_state.settings):
        return error_response(404, "RESOURCE_DOES_NOT_EXIST", "There is nothing here for you.")
    registries = (app_state.metrics.registry, PROCESS.registry)
    text = format_metrics(registries, StateCollector(app_state.state_metrics.read))
    return Response(text, media_type=CONTENT_TYPE_LATEST)


class StateMetrics:
    """The samples of the state that all workers share, read from the database at most every `metrics_refresh_s`.

    A database that does not answer delays a scrape by `STATE_S` at most. What was read last is shown until it does.
    """

    def __init__(self, app_state: AppState) -> None:
        self._app_state, self._settings = app_state, app_state.settings
        refresh_s = app_state.settings.metrics_refresh_s
        self._refresh = SharedRefresh(refresh_s, min(refresh_s, FAILED_S))
        self._service = Service("database: metrics", STATE_S)
        self._goals = FreshnessGoals()
        self._problems: list[Problem] = []
        self._state: LakeState | None = None
        self._read_at = time.monotonic()

    def read(self) -> list[Samples]:
        samples = Samples()
        samples.add(defined.BUILD_INFO, 1, version("lakeshare"), HEAD)
        samples.add(defined.CACHE_BYTES, _measure_files(self._settings.index_dir / "cache"))
        samples.add(defined.DATABASE_UP, self._is_refreshed())
        samples.add(defined.STATE_AGE, time.monotonic() - self._read_at)
        failed = {problem.check for problem in self._problems}
        for check in CHECKS:
            samples.add(defined.CHECK_FAILED, check in failed, check)
        if self._state is not None:
            _add_state(samples, self._state)
        return [samples]

    def _is_refreshed(self) -> bool:
        try:
            self._refresh.run(lambda: self._service.call(self._load))
        except Unavailable as error:
            if not any(problem.check == CATALOG for problem in self._problems):
                self._problems = [*self._problems, Problem(CATALOG, str(error))]
            return False
        return True

    def _load(self) -> None:
        self._problems = find_problems(self._app_state)
        try:
            with self._app_state.catalog.reading() as session:
                self._state = read_lake_state(session, self._goals, self._settings.metrics_tables)
        except SQLAlchemyError as error:
            _log.error("the state of the lake cannot be read for metrics: %s", error)
            what = "the state of the lake cannot be read"
            raise Unavailable(what, "The server's log has the cause.") from error
        self._read_at = time.monotonic()


def _add_state(samples: Samples, state: LakeState) -> None:
    now = datetime.now(UTC)
    for table in state.tables:
        samples.add(defined.PUBLICATION_AGE, (now - table.published_at).total_seconds(), table.table)
        if table.goal_s is not None:
            samples.add(defined.FRESHNESS_GOAL, table.goal_s, table.table)
    samples.add(defined.TABLES_LEFT_OUT, state.left_out)
    samples.add(defined.PUBLICATIONS, state.publications)
    samples.add(defined.UNSIGNED, state.unsigned)
    for name, count in state.deliveries.items():
        samples.add(defined.DELIVERIES, count, name)
    pending_s = 0.0 if state.oldest_pending is None else (now - state.oldest_pending).total_seconds()
    samples.add(defined.OLDEST_DELIVERY, pending_s)
    for name, count in state.queries.items():
        samples.add(defined.QUERIES, count, name)
    samples.add(defined.PUBLISHING, state.publishing)


def _measure_files(folder: Path) -> int:
    size = 0
    if folder.exists():
        for entry in os.scandir(folder):
            # Another process may have removed it meanwhile.
            with suppress(FileNotFoundError):
                size += entry.stat().st_size
    return size
