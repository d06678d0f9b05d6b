"""Tocsin in your own tests, on a clock that the test moves.

    async with Simulation(app, at="2026-03-08T00:00", tz="America/New_York") as simulation:
        await simulation.advance("3 days")

`Simulation` runs the real stages and your handlers. The in-memory ports, for tests of single parts:

    clock = ManualClock()
    log = InMemoryEventLog(clock)
    projections = InMemoryProjections(clock)

The in-memory ports refuse exactly what NATS refuses; one suite of behaviours runs over both. A name is imported at its first use, because
pytest loads `pytest_plugin` from this package in every run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..adapters.memory.archive import InMemoryProjections, InMemoryStoredLog
    from ..adapters.memory.clock import START, ManualClock, settle
    from ..adapters.memory.durable import InMemoryDelivery, InMemoryDurable
    from ..adapters.memory.event_log import InMemoryEventLog
    from ..domain.execution_record import ExecutionRecord
    from ..ports import DurableSpec
    from .record import Skip
    from .simulation import Simulation, SimulationError

__all__ = [
    "START",
    "DurableSpec",
    "ExecutionRecord",
    "InMemoryDelivery",
    "InMemoryDurable",
    "InMemoryEventLog",
    "InMemoryProjections",
    "InMemoryStoredLog",
    "ManualClock",
    "Simulation",
    "SimulationError",
    "Skip",
    "settle",
]

_MODULES: Final = {
    "..adapters.memory.archive": ("InMemoryProjections", "InMemoryStoredLog"),
    "..adapters.memory.clock": ("START", "ManualClock", "settle"),
    "..adapters.memory.durable": ("InMemoryDelivery", "InMemoryDurable"),
    "..adapters.memory.event_log": ("InMemoryEventLog",),
    "..domain.execution_record": ("ExecutionRecord",),
    "..ports": ("DurableSpec",),
    ".record": ("Skip",),
    ".simulation": ("Simulation", "SimulationError"),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULE_OF[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
