"""Workers over HTTP at the matcher: leases, order, waiting, lost and repeated messages, two leaders, and hostile requests."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Final

import pytest

from tests.domain.given import ID, JOB, KEY, admitted
from tests.stages.test_matcher import Hall
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.events import AgentSwitched, Dispatched, Failed, Released, Report, Started
from tocsin.domain.execution import Status
from tocsin.domain.task_fetch import Answer, FetchedClaim, Lease
from tocsin.engine.outside_workers import CHANGE_INTERVAL_S, OutsideName
from tocsin.ports import LogUnavailable, Write, Written
from tocsin.services.agents import AgentRegistry
from tocsin.services.operations import task_fetches, worker_answers
from tocsin.services.operations.errors import FetchTooLarge, MatcherUnavailable, ResultTooLarge, TooManyFetches
from tocsin.services.operations.event_waiter import EventWaiter
from tocsin.services.operations.task_fetches import PATIENCE_S, REPEAT_S, Held, Holder, TaskFetches, held_by
from tocsin.services.queue_decisions import QueueDecisions
from tocsin.stages.matcher import fetches
from tocsin.testing import settle

GATEWAY: Final = "01890f3e-0000-7000-8000-00000000000a"
FETCH: Final = "01890f3e-0000-7000-8000-00000000000f"


class Desk:
    """A gateway, whose requests and answers may be lost."""

    def __init__(self, hall: Hall, stack: AsyncExitStack) -> None:
        self.hall = hall
        self.client = TaskFetches(hall.world.log, hall.fetches, hall.world.clock)
        self.answers: list[Answer] = []
        self._stack = stack

    async def fetch(self, *queues: str, limit: int = 1, wait: float = 0.0, **options: Any) -> list[Held]:  # noqa: ANN401
        """Fetch, and let the stages and the matchers work until there is an answer."""
        return await self.answered(self.fetching(*queues, limit=limit, wait=wait, **options))

    def fetching(
        self,
        *queues: str,
        limit: int = 1,
        wait: float = 0.0,
        functions: tuple[str, ...] = ("*",),
        worker: str = "w",
        lease: float = 10.0,
    ) -> "asyncio.Task[list[Held]]":
        """Begin to fetch."""
        return asyncio.create_task(
            self.client.take(
                queues or ("default",),
                functions=functions,
                limit=limit,
                holder=Holder("ada", worker),
                lease=Lease(lease),
                wait=wait,
            )
        )

    async def answered(self, fetch: "asyncio.Task[list[Held]]") -> list[Held]:
        """Let all work until a fetch is answered, without letting time pass."""
        for _ in range(5):
            await settle()
            await self.hall.work()
            if fetch.done():
                break
        return await fetch

    async def send(self, **fields: Any) -> None:  # noqa: ANN401 - of a fetch
        """Send a request as it is, and note its answers."""
        body = {
            "id": FETCH,
            "gateway": GATEWAY,
            "queues": ["default"],
            "functions": ["*"],
            "count": 1,
            "identity": "ada",
            "usual_lease": 10,
            **fields,
        }
        await self.hall.fetches.request(json.dumps(body).encode())
        await self.hall.work()

    async def hear(self) -> None:
        """Note the answers to what `send` sends."""
        await self._stack.enter_async_context(
            self.hall.fetches.answers(GATEWAY, lambda body: self.answers.append(Answer.model_validate_json(body)))
        )


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with AsyncExitStack() as stack:
        it = Desk(Hall(stack), stack)
        await stack.enter_async_context(it.client.running())
        await it.hall.job()
        yield it


def names(held: list[Held]) -> list[str]:
    return [one.task.message.job for one in held]


async def test_fetch_claims_a_task_under_a_lease(desk: Desk) -> None:
    await desk.hall.matcher()
    await desk.hall.trigger()
    [held] = await desk.fetch()
    [claim] = await desk.hall.world.recorded(Started)
    assert held.claim == claim
    assert (claim.message.worker, claim.message.holder, claim.message.lease) == ("w", "ada", 10.0)
    assert (claim.message.agent, claim.message.delivery) == (None, 1)
    await desk.hall.passes(10)
    [report] = await desk.hall.world.stored(Report)
    assert report.worker == "lease-keeper"
    assert len(await desk.hall.world.stored(Released)) == 1


async def test_released_task_is_fetched_again(desk: Desk) -> None:
    await desk.hall.matcher()
    await desk.hall.trigger()
    [_] = await desk.fetch()
    assert await desk.fetch() == []
    await desk.hall.passes(10)
    [held] = await desk.fetch(worker="x")
    assert [claim.worker for claim in await desk.hall.started()] == ["w", "x"]
    assert held.task.message.attempt == 1


async def test_first_queue_is_first_and_jobs_take_turns(desk: Desk) -> None:
    for name, queue in (("a", "default"), ("b", "default"), ("urgent", "mail")):
        await desk.hall.job(name, queue=queue)
    await desk.hall.matcher()
    for job in ("a", "a", "b", "urgent"):
        await desk.hall.trigger(job)
    assert names(await desk.fetch("mail", "default", limit=3)) == ["urgent", "a", "b"]
    assert names(await desk.fetch("mail", "default", limit=3)) == ["a"]


async def test_oldest_task_of_equal_jobs_is_first(desk: Desk) -> None:
    for name, function in (("one", "z"), ("two", "a")):
        await desk.hall.job(name, function=function)
    await desk.hall.matcher()
    await desk.hall.trigger("one")
    await desk.hall.trigger("two")
    assert names(await desk.fetch(limit=2)) == ["one", "two"]


async def test_functions_of_the_token_limit_a_fetch(desk: Desk) -> None:
    await desk.hall.job("other", function="mail/send")
    await desk.hall.matcher()
    await desk.hall.trigger("nightly")
    await desk.hall.trigger("other")
    assert names(await desk.fetch(functions=("mail/*",), limit=5)) == ["other"]
    assert names(await desk.fetch(functions=(), limit=5)) == []


async def test_agent_and_fetch_share_a_queue(desk: Desk) -> None:
    await desk.hall.matcher()
    agent = await desk.hall.agent()
    await desk.hall.trigger()
    await desk.hall.trigger()
    [_] = await desk.fetch()
    assert len(agent.got) == 1
    assert len({(claim.execution_id) for claim in await desk.hall.started()}) == 2


async def test_task_of_an_ended_execution_is_skipped(desk: Desk) -> None:
    matcher = await desk.hall.matcher()
    for _ in range(3):
        await desk.hall.trigger()
    first, *_ = await desk.hall.world.recorded(Dispatched)
    matcher.learn = lambda _: None  # type: ignore[method-assign,assignment] # its follower is late
    scope = subjects.execution("nightly", first.message.execution_id)
    facts = await desk.hall.world.log.load(scope)
    [ended] = execution.cancel(execution.fold(facts), reason="enough")
    await desk.hall.world.log.append(ended, expect=facts[-1].sequence)
    [held] = await desk.fetch()
    assert held.found.execution_id != first.message.execution_id


async def test_limit_of_a_job_counts_fetched_tasks(desk: Desk) -> None:
    await desk.hall.job("narrow", concurrency={"limit": 1})
    await desk.hall.matcher()
    agent = await desk.hall.agent(queues=["mail"])
    for _ in range(3):
        await desk.hall.trigger("narrow")
    [held] = await desk.fetch(limit=5)
    assert await desk.fetch(limit=5) == []
    await agent.announce(queues=["default"])
    await desk.hall.work()
    assert agent.got == []
    await worker_answers.complete(desk.hall.world.log, held, "done", key=KEY)
    await desk.hall.work()
    assert len(agent.got) == 1
    assert await desk.fetch(limit=5) == []


async def test_batch_of_results_awaits_the_failure_of_large(desk: Desk) -> None:
    await desk.hall.matcher()
    await desk.hall.trigger()
    [held] = await desk.fetch()
    log = desk.hall.world.log
    arrivals = EventWaiter(log)
    answer = asyncio.create_task(worker_answers.complete_each(log, [(held, "x" * 70_000)], key=KEY, arrivals=arrivals))
    await settle()
    assert not answer.done()
    await desk.hall.work()
    [outcome] = await answer
    await arrivals.aclose()
    assert isinstance(outcome, ResultTooLarge)
    assert execution.fold(await log.load(subjects.scope_of(held.claim.message))).status is Status.FAILED


async def test_two_leaders_keep_a_limit_for_fetches(desk: Desk) -> None:
    await desk.hall.job("narrow", concurrency={"limit": 2})
    await desk.hall.matcher()
    await desk.hall.matcher()
    for _ in range(5):
        await desk.hall.world.trigger("narrow", message_id=f"n{_}")
    await desk.hall.world.run(desk.hall.world.planner)
    await settle()
    fetching = [desk.fetching(limit=2, wait=5.0) for _ in range(2)]
    await settle()
    await asyncio.gather(*(matcher.run_once() for matcher in desk.hall.matchers))
    await desk.hall.work()
    await desk.hall.passes(5.0)  # for a fetch that gets none
    held = [one for each in fetching for one in await desk.answered(each)]
    await desk.hall.work()
    assert len(held) == 2
    assert len({one.found.execution_id for one in held}) == 2


async def test_fetch_waits_for_a_late_follower(desk: Desk) -> None:
    matcher = await desk.hall.matcher()
    learned, learn = list[Any](), matcher.learn
    matcher.learn = learned.append  # type: ignore[method-assign,assignment]
    matcher._upto = 0
    await desk.hall.trigger()
    upto, matcher._upto = matcher._upto, 0
    fetching = desk.fetching()
    await settle()
    await matcher.run_once()
    await settle()
    assert not fetching.done()
    for recorded in learned:
        learn(recorded)
    matcher._upto = upto
    await matcher.run_once()
    [_] = await fetching


async def test_fetch_under_a_steady_load_is_answered(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The board never has everything, but it has what was stored before the fetch."""

    async def always(*_: str, after: int) -> bool:  # noqa: ARG001 - the port's
        return True

    matcher = await desk.hall.matcher()
    await desk.hall.trigger()
    monkeypatch.setattr(desk.hall.world.log, "has_newer", always)
    fetching = desk.fetching()
    for _ in range(3):
        await settle()
        await matcher.run_once()
        await desk.hall.trigger()
    await settle()
    assert fetching.done()
    [_] = await fetching


async def test_empty_fetch_without_wait_is_answered_immediately(desk: Desk) -> None:
    await desk.hall.matcher()
    before = desk.hall.world.clock.monotonic()
    assert await desk.fetch() == []
    assert desk.hall.world.clock.monotonic() == before


async def test_waiting_fetch_gets_the_first_task(desk: Desk) -> None:
    await desk.hall.matcher()
    fetching = desk.fetching(wait=10, limit=5)
    await settle()
    await desk.hall.passes(3)
    assert not fetching.done()
    await desk.hall.trigger()
    assert names(await desk.answered(fetching)) == ["nightly"]


async def test_fetch_is_empty_when_its_wait_is_over(desk: Desk) -> None:
    await desk.hall.matcher()
    fetching = desk.fetching(wait=5)
    await settle()
    await desk.hall.work()
    await desk.hall.passes(4.9)
    assert not fetching.done()
    await desk.hall.passes(0.1)
    assert await desk.answered(fetching) == []
    await desk.hall.trigger()
    assert await desk.hall.started() == []


async def test_fetch_is_withdrawn_when_its_caller_leaves(desk: Desk) -> None:
    matcher = await desk.hall.matcher()
    fetching = desk.fetching(wait=10)
    await settle()
    await desk.hall.work()
    assert len(matcher._fetches) == 1
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    await settle()
    await desk.hall.trigger()
    assert len(matcher._fetches) == 0
    assert desk.client._work == set()
    assert await desk.hall.started() == []


async def test_job_returns_if_its_caller_just_left(desk: Desk) -> None:
    """The caller leaves after the answer came, and before its fetch goes on."""
    matcher = await desk.hall.matcher()
    await desk.hall.trigger()
    fetching = desk.fetching(wait=10)
    await settle()
    send = desk.hall.fetches.answer

    async def answer(gateway: str, body: bytes) -> None:
        await send(gateway, body)
        if Answer.model_validate_json(body).state == "served":
            fetching.cancel()

    desk.hall.fetches.answer = answer  # type: ignore[method-assign]
    await matcher.run_once()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    desk.hall.fetches.answer = send  # type: ignore[method-assign]
    await desk.hall.work()
    [released] = await desk.hall.world.stored(Released)
    assert released.reason == "handed_back"


async def test_too_many_fetches_are_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetches, "MAX_WAITING", 2)
    await desk.hall.matcher()
    waiting = [desk.fetching(wait=10) for _ in range(2)]
    await settle()
    await desk.hall.work()
    with pytest.raises(TooManyFetches) as refused:
        await desk.fetch()
    assert refused.value.code == "too-many-fetches"
    await desk.hall.trigger()
    assert len(await desk.answered(waiting[0])) == 1
    waiting[1].cancel()
    await asyncio.gather(waiting[1], return_exceptions=True)


async def test_repeated_fetch_has_the_same_answer(desk: Desk) -> None:
    await desk.hall.matcher()
    await desk.hear()
    for _ in range(2):
        await desk.hall.trigger()
    await desk.send()
    await desk.send()
    first, second = desk.answers
    assert first == second
    assert len(first.claims) == 1
    assert len(await desk.hall.started()) == 1


async def test_repeated_empty_fetch_stays_empty(desk: Desk) -> None:
    await desk.hall.matcher()
    await desk.hear()
    await desk.send()
    await desk.hall.trigger()
    await desk.send()
    assert [answer.claims for answer in desk.answers] == [(), ()]
    assert await desk.hall.started() == []


async def test_fetch_with_a_lost_answer_is_repeated(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.hall.matcher()
    await desk.hall.trigger()
    answer, lost = desk.hall.fetches.answer, list[bytes]()

    async def lose(_: str, body: bytes) -> None:
        lost.append(body)
        monkeypatch.setattr(desk.hall.fetches, "answer", answer)

    monkeypatch.setattr(desk.hall.fetches, "answer", lose)
    fetching = desk.fetching()
    await settle()
    await desk.hall.work()
    assert lost
    assert not fetching.done()
    await desk.hall.passes(REPEAT_S)
    [_] = await desk.answered(fetching)
    assert len(await desk.hall.started()) == 1


async def test_successor_answers_with_what_its_predecessor_claimed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim in the log names its fetch."""
    old = await desk.hall.matcher()
    for _ in range(2):
        await desk.hall.trigger()

    async def lose(_: str, __: bytes) -> None:
        pass

    answer = desk.hall.fetches.answer
    monkeypatch.setattr(desk.hall.fetches, "answer", lose)
    fetching = desk.fetching(wait=10)
    await settle()
    await desk.hall.work()
    await desk.hall.stop(old)
    monkeypatch.setattr(desk.hall.fetches, "answer", answer)
    await desk.hall.matcher()
    [held] = await desk.answered(fetching)
    [claim] = await desk.hall.world.recorded(Started)
    assert held.claim.sequence == claim.sequence


async def test_successor_serves_what_waited_at_its_predecessor(desk: Desk) -> None:
    old = await desk.hall.matcher()
    fetching = desk.fetching(wait=20)
    await settle()
    await desk.hall.work()
    await desk.hall.stop(old)
    await desk.hall.passes(REPEAT_S)
    await desk.hall.matcher()
    await desk.hall.work()
    await desk.hall.trigger()
    [_] = await desk.answered(fetching)


async def test_two_leaders_give_each_task_once(desk: Desk) -> None:
    await desk.hall.matcher()
    await desk.hall.matcher()
    for _ in range(6):
        await desk.hall.trigger()
    held = [one for fetching in [desk.fetching(limit=2) for _ in range(3)] for one in await desk.answered(fetching)]
    await desk.hall.work()
    ids = [one.found.execution_id for one in held]
    assert len(ids) == len(set(ids))
    released = {event.execution_id for event in await desk.hall.world.stored(Released)}
    claimed = {claim.execution_id for claim in await desk.hall.started()}
    assert claimed - released == set(ids) - released
    assert not released & set(ids)


async def test_failed_fetch_hands_back_a_dead_leaders_claims(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    old = await desk.hall.matcher()
    await desk.hall.trigger()

    async def lose(_: str, __: bytes) -> None:
        pass

    answer = desk.hall.fetches.answer
    monkeypatch.setattr(desk.hall.fetches, "answer", lose)
    fetching = desk.fetching(lease=1_000)
    await settle()
    await desk.hall.work()
    await desk.hall.stop(old)
    for _ in range(int(PATIENCE_S / REPEAT_S) + 1):
        await settle()
        await desk.hall.passes(REPEAT_S)
    with pytest.raises(MatcherUnavailable):
        await fetching
    monkeypatch.setattr(desk.hall.fetches, "answer", answer)
    await desk.hall.matcher()
    for _ in range(3):
        await settle()
        await desk.hall.passes(REPEAT_S)
    [released] = await desk.hall.world.stored(Released)
    assert released.reason == "handed_back"
    [held] = await desk.fetch()
    assert held.task.message.attempt == 1
    assert desk.client._work == set()


async def test_tasks_of_a_late_answer_are_handed_back(desk: Desk) -> None:
    matcher = await desk.hall.matcher()
    await desk.hall.trigger()
    fetching = desk.fetching(wait=10)
    await settle()
    answers, answer = list[tuple[str, bytes]](), desk.hall.fetches.answer

    async def late(gateway: str, body: bytes) -> None:
        answers.append((gateway, body))

    desk.hall.fetches.answer = late  # type: ignore[method-assign]
    await matcher.run_once()
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    await answer(*answers[-1])
    await desk.hall.work()
    [released] = await desk.hall.world.stored(Released)
    assert released.reason == "handed_back"
    desk.hall.fetches.answer = answer  # type: ignore[method-assign]
    [held] = await desk.fetch()
    assert held.task.message.attempt == 1


async def test_lost_claims_of_a_fetch_are_left_out(desk: Desk) -> None:
    """The answer came after the leases, when an agent and another worker had the tasks."""
    await desk.hall.matcher()
    await desk.hall.trigger()
    await desk.hall.trigger()
    fetched = await desk.fetch(limit=2)
    claims = [
        FetchedClaim(scope=subjects.scope_of(held.task.message), step="main", sequence=held.claim.sequence)
        for held in fetched
    ]
    await desk.hall.passes(10)
    [_] = await desk.fetch(worker="x")
    agent = await desk.hall.agent()
    assert len(agent.got) == 1
    assert len(claims) == 2
    assert await held_by(desk.hall.world.log, claims, holder=Holder("ada", "w")) == []


async def test_claim_with_a_lost_confirmation_reaches_its_fetch(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = await desk.hall.matcher()
    await desk.hall.trigger()
    write = desk.hall.world.log.write

    async def answer_lost(writes: Any) -> Any:  # noqa: ANN401 - as `EventLog.write`
        written = await write(writes)
        if any(getattr(one, "events", None) for one in writes):
            raise LogUnavailable("the answer was lost")
        return written

    monkeypatch.setattr(desk.hall.world.log, "write", answer_lost)
    fetching = desk.fetching()
    await settle()
    with pytest.raises(LogUnavailable):
        await matcher.run_once()
    monkeypatch.undo()
    [_] = await desk.answered(fetching)
    assert len(await desk.hall.started()) == 1


async def test_task_that_moved_on_meanwhile_is_not_claimed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matcher that stands still before it stores the claim has newer events when it goes on."""
    matcher = await desk.hall.matcher()
    await desk.hall.trigger()
    other = await desk.hall.matcher()
    log, write = desk.hall.world.log, desk.hall.world.log.write

    async def overtaken(writes: Sequence[Write]) -> list[Written]:
        monkeypatch.setattr(log, "write", write)
        await other.run_once()
        await settle()
        return await write(writes)

    monkeypatch.setattr(log, "write", overtaken)
    fetching = desk.fetching()
    await settle()
    await matcher.run_once()
    [_] = await desk.answered(fetching)
    assert len(await desk.hall.started()) == 1


async def test_expired_execution_is_not_given_away(desk: Desk) -> None:
    await desk.hall.matcher()
    log, clock = desk.hall.world.log, desk.hall.world.clock
    brief = admitted()
    fields = {"expires_at": clock.now() + timedelta(seconds=5), "meta": {"ojs": {"expires_at": "soon"}}}
    brief = brief.changed(plan=brief.plan.changed(**fields))
    sequence = await log.append(brief, expect=0)
    [task] = execution.dispatch(execution.fold(await log.load(subjects.execution(JOB, ID))), key=KEY)
    await log.append(task, expect=sequence)
    clock.advance(5)
    assert await desk.fetch() == []
    [failed] = await desk.hall.world.stored(Failed)
    assert failed.execution_id == ID
    assert await desk.hall.started() == []


@pytest.mark.parametrize("leads", [True, False])
async def test_fetch_without_a_leader_fails_after_a_while(desk: Desk, *, leads: bool) -> None:
    if not leads:
        await desk.hall.matcher(leads=False)
    fetching = desk.fetching(wait=20)
    for _ in range(int(PATIENCE_S / REPEAT_S) + 1):
        await settle()
        await desk.hall.passes(REPEAT_S)
    with pytest.raises(MatcherUnavailable) as refused:
        await fetching
    assert refused.value.code == "matcher-unavailable"


async def test_fetch_during_a_change_of_leaders_is_answered(desk: Desk) -> None:
    await desk.hall.trigger()
    fetching = desk.fetching()
    await settle()
    await desk.hall.passes(REPEAT_S)
    await desk.hall.matcher()
    [_] = await desk.answered(fetching)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "none"},
        {"gateway": "a.b"},
        {"gateway": ">"},
        {"queues": []},
        {"queues": ["q"] * 101},
        {"queues": ["q" * 256]},
        {"functions": ["f"] * 1_001},
        {"count": -1},
        {"count": 101},
        {"wait": 1e9},
        {"wait": -1},
        {"identity": "x" * 10_001},
        {"worker": "w" * 256},
        {"usual_lease": 0},
        {"asked_lease": 1e99},
        {"functions": ["f" * 1_000] * 100},
    ],
)
async def test_wrong_request_is_ignored(desk: Desk, fields: dict[str, Any]) -> None:
    await desk.hall.matcher()
    await desk.hear()
    await desk.hall.trigger()
    await desk.send(**fields)
    assert desk.answers == []
    assert await desk.hall.started() == []


@pytest.mark.parametrize("body", [b"", b"[" * 60_000, b'{"id": "x"}', b"\xff", b"null"])
async def test_message_that_is_no_request_is_ignored(desk: Desk, body: bytes) -> None:
    await desk.hall.matcher()
    await desk.hall.fetches.request(body)
    await desk.hall.trigger()
    [_] = await desk.fetch()


@pytest.mark.parametrize("body", [b"", b"[" * 60_000, b'{"id": "x"}', b"\xff"])
async def test_message_that_is_no_answer_is_ignored(desk: Desk, body: bytes) -> None:
    await desk.hall.matcher()
    await desk.hall.fetches.answer(desk.client._gateway, body)
    await desk.hall.trigger()
    [_] = await desk.fetch()


async def test_forged_answer_gives_no_foreign_task(desk: Desk) -> None:
    """The API reads each claim in the log, and compares its holder."""
    await desk.hall.matcher()
    await desk.hall.trigger()
    [held] = await desk.fetch()
    other = asyncio.create_task(
        desk.client.take(["mail"], functions=("*",), limit=1, holder=Holder("eve", "e"), lease=Lease(10))
    )
    await settle()
    [fetch_id] = desk.client._pending
    claim = {"scope": "execution.nightly." + held.found.execution_id + ".>", "step": "main"}
    body = {"id": fetch_id, "state": "served", "claims": [{**claim, "sequence": held.claim.sequence}]}
    await desk.hall.fetches.answer(desk.client._gateway, json.dumps(body).encode())
    results = await asyncio.gather(other, return_exceptions=True)
    assert isinstance(results[0], Exception)
    assert await desk.hall.world.stored(Released) == []


async def test_fetch_that_is_too_large_is_refused(desk: Desk) -> None:
    for functions in (("f",) * 1_001, ("f" * 1_000,) * 100):
        with pytest.raises(FetchTooLarge) as refused:
            await desk.fetch(functions=functions)
        assert refused.value.code == "fetch-too-large"


async def test_remembered_answers_are_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetches, "MAX_REMEMBERED", 3)
    monkeypatch.setattr(task_fetches, "MAX_ENDED", 3)
    matcher = await desk.hall.matcher()
    for _ in range(6):
        await desk.fetch()
    assert len(matcher._fetches._answers) == len(desk.client._ended) == 3


async def test_arrived_requests_are_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetches, "MAX_ARRIVED_BYTES", 1_000)
    matcher = await desk.hall.matcher()
    for _ in range(50):
        matcher._fetches.receive(b"x" * 100)
    assert len(matcher._fetches._arrived) == 10


async def test_paused_queue_gives_nothing_to_fetches(desk: Desk) -> None:
    await desk.hall.matcher()
    await desk.hall.trigger()
    decisions = QueueDecisions(desk.hall.world.log)
    await decisions.switch("default", paused=True)
    await desk.hall.work()
    assert await desk.fetch() == []
    fetching = desk.fetching(wait=20)
    await settle()
    await desk.hall.work()
    assert not fetching.done()
    await decisions.switch("default", paused=False)
    assert names(await desk.answered(fetching)) == ["nightly"]


async def shown(desk: Desk) -> list[AgentRecord]:
    """Return the workers in the bucket, a few seconds later."""
    for _ in range(2):
        await desk.hall.passes(CHANGE_INTERVAL_S)
    return list(await AgentRegistry(desk.hall.world.log, desk.hall.world.projections).agents())


async def test_http_worker_is_listed_with_its_tasks(desk: Desk) -> None:
    await desk.hall.matcher()
    await desk.hall.trigger()
    [held] = await desk.fetch("default", worker="py-1", lease=3_600)
    [worker] = await shown(desk)
    claim = held.claim.message
    assert (worker.name, worker.kind, worker.identity, worker.queues) == ("py-1", "http", "ada", ["default"])
    assert worker.held == [f"{claim.execution_id}.{claim.step}.{claim.attempt}"]
    await worker_answers.complete(desk.hall.world.log, held, key=KEY)
    await desk.hall.work()
    [worker] = await shown(desk)
    assert worker.held == []
    [matcher] = desk.hall.matchers
    assert matcher._http_workers._holders == {}


async def test_worker_that_only_fetches_is_listed(desk: Desk) -> None:
    await desk.hall.matcher()
    assert await desk.fetch(worker="py-1") == []
    [worker] = await shown(desk)
    assert (worker.name, worker.queues, worker.held) == ("py-1", ["default"], [])


async def test_worker_that_holds_a_task_is_not_lost(desk: Desk) -> None:
    await desk.hall.matcher()
    await desk.hall.trigger()
    [held] = await desk.fetch(worker="py-1", lease=3_600)
    for _ in range(12):
        await desk.hall.passes(10)
    assert [worker.state for worker in await shown(desk)] == [AgentState.ENABLED]
    await worker_answers.complete(desk.hall.world.log, held, key=KEY)
    await desk.hall.work()
    for _ in range(12):
        await desk.hall.passes(10)
    assert [worker.state for worker in await shown(desk)] == [AgentState.LOST]


async def test_next_leader_knows_what_workers_hold(desk: Desk) -> None:
    first = await desk.hall.matcher()
    await desk.hall.trigger()
    await desk.fetch(worker="py-1", lease=3_600)
    await desk.hall.stop(first)
    await desk.hall.matcher()
    for _ in range(12):
        await desk.hall.passes(10)
    [worker] = await shown(desk)
    assert (worker.name, worker.state, len(worker.held)) == ("py-1", AgentState.ENABLED, 1)


async def test_withdrawn_fetch_is_no_sign_of_its_worker(desk: Desk) -> None:
    await desk.hall.matcher()
    await desk.send(count=0, worker="py-1")
    assert await shown(desk) == []


QUIET: Final = OutsideName("ada", "quiet").token


async def switched(desk: Desk, *, enabled: bool, draining: bool = False) -> None:
    await desk.hall.world.given(AgentSwitched(name=QUIET, enabled=enabled, draining=draining))
    await settle()
    await desk.hall.work()


@pytest.mark.parametrize("draining", [False, True])
async def test_disabled_worker_fetches_nothing(desk: Desk, draining: bool) -> None:  # noqa: FBT001 - a parameter of the test
    await desk.hall.matcher()
    await switched(desk, enabled=False, draining=draining)
    for _ in range(2):
        await desk.hall.trigger()
    assert await desk.fetch(worker="quiet") == []
    assert len(await desk.fetch(worker="w")) == 1
    await switched(desk, enabled=True)
    assert len(await desk.fetch(worker="quiet")) == 1


async def test_waiting_fetch_of_an_enabled_worker_is_served(desk: Desk) -> None:
    await desk.hall.matcher()
    await switched(desk, enabled=False)
    await desk.hall.trigger()
    fetch = desk.fetching(worker="quiet", wait=20.0)
    for _ in range(3):
        await settle()
        await desk.hall.work()
    assert not fetch.done()
    await switched(desk, enabled=True)
    assert len(await desk.answered(fetch)) == 1


async def test_task_chosen_before_the_decision_is_not_claimed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator decides while the tokens of rates are taken."""
    matcher = await desk.hall.matcher()
    take = matcher._rates.take

    async def overtaken(wanted: Any) -> Any:  # noqa: ANN401 - as `QueueRates.take`
        monkeypatch.setattr(matcher._rates, "take", take)
        await desk.hall.world.given(AgentSwitched(name=QUIET, enabled=False))
        await settle()
        return await take(wanted)

    await desk.hall.trigger()
    await settle()
    monkeypatch.setattr(matcher._rates, "take", overtaken)
    assert await desk.fetch(worker="quiet") == []
    assert await desk.hall.started() == []
    assert matcher.board.claims_of("") == ()
    assert len(await desk.fetch(worker="w")) == 1


async def test_list_names_what_operators_decided(desk: Desk) -> None:
    await desk.hall.matcher()
    registry = AgentRegistry(desk.hall.world.log, desk.hall.world.projections)
    await desk.fetch(worker="quiet")
    for enabled, draining, state in (
        (False, False, AgentState.DISABLED),
        (False, True, AgentState.DRAINING),
        (True, False, AgentState.ENABLED),
    ):
        await switched(desk, enabled=enabled, draining=draining)
        await desk.fetch(worker="quiet")
        await desk.hall.passes(CHANGE_INTERVAL_S)
        assert [record.state for record in await registry.agents(QUIET)] == [state]
