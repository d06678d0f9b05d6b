"""Spans over OTLP, by the exporter of OpenTelemetry, which reads the variables `OTEL_EXPORTER_OTLP_…` itself."""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import entry_points
from threading import Thread
from time import monotonic
from typing import Any, Final

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from typing_extensions import override

from ...domain.definition import DefinitionProblem
from ...domain.spans import Span
from ...domain.trace_context import TraceContext
from ...ports import SpansLost
from ...settings import SettingsError
from ..extras import ExtraNotInstalled

try:
    import requests
    from opentelemetry.exporter.otlp.proto.http import trace_exporter
    from urllib3.exceptions import HTTPError
except ImportError:
    raise ExtraNotInstalled("OTEL_EXPORTER_OTLP_ENDPOINT", "otel") from None

SERVICE: Final = "tocsin"
"""The name of the service unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` gives another."""
MAX_ANSWER: Final = 65_536
"""Bytes of an answer that are read, so that its connection can be used again."""
ANSWER_TIMEOUT_S: Final = 10.0
"""Seconds for which they are read."""
MAX_REASON: Final = 300
"""Characters of the reason for a loss."""
_REDIRECTS: Final = range(300, 400)
_UNNAMED: Final = "unknown_service"
_PROVIDERS: Final = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)
"""The variables that name a provider of credentials, in the order of OpenTelemetry."""
_PROVIDER_GROUP: Final = "opentelemetry_otlp_credential_provider"
_KINDS: Final = {"internal": SpanKind.INTERNAL, "consumer": SpanKind.CONSUMER}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class OtlpSpanExporter:
    """Implement `ports.SpanExporter` by OTLP over HTTP.

    Each request has a daemon thread, so that a trace store that does not answer holds up neither the loop nor the exit.
    """

    def __init__(self, version: str) -> None:
        """`version`: that of this program.

        Raises:
            SettingsError: the provider of credentials cannot be used.
        """
        self._exporter = trace_exporter.OTLPSpanExporter(session=_session())
        resource = Resource.create()
        if str(resource.attributes.get(SERVICE_NAME, _UNNAMED)).startswith(_UNNAMED):
            resource = resource.merge(Resource({SERVICE_NAME: SERVICE}))
        self._resource = resource
        self._scope = InstrumentationScope(SERVICE, version)
        self._reasons = _LastReason()
        logging.getLogger(trace_exporter.__name__).addFilter(self._reasons)

    async def export(self, spans: Sequence[Span]) -> None:
        """Send finished spans."""
        result = await _in_daemon(lambda: self._exporter.export([self.readable(span) for span in spans]))
        if result is not SpanExportResult.SUCCESS:
            raise SpansLost(self._reasons.text)

    def close(self) -> None:
        """End what is being sent."""
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


def _session() -> requests.Session:
    """Return a session that reads a part of each answer, and fails on redirects.

    The exporter follows no redirects, counts one as a success, and reads each answer to its end. It looks for a provider of credentials
    only if it is given no session.
    """
    session = next((_provided(name, given) for name in _PROVIDERS if (given := os.environ.get(name))), None)
    session = requests.Session() if session is None else session
    session.request = partial(_bounded, session.request)  # type: ignore[method-assign] # a provider's class may have its own
    return session


def _provided(variable: str, name: str) -> requests.Session:
    found = next(iter(entry_points(group=_PROVIDER_GROUP, name=name)), None)
    if found is None:
        problem = f"no installed package has an entry point of this name in the group `{_PROVIDER_GROUP}`"
    elif isinstance(session := found.load()(), requests.Session):
        return session
    else:
        problem = f"the entry point returned a {type(session).__name__}; it must return a `requests.Session`"
    raise SettingsError(DefinitionProblem(problem, field=variable, value=name, code="credentials-unusable"))


def _bounded(request: Callable[..., requests.Response], *values: Any, **options: Any) -> requests.Response:  # noqa: ANN401 - those of `requests`
    """Send a request, and return the answer without its body.

    Raises:
        RequestException: it is a redirect, or it did not come.
    """
    response = request(*values, **options | {"stream": True})
    with suppress(HTTPError, OSError):  # the status has decided already
        _drain(response)
    response.close()
    if response.status_code in _REDIRECTS:
        raise requests.RequestException(
            f"status {response.status_code}: redirects are not followed, so set the URL that it leads to"
        )
    return response


def _drain(response: requests.Response) -> None:
    raw = response.raw
    read = getattr(raw, "read1", raw.read)  # `read1` returns what has come; versions before 2.1 lack it
    left, until = MAX_ANSWER, monotonic() + ANSWER_TIMEOUT_S
    while left > 0 and monotonic() < until and (part := read(left, decode_content=False)):
        left -= len(part)


class _LastReason(logging.Filter):
    """Keeps the exporter's last line in place of writing it.

    The stage logs losses, once in an interval.
    """

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


def _in_daemon(function: Callable[[], SpanExportResult]) -> "asyncio.Future[SpanExportResult]":
    """Run a function in a daemon thread."""
    future: Future[SpanExportResult] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:  # noqa: BLE001 - the awaiter gets it
            future.set_exception(error)

    Thread(target=run, name="tocsin-traces", daemon=True).start()
    return asyncio.wrap_future(future)
