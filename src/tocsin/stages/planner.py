"""Planner: plans an execution for every due instant, trigger, enqueued job and replay.

A trigger or replay of a job that does not exist, or with input that the job rejects, becomes a dead letter.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from .. import subjects
from ..domain import execution_plan
from ..domain.definition import DefinitionError, check_input
from ..domain.events import CronMissed, Due, Enqueued, Message, Passed, Recorded, Trigger
from ..engine.execution_writer import BEGINNINGS, plan, refuse_request
from ..engine.kinds import DEFINITION, IN_FORCE
from ..engine.public_events import ANNOUNCED, announce
from ..engine.rerun import SENT_AGAIN, rerun
from ..engine.stage import Access, Stage, Subscription
from ..engine.step import DONE, Events, Ref, States, Step, Then
from ..subjects import REPLAYS, Stream

TRIGGERS: Final = "planner-triggers"
ENQUEUED: Final = "planner-enqueued"


class Planner:
    """Plans executions.

    Their ids are made from the events that request them, so that planning is idempotent.
    """

    def __init__(self, key: bytes) -> None:
        """`key`: the installation's key, for the tasks that it dispatches."""
        self._key = key

    def on_time(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Plan the execution of an instant, or announce instants that passed."""
        fact = recorded.message
        if not isinstance(fact, Due | Passed):
            return DONE
        definition = states(DEFINITION((fact.job, fact.definition)))
        first = [execution_plan.from_due(fact, definition)] if isinstance(fact, Due) else []
        steps = [
            plan(event, states, now, key=self._key)
            for event in (*first, *execution_plan.skipped_instants(fact, definition))
        ]
        if isinstance(fact, Passed):
            steps.append(announce(recorded, states, now, definition=definition))
        return _first_of_each_scope(steps)

    def on_trigger(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Plan the execution that a trigger requests."""
        message, job = recorded.message, subjects.job_of(recorded.subject)
        if not isinstance(message, Trigger):
            return DONE
        trigger = Recorded(message, recorded.subject, recorded.sequence, recorded.time, recorded.message_id)
        in_force = None if job == subjects.ANY else states(IN_FORCE((job, recorded.sequence)))
        if in_force is None:
            return _refuse(trigger, job, f"no job is called {job!r}", states)
        definition, sequence = in_force
        try:
            check_input(definition, execution_plan.input_of(message, definition), message.args)
        except DefinitionError as error:
            return _refuse(trigger, job, str(error), states)
        return plan(execution_plan.from_trigger(trigger, definition, sequence), states, now, key=self._key)

    def on_enqueued(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Plan one execution of a job that is not registered."""
        if not isinstance(recorded.message, Enqueued):
            return DONE
        enqueued = Recorded(recorded.message, recorded.subject, recorded.sequence, recorded.time)
        return plan(execution_plan.from_enqueued(enqueued), states, now, key=self._key)

    def on_replayed(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Run a dead letter again."""
        return rerun(recorded, states, now, key=self._key)


def _first_of_each_scope(steps: Sequence[Step]) -> Step:
    """Join steps that write independently; where several write to one scope, the later wait for the next wave."""
    changes: dict[Ref[Any], Events] = {}
    is_last = True
    for step in steps:
        for change in step.changes:
            if isinstance(change, Events) and change.ref not in changes:
                changes[change.ref] = change
                is_last = is_last and step.then is Then.DONE
            else:
                is_last = False
    return Step(tuple(changes.values()), Then.DONE if is_last else Then.AGAIN)


def _refuse(trigger: Recorded[Trigger], job: str, reason: str, states: States) -> Step:
    execution_id = execution_plan.execution_id_of(trigger, job)
    return refuse_request(reason, states, job=job, execution_id=execution_id)


PLANNER: Final = Stage(
    name="planner",
    purpose="makes executions",
    consumes="`due`, `passed`, triggers, enqueued jobs, replays",
    decides="`planned`, or `admitted` or the first task at once for jobs without a lock",
    access=Access(appends=(*BEGINNINGS, *SENT_AGAIN, *ANNOUNCED, CronMissed), reads=(Stream.LEDGER, Stream.LOG)),
    start=lambda context: Planner(context.report_key),
    subscriptions=(
        Subscription(
            "planner",
            Stream.LEDGER,
            (subjects.filter_for("ledger.due"), subjects.filter_for("ledger.passed")),
            decide=Planner.on_time,
        ),
        Subscription(
            TRIGGERS, Stream.LEDGER, (subjects.filter_for("trigger"),), decide=Planner.on_trigger, ordering_key=None
        ),
        Subscription(REPLAYS, Stream.LOG, (subjects.filter_for("dead-letter.replayed"),), decide=Planner.on_replayed),
        Subscription(
            ENQUEUED, Stream.LEDGER, (subjects.filter_for("enqueue"),), decide=Planner.on_enqueued, ordering_key=None
        ),
    ),
)
