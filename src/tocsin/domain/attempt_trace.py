"""The spans of one attempt: its waits, the runs of its handler, and the report."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, Literal, TypeAlias

import msgspec

from .events import Dispatched, Exhausted, Failed, Failure, Message, Recorded, Released, RetryScheduled, Started
from .trace_context import TraceContext

MAX_ERROR_CHARACTERS: Final = 1_000
"""Characters of an error's type or text in a span: a worker may report any."""
SYSTEM: Final = "tocsin"
"""The messaging system in the attributes of OpenTelemetry's conventions."""

MakeContext: TypeAlias = Callable[..., TraceContext]
"""Makes the context of a span by its key and place (`trace_context.span_id`)."""


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


class Attempt(msgspec.Struct):
    """The stored events of one attempt of a step."""

    step: str
    number: int
    task: Recorded[Message] | None = None
    """The newest task, which replaces those that were lost."""
    claims: dict[int, Recorded[Message]] = msgspec.field(default_factory=dict)
    """The runs of the handler, by delivery."""
    releases: dict[int, Recorded[Message]] = msgspec.field(default_factory=dict)
    """The ends of claims without a report, by delivery."""
    decision: Recorded[Message] | None = None
    """The event that ended the attempt; None: the end of the execution ended it."""
    reports: list[Recorded[Message]] = msgspec.field(default_factory=list)

    @property
    def start(self) -> datetime:
        events = (self.task, self.decision, *self.claims.values(), *self.releases.values())
        return min(recorded.time for recorded in events if recorded is not None)

    @property
    def queue(self) -> str:
        message = None if self.task is None else self.task.message
        return message.queue if isinstance(message, Dispatched) else "default"

    @property
    def failure(self) -> Failure | None:
        """The error that ended it; None: it did not fail."""
        match None if self.decision is None else self.decision.message:
            case RetryScheduled(error=error) | Exhausted(error=error):
                return error
            case Failed(step_completed=False, error=reported):
                return reported
        return None


def attempt_spans(
    attempt: Attempt, make: MakeContext, parent: TraceContext, *, ended_at: datetime, earlier: TraceContext | None
) -> Iterable[Span]:
    """Return the span of an attempt, and those in it.

    `ended_at`: the end of the execution. `earlier`: the context of the attempt before.
    """
    context = make("attempt", attempt.step, attempt.number)
    end = ended_at if attempt.decision is None else attempt.decision.time
    failure = attempt.failure
    yield Span(
        name=f"attempt {attempt.step}",
        context=context,
        parent=parent,
        start=attempt.start,
        end=end,
        attributes={"tocsin.step": attempt.step, "tocsin.attempt": attempt.number, **_outcome(attempt)},
        error=None if failure is None else text_of(failure),
        links=() if earlier is None else (Link(earlier, "retry"),),
        events=() if failure is None else (failure_event(failure, end),),
    )
    yield from _deliveries(attempt, make, context, end)


def failure_event(failure: Failure, time: datetime) -> SpanEvent:
    """Return a failure as OpenTelemetry records an exception."""
    attributes = {"exception.type": _short(failure.type), "exception.message": _short(failure.message)}
    return SpanEvent("exception", time, attributes)


def text_of(failure: Failure) -> str:
    return _short(failure.summary)


def _short(text: str) -> str:
    return text[:MAX_ERROR_CHARACTERS]


def _outcome(attempt: Attempt) -> Attributes:
    return {} if attempt.decision is not None else {"tocsin.interrupted": True}


def _deliveries(attempt: Attempt, make: MakeContext, parent: TraceContext, end: datetime) -> Iterable[Span]:
    since = attempt.start
    for recorded in attempt.claims.values():
        claim = recorded.message
        if not isinstance(claim, Started):
            continue
        place = attempt.step, attempt.number, claim.delivery
        yield _wait(make("wait", *place), parent, since, recorded.time)
        released = attempt.releases.get(claim.delivery)
        report = None if released is not None else _report_on(attempt, recorded)
        # The log's clock may be earlier than the server, whose time a report has.
        since = released.time if released is not None else end if report is None else min(report.time, end)
        yield _process(attempt, recorded, make("process", *place), parent, since)
        if report is not None and attempt.decision is not None:
            yield Span(
                name="report",
                context=make("report", *place),
                parent=parent,
                start=since,
                end=end,
                attributes={"tocsin.stage": "dag_advancer" if attempt.failure is None else "retrier"},
            )
    last = max(attempt.claims, default=0)
    if not attempt.claims or last in attempt.releases:  # it waited for a worker when it ended
        yield _wait(make("wait", attempt.step, attempt.number, last + 1), parent, since, end)


def _wait(context: TraceContext, parent: TraceContext, start: datetime, end: datetime) -> Span:
    return Span(
        name="wait for worker",
        context=context,
        parent=parent,
        start=start,
        end=max(start, end),
        attributes={"tocsin.stage": "matcher"},
    )


def _process(
    attempt: Attempt, recorded: Recorded[Message], context: TraceContext, parent: TraceContext, end: datetime
) -> Span:
    """Return the run of the handler, by the messaging conventions of OpenTelemetry."""
    claim, task = recorded.message, None if attempt.task is None else attempt.task.message
    assert isinstance(claim, Started)  # noqa: S101 - `_deliveries` has checked it
    failure = attempt.failure
    if (released := attempt.releases.get(claim.delivery)) is not None:
        failure = Failure(type=released.message.reason) if isinstance(released.message, Released) else None
    attributes: dict[str, str | int | float | bool] = {
        "messaging.system": SYSTEM,
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": attempt.queue,
        "messaging.message.id": f"{claim.execution_id}.{attempt.step}.{attempt.number}",
        "messaging.message.conversation_id": claim.execution_id,
        "messaging.client.id": claim.worker,
        "tocsin.job": claim.job,
        "tocsin.step": attempt.step,
        "tocsin.attempt": attempt.number,
        "tocsin.delivery": claim.delivery,
    }
    if isinstance(task, Dispatched):
        attributes["tocsin.function"] = task.function
    if failure is not None:
        attributes["error.type"] = _short(failure.type)
    return Span(
        name=f"process {attempt.queue}",
        context=context,
        parent=parent,
        kind="consumer",
        start=recorded.time,
        end=max(recorded.time, end),
        attributes=attributes,
        error=None if failure is None else text_of(failure),
    )


def _report_on(attempt: Attempt, claim: Recorded[Message]) -> Recorded[Message] | None:
    return next((one for one in attempt.reports if getattr(one.message, "claim", 0) in {None, claim.sequence}), None)
