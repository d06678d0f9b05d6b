"""A worker of the Open Job Spec that may be killed at any time.

It takes jobs over HTTP, sleeps `args[0]` seconds for each, and acknowledges it. A job with its name as `args[1]` never ends.
It writes down every run: `<job> <attempt>`.

RUNS_FILE=… python -m tests.system.ojs_worker NAME LEASE_MS URL [URL ...]
"""

import asyncio
import itertools
import math
import os
import sys
from typing import Any

import httpx

from tests.system.worker_process import RUNS_FILE

QUEUES = ("work",)
AT_ONCE = 5
PATIENCE = 10.0
REST = 0.1


async def work(name: str, lease: int, urls: list[str]) -> None:
    """Run forever; try the next gateway if one does not answer."""
    async with httpx.AsyncClient(timeout=PATIENCE) as client:

        async def ask(verb: str, **body: Any) -> httpx.Response:  # noqa: ANN401 - JSON
            for url in itertools.cycle(urls):
                try:
                    answer = await client.post(f"{url}/ojs/v1/workers/{verb}", json={"worker_id": name, **body})
                except httpx.TransportError:
                    pass
                else:
                    if answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                        return answer
                await asyncio.sleep(REST)
            raise AssertionError("the cycle has no end")

        async def run(job: dict[str, Any]) -> None:
            note(f"{job['id']} {job['attempt']}\n")
            seconds, *stuck = job["args"]
            await asyncio.sleep(math.inf if name in stuck else seconds)
            answer = await ask("ack", job_id=job["id"], result=name)
            # 409: it was taken away, or the first try of this answer arrived.
            assert answer.status_code in {httpx.codes.OK, httpx.codes.CONFLICT}, answer.text

        sys.stdout.write('{"action": "worker-started"}\n')
        sys.stdout.flush()
        while True:
            taken = await ask("fetch", queues=QUEUES, count=AT_ONCE, visibility_timeout_ms=lease, wait_ms=500)
            assert taken.status_code == httpx.codes.OK, taken.text
            await asyncio.gather(*map(run, taken.json()["jobs"]))


def note(line: str) -> None:
    """One write to the end of the file: lines of many processes do not mix."""
    file = os.open(os.environ[RUNS_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
