"""Messages of a user outside, in memory, and their storage in the log."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import count

from ...ports import Answer, LogUnavailable, Refusal, RequestRefused, Submission
from ...subjects import MESSAGE_ID, stream_of
from .agents import listening
from .event_log import InMemoryEventLog


class InMemoryScreeningChannel:
    """Implement `ports.ScreeningChannel`: a channel that all screeners and the publisher of a test share."""

    def __init__(self, log: InMemoryEventLog) -> None:
        self.is_available = True
        """Set it to False to let the streams not answer."""
        self._log = log
        self._screeners: list[Callable[[Submission], None]] = []
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        self._numbers = count(1)

    def publish(self, subject: str, body: bytes, headers: Mapping[str, str] | None = None, reply: str = "") -> None:
        """Publish as the user outside; a screener gets the message.

        Raises:
            LogUnavailable: no screener listens.
        """
        if not self._screeners:
            raise LogUnavailable(f"{subject}: no screener listens")
        self._screeners.append(self._screeners.pop(0))
        self._screeners[-1](Submission(subject, body, headers or {}, reply))

    async def request(self, subject: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """Publish as the user outside, and return the answer.

        Raises:
            LogUnavailable: no screener listens.
        """
        reply = str(next(self._numbers))
        self._answers[reply] = asyncio.get_running_loop().create_future()
        self.publish(subject, body, headers, reply)
        return await self._answers[reply]

    def submissions(self, receive: Callable[[Submission], None]) -> AbstractAsyncContextManager[None]:
        return listening(self._screeners, receive)

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
