"""Spans: the parts of a trace, as a trace store takes them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from .trace_context import TraceContext

Attributes: TypeAlias = Mapping[str, str | int | float | bool]


class Link(msgspec.Struct, frozen=True):
    """A span of this or another trace that a span follows."""

    context: TraceContext
    relation: Literal["retry", "replay"]
    """`retry`: an earlier attempt. `replay`: the execution that is run again."""


class SpanEvent(msgspec.Struct, frozen=True):
    """Something that happened during a span."""

    name: str
    time: datetime
    attributes: Attributes = {}


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an execution that has ended.

    Its times (UTC) are those of stored events.
    """

    name: str
    context: TraceContext
    parent: TraceContext | None
    """None: the span is the root of its trace."""
    is_remote: bool = False
    """Whether the parent is a span of the publisher that requested the execution."""
    kind: Literal["internal", "consumer"] = "internal"
    start: datetime
    end: datetime
    attributes: Attributes = {}
    error: str | None = None
    """The text of the failure; None: the span is no failure."""
    links: tuple[Link, ...] = ()
    events: tuple[SpanEvent, ...] = ()
