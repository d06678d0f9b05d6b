"""Messages of one user outside, before a stream has them.

Only the screener uses this.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, TypeAlias


class Submission(NamedTuple):
    """A message that a user outside published for a stream."""

    subject: str
    """The relative subject under which it is to be stored."""
    body: bytes
    headers: Mapping[str, str]
    """All headers of its publisher, or those to store."""
    reply: str = ""
    """Where its publisher expects the answer; empty: it expects none."""


class Refusal(NamedTuple):
    """The answer to a message that no stream has."""

    code: int
    """As in HTTP: from 500 on, the publisher may send the message again."""
    reason: str


Answer: TypeAlias = bytes | Refusal
"""The answer of the stream as it is, also if it refuses the message; or the screener's."""


class ScreeningChannel(Protocol):
    """Submissions of one user, shared by all screeners: each submission reaches one of them.

    A message may be lost before it is stored. Then its publisher gets no answer.
    """

    def submissions(self, receive: Callable[[Submission], None]) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each submission on; at its end, those that have arrived already."""
        ...

    async def store(self, submissions: Sequence[Submission]) -> list[Answer]:
        """Store messages in one write, and return the answer to each."""
        ...

    async def answer(self, submissions: Sequence[tuple[Submission, Answer]]) -> None:
        """Answer the publishers that expect it.

        The answers are lost if there is no connection.
        """
        ...


OpenScreening: TypeAlias = Callable[[str], AbstractAsyncContextManager[ScreeningChannel]]
"""Opens the channel of a user outside."""
