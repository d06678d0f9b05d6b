"""Attacks of the account of an agent, by a process that knows everything about tasks except their secrets."""

from collections.abc import Iterator
from itertools import count, cycle
from typing import Any, Final

from nats.aio.client import Client

from tests.security.test_report_floods import SHAPES
from tests.security.test_worker_reports import forged, said_of
from tests.system.chaos.attackers import Attackers, Tally
from tests.system.chaos.headers import headers_for
from tests.system.chaos.installations import AGENT
from tocsin import subjects
from tocsin.adapters.nats.client.names import Names
from tocsin.domain.agent import MAX_FUNCTIONS, MAX_HELD, MAX_HOLD_LIST_BYTES, MAX_QUEUES, HoldList
from tocsin.domain.events import Dispatched, Recorded, unfold
from tocsin.ports import EventLog

USER: Final = f"worker-{AGENT}"
AGENTS: Final = 40
"""Processes that are invented; they return again and again."""
FLOOD: Final = 40
TASKS: Final = 5
"""The number of the newest tasks whose messages a burst forges."""
HOSTILE_LISTS: Final = (b"", b"\xff", b"[]", b"null", b"{", b"[" * 10_000, b'{"number": -1}', b'{"number": 1e999}')


class HostileAgents:
    """Invented processes of an account, and forged messages about the tasks of others."""

    def __init__(self, log: EventLog, names: Names, *, replicas: int) -> None:
        self._log = log
        self._names = names
        self._numbers = count(1)
        self._after = dict.fromkeys(subjects.ALL_TASKS, 0)
        self._newest: list[Recorded[Dispatched]] = []
        self._headers = cycle(headers_for(replicas))

    def join(self, attackers: Attackers) -> None:
        """Add each attack."""
        attackers.add("forged reports", USER, self.forge_reports)
        attackers.add("hold lists of invented agents", USER, self.announce_invented_agents)
        attackers.add("progress and output", USER, self.flood_output)

    async def forge_reports(self, client: Client, _: Tally) -> int:
        """Report on tasks of others, and store what is no report, with headers that command a stream."""
        await self._look()
        number, sent = next(self._numbers), 0
        for recorded in self._newest[1:]:
            for subject, body in forged(recorded.message, self._newest[0].message):
                await client.publish(self._names.to_wire(subject), body)
                sent += 1
        for shape in SHAPES:
            subject = self._names.to_wire(shape.format(n=number))
            await client.publish(subject, b"x" * 2_000, headers=dict(next(self._headers)))
        return sent + len(SHAPES)

    async def announce_invented_agents(self, client: Client, _: Tally) -> int:
        """Send long and hostile hold lists: they hold the tasks of others, and hand back the claims of others."""
        for number in range(FLOOD // 8):
            agent_id = f"01890f3e-0000-7000-8000-{next(self._numbers) % AGENTS:012x}"
            subject = self._names.hold_list(AGENT, agent_id)
            hostile = HOSTILE_LISTS[next(self._numbers) % len(HOSTILE_LISTS)]
            for body in (self._hold_list(number), hostile, b"x" * (MAX_HOLD_LIST_BYTES + 1)):
                await client.publish(subject, body)
        return 3 * (FLOOD // 8)

    def _hold_list(self, number: int) -> bytes:
        """Return a long list; its functions do not exist, because an agent may keep the tasks that it can run."""
        held = [_held(recorded.message) for recorded in self._newest]
        hold_list = HoldList(
            number=next(self._numbers),
            mode="enabled",
            queues=("default", *(f"q{n}" for n in range(MAX_QUEUES - 1))),
            functions=tuple(f"{n}" + "x" * 50 for n in range(MAX_FUNCTIONS)),
            held=(*held, *(f"job.{number}-{n}.main.1" for n in range(MAX_HELD - TASKS))),
            handed_back=tuple(recorded.sequence + n for recorded in self._newest for n in range(10)),
            max_concurrent_jobs=1_000_000,
        )
        return hold_list.model_dump_json().encode()

    async def flood_output(self, client: Client, _: Tally) -> int:
        """Send progress, output and heartbeats of the tasks of others, and of tasks that do not exist."""
        sent = 0
        for recorded in self._newest:
            for message in said_of(recorded.message):
                await client.publish(self._names.to_wire(subjects.output_of(message, "guessed")), message.encode())
                sent += 1
        for subject in _invented_output(next(self._numbers)):
            await client.publish(self._names.to_wire(subject), b"x" * 1_000)
        return sent + FLOOD

    async def _look(self) -> None:
        """Read the newest tasks, as an operator: the attacker guesses them well."""
        for pattern, after in self._after.items():
            if batch := await self._log.read(pattern, after=after):
                self._after[pattern] = batch[-1].sequence
                found: list[Recorded[Any]] = [r for r in unfold(batch) if isinstance(r.message, Dispatched)]
                self._newest = [*self._newest, *found][-TASKS:]


def _held(task: Dispatched) -> str:
    return ".".join((subjects.token(task.job), task.execution_id, subjects.token(task.step), str(task.attempt)))


def _invented_output(number: int) -> Iterator[str]:
    for n in range(FLOOD):
        yield f"{('progress', 'output', 'heartbeat')[n % 3]}.job-{n}.{number}.main.1.{n}"
