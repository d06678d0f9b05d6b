"""Callers that are bound to namespaces: every endpoint keeps what belongs to other namespaces from them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.domain.given import admitted, plan
from tests.domain.test_workflow import CHAIN, plan_of
from tests.history_files import history_url
from tests.http.conftest import World
from tests.http.test_roles import NOT_NOW, TABLE
from tocsin import subjects
from tocsin.adapters.http.auth.visibility import Visibility
from tocsin.adapters.sql.history import open_history
from tocsin.domain.access import Principal, Role
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Actor,
    AgentSwitched,
    DeadLettered,
    Failed,
    Failure,
    Message,
    Namespace,
    NotificationRaised,
    Recorded,
    Shard,
    Silence,
    SilencesDefined,
)
from tocsin.domain.notification import Kind
from tocsin.domain.policy import Policy
from tocsin.services.documents import Policies
from tocsin.services.namespaces import Namespaces
from tocsin.services.queue_decisions import QueueDecisions
from tocsin.services.shards import ShardMaps
from tocsin.settings import Settings
from tocsin.subjects import Bucket, Stream

RUN: Final = "11111111-1111-7111-8111-111111111111"
LETTER: Final = "22222222-2222-7222-8222-222222222222"
FLOW: Final = "33333333-3333-7333-8333-333333333333"
AGENT: Final = "44444444-4444-7444-8444-444444444444"
MARKER: Final = "quagga"
"""A text that only things of the namespace `billing` contain."""
ZOE: Final = Actor(identity=MARKER, kind="token")
ALL: Final = tuple(Role)


@pytest.fixture
async def shared(world: World) -> World:
    """Two namespaces: `billing`, with everything that can be in it, and `payments`, with a job."""
    await Namespaces(world.log).apply([Namespace(name="billing"), Namespace(name="payments")], by=ZOE, reason=MARKER)
    await world.given(name="payments.job", queue="payments.mail", function="pay")
    await world.given(name="other", queue="default", function=MARKER)
    about: dict[str, Any] = {"description": MARKER, "owner": f"token:{MARKER}", "tags": (MARKER,)}
    for name in ("billing.job", "billing.cron"):
        fields = {"name": name, "queue": "billing.mail", "function": f"a.{MARKER}", "schedule": "0 3 * * *", **about}
        await world.registry.define(JobDefinition.model_validate(fields), by=ZOE, reason=MARKER)
    recorded = await world.log.last(subjects.definition("billing.job"))
    assert recorded is not None
    await _run(world, recorded.sequence)
    await world.registry.pause("billing.cron", by=ZOE, reason=MARKER)
    await QueueDecisions(world.log, by=ZOE).switch("billing.mail", paused=True, reason=MARKER)
    await Policies(world.log).define(lambda _: Policy(job_timeout=7_200), by=ZOE, reason=MARKER)
    await ShardMaps(world.log).apply([Shard(shard_id="eu-1")], by=ZOE, reason=MARKER)
    now = world.clock.now()
    quiet = Silence(id="1", job="billing.job", since=now, until=now.replace(year=now.year + 1), reason=MARKER, by=ZOE)
    await world.log.append(SilencesDefined(silences=(quiet,), by=ZOE, reason=MARKER), expect=0)
    for name, queues in ((MARKER, ["billing.mail"]), ("mixed", ["billing.mail", "payments.mail"])):
        agent = AgentRecord(
            name=name, agent_id=AGENT, state=AgentState.ENABLED, queues=queues, functions=[MARKER], host=MARKER
        )
        await world.projections.put(Bucket.AGENTS, f"{name}.{AGENT}", agent.model_dump_json().encode())
    await world.log.append(AgentSwitched(name=MARKER, agent_id="all", enabled=False, by=ZOE, reason=MARKER), expect=0)
    own = AgentRecord(name="pay-1", agent_id=RUN, state=AgentState.ENABLED, queues=["payments.mail"])
    await world.projections.put(Bucket.AGENTS, f"pay-1.{RUN}", own.model_dump_json().encode())
    await world.token(MARKER, Role.VIEWER)
    return world


async def _run(world: World, definition: int) -> None:
    """Store executions of `billing`, a dead letter and a notification, also in the history."""
    planned = plan().changed(definition=definition, input={"text": MARKER})
    now, error = world.clock.now(), Failure(type=MARKER, message=MARKER)
    for execution_id in (RUN, LETTER):
        run: dict[str, Any] = {"job": "billing.job", "execution_id": execution_id}
        first = await world.log.append(admitted(planned).changed(**run), expect=0)
        failed = Failed(**run, scheduled_time=now, trigger="cron", error=error, dead_letter=True)
        if execution_id == LETTER:
            await world.log.append(failed, expect=first)
    flow = admitted(plan_of(CHAIN)).changed(job="billing.ojs-workflow", execution_id=FLOW)
    await world.log.append(flow, expect=0)
    letter = DeadLettered(
        job="billing.job",
        id=LETTER,
        execution_id=LETTER,
        scheduled_time=now,
        trigger="cron",
        attempts=(),
        first_attempt=now,
        last_attempt=now,
        last_error=error,
        definition=definition,
    )
    await world.log.append(letter, expect=0)
    raised = NotificationRaised(job="billing.job", id=LETTER, channel="ops", kind=Kind.FAILED, at=now, reason=MARKER)
    await world.log.append(raised, expect=0)
    facts = await world.log.read("execution.>") + await world.log.read("dead-letter.>")
    facts.sort(key=lambda recorded: recorded.sequence)
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)


async def ask(world: World, method: str, url: str, body: object, *roles: Role) -> httpx.Response:
    token = await world.token("ada", *roles, queues=("payments.mail",), namespaces=("payments",))
    return await world.ask(method, url, body, Authorization=f"Bearer {token}")


async def stored(world: World) -> list[Recorded[Message]]:
    return [
        fact
        for stream in ("ledger", "trigger", "queue", "agent", "enqueue", "cancel", "dead-letter", "policy", "shards")
        for fact in await world.facts(f"{stream}.>")
    ]


THEIRS: Final = {
    "/v1/jobs/job": "/v1/jobs/billing.job",
    "/v1/jobs/new": "/v1/jobs/billing.job",
    "/ojs/v1/cron/cron": "/ojs/v1/cron/billing.cron",
    "/queues/default": "/queues/billing.mail",
    "/v1/agents/mail-1": f"/v1/agents/{AGENT}",
    f"/admin/workers/{RUN}": f"/admin/workers/{AGENT}",
    "/v1/namespaces/shop": "/v1/namespaces/billing",
    "job=job": "job=billing.job",
}
"""Parts of the addresses in the table, and the same for things of the other namespace."""


def requests() -> Iterator[tuple[str, str, str, object]]:
    """Yield each endpoint, with an address and a body that name things of the other namespace wherever they can."""
    for (method, path), (_, url, body) in TABLE.items():
        for own, theirs in THEIRS.items():
            url = url.replace(own, theirs)  # noqa: PLW2901 - several parts may be replaced
        text = json.dumps(body).replace('"new"', '"billing.job"').replace('"new-cron"', '"billing.cron"')
        text = text.replace('"default"', '"billing.mail"').replace('["mail"]', '["billing.mail"]')
        text = text.replace('"name": "job"', '"name": "billing.job"')
        yield method, path, url, json.loads(text)


@pytest.mark.parametrize(("method", "path", "url", "body"), list(requests()))
async def test_endpoint_reveals_and_changes_nothing_elsewhere(
    shared: World, method: str, path: str, url: str, body: object
) -> None:
    before = await stored(shared)
    answer = await ask(shared, method, url, body, *ALL)

    assert MARKER not in answer.text, answer.text
    assert MARKER not in str(answer.headers)
    names_it = "billing" in url or "billing" in json.dumps(body)
    if not names_it:
        assert "billing" not in answer.text, answer.text
    assert await stored(shared) == before
    if names_it and method != "GET" and path != "/v1/what-if":
        assert answer.status_code >= 400 or path.endswith(("heartbeat", "replay-all")), answer.text


ACCEPTED: Final = {
    ("POST", "/v1/jobs"): ("/v1/jobs", {"name": "payments.new", "function": "f", "queue": "payments.mail"}),
    ("GET", "/v1/jobs/{name}"): ("/v1/jobs/payments.job", None),
    ("DELETE", "/v1/jobs/{name}"): ("/v1/jobs/payments.job", None),
    ("POST", "/v1/jobs/{name}/trigger"): ("/v1/jobs/payments.job/trigger", None),
    ("POST", "/v1/jobs/{name}/pause"): ("/v1/jobs/payments.job/pause", None),
    ("POST", "/v1/jobs:apply"): (
        "/v1/jobs:apply",
        {
            "jobs": [{"name": "payments.new", "function": "f", "queue": "payments.mail"}],
            "prune": True,
            "owner": "cli:x",
        },
    ),
    ("POST", "/v1/sql"): ("/v1/sql", {"sql": 'EXECUTE JOB "payments.job"'}),
    ("GET", "/v1/queues/{name}"): ("/v1/queues/payments.mail", None),
    ("POST", "/v1/queues/{name}/pause"): ("/v1/queues/payments.mail/pause", None),
    ("GET", "/v1/agents/{name}"): ("/v1/agents/pay-1", None),
    ("POST", "/v1/agents/{name}/allow"): ("/v1/agents/pay-1/allow", {"queues": ["payments.mail"]}),
    ("POST", "/v1/silences"): ("/v1/silences", {"job": "payments.job", "duration": "1h", "reason": "r"}),
    ("POST", "/ojs/v1/jobs"): ("/ojs/v1/jobs", {"type": "a.b", "args": [], "options": {"queue": "payments.mail"}}),
    ("POST", "/ojs/v1/workers/fetch"): ("/ojs/v1/workers/fetch", {"queues": ["payments.mail"]}),
    ("GET", "/v1/namespaces/{name}"): ("/v1/namespaces/payments", None),
}


@pytest.mark.parametrize("endpoint", list(ACCEPTED))
async def test_own_namespace_is_served(shared: World, endpoint: tuple[str, str]) -> None:
    url, body = ACCEPTED[endpoint]
    answer = await ask(shared, endpoint[0], url, body, *ALL)
    assert answer.status_code < 300 or answer.status_code == NOT_NOW.get(endpoint), answer.text


@pytest.mark.parametrize(
    ("path", "field", "names"),
    [
        ("/v1/jobs", "jobs", ["payments.job"]),
        ("/v1/queues", "queues", ["payments.mail"]),
        ("/v1/agents", "agents", ["pay-1"]),
        ("/v1/namespaces", "namespaces", ["payments"]),
        ("/ojs/v1/cron", "crons", ["payments.job"]),
        ("/ojs/v1/queues", "queues", ["payments.mail"]),
        ("/ojs/v1/admin/queues", "items", ["payments.mail"]),
        ("/ojs/v1/admin/workers", "items", ["pay-1"]),
    ],
)
async def test_lists_have_the_own_namespace(shared: World, path: str, field: str, names: list[str]) -> None:
    answer = await ask(shared, "GET", path, None, *ALL)
    assert [row["name"] for row in answer.json()[field]] == names


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/jobs", {"name": "new", "function": "f", "queue": "payments.mail"}),
        ("POST", "/v1/jobs", {"name": "payments", "function": "f", "queue": "payments.mail"}),
        ("POST", "/v1/jobs", {"name": "payments.new", "function": "f"}),
        ("PUT", "/v1/jobs/payments.job", {"name": "payments.job", "function": "f", "queue": "billing.mail"}),
        ("POST", "/ojs/v1/cron", {"name": "payments.new", "cron": "@daily", "type": "a.b"}),
        ("POST", "/v1/sql", {"sql": "CREATE JOB new EXEC '/bin/true'"}),
        ("POST", "/ojs/v1/jobs", {"type": "a.b", "args": []}),
        ("POST", "/ojs/v1/workflows", {"type": "chain", "steps": [{"type": "a.b", "args": []}]}),
        ("POST", "/v1/silences", {"tag": "x", "duration": "1h", "reason": "r"}),
        ("GET", "/v1/status", None),
        ("POST", "/v1/agents/pay-1/revoke", {}),
        ("POST", "/v1/agents/pay-1/allow", {"queues": ["*"]}),
    ],
)
async def test_name_outside_the_namespace_is_refused(shared: World, method: str, path: str, body: object) -> None:
    answer = await ask(shared, method, path, body, *ALL)
    assert answer.status_code == 403, answer.text
    kind = answer.json().get("type", answer.json().get("error", {}).get("code"))
    assert str(kind).endswith("outside-namespace") or path.startswith("/ojs/"), answer.text
    assert "payments" in answer.text or "namespaces" in answer.text


async def test_reference_outside_the_namespace_is_refused(shared: World) -> None:
    for field, value in (
        ("depends_on", [{"job": "billing.job", "within": "6h"}]),
        ("triggers", [{"job": "billing.job"}]),
    ):
        body = {"name": "payments.new", "function": "f", "queue": "payments.mail", field: value}
        answer = await ask(shared, "POST", "/v1/jobs", body, Role.AUTHOR)
        assert answer.status_code == 403, answer.text
        assert MARKER not in answer.text


async def test_statistics_of_a_hidden_job_are_refused(shared: World) -> None:
    since = "since=2000-01-01T00:00:00Z"
    for job, status in (("billing.job", 404), ("payments.job", 200)):
        assert (await ask(shared, "GET", f"/v1/stats?{since}&job={job}", None, *ALL)).status_code == status
    root = await shared.token("root", Role.ADMIN)
    for job, number in (("billing.job", 2), ("payments.job", 0)):
        answer = await shared.ask("GET", f"/v1/stats?{since}&job={job}", Authorization=f"Bearer {root}")
        assert answer.json()["executions"]["total_executions"] == number


async def test_team_has_only_its_own_channels(tmp_path: Path) -> None:
    channels = {name: {"type": "nats"} for name in ("ops", "billing.ops", "payments.ops", "payments.pager")}
    settings = Settings.model_validate({"notifications": {"channels": channels}})
    async with open_history(history_url(tmp_path)) as history:
        world = World(tmp_path, history, settings=settings)
        await Namespaces(world.log).apply([Namespace(name="billing"), Namespace(name="payments")])
        root = await world.token("root", Role.ADMIN)
        for team, theirs, own in (
            ("payments", "billing.ops", ["payments.ops", "payments.pager"]),
            ("billing", "payments.ops", ["billing.ops"]),
        ):
            token = await world.token("ada", *ALL, namespaces=(team,))
            job = {"name": f"{team}.job", "function": "f", "queue": f"{team}.mail"}

            async def register(channels: list[str], bearer: str, job: dict[str, str] = job) -> tuple[int, str]:
                body = {**job, "notify": {"channels": channels, "on_failure": True}}
                answer = await world.ask("POST", "/v1/jobs", body, Authorization=f"Bearer {bearer}")
                return answer.status_code, answer.text

            for channel in (theirs, "ops", "billing.none" if team == "payments" else "payments.none"):
                status, text = await register([own[0], channel], token)
                assert (status, "outside-namespace" in text) == (403, True), text
                status, text = await register([own[0], channel], root)
                assert (status, f"namespace `{team}`" in text) == (422, True), text
            assert (await register(own, token))[0] == 201
            answer = await world.ask("GET", "/v1/definition-settings", Authorization=f"Bearer {token}")
            assert answer.json()["channels"] == own
        assert len(await world.facts("ledger.>")) == 2
        world.calculations.close()


async def test_pushed_job_is_in_its_queues_namespace(shared: World) -> None:
    pushed = {"type": "a.b", "args": [], "options": {"queue": "payments.mail"}}
    assert (await ask(shared, "POST", "/ojs/v1/jobs", pushed, Role.OPERATOR)).status_code == 201
    [wish] = await shared.facts("enqueue.>")
    assert subjects.job_of(wish.subject) == "payments.ojs.a.b"


@pytest.mark.parametrize(
    ("queue", "job"), [("payments.mail", "payments.ojs.a.b"), ("undeclared.mail", "ojs.a.b"), ("default", "ojs.a.b")]
)
async def test_pushed_job_of_any_caller_joins_its_queue(shared: World, queue: str, job: str) -> None:
    token = await shared.token("root", Role.OPERATOR)
    pushed = {"type": "a.b", "args": [], "options": {"queue": queue}}
    for path, body in (("jobs", pushed), ("jobs/bulk", {"jobs": [pushed]}), ("jobs/batch", {"jobs": [pushed]})):
        answer = await shared.ask("POST", f"/ojs/v1/{path}", body, Authorization=f"Bearer {token}")
        assert answer.status_code == 201, answer.text
    assert {subjects.job_of(wish.subject) for wish in await shared.facts("enqueue.>")} == {job}


async def test_workflow_across_namespaces_is_refused(shared: World) -> None:
    token = await shared.token("root", Role.ADMIN)
    steps = [{"type": "a.b", "args": [], "options": {"queue": f"{name}.mail"}} for name in ("payments", "billing")]
    body = {"type": "chain", "steps": steps}
    answer = await shared.ask("POST", "/ojs/v1/workflows", body, Authorization=f"Bearer {token}")
    assert answer.status_code == 400, answer.text
    body["steps"] = steps[:1]
    answer = await shared.ask("POST", "/ojs/v1/workflows", body, Authorization=f"Bearer {token}")
    assert answer.status_code == 201, answer.text
    [wish] = await shared.facts("enqueue.>")
    assert subjects.job_of(wish.subject) == "payments.ojs-workflow"


async def test_identical_identities_share_no_answers(shared: World) -> None:
    """Teams may name their tokens alike; a repeated request gets the answer of its own team."""
    answers = []
    for namespace in ("billing", "payments"):
        token = await shared.token("ci", Role.OPERATOR, namespaces=(namespace,))
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "1"}
        answers.append((await shared.ask("POST", "/v1/sql", {"sql": "SHOW JOBS"}, **headers)).json()["results"][0])
    assert [[row[0] for row in answer["rows"]] for answer in answers] == [
        ["billing.cron", "billing.job"],
        ["payments.job"],
    ]


async def test_pruning_frees_no_hidden_webhook(world: World) -> None:
    hook = {"webhook": "/hooks/payments/orders", "secret": "${env:ORDERS}"}
    await world.given(name="job", function="pay", owner="token:victim", schedule=None, triggers=[hook])
    token = await world.token("ada", Role.AUTHOR, queues=("payments.mail",), namespaces=("payments",))
    job = {"name": "payments.evil", "function": "f", "queue": "payments.mail", "triggers": [hook]}
    for prune in (False, True):
        body = {"jobs": [job], "owner": "token:victim", "prune": prune}
        answer = await world.ask("POST", "/v1/jobs:apply", body, Authorization=f"Bearer {token}")
        assert (answer.status_code, "a hidden job has this path" in answer.text) == (422, True)
    assert [job.name for job in await world.registry.jobs()] == ["job"]


async def test_undeclared_namespace_gets_no_token(shared: World) -> None:
    body = {"identity": "ci", "roles": ["scheduler-author"], "namespaces": ["shipping"]}
    token = await shared.token("root", Role.ADMIN)
    answer = await shared.ask("POST", "/v1/tokens", body, Authorization=f"Bearer {token}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "namespaces"


async def test_queues_of_a_worker_are_in_its_namespace(shared: World) -> None:
    body = {"identity": "w", "roles": ["scheduler-worker"], "namespaces": ["payments"], "queues": ["billing.mail"]}
    token = await shared.token("root", Role.ADMIN)
    answer = await shared.ask("POST", "/v1/tokens", body, Authorization=f"Bearer {token}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "queues"
    assert not Principal("w", frozenset({Role.WORKER}), "token", namespaces=frozenset({"payments"})).may_fetch_from(
        "billing.mail"
    )


async def test_token_without_a_namespace_sees_everything(shared: World) -> None:
    token = await shared.token("root", Role.VIEWER)
    answer = await shared.ask("GET", "/v1/jobs", Authorization=f"Bearer {token}")
    assert [job["name"] for job in answer.json()["jobs"]] == ["billing.cron", "billing.job", "other", "payments.job"]


REVEALING: Final = frozenset(
    {
        *(
            "/ojs/v1/admin/workers",
            "/ojs/v1/admin/workers/{id}",
            "/ojs/v1/cron",
            "/ojs/v1/cron/{name}",
            "/ojs/v1/dead-letter",
            "/ojs/v1/events",
            "/v1/agents",
            "/v1/agents/{name}",
        ),
        *("/v1/changes", "/v1/dead-letters", "/v1/dead-letters/groups", "/v1/dead-letters/{id}", "/v1/executions"),
        *("/v1/dead-letters/{id}/events", "/v1/executions/{id}/events", "/v1/jobs", "/v1/jobs/{name}", "/v1/overview"),
        *("/v1/jobs/{name}/revisions", "/v1/jobs/{name}/timeline", "/v1/jobs/{name}/why", "/v1/notifications"),
        *("/v1/policy", "/v1/queues", "/v1/queues/{name}", "/v1/silences", "/v1/tokens"),
    }
)
"""Endpoints whose answers to an administrator have the marker."""


async def test_administrator_sees_what_the_others_do_not(shared: World) -> None:
    """Otherwise the test of every endpoint could not fail."""
    token, revealing = await shared.token("root", Role.ADMIN), set[str]()
    for method, path, url, body in requests():
        if method == "GET" or path in {"/v1/sql", "/v1/what-if"}:
            answer = await shared.ask(method, url, body, Authorization=f"Bearer {token}")
            if MARKER in answer.text:
                revealing.add(path)
    assert revealing >= REVEALING


TABLES: Final = ("jobs", "job_runs", "job_dependencies", "agents", "shards")


@pytest.mark.parametrize(
    "statement",
    [
        *("SHOW JOBS", 'SHOW CREATE JOB "billing.job"', 'DROP JOB "billing.job"', f"CANCEL JOB RUN '{RUN}'"),
        *(" ".join(("SELECT * FROM", f"sys.{table}")) for table in TABLES),
    ],
)
async def test_sql_reveals_and_changes_nothing_elsewhere(shared: World, statement: str) -> None:
    before = await stored(shared)
    answer = await ask(shared, "POST", "/v1/sql", {"sql": statement}, *ALL)
    assert MARKER not in answer.text
    assert "billing" not in answer.text or answer.status_code == 404
    assert await stored(shared) == before


async def test_stream_of_events_has_the_own_namespace(shared: World) -> None:
    bound = Principal("ada", frozenset(ALL), "token", namespaces=frozenset({"payments"}))
    facts = [fact for scope in ("ledger.>", "execution.>", "dead-letter.>") for fact in await shared.facts(scope)]
    visibility = Visibility(shared.log, shared.clock)
    seen = {subjects.job_of(fact.subject) for fact in facts if await visibility.may_see_event(bound, fact)}
    assert seen == {"payments.job"}
    assert {subjects.job_of(fact.subject) for fact in facts} > {"billing.job"}
