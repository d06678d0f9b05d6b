"""Tocsin in your own tests, on a clock that the test moves.

    async with Simulation(app, at="2026-03-08T00:00", tz="America/New_York") as simulation:
        await simulation.advance("3 days")

`Simulation` runs the real stages and your handlers. The in-memory ports, for tests of single parts:

    clock = ManualClock()
    log = InMemoryEventLog(clock)
    projections = InMemoryProjections(clock)

The in-memory ports refuse exactly what NATS refuses; one suite of behaviours runs over both.
"""

from ..adapters.memory.archive import InMemoryProjections, InMemoryStoredLog
from ..adapters.memory.clock import START, ManualClock, settle
from ..adapters.memory.durable import InMemoryDelivery, InMemoryDurable
from ..adapters.memory.event_log import InMemoryEventLog
from ..domain.history import ExecutionRecord
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
