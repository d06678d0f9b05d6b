"""`/v1/changes`: who sees which changes."""

from typing import Any

import pytest

from tests.http.conftest import World
from tocsin.domain.access import Role
from tocsin.domain.events import Actor, Message, Recorded, Silence, SilencesDefined
from tocsin.services.queue_decisions import QueueDecisions

ADA = Actor(identity="ada", kind="token")


@pytest.fixture
async def changed(world: World) -> World:
    """Changes of a visible and a hidden job, of their queues, of the policy and of silences."""
    await world.given(name="open", queue="mail")
    await world.given(name="secret", queue="vault", viewers=("user:ada",))
    await world.registry.pause("secret", by=ADA)
    for queue in ("mail", "vault"):
        await QueueDecisions(world.log, by=ADA).switch(queue, paused=True)
    now = world.clock.now()
    silence = Silence(id="1", job="secret", since=now, until=now, reason="quiet")
    await world.log.append(SilencesDefined(silences=(silence,), by=ADA, reason="quiet"), expect=0)
    return world


async def _changes(world: World, role: Role, query: str = "") -> tuple[list[tuple[str, Any]], str]:
    token = await world.token("eve", role)
    answer = await world.ask("GET", f"/v1/changes{query}", Authorization=f"Bearer {token}")
    assert answer.status_code == 200, answer.text
    return [(change["type"], change["name"]) for change in answer.json()["changes"]], answer.text


@pytest.mark.parametrize("role", [Role.VIEWER, Role.AUTHOR, Role.OPERATOR])
async def test_changes_of_hidden_jobs_are_absent(changed: World, role: Role) -> None:
    found, text = await _changes(changed, role)
    assert found == [("queue-paused", "mail"), ("created", "open")]
    assert "secret" not in text
    assert "vault" not in text
    assert "quiet" not in text
    assert (await _changes(changed, role, "?job=secret"))[0] == []


async def test_administrator_sees_every_change(changed: World) -> None:
    found, text = await _changes(changed, Role.ADMIN)
    assert [kind for kind, _ in found] == [
        "silences-defined",
        "queue-paused",
        "queue-paused",
        "paused",
        "created",
        "created",
    ]
    assert '"identity":"ada"' in text
    assert (await _changes(changed, Role.ADMIN, "?by=token:ada&type=paused"))[0] == [("paused", "secret")]


async def test_changes_come_in_pages(changed: World) -> None:
    first = (await changed.ask("GET", "/v1/changes?limit=4")).json()
    rest = (await changed.ask("GET", f"/v1/changes?limit=4&after={first['next']}")).json()
    assert (len(first["changes"]), len(rest["changes"]), rest["next"]) == (4, 2, None)


@pytest.mark.full
async def test_old_page_reads_few_newer_changes(changed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(150):
        await changed.registry.pause("open", by=ADA)
        await changed.registry.resume("open", by=ADA)
    seen: list[int] = []
    read = changed.log.read

    async def counting(subject: str, *, after: int, limit: int) -> list[Recorded[Message]]:
        page = await read(subject, after=after, limit=limit)
        seen.extend(recorded.sequence for recorded in page)
        return page

    monkeypatch.setattr(changed.log, "read", counting)
    page = (await changed.ask("GET", "/v1/changes?after=4&limit=2")).json()["changes"]
    assert [change["sequence"] for change in page] == [3, 2]
    assert len(seen) <= 100


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "after=0", "type=defined", "job=A"])
async def test_invalid_request_is_refused(world: World, query: str) -> None:
    assert (await world.ask("GET", f"/v1/changes?{query}")).status_code == 422
