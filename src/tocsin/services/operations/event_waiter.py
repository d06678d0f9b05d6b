"""Wait for the facts that stages store in answer to an input.

A caller that publishes an input waits for the result. One follower of the log serves all waiting callers, so that they do
not poll; a caller that receives nothing for too long reads the log itself.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, TypeAlias

from ... import subjects, telemetry
from ...domain.events import Message, Recorded
from ...ports import EventLog
from ...subjects import Stream

EXECUTIONS: Final = "execution.>"
IDLE_TIMEOUT_S: Final = 60.0
"""How long the log is followed while no caller waits."""
RETRY_PAUSE_S: Final = 5.0
"""Pause before the log is followed again after a failure."""
FALLBACK_PAUSES_S: Final = (0.5, 0.5, 0.5, 1.0)
"""Pauses before each read of a caller that receives nothing, because a lost connection may be noticed late."""
POLL_PAUSES_S: Final = (0.001, 0.002, 0.004, 0.008, 0.016, *(0.03,) * 10, *(0.1,) * 20)
"""Pauses before each read without a follower: a result takes a few milliseconds unless the stages are busy or down."""

Facts: TypeAlias = Sequence[Recorded[Message]]
IsEnough: TypeAlias = Callable[[Facts], bool]

_log = telemetry.get_logger("tocsin.operations")


class EventWaiter:
    """Follows the log for all callers that wait for an execution."""

    def __init__(self, log: EventLog) -> None:
        """The log is followed as soon as a caller waits."""
        self._log = log
        self._waiting: defaultdict[str, list[Awaited]] = defaultdict(list)
        self._following: asyncio.Task[None] | None = None
        self._waited_at = 0.0
        self.is_following = False
        """Every fact stored from now on will be received."""

    @contextmanager
    def of(self, scope: str, known: Facts = ()) -> "Iterator[Awaited]":
        """Receive the facts of an execution within the block. `known`: its facts so far.

        Publish the input within the block, so that no fact is missed.
        """
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
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            try:
                after = await self._log.tail(EXECUTIONS)
                async for batch in self._log.follow(Stream.LOG, EXECUTIONS, after=after):
                    self.is_following = self.is_following or batch.caught_up
                    for fact in batch.messages:
                        for awaited in self._waiting.get(subjects.scope_of(fact.message), ()):
                            awaited.receive(fact)
                    if not self._waiting and now() - self._waited_at > IDLE_TIMEOUT_S:
                        return
            except Exception as error:  # noqa: BLE001 - on any error, callers read the log themselves
                _log.warning("the log cannot be followed", action="not-heard", error=repr(error))
            finally:
                self.is_following = False
            await asyncio.sleep(RETRY_PAUSE_S)


class Awaited:
    """The known and the received facts of a scope."""

    def __init__(self, log: EventLog, scope: str, known: Facts = (), waiter: EventWaiter | None = None) -> None:
        """`waiter` delivers new facts; without a waiter the log is read repeatedly."""
        self._log = log
        self._waiter = waiter
        self.scope = scope
        self.facts = list(known)
        self._changed = asyncio.Event()

    def receive(self, fact: Recorded[Message]) -> None:
        if not self.facts or self.facts[-1].sequence < fact.sequence:
            self.facts.append(fact)
            self._changed.set()

    async def until(self, is_enough: IsEnough) -> Facts:
        """Return the facts as soon as `is_enough` accepts them, or after some seconds."""
        [facts] = await until_each(self._log, [self], is_enough)
        return facts

    @property
    def is_following(self) -> bool:
        """Every fact stored from now on will be received."""
        return self._waiter is not None and self._waiter.is_following

    async def next(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def learn(self, facts: Facts) -> None:
        """Take the facts of a read, unless a lagging replica answered it."""
        if facts and (not self.facts or self.facts[-1].sequence <= facts[-1].sequence):
            self.facts = list(facts)


async def until_each(log: EventLog, awaited: Sequence[Awaited], is_enough: IsEnough) -> list[Facts]:
    """Return the facts of each scope as soon as `is_enough` accepts all of them.

    After some seconds it returns the known facts. Missing facts are read in one request after each pause.
    """
    await until_all(log, [(waiting, is_enough) for waiting in awaited])
    return [waiting.facts for waiting in awaited]


async def until_all(log: EventLog, awaited: Sequence[tuple[Awaited, IsEnough]]) -> None:
    """Wait as `until_each` does, with a condition for each scope.

    A scope may be there several times.
    """

    def is_missing(wish: tuple[Awaited, IsEnough]) -> bool:
        waiting, is_enough = wish
        return not (waiting.facts and is_enough(waiting.facts))

    fallback, polling = iter(FALLBACK_PAUSES_S), iter(POLL_PAUSES_S)
    missing = list(filter(is_missing, awaited))
    while missing:
        pause = next(fallback if missing[0][0].is_following else polling, None)
        if pause is None:
            break
        try:
            async with asyncio.timeout(pause):
                while missing:
                    await missing[-1][0].next()
                    while missing and not is_missing(missing[-1]):
                        missing.pop()
        except TimeoutError:
            reads = await log.load_each(*(waiting.scope for waiting, _ in missing))
            for (waiting, _), facts in zip(missing, reads.facts, strict=True):
                waiting.learn(facts)
            missing = list(filter(is_missing, missing))


def awaited_of(
    log: EventLog, arrivals: EventWaiter | None, scope: str, known: Facts = ()
) -> AbstractContextManager[Awaited]:
    """Wait for facts of an execution, with or without a waiter."""
    return nullcontext(Awaited(log, scope, known)) if arrivals is None else arrivals.of(scope, known)


async def until(log: EventLog, scope: str, is_enough: IsEnough) -> Facts:
    """Read a scope until `is_enough` accepts its facts, or some seconds passed."""
    facts: Facts = ()
    for pause in POLL_PAUSES_S:
        await asyncio.sleep(pause)
        facts = await log.load(scope)
        if is_enough(facts):
            break
    return facts
