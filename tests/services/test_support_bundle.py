"""A bundle for support holds what it can have, and nothing that users wrote."""

import asyncio
import json
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest

from tests.stages.conftest import world
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain.events import CancelRequest, Failure, PoisonMessage, Report
from tocsin.services.jobs import Registry
from tocsin.services.support_bundle import BundleExists, Content, collect, event_parts, events, is_plain, write
from tocsin.subjects import STREAMS, Stream

__all__ = ["world"]

SECRET = "hunter2"  # noqa: S105 - no password of ours
AT = datetime(2026, 11, 26, tzinfo=UTC)


async def test_events_hold_nothing_that_users_wrote(world: World) -> None:
    job = await world.define(
        {"name": "nightly", "schedule": "* * * * *", "function": "f", "input": {"a": SECRET}, "description": SECRET}
    )
    assert job
    await Registry(world.log, world.projections, world.clock).pause("nightly", reason=SECRET)
    await world.log.publish("cancel.nightly.e1", CancelRequest(reason=SECRET), message_id="a")
    world.log.receive("trigger.nightly", json.dumps({"v": 1, "type": "trigger", "input": {"a": SECRET}}).encode())
    world.log.receive("trigger.other", SECRET.encode())
    world.log.receive(f"report.nightly.e1.w.main.1.{SECRET}.5", b"{}")  # with the proof of a worker
    await world.decide(subjects.answer("nightly", SECRET), b"{}")  # with an id that a program chose
    letter = PoisonMessage(id="p", job="nightly", durable="d", subject="x", sequence=1, body=SECRET, reason=SECRET)
    await world.given(letter)
    contents = await collect(event_parts(world.past))
    assert {content.error for content in contents} == {None}
    lines = [json.loads(line) for content in contents for line in (content.body or b"").splitlines()]
    assert SECRET not in json.dumps(lines)
    [paused] = [line for line in lines if line.get("type") == "paused"]
    assert paused["subject"] == "ledger.nightly.paused"
    assert {"sequence", "time", "bytes"} <= paused.keys()
    assert [line["subject"] for line in lines if "unreadable" in line] == [
        "trigger.other",
        "report.nightly",
        "cron.answer",
    ]


async def test_newest_events_are_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.services.support_bundle.MAX_EVENTS", 2)
    for number in range(3):
        await world.define({"name": f"job-{number}", "schedule": "* * * * *", "function": "f"})
    body = await events(world.past, Stream.LEDGER)
    assert [json.loads(line)["subject"] for line in body.splitlines()] == [
        "ledger.job-1.defined",
        "ledger.job-2.defined",
    ]


async def test_part_that_fails_or_hangs_is_named() -> None:
    async def hangs() -> bytes:
        await asyncio.Event().wait()
        return b""

    async def fails() -> bytes:
        raise OSError("away")

    async def answers() -> bytes:
        return b"{}"

    contents = await collect({"a": hangs, "b": fails, "c": answers}, within=0.01)
    assert contents == [
        Content("a", None, "no answer within 0.01 seconds"),
        Content("b", None, "OSError: away"),
        Content("c", b"{}"),
    ]


def test_archive_names_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    write(path, [Content("a.json", b"{}"), Content("b.json", None, "away")], at=AT, tocsin="1")
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["tocsin-support/bundle.json", "tocsin-support/a.json"]
        about = archive.extractfile("tocsin-support/bundle.json")
        assert about is not None
        assert json.load(about)["files"] == {"a.json": {"bytes": 2}, "b.json": {"missing": "away"}}
    before = path.read_bytes()
    with pytest.raises(BundleExists, match="choose another file"):
        write(path, [], at=AT, tocsin="1")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("annotation", "plain"),
    [
        (int, True),
        (float | None, True),
        (datetime, True),
        (timedelta, True),
        (Literal["a", "b"], True),
        (Literal["a"] | None, True),
        (Stream, True),
        (str, False),
        (str | None, False),
        (dict[str, int], False),
        (Failure, False),
        (Report, False),
    ],
)
def test_plain_types(annotation: object, *, plain: bool) -> None:
    assert is_plain(annotation) is plain


def test_each_stream_has_a_part(world: World) -> None:
    assert len(event_parts(world.past)) == len(STREAMS)
