"""Reports of workers over HTTP that another event comes before (ojs-http-binding §7.4)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import httpx
import pytest

from tests.domain.given import ID, JOB, KEY, admitted, plan, report
from tests.http.conftest import World
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import Completed, Message, Report, Started
from tocsin.domain.execution import Execution
from tocsin.testing import settle

SCOPE: Final = subjects.execution(JOB, ID)
RESULT: Final = {"rows": 1, "none": None, "list": [1.5, "é", True]}
OF_THE_OTHER: Final = "of the other worker"
Overtake: TypeAlias = Callable[["Late"], Awaitable[None]]


class Late:
    """A job that a worker holds, whose report other events overtake."""

    def __init__(self, world: World, job: str) -> None:
        self.world = world
        self.job = job
        self.decision: asyncio.Task[None] | None = None

    async def state(self) -> Execution:
        return execution.fold(await self.world.log.load(SCOPE))

    async def store(self, *facts: Message) -> None:
        for fact in facts:
            await self.world.log.append(fact, expect=await self.world.log.tail(SCOPE))

    async def decide(self, given: Report) -> None:
        """Decide on a report as the DAG advancer or the retrier does."""
        state = await self.state()
        if given.outcome == "completed":
            await self.store(*execution.succeed(state, given, key=KEY))
        else:
            await self.store(*execution.fail(state, given, at=self.world.clock.now()))

    async def send(self, verb: str) -> httpx.Response:
        """Report on the job."""
        bodies: dict[str, dict[str, Any]] = {
            "ack": {"job_id": self.job, "result": RESULT},
            "nack": {"job_id": self.job, "error": {"code": "x", "message": "y"}},
            "ack/batch": {"acks": [{"job_id": self.job, "result": RESULT}]},
        }
        answer = await self.world.ask("POST", f"/ojs/v1/workers/{verb}", {**bodies[verb], "worker_id": "w"})
        assert self.decision is not None
        await self.decision
        return answer


async def late(world: World, monkeypatch: pytest.MonkeyPatch, overtake: Overtake, **steps: tuple[str, ...]) -> Late:
    """Return a held job; `overtake` comes before the decision on the report."""
    newest = await world.log.append(admitted(plan(steps or {"a": ()}, retry=RetryPolicy(max_attempts=2))), expect=0)
    for task in execution.dispatch(execution.fold(await world.log.load(SCOPE)), key=KEY):
        newest = await world.log.append(task, expect=newest)
    fetch = {"queues": ["default"], "count": 5, "worker_id": "w"}
    jobs = (await world.ask("POST", "/ojs/v1/workers/fetch", fetch)).json()["jobs"]
    held, publish = Late(world, jobs[0]["id"]), world.log.publish

    async def publish_late(subject: str, message: Message, *, message_id: str) -> None:
        await publish(subject, message, message_id=message_id)
        if isinstance(message, Report):
            await overtake(held)
            held.decision = asyncio.create_task(decide_later(message))

    async def decide_later(given: Report) -> None:
        await settle()  # the API reads the events before it
        await held.decide(given)

    monkeypatch.setattr(world.log, "publish", publish_late)
    return held


async def cancel(held: Late) -> None:
    await held.store(*execution.cancel(await held.state(), reason="late"))


async def release(held: Late) -> None:
    """End the lease."""
    await held.store(*execution.release(await held.state(), "a", reason="lease_over"))


async def refetch(held: Late) -> None:
    """End the lease, and let another worker claim the same attempt."""
    await release(held)
    await held.store(*execution.dispatch_missing(await held.state(), at=held.world.clock.now(), key=KEY))
    await held.store(Started(job=JOB, execution_id=ID, step="a", attempt=1, delivery=1, worker="other"))


async def refetch_done(held: Late) -> None:
    await refetch(held)
    await held.decide(report("completed", "a", result=OF_THE_OTHER))


async def refetch_failed(held: Late) -> None:
    await refetch(held)
    await held.decide(report("failed", "a"))


async def refetch_exhausted(held: Late) -> None:
    await refetch(held)
    await held.decide(report("failed", "a", error={"type": "x", "retryable": False}))


async def in_time(held: Late) -> None:
    """Let the report decide."""


def error_of(verb: str, answer: httpx.Response) -> dict[str, Any]:
    """Return the refusal of the report."""
    if verb != "ack/batch":
        assert answer.status_code == 409, answer.text
        return dict(answer.json()["error"])
    assert (answer.status_code, answer.json()["failed"], answer.json()["acknowledged"]) == (422, 1, 0)
    return dict(answer.json()["items"][0]["error"])


@pytest.mark.parametrize(
    ("verb", "overtake", "state"),
    [
        *((verb, cancel, "cancelled") for verb in ("ack", "nack", "ack/batch")),
        *((verb, refetch_done, "completed") for verb in ("ack", "nack", "ack/batch")),
        *((verb, refetch_exhausted, "discarded") for verb in ("ack", "nack", "ack/batch")),
        ("nack", release, "available"),
        ("nack", refetch, "active"),
        ("nack", refetch_failed, "retryable"),
    ],
)
async def test_report_that_counts_for_nothing_is_refused(
    verb: str, overtake: Overtake, state: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker must not take a lost result for stored."""
    held = await late(world, monkeypatch, overtake)
    error = error_of(verb, await held.send(verb))
    assert error["code"] == "conflict"
    assert error["message"].endswith(state)


@pytest.mark.parametrize("verb", ["ack", "ack/batch"])
@pytest.mark.parametrize("overtake", [in_time, release, refetch, refetch_failed])
async def test_result_that_is_stored_is_acknowledged(
    verb: str, overtake: Overtake, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A success counts after the end of its lease, because the work is done."""
    held = await late(world, monkeypatch, overtake)
    answer = await held.send(verb)
    assert answer.status_code == 200, answer.text
    shown = answer.json()["items"][0] if verb == "ack/batch" else answer.json()
    assert shown["state"] == "completed"
    [end] = [f.message for f in await world.log.load(SCOPE) if isinstance(f.message, Completed)]
    assert end.result == RESULT


@pytest.mark.parametrize("verb", ["ack", "nack", "ack/batch"])
@pytest.mark.parametrize("other", ["completed", "failed"])
async def test_end_of_another_step_overtakes_no_report(
    verb: str, other: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end_other(held: Late) -> None:
        await held.decide(report(other, "b", error={"type": "x", "retryable": False}))

    held = await late(world, monkeypatch, end_other, a=(), b=())
    assert held.job.endswith(":a")
    answer = await held.send(verb)
    assert answer.status_code == 200, answer.text
