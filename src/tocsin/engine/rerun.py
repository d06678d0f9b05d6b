"""Reruns of dead letters.

The rerun of a failed execution is a new execution. The rerun of a refused input sends the input again.
"""

from base64 import b64decode
from collections.abc import Sequence
from typing import Final

from .. import subjects
from ..domain import dead_letter, execution_plan
from ..domain.dead_letter import DeadLetter, Replay
from ..domain.definition import DefinitionError, check_input
from ..domain.errors import TocsinError
from ..domain.events import (
    MAX_BODY_BYTES,
    CancelRequest,
    Completion,
    DeadLettered,
    Message,
    PoisonMessage,
    Recorded,
    Replayed,
    Report,
    Requested,
    Resolved,
    RetryTimer,
    Trigger,
)
from ..ports import EventLog, StaleRead
from ..subjects import ANY, REPLAYS, DecodeError
from .execution_writer import ExecutionWriter
from .ledger_reader import LedgerReader

SENT_AGAIN: Final = (Report, RetryTimer, CancelRequest, Completion, Resolved)
"""The messages that a rerun stores besides executions."""
INPUTS: Final = (Trigger, CancelRequest, Report, RetryTimer, Completion)
"""The inputs of the stages. An event is a decision that is stored already and cannot be decided again."""


class NotRerunnable(TocsinError, ValueError):
    """A refused message cannot be sent again; the text gives the reason."""

    code = "not-rerunnable"


class Reruns:
    """Reruns dead letters for the planner."""

    def __init__(self, log: EventLog, ledgers: LedgerReader, writer: ExecutionWriter) -> None:
        self._log = log
        self._ledgers = ledgers
        self._writer = writer

    async def on_replayed(self, recorded: Recorded[Message]) -> None:
        """Rerun the dead letter of a replay request."""
        if not isinstance(recorded.message, Replayed):
            return
        scope = subjects.scope_of(recorded.message)
        events = await self._log.load(scope)
        state = dead_letter.fold(events)
        replay = next((replay for replay in state.replays if replay.sequence == recorded.sequence), None)
        if replay is None or (state.kept is None and not await _is_complete(self._log, scope, events)):
            raise StaleRead.of(scope)
        if state.kept is None:
            await self._refuse(
                recorded, replay, f"dead letter {replay.fact.id} was archived before its replay was handled"
            )
            return
        kept = state.kept.message
        if isinstance(kept, DeadLettered):
            await self._plan(recorded, replay, kept)
            return
        try:
            message = message_of(kept)
        except NotRerunnable as error:
            await self._refuse(recorded, replay, str(error))
            return
        if isinstance(message, Trigger):
            await self._plan(recorded, replay, message)
            return
        if state.resolved is not None:
            return
        # The stage that receives the message decides on its own state, so a second copy changes nothing.
        if isinstance(message, RetryTimer):
            await self._log.delay(message, until=recorded.time, scope=scope, expect=events[-1].sequence)
        else:
            message_id = f"replay-{replay.fact.job}-{replay.fact.id}-{replay.fact.number}"
            await self._log.publish(kept.subject, message, message_id=message_id)
        await resolve(self._log, state, expect=events[-1].sequence, reason="handed in again")

    async def _plan(self, recorded: Recorded[Message], replay: Replay, cause: DeadLettered | Trigger) -> None:
        fact, job = replay.fact, replay.fact.job
        request = Recorded(fact, recorded.subject, recorded.sequence, recorded.time)
        if isinstance(cause, DeadLettered) and (original := await unregistered_request(self._log, cause)) is not None:
            await self._writer.plan(execution_plan.from_replay_of(request, original))
            return
        in_force = await self._ledgers.in_force(job, at=fact.ledger)
        old_sequence = cause.definition if isinstance(cause, DeadLettered) else 0
        old = await self._ledgers.definition(old_sequence) if old_sequence else None
        trigger = execution_plan.replay_input(cause, fact, old)
        try:
            if in_force is None:
                await self._refuse(recorded, replay, f"no job is called {job!r}")
                return
            definition, sequence = in_force
            check_input(definition, execution_plan.input_of(trigger, definition), trigger.args)
        except DefinitionError as error:
            await self._refuse(recorded, replay, str(error))
            return
        await self._writer.plan(execution_plan.from_replay(request, cause, definition, sequence, before=old))

    async def _refuse(self, recorded: Recorded[Message], replay: Replay, reason: str) -> None:
        await self._writer.refuse(
            recorded, reason, job=replay.fact.job, durable=REPLAYS, execution_id=replay.execution_id
        )


async def resolve(
    log: EventLog, state: DeadLetter, *, expect: int, execution_id: str | None = None, reason: str
) -> None:
    """Mark a dead letter as resolved; `expect` is the last sequence that its state includes."""
    for event in dead_letter.resolve(state, execution_id=execution_id, reason=reason):
        await log.append(event, expect=expect)


async def resolve_replayed(log: EventLog, job: str, id: str, execution_id: str) -> None:  # noqa: A002 - the field is called so
    """Resolve a dead letter whose replay completed, and every earlier dead letter that it replayed."""
    letter: str | None = id
    while letter is not None:
        scope = subjects.dead_letter(job, letter)
        events = await log.load(scope)
        state = dead_letter.fold(events)
        if state.kept is None:
            if not await _is_complete(log, scope, events):
                raise StaleRead.of(scope)
            return
        await resolve(log, state, expect=events[-1].sequence, execution_id=execution_id, reason="replayed")
        letter = state.fact.replay_of if isinstance(state.fact, DeadLettered) else None


async def _is_complete(log: EventLog, scope: str, events: Sequence[Recorded[Message]]) -> bool:
    """Return whether events read from a scope include its newest event."""
    return await log.tail(scope) == (events[-1].sequence if events else 0)


async def unregistered_request(log: EventLog, letter: DeadLettered) -> Requested | None:
    """Return the first event of a failed execution of an unregistered job.

    None: the job was registered, or the execution is not in the log any more.

    Raises:
        StaleRead: a lagging replica was read.
    """
    if letter.definition:
        return None
    scope = subjects.execution(letter.job, letter.execution_id)
    events = await log.load(scope)
    if not events and await log.tail(scope):
        raise StaleRead.of(scope)
    request = next((event.message for event in events if isinstance(event.message, Requested)), None)
    return request if request is not None and not request.plan.definition else None


def message_of(letter: PoisonMessage) -> Trigger | CancelRequest | Report | RetryTimer | Completion:
    """Return the input that became this dead letter.

    Raises:
        NotRerunnable: the message is not an input, is still unreadable, or is not kept whole.
    """
    body = b64decode(letter.body)
    if len(body) >= MAX_BODY_BYTES:
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
