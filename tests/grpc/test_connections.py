"""Connections to the gRPC service: TLS, certificates of callers, their number, and a client in JavaScript."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.grpc.conftest import Stub, serving_world
from tests.security.test_tls import Authority
from tests.system.running import DEADLINE
from tocsin.adapters.grpc import server
from tocsin.domain.access import Role
from tocsin.settings import Grpc, GrpcTls, SettingsError

JAVASCRIPT = Path(__file__).parent / "javascript"
HOST = "127.0.0.1"


def tls_of(authority: Authority, **more: Any) -> GrpcTls:  # noqa: ANN401 - fields of the settings
    cert, key = authority.issue(HOST)
    return GrpcTls(cert=cert, key=key, **more)


async def is_served(address: str, credentials: Any) -> bool:  # noqa: ANN401 - grpc has no types
    """Whether the service answers a new connection."""
    async with grpc.aio.secure_channel(address, credentials) as channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        except grpc.aio.AioRpcError as error:
            return bool(error.code() != grpc.StatusCode.UNAVAILABLE)
        return True


def trusting(authority: Authority, pair: tuple[Path, Path] | None = None) -> Any:  # noqa: ANN401 - likewise
    cert, key = (None, None) if pair is None else (path.read_bytes() for path in pair)
    return grpc.ssl_channel_credentials(authority.file.read_bytes(), key, cert)


async def test_calls_over_tls_need_its_authority(tmp_path: Path, compiled: Path) -> None:
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    async with serving_world(tmp_path, compiled, Grpc(tls=tls_of(ours))) as served:
        token = await served.world.token("eve", Role.VIEWER)
        async with grpc.aio.secure_channel(served.address, trusting(ours)) as channel:
            stub: Any = Stub(channel, compiled)
            metadata = (("authorization", f"Bearer {token}"),)
            assert not (await stub.ListJobs(stub.pb.ListJobsRequest(), metadata=metadata)).jobs
        assert not await is_served(served.address, trusting(other))


async def test_callers_need_a_certificate_of_their_authority(tmp_path: Path, compiled: Path) -> None:
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    settings = Grpc(tls=tls_of(ours, client_ca=ours.file))
    async with serving_world(tmp_path, compiled, settings) as served:
        assert await is_served(served.address, trusting(ours, ours.issue("caller")))
        assert not await is_served(served.address, trusting(ours, other.issue("caller")))
        assert not await is_served(served.address, trusting(ours))


async def test_new_files_serve_new_connections(tmp_path: Path, compiled: Path) -> None:
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    tls = tls_of(first)
    assert tls.cert is not None
    assert tls.key is not None
    async with serving_world(tmp_path, compiled, Grpc(tls=tls)) as served:
        tls.cert.write_text("damaged")
        assert await is_served(served.address, trusting(first))
        cert, key = second.issue(HOST)
        shutil.copy(key, tls.key)
        shutil.copy(cert, tls.cert)
        assert await is_served(served.address, trusting(second))
        assert not await is_served(served.address, trusting(first))


@pytest.mark.parametrize(
    ("files", "field", "code"),
    [
        ({"cert": "127.0.0.1.pem"}, "grpc.tls.key", "required"),
        ({"client_ca": "ca.pem"}, "grpc.tls.cert", "required"),
        ({"cert": "127.0.0.1.pem", "key": "other.key"}, "grpc.tls.key", "key-mismatch"),
        ({"cert": "absent.pem", "key": "127.0.0.1.key"}, "grpc.tls.cert", "file-not-found"),
        (
            {"cert": "127.0.0.1.pem", "key": "127.0.0.1.key", "client_ca": "other.key"},
            "grpc.tls.client_ca",
            "certificate-missing",
        ),
    ],
)
async def test_wrong_files_are_named(
    tmp_path: Path, compiled: Path, files: dict[str, str], field: str, code: str
) -> None:
    authority = Authority(tmp_path)
    for name in (HOST, "other"):
        authority.issue(name)
    settings = Grpc(tls=GrpcTls.model_validate({name: tmp_path / file for name, file in files.items()}))
    with pytest.raises(SettingsError) as caught:
        async with serving_world(tmp_path, compiled, settings):
            pass
    [problem] = caught.value.problems
    assert (problem.field, problem.code) == (field, code)


async def connect(address: str, stack: AsyncExitStack) -> bool:
    """Open a connection that stays open, and return whether the server begins to speak."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    stack.push_async_callback(writer.wait_closed)
    stack.callback(writer.close)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
    try:
        return bool(await reader.read(9))
    except ConnectionError:
        return False


async def test_connections_have_a_limit(tmp_path: Path, compiled: Path) -> None:
    async with asyncio.timeout(DEADLINE), serving_world(tmp_path, compiled, Grpc(max_connections=3)) as served:
        for _ in range(2):  # places become free
            async with AsyncExitStack() as stack:
                while not await connect(served.address, stack):
                    await stack.aclose()
                assert [await connect(served.address, stack) for _ in range(4)] == [True] * 2 + [False] * 2


Open = Callable[[Any], Awaitable[Any]]


async def watch_health(channel: Any) -> Any:  # noqa: ANN401 - likewise
    call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    await call.read()
    return call


async def reflect(channel: Any) -> Any:  # noqa: ANN401 - likewise
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    await call.read()
    return call


async def send_nothing(channel: Any) -> Any:  # noqa: ANN401 - likewise
    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    method = channel.stream_stream("/tocsin.v1.Scheduler/ListJobs")
    call = method(nothing())
    await call.wait_for_connection()
    return call


async def test_silent_calls_end_no_watch(tmp_path: Path, compiled: Path) -> None:
    async with (
        asyncio.timeout(DEADLINE),
        serving_world(tmp_path, compiled, Grpc(max_calls=8)) as served,
        grpc.aio.insecure_channel(served.address) as balancer,
        grpc.aio.insecure_channel(served.address) as strangers,
    ):
        watch = await watch_health(balancer)
        silent = [await send_nothing(strangers) for _ in range(5)]
        assert await silent[0].code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not watch.done()
        for call in (watch, *silent):
            call.cancel()


@pytest.mark.parametrize("open_call", [watch_health, reflect, send_nothing])
async def test_strangers_leave_places_for_others(tmp_path: Path, compiled: Path, open_call: Open) -> None:
    """A new call of them takes the place of their oldest."""
    places = 2  # of eight
    async with (
        asyncio.timeout(DEADLINE),
        serving_world(tmp_path, compiled, Grpc(max_calls=8)) as served,
        grpc.aio.insecure_channel(served.address) as strangers,
        grpc.aio.insecure_channel(served.address) as channel,
    ):
        token = await served.world.token("eve", Role.VIEWER)
        calls = list[Any]()
        for _ in range(20):
            calls.append(await open_call(strangers))
            while sum(not call.done() for call in calls) > places:  # noqa: ASYNC110 - calls of grpc have no event
                await asyncio.sleep(0.01)
        stub: Any = Stub(channel, compiled)
        metadata = (("authorization", f"Bearer {token}"),)
        assert not (await stub.ListJobs(stub.pb.ListJobsRequest(), metadata=metadata)).jobs
        assert await calls[0].code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not calls[-1].done()
        for call in calls:
            call.cancel()


async def test_request_has_to_arrive_in_time(tmp_path: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.1)
    async with (
        asyncio.timeout(DEADLINE),
        serving_world(tmp_path, compiled, Grpc()) as served,
        grpc.aio.insecure_channel(served.address) as channel,
    ):
        call = await send_nothing(channel)
        assert await call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED

        async def none() -> AsyncIterator[bytes]:
            for _ in ():
                yield b""

        empty = channel.stream_stream("/tocsin.v1.Scheduler/ListJobs")(none())
        assert await empty.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_javascript_calls_the_service(tmp_path: Path, compiled: Path) -> None:
    node = shutil.which("node")
    if node is None or not (JAVASCRIPT / "node_modules").is_dir():
        pytest.skip("needs Node, and `npm ci --prefix tests/grpc/javascript`")
    authority = Authority(tmp_path / "ca")
    async with serving_world(tmp_path, compiled, Grpc(tls=tls_of(authority))) as served:
        await served.world.given(name="nightly")
        token = await served.world.token("ada", Role.OPERATOR)
        seen = await output(node, "client.js", served.address, token, str(authority.file))
        stored = (await served.world.facts("trigger.nightly.>"))[0].message
    assert getattr(stored, "input") == {"day": "2026-11-26", "limit": 3}  # noqa: B009 - a trigger
    assert seen.pop("execution_id")
    assert seen == {
        "jobs": ["nightly"],
        "event": "defined",
        "unknown": ["NOT_FOUND", "not-found"],
        "stranger": ["UNAUTHENTICATED", "unauthenticated"],
        "untrusted": ["UNAVAILABLE"],
    }


async def output(program: str, *arguments: str) -> dict[str, Any]:
    """The output of a program, read as JSON."""
    process = await asyncio.create_subprocess_exec(program, *arguments, cwd=JAVASCRIPT, stdout=asyncio.subprocess.PIPE)
    try:
        written, _ = await asyncio.wait_for(process.communicate(), DEADLINE)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    answer: dict[str, Any] = json.loads(written)
    return answer
