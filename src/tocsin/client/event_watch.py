"""One follower of events for all callers of a client that wait for executions.

Callers that wait for executions of one job share its follower. Beyond `MAX_FOLLOWERS` jobs, one follower of all jobs serves the
rest, so that a client opens few connections however many executions it waits for.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Final

from .. import telemetry
from ..domain.events import ExecutionFact, FannedOut, Message, Recorded, Skipped, Terminal
from ..ports import LogUnavailable, NotAllowed
from ..services.operator import Operator

MAX_FOLLOWERS: Final = 8
"""Followers of single jobs that a client has at a time."""
CHECKS_S: Final = (2.0, 30.0)
"""Times after which a caller that misses events reads once more: a lagging replica may have answered its first read."""
MAX_BUFFERED: Final = 2_000
"""Events that wait for one caller. Beyond it the caller reads them from the log again."""
LINGER_S: Final = 30.0
"""How long a follower stays after its last caller."""
PAUSES_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Pauses before events are followed again after a failure; the last is repeated."""

_log = telemetry.get_logger("tocsin.client")


class Watcher:
    """The events that wait for one caller."""

    def __init__(self) -> None:
        self._facts: list[Recorded[Message]] = []
        self._changed = asyncio.Event()
        self._checks = iter(CHECKS_S)
        self._error: Exception | None = None
        self._must_read = False
        self.has_end = False
        """The last event of an execution has arrived."""

    def receive(self, fact: Recorded[Message]) -> None:
        """Take an event of an awaited execution."""
        if len(self._facts) < MAX_BUFFERED:
            self._facts.append(fact)
        else:
            self.miss()
        self.has_end = self.has_end or is_end(fact.message)
        self._changed.set()

    def miss(self) -> None:
        """Note that events may have been missed, so that the execution must be read."""
        self._must_read = True
        self._checks = iter(CHECKS_S)
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Note that no event will arrive any more."""
        self._error = error
        self._changed.set()

    async def take(self) -> tuple[Sequence[Recorded[Message]], bool]:
        """Wait for events; return them, and whether the execution must be read instead."""
        try:
            async with asyncio.timeout(next(self._checks, None)):
                await self._changed.wait()
        except TimeoutError:
            self._must_read = True
        self._changed.clear()
        if self._error is not None:
            raise self._error
        taken, self._facts = self._facts, []
        must_read, self._must_read = self._must_read, False
        return taken, must_read


def is_end(fact: Message) -> bool:
    """Return whether no event of the execution follows."""
    return isinstance(fact, Terminal | Skipped | FannedOut)


class EventWatch:
    """The followers of one client."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._followers: dict[str | None, _Follower] = {}

    @contextmanager
    def watching(self, job: str, execution_id: str) -> Iterator[Watcher]:
        """Receive the events of an execution within the block.

        `take` requests a read of the execution once all later events are certain to arrive.
        """
        has_own = job in self._followers or len(self._followers.keys() - {None}) < MAX_FOLLOWERS
        key = job if has_own else None
        follower = self._followers.get(key)
        if follower is None or follower.has_ended:
            follower = self._followers[key] = _Follower(self._operator, key, self._forget)
        watcher = Watcher()
        follower.add(execution_id, watcher)
        try:
            yield watcher
        finally:
            follower.remove(execution_id, watcher)

    async def aclose(self, error: Exception) -> None:
        """Stop all followers; callers that still wait get `error`."""
        followers = list(self._followers.values())
        self._followers.clear()
        for follower in followers:
            await follower.aclose(error)

    def _forget(self, follower: "_Follower") -> None:
        if self._followers.get(follower.key) is follower:
            del self._followers[follower.key]


class _Follower:
    """Follows the events of one job, or of all jobs."""

    def __init__(self, operator: Operator, key: str | None, forget: "Callable[[_Follower], None]") -> None:
        self.key = key
        self._operator = operator
        self._forget = forget
        self._watchers: defaultdict[str, list[Watcher]] = defaultdict(list)
        self._is_following = False
        self._is_leaving = False
        self._lingering: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(self._run())

    @property
    def has_ended(self) -> bool:
        return self._is_leaving or self._task.done()

    def add(self, execution_id: str, watcher: Watcher) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        self._watchers[execution_id].append(watcher)
        if self._is_following:
            watcher.miss()

    def remove(self, execution_id: str, watcher: Watcher) -> None:
        self._watchers[execution_id].remove(watcher)
        if not self._watchers[execution_id]:
            del self._watchers[execution_id]
        if not self._watchers and not self.has_ended:
            self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self._leave)

    def _leave(self) -> None:
        self._is_leaving = True
        self._task.cancel()

    async def aclose(self, error: Exception) -> None:
        self._leave()
        await asyncio.gather(self._task, return_exceptions=True)
        self._fail(error)

    async def _run(self) -> None:
        failures = 0
        try:
            while True:
                try:
                    async with aclosing(self._operator.follow(self.key)) as batches:
                        async for batch in batches:
                            self._is_following, failures = True, 0
                            self._pass_on(batch)
                except NotAllowed:
                    raise
                except LogUnavailable as error:
                    _log.warning("events cannot be followed", action="not-heard", job=self.key, error=str(error))
                self._is_following = False
                self._pass_on(())  # each watcher reads by itself meanwhile
                await asyncio.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
                failures += 1
        except Exception as error:  # noqa: BLE001 - raised again in the callers that wait
            self._fail(error)
        finally:
            if self._lingering is not None:
                self._lingering.cancel()
            self._forget(self)

    def _pass_on(self, batch: Sequence[Recorded[Message]]) -> None:
        for fact in batch:
            if isinstance(fact.message, ExecutionFact):
                for watcher in tuple(self._watchers.get(fact.message.execution_id, ())):
                    watcher.receive(fact)
        if not batch:
            for watcher in self._all():
                watcher.miss()

    def _fail(self, error: Exception) -> None:
        for watcher in self._all():
            watcher.fail(error)

    def _all(self) -> list[Watcher]:
        return [watcher for watchers in self._watchers.values() for watcher in watchers]
