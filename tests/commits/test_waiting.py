"""Cancellations of executions that are not open yet: they wait as states of the fold."""

from datetime import datetime
from typing import Any

import pytest

from tests.commits.processes import NAMES, Runner, same_state
from tests.commits.test_memory import Work
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.events import CancelRequest, PoisonMessage, Trigger
from tocsin.domain.execution import Status
from tocsin.engine import waiting
from tocsin.subjects import Stream

LAYOUTS: dict[str, dict[str, Any]] = {
    "fused": {},
    "cut": {"cut": True},
    "restarted": {"restarts": True},
    "cut and restarted": {"cut": True, "restarts": True},
}


def chosen(work: Work, name: str = "x") -> str:
    """An id that the API chooses."""
    return ids.trigger_id("nightly", name, work.installation.clock.now())


async def letters(work: Work) -> list[PoisonMessage]:
    return [r.message for r in await work.installation.events() if isinstance(r.message, PoisonMessage)]


def trigger(work: Work, execution_id: str, job: str = "nightly") -> None:
    work.installation.publish(Stream.REQUESTS, Trigger(), subjects.trigger(job, execution_id), execution_id)


@pytest.mark.parametrize("policy", ["allow", "enqueue"])
@pytest.mark.parametrize("groups", [[NAMES], [[name] for name in NAMES]])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_cancellation_overtakes_its_trigger(layout: str, groups: list[tuple[str, ...]], policy: str) -> None:
    work = Work()
    work.runner = Runner(work.installation, groups, **LAYOUTS[layout])
    await work.define("nightly", overlap_policy=policy)
    await work.trigger("nightly", "t0")
    id_ = chosen(work)
    await work.cancel("nightly", id_)
    work.installation.clock.advance(20)
    await work.runner.run()
    assert subjects.execution("nightly", id_) not in await work.states()
    trigger(work, id_)
    await work.runner.run()
    assert (await work.states())[subjects.execution("nightly", id_)].status is Status.CANCELLED
    work.installation.clock.advance(40)
    await work.runner.run()
    for process in work.runner._processes:
        await process.read_on()
        assert not len(process.fold.waiting)
    assert await letters(work) == []
    assert (await work.kinds(subjects.execution("nightly", id_)))[-1] == "cancelled"


async def test_cancellation_of_nothing_is_answered_after_thirty_seconds() -> None:
    work = Work()
    await work.define("nightly")
    await work.cancel("nightly", chosen(work))
    await work.runner.rest()
    assert len(work.fold.waiting) == 1
    position = work.fold.position("dag_advancer", "REQUESTS")
    assert (position.floor, position.above) == (1, ())  # it holds no other input
    work.installation.clock.advance(28)
    await work.runner.run()
    assert await letters(work) == []
    work.runner = Runner(work.installation, [NAMES])  # a process that begins meanwhile
    await work.runner.run()
    work.installation.clock.advance(2)
    await work.runner.run()
    [letter] = await letters(work)
    assert (letter.code, letter.durable, letter.sequence) == ("not-found", "dag-advancer-cancels", 1)
    assert len(work.fold.waiting) == 0
    assert (work.fold.waiting._on, work.fold.waiting._counts) == ({}, {})


async def test_cancellation_is_answered_at_once_beyond_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_OF_PUBLISHER", 5)
    monkeypatch.setattr(waiting, "MAX_OF_ALL", 12)
    work = Work()
    for publisher in ("loud", "calm", "late"):
        for number in range(8):
            subject = f"outside.{publisher}.{subjects.cancel('nightly', chosen(work, f'{publisher}{number}'))}"
            work.installation.publish(Stream.INPUTS, CancelRequest(), subject)
        await work.runner.run()
        assert len(work.fold.waiting) == {"loud": 5, "calm": 10, "late": 12}[publisher]
    assert len(await letters(work)) == 3 + 3 + 6
    assert {letter.code for letter in await letters(work)} == {"not-found"}
    work.installation.clock.advance(30)
    await work.runner.run()
    assert len(await letters(work)) == 24
    assert len(work.fold.waiting) == 0


async def test_waiting_input_is_decided_again_after_a_refused_commit() -> None:
    work = Work()
    await work.define("nightly")
    await work.cancel("nightly", id_ := chosen(work))
    trigger(work, id_)
    process = work.process
    await process.read_on()
    await work.define("other")
    assert await process.loop.run_once()  # refused
    fresh = work.installation.process()
    await fresh.read_on()
    assert same_state(process.fold, fresh.fold)
    assert len(process.fold.waiting) == 1
    await process.run()
    assert (await work.states())[subjects.execution("nightly", id_)].status is Status.CANCELLED
    assert len(process.fold.waiting) == 0


async def test_cancellation_after_downtime_waits_for_its_trigger() -> None:
    """Both are stored while no stage runs; the stream of programs is read first."""
    work = Work()
    await work.define("nightly")
    id_ = chosen(work)
    subject = f"outside.shop.{subjects.cancel('nightly', id_)}"
    work.installation.publish(Stream.INPUTS, CancelRequest(), subject)
    work.installation.clock.advance(7200)
    await work.runner.run()
    trigger(work, id_)
    await work.runner.run()
    assert (await work.states())[subjects.execution("nightly", id_)].status is Status.CANCELLED


async def test_time_in_an_id_says_that_it_cannot_come() -> None:
    work = Work()
    old = ids.trigger_id("nightly", "x", datetime.fromisoformat("2025-01-01T00:00:00Z"))
    before = len(await work.installation.events())
    await work.cancel("nightly", old)
    await work.runner.rest()
    assert len(await work.installation.events()) == before
    await work.cancel("nightly", ids.keyed_trigger_id("nightly", "k"))  # its time says nothing
    assert len(work.fold.waiting) == 1
