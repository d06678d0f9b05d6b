"""Containers on a real NATS server and a double of a cluster: a worker that is killed or stopped, and a cancellation."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.kubernetes.double import ApiServer
from tests.system.running import running
from tocsin import Worker, subjects
from tocsin.domain.events import Cancelled, CancelRequest, Completed, Started
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
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")},
            "TOCSIN_NATS__URL": nats_url,
            "TOCSIN_ROOT": tocsin.settings.root,
            "TOCSIN_BUILTIN__CONTAINER__NAMESPACES": json.dumps(RULES["namespaces"]),
            "TOCSIN_BUILTIN__CONTAINER__IMAGES": json.dumps(RULES["images"]),
            "TOCSIN_BUILTIN__CONTAINER__KUBECONFIG": str(server.kubeconfig(tmp_path)),
        }
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


async def container_worker(module: Path, environment: dict[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tocsin", "worker", f"{module}:worker", "--builtin", "container"), env=environment
    )
