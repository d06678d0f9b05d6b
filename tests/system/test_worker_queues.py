"""The queues that a worker may use together."""

from pathlib import Path

import pytest

from tests.system.running import settings
from tocsin import Worker, bootstrap
from tocsin.settings import SettingsError
from tocsin.subjects import Stream, executor_durable

QUEUES = {"teams": {"transport": "matched"}, "others": {"transport": "matched"}, "outside": {"transport": "mq"}}


@pytest.mark.parametrize("queues", [["teams", "default"], ["default", "teams"], ["outside"], ["teams", "outside"]])
async def test_queues_that_do_not_fit_are_refused(nats_url: str, tmp_path: Path, queues: list[str]) -> None:
    worker = Worker(queues=queues)
    async with bootstrap.connect(settings(nats_url, tmp_path, queues=QUEUES)) as installation:
        await bootstrap.initialize(installation)
        with pytest.raises(SettingsError) as refused:
            async with bootstrap.worker_connection(installation, worker.options):
                pass
    assert {problem.field for problem in refused.value.problems} <= {"queues.teams", "queues.outside"}


async def test_matched_queues_need_no_durable(nats_url: str, tmp_path: Path) -> None:
    worker = Worker(queues=["teams", "others"])
    async with bootstrap.connect(settings(nats_url, tmp_path, queues=QUEUES)) as installation:
        await bootstrap.initialize(installation)
        async with bootstrap.worker_connection(installation, worker.options) as connection:
            assert connection.assigned == {"teams", "others"}
            assert connection.queues == {}
        durables = await installation.connection.manage(f"CONSUMER.NAMES.{installation.names.stream(Stream.LOG)}")
        assert not {executor_durable("teams"), executor_durable("others")} & set(durables["consumers"])
