"""Fetches of clients that leave while they wait."""

import asyncio
import json
from itertools import count
from urllib.parse import urlsplit

import httpx
import pytest

from tests.ojs.served import Server
from tests.ojs.test_gateway import fetched

_numbers = count(1)


async def wait_for_jobs(server: Server, queue: str) -> asyncio.StreamWriter:
    """Open a connection of its own, and let it wait for a job under a lease of an hour."""
    url = urlsplit(server.url)
    _, writer = await asyncio.open_connection(url.hostname, url.port)
    body = json.dumps({"queues": [queue], "worker_id": "gone", "wait_ms": 30_000, "visibility_timeout_ms": 3_600_000})
    head = f"POST /ojs/v1/workers/fetch HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    await writer.drain()
    return writer


async def enqueued(client: httpx.AsyncClient, queue: str) -> str:
    job = {"type": "t.gone", "args": [], "options": {"queue": queue}}
    answer = await client.post("/ojs/v1/jobs", json=job)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["job"]["id"])


async def next_job(client: httpx.AsyncClient, queue: str) -> str:
    """Fetch until a job comes; a lease of an hour cannot end meanwhile."""
    for _ in range(300):
        if jobs := await fetched(client, queue):
            return str(jobs[0]["id"])
        await asyncio.sleep(0.1)
    raise AssertionError("the job stays with the client that is gone")


@pytest.mark.parametrize("how", ["closed", "aborted"])
async def test_job_goes_past_a_client_that_left(gateway: Server, client: httpx.AsyncClient, how: str) -> None:
    queue = f"gone-{next(_numbers)}"
    writers = [await wait_for_jobs(gateway, queue) for _ in range(6)]
    await asyncio.sleep(0.5)  # the fetches wait at the matcher
    for writer in writers:
        writer.transport.abort() if how == "aborted" else writer.close()
    job = await enqueued(client, queue)
    assert await next_job(client, queue) == job
