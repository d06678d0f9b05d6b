"""The gRPC service: its calls, its refusals and its limits."""

import asyncio
import math
from datetime import UTC
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.domain.given import ID, JOB, NOON, admitted, started
from tests.grpc.conftest import LIMITS, Served, Stub
from tests.http.test_job_runs import ran
from tests.ports import free_port
from tests.system.running import DEADLINE, running
from tocsin.adapters.grpc import server
from tocsin.adapters.grpc.server import SERVICE
from tocsin.adapters.http.sockets import PortInUseError
from tocsin.bootstrap.api_server import serving
from tocsin.domain.access import Role
from tocsin.domain.events import Failed, Failure, Trigger
from tocsin.services.operations import event_waiter
from tocsin.subjects import Stream

STATUS = grpc.StatusCode
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def refusal(call: Any, request: Any, **options: Any) -> tuple[Any, str | None]:  # noqa: ANN401 - grpc has no types
    """The status and the stable code of a refused call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(request, **options)
    return caught.value.code(), dict(caught.value.trailing_metadata() or ()).get("tocsin-code")


def bearer(token: str) -> tuple[tuple[str, str]]:
    return (("authorization", f"Bearer {token}"),)


async def test_jobs_are_listed_switched_and_triggered(stub: Any, served: Served) -> None:  # noqa: ANN401
    for name in ("a", "b", "c"):
        await served.world.given(name=name, tags=["x"])
    first = await stub.ListJobs(stub.pb.ListJobsRequest(page_size=2))
    rest = await stub.ListJobs(stub.pb.ListJobsRequest(page_token=first.next_page_token))
    assert [job.name for job in (*first.jobs, *rest.jobs)] == ["a", "b", "c"]
    assert rest.next_page_token == ""
    switch = stub.pb.SwitchJobRequest(name="a", reason="wärme")
    assert (await stub.PauseJob(switch)).changed
    job = await stub.GetJob(stub.pb.GetJobRequest(name="a"))
    assert (job.paused, job.state, job.definition["function"]) == (True, "paused", "f")
    assert (await stub.ResumeJob(switch)).changed
    assert not (await stub.ResumeJob(switch)).changed
    request = stub.pb.TriggerJobRequest(name="a", reason="now", idempotency_key="k", priority=3)
    request.input.update({"day": 1, "list": [1, 2.5, None]})
    trace = (("traceparent", TRACEPARENT),)
    answers = [await stub.TriggerJob(request, metadata=metadata) for metadata in (trace, ())]
    assert answers[0].execution_id == answers[1].execution_id
    stored = (await served.world.facts("trigger.a.>"))[0].message
    assert isinstance(stored, Trigger)
    assert (stored.input, stored.priority, stored.reason) == ({"day": 1, "list": [1, 2.5, None]}, 3, "now")
    assert stored.traceparent == TRACEPARENT
    assert stored.by is not None
    assert stored.by.source == "127.0.0.1"


async def test_requested_execution_is_not_unknown(
    stub: Any,  # noqa: ANN401
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_waiter, "POLL_PAUSES_S", (0.0,))  # no planner runs here
    await served.world.given(name="a")
    execution_id = (await stub.TriggerJob(stub.pb.TriggerJobRequest(name="a"))).execution_id
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.CancelExecution(stub.pb.CancelExecutionRequest(execution_id=execution_id))
    codes = dict(caught.value.trailing_metadata() or ())
    assert (caught.value.code(), codes["tocsin-code"]) == (grpc.StatusCode.FAILED_PRECONDITION, "not-possible")


async def test_status_has_runs_and_counts(stub: Any, served: Served) -> None:  # noqa: ANN401
    await served.world.given(name=JOB)
    error = Failure(type="Boom", message="no")
    failed = Failed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step="main", attempt=1, error=error)
    sequence = 0
    for fact in (admitted(), started(), failed):
        sequence = await served.world.log.append(fact, expect=sequence)
    facts = await served.world.log.read("execution.>")
    await served.world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)
    status = await stub.GetSchedulerStatus(stub.pb.GetSchedulerStatusRequest())
    assert status.scheduler_running
    [job] = status.jobs
    assert MessageToDict(job, preserving_proto_field_name=True) == {
        "job_name": JOB,
        "cron_expr": "0 3 * * *",
        "last_run": job.last_run.ToJsonString(),
        "last_result": "failed",
        "next_run": job.next_run.ToJsonString(),
        "run_count": "1",
        "error_count": "1",
    }
    assert job.last_run.ToDatetime(UTC) == facts[-1].time
    executions = await stub.ListExecutions(stub.pb.ListExecutionsRequest(job=JOB, status="failed"))
    assert [(row.execution_id, row.error) for row in executions.executions] == [(ID, "Boom: no")]


async def test_status_shows_what_runs_and_what_is_paused(stub: Any, served: Served) -> None:  # noqa: ANN401
    await served.world.given(name=JOB)
    for number, end in enumerate(("skipped", "running", "completed")):
        await ran(served.world, number, end, job=JOB)
    await stub.PauseJob(stub.pb.SwitchJobRequest(name=JOB))
    served.world.lease_s = -1
    status = await stub.GetSchedulerStatus(stub.pb.GetSchedulerStatusRequest())
    [job] = status.jobs
    assert not status.scheduler_running
    assert (job.run_count, job.error_count, job.skip_count) == (2, 0, 1)
    assert (job.is_running, job.is_paused) == (True, True)
    assert (job.last_result, job.last_duration_ms) == ("completed", 1_000)


async def test_execution_is_cancelled_once(stub: Any, served: Served) -> None:  # noqa: ANN401
    await served.world.log.append(admitted(), expect=0)
    request = stub.pb.CancelExecutionRequest(execution_id=ID, reason="enough")
    answer = await stub.CancelExecution(request)
    assert (answer.job, answer.status, answer.changed) == (JOB, "cancelled", True)
    assert not (await stub.CancelExecution(request)).changed


async def test_refusals_have_status_and_code(stub: Any) -> None:  # noqa: ANN401
    pb = stub.pb
    assert await refusal(stub.GetJob, pb.GetJobRequest(name="x")) == (STATUS.NOT_FOUND, "not-found")
    assert await refusal(stub.GetJob, pb.GetJobRequest(name="a/../b")) == (STATUS.NOT_FOUND, "not-found")
    for name in ("a/why", "x" * 60_000):  # not another path of the API
        assert await refusal(stub.GetJob, pb.GetJobRequest(name=name)) == (STATUS.NOT_FOUND, "not-found")
        assert await refusal(stub.PauseJob, pb.SwitchJobRequest(name=name)) == (STATUS.NOT_FOUND, "not-found")
    long = pb.ListJobsRequest(page_token="é" * 20_000)
    assert await refusal(stub.ListJobs, long) == (STATUS.INVALID_ARGUMENT, "invalid-request")
    for name in (".", ".."):
        code = (STATUS.INVALID_ARGUMENT, "invalid-request")
        assert await refusal(stub.GetJob, pb.GetJobRequest(name=name)) == code
        assert await refusal(stub.TriggerJob, pb.TriggerJobRequest(name=name)) == code
    for number in (math.nan, math.inf):
        unknown = pb.TriggerJobRequest(name="x")
        unknown.input["n"] = number
        assert await refusal(stub.TriggerJob, unknown) == (STATUS.INVALID_ARGUMENT, "invalid-request")
    assert (await refusal(stub.ListJobs, pb.ListJobsRequest(page_size=4_000_000_000)))[0] == STATUS.INVALID_ARGUMENT
    assert (await refusal(stub.ListExecutions, pb.ListExecutionsRequest(status="odd")))[0] == STATUS.INVALID_ARGUMENT
    huge = pb.TriggerJobRequest(name="x", reason="x" * LIMITS.max_message_bytes)
    assert (await refusal(stub.TriggerJob, huge))[0] == STATUS.RESOURCE_EXHAUSTED
    assert (await refusal(stub.ListJobs, pb.ListJobsRequest(), timeout=-1))[0] == STATUS.DEADLINE_EXCEEDED


async def test_tokens_and_visibility_are_those_of_http(stub: Any, served: Served) -> None:  # noqa: ANN401
    await served.world.given(name="open")
    await served.world.given(name="hidden", viewers=["token:ada"])
    viewer = bearer(await served.world.token("eve", Role.VIEWER))
    pb = stub.pb
    listed = await stub.ListJobs(pb.ListJobsRequest(), metadata=viewer)
    status = await stub.GetSchedulerStatus(pb.GetSchedulerStatusRequest(), metadata=viewer)
    assert [job.name for job in listed.jobs] == ["open"]
    assert [job.job_name for job in status.jobs] == ["open"]
    assert await refusal(stub.ListJobs, pb.ListJobsRequest()) == (STATUS.UNAUTHENTICATED, "unauthenticated")
    wrong = bearer("wrong")
    assert await refusal(stub.ListJobs, pb.ListJobsRequest(), metadata=wrong) == (
        STATUS.UNAUTHENTICATED,
        "unauthenticated",
    )
    pause = pb.SwitchJobRequest(name="open")
    assert await refusal(stub.PauseJob, pause, metadata=viewer) == (STATUS.PERMISSION_DENIED, "forbidden")
    hidden = pb.GetJobRequest(name="hidden")
    assert await refusal(stub.GetJob, hidden, metadata=viewer) == (STATUS.NOT_FOUND, "not-found")


@pytest.mark.parametrize("is_protected", [True, False])
async def test_call_with_two_tokens_is_refused(
    stub: Any,  # noqa: ANN401
    served: Served,
    *,
    is_protected: bool,
) -> None:
    await served.world.given(name=JOB)
    await served.world.log.append(admitted(), expect=0)
    valid = bearer(await served.world.token("ada", Role.ADMIN)) if is_protected else bearer("none is known")
    transport = httpx.ASGITransport(served.world.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for metadata in (valid * 2, valid + bearer("wrong"), bearer("wrong") + valid, bearer("") + valid):
            answer = await client.get("/v1/jobs", headers=[*metadata])
            for name, request in requests_of(stub.pb).items():
                call = getattr(stub, name)(request, metadata=metadata)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await (call.read() if name == "WatchEvents" else call)
                assert caught.value.code() == STATUS.UNAUTHENTICATED
                assert answer.json()["type"].endswith(dict(caught.value.trailing_metadata() or ())["tocsin-code"])
                assert caught.value.details() == answer.json()["detail"]


def requests_of(pb: Any) -> dict[str, Any]:  # noqa: ANN401 - messages
    """A request of each method on the job `JOB`, for which an execution is open."""
    switch = pb.SwitchJobRequest(name=JOB)
    return {
        "GetSchedulerStatus": pb.GetSchedulerStatusRequest(),
        "ListJobs": pb.ListJobsRequest(),
        "GetJob": pb.GetJobRequest(name=JOB),
        "TriggerJob": pb.TriggerJobRequest(name=JOB),
        "PauseJob": switch,
        "ResumeJob": switch,
        "CancelExecution": pb.CancelExecutionRequest(execution_id=ID),
        "ListExecutions": pb.ListExecutionsRequest(),
        "WatchEvents": pb.WatchEventsRequest(after="0.0"),
    }


async def test_every_method_checks_the_role(stub: Any, served: Served) -> None:  # noqa: ANN401
    await served.world.given(name=JOB)
    await served.world.log.append(admitted(), expect=0)
    roles = (Role.ADMIN, Role.OPERATOR, Role.VIEWER, Role.WORKER)
    callers = {role.value: bearer(await served.world.token(role.value, role)) for role in roles}
    callers |= {"none": (), "wrong": bearer("wrong")}  # type: ignore[dict-item]
    requests = requests_of(stub.pb)
    assert requests.keys() == {method.name for method in SERVICE.methods}
    may = dict.fromkeys(callers, frozenset[str]())
    for name, request in requests.items():
        for caller, metadata in callers.items():
            call = getattr(stub, name)(request, metadata=metadata)
            try:
                await (call.read() if name == "WatchEvents" else call)
            except grpc.aio.AioRpcError as error:
                is_stranger = caller in {"none", "wrong"}
                assert error.code() == (STATUS.UNAUTHENTICATED if is_stranger else STATUS.PERMISSION_DENIED)  # noqa: PT017
            else:
                may[caller] |= {name}
                call.cancel()
    reading = {"GetSchedulerStatus", "ListJobs", "GetJob", "ListExecutions", "WatchEvents"}
    assert may == {
        Role.ADMIN.value: requests.keys(),
        Role.OPERATOR.value: reading | {"TriggerJob", "CancelExecution"},
        Role.VIEWER.value: reading,
        Role.WORKER.value: frozenset(),
        "none": frozenset(),
        "wrong": frozenset(),
    }


async def test_events_are_watched_and_continued(stub: Any, served: Served) -> None:  # noqa: ANN401
    pb = stub.pb
    async with asyncio.timeout(DEADLINE):
        call = stub.WatchEvents(pb.WatchEventsRequest(job=JOB))
        await call.initial_metadata()
        await served.world.given(name=JOB)
        event = await call.read()
        assert (event.type, event.event["job"]) == ("defined", JOB)
        call.cancel()
        await served.world.log.append(admitted(), expect=0)
        again = stub.WatchEvents(pb.WatchEventsRequest(job=JOB, after=event.id))
        assert (await again.read()).type == "admitted"
        again.cancel()


async def test_streams_of_a_caller_are_limited(stub: Any, served: Served) -> None:  # noqa: ANN401
    pb = stub.pb
    async with asyncio.timeout(DEADLINE):
        calls = [stub.WatchEvents(pb.WatchEventsRequest(after="0.0")) for _ in range(LIMITS.max_streams_per_caller)]
        await served.world.given(name=JOB)
        assert [(await call.read()).type for call in calls] == ["defined", "defined"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.WatchEvents(pb.WatchEventsRequest()).read()
        assert caught.value.code() == STATUS.RESOURCE_EXHAUSTED
        for call in calls:
            call.cancel()


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_MS", 200)
    monkeypatch.setattr(server, "PING_TIMEOUT_MS", 3_000)  # a loaded machine answers late


@pytest.mark.usefixtures("quick_pings")
async def test_caller_whose_network_is_lost_leaves_its_places(served: Served, stub: Any) -> None:  # noqa: ANN401
    is_lost, is_over, is_closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (data := await reader.read(65_536)) and not is_lost.is_set():
            writer.write(data)
        await is_over.wait()  # neither end learns of it

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = served.address.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        for end in (writer, far_writer):
            end.close()
        is_closed.set()

    await served.world.given(name=JOB)
    request = stub.pb.WatchEventsRequest(after="0.0")
    network = await asyncio.start_server(relay, "127.0.0.1", 0)
    host, port = network.sockets[0].getsockname()
    async with asyncio.timeout(DEADLINE), grpc.aio.insecure_channel(f"{host}:{port}") as channel:
        far = served.stub(channel)
        calls = [far.WatchEvents(request) for _ in range(LIMITS.max_streams_per_caller)]
        assert [(await call.read()).type for call in calls] == ["defined", "defined"]
        is_lost.set()
        while (await refused_stream(stub.WatchEvents(request))) == STATUS.RESOURCE_EXHAUSTED:
            pass
    is_over.set()
    await is_closed.wait()
    network.close()


async def refused_stream(call: Any) -> Any:  # noqa: ANN401 - grpc has no types
    """The status of a refused stream; None: it has an event."""
    try:
        assert (await call.read()).type == "defined"
    except grpc.aio.AioRpcError as error:
        return error.code()
    call.cancel()
    return None


async def test_health_and_reflection_answer(served: Served) -> None:
    async with grpc.aio.insecure_channel(served.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE.full_name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        listing = reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        names = [service.name async for answer in listing for service in answer.list_services_response.service]
        assert SERVICE.full_name in names

    def described() -> set[str]:
        with grpc.insecure_channel(served.address) as blocking:
            pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(blocking))
            return {method.name for method in pool.FindServiceByName(SERVICE.full_name).methods}

    assert await asyncio.to_thread(described) == {method.name for method in SERVICE.methods}


async def test_setting_serves_it_beside_the_api(nats_url: str, tmp_path: Path, compiled: Path) -> None:
    port = free_port()
    more: dict[str, Any] = {"server": {"port": 0}, "metrics": {"enabled": False}, "grpc": {"port": port}}
    async with running(nats_url, tmp_path, stages=("registrar", "ticker", "recorder"), **more) as tocsin:
        await tocsin.apply({"name": JOB, "function": "f"})
        async with (
            serving(tocsin.installation),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            stub: Any = Stub(channel, compiled)
            status = await stub.GetSchedulerStatus(stub.pb.GetSchedulerStatusRequest())
            assert [job.job_name for job in status.jobs] == [JOB]
            with pytest.raises(PortInUseError, match="grpc"):
                async with serving(tocsin.installation):
                    pass
