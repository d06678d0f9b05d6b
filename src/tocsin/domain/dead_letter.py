"""The dead letter: a failed execution or poison message, its replays and its resolution.

A replay is a numbered event of the dead letter's own scope, and the id of its execution is derived from that number.
However often a replay is requested, delivered or handled, it is one execution. A replay that completes resolves the
dead letter. Implements hip-62, Dead Letter Handling.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import Any, Final, TypeAlias, cast

from . import ids
from .events import (
    Actor,
    Advanced,
    Attempt,
    Completed,
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
    unfold,
)
from .execution_plan import replay_id_of

MAX_TRACEBACKS: Final = 10
"""The number of newest attempts whose tracebacks a dead letter keeps."""
MAX_ATTEMPTS: Final = 200
"""The number of newest attempts that a dead letter keeps if it would otherwise be too large."""
MAX_LETTER_BYTES: Final = 786_432
"""Bytes of a dead letter; a NATS server accepts 1 MiB messages by default."""
_SHORT: Final = 200
"""Letters of an error's message in a dead letter that would otherwise be too large."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay: its event, the event's time (UTC) and sequence, and its execution."""

    fact: Replayed
    at: datetime
    sequence: int
    execution_id: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter, folded from its events; `kept` is the first, if it is readable."""

    kept: Recorded[DeadLettered | PoisonMessage] | None = None
    replays: tuple[Replay, ...] = ()
    resolved: Recorded[Resolved] | None = None

    @property
    def fact(self) -> DeadLettered | PoisonMessage:
        """Return the first event; raise LookupError if it is unknown."""
        if self.kept is None:
            raise LookupError("no dead letter is kept")
        return self.kept.message


initial: Final = DeadLetter()


def evolve(state: DeadLetter, recorded: Recorded[Message]) -> DeadLetter:
    """Return the state after an event; events of other kinds change nothing."""
    match recorded.message:
        case DeadLettered() | PoisonMessage():
            return replace(state, kept=cast("Recorded[DeadLettered | PoisonMessage]", recorded))
        case Replayed() as fact:
            replay = Replay(fact, recorded.time, recorded.sequence, replay_id_of(fact, recorded.time))
            return replace(state, replays=(*state.replays, replay))
        case Resolved():
            return replace(state, resolved=cast("Recorded[Resolved]", recorded))
        case _:
            return state


def fold(facts: Iterable[Recorded[Message]], state: DeadLetter = initial) -> DeadLetter:
    """Return the state after events, oldest first."""
    return reduce(evolve, facts, state)


def request_replay(
    state: DeadLetter,
    *,
    request: str | None = None,
    input: Input | None = None,  # noqa: A002 - the name of the field
    by: Actor | None = None,
    reason: str | None = None,
    ledger: int | None = None,
    failed_only: bool = False,
    now: datetime | None = None,
) -> list[Replayed]:
    """Request another replay, by the definition in force at the sequence `ledger`.

    Return nothing if the same request was recorded before. `now` (UTC) becomes the time of the id of its execution; None: the event is
    only tried, and names no id.
    """
    if find_replay(state, request) is not None:
        return []
    job, letter, number = state.fact.job, state.fact.id, len(state.replays) + 1
    return [
        Replayed(
            job=job,
            id=letter,
            number=number,
            execution_id=None if now is None else ids.replay_id(job, letter, number, now),
            input=input,
            failed_only=failed_only,
            by=by,
            reason=reason,
            request=request,
            ledger=ledger,
        )
    ]


def find_replay(state: DeadLetter, request: str | None) -> Replay | None:
    return next((replay for replay in state.replays if request is not None and replay.fact.request == request), None)


def resolve(
    state: DeadLetter, *, execution_id: str | None = None, by: Actor | None = None, reason: str | None = None
) -> list[Resolved]:
    """Resolve the dead letter; return nothing if it is resolved."""
    if state.resolved is not None:
        return []
    return [Resolved(job=state.fact.job, id=state.fact.id, execution_id=execution_id, by=by, reason=reason)]


def of_failed(failed: Failed, facts: Iterable[Recorded[Message]]) -> DeadLettered:
    """Return the dead letter of a failed execution, from all its events, oldest first."""
    history = list(unfold(facts))
    attempts = attempts_of(history)
    times = [a.dispatched_at for a in attempts if a.dispatched_at] + [a.ended_at for a in attempts if a.ended_at]
    ends = times or [recorded.time for recorded in history] or [failed.scheduled_time]
    request = next((recorded.message for recorded in history if isinstance(recorded.message, Requested)), None)
    # Hundreds of tracebacks would exceed the maximum message size; each traceback is also in the log.
    earlier = (_with_error(attempt, traceback=None) for attempt in attempts[:-MAX_TRACEBACKS])
    letter = DeadLettered(
        job=failed.job,
        id=failed.execution_id,
        execution_id=failed.execution_id,
        scheduled_time=failed.scheduled_time,
        trigger=failed.trigger,
        attempts=(*earlier, *attempts[-MAX_TRACEBACKS:]),
        last_error=failed.first_error,
        first_attempt=min(ends),
        last_attempt=max(ends),
        shard=failed.shard,
        **({} if request is None else _fields_of(request)),
    )
    return _fitting(letter)


def _fitting(letter: DeadLettered) -> DeadLettered:
    if len(letter.encode()) <= MAX_LETTER_BYTES:
        return letter
    kept, omitted = letter.attempts[-MAX_ATTEMPTS:], len(letter.attempts[:-MAX_ATTEMPTS])
    letter = letter.changed(attempts=tuple(map(_shortened, kept)), attempts_left_out=omitted)
    if len(letter.encode()) <= MAX_LETTER_BYTES:
        return letter
    return letter.changed(input={}, input_left_out=True)  # the plan's input is kept for a replay


def _shortened(attempt: Attempt) -> Attempt:
    message = "" if attempt.error is None else attempt.error.message[:_SHORT]
    return _with_error(attempt, message=message, traceback=None, details=None)


def _with_error(attempt: Attempt, **changes: object) -> Attempt:
    if attempt.error is None:
        return attempt
    return attempt.changed(error=attempt.error.changed(**changes))


def attempts_of(facts: Iterable[Recorded[Message]]) -> tuple[Attempt, ...]:
    """Return the attempts of an execution in the order of dispatch."""
    attempts: dict[tuple[str, int], Attempt] = {}

    def update(step: str, attempt: int, **known: object) -> None:
        old = attempts.get((step, attempt), Attempt(step=step, attempt=attempt))
        attempts[step, attempt] = old.changed(**known)

    for recorded in facts:
        match recorded.message:
            case Dispatched() as fact:
                update(fact.step, fact.attempt, dispatched_at=recorded.time)
            case Started() as fact:
                update(fact.step, fact.attempt, started_at=recorded.time, worker=fact.worker, held_up=fact.held_up)
            case RetryScheduled() | Exhausted() as fact:
                update(fact.step, fact.attempt, ended_at=recorded.time, error=fact.error)
            case Advanced(adopted_from=None) as fact:
                update(fact.step, fact.attempt, ended_at=recorded.time)
            case Completed(step=str(step), attempt=int(attempt)):
                update(step, attempt, ended_at=recorded.time)
            case Failed(step=str(step), attempt=int(attempt)) as fact:
                update(step, attempt, ended_at=recorded.time, error=None if fact.step_completed else fact.error)
            case _:
                pass
    return tuple(attempts.values())


def _fields_of(request: Requested) -> dict[str, Any]:
    """Return the input of an execution, and what a replay needs of its request."""
    plan = request.plan
    inputs = {step.name: step.input for step in plan.steps if step.input is not None}
    return {
        "input": {**plan.input, **inputs},
        "definition": plan.definition,
        "plan_input": plan.input,
        "plan_args": plan.args,
        "replay_of": request.replay_of,
    }


Letter: TypeAlias = Recorded[DeadLettered | PoisonMessage]
"""The first event of a dead letter."""
LetterName: TypeAlias = tuple[str, str]
"""The job and the id of a dead letter. A client may bring the id that an execution of another job has."""


def dead_letters(messages: Iterable[Recorded[Message]]) -> dict[LetterName, Letter]:
    """Return the first events of dead letters among messages, by job and id."""
    letters = (cast("Letter", recorded) for recorded in messages if type(recorded.message) in _LETTERS)
    return {(letter.message.job, letter.message.id): letter for letter in letters}


def resolved(messages: Iterable[Recorded[Message]]) -> set[LetterName]:
    """Return the jobs and the ids of the dead letters that messages resolve."""
    return {(recorded.message.job, recorded.message.id) for recorded in messages if type(recorded.message) is Resolved}


_LETTERS: Final[frozenset[type[Message]]] = frozenset({DeadLettered, PoisonMessage})
