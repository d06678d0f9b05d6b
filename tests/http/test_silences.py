"""`/v1/silences`: start, list and end."""

import pytest

from tests.http.conftest import World
from tocsin.domain.access import Role
from tocsin.domain.events import SilencesDefined

JOB = {"name": "report", "function": "f"}


async def test_silence_is_started_listed_and_ended(world: World) -> None:
    await world.ask("POST", "/v1/jobs", JOB)
    body = {"job": "report", "duration": "2h", "reason": "the database moves"}
    answer = await world.ask("POST", "/v1/silences", body)
    assert answer.status_code == 201, answer.text
    silence = answer.json()
    assert (silence["job"], silence["reason"]) == ("report", "the database moves")
    assert (await world.ask("GET", "/v1/silences")).json() == {"silences": [silence]}
    assert (await world.ask("DELETE", f"/v1/silences/{silence['id']}")).json() == silence
    assert (await world.ask("GET", "/v1/silences")).json() == {"silences": []}
    assert (await world.ask("DELETE", f"/v1/silences/{silence['id']}")).status_code == 404
    stored = [fact.message for fact in await world.facts("silences.>")]
    assert [len(fact.silences) for fact in stored if isinstance(fact, SilencesDefined)] == [1, 0]


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
    assert (await world.ask("GET", "/v1/silences")).json() == {"silences": [silence]}
    assert (await world.ask("DELETE", path)).status_code == 200
