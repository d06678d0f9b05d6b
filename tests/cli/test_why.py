"""`tocsin why`: the answer in words, for each of them."""

from datetime import datetime, timedelta
from typing import cast

import pytest

from tests.cli.conftest import World
from tests.domain.given import ID
from tests.stages.world import World as Stages
from tocsin import subjects
from tocsin.domain import ledger
from tocsin.domain.events import (
    EventIgnored,
    Failed,
    Message,
    PastHoldUp,
    Requested,
    Shard,
    ShardsDefined,
    Skipped,
    Started,
    validated,
)
from tocsin.domain.log_events import Began, Left
from tocsin.domain.start_jitter import start_delay
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.services import explain
from tocsin.services.shards import ShardMaps
from tocsin.testing import START


@pytest.fixture
def scene(world: World) -> "Scene":
    return Scene(world)


class Scene:
    """A world whose stages run on request."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stages = Stages()
        world.play(self.stages)

    def define(self, **definition: object) -> None:
        base = {"name": "nightly", "schedule": "0 * * * *", "timezone": "Europe/Berlin", "function": "f"}
        self.world.do(self.stages.define({**base, **definition}))

    def passes(self, hours: float, *, decided: bool = True) -> None:
        """Time passes, and is decided on."""
        self.world.do(self._passes(hours, decided=decided))

    async def _passes(self, hours: float, *, decided: bool) -> None:
        self.stages.clock.advance(hours * 3_600)
        if decided:
            state, _ = await LedgerReader(self.stages.log).load("nightly")
            version = (await ShardMaps(self.stages.log).newest()).version
            await self.stages.given(*ledger.decide_instants(state, self.stages.clock.now(), shards=version))
            await self.stages.run(self.stages.planner, self.stages.lock_keeper, self.stages.dag_advancer)

    def fails(self) -> None:
        """The newest execution fails for good."""
        self.world.do(self._fails())

    async def _fails(self) -> None:
        begun = (await self.stages.stored(Requested))[-1]
        await self.stages.given(
            Failed(
                job=begun.job,
                execution_id=begun.execution_id,
                scheduled_time=begun.scheduled_time,
                trigger=begun.trigger,
                dead_letter=True,
            )
        )
        await self.stages.run(self.stages.dead_letter_sink)

    def led(self, change: Began | Left) -> None:
        self.world.do(self.stages.note(change))

    def ignored(self, fact: EventIgnored) -> None:
        self.world.do(self.stages.log.publish(subjects.subject_of(fact), fact, message_id=str(fact)))

    def given(self, fact: Message) -> None:
        self.world.do(self.stages.given(fact))

    def why(self, *args: str) -> list[str]:
        result = self.world.call("why", "nightly", *args)
        assert result.code == 0, result.err
        return result.out.splitlines()

    def answers(self, *args: str) -> list[dict[str, object]]:
        result = self.world.call("why", "nightly", *args, "-o", "json")
        assert result.code == 0, result.err
        return cast("list[dict[str, object]]", result.json)


def test_firing_is_explained_without_leaders(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "read_leaders", None)
    scene.define()
    scene.passes(1)
    lines = scene.why("2026-01-01T02:00")
    assert lines[0] == (
        "nightly  2026-01-01 02:00:00 +0100 = 2026-01-01 01:00:00Z, in the job's time zone, Europe/Berlin"
    )
    assert lines[1].startswith("It fired, and execution ")
    assert " is waiting for a worker: no worker reads queue `default` (job nightly)" in lines[1]
    assert [line.split()[2] for line in lines[2:-1]] == ["defined", "due", "triggered", "dispatched"]


def test_backfilled_run_is_named(scene: Scene) -> None:
    scene.define(catch_up="skip")
    scene.passes(3.5)
    at = START + timedelta(hours=1)
    scene.world.do(scene.stages.trigger("nightly", backfill="repair", scheduled_time=at))
    scene.passes(0)
    lines = scene.why("2026-01-01T01:00Z")
    assert lines[1].startswith("It was missed")
    assert lines[2].startswith("Backfill `repair` ran it, and execution ")
    [shown] = scene.world.call("why", "nightly", "2026-01-01T01:00Z", "-o", "json").json
    [run] = shown["backfills"]
    assert (run["backfill"], run["outcome"]["status"]) == ("repair", "pending")
    assert scene.world.call("why", "nightly", "2026-01-01T02:00Z", "-o", "json").json[0]["backfills"] == []


def test_fan_out_has_the_numbers_of_all_shards(scene: Scene) -> None:
    scene.given(ShardsDefined(shards=(Shard(shard_id="eu-1"), Shard(shard_id="us-1"))))
    scene.define(partition="all_shards")
    scene.passes(1.5)
    [answer] = scene.answers()
    outcome = cast("dict[str, str]", answer["outcome"])
    assert (outcome["status"], outcome["shards"]) == ("pending", "0 of 2 completed, 2 pending")
    assert f"{answer['execution_id']} fanned out: 0 of 2 completed, 2 pending." in scene.why()[1]


def test_skip_names_the_active_execution(scene: Scene) -> None:
    scene.define()
    scene.passes(1)
    scene.passes(1)
    first, second = (scene.world.call("why", "nightly", f"2026-01-01T0{h}:00Z", "-o", "json").json[0] for h in (1, 2))
    assert second["outcome"]["active_execution_id"] == first["execution_id"]
    assert scene.why("2026-01-01T02:00Z")[1] == (
        f"It fired, and was skipped: execution {first['execution_id']} was still active, "
        "and the job's overlap policy is skip."
    )


def test_absence_of_a_leader_is_named(scene: Scene) -> None:
    scene.define(catch_up="skip")
    scene.led(Began(("ticker",)))
    scene.passes(0.5, decided=False)
    scene.led(Left({"ticker": 1}))
    scene.passes(0.75, decided=False)
    assert scene.why("2026-01-01T01:00Z")[1] == (
        "It was due 15m00s ago, and no ticker has decided on it yet: no ticker leads since 2026-01-01 01:30:00 +0100. "
        "A ticker will decide and record it."
    )
    scene.led(Began(("ticker",)))
    scene.passes(0)
    assert scene.why("2026-01-01T01:00Z")[1] == (
        "It was missed: no ticker led from 2026-01-01 01:30:00 +0100 to 2026-01-01 02:15:00 +0100. "
        "The miss was recorded 15m00s after the scheduled time, without catch-up."
    )


def test_it_says_how_late_it_fired(scene: Scene) -> None:
    scene.define()
    scene.passes(1.25)
    assert scene.why()[1].startswith(
        "It fired 15m00s late, by catch-up (the leading ticker did not decide on it in time), and execution "
    )


def test_it_says_who_paused(scene: Scene) -> None:
    scene.define()
    assert scene.world.call("jobs", "pause", "nightly", "--reason", "too loud").code == 0
    scene.passes(1)
    said = scene.why("2026-01-01T01:00Z")[1]
    assert said.startswith("It did not fire: the job was paused since 2026-01-01 01:00:00 +0100 by ")
    assert said.endswith(" (too loud).")
    [answer] = scene.world.call("why", "nightly", "2026-01-01T01:00Z", "-o", "json").json
    assert answer["by"]["kind"] == "cli"


def test_nonexistent_local_time_is_named(scene: Scene) -> None:
    scene.define(schedule="30 2 * * *")
    said = scene.why("2026-03-29T02:30")
    assert said[0].startswith("nightly  2026-03-29 03:30:00 +0200 = 2026-03-29 01:30:00Z")
    assert said[1] == "It did not fire: 02:30:00 does not exist that day in Europe/Berlin: the clocks skip it."
    assert (
        said[2]
        == "By the schedule of that time, the occurrence before is 2026-03-28 02:30:00 +0100 and the occurrence after is 2026-03-30 02:30:00 +0200."
    )


def test_repeated_local_time_has_two_answers(scene: Scene) -> None:
    scene.define(schedule="30 2 * * *")
    said = scene.why("2026-10-25T02:30")
    heads = [line for line in said if line.startswith("nightly  ")]
    assert [head.rpartition(", ")[2] for head in heads] == ["the first time", "the second time"]
    assert "It is in the future; it will fire unless something changes." in said
    assert "Not scheduled: this local time occurs twice, and `30 2 * * *` fires the first time only." in said


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (
            "2026-01-01T01:30Z",
            "Not scheduled: `0 * * * *` in Europe/Berlin does not name that time. `tocsin executions list --job nightly` lists triggered runs, and `tocsin executions show ID` says what a run waits for.",
        ),
        ("2026-01-01T05:00Z", "It is in the future; it will fire unless something changes."),
        ("2025-01-01T05:00Z", "The job did not exist yet: it was registered at 2026-01-01 01:00:00 +0100."),
    ],
)
def test_it_says_what_no_decision_is_about(scene: Scene, at: str, said: str) -> None:
    scene.define()
    assert scene.why(at)[1] == said


def test_it_says_that_the_job_is_gone(scene: Scene) -> None:
    scene.define()
    scene.passes(1.5)
    assert scene.world.call("jobs", "delete", "nightly", "--yes").code == 0
    scene.passes(2)
    assert scene.why("2026-01-01T03:00Z")[1].startswith(
        "The job did not exist any more: it was deleted at 2026-01-01 02:30:00 +0100 by "
    )


def test_without_a_schedule_there_is_nothing_to_miss(scene: Scene) -> None:
    scene.define(schedule=None)
    [answer] = scene.answers("2026-01-01T03:00Z")
    assert (answer["verdict"], answer["since"]) == ("on-demand", "2026-01-01T00:00:00Z")
    assert "`tocsin executions list --job nightly` lists triggered runs" in scene.why("2026-01-01T03:00Z")[1]


def test_it_says_why_events_started_nothing(scene: Scene) -> None:
    triggers = [
        {"nats": "orders.paid", "key": "body.id", "input": {"n": "body.n"}, "debounce": "30s"},
        {"nats": "clicks.>", "input": {"page": "body.page"}, "batch": {"max": 100, "within": "5s"}},
    ]
    scene.define(schedule=None, triggers=triggers)
    said = scene.why()[1]
    assert "when no other of its key came for 30s, at most 5m after the first (debounce)" in said
    assert "start a run together: 100 of them, or those of 5s (batch)" in said
    assert "that started nothing:" not in said
    for number, reason in enumerate(("duplicate",) * 3 + ("debounced", "condition_false") * 10):
        reference = {"stream": "ORDERS", "sequence": number + 1, "subject": "orders.paid", "time": START}
        ignored = {"job": "nightly", "trigger_id": "t", "event": reference, "reason": reason}
        scene.ignored(validated(EventIgnored, ignored))
    refusal = {"code": "evaluation-failed", "message": "`input.n`: no such key: n"}
    refused = {"job": "nightly", "execution_id": ID, "reason": "refused", "refusal": refusal, "trigger": "event"}
    scene.given(validated(Skipped, {**refused, "scheduled_time": START, "definition": 1}))
    said = scene.why()[1]
    assert "The newest events that started nothing: 10 condition_false, 10 debounced." in said
    assert "The newest event that it refused, by evaluation-failed: `input.n`: no such key: n." in said
    [answer] = scene.answers()
    kinds = [fact["fact"]["type"] for fact in cast("list[dict[str, dict[str, str]]]", answer["facts"])]
    assert kinds == ["defined", *["event-ignored"] * 20, "skipped"]


@pytest.mark.parametrize("is_resumed", [False, True])
def test_events_are_named_where_no_run_answers(scene: Scene, is_resumed: bool) -> None:  # noqa: FBT001 - a parameter
    """The job has a schedule too, and its newest ledger event may not be its definition."""
    scene.define(triggers=[{"nats": "orders.paid", "key": "body.id"}])
    if is_resumed:
        for verb in ("pause", "resume"):
            assert scene.world.call("jobs", verb, "nightly").code == 0
    scene.passes(1.25)
    reference = {"stream": "ORDERS", "sequence": 1, "subject": "orders.paid", "time": START}
    ignored = {"job": "nightly", "trigger_id": "t", "event": reference, "reason": "duplicate"}
    scene.ignored(validated(EventIgnored, ignored))
    refusal = {"code": "evaluation-failed", "message": "`input.n`: no such key: n"}
    refused = {"job": "nightly", "execution_id": ID, "reason": "refused", "refusal": refusal, "trigger": "event"}
    scene.given(validated(Skipped, {**refused, "scheduled_time": START, "definition": 1}))
    said = scene.why("2026-01-01T01:15Z")[1]
    assert said.startswith("Not scheduled: ")
    assert "The newest events that started nothing: 1 duplicate." in said
    assert "The newest event that it refused, by evaluation-failed: `input.n`: no such key: n." in said
    fired = scene.why("2026-01-01T01:00Z")[1]
    assert (fired.startswith("It fired"), "started nothing" in fired) == (True, False)


@pytest.mark.parametrize(("hours", "hour"), [(0, 1), (1.25, 2)], ids=["first", "new registration"])
def test_default_of_a_registration_is_its_first_occurrence(scene: Scene, hours: float, hour: int) -> None:
    scene.define()
    if hours:
        scene.passes(hours)
        assert scene.world.call("jobs", "delete", "nightly", "--yes").code == 0
        scene.define()
    [answer] = scene.answers()
    assert (answer["verdict"], answer["at"]) == ("future", f"2026-01-01T0{hour}:00:00Z")


def test_default_after_a_pause_names_the_pause(scene: Scene) -> None:
    scene.define()
    scene.passes(1.25)
    assert scene.world.call("jobs", "pause", "nightly", "--reason", "too loud").code == 0
    [answer] = scene.answers()
    assert (answer["verdict"], answer["at"], answer["reason"]) == ("future-paused", "2026-01-01T02:00:00Z", "too loud")


def test_default_of_a_deleted_job_names_the_deletion(scene: Scene) -> None:
    scene.define()
    scene.passes(1.5)
    assert scene.world.call("jobs", "delete", "nightly", "--yes").code == 0
    assert scene.answers()[0]["verdict"] == "after-deletion"


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59", "0001-01-01T00:00"])
def test_time_beyond_the_calendar_is_refused(scene: Scene, at: str) -> None:
    scene.define()
    failed = scene.world.call("why", "nightly", at, "-o", "json")
    assert (failed.code, failed.error["error_code"]) == (2, "invalid-query")


def test_programs_are_given_the_same(scene: Scene) -> None:
    scene.define()
    scene.passes(1)
    [answer] = scene.world.call("why", "nightly", "-o", "json").json
    assert (answer["verdict"], answer["at"], answer["local"]) == (
        "fired",
        "2026-01-01T01:00:00Z",
        "2026-01-01T02:00:00+01:00",
    )
    assert answer["outcome"]["status"] == "pending"
    assert {fact["subject"].split(".")[0] for fact in answer["facts"]} == {"ledger", "execution"}


def test_invalid_time_is_refused(scene: Scene) -> None:
    scene.define()
    result = scene.world.call("why", "nigthly", "-o", "json")
    assert result.failure == (3, "job-not-found")
    assert "'nightly'" in result.error["message"]
    failed = scene.world.call("why", "nightly", "yesterday", "-o", "json")
    assert failed.failure == (2, "invalid-time")
    assert "'yesterday'" in failed.error["message"]
    of_execution = scene.world.call("why", "nightly", ID, "-o", "json")
    assert of_execution.failure == (2, "invalid-time")
    assert f"`tocsin executions show {ID}`" in of_execution.error["message"]


def test_sub_second_occurrences_stay_apart(scene: Scene) -> None:
    scene.define(schedule="@every 500ms")
    heading, _, nearest, *_ = scene.why("2026-01-01T00:00:10.500Z")
    assert "00:00:10.5Z" in heading
    assert "01:00:11 +0100" in nearest


def test_events_that_started_nothing_are_referred_to(scene: Scene) -> None:
    scene.define(schedule=None)
    assert "triggers ignored" not in scene.why("2026-01-01T03:00Z")[1]
    scene.define(schedule=None, triggers=[{"nats": "orders.>", "when": "body.total > 1"}])
    assert "`tocsin triggers ignored nightly`" in scene.why("2026-01-01T03:00Z")[1]


def test_excluded_time_names_its_calendar_and_its_move(scene: Scene) -> None:
    holiday = [{"name": "new-year", "days": ["2026-01-01"]}]
    scene.define(schedule="0 9 1 * *", exclude=holiday, shift="next_business_day")
    scene.passes(10)
    reason = "2026-01-01 is a day of new-year. Its time moves to 2026-01-02 09:00:00 +0100"
    assert scene.why("2026-01-01T09:00")[1] == f"It did not fire: {reason}."
    blackout = [{"from": "2026-01-01T12:00", "to": "2026-01-01T14:00", "reason": "a new database"}]
    scene.define(schedule="0 * * * *", exclude=[], shift="skip", blackout=blackout)
    reason = "the blackout from 2026-01-01T12:00 to 2026-01-01T14:00 (a new database)"
    assert scene.why("2026-01-01T13:00")[1] == f"It is in the future; it will not fire: {reason}."


def test_past_hold_ups_of_a_run_are_named(scene: Scene) -> None:
    scene.define(overlap_policy="allow")
    scene.passes(1)
    [shown] = scene.answers("2026-01-01T02:00")
    run = str(shown["execution_id"])
    for delivery, seconds in ((1, 1.5), (2, 2.0)):
        held_up = (PastHoldUp(cause="queue_rate", seconds=seconds),)
        claim = Started(job="nightly", execution_id=run, step="main", attempt=1, delivery=delivery, worker="w")
        scene.given(claim.changed(held_up=held_up))
    [shown] = scene.answers("2026-01-01T02:00")
    outcome = shown["outcome"]
    assert isinstance(outcome, dict)
    assert outcome["held_up"] == [{"cause": "queue_rate", "seconds": 3.5}]
    line = scene.why("2026-01-01T02:00")[1]
    assert line.endswith(" Before workers got its tasks, they were held up 3.5s by the rate of its queue.")


def test_jitter_of_a_start_is_named(scene: Scene) -> None:
    scene.define(jitter="5m")
    scene.passes(1)
    [shown] = scene.answers("2026-01-01T02:00")
    outcome = shown["outcome"]
    assert isinstance(outcome, dict)
    delay = start_delay(str(shown["execution_id"]), 300.0)
    assert (outcome["start_delay_seconds"], outcome["status"]) == (delay, "pending")
    starts_at = START + timedelta(hours=1, seconds=delay)
    assert datetime.fromisoformat(outcome["starts_at"]) == starts_at
    line = scene.why("2026-01-01T02:00")[1]
    assert " is waiting for its start. The jitter of the job delayed its start by " in line
    assert line.endswith(f", until {starts_at + timedelta(hours=1):%Y-%m-%d %H:%M:%S} +0100.")
