"""Followers that fold the last message of each subject read the scope of a foreign message whole."""

import asyncio
from contextlib import suppress
from typing import Any, cast

import pytest

from tests.domain.given import ID
from tests.system.running import DEADLINE
from tocsin.domain.events import AgentDrainStarted, AgentRegistered, Message, QueuePaused, QueuePurged, Recorded, Voided
from tocsin.domain.task_board import TaskBoard
from tocsin.engine import foreign_reports
from tocsin.engine.foreign_reports import ForeignReports, load_scope, not_voided, scopes_of
from tocsin.ports import LogUnavailable
from tocsin.stages.agent_keeper.roster import Roster
from tocsin.stages.matcher.operator_decisions import OperatorDecisions
from tocsin.subjects import Bucket, DecodeError, Stream, UnreadableMessage
from tocsin.telemetry.foreign import ForeignMessages
from tocsin.testing import InMemoryEventLog, InMemoryProjections, ManualClock

REGISTERED = AgentRegistered(name="mail-1", agent_id=ID, queues=("default",), functions=("f",))


async def test_roster_keeps_an_agent_whose_registration_is_hidden() -> None:
    log = InMemoryEventLog()
    sequence = await log.append(REGISTERED, expect=0)
    sequence = await log.append(AgentDrainStarted(name="mail-1", agent_id=ID), expect=sequence)
    log.receive(f"agent.mail-1.{ID}.registered", b"junk")
    roster = Roster(log)
    following = asyncio.create_task(roster.follow())
    while not roster.is_complete:  # noqa: ASYNC110 - the roster announces nothing
        await asyncio.sleep(0)
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    entry = roster.find("mail-1", ID)
    assert entry is not None
    assert (entry.state.registered, entry.state.is_draining) == (REGISTERED, True)


async def test_hidden_pause_of_a_queue_holds() -> None:
    log = InMemoryEventLog()
    sequence = await log.append(QueuePaused(queue="mail"), expect=0)
    await log.append(QueuePurged(queue="mail", upto=0), expect=sequence)
    log.receive("queue.mail.paused", b"junk")
    decisions = OperatorDecisions(TaskBoard(), requires_grant=False)
    async for batch in log.follow(Stream.LEDGER, "queue.*.*", after=None):
        for recorded in batch.messages:
            decisions.learn(recorded)
        assert not decisions.queue("mail").is_paused
        decisions.learn_again(await load_scope(log, "queue.mail.>"))
        break
    assert decisions.queue("mail").is_paused


async def test_voided_messages_are_not_reported() -> None:
    clock, log, foreign = ManualClock(), InMemoryEventLog(), ForeignMessages()
    projections = InMemoryProjections(clock)
    for sequence in (9, 7, 8):
        foreign.report("ledger.j.due", sequence, clock.now(), "no guard")
    assert await not_voided(log, projections) == ()
    await ForeignReports(projections, clock, foreign).run_once()
    fields: dict[str, Any] = {"subject": "ledger.j.due", "stored_at": clock.now(), "found": "no guard", "digest": "00"}
    await log.append(Voided(stream="LEDGER", sequence=8, **fields), expect=0)
    assert [report.sequence for report in await not_voided(log, projections)] == [7, 9]


async def test_unreadable_events_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log, foreign = ManualClock(), InMemoryEventLog(), ForeignMessages()
    projections, barrier = InMemoryProjections(clock), asyncio.Barrier(5)
    for sequence in range(1, 6):
        unread = UnreadableMessage(Stream.LOG, "execution.j.e.unknown", sequence, clock.now(), "00")
        foreign.report_unreadable(unread, "no type")
    await ForeignReports(projections, clock, foreign).run_once()

    async def get(subject: str, sequence: int) -> None:
        await barrier.wait()
        if sequence == 3:
            raise DecodeError(subject)

    monkeypatch.setattr(log, "get", get)
    async with asyncio.timeout(DEADLINE):
        assert [report.sequence for report in await not_voided(log, projections)] == [3]


def test_message_without_a_guard_makes_no_scope_read() -> None:
    at = ManualClock().now()
    subjects = ("trigger.load", "queue.mail.paused", "queue.mail.purged")
    foreign = [Recorded[Message](QueuePaused(queue="mail"), subject, 1, at) for subject in subjects]
    assert scopes_of(foreign) == ["queue.mail.>"]


async def test_scope_is_read_again_until_the_log_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_reports, "RETRY_S", 0.0)
    log, answers = InMemoryEventLog(), iter([LogUnavailable("gone"), None])
    await log.append(REGISTERED, expect=0)
    load = log.load

    async def flaky(scope: str, *, after: int = 0) -> Any:  # noqa: ANN401 - what `load` returns
        if (error := next(answers)) is not None:
            raise error
        return await load(scope, after=after)

    monkeypatch.setattr(log, "load", flaky)
    assert [one.message for one in await load_scope(log, f"agent.mail-1.{ID}.>")] == [REGISTERED]


async def test_report_that_fails_is_tried_again() -> None:
    clock, foreign = ManualClock(), ForeignMessages()
    projections = InMemoryProjections(clock)
    broken = cast("InMemoryProjections", object())  # every call of it fails
    reports = ForeignReports(broken, clock, foreign)
    foreign.report("ledger.j.due", 7, clock.now(), "no guard")
    await reports.run_once()
    reports._projections = projections
    await reports.run_once()
    assert list(await projections.entries(Bucket.FOREIGN)) == ["LEDGER.7"]
