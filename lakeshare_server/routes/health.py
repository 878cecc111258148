"""Liveness and readiness, without a token; who may read metrics; and what traces record."""

import hmac
import ipaddress
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import Scope

from lakeshare_server.catalog import Allowances, Catalog
from lakeshare_server.catalog.database import HEAD
from lakeshare_server.errors import Unavailable
from lakeshare_server.outbound import SharedRefresh
from lakeshare_server.routes.context import READINESS, AppState, AppStateDep
from lakeshare_server.routes.responses import json_response
from lakeshare_server.settings import ACTIVATION_PATH, ServerSettings
from lakeshare_server.storage.remote import SIGNATURE
from lakeshare_server.telemetry.tracing import find_span_context

FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")

router = APIRouter()


def may_read_metrics(request: Request, settings: ServerSettings) -> bool:
    """Whether the request has the token; without a configured token, whether it is local and unproxied."""
    if settings.metrics_token is not None:
        expected = f"Bearer {settings.metrics_token.get_secret_value()}"
        header = request.headers.get("authorization", "")
        return hmac.compare_digest(header.encode(), expected.encode())
    if request.client is None or any(name in request.headers for name in FORWARDED):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


CHECK_S = 5.0
PROBE_BYTES = 1 << 16
PROBE = "readyz"  # the catalog row that the write check writes
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_log = logging.getLogger(__name__)


@router.get("/healthz", name="healthz")
async def healthz() -> Response:
    return json_response({"status": "ok"})


@router.get("/readyz", name="readyz")
async def readyz(request: Request, app_state: AppStateDep) -> Response:
    problems = await app_state.pools.run(READINESS, find_problems, app_state)
    reasons = [problem.reason for problem in problems]
    content: dict[str, Any] = {"status": "not ready" if problems else "ready", "reasons": reasons}
    outages = [state for state in app_state.services.states() if state.outage is not None]
    # An outage does not affect tables of other stores: the worker stays ready.
    if outages and may_read_metrics(request, app_state.settings):
        content["services"] = [
            {"name": state.name, "unavailableForSeconds": round(state.outage_s), "reason": state.outage}
            for state in outages
        ]
    elif outages:
        content["services"] = [{"unavailableForSeconds": round(state.outage_s)} for state in outages]
    return json_response(content, 503 if problems else 200)


@dataclass(frozen=True)
class Problem:
    """A check of readiness that fails, and why."""

    check: str
    reason: str


CHECKS = CATALOG, DATABASE_WRITES, STATE_FOLDER, INDEXES = (
    "catalog",
    "database_writes",
    "state_folder",
    "indexes",
)


class WriteCheck:
    """Whether the state folder and the database accept writes; one thread checks for all probes."""

    def __init__(self, catalog: Catalog, settings: ServerSettings) -> None:
        self._allowances, self._settings = Allowances(catalog), settings
        self._refresh = SharedRefresh(CHECK_S)
        self._problems: list[Problem] = []

    def problems(self) -> list[Problem]:
        self._refresh.run(self._check)
        return self._problems

    def _check(self) -> None:
        in_folder, in_database = self._check_folder(self._settings.state_dir), self._check_database()
        self._problems = [
            *(Problem(STATE_FOLDER, reason) for reason in in_folder),
            *(Problem(DATABASE_WRITES, reason) for reason in in_database),
        ]

    def _check_folder(self, folder: Path) -> list[str]:
        least = self._settings.min_free_bytes
        try:
            free = shutil.disk_usage(folder).free
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"\0" * PROBE_BYTES)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return [
                f"the state folder {folder} cannot be written: {error.strerror}. Make room, or check its mode"
            ]
        if free < least:
            return [
                f"the disk of the state folder {folder} has {free} bytes left, fewer than LAKESHARE_MIN_FREE_BYTES "
                f"({least}). Make room"
            ]
        return []

    def _check_database(self) -> list[str]:
        try:
            # A real write: a database whose disk is full grants locks and refuses pages.
            self._allowances.take(PROBE, PROBE, EPOCH, most=1 << 62, wanted=1)
        except (Unavailable, SQLAlchemyError) as error:
            _log.error("the database refuses a write (%s)", type(error).__name__)
            return ["the database refuses writes; the server's log says why. Check its disk and its mode"]
        return []


def find_problems(app_state: AppState) -> list[Problem]:
    """Why this worker is not ready."""
    problems = []
    try:
        state = app_state.catalog.schema_state()
        if not state.is_usable:
            reason = f"the catalog is at revision {state.revision}, this server needs {HEAD}"
            problems.append(Problem(CATALOG, f"{reason}: use the version that migrated it"))
        problems += app_state.write_check.problems()
    except Unavailable as error:
        problems.append(Problem(CATALOG, str(error)))
    folder = app_state.settings.index_dir
    if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
        reason = f"the file indexes in {folder} cannot be read: check the folder's mode"
        problems.append(Problem(INDEXES, reason))
    return problems


WATCHED_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
REDACTED = "REDACTED"


def telemetry_settings() -> TelemetryConfig:
    # Exceptions may quote request values; they are in the process log.
    return {
        "auto_configure": True,
        "logs": False,
        "exclude": lambda scope: scope.get("path") in WATCHED_PATHS,
    }


class Trace:
    def __init__(self, scope: Scope, *, names: bool) -> None:
        span = trace.get_current_span()
        self._span = span if span.is_recording() else None
        self._names = names
        # The full URL of a file gives access to the file.
        if self._span is not None and SIGNATURE.encode() in scope.get("query_string", b""):
            self._span.set_attribute("url.query", REDACTED)
        # So does the path of an activation link, to a profile.
        if self._span is not None and scope["path"].startswith(f"{ACTIVATION_PATH}/"):
            self._span.set_attribute("url.path", f"{ACTIVATION_PATH}/{REDACTED}")

    def add_attributes(self, recipient: str | None, **attributes: Any) -> None:
        if self._span is None:
            return
        recorded = {**attributes, "recipient": recipient} if self._names else attributes
        for name, value in recorded.items():
            if value is not None:
                self._span.set_attribute(f"lakeshare.{name}", value)

    def add_link(self, traceparent: str) -> None:
        """Links the span to the trace of the run whose publication is served."""
        context = None if self._span is None else find_span_context(traceparent)
        if self._span is not None and context is not None:
            self._span.add_link(context)
