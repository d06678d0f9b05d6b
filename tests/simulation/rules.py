"""Rules about a schedule that need complete knowledge, beyond what a log can show."""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from tests.stored_events import StoredEvents
from tocsin import subjects
from tocsin.domain import execution, execution_plan, lock, mq_answer
from tocsin.domain.events import (
    Acquired,
    Advanced,
    Cancelled,
    Completed,
    DeadLettered,
    Death,
    Defined,
    Deleted,
    Dispatched,
    Due,
    Exhausted,
    Failed,
    LedgerFact,
    LockFact,
    Message,
    Planned,
    PoisonMessage,
    Queued,
    Recorded,
    Recovered,
    Released,
    Replayed,
    Report,
    Requested,
    Resolved,
    RetryScheduled,
    Skipped,
    Started,
    Terminal,
    Trigger,
)
from tocsin.domain.lock import Waiter

from .cast import Surroundings
from .dependency_rules import broken_waits
from .hand_over_rules import broken_drains, broken_priorities
from .limits import broken_limits, broken_rates
from .mq import Handed
from .operator_rules import broken_decisions
from .quorum_rules import broken_quorums
from .workload import ASSIGNED, BRIDGED, Run

M = TypeVar("M", bound=Message)

LONGEST_SILENCE_S: Final = 50.0
"""Seconds in which a lost agent is noticed, with the pauses of the matcher and of the agent."""
UNHEARD: Final = timedelta(seconds=20)
"""Seconds for which an answer may be unknown to every process."""


def beyond_the_audit(around: Surroundings, everything: StoredEvents) -> Iterator[str]:
    """Return every violation."""
    yield from _every_run_has_a_claim(everything, around.work.runs)
    yield from _a_sign_of_life_puts_off_the_end(everything)
    yield from _a_success_that_was_taken_counts(everything, around)
    yield from _a_claim_is_fetched_once(around)
    yield from _no_lease_lasts_longer_than_its_step_may(everything)
    yield from _every_task_is_handed_over(everything, around)
    yield from broken_limits(everything, around)
    yield from broken_rates(everything, around)
    yield from broken_decisions(everything, around)
    yield from broken_waits(everything)
    yield from broken_quorums(everything, around)
    yield from broken_priorities(everything, around)
    yield from broken_drains(everything, around)
    for judge in (_what_is_reported_was_answered, _an_answer_in_time_counts):
        yield from judge(everything, around.handed)
    for rule in _RULES:
        yield from rule(everything)


def _every_run_has_a_claim(everything: StoredEvents, runs: list[Run]) -> Iterator[str]:
    claims = {(c.execution_id, c.step, c.attempt, c.delivery, c.worker) for c in _all(everything, Started)}
    for run in runs:
        if run not in claims:
            yield f"I3: it was worked at without a claim: {run}"


def _a_claim_is_fetched_once(around: Surroundings) -> Iterator[str]:
    """A repeated fetch, or a second leader, gives no task to two executors."""
    for sequence, number in Counter(around.outside.fetched).items():
        if number > 1:
            yield f"I3: {number} fetches received the claim {sequence}"


def _a_sign_of_life_puts_off_the_end(everything: StoredEvents) -> Iterator[str]:
    """A heartbeat that is stored before the end of its lease counts."""
    beats = [beat for beat in everything.facts(Report) if beat.message.lease is not None]
    for released, claim, end in _lost_claims(everything):
        if end is None:
            yield f"I3: nothing says that its claim is lost: {released.subject} {released.sequence}"
            continue
        since = released.message.deaths[-1].at
        for beat in beats:
            until = beat.time + timedelta(seconds=beat.message.lease or 0)
            if beat.message.claim == claim.sequence and beat.sequence < end.sequence and until > since:
                yield f"I3: its executor lives until {until}: {released.subject} {released.sequence}"


def _lost_claims(
    everything: StoredEvents,
) -> Iterator[tuple[Recorded[Released], Recorded[Any], Recorded[Report] | None]]:
    """Yield claims that were lost: the release, the claim, and the report that says so."""
    ends: dict[int | None, list[Recorded[Report]]] = {}
    for report in everything.facts(Report):
        if report.message.error is not None and report.message.error.type == "lease_over":
            ends.setdefault(report.message.claim, []).append(report)
    for released in everything.facts(Released):
        fact = released.message
        if fact.reason != "lease_over":
            continue
        before = (one for one in everything.executions[fact.execution_id] if one.sequence < released.sequence)
        [*_, claim] = (one for one in before if isinstance(one.message, Started) and one.message.step == fact.step)
        deaths = fact.deaths[-1:]
        said = (one for one in ends.get(claim.sequence, ()) if one.message.error and one.message.error.deaths == deaths)
        yield released, claim, next(said, None)


def _an_assigned_task_is_not_forgotten(everything: StoredEvents) -> Iterator[str]:
    """A claim that no agent works at is handed over again or released long before the time of its attempt is over."""
    limits = {
        (t.execution_id, t.step, t.attempt): t.timeout for t in _all(everything, Dispatched) if t.queue == ASSIGNED
    }
    for recorded in everything.facts(Report):
        fact = recorded.message
        limit = limits.get((fact.execution_id, fact.step, fact.attempt), 0.0)
        if fact.worker == subjects.RECOVERER and limit > LONGEST_SILENCE_S:
            yield f"I3: no agent worked at it for {limit:g}s: {recorded.subject} {recorded.sequence}"


def _every_task_is_handed_over(everything: StoredEvents, around: Surroundings) -> Iterator[str]:
    """The bridge claims a task, then hands it over.

    An attempt may end while a bridge stands still, or its messages are slow.
    """
    tasks = {(r.message.execution_id, r.message.step, r.message.attempt): r for r in everything.facts(Dispatched)}
    tasks = {named: recorded for named, recorded in tasks.items() if recorded.message.queue == BRIDGED}
    taken = {(t.execution_id, t.step, t.attempt): t for t in around.handed.taken}
    cancelled = {recorded.message.execution_id: recorded.time for recorded in everything.facts(Cancelled)}
    claimed = {(fact.execution_id, fact.step, fact.attempt) for fact in _all(everything, Started)}
    reports = everything.facts(Report)
    succeeded = {
        (r.message.execution_id, r.message.step, r.message.attempt) for r in reports if r.message.outcome == "completed"
    }
    ends = {(r.message.execution_id, r.message.step, r.message.attempt): r for r in reversed(reports)}
    for missing in sorted(tasks.keys() - taken.keys()):
        end = ends.get(missing)
        has_timed_out = end is not None and end.message.worker == subjects.RECOVERER
        if end is not None and missing in claimed:
            if not has_timed_out:
                continue  # an answer without an attempt, to the task of an earlier attempt, ended this attempt
            since, until = (around.server.clock.seconds(at.time) for at in (tasks[missing], end))
            if around.network.was_interrupted(since, until) or around.network.was_slow(since, until):
                continue
        if missing not in claimed and any(
            (missing[0], missing[1], earlier) in succeeded for earlier in range(1, missing[2])
        ):
            continue  # the late answer to an earlier attempt ended the execution first
        # A task of a cancelled execution is not handed over. The recoverer may have read it before the cancellation.
        ended_before = has_timed_out and end is not None and end.time < cancelled.get(missing[0], end.time)
        if missing[0] not in cancelled or ended_before:
            yield f"I3: it was never handed over: {missing}"
    for named, data in taken.items():
        task = tasks.get(named)
        dispatched = None if task is None else (task.message.token, task.message.function, task.sequence)
        if dispatched != (data.token, data.function, data.fence):
            yield f"I3: it was handed over, and is not what was dispatched: {named}"


def _what_is_reported_was_answered(everything: StoredEvents, handed: Handed) -> Iterator[str]:
    """A report without a delivery comes from the bridge or from the recoverer, which says so."""
    said = {
        (a.task.execution_id, a.answer.step, a.answer.attempt, mq_answer.read(a.answer).outcome == "failed")
        for a in handed.answers
    }
    for recorded in everything.facts(Report):
        fact = recorded.message
        if fact.delivery is not None or fact.worker is not None:
            continue
        about, has_failed = (fact.execution_id, fact.step), fact.outcome == "failed"
        if not said & {(*about, fact.attempt, has_failed), (*about, None, has_failed)}:
            yield f"I3: no executor that received that task gave this answer: {recorded.subject} {recorded.sequence}"


def _an_answer_in_time_counts(everything: StoredEvents, handed: Handed) -> Iterator[str]:
    first: dict[tuple[str, str, int], datetime] = {}
    for said in handed.answers:
        if said.at is not None:
            first.setdefault((said.task.execution_id, said.task.step, said.task.attempt), said.at)
    for recorded in everything.facts(Report):
        fact = recorded.message
        at = first.get((fact.execution_id, fact.step, fact.attempt))
        if fact.worker == subjects.RECOVERER and at is not None and recorded.time > at + UNHEARD:
            yield f"I3: it was answered at {at}: {recorded.subject} {recorded.sequence}"


def _no_lease_lasts_longer_than_its_step_may(everything: StoredEvents) -> Iterator[str]:
    """A holder that exceeded the attempt's time has failed; only a retry gives the step to others."""
    for released, claim, end in _lost_claims(everything):
        facts = everything.executions[released.message.execution_id]
        plan = next(f.message.plan for f in facts if isinstance(f.message, Requested))
        limit = next(timedelta(seconds=step.timeout) for step in plan.steps if step.name == released.message.step)
        if end is not None and end.time >= claim.time + limit:
            yield f"I7: its time was over before its lease: {released.subject} {released.sequence}"


def _deaths_end_a_step_in_time(everything: StoredEvents) -> Iterator[str]:
    """Each lost claim of a step counts once, and the last that the job permits ends the step."""
    for facts in everything.executions.values():
        most = next((fact.message.plan.max_deaths for fact in facts if isinstance(fact.message, Requested)), 0)
        known: dict[str, tuple[Death, ...]] = defaultdict(tuple)
        for recorded in facts:
            fact, deaths = recorded.message, tuple[Death, ...]()
            if isinstance(fact, Released):
                deaths = fact.deaths
            elif isinstance(fact, RetryScheduled | Exhausted | Failed) and fact.error is not None:
                deaths = fact.error.deaths
            if not deaths or not isinstance(fact, Released | RetryScheduled | Exhausted | Failed):
                continue
            is_over = isinstance(fact, Exhausted | Failed) and fact.error and fact.error.type == execution.WORKER_LOST
            if not isinstance(fact, Failed) and deaths[:-1] != known[fact.step]:
                yield f"I7: {len(deaths)} deaths follow {len(known[fact.step])}: {recorded.subject} {recorded.sequence}"
            if (len(deaths) >= most) is not bool(is_over):
                yield f"I7: {len(deaths)} deaths of {most}: {recorded.subject} {recorded.sequence}"
            known[fact.step or ""] = deaths


def _a_success_that_was_taken_counts(everything: StoredEvents, around: Surroundings) -> Iterator[str]:
    """Unless the execution was cancelled, another step of it failed, or it was too late."""
    given_up: dict[tuple[str, str, int], int] = {}
    for told in everything.facts(Report):
        if told.message.outcome == "failed":
            given_up.setdefault((told.message.execution_id, told.message.step, told.message.attempt), told.sequence)
    taken = {r.message.claim: r.sequence for r in everything.facts(Report) if r.message.outcome == "completed"}
    sequences = {claim.message: claim.sequence for claim in everything.facts(Started)}
    for claim in around.outside.accepted:
        facts = [recorded.message for recorded in everything.executions[claim.execution_id]]
        is_done = any(isinstance(fact, Advanced | Completed) and fact.step == claim.step for fact in facts)
        is_called_off = any(isinstance(fact, Cancelled) for fact in facts)
        failed = [fact for fact in facts if isinstance(fact, Exhausted | Failed)]
        named = claim.execution_id, claim.step, claim.attempt
        is_late = given_up.get(named, sys.maxsize) < taken.get(sequences[claim], 0)
        if not is_done and not is_called_off and not is_late and all(fact.step == claim.step for fact in failed):
            yield f"I3: its success was taken, and it is not done: {claim.execution_id} {claim.step} {claim.attempt}"


def _leases_are_not_taken_over(everything: StoredEvents) -> Iterator[str]:
    held: dict[tuple[str, str, int], int] = {}
    for recorded in everything.log:
        match recorded.message:
            case Started() as claim:
                key = claim.execution_id, claim.step, claim.attempt
                if key in held:
                    yield f"I3: another worker had it under a lease, {held[key]}: {recorded.subject} {recorded.sequence}"
                if claim.lease is not None:
                    held[key] = recorded.sequence
            case Released() as fact:
                held.pop((fact.execution_id, fact.step, fact.attempt), None)


def _what_is_released_is_held(everything: StoredEvents) -> Iterator[str]:
    tasks: dict[tuple[str, str], int] = {}
    for recorded in everything.log:
        match recorded.message:
            case Dispatched() as task:
                tasks[task.execution_id, task.step] = recorded.sequence
            case Released() as fact if fact.task != tasks.get((fact.execution_id, fact.step)):
                yield f"I3: no worker holds that task: {recorded.subject} {recorded.sequence}"


def _nothing_is_found_lost(everything: StoredEvents) -> Iterator[str]:
    """Servers lose nothing here, so a recovery means that waiting work was taken for lost, or that a process dropped it."""
    for recovered in everything.facts(Recovered):
        yield f"I3: something was lost, and by no server: {recovered.subject} {recovered.message.lost}"


def _nothing_fires_before_its_time(everything: StoredEvents) -> Iterator[str]:
    """Tickers decide by the log's clock, not by their own."""
    for due in everything.facts(Due):
        if due.message.scheduled_time > due.time:
            yield f"I2: it fired {due.message.scheduled_time - due.time} before its time: {due.subject} {due.sequence}"


def _execution_of(trigger: Recorded[Trigger]) -> str:
    publisher = subjects.publisher_of(trigger.subject)
    return execution_plan.execution_id_of(trigger, subjects.job_of(trigger.subject), publisher)


def _each_trigger_asks_for_a_run_of_its_own(everything: StoredEvents) -> Iterator[str]:
    asked: dict[str, tuple[str, int]] = {}
    for trigger in everything.facts(Trigger):
        execution_id = _execution_of(trigger)
        if asked.setdefault(execution_id, (trigger.subject, trigger.sequence)) != (trigger.subject, trigger.sequence):
            yield f"I2: two triggers ask for {execution_id}: {asked[execution_id]} and {trigger.sequence}"


def _the_earliest_gets_the_lock(everything: StoredEvents) -> Iterator[str]:
    """Catch-up work has lower priority than all other work."""
    planned = {fact.message.execution_id: _turn(lock.waiting(fact.message)) for fact in everything.facts(Planned)}
    waiting: dict[tuple[str, str | None], dict[str, tuple[bool, datetime]]] = defaultdict(dict)
    for fact in everything.facts(LockFact):
        held, others = fact.message, waiting[fact.message.job, fact.message.shard]
        if isinstance(held, Acquired):
            others.pop(held.execution_id, None)
            if (turn := planned.get(held.execution_id)) is not None and turn > (
                first := min(others.values(), default=turn)
            ):
                yield f"I5: {held.execution_id} got the lock, and one of {first[1]} waited: {fact.subject} {fact.sequence}"
        if isinstance(held, Queued):
            others[held.execution_id] = _turn(Waiter(held.execution_id, held.scheduled_time, held.yields))


def _finished_executions_block_no_other(everything: StoredEvents) -> Iterator[str]:
    """An execution that ended before another was planned blocked nothing."""
    planned: dict[str, int] = {}
    ended: dict[str, int] = {}
    for recorded in everything.log:
        match recorded.message:
            case Planned() as asked:
                planned[asked.execution_id] = recorded.sequence
            case Terminal() as end:
                ended[end.execution_id] = recorded.sequence
            case Skipped(active_execution_id=str(active)) as fact:
                if ended.get(active, recorded.sequence) < planned.get(fact.execution_id, 0):
                    yield f"I5: {active} was over, and is why it was skipped: {recorded.subject} {recorded.sequence}"


def _a_full_queue_was_full(everything: StoredEvents) -> Iterator[str]:
    """Check that a skip for a full queue found it full, and that no more wait, but for replays and backfills."""
    plans = {fact.message.execution_id: fact.message for fact in everything.facts(Planned)}
    state: dict[str, lock.Lock] = {}
    longest: Counter[str] = Counter()
    for fact in everything.log:
        match fact.message:
            case LockFact(job=job) as held:
                state[job] = lock.evolve(state.get(job, lock.initial), fact)
                waiting = sum(not waiter.yields for waiter in state[job].waiting)
                longest[job] = max(longest[job], waiting)
                asked = plans.get(held.execution_id)
                if isinstance(held, Queued) and not held.yields and asked and waiting > asked.plan.max_waiting:
                    yield f"QUEUE: {waiting} wait, and {asked.plan.max_waiting} may: {fact.subject} {fact.sequence}"
            case Skipped(reason="queue_full", job=job, execution_id=execution_id):
                if longest[job] < (limit := plans[execution_id].plan.max_waiting):
                    yield f"QUEUE: at most {longest[job]} waited, and {limit} may: {fact.subject} {fact.sequence}"


def _turn(waiting: Waiter) -> tuple[bool, datetime]:
    return waiting.yields, waiting.scheduled_time


def _a_lock_lasts_as_long_as_its_steps_may(everything: StoredEvents) -> Iterator[str]:
    planned = {fact.message.execution_id: fact for fact in everything.facts(Planned)}
    for acquired in everything.facts(Acquired):
        asked = planned.get(acquired.message.execution_id)
        if asked is None or acquired.sequence < asked.sequence:
            # An earlier delivery of its trigger took the lock, by the definition of that time. Its steps may now take longer. That
            # shows the lock for too short a time, and loses it never: only the end of the execution releases it.
            continue
        if acquired.message.ttl != lock.ttl(asked.message):
            held = f"{acquired.message.ttl:g} seconds, and may take {lock.ttl(asked.message):g}"
            yield f"I5: {acquired.message.execution_id} has the lock for {held}: {acquired.subject} {acquired.sequence}"


def _a_dead_letter_tells_every_attempt(everything: StoredEvents) -> Iterator[str]:
    for letter in _all(everything, DeadLettered):
        facts = (recorded.message for recorded in everything.executions[letter.execution_id])
        tried = {(fact.step, fact.attempt) for fact in facts if isinstance(fact, Dispatched)}
        if len(letter.attempts) != len(tried):
            yield f"I7: the dead letter of {letter.execution_id} tells of {len(letter.attempts)} attempts of {len(tried)}"


def _a_request_is_one_replay(everything: StoredEvents) -> Iterator[str]:
    taken: dict[tuple[str, str | None], int] = {}
    for recorded in everything.facts(Replayed):
        fact = recorded.message
        if taken.setdefault((fact.id, fact.request), recorded.sequence) != recorded.sequence:
            yield f"I4: the request {fact.request} is taken twice: {recorded.subject} {recorded.sequence}"


def _what_a_replay_completed_is_resolved(everything: StoredEvents) -> Iterator[str]:
    resolved = {fact.message.id: fact.message for fact in everything.facts(Resolved)}
    completed = {fact.message.execution_id for fact in everything.facts(Completed)}
    for fact in everything.facts(Requested):
        done = fact.message
        if done.replay_of is not None and done.execution_id in completed and done.replay_of not in resolved:
            yield f"I7: {done.execution_id} replayed {done.replay_of}, which is not resolved: {fact.subject}"
    for settled in resolved.values():
        if settled.execution_id is not None and settled.execution_id not in completed:
            yield f"I7: {settled.id} is resolved by {settled.execution_id}, which did not complete"


def _what_is_refused_stays_refused(everything: StoredEvents) -> Iterator[str]:
    replays = {fact.sequence: fact for fact in everything.facts(Replayed)}
    for letter in everything.facts(PoisonMessage):
        asked = replays.get(letter.message.sequence) if letter.message.durable == subjects.REPLAYS else None
        if asked is not None:
            fact = asked.message
            execution_id = execution_plan.replay_id_of(fact, asked.time)
            if execution_id in everything.executions:
                yield f"I3: its replay was refused, and is {execution_id}: {asked.subject} {asked.sequence}"


def _a_refused_trigger_never_runs(everything: StoredEvents) -> Iterator[str]:
    triggers = {(trigger.subject, trigger.sequence): trigger for trigger in everything.facts(Trigger)}
    for letter in everything.facts(PoisonMessage):
        if (trigger := triggers.get((letter.message.subject, letter.message.sequence))) is not None:
            execution_id = _execution_of(trigger)
            if any(not isinstance(fact.message, Skipped) for fact in everything.executions.get(execution_id, ())):
                yield f"I3: it was refused, and runs as {execution_id}: {trigger.subject} {trigger.sequence}"


def _a_trigger_runs_by_a_definition_of_its_time(everything: StoredEvents) -> Iterator[str]:
    """Compare the definitions that were in force between the trigger and the first event of its execution."""
    changes: dict[str, list[Recorded[LedgerFact]]] = defaultdict(list)
    for fact in everything.facts(LedgerFact):
        if isinstance(fact.message, Defined | Deleted):
            changes[fact.message.job].append(fact)
    for trigger in everything.facts(Trigger):
        job = subjects.job_of(trigger.subject)
        made = everything.executions.get(_execution_of(trigger), ())
        if not made or not isinstance(first := made[0].message, Requested):
            continue
        following = zip(changes[job], [*changes[job][1:], None], strict=True)
        of_its_time = {
            change.sequence
            for change, after in following
            if change.time <= made[0].time and (after is None or after.time >= trigger.time)
        }
        if first.plan.definition not in of_its_time:
            yield f"I3: it runs by definition {first.plan.definition}, which was not in force: {first.execution_id}"


def _a_replay_runs_by_what_was_in_force(everything: StoredEvents) -> Iterator[str]:
    """Compare a replay, handled at any time by any replica."""
    defined: dict[str, list[int]] = defaultdict(list)
    for fact in everything.facts(Defined):
        defined[fact.message.job].append(fact.sequence)
    asked = []
    for replay in everything.facts(Replayed):
        fact_ = replay.message
        if fact_.ledger is not None:
            execution_id = execution_plan.replay_id_of(fact_, replay.time)
            asked.append((replay.subject, fact_.job, fact_.ledger, execution_id))
    for subject, job, at, execution_id in asked:
        made = everything.executions.get(execution_id, ())
        first = made[0].message if made else None
        newest = max((sequence for sequence in defined[job] if sequence <= at), default=0)
        if isinstance(first, Requested) and first.plan.definition != newest:
            yield f"I3: it runs by definition {first.plan.definition}, and {newest} was in force: {subject} {execution_id}"


def _only_the_failure_of_who_has_it_counts(everything: StoredEvents) -> Iterator[str]:
    claims: dict[tuple[str, str], Recorded[Started]] = {}
    failures: dict[tuple[str, str, int], list[Report]] = {}
    for recorded in everything.in_order:
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


_RULES: Final[tuple[Callable[[StoredEvents], Iterator[str]], ...]] = (
    _leases_are_not_taken_over,
    _what_is_released_is_held,
    _an_assigned_task_is_not_forgotten,
    _nothing_is_found_lost,
    _nothing_fires_before_its_time,
    _each_trigger_asks_for_a_run_of_its_own,
    _the_earliest_gets_the_lock,
    _finished_executions_block_no_other,
    _a_full_queue_was_full,
    _a_lock_lasts_as_long_as_its_steps_may,
    _a_dead_letter_tells_every_attempt,
    _deaths_end_a_step_in_time,
    _only_the_failure_of_who_has_it_counts,
    _a_request_is_one_replay,
    _what_is_refused_stays_refused,
    _a_refused_trigger_never_runs,
    _a_trigger_runs_by_a_definition_of_its_time,
    _a_replay_runs_by_what_was_in_force,
    _what_a_replay_completed_is_resolved,
)


def _all(everything: StoredEvents, kind: type[M]) -> Iterator[M]:
    return (recorded.message for recorded in everything.facts(kind))
