"""Events that this version cannot read or apply: each breaks its key and no other, until an operator sets it aside."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
import pytest

from tests.commits.processes import SEAL, Installation, Process, same_state
from tests.commits.test_poison import claimed, found, installed, of_log, trigger
from tests.commits.test_snapshots import rebuilt
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.commit import CommitEvent
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Completed, Defined, Dispatched, Due, Message, PoisonMessage, Skipped, Voided
from tocsin.domain.log_events import Poison
from tocsin.engine import fold
from tocsin.engine.broken_keys import PATIENCE, Broken, BrokenKey, StoredEvent
from tocsin.engine.fold import LEDGER
from tocsin.engine.kinds import EXECUTION
from tocsin.engine.waiting import MAX_OF_PUBLISHER
from tocsin.subjects import Stream

NEWER = b'{"v":9}'


async def store(installation: Installation, subject: str, body: bytes = NEWER) -> int:
    """Store an event as a stage of another version does; return its number."""
    reader = installation.process(())
    await reader.read_on()
    event = CommitEvent(subject, "other", "@", msgspec.Raw(body))
    await reader.writer.append(
        SEAL.write(reader.chain.head, writer="other", at=installation.clock.now(), taken={}, events=[event])
    )
    return reader.chain.head.number


def voided(subject: str, number: int, body: bytes = NEWER) -> Voided:
    stream, at = subjects.stream_of(subject), datetime.fromisoformat("2026-01-01T00:00:00Z")
    digest = subjects.digest_of(body)
    return Voided(stream=stream, sequence=number, subject=subject, stored_at=at, found="newer", digest=digest)


async def fresh(installation: Installation) -> Process:
    process = installation.process()
    await process.read_on()
    return process


@pytest.mark.parametrize(
    "subject",
    [
        "ledger.bad.defined",
        "ledger.bad.from-the-future",
        "lock.bad.from-the-future",
        "unique.bad.from-the-future",
        "from-the-future.bad",
        "cron.triggered.bad",
        "shards.from-the-future",
        "agent.bad.x.from-the-future",
        "x",
    ],
)
async def test_unreadable_event_stops_no_other_key(subject: str) -> None:
    installation = await installed("good")
    process = await fresh(installation)
    number = await store(installation, subject)
    trigger(installation, "good")
    await process.run()
    assert sum(scope.startswith("execution.good.") for scope in process.fold.states) == 1
    [broken] = [state for state in process.fold.states.values() if isinstance(state, Broken)]
    assert (broken.number, broken.since[0].subject) == (number, subject)
    assert same_state((await fresh(installation)).fold, process.fold)


async def test_decisions_on_a_broken_key_wait_alone() -> None:
    installation = await installed("bad", "good")
    number = await store(installation, "ledger.bad.paused")
    trigger(installation, "bad", "good", "bad")
    process = await fresh(installation)
    loads = list[None]()
    process.loop._reload = lambda: loads.append(None)  # type: ignore[assignment]
    await process.run()
    assert [task.job for task in await found(installation, Dispatched)] == ["good"]
    assert await found(installation, PoisonMessage) == []
    assert process.fold.position("planner", "REQUESTS").floor == 3
    assert loads == []  # a fresh fold would be broken too
    await installation.store(voided("ledger.bad.paused", number))
    other = await fresh(installation)  # it takes over
    await other.run()
    assert [task.job for task in await found(installation, Dispatched)] == ["good", "bad", "bad"]
    await process.read_on()
    assert same_state(process.fold, other.fold)


async def test_input_waiting_a_day_for_key_is_poison() -> None:
    installation = await installed("bad")
    await store(installation, "ledger.bad.paused")
    trigger(installation, "bad")
    process = await fresh(installation)
    await process.run()
    installation.clock.advance(PATIENCE.total_seconds() - 1)
    await process.run()
    assert await found(installation, PoisonMessage) == []
    installation.clock.advance(2)
    await process.run()
    [letter] = await found(installation, PoisonMessage)
    assert (letter.job, letter.sequence, letter.code) == ("bad", 1, "poison")
    [poison] = [one for one in await of_log(installation) if isinstance(one, Poison)]
    assert "ledger.bad.>: event 2 cannot be applied" in poison.error
    assert len(process.fold.waiting) == 0


async def test_flood_on_a_broken_key_waits_within_bounds() -> None:
    installation = await installed("bad", "good")
    await store(installation, "ledger.bad.paused")
    trigger(installation, *["bad"] * (MAX_OF_PUBLISHER + 5), "good")
    process = await fresh(installation)
    await process.run()
    assert len(process.fold.waiting) == MAX_OF_PUBLISHER
    assert len(await found(installation, PoisonMessage)) == 5
    assert [task.job for task in await found(installation, Dispatched)] == ["good"]


async def test_broken_jobs_instants_wait_and_others_fire() -> None:
    installation = await installed("bad", "good", schedule="* * * * * *")
    number = await store(installation, "ledger.bad.paused")
    process = await fresh(installation)
    installation.clock.advance(1)
    await process.run()
    assert {due.job for due in await found(installation, Due)} == {"good"}
    await installation.store(voided("ledger.bad.paused", number))
    await process.run()
    assert {due.job for due in await found(installation, Due)} == {"good", "bad"}
    assert not await found(installation, Skipped)


async def test_voided_event_is_omitted_and_later_events_count() -> None:
    installation = await installed("bad")
    process = await fresh(installation)
    number = await store(installation, "ledger.bad.paused")
    second = await store(installation, "ledger.bad.resumed")
    definition = JobDefinition.model_validate({"name": "bad", "function": "g", "overlap_policy": "allow"})
    await installation.store(Defined(job="bad", definition=definition))
    await installation.store(voided("ledger.bad.paused", number))
    await process.read_on()
    with pytest.raises(BrokenKey, match=f"event {second}"):
        process.fold.state(LEDGER, subjects.ledger("bad"))
    await installation.store(voided("ledger.bad.resumed", second))
    await process.read_on()
    assert process.fold.in_force("bad") == (definition, second + 1)
    assert same_state((await fresh(installation)).fold, process.fold)
    trigger(installation, "bad")
    await process.run()
    [task] = await found(installation, Dispatched)
    assert task.function == "g"


async def test_event_about_another_body_sets_nothing_aside() -> None:
    installation = await installed("bad")
    process = await fresh(installation)
    number = await store(installation, "ledger.bad.paused")
    await installation.store(voided("ledger.bad.paused", number, b"other"), voided("ledger.bad.paused", number - 1))
    await process.read_on()
    assert isinstance(process.fold.states[subjects.ledger("bad")], Broken)


async def test_execution_is_cancelled_with_its_unreadable_event() -> None:
    """Both are one commit, so that its lock is free and no step runs again."""
    installation = await installed("bad", overlap_policy="enqueue")
    trigger(installation, "bad", "bad")
    process = await fresh(installation)
    await process.run()
    [task] = await found(installation, Dispatched)
    job, execution_id = task.job, task.execution_id
    subject = f"execution.{job}.{execution_id}.completed"
    cancelled = execution.cancel(process.fold.state(EXECUTION, subjects.execution(job, execution_id)))
    number = await store(installation, subject)
    await process.run()
    assert len(await found(installation, Dispatched)) == 1
    await installation.store(*cancelled, voided(subject, number))
    await process.run()
    assert len(await found(installation, Dispatched)) == 2
    assert await found(installation, PoisonMessage) == []
    assert same_state((await fresh(installation)).fold, process.fold)


async def test_report_on_a_broken_execution_waits() -> None:
    installation = await installed("bad", "good")
    trigger(installation, "bad")
    process = await fresh(installation)
    report = await claimed(installation, process)
    subject = f"execution.bad.{report[0].execution_id}.from-the-future"
    number = await store(installation, subject)
    installation.publish(Stream.REPORTS, *report)
    await process.run()
    assert await found(installation, Completed) == []
    await installation.store(voided(subject, number))
    await process.run()
    assert len(await found(installation, Completed)) == 1
    assert await found(installation, PoisonMessage) == []


async def test_snapshot_keeps_a_broken_key_until_its_repair() -> None:
    installation = await installed("bad", "good")
    trigger(installation, "bad")
    process = await fresh(installation)
    await process.run()
    [scope] = [scope for scope in process.fold.states if scope.startswith("execution.bad")]
    subject = f"execution.bad.{scope.split('.')[2]}.from-the-future"
    number = await store(installation, subject)
    ledger_number = await store(installation, "ledger.bad.from-the-future")
    new = await store(installation, "ledger.new.from-the-future")
    await process.read_on()
    loaded = rebuilt(process.fold, installation.clock.now())
    assert same_state(loaded, process.fold)
    for one in (loaded, process.fold):
        for place, name in (
            (number, subject),
            (ledger_number, "ledger.bad.from-the-future"),
            (new, "ledger.new.from-the-future"),
        ):
            recorded: Any = StoredEvent(
                100 + place, f"repair.X.{place}.voided", installation.clock.now(), raw(voided(name, place))
            )
            one.take_event(recorded)
        assert not any(isinstance(state, Broken) for state in one.states.values())
        assert one.state(EXECUTION, scope).steps
        assert subjects.ledger("new") not in one.states
    assert same_state(loaded, process.fold)


def raw(message: Message) -> msgspec.Raw:
    return msgspec.Raw(message.encode())


async def test_newer_version_that_reads_the_event_restores_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot was written by an older version."""
    installation = await installed("bad")
    process = await fresh(installation)
    await installation.store(Defined(job="bad", definition=JobDefinition(name="bad", function="newer")))
    with monkeypatch.context() as older:
        older.setattr("tocsin.engine.broken_keys.StoredEvent.read", unreadable("bad"))
        await process.read_on()
    assert isinstance(process.fold.states[subjects.ledger("bad")], Broken)
    in_force = rebuilt(process.fold, installation.clock.now()).in_force("bad")
    assert in_force is not None
    assert in_force[0].function == "newer"


def unreadable(job: str) -> Any:  # noqa: ANN401 - a method
    def read(event: StoredEvent) -> Any:  # noqa: ANN401 - as above
        raise subjects.DecodeError(f"{event.subject}: {job}")

    return read


async def test_decision_with_an_inapplicable_event_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision has a defect, which does not break the key for all processes."""
    installation = await installed("bad", "good")
    trigger(installation, "bad", "good")

    def refuse(state: Any, recorded: Any) -> Any:  # noqa: ANN401 - of an execution
        if isinstance(recorded.message, Dispatched) and recorded.message.job == "bad":
            raise ValueError("no")
        return EXECUTION.evolve(state, recorded)

    monkeypatch.setitem(fold.KINDS, "execution", replace(EXECUTION, evolve=refuse))
    process = await fresh(installation)
    await process.run()
    assert [task.job for task in await found(installation, Dispatched)] == ["good"]
    assert [letter.job for letter in await found(installation, PoisonMessage)] == ["bad"]
    assert not any(isinstance(state, Broken) for state in process.fold.states.values())
