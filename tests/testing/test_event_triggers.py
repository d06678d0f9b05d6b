"""Triggers in a simulation: what events start, and when."""

from typing import Any

import pytest

from tocsin import Worker
from tocsin.domain.definition import JobDefinition
from tocsin.settings import Settings
from tocsin.subjects import Bucket
from tocsin.testing import Simulation, SimulationError


def jobs(**trigger: Any) -> list[JobDefinition]:  # noqa: ANN401 - fields as they are written
    fields: dict[str, Any] = {"function": "echo", "overlap_policy": "allow"}
    invoice = {"name": "invoice", "triggers": [{"nats": "orders.>", **trigger}]}
    report = {"name": "report", "triggers": [{"job": "invoice", "input": {"of": "body.result"}}]}
    return [JobDefinition.model_validate({**fields, **each}) for each in (invoice, report)]


@pytest.fixture
def seen() -> list[Any]:
    return []


@pytest.fixture
def worker(seen: list[Any]) -> Worker:
    worker = Worker()

    @worker.task("echo")
    async def echo(context: Any) -> object:  # noqa: ANN401 - a context, which the annotation of a test need not name
        seen.append(dict(context.input))
        return context.input.get("order")

    return worker


async def test_message_starts_an_execution_and_its_end_another(worker: Worker, seen: list[Any]) -> None:
    triggers = jobs(when="body.total > 100", input={"order": "body.id"}, key="body.id")
    async with Simulation(worker, definitions=triggers) as simulation:
        await simulation.publish("orders.new", {"id": "a", "total": 120})
        await simulation.publish("orders.new", {"id": "a", "total": 130})
        await simulation.publish("orders.new", {"id": "b", "total": 1})
        await simulation.advance("1m")
        assert [execution.job for execution in simulation.executions()] == ["invoice", "report"]
    assert seen == [{"order": "a"}, {"of": "a"}]


async def test_debounced_events_start_one_execution_later(worker: Worker, seen: list[Any]) -> None:
    definitions = jobs(input={"order": "body.id"}, key="body.id", debounce="30s")[:1]
    async with Simulation(worker, definitions=definitions) as simulation:
        for _ in range(3):
            await simulation.publish("orders.new", {"id": "a"})
            await simulation.advance("20s")
        assert seen == []
        await simulation.advance("1h")
    assert seen == [{"order": "a"}]


async def test_batch_starts_one_execution(worker: Worker, seen: list[Any]) -> None:
    definitions = jobs(input={"order": "body.id", "at": "time"}, batch={"max": 3, "within": "10s"})[:1]
    async with Simulation(worker, definitions=definitions, at="2026-11-26T10:00") as simulation:
        for number in range(5):
            await simulation.publish("orders.new", {"id": number})
        await simulation.advance("1h")
    assert [[event["order"] for event in given["events"]] for given in seen] == [[0, 1, 2], [3, 4]]
    assert {event["at"] for given in seen for event in given["events"]} == {"2026-11-26T10:00:00+00:00"}


async def test_subject_that_is_not_open_is_refused() -> None:
    settings = Settings.model_validate({"triggers": {"streams": {"ORDERS": ["orders.>"]}}})
    async with Simulation(definitions=jobs(), settings=settings) as simulation:
        with pytest.raises(SimulationError, match="no stream is open"):
            await simulation.publish("invoices.new", {})


async def test_removed_trigger_leaves_no_batch(worker: Worker, seen: list[Any]) -> None:
    definitions = jobs(input={"order": "body.id"}, batch={"max": 1, "within": "10s"})[:1]
    async with Simulation(worker, definitions=definitions) as simulation:
        await simulation.publish("orders.new", {"id": 1})
        await simulation.advance("1m")
        assert len(await simulation.installation.projections.entries(Bucket.TRIGGERS)) == 1
        await simulation.pause("invoice")
        await simulation.advance("1m")
        assert await simulation.installation.projections.entries(Bucket.TRIGGERS) == {}
    assert seen == [{"events": [{"order": 1}]}]
