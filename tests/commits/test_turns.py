"""Shares of a commit: floods of one kind or job delay no other."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.commits.processes import NAMES, Installation, Process
from tests.domain.given import KEY
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import CancelRequest, Defined, Message, Recorded, Report, Trigger
from tocsin.domain.events.message import validated
from tocsin.engine import commit_loop, intake
from tocsin.engine import turns as turns_
from tocsin.engine.causes import Agenda, MessageCause
from tocsin.engine.change_requests import REGISTRAR
from tocsin.engine.fold import Fold
from tocsin.engine.intake import Intake
from tocsin.engine.kinds import QUEUE
from tocsin.engine.stage import BoundDeadlineRule, BoundStage, Deadline
from tocsin.engine.turns import AWAITED_FOR, SHARES, AwaitedChanges, Kind, Turns
from tocsin.subjects import Stream
from tocsin.testing import ManualClock

FLOOD = 12_000
START = ManualClock().now()


@pytest.fixture(autouse=True)
def _no_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit ends by its numbers alone, so that a busy machine changes nothing."""
    monkeypatch.setattr(commit_loop, "MAX_DECIDING_S", 1e9)


async def given(*jobs: dict[str, Any]) -> Installation:
    installation = Installation()
    definitions = [JobDefinition.model_validate({"function": "f", "overlap_policy": "allow", **job}) for job in jobs]
    await installation.store(*(Defined(job=job.name, definition=job) for job in definitions))
    return installation


def flood(installation: Installation, job: str, number: int = FLOOD) -> None:
    for index in range(number):
        installation.publish(Stream.REQUESTS, Trigger(), subjects.trigger(job), f"{job}-{index}")


async def scopes(installation: Installation, kind: str) -> list[str]:
    return [scope for scope in await installation.by_scope() if scope.startswith(kind)]


def test_earlier_deadline_of_changed_state_is_kept() -> None:
    def of(state: object) -> list[Deadline]:
        return [Deadline(state)] if isinstance(state, datetime) else []

    decide: Any = None
    stage = BoundStage("one", deadlines=(BoundDeadlineRule(QUEUE, of, decide),))
    fold: Any = Fold()
    agenda, scope, now = Agenda([stage], fold), "queue.default.>", START + timedelta(hours=1)
    fold.states[scope] = START + timedelta(seconds=2)
    agenda.note([scope])
    assert agenda.next_due(START) is None
    fold.states[scope] = START + timedelta(seconds=1)
    agenda.note([scope])
    agenda._find_at = now + timedelta(seconds=1)  # while other decisions are made
    alarm = agenda.next_due(now)
    assert alarm is not None
    assert alarm.deadline.at == START + timedelta(seconds=1)


def test_alarm_of_left_state_ends_with_new_lead() -> None:
    decide: Any = None
    rule = BoundDeadlineRule(QUEUE, lambda state: [Deadline(START)] if state is START else [], decide)
    fold: Any = Fold()
    agenda = Agenda([BoundStage("one", deadlines=(rule,))], fold)
    fold.states["queue.a.>"] = fold.states["queue.b.>"] = START
    agenda.note_all()
    assert agenda.find()
    agenda.led = frozenset()
    del fold.states["queue.a.>"]
    agenda.note(["queue.a.>"])
    assert not agenda.find()
    agenda.led = frozenset({"one"})
    agenda.note_all()
    assert agenda.find()
    assert {alarm.scope for alarm in agenda.alarms("one", "")} == {"queue.b.>"}


async def test_first_commit_after_a_flood_triggers_another_job() -> None:
    installation = await given({"name": "flood"}, {"name": "other"})
    flood(installation, "flood")
    flood(installation, "other", 1)
    process = installation.process()
    await process.read_on()
    assert await process.loop.run_once()
    assert len(await scopes(installation, "execution.other.")) == 1
    assert len(await scopes(installation, "execution.flood.")) > 100


async def test_flood_is_taken_whole_and_once() -> None:
    installation = await given({"name": "flood"}, {"name": "other"})
    flood(installation, "flood", 3_000)
    flood(installation, "other", 3)
    await installation.process().run()
    assert len(await scopes(installation, "execution.")) == 3_003
    fresh = installation.process()
    await fresh.read_on()
    assert fresh.fold.position("planner", "REQUESTS").floor == 3_003
    assert not await fresh.run()


def junk(number: int) -> tuple[Report, str]:
    report = validated(
        Report,
        {
            "job": "flood",
            "execution_id": f"e{number}",
            "outcome": "completed",
            "step": "main",
            "attempt": 1,
            "delivery": 1,
            "token": "",
            "claim": 1,
            "proof": ids.claim_proof(KEY, f"e{number}", "main", 1, 1),
        },
    )
    return report, subjects.subject_of(report)


async def test_reports_do_not_stop_instants() -> None:
    installation = await given({"name": "tick", "schedule": "* * * * * *"})
    process = installation.process()
    await process.run()
    for number in range(5_000):
        installation.publish(Stream.REPORTS, *junk(number))
    installation.clock.advance(1)
    await process.read_on()
    assert await process.loop.run_once()
    assert len(await scopes(installation, "execution.tick.")) == 1
    position = process.fold.position("dag_advancer", "REPORTS")
    assert 0 < position.floor < 1_000


async def test_operators_request_does_not_wait_for_triggers() -> None:
    installation = await given({"name": "flood"})
    flood(installation, "flood", 1)
    process = installation.process()
    await process.run()
    [scope] = await scopes(installation, "execution.flood.")
    flood(installation, "flood")
    execution_id = scope.split(".")[2]
    installation.publish(Stream.REQUESTS, CancelRequest(), subjects.cancel("flood", execution_id), "cancel")
    await process.read_on()
    assert await process.loop.run_once()
    assert "cancelled" in (await installation.by_scope())[scope]


async def test_pause_is_stored_before_a_flood_of_triggers() -> None:
    installation = await given({"name": "flood", "schedule": "* * * * * *"})
    flood(installation, "flood")
    process = installation.process()
    await process.read_on()
    paused = JobDefinition.model_validate({"name": "flood", "function": "f", "enabled": False})
    ledger = process.fold.numbers[subjects.ledger("flood")]
    stored = process.loop.propose("api", [Defined(job="flood", definition=paused)], expect=ledger)
    assert await process.loop.run_once()
    assert stored.result()[0] <= ledger + 2


class _Stage:
    def __init__(self, name: str) -> None:
        self.name = name


STAGE: Any = _Stage("planner")


def call(stream: Stream, subject: str, place: int, message: Message | None = None, *, after: float = 0) -> MessageCause:
    recorded = Recorded(message or Trigger(), subject, place, START + timedelta(seconds=after))
    return MessageCause(STAGE, None, stream.value, place, recorded)  # type: ignore[arg-type] # it is not decided


def order(turns: Turns, number: int) -> list[str]:
    calls = (turns.next(lambda: None) for _ in range(number))
    return [found.recorded.subject for found in calls if isinstance(found, MessageCause)]


def test_classes_have_their_shares() -> None:
    turns = Turns()
    for place in range(1, 101):
        turns.add(call(Stream.REPORTS, f"report.a.{place}.completed", place))
        turns.add(call(Stream.REQUESTS, f"cancel.a.{place}", place))
        turns.add(call(Stream.REQUESTS, "trigger.a", place))
    deadline: Any = object()
    found = [turns.next(lambda: deadline) for _ in range(80)]
    kinds = [
        Kind.TIMES
        if one is deadline
        else {"r": Kind.REPORTS, "c": Kind.OPERATORS, "t": Kind.RUNS}[one.recorded.subject[0]]  # type: ignore[union-attr]
        for one in found
    ]
    assert {kind: kinds.count(kind) for kind in Kind} == {kind: 10 * share for kind, share in SHARES.items()}
    assert set(kinds[:8]) == set(Kind)


def test_idle_class_of_inputs_has_no_saved_turns() -> None:
    turns = Turns()
    for place in range(1, 1_001):
        turns.add(call(Stream.REPORTS, f"report.a.{place}.completed", place))
    order(turns, 500)
    for place in range(1, 101):
        turns.add(call(Stream.REQUESTS, "trigger.a", place))
    assert sum(subject.startswith("trigger") for subject in order(turns, 50)) in {10, 11}


def test_publishers_take_turns_and_jobs_within_them() -> None:
    turns = Turns()
    for place in range(1, 4):
        turns.add(call(Stream.REQUESTS, "trigger.a", place))
        turns.add(call(Stream.REQUESTS, "trigger.b", 10 + place))
        turns.add(call(Stream.INPUTS, "outside.one.trigger.c", place))
    assert order(turns, 6) == [
        *("trigger.a", "outside.one.trigger.c", "trigger.b"),
        *("outside.one.trigger.c", "trigger.a", "outside.one.trigger.c"),
    ]


@pytest.mark.parametrize("subject", ["outside.one.trigger.a", "enqueue.a.x", "outside.one.cancel.a.x"])
def test_job_definition_stored_before_goes_first(subject: str) -> None:
    turns = Turns()
    turns.add(call(Stream.INPUTS, subject, 1, after=2))
    turns.add(call(Stream.REQUESTS, "change.b", 1, after=0))
    turns.add(call(Stream.REQUESTS, "change.a", 2, after=1))
    turns.add(call(Stream.REQUESTS, "change.a", 3, after=3))
    turns._had[Kind.RUNS] = True
    turns._due[Kind.OPERATORS] = 0.0 if "cancel" in subject else 100.0
    found = order(turns, 4)
    first, own = found.index("change.a"), found.index(subject)
    assert first < own < found.index("change.a", first + 1)


def test_definitions_of_a_job_go_before_its_deadline() -> None:
    turns = Turns()
    for place in (1, 2):
        turns.add(call(Stream.REQUESTS, "change.a", place))
    deadline: Any = type("Due", (), {"scope": "ledger.a.>"})()
    turns._due[Kind.OPERATORS] = 100.0
    turns._had[Kind.OPERATORS] = True
    found = [turns.next(lambda: deadline) for _ in range(3)]
    assert [one is deadline for one in found] == [False, False, True]


def test_only_operators_and_reports_get_turns_during_reading() -> None:
    turns = Turns()
    turns.add(call(Stream.REQUESTS, "trigger.a", 1))
    turns.add(call(Stream.REQUESTS, "cancel.a.x", 2))
    deadline: Any = object()
    found = turns.next(lambda: deadline, is_reading=True)
    assert isinstance(found, MessageCause)
    assert found.place == 2
    assert turns.next(lambda: deadline, is_reading=True) is None
    assert turns.next(lambda: None) is not None


def test_undone_messages_come_first_again() -> None:
    turns = Turns()
    for place in range(1, 4):
        turns.add(call(Stream.REQUESTS, "trigger.a", place))
        turns.add(call(Stream.REQUESTS, "trigger.b", 10 + place))
    calls = [turns.next(lambda: None) for _ in range(4)]
    turns.put_back(found for found in calls if isinstance(found, MessageCause))
    assert [turns.next(lambda: None) for _ in range(4)] == calls


def test_messages_wait_for_older_changes_of_their_jobs() -> None:
    awaited, later = AwaitedChanges(), START + timedelta(seconds=1)
    for sequence, job in ((2, "a"), (3, "b"), (9, "a")):
        awaited.add(job, sequence, START, START)
        awaited.add(job, sequence, START, later)  # it is read again
    older, *newer = (call(Stream.REQUESTS, "trigger.a", place) for place in (1, 5, 4))
    assert not awaited.holds("a", older)
    assert not awaited.holds("c", older)
    assert all(awaited.holds("a", one) for one in newer)
    assert awaited.holds("b", other := call(Stream.INPUTS, "public.trigger.b", 1))
    assert awaited.end(lambda sequence, _: sequence == 3) == [other]  # the registrar takes jobs in turns
    assert awaited.end(lambda sequence, _: sequence == 2) == newer[::-1]
    assert not awaited.holds("a", newer[0])
    assert awaited.is_before("a", START)
    assert not awaited.is_before("a", START - timedelta(seconds=1))  # a deadline that was due before
    assert awaited.until == START + AWAITED_FOR
    assert not awaited.end()
    assert awaited.until is None


def test_number_of_awaited_changes_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_, "MAX_AWAITED", 2)
    awaited = AwaitedChanges()
    for sequence in range(1, 4):
        awaited.add(f"j{sequence}", sequence, START, START)
    assert [awaited.is_before(f"j{sequence}", START) for sequence in range(1, 4)] == [True, True, False]


@pytest.mark.parametrize("gains", [False, True])
async def test_change_of_another_leader_holds_its_job(gains: bool) -> None:  # noqa: FBT001
    installation = await given({"name": "a"})
    process: Process = installation.process(NAMES)
    await process.read_on()
    loop, now = process.loop, installation.clock.now()
    loop.offer(Stream.REQUESTS, Recorded(Trigger(), "change.a.id", 1, now))
    loop.offer(Stream.REQUESTS, Recorded(Trigger(), subjects.trigger("a"), 2, now))
    assert not await loop.run_once()
    loop.pending.lead(loop.agenda.led | ({REGISTRAR} if gains else {"other"}), now)
    await loop.run_once()
    assert bool(await scopes(installation, "execution.a.")) is gains


async def test_held_messages_make_no_crowded_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_RANGES", 40)
    monkeypatch.setattr(intake, "MAX_MORE_RANGES", 20)
    monkeypatch.setattr(commit_loop, "MAX_INPUTS", 10)
    installation = await given({"name": "a"}, {"name": "b"})
    process: Process = installation.process(NAMES)
    process.loop._max_inputs = 10
    await process.read_on()
    now = installation.clock.now()
    process.loop.offer(Stream.REQUESTS, Recorded(Trigger(), "change.a.id", 1, now))
    for place in range(2, 400):
        process.loop.offer(
            Stream.REQUESTS, Recorded(Trigger(), subjects.trigger("ab"[place % 2]), place, now, f"m{place}")
        )
    while await process.loop.run_once():
        assert len(process.fold.position("planner", "REQUESTS").above) <= 40


async def test_reader_waits_while_too_much_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_INPUTS", 10)
    monkeypatch.setattr(intake, "MAX_BYTES", 100)
    floor = 0
    ahead = Intake(lambda _: floor)
    for sequence in range(2, 11, 2):
        assert ahead.has_room(Stream.REQUESTS)
        ahead.note(Stream.REQUESTS, sequence, 2, 2)
    waiting = asyncio.ensure_future(ahead.room(Stream.REQUESTS))
    await asyncio.sleep(0)
    assert not waiting.done()
    floor = 5
    ahead.free()
    await asyncio.wait_for(waiting, 5)
    ahead.note(Stream.REQUESTS, 11, 1, 100)
    assert not ahead.has_room(Stream.REQUESTS)
    assert ahead.has_room(Stream.REPORTS)


async def test_oldest_inputs_go_first_with_many_position_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_RANGES", 40)
    monkeypatch.setattr(intake, "MAX_MORE_RANGES", 20)
    monkeypatch.setattr(commit_loop, "MAX_INPUTS", 10)
    jobs = [f"j{number}" for number in range(200)]
    installation = await given({"name": "flood"}, *({"name": name} for name in jobs))
    for name in jobs:  # each of these, taken in its turn, is a range of its own
        for index in range(5):
            installation.publish(Stream.REQUESTS, Trigger(), subjects.trigger("flood"), f"{name}-{index}")
        flood(installation, name, 1)
    process = installation.process()
    process.loop._max_inputs = 10
    await process.read_on()
    most = 0
    while await process.loop.run_once():
        most = max(most, len(process.fold.position("planner", "REQUESTS").above))
    assert 20 < most <= 40
    assert process.fold.position("planner", "REQUESTS").floor == 1_200
    assert len(await scopes(installation, "execution.")) == 1_200


async def test_new_leader_reads_all_requests_before_instants() -> None:
    installation = await given({"name": "tick", "schedule": "* * * * * *"})
    process: Process = installation.process(NAMES)
    await process.read_on()
    process.loop.intake.read_to({Stream.REQUESTS: 7})
    installation.clock.advance(3)
    assert not await process.loop.run_once()
    process.loop.intake.note_read(Stream.REQUESTS, 7)
    assert await process.loop.run_once()
    assert len(await scopes(installation, "execution.tick.")) > 0


@pytest.mark.parametrize("behind_s", [0, 5])
async def test_new_leader_sleeps_while_it_reads_requests(monkeypatch: pytest.MonkeyPatch, behind_s: int) -> None:
    """The clock of the machine may be behind that of the log."""
    installation = await given({"name": "tick", "schedule": "* * * * * *"})
    process: Process = installation.process(NAMES)
    await process.read_on()
    loop, looks = process.loop, list[None]()

    async def ends() -> dict[Stream, int]:
        looks.append(None)
        return {Stream.REQUESTS: 7}

    monkeypatch.setattr(loop, "_ends", ends)
    monkeypatch.setattr(loop, "_must_read", True)
    monkeypatch.setattr(loop, "run_once", counted := Counted(loop.run_once))
    installation.clock.advance(3)
    log_time = installation.clock.now() + timedelta(seconds=behind_s)

    async def time() -> datetime:
        return log_time

    monkeypatch.setattr(loop._leadership, "now", lambda: log_time)
    monkeypatch.setattr(loop._leadership, "time", time)
    running = asyncio.create_task(loop.run())
    for _ in range(300):
        await asyncio.sleep(0)
    running.cancel()
    assert len(looks) == 1
    assert counted.calls < 5


class Counted:
    def __init__(self, call: Callable[[], Awaitable[bool]]) -> None:
        self._call = call
        self.calls = 0

    async def __call__(self) -> bool:
        self.calls += 1
        return await self._call()


async def test_inputs_giving_nothing_are_taken_in_full_commits() -> None:
    installation = await given({"name": "flood"})
    for number in range(2_000):
        installation.publish(Stream.REPORTS, *junk(number))
    process = installation.process()
    await process.run()
    assert process.fold.position("dag_advancer", "REPORTS").floor >= 1_536
    assert len(await installation.commits()) == 1 + 3
