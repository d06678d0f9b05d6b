"""Answers of workers over HTTP beside other writers of the same execution."""

from datetime import datetime

import pytest

from tests.domain.given import ID, JOB, KEY, admitted, plan
from tests.http.conftest import World
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.events import Advanced, Message, Released, Timer

SCOPE = subjects.execution(JOB, ID)


async def test_lease_is_extended_while_another_step_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = await world.log.append(admitted(plan({"a": (), "b": ()})), expect=0)
    for task in execution.dispatch(execution.fold(await world.log.load(SCOPE)), key=KEY):
        newest = await world.log.append(task, expect=newest)
    fetch = {"queues": ["default"], "count": 2, "worker_id": "w"}
    jobs = (await world.ask("POST", "/ojs/v1/workers/fetch", fetch)).json()["jobs"]
    assert sorted(job["id"] for job in jobs) == [f"{ID}:a", f"{ID}:b"]
    delay = world.log.delay

    async def overtaken(timer: Timer, *, until: datetime) -> None:
        monkeypatch.setattr(world.log, "delay", delay)
        await delay(timer, until=until)
        end = Advanced(job=JOB, execution_id=ID, step="b", attempt=1)
        await world.log.append(end, expect=await world.log.tail(SCOPE))

    monkeypatch.setattr(world.log, "delay", overtaken)
    beat = {"worker_id": "w", "active_jobs": [f"{ID}:a"]}
    answer = (await world.ask("POST", "/ojs/v1/workers/heartbeat", beat)).json()
    assert (answer["jobs_extended"], answer["jobs_lost"]) == ([f"{ID}:a"], [])


@pytest.mark.parametrize("named", [True, False])
async def test_returned_job_stays_with_its_next_worker(
    world: World, monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    newest = await world.log.append(admitted(), expect=0)
    [task] = execution.dispatch(execution.fold(await world.log.load(SCOPE)), key=KEY)
    await world.log.append(task, expect=newest)
    fetch = {"queues": ["default"], "worker_id": "late"}
    [_] = (await world.ask("POST", "/ojs/v1/workers/fetch", fetch)).json()["jobs"]
    append = world.log.append

    async def overtaken(fact: Message, *, expect: int) -> int:
        """The lease ends first, and another worker takes the job."""
        monkeypatch.setattr(world.log, "append", append)
        newest = await append(fact, expect=expect)
        state = execution.fold(await world.log.load(SCOPE))
        [again] = execution.dispatch_missing(state, at=world.clock.now(), key=KEY)
        await append(again, expect=newest)
        [_] = (await world.ask("POST", "/ojs/v1/workers/fetch", {**fetch, "worker_id": "next"})).json()["jobs"]
        return await append(fact, expect=expect)

    monkeypatch.setattr(world.log, "append", overtaken)
    nack = {**({"worker_id": "late"} if named else {}), "job_id": ID, "requeue": True}
    answer = await world.ask("POST", "/ojs/v1/workers/nack", nack)
    assert answer.status_code == 409, answer.text
    assert len([fact for fact in await world.facts("execution.>") if isinstance(fact.message, Released)]) == 1
