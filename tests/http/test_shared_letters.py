"""Dead letters of two jobs with one id: each is reached by its job, and a team reaches its own."""

import httpx
import pytest

from tests.cli.test_dead_letters import letter
from tests.domain.given import ID
from tests.http.conftest import World
from tocsin.adapters.http.api_client import ApiClient
from tocsin.adapters.http.client import HttpOperator
from tocsin.domain.access import Role
from tocsin.domain.events import Message, Replayed, Resolved
from tocsin.services.operations.errors import Ambiguous, NotFound, OperationError
from tocsin.subjects import Stream

OURS, THEIRS = "payments.mail", "billing.mail"
PATHS = (f"/v1/dead-letters/{ID}", f"/v1/dead-letters/{ID}/events")


@pytest.fixture
async def shared(world: World) -> World:
    """Both jobs have a dead letter, and the other team's came first."""
    await world.given(name=OURS, queue="payments.q")
    await world.given(name=THEIRS, queue="billing.q")
    for job in (THEIRS, OURS):
        await world.log.append(letter().changed(job=job), expect=0)
    return world


async def ask(world: World, method: str, path: str, *, namespaces: tuple[str, ...] | None = None) -> httpx.Response:
    token = await world.token("ada", Role.OPERATOR, Role.VIEWER, namespaces=namespaces)
    body: dict[str, str] | None = None if method == "GET" else {}
    return await world.ask(method, path, body, Authorization=f"Bearer {token}")


async def decisions(world: World) -> list[tuple[type[Message], str]]:
    facts = [fact.message for fact in await world.facts("dead-letter.>")]
    return [(type(fact), fact.job) for fact in facts if isinstance(fact, Replayed | Resolved)]


async def test_job_selects_the_letter(shared: World) -> None:
    for path in PATHS:
        answer = await ask(shared, "GET", path)
        assert answer.status_code == 409, answer.text
        assert f"{THEIRS}, {OURS}" in answer.json()["detail"]
        for job in (OURS, THEIRS):
            assert (await ask(shared, "GET", f"{path}?job={job}")).json()["job"] == job
        assert (await ask(shared, "GET", f"{path}?job=absent")).status_code == 404
    assert (await ask(shared, "POST", f"{PATHS[0]}/replay")).status_code == 409
    assert (await ask(shared, "PATCH", PATHS[0])).status_code == 409
    assert await decisions(shared) == []
    assert (await ask(shared, "POST", f"{PATHS[0]}/replay?job={OURS}")).json()["job"] == OURS
    assert (await ask(shared, "PATCH", f"{PATHS[0]}?job={THEIRS}")).json()["job"] == THEIRS
    assert await decisions(shared) == [(Replayed, OURS), (Resolved, THEIRS)]


async def test_team_reaches_its_own_without_the_job(shared: World) -> None:
    for path in PATHS:
        answer = await ask(shared, "GET", path, namespaces=("payments",))
        assert (answer.status_code, answer.json()["job"]) == (200, OURS), answer.text
        assert THEIRS not in answer.text
        other = await ask(shared, "GET", f"{path}?job={THEIRS}", namespaces=("payments",))
        assert other.status_code == 404
    assert (await ask(shared, "POST", f"{PATHS[0]}/replay", namespaces=("payments",))).json()["job"] == OURS
    assert (await ask(shared, "PATCH", PATHS[0], namespaces=("payments",))).json()["job"] == OURS
    assert {job for _, job in await decisions(shared)} == {OURS}


async def test_all_replays_reach_both(shared: World) -> None:
    facts = await shared.facts("dead-letter.>")
    await shared.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)
    answer = await ask(shared, "POST", "/v1/dead-letters/replay-all")
    assert {replayed["job"] for replayed in answer.json()["replayed"]} == {OURS, THEIRS}, answer.text
    assert {job for _, job in await decisions(shared)} == {OURS, THEIRS}


async def operator_of(world: World) -> HttpOperator:
    token = await world.token("ada", Role.OPERATOR, Role.VIEWER)
    client = world.copy()
    client.headers["Authorization"] = f"Bearer {token}"
    return HttpOperator(ApiClient(client), world.clock)


async def record(world: World, *jobs: str) -> None:
    """Bring the dead letters of some jobs into the history."""
    facts = [fact for fact in await world.facts("dead-letter.>") if getattr(fact.message, "job", None) in jobs]
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)


async def test_client_selects_the_letter_of_its_job(shared: World) -> None:
    operator = await operator_of(shared)
    with pytest.raises(OperationError) as error:
        await operator.replay(ID)
    assert error.value.code == Ambiguous.code
    with pytest.raises(NotFound):
        await operator.resolve(ID, job="absent")
    assert await decisions(shared) == []
    assert (await operator.resolve(ID, job=THEIRS)).job == THEIRS
    await record(shared, OURS)
    assert (await operator.replay(ID[:13])).job == OURS  # the history has this letter alone
    assert await decisions(shared) == [(Resolved, THEIRS), (Replayed, OURS)]
