"""Shared steps of the security tests: a working installation, and the error of a refused user."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.system.running import running
from tocsin import Context, Worker, bootstrap
from tocsin.bootstrap import Unreachable
from tocsin.domain.events import Completed
from tocsin.settings import Settings, SettingsError

Nats = Mapping[str, Any]


async def works(url: str, folder: Path, nats: Nats) -> None:
    """A job runs: the stages over their broker, the worker and this test over their own connections."""
    worker = Worker()

    @worker.task("f")
    async def f(context: Context) -> None: ...

    async with running(url, folder, worker=worker, nats={**nats, "url": url}) as tocsin:
        await tocsin.apply({"name": "job", "function": "f"})
        await tocsin.trigger("job")
        await tocsin.ended("job", Completed)


async def refusal(url: str, folder: Path, nats: Nats) -> str:
    """The error that a refused user gets, long before any timeout."""
    settings = Settings.model_validate({"data_dir": folder, "nats": {**nats, "url": url}})
    with pytest.raises((Unreachable, SettingsError)) as refused:
        async with bootstrap.connect(settings, within=None):
            pass
    return str(refused.value)
