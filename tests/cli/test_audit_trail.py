"""`tocsin events audit-trail`: who did what, from the log alone."""

import re
from pathlib import Path
from typing import Any

from tests.cli.conftest import World
from tests.domain.given import NOON, admitted, first_tasks
from tocsin.domain.events import Actor, Cancelled, Completed, Failed, QueuePaused, Started

JOBS = """
jobs:
  - {name: nightly, schedule: '@daily', function: f}
  - {name: hourly, schedule: '@hourly', function: f}
"""


def trail_of(world: World, *words: str) -> list[str]:
    """Return the rows of the table that have all words, with single blanks."""
    rows = (" ".join(row.split()) for row in world.call("events", "audit-trail").out.splitlines())
    return [row for row in rows if all(word in row for word in words)]


def test_every_request_is_listed_with_actor_and_reason(world: World) -> None:
    file = world.jobs("jobs:\n  - {name: nightly, schedule: '@daily', function: f}\n")
    world.call("jobs", "apply", "-f", file)
    world.call("jobs", "pause", "nightly", "--reason", "maintenance")
    world.call("jobs", "trigger", "nightly", "--reason", "by hand")
    begun = admitted().changed(job="nightly")
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


def test_silences_and_namespaces_are_listed(world: World, tmp_path: Path) -> None:
    world.call("jobs", "apply", "-f", world.jobs("jobs:\n  - {name: nightly, schedule: '@daily', function: f}\n"))
    world.call("silences", "start", "nightly", "--for", "1h", "--reason", "the database moves")
    (tmp_path / "namespaces.yaml").write_text("namespaces: [{name: billing}]")
    world.call("namespaces", "apply", "-f", str(tmp_path / "namespaces.yaml"), "--reason", "a new team")
    listed = world.call("-o", "json", "events", "audit-trail").json
    reasons = {one["fact"]["type"]: one["fact"].get("reason") for one in listed}
    assert reasons == {
        "defined": None,
        "silences-defined": "the database moves",
        "namespaces-defined": "a new team",
    }
    assert all(one["audit"]["user"] for one in listed)


def test_silence_names_its_job_and_its_end(world: World) -> None:
    world.call("jobs", "apply", "-f", world.jobs(JOBS))
    first = world.call("-o", "json", "silences", "start", "nightly", "--for", "1h", "--reason", "moves").json
    world.call("silences", "start", "hourly", "--for", "2h", "--reason", "other")
    world.call("silences", "end", first["id"], "--reason", "moved")
    world.call("silences", "start", "--tag", "billing", "--for", "1h", "--reason", "release")
    world.call("silences", "start", "--all", "--for", "1h", "--reason", "network")
    expected = {
        "silence started nightly": "moves",
        "silence started hourly": "other",
        "silence ended nightly": "moved",
        "silence started jobs with the tag billing": "release",
        "silence started all jobs": "network",
    }
    for words, reason in expected.items():
        [row] = trail_of(world, words)
        assert row.endswith(reason)
    of_job = world.call("-o", "json", "events", "audit-trail", "--job", "nightly").json
    assert {record["fact"].get("reason") for record in of_job} == {None, "moves", "moved"}
    assert {record["audit"]["job"] for record in of_job} == {"nightly"}


def test_silence_that_ran_out_is_not_ended(world: World) -> None:
    world.call("jobs", "apply", "-f", world.jobs(JOBS))
    world.call("silences", "start", "nightly", "--for", "1m", "--reason", "first")
    kept = world.call("-o", "json", "silences", "start", "hourly", "--for", "2h", "--reason", "second").json
    world.clock.advance(600)
    world.call("silences", "end", kept["id"], "--reason", "third")
    [ended] = trail_of(world, "silence ended")
    assert "hourly" in ended


def test_what_is_no_job_has_its_kind(world: World) -> None:
    world.append(QueuePaused(queue="mail.bulk", by=Actor(identity="ops"), reason="release"))
    [row] = trail_of(world, "release")
    assert "paused queue mail.bulk" in row


def test_decisions_of_stages_are_not_listed(world: World) -> None:
    begun = admitted().changed(job="nightly")
    world.append(begun)
    ended = Cancelled(
        job="nightly", execution_id=begun.execution_id, scheduled_time=begun.scheduled_time, trigger="cron"
    )
    world.append(ended, expect=world.recorded(f"execution.nightly.{begun.execution_id}.>")[-1].sequence)
    assert world.call("-o", "json", "events", "audit-trail").json == []


def test_each_event_has_a_type_and_a_state(world: World) -> None:
    text = "jobs:\n  - {{name: nightly, schedule: '{}', function: f}}\n"
    for schedule in ("@daily", "@hourly"):
        world.call("jobs", "apply", "-f", world.jobs(text.format(schedule)))
    world.call("jobs", "pause", "nightly")
    world.call("jobs", "resume", "nightly")
    world.call("jobs", "trigger", "nightly")
    world.call("jobs", "delete", "nightly", "--yes")
    world.call("jobs", "apply", "-f", world.jobs(text.format("@daily")))
    records = [one["audit"] for one in world.call("-o", "json", "events", "audit-trail").json]
    # The clock of this world stands still, so only the order within a subject is known.
    of_ledger = sorted((record["type"], record["state"]) for record in records if record["type"])
    assert of_ledger == [
        ("JOB_CREATED", "ENABLED"),
        ("JOB_CREATED", "ENABLED"),
        ("JOB_DELETED", "DELETED"),
        ("JOB_MODIFIED", "ENABLED"),
        ("JOB_MODIFIED", "ENABLED"),
        ("JOB_MODIFIED", "PAUSED"),
    ]
    assert {(record["job"], record["user"].partition(":")[0]) for record in records} == {("nightly", "cli")}
    assert [record["type"] for record in records].count(None) == 1  # the trigger
    assert "JOB_CREATED" in world.call("events", "audit-trail").out


def test_disabled_job_is_no_enabled_job_when_resumed(world: World) -> None:
    text = "jobs: [{name: nightly, schedule: '@daily', function: f, enabled: false}]\n"
    world.call("jobs", "apply", "-f", world.jobs(text))
    world.call("jobs", "pause", "nightly")
    world.call("jobs", "resume", "nightly")
    records = [one["audit"] for one in world.call("-o", "json", "events", "audit-trail").json]
    assert sorted((record["type"], record["state"]) for record in records) == [
        ("JOB_CREATED", "DISABLED"),
        ("JOB_MODIFIED", "DISABLED"),
        ("JOB_MODIFIED", "PAUSED"),
    ]


def test_ends_of_runs_are_listed_on_request(world: World) -> None:
    for number, end in enumerate((Completed, Failed, Cancelled, Cancelled, Completed)):
        run = f"{number}1111111-1111-7111-8111-111111111111"
        begun = admitted().changed(job="nightly", execution_id=run)
        if number == 4:
            begun = begun.changed(trigger="event")
        if number % 2 == 1:
            begun = begun.changed(trigger="manual", by=Actor(identity="ada", kind="token"))
        world.append(begun)
        [task, *_] = first_tasks(begun)
        world.append(task, expect=world.recorded(f"execution.nightly.{run}.>")[-1].sequence)
        start = Started(job="nightly", execution_id=run, step="main", attempt=1, delivery=1, worker=f"w{number}")
        world.append(start, expect=world.recorded(f"execution.nightly.{run}.>")[-1].sequence)
        fields: dict[str, Any] = {
            "job": "nightly",
            "execution_id": run,
            "scheduled_time": NOON,
            "trigger": begun.trigger,
        }
        if end is Completed:
            fields |= {"result": {"rows_affected": 7}, "fence": 1}
        world.append(end(**fields), expect=world.recorded(f"execution.nightly.{run}.>")[-1].sequence)
    assert world.call("-o", "json", "events", "audit-trail").json == []
    records = [one["audit"] for one in world.call("-o", "json", "events", "audit-trail", "--runs").json]
    assert sorted((r["type"], r["state"], r["agent"], r["rows_affected"], r["run"][0], r["user"]) for r in records) == [
        ("JOB_CANCELLED", "CANCELLED", "w2", None, "2", None),
        ("JOB_CANCELLED", "CANCELLED", "w3", None, "3", None),  # superseded: ada requested it, and did not cancel it
        ("JOB_EXECUTED", "COMPLETED", "w0", 7, "0", None),
        ("JOB_EXECUTED", "COMPLETED", "w4", 7, "4", None),
        ("JOB_FAILED", "FAILED", "w1", None, "1", "token:ada"),
    ]
    table = world.call("events", "audit-trail", "--runs").out
    assert [len(re.findall(rf"\b{who}\b", table)) for who in ("schedule", "event", "ada", "unknown")] == [2, 1, 1, 1]
