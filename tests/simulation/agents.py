"""The channels between workers, the API and the matcher: a message may be late or lost, and no stream stores it."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tocsin.domain.agent import Command, HoldList
from tocsin.domain.task_fetch import Answer
from tocsin.ports import (
    HandOver,
    ReceiveAbsence,
    ReceiveBody,
    ReceiveHoldList,
)
from tocsin.stages.matcher.stage import Matcher

from .faults import NONE
from .network import Network
from .process import Process, current

EVERYBODY: Final = ("", "")


@dataclass(eq=False, slots=True)
class Listener:
    """A subscription of a process."""

    process: Process
    kind: str
    key: tuple[str, str]
    receive: Callable[..., None]
    hall: "Hall"

    def _note_drain(self, message: Sequence[Any]) -> None:
        at = self.process.loop.time()
        if self.kind == "command" and Command.model_validate_json(message[-1]).mode == "draining":
            self.hall.draining.setdefault(self.key, at)
        elif self.kind == "hold-list" and isinstance(getattr(self.receive, "__self__", None), Matcher):
            self._note_mode(HoldList.model_validate_json(message[-1]).mode, message[0], message[1], at)

    def _note_mode(self, mode: str, name: str, agent_id: str, at: float) -> None:
        if mode == "draining":
            self.hall.heard_draining.setdefault((self.process.name, name, agent_id), at)

    def hear(self, *message: Any) -> None:  # noqa: ANN401 - what the callback takes
        """Take a message inside the process."""
        token = current.set(self.process)
        self._note_drain(message)
        try:
            self.receive(*message)
        finally:
            current.reset(token)


@dataclass(slots=True)
class Hall:
    """The subscriptions of all processes."""

    lost: float = 0.01
    """The share of messages that are lost: core NATS delivers at most once."""
    deadly: float = 0.0
    """The share of tasks whose agent dies soon after."""
    listeners: list[Listener] = field(default_factory=list)
    handed_over: dict[int, float] = field(default_factory=dict)
    """When each claim was handed over first, to an agent or in the answer to a fetch, by its sequence, in seconds of the loop."""
    draining: dict[tuple[str, str], float] = field(default_factory=dict)
    """When each agent that drains heard of it, by its name and id."""
    heard_draining: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """When a matcher heard first that an agent drains, by the matcher's process and the agent's name and id."""
    acknowledged: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    """The proposals that each agent acknowledged in a hold list, also in one that was lost, by its name and id."""

    def of(self, kind: str, key: tuple[str, str] = EVERYBODY) -> list[Listener]:
        """Return the subscriptions of living processes."""
        return [each for each in self.listeners if each.process.is_alive and (each.kind, each.key) == (kind, key)]


class SimulatedChannel:
    """Implements `ports.AgentChannel` and `ports.FetchChannel` for one process."""

    def __init__(self, hall: Hall, network: Network, process: Process) -> None:
        self._hall = hall
        self._network = network
        self._process = process
        self.connections = 1

    async def announce(self, name: str, agent_id: str, body: bytes) -> None:
        if b'"acknowledged"' in body:
            said = HoldList.model_validate_json(body).acknowledged
            self._hall.acknowledged.setdefault((name, agent_id), set()).update(said)
        self._send("hold-list", EVERYBODY, name, agent_id, body)

    async def is_heard(self, name: str, agent_id: str, body: bytes, *, wait: float) -> bool:
        await self.announce(name, agent_id, body)
        if not self._hall.of("hold-list"):
            return False
        await self._process.wait(wait)
        return True

    async def catch_up(self) -> None:
        self._process.check()

    @asynccontextmanager
    async def hold_lists(self, receive: ReceiveHoldList) -> AsyncIterator[None]:
        async with self._listening("hold-list", EVERYBODY, receive):
            yield

    async def command(self, name: str, agent_id: str, body: bytes) -> None:
        self._send("command", (name, agent_id), body)

    @asynccontextmanager
    async def commands(self, name: str, agent_id: str, receive: ReceiveBody) -> AsyncIterator[None]:
        async with self._listening("command", (name, agent_id), receive):
            yield

    async def hand_over(self, tasks: Sequence[HandOver]) -> Sequence[HandOver]:
        self._process.check()
        for task in tasks:
            self._hall.handed_over.setdefault(task.number, self._network.loop.time())
            if not self._send("task", (task.name, task.agent_id), task.body):
                for listener in self._hall.of("absence", (self._process.name, "")):
                    self._deliver(listener, task.agent_id, task.number)
        return ()

    @asynccontextmanager
    async def tasks(self, name: str, agent_id: str, receive: ReceiveBody) -> AsyncIterator[None]:
        async with self._listening("task", (name, agent_id), receive):
            yield

    async def send_ends(self, name: str, agent_id: str, body: bytes) -> None:
        self._send("end", (name, agent_id), body)

    @asynccontextmanager
    async def ends(self, name: str, agent_id: str, receive: ReceiveBody) -> AsyncIterator[None]:
        async with self._listening("end", (name, agent_id), receive):
            yield

    @asynccontextmanager
    async def absences(self, receive: ReceiveAbsence) -> AsyncIterator[None]:
        async with self._listening("absence", (self._process.name, ""), receive):
            yield

    async def call_roll(self) -> None:
        self._send("roll-call", EVERYBODY)

    @asynccontextmanager
    async def roll_calls(self, receive: Callable[[], None]) -> AsyncIterator[None]:
        async with self._listening("roll-call", EVERYBODY, receive):
            yield

    @asynccontextmanager
    async def _listening(self, kind: str, key: tuple[str, str], receive: Callable[..., None]) -> AsyncIterator[None]:
        listener = Listener(self._process, kind, key, receive, self._hall)
        self._hall.listeners.append(listener)
        try:
            yield
        finally:
            self._hall.listeners.remove(listener)

    async def request(self, body: bytes) -> None:
        self._send("fetch", EVERYBODY, body)

    @asynccontextmanager
    async def requests(self, receive: ReceiveBody) -> AsyncIterator[None]:
        async with self._listening("fetch", EVERYBODY, receive):
            yield

    async def answer(self, gateway: str, body: bytes) -> None:
        for claim in Answer.model_validate_json(body).claims:
            self._hall.handed_over.setdefault(claim.sequence, self._network.loop.time())
        self._send("answer", (gateway, ""), body)

    @asynccontextmanager
    async def answers(self, gateway: str, receive: ReceiveBody) -> AsyncIterator[None]:
        async with self._listening("answer", (gateway, ""), receive):
            yield

    async def call_fetches(self) -> None:
        self._send("call", EVERYBODY)

    @asynccontextmanager
    async def calls(self, receive: Callable[[], None]) -> AsyncIterator[None]:
        async with self._listening("call", EVERYBODY, receive):
            yield

    def _send(self, kind: str, key: tuple[str, str], *message: Any) -> bool:  # noqa: ANN401 - what the callback takes
        """Send a message to all listeners; return whether there are any."""
        self._network.befall(self._process)
        self._process.check()
        listeners = self._hall.of(kind, key)
        for listener in listeners:
            self._deliver(listener, *message)
        return bool(listeners)

    def _deliver(self, listener: Listener, *message: Any) -> None:  # noqa: ANN401 - what the callback takes
        network = self._network
        is_trouble = network.faults is not NONE
        if is_trouble and listener.kind == "task" and network.chance.random() < self._hall.deadly:
            network.loop.call_later(network.chance.uniform(0.0, 5.0), network.kill, listener.process)
        if not is_trouble or network.chance.random() >= self._hall.lost:
            listener.process.call_later(network.latency(listener.process), partial(listener.hear, *message))
