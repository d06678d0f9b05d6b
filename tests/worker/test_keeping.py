"""What keeps a task while it is worked at: heartbeats, and reports that outlast an outage."""

import asyncio

from tests.domain.given import NOON
from tests.worker.given import FUNCTION, Bench, Watched
from tocsin.domain.events import Message
from tocsin.ports import LogUnavailable
from tocsin.testing import InMemoryEventLog, ManualClock
from tocsin.worker.heartbeat import Heartbeat
from tocsin.worker.held_tasks import HeldTask, HeldTasks


class Mute(Watched):
    """A delivery whose heartbeats do not get through."""

    async def in_progress(self) -> None:
        raise LogUnavailable("no connection")


async def test_every_task_that_is_held_is_kept_whatever_happens_to_one(bench: Bench) -> None:
    await bench.given_tasks({"a": (), "b": ()})
    mute, held = Mute(await bench.delivery()), await bench.delivery()
    holdings = HeldTasks()
    for delivery in (mute, held):
        holdings.add(HeldTask(delivery))
    await Heartbeat(holdings, bench.clock, ack_wait=30).run_once()
    assert held.beats == 1


async def test_what_is_settled_is_kept_no_longer(bench: Bench) -> None:
    await bench.given_task()
    watched = await bench.delivery()
    holdings, holding = HeldTasks(), HeldTask(watched)
    holdings.add(holding)
    holdings.remove(holding)
    await Heartbeat(holdings, bench.clock, ack_wait=30).run_once()
    assert watched.beats == 0
    await holdings.settled()


class ComesBack(InMemoryEventLog):
    """Reports are answered only once it is back; some that were not answered are stored all the same."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.away = 2
        self.missed = asyncio.Event()

    async def publish(self, subject: str, message: Message, *, message_id: str) -> int:
        sequence = await super().publish(subject, message, message_id=message_id)
        if self.away:
            self.away -= 1
            self.missed.set()
            raise LogUnavailable("no connection")
        return sequence


async def test_a_report_is_stored_once_and_before_the_acknowledgement_however_long_the_log_is_away() -> None:
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
