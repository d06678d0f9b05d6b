"""BullMQ on Redis, under node: one worker with a concurrency of 100, all results kept.

W1 uses its job schedulers. Its module is found the way node finds modules, NODE_PATH included. Lines of text drive the client in
node.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.peer import Assignment, Client

DISTRIBUTIONS: Final = ()
SERVER: Final = "redis"
NOTE: Final = ""
PREPARES: Final = False
PARTS: Final = ("worker",)
PARTS_THAT_SCHEDULE: Final = ()
PROGRAM: Final = ("node", str(Path(__file__).with_suffix(".cjs")))


def run(part: str, _: Assignment) -> None:
    """Replace this process by the worker."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.execvp(PROGRAM[0], [*PROGRAM, part])  # noqa: S606 - our own


@asynccontextmanager
async def client(assignment: Assignment) -> AsyncIterator[Client]:
    """Enqueue by `Queue.add`."""
    node = await asyncio.create_subprocess_exec(
        *PROGRAM, "client", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    it = _Client(node)
    answers = asyncio.create_task(it.hear())
    await asyncio.gather(*(it.ask("schedule", job, assignment.cron) for job in assignment.jobs))
    yield it
    node.terminate()
    await node.wait()
    await answers


class _Client:
    def __init__(self, node: asyncio.subprocess.Process) -> None:
        self._node = node
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[Any]] = {}

    async def enqueue(self, key: str) -> None:
        await self.ask("enqueue", key)

    async def completed(self) -> int:
        return int(await self.ask("completed"))

    async def ask(self, *words: str) -> Any:
        assert self._node.stdin is not None
        number = next(self._numbers)
        self._asked[number] = asyncio.get_running_loop().create_future()
        self._node.stdin.write(json.dumps([number, *words]).encode() + b"\n")
        return await self._asked[number]

    async def hear(self) -> None:
        assert self._node.stdout is not None
        async for line in self._node.stdout:
            number, answer = json.loads(line)
            self._asked.pop(number).set_result(answer)
