"""A ticker of many jobs dies while it writes a snapshot; snapshots are corrupted; the streams are created again."""

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.system.processes import Program, Site, site
from tocsin import bootstrap, subjects
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Due
from tocsin.engine.ledger_snapshot import DEFAULT_POLICY, HEAD
from tocsin.ports import Append
from tocsin.subjects import Bucket, Stream

JOBS: Final = DEFAULT_POLICY.min_jobs + 50
AT_ONCE: Final = 500
BEAT: Final = "beat"


@pytest.fixture
async def tocsin(nats_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    """An installation with enough jobs for a snapshot. One is due every second, and the others almost never."""
    async with site(nats_url, tmp_path) as it:
        await register(it, JOBS)
        await it.apply({"name": BEAT, "schedule": "* * * * * *", "function": "work"})
        yield it


async def register(tocsin: Site, jobs: int) -> None:
    definitions = [
        JobDefinition(name=f"rare-{number}", schedule=f"{number % 60} {number // 60 % 24} 29 2 *", function="work")
        for number in range(jobs)
    ]
    for first in range(0, jobs, AT_ONCE):
        writes = [
            Append(tuple(ledger.define(ledger.initial, definition)), expect=0)
            for definition in definitions[first : first + AT_ONCE]
        ]
        assert not [written.error for written in await tocsin.log.write(writes) if written.error]


async def died(tocsin: Site, word: str) -> None:
    """Have a ticker store the first message whose subject has a token, and die by SIGKILL."""
    mortal = tocsin.start("ticker", module=("tests.system.mortal", word))

    async def is_dead() -> bool:
        return mortal.ended is not None

    await tocsin.until(is_dead)
    assert mortal.ended == -signal.SIGKILL, mortal.said()
    tocsin.programs.remove(mortal)


async def said(tocsin: Site, program: Program, action: str) -> None:
    async def is_said() -> bool:
        return f'"{action}"' in program.said()

    await tocsin.until(is_said)


async def fires(tocsin: Site) -> None:
    """Wait until the frequent job is due once more."""
    last = await tocsin.log.last(subjects.ledger_subjects(BEAT, "due")[0])

    async def is_due() -> bool:
        newest = await tocsin.log.last(subjects.ledger_subjects(BEAT, "due")[0])
        return newest is not None and (last is None or newest.sequence > last.sequence)

    await tocsin.until(is_due)


async def restarted(tocsin: Site, action: str) -> Program:
    """Start a ticker that reads or ignores the snapshot, and wait until it fires."""
    ticker = tocsin.start("ticker")
    await said(tocsin, ticker, action)
    await fires(tocsin)
    return ticker


async def stop(tocsin: Site, program: Program) -> None:
    program.kill()
    tocsin.programs.remove(program)


async def entries(tocsin: Site) -> dict[str, bytes]:
    return await tocsin.installation.projections.entries(Bucket.SNAPSHOTS)


async def no_instant_twice(tocsin: Site) -> None:
    fired = [recorded.message.scheduled_time for recorded in await tocsin.facts("ledger.*.due", Due)]
    assert fired
    assert len(fired) == len(set(fired))


@pytest.mark.full
@pytest.mark.slow
async def test_ticker_may_die_while_it_writes_a_snapshot(tocsin: Site) -> None:
    await died(tocsin, "a")  # right after the first part
    assert HEAD not in await entries(tocsin)
    first = tocsin.start("ticker")
    await said(tocsin, first, "snapshot-written")
    assert "snapshot-ignored" not in first.said()
    await stop(tocsin, first)
    head = json.loads((await entries(tocsin))[HEAD])
    assert (head["side"], head["jobs"]) == ("a", JOBS + 1)

    await register_more(tocsin)
    await died(tocsin, "b")  # the head still names the other side
    assert json.loads((await entries(tocsin))[HEAD]) == head
    second = await restarted(tocsin, "snapshot-read")
    await said(tocsin, second, "snapshot-written")
    await stop(tocsin, second)
    head = json.loads((await entries(tocsin))[HEAD])
    assert (head["side"], head["jobs"]) == ("b", JOBS + 1)

    await register_more(tocsin)
    await died(tocsin, HEAD)  # right after the snapshot counts
    third = await restarted(tocsin, "snapshot-read")
    await stop(tocsin, third)
    await no_instant_twice(tocsin)


async def register_more(tocsin: Site) -> None:
    """Change jobs until a new snapshot is due."""
    for first in range(0, DEFAULT_POLICY.min_tail, AT_ONCE):
        writes = []
        for number in range(first, first + AT_ONCE):
            name = f"rare-{number}"
            [last] = await tocsin.log.tails(subjects.ledger(name))
            definition = JobDefinition(name=name, schedule=f"{last % 60} 5 29 2 *", function="work")
            facts = tuple(
                fact.model_copy(update={"previous": last}) for fact in ledger.define(ledger.initial, definition)
            )
            writes.append(Append(facts, expect=last))
        assert not [written.error for written in await tocsin.log.write(writes) if written.error]


@pytest.mark.slow
async def test_corrupted_snapshot_is_ignored(tocsin: Site) -> None:
    first = tocsin.start("ticker")
    await said(tocsin, first, "snapshot-written")
    await stop(tocsin, first)
    projections = tocsin.installation.projections
    whole = await entries(tocsin)
    for key, body in {"a.1": whole["a.1"][:-1], "a.0": whole["a.0"].replace(b"rare-", b"care-"), HEAD: b"{}"}.items():
        await projections.put(Bucket.SNAPSHOTS, key, body)
        second = await restarted(tocsin, "snapshot-ignored")
        await stop(tocsin, second)
        for name, content in whole.items():
            await projections.put(Bucket.SNAPSHOTS, name, content)
    third = await restarted(tocsin, "snapshot-read")
    await stop(tocsin, third)
    await no_instant_twice(tocsin)


@pytest.mark.slow
async def test_snapshot_of_a_deleted_ledger_is_ignored(tocsin: Site) -> None:
    """The streams of the ledger and the log are created again, and the bucket of the snapshots is left over."""
    first = tocsin.start("ticker")
    await said(tocsin, first, "snapshot-written")
    await stop(tocsin, first)
    connection, names = tocsin.installation.connection, tocsin.installation.names
    for stream in (Stream.LEDGER, Stream.LOG):
        await connection.manage(f"STREAM.DELETE.{names.stream(stream)}")
    await bootstrap.initialize(tocsin.installation)
    await register(tocsin, JOBS + 200)  # the new ledger has more events, and others
    await tocsin.apply({"name": BEAT, "schedule": "* * * * * *", "function": "work"})

    second = await restarted(tocsin, "snapshot-ignored")
    await said(tocsin, second, "snapshot-written")
    head: dict[str, Any] = json.loads((await entries(tocsin))[HEAD])
    assert head["jobs"] == JOBS + 201
    await stop(tocsin, second)
    await no_instant_twice(tocsin)
