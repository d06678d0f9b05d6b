"""Revisions of a job, and the way back to an earlier one."""

from typing import Any

import pytest

from tests.http.conftest import World
from tocsin.domain.access import Role
from tocsin.domain.events import Actor

ADA = Actor(identity="ada", kind="user")


async def revisions(world: World, query: str = "", **headers: str) -> list[dict[str, Any]]:
    answer = await world.ask("GET", f"/v1/jobs/job/revisions{query}", **headers)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["revisions"]
    return rows


async def edited(world: World) -> None:
    """A job with an edit and a pause."""
    await world.given()
    await world.given(schedule="0 4 * * *", tags=["new"])
    await world.registry.pause("job", by=ADA, reason="too loud")


async def test_revisions_name_their_changes(world: World) -> None:
    await edited(world)
    shown = await revisions(world)
    assert [(row["sequence"], row["kind"], row["changed"], row["is_current"]) for row in shown] == [
        (3, "paused", [], False),
        (2, "defined", ["schedule", "tags"], True),
        (1, "defined", [], False),
    ]
    assert (shown[0]["by"], shown[0]["reason"]) == ("user:ada", "too loud")


async def test_revisions_come_in_pages(world: World) -> None:
    await edited(world)
    first = (await world.ask("GET", "/v1/jobs/job/revisions?limit=2")).json()
    assert ([row["sequence"] for row in first["revisions"]], first["next"]) == ([3, 2], 2)
    last = (await world.ask("GET", "/v1/jobs/job/revisions?limit=2&before=2")).json()
    assert ([row["sequence"] for row in last["revisions"]], last["next"]) == ([1], None)


async def test_rollback_registers_the_definition_again(world: World) -> None:
    await edited(world)
    answer = await world.ask("POST", "/v1/jobs/job/rollback", {"sequence": 1, "reason": "it was right"}, If_Match='"3"')
    assert (answer.status_code, answer.headers["ETag"]) == (200, '"4"')
    assert (answer.json()["schedule"], answer.json()["tags"], answer.json()["paused"]) == ("0 3 * * *", [], True)
    [newest, *_] = await revisions(world)
    assert (newest["changed"], newest["reason"], newest["is_current"]) == (["schedule", "tags"], "it was right", True)


@pytest.mark.parametrize(
    ("sequence", "version", "status"), [(99, '"3"', 404), (3, '"3"', 404), (1, '"2"', 412), (0, '"3"', 422)]
)
async def test_rollback_is_refused(world: World, sequence: int, version: str, status: int) -> None:
    await edited(world)
    answer = await world.ask("POST", "/v1/jobs/job/rollback", {"sequence": sequence}, If_Match=version)
    assert answer.status_code == status
    assert len(await revisions(world)) == 3


async def test_revisions_of_an_earlier_owner_are_hidden(world: World) -> None:
    await world.given(owner="token:ann", viewers=["token:bob"])
    await world.registry.delete("job")
    await world.given(owner="token:eve", schedule="0 5 * * *")
    token = f"Bearer {await world.token('eve', Role.AUTHOR)}"
    assert [(row["sequence"], row["changed"]) for row in await revisions(world, Authorization=token)] == [(3, [])]
    refused = await world.ask("POST", "/v1/jobs/job/rollback", {"sequence": 1}, Authorization=token)
    assert refused.status_code == 404
    other = f"Bearer {await world.token('cem', Role.AUTHOR)}"
    refused = await world.ask("POST", "/v1/jobs/job/rollback", {"sequence": 3}, Authorization=other)
    assert refused.status_code == 403


async def test_rollback_to_a_program_needs_its_permission(world: World) -> None:
    await world.given(owner="token:eve", function=None, command=["true"])
    await world.given(owner="token:eve")
    token = f"Bearer {await world.token('eve', Role.AUTHOR)}"
    refused = await world.ask("POST", "/v1/jobs/job/rollback", {"sequence": 1}, Authorization=token)
    assert refused.status_code == 403


@pytest.mark.parametrize(
    ("identity", "roles", "permitted"),
    [
        ("vic", [Role.VIEWER], ["read", "history"]),
        ("cat", [Role.CATALOG], ["read"]),
        ("op", [Role.OPERATOR], ["read", "history", "trigger", "cancel", "replay"]),
        ("aut", [Role.AUTHOR], ["read", "history"]),
        ("eve", [Role.AUTHOR], ["read", "history", "trigger", "cancel", "replay", "register"]),
        ("root", [Role.ADMIN], ["read", "history", "trigger", "cancel", "replay", "register", "external"]),
    ],
)
async def test_job_names_what_the_caller_may_do(
    world: World, identity: str, roles: list[Role], permitted: list[str]
) -> None:
    await world.given(owner="token:eve")
    token = f"Bearer {await world.token(identity, *roles)}"
    assert (await world.ask("GET", "/v1/jobs/job", Authorization=token)).json()["permitted"] == permitted
    [listed] = (await world.ask("GET", "/v1/jobs?details=true", Authorization=token)).json()["jobs"]
    assert listed["permitted"] is None
