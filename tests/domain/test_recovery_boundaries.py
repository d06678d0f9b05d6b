"""Stalled executions in full, and the limits of the policy at their second."""

from datetime import datetime, timedelta

import pytest

from tests.domain.given import ID, JOB, NOON, admitted, plan, started
from tests.domain.test_recovery import (
    LIMIT,
    POLICY,
    SECOND,
    THRESHOLD,
    TWO,
    Log,
    found,
    limited,
    planned,
    running,
)
from tocsin.domain import recovery
from tocsin.domain.events import Failure, Lost, Recovered, Released
from tocsin.domain.execution import Phase
from tocsin.domain.recovery import Findings, Overdue

HOUR = timedelta(hours=1)


def recovered(log: Log, number: int, *lost: Lost) -> None:
    """Store a recovery at the log's time."""
    log.store(Recovered(job=JOB, execution_id=ID, recovery=number, lost=lost, recovered_at=log.now))


def lost_at(findings: Findings) -> list[tuple[str, datetime, str | None, int | None]]:
    return [(one.lost.what, one.lost.since, one.lost.step, one.lost.attempt) for one in findings.stalled]


@pytest.mark.parametrize(
    ("log", "lost"),
    [
        (Log(planned()), ("planned", NOON, None, None)),
        (Log(admitted()), ("admitted", NOON, "main", None)),
    ],
    ids=["planned", "admitted"],
)
def test_a_loss_names_step_and_attempt(log: Log, lost: tuple[str, datetime, str | None, int | None]) -> None:
    assert lost_at(found(log.examine(HOUR))) == [lost]


def test_what_was_lost_before_keeps_its_attempt() -> None:
    log = running()
    log.store(started())
    log.now += HOUR
    log.store(Released(job=JOB, execution_id=ID, step="main", attempt=1, delivery=1, task=2, reason="lease_over"))
    assert lost_at(found(log.examine(2 * HOUR))) == [("admitted", NOON + HOUR, "main", 1)]


def test_a_dispatched_step_waits_for_a_worker() -> None:
    assert found(running().examine(100 * THRESHOLD)).stalled == ()


def test_the_newest_fact_of_a_kind_counts() -> None:
    log = Log(admitted())
    for number in (1, 2):
        log.now += HOUR
        recovered(log, number)
    [stalled] = found(log.examine(2 * HOUR + THRESHOLD)).stalled
    assert (stalled.sequence, stalled.lost.since) == (3, NOON + 2 * HOUR)


def test_a_fact_before_the_request_is_no_request() -> None:
    log = Log(Recovered(job=JOB, execution_id=ID, recovery=1, lost=(), recovered_at=NOON))
    log.now += HOUR
    log.store(admitted())
    [stalled] = found(log.examine(2 * HOUR)).stalled
    assert (stalled.lost.since, stalled.sequence) == (NOON + HOUR, 2)


def test_without_a_request_nothing_is_known() -> None:
    with pytest.raises(LookupError):
        Log(started()).examine()


@pytest.mark.parametrize(
    ("age", "recovers"), [(POLICY.max_age, True), (POLICY.max_age + timedelta(microseconds=1), False)]
)
def test_the_greatest_age_is_still_recovered(age: timedelta, *, recovers: bool) -> None:
    findings = found(Log(admitted()).examine(age))
    lost = [one.lost for one in findings.stalled]
    fact = recovery.recover(findings, lost, now=NOON + age, policy=POLICY, job="active")
    assert isinstance(fact, Recovered) is recovers


def test_the_newest_loss_decides_on_the_age() -> None:
    log = Log(admitted())
    old, new = (Lost(what="admitted", since=NOON + hours * HOUR, step="main") for hours in (0, 30))
    findings, now = found(log.examine(40 * HOUR)), NOON + 40 * HOUR
    for lost, recovers in (((old, new), True), ((new,), True), ((old,), False)):
        fact = recovery.recover(findings, lost, now=now, policy=POLICY, job="active")
        assert isinstance(fact, Recovered) is recovers


def test_a_recovery_names_all_that_was_lost() -> None:
    log = Log(admitted(plan({"a": (), "b": ()})))
    findings = found(log.examine(HOUR))
    lost = [one.lost for one in findings.stalled]
    fact = recovery.recover(findings, lost, now=NOON + HOUR, policy=POLICY, job="active")
    assert isinstance(fact, Recovered)
    assert (fact.job, fact.execution_id, fact.recovery, fact.recovered_at) == (JOB, ID, 1, NOON + HOUR)
    assert [one.step for one in fact.lost] == ["a", "b"]


def test_ends_without_an_answer_are_final() -> None:
    error = recovery.overrun(found(running(limited(10)).examine(10 * SECOND)))
    assert error is not None
    assert (error.type, error.retryable) == ("timed_out", False)
    assert "10s" in error.message
    findings = found(Log(admitted()).examine(HOUR))
    lost = [one.lost for one in findings.stalled]
    fact = recovery.recover(findings, lost, now=NOON + HOUR, policy=POLICY, job="gone")
    assert isinstance(fact, Failure)
    assert (fact.type, fact.retryable) == ("abandoned", False)
    assert "deleted" in fact.message


def test_an_overdue_attempt_says_who_is_silent() -> None:
    outside, one, several = (
        Overdue("main", 1, delivery, 45.0, claims, is_outside=is_outside).error
        for delivery, claims, is_outside in ((1, 1, True), (1, 1, False), (7, 7, False))
    )
    assert {error.type for error in (outside, one, several)} == {"timed_out"}
    assert all("45s" in error.message for error in (outside, one, several))
    assert len({outside.message, one.message, several.message}) == 3
    assert "7" in several.message


def test_an_overdue_attempt_names_its_claim() -> None:
    log = running(plan(retry=TWO))
    log.store(started())
    [overdue] = found(log.examine(LIMIT)).overdue
    assert overdue == Overdue("main", 1, 1, 30.0, 1)


def test_a_step_that_waits_has_not_stalled() -> None:
    log = running(plan({"a": (), "b": ("a",)}))
    log.store(started("a"))
    findings = found(log.examine(SECOND))
    assert findings.state.steps["b"].phase is Phase.WAITING
    assert lost_at(found(log.examine(LIMIT + HOUR))) == []
