"""The first event of an execution, or a dead letter if the execution is impossible."""

from typing import Final

from .. import subjects
from ..domain.events import Admitted, Message, Planned, PoisonMessage, Recorded, Skipped
from ..domain.execution import Execution
from ..ports import EventLog, SequenceConflict
from .public_events import PublicEvents
from .state_cache import UNKNOWN_TIME, StateCache

BEGINNINGS: Final = (Planned, Admitted, Skipped, PoisonMessage)
"""The messages that it stores."""


class ExecutionWriter:
    """Stores the first event of each execution exactly once."""

    def __init__(
        self, log: EventLog, public_events: PublicEvents, executions: StateCache[Execution] | None = None
    ) -> None:
        self._log = log
        self._public_events = public_events
        self._executions = executions

    async def plan(self, first: Planned | Admitted | Skipped) -> None:
        """Store the first event of an execution and announce it."""
        decision: Message = first
        try:
            sequence = await self._log.append(first, expect=0)
        except SequenceConflict:
            events = await self._log.load(subjects.scope_of(first))
            if not events:
                raise
            # On a redelivery another definition may be in force. The first decision stands.
            decision, sequence = events[0].message, events[0].sequence
        else:
            if self._executions is not None:
                recorded: Recorded[Message] = Recorded(first, subjects.subject_of(first), sequence, UNKNOWN_TIME)
                self._executions.learn(subjects.scope_of(first), recorded, after=0)
        await self._public_events.announce(decision, sequence=sequence)

    async def refuse(
        self, request: Recorded[Message], reason: str, *, job: str, durable: str, execution_id: str
    ) -> None:
        """Store a request as a dead letter, unless an earlier delivery created its execution."""
        if await self._log.last(subjects.execution(job, execution_id)) is not None:
            return
        letter = PoisonMessage.of(job, durable, request.subject, request.sequence, request.message.encode(), reason)
        try:
            await self._log.append(letter, expect=0)
        except SequenceConflict:
            return  # stored by an earlier delivery
