"""The trace of an execution: its ids, and whether its spans are exported."""

import re
from hashlib import blake2b
from typing import Final, Literal, TypeAlias

import msgspec

MAX_LENGTH: Final = 512
"""Characters of the longest `traceparent` that is read; a future version may add fields to the 55 of today."""
_FORM: Final = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
)
_SAMPLED: Final = 1
_RANDOM_DIGITS: Final = 14
"""The digits at the end of a trace id that are random, as W3C Trace Context level 2 wants: also those of a UUIDv7."""
_RANDOM_VALUES: Final = 16**_RANDOM_DIGITS

SpanKey: TypeAlias = Literal[
    "execution",
    "plan",
    "dependencies",
    "quorum",
    "lock",
    "start",
    "step",
    "retry",
    "attempt",
    "wait",
    "process",
    "report",
]
"""The part of an execution that a span stands for."""


class TraceContext(msgspec.Struct, frozen=True):
    """A position in a trace, and whether the trace is exported."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """Return the context as the header `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


def parse(text: object) -> TraceContext | None:
    """Read a `traceparent`; None: it is not valid, and a reader then ignores it."""
    if not isinstance(text, str) or len(text) > MAX_LENGTH or not (form := _FORM.match(text)):
        return None
    version, trace_id, span_id, flags = form.groups()
    rest = text[form.end() :]
    if version == "ff" or (rest and (version == "00" or not rest.startswith("-"))):
        return None
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


class Sampling(msgspec.Struct, frozen=True):
    """The rule that selects the traces to export."""

    ratio: float
    """The part of all traces, from 0 to 1."""
    follows_parent: bool
    """Whether the publisher of a request with a trace context decides."""

    def selects(self, trace_id: str) -> bool:
        """Return whether a trace is selected by its id.

        It is a pure function, and of a larger ratio it selects the same traces and more. Samplers of OpenTelemetry that
        read the random bits of trace ids select the same traces (consistent probability sampling).
        """
        return int(trace_id[-_RANDOM_DIGITS:], 16) >= (1 - self.ratio) * _RANDOM_VALUES


def begin(execution_id: str, parent: TraceContext | None, sampling: Sampling | None) -> str | None:
    """Return the trace context that the first event of an execution stores.

    None: no trace is made. `parent` is the valid context of the request; without `sampling`, it is only passed on.
    """
    if sampling is None:
        return None if parent is None else parent.traceparent
    if parent is None:
        return own_context(execution_id, is_sampled=sampling.selects(trace_id_of(execution_id))).traceparent
    if sampling.follows_parent:
        return parent.traceparent
    return TraceContext(parent.trace_id, parent.span_id, sampling.selects(parent.trace_id)).traceparent


def own_context(execution_id: str, *, is_sampled: bool) -> TraceContext:
    """Return the context of the own span of an execution whose request had no trace."""
    return TraceContext(trace_id_of(execution_id), span_id(execution_id, "execution"), is_sampled)


def trace_id_of(execution_id: str) -> str:
    """Return the id of the trace of an execution whose request had none."""
    return execution_id.replace("-", "")


def span_id(execution_id: str, key: SpanKey, *place: str | int) -> str:
    """Return the id of a span of an execution.

    `place` says which of a kind: a step, an attempt, a delivery. Only a digest of zeros would not be valid, which is as good as
    impossible.
    """
    name = "\0".join((execution_id, key, *map(str, place)))
    return blake2b(name.encode(), digest_size=8, person=b"span").hexdigest()


def context_in(execution_id: str, traceparent: str | None, key: SpanKey, *place: str | int) -> TraceContext | None:
    """Return the context of a span of an execution; None: no trace was made.

    `traceparent`: as its events have it. `place`: as of `span_id`. Spans that a handler makes nest in `process`.
    """
    if (context := parse(traceparent)) is None:
        return None
    return TraceContext(context.trace_id, span_id(execution_id, key, *place), context.is_sampled)
