"""In-memory Tocsin for your own tests, on a clock that the test moves.

    clock = ManualClock()
    log = InMemoryEventLog(clock)
    projections = InMemoryProjections(clock)

The in-memory ports refuse exactly what NATS refuses; one suite of behaviours runs over both.
"""

from .adapters.memory.archive import InMemoryProjections, InMemoryStoredLog
from .adapters.memory.clock import START, ManualClock, settle
from .adapters.memory.durable import InMemoryDelivery, InMemoryDurable
from .adapters.memory.event_log import InMemoryEventLog
from .ports import DurableSpec

__all__ = [
    "START",
    "DurableSpec",
    "InMemoryDelivery",
    "InMemoryDurable",
    "InMemoryEventLog",
    "InMemoryProjections",
    "InMemoryStoredLog",
    "ManualClock",
    "settle",
]
