"""Runs over both transports: equal answers, and equal errors."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_span_id, format_trace_id

from tests.client.conftest import TRANSPORTS, Site, in_thread
from tests.system.running import DEADLINE
from tocsin import Client, subjects
from tocsin.client import (
    ClientClosed,
    InvalidArgument,
    RunCancelled,
    RunFailed,
    RunSkipped,
    RunTimeout,
)
from tocsin.client.event_watch import MAX_FOLLOWERS
from tocsin.domain.access import MASK
from tocsin.domain.definition import DefinitionError
from tocsin.domain.errors import TocsinError
from tocsin.domain.events import Completed, Dispatched, Shard, Trigger
from tocsin.domain.ledger import JobNotFound
from tocsin.domain.trace_context import TraceContext
from tocsin.ports import HistoryNotFound
from tocsin.services.operations.errors import NotFound
from tocsin.services.shards import ShardMaps


async def test_result_is_that_of_the_last_step(client: Client) -> None:
    run = await client.trigger("echo", {"day": "2026-11-26"}, reason="by hand")
    assert await run.result(DEADLINE) == {"day": "2026-11-26"}
    assert await run.results(DEADLINE) == {"main": {"day": "2026-11-26"}}
    assert await run.status() == "completed"


async def test_several_last_steps_give_a_mapping(client: Client) -> None:
    run = await client.trigger("graph")
    assert await run.result(DEADLINE) == {"b": "b", "c": "c"}
    assert await run.results(DEADLINE) == {"a": "a", "b": "b", "c": "c"}


async def test_run_continues_the_current_trace(client: Client, site: Site, transport: str) -> None:
    def trigger() -> None:
        with site.blocking(transport) as blocking:
            blocking.trigger("echo")

    provider = TracerProvider()
    with provider.get_tracer("program").start_as_current_span("order") as span:
        await client.trigger("echo")
        await in_thread(trigger)
    await client.trigger("echo")
    provider.shutdown()
    of_span = span.get_span_context()
    assert of_span.is_valid
    stored = [recorded.message for recorded in await site.running.log.read(subjects.trigger("echo", subjects.ANY))]
    trace = TraceContext(format_trace_id(of_span.trace_id), format_span_id(of_span.span_id), is_sampled=True)
    assert [message.traceparent for message in stored if isinstance(message, Trigger)] == [
        *(trace.traceparent, trace.traceparent, None)
    ]


async def test_run_that_ended_before_has_its_result(client: Client) -> None:
    ended = await client.trigger("echo", {"n": 1})
    await ended.result(DEADLINE)
    found = await client.run(ended.execution_id)
    assert (found.job, found.execution_id) == ("echo", ended.execution_id)
    assert await found.result(timeout=0) == {"n": 1}


async def test_failure_names_its_step_and_error(client: Client) -> None:
    run = await client.trigger("broken")
    with pytest.raises(RunFailed) as caught:
        await run.result(DEADLINE)
    assert (caught.value.code, caught.value.failed_step) == ("run-failed", "b")
    assert caught.value.error.type.endswith("NonRetryableError")
    assert caught.value.error.message == "no disk"
    assert await run.results(DEADLINE) == {"a": "a"}
    assert await run.status() == "failed"


async def test_result_that_is_too_large_fails_the_run(client: Client) -> None:
    with pytest.raises(RunFailed) as caught:
        await (await client.trigger("huge")).result(DEADLINE)
    assert caught.value.error.type == "invalid_result"


async def test_cancelled_run_says_why(client: Client, site: Site) -> None:
    run = await client.trigger("hold")
    waiting = asyncio.create_task(run.result(DEADLINE))
    await site.functions.started.wait()
    assert await run.status() == "running"
    assert (await run.cancel("not today")).changed
    with pytest.raises(RunCancelled) as caught:
        await waiting
    assert (caught.value.code, caught.value.reason) == ("run-cancelled", "not today")
    assert not (await run.cancel()).changed


async def test_wrong_reason_is_refused_before_it_is_stored(client: Client, site: Site, transport: str) -> None:
    wrong: Any = 42
    run = await client.trigger("hold")
    await site.functions.started.wait()
    with pytest.raises(TocsinError, match=r"`reason` is 42: must be a valid string") as caught:
        await run.cancel(wrong)
    assert caught.value.code == ("invalid-message" if transport == "nats" else "invalid-request")
    assert await run.status() == "running"
    assert (await run.cancel("not today")).changed


async def test_skipped_run_says_why(client: Client, site: Site) -> None:
    await client.trigger("hold")
    await site.functions.started.wait()
    run = await client.trigger("hold")
    with pytest.raises(RunSkipped) as caught:
        await run.result(DEADLINE)
    assert (caught.value.code, caught.value.reason, caught.value.refusal) == ("run-skipped", "overlap_skip", None)


async def test_replay_is_a_run_of_its_own(client: Client, site: Site) -> None:
    failed = await client.trigger("fail")
    with pytest.raises(RunFailed):
        await failed.result(DEADLINE)
    site.functions.is_broken = False
    letter = await site.running.until(lambda: _letter(client))
    assert letter is not None
    replay = await client.replay(letter, reason="disk replaced")
    assert replay is not None
    assert await replay.result(DEADLINE) == "repaired"
    with pytest.raises(RunFailed):
        await failed.result(DEADLINE)


async def _letter(client: Client) -> str | None:
    try:
        return next((row.id for row in [row async for row in client.dead_letters(job="fail")]), None)
    except HistoryNotFound:  # nothing is recorded yet
        return None


async def test_fan_out_has_a_result_for_each_shard(client: Client, site: Site) -> None:
    await ShardMaps(site.running.log).apply([Shard(shard_id="eu"), Shard(shard_id="us")])
    await client.apply([{"name": "sweep", "function": "echo", "partition": "all_shards", "overlap_policy": "allow"}])
    run = await client.trigger("sweep", {"n": 1})
    assert await run.result(DEADLINE) == {"eu": {"shard": "eu", "n": 1}, "us": {"shard": "us", "n": 1}}
    assert await run.status() == "completed"
    await client.apply([{"name": "sweep", "function": "fail", "partition": "all_shards", "overlap_policy": "allow"}])
    with pytest.raises(RunFailed) as caught:
        await (await client.trigger("sweep")).result(DEADLINE)
    assert (caught.value.shard, caught.value.failed_step) == ("eu", "main")


async def test_one_idempotency_key_makes_one_run(site: Site) -> None:
    runs = []
    for transport in (*TRANSPORTS, *TRANSPORTS):
        async with site.client(transport) as client:
            run = await client.trigger("echo", {"by": transport}, idempotency_key="day 1")
            runs.append((run.execution_id, str(await run.result(DEADLINE))))
    assert len(set(runs)) == 1
    assert runs[0][1] == "{'by': 'nats'}"


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_invalid_idempotency_key_is_refused(client: Client, key: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.trigger("echo", idempotency_key=key)
    assert (caught.value.code, caught.value.argument) == ("invalid-argument", "idempotency_key")


async def refusals(client: Client) -> list[tuple[str, str, str]]:
    """Return the answers to several wrong calls."""
    unknown = str(uuid4())
    answers: list[tuple[str, str, str]] = []
    for call in (
        client.trigger("nightly"),
        client.trigger("strict", {"month": 1}),
        client.run(unknown),
        client.run("no id!"),
        client.pause("nightly"),
        client.job("nightly"),
        client.apply([{"name": "x", "function": "f", "schedule": "never", "timeout": -1}]),
    ):
        with pytest.raises(TocsinError) as caught:
            await call
        error = caught.value
        answers.append((type(error).__name__, error.code, str(error).replace(unknown, "ID")))
    return answers


async def test_both_transports_refuse_alike(site: Site) -> None:
    answers = []
    for transport in TRANSPORTS:
        async with site.client(transport) as client:
            answers.append(await refusals(client))
    assert answers[0] == answers[1]
    assert [code for _, code, _ in answers[0]] == [
        JobNotFound.code,
        DefinitionError.code,
        NotFound.code,
        "invalid-id",
        JobNotFound.code,
        JobNotFound.code,
        DefinitionError.code,
    ]


async def test_timeout_leaves_the_run_alone(client: Client, site: Site) -> None:
    run = await client.trigger("hold")
    await site.functions.started.wait()
    with pytest.raises(TimeoutError) as caught:
        await run.result(timeout=0.05)
    assert isinstance(caught.value, RunTimeout)
    assert caught.value.code == "run-timeout"
    site.functions.released.set()
    assert await run.result(DEADLINE) == "released"


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
async def test_invalid_timeout_is_refused(client: Client, seconds: float) -> None:
    run = await client.trigger("echo")
    with pytest.raises(InvalidArgument):
        await run.result(seconds)


async def test_events_come_until_the_end_and_masked(client: Client, site: Site) -> None:
    run = await client.trigger("hold")
    types: list[str] = []
    tokens: list[str] = []
    async for fact in run.events():
        types.append(type(fact.message).__name__)
        if isinstance(fact.message, Dispatched):
            tokens.append(fact.message.token)
        if types[-1] == "Started":
            site.functions.released.set()
    assert types[-1] == Completed.__name__
    assert tokens == [MASK]
    assert [type(fact.message).__name__ async for fact in run.events()] == types


async def test_many_waits_share_few_followers(client: Client) -> None:
    jobs = [f"echo-{number}" for number in range(MAX_FOLLOWERS + 4)]
    await client.apply([{"name": job, "function": "echo", "overlap_policy": "allow"} for job in jobs])
    runs = [await client.trigger(job, {"n": n}) for job in jobs for n in range(5)]
    results = await asyncio.gather(*(run.result(DEADLINE) for run in runs))
    assert results == [{"n": n} for _ in jobs for n in range(5)]
    _, watch = client._open()
    assert len(watch._followers) <= MAX_FOLLOWERS + 1
    assert all(not follower._watchers for follower in watch._followers.values())


async def test_closing_ends_the_waits(site: Site, transport: str) -> None:
    async with site.client(transport) as client:
        waits = [asyncio.create_task((await client.trigger("hold")).result()) for _ in range(2)]
        await site.functions.started.wait()
        run = await client.trigger("echo")
    ends = await asyncio.gather(*waits, return_exceptions=True)
    assert {getattr(end, "code", None) for end in ends} <= {"client-closed", "run-skipped"}
    assert "client-closed" in {getattr(end, "code", None) for end in ends}
    for call in (run.result, run.status, client.jobs):
        with pytest.raises(ClientClosed, match="was closed"):
            await call()
