"""The spans of an execution, as a fold of its events.

    execution ── plan, wait for dependencies, wait for acknowledgements, wait for lock, wait until start
      └ step ── wait for retry
          └ attempt ── wait for worker, process (the handler), report

A span lasts from the event that began its part to the event that ended it, so that every wait is a span. The handler's own
spans are no events: its process exports them, as children of `process`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias

import msgspec

from .events import (
    Admitted,
    Advanced,
    Cancelled,
    Completed,
    DependenciesSettled,
    Dispatched,
    Exhausted,
    Failed,
    Failure,
    Message,
    Plan,
    Planned,
    QuorumSettled,
    Recorded,
    Recovered,
    Released,
    Report,
    Requested,
    RetryScheduled,
    Skipped,
    Started,
    Terminal,
    unfold,
)
from .text import utc_text
from .trace_context import SpanKey, TraceContext, own_context, parse, span_id

MAX_ERROR_CHARACTERS: Final = 1_000
"""Characters of an error's type or text in a span: a worker may report any."""
SYSTEM: Final = "tocsin"
"""The messaging system in the attributes of OpenTelemetry's conventions."""

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

    Its times (UTC) are the times of stored events.
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


MakeContext: TypeAlias = Callable[..., TraceContext]
"""Makes the context of a span by its key and place (`trace_context.span_id`)."""


class Attempt(msgspec.Struct):
    """The stored events of one attempt of a step."""

    step: str
    number: int
    task: Recorded[Message] | None = None
    """The newest task, which replaces lost tasks."""
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
    outcome: Attributes = {} if attempt.decision is not None else {"tocsin.interrupted": True}
    failure = attempt.failure
    yield Span(
        name=f"attempt {attempt.step}",
        context=context,
        parent=parent,
        start=attempt.start,
        end=end,
        attributes={"tocsin.step": attempt.step, "tocsin.attempt": attempt.number, **outcome},
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


def _deliveries(attempt: Attempt, make: MakeContext, parent: TraceContext, end: datetime) -> Iterable[Span]:
    since = attempt.start
    for recorded in attempt.claims.values():
        claim = recorded.message
        if not isinstance(claim, Started):
            continue
        place = attempt.step, attempt.number, claim.delivery
        yield _part("wait for worker", make("wait", *place), parent, since, recorded.time, "matcher")
        released = attempt.releases.get(claim.delivery)
        report = None if released is not None else _report_on(attempt, recorded)
        # The log's clock may be earlier than the server, whose time a report has.
        since = released.time if released is not None else end if report is None else min(report.time, end)
        yield _process(attempt, recorded, make("process", *place), parent, since)
        if report is not None and attempt.decision is not None:
            stage = "dag_advancer" if attempt.failure is None else "retrier"
            yield _part("report", make("report", *place), parent, since, end, stage)
    last = max(attempt.claims, default=0)
    if not attempt.claims or last in attempt.releases:  # it waited for a worker when it ended
        context = make("wait", attempt.step, attempt.number, last + 1)
        yield _part("wait for worker", context, parent, since, end, "matcher")


def _part(
    name: str, context: TraceContext, parent: TraceContext, start: datetime, end: datetime, stage: str, **more: float
) -> Span:
    attributes: Attributes = {"tocsin.stage": stage, **more}
    return Span(name=name, context=context, parent=parent, start=start, end=max(start, end), attributes=attributes)


def _process(
    attempt: Attempt, recorded: Recorded[Message], context: TraceContext, parent: TraceContext, end: datetime
) -> Span:
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


Attempts: TypeAlias = dict[str, dict[int, Attempt]]

PROMPT: Final = frozenset({"cron", "api", "manual", "event"})
"""Triggers whose scheduled time is when the request came; the time of a backfill or a replay may be long ago."""


def context_of(events: Iterable[Recorded[Message]]) -> TraceContext | None:
    """Return the trace context that an execution's first event stored.

    Without one it is that of an execution whose trace was not selected. None: the events have no beginning.
    """
    for recorded in events:
        message = recorded.message
        if isinstance(message, Requested | Skipped | Dispatched):
            return parse(message.traceparent) or own_context(message.execution_id, is_sampled=False)
    return None


def spans_of(
    events: Sequence[Recorded[Message]],
    reports: Sequence[Recorded[Message]] = (),
    *,
    original: TraceContext | None = None,
) -> list[Span]:
    """Return the spans of an execution, its own first; none if it is not over.

    `events` are in order, the oldest first. `reports` of its workers say when handlers ended. `original`: the context of
    the execution that it replays.
    """
    facts = list(unfold(events))
    context = context_of(facts)
    end = facts[-1] if facts else None
    if context is None or end is None or not isinstance(end.message, Terminal | Skipped):
        return []
    return _Trace(facts, end, context, original).spans(reports)


class _Trace:
    """One execution that is over."""

    def __init__(
        self,
        facts: Sequence[Recorded[Message]],
        end: Recorded[Message],
        context: TraceContext,
        original: TraceContext | None,
    ) -> None:
        self._facts = facts
        self._first = facts[0]
        self._end = end
        self._given = context
        self._original = original
        ended = end.message
        assert isinstance(ended, Terminal | Skipped)  # noqa: S101 - `spans_of` has checked it
        self._ended = ended
        self._root = self._context("execution")

    def spans(self, reports: Sequence[Recorded[Message]]) -> list[Span]:
        attempts = self._attempts(reports)
        return [self._execution(), *self._beginnings(), *self._steps(attempts)]

    def _context(self, key: SpanKey, *place: str | int) -> TraceContext:
        given = self._given
        return TraceContext(given.trace_id, span_id(self._ended.execution_id, key, *place), given.is_sampled)

    def _part(self, name: str, key: SpanKey, start: datetime, end: datetime, stage: str) -> Span:
        return _part(name, self._context(key), self._root, start, end, stage)

    def _execution(self) -> Span:
        ended = self._ended
        failure = (ended.error or Failure(type=ended.reason or "failed")) if isinstance(ended, Failed) else None
        is_own = self._given.span_id == self._root.span_id
        return Span(
            name=f"execute {ended.job}",
            context=self._root,
            parent=None if is_own else self._given,
            is_remote=not is_own,
            kind="internal" if is_own else "consumer",
            start=self._start(),
            end=self._end.time,
            attributes=self._attributes(),
            error=None if failure is None else text_of(failure),
            links=() if self._original is None else (Link(self._original, "replay"),),
            events=(
                *(SpanEvent("recovered", r.time) for r in self._facts if isinstance(r.message, Recovered)),
                *(() if failure is None else (failure_event(failure, self._end.time),)),
            ),
        )

    def _attributes(self) -> Attributes:
        ended = self._ended
        request = self._request()
        attributes: dict[str, str | int | float | bool] = {
            "tocsin.job": ended.job,
            "tocsin.execution.id": ended.execution_id,
            "tocsin.trigger": ended.trigger,
            "tocsin.scheduled_time": utc_text(ended.scheduled_time),
            "tocsin.status": _STATUSES[type(ended)],
        }
        if isinstance(ended, Skipped | Failed) and ended.reason is not None:
            attributes["tocsin.reason"] = ended.reason
        if request is not None and request.replay_of is not None:
            attributes["tocsin.replay_of"] = request.replay_of
        if request is not None and request.backfill is not None:
            attributes["tocsin.backfill"] = request.backfill
        return attributes

    def _request(self) -> Requested | None:
        first = self._first.message
        return first if isinstance(first, Requested) else None

    def _start(self) -> datetime:
        """Return the time of the request, or else of the first event."""
        return min(self._ended.scheduled_time, self._first.time) if self._is_prompt() else self._first.time

    def _is_prompt(self) -> bool:
        """Return whether the request came at the scheduled time, unlike a late occurrence."""
        request = self._request()
        is_late = request is not None and request.catch_up
        is_instant = isinstance(self._first.message, Skipped) and self._first.message.reason not in {
            "refused",
            "duplicate",
        }
        return self._ended.trigger in PROMPT and not is_late and not is_instant

    def _beginnings(self) -> Iterable[Span]:
        start, begun, end = self._start(), self._first.time, self._end.time
        if self._is_prompt() and self._ended.scheduled_time != begun:  # by the server, whose clock may be later
            yield self._part("plan", "plan", start, begun, "planner")
        first = self._first.message
        if isinstance(first, Requested):
            yield from self._wait_until_start(first.plan)
        if not isinstance(first, Planned):
            return
        since: datetime | None = begun
        if first.plan.depends_on:
            since = self._time_of(DependenciesSettled)
            yield self._part("wait for dependencies", "dependencies", begun, since or end, "dependency_keeper")
        if first.plan.quorum is not None and since is not None and not self._has_failed_dependencies():
            start, since = since, self._time_of(QuorumSettled)
            yield self._part("wait for acknowledgements", "quorum", start, since or end, "agent_keeper")
        if first.plan.overlap_policy != "allow" and since is not None:
            yield self._part("wait for lock", "lock", since, self._time_of(Admitted) or end, "lock_keeper")

    def _time_of(self, kind: type[Message]) -> datetime | None:
        return next((recorded.time for recorded in self._facts if isinstance(recorded.message, kind)), None)

    def _has_failed_dependencies(self) -> bool:
        return any(isinstance(r.message, DependenciesSettled) and r.message.outcome != "met" for r in self._facts)

    def _wait_until_start(self, plan: Plan) -> Iterable[Span]:
        admitted = self._time_of(Admitted)
        if admitted is None or plan.start_at is None or plan.start_at <= admitted:
            return
        begun = self._time_of(Dispatched) or self._end.time
        yield self._part("wait until start", "start", admitted, begun, "dag_advancer")

    def _attempts(self, reports: Sequence[Recorded[Message]]) -> Attempts:
        attempts: Attempts = {}
        for recorded in self._facts:
            message = recorded.message
            match message:
                case Dispatched():
                    _of(attempts, message.step, message.attempt).task = recorded
                case Started():
                    _of(attempts, message.step, message.attempt).claims.setdefault(message.delivery, recorded)
                case Released():
                    _of(attempts, message.step, message.attempt).releases[message.delivery] = recorded
                case Advanced(adopted_from=None) | RetryScheduled() | Exhausted():
                    _of(attempts, message.step, message.attempt).decision = recorded
                case Completed(step=str(step), attempt=int(attempt)) | Failed(step=str(step), attempt=int(attempt)):
                    ended = _of(attempts, step, attempt)
                    ended.decision = ended.decision or recorded
                case _:
                    pass
        for recorded in reports:
            report = recorded.message
            if isinstance(report, Report) and (of_report := attempts.get(report.step, {}).get(report.attempt)):
                of_report.reports.append(recorded)
        return attempts

    def _steps(self, attempts: Attempts) -> Iterable[Span]:
        for step, by_number in attempts.items():
            of_step = [attempt for _, attempt in sorted(by_number.items())]
            context = self._context("step", step)
            children = list(self._within(step, of_step, context))
            failure = of_step[-1].failure
            yield Span(
                name=f"step {step}",
                context=context,
                parent=self._root,
                start=min(child.start for child in children),
                end=max(child.end for child in children),
                attributes={"tocsin.step": step, "tocsin.attempts": of_step[-1].number},
                error=None if failure is None else text_of(failure),
            )
            yield from children

    def _within(self, step: str, attempts: Sequence[Attempt], parent: TraceContext) -> Iterable[Span]:
        """Return the spans of a step's attempts, and of the delays between them."""
        following = [*attempts[1:], None]
        for attempt, after in zip(attempts, following, strict=True):
            earlier = self._context("attempt", step, attempt.number - 1) if attempt.number > 1 else None
            yield from attempt_spans(attempt, self._context, parent, ended_at=self._end.time, earlier=earlier)
            decision = attempt.decision
            if decision is None or not isinstance(decision.message, RetryScheduled):
                continue
            until, delay = self._end.time if after is None else after.start, {"tocsin.delay": decision.message.delay}
            context = self._context("retry", step, attempt.number)
            yield _part("wait for retry", context, parent, decision.time, until, "retrier", **delay)


_STATUSES: Final[dict[type[Message], str]] = {
    Completed: "completed",
    Failed: "failed",
    Cancelled: "cancelled",
    Skipped: "skipped",
}


def _of(attempts: Attempts, step: str, number: int) -> Attempt:
    return attempts.setdefault(step, {}).setdefault(number, Attempt(step, number))
