"""Notices to agents that executions are over, so that their handlers stop.

A notice follows the end that the fold met. It may be lost, or the matcher may stop before it sends it: then the next hold
lists of the agent name a task without a claim, and the matcher reads in the log whether its execution is over.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from sys import getsizeof
from typing import Final

import msgspec

from ... import telemetry
from ...domain import execution
from ...domain.agent import EndNotice, HeldEntry, read_held
from ...domain.task_board import TaskBoard
from ...ports import AgentChannel, Clock, EventLog
from .agents import HeardAgent, HeardAgents

CHECK_AFTER_S: Final = 2.0
"""Time after which a task without a claim is looked for in the log: a hold list may be older than the report on the task."""
CHECKED_TASKS: Final = 32
"""Tasks of one agent that are looked for at a time."""
WATCHED_BYTES: Final = 16_384
"""The bytes of the names that are kept of one hold list, for the checks until the next list."""
AT_ONCE: Final = 256
"""Tasks of all agents that are looked for at a time, and executions in one notice."""

_log = telemetry.get_logger("tocsin.matcher")


@dataclass(frozen=True, slots=True)
class _Watch:
    """Tasks of a hold list that have no claim."""

    due: float
    """When the next of them are looked for, in seconds of the monotonic clock."""
    next: tuple[str, ...]
    waiting: tuple[str, ...]
    """Tasks that are looked for later, so that each has its turn."""

    def held(self, names: Sequence[str]) -> "_Watch":
        """Return the watch after a newer hold list.

        `names`: the tasks in the list that have no claim.
        """
        known = frozenset(names)
        following = tuple(name for name in self.next if name in known)
        waiting = [name for name in self.waiting if name in known]
        others = known.difference(following, waiting)
        waiting += (name for name in names if name in others)
        return _Watch(self.due, following, _first_of(waiting))


class EndNotices:
    """Sends agents the executions that are over."""

    def __init__(
        self, log: EventLog, channel: AgentChannel, board: TaskBoard, agents: HeardAgents, clock: Clock
    ) -> None:
        self._log = log
        self._channel = channel
        self._board = board
        self._agents = agents
        self._clock = clock
        self._watches: dict[str, _Watch] = {}

    def forget(self) -> None:
        """Send nothing about ends until now: another matcher leads."""
        self._board.take_ended()
        self._watches.clear()

    async def send(self) -> None:
        """Send notices of the ends that the fold met since the last call."""
        over: dict[str, list[str]] = {}
        for claim in self._board.take_ended():
            over.setdefault(claim.agent, []).append(claim.task.execution)
        for key, executions in over.items():
            await self._send(key, executions)

    def compare(self, agent: HeardAgent) -> None:
        """Note the tasks of a new hold list that have no claim."""
        if agent.tasks is None:
            return
        unclaimed = [name for name in agent.tasks.held if self._unclaimed(agent, name) is not None]
        watch = self._watches.get(agent.key) or _Watch(self._clock.monotonic() + CHECK_AFTER_S, (), ())
        self._watch(agent, watch.held(unclaimed))

    async def check(self) -> None:
        """Look for tasks without a claim, and send notices of ends that the log has."""
        now = self._clock.monotonic()
        looked_at: list[tuple[HeardAgent, _Watch]] = []
        entries: dict[str, list[HeldEntry]] = {}
        number = 0
        for key, watch in tuple(self._watches.items()):
            if watch.due > now:
                continue
            if number >= AT_ONCE:
                break
            del self._watches[key]  # noted again below, after the others
            agent = self._agents.get(key)
            if agent is None or agent.is_silent(now):
                continue  # its next hold list is compared again
            looked_at.append((agent, watch))
            entries[key] = [entry for name in watch.next if (entry := self._unclaimed(agent, name)) is not None]
            number += len(entries[key])
        over = await self._over(entry for some in entries.values() for entry in some)
        for agent, watch in looked_at:
            executions = dict.fromkeys(entry.execution for entry in entries[agent.key])
            await self._send(agent.key, [execution for execution in executions if execution in over])
            unclaimed = [name for name in watch.waiting + watch.next if self._unclaimed(agent, name) is not None]
            self._watch(agent, _Watch(now + CHECK_AFTER_S, (), tuple(unclaimed)))

    def _watch(self, agent: HeardAgent, watch: _Watch) -> None:
        """Look for the tasks of a watch later, if it has any."""
        if not watch.next:
            names = watch.waiting
            watch = _Watch(self._clock.monotonic() + CHECK_AFTER_S, names[:CHECKED_TASKS], names[CHECKED_TASKS:])
        if watch.next:
            self._watches[agent.key] = watch
        else:
            self._watches.pop(agent.key, None)

    def _unclaimed(self, agent: HeardAgent, name: str) -> HeldEntry | None:
        """Return a held task that has no claim in its agent's name."""
        if (entry := read_held(name)) is None:
            return None
        claim = self._board.claim_of(_scope(entry), entry.step)
        return None if claim is not None and claim.agent == agent.key else entry

    async def _over(self, entries: Iterable[HeldEntry]) -> frozenset[str]:
        """Return which executions are over, as the log says."""
        scopes = {entry.execution: _scope(entry) for entry in entries}
        if not scopes:
            return frozenset()
        loaded = await self._log.load_each(*scopes.values())
        of_each = zip(scopes, loaded.facts, strict=True)
        return frozenset(key for key, facts in of_each if not facts or execution.fold(facts).is_over)

    async def _send(self, key: str, executions: Sequence[str]) -> None:
        agent = self._agents.get(key)
        if agent is None or not executions:
            return
        for first in range(0, len(executions), AT_ONCE):
            notice = EndNotice(tuple(executions[first : first + AT_ONCE]))
            await self._channel.send_ends(agent.name, agent.agent_id, msgspec.json.encode(notice))
        _log.info(
            "notice of ends sent",
            action="ends-sent",
            agent=agent.name,
            agent_id=agent.agent_id,
            number=len(executions),
        )


def _scope(entry: HeldEntry) -> str:
    return f"execution.{entry.execution}.>"


def _first_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return as many of the names as are kept."""
    names = tuple(names)
    sizes = accumulate(map(getsizeof, names))
    return tuple(name for name, size in zip(names, sizes, strict=True) if size <= WATCHED_BYTES)
