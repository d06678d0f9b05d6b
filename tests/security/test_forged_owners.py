"""A worker account that forges hold lists moves no shard and no executor lease, and runs nothing twice."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.security.installations import connected, installed
from tests.security.server import Server
from tests.security.test_worker_claims import serving, stages
from tests.system.running import Running
from tocsin import Context, Worker
from tocsin.bootstrap import Installation
from tocsin.domain import ownership
from tocsin.domain.agent import MAX_FUNCTIONS, MAX_HELD, MAX_HOLD_LIST_BYTES
from tocsin.domain.definition.partition import MAX_SHARDS
from tocsin.domain.events import (
    AgentGranted,
    Message,
    OwnershipAssigned,
    QueueGrant,
    Released,
    Shard,
    ShardsDefined,
    Started,
)

SHARDS: Final = tuple(f"s{number}" for number in range(6))
HEALTHY: Final = ("north", "south")
INVENTED: Final = 1_500
"""Processes of one name: more than a matcher keeps."""
ROUNDS: Final = 3


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Server]:
    with installed(tmp_path / "server") as running:
        yield running


class Forger:
    """A process of the account `worker-mail` that sends hold lists that are not true."""

    def __init__(self, installation: Installation, claims: Sequence[Started], agents: Sequence[str]) -> None:
        self._client = installation.connection.client
        self._names = installation.names
        self._claims = claims
        self._agents = agents
        self._number = 1_000

    async def send(self, agent_id: str, body: bytes, *, name: str = "mail") -> None:
        await self._client.publish(self._names.hold_list(name, agent_id), body)

    def hold_list(self, **fields: Any) -> bytes:  # noqa: ANN401 - of a hold list
        """Return a hold list that wants everything."""
        self._number += 1
        wanted = {
            "number": self._number,
            "mode": "enabled",
            "queues": ["default"],
            "functions": ["sweep", "lead"],
            "shards": ["*"],
            "max_concurrent_jobs": 1_000_000,
            "leader_candidate": True,
        }
        return json.dumps(wanted | fields).encode()

    def lies(self) -> Iterator[bytes]:
        """Yield hold lists with the tasks and claims of others, and what no agent may say."""
        held = [f"{c.job}.{c.execution_id}.{c.step}.{c.attempt}" for c in self._claims]
        sequences = list(range(1, 1 + MAX_HELD))
        yield self.hold_list()
        yield self.hold_list(held=held[:MAX_HELD])
        yield self.hold_list(handed_back=sequences)
        yield self.hold_list(held=held[:MAX_HELD], handed_back=sequences, acknowledged=sequences[:100])
        yield self.hold_list(shards=list(SHARDS), epoch=2**62, leader_epoch=2**62, owner="mail", resource="executor")
        yield self.hold_list(shards=[f"x{n}" for n in range(MAX_SHARDS)])
        yield self.hold_list(functions=[f"f{n}" for n in range(MAX_FUNCTIONS)])
        yield self.hold_list(shards=["executor", "shard-s0", "s0 ", "*.*", ">"])
        yield self.hold_list(host="h" * (MAX_HOLD_LIST_BYTES - 400))
        yield self.hold_list(host="h" * (MAX_HOLD_LIST_BYTES + 1))
        yield self.hold_list(number=2**62)
        yield self.hold_list(number=2**70)
        yield self.hold_list(number=-1, mode="disabled")
        yield self.hold_list(mode="draining")
        yield self.hold_list(mode="owner")
        yield self.hold_list(labels={"a": "\ud800"})
        yield b'{"number": 9, "mode": "enabled", "shards": ' + b"[" * 20_000
        yield b"\xff\xfe" * 1_000
        yield b""
        yield self.hold_list(ended=True)

    async def attack(self) -> None:
        """Send all of them: as itself, under the ids of healthy agents, and as others, which the server refuses."""
        own = [f"01890f3e-0000-7000-8000-{number:012x}" for number in range(INVENTED)]
        for agent_id in (*self._agents, own[0]):
            for body in self.lies():
                await self.send(agent_id, body)
        for number, agent_id in enumerate(own[1:], 2):
            await self.send(agent_id, self.hold_list(number=self._number))
            if number % 100 == 0:
                await self._client.flush()
        for name in HEALTHY:
            for agent_id in self._agents:
                await self.send(agent_id, self.hold_list(number=2**61, ended=True, shards=[]), name=name)
        for body in (self.hold_list(), b"{}"):
            await self._client.publish(self._names.to_wire("ownership.executor.assigned"), body)
        await self._client.flush()


@asynccontextmanager
async def healthy(at: Server, folder: Path, ran: Counter[tuple[str, str | None]]) -> AsyncIterator[None]:
    """Run two workers that own all shards, and one of them the executor lease."""
    async with AsyncExitStack() as stack:
        for name in HEALTHY:
            worker = Worker(name=name, concurrency=4, shards=["*"])

            async def work(context: Context) -> None:
                ran[context.execution_id, context.shard] += 1
                await asyncio.sleep(0.3)  # the forged lists arrive while tasks run

            worker.task("sweep")(work)
            worker.task("lead")(work)
            await stack.enter_async_context(serving(at, folder, worker))
        yield


async def owners(tocsin: Running) -> list[tuple[str, str, str]]:
    """Return the resource, the name and the id of each owner that was ever stored."""
    stored = await tocsin.facts("ownership.>", OwnershipAssigned)
    return [(r.message.resource, r.message.name, r.message.agent_id) for r in stored]


async def claimed(tocsin: Running, number: int) -> list[Started]:
    """Wait until as many tasks were claimed."""
    return [r.message for r in await tocsin.stored("execution.*.*.started.>", Started, number)]


async def run_all(tocsin: Running, number: int) -> None:
    """Run both jobs once more, and wait for the ends of `number` runs of each."""
    await tocsin.trigger("sweep")
    await tocsin.trigger("lead")
    await tocsin.stored("execution.sweep.*.completed", Message, number * len(SHARDS))
    await tocsin.stored("execution.lead.*.completed", Message, number)


@pytest.mark.full
async def test_forged_hold_lists_move_nothing(secured: Server, tmp_path: Path) -> None:
    before, ran = len(secured.log), Counter[tuple[str, str | None]]()
    async with (
        stages(secured, tmp_path) as tocsin,
        connected(secured, tmp_path, "api") as api,
        connected(secured, tmp_path, "worker-mail") as hostile,
        healthy(secured, tmp_path, ran),
    ):
        tocsin.patience = 120.0
        await api.log.append(ShardsDefined(shards=tuple(Shard(shard_id=shard) for shard in (*SHARDS, "own"))), expect=0)
        grant = AgentGranted(name="mail", grants=(QueueGrant(queue="default", functions=("*",)),), shards=("own",))
        await api.log.append(grant, expect=0)
        await tocsin.apply(
            {"name": "sweep", "function": "sweep", "partition": {"shard_set": list(SHARDS)}, "overlap_policy": "allow"},
            {"name": "lead", "function": "lead", "job_class": "LEADER_ONLY", "overlap_policy": "allow"},
        )
        await run_all(tocsin, 1)
        first = await owners(tocsin)
        assert {resource for resource, *_ in first} >= {ownership.EXECUTOR, *map(ownership.shard_resource, SHARDS)}
        assert {name for _, name, _ in first} <= set(HEALTHY)
        forger = Forger(hostile, await claimed(tocsin, len(SHARDS) + 1), sorted({id_ for *_, id_ in first}))
        for number in range(2, ROUNDS + 2):
            attack = asyncio.create_task(forger.attack())
            await run_all(tocsin, number)
            await attack
        claims = await claimed(tocsin, len(ran))
        assert [owner for owner in await owners(tocsin) if owner[1] not in HEALTHY] == []
        assert {resource: id_ for resource, _, id_ in await owners(tocsin)} == {r: id_ for r, _, id_ in first}
        assert {claim.worker for claim in claims} <= set(HEALTHY)
        assert len(claims) == len(ran) == (ROUNDS + 1) * (len(SHARDS) + 1)
        assert set(ran.values()) == {1}
        assert await tocsin.facts("execution.*.*.released.>", Released) == []
    violations = secured.log[before:].count("Publish Violation")
    assert violations == ROUNDS * (len(HEALTHY) * len({id_ for *_, id_ in first}) + 2)
