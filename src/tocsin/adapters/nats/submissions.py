"""Messages of a user outside, over core NATS, and their storage in JetStream."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from ...ports import Answer, Refusal, Submission
from .client.connection import Connection
from .client.connection_end import CLOSING_ERRORS
from .client.names import PROBE, Names
from .client.requests import MAX_WIRE_SUBJECT_BYTES
from .client.transport import SERVER_REPLIES, Outgoing
from .client.wire import Reply, too_large

_QUEUE_GROUP: Final = "screener"
_UNAVAILABLE: Final = 10_008
"""The server's `err_code` of an error that a retry may resolve."""
_BAD_REQUEST: Final = 10_003
_SERVER_ERRORS: Final = 500
_NO_ANSWER: Final = Refusal(503, "the stream did not answer; send it again")


class NatsScreeningChannel:
    """Implement `ports.ScreeningChannel` on a connection that serves one user outside."""

    def __init__(self, connection: Connection, names: Names, sender: str) -> None:
        self._connection = connection
        self._names = names
        self._prefix = names.unscreened(sender, "")

    @asynccontextmanager
    async def submissions(self, receive: Callable[[Submission], None]) -> AsyncIterator[None]:
        def pass_on(subject: str, reply: str, body: bytes, headers: Mapping[str, str] | None) -> None:
            relative = subject[len(self._prefix) :]
            if relative != PROBE:
                receive(Submission(relative, body, headers or {}, reply if reply.startswith(SERVER_REPLIES) else ""))

        subscription = await self._connection.transport.listen(f"{self._prefix}>", pass_on, queue=_QUEUE_GROUP)
        try:
            yield
        finally:
            with suppress(*CLOSING_ERRORS):
                await subscription.drain()  # type: ignore[no-untyped-call]

    async def store(self, submissions: Sequence[Submission]) -> list[Answer]:
        messages = [Outgoing(self._names.to_wire(s.subject), s.body, dict(s.headers)) for s in submissions]
        answers: list[Answer | None] = [self._refusal(message) for message in messages]
        accepted = [number for number, refusal in enumerate(answers) if refusal is None]
        replies = await self._connection.request_each([messages[number] for number in accepted]) if accepted else []
        for number, reply in zip(accepted, replies, strict=True):
            answers[number] = reply.data if isinstance(reply, Reply) and reply.data else _NO_ANSWER
        return [answer for answer in answers if answer is not None]

    async def answer(self, submissions: Sequence[tuple[Submission, Answer]]) -> None:
        messages = [Outgoing(s.reply, _encoded(answer)) for s, answer in submissions if s.reply]
        if not messages or not self._connection.client.is_connected:
            return
        with suppress(*CLOSING_ERRORS):
            await self._connection.transport.send(messages)

    def _refusal(self, message: Outgoing) -> Refusal | None:
        """Return why a message cannot be sent: the server would end the connection."""
        size = len(message.subject.encode())
        if size > MAX_WIRE_SUBJECT_BYTES:
            return Refusal(400, f"the subject has {size:,} bytes, and at most {MAX_WIRE_SUBJECT_BYTES:,} are possible")
        error = too_large(message, self._connection.client.max_payload)
        return None if error is None else Refusal(400, str(error))


def _encoded(answer: Answer) -> bytes:
    """Return an answer as JetStream writes it."""
    if not isinstance(answer, Refusal):
        return answer
    number = _UNAVAILABLE if answer.code >= _SERVER_ERRORS else _BAD_REQUEST
    return json.dumps({"error": {"code": answer.code, "err_code": number, "description": answer.reason}}).encode()
