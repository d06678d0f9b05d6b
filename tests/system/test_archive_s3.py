"""An archive on a real S3 server: its readers, its absence, and changed objects."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.s3_server import S3Server
from tests.system.restoring import at_work, called, everything
from tests.system.running import Running, settings
from tocsin import Context, Worker, bootstrap
from tocsin.archive.log_archive import commits_of
from tocsin.bootstrap import Installation
from tocsin.domain.events import Completed

SOURCE = commits_of(0)
JOB = {"name": "plain", "function": "plain"}
HASTY = {"hot_window": 1, "interval": 0.2}
RUNS = 3


def plain() -> Worker:
    worker = Worker()

    @worker.task("plain")
    async def run(_: Context) -> str:
        return "done"

    return worker


@pytest.fixture
def bucket(s3: S3Server) -> str:
    return s3.new_bucket()


@pytest.fixture
async def installation(nats_url: str, s3: S3Server, bucket: str, tmp_path: Path) -> AsyncIterator[Installation]:
    """Initialized, and idle."""
    section = {**HASTY, "target": f"s3://{bucket}/old", "s3": s3.section(timeout=1, retry_timeout=1)}
    async with bootstrap.connect(settings(nats_url, tmp_path, archive=section)) as installation:
        await bootstrap.initialize(installation)
        yield installation


async def archived(tocsin: Running) -> None:
    """Wait until every commit that is stored now is archived, so that readers read the archive."""
    commits = tocsin.installation.commits
    newest = [body.sequence async for body in commits.reader.bodies()][-1]

    async def is_archived() -> bool:
        state, _ = await commits.archive.state()
        return state.last(SOURCE) >= newest

    await tocsin.until(is_archived)


@pytest.mark.slow
async def test_commands_read_what_left_the_streams(installation: Installation, s3: S3Server, bucket: str) -> None:
    async with at_work(installation, plain()) as tocsin:
        soon = datetime.now(UTC) + timedelta(seconds=3)
        await tocsin.apply(JOB, {**JOB, "name": "once", "schedule": f"at {soon:%Y-%m-%dT%H:%M:%S}"})
        for _ in range(RUNS - 1):
            await tocsin.trigger("plain")

        async def have_ended() -> bool:
            return len((await everything(installation)).ends) == RUNS

        await tocsin.until(have_ended)
        await archived(tocsin)
    ended = (await everything(installation)).ends
    [once] = [end.message for end in ended.values() if end.message.job == "once"]
    code, answer = await called(installation.settings, "history", "rebuild", "--yes")
    assert (code, answer) == (0, {"executions": RUNS})
    code, report = await called(installation.settings, "audit", "--history")
    assert (code, report["clean"], report["executions"]) == (0, True, RUNS)
    code, answer = await called(installation.settings, "executions", "show", once.execution_id)
    assert (code, answer["status"]) == (0, "completed")
    code, answer = await called(installation.settings, "why", "once", answer["scheduled_time"])
    assert code == 0
    assert once.execution_id in json.dumps(answer)

    name, *_ = (key for key in s3.objects(bucket, "old/") if key.startswith(f"old/{SOURCE}") and key.endswith(".gz"))
    body = s3.client().get_object(Bucket=bucket, Key=name)["Body"].read()
    for change, reason in ((body[:-1] + bytes([body[-1] ^ 1]), "was changed"), (None, "has no")):
        if change is None:
            s3.client().delete_object(Bucket=bucket, Key=name)
        else:
            s3.client().put_object(Bucket=bucket, Key=name, Body=change)
        code, answer = await called(installation.settings, "audit")
        assert (code, answer["error"]["error_code"]) == (1, "archive-damaged")
        assert name.removeprefix("old/") in answer["error"]["message"]
        assert reason in answer["error"]["message"]


@pytest.mark.slow
async def test_nothing_is_purged_while_the_store_is_away(installation: Installation, s3: S3Server) -> None:
    async with at_work(installation, plain()) as tocsin:
        await tocsin.apply(JOB)
        with s3.frozen():
            for _ in range(RUNS):
                await tocsin.trigger("plain")
            await tocsin.ended("plain", Completed, RUNS)

            async def has_failed() -> bool:
                return (await installation.commits.archive.state())[0].failure is not None

            await tocsin.until(has_failed)
            assert len(await tocsin.of_executions("plain", Completed)) == RUNS
            _, findings = await called(installation.settings, "doctor")
            [finding] = [each for each in findings if each["code"] == "archive-failing"]
            assert "no answer in time" in finding["what"]
        await archived(tocsin)
        assert (await installation.commits.archive.state())[0].failure is None
    code, report = await called(installation.settings, "audit")
    assert (code, report["executions"]) == (0, RUNS)


@pytest.mark.slow
async def test_unreachable_archive_names_its_settings(installation: Installation, s3: S3Server, bucket: str) -> None:
    async with at_work(installation, plain()) as tocsin:
        await tocsin.apply(JOB)
        await archived(tocsin)
    for key in s3.objects(bucket, "old/"):
        s3.client().delete_object(Bucket=bucket, Key=key)
    s3.client().delete_bucket(Bucket=bucket)
    code, answer = await called(installation.settings, "audit")
    assert (code, answer["error"]["error_code"]) == (4, "archive-unavailable")
    assert "NoSuchBucket" in answer["error"]["message"]
    assert "archive.s3" in answer["error"]["message"]
    _, findings = await called(installation.settings, "doctor")
    assert "archive-unavailable" in {each["code"] for each in findings}


@pytest.mark.slow
async def test_archive_moves_through_a_backup(nats_url: str, s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """As docs/how-to/archive-on-s3.md says."""
    chosen = settings(nats_url, tmp_path, archive=HASTY)
    async with bootstrap.connect(chosen) as before:
        await bootstrap.initialize(before)
        async with at_work(before, plain()) as tocsin:
            await tocsin.apply(JOB)
            await tocsin.trigger("plain")

            async def has_ended() -> bool:
                return bool((await everything(before)).ends)

            await tocsin.until(has_ended)
            await archived(tocsin)
        await bootstrap.create_backup(before, tmp_path / "backup")
        for path in (tmp_path / "backup" / "archive").iterdir():
            s3.client().upload_file(str(path), bucket, f"old/{path.name}")
    moved = before.settings.archive.model_copy(update={"target": f"s3://{bucket}/old", "s3": s3.settings()})
    async with bootstrap.connect(chosen.model_copy(update={"archive": moved})) as after:
        async with at_work(after, plain()) as tocsin:
            await tocsin.apply({**JOB, "name": "later"})
            await tocsin.trigger("later")

            async def have_ended() -> bool:
                return len((await everything(after)).ends) > 1

            await tocsin.until(have_ended)
            await archived(tocsin)
        code, report = await called(after.settings, "audit")
    assert (code, report["clean"], report["executions"]) == (0, True, 2)
    assert len(s3.objects(bucket, "old/")) > len([*(tmp_path / "backup" / "archive").iterdir()])
