"""Decisions of operators while a lagging replica answers, and while others decide."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import pytest

from tocsin import subjects
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.events import (
    OF_THE_NAME,
    AgentDrainStarted,
    AgentGranted,
    AgentRegistered,
    AgentSwitched,
    Message,
    QueueGrant,
    QueuePaused,
    QueuePurged,
    QueueResumed,
    Recorded,
)
from tocsin.engine.outside_workers import OutsideName
from tocsin.ports import LogUnavailable
from tocsin.services import agent_grants, scope_decisions
from tocsin.services.agents import AgentRegistry
from tocsin.services.queue_decisions import QueueDecisions
from tocsin.subjects import Bucket
from tocsin.testing import InMemoryEventLog, InMemoryProjections, ManualClock

AGENT: Final = "01890f3e-0000-7000-8000-000000000001"
REGISTERED: Final[dict[str, Any]] = {"name": "mail-1", "agent_id": AGENT}
EVERYTHING: Final = (QueueGrant(queue="*", functions=("*",)),)
QUEUE: Final = subjects.queue("mail")
PROCESS: Final = subjects.agent("mail-1", AGENT)


class LaggingLog(InMemoryEventLog):
    """A log whose replicas lack the newest event of a scope for some reads."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.stale_reads = 0

    async def load(self, scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        stored = await self.read(scope)
        if self.stale_reads and stored:
            self.stale_reads -= 1
            stored = stored[:-1]
        return [recorded for recorded in stored if recorded.sequence > after]


@pytest.fixture
def log() -> LaggingLog:
    return LaggingLog()


async def given(log: LaggingLog, *facts: Message) -> None:
    """Store events, of which the next read lacks the last."""
    for fact in facts:
        await log.append(fact, expect=await log.tail(_scope_of(fact)))
    log.stale_reads = 1


def _scope_of(fact: Message) -> str:
    if isinstance(fact, AgentSwitched | AgentGranted):
        return subjects.agent(fact.name, OF_THE_NAME)
    return PROCESS if isinstance(fact, AgentRegistered | AgentDrainStarted) else QUEUE


async def newest(log: LaggingLog, scope: str) -> Message:
    return (await log.read(scope))[-1].message


async def agents(log: LaggingLog) -> AgentRegistry:
    projections = InMemoryProjections(ManualClock())
    record = AgentRecord(**REGISTERED, state=AgentState.ENABLED)
    await projections.put(Bucket.AGENTS, f"mail-1.{AGENT}", record.model_dump_json().encode())
    return AgentRegistry(log, projections)


async def pause(log: LaggingLog) -> bool:
    return await QueueDecisions(log).switch("mail", paused=True)


async def resume(log: LaggingLog) -> bool:
    return await QueueDecisions(log).switch("mail", paused=False)


async def enable(log: LaggingLog) -> bool:
    return await (await agents(log)).switch("mail-1", enabled=True)


async def drain(log: LaggingLog) -> bool:
    return bool(await (await agents(log)).drain("mail-1"))


async def allow(log: LaggingLog) -> bool:
    return (await agent_grants.change(log, "allow", "mail-1", ["*"], [])).changed


@pytest.mark.parametrize(
    ("before", "decide", "after"),
    [
        ((QueuePaused(queue="mail"), QueueResumed(queue="mail")), pause, QueuePaused),
        ((QueuePaused(queue="mail"),), resume, QueueResumed),
        ((AgentSwitched(name="mail-1", enabled=False),), enable, AgentSwitched),
        ((AgentRegistered(**REGISTERED, max_concurrent_jobs=1),), drain, AgentDrainStarted),
        (
            (
                AgentGranted(name="mail-1", grants=EVERYTHING),
                AgentGranted(name="mail-1"),
            ),
            allow,
            AgentGranted,
        ),
    ],
)
async def test_lagging_replica_drops_no_decision(
    log: LaggingLog, before: Sequence[Message], decide: Callable[[LaggingLog], Awaitable[bool]], after: type[Message]
) -> None:
    await given(log, *before)
    assert await decide(log)
    assert isinstance(await newest(log, _scope_of(before[-1])), after)


async def test_lagging_replica_ends_no_worker(log: LaggingLog) -> None:
    """A worker that was directed to end does not start again by itself."""
    token = OutsideName("token:ann", "w").token
    drained = AgentSwitched(name=token, enabled=False, draining=True)
    await given(log, drained, AgentSwitched(name=token, enabled=True))
    assert await (await agents(log)).mode_over_http("token:ann", "w") == "enabled"


async def test_replica_that_stays_behind_is_an_error(log: LaggingLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope_decisions, "ANSWER_PAUSES", (0.0, 0.0))
    await given(log, QueuePaused(queue="mail"), QueueResumed(queue="mail"))
    log.stale_reads = 2
    with pytest.raises(LogUnavailable, match="cannot be read yet"):
        await pause(log)


async def test_decision_is_made_again_after_another(log: LaggingLog) -> None:
    rivals = [QueuePaused(queue="mail"), QueueResumed(queue="mail")]

    async def purged(stored: Sequence[Recorded[Message]]) -> list[QueuePurged]:
        if rivals:
            await log.append(rivals.pop(0), expect=stored[-1].sequence if stored else 0)
        return [QueuePurged(queue="mail", upto=len(stored) + 1)]

    [fact] = await scope_decisions.decide(log, QUEUE, purged)
    assert fact.upto == 3
    assert await newest(log, QUEUE) == fact


async def test_decision_gives_up_after_rivals(log: LaggingLog) -> None:
    async def paused(stored: Sequence[Recorded[Message]]) -> list[QueuePaused]:
        await log.append(QueueResumed(queue="mail"), expect=stored[-1].sequence if stored else 0)
        return [QueuePaused(queue="mail")]

    with pytest.raises(LogUnavailable, match="other writers"):
        await scope_decisions.decide(log, QUEUE, paused)
