"""Containers on a real NATS server and a double of a cluster: a worker that is killed or stopped, and a cancellation."""

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.test_terminals import HOMELESS
from tests.kubernetes.double import ApiServer
from tests.system.running import Running, running
from tocsin import Worker, subjects
from tocsin.domain.events import Cancelled, CancelRequest, Completed, Failed, Started
from tocsin.settings.builtin import ContainerRules
from tocsin.worker.builtin.container import ContainerFunction

IMAGE = "registry.example.com/etl:1.4"
RULES = {"namespaces": ["batch"], "images": ["registry.example.com/"]}


async def test_cancelled_execution_deletes_its_job(nats_url: str, tmp_path: Path) -> None:
    async with ApiServer().running() as server:
        worker = Worker()
        rules = ContainerRules.model_validate(RULES | {"kubeconfig": str(server.kubeconfig(tmp_path))})
        worker.offer("tocsin.container", ContainerFunction(rules))
        async with running(nats_url, tmp_path, worker=worker) as tocsin:
            await tocsin.apply({"name": "endless", "container": IMAGE})
            await tocsin.trigger("endless")
            await server.store.until(lambda: server.store.pods)
            server.store.run(next(iter(server.store.pods)))
            [started] = await tocsin.ended("endless", Started)
            subject = subjects.cancel("endless", started.execution_id)
            await tocsin.log.publish(subject, CancelRequest(), message_id="cancel")
            await tocsin.ended("endless", Cancelled)
            await server.store.until(lambda: not server.store.jobs)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
async def test_next_worker_follows_job_of_dead_worker(number: signal.Signals, nats_url: str, tmp_path: Path) -> None:
    """`tocsin worker --builtin container` as a process: no end of it starts a container twice, or ends one."""
    async with ApiServer().running() as server, running(nats_url, tmp_path) as tocsin:
        tocsin.patience = 120  # an agent that was killed is lost after 30 seconds of silence
        module = tmp_path / "worker.py"
        module.write_text("from tocsin import Worker\nworker = Worker(shutdown_timeout=1)\n")
        environment = environment_with_rules(tocsin, KUBECONFIG=str(server.kubeconfig(tmp_path)))
        await tocsin.apply({"name": "etl", "container": {"image": IMAGE, "result": "json"}})
        await tocsin.trigger("etl")
        first = await container_worker(module, environment)
        await server.store.until(lambda: server.store.pods)
        [pod] = server.store.pods
        server.store.run(pod)
        first.send_signal(number)
        await first.wait()
        server.store.finish(pod, lines=(b'{"rows": 4}',))
        second = await container_worker(module, environment)
        [completed] = await tocsin.ended("etl", Completed)
        assert completed.result == {"rows": 4}
        assert (len(server.store.created), server.store.deleted) == (1, [])
        second.send_signal(signal.SIGTERM)
        assert await second.wait() == 0


HOMELESS_WORKER = f"""{HOMELESS}
from tocsin import Context, Worker
worker = Worker()

@worker.task("probe")
def probe(_: Context):
    assert "HOME" not in os.environ
"""


@pytest.mark.parametrize("is_in_cluster", [False, True])
async def test_worker_without_a_home_runs_containers(nats_url: str, tmp_path: Path, *, is_in_cluster: bool) -> None:
    """A container's user may have no HOME and no entry in /etc/passwd. Here are no files of a service account."""
    async with ApiServer().running() as server, running(nats_url, tmp_path) as tocsin:
        module = tmp_path / "worker.py"
        module.write_text(HOMELESS_WORKER)
        rules = {} if is_in_cluster else {"KUBECONFIG": str(server.kubeconfig(tmp_path))}
        environment = environment_with_rules(tocsin, **rules) | {"KUBERNETES_SERVICE_HOST": "127.0.0.1"}
        for work in ({"name": "etl", "container": IMAGE}, {"name": "probe", "function": "probe"}):
            await tocsin.apply({**work, "retry": {"max_attempts": 1}})
            await tocsin.trigger(str(work["name"]))
        process = await container_worker(module, environment)
        try:
            await tocsin.ended("probe", Completed)
            if is_in_cluster:
                [failed] = await tocsin.ended("etl", Failed)
                assert failed.error is not None
                assert failed.error.type == "kubernetes_not_configured"
            else:
                await server.store.until(lambda: server.store.pods)
                [pod] = server.store.pods
                server.store.run(pod)
                server.store.finish(pod)
                await tocsin.ended("etl", Completed)
        finally:
            with suppress(ProcessLookupError):  # it failed
                process.kill()
            await process.wait()


def environment_with_rules(tocsin: Running, **rules: str) -> dict[str, str]:
    """Return the environment of a worker; `rules` are further rules of containers."""
    own = {name.upper(): json.dumps(value) for name, value in RULES.items()}
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}
    named = {f"TOCSIN_BUILTIN__CONTAINER__{name}": value for name, value in (own | rules).items()}
    return variables | named | {"TOCSIN_NATS__URL": tocsin.settings.nats.url, "TOCSIN_ROOT": tocsin.settings.root}


async def container_worker(module: Path, environment: dict[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tocsin", "worker", f"{module}:worker", "--builtin", "container"), env=environment
    )
