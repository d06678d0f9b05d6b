"""Jobs, triggers and changes are refused at the door once their namespace has used up a quota of the day."""

import asyncio
from datetime import timedelta
from itertools import cycle
from typing import Any, Final

import httpx
import pytest

from tests.domain.given import admitted, plan
from tests.http.conftest import World
from tocsin import subjects
from tocsin.domain import daily_use
from tocsin.domain.access import Role
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.daily_use import DailyUse
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import AgentRegistered, Dispatched, Namespace
from tocsin.services import daily_room
from tocsin.services.jobs import Registry
from tocsin.services.namespaces import Namespaces
from tocsin.services.operations import event_waiter
from tocsin.subjects import Bucket

JOB = {"type": "mail", "args": [], "options": {"queue": "payments.q"}}
AGENT: Final = "44444444-4444-7444-8444-444444444444"
OTHER = {"type": "mail", "args": [], "options": {"queue": "billing.q"}}


@pytest.fixture(autouse=True)
async def quota(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No planner runs here; 99 of 100 executions and 5 of 1,000 bytes are used."""
    monkeypatch.setattr(event_waiter, "POLL_PAUSES_S", ())
    monkeypatch.setattr(event_waiter, "FALLBACK_PAUSES_S", ())
    payments = Namespace(name="payments", executions_per_day=100, bytes_per_day=1_000)
    await Namespaces(world.log).apply([payments, Namespace(name="billing")])
    await use(world, 99, 5)


async def use(world: World, executions: int, size: int) -> None:
    entry = daily_use.encode(DailyUse(world.clock.now().date().isoformat(), executions, size))
    await world.projections.put(Bucket.QUEUES, subjects.daily_use_key("payments"), entry)


async def push(world: World, path: str, body: object) -> httpx.Response:
    token = await world.token("ada", Role.AUTHOR, Role.VIEWER)
    return await world.ask("POST", path, body, Authorization=f"Bearer {token}")


@pytest.mark.parametrize(("executions", "size"), [(100, 5), (4, 1_000)])
async def test_full_quota_refuses_each_kind_of_push(world: World, executions: int, size: int) -> None:
    await use(world, executions, size)
    flow = {"type": "chain", "steps": [JOB], "options": {"queue": "payments.q"}}
    bodies: list[tuple[str, Any]] = [("jobs", JOB), ("jobs/batch", {"jobs": [JOB]}), ("workflows", flow)]
    for path, body in bodies:
        answer = await push(world, f"/ojs/v1/{path}", body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limited"), answer.text
        assert "quota" in answer.json()["error"]["message"]
        assert 0 < int(answer.headers["Retry-After"]) <= 86_400
    bulk = (await push(world, "/ojs/v1/jobs/bulk", {"jobs": [JOB, OTHER]})).json()
    assert [item["status"] for item in bulk["items"]] == ["failed", "created"], bulk
    assert len(await world.facts("enqueue.>")) == 1


@pytest.mark.parametrize(("executions", "size"), [(100, 5), (4, 1_000)])
async def test_full_quota_refuses_triggers(world: World, executions: int, size: int) -> None:
    for job in ("payments.job", "billing.job"):
        await world.given(name=job, queue=job.replace("job", "q"))
    ada = {"Authorization": f"Bearer {await world.token('ada', Role.OPERATOR)}"}
    assert (await world.ask("POST", "/v1/jobs/payments.job/trigger", **ada)).status_code < 300
    await use(world, executions, size)
    refused = await world.ask("POST", "/v1/jobs/payments.job/trigger", {"input": {"a": "x"}}, **ada)
    assert (refused.status_code, refused.json()["type"]) == (429, "urn:tocsin:problem:namespace-quota"), refused.text
    assert 0 < int(refused.headers["Retry-After"]) <= 86_400
    assert (await world.ask("POST", "/v1/jobs/billing.job/trigger", **ada)).status_code < 300
    assert len(await world.facts(subjects.trigger("payments.job", subjects.ANY))) == 1


async def test_last_place_is_for_one_job(world: World) -> None:
    assert (await push(world, "/ojs/v1/jobs/bulk", {"jobs": [JOB, JOB], "atomicity": "atomic"})).status_code == 429
    assert (await push(world, "/ojs/v1/jobs", JOB)).status_code == 201


async def test_repeated_push_is_answered_as_before(world: World) -> None:
    begun = admitted(plan()).changed(job="payments.ojs.mail")
    await world.log.append(begun, expect=0)
    await use(world, 100, 5)
    assert (await push(world, "/ojs/v1/jobs", {**JOB, "id": begun.execution_id})).status_code == 409


async def test_next_day_has_room_again(world: World) -> None:
    await use(world, 100, 5)
    world.clock.advance(timedelta(days=1).total_seconds())
    assert (await push(world, "/ojs/v1/jobs", JOB)).status_code == 201


@pytest.mark.parametrize("entry", [b"", b"{}", b"[]", b'{"day": 3}', b'{"day": "2999-01-01", "executions": 100}'])
async def test_wrong_entry_counts_nothing(world: World, entry: bytes) -> None:
    await world.projections.put(Bucket.QUEUES, subjects.daily_use_key("payments"), entry)
    assert (await push(world, "/ojs/v1/jobs", JOB)).status_code == 201


async def test_schedule_above_the_quota_is_refused(world: World) -> None:
    token = await world.token("ada", Role.AUTHOR, namespaces=("payments",))
    ada = {"Authorization": f"Bearer {token}"}
    often = {"schedule": "@every 1ms", "queue": "payments.q", "function": "f"}
    template = {"type": "mail", "options": {"queue": "payments.q"}}
    of_ojs = {"name": "payments.often", "cron": "* * * * *", "job_template": template}
    answers = [
        await world.ask("PUT", "/v1/jobs/payments.often", often, **ada),
        await world.ask(
            "POST", "/v1/jobs:apply", {"jobs": [{"name": "payments.often", **often}], "dry_run": True}, **ada
        ),
        await world.ask("POST", "/ojs/v1/cron", of_ojs, **ada),
    ]
    assert [answer.status_code for answer in answers] == [422, 422, 400]
    assert all("may begin 100 executions a day (executions_per_day)" in answer.text for answer in answers)
    assert (
        await world.ask("PUT", "/v1/jobs/payments.often", {**often, "schedule": "@hourly"}, **ada)
    ).status_code == 201


async def changed(world: World) -> int:
    """Return the bytes of changes that count for `payments`."""
    entry = await world.projections.get(Bucket.QUEUES, subjects.changed_bytes_key("payments"))
    return daily_use.read(entry and entry[0], world.clock.now()).bytes


async def repeated(world: World, *requests: tuple[str, str, Any], token: str) -> httpx.Response:
    """Send requests in turn until one is refused, and return its answer."""
    for number, (method, path, body) in zip(range(100), cycle(requests), strict=False):
        sent = {**body, "description": str(number)} if method == "PUT" else body
        of_ojs = {"X-Reason": "r" * 50} if path.startswith("/ojs/") else {}
        answer = await world.ask(method, path, None if of_ojs else sent, Authorization=f"Bearer {token}", **of_ojs)
        if answer.status_code == 429:
            code = answer.json()["error"]["code"] if of_ojs else answer.json()["type"]
            assert code == ("rate_limited" if of_ojs else "urn:tocsin:problem:namespace-quota")
            assert 0 < int(answer.headers["Retry-After"]) <= 86_400
            return answer
        assert answer.status_code < 300, answer.text
    raise AssertionError("100 requests were accepted")


JOB_OF_EVE: Final = {"name": "payments.job", "queue": "payments.q", "function": "f", "schedule": "0 3 * * *"}
RENEWED: Final = ("PUT", "/v1/jobs/payments.job", JOB_OF_EVE)


async def test_changes_of_jobs_have_a_quota(world: World) -> None:
    """A job can be paused and deleted in any case, and other namespaces are not concerned."""
    token = await world.token("eve", Role.AUTHOR, namespaces=("payments",))
    await repeated(world, RENEWED, token=token)
    stored = await world.facts(subjects.ledger("payments.job"))
    size = sum(len(recorded.message.encode()) for recorded in stored)
    assert 500 < await changed(world) == size <= 1_000
    eve = {"Authorization": f"Bearer {token}"}
    applied = await world.ask("POST", "/v1/jobs:apply", {"jobs": [{**JOB_OF_EVE, "function": "g"}]}, **eve)
    assert applied.status_code == 429, applied.text
    assert (await world.ask("POST", "/v1/jobs/payments.job/pause", **eve)).json()["changed"]
    assert (await world.ask("POST", "/v1/jobs/payments.job/resume", **eve)).status_code == 429
    assert (await world.ask("DELETE", "/v1/jobs/payments.job", **eve)).status_code < 300
    assert (await world.ask(*RENEWED, **eve)).status_code == 429
    await world.given(name="billing.job", queue="billing.q")
    world.clock.advance(timedelta(days=1).total_seconds())
    assert (await world.ask(*RENEWED, **eve)).status_code == 201


async def test_pauses_have_a_quota(world: World) -> None:
    token = await world.token("eve", Role.ADMIN, namespaces=("payments",))
    await world.given(name="payments.job", queue="payments.q")
    queues = [f"{prefix}/queues/payments.q" for prefix in ("/v1", "/ojs/v1", "/ojs/v1/admin")]
    for of in ("/v1/jobs/payments.job", *queues):
        world.clock.advance(timedelta(days=1).total_seconds())
        refused = await repeated(
            world, *(("POST", f"{of}/{verb}", {"reason": "r" * 50}) for verb in ("pause", "resume")), token=token
        )
        assert "resume" in str(refused.request.url), "a pause is never refused"
        assert await changed(world) <= 1_500


@pytest.mark.parametrize("prefix", ["/ojs/v1", "/ojs/v1/admin"])
async def test_pauses_of_absent_queues_are_refused(world: World, prefix: str) -> None:
    """A team invents no names, and what an operator stores in its namespace counts."""
    eve = await world.token("eve", Role.ADMIN, namespaces=("payments",))
    unbound = await world.token("olga", Role.OPERATOR, Role.VIEWER)
    refused = await world.ask("POST", f"{prefix}/queues/payments.x/pause", Authorization=f"Bearer {eve}")
    assert refused.status_code == 404, refused.text
    assert await world.facts("queue.>") == []
    names = [f"{prefix}/queues/payments.x{number}/pause" for number in range(100)]
    await repeated(world, *(("POST", name, None) for name in names), token=unbound)
    stored = sum(len(recorded.message.encode()) for recorded in await world.facts("queue.>"))
    assert 500 < await changed(world) == stored <= 1_000


@pytest.mark.parametrize("prefix", ["/ojs/v1", "/ojs/v1/admin"])
async def test_team_pauses_a_queue_of_tasks(world: World, prefix: str) -> None:
    """No job names the queue of pushed jobs, and its pause is never refused."""
    task = Dispatched(
        job="payments.pushed",
        execution_id="a",
        step="main",
        attempt=1,
        max_attempts=1,
        function="f",
        queue="payments.pushed",
        timeout=30,
        scheduled_time=world.clock.now(),
        trigger="api",
        token="t",
    )
    await world.log.append(task, expect=0)
    full = daily_use.encode(DailyUse(world.clock.now().date().isoformat(), 0, 1_000))
    await world.projections.put(Bucket.QUEUES, subjects.changed_bytes_key("payments"), full)
    eve = {"Authorization": f"Bearer {await world.token('eve', Role.ADMIN, namespaces=('payments',))}"}
    path = f"{prefix}/queues/payments.pushed"
    assert (await world.ask("POST", f"{path}/pause", **eve)).status_code == 200
    assert (await world.ask("POST", f"{path}/resume", **eve)).status_code == 429


async def test_silences_and_agents_have_a_quota(world: World) -> None:
    token = await world.token("eve", Role.OPERATOR, namespaces=("payments",))
    await world.given(name="payments.job", queue="payments.q")
    silence = {"job": "payments.job", "duration": "1h", "reason": "r" * 100}
    await repeated(world, ("POST", "/v1/silences", silence), token=token)
    world.clock.advance(timedelta(days=1).total_seconds())
    await register(world, "payments.q")
    toggles = [("POST", f"/v1/agents/pay/{verb}", {"reason": "r" * 50}) for verb in ("disable", "enable")]
    await repeated(world, *toggles, token=token)
    world.clock.advance(timedelta(days=1).total_seconds())
    grants = [("POST", f"/v1/agents/pay/{verb}", {"queues": ["payments.q"]}) for verb in ("allow", "revoke")]
    assert "allow" in str((await repeated(world, *grants, token=token)).request.url)


async def test_refused_switch_counts_in_no_namespace(world: World) -> None:
    """The agent serves queues of two namespaces, and only the first has room."""
    quotas = [Namespace(name="payments", bytes_per_day=10**6), Namespace(name="zeta", bytes_per_day=10)]
    await Namespaces(world.log).apply(quotas)
    token = await world.token("eve", Role.OPERATOR, namespaces=("payments", "zeta"))
    await register(world, "payments.q", "zeta.q")
    refused = await world.ask("POST", "/v1/agents/pay/disable", Authorization=f"Bearer {token}")
    assert (refused.status_code, "`zeta`" in refused.json()["detail"]) == (429, True), refused.text
    assert await changed(world) == 0


async def register(world: World, *queues: str) -> None:
    """Register the agent `pay`."""
    record = AgentRecord(name="pay", agent_id=AGENT, state=AgentState.ENABLED, queues=[*queues], functions=["f"])
    await world.projections.put(Bucket.AGENTS, f"pay.{AGENT}", record.model_dump_json().encode())
    await world.log.append(AgentRegistered(name="pay", agent_id=AGENT, queues=queues, functions=("f",)), expect=0)


async def test_silences_of_others_do_not_count(world: World) -> None:
    """The event of a silence repeats all that are in force."""
    eve = {"Authorization": f"Bearer {await world.token('eve', Role.OPERATOR, namespaces=('payments',))}"}
    others = {"Authorization": f"Bearer {await world.token('olga', Role.OPERATOR)}"}
    for name in ("payments", "billing"):
        await world.given(name=f"{name}.job", queue=f"{name}.q")
    await world.projections.remove(Bucket.QUEUES, subjects.changed_bytes_key("payments"))
    silence = {"job": "billing.job", "duration": "1h", "reason": "r" * 100}
    for _ in range(10):
        assert (await world.ask("POST", "/v1/silences", silence, **others)).status_code == 201
        world.clock.advance(1)
    assert (await world.ask("POST", "/v1/silences", {**silence, "job": "payments.job"}, **eve)).status_code == 201
    assert 0 < await changed(world) <= 1_000


async def test_lost_races_refuse_no_pause(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is paused although its bytes cannot be counted, and other changes are refused."""
    await world.given(name="payments.job", queue="payments.q")
    monkeypatch.setattr(daily_room, "TRIES", 0)
    eve = {"Authorization": f"Bearer {await world.token('eve', Role.ADMIN, namespaces=('payments',))}"}
    assert (await world.ask("POST", "/v1/jobs/payments.job/pause", **eve)).json()["changed"]
    assert (await world.ask("POST", "/v1/jobs/payments.job/resume", **eve)).status_code == 409


async def test_changes_without_a_quota_are_not_counted(world: World) -> None:
    await Namespaces(world.log).apply([Namespace(name="payments", executions_per_day=1)])
    for number in range(20):
        await world.given(name="payments.job", queue="payments.q", description="x" * 100 + str(number))
    assert await changed(world) == 0


async def test_refused_plan_counts_in_no_namespace(world: World) -> None:
    """The first namespace has room for its job, and the second has none."""
    quotas = [Namespace(name="payments", bytes_per_day=10**6), Namespace(name="zeta", bytes_per_day=10)]
    await Namespaces(world.log).apply(quotas)
    ada = {"Authorization": f"Bearer {await world.token('ada', Role.AUTHOR)}"}
    jobs = [{**JOB_OF_EVE, "name": f"{of}.job", "queue": f"{of}.q"} for of in ("payments", "zeta")]
    refused = await world.ask("POST", "/v1/jobs:apply", {"jobs": jobs}, **ada)
    assert (refused.status_code, "`zeta`" in refused.json()["detail"]) == (429, True), refused.text
    assert (await changed(world), await world.facts("ledger.>")) == (0, [])
    assert (await world.ask("POST", "/v1/jobs:apply", {"jobs": jobs[:1]}, **ada)).status_code < 300
    assert await changed(world) > 0


async def test_concurrent_changes_count_exactly(world: World) -> None:
    """Two copies of the API count in one entry."""
    await Namespaces(world.log).apply([Namespace(name="payments", bytes_per_day=10**9)])
    registries = [Registry(world.log, world.projections, world.clock) for _ in range(2)]
    jobs = [JobDefinition(name=f"payments.{number}", queue="payments.q", function="f") for number in range(40)]
    await asyncio.gather(
        registries[0].apply(jobs[:10]), *(registries[number % 2].define(job) for number, job in enumerate(jobs))
    )
    stored = await world.facts("ledger.*.defined")
    assert len(stored) == 40
    assert await changed(world) >= sum(len(recorded.message.encode()) for recorded in stored)
