"""Planner: makes an execution of every due instant, of every trigger, of every job that is enqueued, and of every replay.

consumes  due, passed, trigger, enqueued, replayed
folds     the job's ledger, for its definition; the dead letter that is replayed
appends   planned, or admitted where no lock is asked; skipped for instants that passed in public; dead letters for triggers
          and replays of jobs that do not exist, or with input that the job refuses
"""

from collections.abc import Sequence
from typing import Final

from .. import subjects
from ..domain import execution_plan
from ..domain.definition import DefinitionError, check_input
from ..domain.events import CronMissed, Due, Enqueued, Message, Passed, Recorded, Trigger
from ..domain.execution import Execution
from ..engine.execution_writer import BEGINNINGS, ExecutionWriter
from ..engine.ledger_reader import LedgerReader
from ..engine.public_events import ANNOUNCED, PublicEvents
from ..engine.rerun import SENT_AGAIN, Reruns
from ..engine.stage import Access, Stage, Subscription
from ..engine.state_cache import StateCache
from ..ports import Clock, EventLog
from ..subjects import REPLAYS, Stream

TRIGGERS: Final = "planner-triggers"
ENQUEUED: Final = "planner-enqueued"
ACCESS: Final = Access(appends=(*BEGINNINGS, *SENT_AGAIN, *ANNOUNCED, CronMissed), reads=(Stream.LEDGER, Stream.LOG))


def planner(log: EventLog, clock: Clock, executions: StateCache[Execution] | None = None) -> Stage:
    """Time, triggers and replays become executions; ids made from facts make that idempotent.

    `executions`: what the stages of this process remember, so that who decides next on what was planned needs not read it.
    """
    it = Planner(log, clock, executions)
    time = (subjects.filter_for("ledger.due"), subjects.filter_for("ledger.passed"))
    replayed = (subjects.filter_for("dead-letter.replayed"),)
    return Stage(
        "planner",
        (
            Subscription("planner", Stream.LEDGER, time, it.on_time, prepare=it.before_time),
            Subscription(TRIGGERS, Stream.LEDGER, (subjects.filter_for("trigger"),), it.on_trigger, ordering_key=None),
            Subscription(REPLAYS, Stream.LOG, replayed, it.replays.on_replayed),
            Subscription(ENQUEUED, Stream.LEDGER, (subjects.filter_for("enqueue"),), it.on_enqueued, ordering_key=None),
        ),
        access=ACCESS,
    )


class Planner:
    """The planner's handlers."""

    def __init__(self, log: EventLog, clock: Clock, executions: StateCache[Execution] | None) -> None:
        self._log = log
        self._ledgers = LedgerReader(log)
        self._announcements = PublicEvents(log, clock)
        self._beginnings = ExecutionWriter(log, self._announcements, executions)
        self.replays = Reruns(log, self._ledgers, self._beginnings)

    async def before_time(self, several: Sequence[Recorded[Message]]) -> None:
        """Read the definitions that are not remembered, for all instants that came at once."""
        await self._ledgers.recall(
            {t.definition: t.job for t in (one.message for one in several) if isinstance(t, Due | Passed)}
        )

    async def on_time(self, recorded: Recorded[Message]) -> None:
        """An instant came."""
        fact = recorded.message
        if not isinstance(fact, Due | Passed):
            return
        definition = await self._ledgers.definition(fact.definition)
        if isinstance(fact, Due):
            await self._beginnings.plan(execution_plan.from_due(fact, definition))
        else:
            await self._announcements.missed(fact, definition)
        for skipped in execution_plan.skipped_instants(fact, definition):
            await self._beginnings.plan(skipped)

    async def on_trigger(self, recorded: Recorded[Message]) -> None:
        """Somebody asked for a run."""
        trigger, job = recorded.message, subjects.job_of(recorded.subject)
        if not isinstance(trigger, Trigger):
            return
        asked = Recorded(trigger, recorded.subject, recorded.sequence, recorded.time, recorded.message_id)
        found = await self._ledgers.in_force(job, at=recorded.sequence)
        if found is None:
            await self._refuse(asked, job, f"no job is called {job!r}")
            return
        definition, sequence = found
        try:
            check_input(definition, execution_plan.input_of(trigger, definition), trigger.args)
        except DefinitionError as error:
            await self._refuse(asked, job, str(error))
            return
        await self._beginnings.plan(execution_plan.from_trigger(asked, definition, sequence))

    async def on_enqueued(self, recorded: Recorded[Message]) -> None:
        """Somebody wants a job to be run once that is registered nowhere."""
        if isinstance(recorded.message, Enqueued):
            asked = Recorded(recorded.message, recorded.subject, recorded.sequence, recorded.time)
            await self._beginnings.plan(execution_plan.from_enqueued(asked))

    async def _refuse(self, asked: Recorded[Trigger], job: str, reason: str) -> None:
        execution_id = execution_plan.execution_id_of(asked, job)
        await self._beginnings.refuse(asked, reason, job=job, durable=TRIGGERS, execution_id=execution_id)
