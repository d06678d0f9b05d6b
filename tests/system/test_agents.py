"""Workers as agents: real processes, a real nats-server."""

import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import pytest

from tests.ports import free_port
from tests.system.processes import Site, site
from tests.system.test_shutdown import IN_ORDER, ended
from tests.system.worker_process import noted
from tocsin import subjects
from tocsin.bootstrap import STAGE_NAMES
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.events import (
    Admitted,
    AgentEnded,
    AgentFact,
    AgentFellSilent,
    AgentRegistered,
    AgentSwitched,
    Started,
)
from tocsin.services.agents import AgentRegistry
from tocsin.subjects import Bucket

MAIL: Final = "tests.system.agent_process:mail"


@pytest.fixture
async def tocsin(nats_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(nats_url, tmp_path, metrics={"enabled": False}) as it:
        await it.apply({"name": "send", "function": "mail/send", "overlap_policy": "allow"})
        await it.apply({"name": "slowly", "function": "mail/slowly", "overlap_policy": "allow"})
        await it.apply({"name": "long", "function": "mail/long", "overlap_policy": "allow"})
        yield it


def registry(tocsin: Site) -> AgentRegistry:
    it = tocsin.installation
    return AgentRegistry(it.log, it.projections)


async def agents(tocsin: Site) -> tuple[AgentRecord, ...]:
    return await registry(tocsin).agents()


async def kinds(tocsin: Site) -> list[type[AgentFact]]:
    return [type(recorded.message) for recorded in await tocsin.facts(subjects.agent_events(), AgentFact)]


async def shows(tocsin: Site, *states: AgentState) -> None:
    async def does() -> bool:
        return [agent.state for agent in await agents(tocsin)] == [*states]

    await tocsin.until(does)


async def holds(tocsin: Site, wanted: Callable[[list[type[AgentFact]]], bool]) -> None:
    async def does() -> bool:
        return wanted(await kinds(tocsin))

    await tocsin.until(does)


async def completed(tocsin: Site, **jobs: int) -> None:
    async def are() -> bool:
        return await tocsin.ends() == jobs

    await tocsin.until(are)


async def test_worker_over_http_is_listed_through_two_gateways(tocsin: Site) -> None:
    """Both copies of the API, and the command line beside and through them, show one worker and what it holds."""
    await tocsin.apply({"name": "ojs.work", "queue": "work", "function": "work", "input": {"args": [3]}})
    ports = free_port(), free_port()
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    tocsin.start()
    for port in ports:
        tocsin.start_gateway(port)
    await tocsin.ready()
    tocsin.start_ojs_worker("w-1", 60_000, *urls)

    async def listed() -> list[AgentRecord]:
        return [record for record in await agents(tocsin) if record.name == "w-1"]

    [record] = await tocsin.until(listed)
    assert (record.kind, record.state, record.queues) == ("http", AgentState.ENABLED, ["work"])
    for remote in ((), *(("--server", url) for url in urls)):
        code, answer = await tocsin.call(*remote, "agents", "show", "w-1")
        assert code == 0
        assert [(one["name"], one["kind"]) for one in answer] == [("w-1", "http")]  # type: ignore[index]
        for action in ("disable", "enable"):
            code, changed = await tocsin.call(*remote, "agents", action, "w-1")
            assert (code, changed["changed"]) == (0, True)


async def test_unserved_function_is_reported_until_corrected(tocsin: Site, tmp_path: Path) -> None:
    """`jobs apply`, `status` and `doctor` say at once that no worker reads a queue, and that none has a function."""
    file = tmp_path / "jobs.yaml"
    file.write_text("jobs: [{name: hello, function: mail/sent}, {name: other, function: x, queue: gpu}]")
    tocsin.start()
    await tocsin.ready()

    async def unserved() -> list[tuple[str, str | None, str | None]]:
        _, plan = await tocsin.call("jobs", "apply", "-f", str(file))
        return [(each["queue"], each["function"], each["nearest"]) for each in plan["unserved"]]

    async def reported() -> set[str]:
        _, found = await tocsin.call("doctor")
        return {each["code"] for each in found if each["level"] == "warn"}  # type: ignore[index]

    assert await unserved() == [("default", None, None), ("gpu", None, None)]

    async def is_unread() -> bool:
        _, status = await tocsin.call("status")
        return bool(status["unserved"] == {"default": None, "gpu": None})

    await tocsin.until(is_unread)  # the registrar shows the jobs
    assert "queue-unread" in await reported()
    tocsin.start_worker(MAIL)
    await shows(tocsin, AgentState.ENABLED)
    assert await unserved() == [("default", "mail/sent", "mail/send"), ("gpu", None, None)]
    _, status = await tocsin.call("status")
    assert status["unserved"] == {"default": 1, "gpu": None}
    assert {"queue-unread", "function-unserved"} <= await reported()
    file.write_text("jobs: [{name: hello, function: mail/send}]")
    assert await unserved() == []


async def test_limit_is_named_here_and_through_the_api(tocsin: Site) -> None:
    """`executions show` and `why` say which limit holds a task back, with and without `--server`."""
    await tocsin.apply(
        {
            "name": "one-at-a-time",
            "function": "mail/long",
            "overlap_policy": "allow",
            "schedule": "* * * * * *",
            "concurrency": {"limit": 1},
        }
    )
    port = free_port()
    tocsin.start()
    tocsin.start_gateway(port)
    tocsin.start_worker(MAIL)
    await tocsin.ready()
    remote = ("--server", f"http://127.0.0.1:{port}")

    async def held() -> str:
        """Return an execution that the limit holds back for about a minute, however long the commands take."""
        tasks = await tocsin.of_executions("one-at-a-time", Admitted)
        if len(tasks) < 8:
            return ""
        _, shown = await tocsin.call("executions", "show", tasks[-1].execution_id)
        kinds = [hold_up["kind"] for hold_up in shown["held_up_by"]]
        return tasks[-1].execution_id if kinds == ["job_limit"] else ""  # at first the worker may not be shown yet

    id_ = await tocsin.until(held)
    for options in ((), remote):
        _, shown = await tocsin.call(*options, "executions", "show", id_)
        assert [hold_up["kind"] for hold_up in shown["held_up_by"]] == ["job_limit"]
        _, answers = await tocsin.call(*options, "why", "one-at-a-time", shown["scheduled_time"])
        sentence = answers[0]["sentence"]  # type: ignore[index]
        assert "is waiting for a worker: concurrency limit 1 of job one-at-a-time (1 run)" in sentence


async def test_worker_registers_works_and_ends(tocsin: Site) -> None:
    tocsin.start()
    worker = tocsin.start_worker(MAIL)
    await tocsin.ready()
    await shows(tocsin, AgentState.ENABLED)
    [agent] = await agents(tocsin)
    assert (agent.name, agent.labels, agent.queues, agent.functions, agent.max_concurrent_jobs) == (
        "mail-1",
        {"zone": "a"},
        ["default"],
        ["mail/long", "mail/send", "mail/slowly"],
        2,
    )
    await tocsin.trigger("long")

    async def is_held() -> bool:
        return any(agent.held for agent in await agents(tocsin))

    await tocsin.until(is_held)
    await completed(tocsin, long=1)
    worker.send(signal.SIGTERM)
    assert await ended(tocsin, worker) == IN_ORDER
    await shows(tocsin)
    assert await kinds(tocsin) == [AgentRegistered, AgentEnded]
    await tocsin.checked()


async def test_disabled_agent_takes_nothing_also_after_a_restart(tocsin: Site) -> None:
    tocsin.start()
    worker = tocsin.start_worker(MAIL)
    await tocsin.ready()
    await shows(tocsin, AgentState.ENABLED)
    assert await registry(tocsin).switch("mail-1", enabled=False)
    await shows(tocsin, AgentState.DISABLED)

    async def is_paused() -> bool:
        return '"disabled"' in worker.said()

    await tocsin.until(is_paused)
    await tocsin.trigger("send")
    worker.send(signal.SIGTERM)
    assert await ended(tocsin, worker) == IN_ORDER
    again = tocsin.start_worker(MAIL)
    await tocsin.ready()
    await shows(tocsin, AgentState.DISABLED)
    assert await tocsin.facts("execution.>", Started) == []
    assert await registry(tocsin).switch("mail-1", enabled=True)
    await completed(tocsin, send=1)
    again.send(signal.SIGTERM)
    await ended(tocsin, again)
    assert [kind for kind in await kinds(tocsin) if kind is AgentSwitched] == [AgentSwitched] * 2
    await tocsin.checked()


async def test_drained_agent_finishes_and_its_successor_works(tocsin: Site) -> None:
    tocsin.start()
    worker = tocsin.start_worker(MAIL)
    await tocsin.ready()
    await shows(tocsin, AgentState.ENABLED)
    await tocsin.trigger("slowly")

    async def is_started() -> bool:
        return bool(await tocsin.facts("execution.>", Started))

    await tocsin.until(is_started)
    assert await registry(tocsin).drain("mail-1")
    await shows(tocsin, AgentState.DRAINING)

    async def is_draining() -> bool:
        return '"draining"' in worker.said()

    await tocsin.until(is_draining)
    await completed(tocsin, slowly=1)
    await tocsin.trigger("send")
    tocsin.start_worker(MAIL)
    await completed(tocsin, slowly=1, send=1)
    worker.send(signal.SIGTERM)
    await ended(tocsin, worker)
    await shows(tocsin, AgentState.ENABLED)
    assert set(noted(tocsin.runs).values()) == {1}
    await tocsin.checked()


@pytest.mark.slow
async def test_killed_agent_is_lost_despite_killed_keepers(tocsin: Site) -> None:
    tocsin.start()
    keepers = [tocsin.start("agent_keeper"), tocsin.start("agent_keeper")]
    worker = tocsin.start_worker(MAIL)
    await tocsin.ready()
    await shows(tocsin, AgentState.ENABLED)
    worker.kill()
    tocsin.programs.remove(worker)
    for keeper in keepers:
        keeper.kill()
        tocsin.programs.remove(keeper)
    await shows(tocsin, AgentState.LOST)
    assert await kinds(tocsin) == [AgentRegistered, AgentFellSilent]
    await tocsin.checked()


async def test_worker_works_while_no_agent_keeper_runs(tocsin: Site) -> None:
    tocsin.start(*(name for name in STAGE_NAMES if name != "agent_keeper"))
    tocsin.start_worker(MAIL)
    await tocsin.ready()
    await tocsin.trigger("send")
    await completed(tocsin, send=1)
    assert await kinds(tocsin) == []
    tocsin.start("agent_keeper")
    await shows(tocsin, AgentState.ENABLED)
    assert await tocsin.installation.projections.entries(Bucket.AGENTS)
