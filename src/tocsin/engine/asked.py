"""Decisions on messages that the loop of commits does not read.

They are messages of followers, and of durables over streams of others.

The loop makes such a decision on its fold, and stores its events with the next commit. Everything else follows then: the caller sends it, shows it,
and acknowledges the message. A decision may be requested again at any time, so it adds nothing the second time.
"""

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..domain.events import Message, Recorded
from ..domain.execution import Execution
from ..subjects import DECISION_STREAMS, stream_of
from .fold_view import View
from .stage import BoundSubscription
from .step import Missing, Reading, Ref, Step

if TYPE_CHECKING:
    from .fold import Fold

T = TypeVar("T")


def is_in_log(ref: Ref[Any]) -> bool:
    """Return whether the events of a scope are in commits; notifications have a stream."""
    return stream_of(ref.key) in DECISION_STREAMS


class Promised(Generic[T]):
    """A decision that is answered once it is stored."""

    cause: str  # its name, as in `domain.commit.CommitEvent`

    def __init__(self, by: str) -> None:
        self.by = by
        self.stored: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        """Answer: it cannot be decided, or not be stored."""
        if not self.stored.done():
            self.stored.set_exception(error)

    def answer(self, result: T) -> None:
        """Answer: it is stored."""
        if not self.stored.done():
            self.stored.set_result(result)


class Asked(Promised[Step]):
    """A decision that a part of the process requests, answered with its stored events."""

    def __init__(
        self,
        by: str,
        subscription: BoundSubscription,
        recorded: Recorded[Message],
        source: str,
        *,
        read: Mapping[Ref[Any], Any],
        changed: AbstractSet[Ref[Any]] = frozenset(),
        sent: AbstractSet[str] = frozenset(),
    ) -> None:
        """`by`: the stage.

        `source`: the stream of the message. `read`: data outside the fold that the decision may look at.

        `changed`, `sent`: what earlier steps of the decision stored and sent.
        """
        super().__init__(by)
        self.subscription = subscription
        self.recorded = recorded
        self.read = read
        self.changed = changed
        self.sent = sent
        self.cause = f"{source}-{recorded.sequence}"
        self.step: Step | None = None
        """The decision, as it is made last."""

    def settle(self) -> None:
        if self.step is not None:
            self.answer(self.step)


class AskedView(View):
    """The fold for a requested decision, with the data that was read elsewhere."""

    def __init__(self, fold: "Fold", now: datetime, asked: Asked) -> None:
        super().__init__(fold, now)
        self.changed |= asked.changed
        self.sent |= asked.sent
        self._more = asked.read

    def __call__(self, ref: Ref[T], /) -> T:
        """Return a state, or the answer to a reading.

        Raises:
            Missing: the asker must read it first.
        """
        if ref in self._more:
            read: T = self._more[ref]
            return read
        if ref.kind.read is not None if isinstance(ref.kind, Reading) else not is_in_log(ref):
            raise Missing(ref)
        answer = super().__call__(ref)
        if isinstance(answer, Execution) and answer.is_over and answer.requested is None:
            raise Missing(ref)  # it has left the fold; a follower comes after its end
        return answer
