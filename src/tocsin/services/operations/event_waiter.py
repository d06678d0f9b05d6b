"""Hearing of facts as they are stored: one follower of the log for all who wait for one.

Who hands in an input waits for what the stages make of it. If each of them asked the log again and again, it would answer
many times what does not count yet; so it is followed while anybody waits, and asked when nothing is heard for too long.

All facts of executions are followed, and not only those that somebody may wait for: a server that keeps schedules in the same
stream takes three times as long for a job where a follower's filter leaves most of the stream out.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, TypeAlias

import structlog

from ... import subjects
from ...domain.events import Message, Recorded
from ...ports import EventLog
from ...subjects import Stream
from . import input_result

EXECUTIONS: Final = "execution.>"
IDLE: Final = 60.0
"""Seconds for which the log is followed though nobody waits."""
AGAIN: Final = 5.0
"""Seconds after which it is followed again if it cannot be."""
LOOKS: Final = (0.5, 0.5, 0.5, 1.0)
"""Seconds before each look at the log of one who has heard nothing: a connection may be lost, and be noticed late."""

Facts: TypeAlias = Sequence[Recorded[Message]]

_log = structlog.get_logger("tocsin.operations")


class EventWaiter:
    """Tells whoever waits for an execution what is stored of it."""

    def __init__(self, log: EventLog) -> None:
        """Nothing is followed before somebody waits."""
        self._log = log
        self._waiting: defaultdict[str, list[Awaited]] = defaultdict(list)
        self._following: asyncio.Task[None] | None = None
        self._waited_at = 0.0
        self.is_heard = False
        """Whatever is stored from now on will be heard of."""

    @contextmanager
    def of(self, scope: str, known: Facts = ()) -> "Iterator[Awaited]":
        """Listen to an execution within the block, in which the input is handed in. `known`: its facts so far."""
        awaited = Awaited(self._log, scope, known, self)
        self._waiting[scope].append(awaited)
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow())
        try:
            yield awaited
        finally:
            self._waited_at = asyncio.get_running_loop().time()
            waiting = self._waiting[scope]
            waiting.remove(awaited)
            if not waiting:
                del self._waiting[scope]

    async def aclose(self) -> None:
        """Listen no more."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            try:
                after = await self._log.tail(EXECUTIONS)
                async for batch in self._log.follow(Stream.LOG, EXECUTIONS, after=after):
                    self.is_heard = self.is_heard or batch.caught_up
                    for fact in batch.messages:
                        for awaited in self._waiting.get(subjects.scope_of(fact.message), ()):
                            awaited.hear(fact)
                    if not self._waiting and now() - self._waited_at > IDLE:
                        return
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait look for themselves
                _log.warning("the log cannot be followed", action="not-heard", error=repr(error))
            finally:
                self.is_heard = False
            await asyncio.sleep(AGAIN)


class Awaited:
    """What is known of a scope, and what is heard of it."""

    def __init__(self, log: EventLog, scope: str, known: Facts = (), arrivals: EventWaiter | None = None) -> None:
        """`arrivals`: tell of it; without them, only looking at the log does."""
        self._log = log
        self._scope = scope
        self._arrivals = arrivals
        self._facts = list(known)
        self._changed = asyncio.Event()

    def hear(self, fact: Recorded[Message]) -> None:
        """A fact was stored."""
        if not self._facts or self._facts[-1].sequence < fact.sequence:
            self._facts.append(fact)
            self._changed.set()

    async def until(self, is_enough: Callable[[Facts], bool]) -> Facts:
        """The facts once they are enough, or as they are after some seconds."""
        looks, early = iter(LOOKS), iter(input_result.PAUSES)
        while (pause := next(looks if self._is_told else early, None)) is not None:
            try:
                async with asyncio.timeout(pause):
                    while not (self._facts and is_enough(self._facts)):
                        self._changed.clear()
                        await self._changed.wait()
                break
            except TimeoutError:
                await self._look()
        return self._facts

    @property
    def _is_told(self) -> bool:
        return self._arrivals is not None and self._arrivals.is_heard

    async def _look(self) -> None:
        facts = await self._log.load(self._scope)
        if facts and (not self._facts or self._facts[-1].sequence <= facts[-1].sequence):  # else a replica that lags
            self._facts = facts


def awaited_of(
    log: EventLog, arrivals: EventWaiter | None, scope: str, known: Facts = ()
) -> AbstractContextManager[Awaited]:
    """Listen to an execution where somebody tells of it (see `EventWaiter.of`), else look at it."""
    return nullcontext(Awaited(log, scope, known)) if arrivals is None else arrivals.of(scope, known)
