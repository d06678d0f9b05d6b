"""Reruns of dead letters.

The rerun of a failed execution, or of a refused trigger, is a new execution. The rerun of another input sends the input again.
"""

from base64 import b64decode
from collections.abc import Sequence
from functools import partial
from typing import Final

from .. import subjects
from ..domain import dead_letter, execution_plan
from ..domain.dead_letter import Replay
from ..domain.definition import DefinitionError, check_input
from ..domain.errors import TocsinError
from ..domain.events import (
    Admitted,
    CancelRequest,
    Completion,
    DeadLettered,
    Message,
    Planned,
    PoisonMessage,
    Recorded,
    Replayed,
    Report,
    Requested,
    Trigger,
    unfold,
)
from ..domain.ledger import JobNotFound
from ..ports import EventLog
from ..subjects import ANY, DecodeError
from .daily_quotas import within_quota
from .fan_out import begin_divided
from .kinds import DEFINITION, FACTS, IN_FORCE, dead_letter_state
from .locks import Beginning, begin
from .public_events import refuse_request
from .step import DONE, Events, States, Step, again

INPUTS: Final = (Trigger, CancelRequest, Report, Completion)
"""The inputs of the stages. An event is a decision that is stored already and cannot be decided again."""


class NotRerunnable(TocsinError, ValueError):
    """A refused message cannot be sent again; the text gives the reason."""

    code = "not-rerunnable"


def rerun(recorded: Recorded[Message], at: Beginning) -> Step:
    """Rerun the dead letter of a replay request, for the planner."""
    if not isinstance(recorded.message, Replayed):
        return DONE
    fact, states, now = recorded.message, at.states, at.now
    ref = dead_letter_state(fact.job, fact.id)
    state = states(ref)
    [replay] = [replay for replay in state.replays if replay.sequence == recorded.sequence]
    if state.kept is None:
        error = NotRerunnable(f"dead letter {fact.id} was archived before its replay was handled")
        return refuse_request(error, states, now, job=fact.job, execution_id=replay.execution_id)
    original = state.kept.message
    try:
        message = original if isinstance(original, DeadLettered) else message_of(original)
    except NotRerunnable as error:
        return refuse_request(error, states, now, job=fact.job, execution_id=replay.execution_id)
    if not isinstance(message, DeadLettered | Trigger):
        return DONE  # its operator sent it again
    first = _planned(recorded, replay, message, at)
    return first if isinstance(first, Step) else begin(within_quota(first, states, now), at)


def _planned(
    recorded: Recorded[Message], replay: Replay, cause: DeadLettered | Trigger, at: Beginning
) -> Planned | Admitted | Step:
    """Return the first event of a replay's execution.

    Return a step if it is refused, or begins on several shards.
    """
    fact, job, states, now = replay.fact, replay.fact.job, at.states, at.now
    request = Recorded(fact, recorded.subject, recorded.sequence, recorded.time)
    if isinstance(cause, DeadLettered) and (original := _unregistered_request(cause, states)) is not None:
        try:
            return execution_plan.from_replay_of(request, original)
        except DefinitionError as error:
            return refuse_request(error, states, now, job=job, execution_id=replay.execution_id)
    in_force = None if job == ANY else states(IN_FORCE((job, fact.ledger)))
    old_sequence = cause.definition if isinstance(cause, DeadLettered) else 0
    old = states(DEFINITION((job, old_sequence))) if old_sequence else None
    trigger = execution_plan.replay_input(cause, fact, old)
    if in_force is None:
        return refuse_request(JobNotFound(job), states, now, job=job, execution_id=replay.execution_id)
    definition, sequence = in_force
    try:
        written = (fact.input or {}) if isinstance(cause, DeadLettered) else None
        check_input(definition, trigger.input or {}, trigger.args, written=written)
    except DefinitionError as error:
        return refuse_request(error, states, now, job=job, execution_id=replay.execution_id)
    if isinstance(cause, Trigger) and definition.partition is not None:
        make = partial(execution_plan.from_replay, request, cause, before=old)
        return begin_divided(make, definition, sequence, at)
    return execution_plan.from_replay(request, cause, definition, sequence, before=old)


def _unregistered_request(letter: DeadLettered, states: States) -> Requested | None:
    """Return the first event of a failed execution of an unregistered job (`unregistered_request`)."""
    scope = subjects.execution(letter.job, letter.execution_id)
    return None if letter.definition else _request_of(states(FACTS(scope)))


def resolve_replayed(states: States, job: str, id: str, execution_id: str) -> Step:  # noqa: A002 - the field is called so
    """Resolve a dead letter whose replay completed, and every earlier one that it replayed."""
    letter: str | None = id
    while letter is not None:
        ref = dead_letter_state(job, letter)
        state = states(ref)
        if state.kept is None:
            return DONE
        if resolved := dead_letter.resolve(state, execution_id=execution_id, reason="replayed"):
            return again(Events(ref, tuple(resolved)))
        letter = state.fact.replay_of if isinstance(state.fact, DeadLettered) else None
    return DONE


async def unregistered_request(log: EventLog, letter: DeadLettered) -> Requested | None:
    """Return the first event of a failed execution of an unregistered job.

    None: the job was registered, or the execution is not in the log any more.
    """
    if letter.definition:
        return None
    return _request_of(await log.load(subjects.execution(letter.job, letter.execution_id)))


def _request_of(events: Sequence[Recorded[Message]]) -> Requested | None:
    request = next((event.message for event in unfold(events) if isinstance(event.message, Requested)), None)
    return request if request is not None and not request.plan.definition else None


def rerun_subject(letter: PoisonMessage) -> str:
    """Return the subject on which an input is sent again.

    A cancellation from outside becomes one of this installation.
    """
    is_public = subjects.publisher_of(letter.subject) is not None
    return subjects.cancel(*subjects.parse_cancel(letter.subject)) if is_public else letter.subject


def message_of(letter: PoisonMessage) -> Trigger | CancelRequest | Report | Completion:
    """Return the input that became this dead letter.

    Raises:
        NotRerunnable: the message is not an input, is still unreadable, or is not kept whole.
    """
    body = b64decode(letter.body)
    if letter.is_cut:
        raise NotRerunnable(
            f"the message is too large to be kept whole; read it at sequence {letter.sequence} of its stream"
        )
    try:
        message = subjects.decode(letter.subject, body)
    except DecodeError as error:
        raise NotRerunnable(f"the message is still unreadable: {error}") from error
    if isinstance(message, Trigger) and subjects.job_of(letter.subject) == ANY:
        raise NotRerunnable(f"{letter.subject} names no job; trigger a job by its name")
    if not isinstance(message, INPUTS):
        raise NotRerunnable(
            f"{letter.subject} is an event, which the log has already, and not an input: {_advice(message)}"
        )
    return message


def _advice(event: Message) -> str:
    return {
        "replayed": "replay the dead letter that it belongs to",
        "planned": "trigger the job again",
        "admitted": "trigger the job again",
        "dispatched": "trigger the job again",
    }.get(str(getattr(event, "type", "")), "wait for the recoverer, or trigger the job again")
