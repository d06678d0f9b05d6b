"""A trace store: a real server that receives OTLP over HTTP."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

IS_REMOTE = 0x200


class TraceStore:
    """The spans that were received, by trace."""

    def __init__(self) -> None:
        self._requests: list[ExportTraceServiceRequest] = []
        self._lock = threading.Lock()
        self.status = 200
        """The status of the next answers; another than 200 refuses the spans."""
        self.refused = 0

    def receive(self, body: bytes) -> int:
        """Keep what an exporter sent, and return the status of the answer."""
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            if self.status != 200:
                self.refused += 1
            else:
                self._requests.append(request)
            return self.status

    @property
    def spans(self) -> list[Span]:
        """Every span, in the order in which they came."""
        with self._lock:
            return [
                span
                for request in self._requests
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]

    @property
    def services(self) -> set[str]:
        """The names of the services that sent spans."""
        with self._lock:
            return {
                attribute.value.string_value
                for request in self._requests
                for resource in request.resource_spans
                for attribute in resource.resource.attributes
                if attribute.key == "service.name"
            }

    def trace(self, trace_id: str) -> "Trace":
        """Return the spans of a trace."""
        return Trace([span for span in self.spans if span.trace_id.hex() == trace_id])


class Trace:
    """The spans of one trace, as a tree."""

    def __init__(self, spans: list[Span]) -> None:
        self.spans = {span.span_id: span for span in spans}

    def of(self, name: str) -> Span:
        """Return the only span of a name."""
        [span] = [span for span in self.spans.values() if span.name == name]
        return span

    def tree(self) -> dict[str, Any]:
        """Return the names as nested dictionaries; a second child of a name has a number."""
        roots = [span for span in self.spans.values() if span.parent_span_id not in self.spans]
        return self._named(roots)

    def _named(self, spans: list[Span]) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for span in sorted(spans, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano)):
            number = sum(name.partition(" #")[0] == span.name for name in named)
            children = [child for child in self.spans.values() if child.parent_span_id == span.span_id]
            named[f"{span.name} #{number + 1}" if number else span.name] = self._named(children)
        return named


def attributes(span: Span) -> dict[str, object]:
    """Return the attributes of a span as plain values."""
    return {a.key: getattr(a.value, a.value.WhichOneof("value") or "string_value") for a in span.attributes}


@contextmanager
def trace_store() -> Iterator[tuple[TraceStore, str]]:
    """Serve a trace store, and yield it with its URL."""
    store = TraceStore()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status = store.receive(self.rfile.read(int(self.headers["Content-Length"])))
            body = ExportTraceServiceResponse().SerializeToString()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
