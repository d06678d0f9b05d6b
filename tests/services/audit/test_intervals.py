"""The audit of intervals: the time from which `@every` counts."""

from datetime import timedelta

import pytest

from tests.services.explain.past import Past, utc
from tocsin.domain import ledger
from tocsin.domain.events import Due
from tocsin.services.audit import audit
from tocsin.services.explain import default_instant, judge

DAY = "2026-11-20T"


@pytest.fixture
def past() -> Past:
    """A job that was deleted after its first run, and then registered again."""
    past = Past("@every 10m").defined(DAY + "09:00:00").ticked(DAY + "09:10:00")
    return past.deleted(DAY + "09:11:00").defined(DAY + "09:13:00")


def violations(past: Past) -> list[str]:
    return [str(violation) for violation in audit(past.facts, patience=timedelta(days=1)).violations]


def test_new_registration_counts_from_itself(past: Past) -> None:
    past.ticked(DAY + "09:22:59").ticked(DAY + "09:23:00").ticked(DAY + "09:33:00")
    fired = [recorded.message.scheduled_time for recorded in past.facts if isinstance(recorded.message, Due)]
    assert fired == [utc(DAY + time) for time in ("09:10:00", "09:23:00", "09:33:00")]
    assert violations(past) == []


@pytest.mark.parametrize("time", ["09:20:00", "09:24:00"])
def test_other_first_instant_is_a_violation(past: Past, time: str) -> None:
    at = utc(DAY + time)
    past.store([Due(job="job", scheduled_time=at, definition=past.facts[-1].sequence)], at)
    assert "no definition in force named that instant" in violations(past)[-1]


def test_next_instant_is_that_of_the_ledger(past: Past) -> None:
    past.until(DAY + "09:14:00")
    [answer] = judge(past.evidence, utc(DAY + "09:23:00"))
    assert answer.verdict == "future"
    assert judge(past.evidence, utc(DAY + "09:20:00"))[0].verdict == "not-scheduled"
    assert default_instant(past.evidence) == ledger.next_fire_time(past.state, past.now)
