"""Permissions: every endpoint with every role (hip-62, Authentication and Authorization; scratchbird §10.2)."""

from collections.abc import Collection, Iterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from tests.domain.given import admitted
from tests.domain.test_workflow import CHAIN, plan_of
from tests.http.conftest import World
from tocsin.adapters.http.api.app import ROUTERS
from tocsin.domain.access import GRANTS, Permission, Principal, Role, roles_of
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.events import Cancelled, DeadLettered, Failure, Message, Namespace, Recorded
from tocsin.domain.job_record import Registration
from tocsin.services.namespaces import Namespaces
from tocsin.subjects import Bucket

JOB = {"name": "new", "schedule": "@daily", "function": "f"}
CRON = {"name": "new-cron", "cron": "@daily", "type": "a.b"}
RUN = "11111111-1111-7111-8111-111111111111"
LETTER = "22222222-2222-7222-8222-222222222222"
FLOW = "33333333-3333-7333-8333-333333333333"

ADMIN, OPERATOR, AUTHOR, VIEWER, WORKER = Role.ADMIN, Role.OPERATOR, Role.AUTHOR, Role.VIEWER, Role.WORKER
HISTORIANS = {ADMIN, OPERATOR, AUTHOR, VIEWER}
READERS = HISTORIANS | {Role.CATALOG}

# The permission that each endpoint requires for another owner's job. `None`: no authentication.
TABLE: dict[tuple[str, str], tuple[Collection[Role | None] | None, str, Any]] = {
    ("POST", "/v1/jobs"): ({ADMIN, AUTHOR}, "/v1/jobs", JOB),
    ("GET", "/v1/jobs"): (READERS, "/v1/jobs", None),
    ("GET", "/v1/jobs/{name}"): (READERS, "/v1/jobs/job", None),
    ("PUT", "/v1/jobs/{name}"): ({ADMIN}, "/v1/jobs/job", {**JOB, "name": "job"}),
    ("DELETE", "/v1/jobs/{name}"): ({ADMIN}, "/v1/jobs/job", None),
    ("POST", "/v1/jobs/{name}/trigger"): ({ADMIN, OPERATOR}, "/v1/jobs/job/trigger", None),
    ("POST", "/v1/jobs/{name}/pause"): ({ADMIN}, "/v1/jobs/job/pause", None),
    ("POST", "/v1/jobs/{name}/resume"): ({ADMIN}, "/v1/jobs/job/resume", None),
    ("GET", "/v1/jobs/{name}/definitions/{sequence}"): (READERS, "/v1/jobs/job/definitions/1", None),
    ("POST", "/v1/jobs:apply"): ({ADMIN, AUTHOR}, "/v1/jobs:apply", {"jobs": [JOB]}),
    ("POST", "/v1/jobs/{name}/backfill"): ({ADMIN}, "/v1/jobs/job/backfill", {"start": "2025-12-31T00:00:00Z"}),
    ("GET", "/v1/jobs/{name}/why"): (HISTORIANS, "/v1/jobs/job/why", None),
    ("GET", "/v1/jobs/{name}/timeline"): (HISTORIANS, "/v1/jobs/job/timeline", None),
    ("POST", "/v1/jobs/{name}/triggers/test"): (READERS, "/v1/jobs/job/triggers/test", {"subject": "a"}),
    ("GET", "/v1/jobs/{name}/triggers/ignored"): (READERS, "/v1/jobs/job/triggers/ignored", None),
    ("POST", "/v1/what-if"): (HISTORIANS, "/v1/what-if", {"jobs": [JOB]}),
    ("GET", "/v1/jobs/{name}/durations"): (HISTORIANS, "/v1/jobs/job/durations", None),
    ("GET", "/v1/jobs/{name}/calendar"): (HISTORIANS, "/v1/jobs/job/calendar", None),
    ("GET", "/v1/jobs/{name}/revisions"): (READERS, "/v1/jobs/job/revisions", None),
    ("POST", "/v1/jobs/{name}/rollback"): ({ADMIN}, "/v1/jobs/job/rollback", {"sequence": 1}),
    ("POST", "/v1/sql"): (READERS, "/v1/sql", {"sql": "SHOW JOBS"}),
    ("GET", "/v1/stats"): (HISTORIANS, "/v1/stats", None),
    ("GET", "/v1/overview"): (HISTORIANS, "/v1/overview", None),
    ("GET", "/v1/changes"): (HISTORIANS, "/v1/changes", None),
    ("GET", "/v1/outcomes"): (HISTORIANS, "/v1/outcomes?job=job", None),
    ("GET", "/v1/executions"): (HISTORIANS, "/v1/executions", None),
    ("GET", "/v1/executions/{id}"): (HISTORIANS, f"/v1/executions/{RUN}", None),
    ("GET", "/v1/executions/{id}/events"): (HISTORIANS, f"/v1/executions/{RUN}/events", None),
    ("GET", "/v1/executions/{id}/logs"): (HISTORIANS, f"/v1/executions/{RUN}/logs", None),
    ("POST", "/v1/executions/{id}/cancel"): ({ADMIN, OPERATOR}, f"/v1/executions/{RUN}/cancel", None),
    ("GET", "/v1/dead-letters"): (HISTORIANS, "/v1/dead-letters", None),
    ("GET", "/v1/dead-letters/groups"): (HISTORIANS, "/v1/dead-letters/groups", None),
    ("GET", "/v1/dead-letters/{id}"): (HISTORIANS, f"/v1/dead-letters/{LETTER}", None),
    ("GET", "/v1/dead-letters/{id}/events"): (HISTORIANS, f"/v1/dead-letters/{LETTER}/events", None),
    ("POST", "/v1/dead-letters/{id}/replay"): ({ADMIN, OPERATOR}, f"/v1/dead-letters/{LETTER}/replay", None),
    ("PATCH", "/v1/dead-letters/{id}"): ({ADMIN, OPERATOR}, f"/v1/dead-letters/{LETTER}", {"resolved": True}),
    # Authors may, for what is their own: nothing here is.
    ("POST", "/v1/dead-letters/replay-all"): ({ADMIN, OPERATOR, AUTHOR}, "/v1/dead-letters/replay-all", None),
    ("GET", "/v1/queues"): (READERS, "/v1/queues", None),
    ("GET", "/v1/queues/{name}"): (READERS, "/v1/queues/default", None),
    ("POST", "/v1/queues/{name}/pause"): ({ADMIN, OPERATOR}, "/v1/queues/default/pause", None),
    ("POST", "/v1/queues/{name}/resume"): ({ADMIN, OPERATOR}, "/v1/queues/default/resume", None),
    ("POST", "/v1/queues/{name}/purge"): ({ADMIN, OPERATOR}, "/v1/queues/default/purge", None),
    ("GET", "/v1/shards"): (READERS, "/v1/shards", None),
    ("PUT", "/v1/shards"): ({ADMIN}, "/v1/shards", {"shards": [{"shard_id": "eu-1"}]}),
    ("GET", "/v1/namespaces"): (READERS, "/v1/namespaces", None),
    ("PUT", "/v1/namespaces"): ({ADMIN}, "/v1/namespaces", {"namespaces": [{"name": "payments"}]}),
    ("GET", "/v1/namespaces/{name}"): (READERS, "/v1/namespaces/shop", None),
    ("GET", "/v1/agents"): (READERS, "/v1/agents", None),
    ("GET", "/v1/agents/{name}"): (READERS, "/v1/agents/mail-1", None),
    ("POST", "/v1/agents/{name}/drain"): ({ADMIN, OPERATOR}, "/v1/agents/mail-1/drain", None),
    ("POST", "/v1/agents/{name}/disable"): ({ADMIN, OPERATOR}, "/v1/agents/mail-1/disable", None),
    ("POST", "/v1/agents/{name}/enable"): ({ADMIN, OPERATOR}, "/v1/agents/mail-1/enable", None),
    ("POST", "/v1/agents/{name}/allow"): ({ADMIN, OPERATOR}, "/v1/agents/mail-1/allow", {"queues": ["mail"]}),
    ("POST", "/v1/agents/{name}/revoke"): ({ADMIN, OPERATOR}, "/v1/agents/mail-1/revoke", {}),
    ("GET", "/v1/definition-settings"): ({ADMIN, AUTHOR}, "/v1/definition-settings", None),
    ("GET", "/v1/policy"): (READERS, "/v1/policy", None),
    ("PUT", "/v1/policy"): ({ADMIN}, "/v1/policy", {"job_timeout": "1h"}),
    ("GET", "/v1/notifications"): ({ADMIN, OPERATOR}, "/v1/notifications", None),
    ("GET", "/v1/silences"): (READERS, "/v1/silences", None),
    ("POST", "/v1/silences"): ({ADMIN, OPERATOR}, "/v1/silences", {"all": True, "duration": "1h", "reason": "r"}),
    ("DELETE", "/v1/silences/{id}"): ({ADMIN, OPERATOR, AUTHOR}, "/v1/silences/1", None),
    ("GET", "/v1/schedule"): (READERS, "/v1/schedule", None),
    ("GET", "/v1/schedule/density"): (READERS, "/v1/schedule/density", None),
    ("POST", "/v1/explain"): (READERS, "/v1/explain", {"schedule": "@daily"}),
    ("GET", "/v1/status"): (READERS, "/v1/status", None),
    ("GET", "/v1/doctor"): ({ADMIN}, "/v1/doctor", None),
    ("GET", "/v1/tokens"): ({ADMIN}, "/v1/tokens", None),
    ("POST", "/v1/tokens"): ({ADMIN}, "/v1/tokens", {"identity": "ci", "roles": ["scheduler-viewer"]}),
    ("DELETE", "/v1/tokens/{id}"): ({ADMIN}, "/v1/tokens/0123456789ab", None),
    ("GET", "/v1/me"): ([*Role, None], "/v1/me", None),
    ("GET", "/v1/health"): (None, "/v1/health", None),
    ("GET", "/ojs/manifest"): (None, "/ojs/manifest", None),
    ("GET", "/ojs/v1/health"): (None, "/ojs/v1/health", None),
    ("POST", "/ojs/v1/jobs"): ({ADMIN, OPERATOR, AUTHOR}, "/ojs/v1/jobs", {"type": "a.b", "args": []}),
    ("POST", "/ojs/v1/jobs/batch"): (
        {ADMIN, OPERATOR, AUTHOR},
        "/ojs/v1/jobs/batch",
        {"jobs": [{"type": "a.b", "args": []}]},
    ),
    ("POST", "/ojs/v1/jobs/bulk"): (
        {ADMIN, OPERATOR, AUTHOR},
        "/ojs/v1/jobs/bulk",
        {"jobs": [{"type": "a.b", "args": []}]},
    ),
    ("POST", "/ojs/v1/jobs/bulk/cancel"): (
        {ADMIN, OPERATOR, AUTHOR},
        "/ojs/v1/jobs/bulk/cancel",
        {"job_ids": [RUN]},
    ),
    ("POST", "/ojs/v1/jobs/bulk/retry"): (
        {ADMIN, OPERATOR, AUTHOR},
        "/ojs/v1/jobs/bulk/retry",
        {"job_ids": [LETTER]},
    ),
    ("POST", "/ojs/v1/workflows"): (
        {ADMIN, OPERATOR, AUTHOR},
        "/ojs/v1/workflows",
        {"type": "chain", "steps": [{"type": "a.b", "args": []}]},
    ),
    ("GET", "/ojs/v1/workflows/{id}"): (HISTORIANS, f"/ojs/v1/workflows/{FLOW}", None),
    ("DELETE", "/ojs/v1/workflows/{id}"): ({ADMIN, OPERATOR}, f"/ojs/v1/workflows/{FLOW}", None),
    ("POST", "/ojs/v1/workflows/{id}/retry"): ({ADMIN, OPERATOR}, f"/ojs/v1/workflows/{FLOW}/retry", None),
    ("GET", "/ojs/v1/jobs/{id}"): (HISTORIANS, f"/ojs/v1/jobs/{RUN}", None),
    ("DELETE", "/ojs/v1/jobs/{id}"): ({ADMIN, OPERATOR}, f"/ojs/v1/jobs/{RUN}", None),
    ("GET", "/ojs/v1/jobs/{id}/progress"): (HISTORIANS, f"/ojs/v1/jobs/{RUN}/progress", None),
    ("PUT", "/ojs/v1/jobs/{id}/progress"): ({ADMIN, WORKER}, f"/ojs/v1/jobs/{RUN}/progress", {"progress": 1}),
    ("POST", "/ojs/v1/workers/fetch"): ({ADMIN, WORKER}, "/ojs/v1/workers/fetch", {"queues": ["default"]}),
    ("POST", "/ojs/v1/workers/ack"): ({ADMIN, WORKER}, "/ojs/v1/workers/ack", {"job_id": RUN}),
    ("POST", "/ojs/v1/workers/ack/batch"): ({ADMIN, WORKER}, "/ojs/v1/workers/ack/batch", {"acks": [{"job_id": RUN}]}),
    ("POST", "/ojs/v1/workers/nack"): ({ADMIN, WORKER}, "/ojs/v1/workers/nack", {"job_id": RUN, "error": {}}),
    ("POST", "/ojs/v1/workers/heartbeat"): ({ADMIN, WORKER}, "/ojs/v1/workers/heartbeat", {}),
    ("GET", "/ojs/v1/queues"): (READERS, "/ojs/v1/queues", None),
    ("GET", "/ojs/v1/queues/{name}"): (READERS, "/ojs/v1/queues/default", None),
    ("GET", "/ojs/v1/queues/{name}/stats"): (READERS, "/ojs/v1/queues/default/stats", None),
    ("POST", "/ojs/v1/queues/{name}/pause"): ({ADMIN, OPERATOR}, "/ojs/v1/queues/default/pause", None),
    ("POST", "/ojs/v1/queues/{name}/resume"): ({ADMIN, OPERATOR}, "/ojs/v1/queues/default/resume", None),
    ("GET", "/ojs/v1/dead-letter"): (HISTORIANS, "/ojs/v1/dead-letter", None),
    ("POST", "/ojs/v1/dead-letter/{id}/retry"): ({ADMIN, OPERATOR}, f"/ojs/v1/dead-letter/{LETTER}/retry", None),
    ("DELETE", "/ojs/v1/dead-letter/{id}"): ({ADMIN, OPERATOR}, f"/ojs/v1/dead-letter/{LETTER}", None),
    ("GET", "/ojs/v1/events"): (HISTORIANS, "/ojs/v1/events", None),
    ("GET", "/ojs/v1/admin/queues"): (READERS, "/ojs/v1/admin/queues", None),
    ("GET", "/ojs/v1/admin/queues/{name}"): (READERS, "/ojs/v1/admin/queues/default", None),
    ("POST", "/ojs/v1/admin/queues/{name}/pause"): ({ADMIN, OPERATOR}, "/ojs/v1/admin/queues/default/pause", None),
    ("POST", "/ojs/v1/admin/queues/{name}/resume"): ({ADMIN, OPERATOR}, "/ojs/v1/admin/queues/default/resume", None),
    ("DELETE", "/ojs/v1/admin/queues/{name}/jobs"): (
        {ADMIN, OPERATOR},
        "/ojs/v1/admin/queues/default/jobs",
        {"states": ["available"], "confirm": True},
    ),
    ("GET", "/ojs/v1/admin/stats"): (READERS, "/ojs/v1/admin/stats", None),
    ("GET", "/ojs/v1/admin/jobs"): (HISTORIANS, "/ojs/v1/admin/jobs", None),
    ("GET", "/ojs/v1/admin/jobs/{id}"): (HISTORIANS, f"/ojs/v1/admin/jobs/{RUN}", None),
    ("POST", "/ojs/v1/admin/jobs/{id}/cancel"): ({ADMIN, OPERATOR}, f"/ojs/v1/admin/jobs/{RUN}/cancel", None),
    ("POST", "/ojs/v1/admin/jobs/{id}/retry"): ({ADMIN, OPERATOR}, f"/ojs/v1/admin/jobs/{LETTER}/retry", None),
    ("POST", "/ojs/v1/admin/jobs/bulk/cancel"): ({ADMIN, OPERATOR, AUTHOR}, "/ojs/v1/admin/jobs/bulk/cancel", {}),
    ("POST", "/ojs/v1/admin/jobs/bulk/retry"): ({ADMIN, OPERATOR, AUTHOR}, "/ojs/v1/admin/jobs/bulk/retry", {}),
    ("GET", "/ojs/v1/admin/dead-letter"): (HISTORIANS, "/ojs/v1/admin/dead-letter", None),
    ("POST", "/ojs/v1/admin/dead-letter/{id}/retry"): (
        {ADMIN, OPERATOR},
        f"/ojs/v1/admin/dead-letter/{LETTER}/retry",
        None,
    ),
    ("GET", "/ojs/v1/admin/workers"): (READERS, "/ojs/v1/admin/workers", None),
    ("GET", "/ojs/v1/admin/workers/{id}"): (READERS, f"/ojs/v1/admin/workers/{RUN}", None),
    ("POST", "/ojs/v1/admin/workers/{id}/quiet"): ({ADMIN, OPERATOR}, f"/ojs/v1/admin/workers/{RUN}/quiet", None),
    ("POST", "/ojs/v1/cron"): ({ADMIN, AUTHOR}, "/ojs/v1/cron", CRON),
    ("GET", "/ojs/v1/cron"): (READERS, "/ojs/v1/cron", None),
    ("GET", "/ojs/v1/cron/{name}"): (READERS, "/ojs/v1/cron/cron", None),
    ("DELETE", "/ojs/v1/cron/{name}"): ({ADMIN}, "/ojs/v1/cron/cron", None),
    ("PATCH", "/ojs/v1/cron/{name}"): ({ADMIN}, "/ojs/v1/cron/cron", {"enabled": False}),
}
NOT_NOW = {
    ("POST", "/ojs/v1/workers/ack"): 409,
    ("POST", "/ojs/v1/workers/ack/batch"): 422,
    ("POST", "/ojs/v1/workers/nack"): 409,
    ("GET", "/ojs/v1/queues/{name}"): 503,
    ("GET", "/ojs/v1/queues/{name}/stats"): 503,
    # An author may cancel and replay what is its own, and no other job of the list.
    ("POST", "/ojs/v1/jobs/bulk/cancel"): 422,
    ("POST", "/ojs/v1/jobs/bulk/retry"): 422,
    ("DELETE", "/v1/tokens/{id}"): 404,
    ("DELETE", "/v1/silences/{id}"): 404,
    ("POST", "/ojs/v1/dead-letter/{id}/retry"): 503,
    ("POST", "/ojs/v1/admin/dead-letter/{id}/retry"): 503,
    ("POST", "/ojs/v1/admin/jobs/{id}/retry"): 503,
    # Without a confirmation nothing is changed.
    ("POST", "/ojs/v1/admin/jobs/bulk/cancel"): 400,
    ("POST", "/ojs/v1/admin/jobs/bulk/retry"): 400,
    ("POST", "/ojs/v1/workflows/{id}/retry"): 409,
    ("POST", "/v1/queues/{name}/purge"): 409,
}
"""The answer to a permitted caller, without stages and workers."""
STREAMING = {("GET", "/v1/events")}
"""Tested on a real server in `test_served.py`: its answer does not end."""


def endpoints() -> set[tuple[str, str]]:
    """Every method and path that there is."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    return {(method, route.path) for route in routes for method in route.methods or ()}


def test_every_endpoint_is_in_the_table() -> None:
    assert endpoints() == TABLE.keys() | STREAMING


@pytest.fixture
async def guarded(world: World) -> World:
    """A job, a cron job, an execution and a dead letter of another owner."""
    await world.given(name="job")
    await world.given(name="cron", function="a.b")
    for execution_id in (RUN, LETTER):
        await world.log.append(admitted().changed(job="job", execution_id=execution_id), expect=0)
    flow = admitted(plan_of(CHAIN)).changed(job="job", execution_id=FLOW)
    await world.log.append(flow, expect=0)
    now = world.clock.now()
    letter = DeadLettered(
        job="job",
        id=LETTER,
        execution_id=LETTER,
        scheduled_time=now,
        trigger="cron",
        attempts=(),
        last_error=Failure(type="E"),
        first_attempt=now,
        last_attempt=now,
    )
    await world.log.append(letter, expect=0)
    agent = AgentRecord(name="mail-1", agent_id=RUN, state=AgentState.ENABLED)
    await world.projections.put(Bucket.AGENTS, f"mail-1.{RUN}", agent.model_dump_json().encode())
    await Namespaces(world.log).apply([Namespace(name="shop")])
    await world.token("somebody", VIEWER)  # the first token closes the door
    return world


async def decisions(world: World) -> list[Recorded[Message]]:
    """Everything that users stored."""
    return [fact for kind in ("ledger.>", "trigger.>", "queue.>", "agent.>") for fact in await world.facts(kind)]


def attempts() -> Iterator[tuple[str, str, tuple[Role | None, ...]]]:
    """Yield each endpoint with the roles that try it in one world.

    Unless the endpoint only reads, the last of them alone may change that world.
    """
    everyone = (*Role, None)
    for (method, path), (allowed, _, _) in TABLE.items():
        permitted = [role for role in everyone if allowed is None or role in allowed]
        refused = [role for role in everyone if role not in permitted]
        if method == "GET":
            yield method, path, (*refused, *permitted)
            continue
        yield method, path, (*refused, permitted[0])
        for role in permitted[1:]:
            yield method, path, (role,)


@pytest.mark.parametrize(("method", "path", "roles"), list(attempts()))
async def test_roles_have_exactly_the_listed_permissions(
    guarded: World, method: str, path: str, roles: tuple[Role | None, ...]
) -> None:
    allowed, url, body = TABLE[method, path]
    for role in roles:
        token = await guarded.token("ada", *([role] if role else []), queues=("default",))
        before = await decisions(guarded)

        answer = await guarded.ask(method, url, body, Authorization=f"Bearer {token}")
        if allowed is None or role in allowed:
            assert answer.status_code < 400 or answer.status_code == NOT_NOW.get((method, path)), (role, answer.text)
        else:
            assert answer.status_code == 403, (role, answer.text)
            assert await decisions(guarded) == before, role

        stranger = await guarded.ask(method, url, body)
        assert stranger.status_code == (200 if allowed is None else 401)


async def as_(world: World, identity: str, role: Role, method: str, path: str, body: object = None) -> httpx.Response:
    token = await world.token(identity, role)
    return await world.ask(method, path, body, Authorization=f"Bearer {token}")


async def test_author_changes_only_own_jobs(world: World) -> None:
    await world.token("first", VIEWER)
    assert (await as_(world, "ada", AUTHOR, "POST", "/v1/jobs", JOB)).status_code == 201
    for identity, status in (("ada", 200), ("eve", 403)):
        for verb in ("pause", "resume"):
            assert (await as_(world, identity, AUTHOR, "POST", f"/v1/jobs/new/{verb}")).status_code == status
    assert (await as_(world, "eve", AUTHOR, "PUT", "/v1/jobs/new", {**JOB, "schedule": "@hourly"})).status_code == 403
    assert (await as_(world, "eve", AUTHOR, "DELETE", "/v1/jobs/new")).status_code == 403
    assert (await as_(world, "eve", AUTHOR, "POST", "/v1/jobs/new/trigger")).status_code == 403
    assert (await as_(world, "eve", AUTHOR, "POST", "/ojs/v1/cron", {**CRON, "name": "new"})).status_code == 403
    assert (await as_(world, "ada", AUTHOR, "POST", "/v1/jobs/new/trigger")).status_code == 202
    # The creator stays the same through changes by others.
    assert (await as_(world, "root", ADMIN, "PUT", "/v1/jobs/new", {**JOB, "schedule": "@hourly"})).status_code == 200
    assert (await as_(world, "ada", AUTHOR, "DELETE", "/v1/jobs/new")).status_code == 204


async def test_an_owner_may_what_the_creator_may(world: World) -> None:
    await world.given(name="job", owner="token:bea")
    await world.token("first", VIEWER)
    assert (await as_(world, "bea", AUTHOR, "POST", "/v1/jobs/job/pause")).status_code == 200
    assert (await as_(world, "bea", VIEWER, "POST", "/v1/jobs/job/resume")).status_code == 403


async def test_job_with_viewers_is_hidden_from_others(guarded: World) -> None:
    world = guarded
    await world.given(name="job", owner="token:bea", viewers=("token:carl",))
    await world.given(name="cron", function="a.b", owner="token:bea", viewers=("token:carl",))
    paths = {
        "/v1/jobs/job": 404,
        f"/v1/executions/{RUN}": 404,
        f"/v1/executions/{RUN}/events": 404,
        f"/v1/executions/{RUN}/logs": 404,
        f"/v1/dead-letters/{LETTER}": 404,
        "/ojs/v1/cron/cron": 404,
    }
    for path, status in paths.items():
        assert (await as_(world, "eve", OPERATOR, "GET", path)).status_code == status, path
        for identity, role in (("carl", VIEWER), ("bea", VIEWER), ("root", ADMIN)):
            assert (await as_(world, identity, role, "GET", path)).status_code == 200, path
    for path in ("/v1/jobs", "/v1/schedule", "/ojs/v1/cron", "/v1/queues"):
        assert '"job"' not in (await as_(world, "eve", VIEWER, "GET", path)).text
    changes = [
        ("POST", "/v1/jobs/job/trigger"),
        ("POST", f"/v1/executions/{RUN}/cancel"),
        ("POST", f"/v1/dead-letters/{LETTER}/replay"),
    ]
    for method, path in changes:
        assert (await as_(world, "eve", OPERATOR, method, path)).status_code == 404, path
    # A hidden job answers like a missing job.
    hidden = await as_(world, "eve", OPERATOR, "GET", "/v1/jobs/job")
    absent = await as_(world, "eve", OPERATOR, "GET", "/v1/jobs/jab")
    assert hidden.json()["detail"].replace('job"', "") == absent.json()["detail"].replace('jab"', "")
    hidden, absent = [await as_(world, "eve", OPERATOR, "GET", f"/v1/stats?job={name}") for name in ("job", "jab")]
    assert hidden.json()["executions"] == absent.json()["executions"]


async def test_deleted_hidden_job_stays_hidden(guarded: World) -> None:
    await guarded.given(name="job", owner="token:bea", viewers=("token:carl",))
    await guarded.registry.delete("job")
    assert (await as_(guarded, "eve", OPERATOR, "GET", f"/v1/executions/{RUN}")).status_code == 404
    assert (await as_(guarded, "carl", VIEWER, "GET", f"/v1/executions/{RUN}")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/jobs", {**JOB, "name": "job"}),
        ("PUT", "/v1/jobs/job", {**JOB, "name": "job"}),
        ("POST", "/v1/jobs:apply", {"jobs": [{**JOB, "name": "job"}]}),
        ("POST", "/v1/jobs:apply", {"jobs": [{**JOB, "name": "job"}], "dry_run": True}),
        ("POST", "/ojs/v1/cron", {**CRON, "name": "job"}),
    ],
)
async def test_hidden_name_stays_with_its_owner(guarded: World, method: str, path: str, body: object) -> None:
    """A new author of the name would decide who sees the executions of the deleted job."""
    await guarded.given(name="job", owner="token:bea", viewers=("token:carl",))
    await guarded.registry.delete("job")
    before = await guarded.facts("ledger.>")
    for identity in ("eve", "carl"):
        refused = await as_(guarded, identity, AUTHOR, method, path, body)
        assert refused.status_code == 403, refused.text
    assert await guarded.facts("ledger.>") == before
    assert (await as_(guarded, "eve", AUTHOR, "GET", f"/v1/executions/{RUN}")).status_code == 404
    assert (await as_(guarded, "bea", AUTHOR, method, path, body)).status_code in {200, 201}


async def test_open_name_is_free_after_deletion(guarded: World) -> None:
    await guarded.registry.delete("job")
    body = {**JOB, "name": "job"}
    assert (await as_(guarded, "eve", AUTHOR, "POST", "/v1/jobs", body)).status_code == 201


async def test_cancellation_records_actor_and_reason(guarded: World) -> None:
    token = await guarded.token("ops", OPERATOR)
    result = await guarded.ask(
        "POST", f"/v1/executions/{RUN}/cancel", {"reason": "too costly"}, Authorization=f"Bearer {token}"
    )
    assert result.json() == {"job": "job", "execution_id": RUN, "status": "cancelled", "changed": True}
    [fact] = [r.message for r in await guarded.facts(f"execution.job.{RUN}.cancelled")]
    assert isinstance(fact, Cancelled)
    assert fact.by is not None
    assert (fact.by.identity, fact.by.source, fact.reason) == ("ops", "127.0.0.1", "too costly")


def test_only_administrators_may_everything() -> None:
    assert GRANTS[ADMIN] == frozenset(Permission)
    assert all(Permission.ADMINISTER not in GRANTS[role] for role in Role if role is not ADMIN)


def test_names_that_are_no_roles_grant_nothing() -> None:
    assert roles_of(["scheduler-admin ", "SCHEDULER-ADMIN", "admin", 1, None, "scheduler-viewer"]) == {VIEWER}


def test_user_without_roles_sees_nothing(job: Registration) -> None:
    assert not Principal("bea").may_see(job)
    assert not Principal("bea").may_with(Permission.TRIGGER, job)


@pytest.fixture
def job() -> Registration:
    return Registration.model_validate(
        {
            "definition": {**JOB, "owner": "bea"},
            "sequence": 1,
            "defined_at": "2026-01-01T00:00:00Z",
        }
    )


PROGRAM = {"name": "new", "schedule": "@daily", "command": ["/bin/true"]}
STEPS = {"name": "new", "dag": [{"step": "a", "function": "f"}, {"step": "b", "command": ["/bin/true"]}]}
REGISTRATIONS: list[tuple[str, str, object]] = [
    ("POST", "/v1/jobs", PROGRAM),
    ("POST", "/v1/jobs", STEPS),
    ("PUT", "/v1/jobs/new", PROGRAM),
    ("POST", "/v1/jobs:apply", {"jobs": [PROGRAM]}),
    ("POST", "/v1/jobs:apply", {"jobs": [PROGRAM], "dry_run": True}),
    ("POST", "/ojs/v1/cron", {"name": "new", "cron": "@daily", "type": "tocsin.command", "command": ["/bin/true"]}),
    ("POST", "/v1/sql", {"sql": "CREATE JOB new EXEC '/bin/true'"}),
    ("POST", "/v1/sql", {"sql": 'CREATE JOB new WITH \'{"command": ["/bin/true"]}\''}),
]


async def as_roles(
    world: World, roles: tuple[Role, ...], method: str, path: str, body: object = None
) -> httpx.Response:
    token = await world.token("ada", *roles)
    return await world.ask(method, path, body, Authorization=f"Bearer {token}")


@pytest.mark.parametrize("number", range(len(REGISTRATIONS)))
@pytest.mark.parametrize(
    ("roles", "allowed"),
    [((AUTHOR,), False), ((AUTHOR, Role.EXTERNAL), True), ((ADMIN,), True), ((Role.EXTERNAL, VIEWER), False)],
)
async def test_job_that_runs_programs_needs_a_permission(
    world: World, number: int, roles: tuple[Role, ...], *, allowed: bool
) -> None:
    answer = await as_roles(world, roles, *REGISTRATIONS[number])
    assert answer.status_code in ({200, 201} if allowed else {403}), answer.text
    if not allowed:
        assert await world.facts("ledger.>") == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/jobs/new", {**JOB, "schedule": "@hourly"}),
        ("PUT", "/v1/jobs/new", {**PROGRAM, "schedule": "@hourly"}),
        ("POST", "/v1/jobs:apply", {"jobs": [{**JOB, "schedule": "@hourly"}]}),
        ("POST", "/v1/sql", {"sql": "ALTER JOB new SET TIMEOUT = 5"}),
        ("POST", "/v1/sql", {"sql": "ALTER JOB new SET FUNCTION 'f'"}),
        ("PATCH", "/ojs/v1/cron/new", {"enabled": False}),
    ],
)
async def test_program_is_changed_with_the_permission_only(world: World, method: str, path: str, body: object) -> None:
    await world.given(**PROGRAM, function=None, owner="token:ada")
    assert (await as_roles(world, (AUTHOR,), method, path, body)).status_code == 403
    assert (await as_roles(world, (AUTHOR, Role.EXTERNAL), method, path, body)).status_code == 200


STATEMENT = {"connection": "dwh", "statement": "SELECT 1"}


@pytest.mark.parametrize(
    ("body", "needs_it"),
    [
        ({"sql": STATEMENT}, True),
        ({"dag": [{"name": "a", "function": "f"}, {"name": "b", "sql": STATEMENT}]}, True),
        ({"job_sql": "SELECT 1", "connection": "dwh"}, True),
        ({"container": "etl:1"}, True),
        ({"procedure": {"connection": "dwh", "name": "p"}}, False),
        ({"http": "https://example.com"}, False),
    ],
)
async def test_statement_needs_the_permission_of_programs(
    world: World, body: dict[str, object], *, needs_it: bool
) -> None:
    for roles, status in (((AUTHOR,), 403 if needs_it else 201), ((AUTHOR, Role.EXTERNAL), 201 if needs_it else 200)):
        answer = await as_roles(world, roles, "POST", "/v1/jobs", {"name": "new", **body})
        assert answer.status_code == status, answer.text


async def test_owner_may_do_the_rest_with_a_program(world: World) -> None:
    await world.given(**PROGRAM, function=None, owner="token:ada")
    same = (await world.registry.job("new")).definition.model_dump(mode="json", exclude_none=True)
    for method, path, body in (
        ("PUT", "/v1/jobs/new", same),
        ("POST", "/v1/jobs/new/trigger", None),
        ("POST", "/v1/sql", {"sql": "ALTER JOB new SET STATE = PAUSED"}),
        ("POST", "/v1/jobs/new/resume", None),
        ("DELETE", "/v1/jobs/new", None),
    ):
        answer = await as_roles(world, (AUTHOR,), method, path, body)
        assert answer.status_code < 300, answer.text


async def test_cron_job_depends_on_no_hidden_job(world: World) -> None:
    await world.given(name="hidden", owner="token:bea", viewers=("token:carl",))
    body = {**CRON, "depends_on": ["hidden"]}
    assert (await as_roles(world, (AUTHOR,), "POST", "/ojs/v1/cron", body)).status_code == 403
