"""Tasks that the matcher assigns: the worker runs each claim once, and says which it does not run."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.domain.given import KEY
from tests.worker.given import FUNCTION
from tests.worker.test_agent import AgentBench, until
from tests.worker.test_session import Serving
from tocsin import Context, Worker, subjects
from tocsin.domain import execution
from tocsin.domain.agent import Assignment, EndNotice
from tocsin.domain.events import Dispatched, Report, Started
from tocsin.ports import HandOver
from tocsin.testing import settle


class AssignedBench(AgentBench):
    """A bench whose test plays the matcher."""

    async def claim(self, task: Dispatched) -> Assignment:
        """Claim a task in the name of the agent that was heard last."""
        name, agent_id, _ = self.held[-1]
        facts = await self.log.load(subjects.scope_of(task))
        [stored] = [fact for fact in facts if isinstance(fact.message, Dispatched) and fact.message.step == task.step]
        claim = Started(
            job=task.job,
            execution_id=task.execution_id,
            step=task.step,
            attempt=task.attempt,
            delivery=1,
            worker=name,
            agent=agent_id,
        )
        sequence = await self.log.append(claim, expect=facts[-1].sequence)
        return Assignment(
            subject=stored.subject,
            sequence=stored.sequence,
            time=stored.time,
            delivery=1,
            claim=sequence,
            proof="proof",
        )

    async def hand_over(self, assignment: Assignment, task: Dispatched) -> None:
        name, agent_id, _ = self.held[-1]
        await self.channel.hand_over([HandOver(name, agent_id, assignment.claim, assignment.framed(task.encode()))])

    async def end(self, *tasks: Dispatched) -> None:
        """Send the notice that executions are over."""
        name, agent_id, _ = self.held[-1]
        ended = EndNotice(tuple(f"{subjects.token(task.job)}.{task.execution_id}" for task in tasks))
        await self.channel.send_ends(name, agent_id, msgspec.json.encode(ended))

    async def assign(self, task: Dispatched) -> Assignment:
        assignment = await self.claim(task)
        await self.hand_over(assignment, task)
        return assignment

    def handed_back_claims(self) -> list[int]:
        return [claim for _, _, body in self.held for claim in body.get("handed_back", ())]

    async def reports(self) -> list[Report]:
        return [r.message for r in await self.log.read("report.>") if isinstance(r.message, Report)]


@pytest.fixture
async def bench() -> Any:  # noqa: ANN401 - a fixture
    office = AssignedBench()
    async with office.channel.hold_lists(office.hear):
        yield office


def enabled(office: AssignedBench) -> bool:
    return bool(office.held) and office.held[-1][2]["mode"] == "enabled"


async def test_report_names_the_claim_of_the_matcher(bench: AssignedBench) -> None:
    worker = Worker()
    worker.task(FUNCTION)(lambda context: context.delivery)
    [task] = await bench.given_tasks({"main": ()})
    serving = Serving(bench, worker)
    await until(serving, lambda: enabled(bench))
    assignment = await bench.assign(task)
    while not (reports := await bench.reports()):
        await settle()
    await serving.stopped()
    [report] = reports
    assert (report.outcome, report.claim) == ("completed", assignment.claim)
    assert report.result == 1
    state = execution.fold(await bench.log.load(subjects.scope_of(task)))
    assert execution.succeed(state, report, key=KEY) != []
    assert len(await bench.log.read("execution.>")) == 3  # no other claim


async def test_task_that_is_handed_over_twice_runs_once(bench: AssignedBench) -> None:
    worker = Worker(concurrency=3)
    runs: list[str] = []
    go_on = asyncio.Event()

    @worker.task(FUNCTION)
    async def wait(context: Context) -> None:
        runs.append(context.execution_id)
        await go_on.wait()

    [task] = await bench.given_tasks({"main": ()})
    serving = Serving(bench, worker)
    await until(serving, lambda: enabled(bench))
    assignment = await bench.assign(task)
    await until(serving, lambda: runs)
    await bench.hand_over(assignment, task)
    go_on.set()
    while not await bench.reports():
        await settle()
    await bench.hand_over(assignment, task)
    await settle()
    await serving.stopped()
    assert len(runs) == 1
    assert bench.handed_back_claims() == []


async def test_task_of_a_cancelled_execution_does_not_run(bench: AssignedBench) -> None:
    worker = Worker()
    runs: list[str] = []
    worker.task(FUNCTION)(lambda context: runs.append(context.execution_id))
    [task] = await bench.given_tasks({"main": ()})
    [other] = await bench.given_tasks({"main": ()}, execution_id="0193a5b0-0000-7000-8000-0000000000bb")
    serving = Serving(bench, worker)
    await until(serving, lambda: enabled(bench))
    assignment = await bench.claim(task)
    await bench.end(task)
    await bench.hand_over(assignment, task)
    await bench.assign(other)
    while not await bench.reports():
        await settle()
    await serving.stopped()
    assert runs == [other.execution_id]


async def test_task_without_a_handler_is_handed_back(bench: AssignedBench) -> None:
    worker = Worker()
    worker.task("another")(lambda _: None)
    [task] = await bench.given_tasks({"main": ()})
    serving = Serving(bench, worker)
    await until(serving, lambda: enabled(bench))
    assignment = await bench.assign(task)
    await until(serving, bench.handed_back_claims)
    await bench.hand_over(assignment, task)
    await until(serving, lambda: bench.handed_back_claims().count(assignment.claim) > 1)
    await serving.stopped()
    assert set(bench.handed_back_claims()) == {assignment.claim}
    assert await bench.reports() == []


async def test_stopping_worker_hands_back_its_tasks(bench: AssignedBench) -> None:
    worker = Worker(concurrency=1, shutdown_timeout=0)
    running = asyncio.Event()

    @worker.task(FUNCTION)
    async def wait(_: Context) -> None:
        running.set()
        await asyncio.Event().wait()

    [task] = await bench.given_tasks({"main": ()})
    serving = Serving(bench, worker)
    await until(serving, lambda: enabled(bench))
    assignment = await bench.assign(task)
    await serving.until(running)
    await serving.stopped()
    last = bench.held[-1][2]
    assert (last["mode"], last["ended"], last["handed_back"]) == ("draining", True, [assignment.claim])
    assert await bench.reports() == []


@pytest.mark.parametrize("message", [b"", b"{}", b"\n{}", b"[" * 1_000, b'{"subject": 1}\n{}'])
async def test_unreadable_assignment_changes_nothing(bench: AssignedBench, message: bytes) -> None:
    worker = Worker()
    worker.task(FUNCTION)(lambda _: None)
    [task] = await bench.given_tasks({"main": ()})
    serving = Serving(bench, worker)
    await until(serving, lambda: enabled(bench))
    name, agent_id, _ = bench.held[-1]
    await bench.channel.hand_over([HandOver(name, agent_id, 1, message)])
    await bench.assign(task)
    while not await bench.reports():
        await settle()
    await serving.stopped()


async def test_roll_call_is_answered(bench: AssignedBench) -> None:
    serving = Serving(bench, Worker())
    await until(serving, lambda: enabled(bench))
    before = len(bench.held)
    await bench.channel.call_roll()
    await until(serving, lambda: len(bench.held) > before)
    await serving.stopped()


@pytest.mark.parametrize(("resource", "epoch"), [("executor", 7), ("other", None), (None, None)])
async def test_leader_learns_its_epoch(resource: str | None, epoch: int | None, bench: AssignedBench) -> None:
    """Only the executor leader has an epoch as such; the fence of the job's lock is another number."""
    contexts: list[Context] = []
    worker = Worker()

    @worker.task(FUNCTION)
    async def handle(context: Context) -> None:
        contexts.append(context)

    [task] = await bench.given_tasks({"main": ()})
    task = task.changed(resource=resource)
    serving = Serving(bench, worker)
    await until(serving, lambda: enabled(bench))
    await bench.hand_over(msgspec.structs.replace(await bench.claim(task), epoch=7), task)
    await until(serving, lambda: contexts)
    await serving.stopped()
    assert [(context.leader_epoch, context.shard_epoch) for context in contexts] == [(epoch, None)]


async def test_owner_of_a_shard_learns_its_epoch(bench: AssignedBench) -> None:
    contexts: list[Context] = []
    worker = Worker()
    worker.task(FUNCTION)(contexts.append)
    [task] = await bench.given_tasks({"main": ()})
    task = task.changed(shard="s1")
    serving = Serving(bench, worker)
    await until(serving, lambda: enabled(bench))
    await bench.hand_over(msgspec.structs.replace(await bench.claim(task), epoch=7), task)
    await until(serving, lambda: contexts)
    await serving.stopped()
    assert [(context.leader_epoch, context.shard_epoch) for context in contexts] == [(None, 7)]
