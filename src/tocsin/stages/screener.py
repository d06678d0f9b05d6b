"""Screener: stores what users outside publish, without the headers that would command the server.

A header can make nats-server refuse, replace or expire messages, and one of them stops a stream that several servers keep. No
permission looks at headers. So users outside do not publish into streams: the server maps their messages to subjects that the
screener hears. It stores each under the subject that was meant, with the headers that a stage reads, and answers with the
answer of the stream. It publishes the answer itself: with the publisher's reply subject on its own message, the server could store
its answer in a stream.

Each user has a connection of its own, and each of its streams a lane, with a limit for the messages that are not stored yet. So a
flood of one user, or a stream without a leader, delays only itself.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Coroutine, Iterable, Mapping
from typing import Final

from .. import subjects, telemetry
from ..engine.stage import Access, Stage, StageContext
from ..ports import Answer, OpenScreening, Refusal, ScreeningChannel, Submission

LANE_MESSAGES: Final = 2_048
"""Messages of a user for one stream that may wait to be stored."""
LANE_BYTES: Final = 4_194_304
"""Bytes of their subjects, headers and bodies."""
WAVE: Final = 256
"""Messages that are stored in one write."""
UNSENT_REFUSALS: Final = 2_048
"""Refusals that may wait to be sent. Publishers beyond it get no answer."""
FINISH_WITHIN_S: Final = 10.0
"""Seconds to store and answer at the end what has arrived."""
BUSY: Final = Refusal(503, "too many messages of this user wait to be stored; send it again later")
FOREIGN_SUBJECT: Final = Refusal(400, "no stream takes messages of users outside under this subject")
INVALID_ID: Final = Refusal(400, f"the header {subjects.MESSAGE_ID} must be printable text in UTF-8")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
"""What stands in a text for bytes that are no UTF-8."""

_log = telemetry.get_logger("tocsin.screener")
_refused: Final = telemetry.meter().create_counter(
    "tocsin_submissions_refused", unit="{message}", description="Messages of users outside that the screener refused."
)


class Screener:
    """Stores the submissions of all users outside."""

    def __init__(self, opened: OpenScreening, senders: Iterable[str], streams: Collection[str] = ()) -> None:
        """`opened` opens the channel of a user.

        `streams`: the names of the installation's streams on the server.
        """
        self._open = opened
        self._senders = tuple(senders)
        self._streams = streams

    async def run(self) -> None:
        """Screen until cancelled; then store and answer what has arrived."""
        async with asyncio.TaskGroup() as group:
            for sender in self._senders:
                group.create_task(self._screen(sender), name=f"submissions of {sender}")

    async def _screen(self, sender: str) -> None:
        async with self._open(sender) as channel:
            desk = Desk(channel, self._streams)
            try:
                async with channel.submissions(desk.receive):
                    await asyncio.Event().wait()
            finally:
                await desk.finish()


class Desk:
    """The submissions of one user, until they are answered."""

    def __init__(self, channel: ScreeningChannel, streams: Collection[str] = ()) -> None:
        """Store and answer by `channel`.

        `streams`: the names of the installation's streams on the server.
        """
        self._channel = channel
        self._streams = streams
        self._lanes: dict[str, _Lane] = {}
        self._refusals: list[tuple[Submission, Answer]] = []
        self._is_refusing = False
        """Whether a task sends the refusals."""
        self._tasks: set[asyncio.Task[None]] = set()

    def receive(self, submission: Submission) -> None:
        """Take a submission, or refuse it."""
        subject = submission.subject
        is_copied = subjects.is_copied_input(subject, submission.headers, self._streams)
        if is_copied or not any(subjects.matches(pattern, subject) for pattern in subjects.OUTSIDE_SUBJECTS):
            self._refuse(submission, FOREIGN_SUBJECT)
            return
        headers = screened(submission.headers)
        if headers is None:
            self._refuse(submission, INVALID_ID)
            return
        lane = self._lanes.setdefault(subjects.stream_of(subject), _Lane())
        if not lane.add(submission._replace(headers=headers)):
            self._refuse(submission, BUSY)
        elif not lane.is_busy:
            lane.is_busy = True
            self._start(self._store(lane))

    async def finish(self) -> None:
        """Wait until everything that arrived is stored and answered, within a time limit."""
        if self._tasks:
            _, unfinished = await asyncio.wait(self._tasks, timeout=FINISH_WITHIN_S)
            for task in unfinished:
                task.cancel()

    async def _store(self, lane: "_Lane") -> None:
        while wave := lane.next():
            try:
                answers = await self._channel.store(wave)
                await self._channel.answer(list(zip(wave, answers, strict=True)))
            except Exception as error:  # noqa: BLE001 - the publishers get no answer, and send their messages again
                _log.error("submissions were not stored", action="screening-failed", exc_info=error)
            lane.forget(wave)
        lane.is_busy = False

    def _refuse(self, submission: Submission, refusal: Refusal) -> None:
        _refused.add(1)
        if not submission.reply or len(self._refusals) >= UNSENT_REFUSALS:
            return
        self._refusals.append((submission._replace(body=b"", headers={}), refusal))  # they would only use memory
        if not self._is_refusing:
            self._is_refusing = True
            self._start(self._send_refusals())

    async def _send_refusals(self) -> None:
        """Send the refusals that wait, and those that come meanwhile."""
        try:
            while self._refusals:
                refusals, self._refusals = self._refusals, []
                await self._channel.answer(refusals)
        finally:
            self._is_refusing = False

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Lane:
    """Submissions of one user for one stream that are not stored yet, in order."""

    def __init__(self) -> None:
        self.is_busy = False
        """Whether a task stores them."""
        self._waiting: deque[Submission] = deque()
        self._messages = 0
        self._bytes = 0

    def add(self, submission: Submission) -> bool:
        """Add a submission unless the lane is full; return whether it was added."""
        size = _size(submission)
        if self._messages >= LANE_MESSAGES or self._bytes + size > LANE_BYTES:
            return False
        self._waiting.append(submission)
        self._messages += 1
        self._bytes += size
        return True

    def next(self) -> list[Submission]:
        """Return the next submissions to store."""
        return [self._waiting.popleft() for _ in range(min(WAVE, len(self._waiting)))]

    def forget(self, stored: list[Submission]) -> None:
        """Make room for others."""
        self._messages -= len(stored)
        self._bytes -= sum(map(_size, stored))


def _size(submission: Submission) -> int:
    headers = sum(len(name) + len(value) for name, value in submission.headers.items())
    return len(submission.body) + len(submission.subject) + headers


def screened(headers: Mapping[str, str]) -> dict[str, str] | None:
    """Return the headers that a stage reads; None: the message id is unusable."""
    trace = subjects.trace_header(headers)
    kept = {} if trace is None or not trace[1].isprintable() else dict([trace])
    message_id = headers.get(subjects.MESSAGE_ID)
    if message_id:
        if _REPLACEMENT in message_id or not message_id.isprintable():
            return None
        kept[subjects.MESSAGE_ID] = message_id
    return kept


def _start(context: StageContext) -> Screener | None:
    if context.screening is None:
        return None
    return Screener(context.screening, context.settings.outsiders, subjects.stream_names(context.settings.root))


SCREENER: Final = Stage(
    name="screener",
    purpose="stores what users outside publish, without their headers",
    consumes="messages of users outside, which no stream has yet",
    decides="requests of programs, reports and output of workers, completions of MQ executors: as they were published",
    access=Access(screens=True),
    start=_start,
    loops=(Screener.run,),
    is_installed=lambda settings: settings.screener.enabled,
    needs="`screener.enabled`",
)
