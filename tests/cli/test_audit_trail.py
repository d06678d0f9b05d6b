"""`tocsin events audit-trail`: who did what, from the log alone."""

from tests.cli.conftest import World
from tests.domain.given import admitted
from tocsin.domain.events import Actor, Cancelled


def test_every_request_is_listed_with_actor_and_reason(world: World) -> None:
    file = world.jobs("jobs:\n  - {name: nightly, schedule: '@daily', function: f}\n")
    world.call("jobs", "apply", "-f", file)
    world.call("jobs", "pause", "nightly", "--reason", "maintenance")
    world.call("jobs", "trigger", "nightly", "--reason", "by hand")
    begun = admitted().model_copy(update={"job": "nightly"})
    cancelled = Cancelled(
        job="nightly",
        execution_id=begun.execution_id,
        scheduled_time=begun.scheduled_time,
        trigger="cron",
        by=Actor(identity="ops", source="10.0.0.1"),
        reason="too costly",
    )
    world.append(begun)
    world.append(cancelled, expect=world.recorded(f"execution.nightly.{begun.execution_id}.>")[-1].sequence)
    world.call("jobs", "delete", "nightly", "--yes")

    result = world.call("-o", "json", "events", "audit-trail").json
    # The order of the two streams is not compared: they share a clock, which stands still in this world.
    assert {(one["fact"]["type"], one["fact"].get("reason")) for one in result} == {
        ("defined", None),
        ("paused", "maintenance"),
        ("trigger", "by hand"),
        ("deleted", None),
        ("cancelled", "too costly"),
    }
    assert all(one["fact"]["by"]["identity"] for one in result)
    table = world.call("events", "audit-trail", "--job", "nightly").out
    assert "ops" in table
    assert "10.0.0.1" in table
    assert "manual trigger" in table
    assert world.call("events", "audit-trail", "--job", "other").out == "no operations are recorded\n"


def test_decisions_of_stages_are_not_listed(world: World) -> None:
    begun = admitted().model_copy(update={"job": "nightly"})
    world.append(begun)
    ended = Cancelled(
        job="nightly", execution_id=begun.execution_id, scheduled_time=begun.scheduled_time, trigger="cron"
    )
    world.append(ended, expect=world.recorded(f"execution.nightly.{begun.execution_id}.>")[-1].sequence)
    assert world.call("-o", "json", "events", "audit-trail").json == []
