"""Callers that are bound to namespaces, against what answers tell without naming it: cursors, ids, rates and refusals."""

import json
import re
from typing import Any, Final

import httpx
import pytest

from tests.domain.given import admitted, plan
from tests.http.conftest import World
from tests.http.test_namespaces import AGENT, LETTER, MARKER, RUN, ZOE, ask, requests, shared
from tocsin.domain import ids
from tocsin.domain.access import Principal, Role
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import AgentGranted, DeadLettered, Enqueued, Failed, Failure
from tocsin.domain.silence import MAX_OF_NAMESPACES, MAX_OF_OWNER
from tocsin.services.notifications import Silences
from tocsin.subjects import Bucket

__all__ = ["shared"]  # a fixture

ALL: Final = tuple(Role)
PUSHED: Final[dict[str, Any]] = {"type": "a.b", "args": [], "options": {"queue": "payments.mail"}}


@pytest.mark.parametrize("path", ["/v1/executions", "/v1/dead-letters", "/ojs/v1/dead-letter"])
async def test_page_has_no_cursor_of_hidden_rows(shared: World, path: str) -> None:
    """A cursor names the last row of its page, and only a list with further rows has one."""
    for query in ("", "&job=billing.job", f"&error={MARKER}", f"&id_prefix={RUN[:8]}"):
        if query and path.startswith("/ojs/"):
            continue
        answer = (await ask(shared, "GET", f"{path}?limit=1{query}", None, *ALL)).json()
        assert (answer["next"] if "next" in answer else answer["pagination"]["next_cursor"]) is None, answer


async def test_cursor_continues_within_the_namespace(shared: World) -> None:
    token = await shared.token("bo", Role.VIEWER, namespaces=("billing",))
    cursor, found = None, list[str]()
    while len(found) < 10:
        path = "/v1/executions?limit=1" + (f"&cursor={cursor}" if cursor else "")
        page = (await shared.ask("GET", path, Authorization=f"Bearer {token}")).json()
        found += [row["execution_id"] for row in page["executions"]]
        if (cursor := page["next"]) is None:
            break
    assert {RUN, LETTER} <= set(found)
    assert len(found) == len(set(found))


@pytest.mark.parametrize("namespaces", [("bill_ng",), ("%",), ("billin",), ()])
async def test_odd_namespaces_match_no_rows(shared: World, namespaces: tuple[str, ...]) -> None:
    token = await shared.token("eve", *ALL, namespaces=namespaces)
    answer = await shared.ask("GET", "/v1/executions?limit=1", Authorization=f"Bearer {token}")
    assert answer.json() == {"executions": [], "next": None}


async def test_rates_of_namespaces_are_counted_apart(shared: World) -> None:
    limited = {"rate_limit": {"key": "partner", "throttle": {"limit": 1, "period": "PT1H"}}}
    for namespace in ("payments", "billing"):
        token = await shared.token("ci", Role.OPERATOR, namespaces=(namespace,))
        body = {**PUSHED, "options": {"queue": f"{namespace}.mail", **limited}}
        answer = await shared.ask("POST", "/ojs/v1/jobs", body, Authorization=f"Bearer {token}")
        assert answer.status_code == 201, answer.text
    wishes = [fact.message for fact in await shared.facts("enqueue.>")]
    keys = {wish.rate.key for wish in wishes if isinstance(wish, Enqueued) and wish.rate is not None}
    assert len(keys) == 2, keys


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/ojs/v1/jobs", PUSHED),
        ("/ojs/v1/jobs/batch", {"jobs": [PUSHED]}),
        ("/ojs/v1/jobs/bulk", {"jobs": [PUSHED]}),
        ("/ojs/v1/workflows", {"type": "chain", "steps": [PUSHED]}),
    ],
)
async def test_bound_caller_takes_no_id_of_others(shared: World, path: str, body: dict[str, Any]) -> None:
    """The id of the next execution of `billing.cron` can be computed from its name and its schedule."""
    [job] = [job for job in await shared.registry.jobs() if job.name == "billing.job"]
    following = job.next_fire_time(shared.clock.now())
    assert following is not None
    taken = ids.occurrence_id("billing.job", following)
    jobs = [{**each, "id": taken} for each in body.get("jobs", ())]
    answer = await ask(shared, "POST", path, {**body, **({"jobs": jobs} if jobs else {"id": taken})}, *ALL)
    assert answer.status_code in {400, 422}, answer.text
    assert "bound to namespaces" in answer.text
    assert await shared.facts("enqueue.>") == []
    assert await shared.log.read(f"execution.*.{taken}.>") == []


async def test_executions_with_one_id_never_meet(shared: World) -> None:
    """Callers without a namespace may bring ids, so that two jobs may have executions of one id."""
    now = shared.clock.now()
    for job, text in (("payments.ojs.a.b", "own"), ("billing.job", MARKER)):
        planned = plan().changed(definition=0, input={"text": text})
        run: dict[str, Any] = {"job": job, "execution_id": AGENT}
        first = await shared.log.append(admitted(planned).changed(**run), expect=0)
        error = Failure(type=text, message=text)
        failed = Failed(**run, scheduled_time=now, trigger="api", error=error, dead_letter=True)
        await shared.log.append(failed, expect=first)
        letter = DeadLettered(
            **run,
            id=AGENT,
            scheduled_time=now,
            trigger="api",
            attempts=(),
            first_attempt=now,
            last_attempt=now,
            last_error=error,
            definition=0,
        )
        await shared.log.append(letter, expect=0)
    for path in ("executions", "dead-letters"):
        for detail in ("", "/events"):
            answer = await ask(shared, "GET", f"/v1/{path}/{AGENT}{detail}", None, *ALL)
            assert answer.status_code == 200, answer.text
            assert MARKER not in answer.text
    assert MARKER not in (await ask(shared, "GET", f"/ojs/v1/jobs/{AGENT}", None, *ALL)).text


def _text(answer: httpx.Response) -> str:
    """Return an answer without the id of its request, which is random."""
    return re.sub("req_[0-9a-f-]{36}", "req", answer.text)


def _alike(first: str, second: str, *names: str) -> bool:
    for name in names:
        first, second = first.replace(name, "NAME"), second.replace(name, "NAME")
    return first == second


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/jobs", {"name": "NAME", "function": "f", "queue": "payments.mail"}),
        ("PUT", "/v1/jobs/NAME", {"function": "f", "queue": "payments.mail"}),
        ("GET", "/v1/jobs/NAME", None),
        ("DELETE", "/v1/jobs/NAME", None),
        ("POST", "/v1/jobs/NAME/trigger", {}),
        ("POST", "/v1/jobs/NAME/pause", {}),
        ("POST", "/v1/jobs/NAME/rollback", {"sequence": 1}),
        ("POST", "/v1/jobs/NAME/backfill", {"start": "2026-01-01T00:00:00Z"}),
        ("GET", "/v1/jobs/NAME/why", None),
        ("GET", "/v1/jobs/NAME/timeline", None),
        ("GET", "/v1/jobs/NAME/durations", None),
        ("GET", "/v1/jobs/NAME/calendar", None),
        ("GET", "/v1/jobs/NAME/revisions", None),
        ("GET", "/v1/jobs/NAME/triggers/ignored", None),
        ("POST", "/ojs/v1/cron", {"name": "NAME", "cron": "@daily", "type": "a.b", "options": {"queue": "payments.m"}}),
        ("GET", "/ojs/v1/cron/NAME", None),
        ("PATCH", "/ojs/v1/cron/NAME", {"enabled": False}),
        ("DELETE", "/ojs/v1/cron/NAME", None),
        ("POST", "/v1/silences", {"job": "NAME", "duration": "1h", "reason": "r"}),
        ("POST", "/v1/sql", {"sql": 'SHOW CREATE JOB "NAME"'}),
        ("POST", "/v1/sql", {"sql": 'DROP JOB "NAME"'}),
        ("POST", "/v1/sql", {"sql": 'ALTER JOB "NAME" SET STATE = PAUSED'}),
        ("POST", "/v1/sql", {"sql": 'EXECUTE JOB "NAME"'}),
        (
            "POST",
            "/v1/jobs",
            {
                "name": "payments.n",
                "function": "f",
                "queue": "payments.mail",
                "depends_on": [{"job": "NAME", "within": "6h"}],
            },
        ),
        (
            "POST",
            "/v1/jobs:apply",
            {
                "jobs": [
                    {
                        "name": "payments.n",
                        "function": "f",
                        "queue": "payments.mail",
                        "depends_on": [{"job": "NAME", "within": "6h"}],
                    }
                ],
                "dry_run": True,
            },
        ),
    ],
)
@pytest.mark.parametrize("role", [Role.ADMIN, Role.AUTHOR])
async def test_refusal_reveals_no_jobs_outside(shared: World, method: str, path: str, body: object, role: Role) -> None:
    """A job of others, a job with viewers, and a name without a job and a namespace get the same answer."""
    secret = {"name": "billing.hid", "function": "f", "queue": "billing.mail", "schedule": "@daily"}
    await shared.registry.define(JobDefinition.model_validate({**secret, "viewers": ("token:zoe",)}), by=ZOE)
    names, texts = ("billing.cron", "billing.hid", "nowhere.job"), list[str]()
    for name in names:
        filled = None if body is None else json.loads(json.dumps(body).replace("NAME", name))
        answer = await ask(shared, method, path.replace("NAME", name), filled, role)
        assert answer.status_code >= 400, answer.text
        texts.append(f"{answer.status_code} {answer.headers.get('ETag')} {_text(answer)}")
    assert _alike(texts[0], texts[2], *names), texts
    assert _alike(texts[1], texts[2], *names), texts


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path, _, _ in requests() if "{id}" in path])
async def test_refusal_reveals_no_ids_outside(shared: World, method: str, path: str) -> None:
    texts = list[str]()
    theirs = LETTER if "dead-letter" in path else AGENT if "/workers/" in path else RUN
    for each in (theirs, "11111111-2222-7333-8444-555555555555"):
        answer = await ask(shared, method, path.replace("{id}", each), None if method == "GET" else {}, *ALL)
        texts.append(f"{answer.status_code} {_text(answer)}".replace(each, "ID"))
    assert texts[0] == texts[1]


async def test_http_worker_lends_its_name_to_no_grant(shared: World) -> None:
    """A worker over HTTP chooses its name, and a grant of that name would limit absent agents of others."""
    record = AgentRecord(name="absent", agent_id=AGENT, state=AgentState.ENABLED, queues=["payments.mail"], kind="http")
    await shared.projections.put(Bucket.AGENTS, f"outside.http.{AGENT}", record.model_dump_json().encode())
    answer = await ask(shared, "POST", "/v1/agents/absent/allow", {"queues": ["payments.mail"]}, *ALL)
    assert answer.status_code == 404, answer.text
    assert not [fact for fact in await shared.facts("agent.>") if isinstance(fact.message, AgentGranted)]


async def test_silences_of_tags_keep_their_reasons(shared: World) -> None:
    await shared.given(name="payments.tagged", queue="payments.mail", tags=("night",))
    silences = Silences(shared.log, shared.clock)
    for tag in ("night", MARKER, None):
        shared.clock.advance(1)
        await silences.start(job=None, tag=tag, seconds=60, reason=MARKER, by=ZOE)
    answer = await ask(shared, "GET", "/v1/silences", None, *ALL)
    assert MARKER not in answer.text
    assert [silence.get("tag") for silence in answer.json()["silences"]] == ["night", None]


async def test_namespace_leaves_silences_to_others(shared: World) -> None:
    for job in ("payments.quiet", "shipping.quiet"):
        await shared.given(name=job, queue=f"{job.split('.')[0]}.mail")

    async def start(identity: str, namespace: str) -> int:
        shared.clock.advance(1)  # an id is made of the time
        token = await shared.token(identity, Role.ADMIN, namespaces=(namespace,))
        body = {"job": f"{namespace}.quiet", "duration": "1h", "reason": "quiet"}
        return (await shared.ask("POST", "/v1/silences", body, Authorization=f"Bearer {token}")).status_code

    answers = [await start(f"p{n // MAX_OF_OWNER}", "payments") for n in range(MAX_OF_NAMESPACES)]
    assert set(answers) == {201}
    assert await start("p9", "payments") == 409
    assert await start("s", "shipping") == 201


def test_accounts_of_callers_differ() -> None:
    bound = Principal("ada", namespaces=frozenset({"payments"}))
    others = [Principal("ada"), Principal("ada@payments"), Principal("ada", namespaces=frozenset())]
    assert len({caller.account for caller in (bound, *others)}) == 4
