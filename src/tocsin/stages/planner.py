"""Planner: plans an execution for every due instant, trigger, enqueued job and replay.

A trigger or replay of a job that does not exist, or with input that the job rejects, becomes a dead letter.
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


class Planner:
    """Plans executions.

    Their ids are made from the events that request them, so that planning is idempotent.
    """

    def __init__(self, log: EventLog, clock: Clock, executions: StateCache[Execution] | None = None) -> None:
        """`executions`: the cache that the stages of this process share."""
        self._log = log
        self._ledgers = LedgerReader(log)
        self._public_events = PublicEvents(log, clock)
        self._writer = ExecutionWriter(log, self._public_events, executions)
        self._reruns = Reruns(log, self._ledgers, self._writer)

    async def before_time(self, batch: Sequence[Recorded[Message]]) -> None:
        """Read in one request the definitions that are not cached."""
        decisions = (recorded.message for recorded in batch)
        await self._ledgers.recall({d.definition: d.job for d in decisions if isinstance(d, Due | Passed)})

    async def on_time(self, recorded: Recorded[Message]) -> None:
        """Plan the execution of an instant, or announce instants that passed."""
        fact = recorded.message
        if not isinstance(fact, Due | Passed):
            return
        definition = await self._ledgers.definition(fact.definition)
        if isinstance(fact, Due):
            await self._writer.plan(execution_plan.from_due(fact, definition))
        else:
            await self._public_events.announce(fact, sequence=recorded.sequence, definition=definition)
        for skipped in execution_plan.skipped_instants(fact, definition):
            await self._writer.plan(skipped)

    async def on_trigger(self, recorded: Recorded[Message]) -> None:
        """Plan the execution that a trigger requests."""
        message, job = recorded.message, subjects.job_of(recorded.subject)
        if not isinstance(message, Trigger):
            return
        trigger = Recorded(message, recorded.subject, recorded.sequence, recorded.time, recorded.message_id)
        in_force = await self._ledgers.in_force(job, at=recorded.sequence)
        if in_force is None:
            await self._refuse(trigger, job, f"no job is called {job!r}")
            return
        definition, sequence = in_force
        try:
            check_input(definition, execution_plan.input_of(message, definition), message.args)
        except DefinitionError as error:
            await self._refuse(trigger, job, str(error))
            return
        await self._writer.plan(execution_plan.from_trigger(trigger, definition, sequence))

    async def on_enqueued(self, recorded: Recorded[Message]) -> None:
        """Plan one execution of a job that is not registered."""
        if isinstance(recorded.message, Enqueued):
            enqueued = Recorded(recorded.message, recorded.subject, recorded.sequence, recorded.time)
            await self._writer.plan(execution_plan.from_enqueued(enqueued))

    async def on_replayed(self, recorded: Recorded[Message]) -> None:
        """Run a dead letter again."""
        await self._reruns.on_replayed(recorded)

    async def _refuse(self, trigger: Recorded[Trigger], job: str, reason: str) -> None:
        execution_id = execution_plan.execution_id_of(trigger, job)
        await self._writer.refuse(trigger, reason, job=job, durable=TRIGGERS, execution_id=execution_id)


PLANNER: Final = Stage(
    name="planner",
    purpose="makes executions",
    consumes="`due`, `passed`, triggers, enqueued jobs, replays",
    decides="`planned`, or `admitted` at once for jobs without a lock",
    access=Access(appends=(*BEGINNINGS, *SENT_AGAIN, *ANNOUNCED, CronMissed), reads=(Stream.LEDGER, Stream.LOG)),
    start=lambda context: Planner(context.log, context.clock, context.executions),
    subscriptions=(
        Subscription(
            "planner",
            Stream.LEDGER,
            (subjects.filter_for("ledger.due"), subjects.filter_for("ledger.passed")),
            Planner.on_time,
            prepare=Planner.before_time,
        ),
        Subscription(TRIGGERS, Stream.LEDGER, (subjects.filter_for("trigger"),), Planner.on_trigger, ordering_key=None),
        Subscription(REPLAYS, Stream.LOG, (subjects.filter_for("dead-letter.replayed"),), Planner.on_replayed),
        Subscription(
            ENQUEUED, Stream.LEDGER, (subjects.filter_for("enqueue"),), Planner.on_enqueued, ordering_key=None
        ),
    ),
)
