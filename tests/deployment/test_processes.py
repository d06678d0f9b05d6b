"""The rendered manifests, each container as a process: they come up, are scraped, run a job, and survive kills."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from tests.deployment import compose_services
from tests.deployment.cluster import Cluster, cluster
from tests.deployment.image import START
from tests.deployment.manifests import WORKLOADS, Object, component, objects
from tests.deployment.pod import Pod

EXECUTOR = "mq-executor"
OTHERS = ("nats", "postgresql", "postgres", "redis", EXECUTOR)
"""The components that are not Tocsin."""


class Caller:
    """A person with the token of the Secret, who uses the API of any ready pod."""

    def __init__(self, tocsin: Cluster) -> None:
        self._tocsin = tocsin
        self._token = tocsin.objects.secrets["tocsin"]["admin-token"]

    async def call(self, method: str, path: str, body: object = None, *, token: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token or self._token}"}
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            last: httpx.TransportError | None = None
            for pod in self._tocsin.of("api"):
                try:
                    return await client.request(method, f"http://{pod.address}:8062{path}", json=body, headers=headers)
                except httpx.TransportError as error:
                    last = error
        raise AssertionError(last)

    async def run(self, job: str = "hello") -> None:
        """Trigger a job until an execution is completed; a scheduled run may cause a skip."""
        execution = await self._trigger(job)

        async def is_completed() -> bool:
            nonlocal execution
            answer = await self.call("GET", f"/v1/executions/{execution}")
            if answer.is_success and answer.json()["status"] == "skipped":
                execution = await self._trigger(job)
            return answer.is_success and answer.json()["status"] == "completed"

        await self._tocsin.until(is_completed)

    async def _trigger(self, job: str) -> str:
        triggered = await self.call("POST", f"/v1/jobs/{job}/trigger")
        assert triggered.status_code == httpx.codes.ACCEPTED, triggered.text
        return str(triggered.json()["execution_id"])


def runnable(name: str) -> list[Object]:
    """Return the objects of a manifest, without the executor if this machine has no Node.js."""
    return [
        each
        for each in objects(name)
        if "node" in START or each["kind"] not in WORKLOADS or component(each) != EXECUTOR
    ]


async def run_outside(tocsin: Cluster) -> None:
    """Run a job whose task goes to the executor in Node.js, if it runs."""
    if tocsin.of(EXECUTOR):
        await Caller(tocsin).run("functions-echo")


def command(pod: Pod, *arguments: str) -> Any:  # noqa: ANN401 - JSON
    """Return the answer of a command in the container of a pod, as `kubectl exec` would run it."""
    program = [sys.executable, "-m", "tocsin", *arguments, "--output", "json"]
    result = subprocess.run(program, env=pod.environment(), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout)


async def checked(tocsin: Cluster) -> None:
    """Check that every pod exports metrics, that no caller without a token gets in, and that the audit is clean."""
    metrics = await tocsin.scraped()
    assert metrics.keys() == {pod.name for pod in tocsin.lasting() if pod not in tocsin.of(*OTHERS)}
    for pod in tocsin.of("api"):
        assert {"hanzo_scheduler_jobs_registered", "tocsin_queue_tasks"} <= metrics[pod.name]
    for name, families in metrics.items():
        assert "process_resident_memory_bytes" in families, name
    assert (await Caller(tocsin).call("GET", "/v1/jobs", token="wrong" * 10)).status_code == httpx.codes.UNAUTHORIZED
    assert {pod.name: files for pod in tocsin.pods.values() if (files := pod.written_outside())} == {}
    [operator] = tocsin.of("jobs")
    audit = await asyncio.to_thread(command, operator, "audit")
    assert audit["violations"] == []


@pytest.mark.slow
@pytest.mark.full
async def test_manifests_come_up_and_run_a_job() -> None:
    async with cluster(runnable("tocsin.yaml")) as tocsin:
        await tocsin.ready()
        await Caller(tocsin).run()
        await run_outside(tocsin)
        await checked(tocsin)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_manifests_survive_a_kill_of_every_pod() -> None:
    async with cluster(runnable("tocsin.yaml")) as tocsin:
        await tocsin.ready()
        caller = Caller(tocsin)
        for pods in ([pod] for pod in tocsin.lasting()):
            await replaced(tocsin, pods)
            await caller.run()
        await replaced(tocsin, tocsin.lasting())  # as after a power failure
        await caller.run()
        await run_outside(tocsin)
        await checked(tocsin)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_separate_stages_survive_a_kill_of_all() -> None:
    existing = [
        each for each in objects("tocsin.yaml") if each["metadata"]["name"] in {"tocsin-nats", "tocsin-postgresql"}
    ]
    async with cluster([*existing, *runnable("stages.yaml")], with_existing_servers) as tocsin:
        await tocsin.ready()
        await Caller(tocsin).run()
        await replaced(tocsin, [pod for pod in tocsin.lasting() if pod not in tocsin.of(*OTHERS)])
        await Caller(tocsin).run()
        await run_outside(tocsin)
        await checked(tocsin)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_compose_comes_up_and_survives_a_kill() -> None:
    async with cluster(compose_services.workloads(), compose_services.prepare) as tocsin:
        await tocsin.ready()
        caller = Caller(tocsin)
        await caller.run(compose_services.JOB_NAME)
        await replaced(tocsin, tocsin.lasting())
        await caller.run(compose_services.JOB_NAME)
        await checked(tocsin)


def with_existing_servers(tocsin: Cluster) -> None:
    """Give the hosts and the database that `stages.yaml` names to the pods of another manifest."""
    for number, pod in enumerate(tocsin.of("nats")):
        tocsin.objects.hosts[f"nats-{number}.nats.mq.svc"] = pod.address
    [database] = tocsin.of("postgresql")
    secret = tocsin.objects.secrets["tocsin"]
    secret["database-url"] = f"postgresql://tocsin:{secret['postgres-password']}@{database.address}:5432/tocsin"


async def replaced(tocsin: Cluster, pods: Sequence[Pod]) -> None:
    """Kill -9 pods, and wait until all are ready again."""
    starts = [pod.starts for pod in pods]
    for pod in pods:
        pod.kill()
    await tocsin.ready()
    assert all(pod.starts > before for pod, before in zip(pods, starts, strict=True))
