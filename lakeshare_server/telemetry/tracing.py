"""Traces by OpenTelemetry: spans of runs and backups, and the trace that a publication keeps for its queries.

The server's spans are made by FastAPI, which also sends them. Runs and commands send theirs if
`OTEL_EXPORTER_OTLP_ENDPOINT` names a collector and `lakeshare[otel]` is installed. Without, no span is recorded and
these functions cost microseconds.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

TRACEPARENT = "traceparent"
SERVICE = "lakeshare-pipelines"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
# The trace of the program that starts a command, like that of CI.
PARENT = "TRACEPARENT"
_propagator = TraceContextTextMapPropagator()
_log = logging.getLogger(__name__)

Attribute = str | int | float | bool | None


@contextmanager
def span(name: str, parent: str | None = None, **attributes: Attribute) -> Iterator[trace.Span]:
    """A span around the block; the class of an error of the block is its status.

    It is a child of the current span. Without one it is a child of `parent`, which has the form of the header
    `traceparent`, and without that of the program that started this one.
    """
    _ensure_exporting()
    context = None
    if not trace.get_current_span().get_span_context().is_valid:
        found = parent or os.environ.get(PARENT)
        context = None if found is None else _propagator.extract({TRACEPARENT: found})
    tracer = trace.get_tracer("lakeshare")
    # Texts of errors may quote rows: a span has the class only.
    with tracer.start_as_current_span(
        name, context, attributes=_named(attributes), record_exception=False, set_status_on_exception=False
    ) as started:
        try:
            yield started
        except BaseException as error:
            started.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
            raise


def add_attributes(**attributes: Attribute) -> None:
    """Adds attributes to the current span; None is left out."""
    trace.get_current_span().set_attributes(_named(attributes))


def is_recording() -> bool:
    """Whether the current span is recorded."""
    return trace.get_current_span().is_recording()


def current_traceparent() -> str | None:
    """The current span as the header `traceparent`; None if nothing is recorded."""
    carrier: dict[str, str] = {}
    if is_recording():
        _propagator.inject(carrier)
    return carrier.get(TRACEPARENT)


def current_trace_id() -> str | None:
    """The id of the current trace in hexadecimal digits; None without one."""
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


def find_span_context(traceparent: str) -> trace.SpanContext | None:
    """The span of a header `traceparent`, None for an invalid one."""
    context = trace.get_current_span(_propagator.extract({TRACEPARENT: traceparent})).get_span_context()
    return context if context.is_valid else None


def is_exporting() -> bool:
    """Whether the environment names a collector."""
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not is_disabled and any(os.environ.get(name) for name in ENDPOINTS)


@cache
def _ensure_exporting() -> None:
    """Sends the spans of this process to the collector of the environment, unless a program does this already."""
    if not is_exporting() or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        _log.warning("no traces are sent: pip install 'lakeshare[otel]'")
        return
    # Resource.create prefers what it is given to the environment.
    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    is_named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in attributes
    provider = TracerProvider(resource=Resource.create({} if is_named else {"service.name": SERVICE}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def _named(attributes: dict[str, Attribute]) -> dict[str, str | int | float | bool]:
    return {f"lakeshare.{name}": value for name, value in attributes.items() if value is not None}
