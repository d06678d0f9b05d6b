"""Shared steps of the security tests: a working installation, and the error of a refused user."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.system.running import running
from tocsin import Context, Worker, bootstrap
from tocsin.domain.definition import DefinitionProblem
from tocsin.domain.events import Completed
from tocsin.ports import Unreachable
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


async def refusal(url: str, folder: Path, nats: Nats) -> Unreachable | SettingsError:
    """Return the error that a refused user gets, long before any timeout."""
    settings = Settings.model_validate({"data_dir": folder, "nats": {**nats, "url": url}})
    with pytest.raises((Unreachable, SettingsError)) as caught:
        async with bootstrap.connect(settings, within=None):
            pass
    assert isinstance(caught.value, Unreachable | SettingsError)
    return caught.value


async def settings_problem(url: str, folder: Path, nats: Nats) -> DefinitionProblem:
    """Return the only problem of settings that cannot be used."""
    error = await refusal(url, folder, nats)
    assert isinstance(error, SettingsError)
    assert error.code == "invalid-settings"
    [problem] = error.problems
    return problem
