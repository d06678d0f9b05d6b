"""The notifier: what is raised, and how it reaches its channel."""

import asyncio
import io
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from tests.stages.world import World
from tocsin import subjects, telemetry
from tocsin.domain import execution
from tocsin.domain.events import (
    Actor,
    Admitted,
    Completed,
    CronMissed,
    CronMissedData,
    Death,
    Failed,
    Failure,
    Message,
    NotificationAbandoned,
    NotificationAttemptFailed,
    NotificationDelivered,
    NotificationFact,
    NotificationPrepared,
    NotificationRaised,
    NotificationSilenced,
    OutcomeChanged,
    Recorded,
    Released,
    RetryScheduled,
    Skipped,
    SkipReason,
    validated,
)
from tocsin.domain.events.public import MissedReason
from tocsin.domain.notification import Kind, Notification
from tocsin.ports import ChannelRefused, LogUnavailable, NotificationChannel, Written
from tocsin.services.notifications import Silences
from tocsin.stages.notifier import sender as sender_module
from tocsin.stages.notifier.backlog import MAX_OPEN, Backlog
from tocsin.stages.notifier.sender import GIVE_UP_AFTER, TRIM_S, Sender
from tocsin.subjects import Stream
from tocsin.testing import InMemoryEventLog, settle

WINDOW = 5.0
JOB = {"name": "report", "function": "f", "tags": ["nightly"]}


@dataclass
class Receiver:
    """A channel that keeps what it is sent, and refuses it while it is down."""

    sent: list[Notification] = field(default_factory=list)
    refusal: Exception | None = None

    async def send(self, notification: Notification) -> None:
        self.sent.append(notification)
        if self.refusal is not None:
            raise self.refusal


async def raised(world: World) -> list[NotificationRaised]:
    return [fact for fact in await facts(world) if isinstance(fact, NotificationRaised)]


async def facts(world: World) -> list[NotificationFact]:
    """Every event about notifications, oldest first."""
    stored = await world.log.read("notification.>", limit=10_000)
    return [recorded.message for recorded in stored if isinstance(recorded.message, NotificationFact)]


async def run(world: World, job: str = "report", *, ends: type = Failed, **fields: object) -> str:
    """An execution of a job begins and ends; its id."""
    await world.trigger(job, f"{next(NUMBERS)}")
    await world.run(world.planner, world.lock_keeper)
    begun = [fact for fact in await world.stored(Admitted) if fact.job == job]
    last = begun[-1]
    state = execution.fold(await world.log.load(subjects.execution(job, last.execution_id)))
    end = {"scheduled_time": last.scheduled_time, "trigger": last.trigger, "fence": state.fence}
    await world.given(ends(job=job, execution_id=last.execution_id, **end, **fields))
    await world.run(world.lock_keeper)
    return last.execution_id


NUMBERS = count()
RUN = "0193a5b0-0000-7000-8000-000000000001"


async def test_failure_is_raised_once_for_each_channel(world: World) -> None:
    await world.define({**JOB, "notify": {"channels": ["ops", "pager"], "on_failure": True}})
    failed = await run(world, error=Failure(type="TimeoutError", message="no answer\x1b[2J"), step="main", attempt=3)
    await world.run(world.notifier)
    notifications = await raised(world)
    assert [(fact.channel, fact.kind, fact.execution_id) for fact in notifications] == [
        ("ops", Kind.FAILED, failed),
        ("pager", Kind.FAILED, failed),
    ]
    assert notifications[0].reason == "TimeoutError: no answer\\x1b[2J"
    assert "attempt 3" in notifications[0].why
    assert notifications[0].tags == ("nightly",)
    assert len({fact.id for fact in notifications}) == 2


async def test_redelivery_raises_nothing_again(world: World) -> None:
    await world.define({**JOB, "notify": {"channels": ["ops"], "on_failure": True, "on_recovery": True}})
    await run(world)
    await run(world, ends=Completed)
    await world.run(world.notifier)
    stored = await facts(world)
    await world.redeliver(world.notifier)
    await world.redeliver(world.notifier)
    assert await facts(world) == stored


async def lose(world: World, execution_id: str, number: int, *, step: str = "main", is_late: bool = False) -> None:
    """Store that a step lost so many workers, the last of them with its claim or with its whole attempt."""
    at = world.clock.now()
    deaths = tuple(Death(agent=f"mail.{index}", at=at, last_heartbeat=at) for index in range(1, number + 1))
    of: dict[str, Any] = {"job": "report", "execution_id": execution_id, "step": step, "attempt": 1}
    if is_late:
        error = Failure(type="timeout", deaths=deaths)
        await world.given(RetryScheduled(**of, error=error, delay=1.0, next_attempt_at=at))
    else:
        await world.given(Released(**of, delivery=number, task=1, reason="lease_over", deaths=deaths))


@pytest.mark.parametrize("is_late", [False, True])
async def test_second_lost_worker_is_raised_once(world: World, *, is_late: bool) -> None:
    rule = {"channels": ["ops", "pager"], "on_failure": True}
    await world.define({**JOB, "recovery": {"max_deaths": 5}, "notify": rule})
    execution_id = await begin(world)
    await lose(world, execution_id, 1, is_late=is_late)
    await world.run(world.notifier)
    assert await raised(world) == []
    for number, step in ((2, "main"), (3, "main"), (2, "other"), (4, "main")):
        await lose(world, execution_id, number, step=step, is_late=is_late)
        await world.run(world.notifier)
    notifications = await raised(world)
    assert [(fact.channel, fact.kind, fact.job, fact.execution_id) for fact in notifications] == [
        ("ops", Kind.WORKER_LOST, "report", execution_id),
        ("pager", Kind.WORKER_LOST, "report", execution_id),
    ]
    assert notifications[0].reason == "step main lost 2 workers: mail.1, mail.2"
    assert "5 workers (recovery.max_deaths)" in notifications[0].why
    assert "mail.2 at " in notifications[0].why
    await world.redeliver(world.notifier)
    await world.redeliver(world.notifier)
    assert await raised(world) == notifications


async def test_each_execution_that_loses_workers_is_raised(world: World) -> None:
    rule = {"channels": ["ops"], "on_failure": True}
    await world.define({**JOB, "overlap_policy": "allow", "notify": rule})
    runs = [await begin(world), await begin(world)]
    for execution_id in runs:
        await lose(world, execution_id, 1)
        await lose(world, execution_id, 2)
    await world.run(world.notifier)
    assert sorted(str(fact.execution_id) for fact in await raised(world)) == sorted(runs)


async def test_lost_workers_without_the_rule_raise_nothing(world: World) -> None:
    await world.define({**JOB, "notify": {"channels": ["ops"], "on_recovery": True}})
    execution_id = await begin(world)
    await lose(world, execution_id, 2)
    await world.run(world.notifier)
    assert await raised(world) == []


@pytest.mark.parametrize("notify", [None, {"channels": ["ops"], "on_skip": True}])
async def test_job_without_the_rule_raises_nothing(world: World, notify: Mapping[str, Any] | None) -> None:
    await world.define({**JOB, "notify": notify})
    await run(world)
    await run(world, ends=Completed)
    await world.run(world.notifier)
    assert await facts(world) == []


async def test_first_success_after_failures_is_a_recovery(world: World) -> None:
    await world.define({**JOB, "notify": {"channels": ["ops"], "on_recovery": True}})
    executions = []
    for ends in (Completed, Failed, Failed, Completed, Completed):
        executions.append(await run(world, ends=ends))
        await world.run(world.notifier)
    [fact] = await raised(world)
    assert (fact.kind, fact.execution_id) == (Kind.RECOVERED, executions[3])
    assert [fact.is_failing for fact in await facts(world) if isinstance(fact, OutcomeChanged)] == [True, False]


async def test_recovery_survives_a_crash_before_its_outcome(world: World) -> None:
    await world.define({**JOB, "notify": {"channels": ["ops"], "on_recovery": True}})
    await run(world)
    await run(world, ends=Completed)
    write = world.log.write

    async def cut(writes: Sequence[Any]) -> list[Written]:
        if any(isinstance(event, OutcomeChanged) and not event.is_failing for w in writes for event in w.events):
            raise LogUnavailable("the process is killed before")
        return await write(writes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.log, "write", cut)
        await world.run(world.notifier)
    assert [fact.is_failing for fact in await facts(world) if isinstance(fact, OutcomeChanged)] == [True]
    await world.redeliver(world.notifier)
    assert [fact.kind for fact in await raised(world)] == [Kind.RECOVERED]
    assert [fact.is_failing for fact in await facts(world) if isinstance(fact, OutcomeChanged)] == [True, False]


async def test_failures_of_many_days_are_remembered(world: World) -> None:
    await world.define({**JOB, "notify": {"channels": ["ops"], "on_recovery": True}})
    for _ in range(3):
        await run(world)
        await world.run(world.notifier)
        world.clock.advance(90_000)
    assert [fact.is_failing for fact in await facts(world) if isinstance(fact, OutcomeChanged)] == [True] * 3


async def test_skip_is_raised_unless_it_was_wanted(world: World) -> None:
    definition = await world.define({**JOB, "notify": {"channels": ["ops"], "on_skip": True}})
    reasons: tuple[SkipReason, ...] = ("overlap_skip", "disabled", "dst_skip", "refused", "queue_full")
    for number, reason in enumerate(reasons):
        skip = Skipped(
            job="report",
            execution_id=f"{number}",
            reason=reason,
            scheduled_time=world.clock.now(),
            trigger="cron",
            definition=definition,
        )
        await world.given(skip)
    await world.run(world.notifier)
    assert [fact.execution_id for fact in await raised(world)] == ["0", "4"]


@pytest.mark.parametrize("reason", get_args(MissedReason))
async def test_missed_instants_are_one_notification(world: World, reason: MissedReason) -> None:
    await world.define({**JOB, "schedule": "0 * * * *", "notify": {"channels": ["ops"], "on_missed": True}})
    now = world.clock.now()
    data = CronMissedData(
        cron_name="report",
        cron_expression="0 * * * *",
        timezone="UTC",
        reason=reason,
        count=12,
        start=now - timedelta(hours=12),
        until=now,
    )
    await world.given(CronMissed(timestamp=now, data=data))
    await world.run(world.notifier)
    [fact] = await raised(world)
    assert (fact.kind, fact.execution_id) == (Kind.MISSED, None)
    assert fact.reason.startswith("12 instants did not fire")


async def test_missed_instant_is_overdue_at_its_deadline(world: World) -> None:
    """The scheduler was away from five to nine, and the instant was at six."""
    rule = {"channels": ["ops"], "must_complete_by": "07:00"}
    await world.define({**JOB, "schedule": "0 6 * * *", "notify": rule})
    day = world.clock.now().replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    data = CronMissedData(
        cron_name="report",
        cron_expression="0 6 * * *",
        timezone="UTC",
        reason="missed",
        count=1,
        start=day + timedelta(hours=5),
        until=day + timedelta(hours=9),
    )
    world.clock.advance((day + timedelta(hours=9) - world.clock.now()).total_seconds())
    await world.given(CronMissed(timestamp=world.clock.now(), data=data))
    for _ in range(2):
        await world.run(world.notifier)
        world.clock.advance(1)
    [fact] = await raised(world)
    assert (fact.kind, fact.at, fact.execution_id) == (Kind.OVERDUE, day + timedelta(hours=7), None)
    assert fact.reason.endswith("it was missed")


@pytest.mark.parametrize(("reason", "kinds"), [("overlap_skip", [Kind.OVERDUE]), ("dst_skip", [])])
async def test_skipped_occurrence_is_overdue_at_its_deadline(
    world: World, reason: SkipReason, kinds: list[Kind]
) -> None:
    rule = {"channels": ["ops"], "must_complete_by": "07:00"}
    await world.define({**JOB, "schedule": "0 6 * * *", "notify": rule})
    [defined] = await world.log.read("ledger.report.defined")
    now = world.clock.now()
    skip = Skipped(
        job="report",
        execution_id=RUN,
        scheduled_time=now,
        trigger="cron",
        reason=reason,
        definition=defined.sequence,
    )
    await world.given(skip)
    await world.run(world.notifier)
    assert await raised(world) == []
    world.clock.advance(86_400)
    await world.run(world.notifier)
    found = await raised(world)
    assert [fact.kind for fact in found] == kinds
    assert {(fact.execution_id, fact.reason.rpartition(": ")[2]) for fact in found} <= {(RUN, "it was skipped")}


async def begin(world: World) -> str:
    """An execution begins, and none of its tasks is taken; its id."""
    await world.trigger("report", f"{next(NUMBERS)}")
    await world.run(world.planner, world.lock_keeper, world.notifier)
    return (await world.stored(Admitted))[-1].execution_id


async def test_timers_find_an_execution_that_waits(world: World) -> None:
    await world.define({**JOB, "notify": {"channels": ["ops"], "late_after": "10m", "duration_over": "2h"}})
    waiting = await begin(world)
    for seconds, kinds in ((590, []), (20, [Kind.LATE]), (7_200, [Kind.LATE, Kind.SLOW])):
        world.clock.advance(seconds)
        await world.run(world.notifier)
        assert [fact.kind for fact in await raised(world)] == kinds
    assert {fact.execution_id for fact in await raised(world)} == {waiting}
    await world.redeliver(world.notifier)
    assert len(await raised(world)) == 2


async def test_execution_that_ended_is_looked_at_no_more(world: World) -> None:
    await world.define({**JOB, "notify": {"channels": ["ops"], "duration_over": "2h"}})
    await begin(world)
    assert world.pending == 1
    [admitted] = await world.stored(Admitted)
    end = {"job": "report", "execution_id": admitted.execution_id, "scheduled_time": admitted.scheduled_time}
    await world.given(validated(Completed, {**end, "trigger": "manual"}))
    world.clock.advance(5)
    await world.run(world.notifier)
    assert world.pending == 0


async def test_timers_find_nothing_after_the_end(world: World) -> None:
    await world.define({**JOB, "notify": {"channels": ["ops"], "late_after": "10m", "duration_over": "2h"}})
    await run(world, ends=Completed)
    await world.run(world.notifier)
    world.clock.advance(10_000)
    await world.run(world.notifier)
    assert await raised(world) == []


@dataclass
class Scene:
    """A world with a sender that leads."""

    world: World
    sender: Sender
    ops: Receiver

    async def raise_(self, *jobs: str, channel: str = "ops", of_runs: bool = False) -> None:
        """Raise a notification about each job, or about a run of each."""
        for job in jobs:
            fact = NotificationRaised(
                job=job,
                id=f"{next(NUMBERS)}",
                channel=channel,
                kind=Kind.FAILED,
                at=self.world.clock.now(),
                execution_id=f"run of {job}" if of_runs else None,
            )
            await self.world.given(fact)
        await settle()

    async def passes(self, seconds: float) -> None:
        """Time goes by, in steps in which the sender looks."""
        while seconds > 0:
            self.world.clock.advance(min(seconds, 600.0))
            seconds -= 600.0
            for _ in range(4):
                await settle()
                self.world.clock.advance(0.5)
            await settle()


@asynccontextmanager
async def sending(
    world: World, channels: Mapping[str, NotificationChannel], log: InMemoryEventLog | None = None
) -> AsyncIterator[Sender]:
    """A sender whose loops run."""
    sender = Sender(
        log or world.log,
        world.projections,
        world.elect("notifier"),
        world.clock,
        channels,
        window=WINDOW,
        public_url="https://tocsin.example.com",
    )
    loops = [
        asyncio.create_task(loop())
        for loop in (sender.leadership.run, sender.follow, sender.follow_silences, sender.run, sender.tick, sender.trim)
    ]
    await settle()
    try:
        yield sender
    finally:
        for loop in loops:
            loop.cancel()
        for loop in loops:
            with suppress(asyncio.CancelledError):
                await loop


@pytest.fixture
async def scene(world: World) -> AsyncIterator[Scene]:
    ops = Receiver()
    async with sending(world, {"ops": ops}) as sender:
        yield Scene(world, sender, ops)


async def test_message_is_sent_once_and_recorded(scene: Scene) -> None:
    await scene.raise_("report")
    assert scene.ops.sent == []
    await scene.passes(WINDOW)
    await scene.passes(60)
    [sent] = scene.ops.sent
    assert (sent.job, sent.kind, sent.channel, sent.others) == ("report", Kind.FAILED, "ops", 0)
    assert sent.url == "https://tocsin.example.com/jobs/report"
    assert [type(fact) for fact in await facts(scene.world)] == [
        NotificationRaised,
        NotificationPrepared,
        NotificationDelivered,
    ]
    assert scene.sender.backlog.oldest is None


async def test_many_failures_become_one_message(scene: Scene) -> None:
    await scene.raise_(*(f"job-{number}" for number in range(40)))
    await scene.passes(WINDOW)
    [sent] = scene.ops.sent
    assert (sent.job, sent.others) == ("job-0", 39)
    assert sent.other_jobs == ("job-1", "job-2", "job-3", "job-4", "job-5")
    assert scene.sender.backlog.oldest is None


@pytest.mark.usefixtures("restored_logging")
async def test_lines_of_a_group_name_its_executions(scene: Scene) -> None:
    stream = io.StringIO()
    telemetry.configure("debug", "json", stream=stream)
    scene.ops.refusal = ChannelRefused("status 503", retryable=True)
    await scene.raise_("job-0", "job-1", "job-2", of_runs=True)
    await scene.passes(WINDOW)
    scene.ops.refusal = None
    await scene.passes(60)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    lines = [line for line in lines if line["logger"] in {"tocsin.decisions", "tocsin.notifier"}]
    ways = {
        job: [line.get("outcome", line["action"]) for line in lines if line.get("execution_id") == f"run of {job}"]
        for job in ("job-0", "job-1", "job-2")
    }
    refused, accepted = ["notification-not-accepted", "attempt-failed"], ["delivered", "notification-delivered"]
    assert ways["job-0"] == ["raised", "prepared", *refused, *accepted]
    assert ways["job-1"] == ways["job-2"] == ["raised", "prepared", "attempt-failed", "delivered"]
    [message] = {line["id"] for line in lines if line["action"] == "prepared"}
    assert {line["message"] for line in lines if line["action"] == "notification-grouped"} == {message}


@pytest.mark.usefixtures("restored_logging")
async def test_each_outcome_has_a_line_at_info(scene: Scene) -> None:
    stream = io.StringIO()
    telemetry.configure("info", "json", stream=stream)
    silence = await Silences(scene.world.log, scene.world.clock).start(job="quiet", tag=None, seconds=60, reason="test")
    await settle()
    await scene.raise_("report", "load", "quiet", of_runs=True)
    await scene.passes(WINDOW)
    await scene.passes(60)
    lines = [line for line in map(json.loads, stream.getvalue().splitlines()) if "notification" in line]
    silenced, delivered = sorted(lines, key=lambda line: str(line["action"]), reverse=True)
    assert {line["level"] for line in lines} == {"info"}
    assert {line["channel"] for line in lines} == {"ops"}
    assert (delivered["action"], delivered["execution_id"]) == ("notification-delivered", "run of report")
    assert (delivered["attempt"], delivered["others"]) == (1, 1)
    assert (silenced["action"], silenced["execution_id"]) == ("notification-silenced", "run of quiet")
    assert silenced["silence"] == silence.id


@pytest.mark.full
async def test_storm_of_a_minute_becomes_few_messages(world: World) -> None:
    """2,000 executions of 200 jobs fail within a minute, and the receiver accepts everything."""
    ops = Receiver()
    jobs = [f"job-{number}" for number in range(200)]
    for job in jobs:
        await world.define({"name": job, "function": "f", "notify": {"channels": "ops", "on_failure": True}})
    for job in jobs:
        await world.trigger(job, job)
    await world.run(world.planner)
    admitted = {fact.job: fact for fact in await world.stored(Admitted)}
    async with sending(world, {"ops": ops}) as sender:
        for second in range(60):
            for number in range(second * 2_000 // 60, (second + 1) * 2_000 // 60):
                first = admitted[jobs[number % len(jobs)]].changed(execution_id=f"run-{number}")
                end = Failed(
                    job=first.job,
                    execution_id=first.execution_id,
                    scheduled_time=first.scheduled_time,
                    trigger=first.trigger,
                )
                await world.given(first, end)
            await world.run(world.notifier)
            for _ in range(2):
                world.clock.advance(0.5)
                await settle()
        await Scene(world, sender, ops).passes(2 * WINDOW)
        assert sender.backlog.oldest is None
    assert len(await raised(world)) == 2_000
    assert sum(1 + sent.others for sent in ops.sent) == 2_000
    assert len({sent.id for sent in ops.sent}) == len(ops.sent) <= 60 / WINDOW + 2


async def test_receiver_gets_the_message_after_an_hour_down(scene: Scene) -> None:
    scene.ops.refusal = ChannelRefused("status 503", retryable=True)
    await scene.raise_("report")
    await scene.passes(3_600)
    tried = len(scene.ops.sent)
    assert 5 < tried < 20
    scene.ops.refusal = None
    await scene.passes(1_000)
    assert len({sent.id for sent in scene.ops.sent}) == 1
    stored = await facts(scene.world)
    assert isinstance(stored[-1], NotificationDelivered)
    assert stored[-1].attempt == tried + 1
    failures = [fact for fact in stored if isinstance(fact, NotificationAttemptFailed)]
    assert [fact.attempt for fact in failures] == list(range(1, tried + 1))
    assert failures[0].error == "status 503"


async def test_storm_with_a_dead_receiver_stays_few_messages(scene: Scene) -> None:
    scene.ops.refusal = ChannelRefused("status 503", retryable=True)
    for _ in range(20):
        await scene.raise_(*["report"] * 25)
        await scene.passes(60)
    scene.ops.refusal = None
    before = len(scene.ops.sent)
    await scene.passes(3_600)
    delivered = scene.ops.sent[before:]
    assert len(delivered) <= 6
    assert sum(1 + sent.others for sent in delivered) == 500


async def test_message_is_given_up_after_a_day(scene: Scene) -> None:
    scene.ops.refusal = ChannelRefused("status 503", retryable=True)
    await scene.raise_("report")
    await scene.passes(GIVE_UP_AFTER.total_seconds() + 3_600)
    stored = await facts(scene.world)
    assert isinstance(stored[-1], NotificationAbandoned)
    assert stored[-1].error == "status 503"
    before = len(scene.ops.sent)
    await scene.passes(7_200)
    assert len(scene.ops.sent) == before


async def test_group_is_sent_until_its_newest_is_old(scene: Scene) -> None:
    scene.ops.refusal = ChannelRefused("status 503", retryable=True)
    for number in range(6):  # of which the first four are messages of their own
        await scene.raise_(f"early-{number}")
        await scene.passes(WINDOW + 1)
    await scene.passes(GIVE_UP_AFTER.total_seconds() - 1_800)
    await scene.raise_("new")
    await scene.passes(7_200)
    scene.ops.refusal = None
    before = len(scene.ops.sent)
    await scene.passes(3_600)
    [delivered] = scene.ops.sent[before:]
    assert (delivered.job, delivered.other_jobs) == ("early-4", ("early-5", "new"))


async def test_receiver_names_the_time_to_wait(scene: Scene) -> None:
    scene.ops.refusal = ChannelRefused("status 429", retryable=True, retry_after=600)
    await scene.raise_("report")
    await scene.passes(WINDOW)
    await scene.passes(580)
    assert len(scene.ops.sent) == 1
    await scene.passes(30)
    assert len(scene.ops.sent) == 2


async def test_refusal_for_good_is_not_sent_again(scene: Scene) -> None:
    scene.ops.refusal = ChannelRefused("status 404", retryable=False)
    await scene.raise_("report")
    await scene.passes(3_600)
    assert len(scene.ops.sent) == 1
    assert isinstance((await facts(scene.world))[-1], NotificationAbandoned)


async def test_unexpected_error_of_a_channel_shows_no_text(scene: Scene) -> None:
    scene.ops.refusal = ValueError("https://user:secret@example.com")
    await scene.raise_("report")
    await scene.passes(WINDOW)
    [failure] = [fact for fact in await facts(scene.world) if isinstance(fact, NotificationAttemptFailed)]
    assert failure.error == "ValueError"


async def test_outcomes_are_counted_by_channel(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counter[tuple[str, str]]()

    def add(number: int, labels: Mapping[str, str]) -> None:
        counted[labels["channel"], labels["outcome"]] += number

    monkeypatch.setattr(sender_module, "_counter", SimpleNamespace(add=add))
    ops = Receiver()
    ops.refusal = ChannelRefused("status 503", retryable=True)
    async with sending(world, {"ops": ops}) as it:
        assert dict(counted) == {
            (channel, outcome): 0
            for channel in ("ops", "(none)")
            for outcome in ("delivered", "attempt-failed", "abandoned", "silenced")
        }
        scene = Scene(world, it, ops)
        await Silences(world.log, world.clock).start(job="quiet", tag=None, seconds=60, reason="test")
        await settle()
        await scene.raise_("report", "quiet")
        await scene.raise_("lost", channel="gone")
        await scene.passes(WINDOW)
        ops.refusal = None
        await scene.passes(600)
    assert {key: number for key, number in counted.items() if number} == {
        ("ops", "attempt-failed"): 1,
        ("ops", "delivered"): 1,
        ("ops", "silenced"): 1,
        ("(none)", "abandoned"): 1,
    }


async def test_channel_that_the_settings_lack_is_given_up(scene: Scene) -> None:
    await scene.raise_("report", channel="gone")
    await scene.passes(1)
    stored = await facts(scene.world)
    assert isinstance(stored[-1], NotificationAbandoned)
    assert stored[-1].error == "the settings have no channel gone"


async def test_end_is_stored_once_before_it_arrives(world: World) -> None:
    sender = Sender(world.log, world.projections, world.elect("notifier"), world.clock, {}, window=WINDOW)
    raised = NotificationRaised(job="report", id="n", channel="gone", kind=Kind.FAILED, at=world.clock.now())
    await world.given(raised)
    for recorded in await world.log.read("notification.>"):
        sender.backlog.learn(recorded)
    assert sender.backlog.oldest is not None
    for _ in range(2):
        await sender.run_once(world.clock.now())
        assert sender.backlog.oldest is None
    assert [type(fact) for fact in await facts(world)] == [NotificationRaised, NotificationAbandoned]


async def test_slow_channel_holds_up_no_other(world: World) -> None:
    class Stuck(Receiver):
        async def send(self, notification: Notification) -> None:
            self.sent.append(notification)
            await asyncio.Event().wait()

    stuck, ops = Stuck(), Receiver()
    async with sending(world, {"stuck": stuck, "ops": ops}) as sender:
        scene = Scene(world, sender, ops)
        await scene.raise_("report", channel="stuck")
        await scene.raise_("report")
        await scene.passes(WINDOW)
        assert (len(stuck.sent), len(ops.sent)) == (1, 1)


async def test_crash_before_the_answer_sends_the_same_again(world: World) -> None:
    ops = Receiver()

    append = world.log.append

    async def lost(fact: Message, *, expect: int) -> int:
        if isinstance(fact, NotificationDelivered):
            raise LogUnavailable("the process is killed before")
        return await append(fact, expect=expect)

    async with sending(world, {"ops": ops}) as sender:
        scene = Scene(world, sender, ops)
        await scene.raise_("report", "load")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.log, "append", lost)
            await scene_passes_once(world)
    assert len(ops.sent) == 1
    async with sending(world, {"ops": ops}) as sender:
        scene = Scene(world, sender, ops)
        await scene.passes(30)
        await scene.raise_("third")
        await scene.passes(30)
    first, again, third = ops.sent
    assert first == again
    assert (first.others, third.job) == (1, "third")


async def scene_passes_once(world: World) -> None:
    """Let a message be sent once."""
    world.clock.advance(WINDOW)
    for _ in range(3):
        world.clock.advance(0.5)
        await settle()


async def test_two_senders_send_what_one_does(world: World) -> None:
    ops = Receiver()
    async with sending(world, {"ops": ops}) as one, sending(world, {"ops": ops}) as two:
        for sender in (one, two):
            sender.leadership.time = _always(world)  # type: ignore[method-assign]
        scene = Scene(world, one, ops)
        await scene.raise_("report", "load")
        await scene.passes(60)
        assert {sent.id for sent in ops.sent} == {ops.sent[0].id}
        assert one.backlog.oldest is None
        assert two.backlog.oldest is None


def _always(world: World) -> Callable[[], Coroutine[Any, Any, datetime | None]]:
    async def time() -> datetime | None:
        return world.clock.now()

    return time


async def drop(world: World, *kinds: str) -> None:
    """Let the stream drop events of all notifications, as if it was full."""
    stream = world.log.stream(Stream.NOTIFICATIONS)
    for kind in kinds:
        for recorded in await world.log.read(f"notification.*.*.{kind}"):
            stream.remove(recorded.sequence)


@pytest.mark.parametrize("kinds", [("raised",), ("raised", "prepared")])
async def test_dropped_notification_holds_up_no_other(scene: Scene, kinds: tuple[str, ...]) -> None:
    scene.ops.refusal = ChannelRefused("status 503", retryable=True)
    await scene.raise_("sent")
    await scene.passes(WINDOW)
    await scene.raise_("waits")
    await drop(scene.world, *kinds)
    await scene.passes(60)
    scene.ops.refusal = None
    await scene.raise_("report")
    await scene.passes(60)
    assert scene.ops.sent[-1].job == "report"
    assert scene.sender.backlog.oldest is None


async def test_storm_that_the_stream_dropped_delays_no_other(scene: Scene) -> None:
    scene.ops.refusal = ChannelRefused("status 503", retryable=True)
    for number in range(MAX_OPEN):
        await scene.raise_(f"sent-{number}")
        await scene.passes(WINDOW)
    await scene.raise_(*(f"waits-{number}" for number in range(200)))
    await scene.raise_("report")
    stream = scene.world.log.stream(Stream.NOTIFICATIONS)
    for recorded in (await scene.world.log.read("notification.>"))[:-1]:
        stream.remove(recorded.sequence)
    scene.ops.refusal = None
    await scene.passes(TRIM_S)
    await scene.passes(TRIM_S)
    assert scene.ops.sent[-1].job == "report"
    assert scene.sender.backlog.oldest is None


async def test_message_of_another_leader_frees_the_lane(world: World) -> None:
    backlog = Backlog()
    first, second = (
        NotificationRaised(job=job, id=job, channel="ops", kind=Kind.FAILED, at=world.clock.now()) for job in ("a", "b")
    )
    prepared = NotificationPrepared(job="a", id="a", channel="ops", through=2, others=1, other_jobs=("b",))
    late = NotificationPrepared(job="b", id="b", channel="ops", through=2)
    stored = [
        Recorded(fact, subjects.subject_of(fact), sequence, world.clock.now())
        for sequence, fact in enumerate((first, second, prepared, late), start=1)
    ]
    for recorded in stored[:2]:
        backlog.learn(recorded)
    [lane] = backlog.lanes.values()
    lane.preparing = "b"
    for recorded in stored[2:]:
        backlog.learn(recorded)
    [after] = backlog.lanes.values()
    assert after.preparing is None
    assert [*after.messages] == ["a"]


async def test_silenced_notification_is_recorded_and_not_sent(scene: Scene) -> None:
    by = Actor(identity="ada", kind="user")
    silences = Silences(scene.world.log, scene.world.clock)
    silence = await silences.start(job="report", tag=None, seconds=3_600, reason="the database moves", by=by)
    await settle()
    await scene.raise_("report", "load", "report")
    await scene.passes(60)
    [sent] = scene.ops.sent
    assert (sent.job, sent.others) == ("load", 0)
    silenced = [fact for fact in await facts(scene.world) if isinstance(fact, NotificationSilenced)]
    assert [(fact.job, fact.silence, fact.by, fact.reason) for fact in silenced] == [
        ("report", silence.id, by, "the database moves")
    ] * 2
    await scene.passes(3_600)
    await scene.raise_("report")
    await scene.passes(60)
    assert [sent.job for sent in scene.ops.sent] == ["load", "report"]


async def test_silence_covers_what_waits_for_its_message(scene: Scene) -> None:
    silences = Silences(scene.world.log, scene.world.clock)
    await scene.raise_("report")
    await scene.passes(WINDOW / 2)
    await silences.start(job="report", tag=None, seconds=60, reason="the database moves")
    await scene.passes(WINDOW)
    assert [type(fact) for fact in await facts(scene.world)] == [NotificationRaised, NotificationSilenced]
    await scene.passes(120)
    assert scene.ops.sent == []


async def test_failure_read_after_a_silence_is_sent(world: World) -> None:
    silences = Silences(world.log, world.clock)
    await silences.start(job="report", tag=None, seconds=60, reason="the database moves")
    fact = NotificationRaised(job="report", id="1", channel="ops", kind=Kind.FAILED, at=world.clock.now())
    await world.given(fact)
    world.clock.advance(120)  # no notifier ran meanwhile
    ops = Receiver()
    async with sending(world, {"ops": ops}) as sender:
        await Scene(world, sender, ops).passes(WINDOW)
    assert [sent.job for sent in ops.sent] == ["report"]


async def test_repeated_message_ignores_a_later_silence(scene: Scene) -> None:
    scene.ops.refusal = ChannelRefused("status 503", retryable=True)
    await scene.raise_("report")
    await scene.passes(WINDOW)
    await Silences(scene.world.log, scene.world.clock).start(job="report", tag=None, seconds=3_600, reason="moves")
    scene.ops.refusal = None
    await scene.passes(60)
    assert [type(fact) for fact in await facts(scene.world)][-1] is NotificationDelivered


async def test_silence_that_was_ended_covers_nothing(scene: Scene) -> None:
    silences = Silences(scene.world.log, scene.world.clock)
    silence = await silences.start(job=None, tag=None, seconds=3_600, reason="test")
    await silences.end(silence.id)
    await settle()
    await scene.raise_("report")
    await scene.passes(60)
    assert len(scene.ops.sent) == 1


async def test_foreign_message_hides_no_silence(world: World) -> None:
    await Silences(world.log, world.clock).start(job="report", tag=None, seconds=3_600, reason="test")
    world.log.receive("silences.notifications.silences-defined", b"{}")
    ops = Receiver()
    async with sending(world, {"ops": ops}) as sender:
        scene = Scene(world, sender, ops)
        await scene.raise_("report", "load")
        await scene.passes(60)
    assert [(sent.job, sent.others) for sent in ops.sent] == [("load", 0)]
