"""Cancellations of executions that are not open yet: they wait as states of the fold."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.commits.processes import NAMES, Held, Process, Runner, same_state
from tests.commits.test_memory import Work
from tests.commits.test_poison import failing
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.events import CancelRequest, Message, PoisonMessage, Recorded, Trigger
from tocsin.domain.execution import Status
from tocsin.domain.log_events import Waited, Waits
from tocsin.engine import ripe_inputs, waiting
from tocsin.engine.step import Decide, States, Step, Then
from tocsin.subjects import Stream

LAYOUTS: dict[str, dict[str, Any]] = {
    "fused": {},
    "cut": {"cut": True},
    "restarted": {"restarts": True},
    "cut and restarted": {"cut": True, "restarts": True},
}
CANCEL = CancelRequest(reason="r" * 1_000)


def chosen(work: Work, name: str = "x") -> str:
    """An id that the API chooses."""
    return ids.trigger_id("nightly", name, work.installation.clock.now())


async def letters(work: Work) -> list[PoisonMessage]:
    return [r.message for r in await work.installation.events() if isinstance(r.message, PoisonMessage)]


def trigger(work: Work, execution_id: str) -> None:
    work.installation.publish(Stream.REQUESTS, Trigger(), subjects.trigger("nightly", execution_id), execution_id)


def waiting_cancel(work: Work, name: str = "x", body: bytes = CANCEL.encode()) -> Waits:
    """The event that a cancellation waits; all have one place, as the reports of a list do."""
    cancel, now = subjects.cancel("nightly", chosen(work, name)), work.installation.clock.now()
    key, until = ("dag_advancer", "dag-advancer-cancels", "REQUESTS", 7, cancel), now + timedelta(seconds=30)
    return Waits(*key, body=msgspec.Raw(body), time=now, message_id=None, until=until, on=())


async def led_and_standby() -> tuple[Work, Process, Process]:
    """A job, the process that leads all stages, and a standby."""
    work = Work()
    one, two = (work.installation.process(leases=Held(work.installation.clock), name=name) for name in ("one", "two"))
    one.leases.held, work.runner._processes = NAMES, [one, two]
    await work.define("nightly")
    return work, one, two


@pytest.mark.parametrize("policy", ["allow", "enqueue"])
@pytest.mark.parametrize("groups", [[NAMES], [[name] for name in NAMES]])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_cancellation_overtakes_its_trigger(layout: str, groups: list[tuple[str, ...]], policy: str) -> None:
    work = Work()
    work.runner = Runner(work.installation, groups, **LAYOUTS[layout])
    await work.define("nightly", overlap_policy=policy)
    await work.trigger("nightly", "t0")
    await work.cancel("nightly", id_ := chosen(work))
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
    assert (len(work.fold.waiting), work.fold.waiting._on, work.fold.waiting._sizes) == (0, {}, {})


@pytest.mark.parametrize(("unit", "bytes_each"), [("OF", 1), ("BYTES_OF", len(CANCEL.encode()))])
async def test_waiting_inputs_have_limits(unit: str, bytes_each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limits a cancellation is answered at once."""
    monkeypatch.setattr(waiting, f"MAX_{unit}_PUBLISHER", 5 * bytes_each)
    monkeypatch.setattr(waiting, f"MAX_{unit}_ALL", 12 * bytes_each)
    work = Work()
    for publisher in ("loud", "calm", "late"):
        for number in range(8):
            subject = f"outside.{publisher}.{subjects.cancel('nightly', chosen(work, f'{publisher}{number}'))}"
            work.installation.publish(Stream.INPUTS, CANCEL, subject)
        await work.runner.run()
        assert len(work.fold.waiting) == {"loud": 5, "calm": 10, "late": 12}[publisher]
    assert len(await letters(work)) == 3 + 3 + 6
    work.installation.clock.advance(30)
    await work.runner.run()
    assert [letter.code for letter in await letters(work)] == ["not-found"] * 24
    assert (len(work.fold.waiting), work.fold.waiting._sizes) == (0, {})


async def test_unreadable_waiting_input_becomes_dead_letter() -> None:
    """A version that reads less stored it."""
    work = Work()
    await work.define("nightly")
    await work.process.read_on()
    work.process.loop.note("test", waiting_cancel(work, body=b'{"v":99}'))
    await work.process.run()
    work.installation.clock.advance(30)
    await work.runner.run()
    [letter] = await letters(work)
    assert (letter.durable, letter.sequence) == ("dag-advancer-cancels", 7)
    assert letter.reason.startswith("unreadable: ")
    assert len(work.fold.waiting) == 0


async def test_waiting_input_is_decided_again_after_refused_commit() -> None:
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
    subject = f"outside.shop.{subjects.cancel('nightly', id_ := chosen(work))}"
    work.installation.publish(Stream.INPUTS, CancelRequest(), subject)
    work.installation.clock.advance(7200)
    await work.runner.run()
    trigger(work, id_)
    await work.runner.run()
    assert (await work.states())[subjects.execution("nightly", id_)].status is Status.CANCELLED


async def test_expired_time_in_an_id_prevents_waiting() -> None:
    work = Work()
    before = len(await work.installation.events())
    await work.cancel("nightly", ids.trigger_id("nightly", "x", datetime.fromisoformat("2025-01-01T00:00:00Z")))
    await work.runner.rest()
    assert len(await work.installation.events()) == before
    await work.cancel("nightly", ids.keyed_trigger_id("nightly", "k"))  # its time says nothing
    assert len(work.fold.waiting) == 1


async def test_waiting_input_is_decided_again_in_its_turn() -> None:
    """Requests of operators have a share, so the runs that wait do not hold it up."""
    work = Work()
    await work.define("nightly")
    await work.cancel("nightly", id_ := chosen(work))
    others = [chosen(work, f"n{number}") for number in range(80)]
    for each in (*others[:40], id_, *others[40:]):
        trigger(work, each)
    await work.runner.run()
    of_executions = [r.subject for r in await work.installation.events() if r.subject.startswith("execution.")]
    executions = [tuple(subject.split(".")[2:4]) for subject in of_executions]
    place = executions.index((id_, "cancelled"))
    assert 0 < place - executions.index((id_, "admitted")) <= 2
    assert sum(kind == "admitted" for _, kind in executions[place:]) >= 39


async def test_waiting_input_with_failing_decision_becomes_dead_letter() -> None:
    def make(decide: Decide) -> Decide:
        def fails_again(recorded: Recorded[Message], states: States, now: datetime) -> Step:
            step = decide(recorded, states, now)
            if step.then is Then.WAIT:
                return step
            raise ValueError("it is decided again")

        return fails_again

    work = Work()
    work.runner._processes = [work.installation.process(stages=failing(make, "dag-advancer-cancels"))]
    await work.define("nightly")
    await work.cancel("nightly", id_ := chosen(work))
    assert len(work.fold.waiting) == 1
    trigger(work, id_)
    await work.runner.run()
    await work.runner.rest()
    [letter] = await letters(work)
    assert (letter.code, letter.durable, letter.sequence) == ("poison", "dag-advancer-cancels", 1)
    assert not len(work.fold.waiting)
    fresh = work.installation.process()
    await fresh.read_on()
    assert same_state(fresh.fold, work.fold)
    assert not await fresh.run()


async def test_continued_waiting_for_the_same_adds_no_event() -> None:
    work = Work()
    await work.define("nightly")
    await work.cancel("nightly", chosen(work))
    [(waits, _)] = work.fold.waiting
    before = len(await work.installation.commits())
    for scope in waits.on:
        work.process.loop.pending._ripe.note(scope)
    await work.runner.run()
    await work.runner.rest()
    assert [entry.waits for entry in work.fold.waiting] == [waits]
    assert len(await work.installation.commits()) <= before + 1  # positions
    assert sum(e.subject == "log.waits" for c in await work.installation.commits() for e in c.events) == 1


@pytest.mark.parametrize("comes", [True, False])
async def test_new_leader_decides_what_waits(comes: bool) -> None:  # noqa: FBT001
    work, one, two = await led_and_standby()
    await work.cancel("nightly", id_ := chosen(work))
    assert len(two.fold.waiting) == 1
    two.leases.held = set(NAMES) - {"dag_advancer"}
    one.leases.held = ()
    if comes:
        trigger(work, id_)
    work.installation.clock.advance(1 if comes else 31)
    work.runner._processes = [two, one]
    await work.runner.run()
    assert len(two.fold.waiting) == 1  # no process leads its stage
    two.leases.held = NAMES
    await work.runner.run()
    for process in (one, two):
        await process.read_on()
        assert not len(process.fold.waiting)
    assert [letter.code for letter in await letters(work)] == ([] if comes else ["not-found"])
    if comes:
        assert (await work.states())[subjects.execution("nightly", id_)].status is Status.CANCELLED
    writers = {c.writer for c in await work.installation.commits() for e in c.events if e.subject == "log.waited"}
    assert writers == {"two"}


async def test_new_leader_decides_each_report_of_a_list() -> None:
    work, one, two = await led_and_standby()
    for trigger_id in ("a", "b", "c"):
        await work.trigger("nightly", trigger_id)
    now = work.installation.clock.now()
    arrived = [Recorded(report, subjects.subject_of(report), 1, now) for report in await work.claim()]
    one.leases.held = ()
    await one.loop.run_once()
    for process in (one, two):  # one led before, the other never did
        for recorded in arrived:
            process.loop.offer(Stream.REPORTS, recorded)
    two.leases.held = NAMES
    work.runner._processes = [two, one]
    await work.runner.run()
    assert [state.status for state in (await work.states()).values()] == [Status.COMPLETED] * 3


@pytest.mark.parametrize(("ended", "left"), [(None, "ab"), ("a", "b"), ("", "")])
async def test_inputs_of_a_place_wait_together(ended: str | None, left: str) -> None:
    """The event of an older log that inputs wait no longer has no subject: it ends all of its place."""
    work = Work()
    await work.define("nightly")
    process = work.process
    await process.read_on()
    waits = {name: waiting_cancel(work, name) for name in "ab"}
    for each in waits.values():
        process.loop.note("test", each)
    await process.run()
    if ended is not None:
        process.loop.note("test", Waited(*waits["a"].name[:-1], waits[ended].subject if ended else ""))
        await work.define("other")
        assert await process.loop.run_once()  # refused
        assert len(work.fold.waiting) == 2
    await process.run()
    assert [entry.waits for entry in work.fold.waiting] == [waits[name] for name in left]
    work.installation.clock.advance(30)
    await work.runner.run()
    assert (len(await letters(work)), len(work.fold.waiting)) == (len(left), 0)
    assert (work.fold.waiting.entries, work.fold.waiting._on, work.fold.waiting._sizes) == ({}, {}, {})


async def test_leader_without_lease_decides_waiting_inputs_later() -> None:
    work = Work()
    process = work.installation.process(cut=True, leases=Held(work.installation.clock))
    process.leases.held = NAMES
    work.runner._processes = [process]
    await work.define("nightly")
    chosen_ = [chosen(work, name) for name in ("a", "b", "c")]
    for id_ in chosen_:
        await work.cancel("nightly", id_)
        trigger(work, id_)
    await process.read_on()
    while len(process.fold.waiting) > 1:
        assert await process.loop.run_once()
    process.leases.held = set(NAMES) - {"dag_advancer"}
    await work.runner.run()
    assert len(process.fold.waiting) == 1
    process.leases.held = NAMES
    await work.runner.run()
    assert not len(process.fold.waiting)
    for id_ in chosen_:
        assert (await work.states())[subjects.execution("nightly", id_)].status is Status.CANCELLED


async def test_standby_forgets_times_of_inputs_no_longer_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ripe_inputs, "MIN_STALE", 10)
    work, _, two = await led_and_standby()
    for number in range(60):
        await work.cancel("nightly", id_ := chosen(work, f"n{number}"))
        trigger(work, id_)
        await work.runner.run()
    assert len(two.loop.pending._ripe._times) <= 11
