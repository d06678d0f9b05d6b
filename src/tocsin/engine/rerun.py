"""What becomes of a replayed dead letter: a new execution, or the same message once more."""

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
from .unregistered_jobs import registered_nowhere

SENT_AGAIN: Final = (Report, RetryTimer, CancelRequest, Completion, Resolved)
"""What it stores beside executions."""


class Reruns:
    """The planner's part for dead letters."""

    def __init__(self, log: EventLog, ledgers: LedgerReader, beginnings: ExecutionWriter) -> None:
        self._log = log
        self._ledgers = ledgers
        self._beginnings = beginnings

    async def on_replayed(self, recorded: Recorded[Message]) -> None:
        """Somebody wants to have done what failed."""
        if not isinstance(recorded.message, Replayed):
            return
        scope = subjects.scope_of(recorded.message)
        facts = await self._log.load(scope)
        state = dead_letter.fold(facts)
        replay = next((one for one in state.replays if one.sequence == recorded.sequence), None)
        if replay is None or (state.kept is None and not await _are_all(self._log, scope, facts)):
            raise StaleRead.of(scope)
        if state.kept is None:
            await self._refuse(recorded, replay, f"dead letter {replay.fact.id} went into the archive meanwhile")
            return
        kept = state.kept.message
        if isinstance(kept, DeadLettered):
            await self._plan(recorded, replay, kept)
            return
        try:
            asked = message_of(kept)
        except NotRerunnable as error:
            await self._refuse(recorded, replay, str(error))
            return
        if isinstance(asked, Trigger):
            await self._plan(recorded, replay, asked)
            return
        if state.resolved is not None:
            return
        # Whoever takes it decides by a state of its own: the same report or timer twice changes nothing.
        if isinstance(asked, RetryTimer):
            await self._log.delay(asked, until=recorded.time, scope=scope, expect=facts[-1].sequence)
        else:
            name = f"replay-{replay.fact.job}-{replay.fact.id}-{replay.fact.number}"
            await self._log.publish(kept.subject, asked, message_id=name)
        await resolve(self._log, state, behind=facts[-1].sequence, reason="handed in again")

    async def _plan(self, recorded: Recorded[Message], replay: Replay, asked: DeadLettered | Trigger) -> None:
        fact, job = replay.fact, replay.fact.job
        told = Recorded(fact, recorded.subject, recorded.sequence, recorded.time)
        if isinstance(asked, DeadLettered) and (before_it := await registered_nowhere(self._log, asked)) is not None:
            await self._beginnings.plan(execution_plan.from_replay_of(told, before_it))
            return
        found = await self._ledgers.in_force(job, at=fact.ledger)
        before = asked.definition if isinstance(asked, DeadLettered) else 0
        old = await self._ledgers.definition(before) if before else None
        given = execution_plan.replay_input(asked, fact, old)
        try:
            if found is None:
                await self._refuse(recorded, replay, f"no job is called {job!r}")
                return
            definition, sequence = found
            check_input(definition, execution_plan.input_of(given, definition), given.args)
        except DefinitionError as error:
            await self._refuse(recorded, replay, str(error))
            return
        await self._beginnings.plan(execution_plan.from_replay(told, asked, definition, sequence, before=old))

    async def _refuse(self, recorded: Recorded[Message], replay: Replay, reason: str) -> None:
        await self._beginnings.refuse(
            recorded, reason, job=replay.fact.job, durable=REPLAYS, execution_id=replay.execution_id
        )


async def resolve(
    log: EventLog, state: DeadLetter, *, behind: int, execution_id: str | None = None, reason: str
) -> None:
    """Say that nothing is left to be done about a dead letter, as it is up to the sequence `behind`."""
    for fact in dead_letter.resolve(state, execution_id=execution_id, reason=reason):
        await log.append(fact, expect=behind)


async def resolve_replayed(log: EventLog, job: str, id: str, execution_id: str) -> None:  # noqa: A002 - the field is called so
    """An execution that replayed a dead letter completed: resolve that, and what that one was a replay of, and so on."""
    letter: str | None = id
    while letter is not None:
        scope = subjects.dead_letter(job, letter)
        facts = await log.load(scope)
        state = dead_letter.fold(facts)
        if state.kept is None:
            if not await _are_all(log, scope, facts):
                raise StaleRead.of(scope)
            return
        await resolve(log, state, behind=facts[-1].sequence, execution_id=execution_id, reason="replayed")
        letter = state.fact.replay_of if isinstance(state.fact, DeadLettered) else None


async def _are_all(log: EventLog, scope: str, facts: Sequence[Recorded[Message]]) -> bool:
    """Whether these facts of a scope are its newest: a replica that lags may have been read."""
    return await log.tail(scope) == (facts[-1].sequence if facts else 0)
