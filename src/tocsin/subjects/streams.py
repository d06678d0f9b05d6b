"""The streams, and which subjects each of them stores."""

from enum import StrEnum
from typing import Final


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
