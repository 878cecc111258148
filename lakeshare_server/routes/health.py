"""Liveness, readiness and Prometheus metrics, without a token; and what traces record."""

import hmac
import ipaddress
import logging
import os
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import Scope

from lakeshare_server.catalog import Allowances, Catalog
from lakeshare_server.catalog.database import HEAD
from lakeshare_server.errors import Unavailable
from lakeshare_server.outbound import SharedRefresh
from lakeshare_server.routes.context import READINESS, AppState, AppStateDep, AuditRecord
from lakeshare_server.routes.responses import error_response, json_response
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage.remote import SIGNATURE

WORKERS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")

router = APIRouter()


class Metrics:
    """The counters of this process; `text` adds those of the other workers."""

    def __init__(self, *, names: bool = False) -> None:
        self._names = names
        registry = self._registry = CollectorRegistry()
        who = ["recipient"] if names else []
        self._requests = Counter(
            "lakeshare_requests",
            "Requests, by call and outcome.",
            ["action", "status", "error", *who],
            registry=registry,
        )
        self._seconds = Histogram(
            "lakeshare_request_seconds",
            "Time from a request's arrival to the end of its reply.",
            ["action"],
            buckets=BUCKETS_S,
            registry=registry,
        )
        files, size = (
            "Files whose URLs were signed, or that were sent.",
            "Bytes of these files, as far as known.",
        )
        self._files = Counter("lakeshare_files", files, ["action", *who], registry=registry)
        self._bytes = Counter("lakeshare_file_bytes", size, ["action", *who], registry=registry)
        self._outages = Gauge(
            "lakeshare_service_unavailable",
            "1 for a store, catalog, token service or issuer that gives a worker no answers.",
            ["service"],
            registry=registry,
            multiprocess_mode="livemax",
        )

    def note_outage(self, service: str, is_unavailable: bool) -> None:
        self._outages.labels(service).set(int(is_unavailable))

    def count(self, audit_record: AuditRecord, status: int, elapsed_s: float) -> None:
        who = (audit_record.recipient or "",) if self._names else ()
        self._requests.labels(audit_record.action, str(status), audit_record.error_code or "", *who).inc()
        self._seconds.labels(audit_record.action).observe(elapsed_s)
        if audit_record.files:
            self._files.labels(audit_record.action, *who).inc(audit_record.files)
        if audit_record.size_bytes:
            self._bytes.labels(audit_record.action, *who).inc(audit_record.size_bytes)

    def text(self) -> bytes:
        registry = self._registry
        if WORKERS_FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # it has none
        return generate_latest(registry)


@router.get("/metrics", name="metrics")
def metrics(request: Request, app_state: AppStateDep) -> Response:
    if not may_read_metrics(request, app_state.settings):
        return error_response(404, "RESOURCE_DOES_NOT_EXIST", "There is nothing here for you.")
    return Response(app_state.metrics.text(), media_type=CONTENT_TYPE_LATEST)


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
    problems = await app_state.pools.run(READINESS, _problems, app_state)
    content: dict[str, Any] = {"status": "not ready" if problems else "ready", "reasons": problems}
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


class WriteCheck:
    """Whether the state folder and the database accept writes; one thread checks for all probes."""

    def __init__(self, catalog: Catalog, settings: ServerSettings) -> None:
        self._allowances, self._settings = Allowances(catalog), settings
        self._refresh = SharedRefresh(CHECK_S)
        self._problems: list[str] = []

    def problems(self) -> list[str]:
        self._refresh.run(self._check)
        return self._problems

    def _check(self) -> None:
        self._problems = [*self._check_folder(self._settings.state_dir), *self._check_database()]

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


def _problems(app_state: AppState) -> list[str]:
    problems = []
    try:
        state = app_state.catalog.schema_state()
        if not state.is_usable:
            what = f"the catalog is at revision {state.revision}, this server needs {HEAD}"
            problems.append(f"{what}: use the version that migrated it")
        problems += app_state.write_check.problems()
    except Unavailable as error:
        problems.append(str(error))
    folder = app_state.settings.index_dir
    if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
        problems.append(f"the file indexes in {folder} cannot be read: check the folder's mode")
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

    def add_attributes(self, recipient: str | None, **attributes: Any) -> None:
        if self._span is None:
            return
        recorded = {**attributes, "recipient": recipient} if self._names else attributes
        for name, value in recorded.items():
            if value is not None:
                self._span.set_attribute(f"lakeshare.{name}", value)
