"""The worker as an agent: it sends hold lists, and follows the agent keeper's commands."""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from itertools import accumulate
from typing import Final, Literal

from pydantic import ValidationError

from .. import telemetry
from ..domain import agent, ids
from ..domain.agent import MAX_PROPOSALS, Command, HoldList, Mode
from ..ports import Clock, LogUnavailable, RequestRefused, Unreachable
from ..subjects import LAYOUT
from .cancellations import Cancellations
from .connection import Connection, Options
from .event_loop import first
from .handlers import Handlers
from .held_tasks import AssignedTask, HeldTasks
from .task_pool import Slots, TaskPool

INTERVAL_S: Final = 10.0
"""Time between two hold lists if nothing changes. The agent keeper waits three times as long."""
CHANGE_INTERVAL_S: Final = 1.0
"""The least time between two hold lists that differ only in the tasks."""
LOOK_INTERVAL_S: Final = 0.2
"""Time between two looks at what changed."""
GREETING_WAIT_S: Final = 2.0
"""How long a worker waits at its start for the agent keeper's answer."""

_log = telemetry.get_logger("tocsin.worker")

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


class WrongLayout(Unreachable):
    """The installation has another layout of streams than this worker."""

    code = "wrong-layout"


class AgentAnnouncer:
    """Sends the hold lists of one worker process."""

    def __init__(
        self,
        options: Options,
        handlers: Handlers,
        held_tasks: HeldTasks,
        slots: Slots,
        connection: Connection,
        *,
        limit: int,
    ) -> None:
        """`limit`: the number of tasks that the worker runs at the same time."""
        self._is_called = False
        self._connection = connection
        self.agent_id = ids.agent_id(options.name, connection.clock.now(), connection.noise())
        self._options = options
        self._handlers = handlers
        self._held_tasks = held_tasks
        self._slots = slots
        self._channel = connection.agents
        self._clock = connection.clock
        self._limit = limit
        self._mode: Mode | Literal["starting"] = "starting"
        self._answered = asyncio.Event()
        self._acknowledgements = Acknowledgements(connection.clock)
        self._number = 0
        self._is_refused = False
        self._layout: int | None = None
        """The layout of the installation, as the agent keeper last said."""

    async def greet(self) -> None:
        """Learn whether this worker may take tasks; without an answer, it may."""
        await first(self._ask(), self._answered.wait())
        if self._mode == "starting":
            advice = "no agent keeper answers; working. If no task arrives, check that the stages run (`tocsin status`)"
            _log.warning(advice, action="agent-not-answered", agent=self._options.name)
            self._apply("enabled")

    def receive(self, body: bytes) -> None:
        """Take a command."""
        try:
            command = Command.model_validate_json(body)
        except ValidationError:
            _log.warning("unknown command ignored", action="agent-command-refused", agent=self._options.name)
            return
        self._layout = command.layout
        self._apply(command.mode)
        self._answered.set()
        if command.proposals:
            self._acknowledgements.take(command.proposals)
            self._is_called = True

    def receive_roll_call(self) -> None:
        """Send the next hold list soon."""
        self._is_called = True

    def take_no_more(self) -> None:
        """Let the next hold list say that this worker takes no more tasks."""
        self._apply("draining")

    async def run(self) -> None:
        """Send hold lists.

        One follows each change, reconnect and roll call, and at least one comes every few seconds.

        Raises:
            WrongLayout: the installation has another layout of streams now.
        """
        last_state: object = None
        last_tasks: tuple[str, ...] = ()
        sent_at = float("-inf")
        while True:
            self.check_layout()
            state = self._mode, self._channel.connections, self._held_tasks.handed_back
            now = self._clock.monotonic()
            silence = now - sent_at
            is_due = self._is_called or state != last_state or silence >= INTERVAL_S
            if is_due or silence >= CHANGE_INTERVAL_S:
                tasks = self._held()
                if is_due or tasks != last_tasks:
                    self._is_called = False
                    with suppress(LogUnavailable):
                        await self._send(tasks)
                        last_state, last_tasks, sent_at = state, tasks, now
            await self._clock.sleep(LOOK_INTERVAL_S)

    async def end(self) -> None:
        """Send the last hold list, so that the agent is not taken for lost."""
        with suppress(LogUnavailable):
            await self._send((), ended=True)

    def check_layout(self) -> None:
        """Check what the agent keeper last said.

        Raises:
            WrongLayout: the installation has another layout of streams.
        """
        if self._layout not in {None, LAYOUT}:
            raise WrongLayout(
                f"the streams of this installation have layout {self._layout}, and this worker needs layout {LAYOUT}: run "
                "workers with the version of Tocsin that its stages have"
            )

    async def _ask(self) -> None:
        body = self._hold_list(())
        if body is not None:
            with suppress(LogUnavailable, RequestRefused):
                await self._channel.is_heard(self._options.name, self.agent_id, body, wait=GREETING_WAIT_S)

    async def _send(self, held: tuple[str, ...], *, ended: bool = False) -> None:
        body = self._hold_list(held, ended=ended)
        if body is None:
            return
        try:
            await self._channel.announce(self._options.name, self.agent_id, body)
        except RequestRefused as error:
            self._refuse(str(error))

    def _hold_list(self, held: tuple[str, ...], *, ended: bool = False) -> bytes | None:
        """Return the body of the next hold list; None: this worker cannot be registered."""
        self._number += 1
        try:
            hold_list = HoldList(
                number=self._number,
                mode=self._mode,
                host=socket.gethostname()[:255],
                version=self._connection.version,
                labels=dict(self._options.labels),
                queues=self._options.queues,
                functions=tuple(self._handlers),
                max_concurrent_jobs=self._limit,
                held=held,
                handed_back=self._held_tasks.handed_back,
                acknowledged=self._acknowledgements.named() if self._mode == "enabled" else (),
                ended=ended,
                leader_candidate=self._connection.leader_candidate,
                shards=self._options.shards if self._connection.shards is None else self._connection.shards,
            )
        except ValidationError as error:
            self._refuse(str(error))
            return None
        body = hold_list.model_dump_json(exclude_defaults=True).encode()
        if len(body) > agent.MAX_HOLD_LIST_BYTES:
            self._refuse(f"its hold list has {len(body)} bytes, and {agent.MAX_HOLD_LIST_BYTES} are allowed")
            return None
        return body

    def _refuse(self, reason: str) -> None:
        if not self._is_refused:
            self._is_refused = True
            _log.warning("worker not registered as an agent", action="agent-not-registered", reason=reason)

    def _apply(self, mode: Mode) -> None:
        if self._mode in {mode, "draining"}:  # draining is final for a process
            return
        _log.info(f"agent {mode}", action="agent-mode", agent=self._options.name, mode=mode)
        self._mode = mode
        self._slots.pause(is_paused=mode != "enabled")

    def _held(self) -> tuple[str, ...]:
        """Return the tasks that it holds, as many as a hold list has room for.

        A task that is left out is handed over again, and known here.
        """
        names = [task.name for task in self._held_tasks][: agent.MAX_HELD]
        sizes = accumulate(len(name) for name in names)
        return tuple(name for name, size in zip(names, sizes, strict=True) if size <= agent.MAX_HELD_BYTES)


REMEMBERED_CLAIMS: Final = 10_000
"""The number of claims by which a task that is handed over again is recognized."""


class AssignedTasks:
    """The tasks that arrive, each started once."""

    def __init__(self, pool: TaskPool, held_tasks: HeldTasks, cancellations: Cancellations) -> None:
        self._pool = pool
        self._held_tasks = held_tasks
        self._cancellations = cancellations
        self._known: OrderedDict[int, bool] = OrderedDict()
        """The claims that arrived, and whether each was handed back."""

    def receive(self, message: bytes) -> None:
        """Take an assigned task, which may arrive twice."""
        try:
            assignment, body = agent.unframed(message)
        except ValueError as error:
            _log.warning("assigned task unreadable", action="assignment-unreadable", error=str(error))
            return
        claim = assignment.claim
        if claim in self._known:
            if self._known[claim]:
                self._held_tasks.hand_back(claim)
        elif not self._cancellations.is_over(assignment.subject):
            self._remember(claim, was_handed_back=False)
            self._pool.take(AssignedTask(assignment, body, self.hand_back))

    def hand_back(self, claim: int) -> None:
        """Let the next hold list say that the task does not run here."""
        self._remember(claim, was_handed_back=True)
        self._held_tasks.hand_back(claim)

    def _remember(self, claim: int, *, was_handed_back: bool) -> None:
        self._known[claim] = was_handed_back
        if len(self._known) > REMEMBERED_CLAIMS:
            self._known.popitem(last=False)
