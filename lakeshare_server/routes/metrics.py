"""Metrics for Prometheus: how many requests, how long they took, how much was signed for; of all workers together.

They name no recipient unless a setting says so. Whoever may not read them is told that there is nothing.
"""

import hmac
import ipaddress
import os

from fastapi import APIRouter, Request, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from lakeshare_server.routes.context import Note, PartsDep
from lakeshare_server.routes.responses import error_response
from lakeshare_server.settings import ServerSettings

# Where workers keep their counts for each other; the library goes by it when it is imported.
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

    def count(self, note: Note, status: int, elapsed_s: float) -> None:
        """Count a request that has ended."""
        who = (note.recipient or "",) if self._names else ()
        self._requests.labels(note.action, str(status), note.error_code or "", *who).inc()
        self._seconds.labels(note.action).observe(elapsed_s)
        if note.files:
            self._files.labels(note.action, *who).inc(note.files)
        if note.size_bytes:
            self._bytes.labels(note.action, *who).inc(note.size_bytes)

    def text(self) -> bytes:
        """All counts in the format of Prometheus."""
        registry = self._registry
        if WORKERS_FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # it has none
        return generate_latest(registry)


@router.get("/metrics", name="metrics")
def metrics(request: Request, parts: PartsDep) -> Response:
    if not may_read_metrics(request, parts.settings):
        return error_response(404, "RESOURCE_DOES_NOT_EXIST", "There is nothing here for you.")
    return Response(parts.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def may_read_metrics(request: Request, settings: ServerSettings) -> bool:
    """Whoever holds the token; without one, programs of this host that speak for nobody else."""
    if settings.metrics_token is not None:
        expected = f"Bearer {settings.metrics_token.get_secret_value()}"
        given = request.headers.get("authorization", "")
        return hmac.compare_digest(given.encode(), expected.encode())
    if request.client is None or any(name in request.headers for name in FORWARDED):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False
