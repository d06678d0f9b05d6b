"""The limits of jobs and of queues, as the log and the hand-overs show them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.stored_events import StoredEvents
from tocsin.domain.events import (
    Advanced,
    Dispatched,
    Exhausted,
    Message,
    Recovered,
    Released,
    Report,
    RetryScheduled,
    Started,
    Terminal,
)

from .cast import Surroundings

Attempt: TypeAlias = tuple[str, str, int]
Group: TypeAlias = tuple[str | None, ...]
"""The tasks that a limit counts together: a job, a path and its value; or a queue."""

LATE_S: Final = 4.0
"""Seconds between the moment in which a matcher takes a token of a rate and the storage of its claim, without pauses of processes."""


@dataclass(slots=True)
class _Claim:
    sequence: int
    delivery: int
    limits: Mapping[Group, int]
    begin: float
    end: float = float("inf")


def broken_limits(everything: StoredEvents, around: Surroundings) -> Iterator[str]:
    """Yield each task that was handed over while earlier claims of its group reached its limit."""
    claims = _claims(everything, around)
    by_group: dict[Group, list[_Claim]] = defaultdict(list)
    for claim in claims:
        for group in claim.limits:
            by_group[group].append(claim)
    for claim in claims:
        if (at := around.hall.handed_over.get(claim.sequence)) is None:
            continue
        for group, limit in claim.limits.items():
            earlier = [c for c in by_group[group] if c.sequence < claim.sequence and c.end > at]
            if len(earlier) >= limit:
                yield f"LIMIT: {len(earlier)} of {group} run, and {limit} may: claim {claim.sequence} at {at}"


def broken_rates(everything: StoredEvents, around: Surroundings) -> Iterator[str]:
    """Yield each span of time in which more tasks of a queue started than its rate permits."""
    queues = {(t.execution_id, t.step, t.attempt): t.queue for t in (r.message for r in everything.facts(Dispatched))}
    started: dict[str, list[float]] = defaultdict(list)
    for recorded in everything.facts(Started):
        fact = recorded.message
        queue = queues.get((fact.execution_id, fact.step, fact.attempt), "")
        started[queue].append(around.server.clock.seconds(recorded.time))
    for queue, settings in around.settings.queues.items():
        if (rate := settings.rate) is None:
            continue
        times = started[queue]
        for first, since in enumerate(times):
            for number, until in enumerate(times[first:], start=1):
                late = LATE_S + around.network.longest_pause(since - LATE_S, until)
                most = (rate.burst or rate.limit) + rate.limit * (until - since + late) / rate.per
                if number > most:
                    yield f"RATE: {number} of {queue} started from {since:.3f} to {until:.3f}, and {most:.1f} may"
                    return


def _claims(everything: StoredEvents, around: Surroundings) -> list[_Claim]:
    """Return the claims with a limit, in the order of the log, with the time in which they are open."""
    limits: dict[Attempt, dict[Group, int]] = {}
    of_queues = {name: queue.concurrency for name, queue in around.settings.queues.items() if queue.concurrency}
    claims: dict[Attempt, list[_Claim]] = defaultdict(list)
    seconds = around.server.clock.seconds
    for recorded in everything.facts(Dispatched):
        task = recorded.message
        of_task = limits[task.execution_id, task.step, task.attempt] = {}
        if (limit := task.concurrency) is not None:
            of_task[task.job, limit.key, limit.value] = limit.limit
        if task.queue in of_queues:
            of_task[task.queue,] = of_queues[task.queue]
    for started in everything.facts(Started):
        fact = started.message
        attempt = fact.execution_id, fact.step, fact.attempt
        if of_attempt := limits.get(attempt):
            claims[attempt].append(_Claim(started.sequence, fact.delivery, of_attempt, seconds(started.time)))
    for end in (*everything.reports, *everything.log):
        at = seconds(end.time)
        for claim in _ended(end.message, claims):
            if claim.begin <= at:
                claim.end = min(claim.end, at)
    return sorted((claim for of in claims.values() for claim in of), key=lambda claim: claim.sequence)


def _ended(message: Message, claims: Mapping[Attempt, list[_Claim]]) -> list[_Claim]:
    """Return the claims that a report or an event ends."""
    match message:
        case Report() as fact:
            delivery = None if fact.outcome == "completed" else fact.delivery
            of = claims.get((fact.execution_id, fact.step, fact.attempt), [])
            return [claim for claim in of if delivery in {None, claim.delivery}]
        case Advanced() as fact:  # the late success of an earlier attempt ends the claim of a later attempt too
            step = fact.execution_id, fact.step
            return [claim for (*of_step, _), of in claims.items() if tuple(of_step) == step for claim in of]
        case Released() | RetryScheduled() | Exhausted() as fact:
            return claims.get((fact.execution_id, fact.step, fact.attempt), [])
        case Recovered() | Terminal() as fact:
            return [
                claim for (execution_id, *_), of in claims.items() if execution_id == fact.execution_id for claim in of
            ]
        case _:
            return []
