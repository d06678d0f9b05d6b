"""The archiver dies under load: every message is still there once, and nothing runs again."""

import asyncio
from pathlib import Path

import pytest

from tests.s3_server import S3Server
from tests.stored_events import LEDGER, LOG, REPORTS, REQUESTS, StoredEvents
from tests.system.processes import STAGES_WITHOUT_CLOCK, Program, Site, site
from tests.system.test_history_kill import load, tells_what_the_facts_come_to
from tests.system.worker_process import noted
from tocsin import bootstrap
from tocsin.archive.stream_reader import decoded
from tocsin.domain.events import DeadLettered, Message, Recorded
from tocsin.subjects import STREAMS, Stream

OTHERS = tuple(stage for stage in STAGES_WITHOUT_CLOCK if stage not in {"archiver", "mq_bridge"})
DEATHS = 4
HASTY = {"hot_window": 2, "interval": 0.3}


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("target", ["nats", "files", "s3"])
async def test_the_archiver_may_be_killed_under_load(
    nats_url: str, tmp_path: Path, target: str, request: pytest.FixtureRequest
) -> None:
    section: dict[str, object] = {"target": target}
    if target == "files":
        section["target"] = f"file://{tmp_path / 'archive'}"
    elif target == "s3":
        server: S3Server = request.getfixturevalue("s3")
        section |= {"target": f"s3://{server.new_bucket()}/archive", "s3": server.section()}
    async with site(nats_url, tmp_path, archive={**HASTY, **section}) as tocsin:
        tocsin.start(*OTHERS)
        archiver = tocsin.start("archiver")
        tocsin.start_worker()
        await tocsin.ready()
        async with load(tocsin):
            for death in range(DEATHS):
                await more_archived(tocsin)
                await asyncio.sleep(0.1 * death)  # at another point of its work each time
                archiver.kill()
                archiver.start()
                await tocsin.ready()
        await all_archived(tocsin)

        everything = await ever(tocsin)
        report = everything.audited()
        assert report.is_clean, "\n".join(map(str, report.violations[:20]))
        assert set(everything.ends) == set(everything.executions)
        assert noted(tocsin.runs) <= everything.runs()
        sequences = [recorded.sequence for recorded in everything.log]
        assert len(sequences) == len(set(sequences))
        segments = await tocsin.installation.archive.segments()
        assert [segment.number for segment in segments] == list(range(1, len(segments) + 1))

        await anew(tocsin, archiver, everything)


async def more_archived(tocsin: Site) -> None:
    """Wait until there is one more segment."""
    before, _ = await tocsin.installation.archive.state()

    async def is_there() -> bool:
        return (await tocsin.installation.archive.state())[0].number > before.number

    await tocsin.until(is_there)


async def all_archived(tocsin: Site) -> None:
    """Wait until the log holds no execution, and the last segment's messages are purged."""

    async def are_gone() -> bool:
        state, _ = await tocsin.installation.archive.state()
        return state.head == state.purged and not await tocsin.log.read("execution.>", limit=1)

    await tocsin.until(are_gone)


async def ever(tocsin: Site) -> StoredEvents:
    """All that was ever stored, wherever it is."""

    async def read(stream: Stream, filters: tuple[str, ...]) -> list[Recorded[Message]]:
        stored = tocsin.installation.stored
        upto = (await stored.extent(stream)).last
        return [decoded(m) async for some in stored.messages(stream, *filters, after=0, upto=upto) for m in some]

    streams = {Stream.LEDGER: LEDGER, Stream.LOG: LOG, Stream.REPORTS: REPORTS, Stream.REQUESTS: REQUESTS}
    return StoredEvents(*[await read(stream, filters) for stream, filters in streams.items()])


async def anew(tocsin: Site, archiver: Program, before: StoredEvents) -> None:
    """Recreated durables have no work, and an empty history is filled from the archive."""
    for program in tocsin.programs:
        program.kill()
    tocsin.programs.remove(archiver)
    for stream in STREAMS:
        name = tocsin.installation.names.stream(stream)
        for consumer in (await tocsin.installation.connection.manage(f"CONSUMER.LIST.{name}"))["consumers"]:
            await tocsin.installation.connection.manage(f"CONSUMER.DELETE.{name}.{consumer['name']}")
    await bootstrap.initialize(tocsin.installation)
    for program in tocsin.programs:
        program.start()
    await tocsin.ready()
    await tocsin.trigger("plain")
    await tocsin.quiet()
    await more_ends_of_plain(tocsin)

    after = await ever(tocsin)
    assert len(set(after.executions) - set(before.executions)) == 1
    assert {one: len(facts) for one, facts in before.executions.items()} == {
        one: len(facts) for one, facts in after.executions.items() if one in before.executions
    }
    assert len(after.facts(DeadLettered)) == len(before.facts(DeadLettered))
    await bootstrap.rebuild_history(tocsin.installation)
    await tells_what_the_facts_come_to(tocsin)


async def more_ends_of_plain(tocsin: Site) -> None:
    async def has_ended() -> bool:
        return (await tocsin.ends())["plain"] == 1

    await tocsin.until(has_ended)
