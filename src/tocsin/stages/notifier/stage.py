"""Notifier: raises notifications of what happened to jobs, and sends them.

What is raised is a decision on an event of the log, as in every stage, by the rule of the definition under which the execution ran. What
is sent is the work of one leader (`sender`).
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from ... import subjects
from ...domain.definition import JobDefinition
from ...domain.events import (
    Completed,
    CronMissed,
    Failed,
    Message,
    NotificationAbandoned,
    NotificationAttemptFailed,
    NotificationDelivered,
    NotificationPrepared,
    NotificationRaised,
    NotificationSilenced,
    OutcomeChanged,
    Recorded,
    Released,
    Requested,
    RetryScheduled,
    Skipped,
    admission_of,
)
from ...domain.notification_rule import (
    ALARMING_DEATHS,
    Default,
    Happening,
    TimeLimit,
    changed_outcome,
    deaths_of,
    notifications,
    of_failure,
    of_limit,
    of_lost_workers,
    of_misses,
    of_recovery,
    of_skip,
    rule_of,
    time_limits,
)
from ...engine.kinds import DEFINITION, IN_FORCE, PUBLIC_EVENT, execution_state
from ...engine.leader_election import lease_access
from ...engine.stage import Access, Stage, StageContext, Subscription
from ...engine.step import DONE, Change, Events, Scope, States, Step, Then, again, done
from ...subjects import COMPLETIONS, NOTIFIER_LEASE, OPENINGS, Bucket, Stream, filter_for, filters_of
from .sender import CURSOR, LEASE_S, Sender

FIRST_LOOK: Final = timedelta(seconds=5)
"""The time after which an execution that may be late is looked at again first."""


NOTIFICATION: Final[Scope[Message | None]] = Scope("notification", None, PUBLIC_EVENT.evolve)
"""The newest event of a notification."""
OUTCOME: Final[Scope[Message | None]] = Scope("outcome of a job", None, PUBLIC_EVENT.evolve)
"""The newest outcome of a job."""


class Notifier:
    """Raises notifications, and sends them."""

    def __init__(self, defaults: Sequence[Default], sender: Sender) -> None:
        """`defaults`: rules for jobs without a rule of their own."""
        self._defaults = defaults
        self.sender = sender

    @classmethod
    def of(cls, context: StageContext) -> "Notifier":
        settings = context.settings.notifications
        sender = Sender(
            context.log,
            context.projections,
            context.elect(NOTIFIER_LEASE, ttl=LEASE_S),
            context.clock,
            context.channels,
            window=settings.group_window,
            public_url=context.settings.linked_pages,
        )
        return cls(settings.defaults, sender)

    def on_event(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - the log's time counts
        """Raise the notifications of an event."""
        match recorded.message:
            case Failed() | Completed() as end:
                return self._on_end(end, recorded, states)
            case Skipped() as skip if skip.definition:
                definition = states(DEFINITION((skip.job, skip.definition)))
                rule = rule_of(definition, self._defaults)
                if rule is None or (happening := of_skip(skip, recorded.time)) is None:
                    return DONE
                return self._raise(happening, definition, states)
            case CronMissed() as missed:
                in_force = states(IN_FORCE((missed.data.cron_name, None)))
                return DONE if in_force is None else self._raise(of_misses(missed), in_force[0], states)
            case Released() | RetryScheduled() as fact if len(deaths_of(fact)) == ALARMING_DEATHS:
                return self._on_lost_worker(fact, recorded, states)
            case _:
                return DONE

    def _on_end(self, end: Failed | Completed, recorded: Recorded[Message], states: States) -> Step:
        requested = states(execution_state(end.job, end.execution_id)).requested
        if requested is None or not requested.plan.definition:
            return DONE  # a job that is not registered has no rule
        definition = states(DEFINITION((end.job, requested.plan.definition)))
        rule = rule_of(definition, self._defaults)
        if rule is None:
            return DONE
        if not rule.on_recovery:
            return self._raise(of_failure(end, recorded.time), definition, states) if isinstance(end, Failed) else DONE
        ref = OUTCOME(subjects.outcome(end.job))
        stored = states(ref)
        before = stored if isinstance(stored, OutcomeChanged) else None
        change = changed_outcome(before, end, recorded)
        if isinstance(end, Failed):
            step = self._raise(of_failure(end, recorded.time), definition, states)
        elif before is not None and change is not None:
            step = self._raise(of_recovery(end, recorded.time, before.execution_id), definition, states)
        else:
            return DONE
        if step.changes:
            return again(*step.changes)  # the outcome changes after its notifications exist
        return DONE if change is None else done(Events(ref, (change,)))

    def _on_lost_worker(self, fact: Released | RetryScheduled, recorded: Recorded[Message], states: States) -> Step:
        state = states(execution_state(fact.job, fact.execution_id))
        if state.requested is None or not state.requested.plan.definition:
            return DONE
        happening = of_lost_workers(fact, recorded.time, state)
        definition = states(DEFINITION((fact.job, state.requested.plan.definition)))
        return DONE if happening is None else self._raise(happening, definition, states)

    def _raise(self, happening: Happening, definition: JobDefinition, states: States) -> Step:
        """Raise the notifications that do not exist yet."""
        rule = rule_of(definition, self._defaults)
        if rule is None:
            return DONE
        facts = notifications(happening, rule, definition.tags)
        raised = [(NOTIFICATION(subjects.notification(fact.job, fact.id)), fact) for fact in facts]
        return done(*(Events(ref, (fact,)) for ref, fact in raised if states(ref) is None))

    def on_opening(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Look at an execution or an instant until nothing can be late any more."""
        found = self._limits(recorded, states)
        if found is None:
            return DONE
        definition, limits = found
        changes, waits = list[Change](), list[datetime]()
        for limit in limits:
            happening = of_limit(limit, states(execution_state(limit.job, limit.execution_id)))
            if happening is not None and limit.until > now:
                waits.append(limit.until)
            elif happening is not None:
                changes += self._raise(happening, definition, states).changes
        if not waits:
            return done(*changes)
        # The pauses double, so that an execution that ended soon is soon forgotten.
        pause = min(min(waits) - now, max(now - recorded.time, FIRST_LOOK))
        return Step(tuple(changes), Then.WAIT, delay=pause.total_seconds())

    def _limits(self, recorded: Recorded[Message], states: States) -> tuple[JobDefinition, list[TimeLimit]] | None:
        """Return the times of an execution or an instant, and the definition with their rule."""
        admission = admission_of(recorded)
        opening = recorded.message if admission is None else admission.message
        match opening:
            case Requested() if opening.plan.definition:
                definition = states(DEFINITION((opening.job, opening.plan.definition)))
            case Skipped() if opening.definition:
                definition = states(DEFINITION((opening.job, opening.definition)))
            case CronMissed() if in_force := states(IN_FORCE((opening.data.cron_name, recorded.sequence))):
                definition, _ = in_force
            case _:
                return None
        if (rule := rule_of(definition, self._defaults)) is None:
            return None
        return definition, [*time_limits(rule, opening, recorded.time, definition.timezone)]


NOTIFIER: Final = Stage(
    name="notifier",
    purpose="notifies people by channels",
    consumes="beginnings and ends of executions, retries, released claims, missed instants; silences",
    decides="notifications and their delivery: `raised`, `prepared`, `delivered`, `attempt-failed`, `abandoned`, `silenced`",
    access=Access(
        appends=(
            *(NotificationRaised, NotificationPrepared, NotificationDelivered),
            *(NotificationAttemptFailed, NotificationAbandoned, NotificationSilenced, OutcomeChanged),
        ),
        reads=(Stream.NOTIFICATIONS,),
        follows=(Stream.NOTIFICATIONS,),
        writes=(*lease_access(NOTIFIER_LEASE), (Bucket.CURSORS, CURSOR)),
        alerts=True,
    ),
    start=Notifier.of,
    subscriptions=(
        Subscription(
            subjects.NOTIFIER,
            Stream.LOG,
            (
                *(filter_for("execution.failed"), filter_for("execution.skipped"), *COMPLETIONS),
                *(*filters_of(Released), *filters_of(RetryScheduled), *filters_of(CronMissed)),
            ),
            decide=Notifier.on_event,
            ordering_key=subjects.job_of,
        ),
        Subscription(
            subjects.NOTIFIER_OPENINGS,
            Stream.LOG,
            (*OPENINGS, filter_for("execution.skipped"), *filters_of(CronMissed)),
            decide=Notifier.on_opening,
        ),
    ),
    loops=(
        lambda notifier: notifier.sender.leadership.run(),
        lambda notifier: notifier.sender.follow(),
        lambda notifier: notifier.sender.follow_silences(),
        lambda notifier: notifier.sender.run(),
        lambda notifier: notifier.sender.tick(),
        lambda notifier: notifier.sender.trim(),
    ),
    is_installed=lambda settings: bool(settings.notifications.channels),
    needs="`notifications.channels`",
)
