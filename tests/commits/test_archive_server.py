"""The archiver of the log of commits on a real nats-server: it dies under load, and nothing is lost or decided again."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.commits.server import FAST
from tests.s3_server import S3Server
from tests.system.processes import STAGES_WITHOUT_CLOCK, Site, run_command, site
from tests.system.test_history_kill import JOBS
from tocsin.archive.log_archive import LogArchive, commits_of
from tocsin.bootstrap.commit_process import Commits
from tocsin.engine.snapshots import Snapshots

pytestmark = pytest.mark.full  # processes that are killed, on a server

SOURCE = commits_of(0)
OTHERS = tuple(stage for stage in STAGES_WITHOUT_CLOCK if stage not in {"archiver", "mq_bridge"})
HASTY = {"hot_window": 2, "interval": 0.3, "max_messages": 200}
DEATHS = 2


class Archived:
    """A site whose archiver is hasty, and a process of the test that writes snapshots."""

    def __init__(self, tocsin: Site, commits: Commits) -> None:
        self.tocsin = tocsin
        self.commits = commits
        self.archive: LogArchive = commits.archive

    async def first(self) -> int:
        """The first sequence in the stream."""
        connection, root = self.tocsin.installation.connection, self.tocsin.installation.names.root
        info = await connection.manage(f"STREAM.INFO.{root}_COMMITS")
        first: int = info["state"]["first_seq"]
        return first

    async def more_left(self) -> None:
        """Wait until more commits left the stream."""
        before = await self.first()

        async def have_left() -> bool:
            return await self.first() > before + 5

        await self.tocsin.until(have_left)


@asynccontextmanager
async def archived(url: str, folder: Path, **archive: object) -> AsyncIterator[Archived]:
    async with site(url, folder, leader=FAST, archive={**HASTY, **archive}) as tocsin:
        installation = tocsin.installation
        commits = installation.commits
        assert commits is not None
        process, view = await commits.process()
        process.folds = True
        snapshots = Snapshots(installation.projections, await installation.report_key())
        async with process.running([], view) as loop:
            writing = asyncio.create_task(_write_snapshots(snapshots, loop, tocsin))
            try:
                yield Archived(tocsin, commits)
                assert not writing.done()
            finally:
                writing.cancel()
                with suppress(asyncio.CancelledError):
                    await writing


async def _write_snapshots(snapshots: Snapshots, loop: object, tocsin: Site) -> None:
    """Write one whenever anything changed."""
    while True:
        await snapshots.save_if_due(loop, tocsin.installation.clock.now() + timedelta(hours=1))  # type: ignore[arg-type]
        await asyncio.sleep(0.3)


@asynccontextmanager
async def load(tocsin: Site) -> AsyncIterator[None]:
    async def trigger_all_the_time() -> None:
        while True:
            for job in ("plain", "plain", "doomed"):
                await tocsin.trigger(job)
            await asyncio.sleep(0.3)

    await tocsin.apply(*JOBS)
    triggering = asyncio.create_task(trigger_all_the_time())
    try:
        yield
        assert not triggering.done()
    finally:
        triggering.cancel()
        with suppress(asyncio.CancelledError):
            await triggering


async def answer(tocsin: Site, *arguments: str) -> dict[str, Any]:
    called = await run_command([*arguments, "--output", "json"], tocsin.environment)
    assert called.returncode in {0, 1}, called.stderr
    found: dict[str, Any] = json.loads(called.stdout)
    return found


async def ended(given: Archived) -> None:
    """Wait until every execution is over."""

    async def is_over() -> bool:
        subjects = await events(given)
        return not await open_executions(subjects)

    await given.tocsin.until(is_over)


async def events(given: Archived) -> list[str]:
    reader = given.commits.reader
    end = await given.tocsin.log.tail("execution.>")
    return [message.subject async for message in reader.events(upto=max(end, 10**12))]


async def open_executions(subjects: list[str]) -> set[str]:
    begun, over = set[str](), set[str]()
    for subject in subjects:
        kind, _, *rest = subject.split(".")
        if kind == "execution":
            begun.add(rest[0])
            if rest[1] in {"completed", "failed", "cancelled", "skipped"}:
                over.add(rest[0])
    return begun - over


@pytest.mark.slow
@pytest.mark.parametrize("target", ["nats", "files", "s3"])
async def test_archiver_may_be_killed_under_load(
    nats_url: str, tmp_path: Path, target: str, request: pytest.FixtureRequest
) -> None:
    section: dict[str, object] = {"target": target}
    if target == "files":
        section["target"] = f"file://{tmp_path / 'archive'}"
    elif target == "s3":
        server: S3Server = request.getfixturevalue("s3")
        section |= {"target": f"s3://{server.new_bucket()}/archive", "s3": server.section()}
    async with archived(nats_url, tmp_path, **section) as given:
        tocsin = given.tocsin
        tocsin.start(*OTHERS)
        archiver = tocsin.start("archiver")
        tocsin.start_worker()
        await tocsin.ready()
        async with load(tocsin):
            for death in range(DEATHS):
                await given.more_left()
                await asyncio.sleep(0.1 * death)  # at another point of its work each time
                archiver.kill()
                archiver.start()
                await tocsin.ready()
            await given.more_left()
        await ended(given)

        report = await answer(tocsin, "audit")
        assert not report["violations"]
        assert report["executions"] > 10
        sequences = [body.sequence async for body in given.commits.reader.bodies()]
        assert sequences == list(range(1, sequences[-1] + 1))
        assert await given.first() > 1
        found = Counter(await events(given))
        assert max(found[subject] for subject in found if subject.endswith(".completed")) == 1
        segments = await given.archive.segments(SOURCE)
        assert [segment.index for segment in segments] == list(range(1, len(segments) + 1))
        assert await given.archive.segments("REQUESTS")
        assert await given.archive.segments("REPORTS")

        rebuilt = await answer(tocsin, "history", "rebuild", "--yes")
        assert rebuilt == {"executions": report["executions"]}

        file = tmp_path / "log.jsonl"
        await answer(tocsin, "events", "export", "--out", str(file))
        exported = await answer(tocsin, "audit", "--file", str(file))
        assert exported["facts"] == report["facts"]
        assert exported["clean"]
