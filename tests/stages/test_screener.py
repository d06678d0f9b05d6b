"""The screener over the in-memory channel: what it stores, what it refuses, and how much may wait."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count

import pytest

from tocsin import subjects
from tocsin.domain.events import Trigger
from tocsin.domain.trace_context import parse
from tocsin.ports import Answer, LogUnavailable, Refusal, RequestRefused, Submission
from tocsin.settings import Settings
from tocsin.stages.screener import (
    BUSY,
    FOREIGN_SUBJECT,
    INVALID_ID,
    LANE_BYTES,
    LANE_MESSAGES,
    SCREENER,
    UNSENT_REFUSALS,
    WAVE,
    Screener,
    screened,
)
from tocsin.subjects import MAX_INPUT_SIZE, MESSAGE_ID, Stream, stream_of
from tocsin.testing import InMemoryEventLog, settle

TRIGGER = "outside.shop.trigger.job"
REPORT = "report.job.id.completed.main.1.0000000000000000.1"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
COMMANDS = {
    "Nats-Expected-Last-Msg-Id": "one",
    "Nats-Expected-Last-Sequence": "7",
    "Nats-Expected-Last-Subject-Sequence": "0",
    "Nats-Expected-Stream": "TOCSIN_LEDGER",
    "Nats-Rollup": "all",
    "Nats-TTL": "1s",
    "Nats-Schedule": "@at 2020-01-01T00:00:00Z",
    "Nats-Batch-Id": "b",
    "Nats-Incr": "1",
    "nats-msg-id": "other",
    "Nats-Request-Info": "{}",
}


class InMemoryScreeningChannel:
    """A `ports.ScreeningChannel` that all screeners and the publisher of a test share."""

    def __init__(self, log: InMemoryEventLog) -> None:
        self.is_available = True
        self._log = log
        self._screeners: list[Callable[[Submission], None]] = []
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        self._numbers = count(1)

    def publish(self, subject: str, body: bytes, headers: Mapping[str, str] | None = None, reply: str = "") -> None:
        if not self._screeners:
            raise LogUnavailable(f"{subject}: no screener listens")
        self._screeners.append(self._screeners.pop(0))
        self._screeners[-1](Submission(subject, body, headers or {}, reply))

    async def request(self, subject: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        reply = str(next(self._numbers))
        self._answers[reply] = asyncio.get_running_loop().create_future()
        self.publish(subject, body, headers, reply)
        return await self._answers[reply]

    @asynccontextmanager
    async def submissions(self, receive: Callable[[Submission], None]) -> AsyncIterator[None]:
        self._screeners.append(receive)
        try:
            yield
        finally:
            self._screeners.remove(receive)

    async def store(self, submissions: Sequence[Submission]) -> list[Answer]:
        await asyncio.sleep(0)
        return list(map(self._stored, submissions))

    async def answer(self, submissions: Sequence[tuple[Submission, Answer]]) -> None:
        for submission, answer in submissions:
            if submission.reply:
                self._answers.pop(submission.reply).set_result(answer)

    def _stored(self, submission: Submission) -> Answer:
        subject, body, headers, _ = submission
        if not self.is_available:
            return Refusal(503, "the stream did not answer")
        newest = self._log.stream(stream_of(subject)).last_sequence
        try:
            sequence = self._log.receive(subject, body, message_id=headers.get(MESSAGE_ID), headers=headers)
        except RequestRefused as error:
            return Refusal(400, str(error))
        is_duplicate = {"duplicate": True} if sequence <= newest else {}
        return json.dumps({"seq": sequence, **is_duplicate}).encode()


@pytest.fixture
def log() -> InMemoryEventLog:
    return InMemoryEventLog()


@pytest.fixture
def channel(log: InMemoryEventLog) -> InMemoryScreeningChannel:
    return InMemoryScreeningChannel(log)


@asynccontextmanager
async def screening(channel: InMemoryScreeningChannel) -> AsyncIterator[None]:
    """Run a screener within the block, and let it finish."""

    @asynccontextmanager
    async def opened(_: str) -> AsyncIterator[InMemoryScreeningChannel]:
        yield channel

    running = asyncio.create_task(Screener(opened, ["public-shop"]).run())
    await settle()
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def stored(log: InMemoryEventLog, stream: Stream = Stream.INPUTS) -> list[tuple[str, bytes, Mapping[str, str]]]:
    entries = log.stream(stream).matching((">",), 0)
    return [(entry.subject, entry.body, entry.headers) for entry in entries]


def fields(answer: Answer) -> dict[str, object]:
    assert isinstance(answer, bytes), answer
    found: dict[str, object] = json.loads(answer)
    return found


async def test_message_is_stored_without_commands(log: InMemoryEventLog, channel: InMemoryScreeningChannel) -> None:
    async with screening(channel):
        answer = await channel.request(
            TRIGGER, b'{"input":{}}', {**COMMANDS, "Nats-Msg-Id": "one", "traceparent": TRACE}
        )
    assert fields(answer) == {"seq": 1}
    assert stored(log) == [(TRIGGER, b'{"input":{}}', {"Nats-Msg-Id": "one", "traceparent": TRACE})]
    assert isinstance(subjects.decode(TRIGGER, stored(log)[0][1]), Trigger)


async def test_message_sent_again_is_stored_once(log: InMemoryEventLog, channel: InMemoryScreeningChannel) -> None:
    async with screening(channel):
        answers = [await channel.request(TRIGGER, b"{}", {"Nats-Msg-Id": "one"}) for _ in range(2)]
    assert list(map(fields, answers)) == [{"seq": 1}, {"seq": 1, "duplicate": True}]
    assert len(stored(log)) == 1


async def test_message_without_reply_is_stored(log: InMemoryEventLog, channel: InMemoryScreeningChannel) -> None:
    async with screening(channel):
        channel.publish(TRIGGER, b"{}")
    assert len(stored(log)) == 1


async def test_messages_of_one_user_keep_their_order(log: InMemoryEventLog, channel: InMemoryScreeningChannel) -> None:
    bodies = [str(number).encode() for number in range(WAVE + 2)]
    async with screening(channel):
        await asyncio.gather(*(channel.request(TRIGGER, body) for body in bodies))
    assert [body for _, body, _ in stored(log)] == bodies


async def test_what_arrived_is_stored_at_the_end(log: InMemoryEventLog, channel: InMemoryScreeningChannel) -> None:
    async with screening(channel):
        answers = [asyncio.create_task(channel.request(TRIGGER, b"{}")) for _ in range(WAVE + 1)]
        await asyncio.sleep(0)
    assert len([fields(await answer) for answer in answers]) == len(stored(log)) == WAVE + 1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {}),
        (COMMANDS, {}),
        ({"Nats-Msg-Id": ""}, {}),
        ({"Nats-Msg-Id": "a.b.*.>"}, {"Nats-Msg-Id": "a.b.*.>"}),
        ({"Nats-Msg-Id": "\N{SNOWMAN}"}, {"Nats-Msg-Id": "\N{SNOWMAN}"}),
        ({"Nats-Msg-Id": "\ufffd"}, None),
        ({"Nats-Msg-Id": "a\nNats-Rollup: all"}, None),
        ({"Nats-Msg-Id": "a\x85b"}, None),
        ({"Traceparent": TRACE}, {"Traceparent": TRACE}),
        ({"traceparent": TRACE, "tracestate": "a=b"}, {"traceparent": TRACE}),
        ({"traceparent": "00-0"}, {}),
        ({"traceparent": "01" + TRACE[2:] + "-a\nNats-Rollup: all"}, {}),
    ],
)
def test_only_headers_that_stages_read_are_kept(given: Mapping[str, str], kept: Mapping[str, str] | None) -> None:
    assert screened(given) == kept


def test_version_of_trace_with_newline_is_valid() -> None:
    """The case above tests the newline, and not the form."""
    assert parse("01" + TRACE[2:] + "-a\nNats-Rollup: all") is not None


@pytest.mark.parametrize(
    "subject",
    [
        "ledger.job.defined",
        "trigger.job",
        "public.trigger.job",
        "timer.job.id.retry.main.1",
        "execution.job.id.admitted",
        "outside.shop.enqueue.job",
        "mq.scheduled.job",
        "mq.scheduler.cancel.job.id",
        "report",
        "report..x",
        "",
    ],
)
async def test_subject_of_no_user_outside_is_refused(
    subject: str, log: InMemoryEventLog, channel: InMemoryScreeningChannel
) -> None:
    async with screening(channel):
        assert await channel.request(subject, b"{}") == FOREIGN_SUBJECT
    assert not any(stored(log, stream) for stream in Stream)


async def test_id_that_cannot_be_stored_is_refused(log: InMemoryEventLog, channel: InMemoryScreeningChannel) -> None:
    async with screening(channel):
        assert await channel.request(TRIGGER, b"{}", {"Nats-Msg-Id": "\ufffd"}) == INVALID_ID
    assert not stored(log)


async def test_silent_stream_is_answered_with_retry(channel: InMemoryScreeningChannel) -> None:
    channel.is_available = False
    async with screening(channel):
        answer = await channel.request(TRIGGER, b"{}")
    assert isinstance(answer, Refusal)
    assert answer.code == 503


async def test_no_message_is_accepted_without_a_screener(channel: InMemoryScreeningChannel) -> None:
    async with screening(channel):
        pass
    with pytest.raises(Exception, match="no screener listens"):
        await channel.request(TRIGGER, b"{}")


@pytest.mark.parametrize(
    ("body", "headers", "room"),
    [
        (b"{}", {}, LANE_MESSAGES),
        (b"x" * MAX_INPUT_SIZE, {}, LANE_BYTES // (MAX_INPUT_SIZE + len(TRIGGER))),
        (b"", {MESSAGE_ID: "x" * MAX_INPUT_SIZE}, LANE_BYTES // (MAX_INPUT_SIZE + len(TRIGGER + MESSAGE_ID))),
    ],
)
async def test_flood_of_one_stream_is_refused_alone(
    body: bytes, headers: dict[str, str], room: int, log: InMemoryEventLog, channel: InMemoryScreeningChannel
) -> None:
    async with screening(channel):
        flood = [asyncio.create_task(channel.request(TRIGGER, body, headers)) for _ in range(room + 3)]
        report = asyncio.create_task(channel.request(REPORT, b"{}"))
        answers = await asyncio.gather(*flood)
        assert fields(await report) == {"seq": 1}
        assert answers[room:] == [BUSY] * 3
        assert BUSY not in answers[:room]
        assert await channel.request(TRIGGER, b"{}") != BUSY
    assert len(stored(log, Stream.REPORTS)) == 1


async def test_refusals_that_wait_are_limited(
    channel: InMemoryScreeningChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection takes no answers for a while."""
    sent: list[Sequence[tuple[Submission, Answer]]] = []
    is_writable = asyncio.Event()

    async def answer(submissions: Sequence[tuple[Submission, Answer]]) -> None:
        sent.append(submissions)
        await is_writable.wait()

    monkeypatch.setattr(channel, "answer", answer)
    async with screening(channel):
        for _ in range(3):
            for _ in range(UNSENT_REFUSALS):
                channel.publish("ledger.job.defined", b"x", {"A": "b"}, reply="r")
            await settle()
        is_writable.set()
    assert list(map(len, sent)) == [UNSENT_REFUSALS] * 2
    assert not any(submission.body or submission.headers for answers in sent for submission, _ in answers)


def test_users_outside_are_those_of_the_settings() -> None:
    settings = Settings.model_validate(
        {"programs": ["shop"], "agents": {"accounts": ["mail"]}, "queues": {"q": {"transport": "mq"}}}
    )
    assert settings.outsiders == ("worker", "worker-mail", "public", "public-shop", "mq-executor")
    assert not SCREENER.is_installed(settings)
