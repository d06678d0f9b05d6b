"""Planner: makes an execution of every due instant and of every trigger.

consumes  due, passed, trigger
appends   planned, or admitted where no lock is asked; skipped for instants that passed in public; dead letters for triggers
          of jobs that do not exist or with input that the job refuses
"""

from .. import subjects
from ..domain import planning
from ..domain.definition import DefinitionError, check_input
from ..domain.events import Admitted, Due, Message, Passed, Planned, Recorded, Refused, Skipped, Trigger
from ..ledgers import Ledgers
from ..ports import Clock, EventLog, SequenceConflict
from ..subjects import Stream
from .announcements import Announcements
from .stage import Stage, Subscription


def planner(log: EventLog, clock: Clock) -> Stage:
    """Time and triggers become executions; ids made from facts make that idempotent."""
    ledgers = Ledgers(log)
    announcements = Announcements(log, clock)

    async def on_time(recorded: Recorded[Message]) -> None:
        match recorded.message:
            case Due() as due:
                await plan(planning.from_due(due, await ledgers.definition(due.definition)))
            case Passed() as passed:
                for skipped in planning.from_passed(passed, await ledgers.definition(passed.definition)):
                    await plan(skipped)

    async def on_trigger(recorded: Recorded[Message]) -> None:
        trigger, job = recorded.message, subjects.job_of(recorded.subject)
        if not isinstance(trigger, Trigger):
            return
        ledger, _ = await ledgers.load(job)
        if ledger.definition is None or ledger.current is None:
            await refuse(recorded, job, f"no job is called {job!r}")
            return
        try:
            check_input(ledger.definition, planning.input_of(trigger, ledger.definition), trigger.args)
        except DefinitionError as error:
            await refuse(recorded, job, str(error))
            return
        asked = Recorded(trigger, recorded.subject, recorded.sequence, recorded.time, recorded.message_id)
        await plan(planning.from_trigger(asked, ledger.definition, ledger.current.definition))

    async def plan(first: Planned | Admitted | Skipped) -> None:
        await announcements.decided(first, after=await store(first))

    async def store(first: Planned | Admitted | Skipped) -> int:
        """The sequence of the first fact of an execution: as stored now, or as it was before."""
        try:
            return await log.append(first, expect=0)
        except SequenceConflict:
            stored = await log.last(subjects.subject_of(first))
            if stored is None:
                raise
            return stored.sequence

    async def refuse(recorded: Recorded[Message], job: str, reason: str) -> None:
        fact = Refused(
            job=job,
            id=f"planner-{recorded.sequence}",
            reason=reason,
            durable="planner",
            subject=recorded.subject,
            sequence=recorded.sequence,
            body=recorded.message.model_dump_json(exclude_none=True),
        )
        try:
            await log.append(fact, expect=0)
        except SequenceConflict:
            return  # recorded before

    return Stage(
        "planner",
        (
            Subscription("planner", Stream.LEDGER, (subjects.every("ledger.due"), subjects.every("ledger.passed")), on_time),
            Subscription("planner-triggers", Stream.LEDGER, (subjects.every("trigger"),), on_trigger, in_order_by=None),
        ),
    )
