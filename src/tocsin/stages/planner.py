"""Planner: plans an execution for every due instant, trigger, enqueued job and replay.

A trigger or replay of a job that does not exist, or with input that the job rejects, becomes a dead letter.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Final

from .. import subjects
from ..domain import execution_plan, ids
from ..domain.definition import DefinitionError, JobDefinition, check_input, is_name
from ..domain.events import (
    Acquired,
    Cancelled,
    CronMissed,
    Due,
    Enqueued,
    EventIgnored,
    KeyTaken,
    Message,
    Passed,
    PoisonMessage,
    Recorded,
    Skipped,
    Trigger,
)
from ..domain.ledger import JobNotFound
from ..domain.trace_context import Sampling
from ..engine.daily_quotas import within_quota
from ..engine.fan_out import begin_divided, finish_fan_out
from ..engine.kinds import DEFINITION, IN_FORCE, execution_state
from ..engine.locks import Beginning, begin
from ..engine.public_events import ANNOUNCED, BEGINNINGS, announce, answer_to_refused, skip_instants, skip_trigger
from ..engine.rerun import rerun
from ..engine.stage import Access, Stage, Subscription
from ..engine.step import DONE, Events, Send, States, Step, Then, done, refuse
from ..engine.unique_keys import begin_unique
from ..subjects import ENQUEUED, PUBLIC_TRIGGERS, REPLAYS, TRIGGERS, Bucket, Stream


class Planner:
    """Plans executions.

    Their ids are made from the events that request them, so that planning is idempotent. An execution whose lock is free
    acquires it here.
    """

    def __init__(self, key: bytes, sampling: Sampling | None = None) -> None:
        """`key` signs the first task of an execution.

        `sampling` decides on traces; None: none are made.
        """
        self._key = key
        self._sampling = sampling

    def on_time(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Plan the execution of an instant, or announce instants that passed."""
        fact = recorded.message
        if not isinstance(fact, Due | Passed):
            return DONE
        definition, at = states(DEFINITION((fact.job, fact.definition))), self._at(states, now)
        if isinstance(fact, Due) and not fact.dst_skip:
            return self._begin_due(fact, recorded.time, definition, at)
        steps = [self._begin_due(fact, recorded.time, definition, at)] if isinstance(fact, Due) else []
        if skips := execution_plan.skipped_instants(fact, definition):
            steps.append(skip_instants([execution_plan.traced(s, self._sampling) for s in skips], states, now))
        if isinstance(fact, Passed):
            steps.append(announce(recorded, states, now, definition=definition))
        return _first_of_each_scope(steps)

    def _at(self, states: States, now: datetime) -> Beginning:
        return Beginning(states, now, self._key, self._sampling)

    def _begin_due(self, due: Due, time: datetime, definition: JobDefinition, at: Beginning) -> Step:
        if definition.partition is None:
            first = execution_plan.from_due(due, definition, time)
            return begin(within_quota(first, at.states, at.now), at)
        return begin_divided(
            lambda rule, _: execution_plan.from_due(due, rule, time), definition, due.definition, at, version=due.shards
        )

    def on_trigger(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Plan the execution that a trigger requests."""
        message, job = recorded.message, subjects.job_of(recorded.subject)
        if not isinstance(message, Trigger):
            return DONE
        trigger = Recorded(message, recorded.subject, recorded.sequence, recorded.time, recorded.message_id)
        publisher = subjects.publisher_of(recorded.subject)
        if not is_name(job):
            return refuse(str(JobNotFound(job)), code=JobNotFound.code, job=job)
        step = self._decide_trigger(trigger, job, publisher, states, now)
        if step.changes or step.then is not Then.DONE:
            return step
        ref = execution_state(job, execution_plan.execution_id_of(trigger, job, publisher))
        state = states(ref)
        if state.is_fanned_out:  # perhaps in an earlier commit, by a definition that is not in force any more
            make = partial(execution_plan.from_trigger, trigger, publisher=publisher)
            return finish_fan_out(make, ref, self._at(states, now))
        if (ignored := execution_plan.duplicate_of(state.requested, message, job)) is None:
            return step
        event = ignored.event
        message_id = ids.ignored_event_id(self._key, ignored.trigger_id, event.stream, event.sequence, event.time)
        return done(Send(subjects.subject_of(ignored), ignored, message_id))

    def _decide_trigger(
        self, trigger: Recorded[Trigger], job: str, publisher: str | None, states: States, now: datetime
    ) -> Step:
        message = trigger.message
        in_force = states(IN_FORCE((job, None)))
        if in_force is None:
            return self._skip(execution_plan.refused(trigger, job, JobNotFound(job), publisher), states, now)
        definition, sequence = in_force
        # The job's own input was checked with its definition, without a schedule in part.
        is_checked = definition.schedule is not None or definition.input_schema is None
        try:
            if publisher is not None:
                execution_plan.check_public_priority(message, definition)
            else:
                execution_plan.check_event(message)
            if not is_checked or message.input or message.args is not None or definition.partition is not None:
                check_input(definition, message.input or {}, message.args)
        except (DefinitionError, execution_plan.EventRefused) as error:
            return self._skip(execution_plan.refused(trigger, job, error, publisher), states, now)
        if definition.partition is not None:
            make = partial(execution_plan.from_trigger, trigger, publisher=publisher)
            return begin_divided(make, definition, sequence, self._at(states, now))
        first = execution_plan.from_trigger(trigger, definition, sequence, publisher)
        return begin(within_quota(first, states, now), self._at(states, now))

    def on_enqueued(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Plan one execution of a job that is not registered."""
        if not isinstance(recorded.message, Enqueued):
            return DONE
        enqueued = Recorded(recorded.message, recorded.subject, recorded.sequence, recorded.time)
        first, rule = execution_plan.from_enqueued(enqueued), enqueued.message.unique
        if rule is not None:
            return begin_unique(first, rule, enqueued.time, self._at(states, now))
        # The API has accepted the job, and so it runs. Beyond a quota the API accepts none.
        return begin(first, self._at(states, now))

    def on_refused(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Answer a trigger, or a request of a program outside, that became a dead letter."""
        letter = recorded.message
        if not isinstance(letter, PoisonMessage):
            return DONE
        answer = answer_to_refused(letter, recorded, states, now)
        return DONE if answer is None else done(answer)

    def on_replayed(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Run a dead letter again."""
        return rerun(recorded, self._at(states, now))

    def _skip(self, refused: Skipped, states: States, now: datetime) -> Step:
        return skip_trigger(execution_plan.traced(refused, self._sampling), states, now)


def _first_of_each_scope(steps: Sequence[Step]) -> Step:
    """Join steps that write independently.

    Of several steps on one scope, the later steps are decided again.
    """
    scopes: set[object] = set()
    joined: list[Step] = []
    for step in steps:
        refs = {change.ref for change in step.changes if isinstance(change, Events)}
        if scopes.isdisjoint(refs):
            scopes |= refs
            joined.append(step)
    is_last = len(joined) == len(steps) and all(step.then is Then.DONE for step in joined)
    return Step(
        tuple(change for step in joined for change in step.changes),
        Then.DONE if is_last else Then.AGAIN,
        signals=tuple(signal for step in joined for signal in step.signals),
    )


PLANNER: Final = Stage(
    name="planner",
    purpose="makes executions",
    consumes="`due`, `passed`, triggers, enqueued jobs, replays, refused triggers",
    decides="`acquired`, and `dispatched` or `admitted`, if the lock is free or not needed, else `planned`; `fanned-out` before executions on several shards; "
    "`taken` before a unique job, and `cancelled` of the jobs that it replaces",
    access=Access(
        appends=(*BEGINNINGS, Acquired, KeyTaken, Cancelled, *ANNOUNCED, CronMissed, EventIgnored),
        writes=((Bucket.QUEUES, subjects.daily_use_key("*")),),
    ),
    start=lambda context: Planner(context.report_key, context.sampling),
    subscriptions=(
        Subscription(
            subjects.PLANNER,
            Stream.LEDGER,
            (subjects.filter_for("ledger.due"), subjects.filter_for("ledger.passed")),
            decide=Planner.on_time,
        ),
        Subscription(
            TRIGGERS,
            Stream.REQUESTS,
            (subjects.filter_for("trigger"),),
            decide=Planner.on_trigger,
        ),
        Subscription(
            REPLAYS,
            Stream.LOG,
            (subjects.filter_for("dead-letter.replayed"),),
            decide=Planner.on_replayed,
        ),
        Subscription(
            "planner-refused", Stream.LOG, (subjects.filter_for("dead-letter.refused"),), decide=Planner.on_refused
        ),
        Subscription(
            ENQUEUED,
            Stream.REQUESTS,
            (subjects.filter_for("enqueue"),),
            decide=Planner.on_enqueued,
        ),
        Subscription(
            PUBLIC_TRIGGERS,
            Stream.INPUTS,
            subjects.PUBLIC_TRIGGER_FILTERS,
            decide=Planner.on_trigger,
        ),
    ),
)
