"""A new version of the manifests or of compose replaces every process of Tocsin under load.

A job runs each second, and a long task runs.
"""

import asyncio
from collections.abc import Sequence
from copy import deepcopy
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import pytest
import yaml

from tests.deployment import compose_services
from tests.deployment.cluster import Cluster, cluster
from tests.deployment.manifests import Object, component, container, of_kind
from tests.deployment.test_processes import EXECUTOR, Caller, checked, runnable

ROLLED: Final = ("api", "scheduler", "worker-example")
TICK: Final = {
    "name": "tick",
    "schedule": "* * * * * *",
    "function": "hello",
    "input": {"name": "each second"},
    "overlap_policy": "allow",
    "catch_up": "all",
}
LONG: Final = {"name": "long", "function": "long", "overlap_policy": "allow"}
LONG_S: Final = 15
COMPOSE_JOBS: Final = (
    {**TICK, "function": "hanzo/llm-gateway/health-probe", "input": {}},
    {**LONG, "function": "demo/slow-report", "input": {"seconds": LONG_S}},
)
HANDLER: Final = f"""

import asyncio


@worker.task("long")
async def long(context: Context) -> None:
    await asyncio.sleep({LONG_S})
"""


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_roll_to_new_version_misses_and_repeats_nothing() -> None:
    first = with_jobs(runnable("tocsin.yaml"))
    async with cluster(first) as tocsin:
        await tocsin.ready()
        caller = Caller(tocsin)
        old = tocsin.of(*ROLLED)
        await tocsin.until(lambda: has_run(caller, "tick", 3))
        long = [(await caller.call("POST", "/v1/jobs/long/trigger")).json()["execution_id"] for _ in range(4)]
        await tocsin.until(lambda: have_status(caller, long, "running"))

        await tocsin.roll(next_version(first))

        assert {pod.name for pod in tocsin.terminated} == {pod.name for pod in old}
        assert {pod.container["image"] for pod in tocsin.of(*ROLLED)} == {"tocsin:next"}
        await rolled(tocsin, caller, long)
        await caller.run("hello")
        await checked(tocsin)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_compose_rolls_to_new_version() -> None:
    first = compose_services.workloads()
    async with cluster(first, compose_services.prepare) as tocsin:
        await tocsin.ready()
        caller = Caller(tocsin)
        for job in COMPOSE_JOBS:
            assert (await caller.call("POST", "/v1/jobs", job)).is_success
        await tocsin.until(lambda: has_run(caller, "tick", 3))
        long = [(await caller.call("POST", "/v1/jobs/long/trigger")).json()["execution_id"] for _ in range(4)]
        await tocsin.until(lambda: have_status(caller, long, "running"))
        old = [pod for pod in tocsin.lasting() if pod.container["image"] == compose_services.OWN]
        starts = {pod.name: pod.starts for pod in old}

        await tocsin.roll(compose_services.next_version(first), surges=False)

        assert {pod.container["image"] for pod in old} == {"tocsin:next"}
        assert all(pod.starts > starts[pod.name] for pod in old)
        await rolled(tocsin, caller, long)
        await caller.run(compose_services.JOB_NAME)
        await checked(tocsin)


async def rolled(tocsin: Cluster, caller: Caller, long: Sequence[str]) -> None:
    """Check that the long tasks ran once, and that a tick ran in each second."""
    await tocsin.until(lambda: have_status(caller, long, "completed"))
    for execution in long:
        found = (await caller.call("GET", f"/v1/executions/{execution}")).json()
        assert (found["attempt"], len(found["attempts"])) == (1, 1), found
    ticks = len(await runs(caller, "tick"))
    await tocsin.until(lambda: has_run(caller, "tick", ticks + 3))
    assert (await caller.call("DELETE", "/v1/jobs/tick")).is_success
    await tocsin.until(lambda: all_ended(caller, "tick"))
    instants = sorted(datetime.fromisoformat(each["scheduled_time"]) for each in await runs(caller, "tick"))
    assert {after - before for before, after in pairwise(instants)} == {timedelta(seconds=1)}
    assert {each["status"] for each in await runs(caller, "tick")} == {"completed"}


def with_jobs(documents: Sequence[Object]) -> list[Object]:
    """Return manifests whose ConfigMaps also have the jobs and the handler of this test."""
    changed = deepcopy([*documents])
    data = {document["metadata"]["name"]: document["data"] for document in of_kind(changed, "ConfigMap")}
    jobs = yaml.safe_load(data["tocsin-jobs"]["hello.yaml"])
    data["tocsin-jobs"]["hello.yaml"] = yaml.safe_dump({"jobs": [*jobs["jobs"], TICK, LONG]})
    data["tocsin-worker-example"]["worker.py"] += HANDLER
    return changed


def next_version(documents: Sequence[Object]) -> list[Object]:
    """Return manifests with another image and other settings, as a new version of the chart has them."""
    changed = deepcopy([*documents])
    [settings] = [each["data"] for each in of_kind(changed, "ConfigMap") if each["metadata"]["name"] == "tocsin"]
    values = yaml.safe_load(settings["tocsin.yaml"])
    settings["tocsin.yaml"] = yaml.safe_dump({**values, "execution": {"history_retention_days": 30}})
    for workload in of_kind(changed, "Deployment", "Job"):
        if component(workload) == EXECUTOR:
            continue
        container(workload)["image"] = "tocsin:next"
        if workload["kind"] == "Job":
            workload["metadata"]["name"] += "-next"  # the chart names a Job by its content
        else:
            assert component(workload) in ROLLED
    return changed


async def runs(caller: Caller, job: str) -> list[dict[str, Any]]:
    """Return all executions of a job that the history has."""
    answer = await caller.call("GET", f"/v1/executions?job={job}&limit=1000")
    assert answer.is_success, answer.text
    found: list[dict[str, Any]] = answer.json()["executions"]
    return found


async def has_run(caller: Caller, job: str, number: int) -> bool:
    """Return whether as many executions of a job have completed."""
    return len([each for each in await runs(caller, job) if each["status"] == "completed"]) >= number


async def all_ended(caller: Caller, job: str) -> bool:
    """Return whether every execution of a job has completed, also a moment later."""
    before = await runs(caller, job)
    await asyncio.sleep(2)
    return before == await runs(caller, job) and {each["status"] for each in before} == {"completed"}


async def have_status(caller: Caller, executions: Sequence[str], status: str) -> bool:
    """Return whether executions have a status."""
    answers = [await caller.call("GET", f"/v1/executions/{execution}") for execution in executions]
    return all(answer.json().get("status") == status for answer in answers)
