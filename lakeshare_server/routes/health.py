"""Whether the process lives, and whether it can answer; for whoever watches over it, without a token."""

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
    """The counts of this process; read together with those of the others, if there are any."""

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
        self._files = Counter(
            "lakeshare_files",
            "Files whose URLs were signed, or that were sent.",
            ["action", *who],
            registry=registry,
        )
        self._bytes = Counter(
            "lakeshare_file_bytes",
            "Bytes of these files, as far as known.",
            ["action", *who],
            registry=registry,
        )

        self._outages = Gauge(
            "lakeshare_service_unavailable",
            "1 for a store, catalog, token service or issuer that gives a worker no answers.",
            ["service"],
            registry=registry,
            multiprocess_mode="livemax",
        )

    def note_outage(self, service: str, is_unavailable: bool) -> None:
        """A service has stopped to answer, or answers again."""
        self._outages.labels(service).set(int(is_unavailable))

    def count(self, audit_record: AuditRecord, status: int, elapsed_s: float) -> None:
        """Count a request that has ended."""
        who = (audit_record.recipient or "",) if self._names else ()
        self._requests.labels(audit_record.action, str(status), audit_record.error_code or "", *who).inc()
        self._seconds.labels(audit_record.action).observe(elapsed_s)
        if audit_record.files:
            self._files.labels(audit_record.action, *who).inc(audit_record.files)
        if audit_record.size_bytes:
            self._bytes.labels(audit_record.action, *who).inc(audit_record.size_bytes)

    def text(self) -> bytes:
        """All counts in the format of Prometheus."""
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
    """Whoever holds the token; without one, programs of this host that speak for nobody else."""
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
# The row of the catalog that is written to find out whether it can be.
PROBE = "readyz"
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_log = logging.getLogger(__name__)


@router.get("/healthz", name="healthz")
async def healthz() -> Response:
    return json_response({"status": "ok"})


@router.get("/readyz", name="readyz")
async def readyz(request: Request, app_state: AppStateDep) -> Response:
    problems = await app_state.pools.run(READINESS, _problems, app_state)
    content: dict[str, Any] = {"status": "not ready" if problems else "ready", "reasons": problems}
    services = _services(request, app_state)
    # Tables elsewhere are served all the same: this worker stays ready.
    if services:
        content["services"] = services
    return json_response(content, 503 if problems else 200)


class WriteCheck:
    """Whether the state folder and the database take writes; tried by one thread for all probes."""

    def __init__(self, catalog: Catalog, settings: ServerSettings) -> None:
        self._allowances, self._settings = Allowances(catalog), settings
        self._refresh = SharedRefresh(CHECK_S)
        self._found: list[str] = []

    def problems(self) -> list[str]:
        """What refuses writes, with the remedy."""
        self._refresh.run(self._look)
        return self._found

    def _look(self) -> None:
        self._found = [*self._of_folder(self._settings.state_dir), *self._of_database()]

    def _of_folder(self, folder: Path) -> list[str]:
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

    def _of_database(self) -> list[str]:
        try:
            # A real write: a database whose disk is full takes locks and refuses pages.
            self._allowances.take(PROBE, PROBE, EPOCH, most=1 << 62, wanted=1)
        except (Unavailable, SQLAlchemyError) as error:
            _log.error("the database refuses a write (%s)", type(error).__name__)
            return ["the database refuses writes; the server's log says why. Check its disk and its mode"]
        return []


def _problems(app_state: AppState) -> list[str]:
    problems = []
    try:
        revision = app_state.catalog.revision()
        if revision != HEAD:
            problems.append(f"the catalog is at revision {revision}, this server needs {HEAD}: restart it")
        problems += app_state.write_check.problems()
    except Unavailable as error:
        problems.append(str(error))
    folder = app_state.settings.index_dir
    if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
        problems.append(f"the file indexes in {folder} cannot be read: check the folder's mode")
    return problems


def _services(request: Request, app_state: AppState) -> list[dict[str, Any]]:
    """The stores, catalogs and issuers that this worker gets no answers from; named to readers of metrics only."""
    outages = [state for state in app_state.services.states() if state.outage is not None]
    if not may_read_metrics(request, app_state.settings):
        return [{"unavailableForSeconds": round(state.outage_s)} for state in outages]
    return [
        {"name": state.name, "unavailableForSeconds": round(state.outage_s), "reason": state.outage}
        for state in outages
    ]


WATCHED_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
REDACTED = "REDACTED"


def telemetry_settings() -> TelemetryConfig:
    """How the framework is to trace: by the environment, and without the paths that are only watched."""
    return {
        "auto_configure": True,
        # What went wrong is in the process log; exceptions may quote what was asked.
        "logs": False,
        "exclude": lambda scope: scope.get("path") in WATCHED_PATHS,
    }


class Trace:
    """The span of a request, where it is recorded."""

    def __init__(self, scope: Scope, *, names: bool) -> None:
        span = trace.get_current_span()
        self._span = span if span.is_recording() else None
        self._names = names
        # Whoever has the whole URL of a file can read the file.
        if self._span is not None and SIGNATURE.encode() in scope.get("query_string", b""):
            self._span.set_attribute("url.query", REDACTED)

    def say(self, recipient: str | None, **attributes: Any) -> None:
        """Add what is known by now; nothing once the reply is over."""
        if self._span is None:
            return
        recorded = {**attributes, "recipient": recipient} if self._names else attributes
        for name, value in recorded.items():
            if value is not None:
                self._span.set_attribute(f"lakeshare.{name}", value)
