"""A purge of many tasks: one small event each, by a matcher whose memory does not grow with them.

`TOCSIN_TEST_PURGED=20000 python -m pytest -s tests/system/test_purge.py` purges more, and prints figures.
"""

import asyncio
import os
import re
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from tests.system.processes import Program, site
from tocsin.bootstrap import STAGE_NAMES
from tocsin.domain.events import Admitted, Cancelled, QueuePurged, Started

TASKS: Final = int(os.environ.get("TOCSIN_TEST_PURGED", "1000"))
AT_ONCE: Final = 500
MAX_EVENT_BYTES: Final = 1_000
MAX_GROWTH_MB: Final = 100.0
"""The memory of a matcher that cancels: batches of 256 executions with their events."""


def memory_of(program: Program) -> float:
    """Return the greatest memory that a process has used, in MB."""
    status = Path(f"/proc/{program.pid}/status").read_text(encoding="utf-8")
    [kilobytes] = re.findall(r"VmHWM:\s+(\d+)", status)
    return int(kilobytes) / 1_024


@pytest.mark.slow
@pytest.mark.timeout(300 + TASKS / 10)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_purge_of_many_tasks_is_bounded(nats_url: str, tmp_path: Path) -> None:
    async with site(nats_url, tmp_path, metrics={"enabled": False}) as tocsin:
        tocsin.patience = 120 + TASKS / 20
        await tocsin.apply({"name": "mails", "function": "f", "queue": "mail", "overlap_policy": "allow"})
        tocsin.start(*(stage for stage in STAGE_NAMES if stage != "matcher"))
        matcher = tocsin.start("matcher")
        await tocsin.ready()
        for first in range(0, TASKS, AT_ONCE):
            await asyncio.gather(*(tocsin.trigger("mails") for _ in range(min(AT_ONCE, TASKS - first))))

        async def all_wait() -> bool:
            _, details = await tocsin.call("queues", "show", "mail")
            return bool(details.get("waiting") == TASKS)

        await tocsin.until(all_wait)
        before, began = memory_of(matcher), time.monotonic()
        _, answer = await tocsin.call("queues", "purge", "mail", "--yes", "--reason", "wrong list")
        assert (answer["waiting"], answer["changed"]) == (TASKS, True)
        ends = await tocsin.ended("mails", Cancelled, TASKS)
        took, growth = time.monotonic() - began, memory_of(matcher) - before
        print(f"{TASKS} tasks: {took:.1f} s, {growth:.1f} MB more than {before:.1f} MB")  # noqa: T201 - figures

        assert len({end.execution_id for end in ends}) == len(ends) == TASKS
        assert {end.reason for end in ends} == {"queue mail purged: wrong list"}
        assert max(len(end.encode()) for end in ends) < MAX_EVENT_BYTES
        [purge] = await tocsin.facts("queue.mail.purged", QueuePurged)
        assert len(purge.message.encode()) < MAX_EVENT_BYTES
        assert growth < MAX_GROWTH_MB
        assert await tocsin.of_executions("mails", Started) == []
        assert len(await tocsin.of_executions("mails", Admitted)) == TASKS
