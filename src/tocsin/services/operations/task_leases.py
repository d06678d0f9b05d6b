"""Tasks for executors that cannot keep a delivery alive: those that speak only HTTP (ojs-worker-protocol).

Whoever takes a task claims it under a lease, and the queue is told at once that the task is dealt with: from then on the log
alone knows who has it, and for how long. So any copy of a gateway takes the answer to what another one handed out, and none
remembers anything. A timer of the log ends the lease (`stages.lease_keeper`); a sign of life puts the timer off.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias, TypeVar

import structlog
from pydantic import JsonValue

from ... import subjects
from ...domain import execution
from ...domain.events import Dispatched, LeaseTimer, Message, Recorded, Started
from ...domain.execution import ClaimDenied, Execution, Phase
from ...ports import Clock, Delivery, EventLog, LogUnavailable, OutdatedState, TaskQueues
from . import errors, input_result
from .lookup import ExecutionMatch

TRIES: Final = 5
LOOK: Final = 0.25
"""Seconds that one waits for a task in one of several queues before it looks at the others."""
UNREADABLE: Final = 30.0
BUSY: Final = 0.2
"""Seconds before a task is delivered again that others wrote about at every try."""
LONGEST: Final = 365 * 86_400.0
"""Seconds of the longest lease."""

Facts: TypeAlias = tuple[Recorded[Message], ...]
F = TypeVar("F", Dispatched, Started)

_log = structlog.get_logger("tocsin.operations")


@dataclass(frozen=True, slots=True)
class Held:
    """A step that an executor holds under a lease, as the facts of its execution tell it."""

    found: ExecutionMatch
    state: Execution
    task: Recorded[Dispatched]
    claim: Recorded[Started]

    @property
    def deadline(self) -> datetime:
        """When the attempt is out of time (UTC)."""
        return self.claim.time + _span(self.task.message.timeout)


async def take(
    log: EventLog,
    queues: TaskQueues,
    clock: Clock,
    names: Sequence[str],
    *,
    limit: int,
    worker: str,
    lease: "Lease",
    wait: float = 0.0,
) -> list[Held]:
    """Up to `limit` tasks: those of the first queue first. Waits up to `wait` seconds for the first.

    Raises:
        LogUnavailable: no answer.
    """
    taken: list[Held] = []
    until = clock.monotonic() + wait
    while True:
        left = until - clock.monotonic()
        patience = max(0.0, min(left, LOOK if len(names) > 1 else left))
        for name in names:
            queue = await queues.open(name)
            while (room := limit - len(taken)) > 0:
                deliveries = await queue.take(room, wait=0.0 if taken else patience)
                taken += await _claimed(log, clock, deliveries, worker, lease)
                if len(deliveries) < room:
                    break  # that was all
        if taken or clock.monotonic() >= until:
            return taken


@dataclass(frozen=True, slots=True)
class _Claim:
    """A claim that is stored, and under which sequence."""

    task: Dispatched
    scope: str
    sequence: int

    def is_in(self, facts: Sequence[Recorded[Message]]) -> bool:
        return bool(facts) and facts[-1].sequence >= self.sequence


async def _claimed(
    log: EventLog, clock: Clock, deliveries: Sequence[Delivery], worker: str, lease: "Lease"
) -> list[Held]:
    """Claim deliveries, all at the same time; those that were to be had, in their order.

    Raises:
        LogUnavailable: nobody knows whether any of them is claimed.
    """
    told = await asyncio.gather(
        *(_claim(log, clock, delivery, worker, lease) for delivery in deliveries), return_exceptions=True
    )
    claims = [one for one in told if isinstance(one, _Claim)]
    known = await _known(log, claims)
    shown = await asyncio.gather(
        *(_held(log, claim, known.get(claim.scope, ())) for claim in claims), return_exceptions=True
    )
    held = [one for one in shown if isinstance(one, Held)]
    failures = [one for one in (*told, *shown) if isinstance(one, BaseException)]
    if failures and not held:
        raise failures[0]
    for failure in failures:  # whoever asked gets what there is; the rest comes back by its queue, or by its lease
        _log.warning("a task may be claimed by nobody", action="claim-unknown", error=repr(failure))
    return held


async def _known(log: EventLog, claims: Sequence[_Claim]) -> dict[str, Sequence[Recorded[Message]]]:
    """The facts of all that was claimed, by their scopes, read at once; nothing if that cannot be."""
    scopes = tuple(dict.fromkeys(claim.scope for claim in claims))  # several may be steps of one execution
    if not scopes:
        return {}
    try:
        return dict(zip(scopes, (await log.load_each(*scopes)).facts, strict=True))
    except subjects.DecodeError:  # one of them, perhaps of a newer version: each is read by itself
        return {}


async def _held(log: EventLog, claim: _Claim, facts: Sequence[Recorded[Message]]) -> Held | None:
    """What was claimed, as the facts of its execution tell it."""
    if not claim.is_in(facts):  # a replica that lags, or nothing could be read yet
        facts = await input_result.until(log, claim.scope, claim.is_in)
    return held_of(ExecutionMatch(claim.task.job, claim.task.execution_id, tuple(facts)), step=claim.task.step)


@dataclass(frozen=True, slots=True)
class Lease:
    """How long a claim stands without a sign of life, in seconds: as the task says, else as its executor asks, else as usual."""

    usual: float
    asked: float | None = None

    def of(self, task: Dispatched) -> float:
        """For one task."""
        said = _about(task, "lease")
        return float(said) if isinstance(said, int | float) else self.asked or self.usual


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, LONGEST))


def _about(task: Dispatched, name: str) -> JsonValue:
    """What only the protocol of executors outside knows of a task."""
    about = task.meta.get("ojs")
    return about.get(name) if isinstance(about, dict) else None


async def _claim(log: EventLog, clock: Clock, delivery: Delivery, worker: str, lease: Lease) -> _Claim | None:
    """Claim a delivery under a lease; None: it is not to be had, and the queue was told so."""
    task = _read(delivery)
    if task is None:
        await delivery.nak(UNREADABLE)  # perhaps of a newer version: another copy will manage
        return None
    seconds = lease.of(task)
    started, scope = _started(task, delivery, worker, seconds), subjects.scope_of(task)
    until = clock.now() + _span(min(seconds, task.timeout))
    timer = _timer(task, delivery, ends_attempt=task.timeout <= seconds)
    expect = delivery.sequence
    for _ in range(TRIES):
        try:
            if _about(task, "expires_at") is not None and await _has_expired(log, clock, scope):
                await _acknowledge(delivery)
                return None
            # The timer first: a claim without one would be for ever.
            await log.delay(timer, until=until, scope=scope, expect=expect)
            claimed = await log.append(started, expect=expect)
        except OutdatedState:
            granted = _judged(await log.load(scope), started, delivery)
            if isinstance(granted, ClaimDenied):
                await _acknowledge(delivery)  # what is held has a lease, and comes back by its timer
                return None
            if not granted.is_stored:
                expect = granted.sequence
                continue
            claimed = granted.sequence
        await _acknowledge(delivery)
        return _Claim(task, scope, claimed)
    await delivery.nak(BUSY)
    return None


async def _has_expired(log: EventLog, clock: Clock, scope: str) -> bool:
    """End an execution whose time is over before an executor gets it (ojs-core, `expires_at`); whether it is.

    Raises:
        SequenceConflict: the execution has moved: look again.
    """
    facts = await log.load(scope)
    state = execution.fold(facts)
    expires_at = state.requested.plan.expires_at if state.requested is not None else None
    if expires_at is None or clock.now() < expires_at:
        return False
    for fact in execution.expire(state):
        await log.append(fact, expect=facts[-1].sequence)
        return True
    return state.is_over


@dataclass(frozen=True, slots=True)
class _Chance:
    """The claim `is_stored` under this sequence, by a try whose answer was lost; or may be tried behind it."""

    sequence: int
    is_stored: bool = False


def _judged(facts: Sequence[Recorded[Message]], started: Started, delivery: Delivery) -> ClaimDenied | _Chance:
    """Whether a task can be claimed, by all facts of its execution."""
    newest = facts[-1].sequence if facts else 0
    if newest < delivery.sequence:
        return _Chance(delivery.sequence)  # a replica that lags
    own = next((fact.sequence for fact in facts if fact.message == started), 0)
    if own > delivery.sequence:
        return _Chance(own, is_stored=True)
    granted = execution.claim(
        execution.fold(facts),
        step=started.step,
        attempt=started.attempt,
        delivery=started.delivery,
        task=delivery.sequence,
        worker=started.worker,
    )
    return granted if isinstance(granted, ClaimDenied) else _Chance(newest)


def _read(delivery: Delivery) -> Dispatched | None:
    try:
        task = subjects.decode(delivery.subject, delivery.body)
    except subjects.DecodeError as error:
        _log.error("a task is unreadable", action="task-unreadable", error=str(error))
        return None
    return task if isinstance(task, Dispatched) else None


async def _acknowledge(delivery: Delivery) -> None:
    try:
        await delivery.ack()
    except LogUnavailable as error:  # delivered again it is refused, and acknowledged then
        _log.warning("not told", action="not-told", error=str(error))


async def extend(log: EventLog, clock: Clock, held: Held, *, asked: float | None = None) -> None:
    """A sign of life: the lease begins anew, but not beyond the attempt's time limit.

    Raises:
        SequenceConflict: the execution has moved: look again.
    """
    seconds = asked or held.claim.message.lease or held.task.message.timeout
    until = min(clock.now() + _span(seconds), held.deadline)
    timer = timer_of(held).model_copy(update={"ends_attempt": until == held.deadline})
    scope = subjects.scope_of(held.task.message)
    await log.delay(timer, until=until, scope=scope, expect=held.found.facts[-1].sequence)


async def hand_back(log: EventLog, held: Held) -> None:
    """Give up a claim: the same attempt is for another executor.

    Raises:
        SequenceConflict: the execution has moved: look again.
    """
    for fact in execution.release(held.state, timer_of(held), reason="handed_back"):
        await log.append(fact, expect=held.found.facts[-1].sequence)


def held_of(found: ExecutionMatch, *, step: str | None = None, worker: str | None = None) -> Held | None:
    """The step that is held, by `worker` if given; None: none is, or more than one is and `step` names none.

    Raises:
        refusals.Refusal: another worker holds it, or one that needs no lease.
    """
    state = execution.fold(found.facts)
    if state.is_over:
        return None
    running = [name for name, one in state.steps.items() if one.phase is Phase.STARTED and step in {None, name}]
    if len(running) != 1:
        return None
    task = _newest(found.facts, Dispatched, running[0])
    claim = _newest(found.facts, Started, running[0])
    if task is None or claim is None:
        return None
    if claim.message.lease is None:
        raise errors.OperationError(f"job {found.execution_id} is held by a worker of Tocsin's own")
    if worker and claim.message.worker and worker != claim.message.worker:
        raise errors.OperationError(f"job {found.execution_id} is held by another worker, {claim.message.worker!r}")
    return Held(found, state, task, claim)


def timer_of(held: Held) -> LeaseTimer:
    """The timer that ends a lease."""
    claim = held.claim.message
    return LeaseTimer(
        job=claim.job,
        execution_id=claim.execution_id,
        step=claim.step,
        attempt=claim.attempt,
        delivery=claim.delivery,
        task=held.task.sequence,
    )


def _timer(task: Dispatched, delivery: Delivery, *, ends_attempt: bool) -> LeaseTimer:
    return LeaseTimer(
        job=task.job,
        execution_id=task.execution_id,
        step=task.step,
        attempt=task.attempt,
        delivery=delivery.delivered,
        task=delivery.sequence,
        ends_attempt=ends_attempt,
    )


def _started(task: Dispatched, delivery: Delivery, worker: str, lease: float) -> Started:
    return Started(
        job=task.job,
        execution_id=task.execution_id,
        step=task.step,
        attempt=task.attempt,
        delivery=delivery.delivered,
        worker=worker,
        lease=lease,
    )


def _newest(facts: Facts, kind: type[F], step: str) -> Recorded[F] | None:
    """The newest fact of a kind on a step."""
    for fact in reversed(facts):
        message = fact.message
        if isinstance(message, kind) and message.step == step:
            return Recorded(message, fact.subject, fact.sequence, fact.time, fact.message_id)
    return None
