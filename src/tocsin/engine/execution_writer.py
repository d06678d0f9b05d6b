"""How an execution begins: its first fact and what the public is to hear of it, or a dead letter for what cannot begin."""

from typing import Final

from .. import subjects
from ..domain.events import Admitted, Message, Planned, PoisonMessage, Recorded, Skipped
from ..domain.execution import Execution
from ..ports import EventLog, SequenceConflict
from .public_events import PublicEvents
from .state_cache import UNTOLD, StateCache

BEGINNINGS: Final = (Planned, Admitted, Skipped, PoisonMessage)
"""What it stores."""


class ExecutionWriter:
    """Begins executions, each once, however often it is asked."""

    def __init__(
        self, log: EventLog, public_events: PublicEvents, executions: StateCache[Execution] | None = None
    ) -> None:
        self._log = log
        self._public_events = public_events
        self._executions = executions

    async def plan(self, first: Planned | Admitted | Skipped) -> None:
        """Store the first fact of an execution, and say what the public is to hear of it."""
        decided: Message = first
        try:
            sequence = await self._log.append(first, expect=0)
        except SequenceConflict:
            before = await self._log.load(subjects.scope_of(first))
            if not before:
                raise
            # What comes again may find another definition in force. What was decided the first time stands.
            decided, sequence = before[0].message, before[0].sequence
        else:
            if self._executions is not None:
                recorded: Recorded[Message] = Recorded(first, subjects.subject_of(first), sequence, UNTOLD)
                self._executions.learn(subjects.scope_of(first), recorded, after=0)
        await self._public_events.announce(decided, sequence=sequence)

    async def refuse(self, asked: Recorded[Message], reason: str, *, job: str, durable: str, execution_id: str) -> None:
        """Keep what asked for an execution that cannot be, unless it was, by a definition not in force any more."""
        if await self._log.last(subjects.execution(job, execution_id)) is not None:
            return
        fact = PoisonMessage.of(job, durable, asked.subject, asked.sequence, asked.message.encode(), reason)
        try:
            await self._log.append(fact, expect=0)
        except SequenceConflict:
            return  # recorded before
