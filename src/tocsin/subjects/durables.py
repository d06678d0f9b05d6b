"""Durable consumers that others than their own stage speak of. An executor's durable is its queue's."""

from typing import Final

from .tokens import DEFAULT_QUEUE, name, token

LOCK_KEEPER: Final = "lock-keeper"
LOCK_KEEPER_ENDS: Final = "lock-keeper-ends"
DAG_ADVANCER: Final = "dag-advancer"
DAG_ADVANCER_REPORTS: Final = "dag-advancer-reports"
DAG_ADVANCER_TIMERS: Final = "dag-advancer-timers"
RETRIER: Final = "retrier"
MQ_BRIDGE: Final = "mq-bridge"
RECOVERER: Final = "recoverer"
"""No durable: a follower with a cursor."""
JOB_EXECUTORS: Final = "job-executors"
REPLAYS: Final = "planner-replays"


def executor_durable(queue: str) -> str:
    """The durable that the executors of a queue share."""
    return JOB_EXECUTORS if queue == DEFAULT_QUEUE else f"queue-{token(queue)}"


def queue_of(durable: str) -> str | None:
    """The queue whose executors share a durable; None: that is somebody else's."""
    if durable == JOB_EXECUTORS:
        return DEFAULT_QUEUE
    return name(durable.removeprefix("queue-")) if durable.startswith("queue-") else None
