"""A worker that fills the stream of reports keeps no outcome of another worker from being recorded."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count, product
from pathlib import Path
from typing import Final

import pytest

from tests.security import installations
from tests.security.installations import connected, installed
from tests.security.server import DEADLINE, Server
from tests.security.test_worker_claims import STAGES, serving
from tests.system.running import Running
from tocsin import Worker, bootstrap
from tocsin.bootstrap import Installation
from tocsin.domain.events import Completed
from tocsin.settings import Settings

LIMIT: Final = 1_048_576
BODIES: Final = (b"x" * 60_000, b"x" * 2_000, b"x" * 10)
"""Small bodies fill the room that large bodies leave."""
PAUSE_S: Final = 0.2
"""Time between two bursts, each larger than the stream, so that the test's machine has time for the rest."""
PATIENCE_S: Final = 120.0
SHAPES: Final = (
    "report.{n}",
    "report.job.{n}.completed.main.1." + "0" * 16 + ".1",
    "report.job.id.completed.main.1." + "0" * 16 + ".1.{n}",
    "report.*.{n}.completed.main.1." + "0" * 16 + ".1",
)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Run an installation whose streams of inputs hold a megabyte."""
    usual = installations.settings

    def limited(url: str, folder: Path, role: str, *, screened: bool = False) -> Settings:
        settings = usual(url, folder, role, screened=screened)
        archive = settings.archive.model_copy(update={"max_input_bytes": LIMIT})
        return settings.model_copy(update={"archive": archive})

    monkeypatch.setattr(installations, "settings", limited)
    with installed(tmp_path / "server") as running:
        yield running


async def fill(hostile: Installation) -> None:
    """Store reports until the server refuses the smallest one."""
    numbers = count()
    for body in BODIES:
        reply: dict[str, object] = {}
        while "error" not in reply:
            number = next(numbers)
            subject = hostile.names.to_wire(SHAPES[number % len(SHAPES)].format(n=f"fill-{number}"))
            reply = json.loads((await hostile.connection.client.request(subject, body, timeout=DEADLINE)).data)


@asynccontextmanager
async def flooding(hostile: Installation) -> AsyncIterator[None]:
    """Publish more reports than the stream holds, again and again, within the block."""

    async def flood() -> None:
        client = hostile.connection.client
        for number in count():
            for shape, body in product(SHAPES, (*BODIES[:1] * 5, *BODIES[1:] * 20)):
                await client.publish(hostile.names.to_wire(shape.format(n=number)), body)
            await client.flush()
            await asyncio.sleep(PAUSE_S)

    task = asyncio.create_task(flood())
    try:
        yield
    finally:
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_flood_of_reports_stops_no_outcome(small: Server, tmp_path: Path) -> None:
    worker = Worker(name="all-1")
    worker.task("pass")(lambda _: "passed")
    async with (
        connected(small, tmp_path, "worker-mail") as hostile,
        connected(small, tmp_path, "operator") as operator,
        connected(small, tmp_path, "scheduler") as scheduler,
    ):
        await fill(hostile)
        async with flooding(hostile), serving(small, tmp_path, worker):
            stages = asyncio.create_task(bootstrap.run_stages(scheduler, (*STAGES, "recorder", "archiver")))
            try:
                tocsin = Running(operator)
                tocsin.patience = PATIENCE_S
                await tocsin.apply({"name": "job", "function": "pass", "overlap_policy": "allow"})
                for number in range(3):
                    await tocsin.trigger("job")
                    ends = await tocsin.ended("job", Completed, number + 1)
                    assert ends[-1].result == "passed"
            finally:
                stages.cancel()
                await asyncio.gather(stages, return_exceptions=True)
