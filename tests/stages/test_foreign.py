"""Foreign messages are reported, until an operator set them aside."""

import asyncio
from typing import Any, cast

import pytest

from tests.stages.world import World
from tests.system.running import DEADLINE
from tocsin.domain.events import Voided
from tocsin.engine.foreign_reports import ForeignMessages, ForeignReports, not_voided
from tocsin.subjects import Bucket, DecodeError, Stream, UnreadableMessage
from tocsin.testing import InMemoryProjections, ManualClock


async def test_voided_messages_are_not_reported(world: World) -> None:
    clock, log, projections, foreign = world.clock, world.log, world.projections, ForeignMessages()
    for sequence in (9, 7, 8):
        foreign.report("ledger.j.due", sequence, clock.now(), "no guard")
    assert await not_voided(log, projections) == ()
    await ForeignReports(projections, clock, foreign).run_once()
    fields: dict[str, Any] = {"subject": "ledger.j.due", "stored_at": clock.now(), "found": "no guard", "digest": "00"}
    await world.given(Voided(stream="LEDGER", sequence=8, **fields))
    assert [report.sequence for report in await not_voided(log, projections)] == [7, 9]


async def test_unreadable_events_are_read_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log, projections, foreign = world.clock, world.log, world.projections, ForeignMessages()
    barrier = asyncio.Barrier(5)
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
