"""Outcomes of handlers, and the settlement of their deliveries."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from pydantic import JsonValue

from .. import telemetry
from ..domain.events import Failure
from ..ports import Delivery

FIRST_RETRY_DELAY_S: Final = 0.1
LONGEST_RETRY_DELAY_S: Final = 5.0
_DOUBLINGS_TO_LONGEST: Final = 6

_log = telemetry.get_logger("tocsin.worker")


def retry_delay(failures: int) -> float:
    """Return the seconds to wait after a number of failures, 1 or more.

    0.1, 0.2, 0.4 … and never more than 5.
    """
    return min(FIRST_RETRY_DELAY_S * 2.0 ** min(failures - 1, _DOUBLINGS_TO_LONGEST), LONGEST_RETRY_DELAY_S)


class StopReason(StrEnum):
    """The reason for which the worker stopped a handler."""

    SHUTDOWN = "shutdown"
    """The worker stops; another worker may run the task."""
    CANCELLED = "cancelled"
    """The execution was cancelled; no worker may run the task."""


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned plain JSON."""

    result: JsonValue


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed, in the handler or around it."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Stopped:
    """The worker stopped the handler, so there is nothing to report."""

    reason: StopReason


Outcome: TypeAlias = Succeeded | Failed | Stopped


@dataclass(frozen=True, slots=True)
class Ack:
    """The task is done and never delivered again."""


@dataclass(frozen=True, slots=True)
class HandBack:
    """The queue delivers the task again after `delay` seconds, to any of its workers."""

    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Leave:
    """Another worker holds the task.

    Send nothing, because the queue would attribute it to that worker. If the holder is dead, the queue redelivers the task
    with a growing delivery number until it may be claimed.
    """


Disposal: TypeAlias = Ack | HandBack | Leave
ACK: Final = Ack()
LEAVE: Final = Leave()


async def settle(delivery: Delivery, disposal: Disposal) -> None:
    """Send a disposal to the queue.

    Raises nothing: if it is lost, the task is redelivered and found reported.
    """
    try:
        match disposal:
            case Ack():
                await delivery.ack()
            case HandBack():
                await delivery.nak(disposal.delay)
            case Leave():
                pass
    except Exception as error:  # noqa: BLE001 - the worker continues after any trouble with its connection
        _log.warning("delivery not settled", action="not-settled", subject=delivery.subject, error=repr(error))
