"""Processes on a real nats-server that begin at a snapshot or at a head, and read no earlier commit."""

import json
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from tests.commits.processes import NAMES
from tests.commits.server import Server, server
from tests.commits.test_failover import EVERY_SECOND
from tests.system.running import deciding
from tocsin import bootstrap, subjects
from tocsin.adapters.nats.log.announcer import NUMBER
from tocsin.adapters.nats.log.commit_log import NatsCommitLog
from tocsin.domain.commit import LogHead, Seal
from tocsin.domain.events import Defined, Paused
from tocsin.domain.log_events import Began, NamedSnapshot
from tocsin.engine.heads import SHOWN
from tocsin.ports import SequenceConflict
from tocsin.ports.queries import ExecutionQuery
from tocsin.subjects import Bucket, Stream

pytestmark = pytest.mark.full  # processes that are killed, on a server

PROCESS = (*NAMES, "registrar", "recorder")


@pytest.fixture
async def given(nats_url: str, tmp_path: Path) -> AsyncIterator[Server]:
    async with server(nats_url, tmp_path) as it:
        yield it


async def test_killed_process_begins_at_snapshot_and_followers_continue(given: Server) -> None:
    tocsin = given.tocsin
    program = given.start(*PROCESS)
    await tocsin.ready()
    await given.define(**EVERY_SECOND)
    await tocsin.until(lambda: has_snapshot(given))
    program.kill()
    place = (await snapshots_of(given))[-1].log
    terms = len(await began(given))
    before = await readers_of(given)
    program.start()
    await tocsin.ready()

    async def has_begun() -> bool:
        return len(await began(given)) > terms

    await tocsin.until(has_begun)
    starts = [start for name, start in (await readers_of(given)).items() if name not in before]
    assert starts
    assert min(starts) >= place.sequence - 5  # what stages had not taken yet
    until = await tail_of(given) + 8

    async def goes_on() -> bool:
        numbers = [int(headers[NUMBER]) for headers in await announced(given)]
        return bool(numbers) and numbers[-1] >= until

    await tocsin.until(goes_on)
    numbers = [int(headers[NUMBER]) for headers in await announced(given)]
    assert all(before < after for before, after in pairwise(numbers))
    of_log = [
        number
        for commit in await given.commits()
        for number, event in enumerate(commit.events, commit.first)
        if event.subject.startswith("cron.")
    ]
    assert numbers == [number for number in of_log if number <= numbers[-1]]
    fired = len({subject.split(".")[2] for subject in await given.subjects() if subject.startswith("execution.tick.")})

    async def is_recorded() -> bool:
        async with tocsin.installation.history() as history:
            return await history.count(ExecutionQuery(job="tick")) >= fired

    await tocsin.until(is_recorded)


async def test_command_begins_at_the_head_the_leader_shows(given: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    tocsin = given.tocsin
    given.start(*PROCESS)
    await tocsin.ready()
    await given.define(**EVERY_SECOND)
    await tocsin.until(lambda: has_snapshot(given))
    followed, follow = list[int](), NatsCommitLog.follow

    def noted(self: NatsCommitLog, partition: int, *, after: int) -> Any:  # noqa: ANN401 - as the original
        followed.append(after)
        return follow(self, partition, after=after)

    place = (await snapshots_of(given))[-1].log.sequence

    async def is_shown() -> bool:
        stored = await tocsin.installation.projections.get(Bucket.SNAPSHOTS, SHOWN)
        return stored is not None and max(head["sequence"] for head in json.loads(stored[0][71:])) > place

    await tocsin.until(is_shown)
    newest = (await given.commits())[-1].first
    monkeypatch.setattr(NatsCommitLog, "follow", noted)
    async with bootstrap.connect(tocsin.settings) as command:
        log, scope = command.log, subjects.ledger("tick")
        assert await log.end(Stream.LEDGER) >= newest
        assert len(followed) == 1
        assert followed[0] > place
        tail = await log.tail(scope)
        with pytest.raises(SequenceConflict):
            await log.append(Defined(job="tick", definition=await definition(given)), expect=0)
        await pause(command, tail, await number_of_definition(given))
        assert min(followed) >= place  # back to the snapshot, for what it did not read
        assert await log.append(Defined(job="new", definition=await definition(given)), expect=0)
    code, answer = await tocsin.call("jobs", "show", "tick")
    assert (code, answer.get("paused")) == (0, True), answer


@pytest.mark.parametrize("what", ["no proof", "another key", "another life"])
async def test_forged_head_is_refused(given: Server, what: str) -> None:
    await given.define(**EVERY_SECOND)
    await given.define(name="other", function="f")
    installation = given.tocsin.installation
    seal = Seal(
        installation.names.root, 0, {"k1": b"2" * 32 if what == "another key" else await installation.report_key()}
    )
    head = LogHead("k1", sequence=1, number=1_000, digest="00" * 32)
    body = seal.sign((head,))
    await installation.projections.put(Bucket.SNAPSHOTS, SHOWN, body[65:] if what == "no proof" else body)
    async with bootstrap.connect(given.tocsin.settings) as command:
        assert await command.log.end(Stream.LEDGER) == 2
        async with deciding(command) as stage:
            assert await stage.log.append(Defined(job="new", definition=await definition(given)), expect=0) == 3


async def definition(given: Server) -> Any:  # noqa: ANN401 - a definition
    for commit in await given.commits():
        for event in commit.events:
            if event.subject == "ledger.tick.defined":
                return cast("Defined", subjects.decode(event.subject, bytes(event.body))).definition
    raise AssertionError("it is defined")


async def number_of_definition(given: Server) -> int:
    return next(
        number
        for commit in await given.commits()
        for number, event in enumerate(commit.events, commit.first)
        if event.subject == "ledger.tick.defined"
    )


async def pause(command: bootstrap.Installation, tail: int, definition: int) -> None:
    """Pause the job, although it fires at every moment."""
    scope = subjects.ledger("tick")
    for _ in range(20):
        try:
            await command.log.append(Paused(job="tick", definition=definition), expect=tail)
        except SequenceConflict:
            tail = await command.log.tail(scope)
        else:
            return
    raise AssertionError("always refused")


async def snapshots_of(given: Server) -> list[NamedSnapshot]:
    return [change for _, change in await given.control() if isinstance(change, NamedSnapshot)]


async def has_snapshot(given: Server) -> bool:
    return bool(await snapshots_of(given))


async def began(given: Server) -> list[Began]:
    return [change for _, change in await given.control() if isinstance(change, Began)]


async def tail_of(given: Server) -> int:
    last = (await given.commits())[-1]
    return last.first + len(last.events) - 1


async def readers_of(given: Server) -> dict[str, int]:
    """The sequences at which consumers of the log began, by name."""
    installation = given.tocsin.installation
    stream = f"{installation.names.root}_COMMITS"
    reply = await installation.connection.client.request(f"$JS.API.CONSUMER.LIST.{stream}", b"")
    consumers = json.loads(reply.data)["consumers"]
    return {consumer["name"]: consumer["config"].get("opt_start_seq", 1) for consumer in consumers}


async def announced(given: Server) -> list[dict[str, str]]:
    installation = given.tocsin.installation
    stream, jetstream = installation.names.stream(Stream.LOG), installation.connection.client.jetstream()
    last = (await jetstream.stream_info(stream)).state.last_seq
    found = [await jetstream.get_msg(stream, seq=sequence) for sequence in range(1, last + 1)]
    return [cast("dict[str, str]", message.headers) for message in found]
