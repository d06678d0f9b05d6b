"""The client that grpcio-tools generates from the proto file, in a process with the package `tocsin`."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import grpc
import pytest
from grpc_tools import protoc

from tests.grpc.conftest import PROTOS, Served
from tocsin.domain.definition import JobDefinition
from tocsin.v1 import scheduler_pb2, scheduler_pb2_grpc

JOB: Final = JobDefinition(name="nightly", function="f")

CLIENT: Final = """
import sys

import grpc
import tocsin
from tocsin.v1 import scheduler_pb2
import tocsin.v1.scheduler_pb2_grpc as generated
import tocsin.adapters.grpc.server

with grpc.insecure_channel(sys.argv[1]) as channel:
    jobs = generated.SchedulerStub(channel).ListJobs(scheduler_pb2.ListJobsRequest()).jobs
print([job.name for job in jobs], tocsin.Tocsin.__name__)
"""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the code that a user generates as grpcio's documentation says."""
    out = tmp_path_factory.mktemp("generated")
    known = Path(protoc.__file__).parent / "_proto"
    outputs = [f"--python_out={out}", f"--grpc_python_out={out}"]
    assert protoc.main(["protoc", f"-I{PROTOS}", f"-I{known}", *outputs, "tocsin/v1/scheduler.proto"]) == 0
    return out


async def test_package_has_the_client(served: Served) -> None:
    await served.world.registry.define(JOB)
    async with grpc.aio.insecure_channel(served.address) as channel:
        stub = scheduler_pb2_grpc.SchedulerStub(channel)
        answer = await stub.GetJob(scheduler_pb2.GetJobRequest(name=JOB.name))
    assert answer.name == JOB.name


async def test_generated_client_works_beside_the_package(served: Served, generated: Path) -> None:
    await served.world.registry.define(JOB)
    path = os.pathsep.join([str(generated), *sys.path])
    finished = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", CLIENT, served.address],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.stdout.strip() == f"['{JOB.name}'] Tocsin", finished.stderr
