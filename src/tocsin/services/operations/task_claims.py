"""Claim tasks for workers over HTTP (ojs-worker-protocol).

A task is claimed under a visibility lease, and acknowledged to its queue at once (`task_leases`).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ... import subjects, telemetry
from ...domain import execution
from ...domain.events import Dispatched, Message, Recorded, Started
from ...domain.execution import ClaimDenied
from ...domain.visibility_lease import Lease, lease_span, lease_timer, ojs_field
from ...ports import Clock, Delivery, EventLog, LogUnavailable, OutdatedState, TaskQueues
from .claimed_tasks import Claimed, held_by
from .task_leases import Held, Holder

MAX_TRIES: Final = 5
OTHER_FUNCTION_DELAY_S: Final = 1.0
"""Time before a task is redelivered that the caller may not run."""
MAX_PASSED_OVER: Final = 1_000
"""The number of tasks of other functions after which a fetch ends."""
QUEUE_WAIT_S: Final = 0.25
"""Time to wait for a task in one of several queues before the next queue is read."""
UNREADABLE_DELAY_S: Final = 30.0
"""Time before an unreadable task is redelivered."""
BUSY_DELAY_S: Final = 0.2
"""Time before a task is redelivered whose execution other writers changed at every try."""

_log = telemetry.get_logger("tocsin.operations")


async def take(
    log: EventLog,
    queues: TaskQueues,
    clock: Clock,
    names: Sequence[str],
    *,
    limit: int,
    holder: Holder,
    lease: Lease,
    wait: float = 0.0,
) -> list[Held]:
    """Claim up to `limit` tasks, from the first queue first.

    Waits up to `wait` seconds for the first task. Tasks that `holder` may not run stay for other workers.

    Raises:
        LogUnavailable: the log did not answer.
    """
    claims: list[Held] = []
    passed_over = 0
    until = clock.monotonic() + wait
    while True:
        remaining_s = until - clock.monotonic()
        patience = max(0.0, min(remaining_s, QUEUE_WAIT_S if len(names) > 1 else remaining_s))
        for name in names:
            queue = await queues.open(name)
            while (room := limit - len(claims)) > 0:
                deliveries = await queue.take(room, wait=0.0 if claims else patience)
                permitted = await _permitted(deliveries, holder)
                passed_over += len(deliveries) - len(permitted)
                claims += await _claimed(log, clock, permitted, holder, lease)
                if len(deliveries) < room or passed_over >= MAX_PASSED_OVER:
                    break  # the queue is empty, or full of other functions
        if claims or passed_over >= MAX_PASSED_OVER or clock.monotonic() >= until:
            return claims


async def _permitted(deliveries: Sequence[Delivery], holder: Holder) -> list[Delivery]:
    """Return the deliveries that the caller may claim, and hand back the others."""
    permitted: list[Delivery] = []
    for delivery in deliveries:
        task = _read(delivery)
        if task is None or holder.may_run(task.queue, task.function):
            permitted.append(delivery)  # an unreadable task is handed back when it is claimed
        else:
            await delivery.nak(OTHER_FUNCTION_DELAY_S)
    return permitted


async def _claimed(
    log: EventLog, clock: Clock, deliveries: Sequence[Delivery], holder: Holder, lease: Lease
) -> list[Held]:
    """Claim deliveries concurrently; return the granted claims in order.

    Raises:
        LogUnavailable: it is unknown whether any is claimed.
    """
    results = await asyncio.gather(
        *(_claim(log, clock, delivery, holder, lease) for delivery in deliveries), return_exceptions=True
    )
    claims = [result for result in results if isinstance(result, Claimed)]
    failures = [result for result in results if isinstance(result, BaseException)]
    return await held_by(log, claims, failures=failures)


async def _claim(log: EventLog, clock: Clock, delivery: Delivery, holder: Holder, lease: Lease) -> Claimed | None:
    """Claim a delivery under a lease; None: the claim is denied and the delivery settled."""
    task = _read(delivery)
    if task is None:
        await delivery.nak(UNREADABLE_DELAY_S)  # perhaps of a newer version: another copy may read it
        return None
    seconds = lease.of(task)
    started, scope = _started(task, delivery, holder, seconds), subjects.scope_of(task)
    until = clock.now() + lease_span(min(seconds, task.timeout))
    timer = lease_timer(started, delivery.sequence, ends_attempt=task.timeout <= seconds)
    expect = delivery.sequence
    for _ in range(MAX_TRIES):
        try:
            if ojs_field(task, "expires_at") is not None and await _has_expired(log, clock, scope):
                await _acknowledge(delivery)
                return None
            # Store the timer first: a claim without a timer would never end.
            await log.delay(timer, until=until)
            claimed = await log.append(started, expect=expect)
        except OutdatedState:
            granted = _judged(await log.load(scope), started, delivery)
            if isinstance(granted, ClaimDenied):
                await _acknowledge(delivery)  # the holder has a lease, whose timer redelivers the task
                return None
            if not granted.is_stored:
                expect = granted.sequence
                continue
            claimed = granted.sequence
        await _acknowledge(delivery)
        return Claimed(scope, task.step, claimed)
    await delivery.nak(BUSY_DELAY_S)
    return None


async def _has_expired(log: EventLog, clock: Clock, scope: str) -> bool:
    """Expire an execution before a worker gets it (ojs-core, `expires_at`); return whether it ended.

    Raises:
        SequenceConflict: another writer changed the execution; read it again.
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
    """The sequence of a stored claim whose answer was lost, or else to claim after."""

    sequence: int
    is_stored: bool = False


def _judged(facts: Sequence[Recorded[Message]], started: Started, delivery: Delivery) -> ClaimDenied | _Chance:
    """Decide whether a task can be claimed, by all facts of its execution."""
    newest = facts[-1].sequence if facts else 0
    if newest < delivery.sequence:
        return _Chance(delivery.sequence)  # a lagging replica answered
    sequence = next((fact.sequence for fact in facts if fact.message == started), 0)
    if sequence > delivery.sequence:
        return _Chance(sequence, is_stored=True)
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
        _log.error("task unreadable", action="task-unreadable", error=str(error))
        return None
    return task.task if isinstance(task, Dispatched) else None


async def _acknowledge(delivery: Delivery) -> None:
    try:
        await delivery.ack()
    except LogUnavailable as error:  # the redelivery is denied and acknowledged
        _log.warning("task not acknowledged", action="not-told", error=str(error))


def _started(task: Dispatched, delivery: Delivery, holder: Holder, lease: float) -> Started:
    return Started(
        job=task.job,
        execution_id=task.execution_id,
        step=task.step,
        attempt=task.attempt,
        delivery=delivery.delivered,
        worker=holder.worker,
        lease=lease,
        holder=holder.identity,
    )
