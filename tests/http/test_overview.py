"""`/v1/overview` and `/v1/outcomes`: what they count, and for whom."""

from datetime import timedelta
from typing import Any

import pytest

from tests.domain.given import KEY, plan
from tests.http.conftest import World
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.access import Role
from tocsin.domain.events import (
    Admitted,
    Completed,
    Failed,
    Failure,
    Message,
    Planned,
    Recorded,
    RetryScheduled,
    Skipped,
    Started,
)
from tocsin.subjects import Stream

SECOND = timedelta(seconds=1)
HIDDEN = "secret"


def _id(job: str, number: int) -> str:
    return f"{'1' if job == HIDDEN else '2'}{number:07}-0000-7000-8000-000000000000"


async def _store(world: World, *facts: Message) -> None:
    """Append the events of an execution."""
    sequence = 0
    for fact in facts:
        sequence = await world.log.append(fact, expect=sequence)


async def _run(world: World, job: str, number: int, end: str) -> None:
    """Store an execution that gets as far as `end`, 90 seconds later."""
    world.clock.advance(90)
    recorded = await world.log.last(subjects.definition(job))
    definition = 0 if recorded is None else recorded.sequence
    now = world.clock.now()
    who: dict[str, Any] = {"job": job, "execution_id": _id(job, number)}
    what: dict[str, Any] = {**who, "scheduled_time": now, "trigger": "cron"}
    step: dict[str, Any] = {"step": "main", "attempt": 1}
    planned = plan().changed(definition=definition)
    if end == "lock":
        await _store(world, Planned(**what, plan=planned))
        return
    if end == "skipped":
        await _store(world, Skipped(**what, reason="overlap_skip", definition=definition))
        return
    admission = Admitted(**what, plan=planned)
    stored = Recorded[Message](admission, subjects.subject_of(admission), 1, now)
    [task] = execution.dispatch(execution.fold([stored]), key=KEY)
    facts: list[Message] = [admission, task]
    error = Failure(type="ValueError", message=f"no rows in {job}")
    if end != "worker":
        facts.append(Started(**who, **step, delivery=1, worker="w"))
    if end == "delay":
        facts.append(RetryScheduled(**who, **step, error=error, delay=60, next_attempt_at=now + 60 * SECOND))
    if end == "completed":
        facts.append(Completed(**what, **step))
    if end == "failed":
        facts.append(Failed(**what, **step, error=error))
    await _store(world, *facts)


@pytest.fixture
async def busy(world: World) -> World:
    """Two jobs with the same executions; one of them is hidden."""
    await world.given(name="open", schedule="@hourly")
    await world.given(name=HIDDEN, schedule="@hourly", viewers=("user:ada",))
    ends = ("failed", "completed", "skipped", "failed", "failed", "running", "worker", "lock", "delay")
    for number, end in enumerate(ends):
        for job in ("open", HIDDEN):
            await _run(world, job, number, end)
    facts = await world.facts("execution.>")
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)
    return world


async def _get(world: World, path: str, role: Role) -> tuple[Any, str]:
    token = await world.token("eve", role)
    answer = await world.ask("GET", path, Authorization=f"Bearer {token}")
    assert answer.status_code == 200, answer.text
    return answer.json(), answer.text


@pytest.mark.parametrize(("role", "jobs"), [(Role.VIEWER, ["open"]), (Role.ADMIN, ["open", HIDDEN])])
async def test_each_part_counts_only_visible_jobs(busy: World, role: Role, jobs: list[str]) -> None:
    answer, text = await _get(busy, "/v1/overview", role)
    number = len(jobs)
    assert (HIDDEN in text) == (HIDDEN in jobs)
    assert answer["totals"] == {
        "jobs": {"active": number, "paused": 0, "disabled": 0, "on_demand": 0},
        "ended": {"completed": number, "failed": 3 * number, "skipped": number, "cancelled": 0},
    }
    assert answer["running"]["count"] == 2 * number  # one of them waits for its next attempt
    assert answer["waiting"]["count"] == 2 * number
    for reason, count in (("lock", number), ("worker", number), ("delay", number), ("dependency", 0)):
        waiting = answer["waiting"][reason]
        assert (waiting["count"], sorted(example["job"] for example in waiting["examples"])) == (count, jobs[:count])
    assert sorted(job["job"] for job in answer["failing"]["jobs"]) == jobs
    assert answer["are_open_complete"]
    assert answer["are_jobs_complete"]


@pytest.mark.parametrize(("role", "jobs"), [(Role.VIEWER, 1), (Role.ADMIN, 2)])
async def test_statistics_count_only_visible_jobs(busy: World, role: Role, jobs: int) -> None:
    answer, _ = await _get(busy, "/v1/stats", role)
    assert answer["executions"] == {
        "total_executions": 8 * jobs,
        "successful_executions": 6 * jobs,
        "lost_executions": 0,
        "pending_executions": 2 * jobs,
        "success_rate": 100.0,
    }


async def test_failing_job_names_its_streak(busy: World) -> None:
    answer, _ = await _get(busy, "/v1/overview", Role.VIEWER)
    [job] = answer["failing"]["jobs"]
    assert (job["job"], job["failures"], job["execution_id"]) == ("open", 2, _id("open", 4))
    assert job["error"] == "ValueError: no rows in open"
    first = await busy.history.execution(_id("open", 3))
    assert first is not None
    assert job["since"] == first.scheduled_time.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("success", [0, 7])
async def test_failing_job_names_its_first_failure_of_many(world: World, success: int) -> None:
    await world.given(name="open", schedule="@hourly")
    ends = ["failed"] * success + ["completed"] * bool(success) + ["failed", "skipped"] * 30 + ["running"] * 25
    for number, end in enumerate(ends):
        await _run(world, "open", number, end)
    facts = await world.facts("execution.>")
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)
    first = await world.history.execution(_id("open", success + bool(success)))
    assert first is not None
    answer, _ = await _get(world, "/v1/overview", Role.VIEWER)
    [job] = answer["failing"]["jobs"]
    assert (job["since"], job["failures"]) == (first.scheduled_time.isoformat().replace("+00:00", "Z"), 30)


async def test_failures_under_a_hidden_definition_begin_no_streak(world: World) -> None:
    await world.given(name="open", schedule="@hourly", viewers=("user:ada",))
    await _run(world, "open", 0, "failed")
    await world.registry.delete("open")
    world.clock.advance(60)
    await world.given(name="open", schedule="@hourly")
    await _run(world, "open", 1, "failed")
    facts = await world.facts("execution.>")
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)
    for role, failures in ((Role.VIEWER, 1), (Role.ADMIN, 2)):
        [job] = (await _get(world, "/v1/overview", role))[0]["failing"]["jobs"]
        assert (job["failures"], job["execution_id"]) == (failures, _id("open", 1))


async def test_task_without_worker_is_explained(busy: World) -> None:
    answer, _ = await _get(busy, "/v1/overview", Role.VIEWER)
    [example] = answer["waiting"]["worker"]["examples"]
    assert [hold_up["kind"] for hold_up in example["held_up_by"]] == ["no_worker"]


async def test_rates_have_one_entry_a_minute(busy: World) -> None:
    answer, _ = await _get(busy, "/v1/overview", Role.VIEWER)
    rates = answer["rates"]
    assert len(rates) == 60
    assert rates == sorted(rates, key=lambda rate: rate["start"])
    assert sum(rate["failed"] for rate in rates) == 3
    assert max(rate["completed"] for rate in rates) == 1


async def test_late_and_next_instants_are_listed(world: World) -> None:
    await world.given(name="hourly", schedule="@hourly")
    await world.given(name="off", schedule="@hourly", enabled=False)
    await world.given(name="someday", schedule=None)
    early = (await world.ask("GET", "/v1/overview")).json()
    assert [instant["job"] for instant in early["upcoming"]["instants"]] == ["hourly"]
    assert early["late"] == {"count": 0, "instants": []}
    world.clock.advance(3_611)
    later = (await world.ask("GET", "/v1/overview")).json()
    assert later["late"] == early["upcoming"]
    assert later["upcoming"]["count"] == 0
    assert later["totals"]["jobs"] == {"active": 1, "paused": 0, "disabled": 1, "on_demand": 1}


async def test_leader_of_each_stage_is_named(world: World) -> None:
    [leader] = (await world.ask("GET", "/v1/overview")).json()["leader"]
    assert (leader["stage"], leader["holder"], leader["is_overdue"]) == ("ticker", "a@host", False)


async def test_outcomes_come_newest_first_without_hidden_jobs(busy: World) -> None:
    path = f"/v1/outcomes?job=open&job={HIDDEN}&job=unknown&limit=3"
    answer, text = await _get(busy, path, Role.VIEWER)
    assert list(answer["jobs"]) == ["open"]
    assert [outcome["execution_id"] for outcome in answer["jobs"]["open"]] == [_id("open", n) for n in (8, 7, 6)]
    assert HIDDEN not in text
    everything, _ = await _get(busy, path, Role.ADMIN)
    assert sorted(everything["jobs"]) == ["open", HIDDEN]


async def test_outcome_has_its_fields(busy: World) -> None:
    answer, _ = await _get(busy, "/v1/outcomes?job=open&limit=50", Role.VIEWER)
    outcomes = answer["jobs"]["open"]
    assert [outcome["status"] for outcome in outcomes[-2:]] == ["completed", "failed"]
    assert outcomes[-1].keys() == {"execution_id", "status", "scheduled_time", "duration_ms", "trigger"}


async def test_outcomes_under_a_hidden_definition_are_absent(busy: World) -> None:
    busy.clock.advance(60)
    await busy.given(name="open", schedule="@hourly", viewers=("token:eve",))
    answer, _ = await _get(busy, "/v1/outcomes?job=open", Role.VIEWER)
    assert len(answer["jobs"]["open"]) == 9
    await busy.given(name=HIDDEN, schedule="@hourly")
    answer, _ = await _get(busy, f"/v1/outcomes?job={HIDDEN}", Role.VIEWER)
    assert answer["jobs"] == {HIDDEN: []}
    overview, text = await _get(busy, "/v1/overview", Role.VIEWER)
    assert (overview["totals"]["ended"]["failed"], overview["running"]["count"]) == (3, 2)
    assert _id(HIDDEN, 4) not in text


@pytest.mark.parametrize("query", ["", "job=A", "job=a&limit=51", "job=a&limit=0", "&".join(["job=a"] * 101)])
async def test_invalid_request_for_outcomes_is_refused(world: World, query: str) -> None:
    assert (await world.ask("GET", f"/v1/outcomes?{query}")).status_code == 422
