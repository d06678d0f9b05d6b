"""Vanished workers, silent mq executors, lost tasks: nothing stays open, and locks are released."""

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.stored_events import StoredEvents
from tests.system.mortal import HANDED_OVER
from tests.system.processes import Program, Site, site
from tocsin import bootstrap, subjects
from tocsin.bootstrap.provision import durables_of, installed_stages
from tocsin.domain.events import (
    Admitted,
    Completed,
    DeadLettered,
    Dispatched,
    ExecutionFact,
    Failed,
    LockFact,
    Message,
    RetryScheduled,
    Skipped,
    Started,
)
from tocsin.subjects import Stream

SOON: Final = {"threshold": 1, "grace": 1}
NEVER: Final = 3_600
"""Seconds until a queue delivers a task again; only the recoverer acts before."""
RETRY: Final = {"max_attempts": 2, "initial_delay": 0.2}
JOB: Final[dict[str, Any]] = {
    "name": "locked",
    "schedule": "* * * * * *",
    "function": "work",
    "timeout": 1,
    "retry": RETRY,
    "dead_letter": True,
}
ON_DEMAND: Final = {**JOB, "name": "asked", "schedule": None}
OUTSIDE: Final[dict[str, Any]] = {**ON_DEMAND, "name": "outside", "queue": "outside"}

GRAPH: Final[dict[str, Any]] = {
    **ON_DEMAND,
    "function": None,
    "dag": [{"name": "main", "function": "work"}, {"name": "next", "function": "work", "depends_on": ["main"]}],
}
"""A job whose steps the DAG advancer dispatches."""
TAKEN: Final = {subjects.JOB_EXECUTORS}
"""Durables with messages that will never be acknowledged."""


@pytest.fixture
async def tocsin(nats_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(
        nats_url,
        tmp_path,
        recovery=SOON,
        worker={"ack_wait": NEVER, "shutdown_timeout": 5},
        queues={"outside": {"transport": "mq"}},
    ) as it:
        yield it


async def dies(tocsin: Site, program: Program) -> None:
    """Wait until a program has killed itself."""

    async def is_dead() -> bool:
        return program.ended is not None

    await tocsin.until(is_dead)
    assert program.ended == -signal.SIGKILL, program.said()
    tocsin.programs.remove(program)


async def breaks_no_rule(tocsin: Site) -> None:
    await all_is_handled(tocsin)
    everything = await StoredEvents.of(tocsin.log)
    assert everything.audited().violations == ()


@pytest.mark.slow
async def test_vanished_worker_blocks_its_job_until_its_timeouts(
    tocsin: Site,
) -> None:
    tocsin.start()
    await tocsin.ready()
    await tocsin.apply(JOB)
    for _ in range(2):
        await dies(tocsin, tocsin.start_worker(module=("tests.system.mortal", HANDED_OVER)))
    [failed] = await tocsin.ended("locked", Failed)
    assert failed.error is not None
    assert (failed.reason, failed.error.type, failed.attempt) == ("attempts", "timed_out", 2)
    [retried] = await tocsin.of_executions("locked", RetryScheduled)
    assert (retried.execution_id, retried.error.type) == (failed.execution_id, "timed_out")
    claims = await tocsin.of_executions("locked", Started)
    assert {claim.attempt for claim in claims if claim.execution_id == failed.execution_id} == {1, 2}

    tocsin.start_worker()
    [completed, *_] = await tocsin.ended("locked", Completed)
    await tocsin.delete("locked")
    first, second, *_ = await tocsin.of_executions("locked", Admitted)
    assert (first.execution_id, second.execution_id) == (failed.execution_id, completed.execution_id)
    skipped = {fact.active_execution_id for fact in await tocsin.of_executions("locked", Skipped)}
    assert failed.execution_id in skipped
    letters = [r.message for r in await tocsin.facts("dead-letter.locked.>", DeadLettered)]
    assert [[attempt.error.type for attempt in letter.attempts if attempt.error] for letter in letters] == [
        ["timed_out", "timed_out"]
    ]
    await breaks_no_rule(tocsin)


@pytest.mark.slow
async def test_unanswered_mq_task_fails_and_the_next_follows(tocsin: Site) -> None:
    tocsin.start()
    await tocsin.ready()
    await tocsin.apply(OUTSIDE)
    await tocsin.trigger("outside")
    [failed] = await tocsin.ended("outside", Failed)
    assert failed.error is not None
    assert (failed.reason, failed.attempt, failed.error.type) == ("attempts", 2, "timed_out")
    assert (failed.error.type, "within 1s" in failed.error.message) == ("timed_out", True)

    await tocsin.trigger("outside")
    await tocsin.ended("outside", Dispatched, 3)
    running = [fact for fact in await tocsin.of_executions("outside", Admitted) if fact.fence != failed.fence][-1]
    mq = tocsin.settings.mq_prefix
    answer = json.dumps({"status": "completed", "result": 7}).encode()
    client = tocsin.installation.connection.client
    await client.publish(f"{mq}.scheduler.complete.outside.{running.execution_id}", answer)
    [completed] = await tocsin.ended("outside", Completed)
    assert (completed.execution_id, completed.result) == (running.execution_id, 7)
    await breaks_no_rule(tocsin)


@pytest.mark.slow
async def test_execution_ends_at_its_timeout_and_worker_stops(tocsin: Site) -> None:
    tocsin.start()
    worker = tocsin.start_worker()
    await tocsin.ready()
    slow = {"function": "slow", "input": {"seconds": NEVER}, "timeout": NEVER, "execution_timeout": "2s"}
    await tocsin.apply({**ON_DEMAND, **slow})
    await tocsin.trigger("asked")
    [failed] = await tocsin.ended("asked", Failed)
    assert failed.error is not None
    assert (failed.reason, failed.error.type, "2s" in failed.error.message) == ("timed_out", "timed_out", True)

    async def is_stopped() -> bool:
        return '"handler-stopped"' in worker.said()

    await tocsin.until(is_stopped)
    await tocsin.checked()


@pytest.mark.slow
async def test_i4_everything_delivered_once_more_adds_no_fact(tocsin: Site) -> None:
    program = tocsin.start()
    await tocsin.ready()
    await tocsin.apply(GRAPH, OUTSIDE)
    await tocsin.trigger("asked")
    await dies(tocsin, tocsin.start_worker(module=("tests.system.mortal", HANDED_OVER)))
    await tocsin.ended("asked", RetryScheduled)
    tocsin.start_worker()
    await tocsin.trigger("outside")
    await tocsin.ended("asked", Completed)
    await tocsin.ended("outside", Failed)
    await all_is_handled(tocsin)
    await forget_what_was_acknowledged(tocsin, program)
    before = await facts(tocsin)
    program.start()
    await tocsin.ready()
    await all_is_handled(tocsin)
    assert await facts(tocsin) == before
    await breaks_no_rule(tocsin)


async def all_is_handled(tocsin: Site) -> None:
    """Wait until the stages have nothing more before them."""

    async def nothing_is_left() -> bool:
        # In this order: an instant that is decided while it is read is then a message before a stage.
        return not (await tocsin._undecided() or (await tocsin._pending()).keys() - TAKEN)

    await tocsin.until(nothing_is_left)


async def forget_what_was_acknowledged(tocsin: Site, program: Program) -> None:
    """Make every follower and every durable start from the first message."""
    program.kill()
    connection, names = tocsin.installation.connection, tocsin.installation.names
    for spec in durables_of(tocsin.settings):
        if spec.name != subjects.JOB_EXECUTORS:
            await connection.manage(f"CONSUMER.DELETE.{names.stream(spec.stream)}.{spec.name}")
    for stage in installed_stages(tocsin.settings):
        for one in stage.subscriptions:
            await tocsin.installation.projections.remove(
                subjects.Bucket.CURSORS, subjects.cursor(Stream.LOG, one.durable)
            )
    await bootstrap.initialize(tocsin.installation)


async def facts(tocsin: Site) -> list[tuple[int, str]]:
    everything = await StoredEvents.of(tocsin.log)
    kinds: tuple[type[Message], ...] = (ExecutionFact, LockFact, DeadLettered)
    return [(r.sequence, r.subject) for r in everything.log if isinstance(r.message, kinds)]
