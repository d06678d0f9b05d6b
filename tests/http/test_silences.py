"""`/v1/silences`: start, list and end."""

import pytest

from tests.http.conftest import World
from tocsin.domain.access import Role
from tocsin.domain.events import SilencesDefined
from tocsin.domain.silence import MAX_OF_OWNER, MAX_OF_OWNERS

JOB = {"name": "report", "function": "f"}


async def bearer(world: World, role: Role, identity: str = "olga") -> str:
    return f"Bearer {await world.token(identity, role)}"


async def test_silence_is_started_listed_and_ended(world: World) -> None:
    await world.ask("POST", "/v1/jobs", JOB)
    body = {"job": "report", "duration": "2h", "reason": "the database moves"}
    answer = await world.ask("POST", "/v1/silences", body)
    assert answer.status_code == 201, answer.text
    silence = answer.json()
    assert (silence["job"], silence["reason"]) == ("report", "the database moves")
    assert (await world.ask("GET", "/v1/silences")).json() == {"silences": [silence | {"permitted": ["cancel"]}]}
    assert (await world.ask("DELETE", f"/v1/silences/{silence['id']}")).json() == silence
    assert (await world.ask("GET", "/v1/silences")).json() == {"silences": []}
    assert (await world.ask("DELETE", f"/v1/silences/{silence['id']}")).status_code == 404
    stored = [fact.message for fact in await world.facts("silences.>")]
    assert [len(fact.silences) for fact in stored if isinstance(fact, SilencesDefined)] == [1, 0]


async def test_silence_ends_by_itself(world: World) -> None:
    olga = await bearer(world, Role.OPERATOR)
    body = {"tag": "billing", "duration": "2h", "reason": "a release"}
    silence = (await world.ask("POST", "/v1/silences", body, Authorization=olga)).json()
    viewer = await bearer(world, Role.VIEWER, "vera")
    world.clock.advance(7_199)
    [listed] = (await world.ask("GET", "/v1/silences", Authorization=viewer)).json()["silences"]
    assert (listed["by"]["identity"], listed["reason"], listed["until"]) == ("olga", "a release", silence["until"])
    assert (await world.ask("DELETE", f"/v1/silences/{silence['id']}", Authorization=viewer)).status_code == 403
    assert (await world.ask("POST", "/v1/silences", body, Authorization=viewer)).status_code == 403
    world.clock.advance(1)
    assert (await world.ask("GET", "/v1/silences", Authorization=viewer)).json() == {"silences": []}
    assert (await world.ask("DELETE", f"/v1/silences/{silence['id']}", Authorization=olga)).status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"duration": "2h", "reason": "r"}, 422),
        ({"all": True, "tag": "a", "duration": "2h", "reason": "r"}, 422),
        ({"all": True, "duration": "32d", "reason": "r"}, 422),
        ({"all": True, "duration": "2h"}, 422),
        ({"job": "unknown", "duration": "2h", "reason": "r"}, 404),
    ],
)
async def test_wrong_silence_is_refused(world: World, body: dict[str, object], status: int) -> None:
    assert (await world.ask("POST", "/v1/silences", body)).status_code == status


async def test_silence_of_a_hidden_job_stays_hidden(world: World) -> None:
    await world.ask("POST", "/v1/jobs", JOB | {"viewers": ["token:ada"]})
    body = {"job": "report", "duration": "2h", "reason": "the database moves"}
    silence = (await world.ask("POST", "/v1/silences", body)).json()
    bearer = f"Bearer {await world.token('eve', Role.OPERATOR)}"
    path = f"/v1/silences/{silence['id']}"
    assert (await world.ask("GET", "/v1/silences", Authorization=bearer)).json() == {"silences": []}
    answer = await world.ask("DELETE", path, Authorization=bearer)
    assert (answer.status_code, "report" in answer.text) == (404, False)
    assert (await world.ask("GET", "/v1/silences")).json() == {"silences": [silence | {"permitted": ["cancel"]}]}
    assert (await world.ask("DELETE", path)).status_code == 200


async def test_owner_silences_its_own_job(world: World) -> None:
    ada = await bearer(world, Role.AUTHOR, "ada")
    await world.ask("POST", "/v1/jobs", JOB, Authorization=ada)
    body = {"job": "report", "duration": "2h", "reason": "the database moves"}
    answer = await world.ask("POST", "/v1/silences", body, Authorization=ada)
    assert (answer.status_code, answer.json()["by"]["identity"]) == (201, "ada")
    path = f"/v1/silences/{answer.json()['id']}"
    assert (await world.ask("DELETE", path, Authorization=ada)).status_code == 200
    by_operator = (
        await world.ask("POST", "/v1/silences", body, Authorization=await bearer(world, Role.OPERATOR))
    ).json()
    assert (await world.ask("DELETE", f"/v1/silences/{by_operator['id']}", Authorization=ada)).status_code == 200


async def test_silence_of_a_former_owner_stays_short(world: World) -> None:
    """The next job of the name is covered, and its author may end that."""
    ada, eve = await bearer(world, Role.AUTHOR, "ada"), await bearer(world, Role.AUTHOR, "eve")
    await world.ask("POST", "/v1/jobs", JOB, Authorization=eve)
    body = {"job": "report", "duration": "1d", "reason": "quiet"}
    answer = await world.ask("POST", "/v1/silences", body | {"duration": "25h"}, Authorization=eve)
    assert (answer.status_code, "lasts up to 1 day, not 25h" in answer.text) == (409, True)
    silence = (await world.ask("POST", "/v1/silences", body, Authorization=eve)).json()
    await world.ask("DELETE", "/v1/jobs/report", Authorization=eve)
    assert (await world.ask("POST", "/v1/silences", body, Authorization=eve)).status_code == 404
    await world.ask("POST", "/v1/jobs", JOB, Authorization=ada)
    path = f"/v1/silences/{silence['id']}"
    assert (await world.ask("DELETE", path, Authorization=eve)).status_code == 403
    assert (await world.ask("DELETE", path, Authorization=ada)).status_code == 200


@pytest.mark.parametrize("chosen", [{"job": "report"}, {"tag": "billing"}, {"all": True}])
async def test_author_silences_no_job_of_others(world: World, chosen: dict[str, object]) -> None:
    admin = await bearer(world, Role.ADMIN)
    await world.ask("POST", "/v1/jobs", JOB | {"tags": ["billing"]}, Authorization=admin)
    eve = await bearer(world, Role.AUTHOR, "eve")
    body = {**chosen, "duration": "2h", "reason": "quiet"}
    answer = await world.ask("POST", "/v1/silences", body, Authorization=eve)
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:tocsin:problem:forbidden")
    silence = (await world.ask("POST", "/v1/silences", body, Authorization=admin)).json()
    answer = await world.ask("DELETE", f"/v1/silences/{silence['id']}", Authorization=eve)
    assert answer.status_code == 403
    assert (await world.ask("GET", "/v1/silences", Authorization=eve)).json() == {
        "silences": [silence | {"permitted": []}]
    }


async def test_hidden_job_is_not_found_by_an_author(world: World) -> None:
    hidden = JOB | {"viewers": ["token:ada"]}
    await world.ask("POST", "/v1/jobs", hidden, Authorization=await bearer(world, Role.ADMIN))
    eve = await bearer(world, Role.AUTHOR, "eve")
    body = {"job": "report", "duration": "2h", "reason": "quiet"}
    assert (await world.ask("POST", "/v1/silences", body, Authorization=eve)).status_code == 404


async def test_list_says_what_the_caller_may_end(world: World) -> None:
    ada, olga = await bearer(world, Role.AUTHOR, "ada"), await bearer(world, Role.OPERATOR)
    await world.ask("POST", "/v1/jobs", JOB, Authorization=ada)
    await world.ask("POST", "/v1/jobs", JOB | {"name": "shop.sync"}, Authorization=await bearer(world, Role.ADMIN))
    silenced: dict[str | None, dict[str, object]] = {
        "report": {"job": "report"},
        "shop.sync": {"job": "shop.sync"},
        "billing": {"tag": "billing"},
        None: {"all": True},
    }

    async def start(name: str | None) -> None:
        world.clock.advance(1)  # an id is made of the time
        body = {**silenced[name], "duration": "2h", "reason": "quiet"}
        assert (await world.ask("POST", "/v1/silences", body, Authorization=olga)).status_code == 201

    for name in silenced:
        await start(name)
    callers = {
        olga: {"report", "shop.sync", "billing", None},
        ada: {"report"},
        await bearer(world, Role.AUTHOR, "eve"): set[str | None](),
        await bearer(world, Role.VIEWER, "vera"): set[str | None](),
        f"Bearer {await world.token('ben', Role.OPERATOR, namespaces=('shop',))}": {"shop.sync"},
    }
    for caller, expected in callers.items():
        silences = (await world.ask("GET", "/v1/silences", Authorization=caller)).json()["silences"]
        assert {each["job"] or each["tag"] for each in silences if each["permitted"]} == expected
        for each in silences:  # what is offered is what is done
            answer = await world.ask("DELETE", f"/v1/silences/{each['id']}", Authorization=caller)
            assert answer.status_code == (200 if each["permitted"] else 403)
            if each["permitted"]:
                await start(each["job"] or each["tag"])
    await world.ask("DELETE", "/v1/jobs/report", Authorization=ada)
    [of_deleted] = [
        each
        for each in (await world.ask("GET", "/v1/silences", Authorization=ada)).json()["silences"]
        if each["job"] == "report"
    ]
    assert of_deleted["permitted"] == []


async def test_owners_leave_room_for_silences_of_operators(world: World) -> None:
    ada, olga = await bearer(world, Role.AUTHOR, "ada"), await bearer(world, Role.OPERATOR)

    async def start(by: str) -> tuple[int, str]:
        world.clock.advance(1)  # an id is made of the time
        body = {"job": "report", "duration": "2h", "reason": "quiet"}
        answer = await world.ask("POST", "/v1/silences", body, Authorization=by)
        return answer.status_code, answer.json().get("type", "")

    full = (409, "urn:tocsin:problem:not-possible")
    await world.ask("POST", "/v1/jobs", JOB, Authorization=ada)
    assert {await start(ada) for _ in range(MAX_OF_OWNER)} == {(201, "")}
    assert await start(ada) == full
    assert {await start(olga) for _ in range(MAX_OF_OWNERS - MAX_OF_OWNER)} == {(201, "")}
    [first, *_] = (await world.ask("GET", "/v1/silences", Authorization=ada)).json()["silences"]
    await world.ask("DELETE", f"/v1/silences/{first['id']}", Authorization=ada)
    assert await start(olga) == (201, "")
    assert await start(ada) == full
    assert await start(olga) == (201, "")
