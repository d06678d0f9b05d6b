"""The measurements and plans of chaos and failover distinguish good from bad."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from tests.stored_events import StoredEvents
from tests.system.chaos.plan import CARDS, Kind, plan
from tests.system.gaps import KILL, TICK, Gaps, measured
from tocsin.domain.events import Due, Message, Recorded, Trigger

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAMES: Final[dict[Kind, Sequence[str]]] = {
    "stage": ("a-1", "a-2"),
    "worker": ("w-1", "w-2"),
    "node": ("n-1", "n-2", "n-3"),
}


def gaps(fired: Sequence[tuple[int, float]], kills: Sequence[float]) -> Gaps:
    """Of instants, each with when it was stored, and of kills: in seconds from noon."""
    facts: list[tuple[float, str, Message]] = [
        (stored, f"ledger.{TICK['name']}.due", Due(job=TICK["name"], scheduled_time=_at(second), definition=1))
        for second, stored in fired
    ]
    facts += [(kill, f"trigger.{KILL['name']}", Trigger(reason="ticker")) for kill in kills]
    ordered = sorted(facts, key=lambda fact: fact[0])
    return measured(
        StoredEvents(ledger=[Recorded(fact, subject, n, _at(at)) for n, (at, subject, fact) in enumerate(ordered)]),
        "ticker",
    )


def _at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def test_gap_of_a_kill_ends_before_the_next() -> None:
    found = gaps([(1, 1), (2, 5), (3, 5), (4, 5), (5, 5), (6, 6), (7, 13), (8, 13)], kills=[1.5, 6.5])
    assert [(gap.length, gap.from_kill) for gap in found.gaps] == [(4, 3.5), (7, 6.5)]
    assert (found.instants, found.lost, found.doubled) == (8, 0, 0)


def test_missing_and_repeated_occurrences_are_counted() -> None:
    found = gaps([(1, 1), (2, 2), (2, 2.5), (5, 5)], kills=[2.2])
    assert (found.instants, found.lost, found.doubled) == (3, 2, 1)


def test_seed_gives_one_plan_with_every_fault() -> None:
    assert plan(7, 300, NAMES) == plan(7, 300, NAMES)
    assert plan(7, 300, NAMES) != plan(8, 300, NAMES)
    kinds = {name: kind for kind, names in NAMES.items() for name in names}
    played = {(strike.how, tuple(kinds[victim] for victim in strike.victims)) for strike in plan(7, 300, NAMES)}
    assert played == set(CARDS)
    assert all(len(set(strike.victims)) == len(strike.victims) for strike in plan(7, 300, NAMES))
