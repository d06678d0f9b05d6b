"""Planner: makes an execution of every due instant and of every trigger.

consumes  due, passed, trigger
folds     the job's ledger, for its definition
appends   planned, or admitted where no lock is asked; skipped for instants that passed in public; dead letters for triggers
          of jobs that do not exist, or with input that the job refuses
"""

from .. import subjects
from ..domain import planning
from ..domain.definition import DefinitionError, check_input
from ..domain.events import Admitted, Due, Message, Passed, Planned, Recorded, Refused, Skipped, Trigger
from ..ledgers import Ledgers
from ..ports import Clock, EventLog, SequenceConflict
from ..stage import Stage, Subscription
from ..subjects import Stream
from .announcements import Announcements


def planner(log: EventLog, clock: Clock) -> Stage:
    """Time and triggers become executions; ids made from facts make that idempotent."""
    it = Planner(log, clock)
    time = (subjects.every("ledger.due"), subjects.every("ledger.passed"))
    return Stage(
        "planner",
        (
            Subscription("planner", Stream.LEDGER, time, it.on_time),
            Subscription(
                "planner-triggers", Stream.LEDGER, (subjects.every("trigger"),), it.on_trigger, in_order_by=None
            ),
        ),
    )


class Planner:
    """The planner's handlers."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self._log = log
        self._ledgers = Ledgers(log)
        self._announcements = Announcements(log, clock)

    async def on_time(self, recorded: Recorded[Message]) -> None:
        """An instant came."""
        match recorded.message:
            case Due() as due:
                await self._plan(planning.from_due(due, await self._ledgers.definition(due.definition)))
            case Passed() as passed:
                definition = await self._ledgers.definition(passed.definition)
                for skipped in planning.from_passed(passed, definition):
                    await self._plan(skipped)

    async def on_trigger(self, recorded: Recorded[Message]) -> None:
        """Somebody asked for a run."""
        trigger, job = recorded.message, subjects.job_of(recorded.subject)
        if not isinstance(trigger, Trigger):
            return
        ledger, _ = await self._ledgers.load(job)
        definition, regime = ledger.definition, ledger.current
        if definition is None or regime is None:
            await self._refuse(recorded, job, f"no job is called {job!r}")
            return
        try:
            check_input(definition, planning.input_of(trigger, definition), trigger.args)
        except DefinitionError as error:
            await self._refuse(recorded, job, str(error))
            return
        asked = Recorded(trigger, recorded.subject, recorded.sequence, recorded.time, recorded.message_id)
        await self._plan(planning.from_trigger(asked, definition, regime.definition))

    async def _plan(self, first: Planned | Admitted | Skipped) -> None:
        await self._announcements.decided(first, after=await self._store(first))

    async def _store(self, first: Planned | Admitted | Skipped) -> int:
        """The sequence of the first fact of an execution: as stored now, or as it was before."""
        try:
            return await self._log.append(first, expect=0)
        except SequenceConflict:
            stored = await self._log.last(subjects.subject_of(first))
            if stored is None:
                raise
            return stored.sequence

    async def _refuse(self, recorded: Recorded[Message], job: str, reason: str) -> None:
        body = recorded.message.encode()
        fact = Refused.of(job, "planner-triggers", recorded.subject, recorded.sequence, body, reason)
        try:
            await self._log.append(fact, expect=0)
        except SequenceConflict:
            return  # recorded before
