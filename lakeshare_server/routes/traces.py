"""What spans say of a request beside what the framework says: which call it was, and what came of it.

The framework makes the spans, and sends them where OTEL_EXPORTER_OTLP_ENDPOINT says; without that, they cost nothing.
"""

from typing import Any

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from starlette.types import Scope

from lakeshare_server.signing.local import SIGNATURE

WATCHED_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
REDACTED = "REDACTED"


def telemetry() -> TelemetryConfig:
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

    def say(self, recipient: str | None, **said: Any) -> None:
        """Add what is known by now; nothing once the reply is over."""
        if self._span is None:
            return
        told = {**said, "recipient": recipient} if self._names else said
        for name, value in told.items():
            if value is not None:
                self._span.set_attribute(f"lakeshare.{name}", value)
