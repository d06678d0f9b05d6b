"""Acknowledgements: real processes on a cluster of three, and kill -9 of agents and of a NATS node."""

from pathlib import Path

import pytest

from tests.system.clustered import PATIENCE, clustered, kill
from tests.system.processes import Site
from tocsin.domain.events import Acknowledged, Admitted, Proposed, Skipped

JOB = {
    "name": "pay",
    "function": "lead",
    "job_class": "QUORUM_REQUIRED",
    "acknowledgements": 2,
    "acknowledgement_timeout": 3,
    "overlap_policy": "enqueue",
    "retry": {"max_attempts": 2},
}
AGENTS = "tests.system.leader_process:worker"


async def completed(tocsin: Site, number: int) -> None:
    async def are_completed() -> bool:
        return (await tocsin.ends())["pay"] == number

    await tocsin.until(are_completed)


@pytest.mark.timeout(PATIENCE * 3)
async def test_quorum_survives_killed_agent_and_node(tmp_path: Path) -> None:
    """One of three agents and one of three nodes are killed: it runs. Two agents are: it is skipped."""
    async with clustered(tmp_path) as (tocsin, cluster):
        await tocsin.apply(JOB)
        tocsin.start()
        agents = [tocsin.start_worker(AGENTS) for _ in range(3)]
        await tocsin.ready()

        async def are_registered() -> bool:
            code, shown = await tocsin.call("agents", "list")
            return code == 0 and len(shown) == len(agents)

        await tocsin.until(are_registered)
        first, second, _ = agents
        first.kill()
        tocsin.programs.remove(first)
        await kill(cluster.nodes[-1])
        await tocsin.trigger("pay")
        await completed(tocsin, 1)
        [admitted] = await tocsin.of_executions("pay", Admitted)
        [proposed, *_] = await tocsin.of_executions("pay", Proposed)
        assert (len(proposed.agents), proposed.needed) == (3, 2)
        names = {fact.name for fact in await tocsin.of_executions("pay", Acknowledged)}
        assert len(names) == 2
        assert not any(f"-{first.pid}-" in name for name in names)

        second.kill()
        tocsin.programs.remove(second)
        await tocsin.trigger("pay")
        await completed(tocsin, 2)
        [skipped] = await tocsin.of_executions("pay", Skipped)
        assert skipped.reason == "no_quorum"
        assert skipped.execution_id != admitted.execution_id
        proposals = [
            p.attempt for p in await tocsin.of_executions("pay", Proposed) if p.execution_id == skipped.execution_id
        ]
        assert proposals == [1, 2]
        await tocsin.checked()
