"""The dead letter: what failed for good with every attempt, its replays, and its end (hip-62, Dead Letter Handling).

A replay is a fact of the dead letter's own scope, numbered there, and the id of its execution is made of that number: however
often it is asked for, delivered or handled, it is one execution. A replay that completes resolves what it is a replay of.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypedDict, TypeVar

from pydantic import JsonValue

from . import ids
from .events import (
    Actor,
    Advanced,
    Attempt,
    DeadLettered,
    Dispatched,
    Exhausted,
    Failed,
    Input,
    Message,
    PoisonMessage,
    Recorded,
    Replayed,
    Requested,
    Resolved,
    RetryScheduled,
    Started,
)

F = TypeVar("F", bound=Message)

MAX_TRACEBACKS: Final = 10
"""The last attempts, whose tracebacks a dead letter keeps."""


# --- state -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay: what it is asked with, when the log stored that (UTC) and where, and the id of its execution."""

    fact: Replayed
    at: datetime
    sequence: int
    execution_id: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter as its facts tell it. `kept`: what it holds, absent only where that could not be read."""

    kept: Recorded[DeadLettered | PoisonMessage] | None = None
    replays: tuple[Replay, ...] = ()
    resolved: Recorded[Resolved] | None = None

    @property
    def fact(self) -> DeadLettered | PoisonMessage:
        """What it holds.

        Raises:
            LookupError: that is not known.
        """
        if self.kept is None:
            raise LookupError("no dead letter is kept")
        return self.kept.message


initial: Final = DeadLetter()


# --- evolve ----------------------------------------------------------------------------------------------------------


def evolve(state: DeadLetter, recorded: Recorded[Message]) -> DeadLetter:
    """The state after one more fact. Total."""
    match recorded.message:
        case DeadLettered() | PoisonMessage() as fact:
            return replace(state, kept=_recorded(recorded, fact))
        case Replayed() as fact:
            execution_id = ids.replay_id(fact.job, fact.id, fact.number, recorded.time)
            return replace(
                state, replays=(*state.replays, Replay(fact, recorded.time, recorded.sequence, execution_id))
            )
        case Resolved() as fact:
            return replace(state, resolved=_recorded(recorded, fact))
        case _:
            return state


def fold(facts: Iterable[Recorded[Message]], state: DeadLetter = initial) -> DeadLetter:
    """The state after facts, oldest first."""
    for recorded in facts:
        state = evolve(state, recorded)
    return state


# --- decide ----------------------------------------------------------------------------------------------------------


def request_replay(
    state: DeadLetter,
    *,
    request: str | None = None,
    input: Input | None = None,  # noqa: A002 - the field is called so
    by: Actor | None = None,
    reason: str | None = None,
    ledger: int | None = None,
) -> list[Replayed]:
    """One more replay, by what is in force at the sequence `ledger`. Nothing where this very request was taken before."""
    if find_replay(state, request) is not None:
        return []
    job, number = state.fact.job, len(state.replays) + 1
    return [
        Replayed(
            job=job,
            id=state.fact.id,
            number=number,
            input=input,
            by=by,
            reason=reason,
            request=request,
            ledger=ledger,
        )
    ]


def find_replay(state: DeadLetter, request: str | None) -> Replay | None:
    """The replay that a request asked for."""
    return next((one for one in state.replays if request is not None and one.fact.request == request), None)


def resolve(
    state: DeadLetter, *, execution_id: str | None = None, by: Actor | None = None, reason: str | None = None
) -> list[Resolved]:
    """Nothing is left to be done. Nothing where it is resolved already."""
    if state.resolved is not None:
        return []
    return [Resolved(job=state.fact.job, id=state.fact.id, execution_id=execution_id, by=by, reason=reason)]


def _recorded(recorded: Recorded[Message], fact: F) -> Recorded[F]:
    return Recorded(fact, recorded.subject, recorded.sequence, recorded.time, recorded.message_id)


# --- what a failed execution leaves ----------------------------------------------------------------------------------


def of_failed(failed: Failed, facts: Iterable[Recorded[Message]]) -> DeadLettered:
    """The dead letter of an execution that ended with `failed`, from all of its facts, oldest first."""
    history = list(facts)
    attempts = attempts_of(history)
    times = [a.dispatched_at for a in attempts if a.dispatched_at] + [a.ended_at for a in attempts if a.ended_at]
    ends = times or [recorded.time for recorded in history] or [failed.scheduled_time]
    return DeadLettered(
        job=failed.job,
        id=failed.execution_id,
        execution_id=failed.execution_id,
        scheduled_time=failed.scheduled_time,
        trigger=failed.trigger,
        input=_input_of(history),
        attempts=_with_tracebacks_of_the_last(attempts),
        last_error=failed.error,
        first_attempt=min(ends),
        last_attempt=max(ends),
        **_asked(history),
    )


def _with_tracebacks_of_the_last(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """Hundreds of tracebacks would make a letter that no message can hold; each is in the log with its own fact."""
    earlier = [
        attempt.model_copy(update={"error": attempt.error.model_copy(update={"traceback": None})})
        if attempt.error
        else attempt
        for attempt in attempts[:-MAX_TRACEBACKS]
    ]
    return (*earlier, *attempts[-MAX_TRACEBACKS:])


def attempts_of(facts: Iterable[Recorded[Message]]) -> tuple[Attempt, ...]:
    """What an execution's facts say of its attempts, in the order in which these were dispatched."""
    attempts: dict[tuple[str, int], Attempt] = {}

    def update(step: str, attempt: int, **known: object) -> None:
        old = attempts.get((step, attempt), Attempt(step=step, attempt=attempt))
        attempts[step, attempt] = old.model_copy(update=known)

    for recorded in facts:
        match recorded.message:
            case Dispatched() as fact:
                update(fact.step, fact.attempt, dispatched_at=recorded.time)
            case Started() as fact:
                update(fact.step, fact.attempt, started_at=recorded.time, worker=fact.worker)
            case RetryScheduled() | Exhausted() as fact:
                update(fact.step, fact.attempt, ended_at=recorded.time, error=fact.error)
            case Advanced() as fact:
                update(fact.step, fact.attempt, ended_at=recorded.time)
            case Failed(step=str(step), attempt=int(attempt)) as fact:
                update(step, attempt, ended_at=recorded.time, error=None if fact.step_completed else fact.error)
            case _:
                pass
    return tuple(attempts.values())


class _Asked(TypedDict, total=False):
    definition: int
    plan_input: Input
    plan_args: tuple[JsonValue, ...]
    replay_of: str | None


def _asked(facts: Iterable[Recorded[Message]]) -> _Asked:
    """What a replay needs to know of how it was asked for."""
    for recorded in facts:
        if isinstance(recorded.message, Requested):
            asked, plan = recorded.message, recorded.message.plan
            return {
                "definition": plan.definition,
                "plan_input": plan.input,
                "plan_args": plan.args,
                "replay_of": asked.replay_of,
            }
    return {}


def _input_of(facts: Iterable[Recorded[Message]]) -> Input:
    for recorded in facts:
        if isinstance(recorded.message, Requested):
            plan = recorded.message.plan
            own = {step.name: step.input for step in plan.steps if step.input is not None}
            return {**plan.input, **own}
    return {}
