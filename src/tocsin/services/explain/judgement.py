"""The judgement of an instant."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ...domain import ids
from ...domain.events import Due, Passed, Recorded
from ...domain.schedule import Occurrence, Schedule, moved_to
from ...domain.schedule.clock_changes import instants_of, is_repeated, skipped
from .evidence import (
    Answer,
    Evidence,
    Regime,
    Verdict,
    gap_around,
    last_instant,
    regimes_of,
    registration_of,
    registrations,
    since,
)

INSTANT: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)


def judge(evidence: Evidence, moment: datetime) -> tuple[Answer, ...]:
    """Return the decision on an instant; several if a (naive) local time came twice.

    Raises:
        JobNotFound: no event mentions the job.
        ScheduleError: its schedule is no longer valid.
    """
    regimes = regimes_of(evidence)
    if moment.tzinfo is not None:
        return (_judged(evidence, regimes, moment),)
    return tuple(
        replace(_judged(evidence, regimes, at, local=None if exists else moment), local_exists=exists)
        for at, exists in _meant(regimes, moment)
    )


def default_instant(evidence: Evidence) -> datetime:
    """Return the instant (UTC) to explain if the user names none.

    It is the latest instant that the schedule named since the job was registered. If a pause, a disabling or a deletion came after it, or the job was
    not due before, it is a later instant, whose answer names that reason: the next occurrence, or just after now.

    Raises:
        JobNotFound: no event mentions the job.
        ScheduleError: its schedule is no longer valid.
    """
    regimes = regimes_of(evidence)
    newest, last = regimes[-1], latest(since(evidence, registrations(evidence)[-1]))
    soon = evidence.now + _SECOND
    schedule = newest.schedule
    if schedule is None:
        return soon
    if last is not None and (not newest.is_silent or last > began(regimes, newest).fact.time):
        return last
    return schedule.next_after(soon, anchor=anchor(evidence, newest, soon)) or soon


def latest(evidence: Evidence) -> datetime | None:
    """Return the latest named instant (UTC) up to now, or None.

    Raises:
        JobNotFound: no event mentions the job.
    """
    for regime in reversed(regimes_of(evidence)):
        schedule, since = regime.schedule, regime.fact.time
        if schedule is None or since >= evidence.now:
            continue
        until = min(evidence.now, regime.until or evidence.now)
        instant = schedule.latest_until(until, after=since, anchor=anchor(evidence, regime, until))
        if instant is not None:
            return instant
    return None


def _governing(evidence: Evidence, regimes: Sequence[Regime], at: datetime) -> Regime | None:
    """Return the last regime that began before an instant.

    A regime does not govern decisions that were stored before it.
    """
    for regime in reversed(regimes):
        decided_before = any(
            decision.sequence < regime.fact.sequence and last_instant(decision.message) >= at
            for decision in evidence.decisions
        )
        if regime.fact.time < at and not decided_before:
            return regime
    return None


def _meant(regimes: Sequence[Regime], local: datetime) -> list[tuple[datetime, bool]]:
    """Return the instants of a local time, by zone, and whether each exists."""
    reigns = [
        (regime.fact.time, regime.until, regime.definition.timezone)
        for regime in regimes
        if regime.definition is not None
    ]
    fates = {
        at: exists
        for since, until, timezone in reigns
        for at, exists in _read(timezone, local)
        if since < at and (until is None or at <= until)
    }
    if not fates:  # before the job existed, or after its deletion
        before = [timezone for since, _, timezone in reigns if since < skipped(timezone, local)]
        fates = dict(_read((before or [reigns[0][2] if reigns else "UTC"])[-1], local))
    return sorted(fates.items())


def _read(timezone: str, local: datetime) -> list[tuple[datetime, bool]]:
    instants = instants_of(timezone, local)
    return [(at, True) for at in instants] or [(skipped(timezone, local), False)]


def anchor(evidence: Evidence, regime: Regime, at: datetime) -> datetime:
    """Return the start of intervals: any firing, counted back to before `at`."""
    schedule = regime.schedule
    fired = [d.message.scheduled_time for d in evidence.decisions if isinstance(d.message, Due)]
    of_this = [
        d.message.scheduled_time
        for d in evidence.decisions
        if isinstance(d.message, Due) and d.message.definition == regime.sequence
    ]
    registered = registration_of(evidence, regime)[0].time
    before = max((time for time in fired if registered < time <= regime.fact.time), default=None)
    origin = of_this[0] if of_this else before or regime.anchor
    if schedule is not None and schedule.interval and origin >= min(at, regime.fact.time):
        steps = (origin - min(at, regime.fact.time)) // schedule.interval + 1
        return origin - steps * schedule.interval
    return origin


def _judged(evidence: Evidence, regimes: Sequence[Regime], at: datetime, *, local: datetime | None = None) -> Answer:
    regime = _governing(evidence, regimes, at)
    if regime is None:
        first = regimes[0]
        timezone = first.definition.timezone if first.definition else "UTC"
        answer = Answer(evidence.job, at, timezone, "before-the-job", since=first.fact.time, by=first.fact.message.by)
        return replace(answer, facts=(first.fact,))
    schedule = regime.schedule
    if regime.definition is None or schedule is None:
        return _without_schedule(evidence, regimes, regime, at)
    instants = list(_named(schedule, at, anchor(evidence, regime, at)))
    named = next((instant for instant in instants if instant.skipped_local is None), None)
    left_out = [instant for instant in instants if instant.skipped_local is not None]
    leaves_out = next((instant for instant in left_out if local is None or instant.skipped_local == local), None)
    # A query for a nonexistent local time means that time, even if another occurrence fires at its instant.
    meant = (leaves_out or named) if local is not None else (named or leaves_out)
    answer = _nearest(
        evidence,
        regime,
        schedule,
        Answer(
            job=evidence.job,
            at=meant.at if meant else at,
            timezone=regime.definition.timezone,
            verdict="not-scheduled",
            schedule=regime.definition.schedule,
            definition=regime.sequence,
            skipped_local=meant.skipped_local if meant else local,
            repeated=is_repeated(regime.definition.timezone, at),
            facts=(regime.fact,),
        ),
    )
    if meant is not None and meant.excluded:
        why = schedule.exclusion(meant.at)
        answer = replace(answer, exclusion=None if why is None else str(why), moved_to=moved_to(schedule, meant.at))
    if local is not None and meant is None:
        return replace(answer, verdict="no-such-local-time")
    if meant is None:
        return answer
    decision = _decision(evidence, meant)
    if decision is None:
        return _undecided(evidence, began(regimes, regime), answer, meant)
    return _decided(evidence, regimes, regime, answer, decision)


def _without_schedule(evidence: Evidence, regimes: Sequence[Regime], regime: Regime, at: datetime) -> Answer:
    fact = regime.fact
    if regime.definition is not None:
        zone = regime.definition.timezone
        return Answer(evidence.job, at, zone, "on-demand", definition=regime.sequence, since=fact.time, facts=(fact,))
    timezone = next(
        (earlier.definition.timezone for earlier in reversed(regimes) if earlier.definition is not None), "UTC"
    )
    answer = Answer(evidence.job, at, timezone, "after-deletion", since=fact.time, facts=(fact,))
    return replace(answer, by=fact.message.by, reason=fact.message.reason)


def _named(schedule: Schedule, at: datetime, anchor: datetime) -> Iterator[Occurrence]:
    """Return the named instant, or for whole seconds an instant within the second."""
    until = at if at.microsecond else at + _SECOND - INSTANT
    first: datetime | None = None
    for occurrence in schedule.occurrences(at - INSTANT, until, anchor=anchor):
        first = first or occurrence.at
        if occurrence.at == first and occurrence.at >= at:
            yield occurrence


def _nearest(evidence: Evidence, regime: Regime, schedule: Schedule, answer: Answer) -> Answer:
    origin = anchor(evidence, regime, answer.at)
    before = schedule.latest_until(answer.at - INSTANT, after=regime.fact.time, anchor=origin)
    return replace(answer, before=before, after=schedule.next_after(answer.at, anchor=origin))


def _decision(evidence: Evidence, meant: Occurrence) -> Recorded[Due | Passed] | None:
    for decision in evidence.decisions:
        match decision.message:
            case Due(scheduled_time=at, dst_skip=leaves_out) if at == meant.at:
                if meant.skipped_local is None or leaves_out:
                    return decision
            case Passed(start=start, until=until) if start < meant.at <= until:
                return decision
            case _:
                pass
    return None


def _undecided(evidence: Evidence, regime: Regime, answer: Answer, meant: Occurrence) -> Answer:
    if answer.at > evidence.now:
        verdict: Verdict = "future"
        if meant.excluded:
            return replace(answer, verdict="future-excluded")
        if meant.skipped_local is not None:
            verdict = "no-such-local-time"
        elif regime.paused:
            verdict = "future-paused"
        elif regime.definition is not None and not regime.definition.enabled:
            verdict = "future-disabled"
        return _with_blame(replace(answer, verdict=verdict), regime)
    if any(last_instant(decision.message) >= answer.at for decision in evidence.decisions):
        return replace(answer, verdict="unaccounted")
    if meant.excluded:  # recorded when the last of its day has come
        return replace(answer, verdict="excluded")
    late = (evidence.now - answer.at).total_seconds()
    gap = gap_around(answer.at, None, evidence.leadership)
    return replace(answer, verdict="undecided", late_by=late, gap=gap)


def _decided(
    evidence: Evidence, regimes: Sequence[Regime], regime: Regime, answer: Answer, decision: Recorded[Due | Passed]
) -> Answer:
    fact = decision.message
    late = max(0.0, (decision.time - answer.at).total_seconds())
    answer = replace(answer, late_by=late, definition=fact.definition, facts=(*answer.facts, decision))
    if answer.skipped_local is not None:
        return replace(answer, verdict="no-such-local-time")
    if isinstance(fact, Due):
        gap = gap_around(answer.at, decision.time, evidence.leadership) if fact.catch_up else None
        execution_id = ids.occurrence_id(fact.job, fact.scheduled_time)
        return replace(answer, verdict="fired", caught_up=fact.catch_up, gap=gap, execution_id=execution_id)
    return _passed(evidence, regimes, regime, replace(answer, count=fact.count), decision)


def _passed(
    evidence: Evidence, regimes: Sequence[Regime], regime: Regime, answer: Answer, decision: Recorded[Due | Passed]
) -> Answer:
    fact = decision.message
    match fact.reason if isinstance(fact, Passed) else None:
        case "paused":
            verdict: Verdict = "paused" if regime.paused else "disabled"
            return _with_blame(replace(answer, verdict=verdict), began(regimes, regime))
        case "dst_skip":
            return replace(answer, verdict="no-such-local-time")
        case "superseded":
            change = next((later for later in regimes if later.fact.sequence > regime.fact.sequence), regime)
            answer = _with_blame(replace(answer, verdict="superseded"), change)
        case "excluded" | "poison" as reason:
            return replace(answer, verdict=reason)
        case _:
            answer = replace(answer, verdict="missed")
    return replace(answer, gap=gap_around(answer.at, decision.time, evidence.leadership))


def began(regimes: Sequence[Regime], regime: Regime) -> Regime:
    """Return the regime that began the pause or the disabling, through edits in between."""
    current = regime
    for earlier in reversed(regimes[: regimes.index(regime)]):
        same = earlier.paused if regime.paused else earlier.definition is not None and not earlier.definition.enabled
        if not same or earlier.definition is None:
            break
        current = earlier
    return current if regime.is_silent else regime


def _with_blame(answer: Answer, regime: Regime) -> Answer:
    fact = regime.fact
    facts = answer.facts if fact in answer.facts else (fact, *answer.facts)
    return replace(answer, since=fact.time, by=fact.message.by, reason=fact.message.reason, facts=facts)
