"""The alerts in a real Prometheus, which scrapes two copies of the API's metrics."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.conformance.test_history import A_FAILURE, story
from tests.domain.given import recorded
from tests.http.conftest import World
from tests.system.prometheus import NEEDS_PROMETHEUS, prometheus, until, values
from tocsin.adapters.http.metrics.exposition import Metrics, metrics_app
from tocsin.adapters.http.server import answering
from tocsin.adapters.http.sockets import listen
from tocsin.adapters.memory.clock import ManualClock
from tocsin.adapters.sql.history import open_history
from tocsin.domain.events import Message
from tocsin.settings import Server
from tocsin.subjects import TICKER_LEASE, Bucket, Stream

pytestmark = NEEDS_PROMETHEUS


class Copies:
    """Copies of the metrics, on ports that stay the same after a restart."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stacks: dict[int, AsyncExitStack] = {}

    async def start(self, port: int = 0) -> int:
        """Serve a copy; return its port."""
        listener = listen("127.0.0.1", port)
        stack = AsyncExitStack()
        stack.callback(listener.close)
        metrics = Metrics(self._world.parts(), "hanzo_scheduler", max_jobs=100)
        await stack.enter_async_context(answering(metrics_app(metrics), listener, Server(shutdown_timeout=1)))
        port = int(listener.getsockname()[1])
        self._stacks[port] = stack
        return port

    async def stop(self, port: int) -> None:
        """Stop a copy."""
        await self._stacks.pop(port).aclose()

    async def close(self) -> None:
        """Stop all copies."""
        for port in list(self._stacks):
            await self.stop(port)


def firing(alert: str, *, job: str | None = None) -> str:
    """Return the expression that counts an alert that fires."""
    of_job = f', job="{job}"' if job else ""
    return f'count(ALERTS{{alertname="{alert}", alertstate="firing"{of_job}}})'


async def test_first_failures_fire_alerts_despite_a_restart(tmp_path: Path) -> None:
    async with open_history(f"sqlite:///{tmp_path}/history.db") as history:
        clock = ManualClock(datetime.now(UTC) - timedelta(days=2))
        world = World(tmp_path, history, clock)
        clock.monotonic = asyncio.get_running_loop().time  # type: ignore[method-assign] # the cache ends by it
        await world.given(name="old", schedule="0 3 * * *")
        clock.advance(timedelta(days=2).total_seconds())
        await world.given(name="nightly", schedule="0 3 * * *")
        await world.given(name="hasty", schedule="0 3 * * *")
        before = [fact for job in ("old", "hasty") for n in range(5) for fact in failure(f"{job}-{n}", job)]
        await history.record(Stream.LOG, recorded(before), after=0, upto=len(before))
        await world.projections.put(Bucket.LEADER, TICKER_LEASE, b"{}")
        copies = Copies(world)
        ports, moved = [await copies.start(), await copies.start()], free_port()
        try:
            async with prometheus(tmp_path, tocsin=[*ports, moved]) as client:
                # `hasty` failed before Prometheus read its counters first, which are born at five.
                await until(client, 'hanzo_scheduler_dead_letters_total{job="nightly"}', [0, 0])
                await until(client, 'hanzo_scheduler_dead_letters_total{job="hasty"}', [5, 5])
                await until(client, firing("DeadLettersAccumulating", job="hasty"), [1])
                await until(client, firing("ScheduledJobFailing", job="hasty"), [1])
                assert await values(client, firing("DeadLettersAccumulating")) == [1]
                assert await values(client, firing("ScheduledJobFailing")) == [1]

                failures = [fact for n in range(5) for fact in failure(f"nightly-{n}", "nightly")]
                upto = len(before) + len(failures)
                await history.record(Stream.LOG, recorded(failures), after=len(before), upto=upto)
                await until(client, firing("DeadLettersAccumulating", job="nightly"), [1])
                await until(client, firing("ScheduledJobFailing", job="nightly"), [1])

                # A restarted copy continues at the same number, and no expression doubles or falls.
                await copies.stop(ports[0])
                await until(client, up(ports[0]), [0])
                await copies.start(ports[0])
                await until(client, up(*ports), [1, 1])
                await until(client, 'hanzo_scheduler_dead_letters_total{job="nightly"}', [5, 5])
                assert (
                    await values(client, "max without (instance) (resets(hanzo_scheduler_dead_letters_total[1h])) > 0")
                    == []
                )
                assert await values(client, firing("DeadLettersAccumulating", job="nightly")) == [1]
                assert await values(client, firing("DeadLettersAccumulating")) == [2]
                assert await values(client, 'ALERTS{job="old"}') == []

                # Failures while the only copies start again at another address, as new pods do.
                for port in ports:
                    await copies.stop(port)
                await until(client, up(*ports), [0, 0])
                missed = [fact for n in range(5, 9) for fact in failure(f"old-{n}", "old")]
                await history.record(Stream.LOG, recorded(missed), after=upto, upto=upto + len(missed))
                await copies.start(moved)
                await until(client, firing("DeadLettersAccumulating", job="old"), [1])
                await until(client, firing("ScheduledJobFailing", job="old"), [1])
                assert await values(client, firing("DeadLettersAccumulating")) == [3]

                await world.projections.remove(Bucket.LEADER, TICKER_LEASE)
                await until(client, firing("SchedulerLeaderLost"), [1])
        finally:
            await copies.close()
            world.calculations.close()


def up(*ports: int) -> str:
    """Return the expression for whether Prometheus reaches copies."""
    instances = "|".join(f"127.0.0.1:{port}" for port in ports)
    return f'up{{instance=~"{instances}"}}'


def free_port() -> int:
    """Return a port on which no program listens."""
    with listen("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])


def failure(execution_id: str, job: str) -> list[Message]:
    """Return the events of an execution that failed."""
    return story(*A_FAILURE, execution_id=execution_id, job=job)
