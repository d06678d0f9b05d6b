"""The memory that agents of each name may use, and refused hold lists.

A worker account may invent processes and names. So the memory of each name is limited, and so is that of all names without an account of
their own. A process that is known may always use as much as it did.
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final, Literal

from .. import telemetry

MAX_BYTES_PER_NAME: Final = 64 * 1_048_576
"""Bytes for the processes of one name: 64 KB for each of a thousand."""
MAX_BYTES: Final = 128 * 1_048_576
"""Bytes for all processes whose names have no account of their own."""
LOG_INTERVAL_S: Final = 30.0
"""The least time between two log lines about hold lists that are refused for the same reason."""
_PROCESS_BYTES: Final = 500
"""What a process uses beside its texts."""

Refusal = Literal["unreadable", "processes", "bytes", "rate"]
"""A body that cannot be read or is too large; too many processes; too much memory; too many registrations."""

_log = telemetry.get_logger("tocsin.agents")
_refused: Final = telemetry.meter().create_counter(
    "tocsin_hold_lists_refused",
    unit="{list}",
    description="Hold lists of agents that a stage refused or did not read further, by `stage` and `reason`.",
)


class Shares:
    """Limits on amounts that processes use.

    Each name has a limit, and all names without an account of their own have one together.
    """

    def __init__(self, per_name: int, together: int, reserved: Collection[str] = ()) -> None:
        """Start empty; `reserved`: the names of agents with an account of their own."""
        self._per_name = per_name
        self._together = together
        self._reserved = frozenset(reserved)
        self._used: dict[tuple[str, str], int] = {}
        self.of_name: Counter[str] = Counter()
        self._shared = 0

    def take(self, name: str, agent_id: str, size: int) -> bool:
        """Set what a process uses, and return whether it fits.

        If it does not, nothing changes.
        """
        more = size - self._used.get((name, agent_id), 0)
        if more > 0 and not self.has_room(name, more):
            return False
        self.charge(name, agent_id, size)
        return True

    def has_room(self, name: str, more: int = 1) -> bool:
        """Return whether more fits."""
        is_full = self._shared + more > self._together and name not in self._reserved
        return not is_full and self.of_name[name] + more <= self._per_name

    def charge(self, name: str, agent_id: str, size: int) -> None:
        """Set what a process uses in any case."""
        more = size - self._used.pop((name, agent_id), 0)
        if size:
            self._used[name, agent_id] = size
        self.of_name[name] += more
        if not self.of_name[name]:
            del self.of_name[name]
        if name not in self._reserved:
            self._shared += more

    def clear(self) -> None:
        """Start empty again."""
        self._used.clear()
        self.of_name.clear()
        self._shared = 0


class AgentMemory(Shares):
    """Bytes that processes use."""

    def __init__(self, reserved: Collection[str] = ()) -> None:
        super().__init__(MAX_BYTES_PER_NAME, MAX_BYTES, reserved)


class RefusedHoldLists:
    """Counts hold lists that a stage refuses, and logs some of them."""

    def __init__(self, stage: str, monotonic: Callable[[], float]) -> None:
        self._stage = stage
        self._monotonic = monotonic
        self._logged_at: dict[Refusal, float] = {}

    def note(self, name: str, reason: Refusal) -> None:
        """Note a refusal; a flood of them leads to one log line."""
        _refused.add(1, {"stage": self._stage, "reason": reason})
        now = self._monotonic()
        if now - self._logged_at.get(reason, float("-inf")) >= LOG_INTERVAL_S:
            self._logged_at[reason] = now
            _log.warning("hold list refused", action="hold-list-refused", stage=self._stage, agent=name, reason=reason)


def memory_of(*collections: Collection[str]) -> int:
    """Return the bytes that a process with these texts uses."""
    return _PROCESS_BYTES + sum(sys.getsizeof(texts) + sum(map(sys.getsizeof, texts)) for texts in collections)
