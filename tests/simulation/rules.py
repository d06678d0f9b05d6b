"""What holds of a schedule, since all of it is known, and cannot be told of any log."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Final, TypeVar

from tests.everything import Everything
from tocsin import subjects
from tocsin.domain import planning
from tocsin.domain.events import (
    Acquired,
    DeadLettered,
    Dispatched,
    Due,
    LockFact,
    Message,
    Queued,
    Recovered,
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
    for rule in _RULES:
        yield from rule(everything)


def _nobody_works_without_a_claim(everything: Everything, runs: list[Run]) -> Iterator[str]:
    claims = {(c.execution_id, c.step, c.attempt, c.delivery, c.worker) for c in _all(everything, Started)}
    for run in runs:
        if run not in claims:
            yield f"I3: it was worked at without a claim: {run}"


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
    waiting: dict[str, tuple[Waiting, ...]] = {}
    for fact in everything.facts(LockFact):
        held = fact.message
        if isinstance(held, Acquired):
            earliest = min((w.scheduled_time for w in waiting.get(held.job, ())), default=held.scheduled_time)
            if held.scheduled_time > earliest:
                yield f"I5: {held.execution_id} got the lock, and one of {earliest} waited: {fact.subject} {fact.sequence}"
        if isinstance(held, Acquired | Queued):
            waiting[held.job] = held.waiting


def _a_dead_letter_tells_every_attempt(everything: Everything) -> Iterator[str]:
    for letter in _all(everything, DeadLettered):
        tried = sum(isinstance(r.message, Dispatched) for r in everything.executions[letter.execution_id])
        if len(letter.attempts) != tried:
            yield f"I7: the dead letter of {letter.execution_id} tells of {len(letter.attempts)} attempts of {tried}"


_RULES: Final[tuple[Callable[[Everything], Iterator[str]], ...]] = (
    _nothing_is_found_lost,
    _nothing_fires_before_its_time,
    _each_trigger_asks_for_a_run_of_its_own,
    _the_earliest_gets_the_lock,
    _a_dead_letter_tells_every_attempt,
)


def _all(everything: Everything, kind: type[M]) -> Iterator[M]:
    return (recorded.message for recorded in everything.facts(kind))
