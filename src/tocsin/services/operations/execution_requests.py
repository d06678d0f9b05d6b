"""Run a job once that is not registered, or cancel an execution.

A cancellation appends the guarded event `cancelled` at once, so the answer is what happened and not what was requested. Everything else
follows from that event: claims are refused, later steps are not dispatched, the worker stops a running handler, and the
lock goes to the next execution in line. A message on `cron.cancel.<job>.<execution>` requests the same.

A request to run a job is an input, and the planner makes an execution of it. The call returns once that execution has started, so
that the caller can read it.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from ... import subjects
from ...domain import execution
from ...domain.events import (
    Actor,
    Admitted,
    CancelRequest,
    Dispatched,
    Enqueued,
    FannedOut,
    Requested,
    Skipped,
    Terminal,
    unfold,
)
from ...domain.execution import Execution, Status
from ...domain.fan_out import execution_ids
from ...ports import EventLog, OutdatedState, Publish, RepeatedInput, SequenceConflict
from .errors import JobTooLarge, NotFound, OperationError
from .event_waiter import EventWaiter, Facts, awaited_of, until, until_each
from .lookup import ExecutionMatch, ListExecutions, fanned_out, find

MAX_TRIES: Final = 20
"""Tries to append while other writers append to the execution; a running execution changes often."""


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Result of a request. `status` is the execution's final status; `changed`: this request ended it."""

    job: str
    execution_id: str
    status: Status
    changed: bool


async def cancel(
    log: EventLog,
    given: str,
    *,
    by: Actor | None = None,
    reason: str | None = None,
    job: str | None = None,
    list_executions: ListExecutions | None = None,
    only_if: Callable[[Execution], bool] | None = None,
) -> Cancellation:
    """Cancel a planned, waiting or running execution. A finished execution stays as it is.

    One that is requested and not planned yet is awaited for some seconds. The id of an occurrence that fanned out cancels the executions on all its shards.

    `by` and `reason` are recorded. `only_if` returns whether an execution in this state is cancelled; otherwise it stays as it is. The other
    arguments and errors: see `lookup.find`.

    Raises:
        OperationError: it is requested, and no stage plans it (`not-planned`).
        SequenceConflict: another writer appended first on each try.
    """
    match = await find(log, given, job=job, list_executions=list_executions)
    if not match.is_planned:
        scope = subjects.execution(match.job, match.execution_id)
        if not (begun := await until(log, scope, bool)):
            raise OperationError(
                f"cannot cancel execution {match.execution_id}: it is requested, and no stage has planned it yet. Check that the stages "
                "run, and try again.",
                code="not-planned",
            )
        match = ExecutionMatch(match.job, match.execution_id, tuple(begun))
    if (fanned := fanned_out(match)) is not None:
        if only_if is not None:  # the executions on the shards are chosen one by one
            return Cancellation(match.job, match.execution_id, Status.FANNED_OUT, changed=False)
        return await _cancel_each(log, fanned.message, by=by, reason=reason)
    for _ in range(MAX_TRIES):
        state = execution.fold(match.facts)
        if only_if is not None and not only_if(state):  # in each try: another writer may have changed the state
            return Cancellation(match.job, match.execution_id, state.status, changed=False)
        facts = execution.cancel(state, reason=reason, by=by)
        try:
            for fact in facts:
                await log.append(fact, expect=match.facts[-1].sequence)
        except OutdatedState:
            scope = subjects.execution(match.job, match.execution_id)
            match = ExecutionMatch(match.job, match.execution_id, tuple(await log.load(scope)) or match.facts)
            continue
        return Cancellation(match.job, match.execution_id, Status.CANCELLED if facts else state.status, bool(facts))
    raise SequenceConflict(
        f"cannot cancel execution {match.execution_id}: another writer changed it on each of {MAX_TRIES} tries. Try again."
    )


async def _cancel_each(log: EventLog, fact: FannedOut, *, by: Actor | None, reason: str | None) -> Cancellation:
    """Cancel the executions on all shards.

    The DAG advancer cancels those that have not begun yet, as soon as the planner has begun them. The log stores the request for that
    once in its deduplication window; a repetition changes nothing.
    """
    limit = asyncio.Semaphore(AT_ONCE)

    async def cancelled(execution_id: str) -> bool | None:
        async with limit:
            try:
                return (await cancel(log, execution_id, by=by, reason=reason, job=fact.job)).changed
            except NotFound:
                return None

    outcomes = await asyncio.gather(*map(cancelled, execution_ids(fact).values()))
    changed = any(outcomes)
    if None in outcomes:
        subject = subjects.cancel(fact.job, fact.execution_id)
        before = await log.tail(subject)
        sequence = await log.publish(subject, CancelRequest(by=by, reason=reason), message_id=subject)
        changed = changed or sequence > before
    return Cancellation(fact.job, fact.execution_id, Status.CANCELLED if changed else Status.FANNED_OUT, changed)


AT_ONCE: Final = 64
"""Requests in flight at the same time."""


class Duplicate(OperationError):
    """An execution with this id exists."""

    code = "duplicate-job"

    def __init__(self, execution_id: str) -> None:
        super().__init__(f"a job with the id {execution_id!r} was enqueued before")
        self.execution_id = execution_id


async def enqueue(
    log: EventLog,
    *wishes: Enqueued,
    arrivals: EventWaiter | None = None,
    fresh: Collection[str] = (),
) -> list[Facts]:
    """Request executions: all of them, or none.

    Returns the facts of each execution, or none for one that has not started within some seconds.

    `wishes`: at most `MAX_TOGETHER`. `arrivals` delivers new facts, so that the call need not poll. `fresh`: ids that certainly no execution has.

    Raises:
        JobTooLarge: a request is larger than the log accepts.
        Duplicate: an id exists, or is requested twice.
        LogUnavailable: it is unknown whether the requests are stored; retry with the same ids.
    """
    for wish in wishes:
        check_size(wish)
    for index in await taken(log, wishes, fresh=fresh):
        raise Duplicate(wishes[index].execution_id)
    return await request(log, *wishes, arrivals=arrivals)


def check_size(wish: Enqueued) -> None:
    """Require that the log accepts a request.

    The requests of several jobs are stored as one batch, and the server's refusal names none of them.

    Raises:
        JobTooLarge: it is larger than the log accepts.
    """
    if (size := len(wish.encode())) > subjects.MAX_REQUEST_SIZE:
        raise JobTooLarge.of(size, subjects.MAX_REQUEST_SIZE)


async def taken(log: EventLog, wishes: Sequence[Enqueued], *, fresh: Collection[str] = ()) -> list[int]:
    """Return the indexes of the wishes whose id an execution has, or an earlier wish.

    Arguments: see `enqueue`.
    """
    limit = asyncio.Semaphore(AT_ONCE)

    async def exists(execution_id: str) -> bool:
        if execution_id in fresh:
            return False
        async with limit:
            return bool(await log.load(subjects.execution(subjects.ANY, execution_id)))

    execution_ids = [wish.execution_id for wish in wishes]
    existing = await asyncio.gather(*map(exists, execution_ids))
    first = {execution_id: index for index, execution_id in reversed(list(enumerate(execution_ids)))}
    return [index for index, execution_id in enumerate(execution_ids) if existing[index] or first[execution_id] < index]


async def request(log: EventLog, *wishes: Enqueued, arrivals: EventWaiter | None = None) -> list[Facts]:
    """Store requests together and return the facts of each execution, as `enqueue` does.

    Requests that were stored before have no second effect.

    Raises:
        Duplicate: some of the ids were requested a moment ago, and others were not.
    """
    inputs = [Publish(subject, wish, subject) for wish in wishes for subject in [subjects.subject_of(wish)]]
    with ExitStack() as waiting:
        scopes = [subjects.execution(wish.definition.name, wish.execution_id) for wish in wishes]
        awaited = [waiting.enter_context(awaited_of(log, arrivals, scope)) for scope in scopes]
        if len(inputs) == 1:
            await log.publish(inputs[0].subject, inputs[0].message, message_id=inputs[0].message_id)
        else:
            try:
                await log.publish_together(inputs)
            except RepeatedInput:
                raise Duplicate(wishes[0].execution_id) from None
        return await until_each(log, awaited, has_begun)


def has_begun(facts: Facts) -> bool:
    """Return whether an execution has a task, is scheduled for later, or is over.

    A reader that began to follow the log a moment ago may have received a later event without the first. That is not enough to fold.
    """
    begins = any(isinstance(fact.message, Requested | Skipped | FannedOut) for fact in unfold(facts))
    return begins and any(
        isinstance(fact.message, Dispatched | Skipped | Terminal)
        or (isinstance(fact.message, Admitted) and fact.message.plan.start_at is not None)
        for fact in facts
    )
