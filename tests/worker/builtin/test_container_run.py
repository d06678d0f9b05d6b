"""Containers from their start to their end, in a double of a cluster."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.kubernetes.double import ApiServer, Refused
from tests.kubernetes.objects import Store
from tests.worker.builtin.container_given import ContainerBench
from tocsin.worker.builtin.cluster import Cluster, Refusal
from tocsin.worker.held_tasks import HeldTask
from tocsin.worker.outcome import StopReason


@pytest.fixture
async def containers(tmp_path: Path) -> AsyncIterator[ContainerBench]:
    """Return a bench with a cluster that runs nothing by itself."""
    async with ApiServer().running() as server:
        yield ContainerBench(server, tmp_path)


async def test_failure_has_exit_code_and_last_lines(containers: ContainerBench) -> None:
    containers.store.on_pod = lambda pod: containers.store.finish(pod, 4, lines=(b"reading", b"no disk"))
    failure = await containers.fail(retryable_exit_codes=[75])
    assert (failure.type, failure.retryable) == ("exit_code_4", False)
    assert failure.message.endswith(":\nreading\nno disk")
    assert failure.details == {"exit_code": 4, "reason": "Error"}


async def test_secret_in_cut_message_is_replaced(containers: ContainerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "pass-word")
    message = "x" * 1_019 + "pass-word"
    containers.store.on_pod = lambda pod: containers.store.finish(pod, 1, message=message)
    failure = await containers.fail(env={"P": "${env:DB_PASSWORD}"})
    assert "xxx" in failure.message
    assert "pass" not in failure.message


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (lambda store, pod: store.finish(pod, 137, reason="OOMKilled"), "container_oom_killed"),
        (lambda store, pod: store.evict(pod), "container_evicted"),
        (lambda store, pod: store.lose(pod, "BackoffLimitExceeded"), "container_lost"),
        (lambda store, pod: store.lose(pod, "DeadlineExceeded"), "timed_out"),
        (lambda store, _: store.release(store.created[0]), "container_job_deleted"),
    ],
)
async def test_end_by_kubernetes_has_its_own_type(
    end: Callable[[Store, str], None], kind: str, containers: ContainerBench
) -> None:
    async with containers.following() as pod:
        containers.store.run(pod)
        end(containers.store, pod)
    failure = (await containers.report()).error
    assert failure is not None
    assert (failure.type, failure.retryable) == (kind, True)


async def test_unpullable_image_fails_after_a_bound(containers: ContainerBench) -> None:
    containers.offer(start_within=0.01)
    containers.store.on_pod = lambda pod: containers.store.wait(pod, "ImagePullBackOff", "no such image")
    failure = await containers.fail()
    assert (failure.type, failure.details) == ("container_not_started", {"reason": "ImagePullBackOff"})
    assert "no such image" in failure.message
    assert not containers.store.jobs  # nothing tries further


async def test_job_without_a_pod_fails_after_the_bound(containers: ContainerBench) -> None:
    containers.offer(start_within=0.01)
    containers.store.makes_pods = False
    assert (await containers.fail()).type == "container_not_started"


async def test_unschedulable_pod_is_progress(containers: ContainerBench) -> None:
    containers.offer(start_within=0.01)
    async with containers.following() as pod:
        containers.store.unschedulable(pod, "0/3 nodes are available")
        await containers.until_progress("Unschedulable: 0/3 nodes are available")
        containers.store.finish(pod)
    assert await containers.result() == {"exit_code": 0}


async def test_second_delivery_follows_job_of_first(containers: ContainerBench) -> None:
    held = await containers.give(result="last_line")
    first = asyncio.create_task(containers.executor.run(held))
    await containers.store.until(lambda: containers.store.pods)
    held.stop(StopReason.SHUTDOWN)
    await first
    assert not containers.store.deleted
    [pod] = containers.store.pods
    second = asyncio.create_task(containers.executor.run(HeldTask(await containers.again(held.assigned))))
    containers.store.finish(pod, lines=(b"done",))
    await second
    assert await containers.result() == "done"
    assert len(containers.store.created) == 1


async def test_second_delivery_reads_a_finished_job(containers: ContainerBench) -> None:
    held = await containers.give(result="last_line")
    first = asyncio.create_task(containers.executor.run(held))
    await containers.store.until(lambda: containers.store.pods)
    held.stop(StopReason.SHUTDOWN)
    await first
    containers.store.finish(next(iter(containers.store.pods)), lines=(b"done",))
    await containers.executor.run(HeldTask(await containers.again(held.assigned)))
    assert await containers.result() == "done"
    assert len(containers.store.created) == 1


async def test_creation_without_an_answer_creates_one_job(containers: ContainerBench) -> None:
    done(containers)
    containers.server.faults, containers.server.fault_for = ["late"], "POST"
    assert await containers.execute() == {"exit_code": 0}
    assert len(containers.store.created) == 1


async def test_foreign_job_of_this_name_is_left_alone(containers: ContainerBench) -> None:
    done(containers)
    await containers.execute()
    containers.job["metadata"]["annotations"] = {}
    assert (await containers.another().fail()).type == "container_name_taken"
    third = containers.another()
    held = await third.give()
    containers.server.faults, containers.server.fault_for = ["drop"] * 5, "POST"
    running = asyncio.create_task(third.executor.run(held))
    async with asyncio.timeout(30):
        while len(containers.server.faults) == 5:  # noqa: ASYNC110 - until the creation is under way
            await asyncio.sleep(0.01)
    held.stop(StopReason.CANCELLED)
    await running
    assert not containers.store.deleted


async def test_later_attempt_waits_for_earlier_job(containers: ContainerBench) -> None:
    async with containers.following() as pod:
        containers.store.run(pod)
        containers.store.holds_deletion = True
        [name] = containers.store.jobs
        second = containers.another()
        later = asyncio.create_task(second.executor.run(await second.give(attempt=2)))
        await containers.store.until(lambda: containers.store.deleted)
        assert containers.store.created == [name]
        done(second)
        containers.store.release(name)
        await later
        assert len(containers.store.created) == 2
        assert await second.result() == {"exit_code": 0}


async def test_finished_job_of_an_earlier_attempt_stays(containers: ContainerBench) -> None:
    containers.store.on_pod = lambda pod: containers.store.finish(pod, 1)
    await containers.fail()
    await containers.another().fail(attempt=2)
    assert (len(containers.store.jobs), containers.store.deleted) == (2, [])


async def test_cancellation_deletes_the_job_and_waits(containers: ContainerBench) -> None:
    containers.store.holds_deletion = True
    held = await containers.give()
    running = asyncio.create_task(containers.executor.run(held))
    await containers.store.until(lambda: containers.store.pods)
    held.stop(StopReason.CANCELLED)
    await containers.store.until(lambda: containers.store.deleted)
    assert not running.done()
    containers.store.release(containers.store.deleted[0])
    await running
    assert await containers.reports() == []


async def test_timeout_deletes_the_job(containers: ContainerBench) -> None:
    failure = await containers.fail(timeout=1.0)
    assert failure.type == "timed_out"
    assert not containers.store.jobs


async def test_broken_log_is_continued_without_repetition(containers: ContainerBench) -> None:
    containers.server.cuts_logs = [60, 75, 10]
    lines = tuple(b"line %d" % number for number in range(20))
    async with containers.following(result="last_line") as pod:
        containers.store.run(pod)
        containers.store.logs[pod].write(*lines)
        containers.store.finish(pod)
    assert await containers.result() == "line 19"
    assert await containers.lines() == [line.decode() for line in lines]


async def test_line_cut_by_stopping_server_is_reread(containers: ContainerBench) -> None:
    containers.server.cuts_logs, containers.server.ends_cut_logs = [60], True
    async with containers.following(result="last_line") as pod:
        containers.store.run(pod)
        containers.store.logs[pod].write(b"line 0", b"line 1")
        async with asyncio.timeout(30):
            while containers.server.cuts_logs:  # noqa: ASYNC110 - until the log is followed
                await asyncio.sleep(0.01)
        containers.store.finish(pod)
    assert await containers.result() == "line 1"
    assert await containers.lines() == ["line 0", "line 1"]


async def test_clock_set_back_costs_no_line(containers: ContainerBench) -> None:
    async with containers.following(result="last_line") as pod:
        containers.store.run(pod)
        log = containers.store.logs[pod]
        log.write(b"summer", stamp="2026-10-25T02:59:59.900000000+02:00")
        log.write(b"winter", stamp="2026-10-25T02:00:00.100000000+01:00")
        log.write(b"last", stamp="2026-10-25T02:00:00.100000000+01:00")
        containers.store.finish(pod)
    assert await containers.result() == "last"
    assert await containers.lines() == ["summer", "winter", "last"]


async def test_huge_line_is_cut(containers: ContainerBench) -> None:
    containers.store.on_pod = lambda pod: containers.store.finish(pod, lines=(b"x" * 3_000_000,))
    failure = await containers.fail(result="last_line")
    assert failure.type == "invalid_result"


async def test_forbidden_log_costs_only_its_result(containers: ContainerBench) -> None:
    done(containers)
    containers.server.rights.remove("get pods/log")
    assert await containers.execute() == {"exit_code": 0}
    failure = await containers.another().fail(result="json")
    assert (failure.type, failure.retryable) == ("container_log_lost", False)


@pytest.mark.parametrize(
    "faults",
    [
        ["drop", "drop"],
        [Refused(429, "TooManyRequests", "slow down", Retry_After="0"), Refused(503, "ServiceUnavailable")],
        [Refused(500, "InternalError", "etcdserver: leader changed")],
        [Refused(409, "Conflict", "the object has been modified")],
        [Refused(401, "Unauthorized")],
    ],
)
@pytest.mark.parametrize("where", ["POST", "GET /apis", "GET /api/"])
async def test_transient_answer_is_tried_again(
    faults: list[Refused | str], where: str, containers: ContainerBench
) -> None:
    done(containers)
    containers.server.faults, containers.server.fault_for = list(faults), where
    assert await containers.execute() == {"exit_code": 0}
    assert len(containers.store.created) == 1


async def test_server_that_stays_away_is_named(containers: ContainerBench) -> None:
    containers.offer(patience=0.3)
    containers.server.faults = ["drop"] * 100
    failure = await containers.fail()
    assert (failure.type, failure.retryable) == ("kubernetes_unreachable", True)


@pytest.mark.parametrize("forbidden", ["create jobs", "get jobs", "list pods", "create secrets"])
async def test_missing_right_is_named(
    forbidden: str, containers: ContainerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "pass-word")
    containers.server.rights.remove(forbidden)
    failure = await containers.fail(env={"P": "${env:DB_PASSWORD}"})
    assert (failure.type, failure.retryable) == ("kubernetes_status_403", True)
    assert f"cannot {forbidden}" in failure.message
    assert "pass-word" not in failure.message


async def test_role_of_the_example_has_no_unused_right(
    containers: ContainerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "pass-word")
    async with containers.following(env={"P": "${env:DB_PASSWORD}"}) as pod:
        containers.store.run(pod)
        await containers.store.until(lambda: "watch pods" in containers.server.used)
        later = containers.another()
        done(later)
        assert await later.execute(attempt=2) == {"exit_code": 0}
    assert containers.server.used == containers.server.rights


async def test_refused_object_is_not_tried_again(containers: ContainerBench) -> None:
    containers.server.faults = [Refused(422, "Invalid", "spec.template.spec: Invalid value")]
    failure = await containers.fail()
    assert (failure.type, failure.retryable) == ("kubernetes_status_422", False)


async def test_closed_and_expired_watches_lose_no_end(containers: ContainerBench) -> None:
    containers.server.closes_watches = True
    async with containers.following() as pod:
        containers.store.run(pod)
        containers.server.faults = [Refused(410, "Expired", "too old resource version")]
        containers.server.fault_for = "/pods"
        containers.store.finish(pod)
    failure = (await containers.report()).error
    assert failure is None or failure.type == "kubernetes_status_410"


async def test_server_without_a_known_authority_is_refused(containers: ContainerBench, tmp_path: Path) -> None:
    (folder := tmp_path / "other").mkdir()
    other = ApiServer()
    other.port = containers.server.port
    containers.offer(kubeconfig=str(other.kubeconfig(folder)))
    failure = await containers.fail()
    assert failure.type == "kubernetes_unreachable"
    assert "certificate" in failure.message.lower()


async def test_unverified_tls_is_refused(containers: ContainerBench, tmp_path: Path) -> None:
    (folder := tmp_path / "other").mkdir()
    containers.offer(kubeconfig=str(containers.server.kubeconfig(folder, verify=False)))
    assert (await containers.fail()).type == "kubernetes_not_configured"


async def test_fault_in_kubeconfig_repeats_no_token(containers: ContainerBench, tmp_path: Path) -> None:
    (path := tmp_path / "broken").write_text("users: [{name: a, user: {token: @hunter2}}]")
    containers.offer(kubeconfig=str(path))
    failure = await containers.fail()
    assert failure.type == "kubernetes_not_configured"
    assert "line 1, column 33" in failure.message
    assert "hunter2" not in failure.message


async def test_double_refuses_a_body_outside_the_schema(containers: ContainerBench) -> None:
    """Prove that the double compares bodies with the published schema."""
    async with Cluster(containers.rules) as cluster:
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": {"backofLimit": 0}}
        with pytest.raises(Refusal) as raised:
            await cluster.create("/apis/batch/v1/namespaces/batch/jobs", body)
    assert raised.value.status == 422
    assert "backofLimit" in str(raised.value)


@pytest.mark.parametrize("query", [{"labelselector": "a=b"}, {"limit": "all"}, {"watch": "1"}])
async def test_double_refuses_a_query_outside_the_schema(containers: ContainerBench, query: dict[str, str]) -> None:
    """A server ignores an unknown parameter, and lists the objects of all jobs."""
    async with Cluster(containers.rules) as cluster:
        with pytest.raises(Refusal) as raised:
            await cluster.get("/api/v1/namespaces/batch/pods", **query)
    assert raised.value.status == 400
    assert next(iter(query)) in str(raised.value)


def done(containers: ContainerBench) -> None:
    containers.store.on_pod = containers.store.finish
