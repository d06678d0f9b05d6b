"""Spans over OTLP, by the exporter of OpenTelemetry, which reads the variables `OTEL_EXPORTER_OTLP_…` itself."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from typing_extensions import override

from ... import telemetry
from ...domain.text import counted
from ...domain.trace import Span
from ...domain.trace_context import TraceContext
from ..extras import ExtraNotInstalled
from .traces import SpansLost

try:
    from opentelemetry.exporter.otlp.proto.http import trace_exporter

    from .trace_session import TraceSession, in_daemon
except ImportError:
    raise ExtraNotInstalled("OTEL_EXPORTER_OTLP_ENDPOINT", "otel") from None

SERVICE: Final = "tocsin"
"""The name of the service unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` gives another."""
MAX_REASON: Final = 300
"""Characters of the reason for a loss."""
_log: Final = telemetry.get_logger("tocsin.traces")
_UNNAMED: Final = "unknown_service"
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
