"""The time of `/v1/health` while other clients attack the API.

    python -m benchmarks.responsiveness [--seconds 20] [--check]

The API, nats-server and each attacker are processes of their own. For each attack it prints the median, the 99th percentile and the maximum of
the time from a new connection to the whole answer. `--check` exits with 1 if a 99th percentile is above 100 ms. Other programs on the machine make
every figure larger: compare it with the figure without an attack, which comes first.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from socket import create_connection
from typing import Final

from tests.ports import free_port

from benchmarks.metrics import Metrics, percentiles
from benchmarks.servers import initialized, servers
from tocsin.settings import Settings

LIMIT_MS: Final = 100.0
"""The target of the 99th percentile."""
HOST: Final = "127.0.0.1"
ATTACKER: Final = "127.0.0.2"
"""The address of attackers: the API limits the connections of each client."""
PATIENCE_S: Final = 60.0
PAUSE_S: Final = 0.02
"""The time between two measured requests."""
ATTACKING_S: Final = 1.0
"""How long an attack runs before it is measured."""
HALF_A_HEAD: Final = b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
JOB: Final = {"name": "job", "schedule": "0 0 1 1 *", "function": "f"}
SCHEDULES: Final = ("30 2 * 3 0L", "0 12 29 2 1#5")
"""Schedules whose next times are costly: the clocks skip those of the first, and those of the second are 28 years apart."""


async def ask(port: int, method: str, path: str, body: object = None, *, source: str = ATTACKER) -> int:
    """Send a request over a new connection, and return the status of the answer.

    0: the server closed the connection.
    """
    reader, writer = await asyncio.open_connection(HOST, port, local_addr=(source, 0))
    try:
        await send(writer, method, path, body)
        head = await reader.readline()
        await reader.read()
        return int(head.split()[1]) if head else 0
    finally:
        writer.close()


async def send(writer: asyncio.StreamWriter, method: str, path: str, body: object = None) -> None:
    """Write a request."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()


async def nothing(_: int) -> None:
    """Attack nothing."""
    await asyncio.Event().wait()


async def half_sent_heads(port: int) -> None:
    """Hold 1,100 connections with half a head, again and again."""
    with ExitStack() as held:
        while True:
            for _ in range(1_100):
                half = held.enter_context(create_connection((HOST, port), PATIENCE_S, (ATTACKER, 0)))
                half.sendall(HALF_A_HEAD)
            await asyncio.sleep(0.5)
            held.close()


async def lazy_readers(port: int) -> None:
    """Hold 400 readers of events that never read, and make events."""
    with ExitStack() as held:
        for _ in range(400):
            lazy = held.enter_context(create_connection((HOST, port), PATIENCE_S, (ATTACKER, 0)))
            lazy.sendall(b"GET /v1/events?after=0.0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        while True:
            for number in range(10):
                changed = {**JOB, "description": f"{number:010}" * 1_000}
                await ask(port, "PUT", "/v1/jobs/job", changed, source="127.0.0.3")


async def calculations(port: int) -> None:
    """Repeat costly explanations, schedules of a year, and plans of 2,000 jobs."""
    month = datetime.now(UTC).month % 12 + 1
    jobs = [{**JOB, "name": f"job-{n:04}", "schedule": f"* * * * {month} *"} for n in range(20)]
    planned = [{**JOB, "name": f"planned-{n:04}", "schedule": "* * * * * *"} for n in range(2_000)]
    await ask(port, "POST", "/v1/jobs:apply", {"jobs": jobs})

    async def repeat(method: str, path: str, body: object = None) -> None:
        while True:
            await ask(port, method, path, body)

    explanations = [{"schedule": text, "timezone": "Europe/Berlin", "count": 1_000} for text in SCHEDULES]
    await asyncio.gather(
        *(repeat("POST", "/v1/explain", explanations[n % 2]) for n in range(8)),
        *(repeat("GET", "/v1/schedule?hours=8784") for _ in range(4)),
        repeat("POST", "/v1/jobs:apply", {"jobs": planned, "dry_run": True}),
    )


async def leaving_clients(port: int) -> None:
    """Send costly requests, and leave before the answers."""
    planned = [{**JOB, "name": f"planned-{n:04}", "schedule": "* * * * * *"} for n in range(2_000)]
    while True:
        for path, body in (
            ("/v1/jobs:apply", {"jobs": planned, "dry_run": True}),
            ("/v1/explain", {"schedule": SCHEDULES[1], "timezone": "Europe/Berlin", "count": 1_000}),
        ):
            _, writer = await asyncio.open_connection(HOST, port, local_addr=(ATTACKER, 0))
            await send(writer, "POST", path, body)
            await asyncio.sleep(0.05)
            writer.close()


ATTACKS: Final[Mapping[str, Callable[[int], Awaitable[None]]]] = {
    "nothing": nothing,
    "half-sent heads": half_sent_heads,
    "readers that never read": lazy_readers,
    "calculations": calculations,
    "clients that leave": leaving_clients,
}


async def measured(port: int, seconds: float) -> Metrics:
    """Return the times of requests for the health, one after the other.

    Raises:
        RuntimeError: an answer has another status than 200.
    """
    times, end = list[float](), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        status = await ask(port, "GET", "/v1/health", source=HOST)
        times.append(time.perf_counter() - began)
        if status != 200:  # noqa: PLR2004 - HTTP
            raise RuntimeError(f"/v1/health answered {status}")
        await asyncio.sleep(PAUSE_S)
    return {**percentiles(times, unit="ms", scale=1_000), "answers": len(times)}


@asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[int]:
    """Serve the API in a process of its own; yield its port."""
    port = free_port()
    variables = {"TOCSIN_DATA_DIR": str(settings.data_dir), "TOCSIN_METRICS__ENABLED": "false"}
    command = [sys.executable, "-m", "tocsin", "--nats", settings.nats.url, "serve", "--port", str(port)]
    process = subprocess.Popen(command, env={**os.environ, **variables}, stderr=subprocess.DEVNULL)  # noqa: ASYNC220, S603 - our own, and quick
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    if await ask(port, "GET", "/v1/health") == 200:  # noqa: PLR2004 - HTTP
                        break
                except OSError:
                    await asyncio.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


async def figures(seconds: float) -> dict[str, Metrics]:
    """Measure during each attack, for some seconds each."""
    found = dict[str, Metrics]()
    async with servers() as nats, initialized(nats.settings), served(nats.settings) as port:
        await ask(port, "POST", "/v1/jobs", JOB)
        for name in ATTACKS:
            command = [sys.executable, "-m", "benchmarks.responsiveness", "--attack", name, "--port", str(port)]
            attacker = subprocess.Popen(command)  # noqa: ASYNC220, S603 - our own, and quick
            try:
                await asyncio.sleep(ATTACKING_S)
                found[name] = await measured(port, seconds)
                if attacker.poll() is not None:
                    raise RuntimeError(f"the attacker of {name!r} ended")
            finally:
                attacker.kill()
                attacker.wait()
            print(_line(name, found[name]), flush=True)
    return found


def _line(name: str, metrics: Metrics) -> str:
    times = "".join(f"{metrics[f'{which}_ms']:>10.1f}" for which in ("p50", "p99", "max"))
    return f"{name:<26}{times}{metrics['answers']:>10,.0f}"


def main() -> int:
    """Read the arguments, and measure or attack; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.responsiveness")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each attack")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if a p99 is above {LIMIT_MS:g} ms")
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attack:
        asyncio.run(_attack(arguments.attack, arguments.port))
        return 0
    print(f"{'/v1/health during':<26}{'p50 ms':>10}{'p99 ms':>10}{'max ms':>10}{'answers':>10}", flush=True)
    found = asyncio.run(figures(arguments.seconds))
    return int(arguments.check and any(metrics["p99_ms"] > LIMIT_MS for metrics in found.values()))


async def _attack(name: str, port: int) -> None:
    """Attack until killed, also if the API closes connections."""
    while True:
        try:
            await ATTACKS[name](port)
        except OSError:
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
