"""Spans over OTLP, by the exporter of OpenTelemetry, which reads the variables `OTEL_EXPORTER_OTLP_…` itself.

Requests to the trace store end in time, and say which spans it rejected.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import BadStatusLine
from importlib.metadata import entry_points
from time import monotonic
from typing import Any, Final, TypeVar

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from typing_extensions import override

from ... import telemetry
from ...domain.definition import DefinitionProblem
from ...domain.text import counted
from ...domain.trace import Span
from ...domain.trace_context import TraceContext
from ...settings import SettingsError
from ..extras import ExtraNotInstalled
from .traces import SpansLost

try:
    import requests
    from google.protobuf.message import DecodeError
    from opentelemetry.exporter.otlp.proto.http import trace_exporter
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
    from urllib3.exceptions import HTTPError
except ImportError:
    raise ExtraNotInstalled("OTEL_EXPORTER_OTLP_ENDPOINT", "otel") from None

SERVICE: Final = "tocsin"
"""The name of the service unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` gives another."""
MAX_REASON: Final = 300
_log: Final = telemetry.get_logger("tocsin.traces")
_UNNAMED: Final = "unknown_service"
_KINDS: Final = {"internal": SpanKind.INTERNAL, "consumer": SpanKind.CONSUMER}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class OtlpSpanExporter:
    """Implement `traces.SpanExporter` by OTLP over HTTP.

    Each request has a daemon thread, so that a trace store that does not answer holds up neither the loop nor the exit.
    """

    def __init__(self, version: str) -> None:
        """Raise `SettingsError` if the provider of credentials cannot be used."""
        self._requests = TraceSession()
        self._exporter = trace_exporter.OTLPSpanExporter(session=self._requests.session)
        resource = Resource.create()
        if str(resource.attributes.get(SERVICE_NAME, _UNNAMED)).startswith(_UNNAMED):
            resource = resource.merge(Resource({SERVICE_NAME: SERVICE}))
        self._resource = resource
        self._scope = InstrumentationScope(SERVICE, version)
        self._reasons = _LastReason()
        self._hint = ""
        logging.getLogger(trace_exporter.__name__).addFilter(self._reasons)

    async def export(self, spans: Sequence[Span]) -> None:
        await asyncio.wrap_future(in_daemon(partial(self._send, spans)))

    def _send(self, spans: Sequence[Span]) -> None:
        outcome = self._requests.outcome
        result = self._exporter.export([self.readable(span) for span in spans])
        if result is not SpanExportResult.SUCCESS:
            raise SpansLost((outcome.problem or self._reasons.text)[:MAX_REASON])
        if outcome.rejected:
            reason = f"the trace store rejected {outcome.rejected} of {counted(len(spans), 'span')}: {outcome.message}"
            raise SpansLost(reason[:MAX_REASON], rejected=outcome.rejected)
        if outcome.message and outcome.message != self._hint:
            _log.info("hint of the trace store", action="trace-store-hint", reason=outcome.message[:MAX_REASON])
        self._hint = outcome.message or self._hint

    def close(self) -> None:
        logging.getLogger(trace_exporter.__name__).removeFilter(self._reasons)
        self._exporter.shutdown()  # type: ignore[no-untyped-call] # it has no annotation

    def readable(self, span: Span) -> ReadableSpan:
        """Return a span as the exporters of OpenTelemetry take it."""
        return ReadableSpan(
            name=span.name,
            context=_context(span.context),
            parent=None if span.parent is None else _context(span.parent, is_remote=span.is_remote),
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(event.name, event.attributes, _nanoseconds(event.time)) for event in span.events],
            links=[Link(_context(link.context), {"tocsin.link": link.relation}) for link in span.links],
            kind=_KINDS[span.kind],
            status=Status() if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=_nanoseconds(span.start),
            end_time=_nanoseconds(span.end),
            instrumentation_scope=self._scope,
        )


class _LastReason(logging.Filter):
    """Keeps the exporter's last line in place of writing it: the stage logs losses."""

    def __init__(self) -> None:
        super().__init__()
        self.text = "the trace store did not accept the spans"

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        self.text = record.getMessage()[:MAX_REASON]
        return False


def _context(context: TraceContext, *, is_remote: bool = False) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT)
    return SpanContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote, flags)


def _nanoseconds(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND * 1_000


MAX_ANSWER: Final = 65_536
ANSWER_TIMEOUT_S: Final = 10.0
"""Seconds for which they are read."""
HEAD_TIMEOUT_S: Final = 10.0
"""Seconds until an answer begins, if the exporter names no time."""
MAX_LEFT: Final = 4
"""Requests that were left and go on, because their answers come too slowly. Until one ends, no other begins."""
PROTOBUF: Final = "application/x-protobuf"
_REDIRECTS: Final = range(300, 400)
_FAILURES: Final = range(400, 600)
_PROVIDERS: Final = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)
"""The variables that name a provider of credentials, in the order of OpenTelemetry."""
_PROVIDER_GROUP: Final = "opentelemetry_otlp_credential_provider"
_HTTP2_FRAMES: Final = "\x04\x07"
"""The types of the frames with which servers of HTTP/2 answer other requests: settings, and the end of the connection."""

T = TypeVar("T")


class Outcome(threading.local):
    """The outcome of the last request of a thread."""

    longest: float = 0.0
    """The longest time limit of the thread's requests, in seconds."""
    problem: str | None = None
    """Why it failed; None: it did not."""
    rejected: int = 0
    """Spans that the store rejected although it accepted the request."""
    message: str = ""
    """The store's reason for that."""


class TraceSession:
    """The requests of an exporter."""

    def __init__(self) -> None:
        """Use the session of a provider of credentials, if a variable names one."""
        session = next((_provided(name, given) for name in _PROVIDERS if (given := os.environ.get(name))), None)
        self.session = requests.Session() if session is None else session
        self.session.headers["Accept-Encoding"] = "identity"  # so the size that is read is the size of the answer
        request = self.session.request  # a provider's class may have its own
        self.session.request = partial(self._bounded, request)  # type: ignore[method-assign]
        self.outcome = Outcome()
        self._left: set[Future[requests.Response]] = set()

    def _bounded(self, request: Callable[..., requests.Response], *values: Any, **options: Any) -> requests.Response:  # noqa: ANN401 - as `requests` has them
        """Send a request, and return the answer without its body."""
        outcome = self.outcome
        before, limit = outcome.problem, options.get("timeout") or HEAD_TIMEOUT_S
        outcome.longest = max(outcome.longest, limit)
        outcome.problem, outcome.rejected, outcome.message = None, 0, ""
        # The authorities of the session, which the variables of OTLP name, come before REQUESTS_CA_BUNDLE.
        options = {"verify": self.session.verify} | options | {"stream": True}
        try:
            response = self._answer(partial(request, *values, **options), options.get("timeout"))
        except requests.Timeout as error:
            # The last try has only the time that is left, so its end says less than the try before.
            outcome.problem = before if before and limit < outcome.longest / 2 else _reason(error)
            raise
        except Exception as error:
            outcome.problem = _reason(error)
            raise
        body = _body(response)
        response.close()
        status = response.status_code
        if status in _REDIRECTS:
            outcome.problem = f"status {status}: redirects are not followed, so set the URL that it leads to"
            raise requests.RequestException(outcome.problem)
        if status in _FAILURES:
            outcome.problem = f"status {status}: {response.reason}"
        elif response.headers.get("Content-Type", "").startswith(PROTOBUF):
            outcome.rejected, outcome.message = _rejected(body)
        return response

    def _answer(self, request: Callable[[], requests.Response], timeout: float | None) -> requests.Response:
        """Send a request, and return the head of its answer.

        A store that sends its head in small parts resets the limit of `requests` with each, so the thread that waits for it is left.
        """
        if len(self._left) >= MAX_LEFT:
            raise requests.RequestException(f"{MAX_LEFT} requests before have no complete answer yet")
        sent = in_daemon(request)
        limit = HEAD_TIMEOUT_S if timeout is None else timeout
        try:
            return sent.result(limit)
        except TimeoutError:
            if sent.done():
                raise
            self._left.add(sent)
            sent.add_done_callback(self._ended)
            raise requests.Timeout(f"no complete answer within {limit:.3g} s") from None

    def _ended(self, sent: "Future[requests.Response]") -> None:
        self._left.discard(sent)
        if sent.exception() is None:
            sent.result().close()


def in_daemon(function: Callable[[], T]) -> "Future[T]":
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:  # noqa: BLE001 - the reader of the future gets it
            future.set_exception(error)

    threading.Thread(target=run, name="tocsin-traces", daemon=True).start()
    return future


def _provided(variable: str, name: str) -> requests.Session:
    found = next(iter(entry_points(group=_PROVIDER_GROUP, name=name)), None)
    if found is None:
        problem = f"no installed package has an entry point of this name in the group `{_PROVIDER_GROUP}`"
    elif isinstance(session := found.load()(), requests.Session):
        return session
    else:
        problem = f"the entry point returned a {type(session).__name__}; it must return a `requests.Session`"
    raise SettingsError(DefinitionProblem(problem, field=variable, value=name, code="credentials-unusable"))


def _body(response: requests.Response) -> bytes:
    raw = response.raw
    read = getattr(raw, "read1", raw.read)  # `read1` returns the bytes that have come; versions before 2.1 lack it
    body, until = bytearray(), monotonic() + ANSWER_TIMEOUT_S
    with suppress(HTTPError, OSError):  # the status has decided already
        while len(body) < MAX_ANSWER and monotonic() < until:
            if not (part := read(MAX_ANSWER - len(body), decode_content=False)):
                break
            body += part
    return bytes(body)


def _rejected(body: bytes) -> tuple[int, str]:
    try:
        partial_success = ExportTraceServiceResponse.FromString(body).partial_success
    except DecodeError:
        return 0, ""
    return max(partial_success.rejected_spans, 0), partial_success.error_message


def _reason(error: Exception) -> str:
    """Return why a request failed, without its URL, which may have a token."""
    if isinstance(error, ValueError) and isinstance(error, requests.RequestException):
        return "the endpoint is not a URL that begins with http:// or https://"
    cause = error.args[0] if error.args else None
    if any(_is_http2(part) for part in getattr(cause, "args", ())):
        return "the endpoint speaks gRPC (HTTP/2); set the URL of its port for OTLP over HTTP, 4318 for most collectors"
    return str(getattr(cause, "reason", None) or error) or type(error).__name__


def _is_http2(cause: object) -> bool:
    """Return whether an error holds a frame of HTTP/2 in place of a status line."""
    line = str(cause) if isinstance(cause, BadStatusLine) else ""
    return line[3:4] in _HTTP2_FRAMES and line[5:9] == "\0\0\0\0"
