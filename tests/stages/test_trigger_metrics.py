"""Metrics of triggers: the outcomes of their events, and how far they are behind."""

from datetime import timedelta

from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.stages.test_event_listener import JOB, MAX_JOBS, listening, messages
from tests.stages.world import World
from tocsin.domain.totals import OTHER
from tocsin.stages.event_listener.stage import TriggerMetrics


def values(reader: InMemoryMetricReader, name: str) -> dict[tuple[str, ...], float]:
    """The values of an instrument, by the values of its labels."""
    data = reader.get_metrics_data()
    return {
        tuple(str(label) for label in (point.attributes or {}).values()): getattr(point, "value", 0.0)
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    }


async def test_events_count_by_outcome(world: World, metrics: InMemoryMetricReader) -> None:
    await world.define(JOB)
    async with listening(world) as listener:
        [name] = listener.index.active
        bodies = '{"n": 2, "id": "a"}', '{"n": 3, "id": "b"}', '{"n": 1, "id": "c"}', "{"
        await listener.handle(name, messages(world, *bodies))
    counted = values(metrics, "tocsin_trigger_events")
    assert counted == {("invoice", "started"): 2, ("invoice", "ignored"): 1, ("invoice", "refused"): 1}


async def test_jobs_beyond_the_limit_count_together(world: World, metrics: InMemoryMetricReader) -> None:
    for number in range(MAX_JOBS + 2):
        await world.define({**JOB, "name": f"invoice-{number}"})
    async with listening(world) as listener:
        for name in listener.index.active:
            await listener.handle(name, messages(world, '{"n": 2, "id": "a"}'))
    counted = values(metrics, "tocsin_trigger_events")
    assert sum(counted.values()) == MAX_JOBS + 2
    assert (len(counted), counted[OTHER, "started"]) == (MAX_JOBS + 1, 2)


async def test_lag_is_the_age_of_what_was_taken(world: World, metrics: InMemoryMetricReader) -> None:
    await world.define(JOB)
    async with listening(world) as listener:
        [active] = listener.index.active.values()
    measured, old = TriggerMetrics(max_jobs=MAX_JOBS), messages(world, "{}", "{}")
    measured.taken(active, old, world.clock.now() + timedelta(seconds=40))
    assert values(metrics, "tocsin_trigger_lag_seconds")["invoice",] == 40
    measured.taken(active, (), world.clock.now() + timedelta(seconds=60))
    assert values(metrics, "tocsin_trigger_lag_seconds")["invoice",] == 0
    measured.taken(active, old, world.clock.now() - timedelta(seconds=1))  # another clock
    assert values(metrics, "tocsin_trigger_lag_seconds")["invoice",] == 0
    measured.taken(active, old, world.clock.now() + timedelta(seconds=40))
    measured.stopped(active)  # another copy may read on
    assert values(metrics, "tocsin_trigger_lag_seconds")["invoice",] == 0
