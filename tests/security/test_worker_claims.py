"""A worker that had an attempt before another: it ends no claim but its own."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.security.installations import connected, installed
from tests.security.server import Server
from tests.system.running import Running
from tocsin import Context, Worker, bootstrap, subjects
from tocsin.adapters.nats.agents import NatsAgentChannel
from tocsin.bootstrap import Installation
from tocsin.domain import ids
from tocsin.domain.agent import Assignment, HoldList, unframed
from tocsin.domain.events import (
    Cancelled,
    Completed,
    Dispatched,
    ExecutionFact,
    Failed,
    Failure,
    Released,
    Report,
    RetryScheduled,
    Started,
    validated,
)
from tocsin.services.operations import execution_requests

ID: Final = "01890f3e-0000-7000-8000-00000000000a"
STAGES: Final = ("planner", "dag_advancer", "matcher", "retrier", "agent_keeper", "lease_keeper")
MARKERS: Final = 2
"""Executions in a row that end after a message was stored: then every stage and the matcher handled that message."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with installed(tmp_path_factory.mktemp("claims")) as running:
        yield running


@dataclass
class Former:
    """A hostile process of the account `worker-mail`, which follows the protocol of agents when it likes."""

    installation: Installation
    got: list[tuple[Assignment, Dispatched]] = field(default_factory=list)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _number: int = 0

    @classmethod
    @asynccontextmanager
    async def at(cls, server: Server, folder: Path) -> AsyncIterator["Former"]:
        async with connected(server, folder, "worker-mail") as installation:
            former = cls(installation)
            channel = NatsAgentChannel(installation.connection, installation.names)
            async with channel.tasks("mail", ID, former.receive):
                await installation.connection.client.flush()
                yield former

    def receive(self, message: bytes) -> None:
        assignment, body = unframed(message)
        message_ = subjects.decode(assignment.subject, body)
        assert isinstance(message_, Dispatched)
        self.got.append((assignment, message_))
        self._arrived.set()

    async def announce(self, **fields: Any) -> None:  # noqa: ANN401 - of a hold list
        self._number += 1
        hold_list = HoldList(
            number=self._number,
            mode="enabled",
            queues=("default",),
            functions=("hold",),
            max_concurrent_jobs=1,
            **fields,
        )
        channel = NatsAgentChannel(self.installation.connection, self.installation.names)
        await channel.announce("mail", ID, hold_list.model_dump_json().encode())

    async def takes(self) -> tuple[Assignment, Dispatched]:
        """Announce itself until it receives a task."""
        while not self.got:
            await self.announce()
            try:
                async with asyncio.timeout(1):
                    await self._arrived.wait()
            except TimeoutError:
                continue
        return self.got[-1]

    def report(self, outcome: str, **changed: Any) -> Report:  # noqa: ANN401 - of a report
        """Return its honest report, with what it lies about."""
        assignment, task = self.got[-1]
        fields = {
            "job": task.job,
            "execution_id": task.execution_id,
            "outcome": outcome,
            "step": task.step,
            "attempt": task.attempt,
            "delivery": assignment.delivery,
            "token": task.token,
            "claim": assignment.claim,
            "proof": assignment.proof,
            "result": "of the former",
            "worker": "mail",
            "error": Failure(type="Forged", retryable=False) if outcome == "failed" else None,
        }
        return validated(Report, {**fields, **changed})

    async def store(self, *reports: Report) -> None:
        """Store reports under their subjects, and under those that the token of the task would make."""
        client, names = self.installation.connection.client, self.installation.names
        for report in reports:
            subject = subjects.subject_of(report)
            *start, _, claim = subject.split(".")
            for each in (subject, ".".join((*start, ids.seal(report.token), claim))):
                headers = {"Nats-Msg-Id": ids.report_id(report.proof or "", each)}
                await client.publish(names.to_wire(each), report.encode(), headers=headers)
        await client.flush()


@asynccontextmanager
async def stages(at: Server, folder: Path) -> AsyncIterator[Running]:
    async with connected(at, folder, "scheduler") as scheduler, connected(at, folder, "operator") as operator:
        task = asyncio.create_task(bootstrap.run_stages(scheduler, STAGES))
        try:
            yield Running(operator)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def serving(at: Server, folder: Path, worker: Worker) -> AsyncIterator[None]:
    async with (
        connected(at, folder, "worker") as outside,
        bootstrap.worker_connection(outside, worker.options) as connection,
    ):
        task = asyncio.create_task(worker.serve(connection))
        try:
            yield
        finally:
            worker.stop()
            worker.stop()
            await asyncio.gather(task, return_exceptions=True)


async def everything_is_handled(tocsin: Running, marker: str) -> None:
    for _ in range(MARKERS):
        number = len(await tocsin.of_executions(marker, Completed))
        await tocsin.trigger(marker)
        await tocsin.ended(marker, Completed, number + 1)


@dataclass
class Scene:
    """An attempt that the former holder handed back, and that another worker has now."""

    tocsin: Running
    former: Former
    job: str
    claim: int
    """The sequence of the other worker's claim."""
    before: int
    """The sequence of the event before it."""
    let_go: asyncio.Event
    stopped: asyncio.Event


@asynccontextmanager
async def taken_over(at: Server, folder: Path, job: str) -> AsyncIterator[Scene]:
    held, let_go, stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
    worker = Worker(name=f"all-{job}", concurrency=9)

    @worker.task("hold")
    async def hold(_: Context) -> None:
        held.set()
        try:
            await let_go.wait()
        finally:
            stopped.set()
        raise ValueError("of the present holder")

    worker.task("pass")(lambda _: None)
    async with stages(at, folder) as tocsin, Former.at(at, folder) as former:
        retry = {"max_attempts": 1}
        await tocsin.apply({"name": job, "function": "hold", "retry": retry}, {"name": f"{job}.m", "function": "pass"})
        await tocsin.trigger(job)
        assignment, _ = await former.takes()
        async with serving(at, folder, worker):
            await former.announce(handed_back=(assignment.claim,))
            await tocsin.ended(job, Released)
            await held.wait()
            facts = await tocsin.log.load(subjects.scope_of(former.got[-1][1]))
            [*_, before, claim] = facts
            assert isinstance(claim.message, Started)
            assert claim.message.worker == worker.options.name
            yield Scene(tocsin, former, job, claim.sequence, before.sequence, let_go, stopped)


async def test_former_holder_ends_no_claim_of_another(secured: Server, tmp_path: Path) -> None:
    async with taken_over(secured, tmp_path, "stolen") as scene:
        tocsin, former = scene.tocsin, scene.former
        lies: list[dict[str, Any]] = [
            {"claim": scene.claim},
            {"claim": scene.claim, "delivery": None},
            {"claim": None, "delivery": None},
            {"claim": None, "proof": None},
            {"claim": scene.claim, "proof": None},
        ]
        honest = former.report("failed")
        lied = [former.report(outcome, **lie) for outcome in ("completed", "failed") for lie in lies]
        await former.store(honest, *lied)
        await everything_is_handled(tocsin, "stolen.m")
        ends = (Completed, Failed, RetryScheduled, Cancelled)
        assert [await tocsin.of_executions("stolen", end) for end in ends] == [[]] * len(ends)
        assert not scene.stopped.is_set()
        scene.let_go.set()
        [failed] = await tocsin.ended("stolen", Failed)
        assert failed.error is not None
        assert failed.error.message == "of the present holder"


async def test_late_success_of_a_former_holder_counts(secured: Server, tmp_path: Path) -> None:
    """The work is done, also if another worker has the attempt; its handler is stopped."""
    async with taken_over(secured, tmp_path, "late") as scene:
        await scene.former.store(scene.former.report("completed"))
        [completed] = await scene.tocsin.ended("late", Completed)
        assert completed.result == "of the former"
        async with asyncio.timeout(scene.tocsin.patience):
            await scene.stopped.wait()


async def test_holder_completes_no_execution_that_was_cancelled(secured: Server, tmp_path: Path) -> None:
    worker = Worker(name="all-cancelled")
    worker.task("pass")(lambda _: None)
    async with stages(secured, tmp_path) as tocsin, Former.at(secured, tmp_path) as former:
        await tocsin.apply({"name": "cancelled", "function": "hold"}, {"name": "cancelled.m", "function": "pass"})
        await tocsin.trigger("cancelled")
        _, task = await former.takes()
        await execution_requests.cancel(tocsin.log, task.execution_id)
        await tocsin.ended("cancelled", Cancelled)
        [*_, end] = await tocsin.log.load(subjects.scope_of(task))
        async with serving(secured, tmp_path, worker):
            for claim in (end.sequence, end.sequence + 1, former.got[-1][0].claim):
                await former.store(former.report("completed", claim=claim), former.report("failed", claim=claim))
            await everything_is_handled(tocsin, "cancelled.m")
        [*_, newest] = await tocsin.log.load(subjects.scope_of(task))
        assert newest.sequence == end.sequence
        assert await tocsin.of_executions("cancelled", Completed) == []
        assert len(await tocsin.of_executions("cancelled", ExecutionFact)) == 4
