"""Totals: what a batch of events counts, and the limits of names."""

from datetime import timedelta

import pytest

from tests.domain.given import NOON, admitted, recorded, started
from tocsin.domain import history
from tocsin.domain.dead_letter import dead_letters
from tocsin.domain.events import Failed, Lost, Message, Recovered, validated
from tocsin.domain.totals import MAX_STEPS, NO_BOUND, OTHER, UNREGISTERED, Growth, Kind, Total, bucket, growth_of_log

EXECUTION = {"job": "nightly", "execution_id": "1"}


def growth(*messages: Message) -> Growth:
    batch = recorded(messages)
    return growth_of_log({}, history.fold({}, batch), batch, dead_letters(batch).values())


@pytest.mark.parametrize(
    ("kind", "seconds", "bound"),
    [
        ("duration", 0.0, "0.1"),
        ("duration", 0.1, "0.1"),
        ("duration", 0.11, "0.5"),
        ("duration", 14_400.0, "14400"),
        ("duration", 14_400.1, NO_BOUND),
        ("lateness", 0.2, "0.25"),
    ],
)
def test_bucket_includes_its_upper_bound(kind: Kind, seconds: float, bound: str) -> None:
    assert bucket(kind, seconds) == bound


def test_recoveries_belong_to_the_installation() -> None:
    lost = (Lost(what="admitted", since=NOON), Lost(what="planned", since=NOON))
    recovered = validated(Recovered, {**EXECUTION, "recovery": 1, "lost": lost, "recovered_at": NOON})
    assert growth(recovered).of_registered == {
        Total("recovered"): 1,
        Total("lost", label="admitted"): 1,
        Total("lost", label="planned"): 1,
    }


@pytest.mark.parametrize(("reason", "count"), [("abandoned", 1), ("timed_out", 0)])
def test_abandoned_executions_are_counted(reason: str, count: int) -> None:
    failed = validated(Failed, {**EXECUTION, "scheduled_time": NOON, "trigger": "cron", "reason": reason})
    assert growth(failed).of_registered[Total("abandoned")] == count


def test_times_without_a_zone_are_utc() -> None:
    facts = [
        admitted().changed(scheduled_time=(NOON - timedelta(seconds=8)).replace(tzinfo=None)),
        started(),
    ]
    assert growth(*facts).of_registered[Total("lateness", label="15")] == 1


def test_steps_beyond_the_limit_share_a_name() -> None:
    grown = Growth()
    grown.of_registered[Total("steps", "a", "new", "completed")] = 2
    grown.of_registered[Total("steps", "a", "s1", "completed")] = 1
    known = {"a": frozenset(f"s{n}" for n in range(MAX_STEPS))}
    assert grown.owners == {"a"}
    assert grown.limited(known) == (
        {Total("steps", "a", OTHER, "completed"): 2, Total("steps", "a", "s1", "completed"): 1},
        set(),
    )


def test_new_names_are_returned_with_their_owner() -> None:
    grown = Growth()
    grown.of_others[Total("steps", "x", "main", "completed")] = 1
    assert grown.owners == {"x", UNREGISTERED, OTHER}
    assert grown.limited({})[1] == {(UNREGISTERED, "x"), ("x", "main")}
