"""Classes of jobs: a real nats-server, and a cluster of three."""

import signal
from pathlib import Path
from typing import Final

import pytest
from pydantic import TypeAdapter

from tests.services.health.test_status import program
from tests.system.clustered import clustered
from tests.system.processes import Site, site
from tests.system.running import registrar, running
from tocsin.domain.agent import AgentRecord
from tocsin.domain.events import Admitted, OwnershipAssigned

QUORUM = "jobs:\n  - {name: pay, function: pay, job_class: QUORUM_REQUIRED}\n"


async def test_quorum_is_refused_on_one_server(nats_url: str, tmp_path: Path) -> None:
    async with running(nats_url, tmp_path) as tocsin:
        file = tmp_path / "jobs.yaml"
        file.write_text(QUORUM)
        refused = await program(tocsin.settings, "jobs", "apply", "-f", str(file), "-o", "json")
        assert refused.returncode != 0
        assert "needs at least 3 replicas of the log, and it has 1: run 3 servers as a cluster" in refused.stderr
        shown = await program(tocsin.settings, "jobs", "list", "-o", "json")
        assert "pay" not in shown.stdout


async def test_quorum_is_accepted_on_three_servers(tmp_path: Path) -> None:
    async with clustered(tmp_path) as (tocsin, _), registrar(tocsin.installation):
        file = tmp_path / "jobs.yaml"
        file.write_text(QUORUM)
        code, plan = await tocsin.call("jobs", "apply", "-f", str(file))
        assert (code, [change["action"] for change in plan["changes"]]) == (0, ["create"])


PATIENCE_S: Final = 500
"""A killed leader is silent for 30 seconds, and a busy machine takes long to start processes."""
LEADERS: Final = "tests.system.leader_process:worker"


async def owners(tocsin: Site) -> list[OwnershipAssigned]:
    return [recorded.message for recorded in await tocsin.facts("ownership.>", OwnershipAssigned)]


async def is_leader(tocsin: Site) -> dict[str, bool]:
    """Whether each agent is shown as the leader, by its name."""
    _, agents = await tocsin.call("agents", "list")
    records = TypeAdapter(list[AgentRecord]).validate_python(agents)
    return {agent.name: agent.is_leader for agent in records}


@pytest.mark.timeout(PATIENCE_S)
async def test_killed_leader_is_replaced(nats_url: str, tmp_path: Path) -> None:
    """Real processes, and kill -9 of the worker that leads, while it runs a task."""
    async with site(nats_url, tmp_path, metrics={"enabled": False}) as tocsin:
        await tocsin.apply(
            {
                "name": "lead",
                "function": "lead",
                "job_class": "LEADER_ONLY",
                "overlap_policy": "enqueue",
                "timeout": 300,
            }
        )
        tocsin.start()
        workers = {each.pid: each for each in (tocsin.start_worker(LEADERS), tocsin.start_worker(LEADERS))}
        await tocsin.ready()
        for _ in range(4):
            await tocsin.trigger("lead")

        async def completed(number: int) -> bool:
            return (await tocsin.ends())["lead"] == number

        await tocsin.until(lambda: completed(4))
        [first] = await owners(tocsin)
        [(sequence, message)] = [(r.sequence, r.message) for r in await tocsin.facts("ownership.>", OwnershipAssigned)]
        assert message == first

        async def is_shown() -> bool:
            shown = await is_leader(tocsin)
            return len(shown) == 2 and [name for name, leads in shown.items() if leads] == [first.name]

        await tocsin.until(is_shown)
        await tocsin.trigger("lead", input={"is_long": True})

        async def is_running() -> bool:
            return len(lines(tocsin)) == 5

        await tocsin.until(is_running)
        leader = next(each for pid, each in workers.items() if f"-{pid}-" in first.name)
        leader.kill()
        tocsin.programs.remove(leader)

        async def is_replaced() -> bool:
            return len(lines(tocsin)) == 6

        await tocsin.until(is_replaced)
        [_, second] = await owners(tocsin)
        assert (second.reason, second.name != first.name) == ("silent", True)
        heir = next(each for pid, each in workers.items() if f"-{pid}-" in second.name)
        runs = lines(tocsin)
        assert [run[1] for run in runs] == [first.name] * 5 + [second.name]
        assert [int(run[2]) for run in runs[:5]] == [sequence] * 5
        assert int(runs[5][2]) > sequence
        assert runs[4][0] == runs[5][0]
        fences = [int(run[3]) for run in runs]
        assert fences == sorted(set(fences)), "each claim has a higher fence, also of the same execution"
        code, _ = await tocsin.call("executions", "cancel", runs[5][0])
        assert code == 0
        await tocsin.until(lambda: completed(5))
        heir.send(signal.SIGTERM)
        tocsin.programs.remove(heir)
        await tocsin.checked()


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.full
async def test_drained_leader_is_replaced(nats_url: str, tmp_path: Path) -> None:
    async with site(nats_url, tmp_path, metrics={"enabled": False}) as tocsin:
        await tocsin.apply({"name": "lead", "function": "lead", "job_class": "LEADER_ONLY", "overlap_policy": "allow"})
        tocsin.start()
        await tocsin.ready()
        await tocsin.trigger("lead")
        [admitted] = await tocsin.until(lambda: tocsin.of_executions("lead", Admitted))
        execution = admitted.execution_id

        async def waits() -> str:
            _, shown = await tocsin.call("executions", "show", execution)
            return "; ".join(hold_up["message"] for hold_up in shown["held_up_by"])

        assert "no worker reads queue" in await tocsin.until(waits)
        follower = tocsin.start_worker(LEADERS, worker__leader_candidate="false")
        await tocsin.ready()

        async def waits_for_leader() -> bool:
            return "waits for the executor leader: no enabled agent stands" in await waits()

        await tocsin.until(waits_for_leader)
        first = tocsin.start_worker(LEADERS)
        await tocsin.ready()

        async def completed(number: int) -> bool:
            return (await tocsin.ends())["lead"] == number

        await tocsin.until(lambda: completed(1))
        [owner] = await owners(tocsin)
        assert f"-{first.pid}-" in owner.name
        second = tocsin.start_worker(LEADERS)
        await tocsin.ready()

        async def stand() -> bool:
            return len(await is_leader(tocsin)) == 3

        await tocsin.until(stand)
        code, _ = await tocsin.call("agents", "drain", owner.name)
        assert code == 0
        await tocsin.trigger("lead")
        await tocsin.until(lambda: completed(2))
        assert [(fact.reason, f"-{second.pid}-" in fact.name) for fact in await owners(tocsin)] == [
            ("vacant", False),
            ("draining", True),
        ]
        assert follower.ended is None
        await tocsin.checked()


def lines(tocsin: Site) -> list[list[str]]:
    """The runs of the handler: execution, worker, epoch and fence."""
    return [line.split() for line in tocsin.runs.read_text("utf-8").splitlines()] if tocsin.runs.exists() else []
