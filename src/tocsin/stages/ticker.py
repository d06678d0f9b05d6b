"""Ticker: stores the decision on each instant when it comes."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from ..domain import ledger
from ..domain.events import Deleted, Due, Passed
from ..domain.ledger import Ledger
from ..engine.fold import LEDGER
from ..engine.kinds import NEWEST_SHARD_MAP
from ..engine.stage import Access, Deadline, DeadlineRule, Stage
from ..engine.step import Events, States, Step, done
from ..subjects import TIMEZONE_REPORT, Bucket

AT_ONCE: Final = 256
"""Decisions of a job in one call; more would delay other jobs."""


class Ticker:
    """Decides on the instants of every job."""

    def next_of(self, state: Ledger) -> Iterator[Deadline]:
        """Return when the next instant of a job needs a decision."""
        if (current := state.current) is None:
            return
        at = ledger.next_instant(state, state.watermark or state.regimes[0].since)
        if at == current.since and next(ledger.undecided_occurrences(state, at), None) is None:
            at = ledger.next_instant(state, at)
        if at is not None:
            yield Deadline(at)

    def on_instant(self, scope: str, deadline: Deadline, states: States, now: datetime) -> Step:  # noqa: ARG002 - of all up to now
        """Decide on the instants of a job up to now."""
        ref = LEDGER(scope)
        state, (version, _) = states(ref), states(NEWEST_SHARD_MAP(None))
        facts = ledger.decide_instants(state, now, shards=version)
        return done(Events(ref, tuple(_first_of(facts) or ledger.complete(state))))


def _first_of(facts: Sequence[Due | Passed]) -> Sequence[Due | Passed]:
    """Return as many decisions as one call may yield, but all on one instant."""
    number = len(facts)
    while number > AT_ONCE or (0 < number < len(facts) and _instant(facts[number - 1]) == _instant(facts[number])):
        number -= 1
    return facts[:number]


def _instant(fact: Due | Passed) -> datetime:
    return fact.scheduled_time if isinstance(fact, Due) else fact.until


TICKER: Final = Stage(
    name="ticker",
    purpose="decides on each instant when it comes",
    consumes="the clock, the ledgers",
    decides="`due` or `passed`; `deleted` if `on_completion` is `drop`",
    access=Access(appends=(Due, Passed, Deleted), writes=((Bucket.TIMEZONES, TIMEZONE_REPORT),)),
    start=lambda _: Ticker(),
    deadlines=(DeadlineRule(LEDGER, Ticker.next_of, Ticker.on_instant),),
)
