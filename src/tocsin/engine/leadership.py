"""The stages that a process decides for.

It decides for a stage if it holds the lease, and its term is the newest in the log.

A term begins with `Began`, under the guard of the log, so only a process that has folded everything begins a term. A process that lost a lease and
has it again goes on with its term, unless another term began meanwhile.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from ..domain.log_events import Began, Left, LogEvent
from ..ports import Clock, LogUnavailable
from .clock_guard import ClockGuard
from .fold import Fold
from .stage_leases import StageLeases
from .terms import Term

PAUSE_S: Final = 0.5
"""The time after which the log's clock is read again."""


class Leadership:
    """The stages that a process decides for, and the events of its terms."""

    def __init__(
        self,
        name: str,
        stages: Sequence[str],
        fold: Fold,
        clock: Clock,
        leases: StageLeases | None,
        on_change: Callable[[], None],
        log_clock: ClockGuard | None = None,
    ) -> None:
        """`name`: the writer of this process's commits, and of no other commits.

        `leases`: None: the process decides for all stages. `on_change` is called when the leases may have changed. `log_clock` shows the time
        for the events of a process that leads nothing; None: its clock is the log's.
        """
        self._log_clock = log_clock
        self._name = name
        self._stages = stages
        self._fold = fold
        self._clock = clock
        self._leases = leases
        self._gone = asyncio.Event()
        if leases is not None:
            leases.on_change = on_change

    @property
    def led(self) -> frozenset[str]:
        """The stages to decide for."""
        if self._leases is None:
            return frozenset(self._stages)
        return frozenset(stage for stage in self._leases.held if self._own(stage) is not None)

    async def time(self) -> datetime | None:
        """Return the time (UTC) up to which this process may decide.

        None: it holds no lease, or the time is unknown.
        """
        if self._leases is None:
            return self._clock.now() if self._stages else None
        return await self._leases.time()

    async def time_of_proposals(self, newest: datetime | None) -> datetime:
        """Return the time (UTC) of what this process stores although it leads nothing.

        A wrong clock of a command must not move the log's time, by which instants are decided. `newest`: that of the newest commit, which
        counts as long as the log's clock is unknown; None: there is no commit, and the clock is read until it answers.
        """
        if self._log_clock is None:
            return self._clock.now()
        while True:
            with suppress(LogUnavailable):
                await self._log_clock.check()
            if (now := self._log_clock.now() or newest) is not None:
                return now
            await self._clock.sleep(PAUSE_S)

    def now(self) -> datetime:
        """Return the time (UTC) by the log's clock, or else by this machine's."""
        return self._clock.now() if self._leases is None else self._leases.now()

    def changes(self) -> list[LogEvent]:
        """Return the events to store before anything is decided."""
        if self._leases is None:
            return []
        left: dict[str, int] = {}
        for stage in self._stages:
            if self._leases.is_leaving and (term := self._own(stage)) is not None:
                left[stage] = term.began
            for began in self._fold.terms(stage).died(self._name):  # it was overtaken, and lives
                left[stage] = began
        changes: list[LogEvent] = [Left(left)] if left else []
        held = self._leases.held
        gained = tuple(stage for stage in self._stages if stage in held and self._own(stage) is None)
        return [*changes, Began(gained)] if gained else changes

    def settle(self) -> None:
        """Note that a commit was stored."""
        if self._leases is not None and self._leases.is_leaving and not any(map(self._own, self._stages)):
            self._gone.set()

    async def leave(self) -> None:
        """End the terms of this process, and wait until this is stored.

        Its leases are still held.
        """
        if self._leases is not None:
            self._leases.leave()
            self.settle()
            await self._gone.wait()

    def _own(self, stage: str) -> Term | None:
        """Return the open term of this process."""
        term = self._fold.terms(stage).open
        return term if term is not None and term.writer == self._name else None
