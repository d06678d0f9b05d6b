"""The gRPC service of an installation in memory, and messages compiled afresh from the proto file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_tools import protoc

from tests.history_files import history_url
from tests.http.conftest import World
from tocsin.adapters.grpc.server import serving_grpc
from tocsin.adapters.sql.history import open_history
from tocsin.settings import Grpc

PROTOS = Path(__file__).parents[2] / "schemas" / "proto"
LIMITS = Grpc(max_streams_per_caller=2, max_message_bytes=65_536)


@dataclass
class Served:
    """A world and the address of its service."""

    world: World
    address: str
    compiled: Path

    def stub(self, channel: Any) -> Any:  # noqa: ANN401 - grpc has no types
        """A client that is generated from the proto file, with messages in `pb`."""
        return Stub(channel, self.compiled)


class Stub:
    """The methods of the service by name, each with the messages of the compiled proto file."""

    def __init__(self, channel: Any, compiled: Path) -> None:  # noqa: ANN401 - likewise
        from google.protobuf import descriptor_pb2  # noqa: PLC0415

        files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        service = pool.FindServiceByName("tocsin.v1.Scheduler")
        self.pb = ModuleType("messages")
        for method in service.methods:
            request, answer = (
                message_factory.GetMessageClass(kind) for kind in (method.input_type, method.output_type)
            )
            setattr(self.pb, method.input_type.name, request)
            make = channel.unary_stream if method.server_streaming else channel.unary_unary
            call = make(
                f"/{service.full_name}/{method.name}",
                request_serializer=request.SerializeToString,
                response_deserializer=answer.FromString,
            )
            setattr(self, method.name, call)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The proto file, compiled by grpcio-tools."""
    out = tmp_path_factory.mktemp("proto") / "scheduler.binpb"
    known = Path(protoc.__file__).parent / "_proto"
    arguments = [f"-I{PROTOS}", f"-I{known}", "--include_imports", f"--descriptor_set_out={out}"]
    assert protoc.main(["protoc", *arguments, "tocsin/v1/scheduler.proto"]) == 0
    return out


@asynccontextmanager
async def serving_world(tmp_path: Path, compiled: Path, settings: Grpc) -> AsyncIterator[Served]:
    """The service of a new world."""
    async with open_history(history_url(tmp_path)) as history:
        world = World(tmp_path, history)
        app = world.app()
        async with serving_grpc(app, world.parts(), "127.0.0.1", settings, 0) as address:
            yield Served(world, address, compiled)
            app.state.closing.set()


@pytest.fixture
async def served(tmp_path: Path, compiled: Path) -> AsyncIterator[Served]:
    async with serving_world(tmp_path, compiled, LIMITS) as served:
        yield served


@pytest.fixture
async def stub(served: Served) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(served.address) as channel:
        yield served.stub(channel)
