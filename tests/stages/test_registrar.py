"""The registrar: the projection equals the ledger, for any order of handling."""

from typing import Any

import pytest

from tests.stages.world import World
from tocsin.domain import ledger
from tocsin.domain.events import DefinitionFact
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
    [subscription] = world.registrar.subscriptions
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
        await world.deliver(subscription, newest, store=world.copy())
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
