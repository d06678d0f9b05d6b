"""Heartbeats renew held tasks, and reports survive an outage of the log."""

import asyncio

from tests.domain.given import NOON
from tests.worker.given import FUNCTION, Bench, Watched
from tocsin.domain.events import Message
from tocsin.ports import LogUnavailable
from tocsin.testing import InMemoryEventLog, ManualClock
from tocsin.worker.held_tasks import Heartbeat, HeldTask, HeldTasks


class Mute(Watched):
    """A delivery whose heartbeats are lost."""

    async def in_progress(self) -> None:
        raise LogUnavailable("no connection")


async def test_lost_heartbeat_does_not_affect_other_tasks(bench: Bench) -> None:
    await bench.given_tasks({"a": (), "b": ()})
    mute, audible = Mute(await bench.delivery()), await bench.delivery()
    held_tasks = HeldTasks()
    for delivery in (mute, audible):
        held_tasks.add(HeldTask(delivery))
    await Heartbeat(held_tasks, bench.clock, ack_wait=30).run_once()
    assert audible.beats == 1


async def test_settled_task_is_not_renewed(bench: Bench) -> None:
    await bench.given_task()
    watched = await bench.delivery()
    held_tasks, held = HeldTasks(), HeldTask(watched)
    held_tasks.add(held)
    held_tasks.remove(held)
    await Heartbeat(held_tasks, bench.clock, ack_wait=30).run_once()
    assert watched.beats == 0
    await held_tasks.settled()


class ComesBack(InMemoryEventLog):
    """A log that stores two reports before its replies arrive again."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.away = 2
        self.missed = asyncio.Event()

    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        sequence = await super().publish(subject, message, message_id=message_id, ttl=ttl)
        if self.away:
            self.away -= 1
            self.missed.set()
            raise LogUnavailable("no connection")
        return sequence


async def test_report_is_stored_once_before_acknowledgement() -> None:
    clock = ManualClock(NOON)
    log = ComesBack(clock)
    bench = Bench(log, clock)
    bench.handlers.add(FUNCTION, lambda _: "done")
    await bench.given_task()
    watched = await bench.delivery()
    _, running = bench.running(watched)
    await log.missed.wait()
    assert watched.settled is None
    while not running.done():
        clock.advance(1)
        await asyncio.sleep(0)
    assert (await bench.report()).result == "done"
    assert watched.settled == ("ack", 0)
