"""Claims: which worker may run a task."""

import asyncio

import pytest

from tests.domain.given import ID, JOB, KEY, NOON
from tests.worker.given import FUNCTION, Bench
from tocsin import Context, subjects
from tocsin.domain import execution
from tocsin.domain.events import (
    Cancelled,
    Completed,
    Dispatched,
    Lost,
    Message,
    Recorded,
    Recovered,
    Report,
    Started,
)
from tocsin.ports import LogUnavailable, SequenceConflict
from tocsin.testing import InMemoryEventLog, ManualClock
from tocsin.worker.held_tasks import HeldTask
from tocsin.worker.task_pool import _is_held


@pytest.fixture
def ran(bench: Bench) -> list[int]:
    """Return the deliveries that a handler ran."""
    deliveries: list[int] = []
    bench.handlers.add(FUNCTION, lambda context: deliveries.append(context.delivery))
    return deliveries


def started(task: Dispatched, delivery: int) -> Started:
    return Started(
        job=task.job,
        execution_id=task.execution_id,
        step=task.step,
        attempt=task.attempt,
        delivery=delivery,
        worker="another",
    )


async def publish_failure(bench: Bench, task: Dispatched, delivery: int) -> None:
    report = Report(
        job=task.job,
        execution_id=task.execution_id,
        outcome="failed",
        step=task.step,
        attempt=task.attempt,
        delivery=delivery,
        token=task.token,
    )
    subject = subjects.subject_of(report)
    await bench.log.publish(subject, report, message_id=subject)


def cancelled() -> Cancelled:
    return Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron")


def completed() -> Completed:
    return Completed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step="main", attempt=1)


@pytest.mark.parametrize("end", [cancelled(), completed()])
async def test_ended_execution_is_not_run(bench: Bench, ran: list[int], end: Message) -> None:
    await bench.given_task()
    watched = await bench.delivery()
    await bench.given(end)
    await bench.executor.run(HeldTask(watched))
    assert (ran, await bench.claims(), await bench.reports()) == ([], [], [])
    assert watched.settled == ("ack", 0)


async def test_facts_of_other_steps_allow_a_claim(bench: Bench, ran: list[int]) -> None:
    await bench.given_tasks({"a": (), "b": ()})
    for _ in range(2):
        await bench.executor.run(HeldTask(await bench.delivery()))
    claims, reports = await bench.claims(), await bench.reports()
    assert ran == [1, 1]
    assert [(report.step, report.claim) for report in reports] == [(fact.step, at) for at, fact in claims]
    [b] = [report for report in reports if report.step == "b"]
    assert b.claimed_after == claims[0][0]  # folded, not the task's own sequence


async def test_only_newer_facts_of_other_steps_are_read(
    bench: Bench, ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    [a, _] = await bench.given_tasks({"a": (), "b": ()})
    await bench.given(started(a, 1))
    load, asked = bench.log.load, list[int]()

    async def loading(scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        asked.append(after)
        return await load(scope, after=after)

    monkeypatch.setattr(bench.log, "load", loading)
    await bench.delivery()
    b = await bench.delivery()
    await bench.executor.run(HeldTask(b))
    assert (asked, ran) == ([b.sequence], [1])
    assert [fact.step for _, fact in await bench.claims()] == ["a", "b"]


async def test_claims_of_a_graph_read_each_event_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 100
    await bench.given_tasks({f"step-{number}": () for number in range(steps)})
    load, received = bench.log.load, list[int]()

    async def loading(scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        events = await load(scope, after=after)
        received.append(len(events))
        await asyncio.sleep(0)
        return events

    bench.handlers.add(FUNCTION, lambda _: None)
    monkeypatch.setattr(bench.log, "load", loading)
    deliveries = [await bench.delivery() for _ in range(steps)]
    await asyncio.gather(*(bench.executor.run(HeldTask(delivery)) for delivery in deliveries))
    assert [fact.step for _, fact in await bench.claims()] == [f"step-{number}" for number in range(steps)]
    assert (len(received), sum(received)) == (1, steps - 1)


async def test_remembered_events_do_not_hide_an_end(bench: Bench, ran: list[int]) -> None:
    await bench.given_tasks({"a": (), "b": (), "c": ()})
    deliveries = [await bench.delivery() for _ in range(3)]
    await bench.executor.run(HeldTask(deliveries[0]))
    await bench.given(cancelled())
    for delivery in deliveries[1:]:
        await bench.executor.run(HeldTask(delivery))
    assert (ran, [fact.step for _, fact in await bench.claims()]) == ([1], ["a"])
    assert [delivery.settled for delivery in deliveries] == [("ack", 0.0)] * 3


async def test_remembered_claim_is_not_stored_again(bench: Bench, ran: list[int]) -> None:
    await bench.given_tasks({"a": (), "b": ()})
    first, second = await bench.delivery(), await bench.delivery()
    await bench.executor.run(HeldTask(first))
    await bench.executor.run(HeldTask(second))
    await bench.executor.run(HeldTask(first))
    assert (ran, [fact.step for _, fact in await bench.claims()]) == ([1, 1], ["a", "b"])


async def test_second_holder_takes_over_from_the_first(bench: Bench) -> None:
    first_began, go_on = asyncio.Event(), asyncio.Event()

    async def handler(context: Context) -> int:
        if context.delivery == 1:
            first_began.set()
            await go_on.wait()
            raise RuntimeError("the first one fails later")
        return context.delivery

    bench.handlers.add(FUNCTION, handler)
    await bench.given_task()
    first = await bench.delivery()
    _, running = bench.running(first)
    await first_began.wait()
    second = await bench.again(first)
    await bench.executor.run(HeldTask(second))
    go_on.set()
    await running
    assert [fact.delivery for _, fact in await bench.claims()] == [1, 2]
    assert [(r.delivery, r.outcome) for r in await bench.reports()] == [(2, "completed"), (1, "failed")]


async def test_earlier_holder_does_not_take_a_task_back(bench: Bench, ran: list[int]) -> None:
    await bench.given_task()
    first = await bench.delivery()
    second = await bench.again(first)
    await bench.executor.run(HeldTask(second))
    await bench.executor.run(HeldTask(first))
    assert ran == [2]
    assert [fact.delivery for _, fact in await bench.claims()] == [2]


async def test_lost_acknowledgement_does_not_repeat_work(bench: Bench, ran: list[int]) -> None:
    await bench.given_task()
    deaf = await bench.delivery(deaf=True)
    await bench.executor.run(HeldTask(deaf))
    again = await bench.again(deaf)
    await bench.executor.run(HeldTask(again))
    assert ran == [1]
    assert len(await bench.reports()) == 1
    assert again.settled == ("ack", 0)


async def test_outdated_failure_does_not_replace_the_work(bench: Bench, ran: list[int]) -> None:
    """The first holder reports a failure after the second holder's claim.

    Then the second holder dies.
    """
    task = await bench.given_task()
    first = await bench.delivery()
    second = await bench.again(first)
    await bench.given(started(task, 1), started(task, 2))
    await publish_failure(bench, task, 1)
    third = await bench.again(second)
    await bench.executor.run(HeldTask(third))
    assert ran == [3]


async def test_failure_of_current_holder_is_not_repeated(bench: Bench, ran: list[int]) -> None:
    task = await bench.given_task()
    first = await bench.delivery()
    await bench.given(started(task, 1))
    await publish_failure(bench, task, 1)
    again = await bench.again(first)
    await bench.executor.run(HeldTask(again))
    assert ran == []
    assert again.settled == ("ack", 0)


class LosesAnAnswer(InMemoryEventLog):
    """A log that loses its reply to a claim, so it is sent again."""

    async def append(self, fact: Message, *, expect: int) -> int:
        sequence = await super().append(fact, expect=expect)
        if isinstance(fact, Started):
            raise SequenceConflict
        return sequence


class RefusesClaims(InMemoryEventLog):
    """A log in which other writers are always faster."""

    async def append(self, fact: Message, *, expect: int) -> int:
        if isinstance(fact, Started):
            raise SequenceConflict
        return await super().append(fact, expect=expect)


class LeavesClaimsUnanswered(InMemoryEventLog):
    """A log whose stream has no leader."""

    async def append(self, fact: Message, *, expect: int) -> int:
        if isinstance(fact, Started):
            raise LogUnavailable("no responders")
        return await super().append(fact, expect=expect)


class Lags(RefusesClaims):
    """A log whose reads come from a lagging replica."""

    async def load(self, scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        return (await super().load(scope, after=after))[:1]


def bench_over(kind: type[InMemoryEventLog]) -> Bench:
    clock = ManualClock(NOON)
    return Bench(kind(clock), clock)


async def test_claim_with_lost_reply_is_recognized() -> None:
    bench = bench_over(LosesAnAnswer)
    watched = await bench.run(lambda _: "done")
    [(at, _)] = await bench.claims()
    report = await bench.report()
    assert (report.result, report.claim, report.claimed_after) == ("done", at, watched.sequence)


@pytest.mark.parametrize("kind", [RefusesClaims, Lags])
async def test_undecided_claim_is_handed_back(kind: type[InMemoryEventLog]) -> None:
    bench = bench_over(kind)
    watched = await bench.run(lambda _: None)
    assert watched.settled is not None
    told, delay = watched.settled
    assert told == "nak"
    assert 0.02 <= delay <= 0.2
    assert await bench.reports() == []


async def test_task_is_handed_back_if_log_is_unavailable() -> None:
    watched = await bench_over(LeavesClaimsUnanswered).run(lambda _: None)
    assert watched.settled == ("nak", 1.0)


async def test_late_task_of_lost_execution_is_not_run(bench: Bench, ran: list[int]) -> None:
    task = await bench.given_task()
    first = await bench.delivery()
    lost = Lost(what="dispatched", since=NOON, step=task.step, attempt=task.attempt)
    await bench.given(Recovered(job=JOB, execution_id=ID, recovery=1, lost=(lost,), recovered_at=NOON))
    facts = await bench.log.load(subjects.scope_of(task))
    await bench.given(*execution.dispatch_missing(execution.fold(facts), at=NOON, key=KEY))
    await bench.executor.run(HeldTask(first))
    assert (ran, first.settled) == ([], ("ack", 0.0))
    second = await bench.delivery()
    await bench.executor.run(HeldTask(second))
    assert (ran, second.settled) == ([1], ("ack", 0.0))
    [(_, claim)] = await bench.claims()
    assert [report.outcome for report in await bench.reports()] == ["completed"]
    assert claim.delivery == 1


async def test_task_that_killed_many_workers_is_denied(bench: Bench, ran: list[int]) -> None:
    task = await bench.given_task()
    await bench.given(*(started(task, delivery) for delivery in range(1, execution.MAX_CLAIMS + 1)))
    watched = await bench.delivery()
    for _ in range(execution.MAX_CLAIMS):
        watched = await bench.again(watched)
    assert watched.delivered == execution.MAX_CLAIMS + 1
    await bench.executor.run(HeldTask(watched))
    assert (ran, watched.settled) == ([], ("ack", 0.0))
    assert len(await bench.claims()) == execution.MAX_CLAIMS


async def test_held_task_is_not_started_twice() -> None:
    bench = Bench()
    bench.handlers.add(FUNCTION, lambda _: None)
    await bench.given_task()
    first = await bench.delivery(deaf=True)
    again = await bench.again(first)
    assert not _is_held(first, set())
    assert _is_held(again, {first.subject})
