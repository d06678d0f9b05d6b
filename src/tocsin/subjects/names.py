"""Names as tokens of a subject, and back."""

from enum import StrEnum
from functools import lru_cache
from typing import Final

DEFAULT_QUEUE: Final = "default"
NO_DELIVERY: Final = "-"  # no delivery named
ANY: Final = "*"
"""No name, though a server stores what somebody publishes under it; read again it would stand for every name."""
REST: Final = ">"
WILDCARDS: Final = frozenset((ANY, REST))


@lru_cache(maxsize=16_384)
def token(name: str) -> str:
    """A job's or queue's name as one subject token: reversible, since names hold no underscore."""
    return name.replace(".", "_")


def name(of_token: str) -> str:
    """The name that `token` made a token of."""
    return of_token.replace("_", ".")


def dotted(job: str) -> str:
    """A name with its dots, as hip-62 writes it, unless they make an empty token."""
    return job if all(job.split(".")) else token(job)


class Stream(StrEnum):
    """The streams, by the part of their name behind the root: `TOCSIN_LEDGER`."""

    LEDGER = "LEDGER"
    LOG = "LOG"
    MQ = "MQ"


STREAM_SUBJECTS: Final[dict[Stream, tuple[str, ...]]] = {
    Stream.LEDGER: ("ledger.>", "trigger.>", "cancel.>", "enqueue.>", "leadership.>"),
    Stream.LOG: ("execution.>", "lock.>", "cron.>", "dead-letter.>", "report.>", "timer.>", "delay.>"),
    Stream.MQ: ("mq.scheduled.>", "mq.scheduler.complete.>"),
}
PUBLIC_EVENTS: Final = "cron.>"


def stream_of(subject: str) -> Stream:
    """The stream that stores a subject."""
    if subject.startswith(("ledger.", "trigger.", "cancel.", "enqueue.", "leadership.")):
        return Stream.LEDGER
    return Stream.MQ if subject.startswith("mq.") else Stream.LOG


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


class Bucket(StrEnum):
    """The KV buckets: projections and leases only."""

    DEFINITIONS = "definitions"
    LOCKS = "locks"
    LEADER = "leader"
    CURSORS = "cursors"
    INSTALLATION = "installation"
    TOKENS = "tokens"
    ANSWERS = "answers"


TICKER_LEASE: Final = "ticker"
RECOVERER_LEASE: Final = "recoverer"
ARCHIVER_LEASE: Final = "archiver"
ARCHIVE_STATE: Final = "archive"
"""The key in `cursors` that says how far the archive goes."""
INSTALLATION_KEY: Final = "report-key"


def cursor(stream: Stream, durable: str | None = None) -> str:
    """The key in `cursors` of the sequence up to which all is decided: for one durable, else for a whole stream."""
    return stream.value if durable is None else f"{stream.value}.{durable}"


def lock_key(job: str) -> str:
    """The key that shows a job's lock (hip-62, Distributed Locking)."""
    return f"scheduler.lock.{dotted(job)}"
