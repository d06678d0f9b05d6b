"""Every process dies at its worst moments, then the server itself (the crash table)."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.stored_events import StoredEvents
from tests.system.mortal import HANDED_OVER, RECORDED, UNRECORDED
from tests.system.processes import GROUPS, Program, Site, site
from tests.system.worker_process import noted
from tocsin import bootstrap, subjects
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Cancelled, Completed, Enqueued, Failed
from tocsin.subjects import Bucket, name

STAGES: Final = tuple(stage for stage in bootstrap.STAGE_NAMES if stage != "mq_bridge")
SCHEDULED: Final = ("locked", "free", "queued")
RETRY: Final = {"max_attempts": 3, "initial_delay": 0.2, "multiplier": 1.5}
GRAPH: Final[list[dict[str, Any]]] = [
    {"name": "extract", "function": "work"},
    {"name": "left", "function": "slow", "input": {"seconds": 0.2}, "depends_on": ["extract"]},
    {"name": "right", "function": "work", "depends_on": ["extract"]},
    {"name": "load", "function": "flaky", "input": {"failures": 1}, "depends_on": ["left", "right"]},
]
JOBS: Final[list[dict[str, Any]]] = [
    {"name": "locked", "schedule": "* * * * * *", "function": "slow", "input": {"seconds": 1.2}},
    {"name": "free", "schedule": "* * * * * *", "function": "work", "overlap_policy": "allow"},
    {"name": "etl", "dag": GRAPH, "retry": RETRY, "overlap_policy": "allow"},
    {"name": "guarded", "function": "work"},
    {
        "name": "queued",
        "schedule": "* * * * * *",
        "function": "slow",
        "input": {"seconds": 0.2},
        "overlap_policy": "enqueue",
    },
    {
        "name": "after",
        "function": "work",
        "overlap_policy": "allow",
        "depends_on": [{"job": "free", "within": "1h"}],
        "dependency_timeout": "10s",  # what is triggered before the first run of `free` waits in vain
    },
    {"name": "newest", "function": "slow", "input": {"seconds": 0.6}, "overlap_policy": "cancel_previous"},
    {"name": "doomed", "function": "broken", "retry": RETRY, "dead_letter": True, "overlap_policy": "allow"},
]
NAMES: Final[frozenset[str]] = frozenset(definition["name"] for definition in JOBS)
TRIGGERED: Final = ("etl", "doomed", "queued", "etl", "guarded", "after", "newest")
PAUSE: Final = 0.1
LONGER_THAN_ANYBODY_WAITS: Final = 3.0


@pytest.fixture
async def tocsin(nats_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(nats_url, tmp_path) as it:
        yield it


@pytest.mark.slow
@pytest.mark.parametrize(
    "groups",
    [
        pytest.param(GROUPS, id="groups"),
        pytest.param(tuple((stage,) for stage in STAGES), marks=pytest.mark.full, id="stages"),
    ],
)
async def test_any_process_may_be_killed_at_any_time(groups: Sequence[Sequence[str]], tocsin: Site) -> None:
    programs = [*(tocsin.start(*stages) for stages in groups), tocsin.start_worker()]
    await tocsin.ready()
    async with work(tocsin):
        for program in programs:
            await progress(tocsin)
            program.kill()
            program.start()
            await tocsin.ready()
    await everything_is_as_it_should_be(tocsin)


DEATHS: Final[dict[str, tuple[str, ...]]] = {
    "registrar": (Bucket.DEFINITIONS,),
    "ticker": ("due",),
    "dependency_keeper": ("dependencies-settled",),
    "planner": ("planned", "acquired", "admitted", "triggered"),
    "lock_keeper": ("acquired", "admitted", "triggered", "skipped"),
    "dag_advancer": ("dispatched", "advanced", "completed"),
    "retrier": ("retry-scheduled", "released", "failed"),
    "dead_letter_sink": ("dead-lettered",),
    "recorder": (UNRECORDED, RECORDED),
    "matcher": ("started", "report"),
    "lease_keeper": ("report",),
    "worker": (HANDED_OVER, "report"),
}
"""What each stage stores, and dies of."""


@pytest.mark.slow
@pytest.mark.full
async def test_any_process_may_die_after_a_store(tocsin: Site) -> None:
    async with work(tocsin):
        # Its time is over, and no worker has its function: the lease keeper must report that.
        late = JobDefinition(name="doomed", function="missing", overlap_policy="allow")
        request = Enqueued(execution_id=str(uuid4()), definition=late, expires_at=tocsin.installation.clock.now())
        await tocsin.log.publish(subjects.subject_of(request), request, message_id=request.execution_id)
        async with asyncio.TaskGroup() as group:
            for stage, words in DEATHS.items():
                group.create_task(die_of_each(tocsin, stage, words))
        await progress(tocsin)
    await everything_is_as_it_should_be(tocsin)


async def die_of_each(tocsin: Site, stage: str, words: tuple[str, ...]) -> None:
    """Let a stage die of one thing after another, and then live."""
    start = tocsin.start_worker if stage == "worker" else partial(tocsin.start, stage)
    for word in words:
        module = ("tests.system.mortal", tocsin.installation.names.bucket(word) if isinstance(word, Bucket) else word)
        mortal = start(module=module)
        try:
            await tocsin.until(partial(have_ended, mortal))
        except AssertionError:
            pytest.fail(f"{stage} did not store {word}, and lives: {mortal.said()}")
        assert mortal.ended == -signal.SIGKILL, mortal.said()
        tocsin.programs.remove(mortal)
    start()


async def have_ended(*programs: Program) -> bool:
    return all(program.ended is not None for program in programs)


@pytest.mark.slow
@pytest.mark.full
async def test_who_was_taken_for_dead_may_come_back(tocsin: Site) -> None:
    """Two copies of everything, one of them paused for longer than all timeouts: the other finishes its work."""
    sleepers = [tocsin.start(), tocsin.start_worker()]
    tocsin.start()
    tocsin.start_worker()
    await tocsin.ready()
    async with work(tocsin):
        await progress(tocsin)
        for program in sleepers:
            program.send(signal.SIGSTOP)
            await progress(tocsin)
            await tocsin.passes(seconds=LONGER_THAN_ANYBODY_WAITS)
            program.send(signal.SIGCONT)
        await progress(tocsin)
    await everything_is_as_it_should_be(tocsin)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator["MortalServer"]:
    it = MortalServer(tmp_path / "nats")
    yield it
    it.running.stop()


class MortalServer:
    """A server on its own store, which can be killed and restarted."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self.running = EmbeddedServer(store, port=ANY_PORT).start()

    def kill(self) -> None:
        os.kill(self.running.pid, signal.SIGKILL)
        self.running.stop()

    def start(self) -> None:
        self.running = EmbeddedServer(self._store, port=self.running.port).start()


@pytest.mark.slow
async def test_the_server_may_be_killed(server: MortalServer, tmp_path: Path) -> None:
    async with site(server.running.url, tmp_path) as tocsin:
        tocsin.start()
        tocsin.start()
        tocsin.start_worker()
        await tocsin.ready()
        async with work(tocsin):
            await progress(tocsin)
            server.kill()
            server.start()
            await progress(tocsin)
        await everything_is_as_it_should_be(tocsin)


@pytest.mark.slow
@pytest.mark.full
async def test_the_whole_machine_may_go_down(server: MortalServer, tmp_path: Path) -> None:
    async with site(server.running.url, tmp_path) as tocsin:
        programs = [tocsin.start(), tocsin.start_worker()]
        await tocsin.ready()
        async with work(tocsin):
            for _ in range(2):
                await progress(tocsin)
                server.kill()
                for program in programs:
                    program.kill()
                server.start()
                for program in programs:
                    program.start()
            await progress(tocsin)
        await everything_is_as_it_should_be(tocsin)


async def test_process_stops_while_the_server_is_away(server: MortalServer, tmp_path: Path) -> None:
    async with site(server.running.url, tmp_path) as tocsin:
        programs = [tocsin.start("planner"), tocsin.start_worker()]
        await tocsin.ready()
        server.kill()
        for program in programs:
            program.send(signal.SIGTERM)
        await tocsin.until(partial(have_ended, *programs))
        assert [program.ended for program in programs] == [0, 0], [program.said() for program in programs]


@asynccontextmanager
async def work(tocsin: Site) -> AsyncIterator[None]:
    """A steady load of scheduled and triggered executions."""

    async def trigger_all_the_time() -> None:
        for job in cycle(TRIGGERED):
            await tocsin.trigger(job)
            await asyncio.sleep(PAUSE)

    await tocsin.apply(*JOBS)
    triggering = asyncio.create_task(trigger_all_the_time())
    try:
        yield
        await tocsin.until(partial(every_job_completed, tocsin))  # a lock may wait for the silence of a killed worker
        assert not triggering.done()
    finally:
        triggering.cancel()
        await asyncio.wait([triggering])
    await tocsin.delete(*SCHEDULED)


async def every_job_completed(tocsin: Site) -> bool:
    return {name(job) for job, _, fact in await tocsin.stored_facts() if fact == "completed"} >= NAMES - {"doomed"}


async def progress(tocsin: Site) -> None:
    """Wait until one more execution of every job has ended."""
    before = await tocsin.until(tocsin.ends)

    async def has_been_made() -> bool:
        now = await tocsin.ends()
        return all(now[job] > before[job] for job in NAMES)

    await tocsin.until(has_been_made)


async def everything_is_as_it_should_be(tocsin: Site) -> StoredEvents:
    """Check that everything finished by the rules: expected failures, claims before runs, an equal history."""
    everything = await tocsin.checked()
    assert {fact.message.job for fact in everything.facts(Failed)} == {"doomed"}
    assert {fact.message.job for fact in everything.facts(Completed)} == NAMES - {"doomed"}
    assert {fact.message.job for fact in everything.facts(Cancelled)} <= {"newest"}
    assert noted(tocsin.runs) <= everything.runs()
    await tocsin.history_agrees_with(everything)
    return everything
