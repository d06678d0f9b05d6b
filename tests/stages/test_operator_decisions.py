"""Decisions of operators that the matcher follows: paused queues, purges, and what agents may get."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from tests.stages.test_matcher import ONE, TWO, Hall
from tocsin import subjects
from tocsin.domain.agent import agent_key
from tocsin.domain.events import (
    Actor,
    AgentDrainStarted,
    AgentGranted,
    AgentSwitched,
    Cancelled,
    Completed,
    Dispatched,
    Message,
    QueueGrant,
    QueuePaused,
    QueuePurged,
    QueueResumed,
    Started,
)
from tocsin.domain.task_board import TaskBoard
from tocsin.ports import Append, LogUnavailable, Written
from tocsin.settings import Queue, QueueRate
from tocsin.stages.matcher import purges
from tocsin.stages.matcher.operator_decisions import OperatorDecisions
from tocsin.subjects import Bucket, Stream, rate_key
from tocsin.testing import InMemoryEventLog, settle

ANN: Final = Actor(identity="ann")


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    async with AsyncExitStack() as stack:
        yield Hall(stack)


async def decide(hall: Hall, *facts: Message) -> None:
    """Store decisions of operators, and let the matchers act on them."""
    await hall.world.given(*facts)
    await settle()
    await hall.work()


async def purge(hall: Hall, queue: str = "default", reason: str | None = "old", **fields: Any) -> None:  # noqa: ANN401
    """Purge what is dispatched now."""
    upto = await hall.world.log.end(Stream.LOG)
    await decide(hall, QueuePurged(queue=queue, upto=upto, by=ANN, reason=reason, **fields))


async def cancelled(hall: Hall) -> list[Cancelled]:
    return await hall.world.stored(Cancelled)


async def test_resumed_queues_are_not_kept() -> None:
    """Invented names would use memory after they are resumed, and every decision would look at all of them."""
    log, decisions = InMemoryEventLog(), OperatorDecisions(TaskBoard(), requires_grant=False)
    facts: list[Message] = [QueuePaused(queue="mail"), QueueResumed(queue="mail"), QueuePaused(queue="slow")]
    await log.append(facts[0], expect=0)
    await log.append(facts[1], expect=1)
    await log.append(facts[2], expect=0)
    rooms = []
    for recorded in await log.read(subjects.queue_events()):
        decisions.learn(recorded)
        rooms.append(dict(decisions.room))
    assert rooms == [{"mail": 0}, {}, {"slow": 0}]
    assert list(decisions._queues) == ["slow"]


async def test_paused_queue_keeps_its_tasks(hall: Hall) -> None:
    await hall.job()
    await hall.job("other", queue="mail")
    await hall.matcher()
    await decide(hall, QueuePaused(queue="default", by=ANN, reason="deploy"))
    agent = await hall.agent(queues=["default", "mail"], max_concurrent_jobs=4)
    await hall.trigger()
    await hall.trigger("other")
    assert [task.job for _, task in agent.got] == ["other"]
    await decide(hall, QueueResumed(queue="default", by=ANN))
    assert [task.job for _, task in agent.got] == ["other", "nightly"]


@pytest.mark.parametrize(
    "decision",
    [
        QueuePaused(queue="default"),
        QueuePurged(queue="default", upto=1_000),
        AgentSwitched(name="mail-1", enabled=False),
        AgentDrainStarted(name="mail-1", agent_id=ONE),
        AgentGranted(name="mail-1"),
    ],
)
async def test_decision_counts_for_chosen_tasks(hall: Hall, monkeypatch: pytest.MonkeyPatch, decision: Message) -> None:
    hall.queues["default"] = Queue(rate=QueueRate(limit=100, per=1.0))
    await hall.job()
    await hall.matcher()
    agent = await hall.agent()
    put = hall.world.projections.put

    async def decided_meanwhile(bucket: Bucket, key: str, value: bytes, **fields: Any) -> int:  # noqa: ANN401
        if key == rate_key("default"):
            await hall.world.given(decision)
            await settle()
        return await put(bucket, key, value, **fields)

    monkeypatch.setattr(hall.world.projections, "put", decided_meanwhile)
    await hall.trigger()
    assert await hall.started() == []
    assert not agent.got


async def test_running_task_of_a_paused_queue_finishes(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    await decide(hall, QueuePaused(queue="default"))
    await agent.reports()
    assert len(await hall.world.stored(Completed)) == 1


async def test_new_leader_obeys_an_earlier_pause(hall: Hall) -> None:
    await hall.job()
    old = await hall.matcher()
    await decide(hall, QueuePaused(queue="default"))
    await hall.stop(old)
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    assert not agent.got


async def test_matcher_assigns_nothing_before_it_read_the_ledger(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    await hall.job()
    matcher = await hall.matcher()
    monkeypatch.setattr(matcher._decisions, "is_complete", False)
    agent = await hall.agent()
    await hall.trigger()
    assert not agent.got


async def test_purge_cancels_what_waits(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    await hall.trigger()
    await hall.trigger()
    await purge(hall)
    ends = await cancelled(hall)
    [recorded] = await hall.world.log.load(subjects.queue("default"))
    assert len(ends) == 2
    assert {(end.reason, end.by, end.purge) for end in ends} == {("queue default purged: old", ANN, recorded.sequence)}
    agent = await hall.agent(max_concurrent_jobs=4)
    assert not agent.got


async def test_purge_leaves_running_and_later_tasks(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()  # it runs
    await hall.trigger()  # it waits
    await purge(hall)
    await hall.trigger()  # it is dispatched later
    [end] = await cancelled(hall)
    await agent.reports()
    await agent.announce()
    await hall.work()
    await agent.reports()
    tasks = [task.message.execution_id for task in await hall.world.recorded(Dispatched)]
    assert [task.execution_id for _, task in agent.got] == [tasks[0], tasks[2]]
    assert end.execution_id == tasks[1]
    assert len(await hall.world.stored(Completed)) == 2


async def test_purge_of_another_queue_cancels_nothing(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    await hall.trigger()
    await purge(hall, "mail")
    assert not await cancelled(hall)


async def test_task_given_back_is_not_purged(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    await purge(hall)
    [(assignment, _)] = agent.got
    await agent.announce(handed_back=[assignment.claim], max_concurrent_jobs=0)
    await hall.work()
    assert len(await hall.world.recorded(Dispatched)) == 2
    other = await hall.agent(TWO)
    assert len(other.got) == 1
    assert not await cancelled(hall)


async def test_purge_that_a_crash_interrupted_is_finished(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    await hall.job()
    monkeypatch.setattr(purges, "AT_ONCE", 2)
    first = await hall.matcher()
    for _ in range(5):
        await hall.trigger()
    upto = await hall.world.log.end(Stream.LOG)
    await hall.world.given(QueuePurged(queue="default", upto=upto))
    await settle()
    assert await first._purges.run_once()  # and it dies before the next
    assert len(await cancelled(hall)) == 2
    await hall.stop(first)
    await hall.trigger()  # dispatched after the purge
    await hall.matcher()
    agent = await hall.agent(max_concurrent_jobs=9)
    await hall.work()
    assert len(await cancelled(hall)) == 5
    assert len(agent.got) == 1


async def test_two_leaders_cancel_each_execution_once(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    await hall.matcher()
    await hall.trigger()
    await hall.trigger()
    await purge(hall)
    assert len(await cancelled(hall)) == 2


async def test_claim_that_was_faster_than_the_purge_stands(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    await hall.job()
    matcher = await hall.matcher()
    await hall.trigger()
    [task] = await hall.world.stored(Dispatched)
    monkeypatch.setattr(matcher, "learn", lambda _: None)  # it has not seen the claim yet
    claim = Started(
        job=task.job, execution_id=task.execution_id, step="main", attempt=1, delivery=1, worker="mail-1", agent=ONE
    )
    await hall.world.given(claim)
    await purge(hall)
    assert not await cancelled(hall)
    assert matcher.board.purged(limit=1) == ()
    assert matcher.board.used_slots(agent_key("mail-1", ONE)) == 1


async def test_purge_goes_on_after_an_outage(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    await hall.job()
    matcher = await hall.matcher()
    await hall.trigger()
    write = hall.world.log.write

    async def fail(writes: list[Append]) -> list[Written]:
        return [Written((), LogUnavailable("no answer")) for _ in writes]

    monkeypatch.setattr(hall.world.log, "write", fail)
    upto = await hall.world.log.end(Stream.LOG)
    await hall.world.given(QueuePurged(queue="default", upto=upto))
    await settle()
    with pytest.raises(LogUnavailable):
        await matcher.run_once()
    monkeypatch.setattr(hall.world.log, "write", write)
    await hall.work()
    assert len(await cancelled(hall)) == 1


async def test_disabled_name_of_an_enabled_agent_gets_nothing(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    await decide(hall, AgentSwitched(name="mail-1", enabled=False, by=ANN))
    agent = await hall.agent()
    await hall.trigger()
    assert agent.fields["mode"] == "enabled"
    assert not agent.got
    await decide(hall, AgentSwitched(name="mail-1", enabled=True, by=ANN))
    assert len(agent.got) == 1


async def test_draining_process_that_does_not_know_gets_nothing(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    await decide(hall, AgentDrainStarted(name="mail-1", agent_id=ONE, by=ANN))
    agent = await hall.agent()
    await hall.trigger()
    assert agent.fields["mode"] == "enabled"
    assert not agent.got
    successor = await hall.agent(TWO)
    assert len(successor.got) == 1


async def test_drain_of_an_invented_process_drains_no_other(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    await decide(hall, AgentDrainStarted(name="mail-2", agent_id=ONE, by=ANN))
    agent = await hall.agent()
    await hall.trigger()
    assert len(agent.got) == 1


def granted(*grants: QueueGrant, name: str = "mail-1") -> AgentGranted:
    return AgentGranted(name=name, grants=grants, by=ANN)


async def test_agent_gets_only_what_its_name_was_granted(hall: Hall) -> None:
    for name, function, queue in (("a", "mail/send", "mail"), ("b", "load", "mail"), ("c", "load", "default")):
        await hall.job(name, function=function, queue=queue)
    await hall.matcher()
    await decide(hall, granted(QueueGrant(queue="mail", functions=("mail/*",))))
    agent = await hall.agent(queues=["default", "mail"], functions=["load", "mail/send"], max_concurrent_jobs=9)
    for name in "abc":
        await hall.trigger(name)
    assert [task.job for _, task in agent.got] == ["a"]
    await decide(hall, granted(QueueGrant(queue="*", functions=("load",))))
    assert sorted(task.job for _, task in agent.got) == ["a", "b", "c"]


async def test_granted_queues_share_the_slots_of_an_agent(hall: Hall) -> None:
    await hall.job("a", queue="mail")
    await hall.job("b")
    await hall.trigger("a")
    await hall.trigger("b")
    await hall.matcher()
    await decide(hall, granted(QueueGrant(queue="default"), QueueGrant(queue="mail", functions=("load",))))
    agent = await hall.agent(queues=["default", "mail"])
    assert len(agent.got) == 1


async def test_name_without_a_grant_gets_what_it_announces(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    await decide(hall, granted(name="other"))
    agent = await hall.agent()
    await hall.trigger()
    assert len(agent.got) == 1


async def test_required_grant_is_obeyed_at_once(hall: Hall) -> None:
    await hall.job()
    await hall.matcher(requires_grant=True)
    agent = await hall.agent(max_concurrent_jobs=9)
    await hall.trigger()
    assert not agent.got
    await decide(hall, AgentGranted(name="mail-1", grants=(QueueGrant(queue="default", functions=("*",)),)))
    assert len(agent.got) == 1
    await decide(hall, granted())
    await hall.trigger()
    assert len(agent.got) == 1
    assert [type(claim) for claim in await hall.started()] == [Started]
