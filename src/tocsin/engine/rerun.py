"""Reruns of dead letters.

The rerun of a failed execution is a new execution. The rerun of a refused input sends the input again.
"""

from collections.abc import Sequence
from typing import Final

from .. import subjects
from ..domain import dead_letter, execution_plan
from ..domain.dead_letter import DeadLetter, Replay
from ..domain.definition import DefinitionError, check_input
from ..domain.events import (
    CancelRequest,
    Completion,
    DeadLettered,
    Message,
    Recorded,
    Replayed,
    Report,
    Resolved,
    RetryTimer,
    Trigger,
)
from ..ports import EventLog, StaleRead
from ..subjects import REPLAYS
from .execution_writer import ExecutionWriter
from .ledger_reader import LedgerReader
from .poison_messages import NotRerunnable, message_of
from .unregistered_jobs import unregistered_request

SENT_AGAIN: Final = (Report, RetryTimer, CancelRequest, Completion, Resolved)
"""The messages that a rerun stores besides executions."""


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
    """Return whether events of a scope, maybe read from a lagging replica, include its newest."""
    return await log.tail(scope) == (events[-1].sequence if events else 0)
