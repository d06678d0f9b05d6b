"""Messages that were read ahead, and are handled in turns of their publishers and jobs."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from nats.aio.msg import Msg

READ_AHEAD_BYTES: Final = 16_777_216
"""The size of the bodies that may wait here."""

TurnOf: TypeAlias = Callable[[str], tuple[str, str]]
"""Return the publisher and the job of a subject on the wire."""


class FairOrder:
    """Waiting messages of one subscription.

    Publishers take turns, and the jobs of a publisher take turns within its own. So a message waits for one turn of each other, and not for
    their backlogs. The messages of one job keep their order.
    """

    def __init__(self, turn_of: TurnOf) -> None:
        self._turn_of = turn_of
        self._waiting: OrderedDict[str, OrderedDict[str, deque[Msg]]] = OrderedDict()
        self._count = self._bytes = 0

    def __len__(self) -> int:
        return self._count

    @property
    def messages(self) -> list[Msg]:
        """The waiting messages."""
        return [message for jobs in self._waiting.values() for queue in jobs.values() for message in queue]

    @property
    def free_bytes(self) -> int:
        """The size that more bodies may have."""
        return READ_AHEAD_BYTES - self._bytes

    def add(self, messages: Iterable[Msg]) -> None:
        """Add messages after those of the same job."""
        for message in messages:
            publisher, job = self._turn_of(message.subject)
            self._waiting.setdefault(publisher, OrderedDict()).setdefault(job, deque()).append(message)
            self._count += 1
            self._bytes += len(message.data)

    def take(self, limit: int) -> list[Msg]:
        """Remove and return up to `limit` messages."""
        taken = [self._next() for _ in range(min(limit, self._count))]
        self._count -= len(taken)
        self._bytes -= sum(len(message.data) for message in taken)
        return taken

    def _next(self) -> Msg:
        publisher, jobs = self._waiting.popitem(last=False)
        job, queue = jobs.popitem(last=False)
        message = queue.popleft()
        if queue:
            jobs[job] = queue
        if jobs:
            self._waiting[publisher] = jobs
        return message
