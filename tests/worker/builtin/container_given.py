"""Containers for the tests, in a double of a cluster."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from tests.kubernetes.double import ApiServer
from tests.worker.given import Bench
from tocsin.domain.definition.container_work import Container
from tocsin.domain.events import Failure, Message, OutputLine, StepProgress
from tocsin.settings.builtin import ContainerRules
from tocsin.worker.builtin.cluster import Cluster
from tocsin.worker.builtin.container import ContainerFunction
from tocsin.worker.held_tasks import HeldTask

FUNCTION = "tocsin.container"
IMAGE = "registry.example.com/etl:1.4"


class ContainerBench(Bench):
    """A bench whose worker runs containers in a double of a cluster."""

    def __init__(self, server: ApiServer, folder: Path, **rules: Any) -> None:  # noqa: ANN401 - as `offer`
        super().__init__()
        self.server = server
        self.store = server.store
        self.folder = folder
        self.offer(**rules)

    def offer(self, *, patience: float = 5.0, **rules: Any) -> None:  # noqa: ANN401 - as in the settings
        """Offer the function under these rules."""
        known = {
            "namespaces": ["batch", "reports"],
            "images": ["registry.example.com/"],
            "kubeconfig": str(self.server.kubeconfig(self.folder)),
        }
        self.rules = read = ContainerRules.model_validate(known | rules)
        connect = lambda given: Cluster(given, patience=patience)  # noqa: E731 - short
        self.handlers.add_builtin(FUNCTION, ContainerFunction(read, connect=connect))

    async def give(self, **more: Any) -> HeldTask:  # noqa: ANN401 - as `Container`, and `given_tasks`
        """Dispatch and claim a task with a container."""
        task = {name: more.pop(name) for name in ("input", "timeout") if name in more}
        attempt = more.pop("attempt", 1)
        builtin = Container(**{"image": IMAGE, **more}).model_dump(mode="json", exclude_defaults=True)
        dispatched = await self.given_task(function=FUNCTION, builtin=builtin, **task)
        assigned = await self.assigned()
        if attempt > 1:
            assigned = assigned._replace(body=dispatched.changed(attempt=attempt).encode())
        return HeldTask(assigned)

    async def execute(self, **more: Any) -> JsonValue:  # noqa: ANN401
        """Run a container, and return its result."""
        await self.executor.run(await self.give(**more))
        return await self.result()

    async def fail(self, **more: Any) -> Failure:  # noqa: ANN401
        """Run a container, and return its failure."""
        await self.executor.run(await self.give(**more))
        error = (await self.report()).error
        assert error is not None
        return error

    async def result(self) -> JsonValue:
        report = await self.report()
        assert report.error is None, report.error
        return report.result

    @asynccontextmanager
    async def following(self, **more: Any) -> AsyncIterator[str]:  # noqa: ANN401
        """Start a container, and yield its pod; the attempt has ended after the block."""
        held = await self.give(**more)
        running = asyncio.create_task(self.executor.run(held))
        await self.store.until(lambda: self.store.pods)
        try:
            yield next(iter(self.store.pods))
            async with asyncio.timeout(30):
                await running
        finally:
            running.cancel()

    def another(self) -> "ContainerBench":
        """Return another bench with the same cluster and rules, which knows nothing of the first."""
        return ContainerBench(self.server, self.folder, **self.rules.model_dump(exclude={"kubeconfig"}))

    async def until_progress(self, text: str) -> None:
        """Wait until the attempt shows this progress."""
        async with asyncio.timeout(30):
            while not any(isinstance(each, StepProgress) and each.message == text for each in await self._output()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def lines(self) -> list[str]:
        """Return the lines that the attempt wrote."""
        return [each.text for each in await self._output() if isinstance(each, OutputLine)]

    async def _output(self) -> list[Message]:
        await self.output.drain()
        return [r.message for kind in ("output.>", "progress.>") for r in await self.log.read(kind)]

    @property
    def job(self) -> dict[str, Any]:
        """The only Job."""
        [job] = self.store.jobs.values()
        return job
