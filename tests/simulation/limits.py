"""The limits of jobs, as the log and the hand-overs show them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

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
    TaskLimit,
    Terminal,
)

from .cast import Surroundings

Attempt: TypeAlias = tuple[str, str, int]


@dataclass(slots=True)
class _Claim:
    sequence: int
    delivery: int
    group: tuple[str, str | None, str | None]
    limit: int
    begin: float
    end: float = float("inf")


def broken_limits(everything: StoredEvents, around: Surroundings) -> Iterator[str]:
    """Yield each task that was handed over while earlier claims of its group reached its limit."""
    claims = _claims(everything, around)
    by_group: dict[object, list[_Claim]] = defaultdict(list)
    for claim in claims:
        by_group[claim.group].append(claim)
    for claim in claims:
        at = around.hall.handed_over.get(claim.sequence)
        if at is None:
            continue
        earlier = [c for c in by_group[claim.group] if c.sequence < claim.sequence and c.end > at]
        if len(earlier) >= claim.limit:
            yield f"LIMIT: {len(earlier)} of {claim.group} run, and {claim.limit} may: claim {claim.sequence} at {at}"


def _claims(everything: StoredEvents, around: Surroundings) -> list[_Claim]:
    """Return the claims with a limit, in the order of the log, with the time in which they are open."""
    limits: dict[Attempt, TaskLimit] = {}
    claims: dict[Attempt, list[_Claim]] = defaultdict(list)
    seconds = around.server.clock.seconds
    for recorded in everything.facts(Dispatched):
        task = recorded.message
        if task.concurrency is not None:
            limits[task.execution_id, task.step, task.attempt] = task.concurrency
    for started in everything.facts(Started):
        fact = started.message
        attempt = fact.execution_id, fact.step, fact.attempt
        if (limit := limits.get(attempt)) is not None:
            group = fact.job, limit.key, limit.value
            claims[attempt].append(_Claim(started.sequence, fact.delivery, group, limit.limit, seconds(started.time)))
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
        case Released() | RetryScheduled() | Advanced() | Exhausted() as fact:
            return claims.get((fact.execution_id, fact.step, fact.attempt), [])
        case Recovered() | Terminal() as fact:
            return [
                claim for (execution_id, *_), of in claims.items() if execution_id == fact.execution_id for claim in of
            ]
        case _:
            return []
