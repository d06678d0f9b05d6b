"""The role of workers: tasks of its queues and functions only, and of nothing else."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest

from tests.domain.given import JOB, KEY, admitted, plan
from tests.http.conftest import World
from tests.http.identity_provider import Provider, identity_provider
from tests.plain_http import NO_AUTHORITIES
from tocsin import subjects
from tocsin.adapters.http.auth.authentication import Authentication, IdentityProvider
from tocsin.adapters.http.auth.tokens import Tokens
from tocsin.domain import execution
from tocsin.domain.access import Binding, Role
from tocsin.settings import Auth

MAIL: Final = "0193a5b0-0000-7000-8000-0000000000a1"
BILL: Final = "0193a5b0-0000-7000-8000-0000000000b1"
TEXT: Final = "the secret input"


@dataclass
class Office:
    """A hidden job with a task of `mail/send` and another with a task of `bill/pay`, both in the default queue."""

    world: World

    async def ask(self, token: str, verb: str, **body: object) -> httpx.Response:
        return await self.world.ask("POST", f"/ojs/v1/workers/{verb}", body, Authorization=f"Bearer {token}")

    async def fetch(self, token: str, *queues: str, **more: object) -> list[str]:
        answer = await self.ask(
            token, "fetch", **{"queues": queues or ("default",), "count": 10, "worker_id": "w", **more}
        )
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["jobs"]]


@pytest.fixture
async def office(world: World) -> Office:
    await world.given(name=JOB, owner="token:bea", viewers=("token:carl",))
    for execution_id, function in ((MAIL, "mail/send"), (BILL, "bill/pay")):
        steps = plan({"main": ()}).changed(input={"text": TEXT})
        [step] = steps.steps
        steps = steps.changed(steps=(step.changed(function=function),))
        request = admitted(steps).changed(execution_id=execution_id)
        newest = await world.log.append(request, expect=0)
        scope = subjects.execution(JOB, execution_id)
        [task] = execution.dispatch(execution.fold(await world.log.load(scope)), key=KEY)
        await world.log.append(task, expect=newest)
    return Office(world)


@pytest.mark.parametrize("role", [Role.AUTHOR, Role.OPERATOR, Role.VIEWER])
async def test_other_roles_cannot_fetch_or_answer(office: Office, role: Role) -> None:
    holder = await office.world.token("w", Role.WORKER, queues=("default",))
    assert await office.fetch(holder, count=1)
    token = await office.world.token("eve", role, queues=("default",))
    before = await office.world.facts("*.>")
    for verb, body in (
        ("fetch", {"queues": ["default"]}),
        ("ack", {"job_id": MAIL, "worker_id": "w", "result": "forged"}),
        ("nack", {"job_id": MAIL, "worker_id": "w", "requeue": True}),
        ("heartbeat", {"worker_id": "w", "active_jobs": [MAIL]}),
    ):
        answer = await office.ask(token, verb, **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), verb
        assert TEXT not in answer.text
    assert await office.world.facts("*.>") == before


async def test_worker_may_do_nothing_else(office: Office) -> None:
    token = await office.world.token("w", Role.WORKER, queues=("default",))
    for method, path in (("GET", "/v1/jobs"), ("GET", f"/ojs/v1/jobs/{MAIL}"), ("POST", "/ojs/v1/jobs")):
        answer = await office.world.ask(method, path, {}, Authorization=f"Bearer {token}")
        assert answer.status_code == 403, path


async def test_worker_fetches_only_from_its_queues(office: Office) -> None:
    token = await office.world.token("w", Role.WORKER, queues=("mail", "bills"))
    for queues in (["default"], ["mail", "default"]):
        answer = await office.ask(token, "fetch", queues=queues)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
        assert "'default'" in answer.json()["error"]["message"]
        assert "'mail', 'bills'" in answer.json()["error"]["message"]
    assert await office.fetch(token, "mail") == []


async def test_worker_without_queues_fetches_nothing(office: Office) -> None:
    token = await office.world.token("w", Role.WORKER)
    assert (await office.ask(token, "fetch", queues=["default"])).status_code == 403


async def test_worker_fetches_only_its_functions(office: Office) -> None:
    mailer = await office.world.token("mailer", Role.WORKER, queues=("default",), functions=("mail/*",))
    payer = await office.world.token("payer", Role.WORKER, queues=("default",), functions=("bill/pay",))
    assert await office.fetch(mailer) == [MAIL]
    office.world.clock.advance(2)  # the task of the other function is handed back with a delay
    assert await office.fetch(mailer) == []
    office.world.clock.advance(2)
    assert await office.fetch(payer) == [BILL]


async def test_foreign_functions_do_not_keep_a_fetch_busy(office: Office) -> None:
    stranger = await office.world.token("w", Role.WORKER, queues=("default",), functions=("other",))
    assert await office.fetch(stranger) == []


async def test_task_outside_the_binding_looks_missing(office: Office) -> None:
    holder = await office.world.token("w", Role.WORKER, queues=("default",))
    assert sorted(await office.fetch(holder)) == [MAIL, BILL]
    other = await office.world.token("w", Role.WORKER, queues=("default",), functions=("bill/*",))
    for verb in ("ack", "nack"):
        answer = await office.ask(other, verb, job_id=MAIL, worker_id="w", error={})
        assert answer.status_code == 404, answer.text
        absent = await office.ask(other, verb, job_id=MAIL.replace("a1", "f1"), worker_id="w", error={})
        told = [it.json()["error"]["message"].replace("f1'", "a1'") for it in (answer, absent)]
        assert told[0] == told[1]
    beat = await office.ask(other, "heartbeat", active_jobs=[MAIL, BILL], worker_id="w")
    assert (beat.json()["jobs_extended"], beat.json()["jobs_lost"]) == ([BILL], [MAIL])


@pytest.fixture
async def provided(office: Office) -> AsyncIterator[tuple[Office, Provider]]:
    """The same with an identity provider."""
    world = office.world
    with identity_provider() as provider:
        async with httpx.AsyncClient(trust_env=False, verify=NO_AUTHORITIES) as http:
            trusted = IdentityProvider(Auth(iam_url=provider.url), http, world.clock)
            world.authenticator = Authentication(Tokens(world.projections, world.clock), trusted, world.clock)
            world.client = world.copy()
            yield office, provider


CLAIMS: Final[list[tuple[dict[str, Any], list[str] | int]]] = [
    ({}, 403),
    ({"queues": []}, 403),
    ({"queues": ["mail"]}, 403),
    ({"queues": {"default": True}}, 403),
    ({"queues": [["default"], 1, None]}, 403),
    ({"queues": ["default"]}, [MAIL, BILL]),
    ({"queues": "mail default"}, [MAIL, BILL]),
    ({"queues": ["default"], "functions": ["mail/*"]}, [MAIL]),
    ({"queues": ["default"], "functions": "bill/pay other"}, [BILL]),
    ({"queues": ["default"], "functions": []}, []),
    ({"queues": ["default"], "functions": {"*": 1}}, []),
]


@pytest.mark.parametrize(("claims", "right"), CLAIMS, ids=[str(claims) for claims, _ in CLAIMS])
async def test_identity_provider_binds_its_workers(
    provided: tuple[Office, Provider], claims: dict[str, Any], right: list[str] | int
) -> None:
    office, provider = provided
    token = provider.token("w", roles=["scheduler-worker"], **claims)
    if isinstance(right, int):
        assert (await office.ask(token, "fetch", queues=["default"])).status_code == right
    else:
        assert sorted(await office.fetch(token)) == right


@pytest.mark.parametrize("role", ["scheduler-author", "scheduler-operator", "scheduler-viewer"])
async def test_claims_bind_workers_only(provided: tuple[Office, Provider], role: str) -> None:
    office, provider = provided
    token = provider.token("w", roles=[role], queues=["default"])
    assert (await office.ask(token, "fetch", queues=["default"])).status_code == 403


@pytest.mark.parametrize(
    ("pattern", "function", "matches"),
    [
        ("*", "mail/send", True),
        ("mail/*", "mail/send/now", True),
        ("mail/*", "mail", False),
        ("mail", "mail/send", False),
        ("mail.?end", "mail.send", False),
        ("mail.[a-z]end", "mail.send", False),
        ("mail.[x]", "mail.[x]", True),
        ("Mail", "mail", False),
    ],
)
def test_only_the_asterisk_has_a_meaning(pattern: str, function: str, *, matches: bool) -> None:
    assert Binding(("q",), (pattern,)).includes("q", function) is matches
    assert not Binding(("other",), (pattern,)).includes("q", function)
