"""The places at which readers of a fold can begin, and copies of the fold."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from ..domain.commit import LogHead
from .commit_writer import Chain
from .fold import Fold
from .snapshot_rows import FoldCopy
from .snapshots import FoldPlace, Loaded

MAX_BOUNDARIES: Final = 4_096
"""Ends of commits that are remembered; of more, every second is left out."""


class FoldPlaces:
    """The places of one fold, which follows a chain."""

    def __init__(self, fold: Fold, chain: Chain, snapshot: Loaded | None = None) -> None:
        """`snapshot`: the snapshot of the fold; the chain begins at its start.

        None: the fold begins with the first commit.
        """
        self._fold = fold
        self._chain = chain
        self._snapshot = snapshot
        self._copies: list[asyncio.Future[FoldPlace]] = []
        self._boundaries: deque[LogHead] = deque([chain.head])
        """The ends of commits after which are all events that a stage has not taken."""
        self.log_bytes = 0
        """The bytes of the messages of the log that were read."""

    def begins_after(self, sequence: int) -> bool:
        """Return whether the fold has had a message of the log from its beginning."""
        return self._snapshot is not None and sequence <= self._snapshot.head.sequence

    def note_boundary(self) -> None:
        """Note the end of a commit."""
        boundaries, floor = self._boundaries, self._fold.floor
        boundaries.append(self._chain.head)
        while len(boundaries) > 1 and boundaries[1].number <= floor:
            boundaries.popleft()
        if len(boundaries) > MAX_BOUNDARIES:
            self._boundaries = deque([boundaries[0], *list(boundaries)[2::2]])

    async def copy(self, wake: Callable[[], None]) -> FoldPlace:
        """Return the fold between two commits, once `hand_out` is called. `wake` has it called soon."""
        copied: asyncio.Future[FoldPlace] = asyncio.get_running_loop().create_future()
        self._copies.append(copied)
        wake()
        return await copied

    def hand_out(self) -> None:
        """Hand copies out: nothing is decided and not stored."""
        copies, self._copies = self._copies, []
        for copied in copies:
            if not copied.done():
                copied.set_result((FoldCopy.of(self._fold), self._chain.head, self._boundaries[0]))
