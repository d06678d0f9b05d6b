"""A notification on a real server, by a webhook: a killed notifier loses none, and sends it again under the same id."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.system.processes import site
from tocsin.domain.events import NotificationDelivered, NotificationPrepared, NotificationRaised, validated
from tocsin.domain.notification import MAX_REASON, MAX_WHY, Kind
from tocsin.ports import Append

STORM: Final = 10_000
Received = list[dict[str, Any]]


@asynccontextmanager
async def receiver(
    on_first: Callable[[], None], *, on_connection: Callable[[], bool] = lambda: False
) -> AsyncIterator[tuple[str, Received]]:
    """A receiver that calls `on_first` before it answers the first request.

    `on_connection` is called before a request is read; True: it is not read.
    """
    received: Received = []

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if on_connection():
            writer.transport.abort()
            return
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        received.append(json.loads(await reader.readexactly(length)))
        if len(received) == 1:
            on_first()
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answered, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook", received


async def test_killed_notifier_sends_the_same_again(nats_url: str, tmp_path: Path) -> None:
    killed = asyncio.Event()

    def kill() -> None:
        tocsin.programs[0].kill()
        killed.set()

    async with receiver(kill) as (url, received):
        notifications = {"channels": {"ops": {"type": "webhook", "url": url}}, "group_window": 0}
        async with site(nats_url, tmp_path, notifications=notifications) as tocsin:
            tocsin.environment["TOCSIN_NOTIFICATIONS__CHANNELS__OPS__URL"] = url  # settings are dumped without secrets
            tocsin.start("notifier")
            await tocsin.ready()
            now = tocsin.installation.clock.now()
            fact = NotificationRaised(job="report", id="1", channel="ops", kind=Kind.FAILED, at=now, reason="no answer")
            await tocsin.log.append(fact, expect=0)
            await asyncio.wait_for(killed.wait(), tocsin.patience)
            tocsin.programs[0].start()

            async def is_delivered() -> bool:
                stored = await tocsin.log.read("notification.>")
                return any(isinstance(recorded.message, NotificationDelivered) for recorded in stored)

            await tocsin.until(is_delivered)
    assert [(body["id"], body["job"], body["reason"]) for body in received] == [("1", "report", "no answer")] * 2


@pytest.mark.full
async def test_notifier_killed_before_it_sends_loses_none(nats_url: str, tmp_path: Path) -> None:
    """The notifier is killed after it stored what it is about to send, and before the receiver has read a byte."""
    killed = asyncio.Event()

    def kill_once() -> bool:
        if killed.is_set():
            return False
        tocsin.programs[0].kill()
        killed.set()
        return True

    async with receiver(lambda: None, on_connection=kill_once) as (url, received):
        notifications = {"channels": {"ops": {"type": "webhook", "url": url}}, "group_window": "2s"}
        async with site(nats_url, tmp_path, notifications=notifications) as tocsin:
            tocsin.environment["TOCSIN_NOTIFICATIONS__CHANNELS__OPS__URL"] = url
            now = tocsin.installation.clock.now()
            for number, job in enumerate(("report", "load", "clean")):
                fact = NotificationRaised(job=job, id=str(number), channel="ops", kind=Kind.FAILED, at=now)
                await tocsin.log.append(fact, expect=0)
            tocsin.start("notifier")
            await asyncio.wait_for(killed.wait(), tocsin.patience)
            before = [recorded.message for recorded in await tocsin.log.read("notification.>")]
            [prepared] = [fact for fact in before if isinstance(fact, NotificationPrepared)]
            assert not [fact for fact in before if isinstance(fact, NotificationDelivered)]
            later = NotificationRaised(job="late", id="9", channel="ops", kind=Kind.FAILED, at=now)
            await tocsin.log.append(later, expect=0)
            tocsin.programs[0].start()

            async def are_delivered() -> bool:
                stored = await tocsin.log.read("notification.>")
                return sum(isinstance(recorded.message, NotificationDelivered) for recorded in stored) == 2

            await tocsin.until(are_delivered)
    assert [(body["id"], body["job"], body["others"]) for body in received] == [
        (prepared.id, "report", 2),
        ("9", "late", 0),
    ]


def memory_of(pid: int) -> int:
    """Return the bytes of memory of a process."""
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1_024


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_storm_is_few_messages_and_little_memory(nats_url: str, tmp_path: Path) -> None:
    """10,000 executions of 1,000 jobs fail at once, with errors of the longest text."""
    async with receiver(lambda: None) as (url, received):
        notifications = {"channels": {"ops": {"type": "webhook", "url": url}}, "group_window": "2s"}
        async with site(nats_url, tmp_path, notifications=notifications) as tocsin:
            tocsin.environment["TOCSIN_NOTIFICATIONS__CHANNELS__OPS__URL"] = url
            notifier = tocsin.start("notifier")
            await tocsin.ready()
            now = tocsin.installation.clock.now()

            def raised(number: int) -> Append:
                texts = {"reason": "r" * MAX_REASON, "why": "w" * MAX_WHY}
                fact = {"job": f"job-{number % 1_000}", "id": str(number), "channel": "ops", "kind": Kind.FAILED}
                return Append((validated(NotificationRaised, {**fact, **texts, "at": now}),), 0)

            async def are_counted(number: int) -> bool:
                return number == sum(1 + int(body["others"]) for body in received)

            await tocsin.log.write([raised(0)])
            await tocsin.until(partial(are_counted, 1))
            before = memory_of(notifier.pid)
            for first in range(1, STORM, 500):
                written = await tocsin.log.write([raised(n) for n in range(first, min(first + 500, STORM))])
                assert not [each for each in written if each.error]
            await tocsin.until(partial(are_counted, STORM))
            growth = memory_of(notifier.pid) - before
    assert len(received) < 20
    assert max(len(json.dumps(body)) for body in received) < 10_000
    assert growth < 100 * 2**20
