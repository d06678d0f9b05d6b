"""The queues that a worker may use."""

from pathlib import Path

import pytest

from tests.system.running import settings
from tocsin import Worker, bootstrap
from tocsin.settings import SettingsError
from tocsin.subjects import Stream

QUEUES = {"teams": {}, "outside": {"transport": "mq"}}


@pytest.mark.parametrize("queues", [["outside"], ["teams", "outside"]])
async def test_queue_of_mq_executors_is_refused(nats_url: str, tmp_path: Path, queues: list[str]) -> None:
    worker = Worker(queues=queues)
    async with bootstrap.connect(settings(nats_url, tmp_path, queues=QUEUES)) as installation:
        await bootstrap.initialize(installation)
        with pytest.raises(SettingsError) as refused:
            async with bootstrap.worker_connection(installation, worker.options):
                pass
    assert {problem.field for problem in refused.value.problems} == {"queues.outside"}


async def test_worker_needs_no_durable(nats_url: str, tmp_path: Path) -> None:
    worker = Worker(queues=["default", "teams", "a queue that only jobs name"])
    async with bootstrap.connect(settings(nats_url, tmp_path, queues=QUEUES)) as installation:
        await bootstrap.initialize(installation)
        names = f"CONSUMER.NAMES.{installation.names.stream(Stream.LOG)}"
        before = (await installation.connection.manage(names))["consumers"]
        async with bootstrap.worker_connection(installation, worker.options):
            assert (await installation.connection.manage(names))["consumers"] == before
