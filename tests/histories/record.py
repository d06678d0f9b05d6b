"""Records a log of a real installation, for `test_histories.py`.

    python -m tests.histories.record NAME

The logs hold the events of commits and the inputs. They are never recorded again: every later version must read them. An event
of a new form gets a new log.
"""

import asyncio
import json
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.stored_events import uuid7
from tests.system.running import Running, running
from tocsin import Context, Worker, subjects
from tocsin.adapters.nats.agents import NatsFetchChannel
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition, RetryPolicy
from tocsin.domain.events import (
    Actor,
    Cancelled,
    CancelRequest,
    Completed,
    DeadLettered,
    Enqueued,
    Failed,
    Failure,
    Message,
    Passed,
    Recorded,
    Resolved,
    Skipped,
    Started,
)
from tocsin.domain.task_fetch import Lease
from tocsin.engine.report_lists import decode, listed
from tocsin.services.jobs import Registry
from tocsin.services.operations import (
    backfill,
    dead_letters,
    execution_requests,
    task_fetches,
    worker_answers,
)
from tocsin.services.operations.backfill import Span
from tocsin.services.operations.task_fetches import TaskFetches
from tocsin.subjects import Stream

FOLDER = Path(__file__).parent


def worker() -> Worker:
    """The functions that the recorded worker ran."""
    it = Worker(name="recorded")

    @it.task("f")
    async def succeed(context: Context) -> dict[str, object]:
        return {"step": context.step}

    @it.task("boom")
    async def fail(context: Context) -> None:
        raise ValueError(f"attempt {context.attempt}")

    @it.task("slow")
    async def wait(_: Context) -> None:
        await asyncio.sleep(2.5)

    @it.task("short")
    async def wait_shortly(_: Context) -> None:
        await asyncio.sleep(1)

    return it


async def happen(tocsin: Running) -> None:
    """A little of everything."""
    retry = {"max_attempts": 2, "initial_delay": 0.2}
    left, right = ({"name": name, "function": "f", "depends_on": ["extract"]} for name in ("left", "right"))
    steps = [{"name": "extract", "function": "f"}, left, right]
    broken = [{"name": "extract", "function": "boom"}, {"name": "load", "function": "f", "depends_on": ["extract"]}]
    await tocsin.apply(
        {"name": "etl", "dag": steps, "overlap_policy": "allow"},
        {"name": "broken.etl", "dag": broken, "retry": retry, "dead_letter": True},
        {"name": "slow", "schedule": "* * * * * *", "function": "slow"},
        {"name": "tick", "schedule": "* * * * * *", "function": "f", "overlap_policy": "allow"},
    )
    await tocsin.trigger("etl", input={"a": 1}, by={"identity": "ada"})
    await tocsin.trigger("broken.etl")
    await tocsin.trigger("nobody")
    await tocsin.ended("etl", Completed)
    await tocsin.ended("broken.etl", Failed)
    await tocsin.ended("slow", Skipped, 2)
    await tocsin.change("tick", lambda state: ledger.pause(state, "tick"))
    await tocsin.until(lambda: tocsin.facts("ledger.tick.passed", Passed))
    await tocsin.change("tick", lambda state: ledger.resume(state, "tick"))
    await tocsin.ended("slow", Completed, 2)
    for job in ("tick", "slow"):
        await tocsin.change(job, lambda state, job=job: ledger.delete(state, job))  # type: ignore[misc]
    done = len(await tocsin.of_executions("slow", Completed))
    await asyncio.sleep(3)
    assert len(await tocsin.of_executions("slow", Completed)) >= done


async def operate(tocsin: Running) -> None:
    """The operations of an operator: cancel, replay, resolve, backfill; and overlapping runs meanwhile."""
    job = {"retry": {"max_attempts": 1}, "dead_letter": True, "function": "boom"}
    await tocsin.apply(
        {"name": "broken", **job}, {"name": "hopeless", **job}, {"name": "slow", "function": "slow"},
        {"name": "nightly", "schedule": "0 2 * * *", "function": "slow"},
        {"name": "queued", "function": "short", "overlap_policy": "enqueue"},
        {"name": "superseded", "function": "slow", "overlap_policy": "cancel_previous"},
    )  # fmt: skip
    for _ in range(4):  # three of them wait for the lock
        await tocsin.trigger("queued")
    for name in ("broken", "hopeless", "slow"):
        await tocsin.trigger(name, input={"a": 1})
    broken = (await tocsin.until(lambda: tocsin.facts("dead-letter.broken.*.dead-lettered", DeadLettered)))[0].message
    hopeless = (await tocsin.until(lambda: tocsin.facts("dead-letter.hopeless.*.dead-lettered", DeadLettered)))[
        0
    ].message
    [started] = await tocsin.ended("slow", Started)
    asked = CancelRequest(by=Actor(identity="ada"), reason="wrong day")
    await tocsin.log.publish(subjects.cancel("slow", started.execution_id), asked, message_id="cancel")
    await tocsin.ended("slow", Cancelled)
    await tocsin.apply({"name": "broken", **job, "function": "f"})
    await dead_letters.replay(tocsin.log, broken.id, input={"a": 2}, by=Actor(identity="ada"), reason="repaired")
    await tocsin.until(lambda: tocsin.facts("dead-letter.broken.*.resolved", Resolved))
    await dead_letters.replay(tocsin.log, hopeless.id)
    await tocsin.ended("hopeless", Failed, 2)
    await dead_letters.resolve(tocsin.log, hopeless.id, by=Actor(identity="ada"), reason="by hand")
    end = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    registry = Registry(tocsin.log, tocsin.installation.projections, tocsin.installation.clock)
    span = Span(end - timedelta(days=2), end)
    wanted = await backfill.plan(
        tocsin.installation.stored, registry, "nightly", span, now=datetime.now(UTC), name="recorded"
    )
    async for _ in backfill.begin(tocsin.log, wanted, tocsin.installation.clock, rate=100):
        pass
    await tocsin.ended("nightly", Completed, 2)
    for _ in range(2):
        await tocsin.trigger("superseded")
    await tocsin.ended("superseded", Cancelled)
    await tocsin.ended("superseded", Completed)
    await tocsin.ended("queued", Completed, 4)


async def outside(tocsin: Running) -> None:
    """The requests of HTTP workers: they lose a lease, hand back, fail and succeed, too late or too early."""
    installation, clock = tocsin.installation, tocsin.installation.clock
    now = clock.now()
    retry = RetryPolicy(max_attempts=2, initial_delay=0.2, max_delay=0.2, jitter=0.5, max_delay_with_jitter=True)
    given: dict[str, dict[str, Any]] = {
        "lost": {}, "handed-back": {}, "flaky": {}, "slow": {"start_at": now + timedelta(seconds=1)},
        "stale": {"expires_at": now + timedelta(seconds=1)},
    }  # fmt: skip
    for name, more in given.items():
        definition = JobDefinition(name=f"ojs.{name}", function=name, queue=name, overlap_policy="allow", retry=retry)
        wish = Enqueued(execution_id=uuid7(now), definition=definition, by=Actor(identity="ada"), **more)
        await execution_requests.enqueue(tocsin.log, wish)

    async def take(name: str, seconds: float = 60) -> task_fetches.Held:
        holder, lease = task_fetches.Holder("ada", "w"), Lease(seconds)
        found: list[task_fetches.Held] = []
        while not found:
            found = await fetches.take([name], functions=("*",), limit=1, holder=holder, lease=lease, wait=5)
        return found[0]

    channel, key = NatsFetchChannel(installation.connection, installation.names), await installation.report_key()
    async with TaskFetches(tocsin.log, channel, clock).running() as fetches:
        await take("lost", seconds=0.2)
        await task_fetches.hand_back(tocsin.log, await take("handed-back"))
        error = Failure(type="Busy", code="busy", message="not now", details={"queue": 7})
        await worker_answers.fail(tocsin.log, await take("flaky"), error, key=key)
        for name in ("lost", "handed-back", "flaky", "slow"):
            await worker_answers.complete(tocsin.log, await take(name), {"by": name}, key=key)
            await tocsin.ended(f"ojs.{name}", Completed)
    await tocsin.ended("ojs.stale", Failed)


SCENARIOS = {"main-road": happen, "operations": operate, "outside": outside}


async def _stored(tocsin: Running) -> list[Recorded[Message]]:
    """Return all events and inputs; the reports of a list are apart."""
    found = list[Recorded[Message]]()
    for name in ("ledger", "execution", "lock", "cron", "dead-letter", "trigger", "cancel", "enqueue"):
        found += await tocsin.log.read(f"{name}.>", limit=100_000)
    stored = tocsin.installation.stored
    async for portion in stored.messages(Stream.REPORTS, after=0, upto=await tocsin.log.end(Stream.REPORTS)):
        for message in portion:
            report = Recorded(decode(message.subject, message.body), message.subject, message.sequence, message.time)
            found += listed(report)
    return found


def _line(recorded: Recorded[Message]) -> dict[str, object]:
    return {
        "subject": recorded.subject,
        "sequence": recorded.sequence,
        "time": recorded.time.isoformat(),
        "body": json.loads(recorded.message.encode()),
    }


async def record(name: str) -> None:
    """Run, and write what was stored."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(port=ANY_PORT).start() as server:
        async with running(server.url, Path(folder), worker=worker()) as tocsin:
            await SCENARIOS[name](tocsin)
            lines = [json.dumps(_line(recorded), separators=(",", ":")) for recorded in await _stored(tocsin)]
    text = "\n".join(lines).replace(f"{Path.cwd()}/", "")  # tracebacks name files
    (FOLDER / f"{name}.jsonl").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1]))
