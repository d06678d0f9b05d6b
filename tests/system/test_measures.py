"""The measurements and plans of chaos and failover distinguish good from bad."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, Final

from tests.domain.given import admitted
from tests.stored_events import StoredEvents
from tests.system.chaos.plan import CARDS, Kind, plan
from tests.system.gaps import KILL, TICK, Gaps, measured
from tests.system.lost_workers import Kill, Losses, judged
from tocsin.domain.events import Completed, Due, Message, Recorded, Report, Started, Trigger

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


def test_gap_of_a_killed_matcher_is_between_starts() -> None:
    facts: list[tuple[float, str, Message]] = [(1.5, f"trigger.{KILL['name']}", Trigger(reason="matcher"))]
    for second, started in enumerate((1.0, 6.5, 6.5, 6.5), 1):
        at, id_ = _at(second), f"{second}"
        request = admitted().changed(job=TICK["name"], execution_id=id_, scheduled_time=at)
        facts.append((second, f"ledger.{TICK['name']}.due", Due(job=TICK["name"], scheduled_time=at, definition=1)))
        facts.append((second, f"execution.{TICK['name']}.{id_}.admitted", request))
        start = Started(job=TICK["name"], execution_id=id_, step="main", attempt=1, delivery=1, worker="w")
        facts.append((started, f"execution.{TICK['name']}.{id_}.started.main.1.1", start))
    ordered = sorted(facts, key=lambda fact: fact[0])
    events = [Recorded(fact, subject, n, _at(at)) for n, (at, subject, fact) in enumerate(ordered)]
    [gap] = measured(StoredEvents(ledger=events), "matcher").gaps
    assert (gap.length, gap.from_kill) == (5.5, 5.0)
    lost = [event for event in events if ".3.started" not in event.subject]
    twice = [*events, next(event for event in events if ".2.started" in event.subject)]
    assert [measured(StoredEvents(ledger=each), "matcher").lost for each in (events, lost)] == [0, 1]
    assert [measured(StoredEvents(ledger=each), "matcher").doubled for each in (events, twice)] == [0, 1]


def test_only_tasks_of_killed_workers_run_again() -> None:
    def started(second: float, id_: str, delivery: int, pid: int) -> tuple[float, str, Message]:
        claim = Started(job="j", execution_id=id_, step="main", attempt=1, delivery=delivery, worker=f"host-{pid}-1")
        return second, f"execution.j.{id_}.started.main.1.{delivery}", claim

    def ended(second: float, id_: str) -> list[tuple[float, str, Message]]:
        of: dict[str, Any] = {"job": "j", "execution_id": id_}
        report = Report(**of, outcome="completed", step="main", attempt=1, token="t", worker="w")
        done = Completed(**of, scheduled_time=NOON, trigger="cron")
        return [(second, f"report.j.{id_}", report), (second, f"execution.j.{id_}.completed", done)]

    def losses(*facts: tuple[float, str, Message]) -> Losses:
        events = [
            Recorded(fact, subject, n, _at(at))
            for n, (at, subject, fact) in enumerate(sorted(facts, key=itemgetter(0)), 1)
        ]
        return judged(StoredEvents(ledger=events), [Kill(7, _at(2))])

    lost = [started(1, "a", 1, 7), started(33.5, "a", 2, 9), *ended(40, "a")]
    kept = [started(1, "b", 1, 8), *ended(3, "b")]
    assert losses(*lost, *kept) == Losses(1, 1, 31.5, 31.5, [])
    assert losses(*lost, *kept, started(2.5, "b", 2, 9)).problems != []
    assert losses(*lost, started(50, "a", 3, 9)).problems != []
    assert losses(*lost, started(1, "c", 1, 7)).problems == ["2 executions started, and 1 completed"]


def test_seed_gives_one_plan_with_every_fault() -> None:
    assert plan(7, 300, NAMES) == plan(7, 300, NAMES)
    assert plan(7, 300, NAMES) != plan(8, 300, NAMES)
    kinds = {name: kind for kind, names in NAMES.items() for name in names}
    played = {(strike.how, tuple(kinds[victim] for victim in strike.victims)) for strike in plan(7, 300, NAMES)}
    assert played == set(CARDS)
    assert all(len(set(strike.victims)) == len(strike.victims) for strike in plan(7, 300, NAMES))
