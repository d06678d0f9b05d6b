"""Several claims at once: one that cannot be handed over or judged leaves the others."""

import json

from tests.domain.given import KEY
from tests.domain.test_task_board import task
from tests.stages.world import World
from tocsin import subjects
from tocsin.adapters.memory.agents import InMemoryAgentChannel
from tocsin.domain.agent import agent_key
from tocsin.domain.events import Dispatched, Started
from tocsin.domain.open_task import OpenTask
from tocsin.domain.task_board import AgentClaim, TaskBoard
from tocsin.stages.matcher.agents import HeardAgents
from tocsin.stages.matcher.claims import Releases
from tocsin.stages.matcher.last_heartbeats import LastHeartbeats
from tocsin.stages.matcher.task_sender import TaskSender

WORKER, GONE = "01890f3e-0000-7000-8000-000000000001", "01890f3e-0000-7000-8000-000000000002"


async def claims(world: World, number: int) -> list[AgentClaim]:
    """Return the claims of as many executions, which the log has, by an agent of the id `WORKER`."""
    await world.define({"name": "load", "function": "f", "overlap_policy": "allow"})
    for message_id in map(str, range(number)):
        await world.trigger("load", message_id)
    await world.run(world.planner, world.dag_advancer)
    board, claims = TaskBoard(), []
    for recorded in await world.recorded(Dispatched):
        of = recorded.message
        await world.given(
            Started(job="load", execution_id=of.execution_id, step=of.step, attempt=1, delivery=1, worker="w")
        )
        scope = subjects.execution("load", of.execution_id)
        open_task = OpenTask(
            scope, of.step, 1, recorded.sequence, recorded.subject, "load", "default", "f", recorded.time, of
        )
        claims.append(board.confirm(open_task, agent_key("w", WORKER), sequence=await world.log.tail(scope)))
    return claims


async def test_an_unknown_agent_leaves_the_other_tasks(world: World) -> None:
    channel, got = InMemoryAgentChannel(), list[bytes]()
    agents = HeardAgents(world.clock.monotonic)
    announced = {"number": 1, "mode": "enabled", "queues": ["default"], "functions": ["f"], "max_concurrent_jobs": 9}
    agents.receive("w", WORKER, json.dumps(announced).encode())
    agents.read()
    board = TaskBoard()
    sent = [
        board.confirm(task(sequence), agent_key("w", agent_id), sequence=sequence + 1)
        for sequence, agent_id in ((1, GONE), (3, WORKER))
    ]
    releases = Releases(world.log, board, world.clock, KEY)
    heartbeats = LastHeartbeats(world.log, world.clock, KEY)

    async with channel.tasks("w", WORKER, got.append):
        await TaskSender(channel, agents, releases, heartbeats, world.clock, KEY).send(sent)

    assert len(got) == 1
