"""The counters of jobs in `/v1/jobs`: what they count, what they cost, and which callers see them."""

from typing import Any, Final

import pytest

from tests.domain.given import NOON, admitted, plan, started
from tests.http.conftest import World
from tocsin import subjects
from tocsin.domain.access import Role
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Actor, Completed, Failed, Failure, Message, Skipped
from tocsin.ports import HistoryUnavailable
from tocsin.subjects import Stream

NOTHING: Final = {
    "run_count": 0,
    "error_count": 0,
    "skip_count": 0,
    "running": 0,
    "last_run": None,
    "last_duration_ms": None,
    "last_result": None,
}


async def ran(world: World, number: int, end: str, *, job: str = "job", definition: int = 1) -> None:
    """Store and record an execution."""
    run: dict[str, Any] = {"job": job, "execution_id": f"{number:08}-1111-7111-8111-111111111111"}
    what: dict[str, Any] = {**run, "scheduled_time": NOON, "trigger": "cron"}
    step: dict[str, Any] = {"step": "main", "attempt": 1}
    request = admitted(plan().changed(definition=definition))
    begun: list[Message] = [request.changed(**run), started().changed(**run)]
    error = Failure(type="Boom", message="no")
    facts: dict[str, list[Message]] = {
        "running": begun,
        "completed": [*begun, Completed(**what, **step, result={"rows": 3})],
        "failed": [*begun, Failed(**what, **step, error=error)],
        "skipped": [Skipped(**what, reason="overlap_skip", definition=definition)],
    }
    sequence, before = 0, await world.history.offset(Stream.LOG)
    for fact in facts[end]:
        sequence = await world.log.append(fact, expect=sequence)
        world.clock.advance(1)
    stored = [fact for fact in await world.log.read("execution.>") if fact.sequence > before]
    await world.history.record(Stream.LOG, stored, after=before, upto=stored[-1].sequence)


async def runs_of(world: World, job: str = "job", **headers: str) -> Any:  # noqa: ANN401 - JSON
    return (await world.ask("GET", f"/v1/jobs/{job}", **headers)).json()["runs"]


async def listed(world: World, query: str = "?runs=true", **headers: str) -> dict[str, Any]:
    jobs = (await world.ask("GET", f"/v1/jobs{query}", **headers)).json()["jobs"]
    return {job["name"]: job["runs"] for job in jobs}


async def test_job_has_the_counters_of_its_runs(world: World) -> None:
    await world.given()
    assert await runs_of(world) == NOTHING
    for number, end in enumerate(("running", "failed", "skipped", "completed")):
        await ran(world, number, end)
    runs = await runs_of(world)
    assert runs.pop("last_run") is not None
    assert runs == {
        "run_count": 3,
        "error_count": 1,
        "skip_count": 1,
        "running": 1,
        "last_duration_ms": 1_000,
        "last_result": {
            "execution_id": "00000003-1111-7111-8111-111111111111",
            "status": "completed",
            "error": None,
            "reason": None,
            "result": {"rows": 3},
        },
    }


async def test_list_has_counters_on_request(world: World) -> None:
    for name in ("a", "b"):
        await world.given(name=name)
    await ran(world, 1, "failed", job="b")
    assert await listed(world, "") == {"a": None, "b": None}
    for query in ("?runs=true", "?runs=true&details=true"):
        runs = await listed(world, query)
        assert runs["a"] == NOTHING
        assert (runs["b"]["run_count"], runs["b"]["last_result"]["error"]) == (1, "Boom: no")


async def test_list_reads_counters_of_all_jobs_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        await world.given(name=f"job-{number}")
    reads: list[list[str]] = []
    runs = world.history.summaries.runs

    async def counted(jobs: list[str]) -> Any:  # noqa: ANN401 - as the method
        reads.append(jobs)
        return await runs(jobs)

    monkeypatch.setattr(world.history.summaries, "runs", counted)
    assert len(await listed(world)) == 20
    assert [len(jobs) for jobs in reads] == [20]


async def test_caller_without_history_sees_no_counters(world: World) -> None:
    await world.given()
    await ran(world, 1, "failed")
    token = await world.token("cat", Role.CATALOG)
    assert await runs_of(world, Authorization=f"Bearer {token}") is None
    assert await listed(world, Authorization=f"Bearer {token}") == {"job": None}


async def test_last_run_of_a_hidden_definition_is_hidden(world: World) -> None:
    async def define(owner: str) -> int:
        seen_by = {"owner": f"token:{owner}", "viewers": [f"token:{owner}"]}
        fields = {"name": "job", "function": "f", "schedule": "0 3 * * *", **seen_by}
        await world.registry.define(JobDefinition.model_validate(fields), by=Actor(identity=owner, kind="token"))
        recorded = await world.log.last(subjects.definition("job"))
        assert recorded is not None
        return recorded.sequence

    await ran(world, 1, "failed", definition=await define("bea"))
    await world.registry.delete("job")
    await define("eve")
    eve = await world.token("eve", Role.AUTHOR)
    for runs in (
        await runs_of(world, Authorization=f"Bearer {eve}"),
        (await listed(world, Authorization=f"Bearer {eve}"))["job"],
    ):
        assert (runs["run_count"], runs["last_run"], runs["last_result"]) == (1, None, None)


async def test_job_is_shown_although_the_history_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.given()

    async def fail(_: object) -> None:
        raise HistoryUnavailable("no")

    monkeypatch.setattr(world.history.summaries, "runs", fail)
    assert await runs_of(world) is None
    assert (await world.ask("GET", "/v1/jobs")).status_code == 200
    answer = await world.ask("GET", "/v1/jobs?runs=true")
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:tocsin:problem:unavailable")


async def test_job_is_shown_while_the_history_is_rebuilt(world: World) -> None:
    await world.given()
    await ran(world, 1, "failed")
    await world.history.forget()
    assert await runs_of(world) is None
    assert await listed(world) == {"job": None}
