"""Leases of workers over HTTP, which cannot keep a delivery alive (ojs-worker-protocol)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from ...domain import execution
from ...domain.events import Dispatched, Message, Recorded, Started, newest_of, unfold
from ...domain.execution import Execution, Phase
from ...ports import EventLog
from . import errors
from .lookup import ExecutionMatch

Facts: TypeAlias = tuple[Recorded[Message], ...]
F = TypeVar("F", Dispatched, Started)


@dataclass(frozen=True, slots=True)
class Holder:
    """The caller that fetches a task or answers for it.

    An answer may leave out the worker's id, as clients of the Open Job Spec do, but not the identity.
    """

    identity: str
    worker: str = ""
    """The id of the worker; empty: the caller named none."""
    may_run: Callable[[str, str], bool] = lambda _queue, _function: True
    """Whether the caller may have the tasks of a queue and a function."""


@dataclass(frozen=True, slots=True)
class Held:
    """A step that a worker holds under a lease."""

    found: ExecutionMatch
    state: Execution
    task: Recorded[Dispatched]
    claim: Recorded[Started]


async def hand_back(log: EventLog, held: Held) -> None:
    """Release a claim, so that another worker can take the same attempt.

    Raises:
        SequenceConflict: another writer changed the execution; read it again.
    """
    for fact in execution.release(held.state, held.claim.message.step, reason="handed_back"):
        await log.append(fact, expect=held.found.facts[-1].sequence)


def held_of(
    found: ExecutionMatch,
    *,
    step: str | None = None,
    claim: int | None = None,
    holder: Holder | None = None,
    exactly: bool = False,
) -> Held | None:
    """Return the held step; None unless exactly one step matches.

    With `claim`, the sequence of a claim, the step matches only while that claim is its newest. With `exactly`, `holder`
    must also name its worker if the fetch named one.

    Raises:
        OperationError: a holder other than `holder` has it, or a worker of the SDK.
    """
    state = execution.fold(found.facts)
    if state.is_over:
        return None
    running = [
        name for name, step_state in state.steps.items() if step_state.phase is Phase.STARTED and step in {None, name}
    ]
    if len(running) != 1:
        return None
    task = _newest(found.facts, Dispatched, running[0])
    newest = _newest(found.facts, Started, running[0])
    if task is None or newest is None or claim not in {None, newest.sequence}:
        return None
    if newest.message.lease is None or newest.message.agent is not None:
        raise errors.OperationError(
            f"job {found.execution_id} is held by a worker of Tocsin's own", code="held-by-own-worker"
        )
    if holder is not None:
        _require(holder, newest.message, exactly=exactly)
    return Held(found, state, task, newest)


def _require(holder: Holder, claim: Started, *, exactly: bool) -> None:
    job = f"job {claim.execution_id}"
    if holder.identity != claim.holder:
        raise errors.OperationError(
            f"{job} is held by another identity. Answer with the token that fetched it", code="held-by-other"
        )
    if holder.worker == claim.worker or not (holder.worker or exactly):
        return
    owner = f"another worker, {claim.worker!r}" if claim.worker else "a worker that named no `worker_id`"
    raise errors.OperationError(f"{job} is held by {owner}. Send the `worker_id` of its fetch", code="held-by-other")


def _newest(facts: Facts, kind: type[F], step: str) -> Recorded[F] | None:
    return newest_of([fact for fact in unfold(facts) if getattr(fact.message, "step", None) == step], kind)
