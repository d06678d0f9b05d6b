"""A worker with a name that stays over its restarts.

RUNS_FILE=… tocsin worker tests.system.agent_process:mail
"""

import asyncio

from tests.system.worker_process import note
from tocsin import Context, Worker

mail = Worker(name="mail-1", labels={"zone": "a"}, concurrency=2, shutdown_timeout=5.0)


@mail.task("mail/send")
async def send(context: Context) -> None:
    note(context)


@mail.task("mail/slowly")
async def slowly(context: Context) -> None:
    note(context)
    await asyncio.sleep(3)


@mail.task("mail/long")
async def long(context: Context) -> None:
    """Longer than the bucket takes to show what an agent holds."""
    note(context)
    await asyncio.sleep(8)
