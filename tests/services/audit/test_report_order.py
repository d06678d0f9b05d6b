"""Reports come from a stream of their own: the audit takes them in any order relative to the log."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final, TypeAlias

import msgspec
import pytest

from tests.domain.given import KEY, admitted, first_tasks, proven, recorded, report, started
from tests.services.audit.test_defects import happened
from tests.stored_events import StoredEvents
from tocsin.domain.events import Completed, Message, Recorded, Started
from tocsin.services import audit

Messages: TypeAlias = Sequence[Recorded[Message]]


@pytest.fixture(scope="module")
def everything() -> StoredEvents:
    return asyncio.run(happened())


def reports_first(everything: StoredEvents) -> StoredEvents:
    return replace(everything, log=(*everything.reports, *everything.log), reports=())


def reports_last(everything: StoredEvents) -> StoredEvents:
    return replace(everything, log=(*everything.log, *everything.reports), reports=())


ORDERS: Final = [reports_first, reports_last]
Order: TypeAlias = Callable[[StoredEvents], StoredEvents]


@pytest.mark.parametrize("order", ORDERS)
def test_reports_in_any_order_break_nothing(everything: StoredEvents, order: Order) -> None:
    report = order(everything).audited()
    assert [str(violation) for violation in report.violations] == []
    assert report.debts == ()


@pytest.mark.parametrize("order", ORDERS)
def test_missing_report_is_noticed_in_any_order(everything: StoredEvents, order: Order) -> None:
    violations = order(replace(everything, reports=everything.reports[1:])).audited().violations
    assert [violation.invariant for violation in violations] == ["I3"]
    assert "reported that it" in violations[0].reason


@pytest.mark.parametrize("order", ORDERS)
def test_report_with_a_foreign_token_proves_nothing(everything: StoredEvents, order: Order) -> None:
    [first, *others] = everything.reports
    forged = msgspec.structs.replace(first, message=first.message.changed(token="forged"))
    violations = order(replace(everything, reports=[forged, *others])).audited().violations
    assert {violation.invariant for violation in violations} == {"I3"}


@pytest.mark.parametrize("order", ORDERS)
def test_reported_attempt_without_claim_is_noticed(everything: StoredEvents, order: Order) -> None:
    lost = next(r for r in everything.log if isinstance(r.message, Started))
    log = [recorded for recorded in everything.log if recorded is not lost]
    reasons = [found.reason for found in order(replace(everything, log=log)).audited().violations]
    assert any("was never started" in reason for reason in reasons), reasons


def test_missing_report_is_doubted_while_clocks_may_differ(everything: StoredEvents) -> None:
    end = everything.facts(Completed)[0].message
    of_it = [recorded for recorded in everything.log if _is_of(recorded, end.execution_id)]
    assert _audited(of_it, until=9).violations == ()
    assert "reported that it completed" in _audited(of_it, until=10).violations[0].reason


def _is_of(recorded: Recorded[Message], execution_id: str) -> bool:
    return getattr(recorded.message, "execution_id", None) == execution_id


def _audited(log: Messages, *, until: int) -> audit.Report:
    end = max(recorded.time for recorded in log if isinstance(recorded.message, Completed))
    return audit.audit(log, until=end + timedelta(seconds=until))


def test_report_without_its_proof_does_not_count() -> None:
    """A stage ignores it, so none owes a decision. An export holds no key: there the token counts."""
    [task] = first_tasks(admitted())
    claim = 3
    forged = report("completed", token=task.token, claim=claim, proof="guessed")
    facts = recorded((admitted(), task, started(), forged))
    reasons = {
        key: [debt.reason for debt in audit.audit(facts, key=key, patience=timedelta(days=1)).debts]
        for key in (KEY, None)
    }
    assert "attempt 1 of main is under way" in reasons[KEY]
    assert "main is reported as completed" not in reasons[KEY]
    assert "main is reported as completed" in reasons[None]
    honest = recorded((admitted(), task, started(), proven(forged)))
    assert "main is reported as completed" in [debt.reason for debt in audit.audit(honest, key=KEY).debts]
