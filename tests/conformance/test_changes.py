"""Changes are read backwards from every log, between the instants of jobs."""

import pytest

from tests.conformance.worlds import World
from tocsin import subjects
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Actor, Defined, Deleted, Due, Message, Paused, PolicyDefined, QueuePaused, Recorded
from tocsin.services import changes
from tocsin.services.changes import Change, ChangeFilter, ChangeType

ADA = Actor(identity="ada", kind="token")


def defined(job: str, **fields: object) -> Defined:
    return Defined(job=job, definition=JobDefinition.model_validate({"name": job, "function": "f", **fields}), by=ADA)


async def store(world: World, *facts: Message) -> list[int]:
    """Append events, each after the last of its scope."""
    return [await world.log.append(fact, expect=await world.log.tail(subjects.scope_of(fact))) for fact in facts]


async def everyone(_: Recorded[Message]) -> bool:
    return True


async def all_changes(world: World, wanted: ChangeFilter, *, limit: int) -> list[Change]:
    """Read page after page."""
    found, before = list[Change](), None
    while True:
        page, before = await changes.changes(world.log, wanted, everyone, before=before, limit=limit)
        assert len(page) <= limit
        found += page
        if before is None:
            return found


@pytest.fixture
async def changed(world: World) -> World:
    """Changes of two jobs, a queue and the policy, with instants between them."""
    [first] = await store(world, defined("a"))
    times = [Due(job="a", scheduled_time=world.now(), definition=first) for _ in range(10)]
    created_at = world.now()
    await store(world, *times, QueuePaused(queue="mail", by=ADA, reason="full"))
    [paused] = await store(world, Paused(job="a", definition=first, previous=first, reason="wait"))
    update = defined("a", timeout=7, tags=("x",))
    await store(world, update.model_copy(update={"created_at": created_at, "previous": paused}), *times)
    await store(world, defined("b"), PolicyDefined(job_timeout=60, by=Actor(identity="bob")))
    await store(world, Deleted(job="a"))
    return world


NAMES: list[tuple[ChangeType, str | None]] = [
    ("deleted", "a"),
    ("policy-defined", None),
    ("created", "b"),
    ("updated", "a"),
    ("paused", "a"),
    ("queue-paused", "mail"),
    ("created", "a"),
]


@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_changes_come_newest_first_in_pages(changed: World, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "FIRST_WINDOW", 4)
    monkeypatch.setattr(changes, "MAX_PER_WINDOW", 2)
    found = await all_changes(changed, ChangeFilter(), limit=limit)
    assert [(change.type, change.name) for change in found] == NAMES
    assert [change.sequence for change in found] == sorted((change.sequence for change in found), reverse=True)


async def test_update_names_its_changed_fields(changed: World) -> None:
    [update] = await all_changes(changed, ChangeFilter(types={"updated"}), limit=10)
    assert update.fields == ("timeout", "tags")
    assert (update.by, update.reason) == (ADA, None)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (ChangeFilter(job="b"), ["b"]),
        (ChangeFilter(job="a"), ["a"] * 4),
        (ChangeFilter(by="bob"), [None]),
        (ChangeFilter(by="token:ada"), ["b", "a", "mail", "a"]),
        (ChangeFilter(by="user:ada"), []),
        (ChangeFilter(types={"paused", "queue-paused"}), ["a", "mail"]),
    ],
)
async def test_changes_are_filtered(changed: World, wanted: ChangeFilter, names: list[str | None]) -> None:
    assert [change.name for change in await all_changes(changed, wanted, limit=2)] == names


async def test_hidden_changes_end_a_page_early(changed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_EXAMINED", 3)

    async def hides(_: Recorded[Message]) -> bool:
        return False

    page, before = await changes.changes(changed.log, ChangeFilter(), hides, before=None, limit=10)
    assert page == []
    assert before is not None


async def test_empty_ledger_has_no_changes(world: World) -> None:
    assert await changes.changes(world.log, ChangeFilter(), everyone, before=None, limit=10) == ([], None)
