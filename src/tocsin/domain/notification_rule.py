"""The rule by which a job's events become notifications."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from . import ids, start_jitter
from .definition import JobDefinition, Notify
from .events import (
    Admitted,
    Completed,
    CronMissed,
    Death,
    Failed,
    Message,
    NotificationRaised,
    OutcomeChanged,
    Recorded,
    Released,
    Requested,
    RetryScheduled,
    Skipped,
)
from .execution import WAITS, Execution, Status, waits_for
from .namespaces import namespace_of
from .notification import MAX_REASON, MAX_WHY, Kind, bounded
from .schedule import DstPolicy, ScheduleError, parse
from .text import counted, utc_text

TimedKind: TypeAlias = Literal["late", "overdue", "slow"]
REMEMBERED: Final = timedelta(days=1)
"""The age of a stored failure of a job after which the next failure is stored again.

The stream of notifications drops old events, and a recovery needs the failure before it.
"""
MAX_TAGS: Final = 20
"""Tags of a job that a notification keeps."""
MAX_TAG: Final = 100
"""Characters of a tag that a notification keeps."""
ALARMING_DEATHS: Final = 2
"""Workers that are lost with a task of one step before people are notified. One may be lost by chance."""
WANTED_SKIPS: Final = frozenset({"disabled", "dst_skip", "refused"})
"""Reasons for a skip that raise no notification.

The operator or the definition wants the first two. A refused trigger is an error of its sender, and becomes a dead letter.
"""
_SKIPS: Final[Mapping[str, str]] = {
    "overlap_skip": "another execution of the job was active",
    "queue_full": "too many executions of the job wait already",
    "no_shard": "no shard of the job is active",
    "namespace_quota": "the namespace has used up a quota of the day",
    "no_quorum": "too few agents acknowledged it",
    "dependency_missing": "a job on which it depends did not run in time",
    "dependency_failed": "a job on which it depends failed",
}
_MISSES: Final[Mapping[str, str]] = {
    "missed": "no scheduler decided on them in time",
    "superseded": "the definition changed before a late decision",
    "poison": "the decision on them failed, which is a defect",
}


class Default(Protocol):
    """A rule for jobs without a rule of their own."""

    @property
    def tags(self) -> Sequence[str]:
        """The tags of which the job must have one; empty: any."""

    @property
    def owner(self) -> str | None:
        """The owner that the job must have; None: any."""

    @property
    def notify(self) -> Notify:
        """The rule."""


def rule_of(definition: JobDefinition, defaults: Iterable[Default]) -> Notify | None:
    """Return the rule of a job: its own, or else the first default that fits.

    A default has no channels of other namespaces for a job, and fits no job for which it has only such channels. Otherwise a tag or an
    owner, which authors choose, would lead to the channel of another team.
    """
    if definition.notify is not None:
        return definition.notify
    return next(filter(None, (_for_job(default, definition) for default in defaults)), None)


def _for_job(default: Default, definition: JobDefinition) -> Notify | None:
    """Return the rule of a default for a job; None: it does not fit."""
    has_tag = not default.tags or not set(default.tags).isdisjoint(definition.tags)
    if not has_tag or default.owner not in {None, definition.owner}:
        return None
    rule = default.notify
    reached = tuple(
        channel for channel in rule.channels if namespace_of(channel) in {None, namespace_of(definition.name)}
    )
    if reached == rule.channels:
        return rule
    return rule.model_copy(update={"channels": reached}) if reached else None


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened to a job, of which channels may be notified."""

    kind: Kind
    job: str
    at: datetime
    about: str
    """The id of the execution, or the span of time, that distinguishes it from others of the job."""
    execution_id: str | None = None
    reason: str = ""
    why: str = ""


class TimeLimit(NamedTuple):
    """A time at which an execution should have started or ended."""

    kind: TimedKind
    """What has happened if the execution has not started (`late`) or not ended (`overdue`, `slow`)."""
    until: datetime
    """The time (UTC)."""
    job: str
    execution_id: str
    scheduled_time: datetime | None = None
    """The instant (UTC) of an execution that was skipped or missed, and so never opened; None: it was opened."""


def of_failure(end: Failed, at: datetime) -> Happening:
    error = end.first_error
    reason = error.summary if error else end.reason or ""
    lines = [_origin(end.trigger, end.scheduled_time)]
    if end.step is not None and not end.step_completed:
        lines.append(f"step {end.step} failed at attempt {end.attempt}")
    if end.reason is not None:
        lines.append(f"reason: {end.reason}")
    if end.shard is not None:
        lines.append(f"shard: {end.shard}")
    if end.dead_letter:
        lines.append(f"tocsin dead-letters show {end.execution_id}")
    return Happening(Kind.FAILED, end.job, at, end.execution_id, end.execution_id, reason, "\n".join(lines))


def of_lost_workers(fact: Released | RetryScheduled, at: datetime, state: Execution) -> Happening | None:
    """Return that a step lost its second worker; None: another step did so before."""
    deaths = deaths_of(fact)
    if any(len(others) >= ALARMING_DEATHS for step, others in state.deaths.items() if step != fact.step):
        return None
    reason = f"step {fact.step} lost {counted(len(deaths), 'worker')}: {', '.join(death.agent for death in deaths)}"
    lines = [
        _origin(state.request.trigger, state.request.scheduled_time),
        f"the step fails when it has lost {counted(state.request.plan.max_deaths, 'worker')} (recovery.max_deaths)",
        *map(str, deaths),
        f"tocsin executions cancel {fact.execution_id}",
    ]
    return Happening(Kind.WORKER_LOST, fact.job, at, fact.execution_id, fact.execution_id, reason, "\n".join(lines))


def deaths_of(fact: Released | RetryScheduled) -> tuple[Death, ...]:
    """Return the workers that a step lost, up to an event of it."""
    return fact.deaths if isinstance(fact, Released) else fact.error.deaths


def of_recovery(end: Completed, at: datetime, failed: str) -> Happening:
    """Return the completion of an execution after one that failed."""
    why = f"{_origin(end.trigger, end.scheduled_time)}\nthe last failure was execution {failed}"
    return Happening(
        Kind.RECOVERED, end.job, at, end.execution_id, end.execution_id, "an execution completed after failures", why
    )


def of_skip(skip: Skipped, at: datetime) -> Happening | None:
    """Return the skip of an execution; None: it was wanted."""
    if skip.reason in WANTED_SKIPS:
        return None
    lines = [_origin(skip.trigger, skip.scheduled_time)]
    if skip.active_execution_id is not None:
        lines.append(f"active execution: {skip.active_execution_id}")
    reason = f"{skip.reason}: {_SKIPS[skip.reason]}"
    return Happening(Kind.SKIPPED, skip.job, at, skip.execution_id, skip.execution_id, reason, "\n".join(lines))


def of_misses(missed: CronMissed) -> Happening:
    """Return the span of instants that passed without an execution."""
    data = missed.data
    span = f"from {utc_text(data.start)} until {utc_text(data.until)}"
    reason = f"{counted(data.count, 'instant')} did not fire: {_MISSES[data.reason]}"
    why = f"{span}\ntocsin why {data.cron_name} {utc_text(data.until)}"
    return Happening(
        Kind.MISSED, data.cron_name, missed.timestamp, f"{utc_text(data.start)}/{data.reason}", None, reason, why
    )


def time_limits(
    rule: Notify, opening: Requested | Skipped | CronMissed, at: datetime, timezone: str
) -> Iterator[TimeLimit]:
    """Yield the times at which an execution should have started or ended.

    A skipped or missed instant has a deadline too. `at`: when the opening was stored. An execution that waits for its lock is opened twice, and each of its times is the same.
    """
    if isinstance(opening, Skipped):
        if opening.trigger == "cron" and opening.reason not in WANTED_SKIPS:
            yield from _overdue(rule, timezone, opening.job, opening.execution_id, opening.scheduled_time)
        return
    if isinstance(opening, CronMissed):
        data = opening.data
        try:
            first = parse(data.cron_expression, data.timezone).next_after(data.start, anchor=data.start)
        except ScheduleError:
            first = None
        instant = data.until if first is None else min(first, data.until)
        yield from _overdue(rule, timezone, data.cron_name, ids.occurrence_id(data.cron_name, instant), instant)
        return
    job, execution_id, scheduled = opening.job, opening.execution_id, opening.scheduled_time
    if rule.late_after is not None:
        delay = timedelta(seconds=opening.plan.start_delay or 0.0)
        yield TimeLimit("late", scheduled + delay + timedelta(seconds=rule.late_after), job, execution_id)
    if opening.trigger == "cron":
        for limit in _overdue(rule, timezone, job, execution_id, scheduled):
            yield limit._replace(scheduled_time=None)
    if rule.duration_over is not None and isinstance(opening, Admitted):
        until = start_jitter.begins_at(opening.plan, at) + timedelta(seconds=rule.duration_over)
        yield TimeLimit("slow", until, job, execution_id)


def _overdue(rule: Notify, timezone: str, job: str, execution_id: str, instant: datetime) -> Iterator[TimeLimit]:
    """Yield the deadline of an instant that no execution has, if its job has one."""
    by = None if rule.must_complete_by is None else _next_time(rule.must_complete_by, timezone, instant)
    if by is not None:
        yield TimeLimit("overdue", by, job, execution_id, instant)


def _next_time(of_day: str, timezone: str, after: datetime) -> datetime | None:
    """Return the next instant of a time of the day.

    A time that the clocks skip comes later, by the amount of the change. None: the time zone does not exist any more.
    """
    hour, minute = of_day.split(":")
    try:
        times = parse(f"{int(minute)} {int(hour)} * * *", timezone, dst=DstPolicy(gap="shift"))
    except ScheduleError:
        return None
    return times.next_after(after, anchor=after)


def of_limit(limit: TimeLimit, state: Execution) -> Happening | None:
    """Return what happens at a time; None: the execution is in time, or unknown."""
    if state.requested is None:
        return None if limit.scheduled_time is None else _never_opened(limit, limit.scheduled_time, state)
    kind = Kind(limit.kind)
    if kind is Kind.OVERDUE:
        is_well = state.status is Status.COMPLETED
    elif kind is Kind.SLOW:
        is_well = state.is_over
    else:
        is_well = state.is_over or any(step.attempt > 1 or step.claim for step in state.steps.values())
    if is_well:
        return None
    held_by = waits_for(state)
    reason = {
        Kind.LATE: f"no step has started by {utc_text(limit.until, 'seconds')}",
        Kind.OVERDUE: f"not complete at {utc_text(limit.until, 'seconds')}: it is {state.status}",
        Kind.SLOW: f"not ended at {utc_text(limit.until, 'seconds')}",
    }[kind]
    why = _origin(state.requested.trigger, state.requested.scheduled_time)
    if held_by is not None:
        why += f"\nit waits for {WAITS[held_by]}"
    return Happening(kind, limit.job, limit.until, limit.execution_id, limit.execution_id, reason, why)


def _never_opened(limit: TimeLimit, scheduled_time: datetime, state: Execution) -> Happening:
    how = "skipped" if state.status is Status.SKIPPED else "missed"
    reason = f"not complete at {utc_text(limit.until, 'seconds')}: it was {how}"
    why = f"{_origin('cron', scheduled_time)}\ntocsin why {limit.job} {utc_text(scheduled_time, 'seconds')}"
    about = limit.execution_id
    return Happening(Kind.OVERDUE, limit.job, limit.until, about, about if how == "skipped" else None, reason, why)


def changed_outcome(
    before: OutcomeChanged | None, end: Failed | Completed, recorded: Recorded[Message]
) -> OutcomeChanged | None:
    """Return the new outcome of a job; None: it stays, or was changed later."""
    if before is not None and before.end >= recorded.sequence:
        return None
    has_failed = isinstance(end, Failed)
    was_failing = before is not None and before.is_failing
    is_renewed = has_failed and before is not None and recorded.time - before.ended_at >= REMEMBERED
    if has_failed is was_failing and not is_renewed:
        return None
    return OutcomeChanged(
        job=end.job,
        is_failing=has_failed,
        execution_id=end.execution_id,
        end=recorded.sequence,
        ended_at=recorded.time,
    )


def _origin(trigger: str, scheduled_time: datetime) -> str:
    return f"trigger {trigger}, scheduled for {utc_text(scheduled_time, 'seconds')}"


def notifications(happening: Happening, rule: Notify, tags: Iterable[str]) -> tuple[NotificationRaised, ...]:
    """Return a notification for each channel, if the rule has the kind."""
    if getattr(rule, _FIELDS[happening.kind]) in {False, None}:
        return ()
    kept = tuple(bounded(tag, MAX_TAG) for tag in tuple(tags)[:MAX_TAGS])
    return tuple(
        NotificationRaised(
            job=happening.job,
            id=ids.notification_id(happening.job, happening.at, happening.kind, channel, happening.about),
            channel=channel,
            kind=happening.kind,
            at=happening.at,
            execution_id=happening.execution_id,
            reason=bounded(happening.reason, MAX_REASON),
            why=bounded(happening.why, MAX_WHY),
            tags=kept,
        )
        for channel in dict.fromkeys(rule.channels)
    )


_FIELDS: Final[Mapping[Kind, str]] = {
    Kind.FAILED: "on_failure",
    Kind.WORKER_LOST: "on_failure",
    Kind.RECOVERED: "on_recovery",
    Kind.SKIPPED: "on_skip",
    Kind.MISSED: "on_missed",
    Kind.LATE: "late_after",
    Kind.OVERDUE: "must_complete_by",
    Kind.SLOW: "duration_over",
}
"""The field of a rule for each kind."""
