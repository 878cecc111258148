"""A collector of traces (OTLP over HTTP) in a thread of the test, and a process whose spans it gets."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor


class ATraceCollector(HTTPServer):
    """Keeps every request of exporters."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.received: list[ExportTraceServiceRequest] = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}

    def spans(self) -> list[Span]:
        return [
            span
            for request in self.received
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]

    def by_name(self, name: str) -> list[Span]:
        return [span for span in self.spans() if span.name == name]

    def services(self) -> set[str]:
        """The names of the services that sent spans."""
        return {
            attribute.value.string_value
            for request in self.received
            for group in request.resource_spans
            for attribute in group.resource.attributes
            if attribute.key == "service.name"
        }


class _Receiver(BaseHTTPRequestHandler):
    server: ATraceCollector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/traces":
            self.server.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def a_trace_collector() -> Iterator[ATraceCollector]:
    with ATraceCollector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


@contextmanager
def traced() -> Iterator[ATraceCollector]:
    """Sends the spans of this process, each when it ends, to a collector until the end of the block."""
    with a_trace_collector() as collector, pytest.MonkeyPatch.context() as patch:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(
            SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{collector.url}/v1/traces"))
        )
        # The API lets a program set its provider once.
        patch.setattr(trace, "_TRACER_PROVIDER", provider)
        patch.setattr("lakeshare_server.telemetry.tracing.is_exporting", lambda: True)
        patch.setattr("lakeshare_pipelines.wap.staged.is_exporting", lambda: True)
        yield collector
        provider.shutdown()


def attributes_of(span: Span) -> dict[str, Any]:
    """The attributes of a span as Python values."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
