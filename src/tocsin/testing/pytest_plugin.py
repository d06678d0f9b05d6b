"""The pytest plugin: the fixture `tocsin_app`."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..app.declarations import Declarations
    from ..worker import Worker
    from .simulation import Simulation

INI = "tocsin_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the configuration file that names the application."""
    parser.addini(INI, "The application that the fixture tocsin_app simulates: MODULE:ATTRIBUTE.", default="")


@pytest.fixture
def tocsin_app(request: pytest.FixtureRequest) -> "Callable[..., Simulation]":
    """Make simulations of the application that the option `tocsin_app` names, or of its argument.

    async def test_nightly(tocsin_app):
        async with tocsin_app(at="2026-03-08T00:00") as simulation:
            await simulation.advance("1 day")
    """
    from .simulation import Simulation  # noqa: PLC0415 - a run that simulates nothing must not load it

    named = str(request.config.getini(INI))

    def simulate(app: "Declarations | Worker | None" = None, **options: Any) -> Simulation:  # noqa: ANN401 - those of a simulation
        return Simulation(app if app is not None or not named else _loaded(named), **options)

    return simulate


def _loaded(named: str) -> Any:  # noqa: ANN401 - an application, or what `Simulation` refuses
    module, separator, attribute = named.partition(":")
    if not separator:
        raise pytest.UsageError(f"{INI} = {named}: write MODULE:ATTRIBUTE, such as billing.jobs:app")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"{INI} = {named}: {error}") from error
