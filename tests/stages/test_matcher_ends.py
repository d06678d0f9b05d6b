"""Notices of the matcher: executions that are over, and what earlier attempts sent last."""

from typing import Any

import pytest

from tests.domain.given import output_subject
from tests.stages.test_matcher import ONE, TWO, Agent, Hall, hall
from tocsin import subjects
from tocsin.domain.agent import Assignment, agent_key
from tocsin.domain.events import Cancelled, Completed, Dispatched, Failed, HeartbeatDetails, Released, Started
from tocsin.ports import LogUnavailable
from tocsin.stages.matcher.agents import SILENCE_S
from tocsin.stages.matcher.claim_checks import INTERVAL_S
from tocsin.stages.matcher.end_notices import AT_ONCE, CHECK_AFTER_S, CHECKED_TASKS
from tocsin.stages.matcher.last_heartbeats import PAUSE_S
from tocsin.testing import settle

__all__ = ["hall"]


async def cancel(hall: Hall, task: Dispatched) -> None:
    await hall.world.ask_to_cancel(task.job, task.execution_id)
    await hall.work()
    assert task.execution_id in {fact.execution_id for fact in await hall.world.stored(Cancelled)}


def key(task: Dispatched) -> str:
    return f"{subjects.token(task.job)}.{task.execution_id}"


async def look(hall: Hall) -> None:
    """Let the matcher look for the tasks that its agents named."""
    await hall.work()
    await hall.passes(CHECK_AFTER_S)
    await hall.passes(INTERVAL_S)


async def test_agent_hears_of_a_cancellation_at_once(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    agent, other = await hall.agent(), await hall.agent(TWO, "mail-2", max_concurrent_jobs=0)
    await hall.trigger()
    [(_, task)] = agent.got
    await cancel(hall, task)
    assert (agent.ended, other.ended) == ([key(task)], [])


async def test_agent_hears_of_a_failed_execution(hall: Hall) -> None:
    await hall.job("a.name.with.dots")
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger("a.name.with.dots")
    [(_, task)] = agent.got
    ids: dict[str, Any] = {"job": task.job, "execution_id": task.execution_id}
    late = Failed(**ids, scheduled_time=task.scheduled_time, trigger="manual", reason="timed_out")
    await hall.world.given(late)
    await hall.work()
    assert agent.ended == [key(task)]


async def test_lost_notice_is_repeated(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    [(_, task)] = agent.got
    await cancel(hall, task)
    agent.ended.clear()  # it was lost
    await agent.holds(task)
    await hall.work()
    assert agent.ended == []  # the hold list may be older than a report
    await look(hall)
    assert set(agent.ended) == {key(task)}
    heard = len(agent.ended)
    await look(hall)
    assert len(agent.ended) > heard  # as long as it holds the task
    await agent.holds()
    await hall.work()
    heard = len(agent.ended)
    await look(hall)
    assert len(agent.ended) == heard


async def test_silent_agent_gets_no_more_notices(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    [(_, task)] = agent.got
    await cancel(hall, task)
    await agent.holds(task)  # its last hold list
    await hall.work()
    await hall.passes(SILENCE_S)
    heard = len(agent.ended)
    await look(hall)
    assert len(agent.ended) == heard
    await agent.holds(task)
    await look(hall)
    assert len(agent.ended) > heard


@pytest.mark.parametrize("silent", [0, 1])
async def test_silent_agent_delays_no_notice_of_another(hall: Hall, silent: int) -> None:
    await hall.job()
    await hall.matcher()
    agents = [await hall.agent(ONE, "mail-1"), await hall.agent(TWO, "mail-2")]
    for _ in agents:
        await hall.trigger()
    heard, tasks = agents[1 - silent], [agent.got[0][1] for agent in agents]
    for task in tasks:
        await cancel(hall, task)
    for agent, task in zip(agents, tasks, strict=True):
        agent.ended.clear()
        await agent.holds(task)
        await hall.work()
    lost = hall.matchers[0].agents.get(agent_key(agents[silent].name, agents[silent].agent_id))
    assert lost is not None
    lost.heard_at -= SILENCE_S
    await hall.passes(CHECK_AFTER_S)
    assert (bool(heard.ended), agents[silent].ended) == (True, [])


async def test_successor_sends_the_notice(hall: Hall) -> None:
    await hall.job()
    matcher = await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    [(_, task)] = agent.got
    await hall.stop(matcher)
    await cancel(hall, task)
    await hall.matcher()
    await agent.holds(task)
    await look(hall)
    assert set(agent.ended) == {key(task)}


async def test_archived_execution_is_over(hall: Hall) -> None:
    await hall.job()
    matcher = await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    [(_, task)] = agent.got
    await hall.stop(matcher)
    await cancel(hall, task)
    for fact in await hall.world.log.load(subjects.execution(task.job, task.execution_id)):
        await hall.world.log.remove(fact.subject, fact.sequence)
    await hall.matcher()
    await agent.holds(task)
    await look(hall)
    assert set(agent.ended) == {key(task)}


async def test_task_of_a_live_execution_is_not_ended(hall: Hall) -> None:
    """A silent agent lost its claim, and returns while another agent runs the task."""
    await hall.job(timeout=600)
    await hall.matcher()
    agent, other = await hall.agent(), await hall.agent(TWO, "mail-2", max_concurrent_jobs=0)
    await hall.trigger()
    [(_, task)] = agent.got
    await hall.passes(SILENCE_S / 2)
    await other.announce(max_concurrent_jobs=1)
    await hall.passes(SILENCE_S / 2)
    await hall.work()
    assert len(await hall.world.stored(Released)) == len(other.got) == 1
    await agent.holds(task)
    await look(hall)
    assert agent.ended == []
    await other.reports()
    assert len(await hall.world.stored(Completed)) == 1
    await look(hall)
    assert set(agent.ended) == {key(task)}


async def test_reported_task_is_not_looked_for(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    await hall.job()
    matcher = await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    await agent.reports()
    await agent.holds(agent.got[0][1])
    await hall.work()
    monkeypatch.setattr(matcher._checks._ends, "_log", None)
    await agent.holds()
    await look(hall)
    assert agent.ended == []


async def test_every_held_task_has_its_turn(hall: Hall) -> None:
    await hall.job()
    matcher = await hall.matcher()
    number = 2 * CHECKED_TASKS + 3
    agent = await hall.agent(max_concurrent_jobs=number)
    for _ in range(number):
        await hall.trigger()
    await hall.stop(matcher)
    tasks = [task for _, task in agent.got]
    for task in tasks:
        await hall.world.ask_to_cancel(task.job, task.execution_id)
    await hall.work()
    await hall.matcher()
    await agent.holds(*tasks)
    for _ in range(3):
        await look(hall)
    assert set(agent.ended) == set(map(key, tasks))
    assert AT_ONCE > CHECKED_TASKS


async def test_standby_sends_nothing(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    standby = await hall.matcher(leads=False)
    agent = await hall.agent()
    await hall.trigger()
    [(_, task)] = agent.got
    await cancel(hall, task)
    assert agent.ended == [key(task)]
    assert standby.board.take_ended() == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a",
        "a.b.c",
        "*.*.*.*",
        "nightly.*.main.1",
        "nightly.>.main.1",
        "a. .c.d",
        "a.b.c.d.e",
        "\n.b.c.d",
        "a" * 1_000,
    ],
)
async def test_hostile_names_are_not_looked_for(hall: Hall, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = await hall.matcher()
    agent = await hall.agent()
    monkeypatch.setattr(matcher._checks._ends, "_log", None)
    await agent.announce(held=[name])
    await look(hall)
    assert agent.ended == []


async def test_invented_executions_are_over(hall: Hall) -> None:
    await hall.matcher()
    agent = await hall.agent()
    await agent.announce(held=["invented.0198.main.1"])
    await look(hall)
    assert set(agent.ended) == {"invented.0198"}
    await hall.passes(301)
    await hall.work()


async def beat(hall: Hall, task: Dispatched, details: Any) -> HeartbeatDetails:  # noqa: ANN401 - JSON
    now = hall.world.clock.now()
    sent = HeartbeatDetails(
        job=task.job, execution_id=task.execution_id, step=task.step, attempt=1, time=now, details=details
    )
    await hall.world.log.publish(output_subject(sent), sent, message_id=f"{now}{details}"[:100])
    return sent


async def second_attempt(hall: Hall, agent: Agent, details: Any) -> Assignment:  # noqa: ANN401 - JSON
    """Let the first attempt of a task send a heartbeat and fail; return the assignment of the second."""
    await hall.job(retry={"max_attempts": 2, "initial_delay": 0.1, "jitter": 0})
    await hall.trigger()
    await beat(hall, agent.got[0][1], details)
    await agent.reports(0, "failed")
    hall.world.clock.advance(1)
    await hall.world.run(hall.world.dag_advancer)
    await settle()
    await hall.work()
    [_, (assignment, task)] = agent.got
    assert task.attempt == 2
    return assignment


async def test_second_attempt_brings_the_heartbeat(hall: Hall) -> None:
    await hall.matcher()
    agent = await hall.agent()
    assert (await second_attempt(hall, agent, {"row": 7})).heartbeat == {"row": 7}
    assert agent.got[0][0].heartbeat is None


async def test_heartbeat_of_another_worker_is_not_brought(hall: Hall) -> None:
    await hall.job(timeout=600)
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    [(_, task)] = agent.got
    sent = await beat(hall, task, "own")
    forged = sent.changed(details="forged")
    for subject in (subjects.output_of(forged, "guessed"), output_subject(forged).rpartition(".")[0]):
        hall.world.log.receive(subject, forged.encode())
    await agent.announce(ended=True)
    other = await hall.agent(TWO, "mail-2")
    assert [assignment.heartbeat for assignment, _ in other.got] == ["own"]


async def test_second_delivery_brings_the_heartbeat(hall: Hall) -> None:
    await hall.job(timeout=600)
    await hall.matcher()
    agent = await hall.agent()
    await hall.trigger()
    await beat(hall, agent.got[0][1], [1, 2])
    await agent.announce(ended=True)
    other = await hall.agent(TWO, "mail-2")
    [(assignment, _)] = other.got
    assert (assignment.delivery, assignment.heartbeat) == (2, [1, 2])
    assert [claim.agent for claim in await hall.started()] == [ONE, TWO]


async def test_task_does_not_wait_for_unreadable_heartbeats(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = await hall.matcher()
    agent = await hall.agent()
    reads: list[str] = []

    async def unavailable(subject: str) -> None:
        reads.append(subject)
        raise LogUnavailable("no answer")

    monkeypatch.setattr(matcher._log, "last", unavailable)
    assert (await second_attempt(hall, agent, "lost")).heartbeat is None
    assert len(reads) == 1
    [claim] = matcher.board.claims_of(agent_key(agent.name, agent.agent_id))
    heartbeats = matcher._hand_over._sender._heartbeats
    assert await heartbeats.of([claim]) == {}
    assert len(reads) == 1
    hall.world.clock.advance(PAUSE_S)
    assert await heartbeats.of([claim]) == {}
    assert len(reads) == 2
    assert len(await hall.world.stored(Started)) == 2


async def test_heartbeat_too_large_for_its_task_is_dropped(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.adapters.memory.agents.MAX_BYTES", 13_100)
    await hall.matcher()
    agent = await hall.agent()
    assert (await second_attempt(hall, agent, "x" * 13_000)).heartbeat is None
