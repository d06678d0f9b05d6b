"""The recorder and the database die under load: the history ends equal to the log."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.databases import PostgreSql, Server, postgresql, redis
from tests.system.processes import STAGES_WITHOUT_CLOCK, Site, site
from tocsin.archive.stream_reader import decoded
from tocsin.domain import history
from tocsin.ports.queries import DeadLetterQuery, ExecutionQuery, every
from tocsin.services.audit.read_models import differing
from tocsin.subjects import Stream

JOBS = (
    {"name": "plain", "function": "work", "overlap_policy": "allow", "tags": ["a", "b"]},
    {
        "name": "doomed",
        "function": "broken",
        "retry": {"max_attempts": 2, "initial_delay": 0.1},
        "dead_letter": True,
        "overlap_policy": "allow",
    },
)
TAGS = {"plain": ("a", "b")}
OTHERS = tuple(stage for stage in STAGES_WITHOUT_CLOCK if stage not in {"recorder", "mq_bridge"})
DEATHS = 3


@pytest.fixture(
    params=[pytest.param("sqlite", marks=pytest.mark.full), "postgresql", pytest.param("redis", marks=pytest.mark.full)]
)
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Server | None]:
    """A database server; None: a file needs none."""
    kinds: dict[str, AbstractContextManager[Server]] = {"postgresql": postgresql(durable=True), "redis": redis()}
    if request.param == "sqlite":
        yield None
    else:
        with kinds[request.param] as server:
            yield server


@asynccontextmanager
async def load(tocsin: Site) -> AsyncIterator[None]:
    """Executions of both jobs, all the time, but no more than the machine can take."""

    async def trigger_all_the_time() -> None:
        while True:
            for job in ("plain", "plain", "doomed"):
                await tocsin.trigger(job)
            await asyncio.sleep(0.05)
            await tocsin.keeps_up()

    await tocsin.apply(*JOBS)
    triggering = asyncio.create_task(trigger_all_the_time())
    try:
        yield
        assert not triggering.done()
    finally:
        triggering.cancel()
        with suppress(asyncio.CancelledError):
            await triggering


async def more_ends(tocsin: Site) -> None:
    """Wait until some more executions of each job are over."""
    before = await tocsin.ends()

    async def have_ended() -> bool:
        now = await tocsin.ends()
        return all(now[job] > before[job] + 3 for job in ("plain", "doomed"))

    await tocsin.until(have_ended)


@pytest.mark.slow
async def test_recorder_and_database_may_be_killed_under_load(
    nats_url: str, tmp_path: Path, database: Server | None
) -> None:
    url = database_url(database)
    more = {} if url is None else {"database": {"url": url}}
    async with site(nats_url, tmp_path, **more) as tocsin:
        tocsin.start(*OTHERS)
        recorder = tocsin.start("recorder")
        tocsin.start_worker()
        await tocsin.ready()
        async with load(tocsin):
            for _ in range(DEATHS):
                await more_ends(tocsin)
                recorder.kill()
                recorder.start()
                await tocsin.ready()
                if database is not None:
                    await more_ends(tocsin)
                    await asyncio.to_thread(database.kill)
                    await more_ends(tocsin)  # jobs run in any state of the database
                    await asyncio.to_thread(database.start)
        everything = await tocsin.checked()
        await tocsin.history_agrees_with(everything)
        await tells_what_the_facts_come_to(tocsin)


def database_url(database: Server | None) -> str | None:
    if database is None:
        return None
    return database.new_database() if isinstance(database, PostgreSql) else f"redis://127.0.0.1:{database.port}/0"


async def tells_what_the_facts_come_to(tocsin: Site) -> None:
    """Every row is the fold of its facts, field by field."""
    stored, upto = tocsin.installation.stored, await tocsin.log.tail("execution.>")
    portions = stored.messages(Stream.LOG, "execution.>", after=0, upto=upto)
    facts = [decoded(message) async for portion in portions for message in portion]
    folded = history.fold({}, facts)
    async with tocsin.installation.history() as rows:
        shown = {row.execution_id: row async for row in every(rows.executions, ExecutionQuery(limit=1_000))}
        letters = [row async for row in every(rows.dead_letters, DeadLetterQuery(limit=1_000))]
        tagged = await rows.count(ExecutionQuery(tag="a"))
        assert [job.job_name for job in await rows.jobs()] == ["doomed", "plain"]
        assert await rows.offset(Stream.LOG) >= facts[-1].sequence
    assert shown.keys() == folded.keys()
    assert [found for name, record in folded.items() for found in differing(record, shown[name])] == []
    assert {letter.execution_id for letter in letters} == {i for i, one in folded.items() if one.status == "failed"}
    assert [(row, folded[name]) for name, row in shown.items() if row.tags != folded[name].tags] == []
    assert [one for one in folded.values() if one.tags != TAGS.get(one.job, ())] == []
    assert tagged == sum(one.job == "plain" for one in folded.values())
