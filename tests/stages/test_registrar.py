"""The registrar: the projection equals the ledger, for any order of handling."""

from collections import Counter
from typing import Any

import pytest

from tests.stages.world import World
from tocsin.domain import ledger
from tocsin.domain.definition import STORED
from tocsin.domain.events import Defined, DefinitionFact
from tocsin.domain.job_record import Registration
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.subjects import Bucket

JOB = {"name": "a.job", "schedule": "0 * * * *", "function": "f"}


async def shown(world: World) -> Registration | None:
    entry = await world.projections.get(Bucket.DEFINITIONS, "a_job")
    return Registration.model_validate_json(entry[0]) if entry else None


async def test_a_definition_is_shown(world: World) -> None:
    sequence = await world.define(JOB)
    await world.run(world.registrar)
    registration = await shown(world)
    assert registration is not None
    assert (registration.definition.name, registration.paused, registration.sequence) == ("a.job", False, sequence)


async def test_pause_is_shown_and_deletion_removes_the_key(world: World) -> None:
    await world.define(JOB)
    state, sequence = await LedgerReader(world.log).load("a.job")
    [paused] = ledger.pause(state, "a.job")
    await world.log.append(paused, expect=sequence)
    await world.run(world.registrar)
    registration = await shown(world)
    assert registration is not None
    assert registration.paused
    state, sequence = await LedgerReader(world.log).load("a.job")
    [deleted] = ledger.delete(state, "a.job")
    await world.log.append(deleted, expect=sequence)
    await world.run(world.registrar)
    assert await shown(world) is None


async def test_deletion_removes_no_later_definition(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is defined again, and shown by another copy, before the entry is removed."""
    [subscription, _] = world.registrar.subscriptions
    await world.define(JOB)
    await world.run(world.registrar)
    state, sequence = await LedgerReader(world.log).load("a.job")
    [deleted] = ledger.delete(state, "a.job")
    await world.log.append(deleted, expect=sequence)
    [*_, change] = await world.recorded(DefinitionFact)
    remove = world.projections.remove

    async def overtaken(*args: Any, **options: Any) -> None:  # noqa: ANN401 - passed on
        monkeypatch.undo()
        await world.define({**JOB, "schedule": "30 * * * *"})
        [*_, newest] = await world.recorded(DefinitionFact)
        await world.deliver(subscription, newest)
        await remove(*args, **options)

    monkeypatch.setattr(world.projections, "remove", overtaken)
    await world.deliver(subscription, change)
    registration = await shown(world)
    assert registration is not None
    assert registration.definition.schedule == "30 * * * *"


async def test_old_change_handled_last_shows_the_current_state(world: World) -> None:
    await world.define(JOB)
    await world.define({**JOB, "schedule": "30 * * * *"})
    for recorded in reversed(await world.recorded(DefinitionFact)):
        await world.deliver(world.registrar.subscriptions[0], recorded)
    registration = await shown(world)
    assert registration is not None
    assert registration.definition.schedule == "30 * * * *"


async def test_a_redelivery_after_a_crash_writes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ended after the entry was stored, before the acknowledgement."""
    await world.define(JOB)
    await world.run(world.registrar)
    before = await world.projections.get(Bucket.DEFINITIONS, "a_job")
    requests = count_requests(world, monkeypatch)

    await world.redeliver(world.registrar)

    assert await world.projections.get(Bucket.DEFINITIONS, "a_job") == before
    assert requests == {"get_each": 1}


@pytest.mark.parametrize("is_shown", [False, True])
async def test_change_during_the_projection_is_shown(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_shown: bool
) -> None:
    """The newer event has no delivery of its own here, and another copy does not handle it."""
    await world.define(JOB)
    if is_shown:
        await world.run(world.registrar)
        await world.define({**JOB, "schedule": "15 * * * *"})
    [*_, change] = await world.recorded(DefinitionFact)
    put = world.projections.put

    async def overtaken(*args: Any, **options: Any) -> int:  # noqa: ANN401 - passed on
        monkeypatch.undo()
        await world.define({**JOB, "schedule": "30 * * * *"})
        if is_shown:
            [*_, newest] = await world.recorded(DefinitionFact)
            await world.deliver(world.registrar.subscriptions[0], newest)
        return await put(*args, **options)

    monkeypatch.setattr(world.projections, "put", overtaken)
    await world.deliver(world.registrar.subscriptions[0], change)

    registration = await shown(world)
    assert registration is not None
    assert registration.definition.schedule == "30 * * * *"


async def test_two_copies_show_a_new_job_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second copy handles the same event between the reads and the write of the first."""
    await world.define(JOB)
    [change] = await world.recorded(DefinitionFact)
    put, revisions = world.projections.put, []

    async def overtaken(*args: Any, **options: Any) -> int:  # noqa: ANN401 - passed on
        monkeypatch.undo()
        await world.deliver(world.registrar.subscriptions[0], change)
        revisions.append(await world.projections.get(Bucket.DEFINITIONS, "a_job"))
        return await put(*args, **options)

    monkeypatch.setattr(world.projections, "put", overtaken)
    await world.deliver(world.registrar.subscriptions[0], change)

    assert await world.projections.get(Bucket.DEFINITIONS, "a_job") == revisions[0]


async def test_a_pause_alone_shows_the_whole_definition(world: World) -> None:
    """The event names its definition by sequence only."""
    sequence = await world.define(JOB)
    state, last = await LedgerReader(world.log).load("a.job")
    [paused] = ledger.pause(state, "a.job")
    await world.log.append(paused, expect=last)
    [_, change] = await world.recorded(DefinitionFact)

    await world.deliver(world.registrar.subscriptions[0], change)

    registration = await shown(world)
    assert registration is not None
    assert (registration.paused, registration.sequence > sequence) == (True, True)


async def test_stored_definition_of_unknown_timezone_is_shown(world: World) -> None:
    stored = {"job": "a.job", "definition": {**JOB, "timezone": "Mars/Olympus"}, "previous": 0}
    await world.log.append(Defined.model_validate(stored, context=STORED), expect=0)

    await world.run(world.registrar)

    entry = await world.projections.get(Bucket.DEFINITIONS, "a_job")
    assert entry is not None
    assert Registration.model_validate_json(entry[0], context=STORED).definition.timezone == "Mars/Olympus"


def count_requests(world: World, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the requests of the registrar from now on."""
    requests = Counter[str]()

    def count(port: object, name: str) -> None:
        call = getattr(port, name)

        def counted(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - passed on
            requests[name] += 1
            return call(*args, **options)

        monkeypatch.setattr(port, name, counted)

    for name in ("tails", "load", "load_each", "get"):
        count(world.log, name)
    for name in ("get_each", "write"):
        count(world.projections, name)
    return requests
