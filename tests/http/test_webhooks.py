"""`POST /hooks/…`: signed requests are stored, and all others get one answer."""

import asyncio
import hmac
import json
from pathlib import Path

import httpx
import pytest

from tests.domain.given import KEY
from tests.http.conftest import LOCAL, World
from tocsin.adapters.http.middleware.rate_limit import MemoryRateLimit
from tocsin.domain import ids, ledger
from tocsin.domain.access import Role
from tocsin.domain.definition import JobDefinition
from tocsin.ports import WEBHOOK_DELIVERY, WEBHOOK_PATH, WEBHOOK_REGISTRATION, LogUnavailable, RequestRefused
from tocsin.services.jobs import Job
from tocsin.services.webhooks import Webhooks
from tocsin.settings import Settings

SECRET = "a-secret-of-32-bytes-for-testing"  # noqa: S105 - of tests
HOOK = {"webhook": "/hooks/github"}
JOB = {"schedule": None, "function": "f"}


@pytest.fixture
async def world(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    monkeypatch.setenv("GITHUB_SECRET", SECRET)
    triggers = {"webhooks": {"GITHUB_SECRET": ["/hooks/github", "/hooks/git/*"], "MISSING": ["/hooks/missing"]}}
    world.settings = Settings.model_validate({"triggers": triggers, "data_dir": tmp_path})
    world.__post_init__()
    return world


def signed(body: bytes, secret: str = SECRET, **more: str) -> dict[str, str]:
    signature = hmac.digest(secret.encode(), body, "sha256").hex()
    named = {name.replace("_", "-"): value for name, value in more.items()}
    headers = {
        "X-Hub-Signature-256": f"sha256={signature}",
        "X-GitHub-Delivery": "d1",
        "Content-Type": "application/json",
    }
    return {**headers, **named}


async def post(world: World, path: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
    return await world.client.post(path, content=body, headers=headers)


async def test_signed_request_is_stored_before_its_answer(world: World) -> None:
    await world.given(name="build", **JOB, triggers=[HOOK])
    body = b'{"ref": "main"}'
    answer = await post(
        world, "/hooks/github", body, signed(body, X_GitHub_Event="push", Authorization="Bearer a", Nats_Rollup="all")
    )
    assert (answer.status_code, answer.content) == (202, b"")
    [(durable, stored, headers)] = world.webhook_queue.stored.values()
    assert durable == ids.event_durable("build", ("webhook", "/hooks/github"))
    assert stored == body
    assert (headers[WEBHOOK_PATH], headers[WEBHOOK_DELIVERY]) == ("/hooks/github", "d1")
    assert headers["x-github-event"] == "push"
    assert not headers.keys() & {"authorization", "nats-rollup", "x-hub-signature-256"}
    await post(world, "/hooks/github", body, signed(body))
    assert len(world.webhook_queue.stored) == 1


@pytest.mark.parametrize("error", [LogUnavailable("no leader"), RequestRefused("full", "maximum bytes exceeded")])
async def test_request_that_is_not_stored_is_not_accepted(world: World, error: Exception) -> None:
    await world.given(name="build", **JOB, triggers=[HOOK])
    world.webhook_queue.error = error
    answer = await post(world, "/hooks/github", b"{}", signed(b"{}"))
    assert answer.status_code == 503
    assert "Retry-After" in answer.headers


async def test_unknown_path_answers_like_a_wrong_signature(world: World) -> None:
    await world.given(name="build", **JOB, triggers=[HOOK, {"webhook": "/hooks/git/closed", "secret": "${env:OTHER}"}])
    await world.given(name="paused", **JOB, triggers=[{"webhook": "/hooks/git/paused"}])
    await world.given(name="off", **JOB, enabled=False, triggers=[{"webhook": "/hooks/git/off"}])
    await world.given(name="missing", **JOB, triggers=[{"webhook": "/hooks/missing"}])
    await world.registry.pause("paused")
    wrong = [
        ("/hooks/github", signed(b"{}", "another-secret-of-32-bytes-or-so")),
        ("/hooks/github", {"Content-Type": "application/json"}),
        ("/hooks/github", {**signed(b"{}"), "X-Hub-Signature-256": "sha256="}),
        ("/hooks/github", signed(b"{} ")),
        *(
            (path, signed(b"{}"))
            for path in ("/hooks/none", "/hooks/git/closed", "/hooks/git/paused", "/hooks/git/off")
        ),
        *((path, signed(b"{}", "")) for path in ("/hooks/missing", "/hooks/none", "/hooks/")),
        ("/hooks/github/", signed(b"{}")),
    ]
    answers = [await post(world, path, b"{}", headers) for path, headers in wrong]
    assert {(answer.status_code, answer.content) for answer in answers} == {(401, answers[0].content)}
    assert answers[0].json()["type"] == "urn:tocsin:problem:webhook-refused"
    assert not world.webhook_queue.stored


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"x" * 65_537, {}, 413),
        (b"a=1", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        (b"{", {}, 400),
        (b'{"a": 1e999}', {}, 400),
        (b"{}", {"X-GitHub-Delivery": ""}, 400),
        (b"{}", {"X-GitHub-Delivery": "x" * 256}, 400),
        (b"{}", {"X-Long": "x" * 65_536}, 400),
    ],
)
async def test_request_that_is_no_event_is_refused(
    world: World, body: bytes, headers: dict[str, str], status: int
) -> None:
    await world.given(name="build", **JOB, triggers=[HOOK])
    answer = await post(world, "/hooks/github", body, {**signed(body), **headers})
    assert answer.status_code == status
    assert not world.webhook_queue.stored


async def test_key_takes_the_place_of_a_delivery_id(world: World) -> None:
    await world.given(name="build", **JOB, triggers=[{**HOOK, "key": "body.id"}])
    for body in (b'{"id": 1}', b'{"id": 2}'):
        headers = signed(body)
        del headers["X-GitHub-Delivery"]
        assert (await post(world, "/hooks/github", body, headers)).status_code == 202
    assert len({headers[WEBHOOK_DELIVERY] for _, _, headers in world.webhook_queue.stored.values()}) == 2


async def test_path_belongs_to_one_job(world: World) -> None:
    boss = {"Authorization": f"Bearer {await world.token('boss', Role.ADMIN)}"}
    author = {"Authorization": f"Bearer {await world.token('ann', Role.AUTHOR)}"}
    for name, viewers in (("open", None), ("hidden", ["user:boss"])):
        fields = {"viewers": viewers} if viewers else {}
        job = {"name": name, "function": "f", **fields, "triggers": [{"webhook": f"/hooks/git/{name}"}]}
        assert (await world.client.post("/v1/jobs", json=job, headers=boss)).status_code == 201
    for name, shown in (("open", "`open`"), ("hidden", "a hidden job")):
        job = {"name": "mine", "function": "f", "triggers": [{"webhook": f"/hooks/git/{name}"}]}
        answer = await world.client.post("/v1/jobs", json=job, headers=author)
        assert answer.status_code == 422
        [error] = answer.json()["errors"]
        assert error["field"] == "triggers[0].webhook"
        assert error["right"].startswith(f"{shown} has this path")


async def test_path_of_two_jobs_is_refused(world: World) -> None:
    """Two registrations at the same moment may make it."""
    for name in ("a", "b"):
        job = JobDefinition.model_validate({"name": name, "function": "f", "triggers": [HOOK]})
        [defined] = ledger.define(ledger.initial, job)
        await world.log.append(defined, expect=0)
    assert (await post(world, "/hooks/github", b"{}", signed(b"{}"))).status_code == 401


async def test_request_names_the_registration_of_its_job(world: World) -> None:
    registrations = []
    for more in ({}, {"description": "changed"}, None, {}):
        world.clock.advance(2)
        if more is None:
            await world.registry.delete("build")
            continue
        await world.given(name="build", **JOB, **more, triggers=[HOOK])
        world.webhook_queue.stored.clear()
        assert (await post(world, "/hooks/github", b"{}", signed(b"{}"))).status_code == 202
        [(_, _, headers)] = world.webhook_queue.stored.values()
        registrations.append(headers[WEBHOOK_REGISTRATION])
    first, changed, again = registrations
    assert first == changed != again


async def test_failed_read_counts_for_a_second(world: World) -> None:
    await world.given(name="build", **JOB, triggers=[HOOK])
    reads = 0

    async def jobs() -> tuple[Job, ...]:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0)  # the other requests come
        world.clock.advance(5)
        if reads == 1:
            raise LogUnavailable("no answer")
        return await world.registry.jobs()

    world.webhooks = Webhooks(jobs, world.settings.triggers.webhooks, world.webhook_queue, world.clock, KEY)
    world.client = world.copy()
    answers = await asyncio.gather(*(post(world, "/hooks/github", b"{}", signed(b"{}")) for _ in range(3)))
    assert [answer.status_code for answer in answers] == [503] * 3
    assert reads == 1
    world.clock.advance(1)
    assert (await post(world, "/hooks/github", b"{}", signed(b"{}"))).status_code == 202
    assert reads == 2


@pytest.mark.parametrize(("path", "body", "status"), [("/hooks/none", b"{}", 401), ("/hooks/github", b"{", 400)])
async def test_refused_requests_are_limited_by_address(world: World, path: str, body: bytes, status: int) -> None:
    await world.given(name="build", **JOB, triggers=[HOOK])
    world.rate = MemoryRateLimit(world.clock, rate=1, burst=2)
    world.client = world.copy()
    answers = [await post(world, path, body, signed(body)) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [status, status, 429]


async def test_secret_is_never_shown(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await world.given(name="build", **JOB, triggers=[{**HOOK, "secret": "${env:GITHUB_SECRET}"}])
    await post(world, "/hooks/github", b"{}", signed(b"{}"))
    await post(world, "/hooks/none", b"{}", signed(b"{}"))
    shown = await world.client.get(f"{LOCAL}/v1/jobs/build")
    said = capsys.readouterr()
    assert SECRET not in shown.text + said.out + said.err + json.dumps(world.settings.model_dump(mode="json"))


async def test_only_post_is_served(world: World) -> None:
    answer = await world.client.get("/hooks/github")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
