"""Notifier: raises notifications of what happened to jobs, and sends them.

What is raised is a decision on an event of the log, as in every stage, by the rule of the definition under which the execution ran. What
is sent is the work of one leader (`sender`).
"""

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
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
    NotifyTimer,
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
    changed_outcome,
    deaths_of,
    miss_timer,
    notifications,
    of_failure,
    of_lost_workers,
    of_misses,
    of_recovery,
    of_skip,
    of_timer,
    rule_of,
    skip_timer,
    timers,
)
from ...engine.kinds import DEFINITION, IN_FORCE, execution_state
from ...engine.leader_election import lease_access
from ...engine.stage import Access, Stage, StageContext, Subscription
from ...engine.step import DONE, Events, Later, Ref, Scope, States, Step, again, done
from ...settings import Settings
from ...subjects import COMPLETIONS, NOTIFIER_LEASE, OPENINGS, Bucket, Stream, filter_for, filters_of
from .sender import CURSOR, LEASE_S, Sender


def _newest(_: Message | None, recorded: Recorded[Message]) -> Message | None:
    return recorded.message


NOTIFICATION: Final[Scope[Message | None]] = Scope("notification", None, _newest)
"""The newest event of a notification."""
OUTCOME: Final[Scope[Message | None]] = Scope("outcome of a job", None, _newest)
"""The newest outcome of a job."""


class Notifier:
    """Raises notifications, and sends them."""

    def __init__(self, defaults: Sequence[Default], sender: Sender) -> None:
        """`defaults`: rules for jobs without a rule of their own."""
        self._defaults = defaults
        self.sender = sender

    @classmethod
    def of(cls, context: StageContext) -> "Notifier":
        """Return the notifier of a process."""
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
                return self._raise(happening, definition, states, skip_timer(rule, skip, definition.timezone))
            case CronMissed() as missed:
                return self._on_missed(missed, states)
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

    def _on_missed(self, missed: CronMissed, states: States) -> Step:
        in_force = states(IN_FORCE((missed.data.cron_name, None)))
        if in_force is None:
            return DONE
        definition, sequence = in_force
        rule = rule_of(definition, self._defaults)
        if rule is None:
            return DONE
        timer = miss_timer(rule, missed, definition.timezone, sequence)
        return self._raise(of_misses(missed), definition, states, timer)

    def _raise(
        self, happening: Happening, definition: JobDefinition, states: States, timer: NotifyTimer | None = None
    ) -> Step:
        """Raise the notifications that do not exist yet, and set a timer."""
        rule = rule_of(definition, self._defaults)
        if rule is None:
            return DONE
        raised = [(_state(fact), fact) for fact in notifications(happening, rule, definition.tags)]
        later = () if timer is None else (Later(timer, timer.until),)
        return done(*(Events(ref, (fact,)) for ref, fact in raised if states(ref) is None), *later)

    def on_opening(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - likewise
        """Set the timers of an execution."""
        admission = admission_of(recorded)
        request = recorded.message if admission is None else admission.message
        if not isinstance(request, Requested) or not request.plan.definition:
            return DONE
        definition = states(DEFINITION((request.job, request.plan.definition)))
        rule = rule_of(definition, self._defaults)
        if rule is None:
            return DONE
        return done(*(Later(timer, timer.until) for timer in timers(rule, request, recorded.time, definition.timezone)))

    def on_timer(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - likewise
        """Look at an execution that should have started or ended."""
        timer = recorded.message
        if not isinstance(timer, NotifyTimer):
            return DONE
        definition = states(DEFINITION((timer.job, timer.definition)))
        happening = of_timer(timer, states(execution_state(timer.job, timer.execution_id)))
        return DONE if happening is None else self._raise(happening, definition, states)


def _state(fact: NotificationRaised) -> Ref[Message | None]:
    return NOTIFICATION(subjects.notification(fact.job, fact.id))


def _of_sender(
    loop: Callable[[Sender], Coroutine[None, None, None]],
) -> Callable[[Notifier], Coroutine[None, None, None]]:
    """Return a loop of the sender as one of the stage."""
    return lambda notifier: loop(notifier.sender)


def _is_installed(settings: Settings) -> bool:
    return bool(settings.notifications.channels)


NOTIFIER: Final = Stage(
    name="notifier",
    purpose="notifies people by channels",
    consumes="beginnings and ends of executions, retries, released claims, missed instants, timers; silences",
    decides="notifications and their delivery: `raised`, `prepared`, `delivered`, `attempt-failed`, `abandoned`, `silenced`; timers",
    access=Access(
        appends=(
            *(NotificationRaised, NotificationPrepared, NotificationDelivered),
            *(NotificationAttemptFailed, NotificationAbandoned, NotificationSilenced, OutcomeChanged, NotifyTimer),
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
            OPENINGS,
            decide=Notifier.on_opening,
        ),
        Subscription(
            subjects.NOTIFIER_TIMERS,
            Stream.TIMERS,
            (filter_for("timer.notify"),),
            decide=Notifier.on_timer,
        ),
    ),
    loops=tuple(
        map(_of_sender, (Sender.lead, Sender.follow, Sender.follow_silences, Sender.run, Sender.tick, Sender.trim))
    ),
    is_installed=_is_installed,
    needs="`notifications.channels`",
)
