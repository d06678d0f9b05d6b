"""The KV bucket `queues`, which only shows what waits and runs."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from ... import telemetry
from ...domain.namespaces import declared_of
from ...domain.notification_rule import ALARMING_DEATHS
from ...domain.queue_backlog import QueueBacklog
from ...domain.task_board import TaskBoard
from ...ports import Clock, LogUnavailable, OutdatedState, Projections
from ...subjects import Bucket, token

INTERVAL_S: Final = 2.0
"""The least time between two entries of a queue."""
MAX_FUNCTIONS: Final = 100
"""The number of functions in an entry."""

MAX_GROUPS: Final = 20
"""The number of groups in an entry that a limit of their job holds back."""
MAX_DEADLY: Final = 20
"""The number of jobs in an entry whose tasks lost workers."""
_UNLIMITED: Final = 1 << 62

_log = telemetry.get_logger("tocsin.matcher")


class BacklogDisplay:
    """Writes the entries that changed."""

    def __init__(
        self, projections: Projections, clock: Clock, queues: Sequence[str], limits: Mapping[str, int]
    ) -> None:
        self._projections = projections
        self._clock = clock
        self._queues = tuple(queues)
        self._limits = limits
        self._shown: dict[str, QueueBacklog] = {}
        self._shown_at = float("-inf")

    def forget(self) -> None:
        """Write every entry next time, because another matcher may write them now."""
        self._shown.clear()

    async def show(self, board: TaskBoard, room: Mapping[str, int]) -> None:
        """Write what changed, at most every few seconds; `room`: what the rates of queues leave."""
        now = self._clock.monotonic()
        if now - self._shown_at < INTERVAL_S:
            return
        self._shown_at = now
        try:
            for backlog in backlogs(board, (*self._queues, *self._shown), self._limits, room):
                if self._shown.get(backlog.queue) != backlog:
                    body = backlog.model_dump_json(exclude_defaults=True).encode()
                    await self._projections.put(Bucket.QUEUES, token(backlog.queue), body)
                    self._shown[backlog.queue] = backlog
            await self._remove_empty()
        except (LogUnavailable, OutdatedState) as error:
            self._shown.clear()
            _log.info("queues not shown in the bucket", action="queues-not-shown", error=str(error))

    async def _remove_empty(self) -> None:
        """Remove the entries of empty queues that no setting names.

        Jobs may name any number of queues.
        """
        for queue, backlog in tuple(self._shown.items()):
            if queue not in self._queues and not backlog.waiting and not backlog.running:
                await self._projections.remove(Bucket.QUEUES, token(queue))
                del self._shown[queue]


def backlogs(
    board: TaskBoard, queues: Sequence[str], limits: Mapping[str, int], room: Mapping[str, int]
) -> list[QueueBacklog]:
    """Return the backlog of each queue, and the limits that hold back its tasks."""
    by_queue: dict[str, dict[str, int]] = {queue: {} for queue in queues}
    for (queue, function), number in board.waiting.items():
        by_queue.setdefault(queue, {})[function] = number
    running, purging, oldest = board.running, board.purging, board.oldest_times()
    held_back, full = board.held_back(most=MAX_GROUPS), board.full_namespaces()
    deadly = board.deadly_jobs(ALARMING_DEATHS)

    def held_by(queue: str) -> Literal["concurrency", "namespace", "rate"] | None:
        if not by_queue[queue]:
            return None
        if running.get(queue, 0) >= limits.get(queue, _UNLIMITED):
            return "concurrency"
        if declared_of(queue, full) is not None:
            return "namespace"
        return "rate" if room.get(queue, 1) < 1 else None

    return [
        QueueBacklog(
            queue=queue,
            waiting=sum(functions.values()),
            running=running.get(queue, 0),
            oldest=oldest.get(queue),
            functions=dict(sorted(functions.items(), key=lambda item: (-item[1], item[0]))[:MAX_FUNCTIONS]),
            purging=purging.get(queue, 0),
            held_by=held_by(queue),
            held_back=held_back.get(queue),
            deadly_jobs=tuple(sorted(deadly.get(queue, ()))[:MAX_DEADLY]),
        )
        for queue, functions in by_queue.items()
    ]
