"""The proposals of executions that a worker acknowledges."""

from collections.abc import Iterable
from typing import Final

from ..domain.agent import MAX_PROPOSALS
from ..ports import Clock

NAMED_FOR_S: Final = 10.0
"""How long hold lists name a proposal: a stage reads only the newest hold list, and the agent keeper sends a proposal again before."""


class Acknowledgements:
    """The newest proposals that the agent keeper sent, each for a short time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._received_at: dict[int, float] = {}  # the newest is last

    def take(self, proposals: Iterable[int]) -> None:
        """Take the sequences of proposals; beyond the limit, the oldest is forgotten."""
        now = self._clock.monotonic()
        for sequence in proposals:
            self._received_at.pop(sequence, None)
            self._received_at[sequence] = now
        for sequence in [*self._received_at][:-MAX_PROPOSALS]:
            del self._received_at[sequence]

    def named(self) -> tuple[int, ...]:
        """Return the sequences that the next hold list names."""
        now = self._clock.monotonic()
        self._received_at = {sequence: at for sequence, at in self._received_at.items() if now - at < NAMED_FOR_S}
        return tuple(self._received_at)
