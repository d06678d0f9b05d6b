"""Circles of jobs and events end: each event counts the executions that events started before it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tocsin import Context, Worker
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Admitted, Planned, PoisonMessage, Requested, Skipped, unfold
from tocsin.settings import Settings
from tocsin.testing import Simulation

MAX_HOPS = 4
Publish = Callable[[str, Context], None]


def job(name: str, *triggers: dict[str, Any], **fields: Any) -> JobDefinition:  # noqa: ANN401 - fields as they are written
    given = {"name": name, "function": name, "overlap_policy": "allow", "triggers": triggers, **fields}
    return JobDefinition.model_validate(given)


@asynccontextmanager
async def circling(publisher: str, *definitions: JobDefinition) -> AsyncIterator[Simulation]:
    """Run jobs; the publisher sends an event that starts the first job again."""
    worker = Worker()

    async def publish(context: Context) -> None:
        if context.job == publisher:
            simulation.installation.events.publish("loop.next", b"{}", context.event_headers)

    for definition in definitions:
        worker.task(definition.name)(publish)
    settings = Settings.model_validate({"triggers": {"max_hops": MAX_HOPS}})
    async with Simulation(worker, definitions=definitions, settings=settings) as simulation:
        yield simulation


async def events(simulation: Simulation, subject: str) -> list[Any]:
    return [recorded.message for recorded in unfold(await simulation.installation.log.read(subject))]


async def refusal_code(simulation: Simulation, name: str) -> str | None:
    [skipped] = [each for each in await events(simulation, f"execution.{name}.>") if isinstance(each, Skipped)]
    [letter] = [each for each in await events(simulation, f"dead-letter.{name}.>") if isinstance(each, PoisonMessage)]
    assert skipped.refusal is not None
    assert skipped.refusal.code == letter.code
    return letter.code


@pytest.mark.parametrize("policy", ["allow", "enqueue"])
async def test_circle_through_publications_ends(policy: str) -> None:
    async with circling("a", job("a", {"nats": "loop.>"}, overlap_policy=policy)) as simulation:
        await simulation.publish("loop.first", {})
        await simulation.advance("1h")
        assert len(simulation.executions("a")) == MAX_HOPS + 2  # of hops 0 to 4, and the refusal
        assert await refusal_code(simulation, "a") == "too-many-hops"


async def test_circle_through_ends_and_publications_ends() -> None:
    jobs = job("a", {"nats": "loop.>"}), job("b", {"job": "a"}), job("c", {"job": "b"})
    async with circling("c", *jobs) as simulation:
        await simulation.publish("loop.first", {})
        await simulation.advance("1h")
        completed = [len([*simulation.executions(name)]) for name in "abc"]
        assert sum(completed) == MAX_HOPS + 2
        assert await refusal_code(simulation, "c") == "too-many-hops"


async def test_wait_for_the_lock_keeps_the_event() -> None:
    async with circling("none", job("a", {"nats": "loop.>"}, overlap_policy="enqueue")) as simulation:
        for _ in range(3):
            simulation.installation.events.publish("loop.first", b"{}", {"ce-tocsinhops": "2"})
        await simulation.advance("1h")
        openings = [each for each in await events(simulation, "execution.a.>") if isinstance(each, Requested)]
        assert {type(each) for each in openings} == {Planned, Admitted}
        assert all(each.event is not None and each.event.hops == 2 for each in openings)


async def test_batch_counts_the_longest_chain() -> None:
    trigger = {"nats": "loop.>", "input": {"at": "subject"}, "batch": {"max": 3, "within": "10s"}}
    async with circling("none", job("a", trigger)) as simulation:
        for hops in ("0", "3", "1"):
            simulation.installation.events.publish("loop.first", b"{}", {"ce-tocsinhops": hops})
        await simulation.advance("1h")
        [opening] = [each for each in await events(simulation, "execution.a.>") if isinstance(each, Requested)]
        assert opening.event is not None
        assert opening.event.hops == 3


async def test_condition_ends_a_circle_without_dead_letters() -> None:
    trigger = {"nats": "loop.>", "when": 'headers["ce-tocsinhops"] == "0"'}
    async with circling("a", job("a", trigger)) as simulation:
        simulation.installation.events.publish("loop.first", b"{}", {"ce-tocsinhops": "0"})
        await simulation.advance("1h")
        assert len(simulation.executions("a")) == 1
        assert await events(simulation, "dead-letter.a.>") == []


@pytest.mark.parametrize("value", ["", "-1", "1e3", "9" * 7, "٣", "99 "])
async def test_wrong_header_counts_as_the_first_event(value: str) -> None:
    async with circling("none", job("a", {"nats": "loop.>"})) as simulation:
        await simulation.publish("loop.first", {}, headers={"Ce-Tocsinhops": value})
        await simulation.advance("1h")
        [opening] = [each for each in await events(simulation, "execution.a.>") if isinstance(each, Requested)]
        assert opening.event is not None
        assert opening.event.hops == 0
