"""Traces by OpenTelemetry's API: spans of runs, and the trace that a publication keeps for the queries that it serves.

Without `lakeshare[otel]` and the settings of OTEL_* no span is recorded, and these functions cost microseconds.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

TRACEPARENT = "traceparent"
_propagator = TraceContextTextMapPropagator()

Attribute = str | int | float | bool | None


@contextmanager
def span(name: str, **attributes: Attribute) -> Iterator[trace.Span]:
    """A span around the block, a child of the current one; an error of the block is its status."""
    tracer = trace.get_tracer("lakeshare")
    with tracer.start_as_current_span(name, attributes=_named(attributes)) as started:
        yield started


def add_attributes(**attributes: Attribute) -> None:
    """Adds attributes to the current span; None is left out."""
    current = trace.get_current_span()
    if current.is_recording():
        current.set_attributes(_named(attributes))


def current_traceparent() -> str | None:
    """The current span as the header `traceparent`; None if nothing is recorded."""
    carrier: dict[str, str] = {}
    if trace.get_current_span().is_recording():
        _propagator.inject(carrier)
    return carrier.get(TRACEPARENT)


def current_trace_id() -> str | None:
    """The id of the current trace in hexadecimal digits; None without one."""
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


def add_link(traceparent: str) -> None:
    """Links the current span to another trace."""
    context = trace.get_current_span(_propagator.extract({TRACEPARENT: traceparent})).get_span_context()
    if context.is_valid:
        trace.get_current_span().add_link(context)


def _named(attributes: dict[str, Attribute]) -> dict[str, str | int | float | bool]:
    return {f"lakeshare.{name}": value for name, value in attributes.items() if value is not None}
