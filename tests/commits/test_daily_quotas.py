"""Daily quotas of namespaces: the fold counts, and an execution beyond a quota is skipped."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from tests.commits.test_memory import Work
from tests.commits.test_snapshots import bodies, check_every_number
from tocsin import subjects
from tocsin.adapters.memory.archive import InMemoryProjections
from tocsin.domain.events import (
    Completed,
    CronAnswer,
    CronSkipped,
    DeadLettered,
    Dispatched,
    FannedOut,
    Message,
    Namespace,
    NamespacesDefined,
    Planned,
    Replayed,
    Shard,
    ShardsDefined,
    Skipped,
    Trigger,
    UniqueRule,
    validated,
)
from tocsin.domain.namespaces import namespace_of
from tocsin.engine.daily_quotas import use_scope
from tocsin.engine.displays import DailyUseDisplay
from tocsin.services.namespaces import use_of
from tocsin.subjects import Stream

JOB = "payments.mail"
SKIP = "namespace_quota"


async def declare(work: Work, **quotas: int) -> None:
    payments = validated(Namespace, {"name": "payments", **quotas})
    await work.installation.store(NamespacesDefined(namespaces=(payments, Namespace(name="billing"))))
    await work.runner.run()


async def trigger(work: Work, *keys: str, job: str = JOB, size: int = 100) -> None:
    for key in keys:
        await work.trigger(job, key, input={"text": "x" * size})


async def stored(work: Work, *kinds: type[Message]) -> list[Any]:
    return [recorded.message for recorded in await work.installation.events() if isinstance(recorded.message, kinds)]


async def begun(work: Work) -> list[str]:
    """The jobs of the executions that were admitted."""
    return [event.job for event in await stored(work, Dispatched) if event.admits is not None]


def used(work: Work, namespace: str = "payments") -> tuple[int, int] | None:
    use = work.fold.states.get(use_scope(namespace))
    return None if use is None else (use.executions, use.bytes)


async def bytes_of(work: Work, namespace: str = "payments") -> int:
    """The bytes of the events of executions that began, and of dead letters, in the log."""
    return sum(
        len(recorded.message.encode())
        for recorded in await work.installation.events()
        if subjects.scope_of(recorded.message).startswith(("execution.", "dead-letter."))
        and namespace_of(getattr(recorded.message, "job", "")) == namespace
        and not isinstance(recorded.message, Skipped)
    )


async def test_trigger_beyond_the_quota_is_skipped() -> None:
    work = Work()
    await work.define(JOB)
    await work.define("billing.mail")
    await work.define("mail")
    await declare(work, executions_per_day=2)
    await trigger(work, "a", "b", "c")
    for job in ("billing.mail", "mail"):
        await trigger(work, "d", job=job)
    assert await begun(work) == [JOB, JOB, "billing.mail", "mail"]
    [skipped] = await stored(work, Skipped)
    assert (skipped.reason, skipped.job) == (SKIP, JOB)
    assert [event.data.reason for event in await stored(work, CronSkipped)] == [SKIP]
    assert used(work) == (2, 0)
    assert used(work, "billing") is None


async def test_triggers_of_one_moment_share_the_quota() -> None:
    """One batch decides the triggers, before any trigger is stored."""
    work = Work()
    await work.define(JOB)
    await declare(work, executions_per_day=3)
    for number in range(20):
        work.installation.publish(Stream.REQUESTS, Trigger(), subjects.trigger(JOB), f"t{number}")
    await work.runner.run()
    assert (len(await begun(work)), len(await stored(work, Skipped))) == (3, 17)


async def test_skipped_trigger_stores_no_input() -> None:
    """Triggers beyond a quota count for none, so the input must not be copied into the log."""
    work = Work()
    await work.define(JOB, overlap_policy="enqueue")
    await declare(work, executions_per_day=1)
    await trigger(work, "a")
    await trigger(work, "b", size=30_000)
    events = await stored(work, Skipped, CronSkipped, CronAnswer)
    assert [type(event) for event in events[-3:]] == [Skipped, CronAnswer, CronSkipped]
    assert (events[-2].data.answer, events[-2].data.code) == ("refused", SKIP)
    assert sum(len(event.encode()) for event in events) < 3_000


async def test_instant_beyond_the_quota_is_skipped() -> None:
    work = Work()
    await declare(work, executions_per_day=1)
    await work.define(JOB, schedule="0 * * * *")
    for _ in range(3):
        work.installation.clock.advance(3_600)
        await work.runner.run()
    assert len(await begun(work)) == 1
    skips = await stored(work, Skipped)
    assert [(event.reason, event.cron_expression) for event in skips] == [(SKIP, "0 * * * *")] * 2


async def test_next_day_begins_at_nothing() -> None:
    work = Work()
    await work.define(JOB)
    await declare(work, executions_per_day=1)
    await trigger(work, "a", "b")
    work.installation.clock.advance(86_400)
    await trigger(work, "c", "d")
    assert len(await begun(work)) == 2
    assert used(work) == (1, 0)


async def test_raised_quota_counts_from_then_on() -> None:
    work = Work()
    await work.define(JOB)
    await declare(work, executions_per_day=1)
    await trigger(work, "a", "b")
    await declare(work, executions_per_day=2)
    await trigger(work, "c", "d")
    assert len(await begun(work)) == 2
    await declare(work)
    assert used(work) is None
    await trigger(work, "e", "f")
    assert len(await begun(work)) == 4


async def test_bytes_of_a_day_are_limited() -> None:
    work = Work()
    await work.define(JOB)
    await declare(work, bytes_per_day=2_000)
    await trigger(work, *"abcdef")
    executions, size = used(work) or (0, 0)
    assert 0 < len(await begun(work)) == executions < 6
    assert size == await bytes_of(work)
    last = len((await stored(work, Dispatched))[-1].encode())  # its first task is stored with its beginning
    assert size - last <= 2_000 < size + last
    assert {event.reason for event in await stored(work, Skipped)} == {SKIP}


async def test_results_of_the_day_count_too() -> None:
    work = Work()
    await work.define(JOB)
    await work.define("billing.mail")
    await declare(work, bytes_per_day=5_000)
    await trigger(work, "a")
    await trigger(work, "a", job="billing.mail")
    for report in await work.claim():
        await work.report(report.changed(result="x" * 4_000))
    assert used(work) == (1, await bytes_of(work))
    await trigger(work, "b")
    await trigger(work, "b", job="billing.mail")
    assert await begun(work) == [JOB, "billing.mail", "billing.mail"]
    assert len(await stored(work, Completed)) == 2
    work.installation.clock.advance(86_400)
    await trigger(work, "c")
    assert len(await begun(work)) == 4


async def test_execution_that_waits_counts_once() -> None:
    work = Work()
    await work.define(JOB, overlap_policy="enqueue", max_waiting=5)
    await declare(work, executions_per_day=2)
    await trigger(work, "a", "b", "c")
    assert len(await stored(work, Planned)) == 1
    await work.finish()
    assert (len(await stored(work, Completed)), used(work)) == (2, (2, 0))


async def test_each_shard_counts() -> None:
    work = Work()
    await work.installation.store(ShardsDefined(shards=tuple(Shard(shard_id=f"s{number}") for number in range(4))))
    await work.define(JOB, partition="all_shards")
    await declare(work, executions_per_day=7)
    await trigger(work, "a", "b")
    assert len(await stored(work, FannedOut)) == 1
    assert len(await begun(work)) == 4
    assert used(work) == (4, 0)
    assert [event.reason for event in await stored(work, Skipped)] == [SKIP]


async def test_accepted_push_runs_beyond_the_quota() -> None:
    work = Work()
    await declare(work, executions_per_day=1)
    rule = UniqueRule(key="a" * 64, on_conflict="replace")
    for number in range(3):
        await work.enqueue("payments.ojs.mail", number)
    await work.enqueue("payments.ojs.mail", 3, rule)
    assert (len(await begun(work)), await stored(work, Skipped), used(work)) == (4, [], (4, 0))


async def test_replay_beyond_the_quota_is_skipped() -> None:
    work = Work()
    await work.define(JOB, dead_letter=True)
    await declare(work, executions_per_day=1)
    await trigger(work, "a")
    await work.finish("main")
    [letter] = await stored(work, DeadLettered)
    await work.installation.store(
        Replayed(job=JOB, id=letter.id, number=1, execution_id="again", failed_only=False, ledger=1)
    )
    await work.runner.run()
    assert [event.execution_id for event in await stored(work, Skipped)] == ["again"]


async def test_use_is_the_same_after_a_snapshot() -> None:
    work = Work()
    await work.define(JOB)
    await declare(work, executions_per_day=2, bytes_per_day=100_000)
    await trigger(work, "a", "b", "c")
    await work.finish()
    check_every_number(await bodies(work.installation))


async def test_leader_of_the_planner_shows_the_use() -> None:
    work = Work()
    projections, clock = InMemoryProjections(work.installation.clock), work.installation.clock
    await work.define(JOB)
    await declare(work, executions_per_day=5, bytes_per_day=100_000)
    await trigger(work, "a", "b")
    view: Any = SimpleNamespace(loop=SimpleNamespace(fold=work.fold))
    display = DailyUseDisplay(view, "planner", projections, clock)
    await display.show()
    use = await use_of(projections, "payments", clock.now())
    assert (use.executions, use.bytes) == used(work)
    assert (await use_of(projections, "payments", clock.now() + timedelta(days=1))).executions == 0
