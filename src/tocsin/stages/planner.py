"""Planner: makes an execution of every due instant and of every trigger.

consumes  due, passed, trigger
folds     the job's ledger, for its definition
appends   planned, or admitted where no lock is asked; skipped for instants that passed in public; dead letters for triggers
          of jobs that do not exist, or with input that the job refuses
"""

from typing import Final

from .. import subjects
from ..domain import planning
from ..domain.definition import DefinitionError, check_input
from ..domain.events import Admitted, Due, Message, Passed, Planned, Recorded, Refused, Skipped, Trigger
from ..domain.execution import Execution
from ..domain.ledger import initial
from ..ledgers import Ledgers
from ..ports import Clock, EventLog, SequenceConflict
from ..stage import Access, Stage, Subscription
from ..subjects import Stream
from .announcements import ANNOUNCED, Announcements
from .entities import UNTOLD, Entities

ACCESS: Final = Access(appends=(Planned, Admitted, Skipped, Refused, *ANNOUNCED), reads=(Stream.LEDGER, Stream.LOG))


def planner(log: EventLog, clock: Clock, executions: Entities[Execution] | None = None) -> Stage:
    """Time and triggers become executions; ids made from facts make that idempotent.

    `executions`: what the stages of this process remember, so that who decides next on what was planned needs not read it.
    """
    it = Planner(log, clock, executions)
    time = (subjects.every("ledger.due"), subjects.every("ledger.passed"))
    return Stage(
        "planner",
        (
            Subscription("planner", Stream.LEDGER, time, it.on_time),
            Subscription(
                "planner-triggers", Stream.LEDGER, (subjects.every("trigger"),), it.on_trigger, in_order_by=None
            ),
        ),
        access=ACCESS,
    )


class Planner:
    """The planner's handlers."""

    def __init__(self, log: EventLog, clock: Clock, executions: Entities[Execution] | None) -> None:
        self._log = log
        self._executions = executions
        self._ledgers = Ledgers(log)
        self._announcements = Announcements(log, clock)

    async def on_time(self, recorded: Recorded[Message]) -> None:
        """An instant came."""
        fact = recorded.message
        if not isinstance(fact, Due | Passed):
            return
        definition = await self._ledgers.definition(fact.definition)
        if isinstance(fact, Due):
            await self._plan(planning.from_due(fact, definition))
        for skipped in planning.skips_of(fact, definition):
            await self._plan(skipped)

    async def on_trigger(self, recorded: Recorded[Message]) -> None:
        """Somebody asked for a run."""
        trigger, job = recorded.message, subjects.job_of(recorded.subject)
        if not isinstance(trigger, Trigger):
            return
        asked = Recorded(trigger, recorded.subject, recorded.sequence, recorded.time, recorded.message_id)
        ledger, known = await self._ledgers.load(job) if job != subjects.ANY else (initial, 0)
        definition, regime = ledger.definition, ledger.current
        if definition is None or regime is None:
            if job != subjects.ANY and await self._log.tail(subjects.ledger(job)) != known:
                raise SequenceConflict(f"{job}: a replica that lags was read")
            await self._refuse(asked, job, f"no job is called {job!r}")
            return
        try:
            check_input(definition, planning.input_of(trigger, definition), trigger.args)
        except DefinitionError as error:
            await self._refuse(asked, job, str(error))
            return
        await self._plan(planning.from_trigger(asked, definition, regime.definition))

    async def _plan(self, first: Planned | Admitted | Skipped) -> None:
        """Store the first fact of an execution, and say what the public is to hear of it."""
        decided: Message = first
        try:
            sequence = await self._log.append(first, expect=0)
        except SequenceConflict:
            before = await self._log.load(subjects.scope_of(first))
            if not before:
                raise
            # A trigger that comes again may find another definition in force. What was decided the first time stands.
            decided, sequence = before[0].message, before[0].sequence
        else:
            if self._executions is not None:
                recorded: Recorded[Message] = Recorded(first, subjects.subject_of(first), sequence, UNTOLD)
                self._executions.learn(subjects.scope_of(first), recorded, after=0)
        await self._announcements.decided(decided, after=sequence)

    async def _refuse(self, trigger: Recorded[Trigger], job: str, reason: str) -> None:
        before = subjects.execution(job, planning.execution_id_of(trigger, job))
        if await self._log.last(before) is not None:
            return  # it was planned, by a definition that is not in force any more
        body = trigger.message.encode()
        fact = Refused.of(job, "planner-triggers", trigger.subject, trigger.sequence, body, reason)
        try:
            await self._log.append(fact, expect=0)
        except SequenceConflict:
            return  # recorded before
