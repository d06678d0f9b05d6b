"""From a definition to a finished execution, all of it over a real log."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.stored_events import StoredEvents
from tests.system.running import Running, event, running
from tocsin import Context, NonRetryableError, Worker, bootstrap, subjects
from tocsin.adapters import files
from tocsin.bootstrap.commit_process import KEY
from tocsin.domain import ledger
from tocsin.domain.commit import LogHead
from tocsin.domain.events import (
    Acquired,
    Admitted,
    Advanced,
    Cancelled,
    Completed,
    CronTriggered,
    DeadLettered,
    Dispatched,
    Due,
    Failed,
    Passed,
    Planned,
    PoisonMessage,
    Queued,
    Requested,
    RetryScheduled,
    Skipped,
    Started,
)
from tocsin.engine.commit_writer import Chain
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.settings import SettingsError
from tocsin.subjects import Stream

EXAMPLES = Path(__file__).parents[2] / "examples"
NO_DELAY = {"initial_delay": 0.05, "multiplier": 2, "jitter": 0.1}


class Functions:
    """The functions of the worker."""

    def __init__(self) -> None:
        self.worker = Worker(concurrency=50)
        self.hold = asyncio.Event()
        self.contexts: list[Context] = []
        self.worker.task("f")(self.succeed)
        self.worker.task("boom")(self.fail)
        self.worker.task("refuse")(self.refuse)
        self.worker.task("hold")(self.wait)

    async def succeed(self, context: Context) -> dict[str, Any]:
        self.contexts.append(context)
        return {"step": context.step, "upstream": context.upstream}

    async def fail(self, context: Context) -> None:
        self.contexts.append(context)
        raise ValueError(f"attempt {context.attempt}")

    async def refuse(self, _: Context) -> None:
        raise NonRetryableError("never")

    async def wait(self, context: Context) -> None:
        self.contexts.append(context)
        await self.hold.wait()


@pytest.fixture
def functions() -> Functions:
    return Functions()


@pytest.fixture
async def tocsin(nats_url: str, tmp_path: Path, functions: Functions) -> AsyncIterator[Running]:
    async with running(nats_url, tmp_path, worker=functions.worker) as it:
        yield it
        functions.hold.set()


async def test_the_jobs_of_the_registry_run(tocsin: Running, functions: Functions) -> None:
    """Trigger each of the six jobs of hip-62 from the examples once."""
    jobs = files.load(str(EXAMPLES / "jobs.yaml"))
    names = {step.function for job in jobs for step in job.steps()}
    for name in names:
        functions.worker.task(name)(functions.succeed)
    await tocsin.apply(*(job.model_dump() for job in jobs))
    for job in jobs:
        await tocsin.trigger(job.name)
    for job in jobs:
        await tocsin.ended(job.name, Completed)
    assert {context.function for context in functions.contexts} == names


async def commits_about(tocsin: Running, job: str) -> list[set[str]]:
    """The types of the events about a job but its definition, by commit."""
    commits, types = tocsin.installation.commits, list[set[str]]()
    chain = Chain(await commits._seal(), LogHead(KEY))
    async for body in commits.reader.bodies():
        commit = chain.take(body)
        about = [event.subject for event in commit.events if job in event.subject.split(".")] if commit else []
        types.append({subjects.type_of(subject).__name__ for subject in about} - {"Defined"})
    return [each for each in types if each]


async def test_execution_stores_few_messages(tocsin: Running) -> None:
    """The execution stores its beginning, its claim and its end, next to trigger and report.

    The claim may be stored with the beginning.
    """
    await tocsin.apply({"name": "plain", "function": "f", "overlap_policy": "allow"})
    await tocsin.apply({"name": "locked", "function": "f", "overlap_policy": "skip", "schedule": "0 0 29 2 *"})
    _, definition = await LedgerReader(tocsin.log).load("locked")
    due = Due(job="locked", scheduled_time=datetime.now(UTC).replace(microsecond=0), definition=definition)
    await tocsin.trigger("plain")
    await tocsin.log.append(due, expect=definition)
    for job in ("plain", "locked"):
        await tocsin.ended(job, Completed)
        await tocsin.stored(f"cron.triggered.{job}", CronTriggered, 1)

    claim, end = {"Started"}, {"Completed"}
    for job, before, beginning in (
        ("plain", [], {"CronTriggered", "Dispatched"}),
        ("locked", [{"Due"}], {"Acquired", "CronTriggered", "Dispatched"}),
    ):
        assert await commits_about(tocsin, job) in (
            [*before, beginning, claim, end],
            [*before, beginning | claim, end],
        )
    everything = await StoredEvents.of(tocsin.log)
    assert len(everything.requests) == 1
    assert len(everything.reports) == 2


async def test_a_graph_fans_out_and_in(tocsin: Running, functions: Functions) -> None:
    steps = [
        {"name": "extract", "function": "f"},
        {"name": "left", "function": "f", "depends_on": ["extract"]},
        {"name": "right", "function": "f", "depends_on": ["extract"]},
        {"name": "load", "function": "f", "depends_on": ["left", "right"]},
    ]
    await tocsin.apply({"name": "etl", "dag": steps})
    await tocsin.trigger("etl")
    [completed] = await tocsin.ended("etl", Completed)
    assert [context.step for context in functions.contexts][::3] == ["extract", "load"]
    assert sorted(context.step for context in functions.contexts) == ["extract", "left", "load", "right"]
    assert set(functions.contexts[-1].upstream) == {"left", "right"}
    assert completed.step == "load"
    assert len(await tocsin.of_executions("etl", Advanced)) == 3


async def test_failing_step_is_retried_then_becomes_dead_letter(tocsin: Running) -> None:
    retry = {"max_attempts": 3, **NO_DELAY}
    steps = [{"name": "extract", "function": "boom"}, {"name": "load", "function": "f", "depends_on": ["extract"]}]
    await tocsin.apply({"name": "etl", "dag": steps, "retry": retry, "dead_letter": True})
    await tocsin.trigger("etl", input={"day": "monday"})
    [failed] = await tocsin.ended("etl", Failed)
    assert (failed.step, failed.attempt, failed.reason, failed.cancelled_steps) == ("extract", 3, "attempts", ("load",))
    delays = [fact.delay for fact in await tocsin.of_executions("etl", RetryScheduled)]
    assert delays == [pytest.approx(0.05, rel=0.11), pytest.approx(0.1, rel=0.11)]

    async def letters() -> list[DeadLettered]:
        return [r.message for r in await tocsin.facts("dead-letter.>", DeadLettered)]

    [letter] = await tocsin.until(letters)
    assert letter.execution_id == failed.execution_id
    assert [(a.step, a.attempt, a.error and a.error.message) for a in letter.attempts] == [
        ("extract", 1, "attempt 1"),
        ("extract", 2, "attempt 2"),
        ("extract", 3, "attempt 3"),
    ]
    assert all(a.started_at and a.ended_at and a.worker for a in letter.attempts)
    assert letter.last_error
    assert "attempt 3" in (letter.last_error.traceback or "")
    assert letter.input == {"day": "monday"}


async def test_non_retryable_error_is_not_retried(tocsin: Running) -> None:
    await tocsin.apply({"name": "once", "function": "refuse", "retry": {"max_attempts": 5, **NO_DELAY}})
    await tocsin.trigger("once")
    [failed] = await tocsin.ended("once", Failed)
    assert (failed.attempt, failed.reason) == (1, "non_retryable")


async def test_cron_18_locked_job_is_skipped_while_running(tocsin: Running, functions: Functions) -> None:
    skips = await tocsin.public(f"{tocsin.settings.public_prefix}.skipped.*")
    await tocsin.apply({"name": "probe", "schedule": "* * * * * *", "function": "hold"})
    public_event = await event(skips)
    [running_one] = executions = await tocsin.of_executions("probe", Started)
    assert public_event["event"] == "cron.skipped"
    assert public_event["data"] == {
        "cron_name": "probe",
        "cron_expression": "* * * * * *",
        "timezone": "UTC",
        "reason": "overlap_skip",
        "active_job_id": running_one.execution_id,
        "scheduled_time": public_event["data"]["scheduled_time"],
    }
    while await tocsin.installation.projections.get(subjects.Bucket.LOCKS, "scheduler.lock.probe") is None:  # noqa: ASYNC110 - a moment later
        await asyncio.sleep(0.05)
    functions.hold.set()
    [first, second, *_] = await tocsin.ended("probe", Admitted, 2)
    assert first.execution_id == executions[0].execution_id
    assert first.fence is not None
    assert second.fence is not None
    assert second.fence > first.fence


async def test_plain_client_hears_of_its_trigger(tocsin: Running, functions: Functions) -> None:
    client, settings = tocsin.installation.connection.client, tocsin.settings
    answers = await tocsin.public(f"{settings.public_prefix}.answer.>")
    await tocsin.apply({"name": "mail.send", "function": "hold", "max_waiting": 1})
    for number in range(1, 4):
        headers = {"Nats-Msg-Id": f"order.{number}"}
        await client.request(f"{settings.trigger_prefix}.mail.send", b"{}", headers=headers)
        await tocsin.of_executions("mail.send", Planned if number > 1 else Admitted)
    unknown = json.loads((await client.request(f"{settings.trigger_prefix}.nobody", b"{}")).data)
    heard = {}
    for _ in range(3):
        data = (await event(answers))["data"]
        heard[data["trigger_id"]] = (data["answer"], data["code"])
    assert heard == {
        "order%2E2": ("queued", "lock_held"),
        "order%2E3": ("refused", "queue_full"),
        f"seq-{unknown['seq']}": ("refused", "job-not-found"),
    }
    functions.hold.set()


@pytest.mark.parametrize("length", [255, 3_900, 4_040])
async def test_request_with_a_long_name_stops_nothing(tocsin: Running, length: int) -> None:
    """The server ends the connection of a client whose subject is too long, and stages make longer subjects."""
    client, settings = tocsin.installation.connection.client, tocsin.settings
    await client.publish(f"{tocsin.installation.names.cancel_prefix}.{'x' * length}.y", b"{}")
    await client.publish(f"{tocsin.installation.names.cancel_prefix}.y.{'x' * length}", b"{}")
    await client.publish(f"{settings.trigger_prefix}.{'x' * length}", b"{}", headers={"Nats-Msg-Id": "y" * 128})
    await tocsin.until(lambda: tocsin.facts("dead-letter.>", PoisonMessage))
    await tocsin.apply({"name": "next", "function": "f"})
    await tocsin.trigger("next")
    await tocsin.ended("next", Completed)


async def test_cron_18_enqueued_occurrences_run_in_sequence(tocsin: Running, functions: Functions) -> None:
    fields = {"function": "hold", "overlap_policy": "enqueue"}
    await tocsin.apply({"name": "queue", "schedule": "* * * * * *", **fields})
    await tocsin.ended("queue", Planned, 3)
    assert len(await tocsin.of_executions("queue", Admitted)) == 1
    functions.hold.set()
    await tocsin.change("queue", lambda state: ledger.delete(state, "queue"))
    requested = {fact.execution_id: fact for fact in await tocsin.of_executions("queue", Requested)}.values()
    completed = await tocsin.ended("queue", Completed, len(requested))
    assert [fact.scheduled_time for fact in completed] == sorted(fact.scheduled_time for fact in requested)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(900)  # longer than its waits, which say what was missing
async def test_thousand_executions_wait_for_one_lock(tocsin: Running, functions: Functions) -> None:
    number = 1_000
    tocsin.patience = 300.0
    await tocsin.apply({"name": "long", "function": "hold", "overlap_policy": "enqueue"})
    await asyncio.gather(*(tocsin.trigger("long") for _ in range(number)))
    await tocsin.ended("long", Planned, number - 1)  # the first acquired the lock at once
    await tocsin.stored("lock.long.queued", Queued, number - 1)
    functions.hold.set()
    await tocsin.ended("long", Completed, number)
    queued = await tocsin.facts("lock.long.queued", Queued)
    acquired = await tocsin.facts("lock.long.acquired", Acquired)
    sizes = {len(recorded.message.encode()) for recorded in (*queued, *acquired)}
    assert max(sizes) < 250
    turns = sorted((fact.message.scheduled_time, fact.message.execution_id) for fact in queued)
    assert [fact.message.execution_id for fact in acquired[1:]] == [execution_id for _, execution_id in turns]


async def test_cron_18_previous_run_is_cancelled_for_next(tocsin: Running, functions: Functions) -> None:
    fields = {"function": "hold", "overlap_policy": "cancel_previous"}
    await tocsin.apply({"name": "latest", "schedule": "* * * * * *", **fields})
    first, *_ = await tocsin.ended("latest", Cancelled)

    async def is_told() -> bool:
        return any(c.cancelled.is_set() for c in functions.contexts if c.execution_id == first.execution_id)

    await tocsin.until(is_told)
    await tocsin.change("latest", lambda state: ledger.delete(state, "latest"))
    functions.hold.set()
    last = (await tocsin.ended("latest", Completed))[-1]
    assert last.scheduled_time > first.scheduled_time


async def test_cron_29_plain_subscriber_receives_each_firing(tocsin: Running) -> None:
    public_event = await tocsin.public(f"{tocsin.settings.public_prefix}.triggered.tick")
    await tocsin.apply({"name": "tick", "schedule": "* * * * * *", "function": "f", "overlap_policy": "allow"})
    first, second = await event(public_event), await event(public_event)
    assert first["event"] == "cron.triggered"
    assert first["timestamp"].endswith("Z")
    assert set(first["data"]) == {
        *(
            "cron_name",
            "cron_expression",
            "timezone",
            "job_id",
            "job_type",
            "run_count",
            "scheduled_time",
            "actual_time",
            "trigger",
        )
    }
    assert first["data"]["trigger"] == "cron"
    assert (first["data"]["cron_name"], first["data"]["job_type"]) == ("tick", "f")
    assert (first["data"]["run_count"], second["data"]["run_count"]) == (1, 2)
    assert first["data"]["scheduled_time"] < second["data"]["scheduled_time"]


@pytest.mark.parametrize("written", ["on_demand", "on.demand"])
async def test_a_plain_publish_runs_the_job(tocsin: Running, functions: Functions, written: str) -> None:
    await tocsin.apply({"name": "on.demand", "function": "f", "input": {"a": 1}})
    client = tocsin.installation.connection.client
    await client.publish(f"{tocsin.settings.trigger_prefix}.{written}", b'{"input": {"b": 2}}')
    await tocsin.ended("on.demand", Completed)
    [context] = functions.contexts
    assert (context.input, context.trigger) == ({"a": 1, "b": 2}, "event")


async def test_trigger_of_an_unknown_job_becomes_dead_letter(tocsin: Running) -> None:
    await tocsin.trigger("nobody")

    async def refused() -> list[PoisonMessage]:
        return [r.message for r in await tocsin.facts("dead-letter.>", PoisonMessage)]

    [letter] = await tocsin.until(refused)
    assert (letter.job, letter.reason) == ("nobody", "no job is called 'nobody'")


async def test_undecodable_trigger_is_kept_with_its_bytes(tocsin: Running) -> None:
    await tocsin.installation.connection.client.publish(f"{tocsin.settings.trigger_prefix}.odd", b"\xff\x00")

    async def refused() -> list[PoisonMessage]:
        return [r.message for r in await tocsin.facts("dead-letter.>", PoisonMessage)]

    [letter] = await tocsin.until(refused)
    assert letter.body == "/wA="
    assert letter.reason.startswith("unreadable: public.trigger.odd: ")


async def test_paused_job_announces_skips_and_resumes_without_backlog(tocsin: Running) -> None:
    skips = await tocsin.public(f"{tocsin.settings.public_prefix}.skipped.tick")
    await tocsin.apply({"name": "tick", "schedule": "* * * * * *", "function": "f", "overlap_policy": "allow"})
    await tocsin.ended("tick", Completed)
    await tocsin.change("tick", lambda state: ledger.pause(state, "tick"))
    public_event = await event(skips)
    assert (public_event["data"]["reason"], "active_job_id" in public_event["data"]) == ("disabled", False)
    await event(skips)
    await tocsin.change("tick", lambda state: ledger.resume(state, "tick"))
    due = await tocsin.facts("ledger.tick.due", Due)

    async def fired_again() -> bool:
        return len(await tocsin.facts("ledger.tick.due", Due)) > len(due) + 1

    await tocsin.until(fired_again)
    passed = await tocsin.facts("ledger.tick.passed", Passed)
    fired = [r.message.scheduled_time for r in await tocsin.facts("ledger.tick.due", Due)]
    silent = {at for r in passed for at in r.message.scheduled_times}
    assert not silent & set(fired)
    assert {r.message.reason for r in passed} == {"paused"}
    assert len(await tocsin.of_executions("tick", Skipped)) >= 2


async def test_history_shows_the_outcome_of_an_execution(tocsin: Running) -> None:
    await tocsin.apply({"name": "plain", "function": "f"})
    await tocsin.trigger("plain")
    [completed] = await tocsin.ended("plain", Completed)
    async with tocsin.installation.history() as history:

        async def row() -> bool:
            found = await history.execution(completed.execution_id)
            return found is not None and found.status == "completed"

        await tocsin.until(row)


async def test_worker_leaves_tasks_of_mq_queues_alone(nats_url: str, tmp_path: Path) -> None:
    queues = {"default": {"transport": "mq"}}
    async with running(nats_url, tmp_path, queues=queues) as tocsin:
        with pytest.raises(SettingsError) as refused:
            async with bootstrap.worker_connection(tocsin.installation, Worker().options):
                pass
    assert str(refused.value).startswith("`queues.default`: ")
    assert "its transport is `mq`" in str(refused.value)


async def test_executors_outside_need_no_code_of_ours(nats_url: str, tmp_path: Path) -> None:
    """hip-62's subjects alone: a plain consumer of `mq.scheduled.<job>` that answers on the completion subject."""
    queues = {"default": {"transport": "mq"}}
    async with running(nats_url, tmp_path, queues=queues) as tocsin:
        await tocsin.apply({"name": "out.side", "function": "elsewhere", "input": {"a": 1}, "retry": NO_DELAY})
        client, mq = tocsin.installation.connection.client, tocsin.settings.mq_prefix
        taken = await client.jetstream().pull_subscribe(
            f"{mq}.scheduled.>", durable="job-executors", stream=tocsin.installation.names.stream(Stream.MQ)
        )
        await tocsin.trigger("out.side")
        answers = [b'{"status": "failed", "error": "not today"}', b'{"status": "completed", "result": {"rows": 3}}']
        for attempt, answer in enumerate(answers, start=1):
            [message] = await taken.fetch(1, timeout=10)
            envelope = json.loads(message.data)
            assert message.subject.endswith("mq.scheduled.out.side")
            assert (envelope["schema"], envelope["type"], envelope["source"]) == (
                "hanzo.mq.v1",
                "scheduler.execute",
                "scheduler",
            )
            data = envelope["data"]
            assert (data["job_name"], data["function"], data["input"], data["attempt"], data["timeout"]) == (
                "out.side",
                "elsewhere",
                {"a": 1},
                attempt,
                300.0,
            )
            await client.publish(f"{mq}.scheduler.complete.out.side.{data['execution_id']}", answer)
            await message.ack()
        [completed] = await tocsin.ended("out.side", Completed)
        assert (completed.result, completed.attempt) == ({"rows": 3}, 2)
        assert len(await tocsin.of_executions("out.side", Dispatched)) == 2
