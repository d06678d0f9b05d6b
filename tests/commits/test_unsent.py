"""A process decides on while a stream takes no more inputs of its stages, and after a wrong value."""

import asyncio
from datetime import datetime
from typing import Any, cast

import pytest

from tests.commits.processes import until
from tests.commits.test_restart import KEY, Watching
from tocsin import subjects
from tocsin.adapters.memory.agents import InMemoryTurnChannel
from tocsin.adapters.memory.clock import LoopClock
from tocsin.adapters.memory.commit_log import InMemoryCommitLog
from tocsin.adapters.memory.event_log import InMemoryEventLog
from tocsin.bootstrap.commit_process import CommitProcess
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import CancelRequest, Defined, InvalidMessage, Message, Recorded, Released
from tocsin.engine.stage import BoundStage, BoundSubscription
from tocsin.engine.step import Send, States, Step, done
from tocsin.ports import LogUnavailable
from tocsin.subjects import Stream

ID = "a" * 26


class Full(InMemoryEventLog):
    """Streams that take no inputs until they have room again."""

    is_full = True

    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        if self.is_full:
            raise LogUnavailable("the stream is full")
        return await super().publish(subject, message, message_id=message_id, ttl=ttl)


async def test_full_stream_stops_no_other_decision() -> None:
    def decide(recorded: Recorded[Any], _: States, __: datetime) -> Step:
        return done(Send(subjects.cancel(recorded.message.job, ID), CancelRequest(), recorded.message.job))

    stage = BoundStage("planner", (BoundSubscription("planner", Stream.LEDGER, ("ledger.*.defined",), decide),))
    clock, turns = LoopClock(), InMemoryTurnChannel()
    log, inputs = InMemoryCommitLog(clock), Full(clock)
    process = CommitProcess(log, inputs, clock, KEY, installation="i", name="process", turns=turns)
    async with asyncio.timeout(20), process.running([stage], Watching()) as loop:
        for job in ("one", "two", "three"):
            definition = JobDefinition(name=job, function="f")
            await loop.propose("test", [Defined(job=job, definition=definition)], expect=0)
        assert await inputs.tails(subjects.filter_for("cancel")) == [0]
        inputs.is_full = False
        await until(lambda: not process.effects._unsent)
        stored = [recorded.subject for recorded in await inputs.load(subjects.filter_for("cancel"))]
        assert stored == [subjects.cancel(job, ID) for job in ("one", "two", "three")]


async def test_wrong_value_is_refused_before_it_waits() -> None:
    clock, turns = LoopClock(), InMemoryTurnChannel()
    log, inputs = InMemoryCommitLog(clock), InMemoryEventLog(clock)
    process = CommitProcess(log, inputs, clock, KEY, installation="i", name="process", turns=turns)
    wrong = Released(job="one", execution_id=ID, step="main", attempt=1, delivery=1, reason=cast("Any", 42), task=1)
    async with asyncio.timeout(20), process.running([BoundStage("planner")], Watching()) as loop:
        with pytest.raises(InvalidMessage, match="`reason`"):
            await loop.propose("test", [wrong], expect=0)
        assert await loop.propose(
            "test", [Defined(job="one", definition=JobDefinition(name="one", function="f"))], expect=0
        )
