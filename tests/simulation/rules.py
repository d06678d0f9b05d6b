"""What holds of a schedule, since all of it is known, and cannot be told of any log."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, TypeVar

from tests.everything import Everything
from tocsin import subjects
from tocsin.domain import lock, planning
from tocsin.domain.events import (
    Acquired,
    Completed,
    DeadLettered,
    Dispatched,
    Due,
    Exhausted,
    LeaseTimer,
    LockFact,
    Message,
    Planned,
    Queued,
    Recorded,
    Recovered,
    Released,
    Replayed,
    Report,
    Requested,
    Resolved,
    RetryScheduled,
    Started,
    Trigger,
    Waiting,
)

from .cast import Surroundings
from .workload import Run

M = TypeVar("M", bound=Message)

AHEAD: Final = timedelta(seconds=15)
"""How far ahead of the log a clock may be that is believed (`CredibleTime`), and a little more."""


def beyond_the_audit(around: Surroundings, everything: Everything) -> Iterator[str]:
    """Whatever does not hold."""
    yield from _nobody_works_without_a_claim(everything, around.runs)
    yield from _a_sign_of_life_puts_off_the_end(everything, around)
    for rule in _RULES:
        yield from rule(everything)


def _nobody_works_without_a_claim(everything: Everything, runs: list[Run]) -> Iterator[str]:
    claims = {(c.execution_id, c.step, c.attempt, c.delivery, c.worker) for c in _all(everything, Started)}
    for run in runs:
        if run not in claims:
            yield f"I3: it was worked at without a claim: {run}"


def _a_sign_of_life_puts_off_the_end(everything: Everything, around: Surroundings) -> Iterator[str]:
    signs = {sign.claim: sign for sign in around.outside.signs}  # the last one of each claim
    for recorded in everything.facts(Released):
        fact = recorded.message
        claim = LeaseTimer.model_validate(fact.model_dump(include=set(LeaseTimer.model_fields) - {"v", "type"}))
        sign, timers = signs.get(claim), around.server.leases.get(claim, [])
        if sign is None or fact.reason != "lease_over" or sign.answered > recorded.time:
            continue
        is_too_late = any(later >= until for (_, until), (later, _) in pairwise(timers))
        if is_too_late or timers[-1][0] > sign.answered:  # what had given up may arrive behind the last sign
            continue
        if recorded.time < sign.until:
            yield f"I3: its executor lives until {sign.until}: {recorded.subject} {recorded.sequence}"


def _a_lease_is_taken_over_by_nobody(everything: Everything) -> Iterator[str]:
    held: dict[tuple[str, str, int], int] = {}
    for recorded in everything.log:
        match recorded.message:
            case Started() as claim:
                key = claim.execution_id, claim.step, claim.attempt
                if key in held:
                    yield f"I3: somebody else had it under a lease, {held[key]}: {recorded.subject} {recorded.sequence}"
                if claim.lease is not None:
                    held[key] = recorded.sequence
            case Released() as fact:
                held.pop((fact.execution_id, fact.step, fact.attempt), None)


def _what_is_released_is_held(everything: Everything) -> Iterator[str]:
    tasks: dict[tuple[str, str], int] = {}
    for recorded in everything.log:
        match recorded.message:
            case Dispatched() as task:
                tasks[task.execution_id, task.step] = recorded.sequence
            case Released() as fact if fact.task != tasks.get((fact.execution_id, fact.step)):
                yield f"I3: nobody holds that task any more: {recorded.subject} {recorded.sequence}"


def _nothing_is_found_lost(everything: Everything) -> Iterator[str]:
    """Servers lose nothing here, so that whoever recovers something took what waits for lost, or somebody dropped it."""
    for recovered in everything.facts(Recovered):
        yield f"I3: something was lost, and by no server: {recovered.subject} {recovered.message.lost}"


def _nothing_fires_before_its_time(everything: Everything) -> Iterator[str]:
    for due in everything.facts(Due):
        if due.message.scheduled_time > due.time + AHEAD:
            yield f"I2: it fired {due.message.scheduled_time - due.time} before its time: {due.subject} {due.sequence}"


def _each_trigger_asks_for_a_run_of_its_own(everything: Everything) -> Iterator[str]:
    asked: dict[str, int] = {}
    for trigger in everything.facts(Trigger):
        execution_id = planning.execution_id_of(trigger, subjects.job_of(trigger.subject))
        if asked.setdefault(execution_id, trigger.sequence) != trigger.sequence:
            yield f"I2: two triggers ask for {execution_id}: {asked[execution_id]} and {trigger.sequence}"


def _the_earliest_gets_the_lock(everything: Everything) -> Iterator[str]:
    """What makes up for the past comes behind all that does not."""
    planned = {fact.message.execution_id: lock.waiting(fact.message) for fact in everything.facts(Planned)}
    waiting: dict[str, tuple[Waiting, ...]] = {}
    for fact in everything.facts(LockFact):
        held = fact.message
        if isinstance(held, Acquired) and (asked := planned.get(held.execution_id)) is not None:
            first = min(map(_turn, waiting.get(held.job, ())), default=_turn(asked))
            if _turn(asked) > first:
                yield f"I5: {held.execution_id} got the lock, and one of {first[1]} waited: {fact.subject} {fact.sequence}"
        if isinstance(held, Acquired | Queued):
            waiting[held.job] = held.waiting


def _turn(waiting: Waiting) -> tuple[bool, datetime]:
    return waiting.yields, waiting.scheduled_time


def _a_lock_lasts_as_long_as_its_steps_may(everything: Everything) -> Iterator[str]:
    planned = {fact.message.execution_id: fact.message for fact in everything.facts(Planned)}
    for acquired in everything.facts(Acquired):
        asked = planned.get(acquired.message.execution_id)
        if asked is not None and acquired.message.ttl != lock.ttl(asked):
            held = f"{acquired.message.ttl:g} seconds, and may take {lock.ttl(asked):g}"
            yield f"I5: {acquired.message.execution_id} has the lock for {held}: {acquired.subject} {acquired.sequence}"


def _a_dead_letter_tells_every_attempt(everything: Everything) -> Iterator[str]:
    for letter in _all(everything, DeadLettered):
        facts = (recorded.message for recorded in everything.executions[letter.execution_id])
        tried = {(fact.step, fact.attempt) for fact in facts if isinstance(fact, Dispatched)}
        if len(letter.attempts) != len(tried):
            yield f"I7: the dead letter of {letter.execution_id} tells of {len(letter.attempts)} attempts of {len(tried)}"


def _a_request_is_one_replay(everything: Everything) -> Iterator[str]:
    taken: dict[tuple[str, str | None], int] = {}
    for recorded in everything.facts(Replayed):
        fact = recorded.message
        if taken.setdefault((fact.id, fact.request), recorded.sequence) != recorded.sequence:
            yield f"I4: the request {fact.request} is taken twice: {recorded.subject} {recorded.sequence}"


def _what_a_replay_completed_is_resolved(everything: Everything) -> Iterator[str]:
    resolved = {fact.message.id: fact.message for fact in everything.facts(Resolved)}
    completed = {fact.message.execution_id for fact in everything.facts(Completed)}
    for fact in everything.facts(Requested):
        done = fact.message
        if done.replay_of is not None and done.execution_id in completed and done.replay_of not in resolved:
            yield f"I7: {done.execution_id} replayed {done.replay_of}, which is not resolved: {fact.subject}"
    for settled in resolved.values():
        if settled.execution_id is not None and settled.execution_id not in completed:
            yield f"I7: {settled.id} is resolved by {settled.execution_id}, which did not complete"


def _only_the_failure_of_who_has_it_counts(everything: Everything) -> Iterator[str]:
    claims: dict[tuple[str, str], Recorded[Started]] = {}
    failures: dict[tuple[str, str, int], list[Report]] = {}
    for recorded in everything.log:
        match recorded.message:
            case Started() as claim:
                claims[claim.execution_id, claim.step] = Recorded(
                    claim, recorded.subject, recorded.sequence, recorded.time
                )
            case Report(outcome="failed") as report:
                failures.setdefault((report.execution_id, report.step, report.attempt), []).append(report)
            case RetryScheduled() | Exhausted() as fact:
                current = claims.get((fact.execution_id, fact.step))
                told = failures.get((fact.execution_id, fact.step, fact.attempt), [])
                if not any(_is_of(report, current) for report in told):
                    yield f"I3: who has it reported no failure: {recorded.subject} {recorded.sequence}"


def _is_of(report: Report, claim: Recorded[Started] | None) -> bool:
    """Whether a report is of a claim, the newest one of its step."""
    if claim is None or claim.message.attempt != report.attempt:
        return report.delivery is None
    return report.delivery in {None, claim.message.delivery} and report.claim in {None, claim.sequence}


_RULES: Final[tuple[Callable[[Everything], Iterator[str]], ...]] = (
    _a_lease_is_taken_over_by_nobody,
    _what_is_released_is_held,
    _nothing_is_found_lost,
    _nothing_fires_before_its_time,
    _each_trigger_asks_for_a_run_of_its_own,
    _the_earliest_gets_the_lock,
    _a_lock_lasts_as_long_as_its_steps_may,
    _a_dead_letter_tells_every_attempt,
    _only_the_failure_of_who_has_it_counts,
    _a_request_is_one_replay,
    _what_a_replay_completed_is_resolved,
)


def _all(everything: Everything, kind: type[M]) -> Iterator[M]:
    return (recorded.message for recorded in everything.facts(kind))
