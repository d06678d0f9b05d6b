"""The network between processes and server: a fault may occur at every request.

A request travels, is answered at one instant, and the answer travels back. Either may be lost, be repeated, or arrive after the caller
has timed out. The calling process may die or pause at any point.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeAlias, TypeVar

from tocsin.ports import LogUnavailable

from .faults import NONE, Faults
from .loop import VirtualLoop
from .process import Process
from .trace import Trace

T = TypeVar("T")
Replied: TypeAlias = Callable[[object, Exception | None], None]
"""Takes the result or the error of a request."""

PATIENCE: Final = 0.8
"""Seconds after which a caller times out."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """An answer that the server has only after some seconds, when its replicas store the request."""

    seconds: float
    store: Callable[[], object]


@dataclass(slots=True)
class Network:
    """The network that all processes share. `on_crash` is called with a process that has died."""

    loop: VirtualLoop
    chance: Random
    trace: Trace
    faults: Faults = NONE
    on_crash: Callable[[Process], None] = print
    on_its_way: int = field(default=0)
    """Questions that have not arrived yet."""
    interruptions: list[tuple[float, float]] = field(default_factory=list)
    """From when until when (the loop's time) a process stood still; a death is a moment."""

    delays: list[tuple[float, float]] = field(default_factory=list)
    """From when until when (the loop's time) a message was slow on its way, or was awaited in vain."""

    def was_slow(self, since: float, until: float) -> bool:
        """Return whether a message was slow in a span of the loop's time."""
        return any(start <= until and end >= since for start, end in self.delays)

    def was_interrupted(self, since: float, until: float) -> bool:
        """Return whether a process died or stood still in a span of the loop's time."""
        return any(start <= until and end >= since for start, end in self.interruptions)

    def longest_pause(self, since: float, until: float) -> float:
        """Return the seconds of the longest pause in a span of the loop's time."""
        pauses = (end - start for start, end in self.interruptions if start <= until and end >= since)
        return max(pauses, default=0.0)

    async def ask(self, process: Process, what: str, answer: Callable[[], T | InFlight], *, is_read: bool = False) -> T:
        """Let the server compute `answer`, and return its value or raise its error.

        Raises:
            LogUnavailable: no answer arrived; the request may have been carried out.
        """
        process.check()
        question = _Question(self, process, what, answer, self.loop.create_future(), is_read)
        question.send()
        return await question.reply  # type: ignore[no-any-return]

    def latency(self, process: Process) -> float:
        """Seconds on one way between a process and the server."""
        chance = self.chance.random()
        if chance < self.faults.slow:
            seconds = self.chance.uniform(0.02, 1.5)
            self.delays.append((self.loop.time(), self.loop.time() + seconds))
            return seconds
        return 0.0004 + 0.004 * chance + (1.5 - chance) * process.distance

    def following(self, process: Process) -> float:
        """Return the seconds until a follower receives a stored message."""
        if self.faults.lagging and self.chance.random() < self.faults.lagging:
            return self.chance.uniform(1.0, 8.0)
        return self.latency(process)

    def befall(self, process: Process) -> None:
        """Inject the faults that may occur in a process at any moment."""
        draw = self.chance.random()
        if draw < self.faults.crash:
            self.kill(process)
        elif draw > 1.0 - self.faults.freeze:
            seconds, is_counted = self.chance.uniform(0.1, 12.0), self.chance.random() < 0.7
            self.trace.note(self.loop.time(), process.name, f"** stands still for {seconds:.1f}s ({is_counted=})")
            process.freeze(seconds, is_counted=is_counted)
            self.interruptions.append((self.loop.time(), self.loop.time() + seconds))

    def kill(self, process: Process) -> None:
        """Let a process die."""
        if process.is_alive:
            self.trace.note(self.loop.time(), process.name, "** dies")
            process.crash()
            self.interruptions.append((self.loop.time(), self.loop.time()))
            self.on_crash(process)


class _Question:
    """One, and its answer."""

    __slots__ = ("_answer", "_is_read", "_network", "_process", "_what", "reply")

    def __init__(
        self,
        network: Network,
        process: Process,
        what: str,
        answer: Callable[[], Any],
        reply: "asyncio.Future[Any]",
        is_read: bool,  # noqa: FBT001 - made in one place
    ) -> None:
        self._network = network
        self._process = process
        self._what = what
        self._answer = answer
        self._is_read = is_read
        self.reply = reply

    def send(self) -> None:
        network = self._network
        faults, draw = network.faults, network.chance.random()
        network.befall(self._process)
        if draw < faults.lost:
            self._give_up("is lost")
        elif draw < faults.lost + faults.belated:
            self._give_up("is given up")
            self._travel(PATIENCE + network.chance.uniform(0.0, 6.0), self._arrive_late)
        else:
            self._travel(network.latency(self._process), self._arrive)

    def _travel(self, delay: float, arrive: Callable[[], None]) -> None:
        self._network.on_its_way += 1
        self._network.loop.call_later(delay, self._arrived, arrive)

    def _arrived(self, arrive: Callable[[], None]) -> None:
        self._network.on_its_way -= 1
        arrive()

    def _arrive(self) -> None:
        self._perform(self._reply)

    def _reply(self, result: object, error: Exception | None) -> None:
        network, faults = self._network, self._network.faults
        network.befall(self._process)
        draw = network.chance.random()
        if draw < faults.unanswered:
            self._give_up("is not answered")
        elif draw < faults.unanswered + faults.repeated and not self._is_read:
            self._travel(network.latency(self._process), self._arrive_again)
        else:
            self._process.call_later(network.latency(self._process), lambda: self._settle(result, error))

    def _arrive_again(self) -> None:
        self._perform(self._reply_again, " (again)")

    def _reply_again(self, result: object, error: Exception | None) -> None:
        self._process.call_later(self._network.latency(self._process), lambda: self._settle(result, error))

    def _arrive_late(self) -> None:
        if not self._is_read:
            self._perform(_forget, " (late)")

    def _perform(self, reply: Replied, how: str = "", *, answer: Callable[[], object] | None = None) -> None:
        """Let the server answer, and hand the answer on when it has it."""
        result, error = None, None
        try:
            result = (answer or self._answer)()
            told = str(result) if isinstance(result, int) else ""
        except Exception as raised:  # noqa: BLE001 - the caller must receive the error
            error, told = raised, type(raised).__name__
        if isinstance(result, InFlight):
            store, told = result.store, "in flight"
            self._travel(result.seconds, lambda: self._perform(reply, how, answer=store))
        self._network.trace.note(self._network.loop.time(), self._process.name, f"{self._what}{how} → {told}")
        if not isinstance(result, InFlight):
            reply(result, error)

    def _give_up(self, why: str) -> None:
        self._network.trace.note(self._network.loop.time(), self._process.name, f"{self._what} {why}")
        self._network.delays.append((self._network.loop.time(), self._network.loop.time() + PATIENCE))
        error = LogUnavailable(f"{self._what} {why}")
        self._process.call_later(PATIENCE, lambda: self._settle(None, error))

    def _settle(self, result: object, error: Exception | None) -> None:
        if self.reply.done():
            return
        if error is None:
            self.reply.set_result(result)
        else:
            self.reply.set_exception(error)


def _forget(_result: object, _error: Exception | None) -> None:
    """Take an answer that comes after its caller has timed out."""


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The answer of an in-memory adapter, none of which waits for anything."""
    try:
        coroutine.send(None)
    except StopIteration as answer:
        return answer.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("it waits")
