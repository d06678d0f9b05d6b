"""The holder of a task, as a gateway finds it, despite lagging replicas and native workers."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest
import structlog.testing

from tests.domain.given import ID, JOB, KEY, admitted, started
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.events import Dispatched, LeaseTimer, Message, Recorded, Started
from tocsin.domain.visibility_lease import Lease
from tocsin.ports import Delivery, Loaded, SequenceConflict
from tocsin.services.operations import errors, lookup, task_claims, task_leases
from tocsin.testing import InMemoryEventLog, InMemoryTaskQueues, ManualClock


class LaggingLog(InMemoryEventLog):
    """A log whose replica answers as of `upto`, for a number of reads."""

    upto = 0
    times = 0

    async def load(self, scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        return self._old(await super().load(scope, after=after))

    async def load_each(self, *scopes: str, after: Mapping[str, int] | None = None) -> Loaded:
        return Loaded([self._old(facts) for facts in (await super().load_each(*scopes, after=after)).facts], 0)

    def _old(self, facts: Sequence[Recorded[Message]]) -> list[Recorded[Message]]:
        if not self.times:
            return list(facts)
        self.times -= 1
        return [fact for fact in facts if fact.sequence <= self.upto]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def log(clock: ManualClock) -> LaggingLog:
    it = LaggingLog(clock)
    sequence = await it.append(admitted(), expect=0)
    [task] = execution.dispatch(execution.fold(await it.load(subjects.execution(JOB, ID))), key=KEY)
    await it.append(task, expect=sequence)
    return it


async def take(log: InMemoryEventLog, clock: ManualClock, lease: float = 10.0) -> list[task_leases.Held]:
    queues, lasting = InMemoryTaskQueues(log), Lease(lease)
    return await task_claims.take(
        log, queues, clock, ["default"], limit=5, holder=task_leases.Holder("ada", "w"), lease=lasting
    )


async def test_task_of_a_native_worker_is_withheld(log: LaggingLog) -> None:
    await log.append(started(), expect=2)
    found = await lookup.find(log, ID)
    with pytest.raises(errors.OperationError) as refused:
        task_leases.held_of(found)
    assert (refused.value.code, ID in str(refused.value)) == ("held-by-own-worker", True)


async def test_claim_is_returned_despite_a_lagging_replica(log: LaggingLog, clock: ManualClock) -> None:
    log.upto, log.times = 2, 3
    [held] = await take(log, clock)
    assert log.times == 0
    assert held.claim.message.worker == "w"
    assert held.found.facts[-1].sequence == held.claim.sequence


async def test_undecodable_task_blocks_no_other(log: LaggingLog, clock: ManualClock) -> None:
    other = "0198c0de-0000-7000-8000-0000000000ff"
    sequence = await log.append(admitted().model_copy(update={"execution_id": other}), expect=0)
    state = execution.fold(await log.load(subjects.execution(JOB, other)))
    await log.append(execution.dispatch(state, key=KEY)[0], expect=sequence)
    log.receive(f"execution.{subjects.token(JOB)}.{other}.admitted", b'{"version": 99}')
    with structlog.testing.capture_logs() as said:
        [held] = await take(log, clock)
    assert held.found.execution_id == ID
    assert [line["action"] for line in said] == ["claim-unknown"]


async def test_unknown_holder_is_distinguished_from_stale_read(log: LaggingLog, clock: ManualClock) -> None:
    [held] = await take(log, clock)
    log.upto, log.times = 2, 1
    old = await lookup.find(log, ID)
    assert task_leases.held_of(old) is None
    assert not await lookup.is_newest(log, old)
    new = await lookup.find(log, ID)
    assert task_leases.held_of(new) == held
    assert await lookup.is_newest(log, new)


async def test_fetch_waits_only_for_the_first_task(
    log: LaggingLog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, waits = InMemoryTaskQueues(log), list[float]()

    async def note(name: str) -> None:
        queue = await queues.open(name)
        take_at_once = queue.take

        async def noting(limit: int, *, wait: float) -> Sequence[Delivery]:
            waits.append(wait)
            return await take_at_once(limit, wait=0)

        monkeypatch.setattr(queue, "take", noting)

    await note("default")
    await note("other")
    lasting = Lease(10)
    [_] = await task_claims.take(
        log, queues, clock, ["default", "other"], limit=5, holder=task_leases.Holder("ada", "w"), lease=lasting, wait=20
    )
    assert waits == [task_claims.QUEUE_WAIT_S, 0]


async def test_redelivered_task_is_claimed_once(log: LaggingLog, clock: ManualClock) -> None:
    one = InMemoryTaskQueues(log, ack_wait=5)
    [delivery] = await (await one.open("default")).take(1, wait=0)
    clock.advance(6)
    [again] = await (await one.open("default")).take(1, wait=0)
    assert (delivery.delivered, again.delivered) == (1, 2)
    first = await task_claims._claim(log, clock, delivery, task_leases.Holder("ada", "a"), Lease(10))
    assert first is not None
    assert await task_claims._claim(log, clock, again, task_leases.Holder("ada", "b"), Lease(10)) is None
    assert len([fact for fact in await log.read("execution.>") if isinstance(fact.message, Started)]) == 1


@pytest.mark.parametrize(("lease", "ends"), [(10.0, False), (30.0, True), (90.0, True)])
async def test_timer_knows_whether_its_lease_ends_the_attempt(
    log: LaggingLog, clock: ManualClock, *, lease: float, ends: bool
) -> None:
    begun = clock.now()
    [held] = await take(log, clock, lease)
    clock.advance(min(lease, 30))
    [timer] = await log.read("timer.>")
    assert isinstance(timer.message, LeaseTimer)
    assert timer.message.ends_attempt is ends
    assert timer.time == begun + timedelta(seconds=min(lease, 30))
    assert held.task.message.timeout == 30


async def test_heartbeat_never_extends_beyond_the_attempt(log: LaggingLog, clock: ManualClock) -> None:
    [held] = await take(log, clock)
    clock.advance(9)
    await task_leases.extend(log, clock, held)
    clock.advance(9)
    assert await log.read("timer.>") == []
    await task_leases.extend(log, clock, held, asked=1e12)
    clock.advance(12)
    [timer] = await log.read("timer.>")
    assert isinstance(timer.message, LeaseTimer)
    assert timer.message.ends_attempt
    assert timer.time == held.deadline


async def test_what_moved_is_not_extended(log: LaggingLog, clock: ManualClock) -> None:
    [held] = await take(log, clock)
    await task_leases.hand_back(log, held)
    with pytest.raises(SequenceConflict):
        await task_leases.extend(log, clock, held)
    assert [type(fact.message) for fact in await log.read("execution.>")].count(Dispatched) == 1


async def test_late_heartbeat_leaves_the_next_lease(log: LaggingLog, clock: ManualClock) -> None:
    """The tasks of one attempt are separate messages, so their deliveries are both counted from 1."""
    [late] = await take(log, clock)
    await task_leases.hand_back(log, late)
    facts = await log.load(subjects.execution(JOB, ID))
    [again] = execution.dispatch_missing(execution.fold(facts), at=clock.now(), key=KEY)
    await log.append(again, expect=facts[-1].sequence)
    [held] = await take(log, clock)
    with pytest.raises(SequenceConflict):
        await task_leases.extend(log, clock, late)
    clock.advance(10)
    assert held.task.sequence in {timer.message.task for timer in await log.read("timer.>")}  # type: ignore[attr-defined]
